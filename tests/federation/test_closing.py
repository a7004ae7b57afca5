"""How a job ends at a site: nothing stays set aside, what released nothing costs nothing, and the log is closed."""

import pytest
from in_process import Job, Sites, budget, opened

from audits import Event, JobRefused, Refusal, read, verify
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_closing import LATE, close_ended
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.methods.prompt_pfl import PromptPFL


def died(config: SiteConfig, job: JobSpec, job_id: str, monkeypatch: pytest.MonkeyPatch) -> SiteRuntime:
    """A runtime whose first task was charged and never finished, as when an abort comes in mid-training."""
    runtime = SiteRuntime(config, job, job_id)
    with monkeypatch.context() as broken:
        broken.setattr(PromptPFL, "start", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            runtime.handle("start", 1, {})
    return runtime


def test_a_job_that_ended_before_its_first_release_costs_nothing(
    sites: Sites, private_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its charge is taken back with an entry of the ledger; another job's stays, and so does the chain."""
    config = sites("chest")["chest"]
    other = SiteRuntime(config, private_job(rounds=1), "other")
    other.handle("start", 1, {})
    other.close()
    before = budget(config)
    runtime = died(config, private_job(rounds=3), "job", monkeypatch)
    assert budget(config)[0] > before[0] > 0
    runtime.close()
    assert budget(config) == before
    with opened(config) as ledger:
        assert ledger.rows()[-1].record["event"] == "returned"
        ledger.verify()
    assert not list(config.state.glob("job.*"))
    assert list(read(config.audit))[-1].event is Event.CLOSE and verify(config.audit).ok


def test_what_was_computed_without_a_charge_never_leaves(
    sites: Sites, private_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that was saved and not sent is gone with its charge: asked again, the task is charged anew."""
    config, job = sites("chest")["chest"], private_job()
    runtime = SiteRuntime(config, job, "job")
    monkeypatch.setattr(runtime, "_release", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        runtime.handle("start", 1, {})
    assert list(config.state.glob("job.pt"))
    runtime.close()
    assert not list(config.state.glob("job.*")) and budget(config) == (0, 0)
    again = SiteRuntime(config, job, "job").handle("start", 1, {})
    assert again["epsilon"][0] == 0 < again["epsilon"][1] == pytest.approx(budget(config)[0])


def test_a_job_that_released_something_keeps_its_charges(sites: Sites, private_job: Job) -> None:
    """Only what never began is given back."""
    config = sites("chest")["chest"]
    runtime = SiteRuntime(config, private_job(rounds=3), "job")
    runtime.handle("start", 1, {})
    spent, authorised = budget(config)
    runtime.close()
    assert budget(config) == (spent, spent) and authorised > spent > 0


@pytest.mark.parametrize("code", [Refusal.FAILED, Refusal.MESSAGE, Refusal.DATA])
def test_a_refusal_that_may_depend_on_data_keeps_the_charge(
    sites: Sites, private_job: Job, monkeypatch: pytest.MonkeyPatch, code: Refusal
) -> None:
    """Who is told that a task failed has learnt something of what the task read."""
    config = sites("chest")["chest"]
    runtime = died(config, private_job(), "job", monkeypatch)
    with pytest.raises(JobRefused):
        runtime.refuse(code, "")
    runtime.close()
    assert budget(config)[0] > 0


def test_without_peers_a_private_job_on_shares_is_refused_before_it_is_charged(sites: Sites, private_job: Job) -> None:
    """One missing line of site.yml costs no patient anything: nothing is trained, and there is no ledger yet."""
    config = sites("chest", peers={"abdomen": "0" * 64})["chest"]
    job = private_job().model_copy(update={"secagg": True})
    runtime = SiteRuntime(config, job, "job")
    with pytest.raises(JobRefused) as refused:
        runtime.handle("start", 1, {})
    runtime.close()
    assert refused.value.code is Refusal.PEERS and not config.ledger.exists()


def test_jobs_whose_process_is_gone_are_closed_and_those_that_run_are_not(
    sites: Sites, private_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed processes leave reservations and an open log; the site's own process puts both right, job by job."""
    config = sites("chest")["chest"]
    for job_id in ("killed", "restarted", "running"):
        died(config, private_job(), job_id, monkeypatch)
    assert close_ended(config, ["restarted", "running"]) == ["killed"]
    (last,) = [entry for entry in read(config.audit) if entry.event is Event.CLOSE]
    assert (last.job, last.reason) == ("killed", LATE)
    with opened(config) as ledger:
        assert [ledger.holds(job_id) for job_id in ("killed", "restarted", "running")] == [False, True, True]
    assert close_ended(config, []) == ["restarted", "running"]
    assert budget(config) == (0, 0) and close_ended(config, []) == []
