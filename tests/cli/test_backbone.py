"""`medfedvqa backbone`: the list, a check of a folder, and a card that a job carries."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_folders import pubmedclip

from medfedvqa.backbone_names import architectures

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
