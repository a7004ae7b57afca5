"""The declaration of what a method sends."""

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audits import AuditError, Exchange, Kind, MessageRefused, Protection, TaskSpec, TensorSpec, canonical
from audits.errors import ReleaseFault
from audits.exchange import clip_to_norm, joint_norm

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
    bounds=st.none() | st.tuples(st.floats(-1e9, 0), st.integers(0, 2**60) | st.floats(0, 1e300)),
)
MESSAGES = st.lists(TENSORS, max_size=3, unique_by=lambda spec: spec.name).map(tuple)
TASKS = st.lists(
    st.builds(TaskSpec, NAMES, MESSAGES, MESSAGES, st.none() | st.floats(1e-9, 1e9)),
    max_size=3,
    unique_by=lambda task: task.name,
)
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
        {"bounds": (0, 1)},
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
        {"bounds": (1, 0)},
        {"bounds": (0,)},
        {"bounds": [0, 1]},
        {"bounds": ("0", "1")},
        {"bounds": (False, True)},
        {"bounds": (0, float("nan"))},
        {"bounds": (0, float("inf"))},
        {"bounds": (0, 10**400)},
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
    result = json.loads(example().to_json())
    place = result
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(result)


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
        spoil(["tasks", 0, "up", 0, "bounds"], [0]),
        spoil(["tasks", 0, "up", 0, "bounds"], "01"),
        spoil(["tasks", 0, "most_norm"], -1),
        spoil(["tasks", 0, "most_norm"], "1"),
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


def test_a_limit_that_is_not_set_leaves_the_digest_as_it_was_and_equal_limits_give_equal_digests() -> None:
    """Logs of earlier versions name exchanges without limits; 1 and 1.0 are the same bound."""
    plain, whole, real = (Exchange("m", (TaskSpec("t", (tensor(bounds=b),), ()),)) for b in (None, (0, 1), (0.0, 1.0)))
    assert "bounds" not in plain.to_json() and "most_norm" not in plain.to_json()
    assert whole.digest() == real.digest() != plain.digest()
    limited = Exchange("m", (TaskSpec("t", (tensor(),), (), 2),))
    assert limited.digest() != plain.digest() and Exchange.from_json(limited.to_json()).tasks[0].most_norm == 2.0


WEIGHT = tensor(name="rows", shape=(), dtype="int64", kind=Kind.STATISTIC, bounds=(0, 1_000_000))
SHARE = tensor(name="accuracy", shape=(), kind=Kind.STATISTIC, bounds=(0, 1))
BOUNDED = Exchange("m", (TaskSpec("train", (tensor(), WEIGHT, SHARE), (SHARE,), 10),))


def upload(**changes: Any) -> dict[str, Any]:
    honest = {"shared": np.ones((2, 3), "float32"), "rows": np.array(17), "accuracy": np.array(0.5, "float32")}
    return {name: value for name, value in (honest | changes).items() if value is not None}


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
@pytest.mark.parametrize("rows", [0, 1_000_000])
def test_bounds_are_inclusive(rows: int, accuracy: float) -> None:
    """What is declared passes, as a copy that nobody can write to."""
    message = upload(rows=np.array(rows), accuracy=np.array(accuracy, "float32"))
    passed = BOUNDED.check("train", "up", message)
    assert list(passed) == list(message) and not any(array.flags.writeable for array in passed.values())
    assert all(np.array_equal(passed[name], message[name]) for name in message)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": np.array(-5)}, ReleaseFault.BOUNDS),
        ({"rows": np.array(10**9)}, ReleaseFault.BOUNDS),
        ({"rows": np.array(2**63 - 1)}, ReleaseFault.BOUNDS),
        ({"rows": np.array(1e30)}, ReleaseFault.DTYPE),
        ({"accuracy": np.array(np.nan, "float32")}, ReleaseFault.FINITE),
        ({"accuracy": np.array(1e9, "float32")}, ReleaseFault.BOUNDS),
        ({"accuracy": np.array(-5, "float32")}, ReleaseFault.BOUNDS),
        ({"accuracy": np.array(np.nextafter(np.float32(1), np.float32(2)))}, ReleaseFault.BOUNDS),
        ({"accuracy": np.array([0.5], "float32")}, ReleaseFault.SHAPE),
        ({"accuracy": 0.5}, ReleaseFault.ARRAY),
        ({"accuracy": None}, ReleaseFault.MISSING),
        ({"patient-17": np.zeros(3)}, ReleaseFault.UNDECLARED),
        ({"shared": np.full((2, 3), 1e30, "float32")}, ReleaseFault.NORM),
        ({"shared": np.full((2, 3), 4.1, "float32")}, ReleaseFault.NORM),
    ],
)
def test_whoever_receives_a_message_refuses_what_is_not_declared(changes: dict[str, Any], reason: ReleaseFault) -> None:
    """Values, dtypes, shapes and names; the sentence holds declared facts only."""
    start, _, _ = reason.value.partition("{")
    with pytest.raises(MessageRefused) as caught:
        BOUNDED.check("train", "up", upload(**changes))
    assert start in str(caught.value) or reason is ReleaseFault.UNDECLARED and "not declared" in str(caught.value)
    assert "patient-17" not in str(caught.value) and "e+" not in str(caught.value).replace("1e+06", "")


def test_a_limit_on_the_norm_is_for_uploads_of_parameters_only() -> None:
    """A statistic may be larger, and so may what comes down."""
    task = TaskSpec("t", (tensor(kind=Kind.STATISTIC),), (tensor(),), 1)
    large = {"shared": np.full((2, 3), 9, "float32")}
    for way in ("up", "down"):
        Exchange("m", (task,)).check("t", way, large)


@given(st.integers(0, 999), st.floats(1e-3, 1e6), st.floats(1e-6, 1e6))
@settings(deadline=None, max_examples=60)
def test_what_is_clipped_is_within_the_norm_and_points_where_it_did(seed: int, scale: float, most: float) -> None:
    """Tensors are scaled together, also after rounding to float32; shorter ones stay as they are."""
    rng = np.random.default_rng(seed)
    before = {name: np.array(scale * rng.normal(size=shape), np.float32) for name, shape in (("a", (3, 5)), ("b", ()))}
    after = clip_to_norm(before, most)
    assert joint_norm(after) <= most or joint_norm(before) <= most
    factor = min(1, most / joint_norm(before))
    for name in before:
        assert (type(after[name]), after[name].dtype) == (np.ndarray, np.float32)
        assert np.allclose(after[name], factor * before[name], rtol=1e-5)
    assert clip_to_norm(before, 2 * joint_norm(before)) == before
