"""One job whose sites classify pictures, find captions and answer questions, through gate, log and simulator."""

import json
from pathlib import Path
from typing import Any

import pytest
from in_process import Sites
from PIL import Image
from public_folder import write_captions
from tiny_clip import TINY

import medfedvqa
from audits import Outcome, read
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.engine import run_on_flare
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import HEAD

SETS = "phantom+image-classes+captions"
ANSWERS, CLASSES, CAPTIONS = "phantom-chest", "image-classes-clinic", "captions-ward"
QUICK: dict[str, Any] = {
    "rounds": 2, "local_epochs": 3, "batch_rows": 16, "blocks": 2, "reduction": 4, "hidden": 16,
    "learning_rate": 0.003, "own": "head",
}  # fmt: skip
CREAM = {
    **QUICK, "public_pairs": 8, "public_rows": 8, "space": 16, "server_epochs": 1, "trunk": "medclip2-slake",
    "test_pairs": 0, "models": {CLASSES: {"sees": "image"}},
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of pictures in two classes, and one of pictures with captions."""
    for name, level in (("pale", 170), ("dark", 60)):
        folder = tmp_path / "sets" / "image-classes" / "clinic" / name
        folder.mkdir(parents=True)
        for number in range(24):
            Image.new("L", (16, 16), level + number).save(folder / f"{number}.png")
    write_captions(tmp_path / "sets" / "captions", 16)
    return tmp_path / "sets"


def job_of(method: str, options: dict[str, Any], backbone: str = TINY) -> JobSpec:
    return JobSpec.from_dict({"method": method, "options": options, "data": SETS, "backbone": backbone})


def configured(sites: Sites, root: Path, method: str, *names: str) -> dict[str, SiteConfig]:
    kinds = ["representations", "parameters", "statistic"]
    return sites(*names, reader=SETS, root=str(root), methods=[method], kinds=kinds, min_count=1)


def run(job: JobSpec, configs: dict[str, SiteConfig], out: Path) -> dict[str, Any]:
    out.mkdir()
    results: dict[str, Any] = serve_job(job, tuple(configs), LocalEngine(configs, job, "job").call, out, "local")
    return results


def heads(configs: dict[str, SiteConfig]) -> dict[str, int]:
    """The number of answers that each site's head has in its saved state; sites without a head are left out."""
    saved = {name: StateFile(config.state, "job").load() for name, config in configs.items()}
    values = {name: each.state["values"] for name, each in saved.items() if each is not None}
    return {name: len(each[f"{HEAD}answers.bias"]) for name, each in values.items() if f"{HEAD}answers.bias" in each}


def left(configs: dict[str, SiteConfig]) -> dict[str, set[str]]:
    """The names of all tensors that left each site, from its log. Each was declared for its task."""
    entries = {name: [e for e in read(c.audit) if e.outcome == Outcome.SENT] for name, c in configs.items()}
    return {name: {tensor.name for each in sent for tensor in each.tensors} for name, sent in entries.items()}


COUNTS = {"rows", "train_rows", "correct", "majority_correct", "prior_correct", "first_five"}


def test_creamfl_joins_sites_of_three_tasks_and_their_heads_stay(sites: Sites, root: Path, tmp_path: Path) -> None:
    """Each learns its own task: classes and captions above what one answer for all pictures gets. Only representations
    of the public set and counts leave; answer lists and heads differ, and the site of captions has none."""
    configs = configured(sites, root, "creamfl", ANSWERS, CLASSES, CAPTIONS)
    job = job_of("creamfl", CREAM)
    results = run(job, configs, tmp_path / "out")
    scores = results["sites"]
    for name in (CLASSES, CAPTIONS):
        assert scores[name]["correct"] > scores[name]["baselines"]["majority"]["correct"]
    assert scores[CAPTIONS]["first_five"]["correct"] == scores[CAPTIONS]["n"] == 16  # there are four captions
    assert left(configs) == {
        ANSWERS: {"image", "text", *COUNTS}, CLASSES: {"image", *COUNTS}, CAPTIONS: {"image", "text", *COUNTS},
    }  # fmt: skip
    declared = {spec.name for task in job.exchange().tasks for spec in task.up}
    assert declared == {"image", "text", *COUNTS}
    number = heads(configs)
    assert number.keys() == {ANSWERS, CLASSES} and number[CLASSES] == 2 < number[ANSWERS]


def test_feddat_joins_sites_of_three_tasks_by_its_adapters(sites: Sites, root: Path, tmp_path: Path) -> None:
    """The shared adapter and counts alone leave, alike at all sites. Heads stay, and the site of captions has none.

    Each site learns its own task: of four captions most pictures find theirs, and few without training.
    """
    names = ANSWERS, CLASSES, CAPTIONS
    configs, job = configured(sites, root, "feddat", *names), job_of("feddat", QUICK)
    scores = run(job, configs, tmp_path / "out")["sites"]
    assert scores[CLASSES]["correct"] > scores[CLASSES]["baselines"]["majority"]["correct"]
    assert scores[CAPTIONS]["baselines"]["majority"]["correct"] == 4
    assert scores[CAPTIONS]["correct"] >= 12 and scores[CAPTIONS]["first_five"]["correct"] == 16
    declared = {spec.name for task in job.exchange().tasks for spec in task.up}
    assert left(configs) == dict.fromkeys(names, declared)
    assert declared > COUNTS and all(name.startswith("adapter.") for name in declared - COUNTS)
    assert "film" not in configs[CAPTIONS].audit.joinpath("log.jsonl").read_text()
    number = heads(configs)
    assert number.keys() == {ANSWERS, CLASSES} and number[CLASSES] == 2 < number[ANSWERS]
    again = {CAPTIONS: configs[CAPTIONS].model_copy(update={"state": tmp_path / "again"})}
    still = run(job_of("feddat", QUICK | {"learning_rate": 1e-9}), again, tmp_path / "still")
    assert still["sites"][CAPTIONS]["correct"] <= 8


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("creamfl", (CLASSES, CAPTIONS)), ("creamfl", (CAPTIONS,)), ("feddat", (CLASSES, CAPTIONS)),
        ("feddat", (ANSWERS, CLASSES, CAPTIONS)),
    ],
)  # fmt: skip
def test_a_run_from_python_with_captions_ends_with_its_results(
    root: Path, tmp_path: Path, tiny_backbone: Path, method: str, names: tuple[str, ...]
) -> None:
    """What parts of a model contribute is counted at sites that answer, and not at all without one."""
    options = {"creamfl": CREAM | {"models": {}}, "feddat": QUICK}[method]
    job = medfedvqa.Job(method, backbone=TINY, **options | {"rounds": 1})
    data, files = medfedvqa.load(SETS, root), {TINY: tiny_backbone}
    medfedvqa.run(job, data, sites=names, out=tmp_path / "out", backbone_files=files)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["status"] == "finished" and list(results["sites"]) == list(names)
    assert any("among the first five at" in note and CAPTIONS in note for note in results["notes"])
    rows = {part["rows"] for part in results.get("contribution", {}).values()}
    answered = sum(results["sites"][name]["n"] for name in names if name != CAPTIONS)
    assert rows == ({answered} if answered else set())


@pytest.mark.parametrize("own", ["head", "nothing"])
def test_a_method_without_retrieval_refuses_captions_before_it_trains(
    sites: Sites, root: Path, tmp_path: Path, own: str
) -> None:
    """By its name, in the log of the site; no tensor leaves."""
    configs = configured(sites, root, "fedavg", CAPTIONS)
    with pytest.raises(FederationError, match=f"'{CAPTIONS}' stopped the job"):
        run(job_of("fedavg", QUICK | {"own": own}), configs, tmp_path / "out")
    reasons = [entry.reason or "" for entry in read(configs[CAPTIONS].audit) if entry.outcome == Outcome.REFUSED]
    assert any("the method 'fedavg' answers questions" in reason for reason in reasons)
    assert left(configs) == {CAPTIONS: set()}


@pytest.mark.slow
def test_the_simulator_and_one_process_find_the_same_captions(sites: Sites, root: Path, tmp_path: Path) -> None:
    """All figures of all three sites are equal."""
    job = job_of("creamfl", CREAM | {"rounds": 1, "local_unit": "batches"}, "medclip@random")
    configs = configured(sites, root, "creamfl", ANSWERS, CLASSES, CAPTIONS)
    paths = {name: tmp_path / "sites" / name / "site.yml" for name in configs}
    simulated = run_on_flare(job, paths, tmp_path / "flare", "simulator")
    again = {name: config.model_copy(update={"state": tmp_path / "again" / name}) for name, config in configs.items()}
    local = run(job, again, tmp_path / "out")
    assert simulated["status"] == "finished"
    keys = ("n", "correct", "first_five", "baselines")
    assert [{key: each[key] for key in keys} for each in simulated["sites"].values()] == [
        {key: local["sites"][name][key] for key in keys} for name in simulated["sites"]
    ]
