"""One site's part of a job: gate in, handler, saved state, gate out."""

from pathlib import Path

import numpy as np
import pytest
from in_process import Job, Sites

from audits import JobRefused, Outcome, ReceiptRefused, Refusal, read, verify
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_runtime import SiteRuntime


def shared(value: float = 0.01, shape: tuple[int, ...] = (2, 4, 32)) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32) for name in ("prompt.image", "prompt.text")}


@pytest.mark.parametrize(
    "bad",
    [
        shared(float("nan")),
        shared(float("inf")),
        shared(shape=(2, 4, 255)),
        {},
        {"prompt.image": shared()["prompt.image"]},
    ],
)
def test_a_broken_shared_prompt_is_refused_and_logged(sites: Sites, quick_job: Job, bad: dict[str, np.ndarray]) -> None:
    """NaN, infinity, a wrong shape or a missing tensor: the site does not train on it, and its log says so."""
    config = sites("chest")["chest"]
    runtime = SiteRuntime(config, quick_job(), "job")
    with pytest.raises(ReceiptRefused):
        runtime.handle("train", 2, bad)
    entries = list(read(config.audit))
    assert entries[-1].outcome == Outcome.REFUSED and entries[-1].task == "train"
    assert not list(config.state.glob("*.pt"))


def test_an_undeclared_task_is_refused(sites: Sites, quick_job: Job) -> None:
    """A server cannot ask for anything that the method's exchange does not declare."""
    runtime = SiteRuntime(sites("chest")["chest"], quick_job(), "job")
    with pytest.raises(JobRefused) as refused:
        runtime.handle("setup", 1, {})
    assert refused.value.code is Refusal.ORDER


def test_a_task_asked_again_is_answered_without_training_twice(sites: Sites, quick_job: Job) -> None:
    """After a crash the same round's task gets the same bytes from saved state, by a new process's runtime."""
    config = sites("chest")["chest"]
    first = SiteRuntime(config, quick_job(), "job").handle("start", 1, {})
    saved = (config.state / "job.pt").read_bytes()
    again = SiteRuntime(config, quick_job(), "job").handle("start", 1, {})
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert (config.state / "job.pt").read_bytes() == saved


def test_a_resumed_site_continues_as_if_nothing_had_happened(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """Two rounds in one process equal two rounds in two processes, bit for bit."""
    config = sites("chest")["chest"]
    other = config.model_copy(update={"state": tmp_path / "other"})
    steady = SiteRuntime(config, quick_job(), "job")
    steady.handle("start", 1, {})
    SiteRuntime(other, quick_job(), "job").handle("start", 1, {})
    one = steady.handle("train", 2, shared())
    two = SiteRuntime(other, quick_job(), "job").handle("train", 2, shared())
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_logged_bytes_equal_the_declared_bytes(sites: Sites, quick_job: Job) -> None:
    """What the log says left and came in is exactly what the exchange declares for the task."""
    config, job = sites("chest")["chest"], quick_job()
    runtime = SiteRuntime(config, job, "job")
    runtime.handle("start", 1, {})
    runtime.handle("train", 2, shared())
    logged = [(entry.task, entry.direction, entry.nbytes) for entry in read(config.audit) if entry.direction]
    prompts = 2 * 2 * 4 * 32 * 4
    assert logged == [
        ("start", "in", 0),
        ("start", "out", prompts + 4),
        ("train", "in", prompts),
        ("train", "out", prompts + 4),
    ]
    assert verify(config.audit).ok


def test_a_method_that_the_site_does_not_allow_is_refused_before_it_runs(sites: Sites, quick_job: Job) -> None:
    """The site's own policy decides: a job of a method that it does not name is refused and logged; nothing trains."""
    config = sites("chest", methods=["another"])["chest"]
    with pytest.raises(JobRefused, match="method"):
        SiteRuntime(config, quick_job(), "job").handle("start", 1, {})
    (entry,) = read(config.audit)
    assert entry.admission is not None and entry.admission["code"] == Refusal.METHOD
    assert not list(config.state.glob("*.pt"))


@pytest.mark.parametrize(
    "text",
    ["", "policy: {}", "data: [", "data: {reader: phantom}\npolicy: {methods: [prompt_pfl], kinds: [parameters]}"],
)
def test_a_site_with_a_bad_site_yml_does_not_start(tmp_path: Path, text: str) -> None:
    """Missing policy, broken YAML or missing fields: an error that names the site and no value."""
    path = tmp_path / "site.yml"
    path.write_text(text)
    with pytest.raises(Exception, match=r"chest|policy") as error:
        load_site_config(path, "chest")
    assert type(error.value).__name__ in ("ConfigError", "PolicyError")
