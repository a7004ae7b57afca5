"""The server's record of a run: rounds, the last prompts, the sites' scores, and the test of the server's own model."""

import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from audits import Tensors
from medfedvqa.atomic_files import write_whole
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.accuracy import percent
from privacy import Secagg

FIRST = (1, 5, 10)
"""The numbers of first results that may hold a partner: Recall@1, 5 and 10 (A. Karpathy and L. Fei-Fei, CVPR 2015)."""


@dataclass(frozen=True)
class ServerScore:
    """A server model's retrieval and answers. A model without a common space of pictures and texts has no retrieval."""

    questions: int
    """Public test questions."""
    correct: int
    """The questions that the model answers right."""
    pictures: int = 0
    """Public test pictures; 0 without retrieval."""
    captions: int = 0
    """The distinct captions of these pictures."""
    image_to_text: tuple[int, ...] = ()
    """The pictures whose caption is among the first 1, 5 and 10 of all captions."""
    text_to_image: tuple[int, ...] = ()
    """The captions with one of their pictures among the first 1, 5 and 10 of all pictures."""

    @property
    def recalls(self) -> tuple[float, ...]:
        """Recall@1, 5 and 10 from pictures to texts, then from texts to pictures, in 0..1; empty without retrieval."""
        return (
            *(hits / self.pictures for hits in self.image_to_text),
            *(hits / self.captions for hits in self.text_to_image),
        )

    @property
    def rsum(self) -> float:
        """The sum of the six recalls, in per cent, at most 600; 0 without retrieval."""
        return 100 * sum(self.recalls)

    @property
    def sentence(self) -> str:
        """The figures in words."""
        answers = f"{percent(self.correct / max(1, self.questions))} of {self.questions} questions"
        if not self.recalls:
            return f"The server's own model, on public pictures that it did not learn from: {answers}."
        recalls = [f"{percent(share)}" for share in self.recalls]
        return (
            f"The server's own model, on {self.pictures} public pictures with {self.captions} captions that it did not "
            f"learn from: Recall@1, 5, 10 from image to text {', '.join(recalls[:3])}, from text to image "
            f"{', '.join(recalls[3:])}, rsum {self.rsum:.1f}; {answers}."
        )


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
    """The settings of a run, in plain JSON values. None is a path."""

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


TRANSCRIPT = "transcript.npz"


@dataclass(frozen=True)
class Transcript:
    """The last local and shared prompts, by site and tensor name."""

    uploads: dict[str, Tensors] = field(default_factory=dict)
    shared: dict[str, Tensors] = field(default_factory=dict)


def save_transcript(out: Path, history: History) -> Path:
    """Writes `transcript.npz` in the folder `out`: plain arrays, each named `uploads|shared/site/tensor`."""
    arrays = {
        f"{kind}/{site}/{name}": array
        for kind, by_site in (("uploads", history.uploads), ("shared", history.shared))
        for site, tensors in by_site.items()
        for name, array in tensors.items()
    }
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]  # its only keyword argument has no slash in its name
    return write_whole(out / TRANSCRIPT, content.getvalue())


def load_transcript(out: Path) -> Transcript:
    """Reads the `transcript.npz` of a run's folder. Raises `ConfigError` if it is missing or damaged."""
    transcript = Transcript()
    by_kind = {"uploads": transcript.uploads, "shared": transcript.shared}
    try:
        with (out / TRANSCRIPT).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                kind, site, name = key.split("/", 2)
                by_kind[kind].setdefault(site, {})[name] = arrays[key]
    except FileNotFoundError:
        raise ConfigError(f"the folder holds no {TRANSCRIPT}: give the output folder of a run") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise ConfigError(f"{TRANSCRIPT} is damaged: repeat the run that wrote it") from None
    return transcript
