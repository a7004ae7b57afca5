"""The server's record of a run, and the sites' scores at its end."""

from dataclasses import dataclass, field
from typing import Any

from audits import Tensors
from medfedvqa.evaluation.server_score import ServerScore
from privacy import Secagg


@dataclass(frozen=True)
class RoundRecord:
    """The server's record of one round."""

    round: int
    """From 1."""
    seconds: float
    """The wall-clock time at the server."""
    site_seconds: dict[str, float]
    """Seconds until each site that was called had answered, summed over the round's tasks."""
    bytes_up: dict[str, int]
    """Tensor bytes that each site sent."""
    bytes_down: dict[str, int]
    """Tensor bytes that each site received."""
    accuracy: dict[str, float]
    """The released validation accuracy in 0..1, by site. It is empty if the method releases none."""
    reliability: dict[str, list[list[float]]]
    """The weights by tensor: rows are receiving sites, columns are sources, in the run's order, diagonal 0.

    It is empty if the method weighs nothing.
    """
    epsilon: dict[str, list[float]] = field(default_factory=dict)
    """The job's epsilon before and after a site's last message, in nats at the job's delta, by site.

    It is empty without differential privacy.
    """
    missing: tuple[str, ...] = ()
    """The sites that did not answer a task of the round, in order of names."""


@dataclass
class History:
    """The growing record of a run: one record per finished round, and each site's last prompts by tensor name."""

    sites: tuple[str, ...]
    rounds: list[RoundRecord] = field(default_factory=list)
    uploads: dict[str, Tensors] = field(default_factory=dict)
    """The last local prompts by site, each [blocks, tokens, width]."""
    shared: dict[str, Tensors] = field(default_factory=dict)
    """The last shared prompts by site, of the same shapes."""
    left_out: dict[str, int] = field(default_factory=dict)
    """The sites excluded for breaking a computation on shares or not answering, with the round of their exclusion."""
    refusals: dict[str, str] = field(default_factory=dict)
    """The message of each site in `left_out` that refused the job, by site."""
    gathering: str = ""
    """A sentence on how uploads were combined; empty for a plain mean or mixture."""
    committee: str = ""
    """A sentence on the committee of sites that computed on shares; empty without a committee."""
    lost: dict[int, str] = field(default_factory=dict)
    """Rounds whose mean could not be opened, each with the reason. The last mean stayed in use."""
    closing_up: dict[str, int] = field(default_factory=dict)
    """Tensor bytes that each site sent after the last round: the evaluation."""
    closing_down: dict[str, int] = field(default_factory=dict)
    """Tensor bytes that each site received after the last round."""
    closing_missing: set[str] = field(default_factory=set)
    """The sites that did not answer after the last round."""
    withheld: set[str] = field(default_factory=set)
    """The sites that withheld their test results, which are about fewer patients than their policy allows."""
    server: ServerScore | None = None
    """The test of the server's own model; None if it has none, or is not tested."""
    statistics: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Counts of patients by site (or for all together), table and category, of a job that counts and does not train."""


KEPT_MODELS = ("finished", "received", "ensemble", "alone", "alone_equal")
"""A site keeps one of these models (`core.kept_model.Keeping.kept`), in order of preference: finished after the last
release, as received in it, the ensemble of the received model and one trained alone, and two trained alone."""


@dataclass(frozen=True)
class Score:
    """The number of a site's test rows, and of the rows that each way of answering gets right."""

    rows: int
    correct: int
    """Rows right by the site's model at its last release."""
    train_rows: int
    majority_correct: int
    """Rows right by the most frequent training answer."""
    prior_correct: int
    """Rows right by the most frequent training answer to the same question."""
    alone_correct: int | None = None
    """Rows right by the same model, trained without the other sites; None if it was not trained."""
    alone_equal_correct: int | None = None
    """Rows right by the same model, trained alone for the passes of federation and finishing together."""
    finished_correct: int | None = None
    """Rows right by the model that the site finished after its last release; None if it did not."""
    ensemble_correct: int | None = None
    """Rows right by the released model and the one trained alone together; None without finishing."""
    first_five: int | None = None
    """Rows whose right answer, or caption, is among the first five; None if the method does not count them."""
    kept_model: int | None = None
    """The place in `KEPT_MODELS` of the model that the site keeps; None without finishing."""

    @property
    def kept(self) -> str | None:
        """The name of the model that the site keeps; None without finishing."""
        return None if self.kept_model is None else KEPT_MODELS[self.kept_model]

    @property
    def kept_correct(self) -> int | None:
        """Rows right by the model that the site keeps; None without finishing."""
        counts = (self.finished_correct, self.correct, self.ensemble_correct)
        every = (*counts, self.alone_correct, self.alone_equal_correct)
        return None if self.kept_model is None else every[self.kept_model]


@dataclass(frozen=True)
class RunFacts:
    """The settings of a run, as plain JSON values without any path."""

    method: str
    options: dict[str, Any]
    data: str | None
    """The data set's name; None if the job left it to each site."""
    split: dict[str, Any]
    backbone: str
    backbone_seen: list[str] | None
    """The data sets that the backbone was trained on; None if unknown."""
    seed: int
    engine: str
    sites: tuple[str, ...]
    rounds_planned: int
    secagg: Secagg = False
    """Whether, and how, uploads were aggregated on shares."""
    expected: tuple[str, ...] = ()
    """The sites that the job names; empty if it names none. Those that are not among `sites` were never there."""
    dp: dict[str, Any] | None = None
    """The settings of differential privacy and the noise that follows from them; None without."""
