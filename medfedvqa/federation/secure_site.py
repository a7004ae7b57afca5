"""A site's part in aggregating the answers to its tasks on shares."""

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from audits import Refusal, Tensors
from audits.escaping import for_log
from audits.gate import LogCharge
from medfedvqa.core import SHARED_BYTES, CommitteeMean, MeanOnShares, MixOnShares
from medfedvqa.core.on_shares import (
    MASK_KEY,
    MASK_SECRETS,
    OPENED,
    OPENING,
    averaging,
    broken,
    handed_over,
    masked,
    mixing,
    seeding,
    summed,
    tossing,
    unmasking,
)
from medfedvqa.errors import FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import (
    HIDDEN_SUM,
    MASKS,
    UPLOADED,
    Attempt,
    Opening,
    mix_with_others,
    named_masks,
)
from medfedvqa.federation.committee_draw import DrawingSite
from medfedvqa.federation.job_budget import log_charge
from medfedvqa.federation.sharing_steps import SharingSteps, in_attempt, report
from medfedvqa.federation.site_state import Contribution, LastingMasks, Saved
from medfedvqa.federation.tuple_dealing import DealingSite
from privacy.secagg import MisdealtError, SecureAggregationError, SiteError
from privacy.secagg.channel import joined
from privacy.secagg.committee import Group, threshold
from privacy.secagg.communicator import MeteredWire
from privacy.secagg.layout import NARROW_WORD, SumCode, check_mean, mean_of_sum
from privacy.secagg.pairwise_masks import agree, answer, exchange, hidden, lasting_mask, new_secrets, unhidden
from privacy.secagg.ring import packed

# A site's part in a mean that members compute with CrypTen.

_logger = logging.getLogger(__name__)
SUMMAND, LABEL = "summand", "label"
"""The names of the arrays in `Saved.summand`: the numbers, and the label of their masks."""


def digest_of(task: str, round: int, received: Tensors) -> str:
    """A digest of all that the server sent for one round of a task."""
    parts = [task.encode(), str(round).encode()]
    parts += [part for name in sorted(received) for part in (name.encode(), received[name].tobytes())]
    return hashlib.sha256(joined(*parts)).hexdigest()


@dataclass(frozen=True)
class CommitteeMeanSite:
    """Answers one task: share, add up and open. A member opens only one sum a round, also after a restart."""

    steps: SharingSteps

    def answer(self, task: str, how: CommitteeMean, round: int, message: Tensors) -> Tensors:
        """This site's message to the server on an attempt: the sum from a member, else that its shares were sent.

        After a fault it names the site at fault, and says whether this member sent its part of the opening. A site that
        died in the attempt names itself, unless its part was complete.
        """
        attempt, saved = Attempt.read(message), self.steps.answered(task, round)
        self.steps.gate.receive(averaging(task), round, {})
        links = dict[str, MeteredWire]()
        # `_share` refuses an attempt without this site, which has no place to name.
        fault = attempt.sites.index(self.steps.config.name) if self.steps.config.name in attempt.sites else 0
        if saved.attempt != attempt.name:
            try:
                self._share(task, how, saved, attempt, links)
            except SiteError as error:
                _logger.warning("round %d: %s", round, for_log(str(error)))
                fault = attempt.sites.index(error.site)
        return self._told(task, how, round, attempt, report(sum(link.nbytes for link in links.values()), fault))

    def _told(self, task: str, how: CommitteeMean, round: int, attempt: Attempt, reported: Tensors) -> Tensors:
        """The message to the server, from what this site has saved of the attempt; `reported` if the attempt broke."""
        steps, saved = self.steps, self.steps.answered(task, round)
        mine = next((each for each in saved.contributions if each.attempt == attempt.name), None)
        nbytes = {SHARED_BYTES.name: reported[SHARED_BYTES.name]}
        if mine is None or mine.group_key is None or (mine.answered and mine.total is None):
            opened = np.array(int(mine is not None and mine.answered != ()))
            return steps.gate.release(broken(task), round, {**reported, OPENED.name: opened})
        if mine.total is None:
            return steps.gate.release(handed_over(task), round, nbytes)
        total, charge = np.frombuffer(mine.total, "<u8"), steps.budget.settle(task, round)
        if how.hidden:
            total = hidden(total, mine.group_key, mine.sites)
        sharing = Opening(attempt.name, attempt.sites).sharing("sum", steps.private)
        message, charged = steps.split_sum(task, how, total) | nbytes, log_charge(charge) if charge else None
        return steps.gate.release(summed(task), round, message, charge=charged, sharing=sharing)

    def _share(
        self, task: str, how: CommitteeMean, saved: Saved, attempt: Attempt, links: dict[str, MeteredWire]
    ) -> None:
        """Share the saved answer over `links`, which this fills, and save the result: at a member the sum.

        Raises `SiteError`, or `RangeError` before anything is shared.
        """
        # CrypTen takes seconds to import, and only these jobs need it.
        from privacy.secagg.protocol import secure_sum

        steps, round = self.steps, saved.round
        pinned, rule = steps.admitted(attempt, saved)
        group, sharing = steps.group(attempt, saved), steps.sharing(attempt, saved, "sum", rule)
        values = steps.summand(task, how, saved.reply, len(group.sites))
        charge = steps.budget.settle(task, round)
        past = tuple(Contribution(each.attempt, each.sites, each.members) for each in saved.contributions)
        saved = replace(in_attempt(saved, attempt), contributions=past)
        with steps.earlier.locked():
            steps.check_cohort(sharing, round)
            charged = log_charge(charge) if charge else None
            steps.gate.share(averaging(task), round, steps.split_sum(task, how, values), sharing, charged)
            steps.file.save(saved)
        views = steps.views_of(how, saved)
        links |= {site: MeteredWire(link) for site, link in steps.connected(pinned, attempt, saved, views).items()}
        mine = Contribution(attempt.name, group.sites, group.members)
        steps.file.save(replace(saved, contributions=(*past, mine)))

        def opening(group_key: bytes) -> None:
            nonlocal mine
            mine = replace(mine, group_key=group_key, answered=group.sites)
            steps.file.save(replace(saved, contributions=(*past, mine)))

        total, group_key = secure_sum(group, links, values, opening)
        mine = replace(mine, group_key=group_key, total=None if total is None else total.astype("<u8").tobytes())
        steps.file.save(replace(saved, contributions=(*past, mine)))


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SecureSite(SharingSteps):
    """Takes part in the attempts of one job: see `SharingSteps`."""

    @staticmethod
    def split(message: Tensors) -> tuple[Tensors, Tensors]:
        """The message for the method, and what came beside it for the computation on shares."""
        beside = {name: message[name] for name in (UPLOADED, HIDDEN_SUM, MASKS) if name in message}
        return {name: array for name, array in message.items() if name not in beside}, beside

    def handler(self, task: str) -> Callable[[int, Tensors], Tensors] | None:
        """The handler of a task that aggregates; None for any other task."""
        return self._handlers.get(task)

    @cached_property
    def _handlers(self) -> dict[str, Callable[[int, Tensors], Tensors]]:
        handlers = DrawingSite(self.config, self.job, self.job_id, self.gate, self.file, self.admission).handlers
        for task, how in self.method.aggregated.items():
            if isinstance(how, MixOnShares):
                handlers[seeding(task)] = partial(self._seed, task, how)
                handlers[tossing(task)] = partial(self._toss, task)
                handlers[mixing(task)] = partial(self._mix, task, how)
            elif isinstance(how, CommitteeMean):
                handlers[averaging(task)] = partial(CommitteeMeanSite(self).answer, task, how)
            else:
                handlers[averaging(task)] = partial(self._upload, task, how)
                handlers[unmasking(task)] = partial(self._unmask, task, how)
        return handlers

    # Steps of a mixture: the dealing of its tuples, and the computation.

    @cached_property
    def _dealing(self) -> DealingSite:
        return DealingSite(self.config.name, self.gate, self.file)

    def check_shown(self, task: str, saved: Saved) -> None:
        """Refuse the job, before a task runs and costs budget, if the server has not shown the previous dealing."""
        if self._is_mixed(task):
            with self._refusing_misdealing():
                self._dealing.check_shown(saved)

    def offered(self, saved: Saved, received: Tensors, code: SumCode | None) -> Saved:
        """The answer, with what the aggregation needs: seed and commitment of a mixture, or what leaves of it in a
        mean under lasting masks, if the server asks for that in this `code`. `received`: what the site trained from.
        """
        how = self.method.aggregated.get(saved.task)
        if not isinstance(how, MeanOnShares):
            return self._dealing.offered(saved) if self._is_mixed(saved.task) else saved
        saved = replace(saved, sent=digest_of(saved.task, saved.round, received))
        if code is None or saved.lasting is None:
            return saved
        begun = {} if how.whole else received
        values = self.summand(saved.task, how, saved.reply, len(saved.lasting.sites), code, begun)
        label = joined(saved.sent.encode(), str(code.exponent).encode())
        return replace(saved, summand={SUMMAND: values.view(np.int64), LABEL: np.frombuffer(label, np.uint8)})

    def _is_mixed(self, task: str) -> bool:
        return isinstance(self.method.on_shares.get(task), MixOnShares)

    def _seed(self, task: str, how: MixOnShares, round: int, message: Tensors) -> Tensors:
        """A member's seed for the dealing of an attempt in which it takes part."""
        attempt, saved = Attempt.read(message), self._unmixed(task, round)
        self.gate.receive(seeding(task), round, {})
        self._check_attempt(attempt, saved)
        with self._refusing_misdealing():
            return self._dealing.seed(task, saved, attempt, message, self.layout(task, how))

    def _toss(self, task: str, round: int, message: Tensors) -> Tensors:
        """A member's coin, once the dealer has committed to what it deals."""
        attempt, saved = Attempt.read(message), self._unmixed(task, round)
        self.gate.receive(tossing(task), round, {})
        self._check_attempt(attempt, saved)
        return self._dealing.toss(task, saved, attempt, message)

    def _check_attempt(self, attempt: Attempt, saved: Saved) -> None:
        """Check first that the site would share its input in the attempt. Raises `FederationError` or `JobRefused`."""
        _, rule = self.admitted(attempt, saved)
        with self.earlier.locked():
            self.check_cohort(self.sharing(attempt, saved, "mix", rule), saved.round)

    @contextmanager
    def _refusing_misdealing(self) -> Iterator[None]:
        """Refuse the job once it shows that a dealing does not follow from the members' seeds."""
        try:
            yield
        except MisdealtError as error:
            self.gate.refuse_job(Refusal.DEALER, str(error))

    def _unmixed(self, task: str, round: int) -> Saved:
        saved = self.answered(task, round)
        if saved.mixed == round:
            # The difference of two mixtures of one round would show a single input.
            raise FederationError("this site already has its mixture of this round, and joins no second attempt")
        return saved

    def _mix(self, task: str, how: MixOnShares, round: int, message: Tensors) -> Tensors:
        """Attempt to mix the saved answer to `task` with the other sites' answers, and report the outcome."""
        attempt, saved = Attempt.read(message), self.answered(task, round)
        self.gate.receive(mixing(task), round, {})
        fault, nbytes = -1, 0
        if saved.mixed != round and saved.attempt != attempt.name:
            try:
                nbytes = self._mix_with_others(task, how, saved, attempt, message)
            except SiteError as error:
                _logger.warning("round %d: %s", round, for_log(str(error)))
                fault = attempt.sites.index(error.site)
        elif saved.attempt != attempt.name:
            self._unmixed(task, round)
        elif saved.mixed != round:
            # The site died in this very attempt, whose dealt tuples must not serve twice.
            fault = attempt.sites.index(self.config.name)
        return self.gate.release(mixing(task), round, report(nbytes, fault))

    def _mix_with_others(self, task: str, how: MixOnShares, saved: Saved, attempt: Attempt, message: Tensors) -> int:
        """Share the saved answer and save the mixture; returns the bytes that were sent. Raises `SiteError`."""
        round, me, layout = saved.round, self.config.name, self.layout(task, how)
        pinned, rule = self.admitted(attempt, saved)
        with self._refusing_misdealing():
            dealt = self._dealing.checked(saved, attempt, message, layout)
        group, sharing = Group(me, attempt.sites, attempt.members), self.sharing(attempt, saved, "mix", rule)
        charge = self.budget.settle(task, round)
        dealing = {spec.name for spec in how.beside}
        reply = {name: array for name, array in saved.reply.items() if name not in dealing}
        with self.earlier.locked():
            self.check_cohort(sharing, round)
            upload = self.gate.share(mixing(task), round, reply, sharing, log_charge(charge) if charge else None)
        saved = replace(in_attempt(saved, attempt), dealt=None)  # A dealing serves once.
        self.file.save(saved)
        links = self.connected(pinned, attempt, saved, dealt.transcript)
        with self._refusing_misdealing():
            mixture, nbytes = mix_with_others(group, links, attempt.dealt, dealt.seed, upload, layout, how.most_share)
        mixture = self.gate.reveal(mixing(task), round, mixture, sharing)
        try:
            layout.check_mixture(mixture, self.method.gathering.most_norm)
        except SecureAggregationError as error:
            self.gate.refuse_job(Refusal.MESSAGE, str(error))
        self.file.save(replace(saved, mixture=saved.mixture | mixture, mixed=round))
        return nbytes

    # Steps of a mean: the masked upload, and the members' opening of the sum.

    def _upload(self, task: str, how: MeanOnShares, round: int, message: Tensors) -> Tensors:
        """The saved answer to `task` under masks, or the site that broke off the exchange of the masks' keys."""
        attempt, saved = Attempt.read(message), self.answered(task, round)
        self.gate.receive(averaging(task), round, {})
        if saved.attempt == attempt.name:
            # The site died in this very attempt, for which the others have its former keys.
            return self.gate.release(broken(task), round, report(0, attempt.sites.index(self.config.name)))
        pinned, rule = self.admitted(attempt, saved)
        group, sharing = self.group(attempt, saved), self.sharing(attempt, saved, "mean", rule)
        values = self.summand(task, how, saved.reply, len(group.sites))
        contributions = tuple(Contribution(past.attempt, past.sites, past.members) for past in saved.contributions)
        saved, secrets = replace(in_attempt(saved, attempt), contributions=contributions), new_secrets()
        with self.earlier.locked():
            self.check_cohort(sharing, round)
            self.gate.share(averaging(task), round, {MASK_SECRETS.name: np.frombuffer(secrets, "<i8")}, sharing)
            self.file.save(saved)
        try:
            links = self.connected(pinned, attempt, saved, self.views_of(how, saved))
            masks, nbytes = exchange(group, links, secrets)
        except SiteError as error:
            _logger.warning("round %d: %s", round, for_log(str(error)))
            return self.gate.release(broken(task), round, report(0, attempt.sites.index(error.site)))
        shares, keys = dict(masks.shares), dict(masks.opening_keys)
        contribution = Contribution(attempt.name, group.sites, group.members, shares, masks.group_key, keys)
        lasting = {peer: link.session.export(b"lasting masks") for peer, link in links.items()} if how.lasting else {}
        kept = LastingMasks(attempt.name, group.sites, lasting) if how.lasting else None
        self.file.save(replace(saved, contributions=(*contributions, contribution), lasting=kept))
        charge = self.budget.settle(task, round)
        upload = self.split_sum(task, how, masks.apply(values, how.hidden))
        upload[MASK_KEY.name] = np.frombuffer(masks.public, "<i8")
        upload[SHARED_BYTES.name] = np.array(nbytes)
        charged = log_charge(charge) if charge else None
        return self.gate.release(averaging(task), round, upload, charge=charged, sharing=sharing)

    def _unmask(self, task: str, how: MeanOnShares, round: int, message: Tensors) -> Tensors:
        """This member's shares of the keys that open the sum over the uploads. A member answers for one sum only."""
        opening, saved = Opening.read(message), self.answered(task, round)
        self.gate.receive(unmasking(task), round, {})
        contribution = saved.contributions[-1] if saved.contributions else None
        if contribution is None or contribution.attempt != opening.attempt or not contribution.shares:
            raise FederationError("this site is not a member of that attempt, or has begun another one")
        if contribution.answered not in ((), opening.uploaded):
            raise FederationError("this site has opened another sum of this attempt, and opens no second sum")
        group = Group(self.config.name, contribution.sites, contribution.members)
        parts = answer(group, contribution.shares, opening.uploaded, self.job.least_sites)
        shares = np.zeros(OPENING.shape, "<i8")
        shares[: len(group.sites)] = [np.frombuffer(parts[site], "<i8") for site in group.sites]
        sharing = opening.sharing("mean to be opened", self.private)
        with self.earlier.locked():
            self.check_cohort(sharing, round)
        if not contribution.answered and not self._agreed(contribution, opening):
            return self.gate.release(broken(task), round, report(0, contribution.sites.index(self.config.name)))
        with self.earlier.locked():
            self.check_cohort(sharing, round)
            answered = replace(contribution, answered=opening.uploaded)
            self.file.save(replace(saved, contributions=(*saved.contributions[:-1], answered)))
            return self.gate.release(unmasking(task), round, {OPENING.name: shares}, sharing=sharing)

    def _agreed(self, contribution: Contribution, opening: Opening) -> bool:
        """Whether enough members got the same announcement of the sum. A silent member has died since its upload."""
        me, relay = self.config.name, self.relays(f"{contribution.attempt}-opening")
        keys = {member: key for member, key in contribution.opening_keys.items() if member in opening.uploaded}
        try:
            with self.refusing_equivocation():
                agree(me, keys, relay, opening.label, attempts.MESSAGE_TIMEOUT, threshold(len(contribution.members)))
        except SecureAggregationError as error:
            _logger.warning("%s", for_log(str(error)))
            return False
        return True

    # Later uploads under masks that last.

    def requested_code(self, task: str, saved: Saved, message: Tensors) -> SumCode | None:
        """How the server asks for the answer under masks that last; None if it does not.

        Raises `FederationError` for masks that this site does not have.
        """
        if MASKS not in message:
            return None
        how, (name, exponent) = self.method.aggregated.get(task), named_masks(message)
        if not isinstance(how, MeanOnShares) or saved.lasting is None or saved.lasting.attempt != name:
            raise FederationError("the server names masks that this site does not have: start the job anew")
        return how.code(exponent)

    def release_masked(self, saved: Saved, public: Tensors, charge: LogCharge | None) -> Tensors:
        """The saved answer under the lasting masks, and the `public` part of it, through the gate.

        The masks follow from the round and from all that the server sent for it. So a repeat is the same bytes, and
        the masks of sites that were sent different values do not cancel.
        """
        masks, how, task = saved.lasting, self.method.aggregated[saved.task], saved.task
        if masks is None or not isinstance(how, MeanOnShares):
            raise FederationError("the masks of this answer are lost: remove the job's state, and start the job anew")
        values, label = saved.summand[SUMMAND].view(np.uint64), saved.summand[LABEL].tobytes()
        values = values + lasting_mask(self.config.name, masks.sites, masks.keys, label, len(values))
        message = self.split_sum(task, how, values)
        if not how.whole:
            message = {name: packed(array.view(np.uint64), NARROW_WORD) for name, array in message.items()}
        message |= public
        sharing = Opening(masks.attempt, masks.sites).sharing("mean", self.private)
        with self.earlier.locked():
            self.check_cohort(sharing, saved.round)
            return self.gate.release(masked(task), saved.round, message, charge=charge, sharing=sharing)

    # Results.

    def read_hidden(self, saved: Saved, message: Tensors) -> Saved:
        """The saved task, with the mean of a sum that only sites can read if one came.

        Raises `SecureAggregationError`.
        """
        if not {UPLOADED, HIDDEN_SUM} & message.keys():
            return saved
        opening, contribution = Opening.read(message), saved.contributions[-1] if saved.contributions else None
        if contribution is None or contribution.attempt != opening.attempt or contribution.group_key is None:
            raise FederationError("the server's message holds the mean of an attempt in which this site had no part")
        task, how = saved.task, self.method.on_shares[saved.task]
        total, layout = np.array(message.get(HIDDEN_SUM, ()), np.int64).view(np.uint64), self.layout(task, how)
        weights = how.weight_bounds(self.declared(task)) if isinstance(how, MeanOnShares) else None
        mean = mean_of_sum(
            unhidden(total, contribution.group_key, opening.uploaded), len(opening.uploaded), layout, weights
        )
        check_mean(mean, self.declared(task).most_norm)
        mean = self.gate.reveal(averaging(task), saved.round, mean, opening.sharing("mean", self.private))
        return replace(saved, mixture=saved.mixture | mean)

    def results(self, task: str, saved: Saved) -> Tensors:
        """The tensors of a task's message that the server does not know: this site's results on shares."""
        return {spec.name: saved.mixture[spec.name] for spec in self.declared(task).down if spec.name in saved.mixture}
