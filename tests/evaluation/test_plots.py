"""The pictures show the run's own figures, and only those that it has."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from medfedvqa.evaluation import History, RunFacts, Score, draw_plots, write_results
from medfedvqa.evaluation.run_plots import (
    COLOURS,
    accuracy_figure,
    final_figure,
    prompts_figure,
    reliability_figure,
)

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def results(tmp_path: Path, facts: RunFacts, history: History, scores: dict[str, Score]) -> dict[str, Any]:
    return write_results(tmp_path, facts, history, scores)


def many_sites(history: History, count: int) -> History:
    """The same run with `count` sites."""
    sites = tuple(f"site-{number}" for number in range(1, count + 1))
    weights = ((1 - np.eye(count)) / (count - 1)).tolist()
    rounds = [
        replace(r, accuracy=dict.fromkeys(sites, 0.5), reliability={"prompt.image": weights}) for r in history.rounds
    ]
    uploads, shared = (dict.fromkeys(sites, prompts["chest"]) for prompts in (history.uploads, history.shared))
    return History(sites, rounds, uploads, shared)


def test_a_finished_run_has_all_four(tmp_path: Path, results: dict[str, Any], history: History) -> None:
    """And the same run gives the same bytes again."""
    written = draw_plots(tmp_path, results, history)
    names = ["accuracy.png", "reliability.png", "prompts.png", "final.png"]
    assert written == [tmp_path / "plots" / name for name in names]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(names)
    drawn = [path.read_bytes() for path in written]
    assert all(picture.startswith(PNG) for picture in drawn)
    assert [path.read_bytes() for path in draw_plots(tmp_path, results, history)] == drawn


def test_what_the_run_lacks_is_left_out(tmp_path: Path, results: dict[str, Any], history: History) -> None:
    """One round has no course, a method that shares nothing no prompts and no weights, an unscored run no end."""
    one = History(history.sites, history.rounds[:1])
    assert [path.name for path in draw_plots(tmp_path, results, one)] == ["reliability.png", "final.png"]
    silent = History(history.sites, [replace(history.rounds[0], reliability={}, accuracy={})])
    assert [path.name for path in draw_plots(tmp_path, results, silent)] == ["final.png"]
    unscored = {**results, "average": {"accuracy": None, "interval": None, "baselines": {}}}
    assert draw_plots(tmp_path / "none", unscored, silent) == []
    assert not (tmp_path / "none").exists()


def test_accuracy_is_drawn_in_percent_by_round(history: History) -> None:
    del history.rounds[1].accuracy["head"]
    axes = accuracy_figure(history).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["chest", "abdomen", "head"]
    assert lines["chest"].get_xydata().tolist() == [[1, 25], [2, 50], [3, 75]]
    assert lines["head"].get_xydata().tolist() == [[1, 60], [3, 60]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "validation accuracy (%)")


def test_many_sites_become_grey_lines_and_their_mean(history: History) -> None:
    lines = accuracy_figure(many_sites(history, 9)).axes[0].lines
    assert len(lines) == 10
    assert lines[-1].get_label() == "mean of 9 sites"
    assert lines[-1].get_ydata().tolist() == [50, 50, 50]


def test_a_heat_map_s_rows_receive_and_its_columns_give(history: History) -> None:
    """The text prompt's weights are transposed in this run, so the two maps cannot be mixed up."""
    image, text, _ = reliability_figure(history).axes
    assert (image.get_title(), text.get_title()) == ("image prompt", "text prompt")
    assert (image.get_ylabel(), image.get_xlabel()) == ("receiving site", "giving site")
    cells = {label.get_position(): label.get_text() for label in image.texts}
    assert len(cells) == 6
    assert cells[(2, 0)] == "0.75" and cells[(0, 2)] == "0.10"
    assert {label.get_position(): label.get_text() for label in text.texts}[(0, 2)] == "0.75"
    assert [label.get_text() for label in image.get_yticklabels()] == list(history.sites)


def test_a_large_heat_map_has_no_numbers_and_a_bounded_size(history: History) -> None:
    figure = reliability_figure(many_sites(history, 60))
    assert not figure.axes[0].texts
    assert max(figure.get_size_inches()) < 12


def scattered(figure: Figure) -> list[int]:
    """How many points each drawn cloud of the first panel has; legend entries have none."""
    clouds = (item for item in figure.axes[0].collections if isinstance(item, PathCollection))
    return [len(cloud.get_offsets()) for cloud in clouds if len(cloud.get_offsets())]


def test_prompts_have_one_point_per_block_and_token(history: History) -> None:
    figure = prompts_figure(history)
    assert [axes.get_title() for axes in figure.axes] == [
        "image prompt: 4 blocks of 2 tokens",
        "text prompt: 4 blocks of 2 tokens",
    ]
    assert scattered(figure) == [8] * 6
    assert [text.get_text() for text in figure.legends[0].texts] == ["chest", "abdomen", "head", "local", "shared"]


def test_blocks_are_numbered_only_where_they_keep_together(history: History) -> None:
    """Blocks far apart are numbered; keys and values too where those are far apart; scattered tokens are not."""

    def labels() -> list[str]:
        return [text.get_text() for text in prompts_figure(history).axes[0].texts]

    assert labels() == ["1", "2", "3", "4"]
    everybody = [*history.uploads.values(), *history.shared.values()]
    for tensors in everybody:
        tensors["prompt.image"] = tensors["prompt.image"] + 10 * np.eye(2, 8, k=6)
    assert labels() == ["1K", "1V", "2K", "2V", "3K", "3V", "4K", "4V"]
    generator = np.random.default_rng(0)
    for tensors in everybody:
        tensors["prompt.image"] = generator.normal(size=(4, 2, 8))
    assert labels() == []


def test_prompts_are_drawn_before_the_first_mixing(history: History) -> None:
    history.shared.clear()
    assert scattered(prompts_figure(history)) == [8] * 3


def test_too_few_prompt_tokens_make_no_picture(tmp_path: Path, results: dict[str, Any]) -> None:
    tiny = History(("chest",), uploads={"chest": {"prompt.image": np.zeros((1, 2, 8))}})
    assert [path.name for path in draw_plots(tmp_path, results, tiny)] == ["final.png"]


def test_no_more_sites_than_colours_are_drawn(history: History) -> None:
    figure = prompts_figure(many_sites(history, 9))
    assert len(scattered(figure)) == 2 * len(COLOURS)
    assert "of 7 of 9 sites" in figure.get_suptitle()


def test_final_accuracies_have_their_intervals(results: dict[str, Any]) -> None:
    axes = final_figure(results).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "chest\n(n = 116)",
        "abdomen\n(n = 102)",
        "head\n(n = 54)",
        "average",
    ]
    shown = {bars.get_label(): bars for bars in axes.containers}
    assert list(shown) == ["majority", "question-only prior", "alone", "prompt_pfl"]
    dots, _, (whiskers,) = shown["prompt_pfl"]
    assert dots.get_xdata()[0] == pytest.approx(100 * 71 / 116)
    assert whiskers.get_segments()[0][:, 0] == pytest.approx([52.12, 69.58], abs=5e-3)
    assert axes.get_xlabel() == "accuracy on the test rows of vqa-rad (%), 95 % interval"
    assert axes.get_title() == ""


def test_the_finished_model_and_those_trained_alone_are_drawn_apart(
    tmp_path: Path, facts: RunFacts, history: History, kept: dict[str, Score]
) -> None:
    """Six ways of answering: each has its own colour and height, and none reaches into the next site's place."""
    axes = final_figure(write_results(tmp_path, facts, history, kept)).axes[0]
    shown = {bars.get_label(): bars for bars in axes.containers}
    assert list(shown) == [
        "majority",
        "question-only prior",
        "alone",
        "alone with equal steps",
        "prompt_pfl (released)",
        "prompt_pfl, finished at the site",
    ]
    assert shown["prompt_pfl, finished at the site"][0].get_xdata()[0] == pytest.approx(100 * 76 / 116)
    assert len({bars[0].get_color() for bars in shown.values()}) == 6
    heights = [bars[0].get_ydata()[0] for bars in shown.values()]
    assert heights == sorted(heights) and max(map(abs, heights)) < 0.4


def test_a_way_of_answering_that_no_site_tells_of_is_not_in_the_legend(
    tmp_path: Path, facts: RunFacts, history: History, scores: dict[str, Score]
) -> None:
    alone = {site: replace(score, alone_correct=None) for site, score in scores.items()}
    containers = final_figure(write_results(tmp_path, facts, history, alone)).axes[0].containers
    assert [bars.get_label() for bars in containers] == ["majority", "question-only prior", "prompt_pfl"]


def test_a_backbone_that_has_seen_the_data_is_told_in_the_picture(
    tmp_path: Path, facts: RunFacts, history: History, scores: dict[str, Score]
) -> None:
    results = write_results(tmp_path, replace(facts, data="slake"), history, scores)
    assert final_figure(results).axes[0].get_title() == "the backbone was trained on this data set"


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, medfedvqa.evaluation; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_drawing_leaves_the_user_s_matplotlib_alone(tmp_path: Path, results: dict[str, Any], history: History) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert draw_plots(tmp_path, results, History(history.sites))
    assert dict(matplotlib.rcParams) == before
