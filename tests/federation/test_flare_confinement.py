"""Code of a job that reaches beyond its process, in a provisioned federation: each attempt is refused and logged."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from phantoms import PATIENCE, Phantoms, short_job, vault_of, wait_for
from plug_in import built, forget_plug_ins, unpacked

from audits import Event, verify
from medfedvqa import plugins
from medfedvqa.federation.flare.provision import SERVER

pytestmark = pytest.mark.slow
SITES = ("chest", "head", "abdomen")
SOURCE, NAME = Path(__file__).with_name("reaching.py"), "own-late"
OPTIONS = {"tuning": "classifier", "hidden": 8, "weighting": "uniform", "rounds": 2}
KINDS = {
    *(
        "the network: folders of a network must be mounted",
        "another process's socket",
        "another process",
        "a call of the kernel",
        "a file of the courier",
    ),
    "a file outside the site's folders",
}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the installed distribution, which this process allows and can import."""
    wheel = built(tmp_path, "1.0", {"reaching.py": SOURCE.read_bytes()}, "reaching = reaching:Reaching")
    folder = unpacked(wheel, tmp_path / "target")
    forget_plug_ins(monkeypatch, folder)
    monkeypatch.delitem(sys.modules, "reaching", raising=False)
    plugins.allow(plugins.pinned(NAME))
    yield folder
    sys.modules.pop("reaching", None)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Sockets of this machine that anybody of the account reaches."""
    with ExitStack() as opened:

        def listener(family: int, kind: int, address: Any) -> Any:
            made = opened.enter_context(socket.socket(family, kind))
            made.bind(address)
            if kind == socket.SOCK_STREAM:
                made.listen(64)
            return made.getsockname()

        stream, abstract = socket.SOCK_STREAM, f"\0reached-{os.getpid()}"
        (_, port, *_) = listener(socket.AF_INET6, stream, ("::", 0))  # of both versions
        listener(socket.AF_UNIX, stream, abstract)
        paths = [str(tmp_path / name) for name in ("service", "datagrams")]
        listener(socket.AF_UNIX, stream, paths[0])
        listener(socket.AF_UNIX, socket.SOCK_DGRAM, paths[1])
        yield {"port": port, "abstract": abstract, "service": paths[0], "datagrams": paths[1]}


def note_of(federation: Phantoms, listening: dict[str, Any], job: str) -> dict[str, Any]:
    """What the attempts need to know of this machine."""
    others = dict(zip(SITES, (*SITES[1:], SITES[0]), strict=True))
    vaults = {site: vault_of(federation.kits / site).pid for site in SITES}
    couriers = {site: federation.processes(site, job=False)[0].pid for site in SITES}
    processes = {site: {"the courier": couriers[site], "another vault": vaults[others[site]]} for site in SITES}
    (server,) = federation.processes(SERVER, job=False)
    ports = [each.laddr.port for each in server.net_connections() if each.status == "LISTEN"]
    places = {"kits": str(federation.kits), "job": job, "others": others}
    return listening | places | {"server": ports[0], "processes": processes}


def findings(federation: Phantoms, site: str, job_id: str) -> list[str]:
    return [str(entry.reason) for entry in federation.log(site, job_id) if entry.event is Event.FINDING]


def test_what_code_of_a_job_tries_beyond_its_process_is_refused_by_the_kernel_and_logged(
    phantoms: Callable[..., Phantoms], target: Path, listening: dict[str, Any], tmp_path: Path
) -> None:
    """Sockets of all families, names, the courier's and other vaults' processes and files, the site's own `site.yml`:
    each fails with an error, the log has each kind once, and the job ends as any other. The same attempts succeed in a
    process of the same account that nothing confines. A job of the project's own code leaves no finding."""
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))
    facts = {"plugins": plugins.allowed(), "methods": ["reaching", "fedavg"], "repeats": 100}
    federation = phantoms(SITES, environment={"PYTHONPATH": path}, **facts)
    honest = federation.run(short_job("fedavg", OPTIONS), tmp_path / "honest")
    job_id = federation.submit_job(short_job("reaching", OPTIONS), tmp_path / "job")
    note = note_of(federation, listening, job_id)
    (tmp_path / "note.json").write_text(json.dumps(note))
    (tmp_path / "note.json").rename(target / "note.json")
    for job in (honest, job_id):
        assert federation.wait(job, PATIENCE) == "FINISHED:COMPLETED"
    for site in SITES:
        wait_for(lambda site=site: federation.log(site, job_id)[-1].event is Event.CLOSE)
        found = json.loads((federation.kits / site / "state" / "attempts.json").read_text())
        assert len(found) > 40 and {name: came for name, came in found.items() if came == "open"} == {}
        reached = [text.partition(" tried to reach ")[2] for text in findings(federation, site, job_id)]
        assert len(reached) == len(KINDS) and {*reached} == KINDS
        assert findings(federation, site, honest) == [] and verify(federation.kits / site / "audit").ok

    # Without resolver, vsock, version 6 or a public network, a machine refuses these by itself.
    command = [sys.executable, str(SOURCE), str(target / "note.json"), SITES[0]]
    free = json.loads(subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout)
    lacking = {"a name", "AF_VSOCK", "AF_PACKET", "loopback of version 6", "a public address"}
    assert {name: came for name, came in free.items() if came != "open" and name not in lacking} == {}
