"""The job `site_status`: every site reports how much of its privacy budget is spent and where its audit log stands.

It is not a method: it opens no data and loads no model. A site answers if its policy names `site_status` as a method.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from audits import (
    AuditKey,
    AuditLog,
    Exchange,
    Gate,
    Isolation,
    JobContext,
    Kind,
    LogError,
    MessageRefused,
    Refusal,
    TaskSpec,
    TensorSpec,
    origin_of,
    verify,
)
from audits.escaping import for_markdown
from medfedvqa.atomic_files import write_whole
from medfedvqa.code_identity import running_code
from medfedvqa.core import Tensors
from medfedvqa.errors import FederationError
from medfedvqa.federation.checkpoint_exchange import CheckpointExchange
from medfedvqa.federation.job import STATUS_JOB
from medfedvqa.federation.job_budget import check_ledger, look_into
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.version import code_version

if TYPE_CHECKING:
    from medfedvqa.federation.hub import Engine
    from medfedvqa.federation.server_receipts import ServerReceipts

NAME = STATUS_JOB["method"]
STATUS, TABLE = "status.json", "status.md"


def _scalar(name: str, dtype: str, meaning: str) -> TensorSpec:
    return TensorSpec(name, (), dtype, Kind.PUBLIC, meaning)


EXCHANGE = Exchange(
    NAME,
    (
        TaskSpec(
            "status",
            up=(
                _scalar("spent", "float64", "epsilon of all charges together, as of a patient who was in every job"),
                _scalar("authorised", "float64", "the same with what running jobs have set aside"),
                _scalar("limit", "float64", "the epsilon that the site allows over all jobs; 0: it sets no limit"),
                _scalar("delta", "float64", "the delta at which these epsilons hold"),
                _scalar("jobs", "int64", "jobs that the budget ledger charged or holds budget for"),
                _scalar("entries", "int64", "entries of the audit log before this answer"),
                TensorSpec("head", (4,), "int64", Kind.PUBLIC, "the log's last hash: 32 bytes, 8 to a number"),
            ),
            down=(),
        ),
    ),
)
"""All figures are declared public. The epsilons are those of an imaginary patient who was in every job, so they do not
show who was in which. The head is a hash over clock readings, keyed digests and digests of what has left already."""


class StatusRuntime:
    """A site's part of the job. It answers like `SiteRuntime`."""

    def __init__(self, config: SiteConfig, job_id: str, actor: str = "", isolation: Isolation = Isolation.NONE) -> None:
        """`actor`, `isolation`: see `JobContext`."""
        self._config = config
        key = AuditKey.at(config.audit_key, origin_of(config.name))
        self._log = AuditLog(config.audit, config.name, key)
        self._checkpoints = CheckpointExchange(config, self._log, key, job_id, NAME)
        code = running_code(type(self))
        context = JobContext(job_id, NAME, "", code_version(), code.digest, actor, code, isolation)
        self._gate = Gate(EXCHANGE, config.policy, self._log, context)
        self._gate.open()

    def answer(self, task: str, round: int, received: Tensors, audit_bytes: bytes) -> tuple[Tensors, bytes]:
        """The declared figures, through the gate, and this site's audit bytes. Raises `AuditError`, `LedgerError`."""
        self._checkpoints.receive(audit_bytes, round)
        self._gate.receive(task, round, received)
        figures = self._gate.release(task, round, {**_head(self._config), **_budget(self._config)})
        return figures, self._checkpoints.reply()

    def refuse(self, code: Refusal, detail: str) -> NoReturn:
        """See `SiteRuntime.refuse`."""
        self._gate.refuse_job(code, detail)

    def close(self) -> None:
        """Closes the log at the end of the job."""
        self._gate.close()
        self._log.close()


def _budget(config: SiteConfig) -> Tensors:
    delta, limit = config.policy.delta, config.policy.epsilon_limit or 0.0
    spent = authorised = 0.0
    jobs: set[str] = set()
    if config.ledger.is_dir():
        with closing(look_into(config)) as ledger:
            check_ledger(ledger, config.audit)
            jobs = {
                job.job for account in ledger.accounts(delta) for job in account.jobs if job.epsilon or job.reserved
            }
            spent, authorised = (ledger.together(delta, reserved).epsilon for reserved in (False, True))
    else:
        check_ledger(None, config.audit)
    figures = {"spent": spent, "authorised": authorised, "limit": limit, "delta": delta}
    return {name: np.array(figure) for name, figure in figures.items()} | {"jobs": np.array(len(jobs))}


def _head(config: SiteConfig) -> Tensors:
    verdict = verify(config.audit)
    if not verdict.ok:
        raise LogError("the audit log is broken: `medfedvqa audit verify` names the first bad entry")
    head = np.frombuffer(bytes.fromhex(verdict.head), ">i8").astype(np.int64)
    return {"entries": np.array(verdict.entries), "head": head}


def serve_status(sites: tuple[str, ...], call: "Engine", out: Path, receipts: "ServerReceipts") -> dict[str, Any]:
    """Call one site after the other, write `status.json` and `status.md` into `out`, and return the former's content.

    A site that refuses is listed with its reason, and the others still answer.
    """
    from medfedvqa.federation.hub import TaskCall  # not at a site, which only answers

    answers: dict[str, dict[str, Any]] = {}
    for site in sites:
        try:
            replies = call(TaskCall("status", 1, {site: {}}, audit_bytes=receipts.outgoing([site])))
            if (reply := replies.get(site)) is None:
                raise FederationError(f"site '{site}' did not answer")
            tensors = EXCHANGE.check("status", "up", reply.tensors)
            receipts.incoming(site, "status", 1, tensors, reply.audit_bytes)
            answers[site] = _read(tensors)
        except FederationError as error:
            answers[site] = {"refused": str(error)}
        except MessageRefused as error:
            receipts.refused(site, "status", 1, str(error))
            answers[site] = {"refused": f"site '{site}' sent a message that the job does not declare: {error}"}
    status = {"asked": datetime.now(UTC).isoformat(timespec="seconds"), "sites": answers}
    write_whole(out / STATUS, f"{json.dumps(status, indent=2)}\n".encode())
    write_whole(out / TABLE, markdown(answers).encode())
    return status


def _read(tensors: Tensors) -> dict[str, Any]:
    figures = {name: array.item() for name, array in tensors.items() if name != "head"}
    head = tensors["head"].astype(">i8").tobytes().hex()
    return {**figures, "limit": figures["limit"] or None, "head": head}


def markdown(answers: Mapping[str, Mapping[str, Any]]) -> str:
    """The answers as a table with one line for each site, followed by the refusals and their reasons."""
    lines = [
        "| site | spent | with reserved | limit | delta | jobs | log entries | head |",
        f"|---|{'---:|' * 6}---|",
    ]
    refusals = []
    for site, answer in answers.items():
        if "refused" in answer:
            refusals.append(f"- {for_markdown(answer['refused'])}")
            continue
        limit = "none" if answer["limit"] is None else f"{answer['limit']:g}"
        epsilons = f"{answer['spent']:.4f} | {answer['authorised']:.4f} | {limit} | {answer['delta']:g}"
        lines.append(
            f"| {for_markdown(site)} | {epsilons} | {answer['jobs']} | {answer['entries']} | `{answer['head']}` |"
        )
    return "\n".join([*lines, "", *refusals]).rstrip() + "\n"
