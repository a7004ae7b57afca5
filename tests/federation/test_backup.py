"""`medfedvqa backup` and `restore`: what comes back, what is refused, and that no spent budget comes back."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from io import BytesIO, FileIO
from pathlib import Path
from random import randbytes
from typing import BinaryIO

import pyrage
import pytest
from backups import (
    LIMITS,
    PASSPHRASE,
    backed_up,
    begun,
    contents,
    lived_in,
    lose,
    medfedvqa,
    passphrase_in,
    refusal,
    restored,
    site_file,
    spent,
)
from doctored import SITE, TASK, log_of
from pyrage import x25519
from test_doctor import end, hold

import privacy
from audits import AuditLog, Event, read, verify
from medfedvqa.backup import back_up
from medfedvqa.backup import restore as restoring
from medfedvqa.backup.back_up import BackupSecret, sealed, unseal
from medfedvqa.errors import BackupError
from medfedvqa.federation.job_budget import require_ledger
from medfedvqa.federation.job_closing import close_ended
from medfedvqa.federation.site_config import load_site_config
from privacy import Ledger, LedgerError, PlannedTask

CHUNK = 1 << 16
"""Bytes of a chunk of an age file."""
END = b"-----END AGE ENCRYPTED FILE-----\n"


@pytest.fixture
def kit(site_kit: Path) -> Path:
    return lived_in(site_kit)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Where a kit of the same name may be made."""
    return tmp_path / "new machine" / SITE


def test_a_lost_machine_comes_back(kit: Path, tmp_path: Path, elsewhere: Path) -> None:
    """Into a new folder: settings and startup files with modes, keys, log, ledger, the state of jobs that are over.
    The state of a job that ran is left out, and its job is closed."""
    backup, options = backed_up(kit, tmp_path / "backups")
    before, was_spent = contents(kit), spent(kit)
    done = restored(backup, elsewhere, *options)
    after = contents(elsewhere)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    log = {name for name in changed if name.startswith("audit/")}
    assert changed - log == {"state/job-2.pt", "ledger", "readme.txt"}
    assert done["closed"] == ["job-2"] and not done["kept"]
    places = (kit, elsewhere)
    modes = [{path.name: path.stat().st_mode for path in (each / "startup").iterdir()} for each in places]
    assert modes[0] == modes[1]
    assert verify(elsewhere / "audit").ok and spent(elsewhere) == was_spent
    identities = [medfedvqa("identity", "--site", site_file(each)).stdout for each in places]
    assert identities[0] == identities[1]
    assert medfedvqa("privacy", "ledger", "--site", site_file(elsewhere)).exit_code == 0


def test_charges_of_jobs_that_ran_stay_after_a_restore(kit: Path, tmp_path: Path, elsewhere: Path) -> None:
    """The restored log lacks what the job released later. The site, when it starts, must not take the job for one that
    released nothing, and give its charges back."""
    backup, options = backed_up(kit, tmp_path / "backups")
    was_spent = spent(kit)
    restored(backup, elsewhere, *options)
    config = load_site_config(site_file(elsewhere), SITE)
    assert close_ended(config, running=()) == [] and spent(elsewhere) == was_spent > 0
    with closing(Ledger(config.ledger, SITE)) as ledger:
        assert ledger.together(1e-3, reserved=True).epsilon == was_spent  # nothing stays set aside
    close_ended(load_site_config(site_file(kit), SITE), running=())
    assert spent(kit) < was_spent  # the same job at a site whose log is whole, and says that nothing left


def test_a_newer_site_stays_as_it_is(kit: Path, tmp_path: Path) -> None:
    """Whatever happened since the backup stays, in log, ledger, settings and state; lost files come back."""
    backup, options = backed_up(kit, tmp_path / "backups")
    begun(kit, "job-3", tasks=2)
    (kit / "state" / "job-1.pt").write_bytes(b"a newer model")
    (kit / "identity.key").unlink()
    before, was_spent = contents(kit), spent(kit)
    done = restored(backup, kit, *options)
    after = contents(kit)
    assert after.pop("identity.key") and after == before and spent(kit) == was_spent
    assert done["placed"] == ["keys/identity"] and done["joined"] == 0 and done["kept"] == ["state/job-1.pt"]


def test_a_site_that_was_set_back_gets_what_it_lost(kit: Path, tmp_path: Path) -> None:
    """An older copy of the machine: log and ledger of the backup continue it, and it spends no more than before."""
    old = tmp_path / "old" / SITE
    shutil.copytree(kit, old)
    begun(kit, "job-3")
    backup, options = backed_up(kit, tmp_path / "backups")
    done = restored(backup, old, *options)
    assert "audit" in done["placed"] and done["joined"] > 0 and spent(old) == spent(kit)
    assert [entry.job for entry in read(old / "audit") if entry.event is Event.OPEN] == ["job-1", "job-2", "job-3"]
    aside = list(old.glob("audit.before-restore-*"))
    assert len(aside) == 1 and verify(aside[0]).ok


def test_a_ledger_that_is_gone_does_not_come_back_older(kit: Path, tmp_path: Path) -> None:
    """Its log names a charge that the backup's ledger lacks: refused, and nothing is changed."""
    backup, options = backed_up(kit, tmp_path / "backups")
    begun(kit, "job-3")
    with closing(Ledger(kit / "ledger", SITE)) as ledger, closing(log_of(kit)) as log:
        charge = ledger.charge_of("job-3", "train", 1)
        assert charge is not None
        event = {"ledger": {"seq": charge.seq, "head": charge.head}}
        log.append(Event.RELEASE, job="job-3", dp_event=event)
    lose(kit, "ledger")
    before = contents(kit)
    assert "lacks a charge" in refusal("restore", backup, "--to", kit, *options)
    assert contents(kit) == before


def test_a_ledger_that_is_lost_is_not_made_anew_by_a_look_at_it(kit: Path, tmp_path: Path) -> None:
    """An empty one would have another key, beside which the lost one could not be restored, and would look as if
    nothing was spent. Nor is there a backup without it."""
    with closing(Ledger(kit / "ledger", SITE)) as ledger, closing(log_of(kit)) as log:
        charge = ledger.charge_of("job-2", "train", 1)
        assert charge is not None
        log.append(Event.RELEASE, job="job-2", dp_event={"ledger": {"seq": charge.seq, "head": charge.head}})
    was_spent, (backup, options) = spent(kit), backed_up(kit, tmp_path / "backups")
    lose(kit, "ledger")
    config = load_site_config(site_file(kit), SITE)
    for command in (["privacy", "ledger", "--site"], ["privacy", "spent", "--site"]):
        assert "lacks a charge" in refusal(*command, site_file(kit))
    assert "lacks a charge" in refusal("backup", tmp_path / "backups", "--site", site_file(kit), *options)
    with pytest.raises(LedgerError, match="lacks a charge"):
        require_ledger(config)
    assert not config.ledger.exists()
    restored(backup, kit, *options)
    assert spent(kit) == was_spent > 0 and medfedvqa("privacy", "ledger", "--site", site_file(kit)).exit_code == 0


def test_two_ledgers_that_went_on_apart_are_joined(kit: Path, tmp_path: Path) -> None:
    """A copy was used by mistake: the site's patients have spent what both ledgers charged."""
    copy = tmp_path / "copy" / SITE
    shutil.copytree(kit, copy)
    begun(kit, "job-3", tasks=2)
    begun(copy, "job-4", tasks=2)
    shutil.rmtree(copy / "audit")
    shutil.copytree(kit / "audit", copy / "audit")
    backup, options = backed_up(kit, tmp_path / "backups")
    alone = spent(copy)
    assert restored(backup, copy, *options)["joined"] > 0
    assert spent(copy) > max(alone, spent(kit))
    assert restored(backup, copy, *options)["joined"] == 0


def test_logs_that_went_on_apart_are_not_mixed(kit: Path, tmp_path: Path) -> None:
    """Neither of them may replace the other."""
    copy = tmp_path / "copy" / SITE
    shutil.copytree(kit, copy)
    for place, job in ((kit, "job-3"), (copy, "job-4")):
        begun(place, job)
    backup, options = backed_up(kit, tmp_path / "backups")
    before = contents(copy)
    assert "neither direction" in refusal("restore", backup, "--to", copy, *options) and contents(copy) == before


def test_a_backup_of_another_site_is_refused(kit: Path, tmp_path: Path) -> None:
    """By its name; and by its keys, where another federation has a site of the same name."""
    backup, options = backed_up(kit, tmp_path / "backups")
    assert f"of the site '{SITE}'" in refusal("restore", backup, "--to", tmp_path / "head", *options)
    namesake = tmp_path / "other" / SITE
    shutil.copytree(kit, namesake)
    lose(namesake, "audit", "ledger")
    (namesake / "audit.key").write_bytes(bytes(32))
    assert "the audit keys of the site and of the backup's log differ" in refusal(
        "restore", backup, "--to", namesake, *options
    )


def test_a_site_that_runs_is_not_restored(kit: Path, tmp_path: Path) -> None:
    """It would write into files that are replaced under it. A backup of it is taken."""
    process = hold(kit, None)
    try:
        backup, options = backed_up(kit, tmp_path / "backups")
        assert "the site is running" in refusal("restore", backup, "--to", kit, *options)
    finally:
        end(process)


WRITER = """
import sys
from contextlib import closing
from pathlib import Path
from audits import AuditKey, AuditLog, Event, origin_of
from privacy import Ledger, Limits, PlannedTask, SampledGaussian
kit, limits = Path(sys.argv[1]), Limits(None, 1e-3)
log = AuditLog(kit / "audit", kit.name, AuditKey.at(kit / "audit.key", origin_of(kit.name)), segment_bytes=2_000)
with closing(Ledger(kit / "ledger", kit.name)) as ledger, closing(log):
    plan = [PlannedTask("train", n, (SampledGaussian(0.01, 9.0, 1),)) for n in range(1, 100)]
    ledger.reserve("long", "prompt_pfl", ["a"], plan, limits)
    for number in range(1, 100):
        charge = ledger.begin("long", "train", number, limits)
        log.append(Event.RELEASE, job="long", dp_event={"ledger": {"seq": charge.seq, "head": charge.head}})
        log.checkpoint()
        print(number, flush=True)
"""


@pytest.mark.slow
def test_a_backup_of_a_site_that_writes_is_consistent(kit: Path, tmp_path: Path) -> None:
    """A process charges, logs and signs all the time, and closes files of the log. Every backup taken meanwhile holds:
    each charge that its log names is in its ledger."""
    command = [sys.executable, "-c", WRITER, str(kit)]
    environment = os.environ | {"PYTHONPATH": str(Path(privacy.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            for number in range(3):
                for _ in range(5):
                    assert process.stdout.readline()
                backup, options = backed_up(kit, tmp_path / "backups")
                assert process.poll() is None
                place = tmp_path / str(number) / SITE
                assert restored(backup, place, *options)["entries"] > 5 * number
                assert medfedvqa("audit", "verify", place / "audit").exit_code != 1
                assert medfedvqa("privacy", "ledger", "--site", site_file(place)).exit_code == 0
        finally:
            process.kill()


def test_the_ledger_is_copied_after_the_log(kit: Path, tmp_path: Path, elsewhere: Path) -> None:
    """While the backup waits for whoever writes the log, a task is charged, and its release logged. The backup has
    both: with an older ledger it could not be restored."""
    log, backups = kit / "audit" / "log.jsonl", list[tuple[Path, tuple[object, ...]]]()
    thread = threading.Thread(target=lambda: backups.append(backed_up(kit, tmp_path / "backups")))
    with log.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread.start()
        end_of_wait = time.monotonic() + 60
        while not re.search(rf"-> FLOCK .*:{log.stat().st_ino} ", Path("/proc/locks").read_text()):
            assert time.monotonic() < end_of_wait, "the backup does not wait for the log"
            time.sleep(0.05)
        with closing(Ledger(kit / "ledger", SITE)) as ledger:
            ledger.reserve("job-9", "prompt_pfl", ["a"], [PlannedTask("train", 1, (TASK,))], LIMITS)
            charge = ledger.begin("job-9", "train", 1, LIMITS)
        twin = tmp_path / "twin" / SITE
        shutil.copytree(kit, twin)
        with closing(AuditLog(twin / "audit", SITE)) as copy:
            copy.append(Event.RELEASE, job="job-9", dp_event={"ledger": {"seq": charge.seq, "head": charge.head}})
        log.write_bytes((twin / "audit" / "log.jsonl").read_bytes())
    thread.join(60)
    ((backup, options),) = backups
    restored(backup, elsewhere, *options)
    assert spent(elsewhere) == spent(kit)


def test_a_passphrase_opens_only_its_own_backup(kit: Path, tmp_path: Path) -> None:
    """Another one, and a key in its place, do not; --check reads all of it and writes nothing."""
    right, wrong = passphrase_in(tmp_path / "a"), passphrase_in(tmp_path / "b", "incorrect horse battery")
    words = ("backup", tmp_path / "out", "--site", site_file(kit), "--passphrase-file")
    assert medfedvqa(*words, right).exit_code == 0
    (backup,) = (tmp_path / "out").iterdir()
    result = medfedvqa("restore", backup, "--check", "--passphrase-file", right, "--json")
    assert json.loads(result.stdout)["site"] == SITE and PASSPHRASE not in result.output
    assert "damaged, or the key" in refusal("restore", backup, "--check", "--passphrase-file", wrong)
    _, key = backed_up(kit, tmp_path / "keyed")
    assert "made with a passphrase" in refusal("restore", backup, "--check", *key)
    right.chmod(0o600)
    assert "not an age identity" in refusal("restore", backup, "--check", "--key", right)
    assert "cannot be read" in refusal("restore", backup, "--check", "--key", tmp_path / "none")
    key[1].chmod(0o644)
    assert "read by others" in refusal("restore", backup, "--check", *key)
    assert "12 characters" in refusal(*words, passphrase_in(tmp_path / "c", "short"))


def test_a_backup_shows_nothing_without_its_key(kit: Path, tmp_path: Path) -> None:
    """Neither names nor contents are in the clear, and others may not read the file."""
    backup, _ = backed_up(kit, tmp_path / "backups")
    content = backup.read_bytes()
    words = (b"site.yml", b"prompt_pfl", b"job-1", b"PRIVATE KEY", (kit / "audit.key").read_bytes(), b"the model")
    assert not [word for word in words if word in content] and backup.stat().st_mode & 0o077 == 0


def test_a_backup_of_a_newer_version_or_a_broken_log_is_refused(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is not called damaged; the second is not written."""
    monkeypatch.setattr(back_up, "FORMAT", 2)
    newer, options = backed_up(kit, tmp_path / "backups")
    assert "newer version" in refusal("restore", newer, "--check", *options)
    log = kit / "audit" / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"job":"job-1"', b'"job":"job-9"', 1))
    assert "breaks at entry" in refusal("backup", tmp_path / "backups", "--site", site_file(kit), *options)
    assert sorted(path.suffix for path in (tmp_path / "backups").iterdir()) == [".key", ".medfedvqa-backup"]


SECRETS = {
    "key": BackupSecret("key", str(x25519.Identity.generate())),
    "passphrase": BackupSecret("passphrase", PASSPHRASE),
}


def sealed_bytes(secret: BackupSecret, plain: bytes) -> bytes:
    with BytesIO() as file:
        with sealed(file, secret) as stream:
            stream.write(plain)
        return file.getvalue()


def opened(content: bytes, secret: BackupSecret) -> bytes:
    with BytesIO() as plain:
        unseal(BytesIO(content), secret, plain)
        return plain.getvalue()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_backup_that_was_cut_changed_or_reordered_is_refused(size: int) -> None:
    """Every cut at a chunk's end, every chunk with one bit changed, and two chunks that changed places."""
    secret, plain = SECRETS["key"], randbytes(size)
    whole = sealed_bytes(secret, plain)
    assert opened(whole, secret) == plain
    chunk = CHUNK + 16
    ends = sorted({len(whole) - 1, *range(len(whole), 0, -chunk), *range(len(whole) - size % CHUNK - 16, 200, -chunk)})
    forged = [whole[:end] for end in ends[:-1]] + [whole + whole[-chunk:], b"", b"no backup", whole[:40]]
    forged += [whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:] for end in ends]
    if size == 3 * CHUNK:
        first, second, third = (whole[-count * chunk :][:chunk] for count in (3, 2, 1))
        forged.append(whole[: -3 * chunk] + second + first + third)
    for content in forged:
        with pytest.raises(BackupError):
            opened(content, secret)


@pytest.fixture(scope="module")
def one() -> Iterator[tuple[bytes, bytes]]:
    """Head and content of a backup with a passphrase; each head is opened once, as that takes seconds by design."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyrage.passphrase, "decrypt", cache(pyrage.passphrase.decrypt))
        head, content = sealed_bytes(SECRETS["passphrase"], b"one").split(END)
        yield head + END, content


def test_a_file_of_one_passphrase_takes_no_other_head_or_content(one: tuple[bytes, bytes]) -> None:
    """Neither another file's identity at its head, nor content under another identity, nor a head alone or cut."""
    (head, content), other = one, sealed_bytes(SECRETS["key"], b"other")
    assert opened(head + content, SECRETS["passphrase"]) == b"one"
    for file in (head + other, head, head[:90] + END + content):
        with pytest.raises(BackupError, match="damaged, or the key"):
            opened(file, SECRETS["passphrase"])


def test_any_program_that_reads_age_files_opens_a_backup(kit: Path, tmp_path: Path, one: tuple[bytes, bytes]) -> None:
    """As docs/operations.md says: the content is a tar archive; a passphrase opens the identity that opens it."""
    backup, (_, key) = backed_up(kit, tmp_path / "backups")
    plain = pyrage.decrypt(backup.read_bytes(), [x25519.Identity.from_str(key.read_text().strip())])
    with tarfile.open(fileobj=BytesIO(plain), mode="r:") as archive:
        assert {"manifest.json", "keys/audit", "kit/local/site.yml"} <= set(archive.getnames())
    head, content = one
    identity = x25519.Identity.from_str(pyrage.passphrase.decrypt(head, PASSPHRASE).decode())
    assert pyrage.decrypt(content, [identity]) == b"one"


def test_a_full_disk_leaves_no_backup_and_is_named(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a thread encrypts, and when a backup is unpacked; the disk is one that takes nothing."""
    backup, options = backed_up(kit, tmp_path / "backups")

    @contextmanager
    def full(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
        with open("/dev/full", "wb", buffering=0) as file:
            yield path, file

    monkeypatch.setattr(back_up, "_draft", full)
    words = ("backup", tmp_path / "full", "--site", site_file(kit), *options)
    assert "cannot be written (No space left on device)" in refusal(*words)
    assert not list((tmp_path / "full").iterdir())
    monkeypatch.setattr(restoring, "TemporaryFile", lambda dir: FileIO("/dev/full", "wb"))
    assert "unpacked (No space left on device)" in refusal("restore", backup, "--check", *options)
