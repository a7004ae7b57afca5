"""Messages from site to site as FLARE's auxiliary messages: a transport that knows nothing of what it carries.

What travels is encrypted from end to end, see `privacy.secagg.channel`, with keys that FLARE never sees.
"""

import queue
import threading
from collections import defaultdict

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.private.fed.client.client_engine_executor_spec import ClientEngineExecutorSpec

TOPIC = "medfedvqa.mail"

_ATTEMPT, _NUMBER, _BYTES = "medfedvqa_attempt", "medfedvqa_number", "medfedvqa_bytes"
_DELIVERY_TIMEOUT = 10.0  # seconds
_RETRY = 0.2  # seconds


class SiteMail:
    """One site's mail for all attempts of a job; made when the run starts, so that others' mail finds it."""

    def __init__(self, flare: ClientEngineExecutorSpec) -> None:
        self._flare = flare
        self._boxes: defaultdict[tuple[str, str], _Box] = defaultdict(_Box)
        self._lock = threading.Lock()
        self._current: AttemptMail | None = None
        flare.register_aux_message_handler(TOPIC, self._received)

    def attempt(self, name: str) -> "AttemptMail":
        """The relay of one attempt; the one before is over, and what is left of it is dropped."""
        self.close()
        with self._lock:
            for key in [key for key in self._boxes if key[0] != name]:
                del self._boxes[key]
        self._current = AttemptMail(self, name)
        return self._current

    def close(self) -> None:
        """Nothing more is sent."""
        if self._current is not None:
            self._current.close()

    def box(self, attempt: str, sender: str) -> "_Box":
        """What a sender sent in an attempt, which need not have begun here."""
        with self._lock:
            return self._boxes[attempt, sender]

    def deliver(self, attempt: str, to: str, number: int, message: bytes) -> bool:
        """Whether the peer has the message now. It has not while its run is starting."""
        request = Shareable()
        request[_ATTEMPT], request[_NUMBER], request[_BYTES] = attempt, number, message
        with self._flare.new_context() as context:
            # The server's secure transport would add nothing: it may hold FLARE's keys.
            replies = self._flare.send_aux_request([to], TOPIC, request, _DELIVERY_TIMEOUT, context, optional=True)
        reply = (replies or {}).get(to)
        return reply is not None and reply.get_return_code() == ReturnCode.OK

    def _received(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        sender = fl_ctx.get_peer_context().get_identity_name()
        self.box(request[_ATTEMPT], sender).put(request[_NUMBER], request[_BYTES])
        return make_reply(ReturnCode.OK)


class AttemptMail:
    """The relay of one attempt, as `privacy.secagg.Relay` asks for it: a thread for each peer sends in order."""

    def __init__(self, mail: SiteMail, name: str) -> None:
        self._mail, self._name = mail, name
        self._outgoing: dict[str, queue.SimpleQueue[bytes | None]] = {}
        self._over = threading.Event()

    def send(self, to: str, message: bytes) -> None:
        """Leaves the message to the peer's thread."""
        if to not in self._outgoing:
            self._outgoing[to] = queue.SimpleQueue()
            threading.Thread(target=self._deliver, args=(to, self._outgoing[to]), daemon=True).start()
        self._outgoing[to].put(message)

    def receive(self, sender: str, timeout: float) -> bytes:
        """The sender's next message. Raises `TimeoutError`."""
        return self._mail.box(self._name, sender).get(timeout)

    def close(self) -> None:
        """What has not been delivered by now is for nobody."""
        self._over.set()
        for outgoing in self._outgoing.values():
            outgoing.put(None)

    def _deliver(self, to: str, outgoing: "queue.SimpleQueue[bytes | None]") -> None:
        number = 0
        while (message := outgoing.get()) is not None:
            while not self._over.is_set() and not self._mail.deliver(self._name, to, number, message):
                self._over.wait(_RETRY)
            number += 1


class _Box:
    """Messages of one sender, each once: one whose receipt was lost is sent again, and would look replayed."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._next = 0

    def put(self, number: int, message: bytes) -> None:
        """Keeps the message unless it is here already."""
        with self._lock:
            if number == self._next:
                self._messages.put(message)
                self._next += 1

    def get(self, timeout: float) -> bytes:
        """The next message. Raises `TimeoutError` after so many seconds."""
        try:
            return self._messages.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
