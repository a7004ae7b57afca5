"""Ten thousand damaged DICOM files, pictures and tables: each has a verdict or one sentence, and does no more harm."""

import json
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
import pydicom
import pytest
from damaged_files import LIMITS, mutated, peak
from openpyxl import Workbook
from PIL import Image
from pydicom.dataset import Dataset

from medfedvqa.errors import DataError
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.ingest.questions import read_questions
from medfedvqa.ingest.refusal_reasons import Reason
from medfedvqa.ingest.resolve import PatientSources
from medfedvqa.ingest.worker_pool import FileTask, WorkerProcess

TESTS = Path(pydicom.__file__).parent / "data" / "test_files"
SYNTAXES = (
    "MR_small.dcm", "MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm",
    "MR_small_implicit.dcm", "MR_small_bigendian.dcm", "SC_rgb_jpeg_gdcm.dcm", "image_dfl.dcm",
)  # fmt: skip
KEYS = Pseudonyms(bytes(32))
SECRET = "SECRET"
"""Who the patient is in each original."""
PICTURE = "mutated.png"
SEEDS, ROUNDS, FEW = 41, 14, 1
"""Seeds of the release tier, and rounds over all 18 originals for each: 10,332 files. The fast tier has one seed and a
single round."""
LARGEST_GROWTH = 512 << 20
"""Bytes by which the process that reads tables may grow."""
SLOWEST = replace(LIMITS, seconds=300)
"""Time enough on a machine that does other things as well: what takes it hangs."""


def pictures() -> Iterator[bytes]:
    """A small picture in each format."""
    y, x = np.mgrid[0:48, 0:48] / 48 - 0.5
    levels = Image.fromarray((250 * np.exp(-8 * (x**2 + y**2))).astype(np.uint8))
    for kind in ("PNG", "JPEG", "TIFF"):
        buffer = BytesIO()
        levels.save(buffer, kind)
        yield buffer.getvalue()


def tables() -> Iterator[tuple[str, bytes]]:
    """The same questions in each form, by the ending of the file."""
    names = ("file", "question", "answer", "patient", "name")
    rows = [(f"{n}.png", f"{SECRET} {n}?", "yes", f"{SECRET}-{n}", f"{SECRET}, Anna") for n in range(12)]
    text = "\n".join(";".join(row) for row in (names, *rows))
    workbook, buffer = Workbook(), BytesIO()
    for row in (names, *rows):
        workbook.active.append(row)
    workbook.save(buffer)
    yield ".csv", text.encode()
    yield ".csv", text.encode("utf-16")
    yield ".csv", text.replace("Anna", "Änne").encode("cp1252")
    yield ".tsv", text.replace(";", "\t").encode()
    yield ".jsonl", "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows).encode()
    yield ".xlsx", buffer.getvalue()


def damaged(content: bytes, generator: random.Random) -> bytes:
    """A mutation of any part of a file; those of DICOM files spare the preamble, of which nothing is read."""
    return mutated(bytes(132) + content, generator)[132:]


@pytest.fixture(scope="module")
def worker(tmp_path_factory) -> Iterator[WorkerProcess]:
    images = tmp_path_factory.mktemp("images")
    facts = {"patient": [f"{SECRET}-1"], "name": [f"{SECRET}, Anna"]}
    sources = PatientSources({KEYS.digest("name", PICTURE): facts})
    process = WorkerProcess(SLOWEST, KEYS, images, images.parent, frozenset(), sources=sources)
    yield process
    process.close()


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, FEW), *(pytest.param(seed, ROUNDS, marks=pytest.mark.release) for seed in range(SEEDS))]
)
def test_damaged_files_have_verdicts_in_bounded_time_and_memory(
    worker: WorkerProcess, tmp_path: Path, make_dicom: Callable[..., Dataset], encode: Callable, seed: int, rounds: int
) -> None:
    """A file that crashes a decoder costs itself; none hangs or outgrows its reader, and no answer names a patient."""
    generator, verdicts, sound = random.Random(seed), Counter[str](), encode(make_dicom())
    dicoms = [sound, *((TESTS / name).read_bytes() for name in SYNTAXES)]
    for _ in range(rounds):
        for content in dicoms:
            verdicts[verdict(worker, tmp_path / "mutated.dcm", mutated(content, generator))] += 1
        for content in pictures():
            verdicts[verdict(worker, tmp_path / PICTURE, damaged(content, generator))] += 1
    assert verdicts.total() == 12 * rounds
    assert verdicts.keys() <= {"stored", *(reason.value for reason in Reason)} - {"too_slow"}, verdicts
    assert verdict(worker, tmp_path / "mutated.dcm", sound) == "stored"
    assert peak(worker) <= SLOWEST.memory * 2**20


def verdict(worker: WorkerProcess, path: Path, content: bytes) -> str:
    """What becomes of a file: `stored`, or the reason. The worker's answer repeats no name."""
    path.write_bytes(content)
    source = KEYS.digest("source", sha256(content).hexdigest())
    answer = worker.handle(FileTask(path, source, True, [KEYS.digest("name", path.name)]))
    assert SECRET not in json.dumps(answer)
    return str(answer.get("reason") or answer["verdict"])


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 20), *(pytest.param(seed, ROUNDS, marks=pytest.mark.release) for seed in range(SEEDS))]
)
def test_damaged_tables_are_read_or_refused_with_one_sentence(tmp_path: Path, seed: int, rounds: int) -> None:
    """A sentence is a `DataError`, and it quotes nothing of the table."""
    generator, outcomes, before = random.Random(seed), Counter[str](), largest_memory()
    for _ in range(rounds):
        for ending, content in tables():
            path = tmp_path / f"questions{ending}"
            path.write_bytes(damaged(content, generator))
            try:
                read_questions(path)
                outcomes["read"] += 1
            except DataError as error:
                assert SECRET not in str(error) and "\n" not in str(error)
                outcomes["refused"] += 1
    assert outcomes.total() == 6 * rounds and len(outcomes) == 2
    assert largest_memory() - before <= LARGEST_GROWTH


def largest_memory() -> int:
    """The most bytes of memory that this process had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
