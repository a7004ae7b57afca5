"""What `results.json` holds, that it keeps to its published schema, and that it is never half-written."""

import json
import os
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import History, RunFacts, Score, add_scores, results_schema, write_results

Scores = dict[str, Score]
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
ANNOTATIONS = {"$schema", "$defs", "title", "description"}


def is_a(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def faults(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """Where `value` breaks `schema`; knows exactly the keywords of draft 2020-12 that the schema uses."""
    found: list[str] = []
    for keyword, rule in schema.items():
        match keyword:
            case "$ref":
                found += faults(value, results_schema()["$defs"][rule.removeprefix("#/$defs/")], where)
            case "type":
                names = [rule] if isinstance(rule, str) else rule
                found += [] if any(is_a(value, name) for name in names) else [f"{where}: not {rule}"]
            case "const":
                found += [] if value == rule else [f"{where}: not {rule}"]
            case "enum":
                found += [] if value in rule else [f"{where}: none of {rule}"]
            case "required" if isinstance(value, dict):
                found += [f"{where}: lacks {name}" for name in rule if name not in value]
            case "properties" if isinstance(value, dict):
                found += [f for name in rule.keys() & value for f in faults(value[name], rule[name], f"{where}/{name}")]
            case "additionalProperties" if isinstance(value, dict):
                for name in value.keys() - schema.get("properties", {}).keys():
                    found += faults(value[name], rule, f"{where}/{name}") if rule else [f"{where}: extra {name}"]
            case "items" if isinstance(value, list):
                found += [f for index, item in enumerate(value) for f in faults(item, rule, f"{where}/{index}")]
            case "minItems" | "minProperties" if isinstance(value, (list, dict)):
                found += [] if len(value) >= rule else [f"{where}: too short"]
            case "maxItems" if isinstance(value, list):
                found += [] if len(value) <= rule else [f"{where}: too long"]
            case "minimum" if is_a(value, "number"):
                found += [] if value >= rule else [f"{where}: below {rule}"]
            case "maximum" if is_a(value, "number"):
                found += [] if value <= rule else [f"{where}: above {rule}"]
            case "required" | "properties" | "additionalProperties" | "items":
                pass
            case "minItems" | "minProperties" | "maxItems" | "minimum" | "maximum":
                pass
            case _ if keyword not in ANNOTATIONS:
                raise NotImplementedError(keyword)
    return found


def test_the_file_holds_what_is_returned(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    results = write_results(tmp_path / "out", facts, history, scores)
    assert json.loads((tmp_path / "out" / "results.json").read_text("utf-8")) == results
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]


@pytest.mark.parametrize("case", ["finished", "stopped", "failed", "running", "before the first round"])
@pytest.mark.parametrize("known", [True, False])
def test_every_status_conforms_to_the_schema(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores, case: str, known: bool
) -> None:
    """Whether or not backbone, data, local training and test rows are there to tell of."""
    if not known:
        facts = replace(facts, backbone_seen=None, data=None)
        scores["head"] = Score(0, 0, 295, 0, 0, None)
    failure = "site 'head' refused" if case == "failed" else None
    history.rounds = history.rounds[: {"finished": 3, "before the first round": 0}.get(case, 2)]
    results = write_results(tmp_path, facts, history, scores if case in ("finished", "stopped") else None, failure)
    assert faults(results, results_schema()) == []
    assert results["status"] == {"before the first round": "running"}.get(case, case)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema_version"], 2),
        (["dp"], 3.0),
        (["rounds", 0, "epsilon"], {"chest": [1.0]}),
        (["sites", "chest", "epsilon"], -1.0),
        (["status"], "done"),
        (["patients"], ["a"]),
        (["notes"], ["a sentence", 1]),
        (["sites"], {}),
        (["sites"], [{"organ": "chest"}]),
        (["sites", "chest", "accuracy"], 61.2),
        (["sites", "chest", "interval"], [0.5]),
        (["sites", "chest", "n"], 1.5),
        (["sites", "chest", "answers"], ["yes"]),
        (["sites", "chest", "baselines", "alone"], {"accuracy": 0.5}),
        (["sites", "chest", "baselines", "local"], None),
        (["sites", "chest", "finished"], {"accuracy": 0.5}),
        (["sites", "chest", "kept"], "shared"),
        (["average", "finished"], {"accuracy": 0.5, "interval": [0.4, 1.2]}),
        (["average", "kept"], "finished"),
        (["sites", "chest", "bytes", "up"], True),
        (["rounds", 0, "round"], 0),
        (["average", "baselines", "majority", "interval"], [-0.1, 0.5]),
        (["seen_test_data"], "no"),
    ],
)
def test_the_schema_refuses_anything_else(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores, path: list[Any], value: Any
) -> None:
    results = deepcopy(write_results(tmp_path, facts, history, scores))
    *parents, last = path
    place: Any = results
    for step in parents:
        place = place[step]
    place[last] = value
    assert faults(results, results_schema())


def test_a_site_s_entry(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    site = write_results(tmp_path, facts, history, scores)["sites"]["chest"]
    assert site.pop("interval") == pytest.approx([0.5212, 0.6958], abs=5e-5)
    assert site.pop("baselines")["alone"] == {
        "correct": 66,
        "accuracy": 66 / 116,
        "interval": pytest.approx([0.4781, 0.6554], abs=5e-5),
    }
    assert site == {
        "organ": "chest",
        "data": "vqa-rad",
        "backbone": {"name": "medclip2-slake", "seen": ["open", "slake"]},
        "n": 116,
        "train_rows": 395,
        "correct": 71,
        "accuracy": 71 / 116,
        "finished": None,
        "ensemble": None,
        "kept": None,
        "kept_accuracy": None,
        "rounds": 3,
        "epsilon": None,
        "seconds": 1.5,
        "bytes": {"up": 3012, "down": 2000},
    }


def test_the_average_counts_every_site_alike(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    average = write_results(tmp_path, facts, history, scores)["average"]
    assert average["accuracy"] == pytest.approx((71 / 116 + 55 / 102 + 26 / 54) / 3)
    assert average["baselines"]["majority"]["accuracy"] == pytest.approx((58 / 116 + 45 / 102 + 24 / 54) / 3)


def test_a_site_that_trains_on_has_four_models_and_keeps_one(
    tmp_path: Path, facts: RunFacts, history: History, kept: Scores
) -> None:
    """`accuracy` stays that of the released model; the finished one and the two trained alone stand beside it."""
    results = write_results(tmp_path, facts, history, kept)
    assert faults(results, results_schema()) == []
    chest, head = results["sites"]["chest"], results["sites"]["head"]
    assert (chest["kept"], head["kept"]) == ("finished", "alone")
    assert (chest["kept_accuracy"]["correct"], head["kept_accuracy"]["correct"]) == (76, 20)
    assert (chest["ensemble"]["correct"], head["ensemble"]["correct"]) == (70, 24)
    models = (chest, chest["finished"], chest["baselines"]["alone"], chest["baselines"]["alone_equal"])
    assert [model["correct"] for model in models] == [71, 76, 66, 69]
    assert chest["finished"]["accuracy"] == 76 / 116
    assert chest["finished"]["interval"] == pytest.approx([0.5650, 0.7354], abs=5e-5)
    average = results["average"]
    assert average["finished"]["accuracy"] == pytest.approx((76 / 116 + 60 / 102 + 25 / 54) / 3)
    assert average["baselines"]["alone_equal"]["accuracy"] == pytest.approx((69 / 116 + 49 / 102 + 22 / 54) / 3)


def test_notes_say_which_model_each_site_keeps(tmp_path: Path, facts: RunFacts, history: History, kept: Scores) -> None:
    """And where a model that was trained gains nothing over the bare question, the finished one too."""
    expected = [
        "By validation rows, each of these sites keeps the model that it finished itself: chest, abdomen.",
        "By validation rows, each of these sites keeps the model that it trained alone: head.",
        "prompt_pfl does not beat the question-only prior at head (48.1 % against 48.1 %).",
        "prompt_pfl, finished at the site, does not beat the question-only prior at head (46.3 % against 48.1 %).",
        "Training alone does not beat the question-only prior at abdomen (46.1 % against 46.1 %), "
        "head (37.0 % against 48.1 %).",
        "Training alone with equal steps does not beat the question-only prior at head (40.7 % against 48.1 %).",
    ]
    assert write_results(tmp_path, facts, history, kept)["notes"] == expected
    write_results(tmp_path, facts, history, {})
    assert add_scores(tmp_path, kept)["notes"][-len(expected) :] == expected


def test_an_average_over_some_sites_only_is_none(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    scores["head"] = replace(scores["head"], alone_correct=None)
    average = write_results(tmp_path, facts, history, scores)["average"]
    assert average["baselines"]["alone"] is None
    assert average["accuracy"] is not None


def test_rounds_tell_seconds_accuracy_and_bytes(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    results = write_results(tmp_path, facts, history, scores)
    assert results["seconds"] == 6.0
    assert results["rounds"][0] == {
        "round": 1,
        "seconds": 2.0,
        "accuracy": {"chest": 0.25, "abdomen": 0.5, "head": 0.6},
        "bytes": {site: {"up": 1004, "down": 0} for site in facts.sites},
        "epsilon": {},
        "missing": [],
        "reliability": history.rounds[0].reliability,
    }


def test_epsilon_is_told_by_round_and_at_last(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    """Before and after each site's message; a site's own figure is that of its last."""
    facts = replace(facts, dp={"delta": 1e-5})
    spent = [0.0, 0.5, 0.75, 1.0]
    history.rounds = [
        replace(record, epsilon=dict.fromkeys(facts.sites, [before, after]))
        for record, before, after in zip(history.rounds, spent, spent[1:], strict=False)
    ]
    results = write_results(tmp_path, facts, history, scores)
    assert faults(results, results_schema()) == []
    assert results["rounds"][1]["epsilon"]["chest"] == [0.5, 0.75]
    assert results["sites"]["chest"]["epsilon"] == 1.0


def test_scores_that_the_sites_kept_complete_the_results_where_they_are_at_hand(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    """The server's results hold none; put together, they are those of a run that released them, but for a note."""
    kept = write_results(tmp_path, facts, history, {})
    assert (kept["status"], kept["average"]["accuracy"], kept["sites"]["chest"]["n"]) == ("finished", None, None)
    assert any("stay at the sites" in note for note in kept["notes"])
    completed = add_scores(tmp_path, scores)
    released = write_results(tmp_path, facts, history, scores)
    assert faults(completed, results_schema()) == []
    assert completed["sites"] == released["sites"] and completed["average"] == released["average"]
    assert [note for note in completed["notes"] if "put together on this machine" not in note] == released["notes"]
    with pytest.raises(ConfigError):
        add_scores(tmp_path, {"chest": scores["chest"]})


@pytest.mark.parametrize(
    ("data", "seen", "verdict", "sentence"),
    [
        ("vqa-rad", ["open", "slake"], False, None),
        ("slake", ["open", "slake"], True, "was trained on slake, which is tested here"),
        ("slake", None, None, "was trained on is unknown"),
        (None, ["open"], None, "The sites chose their data"),
    ],
)
def test_a_backbone_that_has_seen_the_test_data_is_named(
    tmp_path: Path,
    facts: RunFacts,
    history: History,
    scores: Scores,
    data: str | None,
    seen: list[str] | None,
    verdict: bool | None,
    sentence: str | None,
) -> None:
    results = write_results(tmp_path, replace(facts, data=data, backbone_seen=seen), history, scores)
    assert results["seen_test_data"] is verdict
    about = [note for note in results["notes"] if "backbone" in note]
    assert len(about) == (sentence is not None)
    assert sentence is None or sentence in about[0]


def test_notes_name_the_sites_that_do_not_beat_the_prior(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    assert write_results(tmp_path, facts, history, scores)["notes"] == [
        "prompt_pfl does not beat the question-only prior at head (48.1 % against 48.1 %).",
        "Training alone does not beat the question-only prior at abdomen (46.1 % against 46.1 %), "
        "head (37.0 % against 48.1 %).",
    ]


def test_notes_say_how_a_run_ended_early(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    history.rounds.pop()
    assert write_results(tmp_path, facts, history, scores)["notes"][0] == "The run was stopped after 2 of 3 rounds."
    failed = write_results(tmp_path, facts, history, None, failure="site 'head' refused a tensor")
    assert failed["notes"] == ["The run failed: site 'head' refused a tensor."]


def test_scores_of_some_sites_only_are_refused(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    del scores["head"]
    with pytest.raises(ConfigError, match="exactly the sites"):
        write_results(tmp_path, facts, history, scores)
    assert list(tmp_path.iterdir()) == []


def test_versions_are_those_of_what_ran(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    import numpy
    import torch

    versions = write_results(tmp_path, facts, history, scores)["versions"]
    assert versions["numpy"] == numpy.__version__
    assert versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert all(re.match(r"\d+\.\d+", versions[name]) for name in ("python", "nvflare", "open_clip"))


def test_no_path_of_this_machine_is_told(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    write_results(tmp_path, facts, history, scores)
    text = (tmp_path / "results.json").read_text("utf-8")
    assert str(tmp_path) not in text and os.getcwd() not in text and str(Path.home()) + "/" not in text


def test_figures_that_json_cannot_hold_leave_the_old_file(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    before = write_results(tmp_path, facts, history, scores)
    history.rounds[-1].accuracy["chest"] = float("nan")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_results(tmp_path, facts, history, scores)
    assert json.loads((tmp_path / "results.json").read_text("utf-8")) == before


def test_a_full_disk_leaves_the_old_file_and_no_debris(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_results(tmp_path, facts, history, scores)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_results(tmp_path, facts, history, None, failure="the disk is full")
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    assert json.loads((tmp_path / "results.json").read_text("utf-8")) == before
