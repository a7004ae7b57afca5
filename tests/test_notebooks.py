"""The notebooks of the documentation run as they stand, and what is committed of them shows nothing of a machine."""

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LARGEST = 400_000
"""Bytes of a notebook with its outputs."""
LONGEST = 30
"""Lines of a cell."""

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.slow
@each
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell, in order, in a new kernel and an empty folder, without an error."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    work = tmp_path / "work"
    work.mkdir()
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(work)}}).execute()
    assert [cell.execution_count for cell in book.cells if cell.cell_type == "code"] == [
        *range(1, len(cells(path)) + 1)
    ]


@each
def test_a_committed_notebook_was_run_from_top_to_bottom(path: Path) -> None:
    """Its cells are numbered in order, each that shows something has its output, and none is an error."""
    counts = [cell.execution_count for cell in cells(path)]
    assert counts == [*range(1, len(counts) + 1)]
    outputs = [output for cell in cells(path) for output in cell.outputs]
    assert outputs and not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


@each
def test_a_committed_notebook_is_small_and_names_no_folder_of_a_machine(path: Path) -> None:
    """A reader sees short cells and figures, and learns nothing of where they were made."""
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert not [place for place in ("/home/", "/root/", "/work/", "/tmp/", "/usr/", "site-packages") if place in text]
    assert max(len(cell.source.splitlines()) for cell in cells(path)) <= LONGEST
