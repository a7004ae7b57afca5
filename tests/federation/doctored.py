"""Really provisioned kits, and what `medfedvqa doctor` says of them."""

import http.server
import json
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from typer.testing import CliRunner

from audits import AuditKey, AuditLog, Event, origin_of
from medfedvqa.cli import app
from medfedvqa.federation.flare.provision import SiteBuilder, loopback_project, provision
from medfedvqa.federation.live_processes import COURIER
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from privacy import Ledger, Limits, PlannedTask, SampledGaussian

SITE = "chest"
TASK = SampledGaussian(0.5, 4.0, 10)
"""What a charged task did."""
FACTS = {"reader": "phantom", "organ": SITE, "methods": ["prompt_pfl"]}
PLACES = {
    "state": "../state",
    "audit": "../audit",
    "ledger": "../ledger",
    "identity": "../identity.key",
    "audit_key": "../audit.key",
}
DP = {"require_dp": True, "max_epsilon": 8.0, "delta": 1e-3}
"""A policy with a budget."""
PINS = {name: f"{number:064x}" for number, name in enumerate(("abdomen", "head", "pelvis"), 1)}
"""Fingerprints of other sites."""


def provisioned(folder: Path, port: int = 8002) -> Path:
    """The folder with the kits of a site, its server and an administrator."""
    builder = SiteBuilder({SITE: FACTS}, storage=str(folder / "storage"))
    return provision(loopback_project([SITE], port), [builder], folder / "workspace")


def edit_site(kit: Path, **changes: Any) -> SiteConfig:
    """Writes the kit's site.yml with these changes."""
    path = kit / "local" / "site.yml"
    path.write_text(site_yaml(**{**FACTS, **PLACES, **changes}))
    return load_site_config(path, SITE)


def edited(name: str, **changes: Any) -> Callable[[Path], None]:
    """Changes values of a JSON file in a kit's folder `local`."""

    def edit(kit: Path) -> None:
        path = kit / "local" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "warnings": (edited("resources.json.default", class_list_enforcement_mode="warn"), "class allow-list"),
    "logs": (edited("resources.json.default", allow_log_streaming=True), "log streaming"),
    "validator": (edited("resources.json.default", app_validator=None), "job validator"),
    "launcher": (edited("resources.json.default", components=[]), "job launcher"),
    "more": (lambda kit: (kit / "local" / "more__p_resources.json").write_text("{}"), "other components"),
    "code": (lambda kit: (kit / "local" / "custom").mkdir(), "no code"),
    "transport": (edited("comm_config.json", allow_adhoc_conns=True), "transport"),
    "rights": (edited("authorization.json", permissions={"project_admin": "any"}), "rights"),
}
"""What breaks a kit of a site or of a server, and the line that says so."""


def edit_json(path: Path, *keys: str | int, value: Any) -> None:
    """Replaces one value of a JSON file."""
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(content))


def checks_of(kit: Path, *options: str) -> list[dict[str, Any]]:
    """All lines of the command, whose exit code must agree with them."""
    result = CliRunner().invoke(app, ["doctor", str(kit), "--json", *options])
    assert result.stdout, result.exception
    report = json.loads(result.stdout)
    sound = all(check["ok"] for check in report["checks"])
    assert (result.exit_code, report["ok"]) == (0 if sound else 1, sound)
    return list(report["checks"])


def problems(kit: Path, *options: str, state: str = "failed") -> dict[str, str]:
    """The problem of each failing line, or line with a warning, by the line's name; each says what to do."""
    lines = [check for check in checks_of(kit, *options) if check["state"] == state]
    assert all(line["problem"] and line["remedy"] for line in lines)
    return {line["name"]: line["problem"] for line in lines}


def charge(kit: Path, tasks: int = 1, end: bool = True, **policy: Any) -> None:
    """A job that charges the first of its tasks, and keeps the rest unless it ends."""
    config, limits = edit_site(kit, **{**DP, **policy}), Limits(None, 1e-3)
    with closing(Ledger(config.ledger, SITE)) as ledger, closing(log_of(kit)) as log:
        ledger.reserve("job-1", "prompt_pfl", ["a"], [PlannedTask("train", n, (TASK,)) for n in range(1, 3)], limits)
        for number in range(1, tasks + 1):
            ledger.begin("job-1", "train", number, limits)
        if end:
            ledger.free("job-1")
        log.append(Event.RECOVERED)


def log_of(kit: Path) -> AuditLog:
    """The site's log, to be closed."""
    (kit / "audit").mkdir(mode=0o700, exist_ok=True)
    return AuditLog(kit / "audit", SITE, AuditKey.at(kit / "audit.key", origin_of(SITE)))


def job_left_open(kit: Path) -> None:
    with closing(log_of(kit)) as log:
        log.append(Event.OPEN, job="job-0")
        log.append(Event.OPEN, job="job-1")
        log.append(Event.CLOSE, job="job-0")


def log_damaged(kit: Path) -> None:
    job_left_open(kit)
    path = kit / "audit" / "log.jsonl"
    path.write_text(path.read_text().replace("job-0", "job-9", 1))


def hold(kit: Path, job: str | None) -> subprocess.Popen[str]:
    """A process that lives as FLARE's does at the site, or as the vault's does that works on a job, and waits."""
    held = f"hold(kit / {COURIER!r})" if job is None else f"live.working_on(kit / 'audit', {job!r})"
    code = (
        "import sys; from pathlib import Path; from medfedvqa.federation import live_processes as live\n"
        "from medfedvqa.atomic_files import hold\n"
        f"kit = Path({str(kit)!r}); held = {held}\n"
        "if hasattr(held, '__enter__'): held.__enter__()\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def certify(site_kits: Path, site_kit: Path, begins: int, days: int) -> None:
    """Gives the kit another certificate of the federation's root, by when it begins and ends in days from now."""
    (state,) = site_kits.parents[1].glob("**/state/cert.json")
    root = json.loads(state.read_text())
    old = x509.load_pem_x509_certificate((site_kit / "startup" / "client.crt").read_bytes())
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number + 1)
    builder = builder.not_valid_before(now + timedelta(days=begins)).not_valid_after(now + timedelta(days=days))
    new = builder.sign(load_pem_private_key(root["root_pri_key"].encode(), None), SHA256())
    (site_kit / "startup" / "client.crt").write_bytes(new.public_bytes(Encoding.PEM))


@contextmanager
def listening(startup: Path, stem: str, port: int, ahead: timedelta | None) -> Iterator[None]:
    """A server behind mutual TLS with this key and certificate, whose clock is ahead; None: it never says the time."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(404)
            if ahead is not None:
                self.send_header("Date", format_datetime(datetime.now(UTC) + ahead, usegmt=True))
            self.end_headers()

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that leaves during the handshake is what some tests are about."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(startup / "rootCA.pem")
    context.load_cert_chain(startup / f"{stem}.crt", startup / f"{stem}.key")
    with Server(("127.0.0.1", port), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        with serving(server):
            yield


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """The server answers in a thread of its own while the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
