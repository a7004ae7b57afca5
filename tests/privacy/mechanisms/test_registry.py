"""A mechanism is one file: everything else finds it by its name."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from privacy import (
    AccountingError,
    DPEvent,
    Laplace,
    Ledger,
    Limits,
    PlannedTask,
    SampledGaussian,
    Use,
    merge_steps,
    spent,
)
from privacy.mechanisms import base, counts_mechanisms
from privacy.mechanisms.base import PrivacyLoss
from privacy.report.replay import Replay, quote_ledger


class _TwoPointLoss:
    def __init__(self, largest: float) -> None:
        self._largest = largest

    def cdf(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        lie = 1 / (1 + math.exp(self._largest))
        return np.where(t < -self._largest, 0.0, np.where(t < self._largest, lie, 1.0))

    def mean(self) -> float:
        return self._largest * math.tanh(self._largest / 2)


@pytest.fixture
def response() -> Iterator[type[DPEvent]]:
    """Randomised response, as a file of its own would bring it."""

    @dataclass(frozen=True)
    class Response(DPEvent):
        mechanism: ClassVar[str] = "randomised_response"
        rdp_source: ClassVar[str] = "Mironov, Renyi Differential Privacy, 2017, Table II"
        norm: ClassVar[str] = "bits"
        level: float
        steps: int = 1
        use: Use | None = None
        mu_is_exact = False
        sampler = "none"
        noise_words = "a coin"
        sentence = "randomised response"

        @property
        def accounted(self) -> Self:
            return type(self)(self.level)

        def rdp(self, orders: Sequence[float]) -> NDArray[np.float64]:
            order, lie = np.asarray(orders), 1 / (1 + math.exp(self.level))
            moment = (1 - lie) ** order * lie ** (1 - order) + lie**order * (1 - lie) ** (1 - order)
            return np.asarray(np.log(moment) / (order - 1))

        def loss(self, least: float, most: float) -> PrivacyLoss:
            return _TwoPointLoss(self.level)

        @property
        def mu_squared(self) -> float:
            return self.steps * self.level**2

    yield Response
    del base._REGISTRY["randomised_response"]


def test_a_new_mechanism_reaches_accountants_ledger_and_replay(response: type[DPEvent], tmp_path: Path) -> None:
    """No other file knows of it; its charge is composed with those of others, and read back by its name."""
    event: Any = response(0.5, 3, Use.COUNTS)
    alone, both = spent([event], 1e-5), spent([event, Laplace(2.0)], 1e-5)
    assert 0.8 < alone.epsilon < 1.6 and alone.epsilon < both.epsilon < alone.epsilon + 0.6
    limits = Limits(max_epsilon=50, delta=1e-5)
    with closing(Ledger(tmp_path / "ledger", "chest")) as ledger:
        ledger.reserve("job", "fedavg", ["p", "q"], [PlannedTask("train", 1, (event, Laplace(2.0)))], limits)
        assert ledger.begin("job", "train", 1, limits).epsilon_after == both.epsilon
        quoted = quote_ledger(ledger.rows())
    with closing(Ledger(tmp_path / "ledger", "chest")) as again:
        assert again.accounts(1e-5)[0].spent == both
    assert Replay(quoted, "chest").events() == [event, Laplace(2.0)]


def test_only_mechanisms_that_release_counts_are_offered_for_them(response: type[DPEvent]) -> None:
    """In the order of their names, which is the same everywhere."""
    assert counts_mechanisms() == [Laplace, SampledGaussian]


@pytest.mark.parametrize(
    "event",
    [
        SampledGaussian(0.1, 2.0, 3),
        SampledGaussian(1.0, 2.0, 3, Use.COUNTS),
        SampledGaussian(0.5, 1.0, use=Use.GRADIENTS),
        Laplace(0.3, 7, Use.COUNTS),
    ],
    ids=str,
)
def test_events_name_their_mechanism_and_survive_json(event: DPEvent) -> None:
    """The record is the mechanism's name, its use, its parameters and how often it was applied."""
    record = json.loads(json.dumps(event.to_dict()))
    assert record["mechanism"] == event.mechanism and set(record) == {"mechanism", "use", "steps", *event.parameters}
    assert DPEvent.from_dict(record) == event and type(DPEvent.from_dict(record)) is type(event)


def test_records_that_name_no_mechanism_are_the_sampled_gaussian() -> None:
    """Ledgers of earlier versions stay readable; what a mechanism was applied to is not guessed from its figures."""
    assert DPEvent.from_dict({"rate": 1.0, "noise": 2.0, "steps": 4}) == SampledGaussian(1.0, 2.0, 4, use=None)


@pytest.mark.parametrize(
    "record",
    [
        {"mechanism": "staircase", "use": None, "scale": 1.0, "steps": 1},
        {"mechanism": None, "use": None, "scale": 1.0, "steps": 1},
        {"mechanism": ["laplace"], "use": None, "scale": 1.0, "steps": 1},
        {"mechanism": "laplace", "use": "weights", "scale": 1.0, "steps": 1},
        {"mechanism": "laplace", "use": ["counts"], "scale": 1.0, "steps": 1},
        {"mechanism": "laplace", "use": None, "rate": 1.0, "noise": 1.0, "steps": 1},
        {"mechanism": "laplace", "scale": 1.0, "steps": 1},
        {"mechanism": "sampled_gaussian", "rate": 1.0, "noise": 1.0, "steps": 1},
        {"use": "counts", "rate": 1.0, "noise": 1.0, "steps": 1},
        {"scale": 1.0, "steps": 1},
    ],
    ids=str,
)
def test_unfit_records_are_refused(record: dict[str, Any]) -> None:
    """No event is guessed from a record that this version did not write."""
    with pytest.raises(AccountingError):
        DPEvent.from_dict(record)


def test_events_that_differ_in_steps_alone_are_put_together() -> None:
    """Those of another mechanism, parameter or use are not."""
    events = [Laplace(1.0, 2), SampledGaussian(1.0, 1.0), Laplace(1.0, 3), Laplace(1.0, 1, Use.COUNTS)]
    assert merge_steps(events) == (Laplace(1.0, 5), SampledGaussian(1.0, 1.0), Laplace(1.0, 1, Use.COUNTS))
