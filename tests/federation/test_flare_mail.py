"""Mail between sites over FLARE: each message once and in order, whatever the transport does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from medfedvqa.federation.flare import mail
from medfedvqa.federation.flare.mail import SiteMail


class Wires:
    """FLARE as a site's mail sees it; `losses` are the fates of the first deliveries."""

    def __init__(self, losses: tuple[str, ...] = ()) -> None:
        self.handlers: dict[str, Any] = {}
        self.losses = list(losses)
        self.delivered = threading.Semaphore(0)

    def of(self, site: str) -> "Engine":
        return Engine(self, site)


class Engine:
    def __init__(self, wires: Wires, site: str) -> None:
        self.wires, self.site = wires, site

    def register_aux_message_handler(self, topic: str, handler: Any) -> None:
        self.wires.handlers[self.site] = handler

    @contextmanager
    def new_context(self) -> Iterator[FLContext]:
        yield FLContext()

    def send_aux_request(
        self, targets: list[str], topic: str, request: Shareable, *_: object, **__: object
    ) -> dict[str, Shareable]:
        (to,) = targets
        fate = self.wires.losses.pop(0) if self.wires.losses else ""
        if to not in self.wires.handlers or fate == "not up":
            return {to: make_reply(ReturnCode.TOPIC_UNKNOWN)}
        context, peer = FLContext(), FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, self.site, private=False)
        context.set_peer_context(peer)
        reply = self.wires.handlers[to](topic=topic, request=request, fl_ctx=context)
        self.wires.delivered.release()
        return {} if fate == "receipt lost" else {to: reply}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "_RETRY", 0.01)


def test_messages_arrive_once_and_in_order_although_peers_start_late_and_receipts_get_lost() -> None:
    """A message that is sent again would look like a replay to the channel above."""
    wires = Wires(("not up", "receipt lost", "", "receipt lost", "not up"))
    chest, head = (SiteMail(wires.of(site)).attempt("one") for site in ("chest", "head"))
    for number in range(5):
        chest.send("head", bytes([number]))
    assert [head.receive("chest", 5) for _ in range(5)] == [bytes([number]) for number in range(5)]
    with pytest.raises(TimeoutError):
        head.receive("chest", 0.1)


def test_mail_that_is_early_waits_and_mail_that_is_late_is_dropped() -> None:
    """A peer may be an attempt ahead; what an aborted attempt left behind does not reach the next one."""
    wires = Wires()
    chest, head = SiteMail(wires.of("chest")), SiteMail(wires.of("head"))
    first = head.attempt("one")
    chest.attempt("one").send("head", b"left behind")
    assert wires.delivered.acquire(timeout=5)
    chest.attempt("two").send("head", b"early")
    assert wires.delivered.acquire(timeout=5)
    second = head.attempt("two")
    assert second.receive("chest", 5) == b"early"
    with pytest.raises(TimeoutError):
        first.receive("chest", 0.05)


def test_sending_does_not_wait_for_a_peer_that_is_down_and_ends_with_the_attempt() -> None:
    """The others are served meanwhile; nothing keeps trying afterwards."""
    wires = Wires()
    chest, head = SiteMail(wires.of("chest")), SiteMail(wires.of("head"))
    before = threading.active_count()
    relay = chest.attempt("one")
    relay.send("abdomen", b"nobody there")
    relay.send("head", b"hello")
    assert head.attempt("one").receive("chest", 5) == b"hello"
    chest.close()
    for thread in threading.enumerate()[before:]:
        thread.join(5)
    assert threading.active_count() == before
