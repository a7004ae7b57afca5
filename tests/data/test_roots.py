"""Which data a command finds."""

from pathlib import Path

import pytest

from medfedvqa.data.data_roots import first_root
from medfedvqa.data.layouts import of_reader
from medfedvqa.errors import ConfigError, DataError

NAMES = ("slake", "vqa-rad")


def test_the_first_set_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a folder of its name, or directly. Without any folder the phantom set; a folder without data is an error."""
    monkeypatch.delenv("MEDFEDVQA_DATA", raising=False)
    assert first_root(NAMES, None) == ("phantom", None)
    with pytest.raises(DataError, match="no data of slake or vqa-rad is found in"):
        first_root(NAMES, tmp_path)
    for name in reversed(NAMES):
        (tmp_path / name).mkdir()
        (tmp_path / name / of_reader(name)[0].marks[0]).touch()
        assert first_root(NAMES, tmp_path) == (name, tmp_path / name)
    assert first_root(NAMES, tmp_path / "vqa-rad") == ("vqa-rad", tmp_path / "vqa-rad")
    monkeypatch.setenv("MEDFEDVQA_DATA", str(tmp_path))
    assert first_root(NAMES, None) == ("slake", tmp_path / "slake")
    with pytest.raises(ConfigError, match="does not exist: check its spelling"):
        first_root(NAMES, tmp_path / "nowhere")
