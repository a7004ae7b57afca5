"""Opening and ending FLARE's session of an administrator, neither of which may wait without limit.

FLARE (2.9) waits five seconds for an answer, which the server of a busy machine may not keep. Here it has more time,
but no minute, since FLARE tries a login fifteen times.

While FLARE's transport (2.9) ends, a connection that it is just making escapes it, and it then waits for that
connection to end, without limit if the server keeps it. So open connections are closed again until the session ends.
"""

import contextlib
from threading import Thread

from nvflare.fuel.flare_api.flare_api import Session

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
    """Log out and disconnect. The server may be gone, so that nothing is raised, and a minute is the limit."""
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
    # What FLARE raises when the server is gone is of many kinds.
    with contextlib.suppress(Exception):
        session.close()
