"""A part of a log, shown to somebody who has no log."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from logs import JOB

from audits import AuditKey, AuditLog, Event, LogError, NoteError, Witness, origin_of
from audits.excerpt import CosignedCheckpoint, Excerpt, QuotedEntry, check_excerpt, quote, quoted_entries
from audits.external_evidence import ExternalEvidence
from audits.retention import expire

SITE = "chest"


def key(name: str = SITE, seed: int = 1) -> AuditKey:
    return AuditKey(origin_of(name), Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


def wanted(record: Mapping[str, Any]) -> bool:
    return record["job"] == "job-1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eleven entries of two jobs, of which a witness cosigned the first seven."""
    folder, own = tmp_path / "audit", key()
    Witness(folder, own)
    log, other = AuditLog(folder, SITE, own), Witness(tmp_path / "other", key("head", 2))
    other.introduce(own.public)
    for number in range(7):
        log.append(Event.OPEN, **JOB | {"job": f"job-{number % 2}"})
    log.cosigned([other.cosign(log.checkpoint())], [other.key.public])
    Witness(folder, own).introduce(other.key.public)
    for _ in range(4):
        log.append(Event.OPEN, **JOB | {"job": "job-1"})
    log.close()
    return folder


def test_an_excerpt_shows_its_entries_and_who_cosigned_the_log(folder: Path) -> None:
    """Only what was wanted, under the newest checkpoint, which continues the cosigned one."""
    result = quote(folder, SITE, wanted)
    shown = check_excerpt(result, SITE)
    assert [entry.seq for entry in quoted_entries(result)] == [1, 3, 5, 7, 8, 9, 10]
    assert (shown.checkpoint.size, shown.cosigned, shown.cosigners) == (11, 7, (origin_of("head"),))


def test_a_checkpoint_that_only_others_hold_counts_as_well(folder: Path, tmp_path: Path) -> None:
    """What another hospital cosigned last is often not in the site's own folder yet."""
    other, log = Witness(tmp_path / "other", key("head", 2)), AuditLog(folder, SITE, key())
    note = log.checkpoint()
    other.cosign(note, log.proof(7, note))
    log.close()
    assert check_excerpt(quote(folder, SITE, wanted), SITE).cosigned == 7
    others = ExternalEvidence.gather([tmp_path / "other"], folder)
    assert check_excerpt(quote(folder, SITE, wanted, others), SITE).cosigned == 11


def test_the_excerpt_of_a_log_of_which_lines_expired_holds(tmp_path: Path) -> None:
    """It says how many went, and the proofs of the others stand on the kept hashes."""
    Witness(tmp_path, key())
    log = AuditLog(tmp_path, SITE, key(), segment_bytes=2000)
    for _ in range(9):
        log.append(Event.OPEN, **JOB)
    later = datetime.now(UTC) + timedelta(days=2)
    assert expire(log, 1, date=later.date(), now=later).deleted
    log.close()
    result = quote(tmp_path, SITE, wanted)
    assert result.first > 0 and quoted_entries(result)[0].seq == result.first
    assert check_excerpt(result, SITE).cosigned == 0


def test_a_log_without_checkpoint_cannot_be_quoted(tmp_path: Path) -> None:
    """Nothing would prove it."""
    log = AuditLog(tmp_path, SITE)
    log.append(Event.OPEN, **JOB)
    log.close()
    with pytest.raises(LogError, match="not signed"):
        quote(tmp_path, SITE, wanted)


def altered(found: Excerpt) -> dict[str, Excerpt]:
    """One thing changed in each."""
    first, second, *rest = found.entries
    assert found.cosigned is not None
    swapped = QuotedEntry(first.record, second.proof)
    edited = QuotedEntry({**first.record, "job": "job-0"}, first.proof)
    more = QuotedEntry({**first.record, "note": 1}, first.proof)
    return {
        "an edited entry": replace(found, entries=(edited, second, *rest)),
        "a field more": replace(found, entries=(more, second, *rest)),
        "another's proof": replace(found, entries=(swapped, second, *rest)),
        "a proof cut": replace(found, entries=(QuotedEntry(first.record, first.proof[1:]), second, *rest)),
        "no proof": replace(found, entries=(QuotedEntry(first.record, ("?",)), second, *rest)),
        "an order": replace(found, entries=(second, first, *rest)),
        "an entry twice": replace(found, entries=(first, first, *rest)),
        "another key": replace(found, key=str(key(seed=3).public)),
        "another's key": replace(found, key=str(key("head", 2).public)),
        "another size": replace(found, checkpoint=found.checkpoint.replace("\n11\n", "\n10\n")),
        "a first entry": replace(found, first=12),
        "an older checkpoint": replace(found, checkpoint=found.cosigned.checkpoint),
        "a cosigner": replace(found, others=(str(key("abdomen", 3).public),)),
        "no cosigner": replace(found, others=()),
        "the site as cosigner": replace(found, others=(found.key,)),
        "no cosigned checkpoint": replace(found, cosigned=None),
        "a consistency": replace(
            found, cosigned=CosignedCheckpoint(found.cosigned.checkpoint, found.cosigned.proof[1:])
        ),
        "a cosigned note": replace(found, cosigned=CosignedCheckpoint(found.checkpoint, ())),
    }


def test_whatever_is_changed_in_an_excerpt_is_refused(folder: Path) -> None:
    """Each of these by itself; unchanged it holds, but not for another site."""
    result = quote(folder, SITE, wanted)
    accepted = []
    for name, item in altered(result).items():
        try:
            check_excerpt(item, SITE)
            accepted.append(name)
        except NoteError:
            pass
    assert accepted == []
    with pytest.raises(NoteError):
        check_excerpt(result, "head")
