"""An administrator's session with a server that answers late: FLARE's own code and transport, over real TLS."""

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread, Timer

import pytest
from aiohttp import web
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.flare_api.api_spec import NoConnection

from medfedvqa.federation.flare.admin_client import open_session
from medfedvqa.federation.flare.loopback import free_port
from medfedvqa.federation.flare.provision import ADMIN, SERVER, loopback_project, provision

LOGIN = 5.0
"""Seconds that the administrator waits for the server."""


class LateServer:
    """Takes a connection once it is told to, and then keeps it and never answers."""

    def __init__(self, kit: Path, port: int) -> None:
        startup = kit / "startup"
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(startup / "rootCA.pem"))
        self._tls.load_cert_chain(str(startup / "server.crt"), str(startup / "server.key"))
        self._port, self._loop, self.ready, self.taken = port, asyncio.new_event_loop(), Event(), 0
        self._told = asyncio.Event()

    async def _keep(self, request: web.Request) -> web.WebSocketResponse:
        await self._told.wait()
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.taken += 1
        async for _ in socket:
            pass
        return socket

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._keep)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls).start()
        self.ready.set()

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    def take(self) -> None:
        self._loop.call_soon_threadsafe(self._told.set)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture
def late(tmp_path: Path) -> Iterator[tuple[LateServer, Path]]:
    """The server, and an administrator's kit for it."""
    port = free_port()
    kits = provision(loopback_project(["chest"], port), [], tmp_path)
    server = LateServer(kits / SERVER, port)
    thread = Thread(target=server.run)
    thread.start()
    assert server.ready.wait(60)
    yield server, kits / ADMIN
    server.stop()
    thread.join()


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")
def test_a_login_that_a_late_server_outlasts_ends(
    late: tuple[LateServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is made while the session ends; FLARE alone would then wait for it without limit."""
    server, kit = late
    stop = ConnManager.stop

    def stop_and_be_late(manager: ConnManager) -> None:
        Timer(0.5, server.take).start()
        stop(manager)

    def login() -> None:
        with pytest.raises(NoConnection):
            open_session(ADMIN, str(kit), LOGIN)

    monkeypatch.setattr(ConnManager, "stop", stop_and_be_late)
    end = time.monotonic() + 120
    while not server.taken and time.monotonic() < end:  # on a busy machine a login may end before it asks the server
        attempt = Thread(target=login, daemon=True)
        attempt.start()
        attempt.join(end - time.monotonic())
        assert not attempt.is_alive()
    assert server.taken
