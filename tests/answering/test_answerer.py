"""A finished run's model answers: it is the model that was tested, and nothing of a question is written down."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import torch
from PIL import Image
from tiny_clip import TINY

from audits import Event, VerdictState, examine, read
from medfedvqa.answering.answerer import Answerer, picture_of
from medfedvqa.answering.kept_run import load_kept
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.method import TESTED
from medfedvqa.core.scores import RIGHT
from medfedvqa.data.images import load_image
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run
from medfedvqa.models import TunedModel

SECRET = "Is there a pneumothorax of Zaphod?"
CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedavg", {"keep": "best", "own": "head"}),
    ("fedkd", {"evaluated": "personal", "tuning": "classifier"}),
    ("feddat", {"inference": "both", "finish_epochs": 1}),
    ("prompt_pfl", {"finish_epochs": 1, "keep": "best"}),
]


def test_the_model_that_answers_is_the_one_that_was_tested(finished: Path) -> None:
    """On every test row it is right exactly where the job's own test was, and it has the last shared prompts."""
    check_tested(finished)
    kept = load_kept(finished, "chest")
    site = kept.site(kept.own_data())
    model = kept.job.build().answering(site, kept.state).model
    assert isinstance(model, TunedModel) and model.shared and model.shared.keys() == kept.state[TESTED].keys()
    assert all(torch.equal(value, kept.state[TESTED][name]) for name, value in model.shared.items())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options"), CASES)
def test_so_is_every_other_kind_of_model(
    method: str, options: dict[str, Any], tiny_backbone: Path, tmp_path: Path
) -> None:
    """The last mean, the best round, a mentor, two adapters, a model that the site finished itself."""
    quick = {"rounds": 2, "local_epochs": 2, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16}
    job = {"method": method, "options": {**quick, "answers": "closed", **options}, "data": "phantom", "backbone": TINY}
    launch = plan(JobSpec.from_dict(job), None, tmp_path / "run", ("chest", "head"), 1, {TINY: tiny_backbone})
    run(launch, "local", lambda event: None)
    check_tested(tmp_path / "run")


def check_tested(folder: Path) -> None:
    """Each site's model is right on the test rows that its state says."""
    for name in ("chest", "head"):
        kept = load_kept(folder, name)
        site = kept.site(kept.own_data())
        answering = kept.job.build().answering(site, kept.state)
        chosen = answering.probabilities(site, site.data.test).argmax(dim=1)
        places = {answer: number for number, answer in enumerate(answering.answers)}
        right = torch.tensor([places.get(site.data.answers[a], -1) if a >= 0 else -1 for a in site.data.test.answers])
        tested = kept.state[KEPT][RIGHT][kept.state[KEPT]["model"]] if KEPT in kept.state else kept.state[RIGHT]
        assert torch.equal(chosen == right, tested)


def test_an_answer_is_logged_without_anything_of_the_question(finished: Path, picture: Path) -> None:
    """One entry for each answer, signed, in a log whose integrity is shown; no file of the run holds the question."""
    folder = finished / "sites" / "chest" / "audit"
    before = len(list(read(folder)))
    with Answerer(load_kept(finished, "chest")) as answerer:
        reply = answerer.ask(picture.read_bytes(), SECRET, 3)
        answerer.ask(picture.read_bytes(), SECRET, 3)
    entries = list(read(folder))[before:]
    assert [entry.event for entry in entries] == [Event.ANSWERED] * 2
    assert {entry.job for entry in entries} == {"run"} and not any(entry.reason for entry in entries)
    assert examine(folder, "chest", network=False).integrity.state is VerdictState.SHOWN
    for path in finished.rglob("*"):
        assert not path.is_file() or not any(w in path.read_bytes() for w in (b"Zaphod", b"picture.png"))
    shares = [share for _, share in reply.answers]
    assert len(shares) == 3 and shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1


def test_a_picture_is_seen_as_in_training(picture: Path, tmp_path: Path) -> None:
    """Bytes, and DICOM of the same greys, become the tensor that a reader makes of the file."""
    wanted = load_image(picture, 32, 0)
    assert torch.equal(picture_of(picture.read_bytes(), 32), wanted)
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.SOPClassUID, dataset.SOPInstanceUID = pydicom.uid.SecondaryCaptureImageStorage, "1.2.3"
    dataset.file_meta.MediaStorageSOPClassUID, dataset.file_meta.MediaStorageSOPInstanceUID = "1.2", "1.2.3"
    dataset.Rows, dataset.Columns, dataset.SamplesPerPixel = 61, 90, 1
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit, dataset.PixelRepresentation, dataset.PhotometricInterpretation = 7, 0, "MONOCHROME2"
    dataset.WindowCenter, dataset.WindowWidth = 128, 256
    dataset.PixelData = np.asarray(Image.open(picture)).tobytes()
    dataset.save_as(tmp_path / "picture.dcm", enforce_file_format=True)
    assert torch.allclose(picture_of((tmp_path / "picture.dcm").read_bytes(), 32), wanted, atol=1 / 255)


def huge() -> bytes:
    content = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(content, "PNG")
    return content.getvalue()


@pytest.mark.parametrize("content", [b"", b"Zaphod", bytes(128) + b"DICMZaphod", b"\x89PNG\r\n\x1a\nZaphod", huge()])
def test_what_is_no_picture_is_refused_in_a_sentence_that_says_nothing_of_it(content: bytes) -> None:
    """Empty, text, broken DICOM, a cut PNG, 400 million pixels."""
    with pytest.raises(ConfigError, match="PNG, JPEG or DICOM") as refused:
        picture_of(content, 32)
    assert "Zaphod" not in str(refused.value)


def test_a_state_without_a_tested_model_is_refused(finished: Path) -> None:
    """A job that ended before its evaluation, and a method without an answer head."""
    kept = load_kept(finished, "chest")
    site = kept.site(kept.own_data())
    untested = {name: value for name, value in kept.state.items() if name != TESTED}
    with pytest.raises(ConfigError, match="before its evaluation"):
        kept.job.build().answering(site, untested)
    split = JobSpec(method="unicon", options={"aggregate": "none"}, backbone=TINY).build()
    with pytest.raises(ConfigError, match="'unicon' keeps no answer head"):
        split.answering(site, kept.state)


@pytest.mark.parametrize("question", ["", "  \n", "w" * 1001])
def test_a_question_has_words(finished: Path, picture: Path, question: str) -> None:
    """An empty question and an endless one are refused before anything is logged."""
    folder = finished / "sites" / "head" / "audit"
    before = len(list(read(folder)))
    with (
        Answerer(load_kept(finished, "head")) as answerer,
        pytest.raises(ConfigError, match="a question must have words"),
    ):
        answerer.ask(picture.read_bytes(), question, 1)
    assert len(list(read(folder))) == before


def test_several_jobs_need_a_name(finished: Path, tmp_path: Path) -> None:
    """A site of a federation keeps the states of many jobs; `job_id` chooses, by the name in the log."""
    site = tmp_path / "site"
    text = (finished / "sites" / "chest" / "site.yml").read_text()
    (site / "state").mkdir(parents=True)
    (site / "site.yml").write_text(text.replace(str(finished / "sites" / "chest" / "state"), str(site / "state")))
    state = (finished / "sites" / "chest" / "state" / "run.pt").read_bytes()
    for name in ("one", "two"):
        (site / "state" / f"{name}.pt").write_bytes(state)
    with pytest.raises(ConfigError, match="the state of 2 jobs: name one by --job"):
        load_kept(finished, str(site / "site.yml"))
    with pytest.raises(ConfigError, match="no state of the job"):
        load_kept(finished, str(site / "site.yml"), "three")
    assert load_kept(finished, str(site / "site.yml"), "two").job_id == "two"


def test_json_is_one_document(medfedvqa: Any, finished: Path, picture: Path) -> None:
    """The command's answers, its test figures, and the warning."""
    done = medfedvqa("answer", "--run", str(finished), "--site", "chest", "--picture", str(picture),
                     "--question", SECRET, "--top", "2", "--json")  # fmt: skip
    document = json.loads(done.stdout)
    assert done.returncode == 0 and len(document["answers"]) == 2 and "not a medical device" in document["notes"][-1]
    results = json.loads((finished / "results.json").read_text())["sites"]["chest"]
    assert (document["tested"]["correct"], document["tested"]["rows"]) == (results["correct"], results["n"])


def test_the_answer_is_printed_with_its_warning(medfedvqa: Any, finished: Path, picture: Path) -> None:
    """Each answer with its probability; a missing picture is named by its option alone."""
    arguments = ("answer", "--run", str(finished), "--site", "chest", "--question", SECRET, "--picture")
    done = medfedvqa(*arguments, str(picture))
    assert done.returncode == 0 and done.stdout.count("%  ") == 5 and "not a medical device" in done.stdout
    missing = medfedvqa(*arguments, str(picture.with_name("Zaphod.png")))
    assert missing.returncode == 1 and "--picture" in missing.stderr and "Zaphod" not in missing.stderr


@pytest.mark.parametrize(
    ("name", "hint"), [("chst", "did you mean 'chest'"), ("../chest", "the run's sites are|did you mean")]
)
def test_a_name_that_is_no_site_of_the_run_gets_those_that_are(finished: Path, name: str, hint: str) -> None:
    """Before any file of a site is looked for."""
    with pytest.raises(ConfigError, match=f"there is no site .* in this run: ({hint})"):
        load_kept(finished, name)
