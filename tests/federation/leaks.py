"""What FLARE's processes load in tests only: a site's process that tries every way out, a site without its guard that
asks another, and a server that asks all sites for what is none of its business."""

import json
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.logging.constants import LIVE_LOG_TOPIC, Channels
from nvflare.app_common.streamers.file_streamer import FileStreamer
from nvflare.app_common.streamers.log_streamer import LogStreamer
from nvflare.app_common.widgets.streaming import create_analytic_dxo, send_analytic_dxo
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import RequestHeader, new_cell_message
from taps import ServerTap

from medfedvqa.federation.flare.frame_counts import WireLedger

LEAKY, ROGUE = "chest", "abdomen"
SECRET = "SECRET-of-the-hospital"
"""In a file that every site's account may read."""
MARK = "LEAK-"
INJECTED = 1  # byte
_TIMEOUT = 2.0  # seconds
_SITE_TOPICS = (
    "sys.info",
    "sys.report_env",
    "resource_manager.report_resources",
    "info.show_stats",
    "info.show_errors",
)
_AGENT_TOPICS = ("config_vars", "process_info", "comm_config", "conns", "peers", "cells", "msg_stats", "list_pools")
_COMMANDS = ("show_stats", "show_errors", "configure_job_log")


def marked(way: str) -> str:
    """What one way out would carry, long enough to be found."""
    return f"{MARK}{way}-"


def in_job() -> bool:
    return any("worker_process" in part for part in sys.orig_argv)


class SiteLeaks(FLComponent):
    """In the processes of a site; what `orders.json` in `folder` says happens with the next task, once per site."""

    def __init__(self, folder: str, site: str) -> None:
        super().__init__()
        if site == ROGUE:
            WireLedger.admit = lambda *_: None  # nobody else's guard may rely on this one's
        if in_job():
            from medfedvqa.federation.flare.executor import SiteExecutor

            execute = SiteExecutor.execute

            def executed(executor: SiteExecutor, task: str, message: Shareable, fl_ctx: FLContext, signal: Any) -> Any:
                order = _order(Path(folder), site)
                if order == "exception":
                    raise KeyError(marked("exception"))
                if order == "ways out":
                    _note(Path(folder), "tried", _try_all(fl_ctx, Path(folder)))
                if order == "ask a site":
                    _note(Path(folder), "rogue", _ask(_cell(fl_ctx), [LEAKY], Path(folder)))
                reply = execute(executor, task, message, fl_ctx, signal)
                if order == "extra key":
                    reply["extra"] = marked("extra-key")
                return reply

            SiteExecutor.execute = executed


class Attacker(ServerTap):
    """In the server's own process: it also asks as the server itself once it is ordered to."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        threading.Thread(target=self._wait, args=(Path(folder),), daemon=True).start()

    def _wait(self, folder: Path) -> None:
        while not (folder / "ask").exists():
            time.sleep(0.2)
        asked = _ask(CoreCell.ALL_CELLS["server"], json.loads((folder / "ask").read_text()), folder)
        _note(folder, "server", asked)


def _order(folder: Path, site: str) -> str | None:
    path = folder / f"order.{site}"
    if not path.exists():
        return None
    order = path.read_text()
    path.unlink()
    return order


def _note(folder: Path, name: str, content: Any) -> None:
    partial = folder / f"{name}.partial"
    partial.write_text(json.dumps(content))
    partial.rename(folder / f"{name}.json")


def _cell(fl_ctx: FLContext) -> CoreCell:
    return fl_ctx.get_engine().get_cell().core_cell


def _try_all(fl_ctx: FLContext, folder: Path) -> dict[str, str]:
    """What became of each way out; the names are the tests' parameters."""
    return {name: _outcome(way, marked(name), fl_ctx, folder) for name, way in WAYS.items()}


def _outcome(way: Callable[..., Any], mark: str, fl_ctx: FLContext, folder: Path) -> str:
    try:
        return repr(way(mark, fl_ctx, folder))
    except Exception as error:
        return f"raised {type(error).__name__}"


def _fed_event(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    return FLComponent().fire_fed_event("leak", Shareable({"leak": mark}), fl_ctx)


def _metrics(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    dxo = create_analytic_dxo(mark, 0.5, AnalyticsDataType.SCALAR)
    return send_analytic_dxo(FLComponent(), dxo, fl_ctx, "analytix_log_stats", fire_fed_event=True)


def _aux(mark: str, fl_ctx: FLContext, folder: Path, secure: bool = False) -> Any:
    request = Shareable({"leak": mark})
    return fl_ctx.get_engine().send_aux_request(["server"], "leak", request, _TIMEOUT, fl_ctx, secure=secure)


def _aux_forgotten(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    return fl_ctx.get_engine().fire_and_forget_aux_request(["server"], "leak", Shareable({"leak": mark}), fl_ctx)


def _aux_secure(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    return _aux(mark, fl_ctx, folder, secure=True)


def _aux_listed(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    """On a topic that FLARE needs, with more in it than FLARE puts there."""
    request = Shareable({"leak": mark * 400})
    return fl_ctx.get_engine().send_aux_request(["server"], "__task_check__", request, _TIMEOUT, fl_ctx)


def _aux_small(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    """The same, no longer than such a message may be."""
    request = Shareable({"leak": mark})
    return fl_ctx.get_engine().send_aux_request(["server"], "__job_heartbeat__", request, _TIMEOUT, fl_ctx)


def _message_listed(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    """On a listed channel, by the cell itself, and longer than such may be."""
    message = Message({}, mark.encode() * 1000)
    return _cell(fl_ctx).fire_and_forget("task", "heart_beat", "server", message)


def _logs(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    stop = threading.Event()
    threading.Timer(_TIMEOUT, stop.set).start()
    return LogStreamer.stream_log(
        Channels.LOG_STREAMING_CHANNEL, LIVE_LOG_TOPIC, {}, ["server"], _file(mark, folder), fl_ctx, stop,
        chunk_timeout=_TIMEOUT,
    )  # fmt: skip


def _objects(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    return FileStreamer.stream_file("leak", "leak", {}, ["server"], _file(mark, folder), fl_ctx, chunk_timeout=_TIMEOUT)


def _file(mark: str, folder: Path) -> str:
    path = folder / f"{mark}file"
    path.write_text(mark)
    return str(path)


def _blob(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    cell: Cell = fl_ctx.get_engine().get_cell()
    return cell.send_blob("leak", "leak", "server", Message({}, mark.encode())).exception(_TIMEOUT)


def _message(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    return _cell(fl_ctx).fire_and_forget("leak", "leak", "server", Message({}, mark.encode()))


def _bulk(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    _cell(fl_ctx).queue_message("leak", "leak", "server", Message({}, mark.encode()))
    return time.sleep(_TIMEOUT)


def _download(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    """What a site sends to fetch, or offer, arrays by reference."""
    cell = _cell(fl_ctx)
    message = Message({}, mark.encode())
    return cell.fire_and_forget("download_service__", "download_service__download", "server", message)


def _public(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    """Goes along with everything from now on."""
    return fl_ctx.set_prop("leak", mark, private=False, sticky=True)


def _error(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    """As FLARE writes what it caught into the reply to a request."""
    headers = {MessageHeaderKey.ERROR: mark, MessageHeaderKey.RETURN_CODE: ReturnCode.ERROR}
    cell = _cell(fl_ctx)
    return cell.send_reply(Message(headers, None), "server", ["none"])


def _injected(mark: str, fl_ctx: FLContext, folder: Path) -> Any:
    """One byte in a frame of a listed kind, below the point where messages are handed over."""
    cell = _cell(fl_ctx)
    (connection,) = cell.communicator.conn_manager.sfm_endpoints[LEAKY].connections
    me = cell.get_fqcn()
    headers = {
        MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
        MessageHeaderKey.TOPIC: STREAM_ACK_TOPIC,
        MessageHeaderKey.MSG_TYPE: "req",
        MessageHeaderKey.ORIGIN: me,
        MessageHeaderKey.DESTINATION: f"server.{fl_ctx.get_job_id()}",
        MessageHeaderKey.FROM_CELL: me,
        MessageHeaderKey.TO_CELL: LEAKY,
    }
    return connection.send_data(CoreCell.APP_ID, 1, headers, b"1" * INJECTED)


WAYS: dict[str, Callable[[str, FLContext, Path], Any]] = {
    "fed-event": _fed_event,
    "metrics": _metrics,
    "aux": _aux,
    "aux-forgotten": _aux_forgotten,
    "aux-secure": _aux_secure,
    "aux-listed-topic": _aux_listed,
    "aux-short": _aux_small,
    "message-listed-channel": _message_listed,
    "log-streaming": _logs,
    "object-streaming": _objects,
    "blob": _blob,
    "message": _message,
    "bulk": _bulk,
    "by-reference": _download,
    "public-property": _public,
    "error-text": _error,
    "injected": _injected,
}


def _ask(cell: CoreCell, sites: list[str], folder: Path) -> list[tuple[str, str, str]]:
    """Everything a site should not answer: who was asked, what, and what came back."""
    answers = []
    for site in sites:
        for name, channel, topic, payload in _questions(folder):
            request = new_cell_message({}, payload)
            reply = cell.send_request(channel, topic, site, request, timeout=_TIMEOUT)
            answers.append((site, name, _told(reply)))
    return answers


def _told(reply: Message | None) -> str:
    if reply is None:
        return "nothing"
    payload = reply.payload
    return str(payload.body) if isinstance(payload, AdminMessage) else repr(payload)


def _questions(folder: Path) -> Iterator[tuple[str, str, str, Any]]:
    for command in (f"cat {folder / 'secret'}", f"tail {folder / 'secret'}", f"ls {folder}"):
        for flag in ("true", "false", None):
            for role in ("project_admin", "lead", "member"):
                yield f"{command} {flag} {role}", "admin", "admin", _admin("sys.shell", command, flag, role)
    for topic in _SITE_TOPICS:
        yield topic, "admin", "admin", _admin(topic, "", "false", "project_admin")
    yield "site log", "admin", "admin", _admin("sys.configure_site_log", "DEBUG", "false", "project_admin")
    for job in ("local", "../elsewhere"):
        yield f"delete {job}", "admin", "admin", _admin("train.delete_run", "", None, "", job)
        yield f"deploy {job}", "admin", "admin", _admin("train.deploy", _empty_zip(), None, "", job)
    for topic in _AGENT_TOPICS:
        yield f"agent {topic}", "_net_manager", topic, None
    for topic in _COMMANDS:
        yield f"command {topic}", "client_command", topic, None


def _admin(topic: str, body: Any, flag: str | None, role: str, job: str | None = None) -> AdminMessage:
    asked = AdminMessage(topic, body)
    asked.set_headers({RequestHeader.ADMIN_COMMAND: "cat", RequestHeader.USER_NAME: "admin@coordinator.org"})
    asked.set_headers({RequestHeader.USER_ROLE: role, RequestHeader.USER_ORG: "coordinator"})
    if flag is not None:
        asked.set_header(RequestHeader.REQUIRE_AUTHZ, flag)
    if job is not None:
        asked.set_headers({RequestHeader.JOB_ID: job, RequestHeader.JOB_META: {"x": 1}, RequestHeader.APP_NAME: "app"})
    return asked


def _empty_zip() -> bytes:
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("config/comm_config.json", "{}")
    return content.getvalue()
