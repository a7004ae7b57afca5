"""A grid of real, small runs: resumed, complete, and refused where it would deceive."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from medfedvqa.cli.benchmark import check_budget
from medfedvqa.core import create, method_names
from medfedvqa.data import Split, load_site, training_answers
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.research.benchmark.benchmark_table import markdown
from medfedvqa.research.benchmark.grid import FREE, OLD, OUTCOME, Grid, _cohort, results, run
from medfedvqa.research.benchmark.printed import PRINTED
from medfedvqa.research.benchmark.results_file import RESULTS, read
from medfedvqa.research.benchmark.single_run import centralised
from medfedvqa.research.benchmark.statistics import PERSONAL, compared
from medfedvqa.research.benchmark.systems import (
    AT_REQUEST,
    SYSTEMS,
    TRUNKS,
    WITHOUT,
    System,
    systems_named,
    without_picture,
)

BUDGET = {"rounds": 2, "local_epochs": 3, "batch_rows": 16, "hidden": 8, "learning_rate": 0.01}
PAIR = (
    System("FedAvg classifier", "fedavg", {"tuning": "classifier"}),
    System("AS2", "prompt_pfl", {"ablation": "AS2", "blocks": 1}, baseline=False),
)


Make = Callable[..., Grid]


@pytest.fixture
def grid(quick_grid: Make, tmp_path: Path) -> Grid:
    return quick_grid("phantom", None, tmp_path, PAIR, 2, BUDGET, ("site-001", "site-002"))


@pytest.mark.slow
def test_runs_that_are_there_are_not_run_again_and_the_table_tells_all(grid: Grid) -> None:
    """An interrupted grid goes on where it was; a run of another budget is made anew."""
    first = run(grid, 1)
    next(first)
    first.close()
    done = list(grid.out.rglob(OUTCOME))
    assert len(done) == 2  # the one that ended, and the one that had begun
    stamps = {path: path.stat().st_mtime_ns for path in done}
    assert len(list(run(grid, 1))) == 4 - len(done)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert not list(run(grid, 1))
    comparison = compared(results(grid))
    rows = comparison.rows
    assert list(rows) == ["majority", "question-only prior", *_shared_and_personal("FedAvg classifier"), "AS2"]
    for label, each in rows.items():
        own = each[0]
        assert {site: len(rows) for site, rows in own.right.items()} == {s: len(p) for s, p in own.patients.items()}
        assert label in FREE or (own.parameters > 0 and own.seconds > 0)
    classifier = rows["FedAvg classifier"][0]
    assert len(classifier.validated["site-001"]) == 2 and classifier.bytes_up > 0
    assert classifier.right != rows["FedAvg classifier (personal)"][0].right
    text = markdown(comparison)
    assert all(f"| {label} |" in text for label in rows)
    assert comparison.reference != "AS2"
    assert_a_copy_of_the_lines_makes_the_same_table(grid, text)
    assert_the_lines_name_nobody(grid)
    assert_a_run_of_version_0_2_still_counts(grid)
    changed = replace(grid, seeds=1, budget={**BUDGET, "hidden": 9})
    assert len(list(run(changed, 1))) == 2


def _shared_and_personal(label: str) -> tuple[str, str]:
    return label, label + PERSONAL


def assert_a_copy_of_the_lines_makes_the_same_table(grid: Grid, text: str) -> None:
    """Every run appended its line when it ended; the lines alone make the table."""
    lines = (grid.out / RESULTS).read_text().splitlines()
    assert len(lines) == (len(FREE) + len(PAIR)) * grid.seeds
    read_again, remarks = read([grid.out / RESULTS])
    read_again.sort(key=lambda result: list(compared(results(grid)).rows).index(result.system))
    assert not remarks and markdown(compared(read_again)) == text


def assert_the_lines_name_nobody(grid: Grid) -> None:
    """No question and no key of a patient of any seed is in the file, which only its owner reads."""
    content, checked = (grid.out / RESULTS).read_text(), 0
    for seed in range(grid.seeds):
        for site in grid.sites:
            data = load_site(grid.reader, None, site, Split(seed=seed), seed)
            texts = {*data.patients, *(question for part in data.parts for question in part.questions)}
            checked += len(texts)
            assert not [text for text in texts if text in content]
    assert checked > 50 and (grid.out / RESULTS).stat().st_mode & 0o077 == 0


def assert_a_run_of_version_0_2_still_counts(grid: Grid) -> None:
    """Its file has patient numbers of the whole site, and lacks what came later, a setting of the job included."""
    before = {(result.system, result.seed): result.outcome for result in results(grid)}
    for system in PAIR:
        for seed in range(grid.seeds):
            file = grid.folder(system, seed) / OUTCOME
            record = json.loads(file.read_text())
            kept = {key: value for key, value in record.items() if key not in ("version", "pictures", "regime")}
            kept["job"] = {key: value for key, value in record["job"].items() if key != "most_norm"}
            new = ("personal", "seed", "cohort")
            kept["outcome"] = {key: value for key, value in record["outcome"].items() if key not in new}
            kept["outcome"]["patients"] = {
                site: [7 + 3 * patient for patient in patients]
                for site, patients in record["outcome"]["patients"].items()
            }
            file.write_text(json.dumps(kept))
    assert not list(run(grid, 1))
    for result in results(grid):
        assert result.outcome == replace(before[result.system, result.seed], personal={})
        assert (result.version == OLD) is (result.system in ("FedAvg classifier", "AS2"))


def test_seeds_of_a_published_test_share_a_cohort_and_drawn_sets_do_not(data_folder: Path, tmp_path: Path) -> None:
    """VQA-RAD's test rows are the same in every seed, though its validation rows are not; a phantom is drawn anew."""
    published = Grid("vqa-rad", data_folder / "vqa-rad", tmp_path, PAIR, 3, BUDGET, ("head", "chest"))
    phantoms = Grid("phantom", None, tmp_path, PAIR, 3, BUDGET, ("site-001", "site-002"))
    assert [_cohort(published, seed) for seed in range(3)] == [0, 0, 0]
    assert [_cohort(phantoms, seed) for seed in range(3)] == [0, 1, 2]


def test_a_backbone_that_has_seen_the_test_rows_is_refused(tmp_path: Path) -> None:
    grid = Grid("slake", tmp_path, tmp_path, PAIR, 1, BUDGET, ("lung",), "medclip2-slake")
    with pytest.raises(ConfigError, match="seen slake"):
        list(run(grid, 1))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_centralised_training_sees_all_rows_and_is_tested_site_by_site(quick_grid: Make, tmp_path: Path) -> None:
    """The model of FedAvg, trained on the union of rows; nothing travels."""
    both = (System("CT", "local", {"tuning": "classifier"}, centralised=True), System("DT", "local", PAIR[0].options))
    grid = quick_grid("phantom", None, tmp_path, both, 1, BUDGET, ("site-001", "site-002"))
    assert len(list(run(grid, 1))) == 2
    rows = compared(results(grid)).rows
    together, apart = rows["CT"][0], rows["DT"][0]
    assert (together.bytes_up, together.bytes_down) == (0, 0) and together.parameters == apart.parameters
    assert {site: len(rows) for site, rows in together.right.items()} == {s: len(p) for s, p in apart.right.items()}
    assert len(together.validated["all sites"]) == 2 and together.patients == apart.patients
    assert not (grid.folder(both[0], 0) / "sites").exists()


@pytest.mark.slow
def test_a_split_model_is_trained_centrally_as_a_federation_of_one_site(quick_grid: Make, tmp_path: Path) -> None:
    """UniCon on the rows of both sites: each site's own test rows, nothing on the wire, and one site's files."""
    few = {"rounds": 1, "steps": 2, "batch_rows": 8, "trunk_width": 16, "width": 16, "space": 8}
    systems = systems_named(["centralised contrastive butd"])
    grid = quick_grid("phantom", None, tmp_path, systems, 1, BUDGET | few, ("site-001", "site-002"))
    assert len(list(run(grid, 1))) == 1
    rows = compared(results(grid)).rows
    together, free = rows["centralised contrastive butd"][0], rows["majority"][0]
    assert together.patients == free.patients and (together.bytes_up, together.bytes_down) == (0, 0)
    assert {site: len(each) for site, each in together.right.items()} == {s: len(p) for s, p in free.right.items()}
    assert [path.name for path in (grid.folder(systems[0], 0) / "sites").iterdir()] == ["all"]


def test_a_split_model_decays_when_the_budget_s_other_systems_do() -> None:
    """Every third of ten rounds, as its options name them; rounds that the budget names itself stand. Alone in a
    benchmark it takes the budget of the others, of which it has the rounds."""
    (system,) = systems_named(["UniCon butd"])
    options = system.with_budget({"rounds": 10, "decay_every": 3, "local_epochs": 2})
    assert options["decay_after"] == (3, 6, 9) and "decay_every" not in options
    assert create("unicon", options, secagg=True).config.rate(10, 1) == pytest.approx(1e-3 * 0.2**3)
    assert system.with_budget({"rounds": 10, "decay_every": 3, "decay_after": (5,)})["decay_after"] == (5,)
    check_budget((system,), {"rounds": 15, "local_epochs": 2, "keep": "best", "decay_every": 5})
    with pytest.raises(ConfigError, match="no option 'local_epoch' of these methods"):
        check_budget((system,), {"local_epoch": 2})


def test_a_system_on_shares_is_not_trained_centrally(tmp_path: Path) -> None:
    """One site has nobody to share with: it is refused before any data is read."""
    system = System("CT", "unicon", centralised=True, secagg=True)
    grid = Grid("slake", tmp_path, tmp_path, (system,), 1, BUDGET, ("lung",))
    with pytest.raises(ConfigError, match="at least 3 sites"):
        centralised(grid.job(system, 0), tmp_path, {})


def test_no_job_is_centralised() -> None:
    """It is a line of the benchmark; neither a method nor an option of one."""
    for job in ({"method": "centralised"}, {"method": "local", "options": {"centralised": True}}):
        with pytest.raises(ConfigError, match="unknown method|unknown key"):
            JobSpec.from_dict(job)
    everywhere = [system.label for system in SYSTEMS if system.centralised]
    assert everywhere == ["frozen features (rows of all sites)", "centralised"]
    assert (
        not any(system.centralised for system in systems_named(["local"]))
        and not systems_named(["centralised"])[0].baseline
    )


def test_every_method_has_a_line_and_the_papers_proposals_are_no_baselines() -> None:
    """What is compared with the best baseline must not be it."""
    assert {system.method for system in SYSTEMS} == set(method_names())
    proposed = {"prompt_pfl", "fedp3", "feddat", "creamfl", "unicon"}
    usual = [system for system in SYSTEMS if system.pictures and not system.centralised]
    assert all(system.baseline is not (system.method in proposed) for system in usual)


@pytest.mark.parametrize("system", [*SYSTEMS, *AT_REQUEST], ids=lambda system: system.folder)
def test_every_system_is_a_valid_job_under_the_common_budget(system: System) -> None:
    create(system.method, system.with_budget({"rounds": 1, "local_epochs": 1}), secagg=system.secagg)


def test_a_system_on_shares_is_refused_before_anything_runs_where_there_are_too_few_sites(tmp_path: Path) -> None:
    grid = Grid("phantom", None, tmp_path, (*PAIR, *systems_named(["unicon"])), 1, BUDGET, ("chest", "head"))
    with pytest.raises(ConfigError, match="at least 3 sites"):
        list(run(grid, 1))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_unicon_and_creamfl_run_as_their_papers_have_them(quick_grid: Make, tmp_path: Path) -> None:
    """UniCon's sites average under masks, CreamFL's send representations; both are scored row by row."""
    few = {"rounds": 1, "steps": 2, "batch_rows": 16, "blocks": 1, "public_pairs": 8, "server_epochs": 1}
    sites = ("site-001", "site-002", "site-003")
    grid = quick_grid(
        "phantom", None, tmp_path, systems_named(["unicon", "creamfl"]), 1, BUDGET | few, sites, backbone=""
    )
    assert len(list(run(grid, 1))) == 2
    rows = compared(results(grid)).rows
    for label in ("UniCon", "CreamFL"):
        own = rows[label][0]
        assert {site: len(rows) for site, rows in own.right.items()} == {s: len(p) for s, p in own.patients.items()}
        assert own.bytes_up > 0 and own.bytes_down > 0 and own.parameters > 0
    assert rows["CreamFL"][0].bytes_up >= 2 * 8 * 256 * 4  # both modalities, float32
    assert not rows["UniCon"][0].validated and len(rows["CreamFL"][0].validated["site-001"]) == 1


def test_every_comparison_names_a_line() -> None:
    """The label of training alone is a line of the table; so is, at request, every system without the picture."""
    labels = {system.label: system for system in SYSTEMS}
    assert all(labels[system.alone].method in ("local", "prompt_pfl", "ridge") for system in SYSTEMS if system.alone)
    assert systems_named([f"FedProx adapter{WITHOUT}"]) == (without_picture(labels["FedProx adapter"]),)
    assert not any(
        system.baseline or system.alone or system.without_picture for system in SYSTEMS if not system.pictures
    )


def test_fedp3_filters_a_list_that_is_longer_than_what_any_site_answers() -> None:
    """All training answers of the sets, with a filter of 20; the models that it is compared with have the same list."""
    labels = {system.label: system for system in SYSTEMS}
    lines = [system for system in SYSTEMS if system.method == "fedp3"]
    assert len(lines) == 7
    for system in lines:
        method = create("fedp3", system.with_budget({"rounds": 1}))
        assert method.public_answers == training_answers() and method.config.top * 30 < len(training_answers())
        alone = labels[system.alone]
        averaged = labels["FedAvg last 3 blocks (public answers)"]
        assert averaged.alone == alone.label
        for other in (alone, averaged):
            assert create(other.method, other.options).public_answers == method.public_answers


def test_labels_and_folders_are_distinct() -> None:
    every = (*SYSTEMS, *AT_REQUEST)
    assert len({system.folder for system in every}) == len({system.label for system in every}) == len(every)


def test_systems_are_chosen_by_label_or_by_method() -> None:
    assert systems_named([]) == SYSTEMS
    assert {system.method for system in systems_named(["prompt_pfl"])} == {"prompt_pfl"}
    assert [system.label for system in systems_named(["FedAvg LoRA"])] == ["FedAvg LoRA"]
    with pytest.raises(ConfigError, match="no system 'nothing'"):
        systems_named(["nothing"])


def test_every_line_can_be_asked_for_by_its_label() -> None:
    """On the command line labels have commas between them, so none has one of its own; nor is one a method's name."""
    every = (*SYSTEMS, *AT_REQUEST)
    assert not [system.label for system in every if "," in system.label]
    assert all(systems_named([system.label]) == (system,) for system in every)


def test_a_trunk_has_every_column_of_its_paper_at_request_and_the_whole_table_has_none() -> None:
    """Supervised, contrastive and UniCon on one trunk, whose weights are all trained; a method's name means others."""
    assert not {system.label for system in AT_REQUEST} & {system.label for system in SYSTEMS}
    for trunk in TRUNKS:
        names = [f"{start} {trunk}" for start in ("centralised", "centralised contrastive", "UniCon", "local")]
        supervised, contrastive, split, alone = systems_named(names)
        assert all(each.options["trunk"] == trunk for each in (supervised, contrastive, split, alone))
        assert supervised.options == alone.options and supervised.centralised and contrastive.centralised
        assert split.options | {"aggregate": "none"} == contrastive.options and split.secagg
    assert not any("trunk" in system.options for system in systems_named(["unicon", "fedavg"]))


@pytest.mark.parametrize("data", PRINTED)
def test_the_papers_own_ablations_stand_beside_runs_of_this_project(data: str) -> None:
    labels = {system.label for system in SYSTEMS}
    rows = {row.name: row for row in PRINTED[data].rows}
    assert {row.label for row in rows.values()} - {""} <= labels
    assert all(rows[name].label in labels for name in ("AS1", "AS2", "AS3", "AS4", "PM"))
    assert all(len(row.figures) == len(PRINTED[data].columns) for row in rows.values())
