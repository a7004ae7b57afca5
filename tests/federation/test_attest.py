"""Audit logs in a federation: checkpoints, cosignatures and receipts travel beside tasks, and tampering shows."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attested import SITES, Federation
from attested import federation as federation
from attested import finished as finished

from audits import (
    AuditKey,
    AuditLog,
    Checkpoint,
    Entry,
    Event,
    Examination,
    LogError,
    Note,
    VerdictState,
    VerifierKey,
    examine,
    origin_of,
    read,
)
from audits.checkpoint import NoteFile, signed_checkpoint
from audits.entry_proof import check, prove
from medfedvqa.federation.checkpoint_exchange import MAX_DOWN, MAX_UP, CheckpointExchange, Down, Relayed, Up
from medfedvqa.federation.server_receipts import _digest


def broken(found: Examination) -> set[str]:
    return {part.name for _, verdict in found.verdicts() for part in verdict.parts if part.state is VerdictState.BROKEN}


def test_the_logs_of_a_job_are_whole_complete_and_agreed_on(federation: Federation) -> None:
    """All three verdicts at every site; each release is in the hands of the server and both other sites."""
    for site in SITES:
        found = federation.examined(site)
        assert {name: verdict.state for name, verdict in found.verdicts()} == {
            "integrity": VerdictState.SHOWN,
            "completeness": VerdictState.SHOWN,
            "consistency": VerdictState.SHOWN,
        }
        said = {part.name: part.said for part in found.consistency.parts}
        assert "cosigned by 3 parties" in said["checkpoints"] and "all 3 messages" in said["receipts"]
        assert not federation.findings(site)
        # By itself a log shows nothing of what others hold, nor of the bytes on a network.
        alone = examine(federation.audit(site), site)
        assert (alone.integrity.state, alone.consistency.state) == (VerdictState.SHOWN, VerdictState.NOT_SHOWN)
        assert alone.completeness.state is alone.state is VerdictState.NOT_SHOWN


def test_one_other_hospitals_copy_is_enough_to_agree(federation: Federation) -> None:
    """Up to what it has cosigned: the last release comes after that, and is only in the server's hands."""
    _, checkpoints, *_ = federation.examined("chest", federation.audit("head")).consistency.parts
    assert checkpoints.state is VerdictState.NOT_SHOWN and "cosigned by 3 parties" in checkpoints.said


def test_a_second_job_goes_on_from_the_first(federation: Federation) -> None:
    """Proofs from what was held before; nobody takes it for a fork."""
    federation.run("second")
    for site in SITES:
        assert federation.examined(site).state is VerdictState.SHOWN and not federation.findings(site)
    assert not list(federation.place.rglob("evidence-*"))


def test_a_bundle_shows_an_entry_to_somebody_who_trusts_another_hospital(federation: Federation) -> None:
    """With the other hospital's key alone, and without any log."""
    release = next(entry for entry in read(federation.audit("chest")) if entry.event is Event.RELEASE)
    bundle = json.dumps(prove(federation.audit("chest"), release.seq)).encode()
    for site in ("chest", "head"):
        proven = check(bundle, [federation.key(site).public])
        assert proven.record["tensors"] == json.loads(json.dumps(release.record()["tensors"]))


def rewritten(federation: Federation, site: str, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """As the site's own administrator can: other entries, a new chain, new checkpoints signed with the site's key."""
    folder, entries = federation.audit(site), [entry.record() for entry in read(federation.audit(site))]
    change(entries)
    for name in ("log.jsonl", "tree", "checkpoints"):
        (folder / name).unlink()
    log = AuditLog(folder, site, federation.key(site))
    facts = ("job", "method", "round", "task", "direction", "peer", "outcome", "reason", "nbytes")
    for entry in entries:
        log.append(
            Event(entry["event"]), **{name: entry[name] for name in facts}, tensors=Entry.from_record(entry).tensors
        )
        log.checkpoint()
    log.close()


def without_a_release(entries: list[dict[str, Any]]) -> None:
    entries.remove(next(entry for entry in entries if entry["event"] == "release"))


def test_an_administrator_who_signs_a_changed_log_anew_is_found_out(federation: Federation) -> None:
    """The log itself is flawless; what one other site or the server holds is not of it."""
    rewritten(federation, "chest", without_a_release)
    alone = examine(federation.audit("chest"), "chest", network=False)
    assert alone.integrity.state is alone.completeness.state is VerdictState.SHOWN
    for holder in (federation.audit("head"), federation.audit("abdomen"), federation.place / "first" / "receipts"):
        assert "checkpoints" in broken(federation.examined("chest", holder))
    assert "receipts" in broken(federation.examined("chest", federation.place / "first" / "receipts"))


def test_a_release_that_is_told_otherwise_does_not_match_its_receipt(federation: Federation) -> None:
    """Same number of entries, another digest."""

    def other_digest(entries: list[dict[str, Any]]) -> None:
        release = next(entry for entry in entries if entry["event"] == "release")
        release["tensors"] = [{**tensor, "sha256": "0" * 64} for tensor in release["tensors"]]

    rewritten(federation, "chest", other_digest)
    assert {"checkpoints", "receipts"} <= broken(federation.examined("chest"))


def test_a_log_that_is_signed_anew_with_a_new_key_is_found_out(federation: Federation) -> None:
    """Others know it by the key that it had."""
    federation.configs["chest"].audit_key.unlink()
    (federation.audit("chest") / "keys").unlink()
    rewritten(federation, "chest", without_a_release)
    (federation.audit("chest") / "keys").write_text(f"{federation.key('chest').public}\n")
    assert examine(federation.audit("chest"), "chest").integrity.state is VerdictState.SHOWN
    assert "key" in broken(federation.examined("chest", federation.audit("head")))


def test_a_cut_log_is_found_out(federation: Federation) -> None:
    """With its checkpoints cut as well, by what others hold."""
    rewritten(federation, "chest", lambda entries: entries.__delitem__(slice(5, None)))
    found = federation.examined("chest")
    assert {"checkpoints", "receipts"} <= broken(found)


def rolled_back(federation: Federation, job_id: str) -> None:
    """Runs a job; then the disk of chest is as it was before."""
    shutil.copytree(federation.audit("chest"), federation.place / "backup")
    federation.run(job_id)
    shutil.rmtree(federation.audit("chest"))
    shutil.move(federation.place / "backup", federation.audit("chest"))


def test_a_rolled_back_site_is_found_out_by_everybody_and_itself(federation: Federation) -> None:
    """The next job runs; the site's own log, the other sites' and the server's say what was found."""
    rolled_back(federation, "second")
    assert "checkpoints" in broken(federation.examined("chest"))
    results = federation.run("third")
    assert results["status"] == "finished"
    assert any("shortened or rolled back" in said for said in federation.findings("chest"))
    (receipts,) = [federation.place / "third" / "receipts"]
    found = [str(entry.reason) for entry in read(receipts) if entry.event is Event.FINDING]
    assert any("rolled back" in said or "does not show that the checkpoint continues" in said for said in found)
    assert list((federation.place / "notary").glob("evidence-*"))
    assert "checkpoints" in broken(federation.examined("chest"))


def test_a_fork_towards_two_peers_is_found_out(federation: Federation) -> None:
    """Two histories under the site's own key: whoever has both copies sees it, and the witness keeps both notes."""
    size = 1 + max(Checkpoint.parse(note.text).size for note in NoteFile(federation.audit("chest") / "checkpoints"))
    for place, root in (("head", bytes(32)), ("abdomen", bytes([1]) * 32)):
        note = signed_checkpoint(federation.key("chest"), size, root)
        (federation.audit(place) / "chest.note").write_text(f"{note}\n")
    assert "checkpoints" in broken(federation.examined("chest"))


def told(site: str, said: bytes, **changes: Any) -> bytes:
    found = Down.read(said)
    return Down(**{**vars(found), **changes}).encoded()


@pytest.mark.parametrize("bad", ["noise", "empty", "long", "stranger", "own log", "forged", "other server", "too much"])
def test_what_a_bad_server_says_never_stops_training_and_is_a_finding(federation: Federation, bad: str) -> None:
    """Malformed, too long, forged, of other keys: the job ends well, and the site's log says so."""
    stranger = AuditKey.at(federation.place / "stranger.key", origin_of("stranger"))
    head, chest = federation.key("head").public, federation.key("chest")
    forged = stranger.named(head.name).sign(Checkpoint(head.name, 99, bytes(32)).text)
    changes: dict[str, Callable[[bytes], bytes]] = {
        "noise": lambda said: b"\xff{",
        "empty": lambda said: b"{}",
        "long": lambda said: b" " * (1 << 20),
        "stranger": lambda said: told("chest", said, others=(Relayed(head, stranger.sign("x\n")),)),
        "own log": lambda said: told("chest", said, others=(Relayed(chest.public, chest.sign("x\n")),)),
        "forged": lambda said: told("chest", said, others=(Relayed(head, forged),)),
        "other server": lambda said: told("chest", said, key=stranger.named("medfedvqa/server").public),
        "too much": lambda said: told("chest", said, wanted=(10**6,)),
    }
    federation.spoil = lambda site, said: changes[bad](said) if site == "chest" else said
    results = federation.run("second")
    assert results["status"] == "finished" and federation.findings("chest")
    assert not federation.findings("head")
    assert not any(str(federation.place) in said for said in federation.findings("chest"))


def test_a_site_that_comes_back_accuses_nobody_of_a_proof_from_what_the_server_knew(federation: Federation) -> None:
    """It cosigned more before it was killed than its answers say; once it has answered, such a proof is a finding."""
    chest, notary = federation.key("chest"), federation.key("abdomen").named("medfedvqa/notary").public
    with closing(AuditLog(federation.audit("chest"), "chest", chest)) as log:
        log.append(Event.EXPORTED)
        note = log.checkpoint()
        early = Relayed(chest.public, note, tuple(log.proof(2, note)))
    config, key = federation.configs["head"], federation.key("head")
    with closing(AuditLog(config.audit, "head", key)) as log:
        exchange = CheckpointExchange(config, log, key, "second", "prompt_pfl")
        exchange.receive(Down(notary, others=(early,)).encoded(), 1)
        assert not federation.findings("head") and not list(config.audit.glob("evidence-*"))
        seen = Up.read(exchange.reply()).seen or {}
        assert 2 < seen[chest.public.name] < Checkpoint.parse(note.text).size
        exchange.receive(Down(notary, others=(early,)).encoded(), 2)
    assert ["does not show that the checkpoint continues" in said for said in federation.findings("head")] == [True]


def test_pinned_keys_go_before_those_that_the_server_shows(federation: Federation) -> None:
    """A site whose file pins another key of a peer finds that, and cosigns nothing of it."""
    other = AuditKey.at(federation.place / "other.key", origin_of("head")).public
    config = federation.configs["chest"].model_copy(update={"audit_peers": {"head": str(other)}})
    federation.configs["chest"] = config
    federation.run("second")
    assert any("not the one that was known" in said for said in federation.findings("chest"))


def test_what_travels_beside_a_task_is_small(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes each way, read back as they were written."""
    sizes: list[int] = []
    encoded = Up.encoded

    def spy(up: Up) -> bytes:
        said = encoded(up)
        assert Up.read(said) == up
        sizes.append(len(said))
        return said

    monkeypatch.setattr(Up, "encoded", spy)
    federation.run("second")
    assert 500 < max(sizes) < 6000


def test_what_travels_beside_a_task_is_bounded_at_both_ends(federation: Federation) -> None:
    """However much there is to say, it fits, is read at the other end, and names the log's newest checkpoint."""
    key, log = federation.key("chest"), AuditLog(federation.audit("chest"), "chest", federation.key("chest"))
    note = log.checkpoint()
    log.close()
    long = Note(note.text, note.signatures * 30)
    proofs = {size: (bytes(32),) * 120 for size in range(32)}
    up = Up(key.public, note, proofs, (long,) * 40, {f"{number}" * 50: number for number in range(40)})
    down = Down(key.public, (long,) * 40, (Relayed(key.public, long, (bytes(32),) * 120),) * 40, tuple(range(40)))
    assert len(up.encoded()) <= MAX_UP and len(down.encoded()) <= MAX_DOWN
    assert Up.read(up.encoded()).note == note and Up.read(up.encoded()).proofs
    assert Down.read(down.encoded()).key == key.public and Down.read(down.encoded()).others


def test_receipts_hold_the_digests_of_what_the_server_got(federation: Federation) -> None:
    """The same records as in the sites' logs, and a chain and checkpoint of their own."""
    folder = federation.place / "first" / "receipts"
    got = [entry for entry in read(folder) if entry.event is Event.RECEIVE]
    for site in SITES:
        sent = [entry.tensors for entry in read(federation.audit(site)) if entry.event is Event.RELEASE]
        assert [entry.tensors for entry in got if entry.peer == site] == sent
    server = VerifierKey.parse((folder / "keys").read_text().splitlines()[0])
    note = NoteFile(folder / "checkpoints").latest()
    assert note and Checkpoint.parse(note.text).size == len(list(read(folder)))
    assert VerifierKey(Checkpoint.parse(note.text).origin, server.raw).signed(note)


def test_arrays_of_any_layout_have_the_digest_of_their_values(federation: Federation) -> None:
    """Transport may hand them over in another order of memory or bytes."""
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    assert _digest(array) == _digest(np.asfortranarray(array)) == _digest(array.astype(">f4"))


def test_a_folder_without_a_log_proves_nothing(tmp_path: Path) -> None:
    """A mistyped place is named as such, not as an entry that nobody signed."""
    with pytest.raises(LogError, match="this folder has no audit log"):
        prove(tmp_path / "nowhere", 3)
