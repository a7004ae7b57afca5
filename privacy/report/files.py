"""The files of a report: the JSON that counts, what is drawn from it, and the statement that signs them all."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from audits import AuditKey, sealed, statement
from audits.files import MAX_DOCUMENT
from privacy.report.facts import ReportError
from privacy.report.model import Report

JSON, ENVELOPE, HTML, PDF = "report.json", "report.dsse.json", "report.html", "report.pdf"
SCHEMA = "report.schema.json"
PREDICATE = "urn:medfedvqa:privacy-report/1"
"""The predicate's type; not a registered name space."""
MAX_REPORT = MAX_DOCUMENT


def written(report: Report) -> bytes:
    """The report as JSON; the same report is always the same bytes."""
    sections = {"identity": report.sections.identity.unknown}
    return encoded(report.model_dump(mode="json", exclude={"evidence": report.evidence.unknown, "sections": sections}))


def encoded(told: Mapping[str, Any]) -> bytes:
    """Indented JSON. Raises `ValueError` for numbers that are not finite."""
    return (json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_report(said: bytes) -> Report:
    """The report in a file, which must be exactly what `written` wrote. Raises `ReportError`."""
    try:
        if len(said) > MAX_REPORT:
            raise ValueError
        report = Report.model_validate_json(said)
        same = written(report) == said
    except (ValueError, RecursionError):
        raise ReportError("this is no report of this version: see its schema") from None
    if not same:
        raise ReportError("the report is not written as this version writes one")
    return report


def predicate(report: Report) -> dict[str, Any]:
    """What the signed statement says besides the files' digests."""
    told = report.sections.identity
    return {
        "report": told.report,
        "format": report.format,
        "created": told.created,
        "site": told.site,
        "job": told.job,
        "log": {"origin": told.log_origin, "entries": told.log_entries, "root": told.log_root},
    }


def signed(report: Report, said: Mapping[str, bytes], key: AuditKey) -> bytes:
    """The envelope of the statement about these files, given by name. Raises `ReportError` for another site's key."""
    if str(key.public) != report.evidence.log.key:
        raise ReportError("a report is signed with the key that signs the site's log")
    return encoded(sealed(statement(said, PREDICATE, predicate(report)), key))


def report_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `report.json`, as it ships with the package."""
    schema: dict[str, Any] = json.loads(files(__package__).joinpath(SCHEMA).read_text("utf-8"))
    return schema


def made_schema() -> dict[str, Any]:
    """The schema that the model has."""
    schema = Report.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{PREDICATE}/schema", **schema}
