"""A network of MONAI that a site kept becomes a bundle, which MONAI alone reads."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import medfedvqa as mv
from audits import Event, read
from medfedvqa.answering.answerer import Answerer
from medfedvqa.answering.export import export
from medfedvqa.answering.kept_run import KeptRun, load_kept
from medfedvqa.errors import ConfigError
from medfedvqa.models import picture_networks

SMALL = {"init_features": 4, "growth_rate": 4, "block_config": [2, 2], "groups": 2, "bn_size": 2}
ALONE = """
import json, sys
for name in ("medfedvqa", "audits", "privacy"):
    sys.modules[name] = None
from monai.bundle import ConfigParser
parser = ConfigParser()
parser.read_config(sys.argv[1] + "/configs/inference.json")
parser["bundle_root"] = sys.argv[1]
parser.get_parsed_content("loaded")
network = parser.get_parsed_content("network_def").eval()
picture = parser.get_parsed_content("preprocessing")(sys.argv[2])
outputs = parser.get_parsed_content("inferer")(picture[None], network)
print(json.dumps(parser.get_parsed_content("postprocessing")(outputs[0]).tolist()))
"""
"""Answers in a process in which this project cannot be imported."""


def small(channels: int, outputs: int) -> torch.nn.Module:
    layers = torch.nn.Conv2d(channels, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    return torch.nn.Sequential(*layers, torch.nn.Linear(4, outputs))


def films(root: Path) -> Path:
    """Two sites of six pictures, and two to ask about."""
    root.mkdir()
    lines = ["picture,patient,site,split,label"]
    for number in range(12):
        grey = np.random.default_rng(number).integers(0, 100, (33, 47)) + 120 * (number % 2)
        Image.fromarray(grey.astype(np.uint8)).save(root / f"{number}.png")
        part = "test" if number > 7 else "train"
        lines.append(f"{number}.png,p{number},{('north', 'south')[number // 2 % 2]},{part},{('no', 'yes')[number % 2]}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def kept_run(tmp_path: Path, **options: object) -> KeptRun:
    """A site's model of a finished job, under a policy that allows exports."""
    options = {"pixels": 32, "rounds": 1, "answers": ["no", "yes"], **options}
    mv.run(mv.Job("fedavg", **options), mv.load("image-classes", films(tmp_path / "films")), out=tmp_path / "run")
    kept = load_kept(tmp_path / "run", "north")
    policy = replace(kept.config.policy, allow_export=True)
    return replace(kept, config=kept.config.model_copy(update={"policy": policy}))


@pytest.mark.slow
def test_monai_alone_answers_as_the_site_does(tmp_path: Path) -> None:
    """From the picture's file on, in a process without this project; the log names the weights; no code is in it."""
    kept = kept_run(tmp_path, network="DenseNet121", network_arguments=SMALL)
    with Answerer(kept) as answerer:
        folder = export(kept, answerer, tmp_path / "bundle")
        grey = torch.from_numpy(np.array(Image.open(tmp_path / "films" / "9.png"))).float()
        wanted = answerer.probabilities(grey, "").tolist()
    words = [sys.executable, "-c", ALONE, str(folder), str(tmp_path / "films" / "9.png")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx(wanted, abs=1e-4)
    metadata = json.loads((folder / "configs" / "metadata.json").read_text())
    assert metadata["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "no", "1": "yes"}
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {"configs/inference.json", "configs/metadata.json", "models/model.pt", "docs/README.md"}
    assert [entry for entry in read(kept.config.audit) if entry.event is Event.EXPORTED]
    assert "no epsilon bounds" in (folder / "docs" / "README.md").read_text()


@pytest.mark.parametrize(
    "network, sentence",
    [
        ({"network": "small"}, "only a MONAI network for pictures can be exported"),
        ({"network": "ResNet10", "network_arguments": {"widen_factor": 0.125}}, "group normalisation"),
    ],
)
def test_a_network_that_monai_does_not_build_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr(picture_networks, "_REGISTERED", {})
    picture_networks.register_network("small", small)
    kept = kept_run(tmp_path, **network)
    with Answerer(kept) as answerer, pytest.raises(ConfigError, match=sentence):
        export(kept, answerer, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    assert not [entry for entry in read(kept.config.audit) if entry.event is Event.EXPORTED]
