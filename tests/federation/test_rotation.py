"""`medfedvqa rotate`: a site's keys are replaced, and what the old ones signed still verifies."""

import shutil
from pathlib import Path

import pytest
from attested import Federation
from attested import federation as federation
from attested import finished as finished
from backups import backed_up, killed, lived_in, medfedvqa, refusal, restored, site_file
from doctored import SITE, end, hold, log_of

from audits import AuditKey, Event, NoteError, VerdictState, VerifierKey, examine, origin_of, read
from audits.checkpoint import (
    SUCCESSIONS,
    NoteFile,
    Succession,
    read_successions,
    signed_checkpoint,
    signed_succession,
    succeeded,
)
from medfedvqa.errors import ConfigError
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_keys import rotate_audit_key


def key_at(path: Path) -> AuditKey:
    return AuditKey.at(path, origin_of(SITE))


def rotated(federation: Federation) -> VerifierKey:
    config = federation.configs[SITE]
    return rotate_audit_key(config, config.audit.parent / "site.yml")


def test_others_follow_a_new_key_and_nothing_is_broken(federation: Federation) -> None:
    """Before the next job, and after it: all verdicts stay; server and other sites then cosign under the new key."""
    old = federation.key(SITE).public
    new = rotated(federation)
    assert federation.key(SITE).public == new != old
    assert federation.examined(SITE).consistency.state is not VerdictState.BROKEN
    assert federation.examined(SITE).integrity.state is VerdictState.SHOWN
    federation.run("second")
    judged = federation.examined(SITE)
    assert {judged.integrity.state, judged.consistency.state} == {VerdictState.SHOWN}
    assert not [reason for site in federation.configs for reason in federation.findings(site)]
    for folder in (federation.place / "notary", federation.audit("head"), federation.audit("abdomen")):
        assert [each.new for each in read_successions(folder / SUCCESSIONS)] == [new]
        witnessed = {note.text.split("\n")[0]: note for note in NoteFile(folder / "witnessed")}
        assert new.signed(witnessed[origin_of(SITE)])
    rotated(federation)
    federation.run("third")
    assert federation.examined(SITE).consistency.state is VerdictState.SHOWN


def test_a_pinned_key_is_followed(federation: Federation) -> None:
    """A site that compared the old key by phone takes the new one from a statement that the old one signed."""
    pinned = {SITE: str(federation.key(SITE).public)}
    federation.configs["head"] = federation.configs["head"].model_copy(update={"audit_peers": pinned})
    rotated(federation)
    federation.run("second")
    assert not federation.findings("head")


def test_a_key_without_a_succession_is_a_finding(federation: Federation) -> None:
    """As before: somebody replaced the key's file alone. The server logs it, and nobody follows."""
    federation.configs[SITE].audit_key.unlink()
    federation.run("second")
    receipts = read(federation.place / "second" / "receipts")
    assert any("not the one that was known before" in str(entry.reason) for entry in receipts)
    assert federation.examined(SITE).consistency.state is VerdictState.BROKEN


def test_what_a_retired_key_signs_later_counts_for_nothing(federation: Federation, tmp_path: Path) -> None:
    """Whoever finds the old key signs a longer log with it: others' copies of that show as another key's."""
    old = federation.key(SITE)
    rotated(federation)
    later = tmp_path / "later.note"
    later.write_text(f"{signed_checkpoint(old, 10_000, bytes(32))}\n")
    judged = federation.examined(SITE, later)
    assert [part.name for part in judged.consistency.parts if part.state is VerdictState.BROKEN] == ["key"]


def test_a_succession_needs_both_keys(tmp_path: Path) -> None:
    """Signed by one alone, for another log, or with another text it is refused; it is no checkpoint either."""
    old, new, third = (key_at(tmp_path / name) for name in ("old", "new", "third"))
    note = signed_succession(old, new, 7)
    assert Succession.parse(note).size == 7
    for alone in (old, new):
        with pytest.raises(NoteError):
            Succession.parse(alone.sign(note.text))
    with pytest.raises(NoteError):
        Succession.parse(old.sign(note.text).joined(third.sign(note.text)))
    with pytest.raises(NoteError):
        Succession.parse(signed_succession(old, key_at(tmp_path / "new").named(origin_of("head")), 7))
    with pytest.raises(NoteError):
        Succession.parse(signed_checkpoint(old, 7, bytes(32)))
    chain = [Succession.parse(note), Succession.parse(signed_succession(new, third, 9))]
    for key in (old, new, third):
        newest = succeeded(key.public, chain)
        assert newest.raw == third.public.raw and newest.knows(old.public)
    assert newest.signed(signed_checkpoint(old, 7, bytes(32)))
    assert not newest.signed(signed_checkpoint(old, 8, bytes(32)))


def test_the_commands_replace_a_stopped_sites_keys(site_kit: Path, tmp_path: Path) -> None:
    """The log names the change, an earlier proof still checks under the old key, no private key is left over, and a
    restored site goes on under the new one. Cohort and store keys are refused with the reason, and nothing changes."""
    kit = lived_in(site_kit)
    log_of(kit).close()
    old = key_at(kit / "audit.key").public
    proof = tmp_path / "proof.json"
    assert medfedvqa("audit", "proof", kit / "audit", 0, "--out", proof).exit_code == 0
    fingerprint = medfedvqa("identity", "--site", site_file(kit)).stdout
    process = hold(kit, None)
    try:
        assert "the site runs" in refusal("rotate", "audit", "--site", site_file(kit))
    finally:
        end(process)
    for name in ("audit", "identity"):
        result = medfedvqa("rotate", name, "--site", site_file(kit))
        assert result.exit_code == 0, result.exception
    assert medfedvqa("audit", "check", proof, "--key", old).exit_code == 0
    new = key_at(kit / "audit.key").public
    assert new != old and [e.event for e in read(kit / "audit")][-1] is Event.ROTATED
    assert examine(kit / "audit", SITE, key=old).integrity.state is VerdictState.SHOWN
    assert medfedvqa("identity", "--site", site_file(kit)).stdout != fingerprint
    assert not [path.name for path in kit.iterdir() if "retired" in path.name or path.name.endswith(".next")]
    backup, options = backed_up(kit, tmp_path / "backups")
    elsewhere = tmp_path / "new" / SITE
    restored(backup, elsewhere, *options)
    assert examine(elsewhere / "audit", SITE, key=old).integrity.state is VerdictState.SHOWN
    before = (kit / "ledger" / "cohort.key").read_bytes()
    for name in ("cohort", "store"):
        assert "cannot be replaced: " in refusal("rotate", name, "--site", site_file(kit))
    assert (kit / "ledger" / "cohort.key").read_bytes() == before


@pytest.mark.slow
def test_a_rotation_that_is_killed_leaves_the_old_key_or_the_new_one(site_kit: Path, tmp_path: Path) -> None:
    """After SIGKILL before any of its steps the site must not start, or its key is one that its log vouches for; the
    same command then finishes."""
    kit, place = lived_in(site_kit), tmp_path / "place" / SITE
    log_of(kit).close()
    outcomes: set[str] = set()
    origin = Path(shutil.copytree(kit, tmp_path / "origin" / SITE))
    old = key_at(kit / "audit.key").public
    with killed("rotate", origin, place, tmp_path) as steps:
        for _ in steps:
            try:
                load_site_config(site_file(place), SITE)
            except ConfigError:
                outcomes.add("stopped")
                assert medfedvqa("rotate", "audit", "--site", site_file(place)).exit_code == 0
            key = key_at(place / "audit.key").public
            outcomes.add("old" if key == old else "new")
            newest = succeeded(old, read_successions(place / "audit" / SUCCESSIONS))
            assert key.raw == newest.raw
            log_of(place).close()
            assert examine(place / "audit", SITE, key=old).integrity.state is VerdictState.SHOWN
    assert outcomes == {"stopped", "old", "new"}
