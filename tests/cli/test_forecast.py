"""What a plan says of a federation before it exists: what the noise leaves, and from how many patients joining pays."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
RUN = Path(__file__).parents[1] / "golden" / "formats-1" / "results.json"
PLAN = (
    *("privacy", "plan", "fedavg", "-O", "schedule=stepwise", "-O", "tuning=classifier", "-O", "rounds=40"),
    *("-O", "weighting=uniform", "-O", "answers=closed", "--dp", "noise=2", "--dp", "count_noise=5"),
)


def pilot(folder: Path, alone: float | None = 0.6, **facts: Any) -> str:
    """The folder of a run whose two sites are right in 30 % by the most frequent answer, and in 80 % together."""
    record = json.loads(RUN.read_text())
    site = next(iter(record["sites"].values()))
    baselines = site["baselines"] | {"alone": alone and {"accuracy": alone}}
    sites = {}
    for name, majority, together in (("lung", 0.2, 0.75), ("head", 0.4, 0.85)):
        own = baselines | {"majority": baselines["majority"] | {"accuracy": majority}}
        sites[name] = site | {"accuracy": together, "baselines": own}
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(record | {"dp": None, "sites": sites} | facts))
    return str(folder)


def forecast(medfedvqa: Command, *more: str) -> dict[str, Any]:
    """The forecast of the private job for a federation."""
    done = medfedvqa(*PLAN, *more, "--json")
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)["forecast"]
    return figures


def test_more_patients_or_fewer_numbers_leave_more_of_what_sites_gain_together(medfedvqa: Command) -> None:
    """Ten times the patients: a tenth of the noise over signal, and a greater share; fewer numbers likewise."""
    few, many = forecast(medfedvqa, "--federation", "10x100"), forecast(medfedvqa, "--federation", "10x1000")
    assert many["noise_over_signal"] == pytest.approx(few["noise_over_signal"] / 10)
    assert few["kept"][0] < few["kept"][1] < many["kept"][1]
    fewer = forecast(medfedvqa, "--federation", "10x100", "-O", "hidden=16", "-O", "units=16")
    assert fewer["numbers"] < few["numbers"] and fewer["noise_over_signal"] < few["noise_over_signal"]


def test_a_plan_names_the_smaller_head_that_the_number_of_patients_allows(medfedvqa: Command) -> None:
    """Its noise over signal is that of the plan with the options that it names; more patients allow a larger head; a
    job that already trains fewer values is proposed none."""
    many, few = (forecast(medfedvqa, "--federation", size)["smaller_head"] for size in ("10x400", "10x100"))
    assert many["numbers"] > few["numbers"] and many["noise_over_signal"] <= 0.4
    options = [part for name, value in few["options"].items() for part in ("-O", f"{name}={value}")]
    tried = forecast(medfedvqa, "--federation", "10x100", *options)
    assert (tried["numbers"], tried["noise_over_signal"]) == (few["numbers"], pytest.approx(few["noise_over_signal"]))
    tiny = [*options[:-1], "question_components=4"]
    smallest = forecast(medfedvqa, "--federation", "10x100", *tiny)
    assert smallest["smaller_head"] is None
    words = medfedvqa(*PLAN, "--federation", "10x100").stdout
    assert "-O fusion=components" in re.sub(r"\s+", " ", words) and f"{few['numbers']:,} numbers" in words


def test_by_a_pilot_the_plan_says_from_how_many_patients_joining_pays(medfedvqa: Command, tmp_path: Path) -> None:
    """Its accuracies are means over the run's sites; with fewer patients than it names joining is not worth it, with
    more it is; and where sites were as good alone it never is."""
    run = pilot(tmp_path / "pilot")
    figures = forecast(medfedvqa, "--federation", "10x100", "--pilot", run)
    assert (figures["majority"], figures["alone"], figures["together"]) == pytest.approx((0.3, 0.6, 0.8))
    few, many = figures["patients_needed"]
    as_good = pilot(tmp_path / "as-good", alone=0.8)
    for patients, folder, words in (
        (few // 2, run, "Not worth it: the released model beats training alone from"),
        ((few + many) // 2, run, "It may be worth it: "),
        (many * 2, run, " Worth it: "),
        (many * 2, as_good, "Not worth it: in the pilot the sites were as good alone"),
    ):
        done = medfedvqa(*PLAN, "--federation", f"10x{patients}", "--pilot", folder)
        assert words in re.sub(r"\s+", " ", done.stdout)


def test_a_forecast_without_what_it_needs_is_refused(medfedvqa: Command, tmp_path: Path) -> None:
    """A pilot without federation, a size that is none, a pilot that was private or did not train alone."""
    private, no_alone = pilot(tmp_path / "private", dp={}), pilot(tmp_path / "no-alone", alone=None)
    for arguments, words in (
        (("--pilot", no_alone), "--pilot also needs the size of the planned federation, such as --federation 10x100"),
        (("--federation", "ten"), "as 10x100"),
        (("--federation", "0x100"), "as 10x100"),
        (("--federation", "10x100", "--pilot", private), "the pilot was a private run"),
        (("--federation", "10x100", "--pilot", no_alone), "-O finish_epochs=1"),
    ):
        done = medfedvqa(*PLAN, *arguments)
        assert done.returncode == 1 and words in re.sub(r"\s+", " ", done.stderr), done.stderr
