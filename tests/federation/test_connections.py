"""What a site's process may connect to: its pinned address, and nothing else. Hooks cannot be removed, so the tests
of them run in processes of their own."""

import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flare_cells import LoneCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.communicator import Communicator, Mode

from audits import AuditKey, AuditLog, Event, Refusal, origin_of, read, verify
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.connections import MOST_LOGGED, PinnedAddress, RefusedConnections, pin_cells
from medfedvqa.federation.flare.provision import SiteBuilder, loopback_project, provision

PRELUDE = """
import asyncio, json, socket, sys, threading
from medfedvqa.federation.flare.connections import PinnedAddress
url, port, other = json.loads(sys.argv[1])
noted = []
PinnedAddress(url, noted.append).install()
"""
ALLOWED = {
    "its address": "socket.create_connection(('127.0.0.1', port)).close()",
    "its name": "socket.create_connection(('localhost', port)).close()",
    "its name in a socket": "socket.socket().connect(('localhost', port))",
    "without blocking": "asyncio.run(asyncio.open_connection('localhost', port))",
    "written as IPv6": "socket.socket(socket.AF_INET6).connect_ex(('::ffff:127.0.0.1', port))",
    "a pair of its own": "one, two = socket.socketpair(); one.send(b'x')",
    "a listener": "socket.create_server(('127.0.0.1', 0)).close()",
    "numbers": "socket.getaddrinfo('10.1.2.3', 80)",
}
FORBIDDEN = {
    "another port": "socket.create_connection(('127.0.0.1', other))",
    "another port by name": "socket.create_connection(('localhost', other))",
    "with an error code": "socket.socket().connect_ex(('127.0.0.1', other))",
    "another address": "socket.create_connection(('127.0.0.2', port))",
    "a short form": "socket.socket().connect(('127.1', other))",
    "any address": "socket.socket().connect(('0.0.0.0', other))",
    "without blocking": "asyncio.run(asyncio.open_connection('127.0.0.1', other))",
    "bytes": "socket.socket().connect((b'127.0.0.1', other))",
    "datagrams": "socket.socket(type=socket.SOCK_DGRAM).connect(('127.0.0.1', port))",
    "one datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', other))",
    "a message": "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', other))",
    "a name": "socket.getaddrinfo('secret.example.org', port)",
    "a name in bytes": "socket.getaddrinfo(b'secret.example.org', port)",
    "a name, the old way": "socket.gethostbyname('secret.example.org')",
    "a name of a number": "socket.gethostbyaddr('192.0.2.1')",
    "a name of an address": "socket.getnameinfo(('192.0.2.1', 80), 0)",
    "in a thread": "raised = []\n"
    "def connect():\n"
    "    try: socket.create_connection(('127.0.0.1', other))\n"
    "    except PermissionError as error: raised.append(error)\n"
    "thread = threading.Thread(target=connect); thread.start(); thread.join()\n"
    "raise raised[0]",
}


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A listener on loopback, to which connections may wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield server


other = server


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def in_process(code: str, *arguments: Any) -> dict[str, Any]:
    """What a process that is held to one address reports of a piece of code."""
    indented = "\n".join(f"    {line}" for line in code.splitlines())
    report = "print(json.dumps({'error': error, 'noted': len(noted), 'targets': str(noted)}))"
    caught = "except Exception as caught:\n    error = type(caught).__name__"
    text = f"{PRELUDE}error = None\ntry:\n{indented}\n{caught}\n{report}"
    command = [sys.executable, "-c", text, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("way", ALLOWED)
def test_a_process_reaches_its_pinned_address(server: socket.socket, way: str) -> None:
    """By number and by name, on either kind of socket; its own sockets and numeric look-ups stay possible."""
    found = in_process(ALLOWED[way], f"http://localhost:{port_of(server)}", port_of(server), 0)
    assert (found["error"], found["noted"]) == (None, 0), found


@pytest.mark.parametrize("way", FORBIDDEN)
def test_a_process_reaches_nothing_else(server: socket.socket, way: str) -> None:
    """Whatever Python opens or looks up: refused before a byte leaves, and noted."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as elsewhere:
        url = f"http://localhost:{port_of(server)}"
        found = in_process(FORBIDDEN[way], url, port_of(server), port_of(elsewhere))
        assert not select.select([elsewhere, server], [], [], 0)[0]
    assert found["error"] == "ConnectionForbidden" and found["noted"] >= 1, found


def test_a_server_that_redirects_a_site_leads_it_nowhere(server: socket.socket) -> None:
    """FLARE's transport follows redirects of HTTP; the connection to the other place is not made."""
    target = f"http://127.0.0.1:{port_of(server)}/"

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing on the terminal."""

    code = """
import aiohttp
async def connect():
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(url):
            pass
asyncio.run(connect())
"""
    with HTTPServer(("127.0.0.1", 0), Redirecting) as redirecting:
        threading.Thread(target=redirecting.serve_forever, daemon=True).start()
        found = in_process(code, f"http://127.0.0.1:{redirecting.server_port}", 0, 0)
        redirecting.shutdown()
    assert found["error"] == "ClientConnectorError" and found["noted"] == 1, found
    assert not select.select([server], [], [], 0)[0]


def test_a_name_that_comes_to_mean_another_address_leads_nowhere(server: socket.socket) -> None:
    """The addresses of the server's name are those that it had when the process started."""
    code = """
look_up = socket.getaddrinfo
socket.getaddrinfo = lambda host, port, *more, **named: look_up('127.0.0.2', port, *more, **named)
socket.create_connection(('localhost', port))
"""
    found = in_process(code, f"http://localhost:{port_of(server)}", port_of(server), 0)
    assert found["error"] == "ConnectionForbidden" and found["noted"] == 1, found


GUARDED = """
import argparse, json, socket, sys
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import FLClientStarterConfiger

kit, job, ports = sys.argv[2], sys.argv[4] if "-n" in sys.argv else None, json.loads(sys.argv[-1])
unused = dict(sp_scheme="http", sp_target="localhost:1", parent_url="tcp://localhost:1", parent_conn_sec="clear")
args = argparse.Namespace(workspace=kit, job_id=job, **unused)
FLClientStarterConfiger(Workspace(kit, "chest"), args, ["uid=chest", "secure_train=true"]).configure()
print(json.dumps([socket.socket().connect_ex(("localhost", port)) for port in ports[:1]]))
for port in ports[1:]:
    try:
        socket.create_connection(("localhost", port))
    except PermissionError as error:
        print(json.dumps(str(error)))
import huggingface_hub.constants
print(json.dumps(huggingface_hub.constants.HF_HUB_OFFLINE))
"""


@pytest.mark.parametrize("job", [None, "9a0427e4-902a-42e3-b4ac-9c705cce5caa"])
def test_a_sites_process_is_pinned_to_the_server_and_a_jobs_process_to_the_site(
    server: socket.socket, tmp_path: Path, job: str | None
) -> None:
    """By the guard, from kit and command line; each refuses the other's address, and the audit log says so."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as parent:
        builder = SiteBuilder({"chest": {"reader": "phantom", "organ": "chest", "methods": []}})
        kit = provision(loopback_project(["chest"], port_of(server)), [builder], tmp_path) / "chest"
        ports = [port_of(server), port_of(parent)]
        command = [sys.executable, "-c", GUARDED, "-m", str(kit)]
        if job is not None:
            ports.reverse()
            command += ["-n", job, "-p", f"tcp://localhost:{port_of(parent)}"]
        done = subprocess.run([*command, json.dumps(ports)], capture_output=True, text=True, timeout=120, check=True)
    connected, refused, offline = map(json.loads, done.stdout.splitlines()[-3:])
    assert connected == [0] and refused == "this process connects to one pinned address only" and offline is True
    refusals = [entry for entry in read(kit / "audit") if entry.event is Event.REFUSAL]
    assert [entry.job for entry in refusals] == [job]


@pytest.mark.parametrize("url", ["", "http://localhost", "http://:80", "http://localhost:port", "None"])
def test_an_address_without_host_or_port_is_refused(url: str) -> None:
    """A process without a place to connect to does not start."""
    with pytest.raises(ConfigError, match="names no host or no port"):
        PinnedAddress(url, lambda target: None)


def test_refusals_are_counted_and_few_are_logged_without_what_others_wrote(tmp_path: Path) -> None:
    """A flood of targets costs a bounded number of entries; one target costs one; no target is written."""
    key = AuditKey.at(tmp_path / "audit.key", origin_of("chest"))
    refused = RefusedConnections(AuditLog(tmp_path / "audit", "chest", key), "job")
    for number in range(1000):
        refused.note(f"tcp://secret-{number % 500}:80")
    entries = list(read(tmp_path / "audit"))
    assert refused.count == 1000 and len(entries) == MOST_LOGGED
    for number, entry in enumerate(entries, start=1):
        assert entry.event is Event.REFUSAL and entry.job == "job"
        assert entry.admission == {"code": "connection", "definition": None, "count": number}
        assert entry.reason == Refusal.CONNECTION.sentence
    assert not any("secret" in path.read_text() for path in (tmp_path / "audit").rglob("*.jsonl"))
    assert verify(tmp_path / "audit").ok


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """FLARE's cells after pinning, with what reached FLARE itself; put back after the test."""
    found = SimpleNamespace(noted=[], received=[], added=[])
    monkeypatch.setattr(Communicator, "add_connector", lambda cell, url, *more: found.added.append(url))
    found.cell = LoneCell(monkeypatch, "chest", lambda: pin_cells("http://server:8002", found.noted.append))
    found.cell.cell.register_request_cb(channel="*", topic="*", cb=found.received.append)
    found.cell.start()
    return found


def test_the_address_is_taken_out_of_a_message_before_flare_sees_it(cells: SimpleNamespace) -> None:
    """All other headers stay, and messages without it pass as they are."""
    asked = list[str]()
    cells.cell.cell._add_adhoc_connector = lambda to_cell, url: asked.append(url)
    for headers in ({MessageHeaderKey.CONN_URL: "tcp://other:1", "kept": 1}, {"kept": 2}, {}):
        # FLARE looks at the address in messages only that seem to have come by another cell.
        cells.cell.take("server", "channel", "topic", **{MessageHeaderKey.FROM_CELL: "elsewhere", **headers})
    assert [message.get_header("kept") for message in cells.received] == [1, 2, None]
    assert cells.noted == ["tcp://other:1"] and not asked


@pytest.mark.parametrize(
    "url", ["http://other:8002", "grpc://server:8002", "uds:///tmp/socket", "http://server:8002?host=x"]
)
def test_flare_adds_no_connector_to_another_address(cells: SimpleNamespace, url: str) -> None:
    """By none of its transports, also those whose sockets Python does not open; listeners and the server pass."""
    with pytest.raises(CommError, match="one pinned address"):
        Communicator.add_connector(SimpleNamespace(), url, Mode.ACTIVE)
    cells.cell.cell.root_url = "http://server:8002"
    with pytest.raises(RuntimeError, match="cannot create"):
        cells.cell.cell.change_server_root(url)
    assert cells.noted == [url, url] and not cells.added
    Communicator.add_connector(SimpleNamespace(), "http://server:8002", Mode.ACTIVE)
    Communicator.add_connector(SimpleNamespace(), "tcp://localhost:0", Mode.PASSIVE)
    assert len(cells.added) == 2 and len(cells.noted) == 2


def test_the_machines_address_is_not_sent_to_the_server(server: socket.socket) -> None:
    """FLARE looks for it by a datagram socket to the outside: refused, and no entry of the log at every start."""
    look = "from nvflare.private.fed.authenticator import _get_client_ip\nfound = _get_client_ip()"
    url = f"http://localhost:{port_of(server)}"
    done = in_process(f"{look}\nassert found == '127.0.0.1', found", url, port_of(server), 0)
    assert (done["error"], done["noted"]) == (None, 0), done
