"""The verdict on each part of a log or a report: shown, not shown or broken."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class VerdictState(StrEnum):
    """The state of a part of a verdict; a verdict has the worst state of its parts."""

    NOT_COMPARED = "not compared"
    """The part was not compared, and the verdict does not depend on it."""
    SHOWN = "shown"
    NOT_SHOWN = "not shown"
    BROKEN = "broken"


NOT_COMPARED, SHOWN, NOT_SHOWN, BROKEN = VerdictState
EXIT_CODES = {NOT_COMPARED: 0, SHOWN: 0, BROKEN: 1, NOT_SHOWN: 2}


@dataclass(frozen=True)
class VerdictPart:
    """One check and its result; `entry` is the first entry that shows the damage."""

    name: str
    state: VerdictState
    said: str
    entry: int | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict: the results of its checks."""

    parts: tuple[VerdictPart, ...]

    @property
    def state(self) -> VerdictState:
        """The worst of the parts."""
        return worst(part.state for part in self.parts)


def worst(states: Iterable[VerdictState]) -> VerdictState:
    """The worst of these states."""
    return max(states, key=list(VerdictState).index)
