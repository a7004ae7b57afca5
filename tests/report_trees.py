"""The example report of the tests, and reports with other values in some of their rows."""

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from audits import AuditKey, AuditLog, Exchange, Gate, JobContext, origin_of
from medfedvqa.federation.checkpoint_exchange import CheckpointExchange
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.report.collect import evidence_of
from privacy.report import Report, read_report, report_of
from privacy.report.figures import FORMER, rows_of_tree, tree_of_rows
from privacy.report.report_files import indented_json

EXAMPLE = Path(__file__).parent / "evaluation" / "privacy_report.json"
"""A report on a real run, into which figures of attacks, accuracies, refusals and another job were put."""
REPORT = read_report(EXAMPLE.read_bytes())


def changed(change: Callable[[dict[str, Any]], object], report: Report = REPORT) -> Report:
    """The report after a change of its nested values. What the change takes out, an earlier version did not write."""
    tree, lacks = tree_of_rows(report.rows), list[str]()
    change(tree)
    return replace(report, rows=rows_of_tree(tree, lacks), lacks=tuple(lacks))


def with_row(content: bytes, row: str, value: object) -> bytes:
    """A report's file with another value in one row."""
    lines = content.decode().split("\n")
    [place] = [place for place, line in enumerate(lines) if line.startswith(f'  {{"id": "{row}",')]
    head, _, _ = lines[place].partition(', "value": ')
    lines[place] = f'{head}, "value": {json.dumps(value, ensure_ascii=False)}}}{"," * lines[place].endswith(",")}'
    return "\n".join(lines).encode()


def value_of(content: bytes, row: str) -> Any:
    """The value of a row of a report's file."""
    [value] = [one["value"] for one in json.loads(content)["rows"] if one["id"] == row]
    return value


def former_bytes(report: Report, *lacks: str) -> bytes:
    """The report as an earlier version wrote it, in the former format, which lacks these parts."""
    tree = tree_of_rows(report.rows)
    for path in (*lacks, "accounting.jobs.records"):
        *steps, last = path.split(".")
        places = [tree]
        for step in steps:
            places = [
                item for place in places for item in (place[step] if isinstance(place[step], list) else [place[step]])
            ]
        for place in places:
            place.pop(last, None)
    evidence = report.evidence.model_dump(mode="json", exclude_unset=True)
    return indented_json({"format": FORMER, "sections": tree, "evidence": evidence})


def report_of_openings(config: SiteConfig, exchange: Exchange, contexts: Iterable[JobContext]) -> Report:
    """The report of a site whose log has the job `study-1`, opened once in each of these contexts."""
    key = AuditKey.at(config.audit_key, origin_of(config.name))
    with closing(AuditLog(config.audit, config.name, key)) as log:
        CheckpointExchange(config, log, key, "study-1", "prompt_pfl")
        for context in contexts:
            gate = Gate(exchange, config.policy, log, context)
            gate.open()
        gate.close()
    return report_of(evidence_of(config, "study-1", None, None, None, (), False))
