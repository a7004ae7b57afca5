"""Files by which a service manager, or containers, run a federation's parties: systemd units, a Dockerfile, compose.

A party's processes may be killed at any moment: what they have acknowledged is on disk, and the next start continues.
So SIGTERM needs no handling of its own, and stopping takes as long as the system takes to end the processes.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template

import yaml

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.kits import party_of
from medfedvqa.federation.job_budget import store_of
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.vault.place import SOCKET, VaultPlace

HARDENING = {
    "CapabilityBoundingSet": "",
    "LockPersonality": "yes",
    "NoNewPrivileges": "yes",
    "PrivateMounts": "yes",
    "PrivateTmp": "yes",
    "ProcSubset": "pid",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHome": "read-only",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectProc": "invisible",
    "ProtectSystem": "strict",
    "RemoveIPC": "yes",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM",
    "SystemCallFilter": "@system-service landlock_create_ruleset landlock_add_rule landlock_restrict_self",
    "UMask": "0077",
}
"""Directives of every unit. `MemoryDenyWriteExecute` is left out: torch writes machine code where it compiles."""
NETWORK = {"RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX"}
NO_NETWORK = {"PrivateNetwork": "yes", "IPAddressDeny": "any", "RestrictAddressFamilies": "AF_UNIX"}
"""Directives of units with a network, and of a site's vault."""

_SERVICE = Template("""\
# Written by `medfedvqa kit service`: as root, copy it to /etc/systemd/system and run `systemctl daemon-reload`.
[Unit]
Description=medfedvqa $kind $name$what
$order
[Service]
Type=$type
User=$user
WorkingDirectory=$kit
Environment=$path
ExecStart=$start
$restart$hardening
${further}ReadWritePaths=$writable
$install""")

_SPECIAL = re.compile(r"""[\s"'\\;]""")

_RESTART = """\
Restart=always
RestartSec=5
KillMode=control-group
TimeoutStopSec=60
"""

_ONLINE = "Wants=network-online.target\nAfter=network-online.target\n"

_TIMER = Template("""\
[Unit]
Description=$what of the medfedvqa site $name

[Timer]
OnCalendar=$when
RandomizedDelaySec=$delay
Persistent=true

[Install]
WantedBy=timers.target
""")

DOCKERFILE = """\
# Written by `medfedvqa kit containers`. Build in the project's folder: docker build -f Dockerfile -t medfedvqa .
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY medfedvqa medfedvqa
COPY privacy privacy
COPY audits audits
COPY nvflare_jobs nvflare_jobs
RUN python3 -m venv /opt/medfedvqa \\
 && /opt/medfedvqa/bin/pip install --no-cache-dir --constraint requirements.lock ".[vilt]"

FROM ${BASE}
COPY --from=build /opt/medfedvqa /opt/medfedvqa
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin medfedvqa
USER 10001:10001
ENV PATH=/opt/medfedvqa/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ENTRYPOINT ["/bin/bash"]
"""


def service_files(
    kit: Path, user: str, prometheus: Path | None = None, backups: tuple[Path, Path] | None = None
) -> dict[str, str]:
    """The units of a party, by file name.

    `prometheus`: the file with a site's health, which a timer writes each minute. `backups`: the folder of a site's
    nightly backups, and the key's file. Raises `ConfigError`.
    """
    kit, party = kit.resolve(), party_of(kit)
    name, site = f"medfedvqa-{kit.name}", kit / "local" / "site.yml"
    if party != "site" and (prometheus or backups):
        raise ConfigError("only a site has a health file and backups: leave these options out")
    run = ["/bin/bash", str(kit / "startup" / "sub_start.sh"), "--once"]
    if party != "site":
        return {f"{name}.service": _unit(kit, party, user, "", run, [kit], _ONLINE)}
    config, vault = load_site_config(site, kit.name), VaultPlace.of_kit(kit)
    places, shut = [kit, *_places(config)], [sys.executable, *vault.command()]
    order = f"{_ONLINE}Wants={name}-vault.service\nAfter={name}-vault.service\n"
    hidden = " ".join(_quoted(f"-{path.resolve()}") for path in _rows(config) if path)
    further = f"Environment={_quoted(f'{SOCKET}={vault.folder}')}\nInaccessiblePaths={hidden}\n"
    files = {
        f"{name}-vault.service": _unit(kit, party, user, ", its vault", shut, places, "", NO_NETWORK),
        f"{name}.service": _unit(kit, party, user, "", run, [kit], order, further=further),
    }
    if prometheus:
        command = _command("status", "--site", site, "--prometheus", prometheus)
        # The file reports an unhealthy site; it is not a failure of this unit.
        unit = _unit(kit, party, user, ", its health", ["-" + command[0], *command[1:]], [*places, prometheus.parent])
        files[f"{name}-status.service"] = unit
        files[f"{name}-status.timer"] = _timer(kit.name, "Health", "minutely", "5s")
    if backups:
        folder, key = backups
        command = _command("backup", folder, "--site", site, "--key", key)
        files[f"{name}-backup.service"] = _unit(kit, party, user, ", its backup", command, [*places, folder])
        files[f"{name}-backup.timer"] = _timer(kit.name, "Backup", "*-*-* 02:00:00", "30min")
    return files


def container_files(kits: Iterable[Path], image: str) -> dict[str, str]:
    """A Dockerfile, and a compose file with a service for each kit. Raises `ConfigError`."""
    services: dict[str, Mapping[str, object]] = {}
    for kit in sorted(path.resolve() for path in kits):
        party, place = party_of(kit), Path("/kits") / kit.name
        run: dict[str, object] = {"command": [f"{place}/startup/sub_start.sh", "--once"], "networks": ["federation"]}
        if party == "site":
            vault = VaultPlace.of_kit(place)
            shut = {"entrypoint": ["python"], "command": vault.command(), "network_mode": "none"}
            services[f"{kit.name}-vault"] = _container(kit, place, image, f"{kit.name}-vault", shut)
            hidden = [str(place / name) for name in ("state", "audit", "ledger")]
            environment = {SOCKET: str(vault.folder)}
            run |= {"depends_on": [f"{kit.name}-vault"], "environment": environment, "tmpfs": ["/tmp", *hidden]}
        services[kit.name] = _container(kit, place, image, kit.name, run)
    if not services:
        raise ConfigError("name at least one kit of a server or a site")
    compose = yaml.safe_dump({"services": services, "networks": {"federation": {}}}, sort_keys=False)
    return {"Dockerfile": DOCKERFILE, "compose.yml": f"# Written by `medfedvqa kit containers`.\n{compose}"}


def _container(kit: Path, place: Path, image: str, name: str, run: Mapping[str, object]) -> Mapping[str, object]:
    return {
        "image": image,
        "container_name": f"medfedvqa-{name}",
        "working_dir": str(place),
        "volumes": [f"{kit}:{place}"],
        "user": "10001:10001",
        "init": True,  # process 1 of a container ignores SIGTERM unless it handles it
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
        **run,
    }


def _rows(config: SiteConfig) -> list[Path | None]:
    """The paths that no process but the vault may read."""
    records = [config.state, config.audit, config.ledger, config.identity, config.audit_key]
    return [config.data.root, *records, store_of(config)]


def _places(config: SiteConfig) -> list[Path]:
    """The folders into which a site writes, wherever its site.yml puts them."""
    folders = [config.state, config.audit, config.ledger, config.identity.parent, config.audit_key.parent]
    return [*folders, *filter(None, [store_of(config)])]


def _command(*words: object) -> list[str]:
    command = [str(Path(sys.executable).with_name("medfedvqa")), *map(str, words)]
    # systemd starts no program whose path has a quote, but passes such a path on.
    return ["/usr/bin/env", *command] if _SPECIAL.search(command[0]) else command


def _unit(
    kit: Path,
    party: str,
    user: str,
    what: str,
    start: list[str],
    writable: Iterable[Path],
    order: str | None = None,
    network: Mapping[str, str] = NETWORK,
    further: str = "",
) -> str:
    """The text of a unit. `order`: the start order of a process that always runs; None for one that a timer starts."""
    runs = order is not None
    return _SERVICE.substitute(
        kind=party,
        name=kit.name,
        what=what,
        order=order or "",
        type="exec" if runs else "oneshot",
        user=user,
        kit=_quoted(kit),
        path=_quoted(f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"),
        start=" ".join(map(_quoted, start)),
        restart=_RESTART if runs else "",
        hardening="\n".join(f"{name}={value}" for name, value in sorted({**HARDENING, **network}.items())),
        further=further,
        writable=" ".join(map(_quoted, _outermost(writable))),
        install="\n[Install]\nWantedBy=multi-user.target\n" if runs else "",
    )


def _outermost(places: Iterable[Path]) -> list[Path]:
    """The folders without those that lie in another of them."""
    folders = sorted({path.resolve() for path in places})
    return [path for path in folders if not any(path != other and path.is_relative_to(other) for other in folders)]


def _timer(name: str, what: str, when: str, delay: str) -> str:
    return _TIMER.substitute(name=name, what=what, when=when, delay=delay)


def _quoted(word: object) -> str:
    """A word as systemd reads it: a percent sign begins a specifier, a dollar sign a variable."""
    text = str(word).replace("%", "%%").replace("$", "$$")
    return json.dumps(text, ensure_ascii=False) if _SPECIAL.search(text) else text
