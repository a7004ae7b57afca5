"""`table.md` says what `results.json` holds, with every interval, and does not flatter."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from medfedvqa.cli.progress import show_results
from medfedvqa.evaluation import History, RunFacts, Score, write_results, write_table
from medfedvqa.evaluation.accuracy_table import accuracy_cell, asked, facts_line, markdown_table

Scores = dict[str, Score]

GOLDEN = """\
|                     |     chest (n = 116) |   abdomen (n = 102) |       head (n = 54) |             average |
| ------------------- | ------------------: | ------------------: | ------------------: | ------------------: |
| majority            | 50.0 % [41.0, 59.0] | 44.1 % [34.9, 53.8] | 44.4 % [32.0, 57.6] | 46.2 % [40.2, 52.4] |
| question-only prior | 50.0 % [41.0, 59.0] | 46.1 % [36.7, 55.7] | 48.1 % [35.4, 61.1] | 48.1 % [42.0, 54.2] |
| alone               | 56.9 % [47.8, 65.5] | 46.1 % [36.7, 55.7] | 37.0 % [25.4, 50.4] | 46.7 % [40.8, 52.9] |
| prompt_pfl          | 61.2 % [52.1, 69.6] | 53.9 % [44.3, 63.3] | 48.1 % [35.4, 61.1] | 54.4 % [48.3, 60.4] |

Accuracy on the test rows with its 95 % interval (sites: Wilson; average: variance recovery), \
which counts rows, not patients: it is too narrow where a patient has several rows.

Data vqa-rad, closed questions, official split (seed 7); backbone medclip2-slake (trained on: open, slake); \
3 of 3 rounds; seed 1; bytes per site and round: 1,004 up, 0 to 1,000 down.

prompt_pfl does not beat the question-only prior at head (48.1 % against 48.1 %).

Training alone does not beat the question-only prior at abdomen (46.1 % against 46.1 %), \
head (37.0 % against 48.1 %).
"""

GOLDEN_KEPT = """\
|                              |     chest (n = 116) |   abdomen (n = 102) |       head (n = 54) |             average |
| ---------------------------- | ------------------: | ------------------: | ------------------: | ------------------: |
| majority                     | 50.0 % [41.0, 59.0] | 44.1 % [34.9, 53.8] | 44.4 % [32.0, 57.6] | 46.2 % [40.2, 52.4] |
| question-only prior          | 50.0 % [41.0, 59.0] | 46.1 % [36.7, 55.7] | 48.1 % [35.4, 61.1] | 48.1 % [42.0, 54.2] |
| alone                        | 56.9 % [47.8, 65.5] | 46.1 % [36.7, 55.7] | 37.0 % [25.4, 50.4] | 46.7 % [40.8, 52.9] |
| alone with equal steps       | 59.5 % [50.4, 68.0] | 48.0 % [38.6, 57.6] | 40.7 % [28.7, 54.0] | 49.4 % [43.5, 55.6] |
| fedavg (released)            | 61.2 % [52.1, 69.6] | 53.9 % [44.3, 63.3] | 48.1 % [35.4, 61.1] | 54.4 % [48.3, 60.4] |
| fedavg, finished at the site | 65.5 % [56.5, 73.5] | 58.8 % [49.1, 67.9] | 46.3 % [33.7, 59.4] | 56.9 % [50.8, 62.8] |
| fedavg, what each site keeps | 65.5 % [56.5, 73.5] | 58.8 % [49.1, 67.9] | 37.0 % [25.4, 50.4] | 53.8 % [47.9, 59.8] |
"""


def test_the_table_of_a_finished_run(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    """Golden: the prior's own figures are those measured on VQA-RAD."""
    path = write_table(tmp_path, write_results(tmp_path, facts, history, scores))
    assert path.name == "table.md"
    assert path.read_text("utf-8") == GOLDEN


def test_no_sentence_where_every_site_beats_the_prior(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    better = {site: replace(score, prior_correct=score.alone_correct - 1) for site, score in scores.items()}
    better["head"] = replace(better["head"], prior_correct=10)
    table = markdown_table(write_results(tmp_path, facts, history, better))
    assert "does not beat" not in table


def test_what_is_not_known_is_a_dash(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    """No training alone at one site, no test rows at another, nothing at all before the evaluation."""
    scores["chest"] = replace(scores["chest"], alone_correct=None)
    scores["head"] = Score(0, 0, 295, 0, 0, 0)
    rows = markdown_table(write_results(tmp_path, facts, history, scores)).splitlines()
    assert [cell.strip() for cell in rows[4].split("|")][2:6] == ["–", "46.1 % [36.7, 55.7]", "–", "–"]
    running = markdown_table(write_results(tmp_path, facts, history, {})).splitlines()
    assert running[0].split("|")[2].strip() == "chest"
    assert [cell.strip() for cell in running[4].split("|")][1:6] == ["prompt_pfl", *["–"] * 4]


def test_a_finished_model_has_rows_beside_the_released_one_and_those_trained_alone(
    tmp_path: Path, facts: RunFacts, history: History, kept: Scores
) -> None:
    """Golden; and the terminal shows the same rows."""
    results = write_results(tmp_path, replace(facts, method="fedavg"), history, kept)
    assert markdown_table(results).startswith(GOLDEN_KEPT)
    for width in (200, 80):
        console = Console(width=width, file=io.StringIO())
        show_results(console, results)
        terminal = console.file.getvalue()
        rows = GOLDEN_KEPT.splitlines()[2:]
        assert len(rows) == 7 and max(map(len, terminal[terminal.index("Closed") :].splitlines())) <= width
        for line in rows:
            label, chest = (cell.strip() for cell in line.split("|")[1:3])
            accuracy, interval = chest.split(" % ")
            short = "–".join(f"{float(bound):.0f}" for bound in interval.strip("[]").split(", "))
            assert label.split()[0].rstrip(",").split("-")[-1] in terminal
            assert (f"{accuracy} {interval}" if width == 200 else short) in terminal and accuracy in terminal
    console = Console(width=80, file=io.StringIO())
    show_results(console, {**results, "method": "prompt_pfl"})
    assert "\u2026" not in console.file.getvalue()  # no heading is cut


def test_a_model_that_no_site_trained_has_no_row(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores
) -> None:
    scores = {site: replace(score, alone_correct=None) for site, score in scores.items()}
    labels = [
        line.split("|")[1].strip()
        for line in markdown_table(write_results(tmp_path, facts, history, scores)).splitlines()[2:5]
    ]
    assert labels == ["majority", "question-only prior", "prompt_pfl"]


def test_the_columns_line_up(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    facts = replace(facts, method="a_method_with_a_long_name")
    table = markdown_table(write_results(tmp_path, facts, history, scores)).split("\n\n")[0]
    assert len({len(line) for line in table.splitlines()}) == 1


@pytest.mark.parametrize(("seen", "said"), [(None, "unknown"), ([], "nothing"), (["open", "slake"], "open, slake")])
def test_the_facts_line_says_what_the_backbone_was_trained_on(
    tmp_path: Path, facts: RunFacts, history: History, scores: Scores, seen: list[str] | None, said: str
) -> None:
    results = write_results(tmp_path, replace(facts, backbone_seen=seen), history, scores)
    assert f"backbone medclip2-slake (trained on: {said});" in facts_line(results)


def test_the_facts_line_of_a_run_without_rounds(tmp_path: Path, facts: RunFacts, history: History) -> None:
    history.rounds.clear()
    line = facts_line(write_results(tmp_path, replace(facts, data=None), history, {}))
    assert line.startswith("Data of each site, closed questions, official split")
    assert line.endswith("0 of 3 rounds; seed 1; bytes per site and round: – up, – down.")


def test_a_cell_shows_accuracy_and_interval_in_percent() -> None:
    assert accuracy_cell({"accuracy": 0.6123, "interval": [0.5, 1.0]}) == "61.2 % [50.0, 100.0]"


def test_a_stopped_run_on_seen_data_says_so(tmp_path: Path, facts: RunFacts, history: History, scores: Scores) -> None:
    history.rounds.pop()
    table = markdown_table(write_results(tmp_path, replace(facts, data="slake"), history, scores))
    assert "2 of 3 rounds" in table
    assert "\n\nThe run was stopped after 2 of 3 rounds.\n\n" in table
    assert "The backbone medclip2-slake was trained on slake, which is tested here" in table


@pytest.mark.parametrize(("kind", "words"), [("open", "open questions"), ("all", "open and closed questions")])
def test_the_facts_say_which_questions_were_asked(kind: str, words: str) -> None:
    """A run of an earlier version, whose results do not say it, asked closed ones."""
    assert asked({"split": {"questions": kind}}) == words
    assert asked({"split": {"kind": "official", "seed": 0}}) == "closed questions"
