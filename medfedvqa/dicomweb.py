"""Fetches the images in a table of questions from an archive with DICOMweb (PS3.18: QIDO-RS and WADO-RS).

It writes files into a folder without inspecting them; `medfedvqa ingest` then reads that folder like any other.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from dicomweb_client import DICOMwebClient
from pydicom.dataset import Dataset

from audits.bounded_files import MAX_TEXT, read_bounded
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.guarded_http import AnswerLimits, AnswerRefused, guarded_session, origin
from medfedvqa.ingest.organs import checked_organs
from medfedvqa.ingest.questions import named_images

UID = re.compile(r"[0-9]+(\.[0-9]+)+")
MOST_LETTERS_OF_A_UID = 64
_LIMITS = AnswerLimits()
_WILDCARDS = frozenset("*?\\,")
"""Characters that make a query match more than one value (PS3.18 section 8.3.4)."""
_FIELDS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
_NO_MATCHES = "the archive's answer names no instance: check that the URL is that of its DICOMweb service"
Watch = Callable[[int, int], None]
"""A function that receives the number of names done, and their total."""


class FetchOutcome(StrEnum):
    """The outcome of fetching the image for a name."""

    FETCHED = "fetched"
    PRESENT = "present"
    NONE = "none"
    SEVERAL = "several"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class InstanceAddress:
    """The UIDs by which the archive finds an instance."""

    study: str
    series: str
    instance: str


def fetch(
    url: str,
    questions: Path,
    folder: Path,
    watch: Watch,
    organs: Collection[str] = (),
    plain_http: bool = False,
    login: Path | None = None,
    limits: AnswerLimits = _LIMITS,
) -> Counter[FetchOutcome]:
    """Fetches each image that a question names by SOP instance UID or accession number, and counts the outcomes.

    A name with several images, or none, is left to the ingestion, which lists its questions. Images that are in the
    folder already are not fetched again. `organs`: the hospital's own organ names, for the questions. `plain_http`:
    whether names and images may cross the network in clear. `login`: a file with `USER:PASSWORD`. Raises
    `ConfigError` or `DataError`; neither repeats a name or the archive's answer.
    """
    _check_url(url, plain_http)
    names = named_images(questions, checked_organs(organs))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    outcomes = Counter[FetchOutcome]()
    only_loopback = urlsplit(url).scheme == "http" and not plain_http
    with guarded_session(url, limits, only_loopback, _login(login) if login else None) as session:
        client = DICOMwebClient(url, session=session)
        client.set_http_retry_params(retry=False)  # it would repeat what the session refuses
        for done, name in enumerate(names, 1):
            outcomes[_fetch_one(client, name, folder)] += 1
            watch(done, len(names))
    return outcomes


def _check_url(url: str, plain_http: bool) -> None:
    parts = urlsplit(url)
    try:
        origin(url)
    except ValueError:
        raise ConfigError("the port of the archive's address must be a number: https://HOST:PORT/dicom-web") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("the archive's address must be the URL of its DICOMweb service: https://HOST/dicom-web")
    if parts.username or parts.password:
        raise ConfigError("write user and password into a file for --login and not into the URL, which others may read")
    if parts.scheme == "http" and not plain_http and not _is_loopback(parts.hostname):
        raise ConfigError("over http, patients' images cross the network in clear: use https, or --plain-http")


def _login(file: Path) -> tuple[bytes, bytes]:
    """User and password, from a file that only its owner may read. Raises `ConfigError`."""
    try:
        is_private = file.stat().st_mode & 0o077 == 0
        user, colon, password = read_bounded(file, MAX_TEXT).strip().partition(b":")
    except OSError:
        raise ConfigError("the file of --login cannot be read: give a file with one line, USER:PASSWORD") from None
    if not is_private:
        raise ConfigError("others may read the file of --login: chmod 600 it")
    if not (user and colon and password) or b"\n" in password:
        raise ConfigError("the file of --login must have one line, USER:PASSWORD")
    return user, password


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _fetch_one(client: DICOMwebClient, name: str, folder: Path) -> FetchOutcome:
    if _WILDCARDS & set(name):
        return FetchOutcome.NONE
    if _is_uid(name) and (folder / f"{name}.dcm").exists():
        return FetchOutcome.PRESENT
    try:
        addresses = list(_addresses(client, name))
        if len(addresses) != 1:
            return FetchOutcome.SEVERAL if addresses else FetchOutcome.NONE
        path = folder / f"{addresses[0].instance}.dcm"
        if path.exists():
            return FetchOutcome.PRESENT
        content = _instance(client, addresses[0])
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else "unknown"
        raise DataError(f"the archive answers with status {status}: check URL, rights and --login") from None
    except requests.JSONDecodeError:
        raise DataError(_NO_MATCHES) from None
    except (requests.RequestException, OSError):
        raise DataError("the archive does not answer, or its certificate is not trusted: check the URL") from None
    if content is None:
        return FetchOutcome.DAMAGED
    write_whole(path, content, PRIVATE)
    return FetchOutcome.FETCHED


def _addresses(client: DICOMwebClient, name: str) -> Iterator[InstanceAddress]:
    """At most two instances for a name: by SOP instance UID, else by the accession number of their study."""
    if _is_uid(name):
        matches = client.search_for_instances(search_filters={"SOPInstanceUID": name}, limit=2)
        if matches:
            yield from map(_address, matches)
            return
    studies = client.search_for_studies(search_filters={"AccessionNumber": name}, limit=2)
    for study in studies:
        for instance in client.search_for_instances(_uid(study, _FIELDS[0]), limit=2):
            yield _address(instance)


def _address(match: dict[str, Any]) -> InstanceAddress:
    return InstanceAddress(*(_uid(match, field) for field in _FIELDS))


def _uid(match: dict[str, Any], field: str) -> str:
    """A UID of a match. Raises `DataError` for anything else, since it becomes a file's name."""
    try:
        uid = str(Dataset.from_json(match).get(field))
    except Exception:  # pydicom raises errors of many kinds for JSON that is not DICOM's
        uid = ""
    if not _is_uid(uid):
        raise DataError(_NO_MATCHES)
    return uid


def _is_uid(text: str) -> bool:
    return len(text) <= MOST_LETTERS_OF_A_UID and UID.fullmatch(text) is not None


def _instance(client: DICOMwebClient, address: InstanceAddress) -> bytes | None:
    """The instance as a file, in the archive's transfer syntax; None if it is damaged or not the requested one."""
    buffer = BytesIO()
    try:
        dataset = client.retrieve_instance(
            address.study, address.series, address.instance, media_types=(("application/dicom", "*"),)
        )
        dataset.save_as(buffer)
    except (requests.RequestException, OSError, AnswerRefused):
        raise
    except Exception:  # pydicom and the client raise errors of many kinds for damaged answers
        return None
    return buffer.getvalue() if dataset.get("SOPInstanceUID") == address.instance else None
