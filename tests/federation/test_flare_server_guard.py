"""A provisioned federation with an honest server: one refused job hurts neither the server nor the next job."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from audits import Event, read
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import site_yaml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = ("chest", "head")
BACKBONE = "medclip@random"
JOB = JobSpec.from_dict(
    {
        "method": "prompt_pfl",
        "options": {
            **{"rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "blocks": 2, "hidden": 16},
            "local_baseline": False,
        },
        "data": "phantom",
        "backbone": BACKBONE,
    }
)
PATIENCE = 300.0  # seconds
ADHOC = json.dumps({"allow_adhoc_conns": True})


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[LoopbackFederation]:
    folder = tmp_path_factory.mktemp("federation")
    paths = {}
    for name in SITES:
        paths[name] = folder / f"{name}.yml"
        places = {place: f"../{place}" for place in ("state", "audit", "ledger")}
        facts = {"reader": "phantom", "organ": name, "methods": ["prompt_pfl"], **places}
        paths[name].write_text(site_yaml(**facts, backbones={BACKBONE: str(random_backbone)}))
    with LoopbackFederation(folder, paths) as federation:
        yield federation


def files_named(federation: LoopbackFederation, name: str) -> set[str]:
    """Where such files are in the kits of server and sites, relative to each."""
    kits = (federation.kits / party for party in (SERVER, *SITES))
    return {path.relative_to(kit).as_posix() for kit in kits for path in kit.rglob(name)}


def assert_a_clean_job_ends(federation: LoopbackFederation, folder: Path) -> None:
    """Within its deadline, and no site had to refuse anything."""
    export_job(JOB, folder)
    job_id = federation.submit(folder)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    for site in SITES:
        log = list(read(federation.kits / site / "audit"))
        assert not any(entry.event is Event.REFUSAL and entry.job in (job_id, None) for entry in log)


def test_a_job_that_configures_the_transport_is_refused_and_the_next_one_ends(
    federation: LoopbackFederation, tmp_path: Path
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
def test_a_file_that_a_job_left_in_the_servers_workspace_has_no_effect(
    federation: LoopbackFederation, tmp_path: Path
) -> None:
    """Wherever FLARE would find it first, as if an earlier version had kept a refused job."""
    for folder in ("0", "left/app_server/config", "zz/config"):
        left = federation.kits / SERVER / folder
        left.mkdir(parents=True)
        (left / "comm_config.json").write_text(ADHOC)
        (left / "resources.json").write_text(json.dumps({"allow_log_streaming": True, "decomposer_module": "none"}))
    assert_a_clean_job_ends(federation, tmp_path / "clean")
