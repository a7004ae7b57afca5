"""The declaration of what a method sends."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from audits import AuditError, Exchange, Kind, MessageRefused, Protection, TaskSpec, TensorSpec, canonical
from audits.errors import ReleaseFault
from audits.exchange import clip_to_norm, joint_norm


def tensor(**changes: Any) -> TensorSpec:
    facts = {"name": "shared", "shape": (2, 3), "dtype": "float32", "kind": Kind.PARAMETERS, "meaning": "A prompt."}
    return TensorSpec(**facts | changes)


def example() -> Exchange:
    count = tensor(name="rows", shape=(), dtype="int64", kind=Kind.STATISTIC, protection=Protection.DP)
    return Exchange("prompt_pfl", (TaskSpec("train", up=(tensor(), count), down=(tensor(recipients=("a", "b")),)),))


def test_the_digest_never_changes() -> None:
    """Logs of earlier versions name exchanges by this digest, so it must stay."""
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_what_has_no_canonical_form_cannot_be_hashed(value: Any) -> None:
    """Two readers could disagree about it."""
    with pytest.raises(ValueError):
        canonical({"value": value})


def test_a_limit_that_is_not_set_leaves_the_digest_as_it_was_and_equal_limits_give_equal_digests() -> None:
    """Logs of earlier versions name exchanges without limits; 1 and 1.0 are the same bound."""
    plain, whole, real = (Exchange("m", (TaskSpec("t", (tensor(bounds=b),), ()),)) for b in (None, (0, 1), (0.0, 1.0)))
    assert whole.digest() == real.digest() != plain.digest()
    limited = Exchange("m", (TaskSpec("t", (tensor(),), (), 2),))
    assert limited.digest() != plain.digest() and limited.tasks[0].most_norm == 2.0


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
@settings(max_examples=examples(60))
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
