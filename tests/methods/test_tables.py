"""Jobs over rows of numbers: a table's features through gate, ledger and shares, as pictures."""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import medfedvqa as mv
from audits import Event
from audits import read as read_log
from medfedvqa.attack.neighbours import Neighbours
from medfedvqa.core import create
from medfedvqa.data import Split, read
from medfedvqa.errors import ConfigError, DataError, FederationError
from medfedvqa.models import load_backbone
from privacy import DPSettings

SITES = ("north", "south", "west")
FEATURES = ["age 18..95", "marker -2..2", "sex 0..1"]
JOB = {
    "network": "FullyConnectedNet",
    "network_arguments": {"hidden_channels": [8]},
    "features": FEATURES,
    "answers": ["benign", "malignant"],
    "weighting": "uniform",
    "batch_rows": 8,
    "rounds": 2,
    "local_epochs": 2,
}


def lines(label: bool = True) -> list[dict[str, str]]:
    """Three sites of 24 patients with two visits each; the marker decides the label, and age nothing."""
    chance, table = np.random.default_rng(0), []
    for site in SITES:
        for visit in range(48):
            marker, age = chance.uniform(-2, 2), chance.uniform(18, 95)
            line = {
                "patient": f"p{visit // 2}",
                "site": site,
                "marker -2..2": f"{marker:.4f}",
                "age 18..95": f"{age:.1f}",
            }
            line["sex 0..1"] = "" if visit % 5 == 0 else str(visit % 2)
            found = {"label": ("benign", "malignant")[marker > 0]} if label else {"tumour": str(int(marker > 0))}
            table.append({**line, **found})
    return table


def write(folder: Path, table: list[dict[str, str]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "table", lines())


def trained(folder: Path, out: Path, method: str = "fedavg", **options: object) -> mv.Results:
    return mv.run(mv.Job(method, **{**JOB, **options}), mv.load("table", folder), out=out)


def test_sites_together_learn_a_label_from_features(folder: Path, tmp_path: Path) -> None:
    """Far beyond the most frequent label; also by regression, a network without a hidden layer."""
    for hidden in ([8], []):
        arguments = {"hidden_channels": hidden}
        results = trained(
            folder, tmp_path / f"run-{len(hidden)}", network_arguments=arguments, rounds=8, learning_rate=0.05
        )
        for site in results.sites.values():
            assert site.accuracy > 0.8 > site.document["baselines"]["majority"]["accuracy"]


def test_findings_and_what_leaves(tmp_path: Path) -> None:
    """A finding has an output of its own; the log's uploads are the declared tensors alone, without any feature."""
    folder = write(tmp_path / "table", lines(label=False))
    options = {"answers": ["no", "yes"], "findings": ["tumour"], "rounds": 8, "learning_rate": 0.05}
    results = trained(folder, tmp_path / "run", **options)
    assert all(site.accuracy > 0.8 for site in results.sites.values())
    declared = {name for name in create("fedavg", {**JOB, **options}).shared(load_backbone("none").shape)}
    (log,) = {path.parent for path in (tmp_path / "run").rglob("*.jsonl") if "north" in path.parts}
    entries = [entry for entry in read_log(log) if entry.task == "train" and entry.event is Event.RELEASE]
    assert {tensor.name for entry in entries for tensor in entry.tensors} == declared


def test_values_are_scaled_by_the_stated_range_and_by_no_data(folder: Path, tmp_path: Path) -> None:
    """Beyond the range counts as its end, nothing as its middle; columns in another order give the same data."""
    table = [{**line} for line in lines()]
    for marker, line in zip(("-2", "2", "-9", "1e9", "", "1"), table, strict=False):
        line["marker -2..2"] = marker
    turned = [dict(reversed(line.items())) for line in table]
    data, other = (read("table", write(tmp_path / str(n), each)) for n, each in enumerate((table, turned)))
    assert data.features == other.features == tuple(FEATURES)
    values = [data.load(row, 1)[1].item() for row in data.rows[:6]]
    assert values == [0, 1, 0, 1, 0.5, 0.75]
    for row, same in zip(data.rows, other.rows, strict=True):
        assert row == same and torch.equal(data.load(row, 1), other.load(same, 1))


def test_a_private_job_is_charged_and_bounded_by_patient(folder: Path, tmp_path: Path) -> None:
    """A patient's two visits together move a step by at most the clipping norm."""
    results = trained(folder, tmp_path / "run", epsilon=8.0, dp={"expected_patients": 8, "sample_rate": 0.5})
    assert all(0 < (site.epsilon or 0) <= 8.0 for site in results.sites.values())
    method = create("fedavg", {**JOB, "local_epochs": 1}, DPSettings(noise=1.0, count_noise=1.0, sample_rate=1.0))
    neighbours = Neighbours(read("table", folder), "north", load_backbone("none"), Split())
    patient = neighbours.patients[0][0]
    reference = neighbours.run(method, watched=(patient,))
    for move in neighbours.moves(method, reference, patient):
        assert 0.01 < move.distance <= 1.0
        assert move.others_moved <= 1e-12 and move.others_alike


def test_sites_learn_from_sums_on_shares(folder: Path, tmp_path: Path) -> None:
    """No site's parameters leave in clear, and the labels are learned as without shares."""
    results = trained(folder, tmp_path / "run", secagg=True, rounds=8, learning_rate=0.05)
    assert all(site.accuracy > 0.8 for site in results.sites.values())
    logs = {path.parent for path in (tmp_path / "run" / "sites").rglob("log.jsonl")}
    assert len(logs) == 3
    for log in logs:
        assert not any(
            entry.task == "train"
            and entry.event is Event.RELEASE
            and "head.answers.weight" in {tensor.name for tensor in entry.tensors}
            for entry in read_log(log)
        )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda table: [{n: v for n, v in line.items() if n != "label"} for line in table], "must have the columns"),
        (lambda table: [{n: v for n, v in line.items() if ".." not in n} for line in table], "must have the columns"),
        (
            lambda table: [{**line, "age 18..95": "old"} for line in table],
            "line 2 of 'table.csv': a feature is a number",
        ),
        (
            lambda table: [{**line, "age 18..95": "nan"} for line in table],
            "line 2 of 'table.csv': a feature is a number",
        ),
        (
            lambda table: [{**line, "age 18..95": "inf"} for line in table],
            "line 2 of 'table.csv': a feature is a number",
        ),
        (lambda table: [*table[:3], {**table[3], "patient": " "}], "line 5 of 'table.csv' names no patient"),
        (lambda table: [{**line, "label": ""} for line in table], "labels no patient"),
        (lambda table: [{**line, "age 95..18": "3"} for line in table], "a finding must be 1, 0 or empty"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path, change: Callable[..., list], sentence: str) -> None:
    """With the number of a line, and nothing of it."""
    with pytest.raises(DataError, match=re.escape(sentence)) as refused:
        read("table", write(tmp_path, change(lines())))
    assert "old" not in str(refused.value).split()


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        (["age"], "lacks its range"),
        (["age 95..18"], "lacks its range"),
        (["age 18..95", "age 18..95"], "is named twice"),
        (["age 1e3..2e3"], "lacks its range"),
    ],
)
def test_a_job_names_features_with_their_ranges(features: list[str], sentence: str) -> None:
    """Each once; the order is that of the names."""
    with pytest.raises(ConfigError, match=sentence):
        create("fedavg", {**JOB, "features": features})
    assert create("fedavg", {**JOB, "features": FEATURES[::-1]}).config == create("fedavg", JOB).config


def test_a_table_and_a_job_of_another_kind_do_not_meet(folder: Path, tmp_path: Path) -> None:
    """Other features, another range, pictures of a table, and a table of pictures."""
    for features in (FEATURES[:2], [*FEATURES[:2], "sex 0..2"]):
        with pytest.raises(FederationError, match="not those of the site's table"):
            trained(folder, tmp_path / str(len(features)), features=features)
    with pytest.raises(FederationError, match="not those of the site's table"):
        trained(folder, tmp_path / "dense", network="DenseNet121", network_arguments={}, features=[])
    with pytest.raises(FederationError, match="the features of a table"):
        mv.run(mv.Job("fedavg", **{**JOB, "answers": "closed"}), mv.load("phantom"), out=tmp_path / "phantom")
    with pytest.raises((FederationError, DataError), match="the rows of a table are not pictures"):
        mv.run(mv.Job("fedavg", rounds=1, answers=JOB["answers"]), mv.load("table", folder), out=tmp_path / "prompts")
    with pytest.raises(ConfigError, match="is one of hidden_channels"):
        trained(folder, tmp_path / "argument", network_arguments={"groups": 2})
