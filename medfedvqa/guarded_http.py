"""HTTP requests of this project to other parties' servers: one origin, bounded answers, no implicit settings."""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool

from medfedvqa.errors import DataError

CONNECT_SECONDS, SILENT_SECONDS = 10.0, 60.0
"""The most seconds for a connection, and between two pieces of an answer."""
MOST_REDIRECTS = 3
_PORTS = {"http": 80, "https": 443}


class AnswerRefused(DataError):
    """A server's answer was refused, or no request was sent. The sentence repeats nothing from the answer."""


@dataclass(frozen=True)
class AnswerLimits:
    """The limits of one answer: bytes after decoding, and seconds from the request to the last byte."""

    bytes: int = 1 << 28
    seconds: float = 300.0


def guarded_session(
    url: str, limits: AnswerLimits, only_loopback: bool, login: tuple[bytes, bytes] | None
) -> requests.Session:
    """A session that sends requests only to the origin (scheme, host, port) of this URL, also after redirects.

    `only_loopback`: the host's name must resolve to this machine. Neither `.netrc` nor proxies
    of the environment are used; certificates are checked against `REQUESTS_CA_BUNDLE` if it is set. Requests raise
    `AnswerRefused` and `requests.RequestException`.
    """
    session, adapter = requests.Session(), _Adapter(origin(url), limits, only_loopback)
    session.trust_env, session.max_redirects = False, MOST_REDIRECTS
    session.auth = HTTPBasicAuth(*login) if login else None
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
    for scheme in _PORTS:
        session.mount(f"{scheme}://", adapter)
    return session


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises `ValueError` unless the port is a number from 0 to 65535."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


class _Adapter(HTTPAdapter):
    """Checks and limits each request, redirected ones included. One request at a time may use it."""

    def __init__(self, allowed: tuple[str, str, int], limits: AnswerLimits, only_loopback: bool) -> None:
        self._allowed, self._limits, self._only_loopback = allowed, limits, only_loopback
        self._twin: socket | None = None
        self._is_late = threading.Event()
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *arguments: Any, **settings: Any) -> None:
        """Makes connections that hand their sockets to `opened`."""
        super().init_poolmanager(*arguments, **settings)
        kinds = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}
        self.poolmanager.pool_classes_by_scheme = {scheme: _watched(kind, self) for scheme, kind in kinds.items()}

    def opened(self, connected: socket) -> None:
        """Checks a socket's remote address before anything is sent. Raises `AnswerRefused`."""
        address = ip_address(connected.getpeername()[0].partition("%")[0])
        if self._is_late.is_set():
            connected.close()
            raise self._late()
        if self._only_loopback and not address.is_loopback:
            connected.close()
            raise AnswerRefused("the host's name leads to another machine, and http is not encrypted: use https")
        self._forget()
        # TLS replaces the socket object; a duplicate of the same connection can still end it.
        self._twin = connected.dup()

    def send(self, request: requests.PreparedRequest, *arguments: Any, **settings: Any) -> requests.Response:
        """The whole answer. A timer ends the connection, because a server that sends slowly never becomes silent."""
        try:
            is_allowed = origin(str(request.url)) == self._allowed
        except ValueError:
            is_allowed = False
        if not is_allowed:
            raise AnswerRefused("the answer redirects to another scheme, host or port: check the URL")
        self._is_late.clear()
        timer = threading.Timer(self._limits.seconds, self._end)
        timer.daemon = True
        timer.start()
        silent = min(SILENT_SECONDS, self._limits.seconds)
        try:
            timeout = min(CONNECT_SECONDS, silent), silent
            response = super().send(request, stream=True, timeout=timeout, verify=settings.get("verify", True))
            self._read(response)
        except (requests.RequestException, OSError):
            if self._is_late.is_set():
                raise self._late() from None
            raise
        finally:
            timer.cancel()
        if self._is_late.is_set():  # without a length, the end of the connection looks like the end of the answer
            raise self._late()
        return response

    def _read(self, response: requests.Response) -> None:
        body = bytearray()
        for piece in response.iter_content(1 << 16):
            body += piece
            if len(body) > self._limits.bytes:
                response.close()
                raise AnswerRefused(
                    f"an answer is larger than {self._limits.bytes >> 20} MiB: with `ingest fetch`, raise --answer-mib"
                )
        response._content = bytes(body)  # where requests itself keeps what it has read

    def _end(self) -> None:
        self._is_late.set()
        if (twin := self._twin) is not None:
            with suppress(OSError):
                twin.shutdown(SHUT_RDWR)

    def _late(self) -> AnswerRefused:
        return AnswerRefused(
            f"an answer was not complete after {self._limits.seconds:g} s: try again, or allow more time"
        )

    def _forget(self) -> None:
        if self._twin is not None:
            self._twin.close()
            self._twin = None

    def close(self) -> None:
        """Closes all connections."""
        self._forget()
        super().close()


def _watched(kind: type[HTTPConnectionPool], adapter: _Adapter) -> type[HTTPConnectionPool]:
    class Connection(kind.ConnectionCls):  # type: ignore[name-defined, misc]
        def _new_conn(self) -> socket:
            connected: socket = super()._new_conn()
            adapter.opened(connected)
            return connected

    class Pool(kind):  # type: ignore[valid-type, misc]
        ConnectionCls = Connection

    return Pool
