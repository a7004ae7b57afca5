"""Sections F to J: the limits of the theorem, the trusted parties, everything that left, the handling of data, lower
bounds from attacks, and the cost of privacy in accuracy.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from decimal import Decimal
from typing import Literal

from audits import AuditError, Entry, Event, Isolation, Outcome, Sharing, Stage, TensorRecord, refuses_job
from audits.epsilon_lower_bound import Guesses, epsilon_lower_bound, rate_interval
from privacy.report.claim import charge_of, refusal
from privacy.report.facts import Part, ReportError, ReportFacts
from privacy.report.report_evidence import (
    Accuracy,
    AccuracyMeasurement,
    Attack,
    AttackEstimate,
    GroupAccuracy,
    KeptModel,
    Run,
)

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
    """Each way in which the process with the rows was kept from the network; empty if no entry opens the job."""
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


CLEAN_PIXELS = "113101"
NO_STORE = (
    "Not ingested with this tool, or its manifest was not given: the report says nothing of how the data were "
    "de-identified."
)
OPEN_FLAGS = (
    "Clean pixels (113101) are not claimed: some pictures hold marks that the text finder could not read, and that no "
    "person has decided on. What it read was blanked."
)
_REVIEW = {
    True: " After that a person looked at every picture and accepted it.",
    False: " No person has accepted every picture after that.",
    None: "",
}
"""Sentences by whether a person reviewed the pictures; None: evidence of an earlier version does not say."""
NO_ATTACK = "No attack on this job was given: nothing is proved from below."
NOT_COVERED = (
    "Epsilon covers what was released: the model that the site keeps, and answers of it that are shown outside the "
    "site, are not covered."
)
GROUPS = (
    " So are accuracies by group of patients: where the intervals of two groups overlap, chance may be the difference. "
    "How often gradients of a group were clipped stays at the site."
)
NO_UTILITY = "Not given. Accuracies are computed from test rows without noise; a site shares them by choice only."


def data_handling(facts: ReportFacts) -> Part:
    """Section I: how the data were handled."""
    store = facts.evidence.ingested
    if store is None:
        return dict(
            ingested=False,
            said=NO_STORE,
            profile=(),
            retained=(),
            burned_in=NO_STORE,
            tools=(),
            manifest=None,
            made=None,
        )
    is_cleaned = any(code.value == CLEAN_PIXELS for code in store.codes)
    sentence = (
        "Text that was found in the pixels was blanked and looked for again; a picture in which text remained was left "
        "out. A text finder misses text. How many were blanked stays in the manifest, on the site."
    )
    return dict(
        ingested=True,
        said="Read from DICOM, de-identified and stored by `medfedvqa ingest`; patients are keyed pseudonyms.",
        profile=tuple(f"{code.value} {code.meaning}" for code in store.codes),
        retained=store.retained,
        burned_in=f"{sentence}{_REVIEW[store.reviewed]}" if is_cleaned else OPEN_FLAGS,
        tools=tuple(f"{name} {version}" for name, version in sorted(store.versions.items())),
        manifest=store.sha256,
        made=store.made,
    )


def empirical(facts: ReportFacts) -> Part:
    """Section J: attacks' lower bounds, and accuracies. Raises `ReportError` for counts that no attack can have."""
    attack, run, measured = facts.evidence.attack, facts.evidence.run, facts.evidence.measured
    try:
        figures = _attacks(attack) if attack else ()
    except AuditError as error:
        raise ReportError(f"the attack's counts are wrong: {error}") from None
    bound = max((estimate["epsilon_at_least"] for estimate in figures), default=None)
    refuted = (
        any(estimate["refutes"] for estimate in figures) if attack and attack.claimed_epsilon is not None else None
    )
    return dict(
        attacked=attack is not None,
        said=_attack_sentence(refuted) if attack else NO_ATTACK,
        same_settings=_same_settings(attack, run) if attack else None,
        data=attack.data if attack else None,
        claimed_epsilon=attack.claimed_epsilon if attack else None,
        claimed_delta=attack.claimed_delta if attack else None,
        confidence=attack.confidence if attack else None,
        attacks=figures,
        lower_bound=bound,
        refuted=refuted,
        utility_said=_utility_sentence(measured) if measured else NO_UTILITY,
        accuracy_private=measured.private.accuracy if measured else None,
        accuracy_private_low=measured.private.low if measured else None,
        accuracy_private_high=measured.private.high if measured else None,
        accuracy_without=measured.without.accuracy if measured else None,
        accuracy_without_low=measured.without.low if measured else None,
        accuracy_without_high=measured.without.high if measured else None,
        accuracy_prior=measured.prior.accuracy if measured else None,
        cost_of_privacy=_difference(measured.without.accuracy, measured.private.accuracy) if measured else None,
        accuracy_finished=_plain(measured.finished) if measured else None,
        accuracy_alone=_plain(measured.alone) if measured else None,
        accuracy_alone_equal=_plain(measured.alone_equal) if measured else None,
        kept=measured.kept if measured else None,
        groups=tuple(_group(each) for each in measured.groups) if measured else (),
        kept_said=_kept_sentence(measured.kept if measured else None, run),
    )


def _group(group: GroupAccuracy) -> Part:
    return {**group.model_dump(), "cost": _difference(group.without, group.private)}


def _plain(accuracy: Accuracy | None) -> Part | None:
    return accuracy.model_dump() if accuracy else None


def _difference(first: float, second: float) -> float:
    """The difference, computed in decimals so that it has no more digits than the two accuracies."""
    return float(Decimal(repr(first)) - Decimal(repr(second)))


def _attacks(attack: Attack) -> tuple[Part, ...]:
    """The figures of each attack. All bounds together hold with the stated confidence (Bonferroni)."""
    if not attack.attacks:
        raise ReportError("the attack's file has no attack in it")
    each = 1 - (1 - attack.confidence) / len(attack.attacks)
    return tuple(_attack_figures(estimate, attack, each) for estimate in attack.attacks)


def _attack_figures(estimate: AttackEstimate, attack: Attack, confidence: float) -> Part:
    guesses, delta = Guesses(estimate.canaries, estimate.guessed, estimate.correct), attack.claimed_delta or 0.0
    if not estimate.guessed:
        raise ReportError("an attack without guesses proves nothing: give the file as it was written")
    bound = epsilon_lower_bound(guesses, delta, confidence)
    low, high = rate_interval(estimate.correct, estimate.guessed, confidence)
    return dict(
        artefact=estimate.artefact,
        attack=estimate.attack,
        canaries=estimate.canaries,
        guessed=estimate.guessed,
        correct=estimate.correct,
        accuracy=estimate.correct / estimate.guessed,
        accuracy_low=low,
        accuracy_high=high,
        epsilon_at_least=bound,
        provable=epsilon_lower_bound(Guesses(estimate.canaries, estimate.guessed, estimate.guessed), delta, confidence),
        refutes=None if attack.claimed_epsilon is None else bound > attack.claimed_epsilon,
    )


def _same_settings(attack: Attack, run: Run | None) -> bool | None:
    """Whether the attacked job and this one have the same settings, secure aggregation aside; None if not known."""
    if run is None:
        return None
    demands = {name: value for name, value in (attack.dp or {}).items() if value is not None}
    private = all((run.dp or {}).get(name) == value for name, value in demands.items())
    plain = (attack.method, attack.options, attack.backbone) == (run.method, run.options, run.backbone)
    return plain and private and (attack.dp is None) == (run.dp is None)


def _attack_sentence(refuted: bool | None) -> str:
    small = "A small bound proves nothing about safety: better attacks may exist."
    if refuted is None:
        return f"The attacked job claimed no epsilon. {small}"
    if refuted:
        return "The attacks refute the epsilon that the attacked job claimed."
    return f"The attacks do not refute the epsilon that the attacked job claimed. {small}"


_KEPT: dict[KeptModel, str] = {
    "finished": "the finished model",
    "received": "the model as it was released",
    "ensemble": "the model as it was released, together with the one that it trained alone",
    "alone": "the model that it trained alone",
    "alone_equal": "the model that it trained alone with equal steps",
}


def _kept_sentence(kept: KeptModel | None, run: Run | None) -> str | None:
    """A sentence if its figures or the job's settings show that the site trained after its last release; else None."""
    if kept is None:
        return NOT_COVERED if run and run.options.get("finish_epochs") else None
    return f"By validation rows the site keeps {_KEPT[kept]}. {NOT_COVERED}"


def _utility_sentence(measured: AccuracyMeasurement) -> str:
    alike = "differ in nothing but privacy" if measured.same_settings else "differ in other settings as well"
    what = f"Accuracy on the site's test rows, with and without differential privacy; the two jobs {alike}."
    by_group = GROUPS if measured.groups else ""
    return f"{what} It is given by the site's choice, has no noise, and no epsilon covers it.{by_group}"
