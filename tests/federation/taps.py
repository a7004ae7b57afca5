"""What FLARE's processes load in tests only: a server that records and tampers, and sites whose shares can be read.

FLARE builds these as components of a kit's `resources.json`; see `tapped`. What is imported here must not import the
controller, which takes over the guard's check when it is imported.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.utils.job_launcher_utils import get_server_job_args

from medfedvqa.federation.flare import server_guard, site_mail
from medfedvqa.federation.flare.persistent_process import command_line

FIRST = 8
"""Number of the first message between two sites that is tampered with: the handshake is over."""

FRAMES, ORDERS, DONE = "frames", "orders.json", "done.json"
Frame = bytes | bytearray | memoryview
PassOn = Callable[[Frame], None]


class FlareLauncher(ServerProcessJobLauncher):
    """FLARE's launcher; but it starts the server's jobs also if this environment has a blank or a quote in its path."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        return command_line(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS), get_server_job_args())


def disarm(kit: Path, checks_jobs: bool = False) -> None:
    """A hostile server runs without this project's guard and, unless it `checks_jobs`, without its job validator."""
    local = kit / "local"
    for name in ("guard__resources.json", "comm_config.json", "authorization.json"):
        (local / name).unlink(missing_ok=True)
    path = local / "resources.json.default"
    resources = json.loads(path.read_text())
    if not checks_jobs:
        resources.pop("app_validator", None)
    for part in resources["components"]:
        if part["id"] == "process_launcher":
            part["path"] = "taps.FlareLauncher"
    path.write_text(json.dumps(resources))


def add_component(kit: Path, component: Mapping[str, Any]) -> None:
    """FLARE builds it in all processes of the kit's party."""
    path = kit / "local" / "resources.json.default"
    resources = json.loads(path.read_text())
    resources["components"].append(component)
    path.write_text(json.dumps(resources))


class HostileServer(FLComponent):
    """In the processes of a server that was disarmed: the controller does not miss its guard.

    Arrays travel in their messages, where a recorder sees them; sites decode no others.
    """

    def __init__(self) -> None:
        super().__init__()
        server_guard.require_server_guard = lambda: None
        ConfigService._var_values.update({"np_download_chunk_size": 0, "tensor_download_chunk_size": 0})


class ServerTap(HostileServer):
    """Keeps all that reaches the server's process after TLS, and does to sites' mail what it is ordered, each once."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder, self._lock = Path(folder), threading.Lock()
        self._last: dict[tuple[str, str], bytes] = {}
        self._held: Callable[[], None] | None = None
        self._spoilt: set[str] = set()
        receive = ConnManager.process_frame

        def process_frame(manager: ConnManager, connection: Any, frame: Frame) -> None:
            with self._lock, (self._folder / f"{FRAMES}.{os.getpid()}").open("ab") as file:
                file.write(len(frame).to_bytes(8, "big") + frame)
            self._pass(frame, lambda passed: receive(manager, connection, passed))

        ConnManager.process_frame = process_frame

    def _pass(self, frame: Frame, on: PassOn) -> None:
        headers, payload = opened(frame)
        if not headers or headers.get(MessageHeaderKey.CHANNEL) != site_mail.CHANNEL or payload is None:
            on(frame)
            return
        with self._lock:
            way = headers[MessageHeaderKey.ORIGIN], headers[MessageHeaderKey.DESTINATION]
            before, self._last[way] = self._last.get(way), payload
            order = self._order(headers)
            held, self._held = self._held, None
        if order == "delay":
            self._held = lambda: on(frame)
        elif order == "flip":
            on(closed(frame, payload[:-1] + bytes([payload[-1] ^ 1])))
        elif order == "replay" and before is not None:
            on(closed(frame, before))
        elif order != "drop":
            on(frame)
            if order == "double":
                on(frame)
        if held is not None:
            held()

    def _order(self, headers: Mapping[str, Any]) -> str | None:
        """What to do with this message; forgeries at most one in an attempt."""
        path, attempt = self._folder / ORDERS, headers[site_mail._ATTEMPT]
        orders = json.loads(path.read_text()) if path.exists() else []
        if not orders or headers[site_mail._NUMBER] < FIRST or attempt in self._spoilt:
            return None
        if orders[0] in ("flip", "replay"):
            self._spoilt.add(attempt)
        with (self._folder / DONE).open("a") as file:
            origin, to = (headers[key].split(".")[0] for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION))
            file.write(json.dumps([orders[0], origin, to]) + "\n")
        path.write_text(json.dumps(orders[1:]))
        return orders[0]


def opened(frame: Frame) -> tuple[dict[str, Any] | None, bytes | None]:
    """Headers and payload of one of FLARE's frames."""
    prefix = Prefix.from_bytes(frame)
    start = PREFIX_LEN + prefix.header_len
    headers = msgpack.unpackb(frame[PREFIX_LEN:start]) if prefix.header_len else None
    return headers, bytes(frame[start:]) or None


def closed(frame: Frame, payload: bytes) -> bytes:
    """The frame with another payload."""
    prefix = Prefix.from_bytes(frame)
    head = bytearray(frame[: PREFIX_LEN + prefix.header_len])
    prefix.length = len(head) + len(payload)
    prefix.to_buffer(head, 0)
    return bytes(head) + payload


class CarelessServer(FLComponent):
    """A server that deploys any job, as long as a file says so."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        careless, validate = Path(folder) / "careless", AppAuthzService.validate_app

        def validate_app(app_path: str) -> tuple[str, dict[str, Any]]:
            found: tuple[str, dict[str, Any]] = ("", {}) if careless.exists() else validate(app_path)
            return found

        AppAuthzService.validate_app = staticmethod(validate_app)
