"""What FLARE's processes load in tests only: a site and a server that ask sites for what is none of their business."""

import json
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import RequestHeader, new_cell_message
from taps import ServerTap

ASKED, ROGUE = "chest", "abdomen"
SECRET = "SECRET-of-the-hospital"
"""In a file that every site's account may read."""
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


class AskingSite(FLComponent):
    """In a job's process of a site that asks another one, once."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        if any("worker_process" in part for part in sys.orig_argv):
            from medfedvqa.federation.flare.executor import SiteExecutor

            execute = SiteExecutor.execute

            def executed(executor: SiteExecutor, task: str, message: Shareable, fl_ctx: FLContext, signal: Any) -> Any:
                if not (Path(folder) / "rogue.json").exists():
                    cell = fl_ctx.get_engine().get_cell().core_cell
                    _note(Path(folder), "rogue", _ask(cell, [ASKED], Path(folder)))
                return execute(executor, task, message, fl_ctx, signal)

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


def _note(folder: Path, name: str, content: Any) -> None:
    partial = folder / f"{name}.partial"
    partial.write_text(json.dumps(content))
    partial.rename(folder / f"{name}.json")


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
