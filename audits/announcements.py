"""Announcements to a site's staff, outside of the audit log: a job was refused, or the log has a finding.

An announcement holds a refusal's code and its fixed sentence, and nothing from a job, an answer or a message.
"""

import logging
import socket
from logging.handlers import SysLogHandler
from pathlib import Path

from audits.entry import Entry, Event
from audits.errors import known_code

_logger = logging.getLogger(__name__)
_system_logs: list[logging.Logger] = []


def announce(entry: Entry) -> None:
    """Reports a refusal or a finding to the process's own log, and to the logs that `announce_to` added."""
    if (text := announcement(entry)) is not None:
        _logger.warning(text)
        for system_log in _system_logs:
            system_log.warning(text)


def announcement(entry: Entry) -> str | None:
    """The sentence about a refusal or a finding; None for any other entry."""
    if entry.event is Event.REFUSAL:
        code = known_code(entry.admission)
        return f"a job was refused ({code or 'no code'}): {code.sentence if code else 'see the audit log'}"
    if entry.event is Event.FINDING:
        return "the audit log has a new finding: 'audit show' lists it"
    return None


def announce_to(place: Path, site: str) -> logging.Logger:
    """Makes this process also announce to the machine's own log, syslog or journald, whose socket is at `place`.

    No bytes leave the machine unless the machine's own log forwards them. Raises `OSError` if nobody listens.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trial:
        trial.connect(str(place))  # the handler itself connects when it has something to say
    handler = SysLogHandler(address=str(place), facility=SysLogHandler.LOG_DAEMON)
    handler.ident = "medfedvqa: "
    handler.setFormatter(logging.Formatter(f"site {site.replace('%', '%%')}: %(message)s"))
    # Not one of the registered loggers, which FLARE configures.
    system_log = logging.Logger("system log", logging.WARNING)
    system_log.addHandler(handler)
    _system_logs.append(system_log)
    return system_log
