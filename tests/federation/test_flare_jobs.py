"""Job folders, recipes and startup kits: what is written before anything runs."""

import filecmp
import json
from pathlib import Path

import pytest
import yaml

from audits.errors import PolicyError
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
