"""A ledger with an accountant that adds: a step costs epsilon 1, so that sums can be checked at a glance."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from privacy import DPEvent
from privacy.accounting import PrivacyCost
from privacy.ledger import Ledger

Events = Sequence[DPEvent]


@pytest.fixture
def simple_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epsilon is the number of steps, in the ledgers of this process."""

    def spent(events: Iterable[DPEvent], delta: float) -> PrivacyCost:
        total = float(sum(event.steps for event in events))
        return PrivacyCost(epsilon=total, rdp=total, prv=total, mu=total, delta=delta)

    def fitting(limit: float, delta: float, already: Events, rounds: Sequence[Events]) -> int:
        totals = [sum(map(tuple, rounds[: count + 1]), start=tuple(already)) for count in range(len(rounds))]
        return sum(spent(events, delta).epsilon <= limit for events in totals)

    monkeypatch.setattr("privacy.ledger_replay.spent", spent)
    monkeypatch.setattr("privacy.ledger_accounts.spent", spent)
    monkeypatch.setattr("privacy.ledger.spent", spent)
    monkeypatch.setattr("privacy.ledger.spent", spent)
    monkeypatch.setattr("privacy.ledger.fitting", fitting)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Ledger]]:
    """Opens the ledger of a folder, by default always the same, and closes it in the end."""
    with contextlib.ExitStack() as stack:

        def make(folder: str = "site", site: str = "chest", store: str | None = None) -> Ledger:
            return stack.enter_context(contextlib.closing(Ledger(tmp_path / folder, site, store)))

        yield make


@pytest.fixture
def ledger(simple_accountant: None, opened: Callable[..., Ledger]) -> Ledger:
    return opened()
