"""A site that demands a review trains on no store before a person has accepted every picture."""

from contextlib import closing
from pathlib import Path

import pytest
from in_process import Job, Sites
from stores import make_store

from audits import Outcome, read
from audits.errors import Refusal
from medfedvqa.errors import ConfigError
from medfedvqa.federation.admission import JobRefused
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime


def site_of(sites: Sites, tmp_path: Path, required: bool, **cleaning: object) -> SiteConfig:
    """A site with a store of eight pictures that were cleaned so."""
    store = make_store(tmp_path / "store", {"chest": range(8)}, **cleaning)
    facts = {"reader": "store", "root": str(store), "min_count": 1, "ledger": str(tmp_path / "ledger")}
    return sites("chest", require_review=required, **facts)["chest"]


def start(config: SiteConfig, quick_job: Job) -> None:
    """The first task of a job on a store."""
    with closing(SiteRuntime(config, quick_job().model_copy(update={"data": "store"}), "first")) as runtime:
        runtime.handle("start", 1, {})


@pytest.mark.parametrize(
    ("cleaning", "sentence"),
    [({"flags": 1}, "await a decision"), ({}, "nobody has accepted")],
    ids=["open flag", "cleaned by machine alone"],
)
def test_a_store_that_nobody_accepted_is_not_trained_on(
    sites: Sites, quick_job: Job, tmp_path: Path, cleaning: dict[str, object], sentence: str
) -> None:
    """The job learns the code `data` alone; the site's own log says what to do."""
    config = site_of(sites, tmp_path, required=True, **cleaning)
    with pytest.raises(JobRefused) as refused:
        start(config, quick_job)
    assert refused.value.code is Refusal.DATA
    (last,) = [entry for entry in read(config.audit) if entry.outcome is Outcome.REFUSED]
    assert sentence in str(last.reason) and "medfedvqa ingest review" in str(last.reason)


@pytest.mark.parametrize(("required", "reviewed"), [(True, True), (False, False)])
def test_an_accepted_store_trains_and_without_the_demand_any(
    sites: Sites, quick_job: Job, tmp_path: Path, required: bool, reviewed: bool
) -> None:
    """The first task is answered."""
    start(site_of(sites, tmp_path, required, reviewed=reviewed), quick_job)


def test_only_a_store_can_be_reviewed(sites: Sites) -> None:
    """A site that demands a review of anything else does not start."""
    with pytest.raises(ConfigError, match="require_review"):
        sites("chest", reader="phantom", require_review=True)
