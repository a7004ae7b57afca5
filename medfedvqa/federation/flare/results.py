"""The last look at a task's result before it is encoded: it is what the executor answered, and holds nothing else."""

import logging
from collections.abc import Mapping
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode, ServerCommandKey
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.private.fed.client.communicator import Communicator

from medfedvqa.federation.flare.messages import REASON, ROUND, TENSORS
from medfedvqa.federation.flare.wire import WireLedger, installed

_HEADERS = {
    *(ReservedHeaderKey.RC, ReservedHeaderKey.COOKIE_JAR, ReservedHeaderKey.PEER_PROPS, ReservedHeaderKey.TASK_NAME),
    *(ReservedHeaderKey.TASK_ID, ReservedHeaderKey.WORKFLOW, ReservedHeaderKey.AUDIT_EVENT_ID),
    *(ReservedHeaderKey.PEER_CTX, ReservedHeaderKey.MSG_ROOT_ID, ReservedHeaderKey.MSG_ROOT_TTL),
    *(ReservedKey.TASK_NAME, FLContextKey.TASK_NAME, ServerCommandKey.TASK_NAME),
}
_REFUSED = "the site's guard stopped a result that holds more than was released; the site's own log says so"

_logger = logging.getLogger(__name__)


class Answer:
    """What the executor last answered, and to which task."""

    def __init__(self) -> None:
        self.task, self.tensors = "", None

    task: str
    tensors: Mapping[str, Any] | None


_answer = Answer()


def answered(task: str, reply: Shareable) -> None:
    """The executor's reply, which the gate has let pass."""
    _answer.task, _answer.tensors = task, reply.get(TENSORS)


def check_results(ledger: WireLedger) -> None:
    """From now on this process submits what was answered, and the ledger knows how much that is."""
    submit = Communicator.submit_update

    def submit_update(  # type: ignore[no-untyped-def]
        communicator: Communicator, project_name, token, ssid, fl_ctx, client_name, shareable, *more, **named
    ):
        if not _is_answer(shareable):
            _logger.error("a task's result held more than was released, and was not sent")
            headers = shareable.get(ReservedHeaderKey.HEADERS, {})
            shareable = make_reply(ReturnCode.EXECUTION_EXCEPTION)
            shareable[REASON] = _REFUSED
            for name in _HEADERS & headers.keys() - {ReservedHeaderKey.RC}:
                shareable.set_header(name, headers[name])
        tensors = shareable.get(TENSORS) or {}
        ledger.submitting(
            _answer.task, int(shareable.get(ROUND, 0)), len(tensors), sum(array.nbytes for array in tensors.values())
        )
        return submit(communicator, project_name, token, ssid, fl_ctx, client_name, shareable, *more, **named)

    Communicator.submit_update = submit_update


def _is_answer(shareable: Shareable) -> bool:
    keys = set(shareable) - {ReservedHeaderKey.HEADERS}
    headers = set(shareable.get(ReservedHeaderKey.HEADERS, {}))
    if not headers <= _HEADERS:
        return False
    if TENSORS in shareable:
        return keys == {ROUND, TENSORS} and shareable[TENSORS] is _answer.tensors
    return keys <= {REASON}


def flush() -> None:
    """Put this process's counts into the log, if it counts."""
    if ledger := installed():
        ledger.flush()
