"""The empirical audit of a job: run with canaries, attacked, and its ledger's claim held against the result."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from audits.epsilon_lower_bound import (
    EmpiricalError,
    Guesses,
    epsilon_lower_bound,
    guess,
    log_odds,
    p_value,
    rate_interval,
    rate_p_value,
)
from medfedvqa.attack.canaries import Canaries, draw
from medfedvqa.attack.inversion import Inverted, invert
from medfedvqa.attack.membership import membership
from medfedvqa.attack.observed import data_of, observe
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.launch import Launch
from medfedvqa.version import code_version

SCHEMA = "medfedvqa.empirical-audit/1"
FILE = "attack.json"


@dataclass(frozen=True)
class AuditPlan:
    """How an audit is made; decided before anything is trained."""

    canaries: int = 64
    """At each site, in each run."""
    rows: int = 8
    """Of each canary; of more than the job's `patient_rows` no step takes more."""
    share: float = 0.5
    """Of the canaries, how many the attacker says something about."""
    confidence: float = 0.95
    """Of all bounds together."""
    seeds: tuple[int, ...] = (0,)
    """One run each."""

    def __post_init__(self) -> None:
        if not self.seeds or not 0 < self.confidence < 1 or int(self.share * self.canaries / 2) < 1:
            raise EmpiricalError("an audit needs a run, a confidence between 0 and 1, and canaries to guess about")


def audit(
    launch_of: Callable[[int], Launch], plan: AuditPlan, watch: Callable[[TaskAnswer], None] = lambda event: None
) -> dict[str, Any]:
    """Run the job once for each seed, attack it, and return the findings, as `docs/empirical-audit.md` describes them.

    `launch_of`: the job of a seed; jobs differ in seed and folder alone. Raises as `observe` does.
    """
    guesses: dict[tuple[str, str], Guesses] = {}
    inverted, claims, inserted = Inverted(), list[float | None](), 0
    for seed in plan.seeds:
        launch = launch_of(seed)
        canaries = {site: _drawn(launch, site, seed, plan) for site in launch.sites}
        for seen in observe(launch, canaries, watch).values():
            inserted += int(seen.canaries.inserted.sum())
            claims.append(seen.claimed)
            inverted += invert(seen)
            for key, scores in membership(seen).items():
                found = guess(scores.tolist(), seen.canaries.inserted.tolist(), plan.share)
                guesses[key] = guesses.get(key, Guesses(0, 0, 0)) + found
    job = launch.job
    largest = max((claim for claim in claims if claim is not None), default=None)
    claimed = None if job.dp is None else {"epsilon": largest, "delta": job.dp.delta, "unit": job.dp.unit}
    delta = job.dp.delta if job.dp else 0.0
    attacks = list(_findings(guesses, plan, claimed, delta))
    return {
        "schema": SCHEMA,
        "version": code_version(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "job": {
            "method": job.method,
            "options": job.options,
            "data": job.data,
            "backbone": job.backbone,
            "split": job.split.kind,
            "dp": job.dp and asdict(job.dp),
        },
        "sites": list(launch.sites),
        "seeds": list(plan.seeds),
        "claimed": claimed,
        "confidence": plan.confidence,
        "canaries": {
            "unit": "patient",
            "rows_each": plan.rows,
            "per_site_and_run": plan.canaries,
            "total": plan.canaries * len(claims),
            "inserted": inserted,
        },
        "attacks": attacks,
        "inversion": _inversion(inverted, plan.confidence),
        "contradicted": claimed and any(one["contradicts_claim"] for one in attacks),
    }


def write(findings: dict[str, Any], folder: Path) -> Path:
    """Write the findings as JSON into a folder; returns the file."""
    path = folder / FILE
    path.write_text(json.dumps(findings, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _drawn(launch: Launch, site: str, seed: int, plan: AuditPlan) -> Canaries:
    return draw(plan.canaries, plan.rows, len(data_of(launch, site).answers), (seed, site))


def _findings(
    guesses: dict[tuple[str, str], Guesses], plan: AuditPlan, claimed: dict[str, Any] | None, delta: float
) -> Iterator[dict[str, Any]]:
    """Each attack's. A bound is stricter than the plan's confidence, so that all hold together with it (Bonferroni)."""
    each = 1 - (1 - plan.confidence) / len(guesses)
    for (artefact, attack), found in guesses.items():
        bound = epsilon_lower_bound(found, delta, each)
        low, high = rate_interval(found.correct, found.guessed, each)
        yield {
            "artefact": artefact,
            "attack": attack,
            **asdict(found),
            "accuracy": found.correct / found.guessed,
            "accuracy_interval": [low, high],
            "epsilon_lower_bound": bound,
            "epsilon_of_accuracy_interval": [log_odds(low), log_odds(high) if high < 1 else None],
            "most_provable": epsilon_lower_bound(Guesses(found.canaries, found.guessed, found.guessed), delta, each),
            "p_value_of_claim": claimed and p_value(found, claimed["epsilon"], delta),
            "contradicts_claim": claimed and bound > claimed["epsilon"],
        }


def _inversion(found: Inverted, confidence: float) -> dict[str, Any] | None:
    """The share of answers said right, beside what guessing gives.

    Where sites differ in their number of answers, the mean chance stands for all: then the p-value is too large
    (Hoeffding, 1956).
    """
    if not found.patients:
        return None
    chance = found.by_chance / found.patients
    return {
        "artefact": "shared",
        "target": "answers",
        "patients": found.patients,
        "right": found.right,
        "rate": found.right / found.patients,
        "rate_interval": list(rate_interval(found.right, found.patients, confidence)),
        "random_guess": chance,
        "p_value_of_random_guess": rate_p_value(found.right, found.patients, chance),
    }
