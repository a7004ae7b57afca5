"""The documents' example of a distribution from outside, installed by pip, pictures for its reader, and the command."""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from plug_in import forget_plug_ins, installed

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "own_method"
NAME, METHOD, READER, NETWORK = "own-method", "own_method", "png-folder", "small-net"
SMALL = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 8, "blocks": 1, "hidden": 8}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example, offline."""
    place = tmp_path_factory.mktemp("own-method")
    shutil.copytree(EXAMPLE, place / "source")
    return installed(place / "source", place / "target")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of PNGs with a table, drawn here: two organs, eight patients each."""
    folder = tmp_path_factory.mktemp("pictures")
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["picture", "organ", "split", "question", "answer", "patient"])
        for organ in ("chest", "head"):
            for number in range(8):
                picture = Image.new("L", (64, 64), 0)
                if number % 2:
                    ImageDraw.Draw(picture).ellipse((16, 16, 48, 48), fill=200)
                picture.save(folder / f"{organ}{number}.png")
                split = ("train", "train", "train", "train", "validate", "validate", "test", "test")[number]
                answer = "yes" if number % 2 else "no"
                table.writerow([f"{organ}{number}.png", organ, split, "is there a mass", answer, f"{organ}{number}"])
    return folder


@pytest.fixture
def here(target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process can import the distribution; what it allows and loads is forgotten afterwards."""
    forget_plug_ins(monkeypatch, target)
    yield target
    for name in [name for name in sys.modules if name.partition(".")[0] == METHOD]:
        del sys.modules[name]


def medfedvqa(folder: Path, path: Path, *arguments: str, timeout: float = 500) -> subprocess.CompletedProcess[str]:
    """The command, typed in a folder, in a process that finds these distributions as well."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(path)]), "COLUMNS": "300"}
    command = [sys.executable, "-c", "from medfedvqa.cli import main; main()", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
