"""`medfedvqa status`: the health of a site for people, programs and Prometheus."""

import json
import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from doctored import DP, SITE, certify, charge, edit_site, end, hold, job_left_open, log_damaged, log_of
from typer.testing import CliRunner

from audits import Event, Isolation, Outcome, Refusal
from medfedvqa.cli import app

SAMPLE = re.compile(r'medfedvqa_site_[a-z_]+(\{code="[a-z-]+"\})? [0-9.e+-]+')


def status(kit: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the record of the command with --json."""
    result = CliRunner().invoke(app, ["status", "--site", str(kit / "local" / "site.yml"), "--json", *options])
    return result.exit_code, json.loads(result.stdout)


def refuse(kit: Path, job: str, code: Refusal) -> None:
    with closing(log_of(kit)) as log:
        refused = {"outcome": Outcome.REFUSED, "reason": code.sentence, "admission": {"code": code.value}}
        log.append(Event.REFUSAL, job=job, **refused)


def test_a_site_that_runs_is_well_until_its_process_dies(site_kit: Path) -> None:
    """With a process of the site and one of the open job: up. Once they are killed the job is unclosed, the site is
    down, and the command fails."""
    job_left_open(site_kit)
    processes = [hold(site_kit, None), hold(site_kit, "job-1")]
    try:
        code, record = status(site_kit)
        assert (code, record["ok"], record["up"]) == (0, True, True)
        assert record["running"] == ["job-1"] and record["unclosed"] == [] and record["site"] == SITE
        assert 0 <= record["last_entry_age"] < 300
    finally:
        for process in processes:
            end(process)
    code, record = status(site_kit)
    assert (code, record["ok"], record["up"]) == (1, False, False)
    assert record["running"] == [] and record["unclosed"] == ["job-1"]


def test_refusals_budget_disk_and_certificate_are_shown(site_kit: Path) -> None:
    """Refusals of the last day by code, what the ledger says, and when the kit's certificate ends."""
    charge(site_kit)
    edit_site(site_kit, **{**DP, "max_epsilon": 9.0})
    for job, code in (("a", Refusal.METHOD), ("b", Refusal.METHOD), ("c", Refusal.DISK)):
        refuse(site_kit, job, code)
    with closing(log_of(site_kit)) as log:
        log.append(Event.OPEN, job="d", isolation=Isolation.FILTER)
    _, record = status(site_kit)
    assert record["isolation"] == "filter"
    assert record["refusals"] == {"disk": 1, "method": 2} and record["log_problem"] is None
    assert 0 < record["budget"]["spent"] <= record["budget"]["authorised"] and record["budget"]["limit"] == 9.0
    assert record["free_bytes"] > 0
    assert datetime.fromisoformat(record["certificate_ends"]) > datetime.now(UTC) + timedelta(days=300)
    plain = CliRunner().invoke(app, ["status", "--site", str(site_kit / "local" / "site.yml")]).output
    assert "not running" in plain and "disk 1, method 2" in plain and "limit 9" in plain


def test_a_certificate_that_ends_soon_is_named(site_kits: Path, site_kit: Path) -> None:
    """Within the 60 days in which doctor warns of it, and not before."""
    assert status(site_kit)[1]["certificate_ends_soon"] is False
    certify(site_kits, site_kit, -300, 59)
    assert status(site_kit)[1]["certificate_ends_soon"] is True
    plain = CliRunner().invoke(app, ["status", "--site", str(site_kit / "local" / "site.yml")]).output
    assert re.search(r"certificate: +ends on [0-9-]{10}, in 58 days: renew it", plain)


def test_a_damaged_log_is_not_well(site_kit: Path) -> None:
    """The site would answer nothing."""
    log_damaged(site_kit)
    code, record = status(site_kit)
    assert code == 1 and record["log_problem"] and record["refusals"] == {}


def test_the_file_for_prometheus_has_its_form_and_no_job(site_kit: Path, tmp_path: Path) -> None:
    """Each sample follows the text format, has a help and a type, and names no job."""
    job_left_open(site_kit)
    refuse(site_kit, "job-7", Refusal.BUDGET)
    out = tmp_path / "medfedvqa.prom"
    status(site_kit, "--prometheus", str(out))
    lines = out.read_text().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples) and "job-" not in out.read_text()
    for name in {line.split("{")[0].split(" ")[0] for line in samples}:
        assert sum(line.startswith((f"# HELP {name} ", f"# TYPE {name} gauge")) for line in lines) == 2
    values = dict(line.rsplit(" ", 1) for line in samples)
    assert values["medfedvqa_site_up"] == "0" and values["medfedvqa_site_jobs_unclosed"] == "1"
    assert values['medfedvqa_site_refusals{code="budget"}'] == "1"
    assert abs(float(values["medfedvqa_site_status_seconds"]) - datetime.now(UTC).timestamp()) < 300
    assert out.stat().st_mode & 0o044 == 0o044
