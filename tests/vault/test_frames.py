"""The grammar of the socket: what it carries, bit for bit, what it refuses, whoever sends it, and what follows."""

import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audits import JobRefused, Refusal
from audits.byte_ledger import WireWindow
from medfedvqa.vault.frames import MOST_BODY, MOST_HEAD, FrameRefused, Wire
from medfedvqa.vault.tasks import JobTasks, SentBytes, _AttemptMail

TASK = {"kind": "task", "task": "train", "round": 1, "arrays": []}
PREFIX = struct.Struct("<4sIQ")


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    one, other = socket.socketpair()
    with one, other:
        yield Wire(one), Wire(other)


def received(content: bytes, *kinds: str) -> Any:
    """What a receiver makes of these bytes, after which the sender is gone."""
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(10)
        one.sendall(content)
        one.shutdown(socket.SHUT_WR)
        return Wire(other).receive(*kinds)


def frame(head: Any, body: bytes = b"", **announced: int) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    sizes = announced.get("head_bytes", len(text)), announced.get("body_bytes", len(body))
    return PREFIX.pack(b"mfv1", *sizes) + text + body


def test_arrays_and_bytes_arrive_bit_for_bit(ends: tuple[Wire, Wire]) -> None:
    """Scalars, empty arrays, big-endian and sliced ones, values that compare unlike themselves."""
    arrays = {
        "prompt": np.array([[0.1, -0.0, 1e-45], [np.nan, np.inf, 3.0]], np.float32)[:, ::2],
        "rows": np.array(7, ">i8"),
        "none": np.zeros((0, 4), np.float64),
        "attempt": np.frombuffer(b"{}", np.uint8),
    }
    sender, receiver = ends
    sender.send("task", arrays, b"\0audit", task="train", round=3)
    came = receiver.receive("task")
    assert (came.kind, came.fields, came.data) == ("task", {"task": "train", "round": 3}, b"\0audit")
    assert [*came.arrays] == [*arrays]
    for name, array in arrays.items():
        assert came.arrays[name].shape == array.shape and came.arrays[name].dtype.name == array.dtype.name
        assert came.arrays[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("value", [np.array("text"), np.array([1j]), np.zeros(2, np.int32), np.zeros((1,) * 9)])
def test_an_array_that_no_exchange_declares_does_not_leave(ends: tuple[Wire, Wire], value: Any) -> None:
    """Text, complex numbers, other widths: refused before a byte is on its way."""
    with pytest.raises(FrameRefused):
        ends[0].send("task", {"x": value}, task="train", round=1)
    ends[0].connection.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        ends[1].receive("task")


ARRAY = ["x", "float32", [2]]
HOSTILE = {
    "2^40 bytes": frame(TASK, body_bytes=1 << 40),
    "a head of 4 GiB": frame(TASK, head_bytes=(1 << 32) - 1),
    "one byte too many": frame(TASK, body_bytes=MOST_BODY + 1),
    "a long head": frame(b" " * (MOST_HEAD + 1)),
    "another grammar": b"mfv2" + frame(TASK)[4:],
    "a pickle": b"\x80\x04\x95" + b"." * 40,
    "no JSON": frame(b"{"),
    "a key twice": frame(b'{"kind":"end","kind":"end","arrays":[]}'),
    "not a number": frame(b'{"kind":"task","task":"a","round":NaN,"arrays":[]}'),
    "an unknown kind": frame({"kind": "shell", "arrays": []}),
    "a kind that is not due": frame({"kind": "end", "arrays": []}),
    "a member too many": frame({**TASK, "more": 1}),
    "a member too few": frame({"kind": "task", "round": 1, "arrays": []}),
    "a round that is true": frame({**TASK, "round": True}),
    "a list that is none": frame({**TASK, "arrays": {}}),
    "no array": frame({**TASK, "arrays": [["x", "float32"]]}),
    "objects": frame({**TASK, "arrays": [["x", "object", [1]]]}, b"\0" * 8),
    "text": frame({**TASK, "arrays": [["x", "S8", [1]]]}, b"\0" * 8),
    "a negative length": frame({**TASK, "arrays": [["x", "float32", [-1, -2]]]}, b"\0" * 8),
    "a length that is true": frame({**TASK, "arrays": [["x", "float32", [True]]]}, b"\0" * 4),
    "more than the body": frame({**TASK, "arrays": [["x", "float32", [1 << 60]]]}, b"\0" * 8),
    "a name twice": frame({**TASK, "arrays": [ARRAY, ARRAY]}, b"\0" * 16),
    "many dimensions": frame({**TASK, "arrays": [["x", "float32", [1] * 9]]}, b"\0" * 4),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_frame_is_refused_before_its_body_is_read(content: bytes) -> None:
    """Whatever a courier announces: the receiver neither waits for it nor makes room for it."""
    one, other = socket.socketpair()
    with one, other:
        one.sendall(content[: 1 << 12])  # all of a head, but of one that is too long
        other.settimeout(10)
        with pytest.raises(FrameRefused):
            Wire(other).receive("task")


HONEST = frame({**TASK, "arrays": [ARRAY]}, b"\0\1\2\3\4\5\6\7audit")


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_the_grammars_own_errors(content: bytes) -> None:
    """From nothing at all to what begins as a frame does."""
    for start in (b"", HONEST[:4], HONEST[:16]):
        with pytest.raises((FrameRefused, EOFError)):
            received(start + content, "task")


@given(st.integers(0, len(HONEST) - 1), st.integers(1, 255), st.booleans())
def test_a_damaged_frame_is_refused_or_is_another_frame_of_the_grammar(place: int, change: int, cut: bool) -> None:
    """Any changed byte, and any cut: what comes out has the types that the grammar promises."""
    content = HONEST[:place] if cut else HONEST[:place] + bytes([HONEST[place] ^ change]) + HONEST[place + 1 :]
    try:
        came = received(content, "task")
    except (FrameRefused, EOFError):
        return
    assert not cut and type(came.fields["task"]) is str and type(came.fields["round"]) is int
    assert all(array.dtype.name in ("float32", "float64", "int64", "uint8") for array in came.arrays.values())


def test_the_longest_head_and_the_most_dimensions_pass_and_nothing_beyond(ends: tuple[Wire, Wire]) -> None:
    """The limits are the same for who sends and who receives."""
    sender, receiver = ends
    array = np.ones((1,) * 8, np.float32)
    sender.send("task", {"prompt": array}, task="train", round=1)
    assert receiver.receive("task").arrays["prompt"].shape == array.shape
    with pytest.raises(FrameRefused, match="dimensions"):
        sender.send("task", {"prompt": array[None]}, task="train", round=1)
    name = "t" * (MOST_HEAD - len(json.dumps({**TASK, "task": ""})))
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(sender.send, "task", task=name, round=1)
        with pytest.raises(FrameRefused, match="strict JSON"):  # which takes no text as long as that
            receiver.receive("task")
        sent.result()
    with pytest.raises(FrameRefused, match="longer than a frame may be"):
        sender.send("task", task=name + "t", round=1)


@pytest.mark.parametrize(("attempt", "site"), [("1", "head"), ("2", "abdomen")])
def test_mail_of_another_attempt_or_site_is_never_taken_for_the_mail_that_was_asked_for(
    ends: tuple[Wire, Wire], attempt: str, site: str
) -> None:
    """Nor is silence: each counts as mail that did not come in time."""
    vault, courier = ends
    mail = _AttemptMail(vault, SentBytes(), "1")
    courier.send("mail", data=b"share", attempt=attempt, site=site)
    with pytest.raises(TimeoutError):
        mail.receive("abdomen", 0.1)
    courier.send("silence")
    with pytest.raises(TimeoutError):
        mail.receive("abdomen", 0.1)
    courier.send("mail", data=b"share", attempt="1", site="abdomen")
    assert mail.receive("abdomen", 0.1) == b"share"


def test_counts_of_a_process_are_numbered_from_0_without_a_gap() -> None:
    """So that a window that is missing in the log is noticed; a process that sent nothing writes none."""
    windows: list[WireWindow] = []
    sent = SentBytes(windows.append)
    sent.log(last=True)
    for number in range(3):
        sent.answer("train", number, {"prompt": np.zeros(3, np.float32)}, b"audit", 400)
        sent.log(last=number == 2)
    assert [(window.number, window.last) for window in windows] == [(0, False), (1, False), (2, True)]


class Failing:
    """In place of a job's runtime: each task fails, and what the log is given is kept."""

    private = False

    def __init__(self, error: Exception) -> None:
        self.error, self.entries = error, list[Refusal]()

    def answer(self, *_: Any) -> None:
        raise self.error

    def refuse(self, code: Refusal, _: str) -> None:
        self.entries.append(code)
        raise JobRefused(code)


@pytest.mark.parametrize(
    ("error", "code", "entries"),
    [
        (JobRefused(Refusal.BUDGET), Refusal.BUDGET, []),
        (ValueError("pat-007"), Refusal.FAILED, [Refusal.FAILED]),
    ],
)
def test_a_failure_is_logged_once_and_the_server_gets_its_code(
    ends: tuple[Wire, Wire], error: Exception, code: Refusal, entries: list[Refusal]
) -> None:
    """A refusal is in the log before it is raised; of any other error only the vault knows."""
    vault, courier = ends
    runtime = Failing(error)
    courier.send("task", task="train", round=1)
    JobTasks(lambda: runtime, SentBytes()).answer(vault, vault.receive("task"))  # type: ignore[arg-type, return-value]
    assert courier.receive("refused").fields == {"code": code.value} and runtime.entries == entries
