"""`medfedvqa kit service` and `kit containers`: what the written files let a party do, and nothing more."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from backups import medfedvqa, refusal
from doctored import SITE, edit_site

from medfedvqa.federation.flare.service_files import HARDENING

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze here")


@pytest.fixture
def units(site_kit: Path, tmp_path: Path) -> Path:
    """All units of a site, whose kit and ledger have unusual names."""
    edit_site(site_kit, ledger=str(tmp_path / "a 100% ledger"))
    options = ["--prometheus", tmp_path / "health" / "chest.prom", "--backup", tmp_path / "backups"]
    result = medfedvqa(
        "kit", "service", site_kit, "--out", tmp_path / "units", *options, "--backup-key", tmp_path / "key"
    )
    assert result.exit_code == 0, result.exception
    return tmp_path / "units"


def test_a_site_gets_its_service_and_two_timers(units: Path, site_kit: Path, tmp_path: Path) -> None:
    """The service starts the kit's own script without its supervisor, and may write into the site's folders alone."""
    names = sorted(path.name for path in units.iterdir())
    stem = f"medfedvqa-{SITE}"
    kinds = ("-backup.service", "-backup.timer", "-status.service", "-status.timer", "-vault.service", ".service")
    assert names == sorted(f"{stem}{kind}" for kind in kinds)
    lines = (units / f"{stem}.service").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    assert settings["ExecStart"] == f"/bin/bash {site_kit / 'startup' / 'sub_start.sh'} --once"
    assert settings["ReadWritePaths"] == str(site_kit) and settings["User"] == "medfedvqa"
    assert settings["KillMode"] == "control-group" and settings["TimeoutStopSec"] == "60"
    for path in units.glob("*.service"):
        assert all(f"{name}={value}" in path.read_text().splitlines() for name, value in HARDENING.items())
    assert (
        f"status --site {site_kit / 'local' / 'site.yml'} --prometheus"
        in (units / f"{stem}-status.service").read_text()
    )


def test_the_vaults_service_has_no_network_and_the_couriers_cannot_read_rows(
    units: Path, site_kit: Path, tmp_path: Path
) -> None:
    """Two services: the process beside the rows has a private network and Unix sockets alone; the one with the network
    sees neither data, state, ledger nor the key for sums, and finds the vault instead of starting one."""
    stem = f"medfedvqa-{SITE}"
    vault, courier = ((units / name).read_text().splitlines() for name in (f"{stem}-vault.service", f"{stem}.service"))
    assert {"PrivateNetwork=yes", "IPAddressDeny=any", "RestrictAddressFamilies=AF_UNIX"} <= {*vault}
    (start,) = [line for line in vault if line.startswith("ExecStart=")]
    assert f"-m medfedvqa.vault {site_kit / 'local' / 'site.yml'} {SITE} {site_kit / 'vault'}" in start
    (hidden,) = [line for line in courier if line.startswith("InaccessiblePaths=")]
    assert all(f"-{site_kit / name}" in hidden for name in ("state", "audit", "identity.key", "audit.key"))
    assert f'"-{tmp_path / "a 100%% ledger"}"' in hidden
    assert f"Environment=MEDFEDVQA_VAULT={site_kit / 'vault'}" in courier
    assert f"After={stem}-vault.service" in courier and not any("PrivateNetwork" in line for line in courier)


@needs_systemd
def test_systemd_takes_the_units(units: Path) -> None:
    """systemd-analyze has no complaint about any of them, and rates their exposure at most 2.0 of 10."""
    assert ANALYZE
    paths = sorted(map(str, units.iterdir()))
    verified = subprocess.run([ANALYZE, "verify", "--man=no", *paths], capture_output=True, text=True, check=False)
    ours = [line for line in verified.stderr.splitlines() if "medfedvqa" in line and "Command" not in line]
    assert not ours, verified.stderr
    for path in units.glob("*.service"):
        command = [ANALYZE, "security", "--offline=yes", "--threshold=20", "--no-pager", str(path)]
        rated = subprocess.run(command, capture_output=True, text=True, check=False)
        assert rated.returncode == 0, rated.stdout[-300:] + rated.stderr


def test_a_server_gets_a_service_alone(site_kits: Path, tmp_path: Path) -> None:
    """Health and backups are a site's; what is there already is not written over, and an administrator gets none."""
    assert medfedvqa("kit", "service", site_kits / "localhost", "--out", tmp_path / "units").exit_code == 0
    assert [path.name for path in (tmp_path / "units").iterdir()] == ["medfedvqa-localhost.service"]
    words = ("kit", "service", site_kits / "localhost", "--out")
    assert "there already" in refusal(*words, tmp_path / "units")
    assert "only a site" in refusal(*words, tmp_path / "more", "--prometheus", tmp_path / "a.prom")
    assert "together" in refusal(*words, tmp_path / "more", "--backup", tmp_path)
    admin = next(path for path in site_kits.iterdir() if "@" in path.name)
    assert "not the startup kit" in refusal("kit", "service", admin, "--out", tmp_path / "admin")


def test_containers_run_without_root_and_without_a_writable_root(site_kits: Path, tmp_path: Path) -> None:
    """One service for each kit, mounted under its own name; an init process passes SIGTERM on."""
    kits = [site_kits / name for name in (SITE, "localhost")]
    assert medfedvqa("kit", "containers", *kits, "--out", tmp_path).exit_code == 0
    services = yaml.safe_load((tmp_path / "compose.yml").read_text())["services"]
    assert services.keys() == {SITE, f"{SITE}-vault", "localhost"}
    vault = services[f"{SITE}-vault"]
    assert vault.pop("network_mode") == "none" and "networks" not in vault and vault["entrypoint"] == ["python"]
    assert {f"/kits/{SITE}/{name}" for name in ("state", "audit", "ledger")} <= {*services[SITE]["tmpfs"]}
    assert services[SITE]["environment"] == {"MEDFEDVQA_VAULT": f"/kits/{SITE}/vault"}
    for name, service in services.items():
        kit = name.removesuffix("-vault")
        assert service["volumes"] == [f"{(site_kits / kit).resolve()}:/kits/{kit}"]
        assert service["container_name"] == f"medfedvqa-{name}"
        assert service["read_only"] and service["init"] and service["cap_drop"] == ["ALL"]
        assert service["user"] == "10001:10001" and "no-new-privileges:true" in service["security_opt"]
        assert not service.keys() & {"ports", "privileged", "network_mode", "devices"}
    dockerfile = (tmp_path / "Dockerfile").read_text().splitlines()
    assert "USER 10001:10001" in dockerfile and not any(line.startswith("ADD") for line in dockerfile)
    entry = json.loads(next(line for line in dockerfile if line.startswith("ENTRYPOINT")).removeprefix("ENTRYPOINT "))
    assert entry == ["/bin/bash"] and services[SITE]["command"] == [f"/kits/{SITE}/startup/sub_start.sh", "--once"]
