"""The steps that a site takes in every attempt to aggregate on shares, whatever the protocol."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from audits import Exchange, Gate, MessageRefused, Refusal, Sharing, Stage, TaskSpec
from audits.sharing import EarlierSums
from medfedvqa.core import FAULT, SHARED_BYTES, MeanOnShares, Method, MixOnShares, Tensors
from medfedvqa.core.on_shares import LARGEST_GROUP
from medfedvqa.errors import FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.admission import Admission
from medfedvqa.federation.aggregation_attempt import Attempt, Links, Relays, admit, load_identity, peers_of
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import JobBudget
from medfedvqa.federation.quorum import MembersRule, Protocol
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import Saved, StateFile
from privacy.secagg import EquivocationError, TensorLayout, connect
from privacy.secagg.channel import joined
from privacy.secagg.committee import Group, threshold
from privacy.secagg.differencing import sites_shown
from privacy.secagg.layout import WIDE, SumCode, summand


@dataclass(frozen=True)
class SharingSteps:
    """A site's checks and steps in any attempt of one job, after it has answered and saved the aggregated task."""

    config: SiteConfig
    job: JobSpec
    job_id: str
    method: Method[Any]
    gate: Gate
    budget: JobBudget
    file: StateFile
    relays: Relays
    admission: Admission

    def admitted(self, attempt: Attempt, saved: Saved) -> tuple[dict[str, str], MembersRule]:
        """The fingerprints of the attempt's other parties, and the rule that chose the members.

        Raises `FederationError` if the site must take no part.
        """
        pinned, rule = peers_of(self.config, attempt, self.job.least_sites), self.job.members_rule(saved.beacon)
        admit(attempt, saved, rule)
        return pinned, rule

    @cached_property
    def earlier(self) -> EarlierSums:
        """The sums that this site's inputs went into, with the lock that orders them."""
        return EarlierSums(self.config.audit)

    @property
    def private(self) -> bool:
        """Whether the job is under differential privacy."""
        return self.job.dp is not None

    def sharing(self, attempt: Attempt, saved: Saved, protocol: Protocol, rule: MembersRule) -> Sharing:
        """The attempt as the log holds it."""
        stage = Stage.REPEATED if saved.number else Stage.BEGUN
        return attempt.sharing(protocol, rule, stage, self.private)

    def check_cohort(self, sharing: Sharing, round: int) -> None:
        """Refuse the job if this sum and earlier ones could be combined to a sum over too few sites.

        Earlier sums of other jobs count whatever their methods and rounds: two methods may train alike. Sums of other
        rounds of this job count if the server sent the same message in them, or if a site's uploads are nearly the same
        in all rounds. Of the attempts at one input only one has a result, see `group`, and the others do not count. The
        caller holds the lock of the earlier sums until it has logged this one. Raises `JobRefused`.
        """
        if self.private:
            return
        but_last, every_round = sharing.stage is not Stage.BEGUN, self.method.repeats_uploads
        earlier = self.earlier.cohorts(self.job_id, round, but_last, every_round)
        if exposed := sites_shown(earlier, frozenset(sharing.sites), self.config.policy.min_difference):
            self.gate.refuse_job(
                Refusal.COHORT,
                f"in round {round} a sum over {', '.join(sharing.sites)} and earlier ones could be combined "
                f"to show what {', '.join(exposed)} put in: run the job with the sites of the earlier ones",
            )

    def views_of(self, how: MeanOnShares, saved: Saved) -> bytes:
        """What sites of a mean compare beside the attempt, since other models could silence all uploads but one.

        D. Pasquini, D. Francati and G. Ateniese, "Eluding Secure Aggregation in Federated Learning via Model
        Inconsistency", 2022.
        """
        return saved.sent.encode() if how.alike else b""

    def connected(self, pinned: dict[str, str], attempt: Attempt, saved: Saved, transcript: bytes = b"") -> Links:
        """Links to the sites to which the server announced the same attempt, draw and `transcript`.

        Raises `SiteError`, or `JobRefused` if the server told a site something else.
        """
        session, relay = f"{self.job_id}/{saved.round}/{attempt.name}", self.relays(attempt.name)
        announced = joined(attempt.label(saved.round), saved.beacon.value if saved.beacon else b"", transcript)
        me, key = self.config.name, load_identity(self.config)
        timeout = attempts.MESSAGE_TIMEOUT * (1 if me in attempt.members else 2)
        with self.refusing_equivocation():
            return connect(key, session, me, pinned, relay, timeout, announced)

    @contextmanager
    def refusing_equivocation(self) -> Iterator[None]:
        """Refuse the job once it shows that the server tells sites different things."""
        try:
            yield
        except EquivocationError as error:
            self.gate.refuse_job(Refusal.VIEWS, str(error))

    def group(self, attempt: Attempt, saved: Saved) -> Group:
        """The parties of an attempt at a mean.

        Raises `FederationError` if the site must take no part because an earlier upload could be opened as well.
        """
        if len(attempt.sites) > LARGEST_GROUP:
            raise FederationError(f"a mean can be over at most {LARGEST_GROUP} sites: split the federation")
        if saved.summand:
            raise FederationError("this site's upload of this round has left already: it joins no attempt at its mean")
        for past in saved.contributions:
            still = set(past.members) & set(attempt.members)
            if past.answered or len(still) < threshold(len(past.members)):
                raise FederationError(
                    "this site joins no other attempt at the mean of this round: the first one may still be opened"
                )
        return Group(self.config.name, attempt.sites, attempt.members)

    def summand(
        self,
        task: str,
        how: MeanOnShares,
        reply: Tensors,
        sites: int,
        code: SumCode = WIDE,
        received: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """The site's part of the sum, less what it `received`.

        Raises `JobRefused` unless it is as declared, which nobody can check later.
        """
        layout = self.layout(task, how)
        try:
            reply = self._exchange.check(task, "up", reply)
        except MessageRefused as error:
            self.gate.refuse_job(Refusal.MESSAGE, str(error))
        averaged = {name: reply[name] - np.float64((received or {}).get(name, 0.0)) for name, _ in layout.shapes}
        return summand(averaged, float(reply[how.weight]) if how.weight else 1.0, layout, sites, code)

    def split_sum(self, task: str, how: MeanOnShares, values: np.ndarray) -> Tensors:
        """Splits a sum, or one site's input to it, into named tensors."""
        specs = how.summands(self.declared(task))
        ends = np.cumsum([int(np.prod(spec.shape)) for spec in specs])[:-1]
        parts = np.split(values.view(np.int64), ends)
        return {spec.name: part.reshape(spec.shape) for spec, part in zip(specs, parts, strict=True)}

    def answered(self, task: str, round: int) -> Saved:
        """The saved answer to `task`. Raises `JobRefused` if the site has answered another one since."""
        saved = self.file.load()
        if saved is None or (saved.task, saved.round) != (task, round) or type(round) is not int:
            # With the number of another round, its cohort would be compared with the wrong ones.
            self.gate.refuse_job(Refusal.ORDER, "what is to be shared is not what the site answered last")
        return saved

    def declared(self, task: str) -> TaskSpec:
        """The task as declared without shares."""
        return self._exchange.task(task)

    @cached_property
    def _exchange(self) -> Exchange:
        return self.method.declared(self.job.shape)

    def layout(self, task: str, how: MixOnShares | MeanOnShares) -> TensorLayout:
        """The layout, in one vector, of the answer's aggregated part."""
        return how.layout(self.declared(task))


def in_attempt(saved: Saved, attempt: Attempt) -> Saved:
    """The saved task of a site that takes part in the attempt."""
    return replace(saved, attempt=attempt.name, number=attempt.number, group=attempt.sites)


def report(nbytes: int, fault: int) -> Tensors:
    """What the server learns about an attempt: the bytes of shares, and the rank of the site that broke it, or -1."""
    return {FAULT.name: np.array(fault), SHARED_BYTES.name: np.array(nbytes)}
