"""A provisioned federation whose server is hostile: it tells sites to connect to a listener of its choice."""

import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from taps import add_component, disarm

from audits import Entry, Event, Refusal, read, verify
from medfedvqa.federation.flare.connections import MOST_LOGGED
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


class SteeringFederation(LoopbackFederation):
    """Its server has no guard, and `steering` in its processes."""

    address = ""

    def start(self, name: str) -> None:
        if name == SERVER:
            disarm(self.kits / name)
            given = {"address": self.address, "sites": list(SITES)}
            add_component(self.kits / name, {"id": "steering", "path": "steering.SteeringServer", "args": given})
        super().start(name)


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    """Listens, and accepts nobody: a connection to it waits to be accepted."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener


@pytest.fixture(scope="module")
def federation(
    tmp_path_factory: pytest.TempPathFactory, random_backbone: Path, listener: socket.socket
) -> Iterator[SteeringFederation]:
    folder = tmp_path_factory.mktemp("federation")
    paths = {}
    for name in SITES:
        paths[name] = folder / f"{name}.yml"
        places = {place: f"../{place}" for place in ("state", "audit", "ledger")}
        facts = {"reader": "phantom", "organ": name, "methods": ["prompt_pfl"], **places}
        paths[name].write_text(site_yaml(**facts, backbones={BACKBONE: str(random_backbone)}))
    python = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    federation = SteeringFederation(folder, paths, {"PYTHONPATH": os.pathsep.join(python)})
    federation.address = f"127.0.0.1:{listener.getsockname()[1]}"
    with federation:
        yield federation


@pytest.fixture(scope="module")
def job_id(federation: SteeringFederation, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job that ran to its end, while the server also was left a file that makes it offer connections of its own."""
    left = federation.kits / SERVER / "left" / "config"
    left.mkdir(parents=True)
    (left / "comm_config.json").write_text(json.dumps({"allow_adhoc_conns": True}))
    folder = tmp_path_factory.mktemp("job") / "job"
    export_job(JOB, folder)
    job_id = federation.submit(folder)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    return job_id


def refusals(federation: SteeringFederation, site: str) -> list[Entry]:
    entries = read(federation.kits / site / "audit")
    return [entry for entry in entries if entry.event is Event.REFUSAL]


def test_no_site_connects_to_where_a_hostile_server_sends_it(job_id: str, listener: socket.socket) -> None:
    """Neither the site's own process nor a job's, by none of FLARE's transports; and the job still ends."""
    connected, _, _ = select.select([listener], [], [], 0)
    assert not connected


@pytest.mark.parametrize("site", SITES)
def test_the_refusals_are_in_the_sites_log_without_what_the_server_wrote(
    federation: SteeringFederation, job_id: str, site: str
) -> None:
    """Few entries, with a code and no address; the site's own process drops the address for its jobs as well."""
    found = refusals(federation, site)
    assert 0 < len(found) <= MOST_LOGGED and {entry.job for entry in found} == {None}
    for entry in found:
        assert entry.admission is not None and entry.admission["code"] == Refusal.CONNECTION
        assert entry.reason == Refusal.CONNECTION.sentence
    folder = federation.kits / site / "audit"
    assert not any(federation.address in path.read_text() for path in folder.rglob("*.jsonl"))
    assert verify(folder).ok
