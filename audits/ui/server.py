"""Serves the pages to a browser on the same machine, and to nothing else.

Only 127.0.0.1 is listened on; addresses begin with a random token; the `Host` header has to name this server, so that a
page from elsewhere whose name was made to resolve here (DNS rebinding) gets nothing; there is nothing but GET and HEAD,
no script, no cookie, and nothing is loaded from anywhere else.
"""

import hmac
import secrets
import sqlite3
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from audits.errors import LogError
from audits.html import tag
from audits.ui.index import Index
from audits.ui.pages import PAGES, BadQuery, Sight
from audits.ui.verdict_cache import Checks, Judge
from audits.ui.widgets import document

LOOPBACK = "127.0.0.1"
PATIENCE = 30.0  # seconds that a connection may say nothing
FIELDS = 20  # fields that an address may ask with
_HTML, _CSS, _TEXT = ("text/html; charset=utf-8", "text/css; charset=utf-8", "text/plain; charset=utf-8")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class _Answer:
    status: HTTPStatus
    kind: str
    body: bytes


class AuditServer(ThreadingHTTPServer):
    """Pages on these logs (site: folder) at `url`, once `serve_forever` runs. Port 0 takes a free one.

    `judges` give the three verdicts on each of them whenever they are asked for.

    Raises `LogError` if a log cannot be read or the port is taken.
    """

    daemon_threads = True

    def __init__(self, logs: Mapping[str, Path], judges: Mapping[str, Judge], port: int = 0) -> None:
        self._token = secrets.token_urlsafe(24)
        self._turn = threading.Lock()
        self._sight = Sight(Index(logs), Checks(judges))
        self._css = files("audits.ui").joinpath("page.css").read_bytes()
        self._sight.index.refresh()
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError):
            self._sight.index.close()
            raise LogError("the port cannot be listened on: name another one, or 0 for any that is free") from None
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost"))

    @property
    def url(self) -> str:
        """The only address that answers; who has it can read the logs while the server runs."""
        return f"http://{LOOPBACK}:{self.server_port}/{self._token}/"

    def server_close(self) -> None:
        """Stops listening and gives the index back."""
        super().server_close()
        with self._turn:
            self._sight.index.close()

    def answer(self, target: str) -> _Answer:
        """What is at this address."""
        try:
            address = urlsplit(target)
            query = dict(parse_qsl(address.query, keep_blank_values=True, max_num_fields=FIELDS))
        except ValueError:
            return _plain(HTTPStatus.BAD_REQUEST, "The address makes no sense.")
        _, token, *rest = address.path.split("/", 2) + [""]
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return _plain(HTTPStatus.NOT_FOUND, "Open the address that the command printed.")
        if rest[0] == "page.css":
            return _Answer(HTTPStatus.OK, _CSS, self._css)
        with self._turn:
            return self._page(rest[0], query)

    def _page(self, name: str, query: Mapping[str, str]) -> _Answer:
        try:
            self._sight.index.refresh()
            page = PAGES[name](self._sight, query) if name in PAGES else None
        except BadQuery as error:
            return _sentence(HTTPStatus.BAD_REQUEST, "This cannot be asked", f"In the address, {error}.")
        except sqlite3.Error:
            return _sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "The log cannot be shown", "Its sums are too large.")
        except LogError as error:
            return _sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "The log cannot be shown", f"{error}.")
        if page is None:
            return _sentence(HTTPStatus.NOT_FOUND, "Not found", "There is no such page or entry.")
        return _Answer(HTTPStatus.OK, _HTML, page.encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Shows what is a fault of the program's own: a browser that goes away in the middle of an answer is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: AuditServer
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        self._send(self._answer())

    do_HEAD = do_GET

    def _answer(self) -> _Answer:
        said = self.headers.get_all("Host") or []
        if self.client_address[0] != LOOPBACK or len(said) != 1 or said[0].lower() not in self.server.hosts:
            return _plain(HTTPStatus.MISDIRECTED_REQUEST, "This server answers to its own address only.")
        return self.server.answer(self.path)

    def _send(self, answer: _Answer) -> None:
        self.send_response(answer.status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Whatever the base class refuses: a method without `do_`, a malformed request."""
        self.close_connection = True  # the rest of the request was not read
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._send(_plain(status, "Only reading is possible here." if status == 405 else "The request makes no sense."))

    def version_string(self) -> str:
        return "medfedvqa"

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: their addresses hold the token."""


def _plain(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, _TEXT, f"{text}\n".encode())


def _sentence(status: HTTPStatus, title: str, text: str) -> _Answer:
    return _Answer(status, _HTML, document(title, "", tag("p", text)).encode())
