"""Handles a courier's frames in the vault: opens the job, answers its tasks, and closes it.

The courier is not trusted: it brings a job's signed files and a task's message, and the site's own code decides.
"""

import logging
import os
import re
import secrets
import select
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

from audits import (
    AuditError,
    AuditKey,
    AuditLog,
    Event,
    Isolation,
    JobRefused,
    Outcome,
    ReceiptRefused,
    Refusal,
    ReleaseRefused,
    origin_of,
)
from audits.announcements import announce_to
from audits.byte_ledger import VAULT, ResultCount, WireWindow
from audits.log_files import RUNNING, running_jobs
from medfedvqa.atomic_files import hold
from medfedvqa.core import Tensors
from medfedvqa.errors import ConfigError, MedfedvqaError
from medfedvqa.federation.admission import Signature, admission_lock
from medfedvqa.federation.error_codes import ACTIONABLE, code_of
from medfedvqa.federation.flare.job_folder import FILES, parse_job
from medfedvqa.federation.flare.strict_json import MOST_BYTES, NotAllowed, parse_object
from medfedvqa.federation.job import STATUS_JOB, JobSpec
from medfedvqa.federation.job_budget import store_of
from medfedvqa.federation.job_closing import RefusalEntries, close_ended
from medfedvqa.federation.job_signature import federation_of, submitter
from medfedvqa.federation.live_processes import end_work, working_on
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.federation.site_status import StatusRuntime
from medfedvqa.plugins import PlugInRefused, allow
from medfedvqa.vault.confinement import confine
from medfedvqa.vault.frames import Frame, FrameRefused, Wire
from medfedvqa.vault.place import JOB_FILE, VaultPlace
from medfedvqa.version import code_digest

if TYPE_CHECKING:
    from medfedvqa.federation.aggregation_attempt import Relays

_SILENCE = 20.0
"""Seconds after which a connection ends that has not said what it is for: the vault serves a bounded number at once."""
_GRAIN = 10.0
"""Seconds: a refusal that follows a look at data leaves at a whole multiple of this time after the task came."""

_MOST_COUNTS = 256
"""Answers that one entry of the byte ledger counts."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vault:
    """A site's side of the socket."""

    place: VaultPlace
    isolation: Isolation
    process: int
    """The id of the process that listens, which forks one for each connection."""

    def serve(self, wire: Wire) -> None:
        """Answer one connection until it ends. Raises `EOFError`, `OSError` or `FrameRefused`."""
        wire.connection.settimeout(_SILENCE)
        frame = wire.receive("job", "close", "turned away")
        wire.connection.settimeout(None)
        wire.send("ready", isolation=self.isolation.value, code=code_digest())
        if frame.fields["code"] != code_digest():
            # After an upgrade: whoever connects next finds a vault that runs the new code, or starts it.
            if os.getppid() == self.process:
                os.kill(self.process, signal.SIGTERM)
            raise FrameRefused("the courier runs other code: this vault ends, so that one with the same code can start")
        if frame.kind == "job":
            self._serve_job(wire, frame)
            return
        try:
            config = self._config()
            if frame.kind == "turned away":
                self._turned_away(config, **frame.fields)
            else:
                self._close(config, frame.fields["running"], frame.fields["ended"])
        except FrameRefused:
            raise
        except ACTIONABLE as error:
            _logger.error("the site's log lacks an entry: %s", error)
        wire.send("done")
        if frame.kind == "close":
            wire.receive()  # the courier's presence keeps the vault

    def _config(self) -> SiteConfig:
        """Load the site's settings. If they name the socket of the machine's log, it receives refusals from now on."""
        config = load_site_config(self.place.config, self.place.site)
        if config.system_log is not None:
            try:
                announce_to(config.system_log, config.name)
            except OSError as error:
                problem = f"the machine's log that `system_log` of site.yml names cannot be reached ({error.strerror})"
                raise ConfigError(f"{problem}: set the correct socket, or null") from None
        return config

    def _turned_away(self, config: SiteConfig, id: str, digest: str, reason: str, code: str) -> None:
        """Log a job that the courier refused before it had a process.

        Raises `FrameRefused` for a reason that no courier may give, or a malformed id or digest.
        """
        if reason not in (Refusal.FOLDER, Refusal.SCHEMA) or id and not is_file_name(id) or len(digest) not in (0, 64):
            raise FrameRefused("the courier does not name the job that it refused")
        with self._log(config) as log, admission_lock(config.audit):
            RefusalEntries(log, config.state).enter(Refusal(reason), id or None, digest or None)

    def _close(self, config: SiteConfig, running: list[Any], ended: list[Any]) -> None:
        """Close every job of the site except those that the courier runs, and those that began after its message.

        A process may still work on a job that the courier says has ended: it is killed.
        """

        def is_over(job: str) -> bool:
            if job in ended:
                end_work(config.audit, job)
            return job not in running_jobs(config.audit)

        close_ended(config, running, is_over)

    def _serve_job(self, wire: Wire, opened: Frame) -> None:
        job_id, files = opened.fields["id"], {name: bytes(array) for name, array in opened.arrays.items()}
        if not is_file_name(job_id):
            raise FrameRefused("the courier names no job")
        try:
            config = self._config()
        except ACTIONABLE as error:
            JobTasks(partial(_fail, error), SentBytes()).serve(wire)  # there is no log to tell
            return
        with working_on(config.audit, job_id):
            sent = SentBytes(partial(self._log_bytes, config, job_id))
            turn = cache(partial(self._wait_for_turn, config, job_id, wire))  # the process keeps it until its end
            mail = partial(_AttemptMail, wire, sent)
            tasks = JobTasks(lambda: self._runtime(config, job_id, files, mail, turn), sent)
            try:
                tasks.serve(wire)
            finally:
                sent.log(last=True)
            tasks.close()
            wire.send("done")

    def _wait_for_turn(self, config: SiteConfig, job_id: str, wire: Wire) -> int:
        """Wait until fewer jobs work than `jobs` of `site.yml` allows; returns a lock, which this process holds until
        it ends.

        Ends the process if the courier hangs up first.
        """
        gone, waits = select.poll(), False
        gone.register(wire.connection, 0)  # which reports only that the courier hangs up
        while not gone.poll(500 * waits):  # milliseconds
            for number in range(config.jobs):
                if (lock := hold(self.place.folder / f"job-{number}.lock")) is not None:
                    if waits:
                        _logger.warning("job %s has its turn", job_id)
                    return lock
            if not waits:
                _logger.warning("job %s waits: no more than %d work at once (`jobs` in site.yml)", job_id, config.jobs)
            waits = True
        (config.audit / RUNNING / job_id).unlink(missing_ok=True)  # as `working_on` does
        os._exit(os.EX_TEMPFAIL)

    def _runtime(
        self, config: SiteConfig, job_id: str, files: dict[str, bytes], mail: "Relays", turn: Callable[[], int]
    ) -> SiteRuntime | StatusRuntime:
        """The runtime that answers the job's tasks. Raises `JobRefused`, once logged, for an invalid job."""
        signature, root = None, self.place.root
        try:
            if root is not None:
                signature = Signature(submitter(files, root), federation_of(root))
            job = _job_in(files, signed=root is not None)
            if job != STATUS_JOB:
                turn()
            if self.isolation is Isolation.NONE and config.isolation != "none":
                raise JobRefused(Refusal.ISOLATION)
            if self.isolation is not Isolation.NONE:
                self._confine(config, job_id, job.get("dp") is not None)
            if job == STATUS_JOB:
                if signature is not None and not signature.actor:
                    raise JobRefused(Refusal.SIGNATURE)
                return StatusRuntime(config, job_id, signature.actor if signature else "", self.isolation)
            allow(config.plugins)
            spec = JobSpec.from_dict(job)
        except PlugInRefused:
            raise self._logged(config, job_id, Refusal.PLUG_IN) from None
        except MedfedvqaError:
            raise self._logged(config, job_id, Refusal.SCHEMA) from None
        except JobRefused as error:
            raise self._logged(config, job_id, error.code) from None
        relays = mail if spec.secagg else None
        return SiteRuntime(config, spec, job_id, relays=relays, signature=signature, isolation=self.isolation)

    def _confine(self, config: SiteConfig, job_id: str, private: bool) -> None:
        """Before a job's code is imported, leave this process the site's own files alone; log attempts at more."""
        AuditKey.at(config.audit_key, origin_of(config.name))  # made at its first use, as are these folders
        for folder in (config.state, *([config.ledger] if private else ())):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = [config.state, config.audit, config.ledger, *filter(None, [store_of(config)])]
        kept = [self.place.config.parent, self.place.root, config.audit_key, config.identity, config.data.root]
        read = [*filter(None, [*kept, config.public_set]), *config.backbones.values()]

        def report(kind: str) -> None:
            with self._log(config) as log:
                log.append(Event.FINDING, job=job_id, reason=f"code in this job's process tried to reach {kind}")

        confine(self.place.kit, read, written, report, config.system_log)

    def _logged(self, config: SiteConfig, job_id: str, code: Refusal) -> JobRefused:
        """Logs the refusal of a job whose text is not read further, and returns it. It quotes nothing of the text."""
        with self._log(config) as log:
            refused = {"outcome": Outcome.REFUSED, "reason": code.sentence, "admission": {"code": code.value}}
            log.append(Event.REFUSAL, job=job_id, isolation=self.isolation, **refused)
        return JobRefused(code)

    def _log_bytes(self, config: SiteConfig, job_id: str, window: WireWindow) -> None:
        with self._log(config) as log:
            log.append(Event.WIRE, job=job_id, wire=window.record())

    def _log(self, config: SiteConfig) -> closing[AuditLog]:
        return closing(AuditLog(config.audit, config.name, AuditKey.at(config.audit_key, origin_of(config.name))))


def _fail(error: Exception) -> NoReturn:
    raise error


def is_file_name(job_id: str) -> bool:
    """Whether a job's id is safe as a file name: a dot or a pattern could match other jobs' files."""
    return re.fullmatch(r"[A-Za-z0-9_-]{1,128}", job_id) is not None


def _job_in(files: dict[str, bytes], signed: bool) -> dict[str, Any]:
    names = FILES if signed else (JOB_FILE,)
    if not files.keys() <= set(names) or any(len(content) > MOST_BYTES for content in files.values()):
        raise JobRefused(Refusal.FOLDER)
    if signed:
        return parse_job(files)
    try:
        return parse_object(files.get(JOB_FILE, b""))
    except NotAllowed as error:
        raise JobRefused(Refusal.SCHEMA, str(error)) from None


class JobTasks:
    """Answers the tasks of one job."""

    def __init__(self, make: Callable[[], SiteRuntime | StatusRuntime], sent: "SentBytes") -> None:
        """`make` is called with the first task, and again as long as it fails. `sent` counts the answers."""
        self._make, self._sent = make, sent
        self._runtime: SiteRuntime | StatusRuntime | None = None

    def serve(self, wire: Wire) -> None:
        """Answer tasks until the job is over. Raises `EOFError` or `OSError` if the courier goes before."""
        while (frame := wire.receive("task", "malformed", "end")).kind != "end":
            self.answer(wire, frame)

    def answer(self, wire: Wire, frame: Frame) -> None:
        """Reply to one task. A failure's reply holds a code and nothing else; the rest is in the site's own log."""
        began = time.monotonic()
        try:
            if self._runtime is None:
                self._runtime = self._make()
            if frame.kind == "malformed":
                self._runtime.refuse(Refusal.MESSAGE, "the server's message holds more, or other things, than arrays")
            round = frame.fields["round"]
            tensors, audit_bytes = self._runtime.answer(frame.fields["task"], round, dict(frame.arrays), frame.data)
        except Exception as error:
            code = self._refused(error)
        else:
            nbytes = wire.send("answer", tensors, audit_bytes, round=round)
            self._sent.answer(frame.fields["task"], round, tensors, audit_bytes, nbytes)
            return
        if code in (Refusal.DATA, Refusal.COUNT):
            # When the site says that it cannot run a job must not tell how long it looked at its data.
            time.sleep(_GRAIN - (time.monotonic() - began) % _GRAIN)
        wire.send("refused", code=code.value)

    def _refused(self, error: Exception) -> Refusal:
        """Log a failure in the audit log, and return its code."""
        code = code_of(error, private=not isinstance(self._runtime, SiteRuntime) or self._runtime.private)
        _logger.warning("the job was refused: %s: %s", code, code.sentence)
        if not isinstance(error, ACTIONABLE):
            _logger.error("a task failed", exc_info=error)
        if self._runtime is not None and not isinstance(error, JobRefused | ReleaseRefused | ReceiptRefused):
            try:
                self._runtime.refuse(code, str(error) if isinstance(error, ACTIONABLE) else type(error).__name__)
            except JobRefused:
                pass
            except AuditError as unwritten:
                # A disk that is full takes no entry either.
                return Refusal.DISK if Refusal.DISK in (code, code_of(unwritten)) else Refusal.RECORDS
        return code

    def close(self) -> None:
        """Close the job, if it was opened."""
        if self._runtime is not None:
            self._runtime.close()


class SentBytes:
    """Counts what a process of the vault sends for one job, and logs the counts as entries of the byte ledger."""

    def __init__(self, write: Callable[[WireWindow], None] = lambda window: None) -> None:
        """`write` puts counts into the log; its errors are passed on."""
        self._write = write
        self._session, self._entries = secrets.token_hex(8), 0
        self._answers: list[ResultCount] = []
        self.mailed = 0

    def answer(self, task: str, round: int, tensors: Tensors, audit_bytes: bytes, nbytes: int) -> None:
        """Count an answer that left in a frame of `nbytes` bytes."""
        values = sum(array.nbytes for array in tensors.values())
        self._answers.append(ResultCount(task, round, 1, len(tensors), values, len(audit_bytes), nbytes))
        if len(self._answers) == _MOST_COUNTS:
            self.log()

    def log(self, last: bool = False) -> None:
        """Write the counts since the last entry, if any. `last`: writes the final entry even without counts."""
        if self._answers or self.mailed or last and self._entries:
            counts = tuple(self._answers)
            self._write(WireWindow(VAULT, self._session, self._entries, last, results=counts, mailed=self.mailed))
            self._answers, self.mailed, self._entries = [], 0, self._entries + 1


@dataclass(frozen=True)
class _AttemptMail:
    """Sealed mail to other sites (`privacy.secagg.Relay`), which the courier carries without reading it.

    At the first frame of an attempt the courier drops the mail of earlier ones. If the courier is gone, the process
    ends as if it was killed.
    """

    wire: Wire
    sent: SentBytes
    name: str

    def send(self, to: str, message: bytes) -> None:
        """Send a message; returns before it is delivered."""
        try:
            self.wire.send("mail", data=message, attempt=self.name, site=to)
            self.sent.mailed += len(message)
        except OSError:
            os._exit(os.EX_TEMPFAIL)

    def receive(self, sender: str, timeout: float) -> bytes:
        """The sender's next message. Raises `TimeoutError`."""
        try:
            self.wire.send("wait", attempt=self.name, site=sender, seconds=float(timeout))
            frame = self.wire.receive("mail", "silence")
        except (EOFError, OSError, FrameRefused):
            os._exit(os.EX_TEMPFAIL)
        if frame.kind == "silence" or (frame.fields["attempt"], frame.fields["site"]) != (self.name, sender):
            raise TimeoutError
        return frame.data
