"""pydicom's own test files, those that come with the package: each has an end, none stops the ingestion."""

import json
import socket
from pathlib import Path

import pydicom
import pytest

from medfedvqa.ingest.refusal_reasons import Reason

TESTS = Path(pydicom.__file__).parent / "data" / "test_files"
ENDS = {
    "MR_small.dcm": "stored",
    "JPGExtended.dcm": "stored",
    "examples_palette.dcm": "mostly_text",  # its screen full of text, reduced to 64 pixels
    "SC_rgb_rle.dcm": "few_greys",  # a chart of a dozen colours
    "MR_truncated.dcm": "undecodable",
    "JPEG2000-embedded-sequence-delimiter.dcm": "undecodable",
    "rtdose.dcm": "not_a_picture",
    "liver_1frame.dcm": "not_a_picture",
    "image_dfl.dcm": "no_patient",
    "rtplan.dcm": "no_pixels",
    "dicomdirtests/DICOMDIR": "no_pixels",
    "README.txt": "not_dicom",
    "zipMR.gz": "not_dicom",
    "SC_rgb_small_odd.dcm": "too_small",
}


@pytest.mark.slow
def test_each_file_is_stored_or_quarantined_with_a_reason(place, monkeypatch: pytest.MonkeyPatch) -> None:
    """176 files; nothing is asked of the network."""
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was asked"))
    place.dicom = TESTS
    names = [path.relative_to(TESTS).as_posix() for path in sorted(TESTS.rglob("*")) if path.is_file()]
    place.ask(*names)
    counts = place.ingest(workers=2).counts
    assert counts.files == len(names) == counts.stored + sum(counts.quarantined.values())
    assert counts.stored >= 50 and counts.quarantined[Reason.FEW_GREYS] <= 12 and counts.unasked == 0
    assert not {Reason.CRASHED, Reason.TOO_SLOW, Reason.NO_DECODER, Reason.UNREADABLE} & set(counts.quarantined)
    lines = [json.loads(line) for line in (place.out / "quarantine.jsonl").read_text().splitlines()]
    reasons = {line["file"]: line["reason"] for line in lines if "file" in line}
    assert {name: reasons.get(name, "stored") for name in ENDS} == ENDS
