"""A site's part in a mean that members compute with CrypTen."""

import logging
from dataclasses import dataclass, replace

import numpy as np

from audits import Tensors
from audits.escaping import for_log
from medfedvqa.core import SHARED_BYTES, CommitteeMean
from medfedvqa.core.on_shares import OPENED, averaging, broken, handed_over, summed
from medfedvqa.federation.aggregation_attempt import Attempt, Opening
from medfedvqa.federation.job_budget import log_charge
from medfedvqa.federation.sharing_steps import SharingSteps, in_attempt, report
from medfedvqa.federation.site_state import Contribution, Saved
from privacy.secagg import SiteError
from privacy.secagg.communicator import MeteredWire
from privacy.secagg.pairwise_masks import hidden

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommitteeMeanSite:
    """Answers one task: share, add up and open. A member opens one sum of a round, also after a restart."""

    steps: SharingSteps

    def answer(self, task: str, how: CommitteeMean, round: int, message: Tensors) -> Tensors:
        """What this site tells the server of an attempt: at a member the sum, else that its shares are out.

        Where the attempt was broken, it is by which site, and whether this member has sent its part of the opening. A
        site that died in the attempt names itself, unless it has come to the end of its part.
        """
        attempt, saved = Attempt.read(message), self.steps.answered(task, round)
        self.steps.gate.receive(averaging(task), round, {})
        fault, links = attempt.sites.index(self.steps.config.name), dict[str, MeteredWire]()
        if saved.attempt != attempt.name:
            try:
                self._share(task, how, saved, attempt, links)
            except SiteError as error:
                _logger.warning("round %d: %s", round, for_log(str(error)))
                fault = attempt.sites.index(error.site)
        return self._told(task, how, round, attempt, report(sum(link.nbytes for link in links.values()), fault))

    def _told(self, task: str, how: CommitteeMean, round: int, attempt: Attempt, reported: Tensors) -> Tensors:
        """The message to the server, from what this site has saved of the attempt; `reported` is for a broken one."""
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
        """Share the saved answer over `links`, which this fills, and save what comes of it: at a member the sum.

        Raises `SiteError`, or `RangeError` before anything is shared.
        """
        # CrypTen takes seconds to import, and only these jobs need it.
        from privacy.secagg.committee_sum import secure_sum

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
        links |= {site: MeteredWire(link) for site, link in steps.connected(pinned, attempt, saved).items()}
        mine = Contribution(attempt.name, group.sites, group.members)
        steps.file.save(replace(saved, contributions=(*past, mine)))

        def opening(group_key: bytes) -> None:
            nonlocal mine
            mine = replace(mine, group_key=group_key, answered=group.sites)
            steps.file.save(replace(saved, contributions=(*past, mine)))

        total, group_key = secure_sum(group, links, values, opening)
        mine = replace(mine, group_key=group_key, total=None if total is None else total.astype("<u8").tobytes())
        steps.file.save(replace(saved, contributions=(*past, mine)))
