"""The server's side of a run whose uploads are aggregated on shares."""

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from audits import MessageRefused, TaskSpec
from medfedvqa.core import FAULT, SHARED_BYTES, CommitteeMean, MeanOnShares, OnShares, Tensors
from medfedvqa.core.hub import GroupMean
from medfedvqa.core.on_shares import (
    CONTRIBUTORS,
    DRAWING,
    MASK_KEY,
    OPENED,
    OPENING,
    averaging,
    mixing,
    seeding,
    tossing,
    unmasking,
)
from medfedvqa.errors import FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import Attempt, Opening, named_masks
from medfedvqa.federation.committee_draw import draw
from medfedvqa.federation.hub import Excused, Reply, ServerHub, excuse_none
from medfedvqa.federation.journal import RecordedCall
from medfedvqa.federation.quorum import NOBODY_MISSES, MembersRule, Quorum
from medfedvqa.federation.tuple_dealing import Dealer
from privacy import Reliability
from privacy.secagg import SecureAggregationError, SiteError, TensorLayout
from privacy.secagg.committee import threshold
from privacy.secagg.layout import WIDE, SumCode, check_mean, exponent_for, mean_of_sum, weight_of_sum
from privacy.secagg.pairwise_masks import Upload, check_contributors, opened
from privacy.secagg.ring import Floats, Ring, unpacked

# What the server makes of the sites' answers to an attempt at a mean that members compute with CrypTen.


def agreed_sum(sums: Mapping[str, Ring]) -> Ring:
    """The sum that the members have opened. Raises `SecureAggregationError` if their sums differ."""
    if len({total.tobytes() for total in sums.values()}) > 1:
        raise SecureAggregationError("members opened different sums: one of them sent a wrong share or sum")
    return next(iter(sums.values()))


def mean_of_answers(
    attempt: Attempt, how: MeanOnShares, shared: TaskSpec, message: Tensors, answers: Mapping[str, Tensors]
) -> GroupMean:
    """The mean of answers to `message` under the attempt's masks. Raises `SecureAggregationError` if one is missing.

    `shared`: the task as declared without shares.
    """
    layout, code = how.layout(shared), how.code(named_masks(message)[1])
    read = {site: parts_of_sum(how, layout, answers.get(site, {}), code) for site in attempt.sites}
    values = {site: value for site, value in read.items() if value is not None}
    if missing := sorted(read.keys() - values.keys()):
        raise SecureAggregationError(
            f"{', '.join(missing)} did not answer, and under masks that last no sum opens without every site"
        )
    total: Ring = np.sum([*values.values()], axis=0, dtype=np.uint64)
    names = {name for name, _ in layout.shapes}
    begun = 0.0 if how.whole else layout.flatten({name: message[name] for name in names & message.keys()})
    return GroupMean(checked_mean(how, shared, total, len(values), code, begun), weight_of_sum(total, code))


def checked_mean(
    how: MeanOnShares, shared: TaskSpec, total: Ring, sites: int, code: SumCode = WIDE, beside: Floats | float = 0.0
) -> Tensors:
    """The mean of a sum, see `mean_of_sum`. Raises `SecureAggregationError` for a sum that declared inputs cannot
    produce."""
    mean = mean_of_sum(total, sites, how.layout(shared), how.weight_bounds(shared), code, beside)
    check_mean(mean, shared.most_norm)
    return mean


def parts_of_sum(how: MeanOnShares, layout: TensorLayout, reply: Tensors, code: SumCode = WIDE) -> Ring | None:
    """The parts of a sum, or of an upload to it, in one vector; None for a reply that has another form."""
    names = [*(name for name, _ in layout.shapes), how.weight or "weight", CONTRIBUTORS.name]
    if not {*names} <= reply.keys():
        return None
    parts = [np.asarray(reply[name]) for name in names]
    if code.word < WIDE.word:
        parts = [unpacked(part) for part in parts]
    values = np.concatenate([part.reshape(-1).view(np.uint64) for part in parts])
    return values if values.shape == (layout.size + 2,) else None


def upload_of(how: MeanOnShares, layout: TensorLayout, reply: Tensors) -> Upload | None:
    """The masked upload in a reply to an attempt; None for a reply that has another form."""
    values, key = parts_of_sum(how, layout, reply), np.asarray(reply.get(MASK_KEY.name, ()), "<i8").tobytes()
    return Upload(values, key) if values is not None and len(key) == 32 else None


def without_key(replies: Mapping[str, Reply]) -> set[str]:
    """The sites that stopped before they had the key that decrypts a sum which the server must not read."""
    return {site for site, reply in replies.items() if FAULT.name in reply.tensors and not _has_opened(reply)}


def check_repeatable(attempt: Attempt, replies: Mapping[str, Reply], left: Collection[str]) -> None:
    """Raises `SecureAggregationError` unless the sites that are left may take part in another attempt.

    Sites refuse one once a member has sent its part of the opening. They also refuse one with so few of the members
    that the members left out could still open the first attempt.
    """
    if any(_has_opened(reply) for reply in replies.values()):
        raise SecureAggregationError("a member stopped while the sum was being opened, and no member has all of it")
    shared = any(int(reply.tensors.get(SHARED_BYTES.name, 0)) for reply in replies.values())
    if shared and len(set(attempt.members) & set(left)) < threshold(len(attempt.members)):
        raise SecureAggregationError("too few members are left, and some sites have shared their values")


def _has_opened(reply: Reply) -> bool:
    return bool(int(reply.tensors.get(OPENED.name, 0)))


class SecureHub(ServerHub):
    """Aggregates on shares and sees no upload.

    It sees nothing of a mixture. It sees the mean itself, unless only the sites may know it.
    """

    def __init__(
        self,
        *arguments: Any,
        on_shares: Mapping[str, OnShares],
        shared: Mapping[str, TaskSpec],
        least: int,
        rule: MembersRule,
    ) -> None:
        """`shared` holds what each task aggregates, as declared without shares. The job continues with at least `least`
        sites, and `rule` says which of them compute."""
        super().__init__(*arguments)
        self._on_shares, self._shared, self._least, self._rule = on_shares, shared, least, rule
        self._layouts = {task: how.layout(shared[task]) for task, how in on_shares.items()}
        self._repeatable = {spec.name for spec in DRAWING}
        for task in on_shares:
            self._repeatable |= {seeding(task), tossing(task), mixing(task), averaging(task), unmasking(task)}
        self._number, self._attempts = 0, 0
        self._unfinished = self._journal.continues
        """Whether the call during which an earlier process died has not been replayed yet."""
        self._answered: tuple[str, Mapping[str, Tensors]] = ("", {})
        """The task that the sites answered last, with the message to each."""
        self._dealer = Dealer(self._ask_members)
        self._means: dict[tuple[TensorLayout, str], GroupMean] = {}
        self._beside: dict[str, Tensors] = {}
        """What travels beside the next message to a site: a sum that only sites can read, or which masks to use."""
        self._lasting: dict[str, Attempt] = {}
        """By group, the attempt whose masks hide the group's later uploads."""

    def collect(self, task: str, down: Mapping[str, Tensors] | None = None) -> dict[str, Tensors]:
        """See `Hub.collect`. A sum that only the sites can read travels with the next message to them.

        A site that does not answer takes no further part.
        """
        messages = {site: {} for site in self.sites} if down is None else down
        messages = {site: {**message, **self._beside.pop(site, {})} for site, message in messages.items()}
        self._answered = task, messages
        return super().collect(task, messages)

    def _ask(
        self,
        task: str,
        messages: Mapping[str, Tensors],
        excused: Excused = excuse_none,
        quorum: Quorum = NOBODY_MISSES,
    ) -> dict[str, Reply]:
        """See `ServerHub._ask`."""
        self._unfinished = self._unfinished and self._journal.recalls
        return super()._ask(task, messages, excused, quorum)

    def _step(self, task: str, messages: Mapping[str, Tensors], excused: Excused) -> dict[str, Reply] | None:
        """Ask for one step of an attempt. None if an earlier process died in this step: which sites took it is unknown.

        In that case the last task is repeated, to which each site gives the same bytes as before. Otherwise the sites
        that still wait for the dead server would look silent to the other sites.
        """
        recorded = self._journal.recalls
        if not self._unfinished or recorded:
            replies = self._ask(task, messages, excused)
            if replies or not recorded:
                return replies
        else:
            # An entry without answers, which the next process finds here.
            self._journal.record(task, self._round, messages, RecordedCall({}, 0.0))
            self._unfinished = False
        super().collect(*self._answered)
        return None

    def mix(
        self,
        task: str,
        reliability: Reliability,
        down: Mapping[str, Tensors] | None = None,
        targets: tuple[str, ...] | None = None,
    ) -> dict[str, Tensors]:
        """See `Hub.mix`. The result holds an empty message for each site, since sites keep their mixtures.

        An attempt that a site breaks is repeated without it, under fresh randomness. A site that has its mixture takes
        part in no second attempt of the round; the others then keep the mixture of an earlier round. Raises
        `FederationError` when too few sites are left.
        """
        self._dealer.offered(self.collect(task))
        self._number = 0
        while not self._mixed(task):
            pass
        return {site: {} for site in self.sites}

    def _declared_as(self, task: str, tensors: Tensors) -> str:
        """See `ServerHub._declared_as`. A site may also answer a mean, or its opening, by naming who broke it."""
        aggregated, _, step = task.rpartition("/")
        step_of_mean = step in ("mean", "unmask")
        how = self._on_shares.get(aggregated if step_of_mean else task)
        if isinstance(how, MeanOnShares) and (step_of_mean or how.lasting):
            return how.replied(task, tensors)
        return task

    def _refused(self, site: str, task: str, error: MessageRefused) -> Reply | None:
        """See `ServerHub._refused`. In an attempt the site counts as silent, and the attempt is repeated without it."""
        return None if task in self._repeatable else super()._refused(site, task, error)

    def _may_refuse(self, task: str) -> bool:
        """See `ServerHub._may_refuse`. In a step of a computation on shares a refusal ends the job: it is no dropout,
        since the site may have found that the server lies about sites, order, draw or dealing."""
        return task not in self._repeatable and super()._may_refuse(task)

    def _mixed(self, task: str) -> bool:
        """Make one attempt; returns whether it ends the round."""
        attempt = self._next_attempt(self.sites)
        try:
            messages = self._dealer.deal(task, self._round, attempt, self._layouts[task])
        except SiteError as error:
            self._leave_out([error.site])
            return False
        replies = self._step(mixing(task), messages, _excuse_accused(attempt.sites))
        if replies is None:
            # Sites that have their mixture say so. The others broke off, as the server did, and try again.
            replies = self._ask_members(mixing(task), messages)
            self._leave_out(set(attempt.sites) - replies.keys())
        else:
            self._leave_out(_sites_to_leave_out(attempt.sites, replies))
        self._count_shares(replies)
        return any(int(reply.tensors.get(FAULT.name, -1)) < 0 for reply in replies.values())

    def _ask_members(self, task: str, messages: Mapping[str, Tensors]) -> dict[str, Reply]:
        """Ask the members for a step that may be repeated. After the first answer, the others have twice the time that
        sites wait for each other."""
        while (replies := self._step(task, messages, _with_deadline(lambda replies: (), messages))) is None:
            pass
        return replies

    def _next_attempt(self, addressed: Collection[str]) -> Attempt:
        """The next attempt of this round, with nothing dealt yet. Raises `FederationError` if no other is allowed."""
        if self._rule.needs_draw(self._require_enough(site for site in self.sites if site in addressed)):
            beacon = draw(self._ask, self.sites)
            self._rule = replace(self._rule, beacon=beacon)
            self._leave_out(set(self.sites) - set(beacon.sites))
        sites = self._require_enough(site for site in self.sites if site in addressed)
        if self._number == attempts.ATTEMPTS:
            raise FederationError(
                f"round {self._round}: {self._number} attempts failed, and a round has no more; the sites' logs say why"
            )
        self._number += 1
        members = self._rule.members(sites, self._round)
        if members != sites and not self.history.committee:
            how = "named by the sites' policies" if self._rule.named else "drawn anew for each round"
            self.history.committee = f"{len(members)} of the {len(sites)} sites computed for all of them, {how}"
        self._attempts += 1
        name = hashlib.sha256(f"{self._journal.run} {self._attempts}".encode()).hexdigest()[:16]
        return Attempt(name, sites, members=members, number=self._number)

    def means(
        self,
        task: str,
        groups: Mapping[str, Collection[str]],
        down: Mapping[str, Tensors] | None = None,
        weight: str | None = None,
    ) -> dict[str, GroupMean]:
        """See `Hub.means`. An attempt that a site breaks off before all can upload is repeated without it, under fresh
        keys. A mean that cannot be opened any more is lost: the one before it stays in use.

        Raises `FederationError` when too few sites of a group are left, or when there is no mean before the lost one.
        """
        how = self._on_shares.get(task)
        if not isinstance(how, MeanOnShares) or how.weight != weight:
            raise FederationError(f"the method declares no mean of '{task}' on shares with the requested weight")
        called = {name: [site for site in sites if down is None or site in down] for name, sites in groups.items()}
        for name, attempt in self._lasting.copy().items():
            last = self._means.get((self._layouts[task], name))
            if last and attempt.sites == tuple(sorted(set(called.get(name, ())) & set(self.sites))):
                exponent = exponent_for(last.weight, how.most_exponent)
                self._beside |= dict.fromkeys(attempt.sites, attempt.lasting(exponent))
            else:
                del self._lasting[name]
        answers = self.collect(task, down)
        self._beside = {}
        return {name: self._group_mean(task, how, name, sites, answers) for name, sites in called.items()}

    def _group_mean(
        self, task: str, how: MeanOnShares, group: str, addressed: Collection[str], answers: Mapping[str, Tensors]
    ) -> GroupMean:
        """The mean of these sites' `answers`, or of what they have kept of these."""
        place, self._number, lost = (self._layouts[task], group), 0, False
        try:
            if attempt := self._lasting.pop(group, None):
                message = self._answered[1][attempt.sites[0]]
                opened_mean = mean_of_answers(attempt, how, self._shared[task], message, answers)
                self._means[place], self._lasting[group] = opened_mean, attempt
                return _copied(opened_mean)
            attempt, total, contributors = self._sum(task, how, addressed)
            if how.lasting and contributors == attempt.sites:
                self._lasting[group] = attempt
            if how.hidden:
                message = Opening(attempt.name, contributors).message(total)
                self._beside |= {site: message for site in contributors}
            mean = {} if how.hidden else checked_mean(how, self._shared[task], total, len(contributors))
            self._means[place] = GroupMean(mean, weight_of_sum(total))
        except SecureAggregationError as error:
            if place not in self._means:
                sentence = f"round {self._round} gave no mean, and there is none before it: {error}"
                raise FederationError(sentence) from None
            self.history.lost[self._round], lost = str(error), True
        return _copied(self._means[place])._replace(lost=lost)

    def _sum(self, task: str, how: MeanOnShares, addressed: Collection[str]) -> tuple[Attempt, Ring, tuple[str, ...]]:
        """The attempt that gave a sum, the sum and the sites whose input is in it. Raises `SecureAggregationError`."""
        if isinstance(how, CommitteeMean):
            attempt, total = self._summed(task, how, addressed)
            return attempt, total, attempt.sites
        attempt, uploads = self._uploads(task, how, addressed)
        return attempt, self._opened(task, attempt, uploads), tuple(sorted(uploads))

    def _summed(self, task: str, how: CommitteeMean, addressed: Collection[str]) -> tuple[Attempt, Ring]:
        """The sum that the members opened, from the first attempt that no site broke off.

        Raises `SecureAggregationError` if members have opened different sums, or if no other attempt may follow one
        that was broken off.
        """
        while True:
            attempt = self._next_attempt(addressed)
            messages = dict.fromkeys(attempt.sites, attempt.message())
            excused = _with_deadline(_excuse_accused(attempt.sites), attempt.sites)
            replies = self._step(averaging(task), messages, excused)
            if replies is None:
                # Members that have the sum say it once more. The others broke off, as the server did.
                replies = self._ask_members(averaging(task), messages)
                self._leave_out(set(attempt.sites) - replies.keys())
            else:
                self._leave_out(_sites_to_leave_out(attempt.sites, replies))
            self._count_shares(replies)
            read = {site: parts_of_sum(how, self._layouts[task], reply.tensors) for site, reply in replies.items()}
            if sums := {site: total for site, total in read.items() if total is not None}:
                if how.hidden:
                    self._leave_out(without_key(replies))
                return attempt, agreed_sum(sums)
            check_repeatable(attempt, replies, self.sites)

    def _uploads(self, task: str, how: MeanOnShares, addressed: Collection[str]) -> tuple[Attempt, dict[str, Upload]]:
        """The masked uploads of the first attempt that no site breaks off.

        Raises `SecureAggregationError` if no other attempt may follow one that was broken off.
        """
        while True:
            attempt = self._next_attempt(addressed)
            sites = attempt.sites
            messages = dict.fromkeys(sites, attempt.message())
            replies = self._step(averaging(task), messages, _with_deadline(_excuse_accused(sites), sites))
            if replies is None:
                continue
            self._count_shares(replies)
            layout = self._layouts[task]
            uploads = {site: read for site, reply in replies.items() if (read := upload_of(how, layout, reply.tensors))}
            self._leave_out(_sites_to_leave_out(sites, replies))
            # A site that accuses itself has died in the attempt, and the others can continue.
            if any(site != accuser for accuser, site in _accusations(sites, replies).items()):
                left = set(attempt.members) & set(self.sites)
                if uploads and len(left) < threshold(len(attempt.members)):
                    raise SecureAggregationError("too few members are left, and some sites have uploaded")
                continue
            self._leave_out(set(sites) - uploads.keys())
            self._require_enough(uploads)
            return attempt, uploads

    def _opened(self, task: str, attempt: Attempt, uploads: Mapping[str, Upload]) -> Ring:
        """The sum of the uploads. Raises `SecureAggregationError` if too few members answer."""
        check_contributors(attempt.sites, attempt.members, uploads, self._least)
        members = [member for member in attempt.members if member in uploads]
        messages = dict.fromkeys(members, Opening(attempt.name, tuple(sorted(uploads))).message())
        replies = self._ask_members(unmasking(task), messages)
        arrays = {member: np.asarray(reply.tensors.get(OPENING.name, ()), "<i8") for member, reply in replies.items()}
        rows = {member: shares for member, shares in arrays.items() if shares.shape == OPENING.shape}
        # A member that reports too few confirmations has answered, and stays.
        self._leave_out(set(members) - rows.keys() - _accusations(attempt.sites, replies).keys())
        answers = {
            member: {site: row.tobytes() for site, row in zip(attempt.sites, shares, strict=False)}
            for member, shares in rows.items()
        }
        return opened(attempt.sites, attempt.members, uploads, answers)

    def _require_enough(self, sites: Iterable[str]) -> tuple[str, ...]:
        """These sites, in order of names. Raises `FederationError` if there are too few."""
        names = tuple(sorted(sites))
        if len(names) < self._least:
            raise FederationError(
                f"round {self._round}: {len(names)} sites are left ({', '.join(self.history.left_out)} fell out), and "
                f"the job needs {self._least}: fewer could reveal each other"
            )
        return names

    def _count_shares(self, replies: Mapping[str, Reply]) -> None:
        for site, reply in replies.items():
            self._tally.up[site] += int(reply.tensors.get(SHARED_BYTES.name, 0))


def _copied(mean: GroupMean) -> GroupMean:
    return mean._replace(tensors={name: array.copy() for name, array in mean.tensors.items()})


def _accusations(sites: tuple[str, ...], replies: Mapping[str, Reply]) -> dict[str, str]:
    """The site that each site accuses of breaking the attempt, in order of arrival. A site that died accuses itself."""
    ranks = {site: int(reply.tensors.get(FAULT.name, -1)) for site, reply in replies.items()}
    return {site: sites[rank] for site, rank in ranks.items() if 0 <= rank < len(sites)}


def _sites_to_leave_out(sites: tuple[str, ...], replies: Mapping[str, Reply]) -> list[str]:
    """The silent sites; if there are none, the site to which the accusations lead.

    A site that waits for a dead one is late itself, and others that wait for it accuse it.
    """
    accusations = _accusations(sites, replies)
    silent = [site for site in sites if site not in replies]
    if silent or not accusations:
        return silent
    passed, site = set(), next(iter(accusations.values()))
    while site not in passed:
        passed.add(site)
        site = accusations.get(site, site)
    return [site]


def _excuse_accused(sites: tuple[str, ...]) -> Excused:
    """Excuses the accused sites.

    While several sites have not answered, each accused site gets a little time: others accuse a live site that waits
    for a dead one, and it gives up at about the same moment. Once a site reports that it died, all others answer.
    """
    accused_at: dict[str, float] = {}

    def excused(replies: Mapping[str, Reply]) -> Collection[str]:
        now, accusations = time.monotonic(), _accusations(sites, replies)
        if any(site == accuser for accuser, site in accusations.items()):
            return []
        for site in accusations.values():
            accused_at.setdefault(site, now)
        grace = attempts.MESSAGE_TIMEOUT / 2 if len(replies) < len(sites) - 1 else 0
        return [site for site, since in accused_at.items() if now >= since + grace]

    return excused


def _with_deadline(accused: Excused, everybody: Collection[str]) -> Excused:
    """Excuses the accused, and everybody once twice `MESSAGE_TIMEOUT` has passed since the first answer."""
    first: list[float] = []

    def excused(replies: Mapping[str, Reply]) -> Collection[str]:
        if replies and not first:
            first.append(time.monotonic())
        late = first and time.monotonic() > first[0] + 2 * attempts.MESSAGE_TIMEOUT
        return everybody if late else accused(replies)

    return excused
