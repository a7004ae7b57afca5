"""Counts of the model that a site keeps: declared, sent or kept at the site, scored, and shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_clip import TINY

from audits import Kind, read
from medfedvqa.core import create, method_names, method_type
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.scores import FINISH, FINISHED, RIGHT, SCORED, counts
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.accuracy_table import answering
from medfedvqa.evaluation.history import KEPT_MODELS
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run
from medfedvqa.federation.serve import score_of
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import shape_of

QUICK = {
    "rounds": 1, "local_epochs": 1, "local_unit": "batches", "tuning": "classifier", "weighting": "uniform",
    "own": "head", "answers": "closed", "finish_epochs": 2, "hidden": 16, "learning_rate": 0.01,
}  # fmt: skip
PRIVATE = {"noise": 1.5, "count_noise": 10.0}


@pytest.fixture
def launched(tiny_backbone: Path, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], Path]]:
    """Runs a job of two phantom sites that keep a model; the results and the run's folder."""

    def make(**settings: object) -> tuple[dict[str, Any], Path]:
        job = {"method": "local", "options": QUICK, "data": "phantom", "backbone": TINY, **settings}
        launch = plan(JobSpec.from_dict(job), None, tmp_path / "run", ("chest", "head"), 1, {TINY: tiny_backbone})
        return run(launch, "local", lambda event: None), tmp_path / "run"

    return make


def check(results: dict[str, Any], out: Path) -> None:
    """Figures, rows and notes are those of the models that the sites' states hold."""
    for site in ("chest", "head"):
        entry, saved = results["sites"][site], StateFile(out / "sites" / site / "state", "run").load()
        assert saved is not None
        kept = saved.state[KEPT]
        right = {name: int(rows.sum()) for name, rows in kept[RIGHT].items()}
        assert entry["correct"] == int(saved.state[RIGHT].sum()) and entry["finished"]["correct"] == right["finished"]
        alone = entry["baselines"]
        assert (alone["alone"]["correct"], alone["alone_equal"]["correct"]) == (right["alone"], right["alone_equal"])
        assert entry["kept"] == kept["model"] and entry["kept_accuracy"]["correct"] == right[kept["model"]]
        assert entry["ensemble"]["correct"] == right["ensemble"]
        assert any("of these sites keeps the model" in note and site in note for note in results["notes"])
    rows = ["majority", "question_prior", "alone", "alone_equal", "released", "finished", "kept_accuracy"]
    assert [row.name for row in answering(results)] == rows


def test_counts_of_the_kept_model_reach_results_and_table(launched: Callable[..., Any]) -> None:
    """Without differential privacy they are sent, each by its declared name, and the log has them."""
    results, out = launched()
    check(results, out)
    (last,) = [e for e in read(out / "sites" / "chest" / "audit") if e.task == "evaluate" and e.outcome == "sent"]
    assert {tensor.name for tensor in last.tensors} == {*SCORED, *FINISHED}
    assert "local, finished at the site" in (out / "table.md").read_text()


def test_under_differential_privacy_they_stay_at_the_site_and_are_put_together_afterwards(
    launched: Callable[..., Any],
) -> None:
    """No message has any of them; whoever runs all sites on one machine sees them in the results."""
    results, out = launched(dp=PRIVATE)
    check(results, out)
    sent = {t.name for entry in read(out / "sites" / "chest" / "audit") for t in entry.tensors}
    assert sent.isdisjoint({*SCORED, *FINISHED})
    (kept,) = (out / "sites" / "chest" / "state").glob("*.evaluate.json")
    assert json.loads(kept.read_text())["kept_model"] in range(len(KEPT_MODELS))


def test_a_score_has_what_was_counted_and_nothing_else() -> None:
    """Counts of the kept model are optional; `kept` names it."""
    plain = dict.fromkeys(SCORED, np.array(5, np.int64))
    assert score_of(plain).kept is None and score_of(plain).finished_correct is None
    made = dict(zip(FINISHED, (3, 2, 1, 4, 3), strict=True))
    score = score_of(plain | {name: np.array(count, np.int64) for name, count in made.items()})
    assert (score.finished_correct, score.alone_correct, score.alone_equal_correct, score.kept) == (3, 2, 1, "alone")
    assert score.kept_correct == 2
    with pytest.raises(TypeError):
        score_of(plain | {"local_correct": np.array(1, np.int64)})


def test_every_count_of_the_kept_model_is_declared_as_a_statistic() -> None:
    """Scalars that a site's policy can hold back by their kind, each with a meaning of its own."""
    specs = counts(*FINISHED)
    assert {(spec.shape, spec.dtype, spec.kind) for spec in specs} == {((), "int64", Kind.STATISTIC)}
    assert len({spec.meaning for spec in counts(*SCORED, *FINISHED)}) == len(SCORED) + len(FINISHED)


@pytest.mark.parametrize("name", method_names())
def test_a_method_without_a_kept_model_says_so_and_others_check_the_passes(name: str) -> None:
    """One sentence that names method and option; where there is the option, passes below 0 are refused by its name."""
    if FINISH not in method_type(name).config_type.model_fields:
        with pytest.raises(ConfigError) as refused:
            create(name, {FINISH: 2})
        assert str(refused.value) == f"method '{name}' keeps no model of its own at a site: leave out 'finish_epochs'"
    else:
        assert method_type(name).config_type().model_dump()[FINISH] == 0
        with pytest.raises(ConfigError, match=f"^method '{name}': 'finish_epochs': "):
            create(name, {FINISH: -1})


def test_unicon_is_such_a_method_and_prompts_and_averages_are_not() -> None:
    """The option is where a site has a state of its own to train on from."""
    with_option = {name for name in method_names() if FINISH in method_type(name).config_type.model_fields}
    assert "unicon" not in with_option and {"prompt_pfl", "fedavg", "feddat"} <= with_option


def test_without_finishing_no_method_declares_a_kept_model() -> None:
    """By default nothing of it travels."""
    for name in method_names():
        options = {"aggregate": "none"} if name in ("unicon", "split_learning") else {}
        for task in create(name, options).exchange(shape_of(TINY)).tasks:
            assert {"finished_correct", "alone_equal_correct", "kept_model"}.isdisjoint(s.name for s in task.up)
