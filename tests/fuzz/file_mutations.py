"""Inputs that are almost right: mutated at random, from a seed, with texts that programs stumble over."""

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from random import Random
from typing import Any

from tiers import examples

from medfedvqa.federation.error_codes import ACTIONABLE

MARKER = "PLANTED marker 9f31"
"""Planted in every input: an error that holds it repeats what an input says."""
SHORT = examples(500)
PATIENCE = 30.0
"""Seconds for one input."""
MEMORY = 512 << 20
"""Bytes by which the process may grow over all inputs of a reader."""
HUGE = 10**400
LONGEST = 10**4299
"""As many digits as Python reads; `LONGER` has one more than it does."""
LONGER = b"1" + b"0" * 4300
DEEPEST = b"[" * 100_000 + b"]" * 100_000
"""Nested deeper than a parser follows."""


def nested(levels: int) -> Any:
    """Objects and lists in each other."""
    value: Any = MARKER
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


TOKENS = [
    b"1" + b"0" * 400, b"1e999", b"-1", b"0", b"NaN", b"-Infinity", b"null", b"true", b'""', b"{}", b"[]", b"\x00",
    b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"', b"\r", b"\n", b"\t", b'"', b"'", b",", b":", b"- ", b"? ", b"# ",
    b"[" * 2000, b"{a: " * 2000, b"&a [*a]", b"*b", b"<<: *a", b"!!python/object:os.system x", b"!!binary x",
    b"2001-99-99", b"0x_", b"1_0", b"12:61:99", b"{$HOME}", b"${HOME}", b"%TAG", b"---\n", b"...\n", b"x" * 200_000,
    b"\xf0\x9f\x92\xa5" * 50, b"\xe2\x80\xae", MARKER.encode(), LONGER, b"-" + LONGER, DEEPEST,
    b"[" * 900 + b"]" * 900, b'{"a":' * 400 + b"1" + b"}" * 400, b'"\\udc80\\ud800"', b"1e-400",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(2**63), HUGE, 1e308, 1e-320, -0.0, float("inf"), float("nan"), "", "x",
    MARKER, "\ud800", "\x00", "a" * 70_000, [], {}, [[]], [None] * 3, {"": None}, {"a": {"b": MARKER}}, "2026-99-99",
    "{$HOME}", "1e999", "../../etc", "/dev/zero", LONGEST, -LONGEST, nested(40), nested(150), {"\ud800": 1}, ["\udfff"],
    1.5, 2**31, "9" * 4301,
]  # fmt: skip


def count() -> int:
    """How many inputs each reader gets: by default few."""
    return int(os.environ.get("MEDFEDVQA_FUZZ", SHORT))


def mutated(random: Random, original: bytes) -> bytes:
    """One to four changes at random places."""
    content = bytearray(original)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(content) + 1)
        end = min(len(content), at + random.choice((0, 1, 1, 4, 30, 300)))
        match random.randrange(6):
            case 0:
                content[at:end] = b""
            case 1:
                content[at:end] = random.choice(TOKENS)
            case 2:
                content[at:at] = content[at:end] * random.randint(1, 50)
            case 3:
                content[at:end] = bytes(random.randrange(256) for _ in range(end - at))
            case 4:
                content[at : None if random.random() < 0.2 else end] = b""
            case _:
                lines = bytes(content).split(b"\n")
                random.shuffle(lines) if random.random() < 0.3 else lines.append(random.choice(lines))
                content = bytearray(b"\n".join(lines))
    return bytes(content)


def altered(random: Random, document: Any) -> Any:
    """A copy of plain JSON in which one to three values, names or lengths are others."""
    document = json.loads(json.dumps(document))
    for _ in range(random.randint(1, 3)):
        holder, step = _somewhere(random, document)
        if holder is None:
            return deepcopy(random.choice(VALUES))
        action = random.random()
        if action < 0.7:
            holder[step] = deepcopy(random.choice(VALUES))
        elif isinstance(holder, dict):
            holder[random.choice(("", "x", MARKER, "job", "0"))] = holder.pop(step)
        else:
            holder[step : step + 1] = [holder[step]] * random.choice((0, 2, 40))
            holder[:] = map(deepcopy, holder)  # else a later change is made to all of them at once
    return document


def _somewhere(random: Random, document: Any) -> tuple[Any, Any]:
    """A place within, at any depth."""
    holder, step, value = None, None, document
    while isinstance(value, dict | list) and value and (holder is None or random.random() < 0.85):
        holder = value
        step = random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
        value = holder[step]
    return holder, step


def inputs(name: str, make: Callable[[Random], bytes]) -> Iterator[tuple[int, bytes]]:
    """Numbered inputs of a reader; the same in every run."""
    for number in range(count()):
        yield number, make(Random(f"{name} {number}"))


@contextmanager
def watched(number: int) -> Iterator[None]:
    """Fails if what happens meanwhile takes longer than one input may."""

    def late(*_: object) -> None:
        raise AssertionError(f"input {number} is not done after {PATIENCE:.0f} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def bounded() -> Iterator[None]:
    """Fails if the process grows by more than an input may make it grow."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MEMORY


def refused(number: int, read: Callable[[], object], *errors: type[Exception]) -> bool:
    """Whether the input is refused by one of these errors, or of the project's, which repeats nothing of it."""
    expected = errors or ACTIONABLE
    with watched(number):
        try:
            read()
        except expected as error:
            assert MARKER not in str(error) and len(str(error)) < 2000, number
            return True
    return False
