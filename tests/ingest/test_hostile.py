"""Files that want to hurt: each costs its own place in the store, and nothing else."""

import os
import random
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pydicom
import pytest
from damaged_files import LIMITS, mutated, peak
from pydicom.dataset import Dataset
from pydicom.uid import DeflatedExplicitVRLittleEndian

from medfedvqa.errors import ConfigError
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.ingest.refusal_reasons import Reason
from medfedvqa.ingest.worker_pool import FileTask, WorkerProcess

TESTS = Path(pydicom.__file__).parent / "data" / "test_files"
KEYS = Pseudonyms(bytes(32))
Verdict = Callable[[bytes], str]


def task(path: Path) -> FileTask:
    return FileTask(path, KEYS.digest("source", sha256(path.read_bytes()).hexdigest()), True)


@pytest.fixture(scope="module")
def worker(tmp_path_factory) -> Iterator[WorkerProcess]:
    """A worker with small limits."""
    images = tmp_path_factory.mktemp("images")
    process = WorkerProcess(LIMITS, KEYS, images, images.parent, frozenset())
    yield process
    process.close()


@pytest.fixture
def verdict(worker: WorkerProcess, tmp_path: Path) -> Verdict:
    """What becomes of a file: `stored`, or the reason."""

    def judge(content: bytes) -> str:
        path = tmp_path / "hostile.dcm"
        path.write_bytes(content)
        answer = worker.handle(task(path))
        assert answer["verdict"] in ("stored", "quarantined")
        return str(answer.get("reason") or answer["verdict"])

    return judge


def test_a_sound_file_is_stored(verdict: Verdict, make_dicom, encode) -> None:
    """Or nothing below would mean anything."""
    assert verdict(encode(make_dicom())) == "stored"


@pytest.mark.parametrize(("rows", "columns"), [(65535, 65535), (65535, 17), (2**12, 2**12)])
def test_a_huge_declared_size_is_refused_before_decoding(verdict: Verdict, make_dicom, encode, rows, columns) -> None:
    expected = "too_large" if rows * columns > LIMITS.max_pixels else "undecodable"
    assert verdict(encode(make_dicom(Rows=rows, Columns=columns))) == expected


@pytest.mark.parametrize("size", [{"Rows": 0}, {"Columns": 0}, {"Rows": None}, {"Rows": 33}, {"NumberOfFrames": 10**9}])
def test_a_size_that_contradicts_the_pixels_is_quarantined(verdict: Verdict, make_dicom, encode, size) -> None:
    assert verdict(encode(make_dicom(**size))) in ("undecodable", "no_pixels", "too_large")


def test_a_deflated_bomb_is_not_inflated(verdict: Verdict, worker: WorkerProcess, make_dicom, encode) -> None:
    """Three megabytes that would be more than five hundred."""
    dataset = make_dicom()
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    plain = encode(dataset)
    start = 144 + struct.unpack("<I", plain[140:144])[0]
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    zeros, parts = bytes(2**24), []
    parts.append(packer.compress(struct.pack("<HH2sHI", 0x0042, 0x0011, b"OB", 0, 2**31 - 2)))
    parts += [packer.compress(zeros) for _ in range(34)]
    bomb = plain[:start] + b"".join(parts) + packer.flush()
    assert len(bomb) < 2**23 and verdict(bomb) == "too_large"
    assert peak(worker) < LIMITS.memory * 2**20


def test_a_deflated_file_is_read(verdict: Verdict, make_dicom, encode) -> None:
    dataset = make_dicom()
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    content = encode(dataset)
    assert verdict(content) == "stored" and verdict(content[:-20]) == "unreadable"


def test_deeply_nested_sequences_are_quarantined(verdict: Verdict, make_dicom, encode) -> None:
    """Twenty thousand levels of undefined length."""
    sequence, item = b"\x08\x00\x40\x11SQ\0\0\xff\xff\xff\xff", b"\xfe\xff\x00\xe0\xff\xff\xff\xff"
    content = encode(make_dicom())
    start = 144 + struct.unpack("<I", content[140:144])[0]
    assert verdict(content[:start] + 20_000 * (sequence + item)) in ("unreadable", "no_pixels", "crashed")
    assert verdict(content) == "stored"


def test_a_codestream_that_declares_more_than_the_header_is_bounded(verdict: Verdict, worker: WorkerProcess) -> None:
    """JPEG 2000 whose own size is 60,000 by 60,000, in a file that says 64 by 64."""
    content = (TESTS / "MR_small_jp2klossless.dcm").read_bytes()
    place = content.index(b"\xff\x4f\xff\x51") + 8
    huge = content[:place] + struct.pack(">II", 60_000, 60_000) + content[place + 8 :]
    assert verdict(huge) in ("undecodable", "too_large", "crashed")
    assert verdict(content) == "stored" and peak(worker) <= LIMITS.memory * 2**20


@pytest.mark.parametrize("name", ["MR_small.dcm", "MR_small_RLE.dcm", "MR_small_jpeg_ls_lossless.dcm", "image_dfl.dcm"])
def test_truncated_files_have_clear_verdicts(verdict: Verdict, name: str) -> None:
    content = (TESTS / name).read_bytes()
    seen = {verdict(content[: round(share * len(content))]) for share in (0, 0.01, 0.05, 0.2, 0.5, 0.8, 0.97)}
    assert "stored" not in seen and "crashed" not in seen


FUZZED = (
    "MR_small.dcm", "MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm",
    "MR_small_implicit.dcm", "MR_small_bigendian.dcm", "SC_rgb_jpeg_gdcm.dcm", "SC_rgb_rle_2frame.dcm",
    "image_dfl.dcm",
)  # fmt: skip


@pytest.mark.parametrize("rounds", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_fuzzed_files_have_clear_verdicts_in_bounded_memory(
    verdict: Verdict, worker: WorkerProcess, rounds: int
) -> None:
    """Seeded damage to nine files of many syntaxes; afterwards a sound one is read as before."""
    generator, seen = random.Random(rounds), []
    for name in FUZZED:
        content = (TESTS / name).read_bytes()
        seen += [verdict(mutated(content, generator)) for _ in range(rounds)]
    reasons = {reason.value for reason in Reason}
    assert set(seen) <= {"stored", *reasons} and len(set(seen)) > 3
    assert verdict((TESTS / "MR_small.dcm").read_bytes()) == "stored"
    assert peak(worker) <= LIMITS.memory * 2**20


@pytest.mark.slow
def test_a_worker_that_hangs_or_dies_costs_its_file_only(tmp_path: Path, make_dicom, make_picture, encode) -> None:
    """Stopped (as a decoder that hangs), and killed (as one that crashes); the next file has a new worker."""
    paths = [tmp_path / f"{number}.dcm" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(encode(make_dicom(make_picture(number))))
    process = WorkerProcess(replace(LIMITS, seconds=5), KEYS, tmp_path, tmp_path, frozenset())
    try:
        assert process.handle(task(paths[0]))["verdict"] == "stored"
        os.kill(process._process.pid, signal.SIGSTOP)
        assert process.handle(task(paths[1]))["reason"] == "too_slow"
        assert process.handle(task(paths[2]))["verdict"] == "stored"
        os.kill(process._process.pid, signal.SIGKILL)
        assert process.handle(task(paths[3]))["reason"] == "crashed"
    finally:
        process.close()


def test_a_file_that_changes_while_it_is_read_is_quarantined(worker: WorkerProcess, tmp_path: Path) -> None:
    path = tmp_path / "growing.dcm"
    path.write_bytes(b"a")
    known = task(path)
    path.write_bytes(b"ab")
    assert worker.handle(known)["reason"] == "unopened"


def test_a_file_that_is_too_large_is_not_read_whole(verdict: Verdict, tmp_path: Path, worker: WorkerProcess) -> None:
    path = tmp_path / "sparse.dcm"
    with path.open("wb") as file:
        file.truncate(LIMITS.max_bytes + 1)
    assert worker.handle(FileTask(path, "0" * 32, True))["reason"] == "too_large"


def test_declared_text_that_is_not_found_is_doubtful(verdict: Verdict, make_dicom, encode) -> None:
    """The header knows better than the text finder."""
    assert verdict(encode(make_dicom(BurnedInAnnotation="YES"))) == "text_not_found"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"PatientID": None}, "no_patient"),
        ({"Modality": "SEG"}, "not_a_picture"),
        ({"PhotometricInterpretation": "HSV"}, "unknown_colours"),
        ({"SamplesPerPixel": 4}, "unknown_colours"),
        ({"SOPInstanceUID": None}, "no_uid"),
    ],
)
def test_each_kind_of_file_that_cannot_be_used_has_its_reason(
    verdict: Verdict, make_dicom: Callable[..., Dataset], encode, facts: dict[str, object], reason: str
) -> None:
    assert verdict(encode(make_dicom(**facts))) == reason


def test_a_small_or_flat_picture_has_its_reason(verdict: Verdict, make_dicom, encode) -> None:
    assert verdict(encode(make_dicom(np.arange(150, dtype=np.uint16).reshape(15, 10)))) == "too_small"
    assert verdict(encode(make_dicom(np.full((32, 32), 9, np.uint16)))) == "blank"


def test_workers_that_cannot_start_are_one_error_and_no_quarantine(tmp_path: Path, monkeypatch) -> None:
    """A broken installation must not look like a thousand broken files."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    process = WorkerProcess(LIMITS, KEYS, tmp_path, tmp_path, frozenset())
    (tmp_path / "a.dcm").write_bytes(b"a")
    with pytest.raises(ConfigError, match="no worker could be started"):
        process.handle(task(tmp_path / "a.dcm"))
