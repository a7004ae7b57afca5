"""Section E: the ledger's charges, one by one; their total, the remaining budget, refusals and repetitions."""

from collections import Counter
from collections.abc import Iterable

from audits import Entry, refuses_job
from privacy.accounting import spent
from privacy.ledger_replay import JobKey
from privacy.mechanisms import DPEvent
from privacy.report.claim import figures, finite
from privacy.report.facts import Part, ReportFacts
from privacy.report.replay import ReplayedCharge

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
