"""The model card of an exported folder: what a Hugging Face card and FUTURE-AI ask for, as far as files tell it.

It names no site, job, patient or path. What is not known is said to be unknown.
Source of the six principles: K. Lekadir et al., "FUTURE-AI", BMJ 2025, 388:e081554.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from audits import read
from medfedvqa.answering.answerer import WARNING, Answerer
from medfedvqa.answering.kept_run import KeptRun
from medfedvqa.core.kept_model import KEPT
from medfedvqa.version import code_version


@dataclass(frozen=True)
class Coverage:
    """What an epsilon says of the weights, with regard to the patients of the site that exports them."""

    covered: bool
    sentence: str


@dataclass(frozen=True)
class CardFacts:
    """The facts of a card."""

    method: str
    rounds: int
    sites: int
    data: str
    backbone: str
    backbone_digest: str
    backbone_seen: str
    answers: int
    weights: str
    """SHA-256 of the file of weights, in hex."""
    accuracy: str
    coverage: Coverage
    shared: str

    @classmethod
    def of(cls, kept: KeptRun, answerer: Answerer, weights: str) -> "CardFacts":
        """The facts of a run at a site, from its results, its log and its state."""
        results, seen = kept.results, answerer.site.backbone.seen
        return cls(
            method=kept.job.method,
            rounds=results["rounds_planned"],
            sites=len(results["sites"]),
            data=results["data"] or "each site's own",
            backbone=kept.job.backbone,
            backbone_digest=answerer.site.backbone.digest,
            backbone_seen="unknown" if seen is None else ", ".join(seen) or "none of the project's data sets",
            answers=len(answerer.answering.answers),
            weights=weights,
            accuracy=_accuracy(results, answerer),
            coverage=coverage_of(kept),
            shared=_shared(answerer),
        )


def coverage_of(kept: KeptRun) -> Coverage:
    """What the site's log charged for the job, and whether it covers the weights.

    Every step of a job under differential privacy is charged, also those of parts that stay at the site. A model that
    the site finished itself was trained further without noise.
    """
    events = [entry.dp_event for entry in read(kept.config.audit) if entry.job == kept.job_id and entry.dp_event]
    if kept.results["dp"] is None or not events:
        return Coverage(False, "Trained without differential privacy: no epsilon bounds what these weights tell.")
    if KEPT in kept.state:
        text = (
            "The site trained this model further without noise: no epsilon bounds what these weights tell of patients"
        )
        return Coverage(False, f"{text}, and the epsilon of the job's report is of what the job released.")
    last: Mapping[str, Any] = events[-1]
    if last["void"]:
        return Coverage(False, "The noise of this job could be repeated, as in tests: its epsilon protects nobody.")
    epsilon, delta = last["job_epsilon"][1], last["delta"]
    text = f"Trained under differential privacy by patient: epsilon {epsilon:.3g} (nats) at delta {delta:g} in this job"
    others = "Other jobs on the same patients add to it; patients of other sites have their own site's epsilon."
    return Coverage(True, f"{text}, for the patients of the site that wrote this folder. {others}")


def _accuracy(results: Mapping[str, Any], answerer: Answerer) -> str:
    """The site's test, where the job already released it."""
    tested = answerer.tested
    if results["dp"] is not None or results["secagg"]:
        return "withheld: in this job test results stay at the sites"
    if not tested.rows:
        return "none: the site had no test rows"
    low, high = tested.wilson()
    share = f"{tested.correct / tested.rows:.1%} (95 % interval {low:.1%} to {high:.1%}, rows counted as independent)"
    return f"{share}: {tested.correct} of {tested.rows} test rows of one site are right"


def _shared(answerer: Answerer) -> str:
    """What in the weights comes from other sites."""
    if getattr(answerer.answering.model, "shared", None):
        return "The weights `shared.*` are a mixture of other sites' prompts, as this site received it."
    return "What other sites sent is in the weights only through what the job's server made of it."


def model_card(facts: CardFacts) -> str:
    """The card as Markdown with the fields of a Hugging Face card above it."""
    template = files("medfedvqa.answering").joinpath("model_card.md").read_text("utf-8")
    return template.format(facts=facts, warning=WARNING, version=code_version())
