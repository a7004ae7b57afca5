"""The published schema of `report.json`: what the list of figures and the evidence's model have, on few lines."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from report_trees import REPORT, with_row

import privacy.report.report_files as report_files
from privacy.report import report_bytes, report_schema

FILE = Path(report_files.__file__).with_name(report_files.SCHEMA)
WIDTH = 120


def brief(value: Any, indent: str = "", key: str = "") -> str:
    """JSON in which lines are as full as they can be."""
    text = key + json.dumps(value)
    if len(indent) + len(text) < WIDTH - 2 or not isinstance(value, dict | list):
        return text
    inner, lines = f"{indent} ", [""]
    items = value.items() if isinstance(value, dict) else [("", item) for item in value]
    for name, item in items:
        piece = brief(item, inner, f"{json.dumps(name)}: " if name else "")
        if lines[-1] and ("\n" in piece + lines[-1] or len(inner) + len(lines[-1]) + len(piece) > WIDTH - 5):
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{piece}"
    body = f",\n{inner}".join(lines)
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{key}{first}\n{inner}{body}{last}"


def test_the_published_schema_is_the_models_and_short() -> None:
    """After a change of the list or of the model, write `brief(model_schema())` to the file."""
    assert FILE.read_text("utf-8") == f"{brief(report_files.model_schema())}\n"
    assert report_schema() == report_files.model_schema()
    assert FILE.read_text("utf-8").count("\n") <= 200


@pytest.mark.parametrize("member, value", [("source", "hearsay"), ("unit", "miles"), ("section", "Z"), ("value", {})])
def test_a_report_fits_the_schema_and_an_unknown_member_does_not(member: str, value: object) -> None:
    """Nor does a row of another source, unit, section or type."""
    validator = jsonschema.Draft202012Validator(report_schema())
    validator.check_schema(report_schema())
    record = json.loads(report_bytes(REPORT))
    validator.validate(record)
    assert not validator.is_valid(record | {"complies": True})
    record["rows"][9][member] = value
    assert not validator.is_valid(record)
    assert validator.is_valid(json.loads(with_row(report_bytes(REPORT), "claim.epsilon", 1.0)))
