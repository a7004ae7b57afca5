"""`medfedvqa privacy` for the sites of one store: earlier ledgers become one, it moves with its key, reports say so."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from stores import KEY, make_store
from test_store_ledger import DP, assert_refused, cost, work

from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import check_ledger
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest import ledger_binding
from medfedvqa.ingest.cohort_register import CohortCheck
from medfedvqa.ingest.pseudonyms import Pseudonyms
from privacy import Ledger
from privacy.report import read_report
from privacy.report.figures import tree_of_rows

pytestmark = pytest.mark.slow

Command = Callable[..., Any]
Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Eight patients of the chest, of whom four have a picture of the abdomen too, and four of the abdomen alone."""
    return make_store(tmp_path / "store", {"chest": range(8), "abdomen": range(4, 12)})


@pytest.fixture
def private_job(quick_job: Job) -> Job:
    """A quick job on a store under differential privacy; keywords are options of the method."""
    return lambda **options: quick_job(answers="closed", **options).model_copy(update={"dp": DP, "data": "store"})


@pytest.fixture
def organ_sites(sites: Sites, store: Path, tmp_path: Path) -> Sites:
    """The two sites of the store, each with a log of its own; keywords change what their files say."""

    def make(**changes: object) -> dict[str, SiteConfig]:
        facts = {
            "reader": "store",
            "root": str(store),
            "min_count": 1,
            "ledger": str(tmp_path / "ledger"),
            "delta": 1e-3,
        }
        return sites("chest", "abdomen", **{**facts, **changes})

    return make


def test_the_ledgers_that_two_sites_had_before_become_one(
    medfedvqa: Command, organ_sites: Sites, private_job: Job, store: Path, tmp_path: Path
) -> None:
    """What the second site had charged is taken over, by patient; its log finds its charges in the shared ledger."""
    job = private_job()
    limit = {"require_dp": True, "max_epsilon": 1.001 * cost(job, 2)}
    work(organ_sites(ledger=str(tmp_path / "before"))["abdomen"], job, "early")
    (store / ledger_binding.BINDING).unlink()
    configs = organ_sites(**limit)
    work(configs["chest"], job, "first")
    assert_refused(configs["abdomen"], private_job(rounds=1), "lost", "lacks a charge that the audit log recorded")
    site = configs["abdomen"].audit.parent / "site.yml"
    arguments = ("privacy", "ledger", "--site", str(site), "--take-over", str(tmp_path / "before"))
    for records in (3, 0):
        done = medfedvqa(*arguments)
        assert done.returncode == 0 and f"{records} records were imported" in done.stdout, done.stderr
    with closing(Ledger(configs["abdomen"].ledger, "abdomen")) as ledger:
        worst = max(account.spent.epsilon for account in ledger.accounts(DP.delta))
        assert worst == pytest.approx(cost(job, 2), abs=1e-9)
        check_ledger(ledger, configs["abdomen"].audit)
        ledger.verify()
    assert_refused(configs["abdomen"], private_job(rounds=3), "more", "with those before it")
    spoken = medfedvqa("privacy", "spent", "--site", str(site)).stdout
    assert "abdomen" in spoken and "imported" in spoken


def test_a_ledger_of_a_store_moves_with_its_key(
    medfedvqa: Command, organ_sites: Sites, private_job: Job, tmp_path: Path
) -> None:
    """Export, empty folder, the key beside it, import: the store finds its newest record again."""
    config = organ_sites()["chest"]
    work(config, private_job(), "job")
    site, export = str(config.audit.parent / "site.yml"), str(tmp_path / "export.jsonl")
    assert medfedvqa("privacy", "ledger", "--site", site, "--export", export).returncode == 0
    config.ledger.rename(tmp_path / "old")
    config.ledger.mkdir(mode=0o700)
    (tmp_path / "old" / "cohort.key").rename(config.ledger / "cohort.key")
    assert medfedvqa("privacy", "ledger", "--site", site).returncode == 1
    assert medfedvqa("privacy", "ledger", "--site", site, "--import", export).returncode == 0
    work(config, private_job(rounds=3), "next")


def test_the_report_says_whether_the_patients_have_one_budget(
    medfedvqa: Command, organ_sites: Sites, private_job: Job, store: Path, tmp_path: Path
) -> None:
    """Before the first private job, without a register of what was ingested, with one; other sites are named."""
    configs = organ_sites()
    site = str(configs["chest"].audit.parent / "site.yml")
    found = {}

    def report(name: str) -> dict[str, Any]:
        done = medfedvqa("privacy", "report", "--site", site, "--no-network", "--out", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        verified = medfedvqa("privacy", "verify-report", str(tmp_path / name), "--log", str(configs["chest"].audit))
        assert verified.returncode == 0, verified.stdout
        sections = tree_of_rows(read_report((tmp_path / name / "report.json").read_bytes()).rows)
        [found[name]] = [
            (one["state"], one["said"]) for one in sections["verdicts"]["rules"] if one["rule"] == "one budget"
        ]
        return dict(sections)

    work(configs["chest"], private_job().model_copy(update={"dp": None}), "plain")
    report("unbound")
    work(configs["chest"], private_job(), "job")
    report("unseen")
    CohortCheck(store, configs["chest"].ledger, Pseudonyms(KEY).fingerprint()).admit([], [])
    work(configs["abdomen"], private_job(), "job")
    jobs = report("seen")["accounting"]["jobs"]
    assert [state for state, _ in found.values()] == ["not shown", "not shown", "shown"]
    assert "nothing ties the store to" in found["unbound"][1] and "was not looked at" in found["unseen"][1]
    assert "would not be noticed" in found["seen"][1]
    assert {one["job"] for one in jobs} == {"job", "job at abdomen"}
