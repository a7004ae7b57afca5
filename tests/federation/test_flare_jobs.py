"""Job folders, recipes and startup kits: what is written before anything runs."""

import filecmp
import json
import shutil
from pathlib import Path

import pytest
import yaml
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from typer.testing import CliRunner

from audits.errors import PolicyError
from medfedvqa.cli import app
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.provision import (
    ADMIN,
    EXECUTOR,
    SiteBuilder,
    loopback_project,
    prepare_simulation,
    provision,
)
from medfedvqa.federation.flare.recipe import export_job, export_status_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_terms import Terms
from medfedvqa.federation.site_config import load_site_config, site_yaml

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
