"""A site's processes connect to one pinned address each; every other connection is refused and noted.

The site's own process has the server that its kit names, a job's process the loopback address of the site's process.
FLARE (2.9) connects wherever a message's `CONN_URL` header says, and aiohttp wherever a server redirects it. So the
header is dropped before a message is processed, FLARE adds no connector to another address, and Python's own sockets
are held by an audit hook, which nothing can remove again. Connections that compiled libraries open are not seen by the
hook, which is why kits with FLARE's gRPC transport are refused.
"""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.communicator import Communicator, Mode
from nvflare.fuel.f3.message import Message

from audits import AuditLog, Event, LogError, Outcome, Refusal
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.cell_hooks import before_start

MOST_LOGGED = 20
"""A process writes at most this many entries about refused connections into the audit log."""

Note = Callable[[object], None]
"""Takes note of a refused connection; its argument only tells apart targets and is never written."""

_logger = logging.getLogger(__name__)


class ConnectionForbidden(PermissionError):
    """A connection, datagram or name lookup that this process may not make."""


class RefusedConnections:
    """Counts what was refused; the audit log gets one entry for each target, and at most `MOST_LOGGED`."""

    def __init__(self, log: AuditLog, job: str | None) -> None:
        """`job`: its id in a job's process, None in the site's own."""
        self._log, self._job = log, job
        self._lock, self._targets = threading.Lock(), set[int]()
        self.count = 0

    def note(self, target: object) -> None:
        """Count a refusal. An entry holds the count, and nothing of the target: others wrote it."""
        with self._lock:
            self.count += 1
            key, count = hash(repr(target)), self.count
            if key in self._targets or len(self._targets) >= MOST_LOGGED:
                return
            self._targets.add(key)
        _logger.warning("a connection to another address than the pinned one was refused")
        admission = {"code": Refusal.CONNECTION.value, "definition": None, "count": count}
        refused = {"outcome": Outcome.REFUSED, "reason": Refusal.CONNECTION.sentence, "admission": admission}
        try:
            self._log.append(Event.REFUSAL, job=self._job, **refused)
        except LogError:
            _logger.exception("the refusal of a connection could not be written into the audit log")


class PinnedAddress:
    """Holds Python's sockets of this process to one address. The addresses of its name are looked up once."""

    def __init__(self, url: str, note: Note) -> None:
        """`url`: with a scheme, a host and a port. Raises `ConfigError` if one of them is missing."""
        self._host, self._port = host_and_port(url)
        self._note = note
        self._addresses: set[IPv4Address | IPv6Address] = set()
        self._allowed: Mapping[str, Callable[..., bool]] = {
            "socket.connect": self._may_connect,
            "socket.sendto": self._may_send,
            "socket.sendmsg": self._may_send,
            "socket.getaddrinfo": self._may_look_up,
            "socket.gethostbyname": self._may_look_up,
            "socket.gethostbyaddr": _never,
            "socket.getnameinfo": _never,
        }

    def install(self) -> None:
        """From now on this process opens no other connection."""
        self._resolve()
        sys.addaudithook(self._hook)

    def _resolve(self) -> None:
        """A server without an address yet, because the network is not up, is looked up again when it is needed."""
        try:
            entries = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            return
        self._addresses = {address for *_, place in entries if (address := _numeric(str(place[0]))) is not None}

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        allowed = self._allowed.get(event)
        if allowed is not None and not allowed(*arguments):
            if not (event == "socket.connect" and _looks_for_itself(*arguments)):
                self._note((event, arguments[1] if event in _OF_SOCKETS else arguments[0]))
            raise ConnectionForbidden("this process connects to one pinned address only")

    def _may_connect(self, opened: socket.socket, place: Any) -> bool:
        if opened.family == socket.AF_UNIX:
            return True
        match place:
            case (str() as host, int() as port, *_) if port == self._port and opened.type == socket.SOCK_STREAM:
                return self._is_host(host) or self._is_address(host)
        return False

    def _may_send(self, opened: socket.socket, place: Any) -> bool:
        return place is None or opened.family == socket.AF_UNIX

    def _may_look_up(self, host: Any, *_: Any) -> bool:
        """Numbers are not looked up anywhere."""
        text = host.decode(errors="replace") if isinstance(host, bytes) else host
        return not text or isinstance(text, str) and (self._is_host(text) or _numeric(text) is not None)

    def _is_host(self, host: str) -> bool:
        return host.casefold() == self._host

    def _is_address(self, host: str) -> bool:
        address = _numeric(host)
        if address is not None and not self._addresses:
            self._resolve()
        return address in self._addresses


_OF_SOCKETS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_FAR = ("10.255.255.255", 1)


def _looks_for_itself(opened: socket.socket, place: Any) -> bool:
    """FLARE (2.9) connects a datagram socket, which sends nothing, to find out the machine's address for the server.

    It is refused as any other, so that the server gets the loopback address; it is not noted, as every start has it.
    """
    return bool(opened.type == socket.SOCK_DGRAM and place == _FAR)


def _never(place: Any) -> bool:
    return False


def host_and_port(url: str) -> tuple[str, int]:
    """Where `url` leads. Raises `ConfigError` if it names no host or no port."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError("the address to connect to names no host or no port")
    return host, port


def _numeric(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def pin_cells(url: str, note: Note) -> None:
    """From now on FLARE's cells of this process connect to `url` only, and no message tells them otherwise."""
    add = patches.ADD_CONNECTOR.current()

    def without_address(message: Message) -> None:
        elsewhere = message.get_header(MessageHeaderKey.CONN_URL)
        if elsewhere is not None:
            message.remove_header(MessageHeaderKey.CONN_URL)
            note(elsewhere)

    def add_connector(communicator: Communicator, target: str, mode: Mode, *args: Any, **kwargs: Any) -> Any:
        if mode == Mode.ACTIVE and target != url:
            note(target)
            raise CommError(CommError.NOT_SUPPORTED, "this site connects to one pinned address only")
        return add(communicator, target, mode, *args, **kwargs)

    before_start(lambda cell: cell.add_incoming_filter(channel="*", topic="*", cb=without_address))
    patches.ADD_CONNECTOR.replace(add_connector)
