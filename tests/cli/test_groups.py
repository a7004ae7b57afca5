"""`medfedvqa groups`: who pays for privacy, by groups of at least 20 patients of a store of phantom pictures."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from stores import KEY, phantom_store
from tiny_clip import TINY

from medfedvqa.answering.kept_run import SMALL, STAYS, load_kept
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.scores import RIGHT
from medfedvqa.evaluation.patient_intervals import LEAST, UNKNOWN, groups_of
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.training import CLIPPED
from privacy.report import read_report

Command = Callable[..., Any]
DP = {"noise": 0.3, "count_noise": 10.0, "sample_rate": 0.5, "expected_patients": 20.0, "clip": 8.0}
CHEST, HEAD = [f"chest-{number:02d}" for number in range(80)], [f"head-{number:02d}" for number in range(30)]


SEX = {patient: "FM"[number // 2 % 2] for number, patient in enumerate(CHEST)}
AGE = {patient: f"{35 if number < 40 else 11 + number:03d}Y" for number, patient in enumerate(CHEST)}
"""Every second patient has test rows: 20 are female and 20 male, 20 are 35 years old and 20 from 52 to 90."""


def finished(out: Path, store: Path, weights: Path, dp: dict[str, float] | None) -> Path:
    """A run of two sites of a store, each of which finishes the model by itself."""
    options = {"rounds": 2, "local_epochs": 8, "local_unit": "batches", "batch_rows": 32, "hidden": 16}
    options |= {
        "finish_epochs": 4,
        "answers": "closed",
        "tuning": "classifier",
        "own": "nothing",
        "weighting": "uniform",
    }
    job = JobSpec.from_dict({"method": "fedavg", "options": options, "data": "store", "backbone": TINY, "dp": dp})
    run(plan(job, store, out, ("chest", "head"), 1, {TINY: weights}), "local", lambda event: None)
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> tuple[Path, Path]:
    """A run under differential privacy, and the same without."""
    place = tmp_path_factory.mktemp("groups")
    store = phantom_store(place / "store", SEX | dict.fromkeys(HEAD, ""), AGE)
    return finished(place / "dp", store, tiny_backbone, DP), finished(place / "plain", store, tiny_backbone, None)


def figures(medfedvqa: Command, *words: str) -> dict[str, Any]:
    done = medfedvqa("groups", *words, "--json")
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def share_of(run: Path, patients: set[str], kept_model: bool) -> float:
    """The share of the test rows of these patients that a model of the run answers right, counted row by row."""
    kept = load_kept(run, "chest")
    data, state, keys = kept.own_data(), kept.state, {Pseudonyms(KEY).patient(patient) for patient in patients}
    right = state[KEPT][RIGHT][state[KEPT]["model"]] if kept_model else state[RIGHT]
    owners = [data.patients[number] for number in data.test.patients.tolist()]
    answered = [float(one) for one, owner in zip(right.tolist(), owners, strict=True) if owner in keys]
    return sum(answered) / len(answered)


def test_groups_of_twenty_are_compared_with_and_without_privacy(medfedvqa: Command, runs: tuple[Path, Path]) -> None:
    """Each figure is that of the group's test rows, counted here anew; costs are differences."""
    document = figures(medfedvqa, str(runs[0]), "--site", "chest", "--baseline", str(runs[1]))
    members = {
        ("organ", "chest"): set(CHEST),
        ("sex", "female"): {patient for patient, sex in SEX.items() if sex == "F"},
        ("sex", "male"): {patient for patient, sex in SEX.items() if sex == "M"},
        ("age", "below 50"): {patient for patient, age in AGE.items() if age < "050Y"},
        ("age", "50 and above"): {patient for patient, age in AGE.items() if age >= "050Y"},
    }
    named = [((each["by"], each["group"]), each["model"]) for each in document["groups"]]
    assert named == [(group, model) for group in members for model in ("released", "kept")]
    for each in document["groups"]:
        patients, kept_model = members[each["by"], each["group"]], each["model"] == "kept"
        shares = [share_of(run, patients, kept_model) for run in runs]
        assert [each["private"]["accuracy"], each["without"]["accuracy"]] == pytest.approx(shares)
        assert each["patients"] == len(patients) / 2 and each["cost"]["mean"] == pytest.approx(shares[1] - shares[0])
        low, high = each["private"]["interval"]
        assert low <= each["private"]["accuracy"] <= high and low < high
    assert document["private"] and document["notes"] == [SMALL, STAYS]


def test_the_share_of_clipped_gradients_is_that_of_the_steps_in_training(
    medfedvqa: Command, runs: tuple[Path, Path]
) -> None:
    """Counted over the groups of patients in training; a job without privacy clips nobody."""
    document = figures(medfedvqa, str(runs[0]), "--site", "chest")
    state = load_kept(runs[0], "chest").state
    chest, *groups = document["clipped"]
    assert (chest["gradients"], round(chest["clipped"] * chest["gradients"])) == (*state[CLIPPED].sum(0).tolist(),)
    assert chest["patients"] == 40 and 320 * 0.7 < chest["gradients"] < 320 * 1.3 and 0 < chest["clipped"] < 1
    assert [each["group"] for each in groups[:2]] == ["female", "male"]
    assert sum(each["gradients"] for each in groups[:2]) == chest["gradients"]
    assert figures(medfedvqa, str(runs[1]), "--site", "chest")["clipped"] == []


def test_a_group_of_nineteen_is_joined_or_its_kind_left_out(
    medfedvqa: Command, tmp_path: Path, tiny_backbone: Path
) -> None:
    """Without one man of the test rows there is no group by sex, and none by age with 19 above 50."""
    without = {patient: sex for patient, sex in SEX.items() if patient != CHEST[79]} | dict.fromkeys(HEAD, "")
    run_of_less = finished(tmp_path / "run", phantom_store(tmp_path / "store", without, AGE), tiny_backbone, DP)
    document = figures(medfedvqa, str(run_of_less), "--site", "chest")
    assert [each["by"] for each in document["groups"]] == ["organ", "organ"]
    assert document["groups"][0]["patients"] == 39 and document["groups"][0]["cost"] is None
    assert [each["by"] for each in document["clipped"]] == ["organ", "sex", "sex", "age", "age"]
    head = figures(medfedvqa, str(run_of_less), "--site", "head")
    assert head["groups"] == [] and head["clipped"] == []


def test_what_cannot_be_compared_is_refused(medfedvqa: Command, runs: tuple[Path, Path], tmp_path: Path) -> None:
    """Two runs of which both or none are private, a site whose rows have changed since, and a run that is none."""
    private, plain = map(str, runs)
    for run_folder, baseline in ((plain, private), (private, private), (plain, plain)):
        done = medfedvqa("groups", run_folder, "--site", "chest", "--baseline", baseline)
        assert done.returncode == 1 and "of the same job without it" in done.stderr
    shutil.copytree(runs[0], tmp_path / "run")
    store = phantom_store(tmp_path / "store", {patient: SEX[patient] for patient in CHEST[:-1]}, AGE)
    site = tmp_path / "run" / "sites" / "chest" / "site.yml"
    settings = yaml.safe_load(site.read_text("utf-8"))
    settings["data"]["root"], settings["state"] = str(store), str(site.parent / "state")
    site.write_text(yaml.safe_dump(settings), "utf-8")
    done = medfedvqa("groups", str(tmp_path / "run"), "--site", str(site))
    assert done.returncode == 1 and "the site's rows have changed since this job" in done.stderr


@pytest.fixture
def report(medfedvqa: Command, runs: tuple[Path, Path], tmp_path: Path) -> Callable[..., Any]:
    """`medfedvqa privacy report` of a site with this file of `medfedvqa groups`."""

    def made(site: str, document: dict[str, Any], *options: str) -> Any:
        (tmp_path / "groups.json").write_text(json.dumps(document))
        words = ("privacy", "report", "--site", str(runs[0] / "sites" / site / "site.yml"), "--run", str(runs[0]))
        return medfedvqa(*words, "--groups", str(tmp_path / "groups.json"), "--out", str(tmp_path / "report"), *options)

    return made


def test_a_report_shares_accuracies_by_group_and_nothing_else(
    medfedvqa: Command, runs: tuple[Path, Path], report: Callable[..., Any], tmp_path: Path
) -> None:
    """With two digits, in a table that a reader of the report can verify; no count, and nobody's clipped gradients."""
    document = figures(medfedvqa, str(runs[0]), "--site", "chest", "--baseline", str(runs[1]))
    assert report("chest", document, "--baseline", str(runs[1] / "results.json")).returncode == 0
    content = (tmp_path / "report" / "report.json").read_bytes()
    rows = read_report(content).sections.empirical.groups
    for row, each in zip(rows, document["groups"], strict=True):
        assert (row.by, row.group, row.model) == (each["by"], each["group"], each["model"])
        shares = row.private, row.without, row.low, row.high
        exact = each["private"]["accuracy"], each["without"]["accuracy"], *each["cost"]["interval"]
        assert shares == tuple(round(value, 2) for value in exact) and row.cost == round(row.without - row.private, 2)
    shared = json.loads(content)["evidence"]["measured"]["groups"]
    assert {*shared[0]} == {"by", "group", "model", "private", "without", "low", "high"}
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert "Accuracy by group of at least 20 patients" in page and "sex: female" in page
    assert "clipped stays at the site" in page and f"{document['clipped'][0]['clipped']:.3f}" not in content.decode()
    [bias] = [line for line in read_report(content).sections.mappings if line.reference == "bias"]
    assert bias.support == "partly supports"
    checked = medfedvqa("privacy", "verify-report", str(tmp_path / "report"), "--json")
    assert {part["state"] for part in json.loads(checked.stdout)["parts"] if part["name"] != "key"} == {"shown"}


WRONG = {
    "another site": (lambda figures: figures | {"site": "head"}, "of another site or job"),
    "another job": (lambda figures: figures | {"job": "other"}, "of another site or job"),
    "no baseline": (lambda figures: figures | {"baseline": None}, "no accuracies without privacy"),
    "nineteen": (
        lambda figures: figures | {"groups": [figures["groups"][0] | {"patients": 19}]},
        "fewer than 20 patients",
    ),
    "a newer file": (lambda figures: figures | {"schema": "medfedvqa.groups/2"}, "written by a newer version"),
    "another file": (lambda figures: {"schema": "medfedvqa.groups/1"}, "is not the file that the option asks for"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_report_refuses_groups_that_are_not_the_job_s(
    medfedvqa: Command, runs: tuple[Path, Path], report: Callable[..., Any], tmp_path: Path, case: str
) -> None:
    """Of another site or job, of too few patients, or of another format; and without the site's own accuracies."""
    change, sentence = WRONG[case]
    document = figures(medfedvqa, str(runs[0]), "--site", "chest", "--baseline", str(runs[1]))
    done = report("chest", change(document), "--baseline", str(runs[1] / "results.json"))
    assert done.returncode == 1 and sentence in done.stderr and not (tmp_path / "report").exists()
    assert "give --baseline as well" in report("chest", document).stderr


def test_the_tables_say_what_stays_at_the_site(medfedvqa: Command, runs: tuple[Path, Path]) -> None:
    """For people: accuracies and costs in points, shares of clipped gradients, and that none of it leaves."""
    done = medfedvqa("groups", str(runs[0]), "--site", "chest", "--baseline", str(runs[1]))
    assert done.returncode == 0 and "points lost" in done.stdout and "gradients clipped" in done.stdout
    assert STAYS in done.stdout and "sex: female" in done.stdout


ORDERS = [
    ({"F": 20, "M": 20}, [["F"], ["M"]]),
    ({"F": 20, "M": 19}, []),
    ({"F": 25, "M": 22, "O": 3}, [["F"], ["M", "O"]]),
    ({"F": 25, "M": 22, "O": 20}, [["F"], ["M"], ["O"]]),
    ({"F": 30, "M": 10, "O": 10}, [["F"], ["M", "O"]]),
    ({"F": 19}, []),
]


@pytest.mark.parametrize(("counts", "parts"), ORDERS)
def test_no_group_and_no_rest_is_below_twenty(counts: dict[str, int], parts: list[list[str]]) -> None:
    """Joined are the smallest, so that no group, and no difference between all patients and the groups, is smaller."""
    labels = dict(enumerate(label for label, count in counts.items() for _ in range(count)))
    groups = groups_of({"sex": labels})
    assert [sorted({labels[patient] for patient in group.patients}) for group in groups] == parts
    assert all(len(group.patients) >= LEAST for group in groups)
    assert not groups or sum(len(group.patients) for group in groups) == len(labels)
    assert [group.name for group in groups] == [part[0] if len(part) == 1 else "others" for part in parts]


AGES = [
    ({30: 20, 40: 20}, ["below 40", "40 and above"]),
    ({0: 19, 30: 1, 40: 10, 50: 10, 90: 20}, ["below 40", "40 to 89", "90 and above"]),
    ({30: 20, 40: 19}, []),
    ({30: 20, 40: 20, UNKNOWN: 1}, ["below 40", "40 and above or unknown"]),
    ({30: 20, 40: 20, UNKNOWN: 20}, ["below 40", "40 and above", "unknown"]),
    ({30: 20, UNKNOWN: 20}, ["known", "unknown"]),
]


@pytest.mark.parametrize(("counts", "names"), AGES)
def test_ages_are_joined_with_their_neighbours(counts: dict[int, int], names: list[str]) -> None:
    """In decades from the youngest on; a name says where a group begins, and no end of ages that are there."""
    labels = dict(enumerate(decade for decade, count in counts.items() for _ in range(count)))
    groups = groups_of({"age": labels})
    assert [group.name for group in groups] == names
    assert not groups or sum(len(group.patients) for group in groups) == len(labels)
