"""Checkpoints of a log, segments, retention and the witness: what survives crashes and shows tampering."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_logs import defined_root, expired, filled, key_of, opened

import audits
from audits import (
    AuditKey,
    AuditLog,
    Checkpoint,
    Event,
    LogError,
    Note,
    NoteError,
    VerifierKey,
    Witness,
    origin_of,
    read,
    verify,
)
from audits.checkpoint import TAIL, NoteFile, signed_checkpoint
from audits.errors import ForkFound, ProofFromElsewhere
from audits.retention import ExpiryResult, expire
from audits.tree import consistent
from audits.witness import MAX_EVIDENCE

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(audits.__file__).parents[1])}


def leaves(place: Path) -> list[bytes]:
    return [bytes.fromhex(entry.leaf_hash) for entry in read(place / "audit")]


def test_a_checkpoint_is_the_signed_root_of_all_entries(tmp_path: Path) -> None:
    """By the recursive definition, over segments; signed once for one size, and consistent with those before."""
    log, before = opened(tmp_path), None
    for size in range(1, 12):
        filled(log, 1)
        note = log.checkpoint()
        result = Checkpoint.parse(note.text)
        assert (result.origin, result.size) == ("medfedvqa/audit/chest", size)
        assert result.root == defined_root(leaves(tmp_path)) and key_of(tmp_path).public.signed(note)
        assert log.checkpoint() == note
        if before:
            assert consistent(before.size, size, before.root, result.root, log.proof(before.size, note))
        before = result
    assert len(list((tmp_path / "audit").glob("log-*.jsonl"))) == 3
    assert [Checkpoint.parse(note.text).size for note in NoteFile(tmp_path / "audit" / "checkpoints")] == [
        *range(1, 12)
    ]


def test_closing_signs_what_is_not_signed(tmp_path: Path) -> None:
    """The last checkpoint covers the last entry; one process's log goes on from another's checkpoints."""
    for size in (3, 6):
        log = opened(tmp_path)
        filled(log, 3)
        log.close()
        note = NoteFile(tmp_path / "audit" / "checkpoints").latest()
        assert note and Checkpoint.parse(note.text).size == size
    assert verify(tmp_path / "audit").entries == 6


def test_two_processes_roll_and_sign_one_log(tmp_path: Path) -> None:
    """Each finds the segment that the other has begun."""
    item, other = opened(tmp_path), opened(tmp_path)
    for _ in range(5):
        filled(item, 2)
        item.checkpoint()
        filled(other, 3)
        other.checkpoint()
    assert verify(tmp_path / "audit").entries == 25
    last = NoteFile(tmp_path / "audit" / "checkpoints").latest()
    assert last and Checkpoint.parse(last.text).root == defined_root(leaves(tmp_path))


@pytest.mark.parametrize("point", ["rename", "open"])
def test_a_roll_that_is_interrupted_anywhere_loses_nothing(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the file has its new name, after it, and before another begins: the next process goes on."""
    log = opened(tmp_path)
    filled(log, 3)

    def die(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, point, die)
        with pytest.raises(LogError):
            log.append(Event.CLOSE)
    assert verify(tmp_path / "audit").entries == 3
    for again in (log, opened(tmp_path)):
        filled(again, 1)
    assert verify(tmp_path / "audit").entries == 5 and len(list(read(tmp_path / "audit"))) == 5


def test_the_tree_is_made_anew_if_it_is_lost_or_spoilt(tmp_path: Path) -> None:
    """Its file holds nothing that the log does not say, as long as no line is expired."""
    log = opened(tmp_path)
    filled(log, 5)
    log.close()
    for spoil in (lambda tree: tree.unlink(), lambda tree: tree.write_bytes(b"x" * 1000)):
        spoil(tmp_path / "audit" / "tree")
        log = opened(tmp_path)
        filled(log, 1)
        assert Checkpoint.parse(log.checkpoint().text).root == defined_root(leaves(tmp_path))
        log.close()


def test_a_log_that_was_cut_behind_its_checkpoint_takes_nothing(tmp_path: Path) -> None:
    """Whole entries that were signed are missing: the site does not go on as if nothing had happened."""
    log = opened(tmp_path, 1 << 20)
    filled(log, 4)
    log.close()
    path = tmp_path / "audit" / "log.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(LogError, match="before its last signed checkpoint"):
        opened(tmp_path).append(Event.OPEN)


def test_a_file_of_checkpoints_that_ends_in_no_note_is_not_continued(tmp_path: Path) -> None:
    """A torn note is cut off; more of what is no note than a crash can leave is damage, and says so."""
    key = AuditKey.at(tmp_path / "key", "chest")
    file = NoteFile(tmp_path / "checkpoints")
    file.append([signed_checkpoint(key, 1, bytes(32))])
    with file.path.open("ab") as torn:
        torn.write(b"torn")
    file.append([signed_checkpoint(key, 2, bytes(32))])
    assert [size for size, _ in NoteFile(file.path).heads()] == [1, 2]
    with file.path.open("ab") as damaged:
        damaged.write(b"x" * 2 * TAIL)
    with pytest.raises(NoteError, match="does not end with a note"):
        NoteFile(file.path).append([signed_checkpoint(key, 3, bytes(32))])


def test_a_rewritten_log_is_not_signed_again(tmp_path: Path) -> None:
    """Other entries than were signed, even with a sound chain, get no checkpoint."""
    log = opened(tmp_path, 1 << 20)
    filled(log, 4)
    log.close()
    (tmp_path / "audit" / "log.jsonl").unlink()
    other = AuditLog(tmp_path / "other", "chest")
    filled(other, 5)
    (tmp_path / "other" / "log.jsonl").rename(tmp_path / "audit" / "log.jsonl")
    with pytest.raises(LogError, match="rewritten"):
        opened(tmp_path, 1 << 20).checkpoint()


def test_expired_lines_go_and_their_hashes_stay(tmp_path: Path) -> None:
    """The log says so; the chain, later checkpoints and proofs from before still hold."""
    log = opened(tmp_path)
    filled(log, 8)
    before, all_leaves = Checkpoint.parse(log.checkpoint().text), leaves(tmp_path)
    assert expire(log).deleted == 0 and expired(log).deleted == 2
    first, *_, last = read(tmp_path / "audit")
    assert (first.seq, last.event) == (6, Event.EXPIRED) and "entries 0 to 5 " in str(last.reason)
    filled(log, 1)
    note = log.checkpoint()
    after = Checkpoint.parse(note.text)
    assert after.root == defined_root(all_leaves[:6] + leaves(tmp_path))
    assert consistent(before.size, after.size, before.root, after.root, log.proof(before.size, note))
    assert verify(tmp_path / "audit").ok and verify(tmp_path / "audit").entries == after.size
    log.close()
    again = opened(tmp_path)
    filled(again, 1)
    again.close()
    (tmp_path / "audit" / "tree").unlink()
    assert not verify(tmp_path / "audit").ok


def test_a_removed_segment_is_no_expired_one(tmp_path: Path) -> None:
    """The log has to say that its lines are expired, and only the oldest may be."""
    log = opened(tmp_path)
    filled(log, 9)
    log.close()
    (tmp_path / "audit" / "log-000003.jsonl").rename(tmp_path / "kept")
    assert verify(tmp_path / "audit").first_bad == 3
    (tmp_path / "kept").rename(tmp_path / "audit" / "log-000003.jsonl")
    (tmp_path / "audit" / "log-000000.jsonl").unlink()
    assert verify(tmp_path / "audit").first_bad == 0


def test_an_expiry_that_is_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the entry and the deletion leaves a log that holds, and lines that the next one deletes."""
    log = opened(tmp_path)
    filled(log, 8)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            expired(log)
    assert verify(tmp_path / "audit").ok and expired(log).deleted >= 2
    assert verify(tmp_path / "audit").ok


FILL_A_DISK = """
import sys
from pathlib import Path
from audits import AuditKey, AuditLog, Event, LogError
place = Path(sys.argv[1])
log = AuditLog(place / "audit", "chest", AuditKey.at(place / "audit.key", "medfedvqa/audit/chest"), 20_000)
acknowledged = 0
try:
    while True:
        acknowledged = log.append(Event.RELEASE, round=acknowledged).seq + 1
        log.checkpoint()
except LogError as error:
    print(error)
print(acknowledged, flush=True)
"""


def test_a_full_disk_stops_the_site_and_loses_no_entry(tmp_path: Path) -> None:
    """On a real file system of 256 kB: what was acknowledged is there, and with room again the log goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        command = [sys.executable, "-c", FILL_A_DISK, str(disk)]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        message, acknowledged = done.stdout.splitlines()
        verdict = verify(disk / "audit")
        assert "No space left on device" in message and verdict.ok and verdict.entries >= int(acknowledged) > 50
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        log = AuditLog(disk / "audit", "chest", AuditKey.at(disk / "audit.key", origin_of("chest")), 20_000)
        filled(log, 3)
        log.close()
        assert verify(disk / "audit").ok
        last = NoteFile(disk / "audit" / "checkpoints").latest()
        assert last and Checkpoint.parse(last.text).size == verify(disk / "audit").entries
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_cosignatures_are_stored_once_and_only_genuine_ones(tmp_path: Path) -> None:
    """By known keys, of this log's own checkpoints."""
    log, head, stranger = opened(tmp_path), key_of(tmp_path, "head"), key_of(tmp_path, "stranger")
    filled(log, 2)
    note = log.checkpoint()
    good, unknown = note.joined(head.cosign(note, 7)), note.joined(stranger.cosign(note, 7))
    forged = Note(note.text, (*note.signatures, (head.public.name, stranger.cosign(note, 7).signatures[0][1])))
    other = head.sign(note.text)
    assert log.cosigned([unknown, forged, other], [head.public]) == 0
    assert log.cosigned([good, good], [head.public]) == 1 and log.cosigned([good], [head.public]) == 0
    *_, stored = NoteFile(tmp_path / "audit" / "checkpoints")
    assert head.public.cosigned(stored) == 7 and stored.text == note.text


class Watched:
    """A log that a witness has cosigned with five entries."""

    def __init__(self, place: Path) -> None:
        self.place, self.log = place, opened(place)
        self.witness = self.restarted()
        self.witness.introduce(key_of(place).public)
        filled(self.log, 5)
        self.first = self.log.checkpoint()
        self.witness.cosign(self.first)

    def restarted(self) -> Witness:
        return Witness(self.place / "head", key_of(self.place, "head"))

    def evidence(self) -> list[Path]:
        return list((self.place / "head").glob("evidence-*"))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_witness_cosigns_what_continues_and_remembers_it(watched: Watched) -> None:
    """After a restart as well; without the proof, or with one from elsewhere, it does not."""
    filled(watched.log, 3)
    note = watched.log.checkpoint()
    proof = watched.log.proof(5, note)
    for bad in ([], proof[:-1], watched.log.proof(4, note)):
        with pytest.raises(ForkFound, match="does not show that the checkpoint continues"):
            watched.restarted().cosign(note, bad)
    cosigned = watched.restarted().cosign(note, proof)
    assert key_of(watched.place, "head").public.cosigned(cosigned)
    result = watched.restarted().position(origin_of("chest"))
    assert result and result.size == 8
    assert watched.restarted().cosign(note) and len(watched.evidence()) == 1


def test_neither_the_entries_nor_their_hashes_are_for_every_account(watched: Watched) -> None:
    """What others may read is published beside them."""
    assert [(watched.place / "audit" / name).stat().st_mode & 0o007 for name in ("log.jsonl", "tree")] == [0, 0]


def test_a_checkpoint_that_is_told_again_is_no_fork(watched: Watched) -> None:
    """A site that was killed before it answered is sent the same task again, with the proof from an earlier size."""
    filled(watched.log, 3)
    note = watched.log.checkpoint()
    proof = watched.log.proof(5, note)
    watched.restarted().cosign(note, proof)
    assert watched.restarted().cosign(note, proof) and not watched.evidence()


def test_a_sender_who_could_not_know_where_a_proof_begins_accuses_nobody(watched: Watched) -> None:
    """A site that was killed, or has another job, has cosigned more than the server knows; the next proof is right."""
    filled(watched.log, 3)
    cosigned = watched.log.checkpoint()
    watched.witness.cosign(cosigned, watched.log.proof(5, cosigned))
    filled(watched.log, 2)
    note = watched.log.checkpoint()
    stale = (note, watched.log.proof(5, note))
    (error,) = watched.restarted().cosign_all([stale], {origin_of("chest"): 5})
    assert isinstance(error, ProofFromElsewhere) and not watched.evidence()
    (error,) = watched.restarted().cosign_all([stale], {origin_of("chest"): 8})
    assert isinstance(error, ForkFound) and len(watched.evidence()) == 1
    (result,) = watched.restarted().cosign_all([(note, watched.log.proof(8, note))], {})
    assert isinstance(result, Note)
    forked = signed_checkpoint(key_of(watched.place), 10, bytes(32))
    (error,) = watched.restarted().cosign_all([(forked, ())], {})
    assert isinstance(error, ForkFound)


def test_the_own_key_lies_with_the_log_from_the_beginning(tmp_path: Path) -> None:
    """So that a copy of the folder can be verified; the pinned ones beside it."""
    other = key_of(tmp_path, "head").public
    Witness(tmp_path / "audit", key_of(tmp_path), {other.name: other})
    result = {VerifierKey.parse(line) for line in (tmp_path / "audit" / "keys").read_text().splitlines()}
    assert result == {key_of(tmp_path).public, other}


def test_a_young_log_has_nothing_that_could_expire(tmp_path: Path) -> None:
    """Not even an entry."""
    assert expire(opened(tmp_path)) == ExpiryResult(0, 0)


def test_a_witness_refuses_and_keeps_a_fork(watched: Watched) -> None:
    """Two roots for one size, both signed with the log's own key."""
    forked = signed_checkpoint(key_of(watched.place), 5, bytes(32))
    with pytest.raises(ForkFound, match="forked or rewritten"):
        watched.restarted().cosign(forked)
    (kept,) = watched.evidence()
    assert [note.text for note in NoteFile(kept)] == [watched.first.text, forked.text]


def test_a_witness_refuses_and_keeps_a_rollback(watched: Watched) -> None:
    """A later signed, smaller tree; a checkpoint that is merely old is refused without blame."""
    old = signed_checkpoint(key_of(watched.place), 3, bytes(32))
    filled(watched.log, 1)
    note = watched.log.checkpoint()
    watched.witness.cosign(note, watched.log.proof(5, note))
    with pytest.raises(NoteError, match="older") as caught:
        watched.restarted().cosign(watched.first)
    assert not isinstance(caught.value, ForkFound) and not watched.evidence()
    with pytest.raises(NoteError, match="older"):
        watched.restarted().cosign(old)
    with pytest.raises(ForkFound, match="rolled back"):
        watched.restarted().cosign(signed_checkpoint(key_of(watched.place), 3, bytes(32)))
    assert len(watched.evidence()) == 1


def test_a_witness_knows_each_log_by_one_key(watched: Watched) -> None:
    """The first that it was shown, or the pinned one; another is refused."""
    other = AuditKey.at(watched.place / "other.key", origin_of("chest"))
    with pytest.raises(ForkFound, match="key is not the one"):
        watched.restarted().introduce(other.public)
    with pytest.raises(NoteError, match="not signed"):
        watched.restarted().cosign(signed_checkpoint(other, 9, bytes(32)))
    pinned = Witness(watched.place / "head", key_of(watched.place, "head"), {origin_of("chest"): other.public})
    pinned.introduce(other.public)
    with pytest.raises(ForkFound):
        pinned.introduce(key_of(watched.place).public)


def test_a_log_knows_checkpoints_that_are_not_its_own(watched: Watched) -> None:
    """What others hold of it is compared with what it has: larger ones, and other roots."""
    assert not watched.log.contradicts(watched.first)
    for size, root in ((9, bytes(32)), (4, bytes(32))):
        assert watched.log.contradicts(signed_checkpoint(key_of(watched.place), size, root))


def test_the_evidence_of_forks_cannot_fill_a_disk(watched: Watched) -> None:
    """Who has a log's key can sign any number of them: a hundred are kept, and each once."""
    for number in range(MAX_EVIDENCE + 5):
        forked = signed_checkpoint(key_of(watched.place), 5, number.to_bytes(32))
        for _ in range(2):
            with pytest.raises(ForkFound):
                watched.witness.cosign(forked)
    assert len(watched.evidence()) == MAX_EVIDENCE
