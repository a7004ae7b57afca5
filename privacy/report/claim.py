"""Sections A to E: the report's subject, its claim, the privacy unit, the executed mechanisms, and the ledger's
charges.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable

from audits import Entry, Kind, refuses_job
from privacy.accounting import spent
from privacy.ledger_replay import JobKey
from privacy.mechanisms import DPEvent, merge_steps
from privacy.report.facts import Part, ReportFacts, plain
from privacy.report.replay import ReplayedCharge
from privacy.report.report_evidence import Run

UNIT = "patient"
RECORD = "all questions about all pictures of one patient together"
NEIGHBOURS = "data sets that differ by all rows of one patient, added or removed"
OBSERVER = "whoever sees all that leaves the site: the server and, through it, the other sites"
NOT_COVERED = (
    "The kept model: epsilon covers what was released. A model that the site finishes by itself after its last "
    "release without noise, and answers of it that are shown outside, are not covered.",
    "Whoever reads the site's own disk: models, features and test results there are as personal as the data.",
    "A patient whom two hospitals treat: each hospital's claim is about its own records, and the losses add up.",
    "Choices made by looking at data outside of jobs: answer space, hyperparameters, which runs are published.",
    "Time: how long a site takes to answer depends on its data.",
    "Other jobs: section E has what a patient may have lost over all of them.",
    "Jobs without differential privacy, which a site may also run: they have no epsilon.",
)


def identity(facts: ReportFacts) -> Part:
    """Section A: the report's subject."""
    evidence, checkpoint, run = facts.evidence, facts.excerpt.checkpoint, facts.evidence.run
    records, head = facts.replay.book.head
    evidence_json = evidence.model_dump(mode="json", exclude_unset=True)
    return dict(
        report=hashlib.sha256(plain(evidence_json)).hexdigest(),
        tool=evidence.tool.version,
        tool_code=evidence.tool.code_digest,
        created=evidence.created,
        job=evidence.job,
        method=facts.method,
        site=evidence.site,
        sites=facts.sites,
        state=facts.state,
        signer=evidence.log.key,
        log_origin=checkpoint.origin,
        log_entries=checkpoint.size,
        log_root=checkpoint.root.hex(),
        ledger_records=records,
        ledger_head=head if records else None,
        adapter=_adapter(facts),
        backbone=run.backbone if run else None,
        backbone_digest=facts.latest("model_digest"),
        code_versions=facts.every("code_version"),
        code_digests=facts.every("code_digest"),
        exchange_digest=facts.latest("exchange"),
        policy_digest=facts.latest("policy"),
        config_digest=hashlib.sha256(plain(settings(run))).hexdigest() if run else None,
        code_parts=tuple(
            dict(kind=part.kind.value, name=part.name, version=part.version, sha256=part.sha256)
            for part in dict.fromkeys(part for code in facts.codes for part in code.parts)
        ),
    )


def settings(run: Run) -> dict[str, object]:
    """The job's settings."""
    names = ("method", "options", "data", "split", "backbone", "seed", "rounds_planned", "secagg", "dp")
    return {name: getattr(run, name) for name in names}


def _adapter(facts: ReportFacts) -> tuple[Part, ...]:
    """The last release of each tensor of parameters."""
    last = {
        tensor.name: dict(tensor=tensor.name, round=entry.round, sha256=tensor.sha256)
        for entry in facts.releases
        for tensor in entry.tensors
        if tensor.kind is Kind.PARAMETERS
    }
    return tuple(last.values())


def claim(facts: ReportFacts) -> Part:
    """Section B: the claim, and the observer it holds against."""
    why = _no_claim(facts)
    if why:
        figures = ("epsilon", "delta", "mu", "mu_is_exact")
        nothing = dict.fromkeys(("mechanism", "unit", "neighbours", "observer", *figures))
        sentence = f"No differential privacy is claimed for what site {facts.evidence.site} released: {why}."
        return dict(made=False, sentence=sentence, provisional=False, not_covered=_not_covered(facts), **nothing)
    cost = facts.spent
    events = facts.replay.events(facts.job)
    exact = all(event.mu_is_exact for event in events)
    return dict(
        made=True,
        sentence=_sentence(facts, events, exact),
        mechanism=_mechanism(events),
        unit=UNIT,
        neighbours=NEIGHBOURS,
        epsilon=finite(cost.epsilon),
        delta=facts.delta,
        mu=finite(cost.mu),
        mu_is_exact=exact,
        observer=_observer(events),
        provisional=_is_open(facts),
        not_covered=_not_covered(facts),
    )


def _not_covered(facts: ReportFacts) -> tuple[str, ...]:
    count = facts.evidence.log.first
    sentence = (f"What left with the first {count} entries of the log, which have expired: it is not in the report.",)
    return (*NOT_COVERED, *sentence) if count else NOT_COVERED


def _no_claim(facts: ReportFacts) -> str:
    """Why nothing can be claimed; empty if something can."""
    if not facts.is_private:
        return "the job trained without it"
    if facts.void:
        return "its noise could be repeated (a setting for tests), so that it protects nobody"
    if facts.unprotected:
        entry, tensor = facts.unprotected[0]
        return f"tensor '{tensor.name}' of entry {entry.seq} may depend on data and left without it"
    if not math.isfinite(facts.spent.epsilon):
        return "the noise is so small that no accountant gives a figure"
    return ""


def _is_open(facts: ReportFacts) -> bool:
    """Whether the job may still be charged."""
    job = facts.replay.book.jobs.get(facts.job)
    return facts.state == "running" or bool(job and job.reserved)


def _mechanism(events: list[DPEvent]) -> str:
    """The distinct kinds of noise, in the order of the charges."""
    return f"{' and '.join(dict.fromkeys(event.sentence for event in events))}, added at the site"


def _sentence(facts: ReportFacts, events: list[DPEvent], exact: bool) -> str:
    cost, evidence = facts.spent, facts.evidence
    exactness = "exact" if exact else "the central limit's approximation and no bound"
    mu = f"Gaussian DP mu {rounded_up(cost.mu)}, {exactness}"
    so_far = "so far " if _is_open(facts) else ""
    return (
        f"What site {evidence.site} has released for job {evidence.job} {so_far}is differentially private by {UNIT} "
        f"with epsilon {rounded_up(cost.epsilon)} at delta {facts.delta:g} ({mu}): "
        f"by {_mechanism(events)}; neighbours are {NEIGHBOURS}; the observer is {_observer(events)}."
    )


def _observer(events: list[DPEvent]) -> str:
    return next((event.observer for event in events if event.observer), OBSERVER)


def rounded_up(value: float) -> str:
    """The value as text, rounded up to three decimals."""
    return f"{math.ceil(value * 1000 - 1e-9) / 1000:.3f}"


def finite(value: float) -> float | None:
    """The value, or None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def unit(facts: ReportFacts) -> Part:
    """Section C: the privacy unit, and the bounds on one patient."""
    policy = facts.evidence.policy
    site = "the site's policy"
    policy_bounds = (
        dict(
            name="delta", value=policy.delta, unit="probability", source=site,
            meaning="the largest that a job may use",
        ),
        dict(
            name="max_epsilon", value=policy.max_epsilon, unit="nats", source=site,
            meaning="what all jobs together may cost any patient; none: no limit",
        ),
        dict(
            name="max_epsilon_per_job", value=policy.max_epsilon_per_job, unit="nats", source=site,
            meaning="what one job may cost any patient; none: no limit",
        ),
    )  # fmt: skip
    bounds = (*_bounds(facts.evidence.run), *policy_bounds) if facts.is_private else policy_bounds
    return dict(
        unit=UNIT, record=RECORD, neighbours=NEIGHBOURS, bounds=bounds, delta_below_cohort=_delta_below_cohort(facts)
    )


def _delta_below_cohort(facts: ReportFacts) -> bool | None:
    """The site's attestation on delta and cohort size; None unless its delta is at least that of every charge."""
    attested = facts.evidence.cohort
    deltas = [charge.charge.delta for charge in facts.replay.charges if charge.charge]
    return attested.below if attested and deltas and attested.delta >= max(deltas) else None


_SETTINGS = (
    ("clip", "L2 norm", "the largest norm of one patient's gradient in a step"),
    ("patient_rows", "rows", "the most rows of one patient in a step"),
    ("sample_rate", "probability", "of each patient to take part in a step"),
    ("expected_patients", "patients", "a public figure by which the noisy sum of a step is divided"),
)


def _bounds(run: Run | None) -> tuple[Part, ...]:
    dp = (run and run.dp) or {}
    source = "the job's settings" if dp else "not known here: the run's results.json was not given"
    dp_bounds = [
        dict(name=name, value=_number(dp.get(name)), unit=unit, meaning=meaning, source=source)
        for name, unit, meaning in _SETTINGS
    ]
    pair = "one patient on a released pair of counts (share right, share wrong)"
    return *dp_bounds, dict(name="counts", value=1.0, unit="L1 norm", meaning=pair, source="the mechanism")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def executed(facts: ReportFacts) -> Part:
    """Section D: the executed mechanisms."""
    dp = (facts.evidence.run and facts.evidence.run.dp) or {}
    clip, noise = _number(dp.get("clip")), _number(dp.get("noise"))
    expected_patients = dp.get("expected_patients")
    secret = "Who took part in a step, and how many, is as secret as the noise: no realised batch size is recorded"
    return dict(
        mechanisms=tuple(_mechanism_figures(event) for event in merge_steps(facts.replay.events(facts.job))),
        clip=clip,
        noise_deviation=clip * noise if clip is not None and noise is not None else None,
        expected_patients=expected_patients if isinstance(expected_patients, int) else None,
        batch_sizes=f"{secret}; each is Poisson binomial with the given rate." if facts.is_private else "Not recorded.",
        randomness=_randomness(facts),
        void=facts.void,
        source="mechanisms and steps: the ledger's charges; clip and divisor: the job's settings"
        if facts.is_private
        else "the ledger, which has no charge of this job",
    )


def _randomness(facts: ReportFacts) -> str:
    if not facts.is_private:
        return "None was needed: the job adds no noise."
    if facts.void:
        return "A seed of the site's configuration (for tests): whoever knows it can take the noise away."
    return "ChaCha20 keystreams under fresh keys of the operating system, for noise and for who takes part."


def _mechanism_figures(event: DPEvent) -> Part:
    return dict(
        event=figures(event),
        applied_to=event.applied_to,
        sampler=event.sampler,
        noise=event.noise_words,
        sensitivity=event.sensitivity,
    )


def figures(event: DPEvent) -> Part:
    """The event as a part of a report."""
    parameters = tuple(dict(name=name, value=float(value)) for name, value in event.parameters.items())
    use = None if event.use is None else str(event.use)
    return dict(mechanism=event.mechanism, use=use, parameters=parameters, steps=event.steps)


RDP = "Mironov, Renyi Differential Privacy, 2017"
PRV = "Gopi, Lee and Wutschitz, Numerical Composition of Differential Privacy, 2021"


def accounting(facts: ReportFacts) -> Part:
    """Section E: the ledger's charges, their total epsilon, and refusals."""
    ledger, policy, job = facts.replay, facts.evidence.policy, facts.job
    book_job = ledger.book.jobs.get(job)
    authorised = _figures(ledger.events(reserved=True), facts.delta)
    limit = policy.limit
    charged = ledger.events(job)
    shared = any(event.observer for event in charged)
    remaining = None if limit is None or authorised["epsilon"] is None else max(0.0, limit - authorised["epsilon"])
    return dict(
        delta=facts.delta,
        charges=tuple(_charge(facts, item) for item in ledger.charges),
        accountants=_accountants(facts.evidence.tool.opacus, ledger.events(reserved=True)),
        job=_figures(ledger.events(job), facts.delta) if facts.is_private else None,
        outside=_figures((event.against(0) for event in charged), facts.delta) if shared else None,
        projected=_figures(ledger.events(job, reserved=True), facts.delta) if facts.is_private else None,
        reserved_tasks=len(book_job.reserved) if book_job else 0,
        spent=_figures(ledger.events(), facts.delta),
        authorised=authorised,
        limit=limit,
        limit_per_job=policy.max_epsilon_per_job,
        remaining=remaining,
        refusals=tuple(refusal(item) for item in facts.entries if refuses_job(item.event, item.outcome)),
        restarts=_restarts(facts),
        jobs=tuple(_job(facts, name) for name in _jobs(facts)),
    )


def refusal(entry: Entry) -> Part:
    """The refusal of a job, a release or a receipt."""
    return dict(
        entry=entry.seq,
        time=entry.time,
        job=entry.job,
        round=entry.round,
        task=entry.task,
        direction=entry.direction,
        reason=entry.reason or "",
    )


def _figures(events: Iterable[DPEvent], delta: float) -> Part:
    cost = spent(events, delta)
    return dict(epsilon=finite(cost.epsilon), rdp=finite(cost.rdp), prv=finite(cost.prv), mu=finite(cost.mu))


def _accountants(opacus: str, events: Iterable[DPEvent]) -> tuple[Part, ...]:
    """The two accountants, with the sources of the divergences of every mechanism in the ledger."""
    rdp = "; ".join(dict.fromkeys([RDP, *(event.rdp_source for event in events)]))
    prv = f"Opacus {opacus}, its analysis of privacy random variables, the error included"
    return (
        dict(name="RDP", implementation=f"Opacus {opacus}, its analysis of Renyi divergences", source=rdp),
        dict(name="PRV", implementation=prv, source=PRV),
    )


def _charge(facts: ReportFacts, charge: ReplayedCharge) -> Part:
    ledger, debit, recorded = facts.replay, charge.debit, charge.charge
    comparable = debit.key == facts.job or ledger.is_last(charge)
    cost = ledger.at(charge) if comparable else None
    return dict(
        record=charge.seq,
        time=charge.time,
        job=_label(facts, debit.key),
        method=debit.method,
        task=debit.task,
        round=debit.round,
        attempt=debit.attempt,
        settled=ledger.settled(charge),
        void=debit.void,
        imported=recorded is None,
        events=tuple(figures(event) for event in debit.events),
        delta=recorded.delta if recorded else None,
        job_epsilon_after=recorded.job_epsilon_after if recorded else None,
        replayed=finite(cost.epsilon) if cost else None,
        site_epsilon_after=recorded.epsilon_after if recorded else None,
        entries=tuple(entry.seq for entry in facts.entries if charge_of(entry) == (charge.seq, charge.hash)),
    )


def charge_of(entry: Entry) -> tuple[int, str] | None:
    """Position and hash in the ledger of the charge that an entry names."""
    if entry.dp_event is None:
        return None
    ledger_record = entry.dp_event["ledger"]
    return ledger_record["seq"], ledger_record["head"]


def _restarts(facts: ReportFacts) -> tuple[Part, ...]:
    attempts = Counter((charge.debit.task, charge.debit.round) for charge in facts.charges)
    return tuple(dict(task=task, round=round, attempts=n) for (task, round), n in attempts.items() if n > 1)


def _jobs(facts: ReportFacts) -> Iterable[JobKey]:
    """The jobs in the ledger: this one first, then the others in the ledger's order."""
    charged_keys = (charge.debit.key for charge in facts.replay.charges)
    this_job = [facts.job] if facts.is_private else []
    return dict.fromkeys([*this_job, *charged_keys, *facts.replay.book.jobs])


def _label(facts: ReportFacts, key: JobKey) -> str:
    """The job's identifier; with the site, where another site of the same store ran this part of it."""
    site, job = key
    return job if site == facts.evidence.site else f"{job} at {site}"


def _job(facts: ReportFacts, name: JobKey) -> Part:
    charges = [charge for charge in facts.replay.charges if charge.debit.key == name]
    book_job = facts.replay.book.jobs.get(name)
    return dict(
        job=_label(facts, name),
        method=book_job.method if book_job else charges[0].debit.method,
        epsilon=finite(spent(facts.replay.events(name), facts.delta).epsilon),
        charges=len(charges),
        reserved=len(book_job.reserved) if book_job else 0,
        void=any(charge.debit.void for charge in charges) or bool(book_job and book_job.void),
        records=tuple(charge.seq for charge in charges),
    )
