"""Audit logs in tests: two sites with every kind of entry, written at fixed times."""

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import audits.log
from audits import AuditLog, Event, Kind, Outcome, Protection, TensorRecord, examine, find_logs
from audits.ui import AuditServer

HOSTILE = '</td><script>document.title="taken"</script><img src=//example.org/x onerror=alert(1)> "q\'] \\ &amp;'
"""A job's name that tries to be markup, an attribute's end and a syslog parameter's end."""
JOB: dict[str, Any] = {"job": "job-1", "method": "prompt_pfl", "actor": "ab" * 32, "policy": "bb" * 32}
JOB |= {"exchange": "cc" * 32, "code_version": "0.1.0", "code_digest": "dd" * 32, "model_digest": "ee" * 32}
PROMPT = TensorRecord("prompt.text", (4, 4, 256), "float32", 16384, "12" * 32, Kind.PARAMETERS, Protection.DP)
ACCURACY = TensorRecord("accuracy", (), "float32", 4, "34" * 32, Kind.STATISTIC, Protection.DP)
SHARED = TensorRecord("prompt.text", (4, 4, 256), "float32", 16384, None, Kind.PARAMETERS, Protection.MASKED)
REFUSED = TensorRecord("activations", (8, 512), "float32", 0, None, Kind.ACTIVATIONS, Protection.NONE)


def peak(call: Callable[[], object]) -> int:
    """The bytes that Python's objects took most while it ran."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@dataclass
class Clock:
    """Stands for the clocks of `audits.log`: a second passes from one reading to the next."""

    ticks: Iterator[int] = field(default_factory=count)

    def now(self, zone: Any) -> datetime:
        return datetime(2026, 3, 1, 8, tzinfo=UTC) + timedelta(seconds=next(self.ticks), microseconds=250)

    def monotonic_ns(self) -> int:
        return 10**9

    def monotonic(self) -> float:
        return 1.0


def serve(run: Path, port: int = 0) -> AuditServer:
    """The pages on the logs of a run, which judge each by itself."""
    logs = find_logs(run)
    return AuditServer(logs, {site: partial(examine, folder, site) for site, folder in logs.items()}, port)


def fix_clocks(patch: pytest.MonkeyPatch) -> None:
    """From now on logs are written at fixed times."""
    clock = Clock()
    patch.setattr(audits.log, "datetime", clock)
    patch.setattr(audits.log, "time", clock)


def charge(position: int) -> dict[str, Any]:
    """What an entry says of a release under differential privacy."""
    event = {"mechanism": "gaussian", "unit": "patient", "delta": 1e-05, "ledger": {"seq": position, "head": "0f" * 32}}
    event["events"] = [{"noise": 1.348, "rate": 0.25, "steps": 4}]
    return {"dp_event": event, "epsilon_before": 0.5 * position, "epsilon_after": 0.5 * position + 0.5}


def write_logs(out: Path, rounds: int = 2) -> dict[str, Path]:
    """The logs of `chest` and `head` in a run's folder: by round one receipt and one release, and everything else."""
    folders = {site: out / "sites" / site / "audit" for site in ("chest", "head")}
    for site, folder in folders.items():
        log = AuditLog(folder, site)
        log.append(Event.OPEN, **JOB)
        for number in range(1, rounds + 1):
            record = {**JOB, "round": number, "task": "train", "peer": "server"}
            down = {"tensors": (PROMPT,), "nbytes": 16384, "outcome": Outcome.ACCEPTED}
            log.append(Event.RECEIVE, **record, direction="in", **down)
            up = {"tensors": (PROMPT, ACCURACY), "nbytes": 16388, "outcome": Outcome.SENT, **charge(number - 1)}
            log.append(Event.RELEASE, **record, direction="out", **up)
        log.append(Event.CLOSE, **JOB)
        _append_odd_ones(log, folder)
        log.close()
    return folders


def _append_odd_ones(log: AuditLog, folder: Path) -> None:
    """What is seldom: shares, a refusal, a crash, and a job whose name is an attack."""
    record = {**JOB, "job": "job-2", "round": 1, "task": "mix", "direction": "out"}
    reason = "shares only, attempt a1 at a mixture among chest, head, dealt by the server"
    sent = {"tensors": (SHARED,), "nbytes": 16384, "outcome": Outcome.SENT, "reason": reason}
    log.append(Event.RELEASE, **record, peer="sites", **sent)
    why = "tensor 'activations' is of the kind 'activations', which the site's policy does not allow"
    log.append(Event.RELEASE, **record, peer="server", tensors=(REFUSED,), outcome=Outcome.REFUSED, reason=why)
    with open(folder / "log.jsonl", "ab") as file:
        file.write(b'{"actor":')
    log.append(Event.OPEN, **{**JOB, "job": HOSTILE}, outcome=Outcome.REFUSED, reason="line one\nline two ü")
