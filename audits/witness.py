"""The witness: a site or the server cosigns others' logs, so that none of these can be rewritten unnoticed.

A witness stores the last checkpoint of each log that it cosigned, and cosigns a newer one only with a proof that it
continues the stored one. It refuses a log that shows two contradicting checkpoints, and stores both notes.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from audits.bounded_files import MAX_TEXT, read_bounded
from audits.checkpoint import (
    MAX_SUCCESSIONS,
    SUCCESSIONS,
    Checkpoint,
    NoteFile,
    Succession,
    read_successions,
    succeeded,
    text_of,
)
from audits.errors import ForkFound, LogError, NoteError, ProofFromElsewhere
from audits.log_files import sync_folder
from audits.signed_note import AuditKey, Note, VerifierKey
from audits.tree import consistent

WITNESSED, KEYS, EVIDENCE = "witnessed", "keys", "evidence-"
MAX_EVIDENCE = 100
"""Files; whoever relays notes could fill the disk with them."""
_MOST_SUCCESSIONS = 16 * MAX_SUCCESSIONS
MAX_PROOF = 128
"""Hashes; twice the binary digits of the largest tree."""


class Witness:
    """A witness whose memory is in `folder`; safe for several threads and processes.

    A log's key is the one that is pinned, or else the first that was shown. Raises `LogError` if the folder cannot be
    made.
    """

    def __init__(self, folder: Path, key: AuditKey, pinned: Mapping[str, VerifierKey] | None = None) -> None:
        """`pinned`: keys by their names."""
        self.key, self._folder, self._pinned = key, folder, dict(pinned or {})
        self._pinned[key.public.name] = key.public
        with _log_errors():
            folder.mkdir(parents=True, exist_ok=True)
            with self._locked() as keys:
                if read_keys(folder / KEYS).get(key.public.name) != key.public:
                    self._write(folder, keys)

    def known_keys(self) -> dict[str, VerifierKey]:
        """The stored keys, by name."""
        with _log_errors(), self._locked() as keys:
            return keys

    def position(self, origin: str) -> Checkpoint | None:
        """The last checkpoint of a log that was cosigned here. Raises `LogError`."""
        note = self._last().get(origin)
        return Checkpoint.parse(note.text) if note else None

    def positions(self) -> dict[str, Note]:
        """The last notes that were cosigned here, by origin. Raises `LogError`."""
        return self._last()

    def introduce(self, key: VerifierKey) -> None:
        """Stores the first key of a name. Raises `ForkFound` if another key of that name is stored."""
        with _log_errors(), self._locked() as keys:
            self._introduce(keys, key)

    def successions(self, name: str) -> list[Succession]:
        """How the keys of this name were replaced. Raises `NoteError`."""
        with _log_errors(), self._locked():
            return [each for each in read_successions(self._folder / SUCCESSIONS) if each.old.name == name]

    def succeed(self, notes: Iterable[Note]) -> None:
        """Follows and stores successions of keys that are known here, also of pinned ones; others are ignored.

        Raises `NoteError` for one that does not hold, `LogError`.
        """
        statements = [Succession.parse(note) for note in notes]
        if not statements:
            return
        with _log_errors(), self._locked() as keys:
            stored = read_successions(self._folder / SUCCESSIONS)
            count = len(stored)
            for each in statements:
                is_other = each.old.name != self.key.public.name
                if is_other and keys.get(each.old.name) == each.old and len(stored) < _MOST_SUCCESSIONS:
                    stored.append(each)
                    keys[each.old.name] = each.new
            if len(stored) > count:
                replace_durably(self._folder / SUCCESSIONS, text_of(stored))

    def cosign(self, note: Note, proof: Sequence[bytes] = ()) -> Note:
        """The note with its signature and this witness's, which is on disk before this returns.

        `proof`: the consistency proof from the checkpoint of `position`. Raises `ForkFound` where two notes contradict
        each other, `NoteError` where one is not signed by the log's key or the proof does not hold, `LogError`.
        """
        (result,) = self.cosign_all([(note, proof)])
        if isinstance(result, NoteError):
            raise result
        return result

    def cosign_all(
        self, requests: Iterable[tuple[Note, Sequence[bytes]]], told: Mapping[str, int] | None = None
    ) -> list[Note | NoteError]:
        """Like `cosign`, for several notes with one write: each result is the note or the error. Raises `LogError`.

        `told`: the cosigned size of each log that the sender knows of, by origin; None if it knows all. If the size
        differs from the cosigned one, an invalid proof is `ProofFromElsewhere`, which accuses nobody.
        """
        results: list[Note | NoteError] = []
        with _log_errors(), self._locked() as keys:
            last = self._last()
            for note, proof in requests:
                try:
                    results.append(self._cosign_note(keys, last, note, proof, told))
                except NoteError as error:
                    results.append(error)
            if any(isinstance(result, Note) for result in results):
                self._keep(last)
        return results

    def _cosign_note(
        self,
        keys: Mapping[str, VerifierKey],
        last: dict[str, Note],
        note: Note,
        proof: Sequence[bytes],
        told: Mapping[str, int] | None,
    ) -> Note:
        checkpoint = Checkpoint.parse(note.text)
        key = keys.get(checkpoint.origin)
        if key is None or not key.signed(note):
            raise NoteError("the checkpoint is not signed by the log's known key")
        if checkpoint.origin in last:
            before = last[checkpoint.origin]
            size = Checkpoint.parse(before.text).size
            self._check(before, note, proof, told is None or told.get(checkpoint.origin) == size)
        log_signatures = tuple(signature for signature in note.signatures if signature[0] == checkpoint.origin)
        last[checkpoint.origin] = Note(note.text, log_signatures).joined(self.key.cosign(note, int(time.time())))
        return last[checkpoint.origin]

    def export(self, folder: Path) -> None:
        """Writes the stored keys and the last cosigned notes into another folder. Raises `LogError`."""
        with _log_errors(), self._locked() as keys:
            self._write(folder, keys)
            replace_durably(folder / WITNESSED, "".join(f"{note}\n" for note in self._last().values()))

    def accuse(self, first: Note, second: Note) -> None:
        """Stores two notes that contradict each other, once. Raises `LogError`."""
        text = "".join(f"{note}\n" for note in (first, second))
        name = EVIDENCE + hashlib.sha256("".join(sorted((first.text, second.text))).encode()).hexdigest()[:16]
        with _log_errors():
            if len(list(self._folder.glob(f"{EVIDENCE}*"))) < MAX_EVIDENCE and not (self._folder / name).exists():
                replace_durably(self._folder / name, text)

    def _check(self, before: Note, note: Note, proof: Sequence[bytes], is_told: bool) -> None:
        old, new = Checkpoint.parse(before.text), Checkpoint.parse(note.text)
        if new.size < old.size:
            if new.extensions.get("time", "") <= old.extensions.get("time", ""):
                raise NoteError("the checkpoint is older than the one that was cosigned here")
            self.accuse(before, note)
            raise ForkFound("the log was rolled back: this site cosigned a larger checkpoint of it before")
        if (new.size, new.root) == (old.size, old.root):
            return  # told again, as to a site that was killed before it answered: the proof is from an earlier size
        if len(proof) > MAX_PROOF or not consistent(old.size, new.size, old.root, new.root, proof):
            if new.size > old.size and not is_told:
                raise ProofFromElsewhere("the proof does not begin at the checkpoint that was cosigned here")
            self.accuse(before, note)
            if new.size == old.size:
                raise ForkFound("the log was forked or rewritten: it signed two roots for one size")
            raise ForkFound("the proof does not show that the checkpoint continues the one cosigned here")

    def _introduce(self, keys: dict[str, VerifierKey], key: VerifierKey) -> None:
        if keys.get(key.name, key) != key:
            raise ForkFound("the log's key is not the one that was known before: compare the keys by phone")
        if key.name not in keys:
            keys[key.name] = key
            self._write(self._folder, keys)

    def _write(self, folder: Path, keys: Mapping[str, VerifierKey]) -> None:
        replace_durably(folder / KEYS, "".join(f"{key}\n" for key in keys.values()))

    def _last(self) -> dict[str, Note]:
        return {Checkpoint.parse(note.text).origin: note for note in NoteFile(self._folder / WITNESSED)}

    def _keep(self, notes: Mapping[str, Note]) -> None:
        replace_durably(self._folder / WITNESSED, "".join(f"{note}\n" for note in notes.values()))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, VerifierKey]]:
        """Locks out other processes; yields the stored keys."""
        with open(self._folder / ".witness", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            stored = read_successions(self._folder / SUCCESSIONS)
            keys = read_keys(self._folder / KEYS) | self._pinned
            yield {name: _newest(key, stored) for name, key in keys.items()}


def _newest(key: VerifierKey, stored: Sequence[Succession]) -> VerifierKey:
    newest = succeeded(key, [each for each in stored if each.old.name == key.name])
    return VerifierKey(newest.name, newest.raw)


def read_keys(path: Path) -> dict[str, VerifierKey]:
    """The keys in a file, a line each, by name; the first counts. Raises `NoteError`."""
    keys: dict[str, VerifierKey] = {}
    try:
        content = read_bounded(path, MAX_TEXT).decode(errors="replace")
    except FileNotFoundError:
        return keys
    except OSError as error:
        raise NoteError(f"the file of keys cannot be read ({error.strerror})") from None
    for line in content.splitlines():
        key = VerifierKey.parse(line)
        keys.setdefault(key.name, key)
    return keys


def replace_durably(path: Path, text: str) -> None:
    """Replaces a file's content by a text, atomically. Raises `OSError`."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


@contextlib.contextmanager
def _log_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(f"the record of others' logs cannot be written ({error.strerror})") from None
