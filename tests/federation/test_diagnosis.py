"""What a site tells of a failure that has nothing to do with the job: a code of a closed list, and what to do."""

import errno
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import Job, Sites
from served import Served

from audits import Event, LogError, Refusal, read
from medfedvqa.errors import DataError
from medfedvqa.federation import site_state
from medfedvqa.federation.error_codes import code_of
from medfedvqa.federation.flare.executor import carry
from medfedvqa.federation.flare.messages import REASON, pack
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.training.trainer import Trainer

FULL = OSError(errno.ENOSPC, "No space left on device", "/hospital/secret")


def wrapped(error: Exception, cause: Exception, hidden: bool = False) -> Exception:
    """The error as it is raised while the cause is handled; `hidden` by `from None`."""
    try:
        try:
            raise cause
        except Exception as before:
            raise error from (None if hidden else before)
    except Exception as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "code", "private"),
    [
        (FULL, Refusal.DISK, Refusal.DISK),
        (OSError(errno.EDQUOT, "quota"), Refusal.DISK, Refusal.DISK),
        (wrapped(LogError("cannot be written"), FULL), Refusal.DISK, Refusal.DISK),
        (wrapped(LogError("cannot be written"), FULL, hidden=True), Refusal.DISK, Refusal.DISK),
        (MemoryError(), Refusal.MEMORY, Refusal.FAILED),
        (torch.OutOfMemoryError("CUDA out of memory"), Refusal.MEMORY, Refusal.FAILED),
        (wrapped(DataError("no picture"), MemoryError()), Refusal.MEMORY, Refusal.FAILED),
        (OSError(errno.EACCES, "denied"), Refusal.FAILED, Refusal.FAILED),
        (LogError("cannot be written"), Refusal.RECORDS, Refusal.RECORDS),
        (RuntimeError("out of memory"), Refusal.FAILED, Refusal.FAILED),
    ],
)
def test_full_disks_and_memory_have_codes(error: Exception, code: Refusal, private: Refusal) -> None:
    """Also behind an error of the project's own. Under differential privacy the memory, which rows may fill, has none;
    a sentence that speaks of memory is no evidence of it."""
    assert (code_of(error), code_of(error, private=True)) == (code, private)


def answered(config: SiteConfig, job: JobSpec) -> Any:
    """The code in the site's answer to the first task; None if it answers."""
    with closing(Served(SiteRuntime(config, job, "job"))) as served:
        return carry(served.courier, "start", pack(1, {})).get(REASON)


def test_a_site_whose_disk_fills_up_says_so_and_nothing_else(
    sites: Sites, quick_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of a task cannot be saved: the server gets the code, the site's log has it too, and no path."""
    config = sites("chest")["chest"]

    def full(*arguments: Any, **options: Any) -> None:
        raise FULL

    monkeypatch.setattr(site_state.torch, "save", full)
    assert answered(config, quick_job()) == Refusal.DISK.value
    (refused,) = [entry for entry in read(config.audit) if entry.event is Event.REFUSAL]
    assert refused.admission is not None and refused.admission["code"] == Refusal.DISK.value
    assert not any(b"secret" in path.read_bytes() for path in Path(config.audit).rglob("*") if path.is_file())
    assert "free at least 1 GiB" in Refusal.DISK.sentence


@pytest.mark.parametrize(
    ("changes", "code"), [({}, Refusal.MEMORY), ({"dp": {"noise": 1.5, "count_noise": 10.0}}, Refusal.FAILED)]
)
def test_a_site_whose_memory_is_too_small_says_so_unless_the_job_is_private(
    sites: Sites, quick_job: Job, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: Refusal
) -> None:
    """Whatever a job under differential privacy learns must not depend on a patient's rows."""

    def too_small(*arguments: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory: 9 rows")

    monkeypatch.setattr(Trainer, "step", too_small)
    job = JobSpec.from_dict(quick_job(answers="closed").to_dict() | changes)
    assert answered(sites("chest")["chest"], job) == code.value
