"""Startup kits by every way of FLARE's: provisioned, with keys that stay, from the dashboard."""

import filecmp
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.flare.kits import prepare_kit, root_folder
from medfedvqa.federation.flare.loopback import free_port
from medfedvqa.federation.flare.provision import ADMIN, SERVER, SiteBuilder, loopback_project, provision
from medfedvqa.federation.site_config import load_site_config

DISTRIBUTED = Path(__file__).parents[2] / "nvflare_jobs" / "provision" / "distributed"
PREPARED = [Path("local/comm_config.json"), Path("local/resources.json.default"), Path("local/site.yml")]

Nvflare = Callable[..., str]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The kits of a project that does not name our builder."""
    return provision(loopback_project(["chest"], 8002), [], tmp_path / "plain")


@pytest.fixture
def nvflare(tmp_path: Path) -> Nvflare:
    """FLARE's command, in a folder and with a home of its own."""
    environment = {**os.environ, "HOME": str(tmp_path / "home")}

    def run(*arguments: str) -> str:
        command = [Path(sys.executable).with_name("nvflare"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    return run


def names_in(folder: Path) -> set[Path]:
    """All files of a kit but what is the party's own."""
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path for path in files if path.suffix not in (".crt", ".key", ".pem")}


def test_a_kit_prepared_afterwards_is_as_if_our_builder_had_provisioned_it(plain: Path, tmp_path: Path) -> None:
    """Every file of the site's and the server's kit, byte for byte, but for keys and certificates."""
    assert set(PREPARED) <= set(prepare_kit(plain / "chest"))
    assert prepare_kit(plain / SERVER)
    ours = provision(loopback_project(["chest"], 8002), [SiteBuilder()], tmp_path / "ours")
    for name in ("chest", SERVER):
        assert names_in(plain / name) == names_in(ours / name)
        found = (filecmp.cmp(plain / name / path, ours / name / path, shallow=False) for path in names_in(ours / name))
        assert all(found)


def test_preparing_twice_changes_nothing_and_a_filled_in_form_stays(plain: Path) -> None:
    """So that it can be run after every upgrade."""
    own = plain / "chest" / "local" / "site.yml"
    own.write_text("policy: {methods: [], kinds: []}\n")
    assert own.relative_to(plain / "chest") not in prepare_kit(plain / "chest")
    assert prepare_kit(plain / "chest") == []
    assert own.read_text() == "policy: {methods: [], kinds: []}\n"


@pytest.mark.parametrize("kit", [ADMIN, "."])
def test_what_is_no_kit_of_a_site_or_server_is_refused(kit: str, plain: Path) -> None:
    """Nothing is written there."""
    before = sorted(plain.rglob("*"))
    with pytest.raises(ConfigError, match="not the startup kit of a site or a server"):
        prepare_kit(plain / kit)
    assert sorted(plain.rglob("*")) == before


@pytest.mark.parametrize("file, match", [("resources.json", "overrides"), ("resources.json.default", "fresh kit")])
def test_a_kit_whose_settings_somebody_changed_is_not_prepared_over_them(file: str, match: str, plain: Path) -> None:
    """The builder's edits would be without effect, or would drop the change without a word."""
    (plain / "chest" / "local" / file).write_text("{}")
    with pytest.raises(ConfigError, match=match):
        prepare_kit(plain / "chest")


def test_a_kit_starts_though_its_pid_files_name_processes_of_others(tmp_path: Path) -> None:
    """After a hard reboot its old process numbers belong to somebody: FLARE's own script would wait for these for ever.
    While its own supervisor lives, no second one starts."""
    kit = provision(loopback_project(["chest"], 8002), [SiteBuilder()], tmp_path) / "chest"
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text("#!/bin/sh\nsleep 600\n")
    python.chmod(0o700)
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(kit / "startup" / "sub_start.sh")]
    others = [kit / "daemon_pid.fl", kit / "pid.fl"]
    for path in others:
        path.write_text(f"{os.getpid()}\n")
    (kit / "shutdown.fl").touch()
    options = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as supervisor:
        try:
            assert supervisor.stdout
            assert any(line.startswith("new pid") for line in supervisor.stdout)
            assert int(others[0].read_text()) == supervisor.pid != int(others[1].read_text()) != os.getpid()
            second = subprocess.run(command, **options, timeout=60, check=True)
            assert "one instance" in second.stdout and "new pid" not in second.stdout
            assert int(others[0].read_text()) == supervisor.pid and not (kit / "shutdown.fl").exists()
        finally:
            os.killpg(supervisor.pid, signal.SIGKILL)


def test_what_a_party_writes_is_for_its_account_alone(tmp_path: Path) -> None:
    """Its processes begin with a mask that leaves others nothing, under whatever mask the script is started."""
    kit = provision(loopback_project(["chest"], 8002), [SiteBuilder()], tmp_path) / SERVER
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/results\n")
    python.chmod(0o700)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = f"umask 000; exec bash {kit}/startup/sub_start.sh --once"
    subprocess.run(["bash", "-c", command], env=environment, timeout=60, check=True)
    assert stat.S_IMODE((tmp_path / "results").stat().st_mode) == 0o600


def holds_a_key(archive: Path) -> bool:
    """Whether any file in the archive is, or contains, a private key."""
    with zipfile.ZipFile(archive) as files:
        return any(name.endswith(".key") or b"PRIVATE KEY" in files.read(name) for name in files.namelist())


def test_the_root_certificate_of_a_provisioned_project_is_written_once(tmp_path: Path) -> None:
    """For the owner's eyes only; a folder that exists, or is no project, is refused."""
    kits = provision(loopback_project(["chest"], 8002), [], tmp_path / "ws")
    state = kits.parent / "state"
    assert [path.stat().st_mode & 0o777 for path in (state, state / "cert.json")] == [0o700, 0o600]
    (state / "cert.json").chmod(0o644)  # as FLARE leaves it
    root_folder(kits.parent, tmp_path / "ca")
    assert (state / "cert.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "ca" / "rootCA.pem").read_bytes() == (kits / "chest" / "startup" / "rootCA.pem").read_bytes()
    assert all(path.stat().st_mode & 0o077 == 0 for path in ((tmp_path / "ca"), *(tmp_path / "ca").iterdir()))
    with pytest.raises(ConfigError, match="exists already"):
        root_folder(kits.parent, tmp_path / "ca")
    with pytest.raises(ConfigError, match="no project"):
        root_folder(tmp_path, tmp_path / "other")


def test_a_project_with_a_relay_is_refused_with_the_reason(tmp_path: Path) -> None:
    """What a site sends would pass a process that nothing here hardens; no kit is left."""
    project = loopback_project(["chest"], 8002)
    relay = {"name": "between", "type": "relay", "org": "coordinator", "listening_host": {"default": "localhost"}}
    with pytest.raises(FederationError, match="relays, which are neither hardened nor logged"):
        provision({**project, "participants": [*project["participants"], relay]}, [SiteBuilder()], tmp_path)
    assert not list(tmp_path.rglob("site.yml"))


def test_parties_whose_names_only_capitals_tell_apart_are_refused(tmp_path: Path) -> None:
    """People, and the disks of Windows and macOS, take them for one; no kit is left."""
    with pytest.raises(FederationError, match="names of parties must differ in more than case: Chest, chest"):
        provision(loopback_project(["chest", "Chest"], 8002), [SiteBuilder()], tmp_path)
    assert not list(tmp_path.rglob("site.yml"))


def test_two_parties_with_one_name_are_refused_with_the_name(tmp_path: Path, nvflare: Nvflare) -> None:
    """By our provisioning and by FLARE's own command, each in one sentence; no kit is left."""
    project = loopback_project(["chest", "head", "chest"], 8002)
    with pytest.raises(FederationError) as caught:
        provision(project, [SiteBuilder()], tmp_path / "ours")
    assert str(caught.value) == "the project has two parties with one name (chest): give each its own"
    (tmp_path / "project.yml").write_text(yaml.safe_dump(project))
    with pytest.raises(subprocess.CalledProcessError) as failed:
        nvflare("provision", "-p", "project.yml", "-w", "theirs")
    assert "already has a participant with the name 'chest'" in failed.value.stdout + failed.value.stderr
    assert not list(tmp_path.rglob("startup"))


def test_a_site_added_to_a_project_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    """Provisioned again with one more, all have the certificates and keys that they had, under the same root."""
    first = provision(loopback_project(["chest"], 8002), [], tmp_path)
    again = provision(loopback_project(["chest", "pelvis"], 8002), [], tmp_path)
    assert (first.name, again.name) == ("prod_00", "prod_01")
    for path in (Path(SERVER) / "startup" / "server.key", Path("chest") / "startup" / "client.crt"):
        assert (first / path).read_bytes() == (again / path).read_bytes()
    roots = [kits / site / "startup" / "rootCA.pem" for kits, site in ((first, "chest"), (again, "pelvis"))]
    assert roots[0].read_bytes() == roots[1].read_bytes()


@pytest.mark.slow
def test_private_keys_stay_with_those_who_made_them(nvflare: Nvflare, tmp_path: Path) -> None:
    """Neither request nor answer holds a key or names a builder; kits made of them are as hardened as others."""
    profile, workspace = str(DISTRIBUTED / "federation.yml"), "ws"
    told = nvflare("cert", "init", "--profile", profile, "-o", "ca")
    fingerprint = re.search(r"SHA256:[0-9A-F:]+", told)
    assert fingerprint is not None
    for form, name in (("server", SERVER), ("hospital", "pelvis"), ("lead", "lead@coordinator.org")):
        nvflare("cert", "request", "-p", str(DISTRIBUTED / f"{form}.yml"))
        request = tmp_path / name / f"{name}.request.zip"
        assert not holds_a_key(request)
        assert "builders" not in zipfile.ZipFile(request).read("site.yaml").decode()
        nvflare("cert", "approve", str(request), "--ca-dir", "ca", "--profile", profile)
        signed = tmp_path / name / f"{name}.signed.zip"
        assert not holds_a_key(signed)
        nvflare("package", str(signed), "--fingerprint", fingerprint.group(), "-w", workspace)
    kits = tmp_path / workspace / "medfedvqa" / "prod_00"
    own = kits / "pelvis" / "startup" / "client.key"
    assert own.read_bytes() == (tmp_path / "pelvis" / "pelvis.key").read_bytes() and own.stat().st_mode & 0o077 == 0
    assert load_site_config(kits / "pelvis" / "local" / "site.yml", "pelvis").policy.methods
    assert prepare_kit(kits / "pelvis") == [] and prepare_kit(kits / SERVER, "/tmp/medfedvqa-server") == []


class Dashboard:
    """FLARE's dashboard on the loopback interface, as a browser would use it."""

    def __init__(self, url: str) -> None:
        self._url, self._token = f"{url}/nvflare-dashboard/api/v1", ""

    def ask(self, method: str, path: str, **said: Any) -> bytes:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(f"{self._url}/{path}", json.dumps(said).encode(), headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
        return content

    def login(self, email: str, password: str) -> None:
        answer = json.loads(self.ask("POST", "login", email=email, password=password))
        self._token = answer["access_token"]


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    """A server of its own, with one project administrator."""
    port = free_port()
    web = {
        "NVFL_WEB_ROOT": str(tmp_path / "web"),
        "NVFL_CREDENTIAL": f"{ADMIN}:password:coordinator",
        "SECRET_KEY": "0123456789abcdef" * 2,
    }
    command = [sys.executable, "-m", "gunicorn", "-b", f"127.0.0.1:{port}", "-w", "1", "nvflare.dashboard.wsgi:app"]
    with (tmp_path / "dashboard.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **web}, stdout=log, stderr=log)
    try:
        found = Dashboard(f"http://127.0.0.1:{port}")
        end = time.monotonic() + 60
        while True:
            try:
                found.login(ADMIN, "password")
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None and time.monotonic() < end, "the dashboard did not start"
                time.sleep(0.2)
        yield found
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kits_from_flares_dashboard_are_prepared_after_the_download(dashboard: Dashboard, tmp_path: Path) -> None:
    """Project, site, approval, encrypted download; the kit is FLARE's own until it is prepared."""
    pin = "aPinOfLetters1"
    dashboard.ask("PATCH", "project", short_name="medfedvqa", server1=SERVER, frozen=True, scheme="http")
    client = json.loads(dashboard.ask("POST", "clients", name="chest", organization="chest"))["client"]
    dashboard.ask("PATCH", f"clients/{client['id']}", approval_state=100)
    for name, path in (("chest", f"clients/{client['id']}/blob"), (SERVER, "servers/1/blob")):
        archive = tmp_path / f"{name}.zip"
        archive.write_bytes(dashboard.ask("POST", path, pin=pin))
        with pytest.raises(RuntimeError, match="encrypted"):
            zipfile.ZipFile(archive).read("startup/rootCA.pem")
        zipfile.ZipFile(archive).extractall(tmp_path / name, pwd=pin.encode())
        resources = tmp_path / name / "local" / "resources.json.default"
        assert "medfedvqa" not in resources.read_text()
        prepare_kit(tmp_path / name)
        allowed = json.loads(resources.read_text())["class_allow_list"]
        assert allowed and all(name.startswith("medfedvqa.federation.flare.") for name in allowed)
