"""`medfedvqa audit witness` over HTTP on the loopback, and the verdict that follows."""

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audits import AuditKey, AuditLog, Event, origin_of
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
    for wrong, sentence in (("ftp://x/", "is a URL"), ("http://a:b@127.0.0.1/", "without a user"), closed):
        done = medfedvqa("audit", "witness", "--site", site, "--url", wrong, "--key", KEY)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and sentence in done.stderr
