"""The one direction in which a site goes through a job: its tasks in the order of the method's plan, never back."""

from collections.abc import Iterable

from audits import JobRefused, Refusal

LAST = "evaluate"
"""The task that ends a job. A server that is told to stop sends it in an earlier round than planned."""


class Order:
    """What a site may be asked next. A server may leave out steps; it may not go back to one that lies behind."""

    def __init__(self, tasks: Iterable[tuple[str, int]]) -> None:
        """`tasks`: the method's plan, see `Method.tasks`."""
        self._places = {step: place for place, step in enumerate(tasks)}
        self._rounds = max((round for _, round in self._places), default=0)

    def repeats(self, task: str, round: int, last: tuple[str, int] | None) -> bool:
        """Whether a request is the last one again; if not, it is for a later step of the plan.

        `last`: task and round of what the site answered last; None before the first. Raises `JobRefused` for a request
        that is neither.
        """
        place = self._place(task, round)
        if place is None:
            raise JobRefused(Refusal.ORDER, "the plan of the job's method has no such task in this round")
        if last is None:
            return False
        if (task, round) == last:
            return True
        reached = self._place(*last)
        if reached is None or place <= reached:
            raise JobRefused(Refusal.ORDER, "the site has gone on to a later task, and goes back to none")
        return False

    def _place(self, task: str, round: int) -> int | None:
        # A round comes from the wire: True would be equal to 1, and a list has no hash.
        if type(task) is not str or type(round) is not int:
            return None
        if task == LAST and 1 <= round <= self._rounds:
            return len(self._places)
        return self._places.get((task, round))
