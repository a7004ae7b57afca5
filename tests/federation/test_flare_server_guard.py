"""A provisioned federation with an honest server: one refused job hurts neither the server nor the next job."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from phantoms import PATIENCE, Phantoms, short_job

from audits import Event, read
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job

pytestmark = pytest.mark.slow

SITES = ("chest", "head")
JOB = short_job(options={"blocks": 2})
ADHOC = json.dumps({"allow_adhoc_conns": True})


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    return phantoms(SITES, methods=["prompt_pfl"])


def files_named(federation: Phantoms, name: str) -> set[str]:
    """Where such files are in the kits of server and sites, relative to each."""
    kits = (federation.kits / party for party in (SERVER, *SITES))
    return {path.relative_to(kit).as_posix() for kit in kits for path in kit.rglob(name)}


def assert_a_clean_job_ends(federation: Phantoms, folder: Path) -> None:
    """Within its deadline, and no site had to refuse anything."""
    job_id = federation.run(JOB, folder)
    assert federation.status(job_id) == "FINISHED:COMPLETED"
    for site in SITES:
        log = list(read(federation.kits / site / "audit"))
        assert not any(entry.event is Event.REFUSAL and entry.job in (job_id, None) for entry in log)


def test_a_job_that_configures_the_transport_is_refused_and_the_next_one_ends(
    federation: Phantoms, tmp_path: Path
) -> None:
    """The server refuses it before any site sees it, and keeps no file of it."""
    export_job(JOB, tmp_path / "hostile")
    (tmp_path / "hostile" / "app" / "config" / "comm_config.json").write_text(ADHOC)
    job_id = federation.submit(tmp_path / "hostile")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:FAILED_TO_RUN"
    for party in (SERVER, *SITES):
        assert not (federation.kits / party / job_id).exists()
    assert files_named(federation, "comm_config.json") == {"local/comm_config.json"}
    for site in SITES:
        assert job_id not in (federation.kits / site / "log.txt").read_text()
    assert_a_clean_job_ends(federation, tmp_path / "clean")


@pytest.mark.release
def test_a_file_that_a_job_left_in_the_servers_workspace_has_no_effect(federation: Phantoms, tmp_path: Path) -> None:
    """Wherever FLARE would find it first, as if an earlier version had kept a refused job."""
    for folder in ("0", "left/app_server/config", "zz/config"):
        left = federation.kits / SERVER / folder
        left.mkdir(parents=True)
        (left / "comm_config.json").write_text(ADHOC)
        (left / "resources.json").write_text(json.dumps({"allow_log_streaming": True, "decomposer_module": "none"}))
    assert_a_clean_job_ends(federation, tmp_path / "clean")
