"""`medfedvqa doctor` on a site's really provisioned kit: each condition of the site is one failing line."""

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from doctored import (
    DP,
    PINS,
    SITE,
    charge,
    checks_of,
    edit_site,
    end,
    hold,
    job_left_open,
    log_damaged,
    log_of,
    problems,
)
from typer.testing import CliRunner

from audits import Event, make_secret
from audits import log as audit_log
from medfedvqa.cli import app
from medfedvqa.federation.aggregation_attempt import load_identity
from medfedvqa.federation.approvals import forecast, keep_waiting
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_database import SITE_DATABASE
from privacy import DPSettings, Ledger

Change = Callable[[Path], object]


@pytest.fixture
def kit(site_kit: Path) -> Path:
    return site_kit


def with_site(**changes: Any) -> Change:
    return lambda kit: edit_site(kit, **changes)


def key_others_may_read(name: str) -> Change:
    def make(kit: Path) -> None:
        path = kit / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists():
            make_secret(path)
        path.chmod(0o640)

    return make


def spent(kit: Path) -> None:
    """Less is left than one more task costs."""
    charge(kit, tasks=2)
    with closing(Ledger(kit / "ledger", SITE)) as ledger:
        (account,) = ledger.accounts(1e-3)
    edit_site(kit, **{**DP, "max_epsilon": 1.01 * account.spent.epsilon})


def ledger_set_back(kit: Path) -> None:
    """As after a restored backup: the log knows a charge that the ledger does not hold."""
    charge(kit)
    with closing(log_of(kit)) as log:
        log.append(Event.RELEASE, dp_event={"ledger": {"seq": 99, "head": "0" * 64}})


def ledger_removed(kit: Path) -> None:
    ledger_set_back(kit)
    shutil.rmtree(kit / "ledger")


def ledger_damaged(kit: Path) -> None:
    charge(kit)
    for path in (kit / "ledger").glob("ledger.sqlite-*"):
        path.unlink()
    (kit / "ledger" / "ledger.sqlite").write_bytes(b"\0\xff" * 5000)


def ledger_edited(kit: Path) -> None:
    charge(kit)
    with closing(sqlite3.connect(kit / "ledger" / "ledger.sqlite")) as database:
        database.execute("DROP TRIGGER no_update")
        database.execute("UPDATE journal SET record = replace(record, 'job-1', 'job-2')")
        database.commit()


def file_in_place_of(name: str) -> Change:
    return lambda kit: (kit / name).write_text("")


def published_rows(kit: Path, text: str) -> None:
    root = kit.parent / "vqa-rad"
    root.mkdir()
    (root / "VQA_RAD Dataset Public.json").write_text(text)
    edit_site(kit, reader="vqa-rad", root=str(root), organ="chest")


ROW = {"image_organ": "SECRET", "phrase_type": "para", "answer_type": "CLOSED", "question": "SECRET"}
ROW |= {"answer": "SECRET", "image_case_url": "SECRET", "image_name": "SECRET"}
"""A row whose organ no reader knows."""


def without_key(kit: Path) -> None:
    """Shares are demanded, and the key that came with the kit is gone."""
    edit_site(kit, require_secagg=True, peers=PINS)
    (kit / "identity.key").unlink(missing_ok=True)


def pinned(kit: Path, **changes: Any) -> None:
    load_identity(edit_site(kit, **{"peers": PINS, **changes}))


CONDITIONS: dict[str, tuple[Change, str, str]] = {
    "missing data root": (with_site(reader="vqa-rad", root="../nowhere"), "data root", "missing"),
    "data root not given": (with_site(reader="slake"), "data root", "missing"),
    "data root is a file": (with_site(reader="store", root="site.yml"), "data root", "cannot be read"),
    "unknown reader": (with_site(reader="nobody's"), "data", "reader is unknown"),
    "unknown organ": (with_site(organ="kneecap"), "data", "unknown organ"),
    "organ of another set": (
        lambda kit: (published_rows(kit, "[]"), edit_site(kit, reader="vqa-rad", root="../../vqa-rad", organ="lung")),
        "data",
        "no such organ; it has chest, abdomen, head",
    ),
    "organ without rows": (lambda kit: published_rows(kit, "[]"), "data", "no closed questions"),
    "organ that no row may have": (lambda kit: published_rows(kit, json.dumps([ROW])), "data", "row 0: unknown organ"),
    "damaged data": (lambda kit: published_rows(kit, "SECRET"), "data", "not valid JSON"),
    "nested data": (lambda kit: published_rows(kit, "[" * 100_000), "data", ""),
    "no store": (with_site(reader="store", root=".."), "data", "no manifest"),
    "unknown device": (with_site(device="gpu"), "device", "unknown"),
    "other device": (with_site(device="mps"), "device", "unknown"),
    "peers that are no fingerprints": (lambda kit: pinned(kit, peers={"head": "00ff"}), "peers", "64 hex digits: head"),
    "peers with one fingerprint": (lambda kit: pinned(kit, peers=dict.fromkeys(PINS, "0" * 64)), "peers", "same"),
    "no peers": (lambda kit: pinned(kit, require_secagg=True, peers={}), "peers", "0 other sites are pinned"),
    "too few peers": (lambda kit: pinned(kit, require_secagg=True, min_sites=5), "peers", "need at least 4"),
    "a member is not a peer": (lambda kit: pinned(kit, committee=["head", "knee", SITE]), "peers", "missing: knee"),
    "no key for shares": (without_key, "key for secure aggregation", "missing"),
    "folder that is a file": (file_in_place_of("audit"), "folder of audit", "file stands in its place"),
    "state that is a file": (file_in_place_of("state"), "folder of state", "file stands in its place"),
    "folder that takes no file": (with_site(audit="/proc"), "folder of audit", "cannot be written"),
    "folder that cannot be made": (with_site(ledger="/proc/sys/none"), "folder of ledger", "cannot be written"),
    "folder open to others": (lambda kit: (kit / "state").mkdir(0o755), "folder of state", "look into it"),
    "spent budget": (spent, "budget", "it is spent"),
    "ledger set back": (ledger_set_back, "budget", "lacks a charge"),
    "ledger removed": (ledger_removed, "budget", "lacks a charge"),
    "damaged ledger": (ledger_damaged, "budget", "damaged"),
    "edited ledger": (ledger_edited, "budget", "damaged"),
    "unclosed job": (job_left_open, "unclosed jobs", "no process runs job-1, which"),
    "reservation of a dead job": (lambda kit: charge(kit, end=False), "unclosed jobs", "job-1, which"),
    "damaged log": (log_damaged, "audit log", "entry 0"),
    "identity key": (key_others_may_read("identity.key"), "key for secure aggregation", "may read it"),
    "audit key": (key_others_may_read("audit.key"), "key of the audit log", "may read it"),
    "ledger key": (key_others_may_read("ledger/cohort.key"), "key of the budget ledger", "may read it"),
    "FLARE's key": (key_others_may_read("startup/client.key"), "key for FLARE", "may read it"),
    "short key": (lambda kit: (kit / "audit.key").touch(0o600), "key of the audit log", "32 bytes"),
    "startup folder": (lambda kit: (kit / "startup").chmod(0o777), "startup and local folders", "change them"),
    "startup script": (lambda kit: (kit / "startup" / "start.sh").chmod(0o777), "startup and local folders", "change"),
}


def test_a_sound_kit_has_neither_a_failing_line_nor_a_warning(kit: Path, charged_kit: Path) -> None:
    """Before its first start, and after a job."""
    for sound in (kit, charged_kit):
        assert problems(sound) == problems(sound, state="warning") == {}


@pytest.mark.parametrize("name", CONDITIONS)
def test_each_condition_is_one_failing_line_that_says_what_to_do(kit: Path, name: str) -> None:
    """No other line fails for it, exit code and JSON agree, and nothing of a row or path is quoted."""
    change, line, problem = CONDITIONS[name]
    change(kit)
    found = problems(kit)
    assert list(found) == [line] and problem in found[line]
    assert "SECRET" not in found[line] and str(kit.parent) not in found[line]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a graphics card")
def test_a_device_without_a_driver_is_found(kit: Path) -> None:
    """The site would train on a card that torch does not see."""
    edit_site(kit, device="cuda")
    found = problems(kit)
    assert list(found) == ["device"] and "no driver" in found["device"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no graphics card")
def test_a_card_is_found_by_its_number(kit: Path) -> None:
    """The first is there, the hundredth is not."""
    edit_site(kit, device="cuda:0")
    assert problems(kit) == {}
    edit_site(kit, device="cuda:99")
    assert list(problems(kit)) == ["device"]


def test_a_site_that_is_complete_for_shares_passes(kit: Path) -> None:
    """Pins for all members and enough sites, the key there and closed to others."""
    pinned(kit, require_secagg=True, min_sites=4, committee=["head", "pelvis", SITE])
    assert problems(kit) == {}


def test_a_budget_with_room_passes_and_makes_no_ledger(kit: Path) -> None:
    """Looking changes nothing: no ledger, key or log is made; a job that ended is no finding."""
    edit_site(kit, **DP)
    before = sorted(kit.rglob("*"))
    assert problems(kit) == {} and sorted(kit.rglob("*")) == before
    charge(kit)
    assert problems(kit) == {}


@pytest.mark.parametrize(("limit", "warned"), [(None, True), (11.0, True), (10.0, False)])
def test_a_weak_promise_is_a_warning_and_no_failure(kit: Path, limit: float | None, warned: bool) -> None:
    """Differential privacy with an epsilon above 10, or any."""
    try:
        edit_site(kit, **{**DP, "max_epsilon": limit})
    except ValueError:
        pytest.skip("the policy itself refuses this limit")
    assert problems(kit) == {}
    assert list(problems(kit, state="warning")) == (["policy"] if warned else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become somebody else")
@pytest.mark.parametrize(("name", "line"), [("audit", "folder of audit"), ("ledger", "folder of ledger")])
def test_a_folder_of_another_account_is_not_writable(kit: Path, name: str, line: str) -> None:
    """As another account, by what the file system allows it."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(shutil.copytree(kit, Path(place) / SITE))
        edit_site(copy)
        for path in (Path(place), copy, *copy.rglob("*")):
            os.chown(path, 65534, 65534)
        (copy / name).mkdir(0o700)
        os.seteuid(65534)
        try:
            found = list(problems(copy))
        finally:
            os.seteuid(0)
    assert line in found


def test_a_job_whose_process_lives_is_not_unclosed_until_the_process_is_killed(kit: Path) -> None:
    """The job is open in the log and holds budget all the time: only the process makes the difference."""
    charge(kit, end=False)
    job_left_open(kit)
    process = hold(kit, "job-1")
    try:
        assert problems(kit) == {}
    finally:
        end(process)
    assert "hold budget" in problems(kit)["unclosed jobs"]


def test_a_site_that_does_not_run_is_found_only_if_asked(kit: Path) -> None:
    """A plain doctor passes before the first start; a job's process is not the site's."""
    job_left_open(kit)
    assert "site process" in problems(kit, "--running")
    processes = [hold(kit, "job-1")]
    try:
        assert list(problems(kit, "--running")) == ["site process"]
        processes.append(hold(kit, None))
        assert problems(kit, "--running") == {}
    finally:
        for process in processes:
            end(process)
    assert "site process" in problems(kit, "--running")


def test_a_clock_behind_the_log_is_found(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry was written an hour from now, before somebody set the clock back."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=1)

    with monkeypatch.context() as patch, closing(log_of(kit)) as log:
        patch.setattr(audit_log, "datetime", Ahead)
        log.append(Event.RECOVERED)
    assert "newest entry" in problems(kit)["clock"]


@pytest.mark.parametrize(("ahead", "lines"), [(60, ["clock"]), (4, []), (-60, [])])
def test_a_clock_behind_the_times_of_files_is_found(kit: Path, ahead: int, lines: list[str]) -> None:
    """Minutes; five are allowed."""
    when = (datetime.now(UTC) + timedelta(minutes=ahead)).timestamp()
    os.utime(kit / "local" / "site.yml", (when, when))
    assert list(problems(kit)) == lines


def test_lines_are_printed_as_they_are(kit: Path) -> None:
    """No picture for `:ab:`, no markup, no control characters: names come from files that others wrote."""
    edit_site(kit, peers={"site:cat:[red]\x1b[2J": "none"})
    shown = CliRunner().invoke(app, ["doctor", str(kit)]).stdout
    assert "site:cat:[red]\\u001b[2J" in shown and "FAIL" in shown
    assert f"{len(checks_of(kit)) - 2} of {len(checks_of(kit))} checks passed" in shown


def test_a_site_that_lets_its_rows_process_have_a_network_is_warned(site_kit: Path) -> None:
    """`isolation: none` is the site's own choice; this machine's kernel keeps the network away, and is asked."""
    assert "isolation" in {check["name"] for check in checks_of(site_kit) if check["state"] == "ok"}
    edit_site(site_kit, isolation="none")
    assert {*problems(site_kit, state="warning")} == {"isolation"}


def test_what_the_noise_of_a_waiting_job_would_leave_is_a_line(kit: Path, quick_job: Callable[..., JobSpec]) -> None:
    """Of each private job that waits for a person, by its own epsilon; a job without privacy has no line, one whose
    method is no longer installed has a warning, and none has one where the data cannot be read.
    """
    config, job = edit_site(kit), quick_job(answers="closed", finish_epochs=0)
    private = [job.model_copy(update={"dp": DPSettings(epsilon=epsilon)}) for epsilon in (8.0, 0.5)]
    gone = private[0].model_copy(update={"method": "gone"})
    for waiting in (job, gone, *private):
        keep_waiting(config, waiting, "somebody")
    assert f"forecast of job {gone.definition[:12]}" in problems(kit, state="warning")
    lines = [check for check in checks_of(kit) if "forecast" in check["name"] and check["state"] == "ok"]
    forecasts = {check["name"]: check["value"] for check in lines}
    assert forecasts == {f"forecast of job {each.definition[:12]}": forecast(config, each) for each in private}
    assert all("of what the sites gain together is left" in text for text in forecasts.values())
    assert len({*forecasts.values()}) == 2
    edit_site(kit, reader="store", root="..")
    assert not [check for check in checks_of(kit) if "forecast" in check["name"]] and "data" in problems(kit)
    edit_site(kit)
    (config.state / SITE_DATABASE).write_bytes(b"\0\xff" * 5000)
    assert "waiting jobs" in problems(kit, state="warning")
