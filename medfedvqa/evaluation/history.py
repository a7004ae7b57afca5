"""What the server saw of a run, and what the sites said about it at its end."""

from dataclasses import dataclass, field
from typing import Any

from audits import Tensors


@dataclass(frozen=True)
class RoundRecord:
    """One round, as it looked from the server."""

    round: int
    """From 1."""
    seconds: float
    """Wall clock at the server."""
    site_seconds: dict[str, float]
    """Seconds until each site had answered, summed over the round's tasks."""
    bytes_up: dict[str, int]
    """Tensor bytes that each site sent."""
    bytes_down: dict[str, int]
    """Tensor bytes that each site was sent."""
    accuracy: dict[str, float]
    """Validation accuracy in 0..1 as released, by site. Empty where the method releases none."""
    reliability: dict[str, list[list[float]]]
    """By tensor: rows are receiving sites, columns are sources, in the run's order of sites, diagonal 0.

    Empty where the method weighs nothing.
    """
    epsilon: dict[str, list[float]] = field(default_factory=dict)
    """By site, the job's epsilon before and after the site's last message, in nats at the job's delta.

    Empty without differential privacy.
    """


@dataclass
class History:
    """Grows with the run: a record per finished round, and each site's last prompts by tensor name."""

    sites: tuple[str, ...]
    rounds: list[RoundRecord] = field(default_factory=list)
    uploads: dict[str, Tensors] = field(default_factory=dict)
    """Last local prompts, by site, each [blocks, tokens, width]."""
    shared: dict[str, Tensors] = field(default_factory=dict)
    """Last shared prompts, by site, same shapes."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Sites that broke a computation on shares and took no further part, with the round."""
    gathering: str = ""
    """How uploads were combined, if not by a plain mean or mixture; empty otherwise."""
    committee: str = ""
    """Which sites computed on shares for all of them; empty if all did, or none."""
    lost: dict[int, str] = field(default_factory=dict)
    """Rounds whose mean could not be opened, each with the reason; the mean before stayed in use."""
    closing_up: dict[str, int] = field(default_factory=dict)
    """Tensor bytes that each site sent after the last round: the evaluation."""
    closing_down: dict[str, int] = field(default_factory=dict)
    """Tensor bytes that each site was sent after the last round."""


@dataclass(frozen=True)
class Score:
    """A site's test rows, and how many of them each way of answering gets right."""

    rows: int
    correct: int
    """By the site's model as of its last release."""
    train_rows: int
    majority_correct: int
    """By the most frequent training answer."""
    prior_correct: int
    """By the most frequent training answer to the same question."""
    alone_correct: int | None = None
    """By the same model, trained without the other sites; None if it was not trained."""
    alone_equal_correct: int | None = None
    """By the same model, trained alone for the passes of the federation and of finishing together."""
    finished_correct: int | None = None
    """By the model that the site trained on after its last release; None if it did not."""
    kept_finished: bool | None = None
    """Whether the site keeps the finished model, or else the one trained alone; None if it did not train on."""

    @property
    def kept(self) -> str | None:
        """Which model the site keeps: `finished` or `alone`; None if it did not train on."""
        return None if self.kept_finished is None else "finished" if self.kept_finished else "alone"


@dataclass(frozen=True)
class RunFacts:
    """What was asked for, in plain JSON values. Never a path."""

    method: str
    options: dict[str, Any]
    data: str | None
    """The data set's name; None if the job left it to each site."""
    split: dict[str, Any]
    backbone: str
    backbone_seen: list[str] | None
    """Names of the data sets that the backbone was trained on; None if unknown."""
    seed: int
    engine: str
    sites: tuple[str, ...]
    rounds_planned: int
    secagg: bool = False
    """Whether uploads were aggregated on shares."""
    dp: dict[str, Any] | None = None
    """The settings of differential privacy and the noise that follows from them; None without."""
