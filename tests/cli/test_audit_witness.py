"""`medfedvqa audit witness` and `serve-witness` over HTTP on the loopback, and the verdict that follows."""

import base64
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audits import AuditKey, AuditLog, Event, Witness, origin_of
from medfedvqa.federation.site_config import site_yaml

NAME = "witness.example/w1"
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(32))
RAW = b"\x04" + PRIVATE.public_key().public_bytes_raw()
ID = hashlib.sha256(NAME.encode() + b"\n" + RAW).digest()[:4]
KEY = f"{NAME}+{ID.hex()}+{base64.b64encode(RAW).decode()}"


class Handler(BaseHTTPRequestHandler):
    """Cosigns every checkpoint, as a witness that sees the log for the first time."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert self.path == "/prefix/add-checkpoint" and body.startswith("old 0\n\nmedfedvqa/audit/chest\n")
        text = body.split("\n\n")[1] + "\n"
        signature = PRIVATE.sign(f"cosignature/v1\ntime 1796000000\n{text}".encode())
        line = base64.b64encode(ID + (1796000000).to_bytes(8, "big") + signature).decode()
        content = f"\u2014 {NAME} {line}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/prefix/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_verify_counts_the_witness_whose_key_is_given(medfedvqa: Callable[..., Any], tmp_path: Path, url: str) -> None:
    """With the file `keys` that holds the witness's key as its operator gives it; without it nobody vouches."""
    folder = tmp_path / "chest"
    folder.mkdir()
    (folder / "site.yml").write_text(site_yaml(reader="phantom", organ="chest", methods=[]))
    log = AuditLog(folder / "audit", "chest", AuditKey.at(folder / "audit.key", origin_of("chest")))
    log.append(Event.OPEN, job="j")
    log.append(Event.CLOSE, job="j")
    log.close()
    site = str(folder / "site.yml")
    done = medfedvqa("audit", "witness", "--site", site, "--url", url, "--key", KEY)
    assert done.returncode == 0 and f"2 entries of the log are cosigned by {NAME}" in done.stdout, done.stderr
    (tmp_path / "keys").write_text(f"{KEY}\n")
    verify = "audit", "verify", str(folder / "audit")
    assert "cosigned by 1 party" in medfedvqa(*verify, "--against", str(tmp_path / "keys")).stdout
    assert "no checkpoint of this log was found with others" in medfedvqa(*verify).stdout
    closed = ("http://127.0.0.1:1/", "does not answer")
    for wrong, sentence in (
        ("ftp://x/", "must be a URL"),
        ("http://a:b@127.0.0.1/", "without user and password"),
        closed,
    ):
        done = medfedvqa("audit", "witness", "--site", site, "--url", wrong, "--key", KEY)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and sentence in done.stderr


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], str, str]]]:
    """Starts the witness of another hospital as its administrator does; gives process, address and key."""
    with contextlib.ExitStack() as ending:

        def begin() -> tuple[subprocess.Popen[str], str, str]:
            words = str(tmp_path / "witness"), "--name", "other.example/w", "--logs", str(tmp_path / "logs")
            command = [sys.executable, "-c", "from medfedvqa.cli import main; main()", "audit", "serve-witness", *words]
            environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            ending.callback(process.wait)
            ending.callback(process.kill)
            assert process.stdout is not None
            ending.callback(process.stdout.close)
            url, key = process.stdout.readline().strip(), process.stdout.readline().split()[-1]
            assert process.stdout.readline().startswith("This witness cosigns 1 log.")
            return process, url, key

        yield begin


def test_a_hospital_cosigns_anothers_log(medfedvqa: Any, tmp_path: Path, start: Any) -> None:
    """Also after it was killed; it refuses a log that was cut, and one whose key it does not have."""
    folder = tmp_path / "chest"
    folder.mkdir()
    (folder / "site.yml").write_text(site_yaml(reader="phantom", organ="chest", methods=[]))
    log = AuditLog(folder / "audit", "chest", AuditKey.at(folder / "audit.key", origin_of("chest")))
    log.append(Event.OPEN, job="j")
    log.close()
    early = tmp_path / "early" / "chest"
    shutil.copytree(folder, early)
    site = "--site", str(folder / "site.yml")
    (tmp_path / "logs").write_text(medfedvqa("audit", "key", *site).stdout)
    process, url, key = start()
    ask = lambda site: medfedvqa("audit", "witness", *site, "--url", url, "--key", key)  # noqa: E731
    assert "1 entry of the log is cosigned by other.example/w" in ask(site).stdout
    log = AuditLog(folder / "audit", "chest", AuditKey.at(folder / "audit.key", origin_of("chest")))
    log.append(Event.CLOSE, job="j")
    log.close()
    assert "2 entries of the log are cosigned by other.example/w" in ask(site).stdout
    process.kill()
    process.wait()
    assert "does not answer" in ask(site).stderr
    _, url, same = start()
    assert same == key and "2 entries" in ask(site).stdout
    assert "was shortened or rolled back" in ask(("--site", str(early / "site.yml"))).stderr
    (early / "audit.key").unlink()
    shutil.rmtree(early / "audit")
    log = AuditLog(early / "audit", "chest", AuditKey.at(early / "audit.key", origin_of("chest")))
    log.append(Event.OPEN, job="j")
    log.close()
    assert "knows this log by another key" in ask(("--site", str(early / "site.yml"))).stderr
    (tmp_path / "keys").write_text(f"{key}\n")
    verify = "audit", "verify", str(folder / "audit"), "--against", str(tmp_path / "keys")
    assert "cosigned by 1 party" in medfedvqa(*verify).stdout


def test_a_witness_says_what_it_lacks(medfedvqa: Callable[..., Any], tmp_path: Path) -> None:
    """No keys of logs, a damaged one, another name than its folder's, a name with a space."""
    words = "audit", "serve-witness", str(tmp_path / "witness"), "--logs", str(tmp_path / "logs"), "--name"
    expected = [
        ("", "is missing or empty"),
        ("chest", "a verifier key must have the form NAME+ID+KEY"),
        (KEY, "without spaces"),
    ]
    for content, sentence in expected:
        (tmp_path / "logs").write_text(content)
        done = medfedvqa(*words, "a b")
        assert done.returncode == 1 and sentence in done.stderr and len(done.stderr.splitlines()) == 1
    Witness(tmp_path / "witness", AuditKey.at(tmp_path / "witness" / "witness.key", "first"))
    assert "has another name" in medfedvqa(*words, "second").stderr
