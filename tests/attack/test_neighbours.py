"""What `audit neighbours` finds: each kind of leak by the figure that is about it, and none where there is none."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from audits import Exchange
from medfedvqa.attack.neighbours import QUICK, Neighbours, TaskFinding, findings
from medfedvqa.core import Method
from medfedvqa.data import phantom
from medfedvqa.methods.fedavg import FedAvg
from medfedvqa.models import Backbone
from privacy import Cost, DPSettings

OPTIONS = {"tuning": "classifier", "hidden": 8} | {
    name: QUICK[name] for name in ("rounds", "local_epochs", "local_unit", "weighting", "answers")
}


class Clean(FedAvg):
    """Weighs each row by its own loss."""

    def row_loss(self, trainer: Any, state: Any, start: Any) -> Any:
        plain = super().row_loss(trainer, state, start)

        def loss(values: Any, rows: Any) -> torch.Tensor:
            each = plain(values, rows)
            return each * self.weights(each.detach())

        return loss

    def weights(self, each: torch.Tensor) -> torch.Tensor:
        """Of each row."""
        return 1 - torch.exp(-each)


class ByPosition(Clean):
    """Drops rows by their place in the batch, from a seed that everybody knows."""

    def weights(self, each: torch.Tensor) -> torch.Tensor:
        return (torch.rand(len(each), generator=torch.Generator().manual_seed(7)) > 0.5).float()


class OverBatch(Clean):
    """Normalises losses over the batch."""

    def weights(self, each: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid((each - each.mean()) / each.std())


class Beside(Clean):
    """Uploads, in a tensor that is charged as private, a figure without noise."""

    def train(self, site: Any, state: Any, received: Any, round: int) -> Any:
        state, reply = super().train(site, state, received, round)
        name = max(reply)
        return state, {**reply, name: reply[name] + np.float32(1e-3 * len(site.data.train))}


class AtTheEnd(Clean):
    """Sends its test results, which cost nothing and have no noise."""

    def final_exchange(self, shape: Any) -> Any:
        tasks = {task.name: task for task in self.exchange(shape).tasks}
        kept = [task for task in super().final_exchange(shape).tasks if task.name != "evaluate"]
        return Exchange(self.name, (*kept, tasks["evaluate"]))


class LongerForMore(Clean):
    """Takes a round more if there are eight patients or more to train on."""

    def local(self, trainer: Any, state: Any, start: Any, round: int, seed: int) -> Any:
        for _ in range(1 + trainer.site.data.patient_counts["train"] // 8):
            state = super().local(trainer, state, start, round, seed)
        return state


class Undercharged(Clean):
    """Is charged for one of its two steps."""

    def cost(self, task: str) -> Cost:
        return Cost(steps=super().cost(task).steps // 2)


@pytest.fixture(scope="module")
def neighbours(single: Backbone) -> Neighbours:
    """Twelve phantom patients on a tiny CLIP."""
    return Neighbours(phantom.read(("site-001",)), "site-001", single)


def found(
    neighbours: Neighbours, kind: type[Method[Any]], rate: float = 1.0, engine: str = "own"
) -> Mapping[str, TaskFinding]:
    """By task."""
    dp = DPSettings(noise=1.0, count_noise=1.0, sample_rate=rate, patient_rows=4, engine=engine)
    method = kind(kind.config_type.model_validate(OPTIONS), dp)
    return {finding.task: finding for finding in findings(neighbours, method)}


@pytest.mark.parametrize("engine", ["own", pytest.param("opacus", marks=pytest.mark.slow)])
@pytest.mark.parametrize("rate", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_a_method_without_a_leak_passes(neighbours: Neighbours, rate: float, engine: str) -> None:
    """A patient moves the sum by its own contribution, nearly C, and nothing else; so it does in Opacus' optimiser."""
    tasks = found(neighbours, Clean, rate, engine)
    assert set(tasks) == {"start", "train"} and all(each.passed for each in tasks.values())
    assert all(each.steps == 2 and 0.9 < each.sum_moved <= 1 for each in tasks.values())


@pytest.mark.parametrize("kind", [ByPosition, OverBatch])
def test_a_patient_who_moves_others_is_caught(neighbours: Neighbours, kind: type[Method[Any]]) -> None:
    """By position or over the batch: the sum moves by more than C, and the others' part of it by thousands of times
    what rounding explains. Draws and parts are as before."""
    for each in found(neighbours, kind).values():
        assert not each.passed and each.sum_moved > 1 and each.others_moved > 1e-3 and each.others_alike


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Beside, "uploads_alike"),
        (AtTheEnd, "uploads_alike"),
        (LongerForMore, "others_alike"),
        (Undercharged, "charged_as_seen"),
    ],
)
def test_what_is_no_sum_is_caught_too(neighbours: Neighbours, kind: type[Method[Any]], fault: str) -> None:
    """A figure beside the noisy sums, steps by the number of patients, steps that are not charged."""
    each = found(neighbours, kind)["evaluate" if kind is AtTheEnd else "train"]
    assert not each.passed and not getattr(each, fault) and each.others_moved < 1e-5
