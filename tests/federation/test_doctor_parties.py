"""`medfedvqa doctor` against a server's clock and certificate, and on kits of servers and administrators."""

import json
import shutil
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from doctored import FACTS, PLACES, SITE, checks_of, edit_json, listening, problems, provisioned
from nvflare.lighter.utils import load_crt_chain
from typer.testing import CliRunner

from medfedvqa.cli import app
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.kit_contents import record_digests
from medfedvqa.federation.flare.loopback import LoopbackFederation, free_port
from medfedvqa.federation.flare.provision import ADMIN, SERVER
from medfedvqa.federation.site_config import site_yaml

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of the kits, and the server's port, at which nobody listens."""
    port = free_port()
    return provisioned(tmp_path_factory.mktemp("federation"), port), port


@pytest.fixture
def kits(federation: tuple[Path, int], tmp_path: Path) -> Path:
    return Path(shutil.copytree(federation[0], tmp_path / "kits"))


@pytest.mark.parametrize("name", [SITE, ADMIN, SERVER])
@pytest.mark.parametrize(
    ("minutes", "problem"),
    [(0, None), (4, None), (-4, None), (60, "60 minutes behind"), (-60, "60 minutes ahead of")],
)
def test_a_clock_that_differs_from_the_servers_is_found(
    federation: tuple[Path, int], kits: Path, name: str, minutes: int, problem: str | None
) -> None:
    """Of every kind of kit; five minutes are allowed."""
    with listening(kits / SERVER / "startup", "server", federation[1], timedelta(minutes=minutes)):
        found = problems(kits / name, "--server")
    assert list(found) == (["clock against the server"] if problem else [])
    assert problem is None or problem in found["clock against the server"]


def test_a_server_that_says_no_time_is_a_warning(federation: tuple[Path, int], kits: Path) -> None:
    """FLARE's other transports do not."""
    with listening(kits / SERVER / "startup", "server", federation[1], None):
        assert problems(kits / SITE, "--server") == {}
        assert list(problems(kits / SITE, "--server", state="warning")) == ["clock against the server"]


def test_a_server_with_another_partys_certificate_is_found(federation: tuple[Path, int], kits: Path) -> None:
    """A party of the same federation stands in the server's place."""
    with listening(kits / ADMIN / "startup", "client", federation[1], timedelta()):
        assert "another party's certificate" in problems(kits / SITE, "--server")["server"]


def test_a_server_of_another_federation_is_found(
    federation: tuple[Path, int], kits: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither accepts the other's certificate."""
    other = provisioned(tmp_path_factory.mktemp("other"))
    with listening(other / SERVER / "startup", "server", federation[1], timedelta()):
        assert "no certificate of this federation" in problems(kits / SITE, "--server")["server"]
        assert "another program listens" in problems(kits / SERVER)["port"]


def test_a_certificate_that_the_server_refuses_is_found(
    federation: tuple[Path, int], kits: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The site's kit knows the server's root, and the server does not know the site's."""
    other = provisioned(tmp_path_factory.mktemp("other")) / SERVER / "startup"
    with listening(kits / SERVER / "startup", "server", federation[1], timedelta()):
        for name in ("crt", "key"):
            shutil.copy(other / f"server.{name}", kits / SITE / "startup" / f"client.{name}")
        assert "does not accept" in problems(kits / SITE, "--server")["server"]


def test_a_port_that_says_nothing_is_given_up(federation: tuple[Path, int], kits: Path) -> None:
    """It accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", federation[1])):
        assert list(problems(kits / SITE, "--server")) == ["server"]


def test_fresh_kits_of_a_server_and_an_administrator_have_no_failing_line(kits: Path) -> None:
    """Before the first start; a server that is to run, or an admin's server, is looked for if asked."""
    for name in (SERVER, ADMIN):
        assert problems(kits / name) == {}
        assert list(problems(kits / name, "--server")) == ["server"]
    assert list(problems(kits / SERVER, "--running")) == ["server"]


def test_the_port_of_a_running_server_is_no_problem(federation: tuple[Path, int], kits: Path) -> None:
    """It is served by the kit's own party; another program at the port is a failing line."""
    with listening(kits / SERVER / "startup", "server", federation[1], timedelta()):
        assert problems(kits / SERVER) == problems(kits / SERVER, "--running") == {}
    with listening(kits / ADMIN / "startup", "client", federation[1], timedelta()):
        assert "another program" in problems(kits / SERVER)["port"]


STORE = "local/resources.json.default"
SNAPSHOTS = ("snapshot_persistor", "args", "storage", "args", "root_dir")
BROKEN: dict[str, tuple[str, Change, str, str]] = {
    "server's key": (SERVER, lambda kit: (kit / "startup/server.key").chmod(0o644), "key for FLARE", "may read it"),
    "server's certificate": (
        SERVER,
        lambda kit: shutil.copy(kit / "startup/rootCA.pem", kit / "startup/server.crt"),
        "certificate for FLARE",
        "does not belong",
    ),
    "server's folder": (SERVER, lambda kit: (kit / "startup").chmod(0o777), "startup and local folders", "change them"),
    "snapshots": (
        SERVER,
        lambda kit: edit_json(kit / STORE, *SNAPSHOTS, value="/proc/none"),
        "storage of snapshots",
        "cannot be written",
    ),
    "jobs in a file": (
        SERVER,
        lambda kit: edit_json(kit / STORE, "components", 1, "args", "uri_root", value=str(kit / "readme.txt")),
        "storage of jobs",
        "a file stands in its place",
    ),
    "no store": (SERVER, lambda kit: edit_json(kit / STORE, *SNAPSHOTS[:3], value={}), "storage", "does not say where"),
    "no port": (
        SERVER,
        lambda kit: edit_json(kit / "startup/fed_server.json", "servers", value=[]),
        "port",
        "does not say which",
    ),
    "huge settings": (SERVER, lambda kit: (kit / STORE).write_bytes(b" " * (2 << 20)), "files of the kit", "1 MiB"),
    "admin's key": (ADMIN, lambda kit: (kit / "startup/client.key").chmod(0o640), "key for FLARE", "may read it"),
    "admin's name": (
        ADMIN,
        lambda kit: edit_json(kit / "startup/fed_admin.json", "admin", "username", value="eve@coordinator.org"),
        "certificate for FLARE",
        "another party",
    ),
    "admin's federation": (
        ADMIN,
        lambda kit: edit_json(kit / "startup/fed_admin.json", "admin", "project_name", value="other"),
        "federation",
        "another federation",
    ),
    "admin's settings": (
        ADMIN,
        lambda kit: edit_json(kit / "startup/fed_admin.json", "admin", "project_name", value=None),
        "federation",
        "does not name it",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_in_a_servers_or_administrators_kit_is_one_failing_line(kits: Path, name: str) -> None:
    """With what to do."""
    party, change, line, problem = BROKEN[name]
    change(kits / party)
    if (kits / party / "local" / "hardening.json").exists():
        record_digests(kits / party / "local")  # else the change of a file is a line of its own
    found = problems(kits / party)
    assert list(found) == [line] and problem in found[line]


def test_the_fingerprint_for_the_sites_policies_is_shown(kits: Path) -> None:
    """The one that a site's log has of the submitter: the SHA-256 of the certificate that a job is signed with."""
    (certificate,) = load_crt_chain(str(kits / ADMIN / "startup" / "client.crt"))
    values = [check["value"] for check in checks_of(kits / ADMIN) if check["name"].startswith("fingerprint")]
    assert values == [certificate.fingerprint(SHA256()).hex()]
    assert f": {values[0]}" in CliRunner().invoke(app, ["doctor", str(kits / ADMIN)]).stdout


def test_a_servers_hardening_is_looked_at_and_a_harmless_change_accepted(kits: Path) -> None:
    """A change that opens nothing is named until it is accepted; one that does is not accepted."""
    kit = kits / SERVER
    edit_json(kit / STORE, "servers", 0, "max_num_clients", value=7)
    assert list(problems(kit)) == ["files as provisioned"]
    assert CliRunner().invoke(app, ["doctor", str(kit), "--accept"]).exit_code == 0
    assert problems(kit) == {}
    edit_json(kit / STORE, "class_allow_list", value=["*"])
    assert {"class allow-list", "files as provisioned"} == set(problems(kit))
    assert isinstance(CliRunner().invoke(app, ["doctor", str(kit), "--accept"]).exception, ConfigError)


@pytest.mark.parametrize(
    ("role", "state"),
    [("lead", "ok"), ("org_admin", "ok"), ("member", "warning"), ("king", "failed"), (None, "failed")],
)
def test_the_role_is_the_certificates(federation: tuple[Path, int], kits: Path, role: str | None, state: str) -> None:
    """Signed by the federation's root: a member only looks, and no site knows other roles."""
    (path,) = federation[0].parents[1].glob("**/state/cert.json")
    startup, root = kits / ADMIN / "startup", json.loads(path.read_text())
    old = x509.load_pem_x509_certificate((startup / "client.crt").read_bytes())
    names = [part for part in old.subject if part.oid != NameOID.UNSTRUCTURED_NAME]
    names += [x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role)] if role else []
    builder = x509.CertificateBuilder(old.issuer, x509.Name(names), old.public_key(), old.serial_number + 1)
    builder = builder.not_valid_before(old.not_valid_before_utc).not_valid_after(old.not_valid_after_utc)
    new = builder.sign(load_pem_private_key(root["root_pri_key"].encode(), None), SHA256())
    (startup / "client.crt").write_bytes(new.public_bytes(Encoding.PEM))
    assert ("role" in problems(kits / ADMIN)) == (state == "failed")
    assert ("role" in problems(kits / ADMIN, state="warning")) == (state == "warning")


@pytest.mark.parametrize(("name", "option"), [(ADMIN, "--running"), (ADMIN, "--accept")])
def test_what_a_kind_of_kit_does_not_have_is_an_error(kits: Path, name: str, option: str) -> None:
    """An administrator runs nothing, and has no files to accept."""
    result = CliRunner().invoke(app, ["doctor", str(kits / name), option])
    assert isinstance(result.exception, ConfigError)


def test_a_kit_of_two_kinds_is_no_kit(kits: Path) -> None:
    """Nobody knows as what it would start."""
    shutil.copy(kits / ADMIN / "startup" / "fed_admin.json", kits / SITE / "startup")
    assert isinstance(CliRunner().invoke(app, ["doctor", str(kits / SITE)]).exception, ConfigError)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")
def test_all_kits_of_a_running_federation_pass_until_the_site_is_killed(tmp_path: Path) -> None:
    """FLARE's own server says what time it is, and the site's process holds its byte ledger."""
    path = tmp_path / "site.yml"
    path.write_text(site_yaml(**FACTS, **PLACES))
    with LoopbackFederation(tmp_path / "federation", {SITE: path}) as federation:
        for name, options in ((SITE, ["--server", "--running"]), (SERVER, ["--running"]), (ADMIN, ["--server"])):
            kit = federation.kits / name
            assert problems(kit, *options) == {}
            assert "clock against the server" not in problems(kit, *options, state="warning")
        (process,) = federation.processes(SITE, job=False)
        process.kill()
        process.wait()
        assert list(problems(federation.kits / SITE, "--server", "--running")) == ["site process"]
