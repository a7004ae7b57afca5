"""A job whose sites share noise, as its user runs it: the two epsilons in commands and in the report, recomputed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_trees import with_row
from tiny_clip import TINY

from audits import AuditKey, origin_of
from medfedvqa.cli import main
from medfedvqa.cli.options import config_of
from medfedvqa.report.collect import evidence_of
from medfedvqa.report.document import compose
from privacy import spent
from privacy.mechanisms.shared_gaussian import SharedGaussian
from privacy.report import Report, report_bytes, report_of, sign_report, verify_report
from privacy.report.report_files import ENVELOPE, JSON

Command = Callable[..., Any]
DP = ("--dp", "noise=2", "--dp", "count_noise=5", "--dp", "sharers=3", "--dp", "colluders=1")
JOB = (
    *("fedavg", "--secagg", "masks", "-O", "schedule=stepwise", "-O", "weighting=uniform", "-O", "tuning=classifier"),
    *("-O", "rounds=2", "-O", "hidden=16", "-O", "units=16", *DP),
)
SITE = "chest-1of2"
CHARGED = spent([SharedGaussian(0.25, 2 / 3**0.5, 3, 1, 2)], 1e-5).epsilon
OUTSIDE = spent([SharedGaussian(0.25, 2 / 3**0.5, 4, 0, 2)], 1e-5).epsilon


@pytest.fixture(scope="module")
def run(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job of six sites, as its user types it."""
    out = tmp_path_factory.mktemp("runs") / "shared"
    backbone = ("--backbone", TINY, "--backbone-file", str(tiny_backbone), "--data", "phantom", "--hospitals", "2")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr("sys.argv", ["medfedvqa", "run", *JOB, *backbone, "--out", str(out), "--quiet"])
        main()
    assert not ended.value.code
    return out


@pytest.fixture(scope="module")
def report(run: Path) -> Report:
    """Of one of its sites."""
    config = config_of(run / "sites" / SITE / "site.yml")
    return report_of(evidence_of(config, None, run / "results.json", None, None, [run], False))


def test_the_report_has_both_epsilons_and_says_against_whom_each_holds(report: Report) -> None:
    """The claim is the charged one, against as many colluders as the site's policy says; the other is less."""
    claim, section = report.sections.claim, report.sections.accounting
    assert report.evidence.policy.colluders == 1 and claim.made
    assert claim.epsilon == section.job.epsilon == pytest.approx(CHARGED)
    assert section.outside.epsilon == pytest.approx(OUTSIDE) and OUTSIDE < 0.9 * CHARGED
    assert "all that one of the other sites can tell" in claim.sentence
    rows = str(compose(report).sections)
    assert "This job, if no other site colludes" in rows
    rules = {rule.rule: rule.state for rule in report.sections.verdicts.rules}
    assert "broken" not in rules.values() and rules["replay"] == "shown"


def test_who_verifies_a_report_computes_both_epsilons_again(run: Path, report: Report, tmp_path: Path) -> None:
    """From the ledger that it quotes: with either of them edited, and signed, it is broken."""
    config = config_of(run / "sites" / SITE / "site.yml")
    key = AuditKey.at(config.audit_key, origin_of(SITE))

    def broken(name: str, content: bytes) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / JSON).write_bytes(content)
        (folder / ENVELOPE).write_bytes(sign_report(report, {JSON: content}, key))
        return [part.name for part in verify_report(folder).parts if part.state == "broken"]

    assert not broken("true", report_bytes(report))
    for place in ("job", "outside"):
        row = f"accounting.{place}.epsilon"
        assert "figures" in broken(place, with_row(report_bytes(report), row, report.rows[row] - 0.1))


def test_commands_print_both(medfedvqa: Command, run: Path) -> None:
    """What a job would cost, and what it has."""
    planned = json.loads(medfedvqa("privacy", "plan", *JOB, "--json").stdout)
    assert planned["costs"][-1]["epsilon"] == pytest.approx(CHARGED)
    assert planned["epsilon_outside"] == pytest.approx(OUTSIDE)
    assert "all, if no site colludes" in re.sub(r"\s+", " ", medfedvqa("privacy", "plan", *JOB).stdout)
    site = str(run / "sites" / SITE / "site.yml")
    [cohort] = json.loads(medfedvqa("privacy", "spent", "--site", site, "--json").stdout)["cohorts"]
    assert cohort["jobs"][0]["epsilon_outside"] == pytest.approx(OUTSIDE)
    assert cohort["spent"]["epsilon"] == pytest.approx(CHARGED)
    assert f"{OUTSIDE:.4f} if no" in re.sub(r"\s+", " ", medfedvqa("privacy", "spent", "--site", site).stdout)


def test_plan_says_that_a_site_trusts_fewer(medfedvqa: Command, run: Path, tmp_path: Path) -> None:
    """Before anything runs, with the sentence that the site's log would have."""
    text = (run / "sites" / SITE / "site.yml").read_text(encoding="utf-8")
    for colluders, code in (("1", 0), ("2", 1), ("null", 1)):
        site = tmp_path / colluders / "site.yml"
        site.parent.mkdir()
        site.write_text(re.sub(r"^  colluders: .*$", f"  colluders: {colluders}", text, flags=re.M), encoding="utf-8")
        done = medfedvqa("privacy", "plan", *JOB, "--site", str(site))
        assert done.returncode == code and ("trusts fewer other sites" in done.stderr) == (code == 1), done.stderr
