"""Documents and job folders that follow from the registered methods are what the methods say today."""

import filecmp
import runpy
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.federation.shipped_jobs import shipped_names

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def generated() -> dict[str, Any]:
    """The program's names."""
    return runpy.run_path(str(ROOT / "docs" / "generated.py"))


def test_generated_documents_are_what_the_methods_say(generated: dict[str, Any]) -> None:
    """If this fails: `make generated`. A page that somebody wrote is not overwritten."""
    documents = generated["documents"]()
    assert all(path.read_text(encoding="utf-8") == text for path, text in documents.items())
    assert {path.stem for path in documents} >= {"fedavgm", "fedadam", "fedyogi", "matrix", "index"}
    assert "prompt_pfl" not in {path.stem for path in documents}


def test_the_committed_job_folders_are_what_the_methods_export_today(generated: dict[str, Any], tmp_path: Path) -> None:
    """If this fails: `make generated`. Each method has a folder, file by file what the recipe exports."""
    generated["export_jobs"](tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == set(shipped_names())
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert filecmp.cmp(path, ROOT / "nvflare_jobs" / path.relative_to(tmp_path), shallow=False), path.name
