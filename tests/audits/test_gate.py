"""The only way out of a site, and the only way in."""

import hashlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from borders import CONTEXT, EXCHANGE, POLICY, PROMPT, ROWS, Site, border
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from audits import (
    AuditError,
    Event,
    Exchange,
    JobRefused,
    Kind,
    LogError,
    Outcome,
    ReceiptRefused,
    Refusal,
    ReleaseRefused,
    SitePolicy,
    TaskSpec,
    Tensors,
    TensorSpec,
    verify,
)
from audits.errors import ReleaseFault

MARKER = "patient-Miller"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return border(tmp_path)


def message(**changes: Any) -> Tensors:
    return {"prompt": np.arange(6, dtype="float32").reshape(2, 3), "rows": np.array(17), **changes}


def test_a_declared_message_passes_with_its_values(site: Site) -> None:
    """What is sent has the names, values, shapes and dtypes that were handed in, in declared order."""
    sent = site.gate.release("train", 3, dict(reversed(message().items())))
    assert list(sent) == ["prompt", "rows"]
    for name, array in message().items():
        assert sent[name].shape == array.shape and sent[name].dtype == array.dtype
        np.testing.assert_array_equal(sent[name], array)


def test_a_release_is_logged_with_all_its_facts(site: Site) -> None:
    """The entry says which tensors, shapes and bytes went to whom, under which policy, exchange, code and model."""
    sent = site.gate.release("train", 3, message(), recipient="server")
    (entry,) = site.entries()
    assert (entry.event, entry.direction, entry.peer, entry.outcome) == (Event.RELEASE, "out", "server", Outcome.SENT)
    assert (entry.site, entry.job, entry.method, entry.task, entry.round) == (
        "chest",
        "job-1",
        "prompt_pfl",
        "train",
        3,
    )
    assert (entry.policy, entry.exchange) == (POLICY.digest(), EXCHANGE.digest())
    assert (entry.actor, entry.code_version, entry.code_digest, entry.model_digest) == (
        CONTEXT.actor,
        CONTEXT.code_version,
        CONTEXT.code_digest,
        CONTEXT.model_digest,
    )
    assert entry.nbytes == EXCHANGE.task("train").bytes_up == sum(array.nbytes for array in sent.values())
    for spec, record in zip((PROMPT, ROWS), entry.tensors, strict=True):
        assert (record.name, record.shape, record.dtype) == (spec.name, spec.shape, spec.dtype)
        assert (record.kind, record.protection, record.nbytes) == (spec.kind, spec.protection, spec.nbytes)
        assert record.sha256 == hashlib.sha256(sent[spec.name].tobytes()).hexdigest()


def test_what_was_released_can_no_longer_change(site: Site) -> None:
    """The bytes that go are those that were digested: neither the sender's array nor the copy can alter them."""
    handed_in = message()
    sent = site.gate.release("train", 0, handed_in)
    handed_in["prompt"][:] = -1
    np.testing.assert_array_equal(sent["prompt"], message()["prompt"])
    for array in sent.values():
        assert array.flags.c_contiguous and not array.flags.writeable
        with pytest.raises(ValueError):
            array.flags.writeable = True


@pytest.mark.parametrize(
    "same",
    [
        lambda array: np.asfortranarray(array),
        lambda array: array[::-1, ::-1].copy()[::-1, ::-1],
        lambda array: np.repeat(array, 2, axis=1)[:, ::2],
        lambda array: array.astype(">f4"),
        lambda array: np.broadcast_to(array, (1, 2, 3))[0],
    ],
)
def test_memory_layout_does_not_matter(site: Site, same: Callable[[np.ndarray], np.ndarray]) -> None:
    """Strided, transposed, read-only and foreign-endian arrays leave as the same little-endian bytes."""
    site.gate.release("train", 0, message())
    sent = site.gate.release("train", 0, message(prompt=same(message()["prompt"])))
    np.testing.assert_array_equal(sent["prompt"], message()["prompt"])
    plain, other = site.entries()
    assert plain.tensors == other.tensors


NOT_FINITE = np.array([[0, 1, 2], [3, float("nan"), 5]], dtype="float32")
REFUSED: dict[str, tuple[Tensors, ReleaseFault, list[str]]] = {
    "nan": (message(prompt=NOT_FINITE), ReleaseFault.FINITE, ["prompt"]),
    "infinite": (message(prompt=np.full((2, 3), -np.inf, "float32")), ReleaseFault.FINITE, ["prompt"]),
    "wider dtype": (message(prompt=np.zeros((2, 3), "float64")), ReleaseFault.DTYPE, ["prompt"]),
    "whole numbers": (message(prompt=np.zeros((2, 3), "int32")), ReleaseFault.DTYPE, ["prompt"]),
    "boolean": (message(rows=np.array(True)), ReleaseFault.DTYPE, ["rows"]),
    "transposed": (message(prompt=np.zeros((3, 2), "float32")), ReleaseFault.SHAPE, ["prompt"]),
    "flattened": (message(prompt=np.zeros(6, "float32")), ReleaseFault.SHAPE, ["prompt"]),
    "scalar as vector": (message(rows=np.array([17])), ReleaseFault.SHAPE, ["rows"]),
    "missing": ({"prompt": message()["prompt"]}, ReleaseFault.MISSING, ["rows"]),
    "empty": ({}, ReleaseFault.MISSING, ["prompt", "rows"]),
    "undeclared": (message(**{MARKER: np.zeros(2)}), ReleaseFault.UNDECLARED, []),
    "a list": (message(prompt=[[0, 1, 2], [3, 4, 5]]), ReleaseFault.ARRAY, ["prompt"]),
    "a number": (message(rows=17), ReleaseFault.ARRAY, ["rows"]),
    "a numpy number": (message(rows=np.int64(17)), ReleaseFault.ARRAY, ["rows"]),
    "objects": (message(prompt=np.full((2, 3), MARKER, object)), ReleaseFault.ARRAY, ["prompt"]),
    "text": (message(prompt=np.full((2, 3), MARKER)), ReleaseFault.ARRAY, ["prompt"]),
    "named fields": (message(rows=np.zeros((), [(MARKER, "i8")])), ReleaseFault.ARRAY, ["rows"]),
    "masked": (message(prompt=np.ma.MaskedArray(np.zeros((2, 3), "float32"))), ReleaseFault.ARRAY, ["prompt"]),
    "nothing": (message(prompt=None), ReleaseFault.ARRAY, ["prompt"]),
    "two faults": (message(prompt=NOT_FINITE, rows=np.array(1.5)), ReleaseFault.FINITE, ["prompt", "rows"]),
}


def is_known_sentence(text: str) -> bool:
    patterns = (re.sub(r"\\\{\w+\\\}", r"[\\w\\[\\], -]+", re.escape(reason)) for reason in ReleaseFault)
    return any(re.fullmatch(pattern, text) for pattern in patterns)


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_and_the_refusal_logged(site: Site, case: str) -> None:
    """Refusal and entry name the declared tensors at fault and give sentences of the closed set; nothing else shows."""
    tensors, reason, offending = REFUSED[case]
    with pytest.raises(ReleaseRefused) as caught:
        site.gate.release("train", 1, tensors)
    (entry,) = site.entries()
    assert (entry.event, entry.direction, entry.outcome) == (Event.RELEASE, "out", Outcome.REFUSED)
    assert [record.name for record in entry.tensors] == offending
    assert entry.nbytes == 0 and {(record.sha256, record.nbytes) for record in entry.tensors} <= {(None, 0)}
    assert entry.reason and entry.reason in str(caught.value)
    assert all(is_known_sentence(sentence) for sentence in entry.reason.split("; "))
    facts = {"name": offending[0], "shape": [2, 3], "dtype": "float32"} if "prompt" in offending else {}
    facts = facts or {"name": "rows", "shape": [], "dtype": "int64"}
    assert reason.format(count=1, **facts) in entry.reason
    assert MARKER not in str(caught.value) and MARKER.encode() not in site.log_bytes()


def test_the_shape_that_was_found_is_not_told(site: Site) -> None:
    """A wrong shape is often a row count, and the server reads refusals."""
    with pytest.raises(ReleaseRefused) as caught:
        site.gate.release("train", 1, message(prompt=np.zeros((4711, 3), "float32")))
    assert "4711" not in str(caught.value) and b"4711" not in site.log_bytes()


@pytest.mark.parametrize(
    ("task", "recipient", "reason"),
    [
        (MARKER, "server", ReleaseFault.TASK),
        ("train", MARKER, ReleaseFault.PEER),
        ("ready", MARKER, ReleaseFault.PEER),
    ],
)
def test_unknown_tasks_and_peers_are_refused_without_repeating_their_names(
    site: Site, task: str, recipient: str, reason: ReleaseFault
) -> None:
    """A name that nobody declared may carry data; an empty message to a stranger is refused as well."""
    with pytest.raises(ReleaseRefused, match=reason) as caught:
        site.gate.release(task, 1, {} if task == "ready" else message(), recipient)
    assert MARKER not in str(caught.value) and MARKER.encode() not in site.log_bytes()
    (entry,) = site.entries()
    assert (entry.task is None) == (task == MARKER) and (entry.peer is None) == (recipient == MARKER)


@pytest.mark.parametrize(
    ("policy", "sentence", "offending"),
    [
        (
            SitePolicy(("fedavg",), POLICY.kinds, POLICY.recipients),
            "does not allow the method 'prompt_pfl'",
            ["prompt", "rows"],
        ),
        (
            SitePolicy(("prompt_pfl",), POLICY.kinds[:1], POLICY.recipients),
            "tensor 'rows' is of the kind 'statistic'",
            ["rows"],
        ),
        (SitePolicy(("prompt_pfl",), POLICY.kinds), "tensor 'prompt' is declared for a peer", ["prompt"]),
        (POLICY, None, []),
    ],
)
def test_the_site_has_the_last_word(
    tmp_path: Path, policy: SitePolicy, sentence: str | None, offending: list[str]
) -> None:
    """A declared message passes only if the site's policy allows its method, its kinds and its peers."""
    site = border(tmp_path, policy=policy)
    if sentence is None:
        site.gate.release("train", 1, message())
    else:
        with pytest.raises(ReleaseRefused, match=sentence):
            site.gate.release("train", 1, message())
    assert [record.name for record in site.entries()[0].tensors if not record.nbytes] == offending


def test_a_tensor_goes_only_to_peers_that_it_is_declared_for(site: Site) -> None:
    """The policy may know a peer that a tensor is not for."""
    with pytest.raises(ReleaseRefused, match="tensor 'rows' is declared for other peers only"):
        site.gate.release("train", 1, message(), "site-2")


def test_what_comes_in_is_checked_and_logged_alike(site: Site) -> None:
    """Receipts are held to `down`, and come back as read-only copies whose digests are in the log."""
    received = site.gate.receive("train", 2, {"prompt": message()["prompt"]})
    assert not received["prompt"].flags.writeable
    for tensors, sender in (({"prompt": NOT_FINITE}, "server"), (message(), "server"), ({}, "server"), ({}, "site-9")):
        with pytest.raises(ReceiptRefused, match="nothing received was used"):
            site.gate.receive("train", 2, tensors, sender)
    accepted, *refused = site.entries()
    assert (accepted.event, accepted.direction, accepted.peer) == (Event.RECEIVE, "in", "server")
    assert accepted.outcome is Outcome.ACCEPTED and accepted.nbytes == EXCHANGE.task("train").bytes_down
    assert accepted.tensors[0].sha256 == hashlib.sha256(received["prompt"].tobytes()).hexdigest()
    assert [entry.outcome for entry in refused] == [Outcome.REFUSED] * 4


def test_nothing_passes_that_cannot_be_logged(site: Site) -> None:
    """Without an entry on disk there is no release, no receipt and no refusal that goes unrecorded."""
    (site.folder / "log.jsonl").unlink()
    with pytest.raises(LogError):
        site.gate.release("train", 1, message())
    with pytest.raises(LogError):
        site.gate.receive("train", 1, {})


def test_a_job_opens_and_closes_its_part_of_the_log(site: Site) -> None:
    """Both entries carry the job, its policy and its exchange."""
    site.gate.open()
    site.gate.release("ready", 0, {})
    site.gate.close()
    assert [entry.event for entry in site.entries()] == [Event.OPEN, Event.RELEASE, Event.CLOSE]
    assert {(entry.job, entry.policy, entry.exchange) for entry in site.entries()} == {
        ("job-1", POLICY.digest(), EXCHANGE.digest())
    }
    assert verify(site.folder).entries == 3


def test_numpy_round_numbers_are_logged_as_numbers(site: Site) -> None:
    """Engines count rounds in whatever integer they have."""
    site.gate.release("ready", np.int64(4), {})  # type: ignore[arg-type]
    assert site.entries()[0].round == 4


def test_a_gate_serves_one_method(tmp_path: Path) -> None:
    """An exchange of another method than the job's cannot be used."""
    with pytest.raises(AuditError, match="of different methods"):
        border(tmp_path, Exchange("fedavg", ()))


SPECS = st.lists(
    st.builds(
        TensorSpec,
        name=st.sampled_from(["a", "b", "c", "d"]),
        shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
        dtype=st.sampled_from(["float32", "int64"]),
        kind=st.sampled_from([Kind.PARAMETERS, Kind.STATISTIC]),
        meaning=st.just("A tensor."),
    ),
    max_size=3,
    unique_by=lambda spec: spec.name,
)
ARRAYS = st.builds(
    lambda shape, dtype, value: np.full(shape, value, dtype=dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from([">f4", "<f4", "<f8", "<i8", "<i4"]),
    st.integers(-3, 3),
)


@given(SPECS, st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), ARRAYS, max_size=2), st.data())
@settings(max_examples=examples(50))
def test_the_gate_passes_exactly_the_declared_messages(
    specs: list[TensorSpec], replaced: dict[str, np.ndarray], data: st.DataObject
) -> None:
    """A message passes if and only if its names are the declared ones, each with its shape, dtype and finite values."""
    tensors = {spec.name: np.ones(spec.shape, spec.dtype) for spec in specs} | replaced
    for name in data.draw(st.sets(st.sampled_from(sorted(tensors)), max_size=1)) if tensors else ():
        if data.draw(st.booleans()):
            del tensors[name]
        elif tensors[name].dtype.kind == "f" and tensors[name].size:
            tensors[name].flat[data.draw(st.integers(0, tensors[name].size - 1))] = np.nan
    declared = {(spec.name, spec.shape, np.dtype(spec.dtype)) for spec in specs}
    result = {(name, array.shape, array.dtype.newbyteorder("=")) for name, array in tensors.items()}
    due = declared == result and all(np.isfinite(array).all() for array in tensors.values())

    with tempfile.TemporaryDirectory() as folder:
        site = border(Path(folder), Exchange("prompt_pfl", (TaskSpec("t", up=tuple(specs), down=()),)))
        if due:
            sent = site.gate.release("t", 0, tensors)
            assert all(np.array_equal(sent[name], array) for name, array in tensors.items())
        else:
            with pytest.raises(ReleaseRefused):
                site.gate.release("t", 0, tensors)
        assert site.entries()[0].outcome is (Outcome.SENT if due else Outcome.REFUSED)


def test_a_refused_job_is_logged_with_its_reason(site: Site) -> None:
    """The compliance officer sees what was asked for, and that it was not granted."""
    with pytest.raises(JobRefused, match="no budget"):
        site.gate.refuse_job(Refusal.BUDGET, "no budget")
    (entry,) = site.entries()
    assert (entry.event, entry.outcome, entry.reason) == (Event.REFUSAL, Outcome.REFUSED, "no budget")
    assert entry.admission == {"code": "budget"}


BOUNDED = Exchange(
    "prompt_pfl",
    (
        TaskSpec(
            "train",
            up=(
                TensorSpec("prompt", (2, 3), "float32", Kind.PARAMETERS, "A prompt."),
                TensorSpec("rows", (), "int64", Kind.STATISTIC, "A count.", bounds=(0, 100)),
            ),
            down=(TensorSpec("share", (), "float32", Kind.STATISTIC, "A share.", bounds=(0, 1)),),
            most_norm=8.0,
        ),
    ),
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": np.array(101)}, "tensor 'rows' holds values outside of its declared bounds 0 to 100"),
        ({"rows": np.array(-5)}, "tensor 'rows' holds values outside of its declared bounds 0 to 100"),
        ({"prompt": np.full((2, 3), 4, "float32")}, "the parameters are longer than the declared norm of 8"),
    ],
)
def test_what_is_outside_of_its_declared_limits_does_not_leave(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """Bounds of a value and the joint norm of parameters; the refusal is logged, and a message within them passes."""
    site = border(tmp_path, BOUNDED)
    site.gate.release("train", 1, message())
    with pytest.raises(ReleaseRefused, match=re.escape(reason)):
        site.gate.release("train", 1, message(**changes))
    assert [(entry.outcome, entry.reason) for entry in site.entries()] == [
        (Outcome.SENT, None),
        (Outcome.REFUSED, reason),
    ]


@pytest.mark.parametrize("share", [-0.1, 1.1, 1e9, np.nan])
def test_what_is_outside_of_its_declared_limits_is_not_taken_in(tmp_path: Path, share: float) -> None:
    """A server may lie as a site may."""
    site = border(tmp_path, BOUNDED)
    with pytest.raises(ReceiptRefused, match="tensor 'share' holds values"):
        site.gate.receive("train", 1, {"share": np.array(share, "float32")})
