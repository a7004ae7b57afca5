"""The files of a report: the JSON that counts, what is drawn from it, and the statement that signs them all."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema, NullableSchema

from audits import AuditKey, NewerFormat
from audits.bounded_files import MAX_DOCUMENT
from audits.envelope import seal_statement, statement
from audits.format_numbers import check_number
from privacy.report.facts import NewerReport, ReportError
from privacy.report.model_conduct import FORMAT, Report

JSON, ENVELOPE, HTML, PDF = "report.json", "report.dsse.json", "report.html", "report.pdf"
SCHEMA = "report.schema.json"
PREDICATE = "urn:medfedvqa:privacy-report/1"
"""The predicate's type; not a registered name space."""
MAX_REPORT = MAX_DOCUMENT


def report_bytes(report: Report) -> bytes:
    """The report as JSON; the same report is always the same bytes."""
    return indented_json(report.model_dump(mode="json", exclude_unset=True))


def indented_json(content: Mapping[str, Any]) -> bytes:
    """Indented JSON. Raises `ValueError` for numbers that are not finite."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_report(content: bytes) -> Report:
    """The report in a file, which must be exactly what `report_bytes` wrote.

    Raises `ReportError`, and `NewerReport` if only a newer version knows all that is in it.
    """
    if len(content) > MAX_REPORT:
        raise ReportError(f"a report has at most {MAX_REPORT >> 20} MiB: this file is none")
    try:
        report = Report.model_validate_json(content)
        same = report_bytes(report) == content
    except ValidationError as error:
        if _is_newer(content, error):
            raise NewerReport("the report was written by a newer version of this software: use that version") from None
        raise ReportError(_NONE) from None
    except (ValueError, RecursionError):
        raise ReportError(_NONE) from None
    if not same:
        raise ReportError("the report is not written as this version writes one")
    return report


_NONE = "this is no report of a version that this one reads: see the schema of reports"
_UNKNOWN = frozenset(("extra_forbidden", "unexpected_keyword_argument", "literal_error"))
"""What pydantic finds in reports of this format number to which a newer version has added fields or words."""


def _is_newer(content: bytes, error: ValidationError) -> bool:
    """Whether a file that is no report of this version is one of a newer version, as far as its format tells."""
    try:
        number = json.loads(content)["format"]
        return check_number(number, FORMAT, "the report") and all(fault["type"] in _UNKNOWN for fault in error.errors())
    except NewerFormat:
        return True
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


def predicate(report: Report) -> dict[str, Any]:
    """What the signed statement says besides the files' digests."""
    identity = report.sections.identity
    return {
        "report": identity.report,
        "format": report.format,
        "created": identity.created,
        "site": identity.site,
        "job": identity.job,
        "log": {"origin": identity.log_origin, "entries": identity.log_entries, "root": identity.log_root},
    }


def sign_report(report: Report, contents: Mapping[str, bytes], key: AuditKey) -> bytes:
    """The envelope of the statement about these files, given by name. Raises `ReportError` for another site's key."""
    if str(key.public) != report.evidence.log.key:
        raise ReportError("a report is signed with the key that signs the site's log")
    return indented_json(seal_statement(statement(contents, PREDICATE, predicate(report)), key))


def report_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `report.json`, as it ships with the package."""
    schema: dict[str, Any] = json.loads(files(__package__).joinpath(SCHEMA).read_text("utf-8"))
    return schema


def model_schema() -> dict[str, Any]:
    """The schema that the model has."""
    schema = Report.model_json_schema(mode="serialization", schema_generator=_BriefSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{PREDICATE}/schema", **schema}


class _BriefSchema(GenerateJsonSchema):
    """Leaves out the titles, which only repeat names, and writes "a string or null" as a list of two types."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        return {name: value for name, value in super().model_schema(schema).items() if name != "title"}

    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        if isinstance(inner.get("type"), str) and not inner.keys() & {"enum", "const"}:
            return inner | {"type": [inner["type"], "null"]}
        return super().nullable_schema(schema)
