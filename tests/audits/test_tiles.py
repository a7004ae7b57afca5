"""The public form of a log: what is written when, and what is found when it is damaged."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile import KINDS
from small_logs import expired, filled, key_of
from tile_logs import ENTRIES, assert_published, grow, lines, made, open_log, tiles_part
from tlog_client import opened

from audits import AuditKey, AuditLog, Event, LogError, VerdictState, Witness, examine, origin_of
from audits.checkpoint import Checkpoint, signed_checkpoint
from audits.entry import hashed_bytes
from audits.tiles import PUBLIC, bundle_of, tile_path
from audits.tree import nodes_before
from audits.witness import replace_durably


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("original"))


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "copy")
    return tmp_path / "copy"


def test_paths_are_those_of_the_specification() -> None:
    """Three digits an element, all but the last behind an x; the width of a partial tile follows."""
    assert tile_path(0, 1234067) == "tile/0/x001/x234/067" and tile_path(1, 17, 8) == "tile/1/017.p/8"
    assert tile_path("entries", 999) == "tile/entries/999" and tile_path(5, 1000, 1) == "tile/5/x001/000.p/1"


def test_the_public_form_follows_while_the_log_is_open(tmp_path: Path) -> None:
    """Every 256 entries at a checkpoint, and at any time by `publish`."""
    log = open_log(tmp_path)
    sizes = []
    for _ in range(12):
        grow(log, 50)
        log.checkpoint()
        note = tmp_path / "audit" / PUBLIC / "checkpoint"
        sizes.append(Checkpoint.parse(note.read_text().split("\n\n")[0] + "\n").size if note.exists() else 0)
    assert sizes == [0, 0, 0, 0, 0, 300, 300, 300, 300, 300, 300, 600]
    grow(log, 1)
    log.publish()
    assert_published(tmp_path, 601)
    log.close()


def test_a_checkpoint_is_published_after_all_that_it_needs_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it takes its place, every other file and folder of the public form was synced since it was written."""
    synced: dict[int, int] = {}
    real, unsynced = os.fsync, []
    home = tmp_path / "audit" / PUBLIC

    def spy(descriptor: int) -> None:
        real(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_mtime_ns

    def published(path: Path, text: str) -> None:
        for result in (home, *home.rglob("*")):
            if synced.get(result.stat().st_ino) != result.stat().st_mtime_ns:
                unsynced.append(result)
        replace_durably(path, text)

    monkeypatch.setattr(os, "fsync", spy)
    monkeypatch.setattr("audits.tiles.replace_durably", published)
    for entries in (3, 300):
        made(tmp_path, entries)
        # The folder changes once more, when the checkpoint takes its place in it.
        assert [path for path in unsynced if path != home] == []
    assert_published(tmp_path, 303)


def test_a_log_without_a_key_has_no_public_form(tmp_path: Path) -> None:
    """There is no checkpoint that could be published."""
    log = AuditLog(tmp_path / "audit", "chest")
    grow(log, 300)
    log.close()
    assert not (tmp_path / "audit" / PUBLIC).exists()


NEEDED = [
    *("checkpoint", "tile/0/000", "tile/0/001", "tile/0/002.p/88", "tile/1/000.p/2"),
    *("tile/entries/000", "tile/entries/001", "tile/entries/002.p/88"),
]


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "longer by an entry": lambda path: path.write_bytes(path.read_bytes() + b"\0\0"),
    "first byte": lambda path: _flip(path, 0),
    "middle byte": lambda path: _flip(path, path.stat().st_size // 2),
    "last byte": lambda path: _flip(path, -1),
    **{kind: lambda path, put=put: (path.unlink(), put(path)) for kind, put in KINDS.items()},
}


def test_all_files_that_a_checkpoint_needs_are_damaged_below(original: Path) -> None:
    """The list is complete."""
    home = original / "audit" / PUBLIC
    assert {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()} == set(NEEDED)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_the_public_form_is_found_and_repaired(place: Path, damage: str) -> None:
    """In each file, by a sentence; the log's other verdicts stay, and all of it can be made anew from the lines."""
    home = place / "audit" / PUBLIC
    before = {path: (home / path).read_bytes() for path in NEEDED}
    for path in NEEDED:
        DAMAGES[damage](home / path)
        result = examine(place / "audit", "chest", network=False)
        bad = [part for _, verdict in result.verdicts() for part in verdict.parts if part.state is VerdictState.BROKEN]
        assert [part.name for part in bad] == ["tiles"], path
        assert "audit publish --anew" in bad[0].said or path == "checkpoint"
        assert path == "checkpoint" or (path in bad[0].said and str(place) not in bad[0].said)
        log = open_log(place)
        log.publish(anew=True)
        log.close()
        assert_published(place, ENTRIES)
        # The time of a checkpoint is of the log, which has not grown: it is the same note.
        assert {path: (home / path).read_bytes() for path in NEEDED} == before


def test_the_first_entry_that_shows_the_damage_is_named(place: Path) -> None:
    """In a bundle the entry itself, in a tile the first under it."""
    bundle = place / "audit" / PUBLIC / "tile/entries/001"
    bundle.write_bytes(bundle.read_bytes().replace(b'"round":300', b'"round":301'))
    part = tiles_part(place)
    assert part and (part.state, part.entry) == (VerdictState.BROKEN, 300)
    (place / "audit" / PUBLIC / "tile/0/000").unlink()
    part = tiles_part(place)
    assert part and (part.state, part.entry) == (VerdictState.BROKEN, 0)


def test_a_checkpoint_of_other_entries_is_found(place: Path) -> None:
    """Signed by the site for another root, for more entries than there are, or by another key."""
    path = place / "audit" / PUBLIC / "checkpoint"
    other = AuditKey.at(place / "other.key", origin_of("chest"))
    head = AuditKey.at(place / "head.key", origin_of("head"))
    root = Checkpoint.parse(path.read_text().split("\n\n")[0] + "\n").root
    for note, text in (
        (signed_checkpoint(key_of(place), ENTRIES, bytes(32)), "other entries"),
        (signed_checkpoint(key_of(place), ENTRIES + 1, root), "more entries"),
        (signed_checkpoint(other, ENTRIES, root), "not signed by the site's key"),
        (signed_checkpoint(head, ENTRIES, root), "not signed by the site's key"),
    ):
        path.write_text(str(note))
        part = tiles_part(place)
        assert part and part.state is VerdictState.BROKEN and text in part.said


def test_a_chain_that_breaks_says_nothing_of_the_tiles(place: Path) -> None:
    """What could not be read is not blamed twice."""
    log = place / "audit" / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"round":400', b'"round":401'))
    part = tiles_part(place)
    assert part and part.state is VerdictState.NOT_SHOWN and "chain breaks" in part.said


def test_a_damaged_tree_is_not_published(place: Path) -> None:
    """Tiles are what was signed, or there is an error that says what to do."""
    path = place / "audit" / "tree"
    content = bytearray(path.read_bytes())
    content[32 * nodes_before(7)] ^= 1  # a leaf
    path.write_bytes(content)
    log = open_log(place)
    with pytest.raises(LogError, match="tree is damaged: remove its file 'tree'"):
        log.publish(anew=True)
    path.unlink()
    open_log(place).close()
    assert_published(place, ENTRIES)


def test_an_entry_too_long_for_a_bundle_leaves_its_bundle_out(tmp_path: Path) -> None:
    """Its hash is in the tiles as all others; a bundle that is missing without such an entry is found."""
    log = open_log(tmp_path)
    Witness(tmp_path / "audit", key_of(tmp_path))
    grow(log, 300)
    log.append(Event.FINDING, reason="x" * 66_000)
    grow(log, 300)
    log.close()
    bundles = tmp_path / "audit" / PUBLIC / "tile/entries"
    assert sorted(str(path.relative_to(bundles)) for path in bundles.rglob("*")) == ["000", "002.p", "002.p/89"]
    assert_published(tmp_path, 601)
    kept = [hashed_bytes(line, json.loads(line)["leaf_hash"]) for line in lines(tmp_path)[256:512]]
    for instead in (b"", kept[44][:65_535]):
        (bundles / "001").write_bytes(bundle_of([*kept[:44], instead, *kept[45:]]))
        part = tiles_part(tmp_path)
        assert part and part.state is VerdictState.BROKEN and part.entry == 300
    (bundles / "001").unlink()
    (bundles / "000").unlink()
    part = tiles_part(tmp_path)
    assert part and part.state is VerdictState.BROKEN and part.entry == 0


def test_lines_that_expire_leave_the_public_form(tmp_path: Path) -> None:
    """Every bundle that holds an expired line goes, hash tiles stay, and what was interrupted is done the next time."""
    log = open_log(tmp_path, 200_000)
    Witness(tmp_path / "audit", key_of(tmp_path))
    for _ in range(6):
        grow(log, 100)
    log.publish()
    home = tmp_path / "audit" / PUBLIC
    (home / "kept").write_bytes((home / "tile/entries/000").read_bytes())
    assert expired(log).deleted > 0
    first = json.loads(lines(tmp_path)[0])["seq"]
    gone = -(-first // 256)
    assert 0 < gone < 3
    left = {path.name for path in (home / "tile/entries").iterdir()}
    assert not left & {f"{index:03d}" for index in range(gone)} and (home / "tile/0/000").exists()
    (home / "kept").rename(home / "tile/entries/000")
    expired(log)
    assert not (home / "tile/entries/000").exists()
    log.close()
    part = tiles_part(tmp_path)
    assert part and part.state is VerdictState.SHOWN
    log = open_log(tmp_path)
    log.publish(anew=True)
    log.close()
    assert not (home / "tile/entries/000").exists()
    part = tiles_part(tmp_path)
    assert part and part.state is VerdictState.SHOWN


def test_cosignatures_reach_the_published_checkpoint(tmp_path: Path) -> None:
    """Those of the checkpoint that is published, each witness's once."""
    made(tmp_path, 5)
    witness = Witness(tmp_path / "head", AuditKey.at(tmp_path / "head.key", origin_of("head")))
    log = open_log(tmp_path)
    note = log.publish()
    witness.introduce(log.key)
    for _ in range(2):
        log.cosigned([witness.cosign(note)], [witness.key.public])
    path = tmp_path / "audit" / PUBLIC / "checkpoint"
    assert path.read_text().count("medfedvqa/audit/head") == 1
    assert opened(path.read_text(), str(log.key)).size == 5
    filled(log, 1)
    log.close()
    assert "medfedvqa/audit/head" not in path.read_text()
    assert_published(tmp_path, 6)
