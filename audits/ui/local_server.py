"""A web server for a browser on the same machine, and for nothing else.

Only 127.0.0.1 is listened on; addresses begin with a random token; the `Host` header has to name this server, so that a
page from elsewhere whose name was made to resolve here (DNS rebinding) gets nothing; there is no script, no cookie, and
nothing is loaded from anywhere else. Nothing is logged.
"""

import hmac
import re
import secrets
import sys
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qsl, urlsplit

from audits.errors import LogError
from audits.escaping import Html

# Reads a browser's form with a file in it (`multipart/form-data`, RFC 7578), within bounds.

Upload = Mapping[str, bytes]
"""The values of a form's fields by name."""


class RequestBody(Protocol):
    """The stream of a request's body."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; fewer only at the end."""


_BOUNDARY = re.compile(r'multipart/form-data;\s*boundary="?([0-9A-Za-z\'()+_,./:=?-]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'content-disposition:[^\r\n]*[; ]name="([a-z]{1,32})"', re.IGNORECASE)
_MOST_FIELDS = 8


def read_upload(headers: Message, body: RequestBody, most: int) -> Upload:
    """The fields of the form in a request's body. Raises `ValueError` for another form, and for one that is too large.

    A body that is too large is not read. The names of uploaded files are dropped.
    """
    lengths, kind = headers.get_all("Content-Length") or [], _BOUNDARY.fullmatch(headers.get("Content-Type", ""))
    if len(lengths) != 1 or not lengths[0].isdecimal() or int(lengths[0]) > most or kind is None:
        raise ValueError("the form is missing, empty or too large")
    content = b"\r\n" + body.read(int(lengths[0]))
    parts = content.split(b"\r\n--" + kind[1].encode())
    if len(parts) < 3 or len(parts) > _MOST_FIELDS + 2 or not parts[-1].startswith(b"--"):
        raise ValueError("the form is incomplete or has too many fields")
    fields = {}
    for part in parts[1:-1]:
        head, blank_line, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if not blank_line or name is None:
            raise ValueError("a part of the form is not a field")
        fields[name[1].decode()] = value
    return fields


LOOPBACK = "127.0.0.1"
PATIENCE = 30.0
"""Seconds after which a silent connection is closed."""
FIELDS = 20
"""The most query fields in an address."""
_HTML, _CSS, _TEXT = ("text/html; charset=utf-8", "text/css; charset=utf-8", "text/plain; charset=utf-8")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: HTTPStatus
    kind: str
    body: bytes


def html_answer(page: Html, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """A page."""
    return Answer(status, _HTML, page.encode())


def text_answer(status: HTTPStatus, text: str) -> Answer:
    """A line of text."""
    return Answer(status, _TEXT, f"{text}\n".encode())


class LoopbackServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1 alone; port 0 takes a free one. Raises `LogError` if the port is taken."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        try:
            super().__init__((LOOPBACK, port), handler)
        except (OSError, OverflowError):
            raise LogError("the port is not available: name another one, or 0 for any free port") from None


class LocalServer(LoopbackServer):
    """Pages at `url`, once `serve_forever` runs. Port 0 takes a free one. Raises `LogError` if the port is taken."""

    content_policy: ClassVar[str] = (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    most_upload: ClassVar[int] = 0
    """The most bytes of an uploaded form; 0: no uploads."""

    def __init__(self, port: int = 0) -> None:
        self._token = secrets.token_urlsafe(24)
        self._css = files("audits.ui").joinpath("page.css").read_bytes()
        super().__init__(_Handler, port)
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost"))

    @property
    def url(self) -> str:
        """The only address that answers; whoever has it can read the pages while the server runs."""
        return f"http://{LOOPBACK}:{self.server_port}/{self._token}/"

    def answer(self, target: str, upload: Upload | None = None) -> Answer:
        """The answer to a request for this address; `upload`: the form that was sent to it."""
        try:
            address = urlsplit(target)
            query = dict(parse_qsl(address.query, keep_blank_values=True, max_num_fields=FIELDS))
        except ValueError:
            return text_answer(HTTPStatus.BAD_REQUEST, "The address makes no sense.")
        if not self.has_token(target):
            return text_answer(HTTPStatus.NOT_FOUND, "Open the address that the command printed.")
        name = (address.path.split("/", 2) + [""])[2]
        if name == "page.css":
            return Answer(HTTPStatus.OK, _CSS, self._css)
        return self.page(name, query, upload)

    def has_token(self, target: str) -> bool:
        """Whether an address begins with the token."""
        try:
            token = (urlsplit(target).path.split("/", 2) + [""])[1]
        except ValueError:
            return False
        return hmac.compare_digest(token.encode(), self._token.encode())

    @abstractmethod
    def page(self, name: str, query: Mapping[str, str], upload: Upload | None) -> Answer:
        """The page of this name."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Shows only the program's own errors, not browsers that disconnect in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        self._send(self._stranger() or self.server.answer(self.path))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if not self.server.most_upload:
            self.send_error(HTTPStatus.NOT_IMPLEMENTED)
            return
        self.close_connection = True  # what is refused is not read
        if not (answer := self._stranger()) and self.server.has_token(self.path):
            try:
                upload = read_upload(self.headers, self.rfile, self.server.most_upload)
            except ValueError:
                answer = text_answer(HTTPStatus.BAD_REQUEST, "The form is too large, or no form.")
            else:
                answer = self.server.answer(self.path, upload)
        self._send(answer or self.server.answer(self.path))

    def _stranger(self) -> Answer | None:
        """The answer to a request from elsewhere or under another host name; None for the user's own request."""
        hosts = self.headers.get_all("Host") or []
        if self.client_address[0] != LOOPBACK or len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return text_answer(HTTPStatus.MISDIRECTED_REQUEST, "This server answers to its own address only.")
        return None

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {"Content-Security-Policy": self.server.content_policy, **_HEADERS}.items():
            self.send_header(name, value)
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD, POST" if self.server.most_upload else "GET, HEAD")
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers requests that the base class refuses: a method without `do_`, a malformed request."""
        self.close_connection = True  # the rest of the request was not read
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        only = "Only reading is possible here." if status == 405 else "The request makes no sense."
        self._send(text_answer(status, only))

    def version_string(self) -> str:
        return "medfedvqa"

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: their addresses hold the token."""
