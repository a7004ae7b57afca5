"""The last look at what a job's process submits before it is encoded: a task's result is what the executor answered, a
question of FLARE's own asks nothing but that, and neither holds anything else."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply

from audits import Refusal
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.frame_counts import WireLedger, installed
from medfedvqa.federation.flare.messages import AUDIT_BYTES, REASON, ROUND, TENSORS

_HEADERS = {
    *(ReservedHeaderKey.RC, ReservedHeaderKey.COOKIE_JAR, ReservedHeaderKey.PEER_PROPS, ReservedHeaderKey.TASK_NAME),
    *(ReservedHeaderKey.TASK_ID, ReservedHeaderKey.WORKFLOW, ReservedHeaderKey.AUDIT_EVENT_ID),
    *(ReservedHeaderKey.PEER_CTX, ReservedHeaderKey.MSG_ROOT_ID, ReservedHeaderKey.MSG_ROOT_TTL),
    *(ReservedKey.TASK_NAME, FLContextKey.TASK_NAME, ServerCommandKey.TASK_NAME),
}

_EVERY = 1.0  # seconds
_logger = logging.getLogger(__name__)


@dataclass
class _LastAnswer:
    """What the executor last answered, and to which task."""

    task: str = ""
    tensors: Mapping[str, Any] | None = None
    audit_bytes: bytes | None = None


_answer = _LastAnswer()


def record_answer(task: str, reply: Shareable) -> None:
    """The executor's reply, which the gate has let pass."""
    _answer.task, _answer.tensors, _answer.audit_bytes = task, reply.get(TENSORS), reply.get(AUDIT_BYTES)


def check_results(ledger: WireLedger) -> None:
    """From now on this process submits what was answered, and the ledger knows how much that is."""
    submit = patches.SUBMIT.current()

    def submit_update(
        communicator: Any,
        project_name: str,
        token: str,
        ssid: str,
        fl_ctx: FLContext,
        client_name: str,
        shareable: Shareable,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        shareable = checked_result(shareable)
        tensors = shareable.get(TENSORS) or {}
        values, audit_bytes = sum(array.nbytes for array in tensors.values()), len(shareable.get(AUDIT_BYTES, b""))
        ledger.submitting(_answer.task, int(shareable.get(ROUND, 0)), len(tensors), values, audit_bytes)
        return submit(communicator, project_name, token, ssid, fl_ctx, client_name, shareable, *args, **kwargs)

    patches.SUBMIT.replace(submit_update)


def checked_result(result: Shareable) -> Shareable:
    """The result of a task as it may leave: what the executor answered last, or a refusal by its code alone."""
    if _is_answer(result):
        return result
    _logger.error("a task's result held more than was released, and was not sent")
    headers = result.get(ReservedHeaderKey.HEADERS, {})
    refused = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    refused[REASON] = Refusal.FAILED.value
    for name in _HEADERS & headers.keys() - {ReservedHeaderKey.RC}:
        refused.set_header(name, headers[name])
    return refused


def check_questions() -> None:
    """FLARE's own auxiliary requests to the server carry a few named headers; one that carries more is not sent."""
    send = patches.QUESTION.current()

    def send_to_cell(
        runner: Any,
        targets: Any,
        channel: str,
        topic: str,
        request: Shareable,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        headers = request.get(ReservedHeaderKey.HEADERS, {})
        if set(request) != {ReservedHeaderKey.HEADERS} or not set(headers) <= {*_HEADERS, ReservedHeaderKey.TOPIC}:
            _logger.error("an auxiliary request held more than FLARE's own do, and was not sent")
            return {}
        replies: dict[str, Any] = send(runner, targets, channel, topic, request, *args, **kwargs)
        return replies

    patches.QUESTION.replace(send_to_cell)


def _is_answer(shareable: Shareable) -> bool:
    keys = set(shareable) - {ReservedHeaderKey.HEADERS}
    headers = set(shareable.get(ReservedHeaderKey.HEADERS, {}))
    if not headers <= _HEADERS:
        return False
    if TENSORS in shareable:
        same = shareable[TENSORS] is _answer.tensors and shareable.get(AUDIT_BYTES) is _answer.audit_bytes
        return same and keys - {AUDIT_BYTES} == {ROUND, TENSORS}
    code = shareable.get(REASON)
    return not keys or keys == {REASON} and type(code) is str and code in set(Refusal)


def log_counts(ended: bool) -> None:
    """Put this process's counts into the log, if it counts: when the job has ended, and else once a second at most."""
    if ledger := installed():
        ledger.flush(every=0.0 if ended else _EVERY)
