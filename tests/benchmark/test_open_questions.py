"""Open questions in the benchmark: each row's kind is kept, and accuracies are reported by kind and together."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.cli import main
from medfedvqa.data import read as read_rows
from medfedvqa.data import training_answers
from medfedvqa.errors import ConfigError
from medfedvqa.public_answers import ANSWER_TYPES, answer_type
from medfedvqa.research.benchmark.benchmark_table import beside_literature, markdown
from medfedvqa.research.benchmark.grid import Grid, _free
from medfedvqa.research.benchmark.printed import LITERATURE
from medfedvqa.research.benchmark.results_file import (
    RESULTS,
    Result,
    RunOutcome,
    append,
    of_kind,
    of_type,
    parts_of,
    read,
)
from medfedvqa.research.benchmark.statistics import average, compared
from medfedvqa.research.benchmark.systems import SYSTEMS, systems_named

GOLDEN = Path(__file__).parents[1] / "golden" / "formats-1" / "benchmark.jsonl"


def outcome(right: dict[str, str], closed: dict[str, str], types: dict[str, str] | None = None) -> RunOutcome:
    """One row a patient; rows are bits."""

    def flags(bits: dict[str, str]) -> dict[str, list[bool]]:
        return {site: [bit == "1" for bit in each] for site, each in bits.items()}

    patients = {site: list(range(len(each))) for site, each in right.items()}
    return RunOutcome(flags(right), {}, patients, 0.0, 0.0, 0.0, 1, closed=flags(closed), types=types or {})


def result(
    system: str,
    right: dict[str, str],
    closed: dict[str, str],
    questions: str = "all",
    types: dict[str, str] | None = None,
) -> Result:
    record: dict[str, Any] = json.loads(GOLDEN.read_text().splitlines()[0])
    changes = {"system": system, "split": {"kind": "official", "questions": questions}}
    return Result.model_validate(json.loads(json.dumps(record | changes | parts_of(outcome(right, closed, types)))))


MIXED = {"lung": "1100", "brain": "10"}


def test_each_kind_has_its_own_rows_and_sites_without_them_are_left_out() -> None:
    """By hand: lung has 2 of 2 closed rows right and 1 of 2 open ones; brain 1 of 1 and 0 of 1; other no open row."""
    made = outcome({"lung": "1101", "brain": "10", "other": "0001"}, MIXED)
    (closed,), (opened,) = of_kind([made], True), of_kind([made], False)
    assert closed.right == {"lung": [True, True], "brain": [True], "other": [False, False, False, True]}
    assert opened.right == {"lung": [False, True], "brain": [False]} and opened.patients["lung"] == [0, 1]
    assert average([closed]).mean == pytest.approx((1 + 1 + 0.25) / 3) and average([opened]).mean == 0.25
    assert of_kind([closed], False) == [] and of_kind([opened], True) == []


def test_a_table_has_three_averages_where_both_kinds_are_tested(tmp_path: Path) -> None:
    """The lines alone make it: closed, open and together, and the text says what p and gains count."""
    path, right = tmp_path / RESULTS, {"lung": "1101", "brain": "10"}
    append(path, [result("a", right, MIXED), result("b", {"lung": "1111", "brain": "11"}, MIXED)])
    results, remarks = read([path])
    comparison = compared(results)
    assert not remarks and comparison.questions == "all"
    means = {heading: each.mean for heading, each in comparison.averages("a").items()}
    assert means == {"closed": 1, "open": 0.25, "together": 0.625}
    text = markdown(comparison)
    assert "| closed | open | together | p against b |" in text and "Accuracy on closed and open questions" in text
    assert "gains are of both kinds together" in text and "| 25.0 ± 0.0 [" in text


def test_yes_and_no_numbers_and_other_answers_have_averages_of_their_own(tmp_path: Path) -> None:
    """By hand from letters alone: lung's numbers are 1 of 2 right, brain has none. Lines without letters show none."""
    path, right, types = tmp_path / RESULTS, {"lung": "1101", "brain": "10"}, {"lung": "ynno", "brain": "yo"}
    append(path, [result("a", right, MIXED, types=types), result("b", right, MIXED, types=types)])
    results, remarks = read([path])
    comparison = compared(results)
    means = {heading: each.mean for heading, each in comparison.averages("a").items()}
    assert not remarks and means == {
        "closed": 1, "open": 0.25, "yes/no": 1, "number": 0.5, "other": 0.5, "together": 0.625,
    }  # fmt: skip
    assert "| open | yes/no | number | other | together |" in markdown(comparison)
    assert "types of answers, as in VQA v2" in markdown(comparison)
    mixed = compared([*results, result("c", right, MIXED)])
    assert mixed.types == () and "| closed | open | together |" in markdown(mixed)
    (numbers,) = of_type([results[0].outcome], "n")
    assert numbers.right == {"lung": [True, False]} and numbers.patients == {"lung": [0, 1]}
    assert numbers.closed == {"lung": [True, False]} and numbers.types == {"lung": "nn"}


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        *(("Yes", "yes/no"), ("no ", "yes/no"), ("2", "number"), ("Two", "number"), ("2.5", "number")),
        *(("two lungs", "other"), ("none", "other"), ("5 cm", "other"), ("left", "other"), ("yes, two", "other")),
    ],
)
def test_the_type_of_an_answer_follows_from_its_text(answer: str, name: str) -> None:
    """A number stands alone; an answer with anything else in it is of the type other."""
    assert answer_type(answer) == ANSWER_TYPES[name]


@pytest.mark.parametrize("questions", ["closed", "all"])
def test_types_are_kept_where_all_questions_are_tested(tmp_path: Path, questions: Any) -> None:
    """Of every test row, also one whose answer no training row has; otherwise lines are those of earlier versions."""
    grid = Grid("phantom", None, tmp_path, systems_named(["FedAvg full"]), 1, {}, ("head",), questions=questions)
    free = _free(grid, "majority", 0)
    rows = read_rows("phantom", None, "head").rows
    letters = "".join(answer_type(row.answer) for row in rows if row.split == "test")
    assert set(letters) == {"y", "n"}
    assert free.sites["head"].types == (letters if questions == "all" else "")
    assert ("types" in free.model_dump_json()) is (questions == "all")


@pytest.mark.parametrize("questions", ["closed", "open"])
def test_a_table_of_one_kind_has_one_average(questions: str) -> None:
    """And says which kind it is."""
    closed = {} if questions == "closed" else {"lung": "0000"}
    comparison = compared([result("a", {"lung": "1101"}, closed, questions)])
    assert comparison.questions == questions and list(comparison.averages("a")) == ["average"]
    assert f"Accuracy on {questions} questions" in markdown(comparison)
    assert ("prompt paper" in markdown(comparison)) is (questions == "closed")


def test_lines_of_closed_questions_are_those_that_earlier_versions_wrote() -> None:
    """No member is added, so that a resumed benchmark finds its lines; other lines have a bit for each row."""
    for line in GOLDEN.read_text().splitlines():
        assert Result.model_validate_json(line).model_dump_json() == line
    mixed = result("a", {"lung": "1101", "brain": "10"}, MIXED)
    assert json.loads(mixed.model_dump_json())["sites"]["lung"]["closed"] == "1100"
    assert Result.model_validate_json(mixed.model_dump_json()).outcome == mixed.outcome
    with pytest.raises(ValueError, match="one bit"):
        Result.model_validate(
            mixed.model_dump() | {"sites": {"lung": {"right": "11", "patients": [0, 1], "closed": "1"}}}
        )


def test_kinds_are_not_mixed(tmp_path: Path) -> None:
    """Runs of closed questions do not stand beside those of all; nor do lines that give a row another kind."""
    path = tmp_path / RESULTS
    append(path, [result("a", {"lung": "1101"}, {"lung": "1100"}), result("b", {"lung": "1101"}, {}, "closed")])
    results, remarks = read([path])
    assert [each.system for each in results] == ["a"] and "line 2: left out: other split" in remarks[0]
    with pytest.raises(ConfigError, match="test different rows"):
        compared([*results, result("b", {"lung": "1101"}, {"lung": "1000"})])


def test_open_questions_lengthen_the_list_that_a_job_names_and_no_other(tmp_path: Path) -> None:
    """A shared head and ridge get the training answers; a head at its site keeps the site's own; -O answers wins."""
    systems = systems_named(["FedAvg full", "ridge", "local (DT)", "FedDAT", "bag of words", "UniCon", "FedP3"])
    grid = Grid("slake", None, tmp_path, systems, 1, {}, ("lung",), questions="all")
    named = {system.label: grid.job(system, 0).build().public_answers for system in systems}
    assert {label for label, answers in named.items() if answers == training_answers()} == {
        *("FedAvg full", "ridge", "local (DT)", "FedP3")
    }
    assert {answers for label, answers in named.items() if label in ("FedDAT", "bag of words", "UniCon")} == {None}
    own = Grid("slake", None, tmp_path, systems, 1, {"answers": ("a", "b")}, ("lung",), questions="all")
    assert own.job(systems[0], 0).build().public_answers == ("a", "b")
    assert "answers" not in Grid("slake", None, tmp_path, systems, 1, {}, ("lung",)).job(systems[0], 0).options


@pytest.mark.slow
def test_the_command_trains_on_open_questions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_folder: Path, tmp_path: Path
) -> None:
    """VQA-RAD, one round of a bag of words and of a federation without the picture: three averages of each."""
    arguments = ["--questions", "all", "--data", "vqa-rad", "--data-root", str(data_folder / "vqa-rad"), "--seeds", "1"]
    methods = "bag of words,FedAvg classifier without the picture"
    budget = ["--rounds", "1", "--local-epochs", "1", "-O", "local_unit=batches"]
    monkeypatch.setattr(
        sys,
        "argv",
        ["medfedvqa", "benchmark", "--methods", methods, *arguments, *budget, "--out", str(tmp_path), "--json"],
    )
    with pytest.raises(SystemExit) as ended:
        main()
    record = json.loads(capsys.readouterr().out)
    assert not ended.value.code and record.keys() == {"majority", "question-only prior", *methods.split(","),
                                                      "FedAvg classifier without the picture (personal)"}  # fmt: skip
    results, _ = read([tmp_path / RESULTS])
    rows = {site: len(each.right) for site, each in results[0].sites.items()}
    assert rows == {"chest": 174, "abdomen": 158, "head": 119}
    assert sum(each.closed.count("1") for each in results[0].sites.values()) == 272
    for row in record.values():
        kinds = row["closed"]["average"], row["open"]["average"]
        assert min(kinds) <= row["average"] <= max(kinds)
    averages = "| closed | open | yes/no | number | other | together |"
    assert averages in (tmp_path / "benchmark.md").read_text()


@pytest.mark.parametrize("data", LITERATURE)
def test_the_literature_s_figures_stand_beside_shares_of_all_test_rows(data: str) -> None:
    """By hand: of 4 closed rows 3 are right, of 2 open ones 1, of all 6 rows 4: not the mean over sites. What was not
    tested has a dash, and each figure has its source on the page of comparisons."""
    right, closed = {"lung": "11101", "brain": "0"}, {"lung": "11100"}
    labels = {system.label for system in SYSTEMS}
    page = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text()
    for model in LITERATURE[data]:
        assert model.label in {*labels, ""} and model.source and model.differs
        figures = [f"{each:.1f}" if each else "–" for each in (model.closed, model.open, model.together)]
        assert f"| {data} | {model.name} | {' | '.join(figures)} | {model.source} |" in page
    mixed = compared([result("MEVF-style", right, closed), result("best", {"lung": "11111", "brain": "1"}, closed)])
    last = "| here: best | – | 100.0 | – | 100.0 | – | 100.0 | this table | – |"
    assert beside_literature(LITERATURE[data], mixed).splitlines()[5] == last
    assert f"| MEVF with BAN | {LITERATURE[data][0].closed} | 75.0 |" in beside_literature(LITERATURE[data], mixed)
    assert "| 50.0 | " in beside_literature(LITERATURE[data], mixed).splitlines()[2]
    assert "| 66.7 | " in beside_literature(LITERATURE[data], mixed).splitlines()[2]
    alone = compared([result("MEVF-style", right, {}, "closed")])
    text = beside_literature(LITERATURE[data], alone).splitlines()[2]
    assert "| 66.7 |" in text and text.count("| – |") >= 2


@pytest.mark.parametrize("command", ["benchmark", "tune", "study"])
def test_every_command_that_plans_runs_takes_the_kind(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A list that its job refuses for open questions stops each of them before anything runs."""
    given = ["--questions", "open", "-O", "answers=closed", "--data", "phantom", "--methods", "FedAvg classifier"]
    monkeypatch.setattr(sys, "argv", ["medfedvqa", command, *given, "--rounds", "1", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code and "holds few answers to open questions" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
