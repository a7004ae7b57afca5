"""`medfedvqa ingest withdraw`: which jobs had used the patient, and what cannot be undone."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from stores import KEY, make_store
from test_store_ledger import DP, work

from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest.ledger_binding import default_ledger
from medfedvqa.ingest.store import read_store

Command = Callable[..., Any]
Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Eight patients of the chest, of whom four have a picture of the abdomen too, and four of the abdomen alone."""
    folder = make_store(tmp_path / "store", {"chest": range(8), "abdomen": range(4, 12)})
    key = folder.with_name("store.key")
    key.write_bytes(KEY)
    key.chmod(0o600)
    return folder


@pytest.fixture
def configs(sites: Sites, store: Path) -> dict[str, SiteConfig]:
    """The two sites of the store."""
    facts = {"reader": "store", "root": str(store), "min_count": 1, "ledger": str(default_ledger(store)), "delta": 1e-3}
    return sites("chest", "abdomen", **facts)


@pytest.mark.slow
def test_jobs_that_used_the_patient_are_named(
    medfedvqa: Command, configs: dict[str, SiteConfig], quick_job: Job, store: Path, tmp_path: Path
) -> None:
    """Of jobs under differential privacy those that were charged for the patient; of others those of the sites that
    held the patient. No number is printed, and what cannot be undone is said."""
    private = quick_job(answers="closed").model_copy(update={"dp": DP, "data": "store"})
    work(configs["chest"], private, "private-chest")
    work(configs["abdomen"], private, "private-abdomen")
    work(configs["chest"], quick_job(answers="closed").model_copy(update={"data": "store"}), "clear-chest")
    sites = [part for name in configs for part in ("--site", str(tmp_path / "sites" / name / "site.yml"))]

    def jobs(number: str, *more: str) -> dict[str, str]:
        done = medfedvqa("ingest", "withdraw", str(store), "--patient", number, "--json", *more)
        assert done.returncode == 0, done.stderr
        return {job["job"]: job["known_from"] for job in json.loads(done.stdout)["jobs"]}

    assert jobs("P1", *sites) == {"private-chest": "ledger", "clear-chest": "log"}
    assert jobs("P9", *sites) == {"private-abdomen": "ledger"}
    assert jobs("P5") == {"private-chest": "ledger", "private-abdomen": "ledger"}
    done = medfedvqa("ingest", "withdraw", str(store), "--patient", "P2", *sites)
    assert done.returncode == 0 and "private-chest" in done.stdout and "clear-chest" in done.stdout
    assert "What cannot be undone" in done.stdout and "P2" not in done.stdout + done.stderr
    assert len(read_store(store)[1]) == 16 - 5


def test_without_a_job_the_command_says_so_and_asks_for_the_number(
    medfedvqa: Command, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is typed stands in no history of commands."""
    monkeypatch.setattr("sys.stdin", StringIO("P3\n"))
    done = medfedvqa("ingest", "withdraw", str(store))
    assert done.returncode == 0, done.stderr
    assert "Removed 1 pictures and 4 questions" in done.stdout and "No job is known" in done.stdout
    assert "pass each site.yml as --site" in done.stdout
