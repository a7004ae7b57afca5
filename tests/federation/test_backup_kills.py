"""A backup and a restore that are killed at any of their steps leave the old state or the new one, never neither."""

import shutil
from pathlib import Path

import pytest
from backups import backed_up, begun, contents, killed, lived_in, medfedvqa, restored, site_file, spent
from doctored import SITE

from medfedvqa.errors import ConfigError
from medfedvqa.federation.site_config import load_site_config

pytestmark = pytest.mark.slow


def state_of(kit: Path) -> dict[str, str] | None:
    """The files of a site that may start; None for one that must not. What was set aside does not count."""
    if not site_file(kit).exists():
        return None
    try:
        load_site_config(site_file(kit), SITE)
    except ConfigError as error:
        assert "a restore of this site was interrupted" in str(error)
        return None
    return {name: digest for name, digest in contents(kit).items() if ".before-restore-" not in name}


def test_a_killed_backup_leaves_no_half_file(site_kit: Path, tmp_path: Path) -> None:
    """After every kill each file that has a backup's name is whole, the site is as it was, and another one works."""
    kit, folder = lived_in(site_kit), tmp_path / "backups"
    first, options = backed_up(kit, tmp_path)
    before, kills = contents(kit), 0
    with killed("backup", kit, tmp_path / "copy" / SITE, folder) as steps:
        for _ in steps:
            kills += 1
            files = list(folder.glob("[!.]*")) if folder.is_dir() else []
            for path in files:
                assert medfedvqa("restore", path, "--check", *options).exit_code == 0
                path.unlink()
            assert contents(tmp_path / "copy" / SITE) == before
    assert kills >= 5 and len(list(folder.iterdir())) == 1
    backed_up(kit, tmp_path)


@pytest.mark.parametrize("machine", ["new", "set back"])
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.release)])
def test_a_killed_restore_leaves_the_old_or_the_new_site(
    site_kit: Path, tmp_path: Path, machine: str, every: int
) -> None:
    """After every kill the site may not start, or is as before (its ledger with at least what it had), or is as after;
    the same restore then finishes."""
    kit, origin, place = lived_in(site_kit), tmp_path / "origin" / SITE, tmp_path / "place" / SITE
    origin.parent.mkdir()
    if machine == "set back":
        for copy in (origin, place):
            shutil.copytree(kit, copy)
    begun(kit, "job-3")
    backup, options = backed_up(kit, origin.parent)
    before, was_spent = state_of(place), spent(place) if machine == "set back" else 0.0
    restored(backup, place, *options)
    after = state_of(place)
    assert after is not None
    outcomes, kills = set(), 0
    with killed("restore", origin, place, backup, every) as steps:
        for _ in steps:
            kills += 1
            state = state_of(place)
            outcome = "stopped" if state is None else "old" if alike(state, before) else "new"
            outcomes.add(outcome)
            assert outcome != "new" or alike(state, after)
            assert state is None or spent(place) >= was_spent
            restored(backup, place, *options)
            assert alike(state_of(place), after) and spent(place) == spent(kit)
    assert kills * every > 100
    if every == 1:
        assert outcomes == {"stopped", "new"} | ({"old"} if machine == "set back" else set())


def alike(state: dict[str, str] | None, other: dict[str, str] | None) -> bool:
    """Whether two states have the same files, apart from the ledger and what a log's new entries change: their times
    differ."""
    if state is None or other is None:
        return False
    names = {name for name in state.keys() | other.keys() if state.get(name) != other.get(name)}
    newest = {f"audit/{name}" for name in ("log.jsonl", "tree", "checkpoints")}
    newest |= {name for name in names if name.startswith("audit/tlog/")}
    same_log = state["audit/log.jsonl"] == other["audit/log.jsonl"]
    closed = state.keys() == other.keys() and not same_log
    return names <= {"ledger"} | (newest if closed else set())
