"""The list of patients who were withdrawn from a store. Ingestion leaves them out from then on."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from audits.bounded_files import read_bounded
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import DataError
from medfedvqa.ingest.store import Keyed, StrictModel

WITHDRAWN = "withdrawn-patients.json"
MAX_LIST = 1 << 26


class WithdrawnNumber(StrictModel):
    """A number of a patient who was withdrawn."""

    patient: Keyed = Field(repr=False)
    """The pseudonym of the number."""
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class WithdrawalList(StrictModel):
    """The store's list."""

    format: Literal["medfedvqa-withdrawn/1"] = "medfedvqa-withdrawn/1"
    withdrawn: list[WithdrawnNumber] = []


def read_withdrawals(store: Path) -> WithdrawalList:
    """The list, empty if nobody was withdrawn. Raises `DataError`."""
    path = store / WITHDRAWN
    if not path.exists():
        return WithdrawalList()
    try:
        return WithdrawalList.model_validate_json(read_bounded(path, MAX_LIST))
    except (OSError, ValidationError):
        raise DataError(f"the store's '{WITHDRAWN}' is damaged: restore it, or withdrawn patients come back") from None


def withdrawn_patients(store: Path) -> frozenset[str]:
    """The pseudonyms of all numbers of patients who were withdrawn."""
    return frozenset(entry.patient for entry in read_withdrawals(store).withdrawn)


def add_withdrawals(store: Path, patients: Collection[str]) -> None:
    """Adds the pseudonyms of all numbers of a patient."""
    before = read_withdrawals(store).withdrawn
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    new = sorted(set(patients) - {entry.patient for entry in before})
    whole = WithdrawalList(withdrawn=[*before, *(WithdrawnNumber(patient=patient, time=moment) for patient in new)])
    write_whole(store / WITHDRAWN, whole.model_dump_json(indent=2).encode() + b"\n", PRIVATE)
