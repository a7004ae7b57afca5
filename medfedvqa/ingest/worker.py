"""A process that reads hostile files: `python -m medfedvqa.ingest.worker`.

It imports neither torch nor the rest of the package, so that it starts fast and stays small. It reads tasks as lines
of JSON from standard input and writes answers as lines of JSON to standard output. The first line is the set-up.
"""

import hashlib
import json
import os
import resource
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from PIL import Image, ImageOps
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.ingest.burned_in_text import TextFinder, fitted
from medfedvqa.ingest.deidentify import deidentified, organ, patient_id
from medfedvqa.ingest.device_masks import around_ultrasound, parsed, regions_of
from medfedvqa.ingest.dicom_reading import check_picture, check_size, is_dicom, read_bytes, read_dicom
from medfedvqa.ingest.find_list import Box, Decision, Origin, find_id, write_finds
from medfedvqa.ingest.identifier_forms import fact_forms, header_forms
from medfedvqa.ingest.image_options import Cleaning, Options
from medfedvqa.ingest.image_rendering import render
from medfedvqa.ingest.picture_levels import NoWhite, picture_levels
from medfedvqa.ingest.pseudonyms import UID_ROOT, Pseudonyms
from medfedvqa.ingest.refusal_reasons import EXHAUSTED, Quarantined, Reason
from medfedvqa.ingest.resolve import NOTHING_SAID, Facts, PatientSources
from medfedvqa.ingest.store import picture_id

# Reads a PNG, JPEG or TIFF file as the secondary capture image that a scanner would have made of it.
#
# From there on it is a DICOM image like any other: rendered, cleaned, de-identified and stored by the same code.

FORMATS = ("PNG", "JPEG", "TIFF")
STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
MOST_BYTES_OF_A_PIXEL = 8
"""Four channels of 16 bits, as a decoder may hold them before they become grey."""


def is_picture(content: bytes) -> bool:
    """Whether the bytes begin like a picture. A DICOM file may, too, since its first 128 bytes are free."""
    return content.startswith(STARTS)


def read_picture(content: bytes, options: Options) -> Dataset:
    """The picture in grey, 8 or 16 bits, in a data set without a patient.

    Its size is checked before it is decoded. Levels of 8 bits stay; those of 16 bits have no window, like an image
    that names none. Raises `Quarantined`.
    """
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as picture:
            check_size(picture.height, picture.width, MOST_BYTES_OF_A_PIXEL, options)
            if picture.format != "JPEG" and getattr(picture, "n_frames", 1) > 1:
                raise Quarantined(Reason.SEVERAL_PAGES)
            lossy = picture.format in ("JPEG", "MPO")
            levels, _ = picture_levels(ImageOps.exif_transpose(picture))
    except (Quarantined, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise Quarantined(Reason.TOO_LARGE) from None
    except NoWhite:
        raise Quarantined(Reason.UNKNOWN_COLOURS) from None
    except Exception:  # Pillow raises errors of many kinds for damaged files
        raise Quarantined(Reason.UNDECODABLE) from None
    return _secondary_capture(levels, hashlib.sha256(content).digest(), lossy)


def _secondary_capture(levels: np.ndarray, digest: bytes, lossy: bool) -> Dataset:
    """A data set of `levels`, uint8 or uint16 [rows, columns]. Its UIDs follow from the file's content."""
    dataset, bits = Dataset(), 8 * levels.itemsize
    dataset.SOPClassUID = SecondaryCaptureImageStorage
    for number, keyword in enumerate(("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID")):
        part = hashlib.sha256(digest + bytes([number])).digest()[:16]
        setattr(dataset, keyword, f"{UID_ROOT}{int.from_bytes(part)}")
    dataset.Modality = "OT"
    dataset.LossyImageCompression = "01" if lossy else "00"
    dataset.Rows, dataset.Columns = levels.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PixelRepresentation = 1, "MONOCHROME2", 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = bits, bits, bits - 1
    if bits == 8:
        dataset.WindowCenter, dataset.WindowWidth = 128, 256
    dataset.PixelData = levels.astype(f"<u{levels.itemsize}").tobytes()
    dataset["PixelData"].VR = "OW"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return dataset


Answer = dict[str, Any]
READY = '"ready"\n'


@dataclass(frozen=True)
class _OpenedFile:
    """A file that was read, with what its frames have in common."""

    source: str
    dataset: Dataset
    forms: frozenset[str]
    """The forms of what identifies the patient."""
    numbers: tuple[str, ...]
    """All numbers of the patient."""
    answer: Answer
    """What is the same in the answers about all frames."""


class Worker:
    """Turns each frame of a file into a stored picture, or into a reason why there is none."""

    def __init__(
        self,
        options: Options,
        keys: Pseudonyms,
        images: Path,
        names: frozenset[str],
        registers: Sequence[Pseudonyms] = (),
        finds: Path | None = None,
        sources: PatientSources = NOTHING_SAID,
    ) -> None:
        """`names`: keyed digests of the SOP instance UIDs and accession numbers that questions name. `registers`: the
        keys under which the patient is marked. `finds`: the folder for what is found in pictures, if it is kept.
        `sources`: facts about patients from outside of the files."""
        self._registers, self._finds, self._sources = registers, finds, sources
        self._options, self._keys, self._images, self._names = options, keys, images, names
        self._finder, self._masks = TextFinder(), parsed(options.masks)
        self._file: _OpenedFile | None = None
        """The file that was read last: its further frames come next."""

    def handle(
        self,
        path: Path,
        source: str,
        named: bool,
        names: Sequence[str] = (),
        decisions: Sequence[Answer] = (),
        frame: int | None = None,
    ) -> Answer:
        """The verdict on a frame of the file with the keyed digest `source`, on its main one if `frame` is None.
        `named`: a question names the file by its file name. `names`: the keyed digests of its file names. `decisions`:
        what persons decided about the picture; see `medfedvqa.ingest.review`."""
        answer: Answer = {"found": []}
        try:
            if frame is None or self._file is None or self._file.source != source:
                self._file = None  # before another one takes memory
                self._file = self._opened(path, source, named, names, answer)
            if self._file is None:
                return answer | {"verdict": "unasked"}
            answer.update(self._file.answer)
            answer["image"] = self._store(self._file, frame, decisions)
        except Quarantined as quarantined:
            return answer | {"verdict": "quarantined", "reason": quarantined.reason.value}
        except MemoryError:
            return answer | {"verdict": "quarantined", "reason": Reason.TOO_LARGE.value, EXHAUSTED: True}
        answer["marks"] = [register.mark(number) for register in self._registers for number in self._file.numbers]
        if frame is None:  # the records of other frames need not repeat them
            answer["secrets"] = sorted({self._keys.digest("secret", form) for form in self._file.forms})
        return answer | {"verdict": "stored"}

    def _opened(self, path: Path, source: str, named: bool, names: Sequence[str], answer: Answer) -> _OpenedFile | None:
        """The file and who its patient is; None if no question is about it. `answer` receives what is found on the
        way, also if the file is quarantined."""
        content = read_bytes(path, self._options)
        if self._keys.digest("source", hashlib.sha256(content).hexdigest()) != source:
            raise Quarantined(Reason.UNOPENED)
        if is_picture(content) and not is_dicom(content):
            if not named:
                return None
            dataset = read_picture(content, self._options)
        else:
            dataset = read_dicom(content, self._options)
            answer["found"] = names_of(dataset, self._keys)
        if not named and not self._names & set(answer["found"]):
            return None
        facts = self._sources.about([*names, *answer["found"]])
        forms = known_forms(dataset) | fact_forms(facts)
        answer["nameless"] = not facts.get("name") and not str(dataset.get("PatientName") or "").strip("^ ")
        check_picture(dataset, self._options)
        numbers = self._identify(dataset, facts, answer)
        return _OpenedFile(source, dataset, forms | fact_forms({"patient": numbers}), numbers, dict(answer))

    def _identify(self, dataset: Dataset, facts: Facts, answer: Answer) -> tuple[str, ...]:
        """Make the person's first number the ID in the header, and return all numbers of the person.

        Raises `Quarantined` if header and table name nobody, or more than one person, or a patient who was withdrawn.
        """
        numbers = [str(dataset.get("PatientID") or "").strip("\0 "), *facts.get("patient", ())]
        persons = {self._sources.numbers(number) for number in numbers if number}
        if not persons:
            raise Quarantined(Reason.NO_PATIENT)
        answer["number"] = self._keys.patient(next(filter(None, numbers)))
        if len(persons) > 1:
            raise Quarantined(Reason.SEVERAL_PATIENTS)
        (person,) = persons
        if not self._sources.withdrawn.isdisjoint(map(self._keys.patient, person)):
            raise Quarantined(Reason.WITHDRAWN)
        dataset.PatientID = person[0]
        return person

    def _store(self, file: _OpenedFile, frame: int | None, decisions: Sequence[Answer]) -> Answer:
        dataset, rendered = file.dataset, render(file.dataset, self._options, frame)
        decisions = [decision for decision in decisions if decision.get("frame") in (None, rendered.frame)]
        boxes: dict[str, list[Box]] = {verdict: [] for verdict in ("keep", "blank", "quarantine")}
        accepted = [find for decision in decisions for find in decision.get("finds", ())]
        is_accepted = any(decision["verdict"] == "accept" for decision in decisions)
        for decision in decisions:
            if decision["verdict"] in boxes:
                left, top, right, bottom = decision["box"]
                boxes[decision["verdict"]].append((left, top, right, bottom))
        if boxes["quarantine"]:
            raise Quarantined(Reason.SET_ASIDE)
        patient = self._keys.patient(patient_id(dataset))
        blank_unread = self._options.unread == "blank"
        before = fitted(rendered.grey, self._options.side)
        regions = (*regions_of(dataset, self._masks), *around_ultrasound(dataset))
        masked = [_scaled(region, rendered.original, before.shape) for region in regions]
        cleaned = self._finder.clean(
            rendered.grey,
            self._options.side,
            file.forms.__contains__,
            blank_unread,
            boxes["keep"],
            boxes["blank"] + masked,
        )
        declared = str(dataset.get("BurnedInAnnotation") or "").strip().upper()
        if declared == "YES" and not cleaned.finds:
            raise Quarantined(Reason.TEXT_NOT_FOUND)
        name = picture_id(self._keys.digest("image", file.source), frame)
        decided = {*accepted, *(find_id(name, box) for verdict in ("keep", "blank") for box in boxes[verdict])}
        # What stays was in the picture that the person saw; what is newly blanked or flagged was not decided then.
        changed = {find_id(name, find.box) for find in cleaned.finds if find.decision != Decision.KEPT}
        is_reviewed = is_accepted and not cleaned.flags and changed <= decided
        status = Cleaning.REVIEWED if is_reviewed else Cleaning.OPEN if cleaned.flags else Cleaning.MACHINE
        stored = deidentified(dataset, cleaned.grey, self._keys, self._options, status, frame)
        buffer = BytesIO()
        stored.save_as(buffer, enforce_file_format=True)
        content = buffer.getvalue()
        if self._finds:
            device = str(dataset.get("Manufacturer") or ""), str(dataset.get("ManufacturerModelName") or "")
            write_finds(self._finds, name, cleaned.finds, Origin(before, device, rendered.original))
        write_whole(self._images / f"{name}.dcm", content, PRIVATE)
        return {
            "id": name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "patient": patient,
            "organ": organ(dataset),
            "frame": rendered.frame,
            "frames": rendered.frames,
            "boxes": list(cleaned.boxes),
            "blanked": round(cleaned.share, 6),
            "flags": cleaned.flags,
            "reviewed": is_reviewed,
            "squared": rendered.original != rendered.grey.shape,
        }


def _scaled(region: Box, original: tuple[int, ...], stored: tuple[int, ...]) -> Box:
    """A region of the original in pixels of the stored picture, which it covers wholly."""
    x, y = stored[1] / original[1], stored[0] / original[0]
    left, top, right, bottom = region
    return int(left * x), int(top * y), min(stored[1], -int(-right * x // 1)), min(stored[0], -int(-bottom * y // 1))


def names_of(dataset: Dataset, keys: Pseudonyms) -> list[str]:
    """Keyed digests of the names that a questions file may use for the image, beside its file name."""
    texts = [str(dataset.get(name) or "").strip("\0 ") for name in ("SOPInstanceUID", "AccessionNumber")]
    return [keys.digest("name", text) for text in texts if text]


def known_forms(dataset: Dataset) -> frozenset[str]:
    """The forms of what identifies the patient. Raises `Quarantined` if an element cannot be parsed."""
    try:
        return header_forms(dataset)
    except Exception:  # pydicom raises errors of many kinds for elements that it cannot parse
        raise Quarantined(Reason.UNREADABLE) from None


def main() -> None:
    """Serve until standard input ends."""
    # What libraries print must reach neither the answers nor a terminal that others read.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    warnings.simplefilter("ignore")
    serve(sys.stdin, answers)


def serve(tasks: TextIO, answers: TextIO) -> None:
    """Read the set-up and confirm it with a line; then read a task and write its answer, until there are no more."""
    setup = json.loads(tasks.readline())
    listed = {name: tuple(setup["options"][name]) for name in ("retain", "assume")}
    options = Options(**{**setup["options"], **listed})
    confine(options)
    names = frozenset(setup["wanted"])
    registers = [Pseudonyms(bytes.fromhex(key)) for key in setup["registers"]]
    keys, images, finds = Pseudonyms(bytes.fromhex(setup["key"])), Path(setup["images"]), Path(setup["finds"])
    worker = Worker(options, keys, images, names, registers, finds, PatientSources.from_json(setup["sources"]))
    answers.write(READY)
    for line in tasks:
        task = json.loads(line)
        answer = worker.handle(**task | {"path": Path(task["path"])})
        answers.write(json.dumps(answer) + "\n")


def confine(options: Options) -> None:
    """Bound the memory and the files of this process. It writes no core file, which would hold a patient's data."""
    limit = options.memory * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (options.max_bytes, options.max_bytes))


if __name__ == "__main__":
    main()
