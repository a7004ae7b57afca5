"""What a report says of the network around the process that held the rows."""

import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from report_trees import report_of_openings, with_row

from audits import Isolation, JobContext
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.report.document import compose
from medfedvqa.report.page import page
from privacy.report import Report, read_report, report_bytes, verify_report
from privacy.report.report_files import JSON

Sites = Callable[..., dict[str, SiteConfig]]
NAMESPACE, FILTER, NONE = Isolation.NAMESPACE, Isolation.FILTER, Isolation.NONE


@pytest.fixture
def reported(sites: Sites, quick_job: Callable[..., JobSpec]) -> Callable[..., Report]:
    """The report of a site whose log has a job that was opened once in each of these ways."""

    def make(ways: Sequence[Any]) -> Report:
        first = ("study-1", "prompt_pfl", "dd" * 32, "0.1.1", "ff" * 32)
        contexts = [JobContext(*first, isolation=way) for way in ways]
        return report_of_openings(sites("chest")["chest"], quick_job().exchange(), contexts)

    return make


def rule(report: Report) -> tuple[str, str] | None:
    """State and sentence of the rule about the network."""
    rules = report.sections.verdicts.rules
    return next(((item.state, item.said) for item in rules if item.rule == "no network"), None)


@pytest.mark.parametrize(
    ("ways", "state", "words"),
    [
        ([NAMESPACE], "shown", "had no network: a network namespace of its own"),
        ([FILTER], "shown", "only a filter on system calls"),
        ([NONE], "not shown", "`isolation: none`"),
        ([NAMESPACE, NONE, NAMESPACE], "not shown", "`isolation: none`"),
        ([NAMESPACE, None], "not shown", "did not record"),
        ([NAMESPACE, FILTER], "shown", "later only a filter"),
    ],
)
def test_a_report_says_what_kept_the_network_away(
    reported: Callable[..., Report], ways: Sequence[Any], state: str, words: str
) -> None:
    """Also where the site was started again in another way; a network is a rule that is open, on the first page too."""
    report = reported(ways)
    assert report.sections.trust.isolation == tuple(dict.fromkeys(ways))
    found = rule(report)
    assert found is not None and found[0] == state and words in found[1]
    text = html.unescape(page(compose(report)).replace("<code>", "`").replace("</code>", "`"))
    assert f"As the log says, {report.sections.trust.isolation_said}." in text
    assert words in text and (text.count("Run the job on sites whose rows a vault holds") >= 1) is (state != "shown")


def test_a_job_of_an_earlier_version_has_a_sentence_and_no_rule(reported: Callable[..., Report]) -> None:
    """Reports that were made of such logs keep their rules."""
    report = reported([None])
    assert rule(report) is None and report.sections.trust.isolation == (None,)
    assert "did not record" in page(compose(report))


@pytest.mark.parametrize("told", ["namespace", "filter", None])
def test_a_site_that_signs_another_isolation_than_its_log_has_is_found(
    reported: Callable[..., Report], tmp_path: Path, told: str | None
) -> None:
    """`verify-report` makes the figure again from the proven entries; the report as it was made holds."""
    content = report_bytes(reported([NONE]))
    states = {}
    for name, isolation in (("true", "none"), ("false", told)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / JSON).write_bytes(with_row(content, "trust.isolation", [isolation]))
        read_report((folder / JSON).read_bytes())
        states[name] = next(str(part.state) for part in verify_report(folder).parts if part.name == "figures")
    assert states == {"true": "shown", "false": "broken"}
