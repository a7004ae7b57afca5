"""A site answers the tasks of a job in the order of the method's plan, and never goes back."""

from collections.abc import Iterable

from audits import JobRefused, Refusal

LAST = "evaluate"
"""The task that ends a job. A server that stops early sends it in an earlier round than planned."""


class TaskOrder:
    """Decides which task a site may answer next. A server may leave out steps of the plan; it may not go back."""

    def __init__(self, tasks: Iterable[tuple[str, int]]) -> None:
        """`tasks`: the method's plan, see `Method.tasks`."""
        self._places = {step: place for place, step in enumerate(tasks)}
        self._rounds = max((round for _, round in self._places), default=0)

    def repeats(self, task: str, round: int, last: tuple[str, int] | None) -> bool:
        """True if the request repeats the last one, False if it is for a later step of the plan.

        `last` is the task and round that the site answered last, or None before the first. Raises `JobRefused` for any
        other request.
        """
        place = self._place(task, round)
        if place is None:
            raise JobRefused(Refusal.ORDER, "the job's method has no such task in this round")
        if last is None:
            return False
        if (task, round) == last:
            return True
        reached = self._place(*last)
        if reached is None or place <= reached:
            raise JobRefused(Refusal.ORDER, "the site has answered a later task already, and does not go back")
        return False

    def _place(self, task: str, round: int) -> int | None:
        # A round comes from the wire: True would be equal to 1, and a list has no hash.
        if type(task) is not str or type(round) is not int:
            return None
        if task == LAST and 1 <= round <= self._rounds:
            return len(self._places)
        return self._places.get((task, round))
