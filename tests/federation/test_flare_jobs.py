"""Job folders, recipes and startup kits: what is written before anything runs."""

import filecmp
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from doctored import checks_of
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from typer.testing import CliRunner

from audits import Refusal
from audits.errors import PolicyError
from audits.policy import SitePolicy
from medfedvqa.cli import app
from medfedvqa.core import method_names
from medfedvqa.errors import ConfigError
from medfedvqa.federation.admission import policy_objection
from medfedvqa.federation.flare.kit_contents import POLICIES
from medfedvqa.federation.flare.provision import (
    ADMIN,
    EXECUTOR,
    SiteBuilder,
    loopback_project,
    prepare_simulation,
    provision,
)
from medfedvqa.federation.flare.recipe import export_job, export_status_job
from medfedvqa.federation.job import JobSpec, Terms
from medfedvqa.federation.shipped_jobs import shipped_job
from medfedvqa.federation.site_config import DEFAULTS, load_site_config, site_yaml

JOBS = Path(__file__).parents[2] / "nvflare_jobs"


def same(one: Path, other: Path) -> bool:
    """The same files with the same content."""
    names = [{path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} for folder in (one, other)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])


def test_the_committed_question_for_budget_and_head_is_what_the_recipe_exports_today(tmp_path: Path) -> None:
    """If this fails: write it anew with `export_status_job`."""
    export_status_job(tmp_path / "site_status")
    assert same(JOBS / "site_status", tmp_path / "site_status")


def test_an_exported_job_is_configuration_only_and_names_no_path(tmp_path: Path) -> None:
    """No code travels with a job, and nothing in it points to a place on a site."""
    export_job(JobSpec(method="prompt_pfl"), tmp_path / "job")
    files = sorted(path.relative_to(tmp_path / "job").as_posix() for path in (tmp_path / "job").rglob("*.*"))
    assert files == ["app/config/config_fed_client.json", "app/config/config_fed_server.json", "meta.json"]
    assert not any("/" in (tmp_path / "job" / name).read_text() for name in files)


def test_a_job_that_names_its_sites_is_deployed_to_these_alone(tmp_path: Path) -> None:
    """FLARE's `deploy_map` is server and named sites with one app; without names it is all that are connected. FLARE's
    own validator takes both."""
    terms = Terms.fresh("SHA256" + ":00" * 32, ("head", "abdomen"))
    for named, expected in ((terms, ["server", "abdomen", "head"]), (None, ["@ALL"])):
        spec = JobSpec(method="fedavg", min_sites=2, terms=named)
        export_job(spec, tmp_path / "jobs" / f"to-{len(expected)}" / "fedavg")
        place = tmp_path / "jobs" / f"to-{len(expected)}"
        assert json.loads((place / "fedavg" / "meta.json").read_text())["deploy_map"] == {"app": expected}
        archive = shutil.make_archive(str(tmp_path / place.name), "zip", place)
        valid, error, _ = JobMetaValidator().validate("fedavg", Path(archive).read_bytes())
        assert valid, error


def test_a_job_for_fewer_sites_than_it_needs_is_not_exported(site_kits: Path, tmp_path: Path) -> None:
    """FLARE would refuse it when it is submitted."""
    command = ["jobs", "export", "fedavg", "--out", str(tmp_path / "job"), "--kit", str(site_kits / ADMIN)]
    result = CliRunner().invoke(app, [*command, "--site", "chest", "--min-sites", "2"])
    assert result.exit_code == 1 and "needs at least 2 sites, and --site names 1" in str(result.exception)
    assert not (tmp_path / "job").exists()


def test_an_export_does_not_touch_a_folder_that_exists(tmp_path: Path) -> None:
    """The user's files stay as they are."""
    with pytest.raises(ConfigError, match="exists already"):
        export_job(JobSpec(method="prompt_pfl"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_committed_project_provisions_kits_that_run_only_this_projects_jobs(tmp_path: Path) -> None:
    """Every party's allow-list names one class; sites stream no logs and their job processes open no connection."""
    project = yaml.safe_load((JOBS / "provision" / "project.yml").read_text())
    kits = provision(project, [], tmp_path)
    for name in ("abdomen", "chest", "head"):
        local = kits / name / "local"
        resources = json.loads((local / "resources.json.default").read_text())
        assert resources["class_allow_list"] == [EXECUTOR]
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert resources["allow_log_streaming"] is False
        components = {part["id"]: part["path"] for part in resources["components"]}
        assert "site_log_streamer" not in components
        assert components["process_launcher"] == "medfedvqa.federation.flare.launcher.SiteJobLauncher"
        assert json.loads((local / "comm_config.json").read_text())["backbone_conn_gen"] == 1
        config = load_site_config(local / "site.yml", name)
        assert (config.data.reader, config.data.organ) == ("phantom", name)
        assert config.audit.resolve() == kits / name / "audit"
    assert (kits / ADMIN / "startup").is_dir()


def test_a_site_that_has_not_filled_in_its_form_refuses_to_start(tmp_path: Path) -> None:
    """The error says what is missing."""
    kits = provision(loopback_project(["chest"], 8002), [SiteBuilder()], tmp_path)
    with pytest.raises((ConfigError, PolicyError), match="reader"):
        load_site_config(kits / "chest" / "local" / "site.yml", "chest")


def test_a_simulation_does_not_start_on_the_state_of_another(tmp_path: Path) -> None:
    """It would go on from there instead of beginning anew."""
    path = tmp_path / "site.yml"
    path.write_text(site_yaml(reader="phantom", organ="chest", methods=["prompt_pfl"]))
    (tmp_path / "state").mkdir()
    prepare_simulation(tmp_path / "first", {"chest": path})
    (tmp_path / "state" / "simulate_job.pt").touch()
    with pytest.raises(ConfigError, match="site 'chest' keeps the state of another run"):
        prepare_simulation(tmp_path / "second", {"chest": path})


def policies_of(kits: Path) -> dict[str, SitePolicy]:
    """The policies of the sites of the committed project, from the kits that it provisions."""
    names = ("abdomen", "chest", "head")
    return {name: load_site_config(kits / name / "local" / "site.yml", name).policy for name in names}


def test_the_committed_project_refuses_the_jobs_that_its_comment_names_and_the_doctor_says_so(tmp_path: Path) -> None:
    """By the policies in the kits and what each job declares: the comment names exactly the refused methods, each kind
    that the policies lack stands there, and `medfedvqa doctor` of the administrator's kit names them as well. A kit
    without the policies says that it has none."""
    path = JOBS / "provision" / "project.yml"
    kits = provision(yaml.safe_load(path.read_text()), [], tmp_path)
    refused = {
        method: objection
        for method in method_names()
        if (objection := policy_objection(policies_of(kits)["chest"], shipped_job(method)))
    }
    (comment,) = re.findall(r"# Refused, since (.*?)The README", path.read_text(), re.DOTALL)
    assert {word for word in re.findall(r"\w+", comment) if word in method_names()} == refused.keys()
    kinds = {spec.kind for method in refused for task in shipped_job(method).exchange().tasks for spec in task.up}
    assert set(re.findall(r"`(\w+)`", comment)) == {kind.value for kind in kinds - {*policies_of(kits)["chest"].kinds}}
    assert not refused.keys() & {"prompt_pfl", "fedavg", "fedp3", "feddat", "local"}
    shown = [check["value"] for check in checks_of(kits / ADMIN) if check["name"] == "shipped jobs"]
    assert [set(re.findall(r"\w+", line)) & {*method_names()} for line in shown] == [refused.keys()]
    assert "abdomen, chest, head would refuse" in shown[0] and Refusal.METHOD.sentence in shown[0]
    (kits / ADMIN / "local" / POLICIES).unlink()
    assert [c["value"] for c in checks_of(kits / ADMIN) if c["name"] == "shipped jobs"][0].startswith(
        "this kit does not"
    )


@pytest.mark.parametrize("method", method_names())
def test_the_readme_of_a_shipped_job_says_all_that_a_hospital_has_to_allow(method: str) -> None:
    """A provisioned policy with the methods and kinds of its first line takes the job, and with one of them less
    refuses it; peers are named where the job aggregates on shares."""
    line, *_ = (JOBS / method / "README.md").read_text().splitlines()
    named = re.findall(r"`(\w+)` among `policy\.(methods|kinds)`", line)
    assert (method, "methods") in named and ("`peers`" in line) == bool(shipped_job(method).secagg)

    def objection(entries: list[tuple[str, str]]) -> object:
        methods = [name for name, key in entries if key == "methods"]
        kinds = [*DEFAULTS["kinds"], *(name for name, key in entries if key == "kinds")]
        return policy_objection(SitePolicy.from_mapping({"methods": methods, "kinds": kinds}), shipped_job(method))

    assert objection(named) is None
    assert all(objection([entry for entry in named if entry != less]) for less in named)
