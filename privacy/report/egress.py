"""Sections F to H: the limits of the theorem, the trusted parties, and everything that left."""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Literal

from audits import Entry, Event, Isolation, Outcome, Sharing, Stage, TensorRecord, refuses_job
from privacy.report.facts import Part, ReportFacts
from privacy.report.spending import charge_of, refusal

DIGESTS = (
    "Digests are of the bytes that were really sent, after noise and masks. What left as shares among sites has none: "
    "no message held it, and a digest of values that stay could be guessed back to them."
)

ISOLATION = {
    Isolation.NAMESPACE: "the process that held the rows had no network: a network namespace of its own, and a filter "
    "on system calls",
    Isolation.FILTER: "only a filter on system calls kept the network from the process that held the rows",
    Isolation.NONE: "the process that held the rows had a network: all sites ran in one process, or the site's "
    "settings say `isolation: none`",
    None: "an earlier version ran the job, and did not record whether the process that held the rows had a network",
}
"""Whether the kernel kept the network from the process that held the rows, in words, by what the log says."""


def isolation_sentence(facts: ReportFacts) -> str:
    """How the process with the rows was kept from the network, in order; empty if no entry opens the job."""
    return "; later ".join(map(ISOLATION.__getitem__, facts.isolations))


def outside(facts: ReportFacts) -> tuple[Part, ...]:
    """Section F: releases and facts that the theorem does not cover."""
    unprotected = [
        dict(
            what=f"released tensors without differential privacy: {len(facts.unprotected)}",
            why="they may depend on data",
            treatment="listed in H with protection 'none' or 'masked'; no epsilon covers them",
        )
    ] * bool(facts.unprotected)
    treatment = "they stay at the site" if facts.is_private else "released if H lists them, without protection"
    return (
        *unprotected,
        dict(what="test results", why="they are computed from test rows without noise", treatment=treatment),
        dict(
            what="tensors of the kind 'public'",
            why="they follow from settings alone: epsilon, seals, nonces, faults",
            treatment="listed in H; no charge",
        ),
        dict(
            what="the site's answer space, hyperparameters, and which runs are published",
            why="people chose them, and may have looked at data",
            treatment="declared here; no charge",
        ),
        dict(
            what="times of entries and of messages",
            why="how long a site computes depends on its data",
            treatment="not protected",
        ),
        dict(what="refusals", why="they tell that a budget is used up", treatment="shared as a text; see E and H"),
    )


def trust(facts: ReportFacts) -> Part:
    """Section G: the trusted parties."""
    attempts = _attempts(facts)
    kind: Literal["in clear", "on shares", "nothing released"]
    if attempts:
        kind, text = "on shares", _on_shares(facts, attempts)
    elif any(entry.tensors for entry in facts.releases):
        kind, text = ("in clear", "The server sees this site's uploads one by one, under the protections that H lists.")
    else:
        kind, text = "nothing released", "No tensor has left the site for this job."
    return dict(
        server="Honest but curious: it follows the protocol and looks at all that it relays.",
        sites="Honest but curious; up to all but one may collude, as far as the computation on shares states.",
        author="Untrusted: a job can demand more than the site does, never less.",
        administrators="Trusted with the site's data, not with its log: tampering shows to whoever holds a checkpoint.",
        aggregation=kind,
        aggregation_said=text,
        attempts=attempts,
        isolation=tuple(isolation and isolation.value for isolation in facts.isolations),
        isolation_said=isolation_sentence(facts) or "the log does not tell that the job was opened",
    )


def _attempts(facts: ReportFacts) -> tuple[Part, ...]:
    """The first entry of each computation on shares."""
    first: dict[object, Part] = {}
    for entry in facts.shared:
        sharing = facts.sharings[entry.seq]
        same = replace(sharing, stage=Stage.BEGUN, private=False) if sharing else entry.reason
        first.setdefault(same, _attempt(entry, sharing))
    return tuple(first.values())


def _attempt(entry: Entry, sharing: Sharing | None) -> Part:
    if sharing is None:
        return dict(entry=entry.seq, round=entry.round, said=entry.reason or "")
    return dict(
        entry=entry.seq,
        round=entry.round,
        said=str(sharing),
        attempt=sharing.attempt,
        protocol=sharing.protocol,
        sites=sharing.sites,
        dealer=sharing.dealer or None,
    )


def _on_shares(facts: ReportFacts, attempts: tuple[Part, ...]) -> str:
    unshared = sum(1 for entry, tensor in facts.unprotected if not tensor.protection.masked)
    text = f"Computations on shares: {len(attempts)}. Neither the server nor another site saw this site's own upload."
    return text + (f" Tensors released in clear beside them: {unshared}." if unshared else "")


def egress(facts: ReportFacts) -> Part:
    """Section H: everything that left."""
    pairs = [(item, tensor) for item in facts.releases for tensor in item.tensors]
    receipts = [item for item in facts.job_entries if item.event is Event.RECEIVE and item.outcome is Outcome.ACCEPTED]
    rounds: Counter[tuple[int | None, str]] = Counter()
    for item, tensor in pairs:
        rounds[item.round, tensor.kind.value] += tensor.nbytes
    return dict(
        releases=tuple(_release_figures(item, tensor) for item, tensor in pairs),
        messages=len(facts.releases),
        nbytes=sum(item.nbytes for item in facts.releases),
        by_kind=_by_kind(pairs),
        by_round=tuple(dict(round=round, kind=kind, nbytes=n) for (round, kind), n in rounds.items()),
        by_tensor=_by_tensor(pairs),
        received_messages=len(receipts),
        received_nbytes=sum(item.nbytes for item in receipts),
        refused=tuple(refusal(item) for item in facts.job_entries if _is_refused_message(item)),
        proofs=_proofs(facts),
        digests_said=DIGESTS,
    )


def _is_refused_message(entry: Entry) -> bool:
    return entry.outcome is Outcome.REFUSED and not refuses_job(entry.event, entry.outcome)


def _release_figures(entry: Entry, tensor: TensorRecord) -> Part:
    charge = charge_of(entry)
    return dict(
        entry=entry.seq,
        time=entry.time,
        round=entry.round,
        task=entry.task,
        recipient=entry.peer,
        tensor=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        kind=tensor.kind.value,
        protection=tensor.protection.value,
        nbytes=tensor.nbytes,
        sha256=tensor.sha256,
        charge=charge[0] if charge and tensor.protection.private else None,
    )


def _by_kind(pairs: list[tuple[Entry, TensorRecord]]) -> tuple[Part, ...]:
    sizes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for _, tensor in pairs:
        sizes[tensor.kind.value, tensor.protection.value].append(tensor.nbytes)
    return tuple(
        dict(kind=kind, protection=protection, tensors=len(numbers), nbytes=sum(numbers))
        for (kind, protection), numbers in sizes.items()
    )


def _by_tensor(pairs: list[tuple[Entry, TensorRecord]]) -> tuple[Part, ...]:
    sizes: defaultdict[tuple[str, str | None, str, str], list[int]] = defaultdict(list)
    for entry, tensor in pairs:
        sizes[tensor.name, entry.peer, tensor.kind.value, tensor.protection.value].append(tensor.nbytes)
    return tuple(
        dict(tensor=name, recipient=peer, kind=kind, protection=protection, messages=len(numbers), nbytes=sum(numbers))
        for (name, peer, kind, protection), numbers in sizes.items()
    )


def _proofs(facts: ReportFacts) -> Part:
    checkpoint, log = facts.excerpt.checkpoint, facts.evidence.log
    return dict(
        checkpoint_entries=checkpoint.size,
        checkpoint_root=checkpoint.root.hex(),
        cosigned_entries=facts.excerpt.cosigned,
        cosigners=facts.excerpt.cosigners,
        quoted=len(log.entries),
        not_quoted=checkpoint.size - log.first - len(log.entries),
        expired=log.first,
    )
