"""`results.json`: the results of a run for programs."""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from medfedvqa.atomic_files import write_whole
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.accuracy import Proportion, ServerScore, mean_accuracy, percent
from medfedvqa.evaluation.history import History, RoundRecord, RunFacts, Score, tested_weights
from medfedvqa.version import code_version

SCHEMA_VERSION = 3
BASELINES = ("majority", "question_prior", "alone", "alone_equal")
RESULTS = "results.json"
DISTRIBUTIONS = {
    "torch": "torch",
    "nvflare": "nvflare",
    "open_clip": "open_clip_torch",
    "numpy": "numpy",
}


def write_results(
    out: Path, facts: RunFacts, history: History, scores: Mapping[str, Score] | None, failure: str | None = None
) -> dict[str, Any]:
    """Writes `results.json` in the folder `out`, whole or not at all, and returns its content.

    `scores` covers every site that was there at the end and released its own, is empty if the sites keep their scores,
    and None while the run continues. `failure` is the reason, in a sentence, if the run ended without a result.
    The format is `results_schema()`. Raises `ConfigError` if the scores are of other sites than the run's.
    """
    if scores and set(scores) != set(facts.sites) - _missing_at_end(history) - history.withheld:
        raise ConfigError("the scores must cover exactly the sites that took part at the end and released their scores")
    return _write(out, _document(facts, history, scores, failure))


def add_scores(out: Path, scores: Mapping[str, Score]) -> dict[str, Any]:
    """Completes the `results.json` of a run whose sites kept their scores, once all scores are at hand.

    Raises `ConfigError` if the scores are of other sites than the run's.
    """
    document = json.loads((out / RESULTS).read_text(encoding="utf-8"))
    if set(scores) != set(document["sites"]):
        raise ConfigError("the scores must cover exactly the sites of the run")
    for site, score in scores.items():
        document["sites"][site] |= _scored(score)
    document["average"] = _average(scores)
    document["notes"].remove(_KEPT)
    document["notes"] += [_ADDED, *_judgements(document["method"], scores)]
    return _write(out, document)


def add_contribution(out: Path, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the contributions of the models' parts, from `core.contribution`, to a run's `results.json`."""
    document = json.loads((out / RESULTS).read_text(encoding="utf-8"))
    return _write(out, {**document, "contribution": dict(parts)})


_WITHHELD = (
    "Withheld by {sites}: test results of fewer patients than the policy there lets out in clear (`min_count`, 10 by "
    "default). Averages leave them out."
)
_KEPT = "The test results stay at the sites: they were not released to the server."
_ADDED = "The test results were not released to the server: they are the sites' own, put together on this machine."


def _write(out: Path, document: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(out / RESULTS, f"{text}\n".encode())
    results: dict[str, Any] = json.loads(text)
    return results


def results_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `results.json`, as it ships with the package."""
    schema: dict[str, Any] = json.loads(files(__package__).joinpath("results.schema.json").read_text("utf-8"))
    return schema


def _document(
    facts: RunFacts, history: History, scores: Mapping[str, Score] | None, failure: str | None
) -> dict[str, Any]:
    present = scores or {}
    return {
        "schema_version": SCHEMA_VERSION,
        "status": _status(facts, history, scores, failure),
        "failure": failure,
        "notes": _notes(facts, history, scores, failure),
        "method": facts.method,
        "options": facts.options,
        "data": facts.data,
        "split": facts.split,
        "backbone": _backbone(facts),
        "seen_test_data": _seen_test_data(facts),
        "seed": facts.seed,
        "engine": facts.engine,
        "rounds_planned": facts.rounds_planned,
        "seconds": sum(record.seconds for record in history.rounds),
        "secagg": facts.secagg,
        "dp": facts.dp,
        "expected": list(facts.expected) or list(facts.sites),
        "missing_at_end": sorted(_missing_at_end(history)),
        **({"withheld": sorted(history.withheld)} if history.withheld else {}),
        "average": _average(present),
        "server_model": _server_model(history.server),
        **({"statistics": history.statistics} if history.statistics else {}),
        "sites": {site: _site(site, facts, history, present.get(site)) for site in facts.sites},
        "rounds": [_round(record, facts.sites) for record in history.rounds],
        "versions": _versions(),
    }


def _status(facts: RunFacts, history: History, scores: Mapping[str, Score] | None, failure: str | None) -> str:
    if failure is not None:
        return "failed"
    if scores is None:
        return "running"
    return "finished" if len(history.rounds) >= facts.rounds_planned else "stopped"


def _backbone(facts: RunFacts) -> dict[str, Any]:
    return {"name": facts.backbone, "seen": facts.backbone_seen}


def _seen_test_data(facts: RunFacts) -> bool | None:
    """Whether the backbone was trained on the test data; None if either is unknown."""
    if facts.data is None or facts.backbone_seen is None:
        return None
    return facts.data in facts.backbone_seen


def _answered(score: Score) -> dict[str, Proportion | None]:
    """The accuracy of every way of answering; None for a model that was not trained."""
    correct = {
        "method": score.correct,
        "majority": score.majority_correct,
        "question_prior": score.prior_correct,
        "alone": score.alone_correct,
        "alone_equal": score.alone_equal_correct,
        "finished": score.finished_correct,
        "ensemble": score.ensemble_correct,
        "kept": score.kept_correct,
        "first_five": score.first_five,
    }
    return {name: None if count is None else Proportion(count, score.rows) for name, count in correct.items()}


def _accuracy(answered: Proportion | None) -> dict[str, Any] | None:
    if answered is None:
        return None
    return {"correct": answered.correct, "accuracy": answered.value, "interval": list(answered.wilson())}


def _site(site: str, facts: RunFacts, history: History, score: Score | None) -> dict[str, Any]:
    """One site's entry. Without a score, its figures are null."""
    rounds = [record for record in history.rounds if site in record.site_seconds and site not in record.missing]
    return {
        "organ": site,
        "data": facts.data,
        "backbone": _backbone(facts),
        **_scored(score),
        "rounds": len(rounds),
        "epsilon": next((record.epsilon[site][1] for record in reversed(rounds) if site in record.epsilon), None),
        "seconds": sum(record.site_seconds[site] for record in rounds),
        "bytes": {
            "up": sum(record.bytes_up.get(site, 0) for record in history.rounds) + history.closing_up.get(site, 0),
            "down": sum(record.bytes_down.get(site, 0) for record in history.rounds)
            + history.closing_down.get(site, 0),
        },
    }


def _scored(score: Score | None) -> dict[str, Any]:
    """The part of a site's entry that follows from its score."""
    answered = _answered(score) if score else {}
    released = _accuracy(answered.get("method")) or {"correct": None, "accuracy": None, "interval": None}
    return {
        "n": score.rows if score else None,
        "train_rows": score.train_rows if score else None,
        **released,
        "finished": _accuracy(answered.get("finished")),
        "ensemble": _accuracy(answered.get("ensemble")),
        "kept": score.kept if score else None,
        "kept_accuracy": _accuracy(answered.get("kept")),
        **({"first_five": _accuracy(five)} if (five := answered.get("first_five")) else {}),
        "baselines": {name: _accuracy(answered.get(name)) for name in BASELINES},
    }


def _average(scores: Mapping[str, Score]) -> dict[str, Any]:
    """The means over sites, each with the same weight; null if a site has no figure."""

    def mean(name: str) -> dict[str, Any] | None:
        answered = [_answered(score)[name] for score in scores.values()]
        average = mean_accuracy([proportion for proportion in answered if proportion is not None])
        if average is None or None in answered:
            return None
        return {"accuracy": average[0], "interval": list(average[1])}

    released = mean("method") or {"accuracy": None, "interval": None}
    kept = {"finished": mean("finished"), "ensemble": mean("ensemble"), "kept_accuracy": mean("kept")}
    return {**released, **kept, "baselines": {name: mean(name) for name in BASELINES}}


def _server_model(score: ServerScore | None) -> dict[str, Any] | None:
    """The test of the server's own model on public rows; None without."""
    if score is None:
        return None
    recalls = list(score.recalls)
    return {
        "n": score.questions,
        **(_accuracy(Proportion(score.correct, score.questions)) or {}),
        "pictures": score.pictures,
        "captions": score.captions,
        "image_to_text": {"found": list(score.image_to_text), "recall": recalls[:3]},
        "text_to_image": {"found": list(score.text_to_image), "recall": recalls[3:]},
        "rsum": score.rsum,
    }


def _round(record: RoundRecord, sites: tuple[str, ...]) -> dict[str, Any]:
    traffic = {site: {"up": record.bytes_up.get(site, 0), "down": record.bytes_down.get(site, 0)} for site in sites}
    return {
        "round": record.round,
        "seconds": record.seconds,
        "accuracy": record.accuracy,
        "bytes": traffic,
        "epsilon": record.epsilon,
        "missing": list(record.missing),
        "reliability": record.reliability,
    }


def _notes(facts: RunFacts, history: History, scores: Mapping[str, Score] | None, failure: str | None) -> list[str]:
    """The sentences that a reader of the figures must know."""
    notes = []
    if failure is not None:
        notes.append(f"The run failed: {failure.rstrip('.')}.")
    elif scores is not None and len(history.rounds) < facts.rounds_planned:
        notes.append(f"The run was stopped after {len(history.rounds)} of {facts.rounds_planned} rounds.")
    if history.gathering:
        notes.append(history.gathering)
    if sampled := facts.options.get("sampled"):
        notes.append(
            f"Each round trained {sampled} of the sites, drawn anew by the server, which knows whom it drew: under "
            "differential privacy a site's cost is that of all rounds that it trained in, without amplification."
        )
    if history.committee:
        notes.append(f"{history.committee}.")
    notes += _missing(facts, history)
    for number, reason in history.lost.items():
        notes.append(f"Round {number} gave no mean, and the one before it stayed in use: {reason}.")
    if _seen_test_data(facts):
        notes.append(
            f"The backbone {facts.backbone} was trained on {facts.data}, which is tested here: "
            "the accuracies are not those of unseen data."
        )
    elif facts.backbone_seen is None:
        notes.append(f"What the backbone {facts.backbone} was trained on is unknown: it may have seen the test data.")
    elif facts.data is None:
        notes.append(f"The sites chose their data: whether the backbone {facts.backbone} has seen them is unknown.")
    if (test := tested_weights(history)) is not None:
        notes.append(test.sentence)
    if history.server is not None:
        notes.append(history.server.sentence)
    if history.withheld:
        notes.append(_WITHHELD.format(sites=", ".join(sorted(history.withheld))))
    elif scores == {} and failure is None and not history.statistics:
        notes.append(_KEPT)
    return [*notes, *_judgements(facts.method, scores or {})]


def _missing_at_end(history: History) -> set[str]:
    """The sites of the run that were not there when it ended."""
    return history.closing_missing | history.left_out.keys()


def _missing(facts: RunFacts, history: History) -> list[str]:
    """Sentences on sites that never joined, dropped out or missed rounds, and on the effect on the mean."""
    notes = []
    if never := sorted(set(facts.expected) - set(facts.sites)):
        notes.append(f"Not there when the job began, and so in no round: {', '.join(never)}.")
    for site, number in history.left_out.items():
        reason = history.refusals.get(site)
        did = f"refused the job in round {number} ({reason})" if reason else f"broke off in round {number}"
        notes.append(f"Site {site} {did}: the job went on without it.")
    for site in facts.sites:
        numbers = [str(record.round) for record in history.rounds if site in record.missing]
        if numbers and site not in history.left_out:
            notes.append(
                f"Site {site} missed {len(numbers)} of {len(history.rounds)} rounds ({', '.join(numbers)}): the means "
                "of these rounds are those of the other sites, and have nothing of its rows."
            )
    if late := sorted(history.closing_missing - history.left_out.keys()):
        notes.append(f"Not evaluated, since it did not answer at the end: {', '.join(late)}.")
    if _missing_at_end(history):
        notes.append("Averages over sites are over those that were there at the end.")
    return notes


def _judgements(method: str, scores: Mapping[str, Score]) -> list[str]:
    """Sentences on the model that each site keeps, and on each trained model that does not beat the prior somewhere."""
    models = (
        ("method", method),
        ("finished", f"{method}, finished at the site,"),
        ("alone", "Training alone"),
        ("alone_equal", "Training alone with equal steps"),
    )
    return [
        *_first_five(scores),
        *_kept_models(scores),
        *(note for way, name in models for note in _not_better_than_prior(way, name, scores)),
    ]


def _first_five(scores: Mapping[str, Score]) -> list[str]:
    """One sentence with each site's share of rows whose right answer or caption is among the first five."""
    shares = [
        f"{site} {percent(five.value)}"
        for site, score in scores.items()
        if (five := _answered(score)["first_five"]) is not None and five.value is not None
    ]
    return [f"The right answer, or caption, is among the first five at {', '.join(shares)}."] if shares else []


def _kept_models(scores: Mapping[str, Score]) -> list[str]:
    """One sentence for each kind of model that some site keeps."""
    kinds = {
        "finished": "the model that it finished itself",
        "received": "the model as it was released",
        "ensemble": "the model as it was released together with the one that it trained alone",
        "alone": "the model that it trained alone",
        "alone_equal": "the model that it trained alone with equal steps",
    }
    keepers = {kind: [site for site, score in scores.items() if score.kept == kind] for kind in kinds}
    return [
        f"By validation rows, each of these sites keeps {kinds[kind]}: {', '.join(sites)}."
        for kind, sites in keepers.items()
        if sites
    ]


def _not_better_than_prior(name: str, label: str, scores: Mapping[str, Score]) -> list[str]:
    """One sentence with the sites where this way of answering does not beat the question-only prior."""
    behind = []
    for site, score in scores.items():
        answered, prior = _answered(score)[name], score.prior_correct
        if answered is not None and answered.rows and answered.correct <= prior:
            behind.append(f"{site} ({percent(answered.correct / score.rows)} against {percent(prior / score.rows)})")
    return [f"{label} does not beat the question-only prior at {', '.join(behind)}."] if behind else []


def _versions() -> dict[str, str | None]:
    """The versions of the software; null for a package that is not installed."""

    def installed(distribution: str) -> str | None:
        try:
            return version(distribution)
        except PackageNotFoundError:
            return None

    ours = {"python": platform.python_version(), "medfedvqa": code_version()}
    return ours | {name: installed(dist) for name, dist in DISTRIBUTIONS.items()}
