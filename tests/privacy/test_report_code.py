"""What a report says of the code that ran a job, and what reports of several sites say together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from report_trees import former_bytes, report_of_openings

from audits import CodeKind, JobCode, JobContext
from audits.code import CodePart
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.report.document import compose
from medfedvqa.report.page import page
from privacy.report import Report, ReportError, SourceReport, join, read_report, report_bytes, verify_report
from privacy.report.report_files import JSON

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]
PROJECT = CodePart(CodeKind.PROJECT, "medfedvqa", "0.1.1", "aa" * 32)
TORCH = CodePart(CodeKind.DEPENDENCY, "torch", "2.13.0+cpu", "bb" * 32)
PLUG_IN = CodePart(CodeKind.PLUG_IN, "acme-federated", "1.4.2", "cc" * 32)
NOTEBOOK = CodePart(CodeKind.MODULE, None, None, None)
CODE = JobCode((PROJECT, TORCH, PLUG_IN))


@pytest.fixture
def reported(sites: Sites, quick_job: Job) -> Callable[..., Report]:
    """The report of a site whose log has a job of this code, opened once for each code that is given."""

    def make(codes: Sequence[JobCode | None], site: str = "chest", digest: str | None = None) -> Report:
        texts = [digest or (code.digest if code else "ff" * 32) for code in codes]
        first = ("study-1", "prompt_pfl", "dd" * 32, "0.1.1")
        contexts = [JobContext(*first, text, code=code) for text, code in zip(texts, codes, strict=True)]
        return report_of_openings(sites(site)[site], quick_job().exchange(), contexts)

    return make


def rule(report: Report) -> str | None:
    """The state of the rule about code."""
    return next((item.state for item in report.sections.verdicts.rules if item.rule == "code"), None)


def test_the_report_lists_what_the_log_names(reported: Callable[..., Report], tmp_path: Path) -> None:
    """In section A, on the page, and in what is written, which can be read and verified again."""
    report = reported([CODE])
    named = [(item.kind, item.name, item.sha256) for item in report.sections.identity.code_parts]
    assert named == [(part.kind.value, part.name, part.sha256) for part in CODE.parts]
    assert rule(report) == "shown" and "acme-federated" in page(compose(report))
    (tmp_path / JSON).write_bytes(report_bytes(report))
    assert read_report(report_bytes(report)) == report
    parts = {part.name: part for part in verify_report(tmp_path).parts}
    assert str(parts["figures"].state) == str(parts["proofs"].state) == "shown"
    assert "no other party cosigned the log" in parts["proofs"].said


def test_a_report_from_before_the_log_named_code_stays_as_it_is(
    reported: Callable[..., Report], tmp_path: Path
) -> None:
    """Its file has no such member, and is neither schema nor figures that another version wrote; no rule is added."""
    report = reported([None])
    content = former_bytes(report, "identity.code_parts")
    assert rule(report) is None and b"code_parts" not in content
    (tmp_path / JSON).write_bytes(content)
    states = {part.name: str(part.state) for part in verify_report(tmp_path).parts}
    assert states["schema"] == states["figures"] == "shown"


@pytest.mark.parametrize(
    ("codes", "digest", "state"),
    [
        ([CODE], "ee" * 32, "broken"),
        ([CODE, JobCode((PROJECT, TORCH))], None, "not shown"),
        ([JobCode((PROJECT, NOTEBOOK))], None, "not shown"),
    ],
    ids=["another digest", "other code after a restart", "code in no file"],
)
def test_code_that_is_not_identified_is_no_rule_that_is_kept(
    reported: Callable[..., Report], codes: Sequence[JobCode], digest: str | None, state: str
) -> None:
    """Entries with another digest than the named code has break the rule."""
    assert rule(reported(codes, digest=digest)) == state


@pytest.mark.parametrize(
    ("other", "state"),
    [
        ((PROJECT, replace(TORCH, version="2.13.0", sha256="ba" * 32), PLUG_IN), "shown"),
        ((PROJECT, TORCH), "broken"),
        ((PROJECT, TORCH, replace(PLUG_IN, sha256="ca" * 32)), "broken"),
        ((replace(PROJECT, sha256="ab" * 32), TORCH, PLUG_IN), "broken"),
    ],
    ids=["another build of torch", "no plug-in", "another plug-in", "another project"],
)
def test_sites_of_one_job_agree_on_project_and_plug_ins_and_need_not_on_dependencies(
    reported: Callable[..., Report], other: tuple[CodePart, ...], state: str
) -> None:
    """A site with a graphics card has another torch than one without."""
    reports = [reported([CODE]), reported([JobCode(other)], site="head")]
    joined = join(SourceReport(report, "ab" * 32) for report in reports)
    assert {item.what: item.state for item in joined.agreements}["code"] == state


def test_a_report_is_joined_with_those_of_other_sites_only(reported: Callable[..., Report]) -> None:
    """Not alone, and not with one of the same site, also where others are given with it."""
    one, same, other = (SourceReport(reported([CODE], site=site), "ab" * 32) for site in ("chest", "chest", "head"))
    for sources in ([], [one], [one, same], [one, same, other]):
        with pytest.raises(ReportError, match="reports of two or more sites, one of each"):
            join(sources)


def test_one_disagreement_breaks_the_joined_report(reported: Callable[..., Report]) -> None:
    """Its own state is what a reader looks at first."""
    report = reported([CODE])
    other = report.changed({"identity.site": "head"})
    differing = other.changed({"identity.method": "fedavg"})
    states = [join(SourceReport(one, "ab" * 32) for one in (report, second)).state for second in (other, differing)]
    assert states == ["shown", "broken"]
