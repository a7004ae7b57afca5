"""Reports of jobs that are not finished, not private, or not alone."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from audits import AuditKey, AuditLog, Entry, Event, JobRefused, Protection, VerdictState, origin_of
from audits.exchange import SITES
from audits.retention import expire
from medfedvqa.errors import ConfigError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.report.collect import evidence_of
from medfedvqa.version import VERSION
from privacy import DPSettings, Ledger, Limits, PlannedTask, SampledGaussian, spent
from privacy.report import (
    CohortAttestation,
    ReportError,
    ReportEvidence,
    Sections,
    read_report,
    registry_entry,
    report_bytes,
    report_of,
    sections_of,
    verify_report,
)
from privacy.report.facts import ReportFacts
from privacy.report.replay import Replay, quote_ledger
from privacy.report.report_files import JSON
from privacy.report.verdicts import verdicts
from privacy.report.verify import CODE
from privacy.settings import Governance

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]
LIMITS = Limits(max_epsilon=50, delta=1e-5)
PRIVATE = {"dp": DPSettings(noise=1.5, count_noise=10.0)}


def sections(config: SiteConfig, job: str | None = None) -> Sections:
    return report_of(evidence_of(config, job, None, None, None, (), False)).sections


def rules(found: Sections) -> dict[str, str]:
    return {item.rule: item.state for item in found.verdicts.rules}


@pytest.fixture(scope="module")
def example() -> ReportEvidence:
    return read_report(
        (Path(__file__).parents[2] / "docs" / "examples" / "report" / "chest" / JSON).read_bytes()
    ).evidence


@pytest.fixture(scope="module")
def example_rules(example: ReportEvidence) -> dict[str, str]:
    return rules(sections_of(example))


@pytest.mark.parametrize(
    ("part", "changes", "states"),
    [
        ("policy", {"max_epsilon": 100.0, "epsilon_limit": 100.0}, {"within limits": "shown", "allowed": "not shown"}),
        ("policy", {"max_epsilon": 0.1, "epsilon_limit": 0.1}, {"within limits": "broken", "allowed": "not shown"}),
        ("policy", {"max_epsilon_per_job": 0.1}, {"within limits": "broken", "allowed": "not shown"}),
        ("policy", {"methods": ("fedavg",)}, {"allowed": "broken"}),
        ("policy", {"recipients": ("sites",)}, {"allowed": "broken"}),
        ("policy", {"kinds": ("statistic", "public")}, {"allowed": "broken"}),
        ("run", {"sites": ("chest", "head")}, {"on shares": "broken"}),
    ],
    ids=str,
)
def test_what_the_policy_of_now_or_too_few_sites_make_of_a_job_is_a_rule_of_the_report(
    example: ReportEvidence, example_rules: dict[str, str], part: str, changes: dict[str, Any], states: dict[str, str]
) -> None:
    """Charges beyond a limit, releases that are no longer allowed; a stricter policy that all of it keeps to."""
    changed = getattr(example, part).model_copy(update=changes)
    after = rules(sections_of(example.model_copy(update={part: changed})))
    assert {rule: state for rule, state in after.items() if state != example_rules[rule]} == states


@pytest.mark.parametrize(
    ("verdict", "state", "states"),
    [
        ("integrity", "broken", {"whole log": "broken"}),
        ("completeness", "broken", {"whole log": "broken"}),
        ("completeness", "not shown", {"whole log": "not shown"}),
        ("consistency", "broken", {"agreement": "broken"}),
        (None, "", {"whole log": "not shown", "agreement": "not shown"}),
    ],
)
def test_what_was_found_in_the_log_is_a_rule_of_the_report(
    example: ReportEvidence, example_rules: dict[str, str], verdict: str | None, state: str, states: dict[str, str]
) -> None:
    """One part that is broken or open, or a log that nobody verified."""
    parts = list(example.examined) if verdict else []
    if verdict:
        place = [part.verdict for part in parts].index(verdict)
        parts[place] = parts[place].model_copy(update={"state": state})
    after = rules(sections_of(example.model_copy(update={"examined": tuple(parts)})))
    assert {rule: state for rule, state in after.items() if state != example_rules[rule]} == states


def test_a_running_jobs_report_is_provisional_and_says_what_is_yet_to_come(sites: Sites, quick_job: Job) -> None:
    """One of two rounds has run: the claim is of that, the projection of both."""
    config = sites("chest", require_dp=True, max_epsilon=20)["chest"]
    runtime = SiteRuntime(config, quick_job(answers="closed").model_copy(update=PRIVATE), "study-1")
    runtime.handle("start", 1, {})
    result = sections(config)
    spending = result.accounting
    assert result.identity.state == "running" and result.claim.made and result.claim.provisional
    assert "so far" in result.claim.sentence and spending.reserved_tasks == 1
    assert spending.job and spending.projected and spending.job.epsilon and spending.projected.epsilon
    assert spending.job.epsilon < spending.projected.epsilon <= 20
    assert spending.remaining == pytest.approx(20 - spending.projected.epsilon)
    assert rules(result)["whole log"] == "not shown" and "broken" not in rules(result).values()
    runtime.close(ended=False)


def test_a_job_without_differential_privacy_claims_nothing_and_says_so(sites: Sites, quick_job: Job) -> None:
    """What left in clear is listed, and named as outside of any theorem; there is nothing to register."""
    config = sites("chest")["chest"]
    runtime = SiteRuntime(config, quick_job(), "study-2")
    runtime.handle("start", 1, {})
    runtime.close()
    report = report_of(evidence_of(config, None, None, None, None, (), False))
    result = report.sections
    assert not result.claim.made and result.claim.epsilon is None and "No differential privacy" in result.claim.sentence
    assert "without differential privacy" in result.outside[0].what
    assert result.trust.aggregation == "in clear" and result.accounting.job is None and not result.accounting.charges
    assert rules(result)["nothing unprotected"] == "not shown" and "broken" not in rules(result).values()
    with pytest.raises(ReportError, match="claims no differential privacy"):
        registry_entry(report)


def test_a_job_whose_entries_have_expired_is_still_charged_and_the_report_says_what_it_lacks(
    sites: Sites, quick_job: Job
) -> None:
    """The ledger keeps the charges; what left is not shown any more."""
    config = sites("chest")["chest"]
    runtime = SiteRuntime(config, quick_job(answers="closed").model_copy(update=PRIVATE), "study-4")
    runtime.handle("start", 1, {})
    runtime.close()
    key = AuditKey.at(config.audit_key, origin_of("chest"))
    with closing(AuditLog(config.audit, "chest", key, segment_bytes=1)) as log:
        log.append(Event.FINDING, reason="begins another file")
        later = datetime.now(UTC) + timedelta(days=2)
        assert expire(log, 1, date=later.date(), now=later).deleted == 1
    result = sections(config, "study-4")
    assert (result.identity.state, result.identity.method, result.egress.releases) == ("expired", "prompt_pfl", ())
    assert result.claim.made and "expired" in result.claim.not_covered[-1] and result.egress.proofs.expired == 4
    assert rules(result)["all of it"] == "not shown" and rules(result)["replay"] == "shown"


def test_noise_that_can_be_repeated_claims_nothing(sites: Sites, quick_job: Job) -> None:
    """A setting for tests: the ledger's charges are void."""
    config = sites("chest")["chest"].model_copy(update={"repeatable_noise": 5})
    runtime = SiteRuntime(config, quick_job(answers="closed").model_copy(update=PRIVATE), "study-3")
    runtime.handle("start", 1, {})
    runtime.close()
    result = sections(config)
    assert not result.claim.made and result.mechanism.void and rules(result)["sound noise"] == "broken"


def test_what_the_site_adds_is_quoted_and_no_figure_depends_on_it(sites: Sites, quick_job: Job) -> None:
    """Texts stay as they are written, and rows of K that rest on them say so; without any, they are not provided."""
    config = sites("chest")["chest"]
    runtime = SiteRuntime(config, quick_job(answers="closed").model_copy(update=PRIVATE), "study-1")
    runtime.handle("start", 1, {})
    runtime.close()
    hostile = "<b>\u202eresearch\n" * 900
    governance = Governance(purpose=hostile, permitted_use="research", review_date=datetime(2027, 3, 1).date())
    told = report_of(
        evidence_of(config.model_copy(update={"governance": governance}), None, None, None, None, (), False)
    )
    silent = report_of(evidence_of(config, None, None, None, None, (), False))
    assert told.evidence.governance and told.evidence.governance.purpose == hostile
    assert told.evidence.governance.review_date == "2027-03-01"
    support = [{m.reference: m.support for m in one.sections.mappings} for one in (told, silent)]
    assert [one["Art. 5(1)(b)"] for one in support] == ["partly supports", "not provided"]
    assert told.sections.summary == silent.sections.summary and told.sections.claim == silent.sections.claim


def test_the_site_attests_how_delta_compares_with_its_patients_and_tells_no_number(
    sites: Sites, quick_job: Job
) -> None:
    """Of the ledger's largest cohort and largest delta. An attestation about a smaller delta counts for nothing."""
    config = sites("chest")["chest"]
    runtime = SiteRuntime(config, quick_job(answers="closed").model_copy(update=PRIVATE), "study-1")
    runtime.handle("start", 1, {})
    runtime.close()
    evidence = evidence_of(config, None, None, None, None, (), False)
    assert evidence.cohort == CohortAttestation(delta=1e-5, below=True)
    assert sections_of(evidence).unit.delta_below_cohort is True
    smaller = evidence.model_copy(update={"cohort": CohortAttestation(delta=1e-9, below=True)})
    assert sections_of(smaller).unit.delta_below_cohort is None
    assert sections_of(evidence.model_copy(update={"cohort": None})).unit.delta_below_cohort is None


def test_a_refused_job_is_told_with_its_reason(sites: Sites, quick_job: Job) -> None:
    """It released nothing, and the report of another job names the refusal as well."""
    config = sites("chest", require_dp=True, max_epsilon=20)["chest"]
    with pytest.raises(JobRefused):
        SiteRuntime(config, quick_job(), "open").handle("start", 1, {})
    result = sections(config, "open")
    assert result.identity.state == "refused" and result.trust.aggregation == "nothing released"
    assert "differential privacy" in result.accounting.refusals[0].reason and not result.egress.releases
    with pytest.raises(ConfigError, match="does not have this job"):
        sections(config, "study-9")


def plan(*steps: int) -> list[PlannedTask]:
    return [
        PlannedTask("train", number, (SampledGaussian(0.1, 2.0, count),)) for number, count in enumerate(steps, start=1)
    ]


def spend(ledger: Ledger, job: str, patients: list[str], *steps: int) -> None:
    ledger.reserve(job, "prompt_pfl", patients, plan(*steps), LIMITS)
    for number in range(1, len(steps) + 1):
        ledger.begin(job, "train", number, LIMITS)
        ledger.settle(job, "train", number)


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with closing(Ledger(tmp_path / "ledger", "chest")) as result:
        yield result


def test_a_ledger_of_several_jobs_and_cohorts_is_replayed_without_its_patients(ledger: Ledger) -> None:
    """Overlapping cohorts too: recorded figures lie between those of the cohort alone and of all jobs together."""
    spend(ledger, "first", ["p", "q"], 3, 4)
    spend(ledger, "second", ["q", "r"], 5)
    ledger.begin("second", "train", 1, LIMITS)  # died after its result was saved, and asked again
    ledger.reserve("third", "fedavg", ["p"], plan(2, 2), LIMITS)
    quoted = quote_ledger(ledger.rows())
    assert "patients" not in str([row.record for row in quoted])
    replay = Replay(quoted, "chest")
    assert [(item.debit.job, item.debit.attempt) for item in replay.charges] == [
        ("first", 1), ("first", 1), ("second", 1), ("second", 2)
    ]  # fmt: skip
    assert not list(replay.recorded_wrongly("first")) and not list(replay.recorded_wrongly("second"))
    assert [replay.settled(item) for item in replay.charges] == [True, True, False, False]
    assert spent(replay.events(), 1e-5) == ledger.together(1e-5, reserved=False)
    assert spent(replay.events(reserved=True), 1e-5) == ledger.together(1e-5, reserved=True)


def test_what_another_ledger_charged_is_composed_without_its_figures(ledger: Ledger, tmp_path: Path) -> None:
    """An imported charge counts; only this ledger's own records have recorded figures."""
    spend(ledger, "first", ["p"], 3)
    ledger.export(tmp_path / "export")
    spend(ledger, "second", ["p"], 3)
    (tmp_path / "moved").mkdir(mode=0o700)
    (tmp_path / "moved" / "cohort.key").write_bytes((tmp_path / "ledger" / "cohort.key").read_bytes())
    (tmp_path / "moved" / "cohort.key").chmod(0o600)
    with closing(Ledger(tmp_path / "moved", "chest")) as moved:
        spend(moved, "third", ["p"], 2)
        moved.import_(tmp_path / "export")
        replay = Replay(quote_ledger(moved.rows()), "chest")
    assert [(item.debit.job, item.charge is None) for item in replay.charges] == [("third", False), ("first", True)]
    assert replay.at(replay.charges[1]) is None and not list(replay.recorded_wrongly("third"))
    assert sum(event.steps for event in replay.events()) == 5


@pytest.mark.parametrize("withdrawn", ["of the list that ships", "of a file", "by digest"])
def test_a_job_of_a_withdrawn_version_is_not_shown_to_have_its_epsilon(
    sites: Sites, quick_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, withdrawn: str
) -> None:
    """Whatever version made the report; a report of a job of this version says that none is withdrawn."""
    config = sites("chest")["chest"]
    version = "0.1.0" if withdrawn == "of the list that ships" else "0.7.0"
    for job, ran in (("old", version), ("new", VERSION)):
        with monkeypatch.context() as patched:
            patched.setattr("medfedvqa.federation.site_runtime.code_version", lambda ran=ran: ran)
            patched.setattr("medfedvqa.code_identity.code_digest", lambda ran=ran: sha256(ran.encode()).hexdigest())
            runtime = SiteRuntime(config, quick_job(answers="closed").model_copy(update=PRIVATE), job)
            runtime.handle("start", 1, {})
            runtime.close()
    entry = {"version": version} if withdrawn == "of a file" else {"code_digest": sha256(version.encode()).hexdigest()}
    more = tmp_path / "more.json"
    more.write_text(json.dumps([{**entry, "reason": "Its noise was too small.", "since": "2027-01-02"}]))
    file = None if withdrawn == "of the list that ships" else more
    result = {}
    for job in ("old", "new"):
        (tmp_path / job).mkdir()
        (tmp_path / job / JSON).write_bytes(
            report_bytes(report_of(evidence_of(config, job, None, None, None, (), False)))
        )
        [result[job]] = [item for item in verify_report(tmp_path / job, withdrawn=file).parts if item.name == CODE]
    assert result["new"].state is VerdictState.SHOWN and result["old"].state is VerdictState.NOT_SHOWN
    reason = "no proof" if file is None else "Its noise was too small."
    assert "computed by a withdrawn version" in result["old"].said and reason in result["old"].said


def test_a_report_that_a_withdrawn_version_made_is_named_as_such_even_if_it_cannot_be_read(tmp_path: Path) -> None:
    """Its form may be of that version alone; what names no tool gives no such finding."""
    record = {"evidence": {"tool": {"version": "0.1.0", "code_digest": "ab" * 32}}}
    (tmp_path / JSON).write_text(json.dumps(record))
    result = {item.name: item.state for item in verify_report(tmp_path).parts}
    assert result == {"schema": VerdictState.BROKEN, CODE: VerdictState.NOT_SHOWN}
    for nothing in ({}, [], {"evidence": {"tool": {"version": VERSION, "code_digest": None}}}):
        (tmp_path / JSON).write_text(json.dumps(nothing))
        assert [item.name for item in verify_report(tmp_path).parts] == ["schema"]


def test_counts_under_laplace_noise_are_named_in_claim_mechanism_and_settings(
    sites: Sites, quick_job: Job, tmp_path: Path
) -> None:
    """A job of few releases; log, ledger and the run's settings agree on both mechanisms."""
    configs = sites("chest", "head")
    job = quick_job(answers="closed").model_copy(update={"dp": DPSettings(epsilon=20.0, sample_rate=0.1)})
    serve_job(job, ("chest", "head"), LocalEngine(configs, job, "study-5").call, tmp_path / "out", "local")
    report = report_of(
        evidence_of(configs["chest"], "study-5", tmp_path / "out" / "results.json", None, None, (), False)
    )
    record = report.sections
    assert {(item.event.mechanism, item.event.use, item.event.steps) for item in record.mechanism.mechanisms} == {
        ("sampled_gaussian", "gradients", 4), ("laplace", "counts", 2)
    }  # fmt: skip
    assert "Gaussian noise" in record.claim.sentence and "Laplace noise on counts" in record.claim.sentence
    assert "Table II" in record.accounting.accountants[0].source
    assert rules(record)["settings"] == rules(record)["charged first"] == rules(record)["replay"] == "shown"
    [laplace] = [item for item in record.mechanism.mechanisms if item.event.mechanism == "laplace"]
    assert (
        laplace.sensitivity == "1 (L1 norm)"
        and "Laplace noise of scale" in registry_entry(report)["deployment"]["implementation"]["mechanisms"]
    )
    noisier = report.evidence.run.model_copy(update={"dp": {**report.evidence.run.dp, "mechanisms": []}})
    other = sections_of(report.evidence.model_copy(update={"run": noisier}))
    assert rules(other)["settings"] == "broken"


@pytest.mark.parametrize(
    ("binding", "state", "sentence"),
    [
        (None, "not shown", "nothing ties the data to this site's ledger"),
        ({"bound": True, "compared": True}, "not shown", "nothing ties the data to this site's ledger"),
        ({"from_store": True, "compared": True}, "not shown", "nothing ties the store to this site's ledger"),
        ({"from_store": True, "bound": True}, "not shown", "under another key, was not looked at"),
        ({"from_store": True, "bound": True, "compared": True}, "shown", "no ledger beside it has these patients"),
    ],
)
def test_a_second_ledger_is_ruled_out_only_by_all_three_facts(
    example: ReportEvidence, binding: dict[str, bool] | None, state: str, sentence: str
) -> None:
    """The data come from a store, store and ledger name each other, and the ledgers beside it were compared."""
    changed = binding if binding is None else example.binding.model_copy(update=binding) if example.binding else None
    found = sections_of(example.model_copy(update={"binding": changed})).verdicts.rules
    (verdict,) = (item for item in found if item.rule == "one budget")
    assert verdict.state == state and sentence in verdict.said


@pytest.mark.parametrize(
    ("peer", "protection", "named", "state", "sentence"),
    [
        ("server", Protection.DP_MASKED, True, "shown", "only shares and masked values left"),
        (SITES, Protection.DP, True, "not shown", "entry 6 has tensors of this site's own that were not shared"),
        ("server", Protection.DP, True, "not shown", "the job aggregates in clear"),
        (SITES, Protection.DP_MASKED, False, "not shown", "no entry and no settings name the sites"),
    ],
)
def test_a_sum_on_shares_is_known_by_its_recipient_or_its_masks_and_needs_the_names_of_the_sites(
    example: ReportEvidence, peer: str, protection: Protection, named: bool, state: str, sentence: str
) -> None:
    """Masked values go to the server, shares to other sites."""
    facts = ReportFacts.of(example if named else example.model_copy(update={"run": None}))

    def altered(entry: Entry) -> Entry:
        tensors = tuple(replace(tensor, protection=protection) for tensor in entry.tensors)
        changed = replace(entry, peer=peer, tensors=tensors) if entry.peer == SITES else entry
        return changed if named else replace(changed, sharing=None)

    found = verdicts(replace(facts, entries=tuple(map(altered, facts.entries))))["rules"]
    (verdict,) = (item for item in found if item["rule"] == "on shares")
    assert verdict["state"] == state and sentence in verdict["said"]
