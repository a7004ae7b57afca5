"""Runs a backup, a restore or a rotation again and again, each time killed a few steps later.

A step is a call that Python reports to audit hooks: a file opened, renamed, linked, removed, a folder made, a database
connected. For each kill it prints the folder that the killed process left, and the next one waits for a line.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from medfedvqa.backup.back_up import BackupSecret, back_up
from medfedvqa.backup.restore import restore
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_keys import rotate_audit_key

STEPS = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "sqlite3.connect"}


def kill_at(step: int) -> None:
    """Kills this process by SIGKILL before its step of that number, from 0."""
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in STEPS or writes:
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(hook)


def run(work: str, origin: Path, place: Path, backup: Path, step: int) -> None:
    """Does the work once, and is killed before that step of it."""
    if work == "restore":
        secret = backup_key(origin)
        kill_at(step)
        restore(backup, place, secret)
        return
    site = place / "local" / "site.yml"
    config = load_site_config(site, place.name)
    if work == "rotate":
        kill_at(step)
        rotate_audit_key(config, site)
    else:
        secret = backup_key(origin)
        kill_at(step)
        back_up(config, site, backup, secret)


def backup_key(origin: Path) -> BackupSecret:
    """The key in the file beside the folder."""
    return BackupSecret("key", (origin.parent / "backup.key").read_text())


def main() -> None:
    """Goes on until a process ends by itself."""
    work, origin, place, backup, every = sys.argv[1], *map(Path, sys.argv[2:5]), int(sys.argv[5])
    for step in range(0, 100_000, every):
        shutil.rmtree(place, ignore_errors=True)
        if origin.is_dir():
            shutil.copytree(origin, place)
        child = os.fork()
        if not child:
            try:
                run(work, origin, place, backup, step)
            except BaseException as error:
                print(f"failed {type(error).__name__}: {error}", flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        print("killed" if killed else f"ended {os.waitstatus_to_exitcode(status)}", flush=True)
        sys.stdin.readline()
        if not killed:
            return


main()
