"""`medfedvqa backbone`: the list, a check of a folder, and a card that a job carries."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_folders import pubmedclip

from medfedvqa.backbone_names import architectures
from medfedvqa.federation.flare.loopback import free_port

NAME = "local-dir:pubmedclip@mine"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = pubmedclip(tmp_path_factory.mktemp("hospital-folder") / "model")
    (made / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    return made


def test_the_list_says_of_every_architecture_whether_it_loads(medfedvqa: Callable[..., Any]) -> None:
    """Those that do not have a reason, and prompts are a column of their own."""
    done = medfedvqa("backbone", "list", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["backbones"]}
    assert done.returncode == 0 and set(architectures()) < set(rows)
    assert rows["RN50"] == {"name": "RN50", "prompts": False, "reason": None}
    assert "swin" in rows["swin_base_patch4_window7_224"]["reason"] and rows["ViT-B-16-SigLIP"]["prompts"]


def test_a_check_of_a_folder_loads_it(medfedvqa: Callable[..., Any], folder: Path) -> None:
    """Digest, towers and licence are shown; the path is not."""
    done = medfedvqa("backbone", "check", NAME, "--file", str(folder), "--json")
    facts = json.loads(done.stdout)
    assert facts["loads"] and len(facts["digest"]) == 64 and facts["licence"] == "mit" and facts["pixels"] == 32
    assert "hospital-folder" not in done.stdout + done.stderr


def test_a_check_without_a_file_says_so_and_a_refusal_fails(medfedvqa: Callable[..., Any]) -> None:
    """A name alone does not load anything."""
    assert "not tried" in medfedvqa("backbone", "check", NAME).stdout
    done = medfedvqa("backbone", "check", "swin_base_patch4_window7_224@mine")
    assert done.returncode == 1 and "cannot be used" in done.stderr


def test_a_job_is_exported_with_a_card_and_not_without(
    medfedvqa: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    """The exported job carries the card that the folder gives."""
    card, out = tmp_path / "card.json", tmp_path / "job"
    done = medfedvqa("backbone", "card", NAME, "--file", str(folder), "--out", str(card))
    assert done.returncode == 0 and "hospital-folder" not in card.read_text(encoding="utf-8")
    words = ["jobs", "export", "prompt_pfl", "--backbone", NAME, "--out", str(out)]
    assert medfedvqa(*words, "--card", str(folder / "config.json")).returncode == 1
    assert medfedvqa(*words, "--card", str(card)).returncode == 0
    exported = [path.read_text(encoding="utf-8") for path in out.rglob("*.json")]
    assert any('"vision_model.encoder.layers' in text for text in exported)


@pytest.mark.parametrize("name", [pytest.param("ViT-B-32/openai", marks=pytest.mark.slow), "hf-hub:org/model"])
def test_weights_of_the_hub_without_a_network_are_refused_by_one_sentence(tmp_path: Path, name: str) -> None:
    """No attempt of the hub's library is printed, nor repeated: these took 52 seconds. The sentence says what to do."""
    words = ["run", "fedavg", "--data", "phantom", "--backbone", name, "--rounds", "1", "--out", str(tmp_path / "out")]
    hub = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    command = [sys.executable, "-c", "from medfedvqa.cli import main; main()", *words]
    done = subprocess.run(
        command, env={**os.environ, **hub, "COLUMNS": "300"}, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    errors = [line for line in done.stderr.splitlines() if line and not line.startswith("medfedvqa run")]
    assert done.returncode == 1 and len(errors) == 1 and "@LABEL" in errors[0], done.stderr
    assert "Retrying" not in done.stdout + done.stderr and "127.0.0.1" not in done.stdout + done.stderr
