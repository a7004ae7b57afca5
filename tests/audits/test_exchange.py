"""The declaration of what a method sends."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audits import AuditError, Exchange, Kind, Protection, TaskSpec, TensorSpec, canonical

NAMES = st.builds(str.__add__, st.sampled_from("aZ9"), st.text("bY0_.:/-", max_size=8))
TENSORS = st.builds(
    TensorSpec,
    name=NAMES,
    shape=st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "int64"]),
    kind=st.sampled_from(Kind),
    meaning=st.text(min_size=1, max_size=8).filter(str.strip),
    recipients=st.lists(NAMES, min_size=1, max_size=3, unique=True).map(tuple),
    protection=st.sampled_from(Protection),
)
MESSAGES = st.lists(TENSORS, max_size=3, unique_by=lambda spec: spec.name).map(tuple)
TASKS = st.lists(st.builds(TaskSpec, NAMES, MESSAGES, MESSAGES), max_size=3, unique_by=lambda task: task.name)
EXCHANGES = st.builds(Exchange, NAMES, TASKS.map(tuple))


def tensor(**changes: Any) -> TensorSpec:
    facts = {"name": "shared", "shape": (2, 3), "dtype": "float32", "kind": Kind.PARAMETERS, "meaning": "A prompt."}
    return TensorSpec(**facts | changes)


def example() -> Exchange:
    count = tensor(name="rows", shape=(), dtype="int64", kind=Kind.STATISTIC, protection=Protection.DP)
    return Exchange("prompt_pfl", (TaskSpec("train", up=(tensor(), count), down=(tensor(recipients=("a", "b")),)),))


@given(EXCHANGES)
@settings(deadline=None, max_examples=30)
def test_json_round_trip_keeps_everything(exchange: Exchange) -> None:
    """Reading what was written gives an equal exchange with an equal digest, and the text is canonical."""
    text = exchange.to_json()
    again = Exchange.from_json(text)
    assert again == exchange and again.digest() == exchange.digest()
    assert text.encode() == canonical(json.loads(text))


def test_the_digest_is_the_hash_of_the_canonical_json_and_never_changes() -> None:
    """Logs of earlier versions name exchanges by this digest, so it must stay."""
    assert example().digest() == hashlib.sha256(example().to_json().encode()).hexdigest()
    assert example().digest() == "2ff2732bb56e496bf341d90b4861932f90ef883e9780b80f9fab5404c145b902"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "rows"},
        {"shape": (3, 2)},
        {"dtype": "int64"},
        {"kind": Kind.STATISTIC},
        {"recipients": ("b",)},
        {"protection": Protection.DP},
        {"meaning": "Another prompt."},
    ],
)
def test_the_digest_depends_on_every_fact(change: dict[str, Any]) -> None:
    """No fact of a tensor can change without the digest changing."""
    digests = {Exchange("m", (TaskSpec("t", (spec,), ()),)).digest() for spec in (tensor(), tensor(**change))}
    assert len(digests) == 2


def test_bytes_are_those_of_the_declared_values() -> None:
    """float32 takes 4 bytes, int64 takes 8; a scalar is one value, an empty dimension none."""
    task = example().task("train")
    assert (task.bytes_up, task.bytes_down) == (2 * 3 * 4 + 8, 2 * 3 * 4)
    assert tensor(shape=(0, 7)).nbytes == 0


def test_an_undeclared_task_is_an_error_that_does_not_repeat_its_name() -> None:
    """The name that was asked for may carry data."""
    with pytest.raises(AuditError) as caught:
        example().task("patient-17")
    assert "patient-17" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "two words"},
        {"name": "line\n"},
        {"name": "x" * 201},
        {"shape": (2, -1)},
        {"shape": (2.0,)},
        {"shape": (True,)},
        {"dtype": "float16"},
        {"dtype": "object"},
        {"kind": "parameters"},
        {"protection": "none"},
        {"meaning": " "},
        {"recipients": ()},
        {"recipients": ("server", "server")},
    ],
)
def test_a_malformed_tensor_cannot_be_declared(change: dict[str, Any]) -> None:
    """A declaration is checked when it is made."""
    with pytest.raises(AuditError):
        tensor(**change)


def test_names_are_unique_within_a_message_and_tasks_within_an_exchange() -> None:
    """Otherwise two declarations could disagree about one tensor."""
    with pytest.raises(AuditError, match="declared twice"):
        TaskSpec("t", (tensor(), tensor(shape=(1,))), ())
    with pytest.raises(AuditError, match="declared twice"):
        Exchange("m", (TaskSpec("t", (), ()), TaskSpec("t", (tensor(),), ())))


def spoil(path: list[Any], value: Any) -> str:
    found = json.loads(example().to_json())
    place = found
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"method":"m"}',
        '{"method":1,"tasks":[]}',
        "[" * 100_000,
        spoil(["method"], None),
        spoil(["more"], 1),
        spoil(["tasks"], "train"),
        spoil(["tasks", 0, "up"], None),
        spoil(["tasks", 0, "optional"], []),
        spoil(["tasks", 0, "up", 0, "name"], None),
        spoil(["tasks", 0, "up", 0, "shape"], "23"),
        spoil(["tasks", 0, "up", 0, "shape"], [2.5]),
        spoil(["tasks", 0, "up", 0, "dtype"], ["float32"]),
        spoil(["tasks", 0, "up", 0, "kind"], "weights"),
        spoil(["tasks", 0, "up", 0, "protection"], "some"),
        spoil(["tasks", 0, "up", 0, "recipients"], "server"),
        spoil(["tasks", 0, "up", 0, "optional"], True),
    ],
)
def test_reading_anything_else_is_an_error(text: str) -> None:
    """Missing, unknown and mistyped parts are refused, never guessed."""
    with pytest.raises(AuditError):
        Exchange.from_json(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_what_has_no_canonical_form_cannot_be_hashed(value: Any) -> None:
    """Two readers could disagree about it."""
    with pytest.raises(ValueError):
        canonical({"value": value})
