"""The files of a report: the authoritative JSON, the pages drawn from it, and the statement that signs all of them."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import DataclassSchema, ModelSchema, NullableSchema, WithDefaultSchema

from audits import AuditKey, NewerFormat
from audits.bounded_files import MAX_DOCUMENT, check_number
from audits.envelope import seal_statement, statement
from privacy.report.facts import NewerReport, ReportError
from privacy.report.figures import FIGURES, FORMAT, FORMER, NEWER, Report, read_rows, rows_of_tree, written
from privacy.report.report_evidence import ReportEvidence

JSON, ENVELOPE, HTML, PDF = "report.json", "report.dsse.json", "report.html", "report.pdf"
SCHEMA = "report.schema.json"
PREDICATE = "urn:medfedvqa:privacy-report/1"
"""The predicate's type, an unregistered namespace."""
MAX_REPORT = MAX_DOCUMENT
_MEMBERS = {FORMAT: ["format", "rows", "evidence"], FORMER: ["format", "sections", "evidence"]}


def report_bytes(report: Report) -> bytes:
    """The report as JSON, a row on a line; the same report is always the same bytes.

    Raises `ReportError` for a report of an earlier format: its file stays as it was signed.
    """
    if report.format != FORMAT:
        raise ReportError("a report of an earlier format cannot be written again")
    return document_bytes(written(report.rows), _evidence(report.evidence))


def document_bytes(rows: Sequence[Mapping[str, Any]], evidence: Mapping[str, Any]) -> bytes:
    """A file of these rows and this evidence. Raises `ValueError` for numbers that are not finite."""
    lines = ",\n".join(f"  {_json(row)}" for row in rows)
    text = _json(evidence, indent=1).replace("\n", "\n ")
    return f'{{\n "format": {_json(FORMAT)},\n "rows": [\n{lines}\n ],\n "evidence": {text}\n}}\n'.encode()


def _json(content: object, indent: int | None = None) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)


def _evidence(evidence: ReportEvidence) -> dict[str, Any]:
    return evidence.model_dump(mode="json", exclude_unset=True)


def indented_json(content: Mapping[str, Any]) -> bytes:
    """Indented JSON. Raises `ValueError` for numbers that are not finite."""
    return (_json(content, indent=1) + "\n").encode()


def read_report(content: bytes) -> Report:
    """The report in a file of this format, which must be exactly what `report_bytes` wrote, or of the former format.

    Raises `ReportError`, and `NewerReport` if only a newer version knows all that is in it.
    """
    if len(content) > MAX_REPORT:
        raise ReportError(f"the file is larger than {MAX_REPORT >> 20} MiB, a report's limit")
    try:
        document = json.loads(content)
        format_name = _format(document)
        if set(document) > set(_MEMBERS[format_name]):
            raise NewerReport(f"the report has unknown parts: {NEWER}")
        if list(document) != _MEMBERS[format_name]:
            raise ReportError(_NONE)
        evidence = ReportEvidence.model_validate_json(json.dumps(document["evidence"]))
        report, again = _former(document, evidence) if format_name == FORMER else _present(document, evidence)
    except ValidationError as error:
        unknown = all(fault["type"] in _UNKNOWN for fault in error.errors())
        raise NewerReport(f"the evidence has unknown parts: {NEWER}") if unknown else ReportError(_NONE) from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ReportError(_NONE) from None
    if again != content:
        raise ReportError("the report is not written as this version writes one")
    return report


_NONE = "this is not a report of a version that this one reads: see the schema of reports"
_UNKNOWN = frozenset(("extra_forbidden", "unexpected_keyword_argument", "literal_error"))
"""pydantic's errors for evidence with fields or words of a newer version."""


def _format(document: Any) -> str:
    """The file's format. Raises `NewerReport`, `ValueError`."""
    name = document["format"]
    if name == FORMER:
        return FORMER
    try:
        if not check_number(name, FORMAT, "the report"):
            raise ValueError
    except NewerFormat as error:
        raise NewerReport(str(error)) from None
    return FORMAT


def _present(document: Any, evidence: ReportEvidence) -> tuple[Report, bytes]:
    report = Report(read_rows(document["rows"]), evidence)
    return report, report_bytes(report)


def _former(document: Any, evidence: ReportEvidence) -> tuple[Report, bytes]:
    """Reads a report of the former format, with nested rows and without parts that were added since."""
    lacks: list[str] = []
    report = Report(rows_of_tree(document["sections"], lacks), evidence, FORMER, tuple(lacks))
    return report, indented_json({**document, "evidence": _evidence(evidence)})


def predicate(report: Report) -> dict[str, Any]:
    """The content of the signed statement besides the files' digests."""
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
    """The schema made from the list of figures and the evidence's model."""
    evidence = ReportEvidence.model_json_schema(mode="serialization", schema_generator=_BriefSchema)
    columns = {name: {"enum": sorted({getattr(one, name) for one in FIGURES.values()})} for name in _COLUMNS}
    scalar = {"type": ["string", "number", "boolean", "null"]}
    value = {"anyOf": [scalar, {"type": "array", "items": scalar}]}
    row = _object({"id": {"type": "string", "pattern": "^[a-z0-9_]+(\\.[a-z0-9_]+)*$"}, **columns, "value": value})
    parts = {"format": {"const": FORMAT}, "rows": {"type": "array", "items": row}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{FORMAT.replace('medfedvqa.', 'urn:medfedvqa:')}/schema",
        **_object({**parts, "evidence": {"$ref": "#/$defs/ReportEvidence"}}),
        "$defs": {**evidence.pop("$defs"), "ReportEvidence": evidence},
    }


_COLUMNS = ("section", "unit", "source")


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


class _BriefSchema(GenerateJsonSchema):
    """Leaves out titles, descriptions and defaults, and writes "a string or null" as a list of two types."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        return _without_texts(super().model_schema(schema))

    def dataclass_schema(self, schema: DataclassSchema) -> JsonSchemaValue:
        return _without_texts(super().dataclass_schema(schema))

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        if isinstance(inner.get("type"), str) and not inner.keys() & {"enum", "const"}:
            return inner | {"type": [inner["type"], "null"]}
        return super().nullable_schema(schema)


def _without_texts(schema: JsonSchemaValue) -> JsonSchemaValue:
    names = ("type", "additionalProperties", "required", "properties")
    return {name: schema[name] for name in names if name in schema}
