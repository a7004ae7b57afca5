"""The courier's end of the socket: it finds or starts the site's vault, and passes bytes. It holds no row or key."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.errors import Refusal
from medfedvqa.errors import FederationError
from medfedvqa.vault.frames import Frame, Wire
from medfedvqa.vault.place import DETACHED, SOCKET, VaultPlace
from medfedvqa.version import code_digest

if TYPE_CHECKING:
    from privacy.secagg import Relay

REPEATS = 10
"""How often a task is sent again to the vault after it died, before the job fails."""
_START_TIMEOUT = 300.0  # seconds, for a machine that is busy with other things
_POLL = 0.2


def reach(place: VaultPlace) -> Wire:
    """A connection to the site's vault, which is started if it does not run. Raises `FederationError`."""
    end = time.monotonic() + _START_TIMEOUT
    while True:
        try:
            return Wire(place.connect())
        except OSError:
            if SOCKET not in os.environ:
                _start(place)
            elif time.monotonic() > end:
                raise FederationError("the site's vault does not answer at its socket: start its service") from None
            time.sleep(_POLL)


def _start(place: VaultPlace) -> None:
    """Start a vault in the background; returns once it, or a vault that was already running, listens."""
    command = [sys.executable, *place.command(DETACHED)]
    started = subprocess.run(
        command,
        env=_environment(place.kit),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=_START_TIMEOUT,
        check=False,
    )
    if started.returncode not in (0, os.EX_TEMPFAIL):
        last = started.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise FederationError(f"the site's vault does not start: {''.join(last) or 'it printed no message'}")


def _environment(kit: Path | None) -> dict[str, str]:
    """The vault's environment: this process's, without the kit's module folders that FLARE put into it."""
    installed = Path(sys.prefix).resolve()
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = {path: Path(path).resolve() for path in named if path}
    outside = [
        path
        for path, place in places.items()
        if kit is None or not place.is_relative_to(kit) or place.is_relative_to(installed)
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(outside)}


def _greeted(wire: Wire) -> str:
    """The vault's isolation, from its greeting. Raises `ConnectionError` if the vault runs other code than this."""
    ready = wire.receive("ready").fields
    if ready["code"] != code_digest():
        time.sleep(_POLL)
        raise ConnectionResetError
    return str(ready["isolation"])


@dataclass
class JobCourier:
    """Carries one job's messages, and repeats a message if the vault died."""

    place: VaultPlace
    job_id: str
    files: Mapping[str, bytes]
    mail: "Callable[[str], Relay] | None" = None
    """Makes the transport to other sites for the attempt of a name, and drops what earlier attempts left."""
    isolation: str = ""
    answered: int = 0
    """Bytes of the answers that came from the vault: the values of their arrays, and audit bytes."""
    mailed: int = 0
    """Bytes of sealed mail for other sites that came from it."""
    _wire: Wire | None = None
    _attempt: "tuple[str, Relay] | None" = None

    def ask(self, kind: str, arrays: Mapping[str, Any] | None = None, data: bytes = b"", **fields: Any) -> Frame:
        """The vault's answer, or refusal, to a task or to a malformed message. Raises `FederationError`."""
        for _ in range(REPEATS + 1):
            try:
                wire = self._opened()
                wire.send(kind, arrays, data, **fields)
                while (frame := wire.receive("answer", "refused", "mail", "wait")).kind not in ("answer", "refused"):
                    self._carry(wire, frame)
                self.answered += sum(array.nbytes for array in frame.arrays.values()) + len(frame.data)
                return frame
            except (EOFError, ConnectionError):
                self._drop()
        raise FederationError("the site's vault died at each request: see its log")

    def _opened(self) -> Wire:
        if self._wire is None:
            wire = reach(self.place)
            files = {name: np.frombuffer(content, np.uint8) for name, content in self.files.items()}
            self._wire = wire
            wire.send("job", files, id=self.job_id, code=code_digest())
            self.isolation = _greeted(wire)
        return self._wire

    def _carry(self, wire: Wire, frame: Frame) -> None:
        """Pass on mail between sites; a lost message is a time-out, as on any network."""
        name, site = frame.fields["attempt"], frame.fields["site"]
        if self.mail is None:
            raise FederationError("the site's vault writes to other sites in a job without such mail")
        if self._attempt is None or self._attempt[0] != name:
            self._attempt = name, self.mail(name)
        relay = self._attempt[1]
        if frame.kind == "mail":
            self.mailed += len(frame.data)
            relay.send(site, frame.data)
            return
        try:
            message = relay.receive(site, frame.fields["seconds"])
        except TimeoutError:
            wire.send("silence")
        else:
            wire.send("mail", data=message, attempt=name, site=site)

    def close(self, ended: bool = True) -> None:
        """Disconnect from the vault. With `ended`, the job is over, and the vault closes it first."""
        try:
            if ended and self._wire is not None:
                self._wire.send("end")
                self._wire.receive("done")
        except (EOFError, OSError):
            pass  # the vault died: the site closes the job when it is asked which ones still run
        finally:
            self._drop()

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def report_refusal(place: VaultPlace, reason: Refusal, job: str | None, digest: str | None) -> None:
    """Have the site's log say that a job was refused before it had a process. Raises `FederationError` or `OSError`.

    `digest`: SHA-256 of the job's configuration at the site, if it has one.
    """
    _done(place, "turned away", lambda: {"id": job or "", "digest": digest or "", "reason": reason.value}).close()


def _done(place: VaultPlace, kind: str, fields: Callable[[], Mapping[str, Any]]) -> Wire:
    """Send the vault a frame of this kind until it reports `done`, again if it dies; returns the connection.

    `fields` is called once the vault answers. Raises `FederationError` or `OSError`.
    """
    for _ in range(REPEATS + 1):
        wire = reach(place)
        try:
            wire.send(kind, **fields(), code=code_digest())
            _greeted(wire)
            wire.receive("done")
            return wire
        except (EOFError, ConnectionError):
            wire.close()
    raise FederationError("the site's vault died at each request: see its log")


@dataclass
class SiteCourier:
    """The connection of the site's FLARE process to the vault, which runs as long as the connection is open."""

    _presence: Wire | None = None

    def close_jobs(self, place: VaultPlace, running: Collection[str], ended: Collection[str] = ()) -> None:
        """Have the vault close the site's jobs except those in `running`, which is read once the vault answers.

        `ended`: jobs that are over, on which a process may still work. Raises `FederationError` or `OSError`.
        """
        wire = _done(place, "close", lambda: {"running": sorted(set(running)), "ended": sorted(ended)})
        if self._presence is not None:
            self._presence.close()
        self._presence = wire
