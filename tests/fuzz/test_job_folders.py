"""Mutated job folders through the validator, and what it passes through the job's own check.

1,000 by default; `MEDFEDVQA_FUZZ=50000` sets another number. The same numbers make the same folders.
"""

import logging
import os
import random
import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from mutations import FILE_CHANGES, MARKER, Files, mutated, seeds
from tiers import examples

from audits import AuditKey, AuditLog, Refusal, origin_of, read
from medfedvqa.errors import MedfedvqaError
from medfedvqa.federation.flare import validator
from medfedvqa.federation.flare.job_folder import read_job
from medfedvqa.federation.flare.validator import ConfigurationOnly
from medfedvqa.federation.job import STATUS_JOB, JobSpec
from medfedvqa.federation.job_closing import RefusalEntries
from privacy import PrivacyError

pytestmark = pytest.mark.sampled

COUNT = int(os.environ.get("MEDFEDVQA_FUZZ", examples(1000)))
SECRET = "planted-secret-of-the-site"
SENTENCES = {"", *(f"refused: {code}: {code.sentence}" for code in (Refusal.FOLDER, Refusal.SCHEMA))}
MEMORY = 512 * 1024
"""KiB by which the process may grow."""


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RefusalEntries:
    """Those of the site, on a day that does not end."""
    monkeypatch.setenv("PLANTED_SECRET", SECRET)
    folder = tmp_path / "audit"
    folder.mkdir()
    log = AuditLog(folder, "chest", AuditKey.at(tmp_path / "audit.key", origin_of("chest")))
    made = RefusalEntries(log, tmp_path / "state", lambda: date(2026, 1, 1))
    monkeypatch.setattr(validator, "_reports", [made.enter])
    return made


def folders(count: int, jobs: Path) -> Iterator[tuple[Files, random.Random]]:
    """First the seeds as they are, then mutations of them, of exported ones most."""
    exported, hostile = seeds(jobs)
    found = [*exported, *hostile]
    for number in range(count):
        chance = random.Random(number)
        plain = chance.choice(exported if chance.random() < 0.8 else hostile)
        yield (found[number] if number < len(found) else mutated(plain, chance)), chance


def written(app: Path, files: Files) -> Path:
    shutil.rmtree(app.parent, ignore_errors=True)
    for name, content in files.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_bytes(content)
    return app


@pytest.mark.timeout(3600)
def test_mutated_job_folders_are_refused_in_fixed_sentences_and_nothing_of_them_is_repeated(
    tmp_path: Path, entries: RefusalEntries, caplog: pytest.LogCaptureFixture
) -> None:
    """No error but a refusal, no text of a job in sentences, logs or entries, bounded memory, bounded entries."""
    caplog.set_level(logging.DEBUG)
    before, outcomes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, Counter[str]()
    jobs, subject = Path(__file__).parents[2] / "nvflare_jobs", ConfigurationOnly()
    for number, (files, chance) in enumerate(folders(COUNT, jobs)):
        app = written(tmp_path / "f81d4fae-7dec-41d0-a765-00a0c91e6bf6" / "app_chest", files)
        if chance.random() < 0.1:
            chance.choice(FILE_CHANGES)(app)
        sentence, properties = subject.validate(str(app))
        assert sentence in SENTENCES and properties == {}, number
        outcomes[sentence.partition(": ")[2].partition(":")[0] or _deep(app)] += 1
        assert not any(text in caplog.text for text in (MARKER, SECRET)), number
        caplog.clear()
    assert {"folder", "schema", "runs", "options"} <= outcomes.keys(), outcomes
    print(dict(outcomes))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY
    log = b"".join(path.read_bytes() for path in (tmp_path / "audit").rglob("*") if path.is_file())
    assert MARKER.encode() not in log and SECRET.encode() not in log
    refused = [entry for entry in read(tmp_path / "audit") if entry.admission is not None]
    assert len(refused) == min(outcomes["folder"] + outcomes["schema"], 1001)


def _deep(app: Path) -> str:
    """What the job's own process makes of a folder that the validator passes."""
    job = read_job(app)
    assert not any({*"{}$"} & {*text} for text in _texts(job))
    if job == STATUS_JOB:
        return "runs"
    try:
        JobSpec.from_dict(job)
    except (MedfedvqaError, PrivacyError) as error:
        assert MARKER not in str(error)
        return "options"
    return "runs"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        yield from (text for part in value for text in _texts(part))
        if isinstance(value, dict):
            yield from _texts(list(value.values()))


@pytest.mark.parametrize("change", FILE_CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_each_change_of_files_has_its_outcome(tmp_path: Path, entries: RefusalEntries, change: object) -> None:
    """Links, pipes, folders, large and other files: refused, but for a signature."""
    jobs = Path(__file__).parents[2] / "nvflare_jobs"
    app = written(tmp_path / "job" / "app_chest", seeds(jobs)[0][0])
    assert callable(change)
    change(app)
    sentence, _ = ConfigurationOnly().validate(str(app))
    assert sentence == ("" if change is FILE_CHANGES[-1] else f"refused: folder: {Refusal.FOLDER.sentence}")
