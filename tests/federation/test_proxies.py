"""A network with a proxy: every party says in one sentence that FLARE's connections use none."""

import os
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from doctored import SITE, checks_of, listening, problems, provisioned, serving

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.loopback import free_port
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.proxies import REMEDY
from medfedvqa.federation.site_config import load_site_config

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own proxy does not count."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Proxy(socketserver.BaseRequestHandler):
    """It asks every CONNECT for a login (407), and answers anything else with 400."""

    def handle(self) -> None:
        request = self.request.recv(4096)
        answer = b"407 Proxy Authentication Required" if request.startswith(b"CONNECT ") else b"400 Bad Request"
        self.request.sendall(b"HTTP/1.1 " + answer + b"\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def proxy(port: int) -> Iterator[None]:
    """A proxy on the loopback interface."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Proxy) as server, serving(server):
        yield


def test_a_proxy_in_the_servers_place_that_asks_for_a_login_is_named(tmp_path: Path) -> None:
    """407: a hospital's IT wrote the proxy's address, or the network leads everything there."""
    port = free_port()
    kit = provisioned(tmp_path, port) / SITE
    with proxy(port):
        (line,) = [check for check in checks_of(kit, "--server") if check["state"] == "failed"]
    assert line["problem"] == "a proxy answers at its address, and asks for a login (407)"
    assert line["name"] == "server" and line["remedy"] == REMEDY


def test_a_proxy_of_the_environment_is_named_only_where_the_server_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the environment makes an exception for the server."""
    port = free_port()
    kits = provisioned(tmp_path, port)
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.invalid:3128")
    (problem,) = problems(kits / SITE, "--server").values()
    assert problem == "it does not answer past the proxy that this environment names"
    with listening(kits / SERVER / "startup", "server", port, timedelta()):
        assert problems(kits / SITE, "--server") == {}
    monkeypatch.setenv("no_proxy", "localhost")
    (problem,) = problems(kits / SITE, "--server").values()
    assert "proxy" not in problem


@pytest.mark.parametrize("name", ["proxy", "https_proxy"])
def test_a_proxy_in_site_yml_is_refused_by_doctor_and_at_the_start(tmp_path: Path, name: str) -> None:
    """The site's process ends with the sentence, which does not quote the address."""
    kit = provisioned(tmp_path) / SITE
    path = kit / "local" / "site.yml"
    path.write_text(path.read_text() + f"{name}: http://user:secret@proxy.invalid:3128\n")
    with pytest.raises(ConfigError) as caught:
        load_site_config(path, SITE)
    sentence = f"site.yml names a proxy, which is not a setting. {REMEDY}"
    assert str(caught.value) == sentence and sentence in problems(kit)["site.yml"]
    result = subprocess.run(
        ["bash", str(kit / "startup" / "sub_start.sh"), "--once"], cwd=kit, env=environment(), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert f"This site does not join the federation. {sentence}" in result.stderr and "secret" not in result.stderr


@pytest.mark.slow
def test_a_site_that_meets_a_proxy_says_so_in_its_log(tmp_path: Path) -> None:
    """A real process of the site, which tries on: its log has the sentence about the environment at once, and the one
    about 407 after half a minute."""
    port = free_port()
    kit = provisioned(tmp_path, port) / SITE
    variables = {**environment(), "https_proxy": "http://proxy.invalid:3128"}
    script = ["bash", str(kit / "startup" / "sub_start.sh"), "--once"]
    with proxy(port), (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(script, cwd=kit, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 300
            while "has not joined" not in (text := (tmp_path / "log").read_text()):
                assert process.poll() is None and time.monotonic() < end, text
                time.sleep(0.2)
        finally:
            os.killpg(process.pid, 9)
            process.wait()
    assert f"this environment names a proxy. {REMEDY}" in text
    assert f"server: a proxy answers at its address, and asks for a login (407); {REMEDY}" in text


def environment() -> dict[str, str]:
    """For the kit's script, which takes the first python3 of the path."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
