"""Rows in memory and in a file: the same bits, bounded, and gone with the process."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from audits import Refusal
from medfedvqa.devices import DeviceMemoryError
from medfedvqa.federation.error_codes import code_of
from medfedvqa.models import PictureSpace
from medfedvqa.models.picture_space import FileRows

ROWS = torch.randn(10, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
NUMBERS = torch.tensor([9, 0, 3, 3])


def parts(rows: torch.Tensor = ROWS) -> Iterator[torch.Tensor]:
    yield from torch.split(rows, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("rows", [ROWS, ROWS.flatten(1), ROWS.transpose(1, 2)])
def test_a_file_gives_the_bits_that_memory_gives(tmp_path: Path, rows: torch.Tensor, dtype: torch.dtype) -> None:
    """Of every type and shape, in any order, repeated rows as well."""
    rows = rows.to(dtype)
    kept = PictureSpace().keep(10, parts(rows))
    filed = PictureSpace(0, 2**20, tmp_path).keep(10, parts(rows))
    assert isinstance(kept, torch.Tensor) and isinstance(filed, FileRows)
    assert torch.equal(filed[NUMBERS], kept[NUMBERS]) and torch.equal(kept, rows)
    assert filed[NUMBERS].dtype == dtype and filed[NUMBERS[:0]].shape == (0, *rows.shape[1:])


def test_rows_read_ahead_are_read_once_and_have_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where other rows are selected in between, as by a second model that takes the same step."""
    space = PictureSpace(0, 2**20, tmp_path)
    rows, reads, read = space.keep(10, parts()), list[int](), os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        reads.append(offset // ROWS[0].nbytes)
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    space.ahead(NUMBERS)
    space.ahead(NUMBERS)
    assert torch.equal(rows[torch.tensor([1])], ROWS[[1]])
    assert torch.equal(rows[NUMBERS], ROWS[NUMBERS])
    assert sorted(reads) == sorted([1, *NUMBERS.tolist()])
    space.ahead(torch.tensor([10]))
    with pytest.raises(IndexError, match="fewer rows"):
        rows[torch.tensor([10])]


def test_the_file_has_no_name_and_is_for_this_account_only(tmp_path: Path) -> None:
    """So nothing has to be removed, whenever the process dies. The folder is made, for this account only as well."""
    folder = tmp_path / "state"
    rows = PictureSpace(0, 2**20, folder).keep(10, parts())
    assert isinstance(rows, FileRows) and list(folder.iterdir()) == []
    file = os.fstat(rows._file.fileno())
    assert file.st_nlink == 0 and file.st_size == ROWS.nbytes
    assert stat.S_IMODE(file.st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_memory_comes_first_then_the_file_then_a_sentence(tmp_path: Path) -> None:
    """What is no longer used makes room. The sentence names settings, and neither a path nor a number of pictures."""
    space = PictureSpace(ROWS.nbytes, ROWS.nbytes, tmp_path)
    first, second = space.keep(10, parts()), space.keep(10, parts())
    assert isinstance(first, torch.Tensor) and isinstance(second, FileRows)
    assert (space.memory_used, space.disk_used) == (ROWS.nbytes, ROWS.nbytes)
    with pytest.raises(DeviceMemoryError, match="^[^0-9/]*raise disk_mb under 'pictures' in site.yml") as caught:
        space.keep(10, parts())
    assert str(tmp_path) not in str(caught.value)
    del first
    assert (space.memory_used, space.disk_used) == (0, ROWS.nbytes)
    assert isinstance(space.keep(10, parts()), torch.Tensor)
    del second
    assert (space.memory_used, space.disk_used) == (0, 0)


def test_parts_are_taken_one_after_the_other(tmp_path: Path) -> None:
    """No part is asked for before the last one is in its place."""
    alive: list[int] = []

    def counted() -> Iterator[torch.Tensor]:
        for part in parts():
            alive.append(len(alive))
            yield part

    with pytest.raises(DeviceMemoryError):
        PictureSpace(0, 0, tmp_path).keep(10, counted())
    assert alive == [0]


def test_a_full_disk_is_a_sentence_and_for_a_server_of_a_private_job_no_more_than_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much is written depends on the patients. The device `/dev/full` is a disk that is always full."""
    opened = Path("/dev/full").open("w+b")  # noqa: SIM115 - the space closes it
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: opened)
    with pytest.raises(
        DeviceMemoryError, match="^the disk has too little space for the features of this site's pictures"
    ) as caught:
        PictureSpace(0, 2**20, tmp_path).keep(10, parts())
    assert code_of(caught.value, private=True) is Refusal.FAILED
