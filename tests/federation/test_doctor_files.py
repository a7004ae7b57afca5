"""`medfedvqa doctor` on a kit whose files are not what they should be: certificates, and files that are none."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from doctored import SITE, certify, problems
from typer.testing import CliRunner

from medfedvqa.cli import app
from medfedvqa.errors import ConfigError

Change = Callable[[Path], object]


@pytest.mark.parametrize(
    ("begins", "days", "problem"),
    [(-9, 20, "it ends on"), (-9, -1, "it ends on"), (-9, 50, "it ends on"), (1, 90, "not valid yet")],
)
def test_a_certificate_that_ends_or_has_not_begun_is_found(
    site_kits: Path, site_kit: Path, begins: int, days: int, problem: str
) -> None:
    """Signed by the federation's own root; days from now. Within 60 days it is a warning, within 30 a failure."""
    certify(site_kits, site_kit, begins, days)
    found = problems(site_kit, state="warning" if days == 50 else "failed")
    assert list(found) == ["certificate for FLARE"] and problem in found["certificate for FLARE"]


def test_a_certificate_of_another_party_is_found(site_kits: Path, site_kit: Path) -> None:
    """Sound and of the same federation, but not this site's."""
    for name in ("crt", "key"):
        shutil.copy(site_kits / "localhost" / "startup" / f"server.{name}", site_kit / "startup" / f"client.{name}")
    assert "another party" in problems(site_kit)["certificate for FLARE"]


def no_file(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


HOSTILE: dict[str, Change] = {
    "device": no_file,
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "nothing": lambda path: path.symlink_to(path),
    "folder": lambda path: path.mkdir(0o700),
    "huge": huge,
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "nested": lambda path: path.write_text("[" * 200_000),
    "numbers": lambda path: path.write_text('{"client": 1, "servers": 1, "components": 1, "policy": {"methods": 1}}'),
    "strings": lambda path: path.write_text('{"client": "", "servers": [""], "components": [""], "policy": ""}'),
}
READ_WHOLE = [
    *("local/site.yml", "local/hardening.json", "local/resources.json.default", "local/egress__resources.json"),
    *("local/comm_config.json", "startup/fed_client.json", "startup/client.crt", "startup/client.key"),
    "startup/rootCA.pem",
]
OWN = [
    "identity.key",
    "audit.key",
    "ledger/ledger.sqlite",
    "ledger/cohort.key",
    "audit/log.jsonl",
    "audit/checkpoints",
    "state",
]


SOUND = {("state", "folder"), *(("audit/checkpoints", name) for name in ("binary", "nested", "numbers", "strings"))}
"""A folder where a folder belongs; checkpoints that cannot be read, of which `audit verify` speaks."""


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("file", [*READ_WHOLE, *OWN])
def test_a_file_that_is_none_is_a_sentence_and_is_not_read(
    charged_kit: Path, tmp_path: Path, file: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a device, a pipe, 64 GiB, noise: exit code 1 with lines, or one sentence, at once."""
    kit = Path(shutil.copytree(charged_kit, tmp_path / SITE))
    monkeypatch.chdir((kit / file).parent)  # a socket's name must be short
    path = Path((kit / file).name)
    path.unlink(missing_ok=True)
    HOSTILE[name](path)
    result = CliRunner().invoke(app, ["doctor", str(kit), "--json"])
    if isinstance(result.exception, ConfigError):
        assert file == "startup/fed_client.json" and "\n" not in str(result.exception)
    elif (file, name) not in SOUND:
        assert result.exit_code == 1
        assert [check for check in json.loads(result.stdout)["checks"] if not check["ok"] and check["remedy"]]
