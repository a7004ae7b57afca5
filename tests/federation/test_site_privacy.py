"""A site under differential privacy: what is charged before data is touched, what leaves, and what is refused."""

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import Job, Sites, cost, opened, work
from untrained import DP

from audits import JobRefused, Outcome, Protection, read, verify
from audits.errors import ReleaseFault
from audits.verifier import totals
from medfedvqa.data.pictures import Pictures
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.methods.prompt_pfl import PromptPFL
from medfedvqa.models import shape_of
from medfedvqa.training import Privacy, Trainer, answer_losses
from privacy import DPSettings, NoiseLevels, RepeatableRandomness, SecureRandomness, spent
from privacy.mechanisms.sampled_gaussian import grid_step


def refusals(config: SiteConfig) -> list[str | None]:
    """The reasons in the site's log."""
    return [entry.reason for entry in read(config.audit) if entry.outcome == Outcome.REFUSED]


def test_every_release_carries_its_charge_in_message_log_and_ledger(sites: Sites, private_job: Job) -> None:
    """Epsilon before and after, in the reply, in the entry and replayed from the ledger, are one figure."""
    config, job = sites("chest")["chest"], private_job()
    first, second, last = work(config, job, "job")
    total = cost(job)
    assert first["epsilon"][0] == 0 and first["epsilon"][1] == second["epsilon"][0] < second["epsilon"][1]
    assert second["epsilon"][1] == pytest.approx(total, abs=1e-9)
    entries = [entry for entry in read(config.audit) if entry.dp_event]
    assert [(entry.epsilon_before, entry.epsilon_after) for entry in entries] == [
        tuple(reply["epsilon"]) for reply in (first, second)
    ]
    assert [entry.dp_event["events"] for entry in entries if entry.dp_event] == [
        [event.to_dict() for event in one.events] for one in job.build().plan()
    ]
    with opened(config) as ledger:
        (account,) = ledger.accounts(DP.delta)
        heads = [entry.dp_event["ledger"] for entry in entries if entry.dp_event]
        assert all(ledger.contains(head["seq"], head["head"]) for head in heads)
    assert account.spent.epsilon == pytest.approx(total, abs=1e-9) and account.spent == account.authorised
    assert last == {} and verify(config.audit).ok


def test_stochastic_gradient_descent_is_charged_as_adam_is(sites: Sites, private_job: Job) -> None:
    """The optimiser sees noisy gradients only: which one it is changes no epsilon."""
    replies = work(sites("chest")["chest"], private_job(optimizer="sgd", learning_rate=0.1), "job")
    assert replies[1]["epsilon"][1] == pytest.approx(cost(private_job()), abs=1e-9)
    assert not np.array_equal(replies[0]["prompt.image"], replies[1]["prompt.image"])


def test_what_is_not_charged_stays_at_the_site(sites: Sites, private_job: Job) -> None:
    """Test results are written for the hospital itself; of them the server gets an empty message."""
    config, job = sites("chest")["chest"], private_job()
    work(config, job, "job")
    kept = json.loads((config.state / "job.evaluate.json").read_text())
    assert kept["rows"] > 0 and kept["correct"] <= kept["rows"]
    assert {path.stat().st_mode & 0o777 for path in config.state.iterdir()} == {0o600}
    left = {total.name for total in totals(config.audit).tensors if total.direction == "out"}
    assert left == {"prompt.image", "prompt.text", "accuracy", "epsilon"}
    exchange = job.build().final_exchange(shape_of(job.backbone))
    assert exchange.task("evaluate").up == ()
    for spec in exchange.task("train").up:
        assert (spec.protection is Protection.DP) == (spec.name != "epsilon")


@pytest.mark.parametrize(
    ("demands", "reason"),
    [
        ({"require_dp": True}, ReleaseFault.DP),
        ({"delta": 1e-6}, ReleaseFault.DELTA),
        ({"require_secagg": True}, ReleaseFault.SECAGG),
        ({"min_sites": 2}, ReleaseFault.SITES.format(count=2)),
    ],
)
def test_a_job_that_does_not_meet_a_demand_is_refused_and_logged(
    sites: Sites, quick_job: Job, private_job: Job, demands: dict[str, Any], reason: str
) -> None:
    """No privacy, a larger delta, aggregation in clear, fewer sites: before anything trains, the reason in the log."""
    config, job = sites("chest", **demands)["chest"], (quick_job if "require_dp" in demands else private_job)()
    with pytest.raises(JobRefused, match=reason):
        SiteRuntime(config, job, "job").handle("start", 1, {})
    assert refusals(config) == [reason]
    assert not list(config.state.glob("*.pt"))


@pytest.mark.slow
def test_two_jobs_compose_and_a_third_is_refused_before_any_picture_is_opened(
    sites: Sites, private_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hospital's limit holds over everything that its cohort is used for, and the refusal says what would fit."""
    job = private_job()
    twice = spent([event for one in job.build().plan() for event in one.events] * 2, DP.delta).epsilon
    config = sites("chest", require_dp=True, max_epsilon=twice)["chest"]
    for number in (1, 2):
        work(config, job, f"job-{number}")
    with opened(config) as ledger:
        (account,) = ledger.accounts(DP.delta)
    assert account.spent.epsilon == pytest.approx(twice, abs=1e-9)

    def seen(*_: object) -> torch.Tensor:
        raise AssertionError("a picture was opened")

    monkeypatch.setattr(Pictures, "read", seen)
    with pytest.raises(JobRefused, match=r"of 2 rounds would fit.*job-1.*job-2"):
        work(config, job, "job-3")
    assert "rounds would fit" in str(refusals(config)[-1])


def test_one_job_may_not_cost_more_than_the_site_allows_one_job(sites: Sites, private_job: Job) -> None:
    """Also while the cohort's own limit is far."""
    job = private_job()
    config = sites("chest", require_dp=True, max_epsilon=50, max_epsilon_per_job=0.9 * cost(job))["chest"]
    with pytest.raises(JobRefused, match="alone"):
        work(config, job, "job")


def test_delta_above_one_over_the_number_of_patients_is_refused(sites: Sites, private_job: Job) -> None:
    """Such a delta would allow to publish a patient outright."""
    config = sites("chest", delta=0.5)["chest"]
    job = private_job().model_copy(update={"dp": DPSettings(noise=1.0, count_noise=1.0, delta=0.4)})
    with pytest.raises(JobRefused, match="delta"):
        work(config, job, "job")


@pytest.mark.slow
def test_a_task_that_died_is_charged_and_its_repetition_too(
    sites: Sites, private_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt saw data; that nobody saw its result is not for the ledger to judge."""
    config, job = sites("chest")["chest"], private_job()
    with monkeypatch.context() as broken:
        broken.setattr(PromptPFL, "start", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            SiteRuntime(config, job, "job").handle("start", 1, {})
    reply = SiteRuntime(config, job, "job").handle("start", 1, {})
    once = spent(job.build().plan()[0].events, DP.delta).epsilon
    twice = spent(job.build().plan()[0].events * 2, DP.delta).epsilon
    assert list(reply["epsilon"]) == pytest.approx([once, twice], abs=1e-9)
    (entry,) = [entry for entry in read(config.audit) if entry.dp_event]
    assert entry.dp_event is not None and entry.dp_event["attempt"] == 2


def test_a_task_outside_of_the_plan_is_refused(sites: Sites, private_job: Job) -> None:
    """A server cannot ask for more rounds than were reserved."""
    config, job = sites("chest")["chest"], private_job()
    runtime = SiteRuntime(config, job, "job")
    reply = runtime.handle("start", 1, {})
    with pytest.raises(JobRefused, match="no such task in this round"):
        runtime.handle("train", 9, {name: reply[name] for name in ("prompt.image", "prompt.text")})


@pytest.mark.slow
def test_a_ledger_that_was_set_back_is_noticed(sites: Sites, private_job: Job, tmp_path: Path) -> None:
    """The audit log knows a head that the older copy lacks: no job runs until it is put right."""
    config, job = sites("chest")["chest"], private_job()
    work(config, job, "job-1")
    shutil.copytree(config.ledger, tmp_path / "copy")
    work(config, job, "job-2")
    shutil.rmtree(config.ledger)
    shutil.copytree(tmp_path / "copy", config.ledger)
    with pytest.raises(JobRefused, match="audit log"):
        work(config, job, "job-3")


def test_an_edited_ledger_is_noticed(sites: Sites, private_job: Job) -> None:
    """Also by an administrator who knows SQLite."""
    config, job = sites("chest")["chest"], private_job()
    work(config, job, "job-1")
    connection = sqlite3.connect(next(config.ledger.glob("*.sqlite")))
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("DELETE FROM journal WHERE seq = (SELECT MAX(seq) FROM journal)")
    connection.commit()
    connection.close()
    with pytest.raises(JobRefused):
        work(config, job, "job-2")


def test_what_a_job_reserved_and_never_began_is_given_back_when_it_ends(sites: Sites, private_job: Job) -> None:
    """An aborted job costs what it did, not what it had planned."""
    config, job = sites("chest")["chest"], private_job(rounds=5)
    runtime = SiteRuntime(config, job, "job")
    runtime.handle("start", 1, {})
    with opened(config) as ledger:
        (before,) = ledger.accounts(DP.delta)
    runtime.close()
    with opened(config) as ledger:
        (after,) = ledger.accounts(DP.delta)
    assert before.authorised.epsilon > before.spent.epsilon == after.spent.epsilon == after.authorised.epsilon


@pytest.mark.slow
def test_repeatable_noise_repeats_and_is_marked_void_wherever_it_is_recorded(
    sites: Sites, private_job: Job, tmp_path: Path
) -> None:
    """Only a site can ask for it, and nobody can mistake its charges for protection."""
    config, job = sites("chest", repeatable_noise=7)["chest"], private_job()
    again = config.model_copy(update={name: tmp_path / name for name in ("state", "audit", "ledger")})
    one, two = work(config, job, "job"), work(again, job, "job")
    assert all(a[name].tobytes() == b[name].tobytes() for a, b in zip(one, two, strict=True) for name in a)
    assert {entry.dp_event["void"] for entry in read(config.audit) if entry.dp_event} == {True}
    with opened(config) as ledger:
        assert [one.void for account in ledger.accounts(DP.delta) for one in account.jobs] == [True]


@pytest.mark.slow
def test_without_that_flag_the_same_job_with_the_same_seed_gives_other_bytes(
    sites: Sites, private_job: Job, tmp_path: Path
) -> None:
    """The job's seed does not reach the noise."""
    config, job = sites("chest")["chest"], private_job()
    again = config.model_copy(update={name: tmp_path / name for name in ("state", "audit", "ledger")})
    one, two = work(config, job, "job")[0], work(again, job, "job")[0]
    assert not np.isclose(one["prompt.image"], two["prompt.image"], rtol=1e-3).all()


@pytest.mark.usefixtures("sharp_relu")
def test_a_private_step_without_noise_and_bound_is_the_plain_one(sites: Sites, private_job: Job) -> None:
    """The model's prompts and head get the gradient of the summed loss: clipping and noise are all that differs."""
    config, job = sites("chest")["chest"], private_job(dropout=0.0)
    site, method = SiteRuntime(config, job, "job").site, job.build()
    settings = replace(DP, clip=50.0, sample_rate=1.0, patient_rows=99, expected_patients=1)
    unbound = Privacy(settings, NoiseLevels(1e-14))
    trainer = Trainer(site, method.model(site), method.config.training, method.answers, unbound)
    values, loss = trainer.part(method.setup(site)["values"], 1).values, answer_losses(trainer.model)
    (sample,) = next(iter(trainer.draws(0)))
    sample = replace(sample, patients=sample.patients[:7])
    trainer._gradients.fill(values, loss, sample)
    rows = trainer._rows.rows(trainer.train_rows, torch.cat(sample.patients))
    step = grid_step(settings.clip, sum(value.numel() for value in values.values()))
    for (name, value), gradient in zip(
        values.items(), torch.autograd.grad(loss(values, rows).sum(), [*values.values()]), strict=True
    ):
        assert gradient.abs().max() > 30 * step
        torch.testing.assert_close(value.grad, gradient, rtol=1e-4, atol=1e-5 + step / 2, msg=name)


@pytest.mark.slow
def test_a_federation_under_differential_privacy_tells_its_epsilon_and_no_score(
    sites: Sites, private_job: Job, tmp_path: Path
) -> None:
    """The server's results hold the job's epsilon by round and site; test results stay where they are."""
    configs, job = sites("chest", "head"), private_job()
    results = serve_job(job, ("chest", "head"), LocalEngine(configs, job, "job").call, tmp_path, "local")
    assert results["status"] == "finished" and results["average"]["accuracy"] is None
    assert results["dp"]["noise"] == DP.noise and results["dp"]["delta"] == DP.delta
    for site in ("chest", "head"):
        assert results["sites"][site]["epsilon"] == pytest.approx(cost(job), abs=1e-9)
        assert results["rounds"][0]["epsilon"][site][1] == results["rounds"][1]["epsilon"][site][0]


def test_no_source_of_noise_but_the_sites_own_is_used(sites: Sites, private_job: Job) -> None:
    """A runtime draws from the secure source unless its site.yml says otherwise."""
    assert isinstance(SiteRuntime(sites("chest")["chest"], private_job(), "a").site.randomness, SecureRandomness)
    void = SiteRuntime(sites("chest", repeatable_noise=1)["chest"], private_job(), "b").site.randomness
    assert isinstance(void, RepeatableRandomness)
