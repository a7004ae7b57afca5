"""The prompts that the server saw come back as they were, and only as plain arrays."""

from pathlib import Path

import numpy as np
import pytest

from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import History, load_transcript, save_transcript


def test_prompts_come_back_bit_for_bit(tmp_path: Path, history: History) -> None:
    assert save_transcript(tmp_path, history) == tmp_path / "transcript.npz"
    transcript = load_transcript(tmp_path)
    for before, after in ((history.uploads, transcript.uploads), (history.shared, transcript.shared)):
        assert list(after) == list(before)
        for site in before:
            assert list(after[site]) == list(before[site])
            for name, array in before[site].items():
                assert after[site][name].dtype == array.dtype
                assert np.array_equal(after[site][name], array)


def test_a_run_that_shared_nothing_has_an_empty_transcript(tmp_path: Path) -> None:
    save_transcript(tmp_path, History(("chest",)))
    transcript = load_transcript(tmp_path)
    assert transcript.uploads == {} and transcript.shared == {}


def test_tensor_names_may_hold_a_slash(tmp_path: Path) -> None:
    save_transcript(tmp_path, History(("chest",), uploads={"chest": {"image/prompt": np.zeros(2)}}))
    assert list(load_transcript(tmp_path).uploads["chest"]) == ["image/prompt"]


def test_a_folder_without_transcript_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no transcript.npz"):
        load_transcript(tmp_path)


def test_a_damaged_transcript_is_refused(tmp_path: Path, history: History) -> None:
    path = save_transcript(tmp_path, history)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ConfigError, match="damaged"):
        load_transcript(tmp_path)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "transcript.npz", **{"uploads/chest/prompt": np.array([{}], dtype=object)})
    with pytest.raises(ConfigError, match="damaged"):
        load_transcript(tmp_path)
