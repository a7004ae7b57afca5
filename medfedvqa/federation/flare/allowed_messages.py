"""The complete list of messages that FLARE (2.9) and this project exchange between a site and other parties."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import Prefix
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.private.defs import TrainingTopic

from audits.byte_ledger import Traffic

CHANNEL = "medfedvqa_mail"
PART, AGAIN = "part", "again"
"""Topics of the mail between sites: a part of a sealed message, and a request for a lost part."""

RESULT = (CellChannel.SERVER_COMMAND, "submit_update")
_AUX = CellChannel.AUX_COMMUNICATION
NOTICE = (CellChannel.CLIENT_MAIN, TrainingTopic.NOTIFY_JOB_STATUS)
STREAM_TOPICS = (STREAM_DATA_TOPIC, STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC)

_OUT: Mapping[tuple[str, str], Traffic] = {
    RESULT: Traffic.RESULT,
    (CellChannel.SERVER_COMMAND, "get_task"): Traffic.REQUEST,
    (_AUX, "__sync_runner__"): Traffic.CONTROL,
    (_AUX, "__task_check__"): Traffic.CONTROL,
    (_AUX, "__job_heartbeat__"): Traffic.PRESENCE,
    (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge): Traffic.PRESENCE,
    (CellChannel.SERVER_MAIN, CellChannelTopic.Register): Traffic.PRESENCE,
    (CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT): Traffic.PRESENCE,
    (CellChannel.SERVER_MAIN, CellChannelTopic.Quit): Traffic.PRESENCE,
    (CellChannel.SERVER_MAIN, CellChannelTopic.REPORT_JOB_FAILURE): Traffic.PRESENCE,
    (CellChannel.CELLNET, CellChannelTopic.Bye): Traffic.PRESENCE,
    (CHANNEL, PART): Traffic.MAIL,
    (CHANNEL, AGAIN): Traffic.MAIL,
}
"""The requests that a site sends, by channel and topic."""

JOB_REQUESTS = {(_AUX, "__end_run__"), (_AUX, "__abort_task__")}
"""The server's requests that a job's process answers."""

_ANSWERED = {
    (CellChannel.CLIENT_MAIN, CellChannel.CLIENT_MAIN): Traffic.ADMIN,
    (CellChannel.CELLNET, CellChannelTopic.Bye): Traffic.PRESENCE,
}
"""The requests to a site whose replies leave it as single messages. Any other request gets only a refusal."""

_LIFE = {Types.HELLO, Types.READY, Types.PING, Types.PONG}


@dataclass(frozen=True)
class ClassifiedFrame:
    """The kind of a frame, its job (None for the site itself), and whether it leaves the site."""

    traffic: Traffic
    job: str | None
    leaves: bool


def classify(frame: Prefix, headers: Mapping[str, Any], site: str, job: str | None, far: str | None) -> ClassifiedFrame:
    """Classify a frame that the process of `job`, or the site's own if that is None, sends to the cell `far`.

    `far` is None until the first frame from the other end names its cell.
    """
    if frame.type in _LIFE:
        return ClassifiedFrame(Traffic.HANDSHAKE, None, leaves=job is None and not _belongs_to(far, site))
    if frame.type != Types.DATA:
        return ClassifiedFrame(Traffic.UNLISTED, None, leaves=True)
    origin, to = headers.get(MessageHeaderKey.ORIGIN), headers.get(MessageHeaderKey.DESTINATION)
    if job is None and _belongs_to(far, site) or job is not None and to == site:
        return ClassifiedFrame(Traffic.INTERNAL, job, leaves=False)
    if job is not None and far != site:
        return ClassifiedFrame(Traffic.UNLISTED, job, leaves=True)
    of = str(origin).removeprefix(f"{site}.") if _belongs_to(origin, site) and origin != site else None
    if origin != site and of is None:
        return ClassifiedFrame(Traffic.UNLISTED, None, leaves=True)
    return ClassifiedFrame(_kind(headers), of, leaves=True)


def is_job_id(name: object) -> bool:
    """Whether a name is a job's id: a UUID as FLARE writes it."""
    try:
        return isinstance(name, str) and str(UUID(name)) == name
    except ValueError:
        return False


def _belongs_to(cell: Any, site: str) -> bool:
    return cell == site or str(cell).startswith(f"{site}.")


def subject(headers: Mapping[str, Any]) -> tuple[str, str]:
    """The channel and topic of a message; for a part of a stream, those of the stream."""
    channel, topic = headers.get(MessageHeaderKey.CHANNEL, ""), headers.get(MessageHeaderKey.TOPIC, "")
    if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        return str(headers.get(StreamHeaderKey.CHANNEL, "")), str(headers.get(StreamHeaderKey.TOPIC, ""))
    return str(channel), str(topic)


def _kind(headers: Mapping[str, Any]) -> Traffic:
    request = subject(headers)
    kind = headers.get(MessageHeaderKey.MSG_TYPE)
    if kind == MessageType.RETURN:  # the headers of a message from outside that could not be passed on
        return Traffic.REFUSAL
    if kind == MessageType.REPLY:
        return _ANSWERED.get(request, Traffic.REFUSAL)
    if request[0] == STREAM_CHANNEL:
        return Traffic.RECEIPT if request[1] in STREAM_TOPICS else Traffic.UNLISTED
    if request[0] == CellChannel.RETURN_ONLY:
        answered = tuple(request[1].split(":", 1))
        return Traffic.REPLY if answered in JOB_REQUESTS else Traffic.UNLISTED
    return _OUT.get(request, Traffic.UNLISTED)
