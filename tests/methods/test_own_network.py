"""Jobs that train a network of their own: through gate, ledger, shares and evaluation like every other."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import medfedvqa as mv
from audits import Event, Kind
from audits import read as read_log
from medfedvqa.answering.answerer import Answerer
from medfedvqa.answering.kept_run import load_kept
from medfedvqa.attack.neighbours import Neighbours
from medfedvqa.cli import app
from medfedvqa.core import create
from medfedvqa.data import Split, read
from medfedvqa.errors import ConfigError, DataError, FederationError
from medfedvqa.models import load_backbone, picture_networks
from privacy import DPSettings

SITES = ("north", "south", "west")
NETWORK = {
    "network": "DenseNet121",
    "network_arguments": {"init_features": 4, "growth_rate": 4, "block_config": [2, 2], "groups": 2, "bn_size": 2},
    "pixels": 32,
    "weighting": "uniform",
    "batch_rows": 8,
}
LABELS = {**NETWORK, "answers": ["dark", "bright"]}
FINDINGS = {**NETWORK, "answers": ["no", "yes"], "findings": ["bright", "striped"]}


def picture(bright: bool, striped: bool, chance: np.random.Generator) -> Image.Image:
    grey = chance.integers(0, 60, (40, 40)) + 120 * bright
    grey[::4] += 60 * striped
    return Image.fromarray(grey.astype(np.uint8))


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites of sixteen patients with two pictures each, and a table of labels; `findings/` one of findings."""
    root = tmp_path_factory.mktemp("films")
    both = root / "findings"
    both.mkdir()
    labels, findings = [["picture", "patient", "site", "label"]], [["picture", "patient", "site", "bright", "striped"]]
    for site in SITES:
        for number in range(32):
            bright, striped = number % 2, number % 3 == 0
            name = f"{site}-{number}.png"
            for folder in (root, both):
                picture(bool(bright), striped, np.random.default_rng(number)).save(folder / name)
            labels.append([name, f"p{number // 2}", site, ("dark", "bright")[bright]])
            findings.append([name, f"p{number // 2}", site, str(bright), "" if number % 7 == 0 else str(int(striped))])
    for folder, table in ((root, labels), (both, findings)):
        with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
    return root


def trained(films: Path, out: Path, method: str = "fedavg", **options: object) -> mv.Results:
    return mv.run(
        mv.Job(method, **{"rounds": 2, "local_epochs": 2, **options}), mv.load("image-classes", films), out=out
    )


def test_sites_together_learn_to_tell_pictures_apart(films: Path, tmp_path: Path) -> None:
    """From random values, far beyond the most frequent label; the site's kept model answers about a new picture."""
    results = trained(films, tmp_path / "run", **LABELS, local_epochs=8, learning_rate=0.01)
    assert all(site.accuracy == 1.0 for site in results.sites.values())
    assert results.document["sites"]["north"]["backbone"]["name"] == "none"
    with Answerer(load_kept(tmp_path / "run", "north")) as answerer:
        for bright, answer in ((True, "bright"), (False, "dark")):
            grey = np.array(picture(bright, False, np.random.default_rng(99)))
            shares = answerer.probabilities(torch.from_numpy(grey).float(), "What does the picture show?")
            assert answerer.answering.answers[int(shares.argmax())] == answer


def test_what_leaves_is_the_network_alone(films: Path, tmp_path: Path) -> None:
    """The log's uploads are the declared tensors: all of the network, its last layer as the head, and counts."""
    trained(films, tmp_path / "run", **LABELS)
    declared = {name for name in create("fedavg", LABELS).shared(load_backbone("none").shape)}
    (folder,) = {path.parent for path in (tmp_path / "run").rglob("*.jsonl") if "north" in path.parts}
    entries = [entry for entry in read_log(folder) if entry.task == "train" and entry.event is Event.RELEASE]
    sent = {tensor.name for entry in entries for tensor in entry.tensors}
    assert sent == declared and {"head.answers.weight", "head.answers.bias"} < sent


def test_a_private_job_is_charged_and_bounded_by_patient(films: Path, tmp_path: Path) -> None:
    """As every job: epsilon in results and ledger; and a patient moves a step by at most the clipping norm.

    Others' parts are the same, without rounding: each patient has a pass alone, since a maximum could jump.
    """
    private = {"epsilon": 8.0, "dp": {"expected_patients": 8, "sample_rate": 0.5}}
    results = trained(films, tmp_path / "run", **LABELS, **private)
    assert all(0 < (site.epsilon or 0) <= 8.0 for site in results.sites.values())
    method = create(
        "fedavg", {**LABELS, "rounds": 2, "local_epochs": 1}, DPSettings(noise=1.0, count_noise=1.0, sample_rate=1.0)
    )
    neighbours = Neighbours(read("image-classes", films), "north", load_backbone("none"), Split())
    patients = neighbours.patients[0][0], neighbours.patients[0][-1]
    reference = neighbours.run(method, watched=patients)
    for patient in patients:
        for move in neighbours.moves(method, reference, patient):
            assert 0.01 < move.distance <= 1.0
            assert move.others_moved <= 1e-12 and move.others_alike


def test_sums_on_shares_give_the_mean_in_clear(films: Path, tmp_path: Path) -> None:
    clear, masked = (trained(films, tmp_path / str(on), **LABELS, secagg=on) for on in (False, True))
    for site in SITES:
        assert clear.sites[site].document["correct"] == masked.sites[site].document["correct"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, more",
    [
        ("local", {}),
        ("fedprox", {}),
        ("fedadam", {}),
        ("fedavg", {"schedule": "stepwise"}),
        ("fedavg", {"own": "head"}),
    ],
)
def test_other_methods_and_schedules_take_a_network(films: Path, tmp_path: Path, method: str, more: dict) -> None:
    results = trained(films, tmp_path / "run", method, **LABELS, **more)
    assert all(site.accuracy is not None for site in results.sites.values())


def test_another_hospital_evaluates_the_finished_network_and_sends_counts_alone(films: Path, tmp_path: Path) -> None:
    """`medfedvqa join --finish 0`: a site that did not train the model tests it under its own policy."""
    job, data = mv.Job("fedavg", rounds=8, **LABELS, learning_rate=0.01), mv.load("image-classes", films)
    mv.run(job, data, sites=["north", "south"], out=tmp_path / "run")
    words = ["join", str(tmp_path / "run"), "--site", "west", "--data", "image-classes", "--data-root", str(films)]
    done = CliRunner().invoke(app, [*words, "--finish", "0", "--out", str(tmp_path / "tested")])
    assert done.exit_code == 0, done.output
    counted = json.loads((tmp_path / "tested" / "results.json").read_text())["sites"]["west"]
    assert counted["correct"] > counted["baselines"]["majority"]["correct"]
    released = [
        entry for entry in read_log(tmp_path / "tested" / "sites" / "west" / "audit") if entry.event is Event.RELEASE
    ]
    assert {tensor.kind for entry in released for tensor in entry.tensors} == {Kind.STATISTIC}


def test_findings_are_learnt_each_by_its_own_output(films: Path, tmp_path: Path) -> None:
    """Where a finding is not told of a picture, no row stands for it."""
    rows = read("image-classes", films / "findings").rows
    assert len(rows) == sum(64 - 5 for _ in SITES)
    results = trained(films / "findings", tmp_path / "run", **FINDINGS, local_epochs=10, learning_rate=0.01)
    document = results.document["sites"]["north"]
    assert document["correct"] > document["baselines"]["question_prior"]["correct"] + 0.2 * document["n"]


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({**LABELS, "findings": ["bright"]}, "'answers' to no, yes"),
        ({**LABELS, "channels": 2}, "1 or 3 channels"),
        ({**FINDINGS, "findings": ["bright", "Bright"]}, "is named twice"),
        ({**LABELS, "network_arguments": {"pretrained": True}}, "an argument of 'DenseNet121' is one of"),
        ({**LABELS, "network": "somebodys"}, "unknown network"),
        ({**LABELS, "backbone": "medclip2-slake"}, "give the backbone as 'none'"),
        ({"backbone": "none"}, "nothing to tune"),
    ],
)
def test_a_job_that_does_not_fit_is_refused_before_it_starts(
    films: Path, tmp_path: Path, options: dict, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        trained(films, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_network_of_this_program_alone_is_for_the_local_engine(
    films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of another engine would not have it."""
    monkeypatch.setattr(picture_networks, "_REGISTERED", {})
    mv.register_network("linear", lambda channels, outputs: nn.Sequential(nn.Flatten(), nn.Linear(1024, outputs)))
    options = {**LABELS, "network": "linear", "network_arguments": {}}
    job, data = mv.Job("fedavg", rounds=1, local_epochs=1, **options), mv.load("image-classes", films)
    assert mv.run(job, data, out=tmp_path / "run").sites["north"].accuracy is not None
    with pytest.raises(ConfigError, match="use the engine 'local'"):
        mv.run(job, data, engine="simulator", out=tmp_path / "other")


class Halved(nn.Module):
    """A network with a loss of its own: half of the cross-entropy, by row or as a mean."""

    def __init__(self, outputs: int, reduction: str) -> None:
        super().__init__()
        self.layers, self.reduction = nn.Sequential(nn.Flatten(), nn.Linear(1024, outputs)), reduction

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.layers(pictures)

    def row_loss(self, logits: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, answers, reduction=self.reduction) / 2


def test_a_networks_own_loss_trains_it_and_has_to_be_by_row(
    films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of gradient descent by half of the loss is half as long; a mean would tie patients together."""
    monkeypatch.setattr(picture_networks, "_REGISTERED", {})
    mv.register_network("plain", lambda channels, outputs: nn.Sequential(nn.Flatten(), nn.Linear(1024, outputs)))
    mv.register_network("halved", lambda channels, outputs: Halved(outputs, "none"))
    mv.register_network("mean", lambda channels, outputs: Halved(outputs, "mean"))
    step = {"network_arguments": {}, "local_unit": "batches", "local_epochs": 1, "optimizer": "sgd", "rounds": 1}
    site = Neighbours(read("image-classes", films), "north", load_backbone("none"), Split()).site()
    moves = []
    for name in ("plain", "halved"):
        method = create("fedavg", {**LABELS, **step, "network": name, "weight_decay": 0.0})
        state = method.setup(site)
        begin, (after, _) = state["values"], method.start(site, state, {}, 1)
        moves.append(after["values"]["head.answers.bias"] - begin["head.answers.bias"])
    torch.testing.assert_close(moves[0], 2 * moves[1])
    with pytest.raises(FederationError, match="one number for each row"):
        mv.run(
            mv.Job("fedavg", **{**LABELS, **step, "network": "mean"}),
            mv.load("image-classes", films),
            out=tmp_path / "r",
        )


TABLES = {
    "no patient": ("picture,patient,site,label\na.png,,north,dark\n", "line 2.*no patient"),
    "a picture elsewhere": ("picture,patient,site,label\n../a.png,p,north,dark\n", "below the root"),
    "an absolute path": ("picture,patient,site,label\n/a.png,p,north,dark\n", "below the root"),
    "a site's name": ("picture,patient,site,label\na.png,p,North West,dark\n", "lower-case letters"),
    "a split": ("picture,patient,site,split,label\na.png,p,north,tset,dark\n", "train, validate, test"),
    "a finding": ("picture,patient,site,nodule\na.png,p,north,maybe\n", "1, 0 or empty"),
    "no target": ("picture,patient,site\na.png,p,north\n", "one for each finding"),
    "a short line": ("picture,patient,site,label\na.png,p\n", "different numbers of columns"),
    "nothing": ("picture,patient,site,label\n", "labels no picture"),
    "bytes": ("\x00\x01", "cannot be read|columns"),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_damaged_table_is_refused_by_its_line_and_quotes_nothing(tmp_path: Path, case: str) -> None:
    text, sentence = TABLES[case]
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=sentence) as refusal:
        read("image-classes", tmp_path)
    assert not any(word in str(refusal.value) for word in ("maybe", "tset", "North West", "a.png"))


@pytest.mark.parametrize("dp", [None, {"epsilon": 8.0}])
def test_classes_that_the_list_lacks_are_refused_before_training(
    films: Path, tmp_path: Path, dp: dict[str, float] | None
) -> None:
    """A head on a backbone answers from a public list that holds none of the classes: nothing would be learned."""
    cracks = shutil.copytree(films, tmp_path / "cracks")
    table = (cracks / "labels.csv").read_text("utf-8")
    (cracks / "labels.csv").write_text(table.replace("bright", "crack").replace("dark", "dent"), "utf-8")
    job = mv.Job("fedavg", schedule="stepwise", tuning="classifier", weighting="uniform", rounds=2, dp=dp)
    with pytest.raises(DataError, match="list the classes or answers in the option 'answers'"):
        mv.run(job, mv.load("image-classes", cracks), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_patients_pictures_stay_in_one_part(films: Path) -> None:
    """Without a column of splits, by the patient alone: whoever else is in the table."""
    rows = read("image-classes", films).rows
    parts: dict[str, set[str]] = {}
    for row in rows:
        parts.setdefault(row.patient, set()).add(row.split)
    assert all(len(each) == 1 for each in parts.values()) and {"train", "test"} <= set.union(*parts.values())
    assert json.dumps(sorted(parts)).count("north/") == 16
