"""`medfedvqa audit`: verdicts, exit codes, proofs and retention, on a site's own folder."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clocks import SiteClock

import audits.log
from audits import AuditKey, AuditLog, Event, Witness, origin_of
from medfedvqa.federation.site_config import site_yaml

Command = Callable[..., Any]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The folder of a site whose closed log of four entries another site has cosigned, and holds in `../head`."""
    folder = tmp_path / "chest"
    folder.mkdir()
    (folder / "site.yml").write_text(site_yaml(reader="phantom", organ="chest", methods=[]))
    key = AuditKey.at(folder / "audit.key", origin_of("chest"))
    own, head = Witness(folder / "audit", key), Witness(tmp_path / "head", _key(tmp_path, "head"))
    log = AuditLog(folder / "audit", "chest", key)
    for event in (Event.OPEN, Event.RELEASE, Event.RECEIVE, Event.CLOSE):
        log.append(event, job="j")
    note = log.checkpoint()
    head.introduce(key.public)
    own.introduce(head.key.public)
    log.cosigned([head.cosign(note)], own.known_keys().values())
    log.close()
    return folder


def _key(place: Path, name: str) -> AuditKey:
    return AuditKey.at(place / f"{name}.key", origin_of(name))


def test_exit_codes_say_shown_not_shown_or_broken(medfedvqa: Command, site: Path) -> None:
    """0 with everything that is asked for, 2 without others' copies, 1 for damage; JSON says the same."""
    audit, head = str(site / "audit"), str(site.parent / "head")
    shown = medfedvqa("audit", "verify", audit, "--against", head, "--no-network")
    assert shown.returncode == 0 and "not shown" not in shown.stdout
    assert medfedvqa("audit", "verify", audit, "--no-network").returncode == 2
    assert medfedvqa("audit", "verify", audit, "--against", head).returncode == 2
    log = site / "audit" / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"receive"', b'"release"'))
    broken = medfedvqa("audit", "verify", audit, "--against", head, "--no-network", "--json")
    told = json.loads(broken.stdout)
    assert broken.returncode == 1 and told["state"] == "broken"
    (found,) = told["logs"]
    (chain,) = [part for part in found["integrity"]["parts"] if part["name"] == "chain"]
    assert (chain["state"], chain["entry"], found["entries"]) == ("broken", 2, 2)
    assert medfedvqa("audit", "verify", audit, "--against", "/nowhere").returncode == 1


def test_a_running_job_has_to_be_said_to_run(medfedvqa: Command, site: Path) -> None:
    """A log may lack the end of a job because somebody cut it."""
    log = AuditLog(site / "audit", "chest", AuditKey.at(site / "audit.key", origin_of("chest")))
    log.append(Event.OPEN, job="second")
    log.close()
    told = ["audit", "verify", str(site / "audit"), "--against", str(site.parent / "head"), "--no-network"]
    assert medfedvqa(*told).returncode == 2 and "not closed" in medfedvqa(*told).stdout
    assert medfedvqa(*told, "--running", "second").returncode == 0


def test_a_proof_is_written_once_and_checked_without_the_log(medfedvqa: Command, site: Path) -> None:
    """By the site's key, by the other site's, by both; not by a stranger's, nor with a changed entry."""
    bundle = site / "entry.json"
    told = ["audit", "proof", str(site / "audit"), "1", "--out", str(bundle)]
    assert medfedvqa(*told).returncode == 0 and "exists already" in medfedvqa(*told).stderr
    own = medfedvqa("audit", "key", "--site", str(site / "site.yml")).stdout.strip()
    head, stranger = (str(_key(site.parent, name).public) for name in ("head", "stranger"))
    for keys in ([own], [head], [own, head]):
        done = medfedvqa("audit", "check", str(bundle), *(part for key in keys for part in ("--key", key)))
        assert done.returncode == 0 and '"event": "release"' in done.stdout
    for keys in ([stranger], [own, stranger]):
        done = medfedvqa("audit", "check", str(bundle), *(part for key in keys for part in ("--key", key)))
        assert done.returncode == 1 and "lacks a signature by a given key" in done.stderr
    bundle.write_text(bundle.read_text().replace("release", "receive"))
    assert medfedvqa("audit", "check", str(bundle), "--key", own).returncode == 1
    assert medfedvqa("audit", "proof", str(site / "audit"), "4", "--out", str(site / "no")).returncode == 1


def test_a_receipt_is_written_once_and_checked_without_the_log(medfedvqa: Command, site: Path) -> None:
    """By the site's key alone; a changed entry, and a folder without one, are refused."""
    out = site / "receipt"
    command = ["audit", "receipt", "1", "--site", str(site / "site.yml"), "--out", str(out)]
    assert medfedvqa(*command).returncode == 0 and "exists already" in medfedvqa(*command).stderr
    key = medfedvqa("audit", "key", "--site", str(site / "site.yml")).stdout.strip()
    done = medfedvqa("audit", "check", str(out), "--key", key)
    assert done.returncode == 0 and '"event": "release"' in done.stdout
    assert "entry 1 of medfedvqa/audit/chest, signed by medfedvqa/audit/chest" in done.stdout
    head = str(_key(site.parent, "head").public)
    assert medfedvqa("audit", "check", str(out), "--key", key, "--key", head).returncode == 1
    entry = out / "entry.json"
    entry.write_bytes(entry.read_bytes().replace(b"release", b"receive"))
    broken = medfedvqa("audit", "check", str(out), "--key", key)
    assert (
        broken.returncode == 1 and "does not belong to this entry" in broken.stderr and "receive" not in broken.stdout
    )
    entry.unlink()
    assert "cannot be read" in medfedvqa("audit", "check", str(out), "--key", key).stderr
    late = medfedvqa("audit", "receipt", "4", "--site", str(site / "site.yml"), "--out", str(site / "none"))
    assert late.returncode == 1 and not (site / "none").exists()


def test_nothing_expires_before_its_time(medfedvqa: Command, site: Path) -> None:
    """A young log keeps all lines."""
    before = (site / "audit" / "log.jsonl").read_bytes()
    done = medfedvqa("audit", "expire", "--site", str(site / "site.yml"))
    assert done.returncode == 0 and "0 files" in done.stdout
    assert (site / "audit" / "log.jsonl").read_bytes() == before


def test_the_public_form_is_published_and_made_anew(medfedvqa: Command, site: Path) -> None:
    """A cut tile is BROKEN with exit code 1 until all is made anew; without damage nothing changes."""
    told = ["audit", "publish", "--site", str(site / "site.yml")]
    verify = ["audit", "verify", str(site / "audit"), "--against", str(site.parent / "head"), "--no-network"]
    tile = site / "audit" / "tlog" / "tile" / "0" / "000.p" / "4"
    before = tile.read_bytes()
    done = medfedvqa(*told)
    assert done.returncode == 0 and "4 entries" in done.stdout and tile.read_bytes() == before
    tile.write_bytes(before[:-1])
    broken = medfedvqa(*verify)
    assert broken.returncode == 1 and "tiles: BROKEN" in broken.stdout and "publish --anew" in broken.stdout
    assert medfedvqa(*told).returncode == 0 and medfedvqa(*verify).returncode == 1
    assert medfedvqa(*told, "--anew").returncode == 0
    assert medfedvqa(*verify).returncode == 0 and tile.read_bytes() == before


def old_site(site: Path, patch: pytest.MonkeyPatch) -> Path:
    """Its log has a closed file of entries that are older than the retention by the clock that wrote them."""
    key = AuditKey.at(site / "audit.key", origin_of("chest"))
    (site / "audit" / "log.jsonl").unlink()
    for name in ("tree", "checkpoints"):
        (site / "audit" / name).unlink()
    with patch.context() as context:
        context.setattr(audits.log, "datetime", SiteClock(datetime.now(UTC) - timedelta(days=2300)))
        log = AuditLog(site / "audit", "chest", key, 900)
        for _ in range(4):
            log.append(Event.FINDING, reason="something to write down")
    log.append(Event.FINDING, reason="begins another file")
    log.close()
    return site


def test_lines_that_are_old_by_the_clock_alone_expire_by_a_persons_date(
    medfedvqa: Command, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it they are kept, and exit code 2 says so; a date that is not the machine's is an error."""
    told = ["audit", "expire", "--site", str(old_site(site, monkeypatch) / "site.yml")]
    before = sorted((site / "audit").glob("log-*.jsonl"))
    kept = medfedvqa(*told)
    assert kept.returncode == 2 and "0 files" in kept.stdout and "--date" in kept.stdout
    wrong = medfedvqa(*told, "--date", "2019-01-01")
    assert wrong.returncode == 1 and "differs from this machine's date" in wrong.stderr
    assert sorted((site / "audit").glob("log-*.jsonl")) == before
    done = medfedvqa(*told, "--date", datetime.now(UTC).date().isoformat())
    assert done.returncode == 0 and "2 files" in done.stdout
    shown = json.loads(medfedvqa("audit", "verify", str(site / "audit"), "--no-network", "--json").stdout)
    parts = {part["name"]: part for part in shown["logs"][0]["completeness"]["parts"]}
    assert shown["state"] == "not shown" and "a person gave" in parts["retention"]["said"]
