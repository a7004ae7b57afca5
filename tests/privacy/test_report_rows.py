"""The rows of a report: each is there once, in its place, with its unit, source and type, or a sentence names it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from report_trees import REPORT, former_bytes, with_row

from privacy.report import NewerReport, ReportError, read_report, report_bytes
from privacy.report.figures import FIGURES, SUPPORT, WORDING, differences, figure_of
from privacy.report.report_files import document_bytes, indented_json

CONTENT = report_bytes(REPORT)
Row = dict[str, Any]


def place(rows: list[Row], name: str) -> int:
    return next(place for place, row in enumerate(rows) if row["id"] == name)


def with_member(name: str, **members: object) -> Callable[[list[Row]], object]:
    """A change of members of one row."""
    return lambda rows: rows[place(rows, name)].update(members)


def moved(rows: list[Row]) -> None:
    rows.insert(0, rows.pop(place(rows, "claim.epsilon")))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rows: rows.append(rows[3] | {"id": "claim.weather"}), "row 'claim.weather' is unknown"),
        (lambda rows: rows.append(rows[3] | {"id": "mappings.x.said"}), "row 'mappings.x.said' is unknown"),
        (lambda rows: rows.pop(place(rows, "claim.epsilon")), "row 'claim.epsilon' is missing"),
        (lambda rows: rows.pop(place(rows, "egress.releases.1.sha256")), "row 'egress.releases.1.sha256' is missing"),
        (lambda rows: rows.append(rows[place(rows, "claim.epsilon")]), "row 'claim.epsilon' appears twice"),
        (moved, "row 'claim.epsilon' is in the place of"),
        (with_member("claim.made", value=1), "row 'claim.made' has a value of another type"),
        (with_member("claim.epsilon", value=3), "row 'claim.epsilon' has a value of another"),
        (with_member("identity.sites", value="chest"), "row 'identity.sites' has no list"),
        (with_member("claim.made", source="hearsay"), "row 'claim.made' has another source"),
        (with_member("claim.epsilon", unit="mu"), "row 'claim.epsilon' has another unit"),
        (with_member("claim.epsilon", section="C"), "row 'claim.epsilon' has another section"),
        (with_member("identity.state", value="open"), "row 'identity.state' has an unknown"),
        (with_member("summary.wrongly", value=0.9), "row 'summary.wrongly' is not in the range"),
        (lambda rows: rows[4].update(note="x"), "a row has other members"),
        (lambda rows: rows.insert(0, ["claim.made"]), "a row has other members"),
    ],
)
def test_a_row_that_is_not_as_it_should_be_is_named(change: Callable[[Any], object], sentence: str) -> None:
    """Unknown, missing, twice, at another place, of another type, source, unit or section."""
    document = json.loads(CONTENT)
    change(document["rows"])
    with pytest.raises(ReportError) as refused:
        read_report(document_bytes(document["rows"], document["evidence"]))
    assert sentence in str(refused.value)
    assert isinstance(refused.value, NewerReport) is ("unknown" in sentence)


def test_a_name_in_a_file_is_shown_bounded() -> None:
    """Of a row of which nobody knows the name, neither all letters nor letters that hide are shown."""
    document = json.loads(CONTENT)
    document["rows"][0]["id"] = "a\u202e" + "b" * 9_000
    with pytest.raises(NewerReport) as refused:
        read_report(document_bytes(document["rows"], document["evidence"]))
    assert len(str(refused.value)) < 400 and "\u202e" not in str(refused.value)


def test_a_report_is_read_only_as_it_is_written() -> None:
    """A space more, or a number in another form, is not."""
    assert read_report(CONTENT) == REPORT
    for other in (CONTENT.replace(b'"id": ', b'"id":  ', 1), json.dumps(json.loads(CONTENT)).encode(), CONTENT + b" "):
        with pytest.raises(ReportError, match="not written as"):
            read_report(other)


def test_a_changed_value_is_the_row_that_differs() -> None:
    """A figure in any case, a sentence only where words are compared, a row more or less as well."""
    for row, value in (("claim.epsilon", 1.0), ("identity.sites", ("chest",)), ("verdicts.rules.3.state", "broken")):
        assert list(differences(REPORT.changed({row: value}).rows, REPORT.rows)) == [row]
    worded = REPORT.changed({"claim.sentence": "All is well."}).rows
    assert not list(differences(worded, REPORT.rows))
    assert list(differences(worded, REPORT.rows, words=True)) == ["claim.sentence"]
    fewer = {row: value for row, value in REPORT.rows.items() if not row.startswith("egress.releases.0.")}
    assert set(differences(fewer, REPORT.rows)) == set(REPORT.rows) - set(fewer) == set(differences(REPORT.rows, fewer))


def test_a_report_of_the_former_format_has_the_same_rows() -> None:
    """Nested under the same names; what it lacks is named, and an unknown, missing or mistyped part is refused."""
    content = former_bytes(REPORT)
    former = read_report(content)
    assert not list(differences(former.rows, REPORT.rows, former.lacks, words=True))
    assert all(row in REPORT.rows and "records" in row for row in former.lacks)
    for change, sentence in (
        (lambda sections: sections["claim"].update(weather="fine"), "row 'claim.weather' is unknown"),
        (lambda sections: sections["claim"].pop("epsilon"), "row 'claim.epsilon' is missing"),
        (lambda sections: sections["claim"].update(epsilon=True), "row 'claim.epsilon' has a value of another type"),
        (lambda sections: sections["egress"].update(releases={}), "part 'egress.releases' has no list"),
        (lambda sections: sections.update(claim=[]), "part 'claim' has no members"),
    ):
        document = json.loads(content)
        change(document["sections"])
        with pytest.raises(ReportError) as refused:
            read_report(indented_json(document))
        assert sentence in str(refused.value)
    with pytest.raises(ReportError, match="cannot be written again"):
        report_bytes(former)


NEITHER = ("trust.attempts", "identity.code_parts", "accounting.restarts", "empirical.groups")
"""Lists that are empty in the example; other tests have reports with them."""


def test_every_row_of_the_example_is_in_the_list_and_every_line_of_the_list_is_in_use() -> None:
    """A closed vocabulary counts as wording only where it is a version's opinion."""
    used = {figure_of(row) for row in REPORT.rows}
    assert None not in used and {figure.id for figure in used if figure} >= {
        name for name in FIGURES if not name.startswith(NEITHER)
    }
    assert {"words", "letters", SUPPORT} == WORDING
    assert with_row(CONTENT, "claim.made", True) == CONTENT
