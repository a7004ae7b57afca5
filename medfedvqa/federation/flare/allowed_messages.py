"""Which messages FLARE (2.9) and this project exchange between a site and the rest: the list, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
"""Mail between sites: a part of a sealed message, and a question for one that was lost."""

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
"""Requests that a site sends, by channel and topic."""

JOB_REQUESTS = {(_AUX, "__end_run__"), (_AUX, "__abort_task__")}
"""What a server may ask of a job's process."""

_ANSWERED = {
    (CellChannel.CLIENT_MAIN, CellChannel.CLIENT_MAIN): Traffic.ADMIN,
    (CellChannel.CELLNET, CellChannelTopic.Bye): Traffic.PRESENCE,
}
"""Requests to a site whose replies leave it as single messages; of any other it says only that it refuses."""

_LIFE = {Types.HELLO, Types.READY, Types.PING, Types.PONG}


@dataclass(frozen=True)
class ClassifiedFrame:
    """What a frame is: of which kind, for which job (None: for the site itself), and whether it leaves the site."""

    traffic: Traffic
    job: str | None
    leaves: bool


def classify(frame: Prefix, headers: Mapping[str, Any], site: str, job: str | None, far: str | None) -> ClassifiedFrame:
    """What a frame is that the process of `job`, or (None) the site's own, sends to the cell `far`.

    `far` is None before the cell at the other end has said its name, which it does with its first frame.
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


def _belongs_to(cell: Any, site: str) -> bool:
    return cell == site or str(cell).startswith(f"{site}.")


def subject(headers: Mapping[str, Any]) -> tuple[str, str]:
    """Channel and topic of a message; of a part of a stream, those of the stream."""
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
