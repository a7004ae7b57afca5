"""Mail between sites over FLARE: each message once and in order, whatever the transport does."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from tiers import examples

from medfedvqa.federation.flare import site_mail
from medfedvqa.federation.flare.site_mail import AttemptMail, SiteMail

JOB = "job"
COPIES = {"arrives": 1, "is lost": 0, "comes twice": 2}
LATE = "comes late"


class Wires:
    """FLARE's cells as sites' mail sees them; `fates` are those of the first frames."""

    def __init__(self, *fates: str) -> None:
        self.handlers: dict[tuple[str, str], Callable[[Message], None]] = {}
        self.fates = list(fates)
        self.late: list[tuple[tuple[str, str], Message]] = []
        self.frames: list[Message] = []

    def mail(self, site: str) -> SiteMail:
        """The mail of a site, which is up from now on."""
        return SiteMail(Engine(self, site), JOB)  # type: ignore[arg-type]

    def carry(self, to: tuple[str, str], message: Message) -> None:
        """One frame, to its fate."""
        fate = self.fates.pop(0) if self.fates else "arrives"
        if fate == LATE:
            self.late.append((to, message))
            return
        for _ in range(COPIES[fate]):
            self.hand_over(to, message)
        while self.late:
            self.hand_over(*self.late.pop(0))

    def hand_over(self, to: tuple[str, str], message: Message) -> None:
        if to in self.handlers:
            self.handlers[to](message)


class Engine:
    """What `SiteMail` asks of FLARE; also the cell."""

    def __init__(self, wires: Wires, site: str) -> None:
        self.wires, self.site = wires, site
        self.core_cell = self

    def get_cell(self) -> "Engine":
        return self

    def get_client_from_name(self, name: str) -> Any:
        return SimpleNamespace(get_fqcn=lambda: name)

    def register_request_cb(self, channel: str, topic: str, handler: Callable[[Message], None]) -> None:
        self.wires.handlers[f"{self.site}.{JOB}", topic] = handler

    def fire_and_forget(self, channel: str, topic: str, targets: str, message: Message, optional: bool) -> None:
        headers = {**message.headers, MessageHeaderKey.ORIGIN: f"{self.site}.{JOB}"}
        self.wires.frames.append(Message(headers, message.payload))
        self.wires.carry((targets, topic), Message(headers, message.payload))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_mail, "_ASK_AFTER", 0.01)


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from([*COPIES, LATE]), max_size=20), st.lists(st.binary(max_size=9), min_size=1, max_size=5))
def test_messages_arrive_once_and_in_order_whatever_happens_to_their_frames(
    fates: list[str], messages: list[bytes]
) -> None:
    """Lost, doubled and late frames, also of the questions for them; a message in parts comes whole, empty ones too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_mail, "_PART_BYTES", 4)
        patch.setattr(site_mail, "_ASK_AFTER", 0.001)
        wires = Wires(*fates)
        chest, head = (wires.mail(site).attempt("one") for site in ("chest", "head"))
        for message in messages:
            chest.send("head", message)
        assert [head.receive("chest", 60) for _ in messages] == messages
        with pytest.raises(TimeoutError):
            head.receive("chest", 0.01)


def test_a_message_sent_before_its_receiver_is_up_arrives_once_it_is() -> None:
    """Sending returns at once; the receiver asks for what it missed."""
    wires = Wires()
    chest = wires.mail("chest").attempt("one")
    chest.send("head", b"early")
    assert wires.mail("head").attempt("one").receive("chest", 5) == b"early"


def test_mail_that_is_early_waits_and_mail_that_is_late_is_dropped() -> None:
    """A peer may be an attempt ahead; what an aborted attempt left behind does not reach the next one."""
    wires = Wires()
    chest, head = wires.mail("chest"), wires.mail("head")
    first = head.attempt("one")
    chest.attempt("one").send("head", b"left behind")
    chest.attempt("two").send("head", b"early")
    second = head.attempt("two")
    assert second.receive("chest", 5) == b"early"
    for attempt in (first, second):
        with pytest.raises(TimeoutError):
            attempt.receive("chest", 0.05)


def test_a_large_message_is_cut_into_parts_that_flare_accepts() -> None:
    """Several megabytes; no frame has more than one, since FLARE's clients take at most four."""
    wires = Wires()
    chest, head = (wires.mail(site).attempt("one") for site in ("chest", "head"))
    message = bytes(range(256)) * (20 << 10)
    chest.send("head", message)
    assert head.receive("chest", 5) == message
    assert len(wires.frames) == 5 and max(len(frame.payload) for frame in wires.frames) == 1 << 20


def test_a_site_keeps_only_what_a_peer_may_lack() -> None:
    """What a peer sends says how far the other's mail has arrived: memory does not grow with an attempt."""
    wires = Wires()
    chest, head = (wires.mail(site).attempt("one") for site in ("chest", "head"))
    for _ in range(10):
        for sender, to in ((chest, "head"), (head, "chest")):
            sender.send(to, bytes(100))
    assert kept(chest) == 0 and kept(head) == 1


def kept(relay: AttemptMail) -> int:
    return sum(len(parts) for parts in relay._unacknowledged.values())


def test_nothing_is_sent_again_after_the_end() -> None:
    """A peer's late question does not bring up what is over, and no thread is left."""
    wires, before = Wires("is lost"), threading.active_count()
    chest, head = wires.mail("chest"), wires.mail("head").attempt("one")
    chest.attempt("one").send("head", b"lost")
    chest.close()
    with pytest.raises(TimeoutError):
        head.receive("chest", 0.1)
    assert threading.active_count() == before


HOSTILE = [
    {"medfedvqa_attempt": ["one"]},
    {"medfedvqa_attempt": "x" * 1000},
    {"medfedvqa_number": -1},
    {"medfedvqa_number": 10**30},
    {"medfedvqa_number": "0"},
    {"medfedvqa_number": None},
    {"medfedvqa_arrived": float("nan")},
    {MessageHeaderKey.ORIGIN: 7},
]


@pytest.mark.parametrize("headers", HOSTILE)
@pytest.mark.parametrize("topic", ["part", "again"])
def test_a_frame_with_headers_that_no_site_sends_is_dropped(headers: dict[str, Any], topic: str) -> None:
    """Numbers that are none, names without end: no error, nothing is kept, and honest mail still arrives."""
    wires = Wires()
    chest, head = (wires.mail(site) for site in ("chest", "head"))
    one, other = chest.attempt("one"), head.attempt("one")
    honest = {"medfedvqa_attempt": "one", "medfedvqa_number": 0, "medfedvqa_last": True, "medfedvqa_arrived": 0}
    frame = Message({**honest, MessageHeaderKey.ORIGIN: f"chest.{JOB}", **headers}, b"hostile")
    if not (topic == "again" and "medfedvqa_number" in headers):  # of which a question has none
        wires.hand_over((f"head.{JOB}", topic), frame)
    one.send("head", b"honest")
    assert other.receive("chest", 5) == b"honest"


def test_mail_without_end_is_dropped_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither parts that nobody takes, nor attempts that do not exist, grow beyond what is set; taking makes room."""
    monkeypatch.setattr(site_mail, "_MOST_BYTES", 1000)
    monkeypatch.setattr(site_mail, "_MOST_BOXES", 5)
    wires = Wires()
    chest, head = (wires.mail(site) for site in ("chest", "head"))
    receiving = head.attempt("one")
    for number in range(100):
        headers = {"medfedvqa_attempt": f"{number}", "medfedvqa_number": 0, "medfedvqa_last": True}
        frame = Message({**headers, "medfedvqa_arrived": 0, MessageHeaderKey.ORIGIN: f"x.{JOB}"}, b"")
        wires.hand_over((f"head.{JOB}", "part"), frame)
    assert len(head._boxes) == 5
    head.attempt("one")
    receiving, sending = head.attempt("one"), chest.attempt("one")
    for _ in range(100):
        sending.send("head", bytes(100))
    assert sum(box.nbytes for box in head._boxes.values()) == 1000
    for _ in range(100):
        assert receiving.receive("chest", 5) == bytes(100)
