"""The server's own models on public rows: retrieval and answers, as CreamFL's paper (Q. Yu et al., 2023) tests them."""

from collections.abc import Sequence
from statistics import fmean

from audits.escaping import for_markdown
from medfedvqa.benchmark.comparison import PERSONAL, Comparison
from medfedvqa.benchmark.outcome import RunOutcome
from medfedvqa.benchmark.statistics import deviation
from medfedvqa.evaluation import FIRST, Proportion, ServerScore

HEAD = (
    "system",
    "seeds",
    *(f"{way} R@{first}" for way in ("image to text", "text to image") for first in FIRST),
    "rsum",
    "VQA",
)
READING = (
    "Models that the server itself holds, tested at the server on public phantom pictures that it did not learn from: "
    "no row of a site takes part. Recall at 1, 5 and 10 in per cent, among the different captions or all pictures; "
    "rsum is the sum of all six. VQA: accuracy on closed public questions, of which words alone answer half, with its "
    "standard deviation over seeds and the Wilson interval of its mean. A dash: the model has no common space of "
    "pictures and texts."
)


def with_server_models(comparison: Comparison) -> dict[str, Sequence[RunOutcome]]:
    """The systems whose server has a tested model in every run, by label."""
    return {
        label: runs
        for label, runs in comparison.rows.items()
        if not label.endswith(PERSONAL) and all(run.server for run in runs)
    }


def server_lines(comparison: Comparison) -> list[list[str]]:
    """The lines under `HEAD`, as means over seeds."""
    systems = with_server_models(comparison).items()
    return [[for_markdown(label), str(len(runs)), *_cells(runs)] for label, runs in systems]


def _cells(runs: Sequence[RunOutcome]) -> list[str]:
    scores = [ServerScore(**run.server) for run in runs]
    recalls = [f"{100 * fmean(each):.1f}" for each in zip(*(score.recalls for score in scores), strict=True)]
    retrieval = [*recalls, f"{fmean(score.rsum for score in scores):.1f}"] if recalls else ["–"] * (2 * len(FIRST) + 1)
    right = [score.correct / score.questions for score in scores]
    rows = scores[0].questions
    low, high = Proportion(round(fmean(score.correct for score in scores)), rows).wilson()
    return [*retrieval, f"{100 * fmean(right):.1f} ± {100 * deviation(right):.1f} [{100 * low:.0f}, {100 * high:.0f}]"]
