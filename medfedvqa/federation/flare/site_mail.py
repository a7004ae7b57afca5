"""Carries messages from site to site as single frames between FLARE's cells, without knowing their content.

What travels is encrypted from end to end, see `privacy.secagg.channel`, with keys that FLARE never sees.

Frames are sent without receipts: FLARE may deliver them in any order, and loses those that meet a peer that is not up
or a connection that breaks. The receiver puts them in order by their numbers, and asks again for what it lacks.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message
from nvflare.private.fed.client.client_engine_executor_spec import ClientEngineExecutorSpec

CHANNEL = "medfedvqa_mail"
_PART, _AGAIN = "part", "again"
"""Topics: a part of a sealed message, and a request for a lost part."""
_ATTEMPT, _NUMBER, _LAST, _ARRIVED = "medfedvqa_attempt", "medfedvqa_number", "medfedvqa_last", "medfedvqa_arrived"
_PART_BYTES = 1 << 20
"""FLARE's clients (2.9) drop the connection over a frame of more than 4 MiB, the limit of aiohttp."""
_LONGEST_NAME = 256  # characters of an attempt's name
_MOST_PARTS = 1 << 20
"""Parts that one site sends another in an attempt: a terabyte."""
_MOST_BOXES = 4096
"""The most pairs of attempt and sender for which mail is kept at a time."""
_MOST_BYTES = 1 << 30
"""Bytes of mail that wait at a time for this site to take them; what is beyond is dropped, and asked for again."""
_ASK_AFTER = 1.0  # seconds in which nothing came; doubled with every question that brings nothing


class SiteMail:
    """One site's mail for all attempts of a job; made when the run starts, so that others' mail finds it."""

    def __init__(self, flare: ClientEngineExecutorSpec, job_id: str) -> None:
        self._flare, self._job_id = flare, job_id
        # FLARE's auxiliary messages are streams with receipts, on threads of their own: three times as dear.
        self._cell = flare.get_cell().core_cell
        self._boxes: dict[tuple[str, str], _Inbox] = {}
        self._lock = threading.Lock()
        self._current: AttemptMail | None = None
        self._came = 0.0
        self._cell.register_request_cb(CHANNEL, _PART, self._received)
        self._cell.register_request_cb(CHANNEL, _AGAIN, self._resend)

    def attempt(self, name: str) -> "AttemptMail":
        """The relay for the mail of one attempt to aggregate. Mail of earlier attempts is dropped."""
        with self._lock:
            for key in [key for key in self._boxes if key[0] != name]:
                del self._boxes[key]
            self._current = AttemptMail(self, name)
            return self._current

    def close(self) -> None:
        """Ends the attempt: parts are no longer sent again."""
        self._current = None

    def box(self, attempt: str, address: str) -> "_Inbox":
        """The inbox for a peer's mail in an attempt, which need not have begun here."""
        with self._lock:
            return self._boxes.setdefault((attempt, address), _Inbox())

    def _room(self, attempt: str, address: str, nbytes: int) -> bool:
        """Whether a part from this address may be stored: a hostile peer or server could otherwise fill the memory."""
        with self._lock:
            has_box = (attempt, address) in self._boxes or len(self._boxes) < _MOST_BOXES
            return has_box and nbytes + sum(box.nbytes for box in self._boxes.values()) <= _MOST_BYTES

    def address(self, site: str) -> str:
        """FLARE's address of a site's process of this job. The server assigns it; the channel above authenticates the
        peer.
        """
        address: str = FQCN.join([self._flare.get_client_from_name(site).get_fqcn(), self._job_id])
        return address

    def send(self, address: str, attempt: str, number: int, part: bytes, last: bool) -> None:
        """Send one part of a message, with the number of parts that have arrived from the peer."""
        arrived = self.box(attempt, address).arrived
        self._fire(_PART, address, {_ATTEMPT: attempt, _NUMBER: number, _LAST: last, _ARRIVED: arrived}, part)

    def ask(self, address: str, attempt: str, arrived: int) -> None:
        """Asks the peer to send part number `arrived` again, unless other parts have just arrived."""
        if time.monotonic() - self._came > _ASK_AFTER:
            self._fire(_AGAIN, address, {_ATTEMPT: attempt, _ARRIVED: arrived}, None)

    def _fire(self, topic: str, address: str, headers: dict[str, str | int], part: bytes | None) -> None:
        message = Message(headers, part)
        # FLARE's own encryption would add nothing: the server may hold its keys.
        self._cell.fire_and_forget(channel=CHANNEL, topic=topic, targets=address, message=message, optional=True)

    def _received(self, message: Message) -> None:
        headers = _headers(message, _NUMBER, _ARRIVED)
        # An empty part comes as None; anything but bytes, as an attacker's, is refused above as a part of no message.
        part = bytes(message.payload) if isinstance(message.payload, bytes | bytearray | memoryview) else b""
        if headers is None or len(part) > _PART_BYTES:
            return
        attempt, address, (number, arrived) = headers
        if not self._room(attempt, address, len(part)):
            return
        self._came = time.monotonic()
        self.box(attempt, address).put(number, part, message.get_header(_LAST) is True)
        current = self._current
        if current is not None and current.name == attempt:
            current.arrived(address, arrived)

    def _resend(self, message: Message) -> None:
        headers, current = _headers(message, _ARRIVED), self._current
        if headers is None or current is None:
            return
        attempt, address, (arrived,) = headers
        if current.name == attempt:
            current.arrived(address, arrived)
            current.send_again(address)


def _headers(message: Message, *numbers: str) -> tuple[str, str, tuple[int, ...]] | None:
    """The attempt, the sender and these numbers in a message's headers; None if a site would not send such headers."""
    attempt, address = message.get_header(_ATTEMPT), message.get_header(MessageHeaderKey.ORIGIN)
    values = tuple(message.get_header(name) for name in numbers)
    has_names = type(attempt) is str and type(address) is str and max(len(attempt), len(address)) <= _LONGEST_NAME
    has_numbers = all(type(number) is int and 0 <= number <= _MOST_PARTS for number in values)
    return (attempt, address, values) if has_names and has_numbers else None


class AttemptMail:
    """The relay of one attempt, see `privacy.secagg.Relay`. It keeps parts until the peer acknowledges them."""

    def __init__(self, mail: SiteMail, name: str) -> None:
        self.name = name
        self._mail = mail
        self._unacknowledged: defaultdict[str, dict[int, tuple[bytes, bool]]] = defaultdict(dict)
        self._sent: defaultdict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    def send(self, to: str, message: bytes) -> None:
        """Send a message; returns before it is delivered."""
        address = self._mail.address(to)
        starts = range(0, max(len(message), 1), _PART_BYTES)
        for start in starts:
            part, last = message[start : start + _PART_BYTES], start == starts[-1]
            with self._lock:
                number = self._sent[address]
                self._sent[address] += 1
                self._unacknowledged[address][number] = part, last
            self._mail.send(address, self.name, number, part, last)

    def receive(self, sender: str, timeout: float) -> bytes:
        """The sender's next message. Raises `TimeoutError`."""
        address = self._mail.address(sender)
        return self._mail.box(self.name, address).get(
            timeout, lambda arrived: self._mail.ask(address, self.name, arrived)
        )

    def arrived(self, address: str, before: int) -> None:
        """Drop the parts before this number: the peer has them."""
        with self._lock:
            parts = self._unacknowledged.get(address, {})
            for number in [number for number in parts if number < before]:
                del parts[number]

    def send_again(self, address: str) -> None:
        """Send the first part again that the peer has not acknowledged, if there is one."""
        with self._lock:
            parts = self._unacknowledged.get(address)
            if not parts:
                return
            number = min(parts)
            part, last = parts[number]
        self._mail.send(address, self.name, number, part, last)


class _Inbox:
    """Messages of one peer, each once and in order: a repeated one would look like a replay to the channel above."""

    def __init__(self) -> None:
        self.arrived = 0
        self.nbytes = 0
        """Bytes of parts that nobody has taken yet."""
        self._early: dict[int, tuple[bytes, bool]] = {}
        self._parts: list[bytes] = []
        self._messages: list[bytes] = []
        self._change = threading.Condition()

    def put(self, number: int, part: bytes, last: bool) -> None:
        """Keeps the part unless it is here already."""
        with self._change:
            if number >= self.arrived and number not in self._early:
                self._early[number] = part, last
                self.nbytes += len(part)
            while self.arrived in self._early:
                part, last = self._early.pop(self.arrived)
                self.arrived += 1
                self._parts.append(part)
                if last:
                    self._messages.append(b"".join(self._parts))
                    self._parts = []
            self._change.notify_all()

    def get(self, timeout: float, ask: Callable[[int], None]) -> bytes:
        """The next message; `ask` learns how many parts are here. Raises `TimeoutError` after `timeout` seconds."""
        end, patience = time.monotonic() + timeout, _ASK_AFTER
        while True:
            with self._change:
                before = self.arrived
                wait = min(patience, end - time.monotonic())
                more = self._change.wait_for(partial(self._more, before), max(wait, 0))
                if self._messages:
                    message = self._messages.pop(0)
                    self.nbytes -= len(message)
                    return message
            if more:
                patience = _ASK_AFTER
                continue
            if time.monotonic() >= end:
                raise TimeoutError
            ask(before)
            patience *= 2

    def _more(self, before: int) -> bool:
        return bool(self._messages) or self.arrived > before
