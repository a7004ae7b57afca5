"""Which jobs a site takes: decided by signature, policy, log and budget before its data, and told as a code."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from in_process import Job, Sites

from audits import Event, JobRefused, Outcome, Refusal, read
from medfedvqa.data import Split
from medfedvqa.federation.admission import Signature
from medfedvqa.federation.job import JobSpec, Terms
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from privacy import DPSettings

ACTOR, FEDERATION, ANOTHER = "a" * 64, "SHA256" + ":FF" * 32, "SHA256" + ":EE" * 32
SIGNED = Signature(ACTOR, FEDERATION)
DP = DPSettings(noise=4.0, count_noise=4.0)
FEDAVG = {"methods": ["fedavg"]}
BY_RELIABILITY = {"schedule": "stepwise", "mixing": "reliability", "rounds": 2}


def never(*_: object) -> Any:
    raise AssertionError("something was loaded before the site had decided")


def ask(config: SiteConfig, job: JobSpec, job_id: str = "job", signature: Signature | None = SIGNED) -> Refusal | None:
    """The code with which a site refuses the first task of a job that may load nothing; None if it would go on."""
    runtime = SiteRuntime(config, job, job_id, load=never, load_data=never, signature=signature)
    try:
        runtime.handle("start", 1, {})
    except JobRefused as error:
        return error.code
    except AssertionError:
        return None
    finally:
        runtime.close()
    raise AssertionError("a task ran without a backbone")


def fresh(job: JobSpec, federation: str = FEDERATION, sites: tuple[str, ...] = ("chest",), days: float = 1) -> JobSpec:
    return job.model_copy(update={"terms": Terms.fresh(federation, sites, days)})


@pytest.mark.parametrize(
    ("changes", "facts", "code"),
    [
        ({}, {"methods": ["fedavg"]}, Refusal.METHOD),
        ({}, {"kinds": ["public"]}, Refusal.KIND),
        ({"data": "vqa-rad"}, {}, Refusal.READER),
        ({"backbone": "ViT-B-32/openai"}, {}, Refusal.BACKBONE),
        ({"backbone": "hf-hub:org/name"}, {}, Refusal.BACKBONE),
        ({"backbone": "medclip@other"}, {}, Refusal.BACKBONE),
        ({"backbone": "medclip-slake"}, {}, Refusal.BACKBONE),  # bundled up to version 0.2.0
        ({}, {"require_dp": True}, Refusal.PRIVACY),
        ({"dp": DPSettings(noise=4.0, count_noise=4.0, delta=1e-3)}, {}, Refusal.PRIVACY),
        ({}, {"require_secagg": True}, Refusal.SECAGG),
        ({}, {"min_sites": 2}, Refusal.SITES),
        ({"secagg": True}, {}, Refusal.PEERS),
        ({"secagg": True}, {"peers": {"abdomen": "0" * 64, "head": "1" * 64}, "min_committee": 4}, Refusal.COMMITTEE),
        ({}, {"max_mixture_share": 0.75}, Refusal.MIXTURE),
        ({"options": {"most_share": 0.8}}, {"max_mixture_share": 0.75}, Refusal.MIXTURE),
        ({"method": "fedavg", "options": BY_RELIABILITY}, FEDAVG | {"max_mixture_share": 0.75}, Refusal.MIXTURE),
        ({}, {"submitters": ["b" * 64]}, Refusal.SUBMITTER),
        ({}, {"revoked_submitters": [ACTOR]}, Refusal.SUBMITTER),
        ({}, {"submitters": [ACTOR], "revoked_submitters": [ACTOR]}, Refusal.SUBMITTER),
        ({}, {"device": "cuda:7"}, Refusal.DEVICE),
        ({}, {"root": "/nowhere"}, Refusal.ROOT),
        ({"dp": DP}, {"require_dp": True, "max_epsilon_per_job": 1e-3}, Refusal.EPSILON),
        ({"dp": DPSettings(noise=0.1, count_noise=4.0)}, {"require_dp": True}, Refusal.EPSILON),
    ],
)
def test_a_site_refuses_before_it_loads_anything(
    sites: Sites, quick_job: Job, changes: dict[str, Any], facts: dict[str, Any], code: Refusal
) -> None:
    """Neither backbone, which might be fetched, nor data are touched for a job that policy or budget do not allow."""
    config = sites("chest", **facts)["chest"]
    job = fresh(quick_job(answers="closed").model_copy(update=changes))
    assert ask(config, job) is code
    (refused,) = [entry for entry in read(config.audit) if entry.event is Event.REFUSAL]
    assert refused.outcome is Outcome.REFUSED and refused.actor == ACTOR
    assert refused.admission == {"code": code.value, "definition": job.definition}


def test_a_job_without_fault_goes_on_to_load(sites: Sites, quick_job: Job) -> None:
    """The control: the loader is what stops it."""
    config = sites("chest")["chest"]
    assert ask(config, fresh(quick_job())) is None
    (admitted,) = [entry for entry in read(config.audit) if entry.event is Event.ADMITTED]
    assert admitted.admission is not None and len(admitted.admission["nonce"]) == 36


def test_a_hub_backbone_that_the_policy_names_may_be_loaded(sites: Sites, quick_job: Job) -> None:
    """The site, not the job, decides what is fetched."""
    config = sites("chest", allowed_backbones=["ViT-B-32/openai"])["chest"]
    assert ask(config, fresh(quick_job().model_copy(update={"backbone": "ViT-B-32/openai"}))) is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"federation": ANOTHER}, Refusal.FEDERATION),
        ({"sites": ("abdomen",)}, Refusal.FEDERATION),
        ({"days": -0.1}, Refusal.EXPIRED),
        ({"days": 400}, Refusal.EXPIRED),
    ],
)
def test_terms_bind_federation_sites_and_time(
    sites: Sites, quick_job: Job, change: dict[str, Any], code: Refusal
) -> None:
    """What somebody signed for others, or long ago, does not run here."""
    assert ask(sites("chest")["chest"], fresh(quick_job(), **change)) is code


def test_a_job_that_nobody_signed_is_refused(sites: Sites, quick_job: Job) -> None:
    """A server's own job does not run at a provisioned site."""
    assert ask(sites("chest")["chest"], fresh(quick_job()), signature=Signature("", FEDERATION)) is Refusal.SIGNATURE


def test_a_run_whose_submitter_was_revoked_does_not_continue(sites: Sites, quick_job: Job) -> None:
    """A restarted site reads `revoked_submitters` again, so that an admitted job ends there; others' jobs go on."""
    config, job = sites("chest")["chest"], fresh(quick_job())
    begun = SiteRuntime(config, job, "job-1", load=never, signature=SIGNED)
    with pytest.raises(AssertionError):
        begun.handle("start", 1, {})
    begun.close(ended=False)
    revoked = config.model_copy(update={"policy": replace(config.policy, revoked_submitters=(ACTOR,))})
    assert ask(revoked, job, "job-1") is Refusal.SUBMITTER
    assert ask(revoked, fresh(quick_job()), "job-2", Signature("c" * 64, FEDERATION)) is None


def test_a_signed_job_runs_once(sites: Sites, quick_job: Job) -> None:
    """A server that runs an old one again, under a new id or after its end, is refused; a restarted process goes on."""
    config, job = sites("chest")["chest"], fresh(quick_job())
    first = SiteRuntime(config, job, "job-1", load=never, signature=SIGNED)
    with pytest.raises(AssertionError):
        first.handle("start", 1, {})
    first.close(ended=False)
    assert ask(config, job, "job-1") is None
    assert ask(config, job, "job-2") is Refusal.REPLAY
    assert ask(config, fresh(quick_job()), "job-2") is Refusal.REPLAY, "the id belongs to a job that has ended"


@pytest.mark.parametrize("change", [{"seed": 5}, {}, {"terms": None}], ids=["another", "another nonce", "no terms"])
def test_an_id_under_which_a_job_was_admitted_runs_no_other(
    sites: Sites, quick_job: Job, change: dict[str, Any]
) -> None:
    """Nobody signs a job's id: a courier that swaps the files would run a job whose nonce and expiry nobody checks."""
    config = sites("chest")["chest"]
    first = SiteRuntime(config, fresh(quick_job()), "job-1", load=never, signature=SIGNED)
    with pytest.raises(AssertionError):
        first.handle("start", 1, {})
    first.close(ended=False)
    assert ask(config, fresh(quick_job()).model_copy(update=change), "job-1") is Refusal.REPLAY


def test_a_definition_without_a_nonce_runs_as_often_a_day_as_the_policy_says(sites: Sites, quick_job: Job) -> None:
    """Each run is an entry that says how often; another definition is not concerned, nor is the next day."""
    config, job = sites("chest", repeats=2)["chest"], quick_job()
    assert [ask(config, job, f"job-{number}") for number in range(3)] == [None, None, Refusal.REPEATS]
    runs = [entry.admission for entry in read(config.audit) if entry.event is Event.ADMITTED]
    assert [(said["definition"], said["runs"]) for said in runs if said] == [(job.definition, 1), (job.definition, 2)]
    assert ask(config, job.model_copy(update={"seed": 5}), "other") is None


def test_a_job_under_differential_privacy_needs_fresh_terms(sites: Sites, quick_job: Job) -> None:
    """Else each repetition of one signature would spend budget; the refusal names the command that makes it fresh."""
    config = sites("chest")["chest"]
    job = quick_job(answers="closed").model_copy(update={"dp": DP})
    assert ask(config, job) is Refusal.FRESH
    assert "medfedvqa jobs export" in Refusal.FRESH.sentence
    assert ask(sites("chest", require_fresh=False)["chest"], job, "other") is None


def test_of_two_processes_that_are_asked_at_once_one_takes_a_nonce(sites: Sites, quick_job: Job) -> None:
    """The decision and its entry are one step."""
    config, job = sites("chest")["chest"], fresh(quick_job())
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda number: ask(config, job, f"job-{number}"), range(8)))
    assert sorted(codes, key=str) == [None, *[Refusal.REPLAY] * 7]


def test_probing_jobs_learn_nothing_about_data_and_are_counted_and_throttled(sites: Sites, quick_job: Job) -> None:
    """200 jobs that bisect over splits get one code whether rows are missing or the policy is asked, a few a day at
    most look at data, and each is in the log."""
    config = sites("chest", data_refusals=3)["chest"]
    told, looked = [], 0
    for number in range(200):
        train = 1e-9 * (number + 1)  # of patients: none of this site's is so unlikely
        split = Split(kind="patient", seed=number, fractions=(train, 0.5, 0.5 - train))
        job = fresh(quick_job().model_copy(update={"split": split}))
        runtime = SiteRuntime(config, job, f"job-{number}", signature=SIGNED)
        with pytest.raises(JobRefused) as refused:
            runtime.handle("start", 1, {})
        looked += "site" in vars(runtime)
        told.append(refused.value.code)
        runtime.close()
    assert told == [Refusal.DATA] * 3 + [Refusal.THROTTLED] * 197
    assert looked <= 3
    refusals = [entry.admission or {} for entry in read(config.audit) if entry.event is Event.REFUSAL]
    codes = [refusal["code"] for refusal in refusals]
    assert codes == [code.value for code in told]


def test_a_refused_job_is_not_asked_twice(sites: Sites, quick_job: Job) -> None:
    """A server that asks again gets the same code, and the log does not grow."""
    config = sites("chest", methods=["fedavg"])["chest"]
    runtime = SiteRuntime(config, quick_job(), "job", load=never)
    for _ in range(5):
        with pytest.raises(JobRefused):
            runtime.handle("start", 1, {})
    assert len(list(read(config.audit))) == 1


def test_nonces_outlive_the_state_folder_and_the_clock_of_a_day(
    sites: Sites, quick_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is the memory: emptying `state`, and waiting, bring no nonce back; repeats are counted by the day."""
    config, job, plain = sites("chest", repeats=1)["chest"], fresh(quick_job(), days=20), quick_job(rounds=1)
    assert ask(config, job, "job-1") is None and ask(config, plain, "plain-1") is None
    assert ask(config, plain, "plain-2") is Refusal.REPEATS

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Later":
            return super().now(tz) + timedelta(days=2)  # type: ignore[return-value]

    monkeypatch.setattr("medfedvqa.federation.admission.datetime", Later)
    assert datetime.now(UTC) < Later.now(UTC)
    assert ask(config, job, "job-2") is Refusal.REPLAY
    assert ask(config, plain, "plain-3") is None
