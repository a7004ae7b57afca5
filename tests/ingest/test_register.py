"""The same cohort under another key or in another folder: recognised by its files and patients, and not let through."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset

import medfedvqa.ingest.ingest as ingestion
from audits import make_secret
from medfedvqa.errors import ConfigError
from medfedvqa.ingest import ledger_binding
from medfedvqa.ingest.cohort_register import CohortCheck, read_register
from medfedvqa.ingest.ledger_binding import check_binding, default_ledger, open_ledger, read_binding
from medfedvqa.ingest.pseudonyms import Pseudonyms, load_pseudonyms
from medfedvqa.ingest.store import MANIFEST, read_manifest
from privacy import LedgerError
from privacy.ledger_accounts import LEDGER_NAME

pytestmark = pytest.mark.slow

Make = Callable[..., Dataset]
Picture = Callable[..., np.ndarray]


@pytest.fixture
def hospital(make_place: Callable, tmp_path: Path, make_dicom: Make, make_picture: Picture):
    """A place with one image of each of two patients, ingested."""
    place = make_place(tmp_path)
    for number in range(2):
        place.add(f"{number}.dcm", make_dicom(make_picture(number), PatientID=f"SECRET-{number}"))
    place.ask("0.dcm", "1.dcm")
    place.ingest()
    return place


def again(place, name: str, key: str | None = None, folder: Path | None = None, ledger: Path | None = None) -> Path:
    """Ingests into another folder, beside the first; by default the same files under a new key."""
    out = place.out.with_name(name)
    options, key_file = ingestion.Options(side=64, max_pixels=2**20, memory=2048, seconds=60), key or f"{name}.key"
    keep = place.dicom if folder is None else folder
    key_path = place.out.with_name(key_file)
    ingestion.ingest(keep, place.questions, out, key_path, options, 1, lambda *_: None, ledger)
    return out


def test_a_store_is_bound_to_the_ledger_beside_it(hospital) -> None:
    """From its first ingestion on; what is noted in store and register names no file, patient or path."""
    assert check_binding(hospital.out, default_ledger(hospital.out))
    register = read_register(default_ledger(hospital.out))
    assert register is not None and (len(register.files), len(register.patients)) == (2, 2)
    assert register.key == read_manifest(hospital.out).key
    kept = [default_ledger(hospital.out) / LEDGER_NAME, hospital.out / ledger_binding.BINDING]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept)
    pseudonyms = load_pseudonyms(hospital.key)
    for secret in ("SECRET", str(hospital.out.parent), pseudonyms.patient("SECRET-0")):
        assert not any(secret.encode() in path.read_bytes() for path in kept)


def test_the_same_files_under_another_key_are_refused(hospital) -> None:
    """A second ingestion into another folder makes no store, and so no fresh budget."""
    with pytest.raises(ConfigError, match="were ingested before, and their budget is in the ledger 'out.ledger'"):
        again(hospital, "other")
    out = hospital.out.with_name("other")
    assert not (out / MANIFEST).exists() and read_binding(out) is None
    assert read_register(default_ledger(out)) is None


def test_the_same_patients_in_other_files_are_refused(
    hospital, tmp_path: Path, make_dicom: Make, make_picture: Picture
) -> None:
    """Files that were exported anew have other bytes: the patient's ID is recognised, its case and spaces aside."""
    (tmp_path / "exported").mkdir()
    hospital.dicom = tmp_path / "exported"
    hospital.add("0.dcm", make_dicom(make_picture(5), PatientID=" secret-1"))
    hospital.ask("0.dcm")
    with pytest.raises(ConfigError, match="were ingested before"):
        again(hospital, "other")


def test_other_patients_under_another_key_have_a_budget_of_their_own(
    hospital, tmp_path: Path, make_dicom: Make, make_picture: Picture
) -> None:
    """Only a cohort that is known is refused."""
    (tmp_path / "exported").mkdir()
    hospital.dicom = tmp_path / "exported"
    hospital.add("0.dcm", make_dicom(make_picture(5), PatientID="SECRET-5"))
    hospital.ask("0.dcm")
    out = again(hospital, "other")
    assert read_binding(out).ledger != read_binding(hospital.out).ledger
    assert read_manifest(out).key != read_manifest(hospital.out).key


def test_a_ledger_is_for_the_stores_of_one_key(hospital) -> None:
    """Given the ledger, ingestion refuses another key before it reads a picture."""
    with pytest.raises(ConfigError, match="the ledger is for stores of another key"):
        again(hospital, "other", ledger=default_ledger(hospital.out))
    assert not list((hospital.out.with_name("other") / "images").iterdir())


def test_the_same_key_in_another_folder_carries_the_budget_over(hospital) -> None:
    """Without the ledger it is refused; with it, the second store is bound to the same ledger, at its newest record."""
    ledger = default_ledger(hospital.out)
    with pytest.raises(ConfigError, match="give it by --ledger"):
        again(hospital, "second", key=hospital.key.name)
    open_ledger(hospital.out, ledger, "chest").close()
    second = again(hospital, "second", key=hospital.key.name, ledger=ledger)
    assert read_binding(second) == read_binding(hospital.out) and read_binding(second).seq > 0
    open_ledger(second, ledger, "head").close()
    with pytest.raises(LedgerError, match="charged to another ledger"):
        open_ledger(second, default_ledger(second), "head")


def test_a_bound_store_is_not_ingested_for_another_ledger(hospital, tmp_path: Path) -> None:
    """What would bind it to a fresh ledger is refused; bringing it up to date under its own is not."""
    with pytest.raises(ConfigError, match="charged to another ledger"):
        again(hospital, hospital.out.name, key=hospital.key.name, ledger=tmp_path / "fresh")
    assert not (tmp_path / "fresh").exists()
    before = read_binding(hospital.out)
    hospital.ingest()
    assert read_binding(hospital.out) == before


def test_a_crash_before_the_manifest_leaves_a_cohort_that_is_known(
    hospital, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The register comes first: the killed ingestion is repeated under its key, and refused under another."""
    shutil.rmtree(hospital.out)
    shutil.rmtree(default_ledger(hospital.out))
    with monkeypatch.context() as crash:
        crash.setattr(ingestion, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            hospital.ingest()
    assert not (hospital.out / MANIFEST).exists()
    with pytest.raises(ConfigError, match="were ingested before"):
        again(hospital, "other")
    hospital.ingest()
    assert check_binding(hospital.out, default_ledger(hospital.out))


def test_a_store_of_an_earlier_version_is_left_to_its_sites(hospital) -> None:
    """Its sites may have a ledger: none is noted until one is named, which also marks the patients."""
    shutil.rmtree(default_ledger(hospital.out))
    (hospital.out / ledger_binding.BINDING).unlink()
    journal = hospital.out / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps({**line, "marks": []}) + "\n" for line in lines))
    hospital.ingest()
    assert read_binding(hospital.out) is None and not default_ledger(hospital.out).exists()
    site = hospital.out.with_name("site")
    open_ledger(hospital.out, site, "chest").close()
    again(hospital, hospital.out.name, key=hospital.key.name, ledger=site)
    register = read_register(site)
    assert register is not None and (len(register.files), len(register.patients)) == (2, 2)


def test_only_who_has_the_ledgers_folder_can_test_a_patient(hospital) -> None:
    """Under another ledger's key the same files and patients have other digests: a register is no oracle."""
    key = load_pseudonyms(hospital.key).fingerprint()
    ledger = default_ledger(hospital.out)
    first = CohortCheck(hospital.out, ledger, key)
    (ledger / "cohort.key").unlink()
    with pytest.raises(ConfigError, match="the ledger's key file is missing"):
        CohortCheck(hospital.out, ledger, key)
    make_secret(ledger / "cohort.key")
    (hospital.out / ledger_binding.BINDING).unlink()
    other = CohortCheck(hospital.out, ledger, key)
    assert first.mark_keys != other.mark_keys
    file, patient = hashlib.sha256((hospital.dicom / "0.dcm").read_bytes()).hexdigest(), "SECRET-0"
    for check, known in ((first, True), (other, False)):
        [marks] = map(Pseudonyms, check.mark_keys)
        assert check._ledger.knows([file], []) is check._ledger.knows([], [marks.mark(patient)]) is known
