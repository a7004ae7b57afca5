"""`medfedvqa ingest fetch`: images from an archive with DICOMweb, here Orthanc on the loopback, and from liars."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests
from lying_archive import attempt, liar, table
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import generate_uid
from small_dicom import dicom_bytes, small_dicom

from medfedvqa.dicomweb import FetchOutcome
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.federation.flare.loopback import free_port

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
DEADLINE = 120
SCRIPT = "from medfedvqa.cli import main; main()"


def image(number: int, accession: str, study: str | None = None) -> Dataset:
    """A small radiograph of an invented patient."""
    pixels = np.add.outer(np.arange(40), np.arange(40)).astype(np.uint8) + number
    dataset = small_dicom(pixels, PatientName="SECRET", PatientID=f"SECRET-{number}", AccessionNumber=accession)
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = study or generate_uid(), generate_uid()
    dataset.Modality, dataset.BodyPartExamined, dataset.StudyDate, dataset.StudyTime = "CR", "CHEST", "20120901", "0101"
    return dataset


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty Orthanc on the loopback; its base URL."""
    binary = shutil.which("Orthanc") or shutil.which("Orthanc", path="/usr/sbin")
    if binary is None or not PLUGIN.exists():
        pytest.skip("Orthanc and its DICOMweb plugin are not installed")
    folder, port = tmp_path_factory.mktemp("archive"), free_port()
    settings = {
        "HttpPort": port,
        "DicomServerEnabled": False,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": False,
        "StorageDirectory": str(folder / "db"),
        "IndexDirectory": str(folder / "db"),
        "Plugins": [str(PLUGIN)],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
    }
    (folder / "orthanc.json").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([binary, str(folder / "orthanc.json")], stdout=log, stderr=log)
        try:
            _await(f"http://127.0.0.1:{port}/system", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(DEADLINE)


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end and process.poll() is None:
        try:
            requests.get(url, timeout=5).raise_for_status()
            return
        except requests.RequestException:
            time.sleep(0.1)
    raise AssertionError("the archive did not start")


@pytest.mark.slow
def test_what_questions_name_is_fetched_from_an_archive_and_ingested(archive: str, tmp_path: Path) -> None:
    """By UID and by accession number; a name of several images, of none, and a wildcard fetch nothing. A second call
    asks for nothing that is there. Nothing that is printed names a patient or an image; the rest is left behind."""
    study = generate_uid()
    images = [image(0, "A-0"), image(1, "A-1"), image(2, "A-2", study), image(3, "A-2", study), image(4, "A-4")]
    for dataset in images:
        requests.post(f"{archive}/instances", data=dicom_bytes(dataset), timeout=60).raise_for_status()
    names = (images[0].SOPInstanceUID, "A-1", "A-2", "A-SECRET", "*", "A-?", "1.2.3.4")
    questions, folder = table(tmp_path / "questions.csv", *names), tmp_path / "images"
    command = [sys.executable, "-c", SCRIPT, "ingest", "fetch", f"{archive}/dicom-web", "--questions", str(questions)]

    def run() -> str:
        done = subprocess.run([*command, "--into", str(folder)], capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        assert not any(secret in done.stdout + done.stderr for secret in ("SECRET", "A-1", images[0].SOPInstanceUID))
        return done.stdout

    first = run()
    assert "2 fetched" in first and "4 names of no image" in first and "1 names of several images" in first
    files = {path.name: path for path in folder.iterdir()}
    assert set(files) == {f"{dataset.SOPInstanceUID}.dcm" for dataset in images[:2]}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *files.values()))
    assert all((dcmread(files[f"{d.SOPInstanceUID}.dcm"]).pixel_array == d.pixel_array).all() for d in images[:2])
    assert "2 in the folder before" in run()
    pytest.importorskip("dicomanonymizer")
    limits = ("--side", "64", "--memory", "2048", "--workers", "1")
    places = [str(folder), "--questions", str(questions), "--out", str(tmp_path / "store"), *limits, "--json"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "ingest", *places], capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert (counts["stored"], counts["rows"], counts["rows_left_out"]) == (2, 2, {"no_such_image": 5})


def match(instance: str) -> bytes:
    """A QIDO answer with one instance."""
    tags = {"0020000D": "1.2.3", "0020000E": "1.2.4", "00080018": instance}
    return json.dumps([{tag: {"vr": "UI", "Value": [uid]} for tag, uid in tags.items()}]).encode()


@pytest.mark.parametrize("instance", ["../../SECRET", "/etc/SECRET", "", "1.2.3" * 20, "1.2/3"])
def test_an_archive_cannot_choose_where_a_file_is_written(tmp_path: Path, instance: str) -> None:
    """The name of a file is a UID, or the answer is refused; the error repeats nothing of it."""
    answer = 200, "application/dicom+json", match(instance)
    with liar(lambda _: answer) as url, pytest.raises(DataError, match="names no instance") as caught:
        attempt(url, tmp_path)
    assert "SECRET" not in str(caught.value) and not list((tmp_path / "into").iterdir())


@pytest.mark.parametrize("name", ["*", "A-?", "A-1,A-2"])
def test_a_name_that_would_mean_more_than_one_value_is_not_asked_for(tmp_path: Path, name: str) -> None:
    """A wildcard in a table must not list an archive."""
    queries = list[str]()

    def answer(path: str) -> tuple[int, str, bytes]:
        queries.append(path)
        return 200, "application/dicom+json", match("1.2.5")

    with liar(answer) as url:
        assert attempt(url, tmp_path, name) == {FetchOutcome.NONE: 1} and not queries
        attempt(url, tmp_path, "A-1")
    assert queries


def test_another_image_than_the_one_that_was_asked_for_is_not_kept(tmp_path: Path) -> None:
    """Nor one that is cut; the other images are still fetched."""
    for content in (dicom_bytes(image(0, "A-0")), b"SECRET"):
        body = b"--b\r\nContent-Type: application/dicom\r\n\r\n" + content + b"\r\n--b--"
        kind = 'multipart/related; type="application/dicom"; boundary=b'

        def answer(path: str, body: bytes = body, kind: str = kind) -> tuple[int, str, bytes]:
            return (200, "application/dicom+json", match("1.2.5")) if "?" in path else (200, kind, body)

        with liar(answer) as url:
            assert attempt(url, tmp_path) == {FetchOutcome.DAMAGED: 1}
    assert not list((tmp_path / "into").iterdir())


@pytest.mark.parametrize(("status", "sentence"), [(401, "answers with status 401"), (403, "answers with status 403")])
def test_a_refusal_is_one_sentence_without_the_name(tmp_path: Path, status: int, sentence: str) -> None:
    with liar(lambda _: (status, "text/plain", b"SECRET")) as url, pytest.raises(DataError, match=sentence) as caught:
        attempt(url, tmp_path, "SECRET-7")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text/html", b"<p>SECRET: log in</p>"),
        ("application/dicom+json", b"<p>SECRET</p>"),
        ("application/dicom+json", b'{"SECRET": 1}'),
        ("application/dicom+json", b"[1, 2]"),
        ("application/dicom+json", b'["SECRET"]'),
    ],
)
def test_a_page_in_place_of_an_answer_is_one_sentence(tmp_path: Path, kind: str, content: bytes) -> None:
    """As a portal sends it to whoever has not logged in."""
    with liar(lambda _: (200, kind, content)) as url, pytest.raises(DataError, match="names no instance") as caught:
        attempt(url, tmp_path)
    assert "SECRET" not in str(caught.value)


@pytest.mark.slow
def test_an_archive_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not answer"):
        attempt(f"http://127.0.0.1:{free_port()}", tmp_path)


def test_without_the_package_one_sentence_says_how_to_get_it(medfedvqa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medfedvqa.cli.ingest_images.find_spec", lambda _: None)
    done = medfedvqa("ingest", "fetch", "https://pacs.example", "--questions", "q.csv", "--into", "images")
    assert done.returncode == 1 and "pip install 'medfedvqa[ingest]'" in done.stderr


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://pacs.example/dicom-web", "cross the network in clear"),
        ("ftp://pacs.example", "the URL of its DICOMweb service"),
        ("https://pacs.example:SECRET/dicom-web", "the port of the archive's address must be a number"),
        ("/pacs", "the URL of its DICOMweb service"),
        ("https://user:SECRET@pacs.example", "for --login"),
    ],
)
def test_an_address_that_would_give_patients_away_is_refused(tmp_path: Path, url: str, sentence: str) -> None:
    """Before anything is asked; http is for the loopback, unless the user says otherwise."""
    with pytest.raises(ConfigError, match=sentence) as caught:
        attempt(url, tmp_path)
    assert "SECRET" not in str(caught.value)
