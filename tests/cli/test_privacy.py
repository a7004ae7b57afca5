"""`medfedvqa privacy` as a compliance reviewer types it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.version import VERSION
from privacy import DPSettings

Command = Callable[..., Any]
QUICK = ["-O", "rounds=2", "-O", "answers=closed", "--dp", "noise=1.5", "--dp", "count_noise=10"]


@pytest.fixture
def used(sites: Callable[..., dict[str, SiteConfig]], quick_job: Callable[..., JobSpec]) -> Path:
    """The site.yml of a site where one round of a private job has run, and the process then vanished."""
    config = sites("chest", require_dp=True, max_epsilon=20)["chest"]
    job = quick_job(answers="closed").model_copy(update={"dp": DPSettings(noise=1.5, count_noise=10.0)})
    SiteRuntime(config, job, "study-1").handle("start", 1, {})
    return config.ledger.parent / "site.yml"


def test_plan_tells_the_cost_by_both_accountants_before_anything_runs(medfedvqa: Command) -> None:
    """The last line is the whole job's."""
    done = medfedvqa("privacy", "plan", "prompt_pfl", *QUICK)
    assert done.returncode == 0
    assert "2 of 2" in done.stdout and "RDP accountant" in done.stdout and "PRV accountant" in done.stdout


def test_plan_says_whether_a_site_would_refuse_and_how_much_would_fit(
    medfedvqa: Command, sites: Callable[..., dict[str, SiteConfig]], tmp_path: Path
) -> None:
    """An exit code for scripts, and the reason."""
    sites("chest", require_dp=True, max_epsilon=100)
    site = str(tmp_path / "sites" / "chest" / "site.yml")
    assert medfedvqa("privacy", "plan", "prompt_pfl", *QUICK, "--site", site).returncode == 0
    sites("chest", require_dp=True, max_epsilon=0.5)
    refused = medfedvqa("privacy", "plan", "prompt_pfl", *QUICK, "--site", site)
    assert refused.returncode == 1 and "0 of 2 tasks would fit" in refused.stderr


def test_spent_tells_what_is_spent_reserved_and_left_and_by_which_job(medfedvqa: Command, used: Path) -> None:
    """And names no patient."""
    done = medfedvqa("privacy", "spent", "--site", str(used))
    assert done.returncode == 0
    assert "study-1" in done.stdout and "with what is reserved" in done.stdout and "left of 20 allowed" in done.stdout
    assert "patient-" not in done.stdout


def test_a_vanished_jobs_reservation_can_be_given_back(medfedvqa: Command, used: Path) -> None:
    """One of two rounds had begun: the other is free again, once."""
    freed = medfedvqa("privacy", "ledger", "--site", str(used), "--free", "study-1")
    assert freed.returncode == 0 and "1 tasks" in freed.stdout and "intact" in freed.stdout
    assert "0 tasks" in medfedvqa("privacy", "ledger", "--site", str(used), "--free", "study-1").stdout


def test_a_ledger_moves_to_another_machine_with_its_key(medfedvqa: Command, used: Path, tmp_path: Path) -> None:
    """Export, empty folder, the key beside it, import: the same account, and the audit log agrees."""
    before = medfedvqa("privacy", "spent", "--site", str(used)).stdout
    export, ledger = tmp_path / "export.jsonl", used.parent / "ledger"
    assert medfedvqa("privacy", "ledger", "--site", str(used), "--export", str(export)).returncode == 0
    ledger.rename(tmp_path / "old")
    ledger.mkdir(mode=0o700)
    (tmp_path / "old" / "cohort.key").rename(ledger / "cohort.key")
    assert medfedvqa("privacy", "ledger", "--site", str(used)).returncode == 1, "an empty ledger is not the one logged"
    assert medfedvqa("privacy", "ledger", "--site", str(used), "--import", str(export)).returncode == 0
    assert medfedvqa("privacy", "spent", "--site", str(used)).stdout == before


def test_spent_names_jobs_whose_epsilon_is_withdrawn(
    medfedvqa: Command,
    sites: Callable[..., dict[str, SiteConfig]],
    quick_job: Callable[..., JobSpec],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the version that the audit log names, from the list that ships and from the site's own beside its ledger."""
    config = sites("chest")["chest"]
    job = quick_job(answers="closed").model_copy(update={"dp": DPSettings(noise=1.5, count_noise=10.0)})
    for name, version in (("study-1", "0.1.0"), ("study-2", "0.7.0"), ("study-3", VERSION), ("study-4", "0.2.0")):
        monkeypatch.setattr("medfedvqa.federation.site_runtime.code_version", lambda version=version: version)
        runtime = SiteRuntime(config, job, name)
        runtime.handle("start", 1, {})
        runtime.close()
    site = str(config.ledger.parent / "site.yml")

    def withdrawn() -> dict[str, str]:
        done = medfedvqa("privacy", "spent", "--site", site)
        assert done.returncode == 0
        told = " ".join(done.stdout.split())
        return dict(part.split(" has no valid epsilon: ", 1) for part in told.split("job ") if "no valid" in part)

    found = withdrawn()
    assert list(found) == ["study-1", "study-4"]
    assert "0.1.0 is withdrawn" in found["study-1"] and "no proof" in found["study-1"]
    assert "epsilons of version 0.2.0 hold in exact arithmetic only" in found["study-4"].replace("E", "e", 1)
    entry = {"version": "0.7.0", "reason": "Its noise was too small.", "since": "2027-01-02"}
    (config.ledger / "withdrawn.json").write_text(json.dumps([entry]))
    found = withdrawn()
    assert list(found) == ["study-1", "study-2", "study-4"] and "Its noise was too small." in found["study-2"]
    (config.ledger / "withdrawn.json").write_text("[{}]")
    broken = medfedvqa("privacy", "spent", "--site", site)
    assert broken.returncode == 1 and "list of withdrawn versions" in broken.stderr


def test_plan_names_the_mechanism_of_the_counts(medfedvqa: Command) -> None:
    """Laplace for few releases, Gaussian where the job sets the noise itself."""
    few = medfedvqa("privacy", "plan", "prompt_pfl", "-O", "rounds=2", "-O", "answers=closed", "--epsilon", "3")
    assert few.returncode == 0 and "Laplace noise of scale" in few.stdout and "sum of clipped gradients" in few.stdout
    own = medfedvqa("privacy", "plan", "prompt_pfl", *QUICK)
    assert "Gaussian noise of multiplier 10 on each set of counts" in " ".join(own.stdout.split())
