"""An administrator's connection to a federation's server, which outlives a server that is slow or restarts.

FLARE's session (2.9) raises after one failed answer, and is of no use once its server has restarted. Here every request
is tried again with growing pauses, through a new session where the old one is gone, until its deadline. All requests
may safely be repeated: a submission carries a token by which the server tells that it has the job already.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TypeVar
from uuid import uuid4

from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    ClientInfo,
    InvalidJobDefinition,
    JobNotFound,
    JobNotRunning,
    NoClientsAvailable,
)
from nvflare.fuel.flare_api.flare_api import Session

from medfedvqa.errors import FederationError

# Opening and ending FLARE's session of an administrator, neither of which may wait without limit.
#
# FLARE (2.9) waits five seconds for an answer, which the server of a busy machine may not keep. Here it has more time,
# but no minute, since FLARE tries a login fifteen times.
#
# While FLARE's transport (2.9) ends, a connection that it is just making escapes it, and it then waits for that
# connection to end, without limit if the server keeps it. So open connections are closed again until the session ends.

_ANSWER = 15.0  # seconds
_PAUSE = 1.0  # seconds
_TRIES = 60


def open_session(user: str, kit: str, timeout: float) -> Session:
    """A session of the administrator `user` with the startup kit `kit`.

    Raises what FLARE raises, its own errors or those of its transport, within about `timeout` seconds if the server
    cannot be reached, and four minutes if it does not answer.
    """
    session = Session(user, kit)
    session.api.set_command_timeout(_ANSWER)
    try:
        session.try_connect(timeout)
    except Exception:
        end_session(session)
        raise
    return session


def end_session(session: Session) -> None:
    """Log out and disconnect, within about a minute. Raises nothing, since the server may be gone."""
    session.api.unset_command_timeout()  # nobody waits long for the answer to a logout
    ending = Thread(target=_end, args=(session,), daemon=True)
    ending.start()
    for _ in range(_TRIES):
        ending.join(_PAUSE)
        if not ending.is_alive():
            return
        for connector in session.api.cell.core_cell.communicator.conn_manager.connectors.values():
            connector.driver.shutdown()


def _end(session: Session) -> None:
    # FLARE raises many kinds of errors when the server is gone.
    with contextlib.suppress(Exception):
        session.close()


DEADLINE = 300.0
"""Seconds for one request, all its repetitions included: a server on a busy machine, or one that restarts."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds
_LOGIN_TIMEOUT = 20.0  # seconds
_SENTENCES: tuple[tuple[type[Exception], str], ...] = (
    (AuthenticationError, "the server does not accept this administrator's certificate: use a kit of its federation"),
    (AuthorizationError, "the server does not allow this administrator to do that: see the role in the project's file"),
    (InvalidJobDefinition, "the server does not accept the job's folder: export it again with this version"),
    (JobNotFound, "the server knows no job of this id"),
)
"""Errors that a repeated request would meet again, each with the sentence for the user."""

_Result = TypeVar("_Result")


def pauses(deadline: float, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
    """Seconds to wait before each further try, doubled each time, until `deadline` seconds have passed."""
    end, pause = clock() + deadline, _FIRST_PAUSE
    while (left := end - clock()) > 0:
        yield min(pause, left)
        pause = min(2 * pause, _LONGEST_PAUSE)


class AdminClient:
    """Requests to one federation. Raises `FederationError` with one sentence when a request fails for good."""

    def __init__(
        self, user: str, kit: Path, deadline: float = DEADLINE, connect: Callable[..., Session] = open_session
    ) -> None:
        """`user`: the administrator's name; `kit`: the startup kit; `deadline`: seconds for each request."""
        self._user, self._kit, self._deadline, self._connect = user, kit, deadline, connect
        self._session: Session | None = None

    def sites(self) -> list[ClientInfo]:
        """The sites that are connected; FLARE's entry of each has a name and the time of its last connection."""

        def connected(session: Session) -> list[ClientInfo]:
            with contextlib.suppress(NoClientsAvailable):
                return list(session.get_connected_client_list())
            return []

        return self._request(connected)

    def submit(self, job_folder: Path) -> str:
        """Submit a job folder once; returns the job's id."""
        token = str(uuid4())
        return str(self._request(lambda session: session.submit_job(str(job_folder.resolve()), submit_token=token)))

    def status(self, job_id: str) -> str:
        """FLARE's status of the job; it begins with FINISHED once the job is over."""
        return str(self._request(lambda session: session.get_job_status(job_id)))

    def abort(self, job_id: str) -> None:
        """End a job at once; nothing happens if it is over."""

        def abort(session: Session) -> None:
            with contextlib.suppress(JobNotRunning):
                session.abort_job(job_id)

        self._request(abort)

    def download(self, job_id: str, folder: Path) -> Path:
        """Fetch a finished job's results into a new folder below `folder`, whole or not at all; returns its path."""

        def fetch(session: Session) -> Path:
            with TemporaryDirectory(dir=folder) as scratch:
                session.download_job_result(job_id, scratch)
                fetched = Path(scratch) / job_id
                if not fetched.is_dir():
                    raise ConnectionError
                shutil.rmtree(folder / job_id, ignore_errors=True)
                return fetched.rename(folder / job_id)

        folder.mkdir(parents=True, exist_ok=True)
        return self._request(fetch)

    def close(self) -> None:
        """Log out, if there is a session."""
        session, self._session = self._session, None
        if session is not None:
            end_session(session)

    def _request(self, ask: Callable[[Session], _Result]) -> _Result:
        """The result of `ask`, from whichever session first gets through."""
        waits, last = pauses(self._deadline), "not logged in"
        while True:
            try:
                return ask(self._opened())
            except tuple(kind for kind, _ in _SENTENCES) as error:
                if self._session is None or not isinstance(error, AuthenticationError):
                    raise FederationError(next(text for kind, text in _SENTENCES if isinstance(error, kind))) from None
                self.close()  # the server restarted, and forgot its sessions
            except Exception as error:
                # FLARE raises its own errors, RuntimeError and whatever its transport does; none says whether it lasts.
                last = type(error).__name__
                self.close()
            if (pause := next(waits, None)) is None:
                raise FederationError(
                    f"the federation's server did not answer within {self._deadline:.0f} seconds ({last}): see whether "
                    "it runs, and whether this machine reaches it"
                )
            time.sleep(pause)

    def _opened(self) -> Session:
        if self._session is None:
            self._session = self._connect(self._user, str(self._kit), timeout=_LOGIN_TIMEOUT)
        return self._session
