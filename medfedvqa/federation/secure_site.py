"""A site's part in aggregating the answers to its tasks on shares."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from audits import Exchange, Gate, MessageRefused, Refusal, Sharing, Stage, TaskSpec
from audits.earlier_sums import EarlierSums
from audits.escaping import for_log
from medfedvqa.core import FAULT, SHARED_BYTES, MeanOnShares, Method, MixOnShares, Tensors, mixing
from medfedvqa.core.on_shares import (
    LARGEST_GROUP,
    MASK_KEY,
    MASK_SECRETS,
    OPENING,
    averaging,
    broken,
    seeding,
    tossing,
    unmasking,
)
from medfedvqa.errors import FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.admission import Admission
from medfedvqa.federation.aggregation_attempt import (
    HIDDEN_SUM,
    UPLOADED,
    Attempt,
    Links,
    Opening,
    Relays,
    admit,
    load_identity,
    mix_with_others,
    peers_of,
)
from medfedvqa.federation.aggregation_members import MembersRule, Protocol
from medfedvqa.federation.committee_draw import DrawingSite
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import JobBudget, log_charge
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import Contribution, Saved, StateFile
from medfedvqa.federation.tuple_dealing import DealingSite
from privacy.secagg import EquivocationError, MisdealtError, SecureAggregationError, SiteError, TensorLayout, connect
from privacy.secagg.channel import joined
from privacy.secagg.differencing import sites_shown
from privacy.secagg.group import Group
from privacy.secagg.masked_mean import check_mean, mean_of_sum, summand
from privacy.secagg.pairwise_masks import agree, answer, exchange, new_secrets, threshold, unhidden

_logger = logging.getLogger(__name__)


def split_hidden(message: Tensors) -> tuple[Tensors, Tensors]:
    """The message to the method, and the sum for the sites' eyes only that came with it; empty if there is none."""
    hidden = {name: message[name] for name in (UPLOADED, HIDDEN_SUM) if name in message}
    return {name: array for name, array in message.items() if name not in hidden}, hidden


@dataclass(frozen=True)
class SecureSite:
    """Takes part in the attempts of one job. The site has answered and saved the aggregated task before."""

    config: SiteConfig
    job: JobSpec
    job_id: str
    method: Method[Any]
    gate: Gate
    budget: JobBudget
    file: StateFile
    relays: Relays
    admission: Admission

    def handler(self, task: str) -> Callable[[int, Tensors], Tensors] | None:
        """The handler of a task that aggregates; None for any other task."""
        return self._handlers.get(task)

    @cached_property
    def _handlers(self) -> dict[str, Callable[[int, Tensors], Tensors]]:
        handlers = DrawingSite(self.config, self.job, self.job_id, self.gate, self.file, self.admission).handlers
        for task, how in self.method.on_shares.items():
            if isinstance(how, MixOnShares):
                handlers[seeding(task)] = partial(self._seed, task, how)
                handlers[tossing(task)] = partial(self._toss, task)
                handlers[mixing(task)] = partial(self._mix, task, how)
            else:
                handlers[averaging(task)] = partial(self._upload, task, how)
                handlers[unmasking(task)] = partial(self._unmask, task, how)
        return handlers

    # Steps of any attempt.

    def _admitted(self, attempt: Attempt, saved: Saved) -> tuple[dict[str, str], MembersRule]:
        """The fingerprints of the attempt's other parties, and the rule that chose the members.

        Raises `FederationError` if the site must take no part.
        """
        pinned, rule = peers_of(self.config, attempt, self.job.least_sites), self.job.members_rule(saved.beacon)
        admit(attempt, saved, rule)
        return pinned, rule

    @cached_property
    def _earlier(self) -> EarlierSums:
        return EarlierSums(self.config.audit)

    @property
    def _private(self) -> bool:
        return self.job.dp is not None

    def _sharing(self, attempt: Attempt, saved: Saved, protocol: Protocol, rule: MembersRule) -> Sharing:
        stage = Stage.REPEATED if saved.number else Stage.BEGUN
        return attempt.sharing(protocol, rule, stage, self._private)

    def _check_cohort(self, sharing: Sharing, round: int) -> None:
        """Refuse the job if this sum and earlier ones of other jobs combine to a sum over too few sites.

        The caller holds the lock of the earlier sums until it has logged this one. Raises `JobRefused`. Of the attempts
        at one input only one has a result, see `_group`, and the others do not count.
        """
        if self._private:
            return
        last = None if sharing.stage is Stage.BEGUN else self.job_id
        earlier = self._earlier.cohorts(self.method.name, round, but_last_of=last)
        if exposed := sites_shown(earlier, frozenset(sharing.sites), self.config.policy.min_difference):
            self.gate.refuse_job(
                Refusal.COHORT,
                f"in round {round} a sum over {', '.join(sharing.sites)} and earlier ones of the same method could be "
                f"combined to show what {', '.join(exposed)} put in: run the job with the sites of the earlier ones",
            )

    def _connected(self, pinned: dict[str, str], attempt: Attempt, saved: Saved, transcript: bytes = b"") -> Links:
        """Links to the sites to which the server announced the same attempt, draw and `transcript`.

        Raises `SiteError`, or `JobRefused` if the server told a site something else.
        """
        session, relay = f"{self.job_id}/{saved.round}/{attempt.name}", self.relays(attempt.name)
        announced = joined(attempt.label(saved.round), saved.beacon.value if saved.beacon else b"", transcript)
        me, key = self.config.name, load_identity(self.config)
        timeout = attempts.MESSAGE_TIMEOUT * (1 if me in attempt.members else 2)
        with self._refusing_equivocation():
            return connect(key, session, me, pinned, relay, timeout, announced)

    @contextmanager
    def _refusing_equivocation(self) -> Iterator[None]:
        """Refuse the job once it shows that the server tells sites different things."""
        try:
            yield
        except EquivocationError as error:
            self.gate.refuse_job(Refusal.VIEWS, str(error))

    # Steps of a mixture: the dealing of its tuples, and the computation.

    @cached_property
    def _dealing(self) -> DealingSite:
        return DealingSite(self.config.name, self.gate, self.file)

    def check_shown(self, task: str, saved: Saved) -> None:
        """Refuse the job, before a task runs and costs, if the server has not shown the dealing before it."""
        if self._is_mixed(task):
            with self._refusing_misdealing():
                self._dealing.check_shown(saved)

    def offered(self, saved: Saved) -> Saved:
        """The answer, with the seed and commitment that the following aggregation needs."""
        return self._dealing.offered(saved) if self._is_mixed(saved.task) else saved

    def _is_mixed(self, task: str) -> bool:
        return isinstance(self.method.on_shares.get(task), MixOnShares)

    def _seed(self, task: str, how: MixOnShares, round: int, message: Tensors) -> Tensors:
        """A member's seed for the dealing of an attempt in which it takes part."""
        attempt, saved = Attempt.read(message), self._unmixed(task, round)
        self.gate.receive(seeding(task), round, {})
        self._check_attempt(attempt, saved)
        with self._refusing_misdealing():
            return self._dealing.seed(task, saved, attempt, message, self._layout(task, how))

    def _toss(self, task: str, round: int, message: Tensors) -> Tensors:
        """A member's coin, once the dealer has committed to what it deals."""
        attempt, saved = Attempt.read(message), self._unmixed(task, round)
        self.gate.receive(tossing(task), round, {})
        self._check_attempt(attempt, saved)
        return self._dealing.toss(task, saved, attempt, message)

    def _check_attempt(self, attempt: Attempt, saved: Saved) -> None:
        """Check first that the site would share its input in the attempt. Raises `FederationError` or `JobRefused`."""
        _, rule = self._admitted(attempt, saved)
        with self._earlier.locked():
            self._check_cohort(self._sharing(attempt, saved, "mix", rule), saved.round)

    @contextmanager
    def _refusing_misdealing(self) -> Iterator[None]:
        """Refuse the job once it shows that a dealing does not follow from the members' seeds."""
        try:
            yield
        except MisdealtError as error:
            self.gate.refuse_job(Refusal.DEALER, str(error))

    def _unmixed(self, task: str, round: int) -> Saved:
        saved = self._answered(task, round)
        if saved.mixed == round:
            # The difference of two mixtures of one round would show a single input.
            raise FederationError("this site has its mixture of this round already, and takes part in no second one")
        return saved

    def _mix(self, task: str, how: MixOnShares, round: int, message: Tensors) -> Tensors:
        """Attempt to mix the saved answer to `task` with those of the other sites, and report the outcome."""
        attempt, saved = Attempt.read(message), self._answered(task, round)
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
        return self.gate.release(mixing(task), round, _report(nbytes, fault))

    def _mix_with_others(self, task: str, how: MixOnShares, saved: Saved, attempt: Attempt, message: Tensors) -> int:
        """Share the saved answer and save the mixture; returns the bytes that were sent. Raises `SiteError`."""
        round, me, layout = saved.round, self.config.name, self._layout(task, how)
        pinned, rule = self._admitted(attempt, saved)
        with self._refusing_misdealing():
            dealt = self._dealing.checked(saved, attempt, message, layout)
        group, sharing = Group(me, attempt.sites, attempt.members), self._sharing(attempt, saved, "mix", rule)
        charge = self.budget.settle(task, round)
        dealing = {spec.name for spec in how.beside}
        reply = {name: array for name, array in saved.reply.items() if name not in dealing}
        with self._earlier.locked():
            self._check_cohort(sharing, round)
            upload = self.gate.share(mixing(task), round, reply, sharing, log_charge(charge) if charge else None)
        saved = replace(_in_attempt(saved, attempt), dealt=None)  # A dealing serves once.
        self.file.save(saved)
        links = self._connected(pinned, attempt, saved, dealt.transcript)
        with self._refusing_misdealing():
            mixture, nbytes = mix_with_others(group, links, attempt.dealt, dealt.seed, upload, layout)
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
        attempt, saved = Attempt.read(message), self._answered(task, round)
        self.gate.receive(averaging(task), round, {})
        if saved.attempt == attempt.name:
            # The site died in this very attempt, for which the others have its former keys.
            return self.gate.release(broken(task), round, _report(0, attempt.sites.index(self.config.name)))
        pinned, rule = self._admitted(attempt, saved)
        group, sharing = self._group(attempt, saved), self._sharing(attempt, saved, "mean", rule)
        values = self._summand(task, how, saved.reply, len(group.sites))
        contributions = tuple(Contribution(past.attempt, past.sites, past.members) for past in saved.contributions)
        saved, secrets = replace(_in_attempt(saved, attempt), contributions=contributions), new_secrets()
        with self._earlier.locked():
            self._check_cohort(sharing, round)
            self.gate.share(averaging(task), round, {MASK_SECRETS.name: np.frombuffer(secrets, "<i8")}, sharing)
            self.file.save(saved)
        try:
            masks, nbytes = exchange(group, self._connected(pinned, attempt, saved), secrets)
        except SiteError as error:
            _logger.warning("round %d: %s", round, for_log(str(error)))
            return self.gate.release(broken(task), round, _report(0, attempt.sites.index(error.site)))
        shares, keys = dict(masks.shares), dict(masks.opening_keys)
        contribution = Contribution(attempt.name, group.sites, group.members, shares, masks.group_key, keys)
        self.file.save(replace(saved, contributions=(*contributions, contribution)))
        charge = self.budget.settle(task, round)
        upload = self._split_upload(task, how, masks.apply(values, how.hidden))
        upload[MASK_KEY.name] = np.frombuffer(masks.public, "<i8")
        upload[SHARED_BYTES.name] = np.array(nbytes)
        charged = log_charge(charge) if charge else None
        return self.gate.release(averaging(task), round, upload, charge=charged, sharing=sharing)

    def _group(self, attempt: Attempt, saved: Saved) -> Group:
        """Raises `FederationError` if the site must take no part because an earlier upload could be opened as well."""
        if len(attempt.sites) > LARGEST_GROUP:
            raise FederationError(f"a mean is of at most {LARGEST_GROUP} sites: split the federation")
        for past in saved.contributions:
            still = set(past.members) & set(attempt.members)
            if past.answered or len(still) < threshold(len(past.members)):
                raise FederationError(
                    "this site takes part in no other attempt at the mean of this round: the first may yet be opened"
                )
        return Group(self.config.name, attempt.sites, attempt.members)

    def _unmask(self, task: str, how: MeanOnShares, round: int, message: Tensors) -> Tensors:
        """This member's shares of the keys that open the sum over the uploads. A member answers for one sum only."""
        opening, saved = Opening.read(message), self._answered(task, round)
        self.gate.receive(unmasking(task), round, {})
        contribution = saved.contributions[-1] if saved.contributions else None
        if contribution is None or contribution.attempt != opening.attempt or not contribution.shares:
            raise FederationError("this site is no member of that attempt, or has gone on to another one")
        if contribution.answered not in ((), opening.uploaded):
            raise FederationError("this site has opened another sum of this attempt, and opens no second one")
        group = Group(self.config.name, contribution.sites, contribution.members)
        parts = answer(group, contribution.shares, opening.uploaded, self.job.least_sites)
        shares = np.zeros(OPENING.shape, "<i8")
        shares[: len(group.sites)] = [np.frombuffer(parts[site], "<i8") for site in group.sites]
        sharing = opening.sharing("mean to be opened", self._private)
        with self._earlier.locked():
            self._check_cohort(sharing, round)
        if not contribution.answered and not self._agreed(contribution, opening):
            return self.gate.release(broken(task), round, _report(0, contribution.sites.index(self.config.name)))
        with self._earlier.locked():
            self._check_cohort(sharing, round)
            answered = replace(contribution, answered=opening.uploaded)
            self.file.save(replace(saved, contributions=(*saved.contributions[:-1], answered)))
            return self.gate.release(unmasking(task), round, {OPENING.name: shares}, sharing=sharing)

    def _agreed(self, contribution: Contribution, opening: Opening) -> bool:
        """Whether enough members got the same announcement of the sum. A silent member has died since its upload."""
        me, relay = self.config.name, self.relays(f"{contribution.attempt}-opening")
        keys = {member: key for member, key in contribution.opening_keys.items() if member in opening.uploaded}
        try:
            with self._refusing_equivocation():
                agree(me, keys, relay, opening.label, attempts.MESSAGE_TIMEOUT, threshold(len(contribution.members)))
        except SecureAggregationError as error:
            _logger.warning("%s", for_log(str(error)))
            return False
        return True

    def _summand(self, task: str, how: MeanOnShares, reply: Tensors, sites: int) -> np.ndarray:
        """The values to mask. Raises `JobRefused` unless they are as declared: nobody can check them under masks."""
        layout = self._layout(task, how)
        try:
            reply = self._exchange.check(task, "up", reply)
        except MessageRefused as error:
            self.gate.refuse_job(Refusal.MESSAGE, str(error))
        averaged = {name: reply[name] for name, _ in layout.shapes}
        return summand(averaged, float(reply[how.weight]) if how.weight else 1.0, layout, sites)

    def _split_upload(self, task: str, how: MeanOnShares, values: np.ndarray) -> Tensors:
        """The parts of a masked upload, by name."""
        specs = how.summands(self._declared(task))
        ends = np.cumsum([int(np.prod(spec.shape)) for spec in specs])[:-1]
        parts = np.split(values.view(np.int64), ends)
        return {spec.name: part.reshape(spec.shape) for spec, part in zip(specs, parts, strict=True)}

    # Results.

    def read_hidden(self, saved: Saved, message: Tensors) -> Saved:
        """The saved task with the mean of a sum that only sites can read. Raises `SecureAggregationError`."""
        opening, contribution = Opening.read(message), saved.contributions[-1] if saved.contributions else None
        if contribution is None or contribution.attempt != opening.attempt or contribution.group_key is None:
            raise FederationError("the server's message holds the mean of an attempt in which this site had no part")
        task = saved.task
        total = np.array(message.get(HIDDEN_SUM, ()), np.int64).view(np.uint64)
        layout = self._layout(task, self.method.on_shares[task])
        how = self.method.on_shares[task]
        weights = how.weight_bounds(self._declared(task)) if isinstance(how, MeanOnShares) else None
        mean = mean_of_sum(
            unhidden(total, contribution.group_key, opening.uploaded), len(opening.uploaded), layout, weights
        )
        check_mean(mean, self._declared(task).most_norm)
        mean = self.gate.reveal(averaging(task), saved.round, mean, opening.sharing("mean", self._private))
        return replace(saved, mixture=saved.mixture | mean)

    def results(self, task: str, saved: Saved) -> Tensors:
        """The tensors of the message declared for a task that only the sites know."""
        return {spec.name: saved.mixture[spec.name] for spec in self._declared(task).down if spec.name in saved.mixture}

    def _answered(self, task: str, round: int) -> Saved:
        saved = self.file.load()
        if saved is None or (saved.task, saved.round) != (task, round) or type(round) is not int:
            # With the number of another round, its cohort would be compared with the wrong ones.
            self.gate.refuse_job(Refusal.ORDER, "what is to be shared is not what the site answered last")
        return saved

    def _declared(self, task: str) -> TaskSpec:
        return self._exchange.task(task)

    @cached_property
    def _exchange(self) -> Exchange:
        return self.method.declared(self.job.shape)

    def _layout(self, task: str, how: MixOnShares | MeanOnShares) -> TensorLayout:
        return how.layout(self._declared(task))


def _in_attempt(saved: Saved, attempt: Attempt) -> Saved:
    return replace(saved, attempt=attempt.name, number=attempt.number, group=attempt.sites)


def _report(nbytes: int, fault: int) -> Tensors:
    return {FAULT.name: np.array(fault), SHARED_BYTES.name: np.array(nbytes)}
