"""The byte ledger of a site's process: every frame is counted, and what is not on the list is not sent.

Frames are counted at `SfmConnection.send_frame`, which all of FLARE's (2.9) bytes pass, whatever driver carries them.
Each is noted in a journal file before it is sent, so that counts outlive a process that is killed; now and then they
become an entry of the audit log. The site's own process also logs what dead processes left behind.
"""

import atexit
import contextlib
import fcntl
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.cell import StreamCell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import buffer_len, encode_payload
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from audits import AuditKey, AuditLog, Event, LogError, Refusal
from audits.byte_ledger import JOB, LIMITS, SITE, FrameCount, ResultCount, Traffic, WireWindow
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.allowed_messages import RESULT, classify
from medfedvqa.federation.flare.refusal_entries import RefusalEntries
from medfedvqa.federation.live_processes import FOLDER

PERIOD = 600.0  # seconds between a site's entries, if there was traffic
_SWEEP = 2.0  # seconds between looks for processes that ended
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_HIDDEN = (MessageHeaderKey.ERROR, StreamHeaderKey.ERROR_MSG)
_NO_DETAILS = "failed; the site's own log has the details"

_logger = logging.getLogger(__name__)
_installed: list["WireLedger"] = []


def installed() -> "WireLedger | None":
    """This process's ledger; None in FLARE's simulator, whose sites are no hospitals."""
    return _installed[0] if _installed else None


class Tally:
    """Counts of one window, and the journal's lines that make them."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str | None, bool], FrameCount] = {}
        self.refused: dict[str, FrameCount] = {}
        self.results: dict[tuple[str, int, int], ResultCount] = {}
        self.mailed = 0

    def apply(self, line: list[Any]) -> None:
        """One line of a journal: what happened, and to what."""
        match line:
            case ["sent", traffic, job, leaves, nbytes, payload, announced]:
                count = self.sent.setdefault((traffic, job, leaves), FrameCount(Traffic(traffic), job, leaves))
                count.add(nbytes, payload)
                count.announced += announced
            case ["refused", traffic, nbytes, payload]:
                count = self.refused.setdefault(traffic, FrameCount(Traffic(traffic), None, False))
                count.add(nbytes, payload)
            case ["result", task, round, tensors, nbytes, beside, encoded]:
                before = self.results.get((task, round, tensors), ResultCount(task, round, 0, tensors, 0, 0, 0))
                self.results[task, round, tensors] = replace(
                    before,
                    messages=before.messages + 1,
                    nbytes=before.nbytes + nbytes,
                    beside=before.beside + beside,
                    encoded=before.encoded + encoded,
                )
            case ["mail", nbytes]:
                self.mailed += nbytes

    def window(self, process: str, session: str, number: int, last: bool, gap: bool = False) -> WireWindow:
        """What was counted, as an entry holds it."""
        sent, refused = tuple(self.sent.values()), tuple(self.refused.values())
        results = tuple(self.results.values())
        return WireWindow(process, session, number, last, gap, sent, refused, results, self.mailed)

    def __bool__(self) -> bool:
        return bool(self.sent or self.refused or self.results or self.mailed)


class FrameJournal:
    """One window's file; held locked while its process lives."""

    def __init__(self, folder: Path, process: str, session: str, number: int, job: str | None) -> None:
        self.number, self.tally = number, Tally()
        self.path = folder / f"{session}.{number:08d}"
        partial = folder / f".{session}.{number}"
        self._file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._write([process, session, number, job, _boot()])
        partial.rename(self.path)

    def note(self, line: list[Any]) -> None:
        """Count one thing. Raises `OSError` if the file takes no more, and then it does not count."""
        self._write(line)
        self.tally.apply(line)

    def _write(self, line: list[Any]) -> None:
        os.write(self._file, f"{json.dumps(line)}\n".encode())

    def forget(self) -> None:
        """The counts are in the log."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)


class WireLedger:
    """Counts what one process sends; made once in a process, before its cell. Raises `LogError`, `OSError`."""

    def __init__(self, audit: Path, site: str, job: str | None, key: AuditKey) -> None:
        """`job`: its id in a job's process, None in the site's own. `audit`: the folder of the audit log.

        `key` signs what is logged last.
        """
        self.site, self.job = site, job
        self.process = SITE if job is None else JOB
        self._log = AuditLog(audit, site, key)
        self._folder = audit / FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._session = secrets.token_hex(8)
        self._lock, self._logging = threading.Lock(), threading.Lock()
        self._refusals = RefusalEntries(self._log, self._folder / "refusals")
        self._full: list[FrameJournal] = []
        self._flushed = -PERIOD
        self._journal = self._new(0)
        self._result: tuple[str, int, int, int, int] = "", 0, 0, 0, 0
        self._announced = threading.local()

    def _new(self, number: int) -> FrameJournal:
        return FrameJournal(self._folder, self.process, self._session, number, self.job)

    def install(self) -> None:
        """From now on every frame of this process is counted, or refused."""
        _installed.append(self)
        _count_frames(self)
        _announce_payloads(self)
        _count_results(self)
        if self.process == SITE:
            threading.Thread(target=self._watch, daemon=True, name="wire-ledger").start()
            atexit.register(self._end)

    def admit(self, frame: Prefix, headers: Mapping[str, Any] | None, payload: int, far: str | None) -> None:
        """Count a frame that is about to be sent to the cell `far`. Raises `CommError` if it may not be."""
        length = PREFIX_LEN + len(SfmConnection.headers_to_bytes(headers) or b"") + payload
        kind = classify(frame, headers or {}, self.site, self.job, far)
        limit = LIMITS[kind.traffic]
        announced, self._announced.payload = getattr(self._announced, "payload", 0), 0
        with self._lock:
            if limit is not None and length > limit:
                first = kind.traffic.value not in self._journal.tally.refused
                self._journal.note(["refused", kind.traffic, length, payload])
                if first:
                    _logger.warning("a frame of the kind '%s' was not sent: the site does not send such", kind.traffic)
                raise CommError(CommError.NOT_SUPPORTED, f"this site does not send frames of the kind '{kind.traffic}'")
            self._journal.note(["sent", kind.traffic, kind.job, kind.leaves, length, payload, announced])

    def refuse(self, code: Refusal, job: str | None = None, definition: str | None = None) -> None:
        """Log that a job was refused before it had a process; `definition`: SHA-256 of the site's configuration file.

        Raises `LogError`, `OSError`.
        """
        with self._logging:
            self._refusals.enter(code, job, definition)

    def announce(self, payload: int) -> None:
        """So many bytes are handed down by this thread, to be sent with its next frame."""
        self._announced.payload = payload

    def submitting(self, task: str, round: int, tensors: int, nbytes: int, beside: int) -> None:
        """The next result is of this task: so many tensors with so many bytes of values, and bytes beside them."""
        self._result = task, round, tensors, nbytes, beside

    def encoded(self, nbytes: int) -> None:
        """A task's result became so many bytes."""
        with self._lock:
            self._journal.note(["result", *self._result, nbytes])

    def mailed(self, nbytes: int) -> None:
        """So many sealed bytes are handed over for another site."""
        with self._lock:
            self._journal.note(["mail", nbytes])

    def flush(self, last: bool = False, every: float = 0.0) -> None:
        """Put what was counted into the audit log, unless that happened less than `every` seconds ago.

        Raises `LogError`; the counts are then kept for the next time.
        """
        with self._logging:
            if time.monotonic() - self._flushed < every:
                return
            self._flushed = time.monotonic()
            with self._lock:
                if self._journal.tally or last:
                    self._full.append(self._journal)
                    self._journal = self._new(self._journal.number + 1)
            while self._full:
                journal = self._full[0]
                ends = last and len(self._full) == 1
                window = journal.tally.window(self.process, self._session, journal.number, ends)
                self._log.append(Event.WIRE, job=self.job, wire=window.record())
                journal.forget()
                del self._full[0]

    def sweep(self) -> int:
        """Log what processes that are no more have counted; how many files there were. Raises `LogError`."""
        count = 0
        for path in sorted(self._folder.glob("[0-9a-f]*.*")):
            with contextlib.suppress(FileNotFoundError):
                count += self._adopt(path)
        return count

    def _adopt(self, path: Path) -> bool:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            lines = [json.loads(line) for line in file if line.endswith(b"\n")]
            if lines:
                (process, session, number, job, boot), *events = lines
                tally = Tally()
                for event in events:
                    tally.apply(event)
                last = not any(other > path for other in self._folder.glob(f"{session}.*"))
                window = tally.window(process, session, number, last, gap=boot != _boot())
                self._log.append(Event.WIRE, job=job, wire=window.record())
            path.unlink()
        return True

    def _watch(self) -> None:
        before = time.monotonic()
        while True:
            try:
                if self.sweep() or time.monotonic() - before > PERIOD:
                    self.flush()
                    self._log.checkpoint()
                    before = time.monotonic()
            except (LogError, OSError):
                _logger.exception("counts of frames could not be written into the audit log; they are kept")
            time.sleep(_SWEEP)

    def _end(self) -> None:
        with contextlib.suppress(LogError):
            self.sweep()
            self.flush(last=True)
            self._log.checkpoint()


def _boot() -> str:
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""


def _count_frames(ledger: WireLedger) -> None:
    send = patches.SEND_FRAME.current()

    def send_frame(connection: SfmConnection, prefix: Prefix, headers: Any, payload: Any) -> None:
        far = connection.sfm_endpoint.endpoint.name if connection.sfm_endpoint else None
        ledger.admit(prefix, headers, len(payload) if payload else 0, far)
        send(connection, prefix, headers, payload)

    patches.SEND_FRAME.replace(send_frame)


def _announce_payloads(ledger: WireLedger) -> None:
    """At the last point that sees messages; errors leave it without the text, which may quote what it is about."""
    send = patches.SEND.current()

    def send_to_endpoint(cell: CoreCell, to_endpoint: Endpoint, message: Message) -> str:
        for name in _HIDDEN:
            if message.get_header(name) and message.get_header(MessageHeaderKey.ORIGIN) == cell.get_fqcn():
                message.set_header(name, _NO_DETAILS)
        encode_payload(message, fobs_ctx=cell.get_fobs_context())
        ledger.announce(buffer_len(message.payload))
        return str(send(cell, to_endpoint, message))

    patches.SEND.replace(send_to_endpoint)


def _count_results(ledger: WireLedger) -> None:
    send = patches.SEND_BLOB.current()

    def send_blob(
        cell: StreamCell, channel: str, topic: str, target: str, message: Message, *args: Any, **kwargs: Any
    ) -> Any:
        if (channel, topic) == RESULT:
            ledger.encoded(buffer_len(message.payload))
        return send(cell, channel, topic, target, message, *args, **kwargs)

    patches.SEND_BLOB.replace(send_blob)
