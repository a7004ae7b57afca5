"""The way between sites under the hand of a server that lies: it may drop, delay, repeat and replace every letter.

Time is the network's own: it passes only when all sites that are at work wait for letters, so that a site that waits in
vain costs a test no time, and nothing that a test finds depends on how fast the machine is.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Letter:
    """A sealed message of one site for another; `number` counts those from `sender` to `recipient` in an attempt."""

    attempt: str
    sender: str
    recipient: str
    number: int
    content: bytes
    delay: float = 0.0
    """Seconds after which the server delivers it."""


class Clock:
    """The time of all networks of a process, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """As that of the module `time`, in whose place a test may put the clock."""
        return self.now


CLOCK = Clock()
Deliver = Callable[[Letter], list[Letter]]
"""What the server delivers in place of a letter."""


class Network:
    """Carries letters between the sites of one job."""

    def __init__(self) -> None:
        self.deliver: Deliver = lambda letter: [letter]
        self._changed = threading.Condition()
        self._at_work = 0
        self._waiting: dict[tuple[str, str, str], float] = {}
        self._boxes: defaultdict[tuple[str, str, str], deque[bytes]] = defaultdict(deque)
        self._late: list[tuple[float, Letter]] = []
        self._sent: defaultdict[tuple[str, str, str], int] = defaultdict(int)

    def relay(self, site: str, attempt: str) -> Any:
        """One site's end in the attempt of this name."""
        return SimpleNamespace(
            send=lambda to, message: self.send(attempt, site, to, message),
            receive=lambda sender, timeout: self.receive(attempt, sender, site, timeout),
        )

    def begin(self, sites: int) -> None:
        """As many sites start to work on a task."""
        with self._changed:
            self._at_work += sites

    def end(self) -> None:
        """One site has finished its task."""
        with self._changed:
            self._at_work -= 1
            self._pass_time()

    def send(self, attempt: str, sender: str, recipient: str, content: bytes) -> None:
        """See `Relay.send`."""
        with self._changed:
            way = attempt, sender, recipient
            letter = Letter(attempt, sender, recipient, self._sent[way], content)
            self._sent[way] += 1
            for copy in self.deliver(letter):
                if copy.delay:
                    self._late.append((CLOCK.now + copy.delay, replace(copy, delay=0.0)))
                else:
                    self._put(copy)

    def receive(self, attempt: str, sender: str, recipient: str, timeout: float) -> bytes:
        """See `Relay.receive`."""
        way = attempt, sender, recipient
        with self._changed:
            deadline = CLOCK.now + timeout
            while not self._boxes[way]:
                if CLOCK.now >= deadline:
                    raise TimeoutError
                self._waiting[way] = deadline
                if not self._pass_time():
                    self._changed.wait()
            return self._boxes[way].popleft()

    def _put(self, letter: Letter) -> None:
        way = letter.attempt, letter.sender, letter.recipient
        self._boxes[way].append(letter.content)
        if self._waiting.pop(way, None) is not None:
            self._changed.notify_all()

    def _pass_time(self) -> bool:
        """If nobody can go on, the next late letter arrives, or who waits the shortest gives up; whether it was so."""
        if not self._waiting or len(self._waiting) < self._at_work:
            return False
        CLOCK.now = min([*self._waiting.values(), *(time for time, _ in self._late)])
        arrived = [letter for time, letter in self._late if time <= CLOCK.now]
        self._late = [(time, letter) for time, letter in self._late if time > CLOCK.now]
        for letter in arrived:
            self._put(letter)
        self._waiting = {way: deadline for way, deadline in self._waiting.items() if deadline > CLOCK.now}
        self._changed.notify_all()
        return True
