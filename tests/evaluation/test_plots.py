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
    accuracy_figure,
    final_figure,
    principal_components,
    prompts_figure,
    reliability_figure,
    running_mean,
    together_figure,
    traffic_figure,
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


def test_a_finished_run_has_all_six(tmp_path: Path, results: dict[str, Any], history: History) -> None:
    """And the same run gives the same bytes again."""
    written = draw_plots(tmp_path, results, history)
    names = ["accuracy.png", "reliability.png", "prompts.png", "final.png", "together.png", "traffic.png"]
    assert written == [tmp_path / "plots" / name for name in names]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(names)
    drawn = [path.read_bytes() for path in written]
    assert all(picture.startswith(PNG) for picture in drawn)
    assert [path.read_bytes() for path in draw_plots(tmp_path, results, history)] == drawn


def test_what_the_run_lacks_is_left_out(tmp_path: Path, results: dict[str, Any], history: History) -> None:
    """One round has no course, a method that shares nothing no prompts and no weights, an unscored run no end."""
    one = History(history.sites, history.rounds[:1])
    assert [path.name for path in draw_plots(tmp_path, results, one)] == [
        *("reliability.png", "final.png", "together.png", "traffic.png")
    ]
    silent = History(history.sites, [replace(history.rounds[0], reliability={}, accuracy={})])
    assert [path.name for path in draw_plots(tmp_path, results, silent)] == [
        *("final.png", "together.png", "traffic.png")
    ]
    unscored = {**results, "average": {"accuracy": None, "interval": None, "baselines": {}}}
    assert [path.name for path in draw_plots(tmp_path, unscored, silent)] == ["traffic.png"]
    nothing = History(history.sites, [replace(silent.rounds[0], bytes_up={}, bytes_down={})])
    assert draw_plots(tmp_path / "none", unscored, nothing) == []
    assert not (tmp_path / "none").exists()


def test_accuracy_is_drawn_in_percent_by_round_beside_the_baselines(results: dict[str, Any], history: History) -> None:
    """A line for each site, their mean, a level line for each baseline, and the test accuracy with its interval."""
    del history.rounds[1].accuracy["head"]
    axes = accuracy_figure(results, history).axes[0]
    lines = {str(line.get_label()): line for line in axes.lines}
    assert lines["chest"].get_xydata().tolist() == [[1, 25], [2, 50], [3, 75]]
    assert lines["head"].get_xydata().tolist() == [[1, 60], [3, 60]]
    assert lines["mean of 3 sites"].get_ydata() == pytest.approx([45, 50, 185 / 3])
    baselines = results["average"]["baselines"]
    for name, label in (("majority", "majority"), ("question_prior", "question-only prior"), ("alone", "alone")):
        assert set(lines[f"{label} (test)"].get_ydata()) == {100 * baselines[name]["accuracy"]}
    (tested,) = axes.containers
    dot, _, (whisker,) = tested
    assert dot.get_ydata()[0] == pytest.approx(100 * results["average"]["accuracy"])
    assert whisker.get_segments()[0][:, 1] == pytest.approx([100 * end for end in results["average"]["interval"]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "validation accuracy (%)")


def test_accuracy_without_test_results_has_no_baselines(results: dict[str, Any], history: History) -> None:
    """Sites that keep their test results have only their validation drawn."""
    unscored = {**results, "average": {"accuracy": None, "interval": None}}
    axes = accuracy_figure(unscored, history).axes[0]
    assert len(axes.lines) == 4 and not axes.containers


def test_many_sites_become_grey_lines_and_their_mean(results: dict[str, Any], history: History) -> None:
    """No legend names sites that no colour tells apart."""
    figure = accuracy_figure(results, many_sites(history, 9))
    drawn = {str(line.get_label()): line for line in figure.axes[0].lines}
    assert drawn["mean of 9 sites"].get_ydata().tolist() == [50, 50, 50]
    assert not any("site-" in text.get_text() for text in figure.legends[0].texts)


def test_accuracy_of_a_long_run_is_smoothed_over_a_tenth_of_its_rounds(
    results: dict[str, Any], history: History
) -> None:
    """A site whose validation jumps between 40 and 60 % is drawn near 50 %, and the axis says how."""
    zigzag = [replace(history.rounds[0], round=n, accuracy={"chest": 0.4 + 0.2 * (n % 2)}) for n in range(1, 41)]
    axes = accuracy_figure(results, History(("chest",), zigzag)).axes[0]
    heights = axes.lines[0].get_ydata()
    assert heights[3:] == pytest.approx([50] * 37)
    assert axes.get_xlabel() == "round; running mean over 4 rounds"


def test_a_running_mean_uses_no_later_value() -> None:
    assert running_mean([1, 2, 6, 4], 2) == [1, 1.5, 4, 5]


def test_the_heat_map_s_rows_receive_and_its_columns_give(history: History) -> None:
    """The text prompt's weights are transposed in this run, so the map shows the mean of both."""
    for record in history.rounds:
        record.reliability["prompt.text"] = record.reliability["prompt.image"]
    axes, scale = reliability_figure(history).axes
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("receiving site", "giving site")
    cells = {label.get_position(): label.get_text() for label in axes.texts}
    assert len(cells) == 6
    assert cells[(2, 0)] == "0.75" and cells[(0, 2)] == "0.10"
    assert [label.get_text() for label in axes.get_yticklabels()] == list(history.sites)
    assert axes.images[0].get_clim() == (0.1, 0.9) and "equal shares: 0.50" in scale.get_ylabel()


def test_weights_of_several_prompts_are_drawn_as_their_mean(history: History) -> None:
    """The text prompt's weights are the image prompt's transposed."""
    axes = reliability_figure(history).axes[0]
    assert {label.get_position(): label.get_text() for label in axes.texts}[(2, 0)] == f"{(0.75 + 0.1) / 2:.2f}"


def test_a_large_heat_map_has_no_numbers_and_a_bounded_size(history: History) -> None:
    figure = reliability_figure(many_sites(history, 60))
    assert not figure.axes[0].texts
    assert max(figure.get_size_inches()) < 12


def scattered(figure: Figure) -> list[tuple[float, float]]:
    """The points of the first panel; legend entries have none."""
    clouds = (item for item in figure.axes[0].collections if isinstance(item, PathCollection))
    return [tuple(point) for cloud in clouds for point in cloud.get_offsets()]


def test_prompts_have_one_point_per_site_and_kind_and_sites_are_told_apart(history: History) -> None:
    """Each site has its name and colour, local and shared prompts differ in their filling."""
    figure = prompts_figure(history)
    assert [axes.get_title() for axes in figure.axes] == ["image prompt", "text prompt"]
    assert len(set(scattered(figure))) == 6
    assert [text.get_text() for text in figure.axes[0].texts] == ["chest", "abdomen", "head"]
    assert [text.get_text() for text in figure.legends[0].texts] == ["local prompt", "shared prompt"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 3


def test_sites_whose_prompts_are_alike_lie_together(history: History) -> None:
    """Two equal sites share a point, and a third one lies apart from them along the first component."""
    history.shared.clear()
    history.uploads["abdomen"] = history.uploads["chest"]
    chest, abdomen, head = scattered(prompts_figure(history))
    assert chest == pytest.approx(abdomen) and abs(chest[0] - head[0]) > 1


def test_principal_components_are_those_of_the_covariance() -> None:
    """Positions have the covariance's largest eigenvalues as variances; points that are all alike lie at 0."""
    points = np.random.default_rng(0).normal(size=(30, 5)) * [9.0, 4.0, 1.0, 0.5, 0.1]
    positions, shares = principal_components(points)
    eigenvalues = np.linalg.eigvalsh(np.cov(points.T))[::-1]
    assert np.cov(positions.T) == pytest.approx(np.diag(eigenvalues[:2]), abs=1e-9)
    assert shares == pytest.approx(eigenvalues[:2] / eigenvalues.sum())
    alike, none = principal_components(np.ones((4, 3)))
    assert not alike.any() and not none.any()


def test_prompts_are_drawn_before_the_first_mixing(history: History) -> None:
    history.shared.clear()
    assert len(scattered(prompts_figure(history))) == 3


def test_the_prompts_of_one_site_make_no_picture(tmp_path: Path, results: dict[str, Any]) -> None:
    tiny = History(("chest",), uploads={"chest": {"prompt.image": np.zeros((1, 2, 8))}})
    assert [path.name for path in draw_plots(tmp_path, results, tiny)] == ["final.png", "together.png"]


def test_each_site_is_drawn_alone_and_together_with_the_bytes_that_it_sent(results: dict[str, Any]) -> None:
    """Both accuracies on the height of the site's name, and its bytes as a bar beside them."""
    accuracies, traffic = together_figure(results).axes
    drawn = {dots.get_label(): dots.get_offsets().data for dots in accuracies.collections[1:]}
    for height, site in enumerate(results["sites"].values()):
        assert drawn["alone"][height].tolist() == [100 * site["baselines"]["alone"]["accuracy"], height]
        assert drawn["together"][height].tolist() == [100 * site["accuracy"], height]
    sent = [site["bytes"]["up"] / 1e6 for site in results["sites"].values()]
    assert [bar.get_width() for bar in traffic.patches] == sent


def test_traffic_is_what_all_sites_sent_and_received(history: History) -> None:
    """A bar for each round and direction, in KiB."""
    axes = traffic_figure(history).axes[0]
    bars = [[bar.get_height() for bar in container] for container in axes.containers]
    assert (
        bars
        == [
            [sum(record.bytes_up.values()) / 1024 for record in history.rounds],
            [sum(record.bytes_down.values()) / 1024 for record in history.rounds],
        ]
        and bars[0][0] > 0
    )


def test_many_sites_are_drawn_without_names(history: History) -> None:
    figure = prompts_figure(many_sites(history, 20))
    assert len(scattered(figure)) == 40 and not figure.axes[0].texts


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
    """Seven ways of answering: each has its own colour and height, and none reaches into the next site's place."""
    axes = final_figure(write_results(tmp_path, facts, history, kept)).axes[0]
    shown = {bars.get_label(): bars for bars in axes.containers}
    assert list(shown) == [
        "majority",
        "question-only prior",
        "alone",
        "alone with equal steps",
        "prompt_pfl (released)",
        "prompt_pfl, finished at the site",
        "prompt_pfl, what each site keeps",
    ]
    assert shown["prompt_pfl, finished at the site"][0].get_xdata()[0] == pytest.approx(100 * 76 / 116)
    assert len({bars[0].get_color() for bars in shown.values()}) == 7
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
