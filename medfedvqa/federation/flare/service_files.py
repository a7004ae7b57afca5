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
from medfedvqa.federation.site_config import load_site_config

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
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
}
"""Directives of every unit. `MemoryDenyWriteExecute` is left out: torch writes machine code where it compiles."""

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
ReadWritePaths=$writable
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

    `prometheus`: the file of a site's health that a
    timer writes each minute. `backups`: the folder of a nightly backup of a site, and the key's file. Raises
    `ConfigError`.
    """
    kit, party = kit.resolve(), party_of(kit)
    name, site = f"medfedvqa-{kit.name}", kit / "local" / "site.yml"
    if party != "site" and (prometheus or backups):
        raise ConfigError("only a site has a health file and backups: leave these options out")
    places = [kit, *_places(site, kit.name)] if party == "site" else [kit]
    run = ["/bin/bash", str(kit / "startup" / "sub_start.sh"), "--once"]
    files = {f"{name}.service": _unit(kit, party, user, "", run, places)}
    if prometheus:
        command = _command("status", "--site", site, "--prometheus", prometheus)
        # A site that is not well is what the file says, and no failure of this unit.
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
        party_of(kit)
        place = f"/kits/{kit.name}"
        services[kit.name] = {
            "image": image,
            "container_name": f"medfedvqa-{kit.name}",
            "command": [f"{place}/startup/sub_start.sh", "--once"],
            "working_dir": place,
            "volumes": [f"{kit}:{place}"],
            "user": "10001:10001",
            "init": True,  # process 1 of a container ignores SIGTERM unless it handles it
            "read_only": True,
            "tmpfs": ["/tmp"],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "restart": "unless-stopped",
            "stop_grace_period": "60s",
            "networks": ["federation"],
        }
    if not services:
        raise ConfigError("name at least one kit of a server or a site")
    compose = yaml.safe_dump({"services": services, "networks": {"federation": {}}}, sort_keys=False)
    return {"Dockerfile": DOCKERFILE, "compose.yml": f"# Written by `medfedvqa kit containers`.\n{compose}"}


def _places(site: Path, name: str) -> list[Path]:
    """The folders into which a site writes, wherever its site.yml puts them."""
    config = load_site_config(site, name)
    folders = [config.state, config.audit, config.ledger, config.identity.parent, config.audit_key.parent]
    return [*folders, *filter(None, [store_of(config)])]


def _command(*words: object) -> list[str]:
    command = [str(Path(sys.executable).with_name("medfedvqa")), *map(str, words)]
    # systemd starts no program whose path has a quote, but passes such a path on.
    return ["/usr/bin/env", *command] if _SPECIAL.search(command[0]) else command


def _unit(kit: Path, party: str, user: str, what: str, start: list[str], writable: Iterable[Path]) -> str:
    runs = not what
    return _SERVICE.substitute(
        kind=party,
        name=kit.name,
        what=what,
        order=_ONLINE if runs else "",
        type="exec" if runs else "oneshot",
        user=user,
        kit=_quoted(kit),
        path=_quoted(f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"),
        start=" ".join(map(_quoted, start)),
        restart=_RESTART if runs else "",
        hardening="\n".join(f"{name}={value}" for name, value in HARDENING.items()),
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
