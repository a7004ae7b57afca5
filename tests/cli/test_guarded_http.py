"""The guarded client for HTTP, as `ingest fetch` uses it: against real servers on the loopback that lie."""

import base64
import gzip
import socket
import threading
import tracemalloc
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET

import psutil
import pytest
from lying_archive import attempt, liar

from medfedvqa.dicomweb import FetchOutcome
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.guarded_http import AnswerLimits, AnswerRefused, guarded_session

MATCH = 200, "application/dicom+json", b"[]"


@pytest.mark.parametrize("other", ["port", "scheme", "host"])
def test_no_redirect_leads_to_an_address_that_was_not_typed(tmp_path: Path, other: str) -> None:
    """Neither to another port, scheme or host: nothing is sent there, and the sentence does not repeat where."""
    asked = list[dict[str, str]]()
    with liar(lambda _: MATCH, asked) as elsewhere:
        port = elsewhere.rpartition(":")[2]
        place = {"port": elsewhere, "scheme": f"https://127.0.0.1:{port}", "host": f"http://localhost:{port}"}[other]
        redirect = 302, f"{place}/SECRET", b""
        with liar(lambda _: redirect) as url, pytest.raises(DataError, match="redirects to another") as caught:
            attempt(url, tmp_path)
    assert not asked and "SECRET" not in str(caught.value)


def test_a_redirect_within_the_archive_is_followed_and_does_not_go_on_for_ever(tmp_path: Path) -> None:
    """To the same scheme, host and port; a circle ends."""
    paths = list[str]()

    def answer(path: str) -> tuple[int, str, bytes]:
        paths.append(path)
        return MATCH if path.startswith("/moved") else (302, f"/moved{path}", b"")

    with liar(answer) as url:
        assert attempt(url, tmp_path) == {FetchOutcome.NONE: 1} and any(path.startswith("/moved") for path in paths)
    with liar(lambda _: (302, "/again", b"")) as url, pytest.raises(DataError, match="does not answer"):
        attempt(url, tmp_path)


@pytest.mark.parametrize("content", [b"[ ", b"[]"])
def test_an_archive_that_answers_for_ever_is_left_when_its_time_is_over(tmp_path: Path, content: bytes) -> None:
    """A byte now and then: it is never silent, and what it sent until then is not taken for the answer."""
    answer, late = (200, "application/dicom+json", content), pytest.raises(DataError, match="not complete after 1 s")
    with liar(lambda _: answer, pause=0.05) as url, late:
        attempt(url, tmp_path, limits=AnswerLimits(seconds=1))


def test_an_archive_whose_headers_never_end_is_left_when_its_time_is_over(tmp_path: Path) -> None:
    """The time counts from the request on, not from the first byte of content."""
    ended = threading.Event()

    def drip(listening: socket.socket) -> None:
        connected, _ = listening.accept()
        with connected, suppress(OSError):
            connected.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not ended.wait(0.05):
                connected.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        try:
            with pytest.raises(DataError, match="not complete after 1 s"):
                attempt(f"http://127.0.0.1:{listening.getsockname()[1]}", tmp_path, limits=AnswerLimits(seconds=1))
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("packed", [False, True])
def test_an_answer_beyond_the_bound_is_not_taken(tmp_path: Path, packed: bool) -> None:
    """Counted as it comes, and unpacked: neither its whole nor much more than the bound is ever in memory."""
    content = gzip.compress(bytes(1 << 26)) if packed else b"[" + b" " * (1 << 26)
    served = list[int]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/dicom+json")
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content)
                served.append(len(content))

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            tracemalloc.start()
            with pytest.raises(DataError, match="larger than 1 MiB"):
                attempt(url, tmp_path, limits=AnswerLimits(bytes=1 << 20))
            assert tracemalloc.get_traced_memory()[1] < (1 << 25) + (len(content) if packed else 0)
        finally:
            tracemalloc.stop()
            server.shutdown()
            thread.join()


def test_neither_netrc_nor_a_proxy_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login goes to the archive only from the file that the user names; others must not be able to read it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("default login SECRET password SECRET\n")
    (tmp_path / ".netrc").chmod(0o600)
    asked, proxied = list[dict[str, str]](), list[dict[str, str]]()
    with liar(lambda _: MATCH, asked) as url, liar(lambda _: MATCH, proxied) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        attempt(url, tmp_path)
        assert asked and not proxied and not any("Authorization" in headers for headers in asked)
        login = tmp_path / "login"
        login.write_text("anna:pass:word\n")
        login.chmod(0o640)
        with pytest.raises(ConfigError, match="chmod 600"):
            attempt(url, tmp_path, login=login)
        login.chmod(0o600)
        asked.clear()
        attempt(url, tmp_path, login=login)
    sent = [base64.b64decode(headers["Authorization"].removeprefix("Basic ")) for headers in asked]
    assert sent and set(sent) == {b"anna:pass:word"}


@pytest.mark.parametrize("content", [b"", b"anna", b"anna:", b":x", b"anna:x\ny:z"])
def test_a_login_is_one_line_of_user_and_password(tmp_path: Path, content: bytes) -> None:
    login = tmp_path / "login"
    login.write_bytes(content)
    login.chmod(0o600)
    with pytest.raises(ConfigError, match="one line, USER:PASSWORD"):
        attempt("http://127.0.0.1:9", tmp_path, login=login)


def test_the_address_that_a_name_leads_to_is_checked_as_a_typed_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that sends `localhost` to another machine: the connection is closed before anything is sent."""
    every = [one.address for addresses in psutil.net_if_addrs().values() for one in addresses if one.family == AF_INET]
    own = next((address for address in every if not address.startswith("127.")), None)
    if own is None:
        pytest.skip("this machine has no address besides the loopback's")
    with ThreadingHTTPServer((own, 0), BaseHTTPRequestHandler) as server:
        resolve, port = socket.getaddrinfo, server.server_address[1]
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: resolve(own, *rest, **more))
        refused = pytest.raises(AnswerRefused, match="leads to another machine")
        with guarded_session(f"http://localhost:{port}", AnswerLimits(seconds=10), True, None) as session, refused:
            session.get(f"http://localhost:{port}/SECRET")
        server.socket.settimeout(10)
        connected, _ = server.socket.accept()
        with connected:
            assert connected.recv(1) == b""
