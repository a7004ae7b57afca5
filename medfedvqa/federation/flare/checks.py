"""What must stand in a site's startup kit for FLARE (2.9) to send nothing but what the gate released.

`SiteBuilder` writes it, a site's processes read it when they start, and refuse to join if it is not so.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nvflare
import yaml

from medfedvqa.errors import ConfigError

FLARE = "2.9.0"
"""The only version that the egress tests have run with; the hardening reaches into it."""

EXECUTOR = "medfedvqa.federation.flare.executor.SiteExecutor"
CONTROLLER = "medfedvqa.federation.flare.controller.FederationController"
LAUNCHER = "medfedvqa.federation.flare.launcher.SiteJobLauncher"
VALIDATOR = "medfedvqa.federation.flare.validator.ConfigurationOnly"
GUARD = "medfedvqa.federation.flare.hardening.SiteGuard"

RESOURCES, OWN_RESOURCES, GUARDED = "resources.json.default", "resources.json", "egress__resources.json"
DIGESTS = "hardening.json"
LOG_STREAMING = {"site_log_streamer", "log_receiver"}

TRANSPORT = {"backbone_conn_gen": 1, "allow_adhoc_conns": False}
"""A job's process has no connection but the one to its own site's process."""

_RIGHTS = {"shell_commands": "none", "byoc": "none", "server-predeployed-flwr": "none"}
_OPERATE = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
FILES: Mapping[str, Mapping[str, Any]] = {
    "comm_config.json": TRANSPORT,
    "authorization.json": {
        "format_version": "1.0",
        "permissions": {
            **{role: dict.fromkeys(_OPERATE, "any") | _RIGHTS for role in ("project_admin", "org_admin", "lead")},
            "member": {"view": "any"},
        },
    },
    "privacy.json": {
        "scopes": [{"name": "site", "properties": {}, "task_result_filters": [], "task_data_filters": []}],
        "default_scope": "site",
    },
}
"""Files of a kit's `local/` folder that say the same at every site."""


def guarded(site: str) -> dict[str, Any]:
    """What installs the guard in a site's processes, before they talk to anybody."""
    return {"format_version": 2, "components": [{"id": "site_guard", "path": GUARD, "args": {"site": site}}]}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `problem` is None if it is as it must be, else `remedy` says what to do."""

    name: str
    problem: str | None = None
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return self.problem is None


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file. Raises `ConfigError`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"'{path.name}' is missing or holds no JSON object")
    return found


def hardening(kit: Path) -> list[Check]:
    """Whether a site's kit holds what keeps FLARE's other ways out shut."""
    return [_checked(name, remedy, look, kit) for name, remedy, look in _LOOKS]


def broken(kit: Path) -> str | None:
    """Why a site must not start, in one sentence; None if it may."""
    failed = [check for check in hardening(kit) if not check.ok]
    if not failed:
        return None
    return f"{failed[0].name}: {failed[0].problem}; {failed[0].remedy}"


def _checked(name: str, remedy: str, look: Callable[[Path], str | None], kit: Path) -> Check:
    try:
        problem = look(kit / "local")
    except ConfigError as error:
        problem = str(error)
    return Check(name, problem, remedy if problem else "")


def _version(local: Path) -> str | None:
    return None if nvflare.__version__ == FLARE else f"NVIDIA FLARE {nvflare.__version__} is installed"


def resources(local: Path) -> dict[str, Any]:
    """What FLARE takes for a site's resources. Raises `ConfigError`."""
    own = local / OWN_RESOURCES
    return read_json(own if own.exists() else local / RESOURCES)


def _classes(local: Path) -> str | None:
    found = resources(local)
    listed = found.get("class_allow_list") == [EXECUTOR]
    enforced = found.get("class_list_enforcement_mode", "enforce") == "enforce"
    return None if listed and enforced else "jobs may bring classes other than this project's executor"


def _streaming(local: Path) -> str | None:
    found = resources(local)
    streams = {part.get("id") for part in found.get("components", [])} & LOG_STREAMING
    return None if found.get("allow_log_streaming") is False and not streams else "logs may be streamed to the server"


def _validator(local: Path) -> str | None:
    found = resources(local).get("app_validator")
    return None if found == {"path": VALIDATOR, "args": {}} else "jobs are not looked at before they are deployed"


def _launcher(local: Path) -> str | None:
    paths = {part.get("id"): part.get("path") for part in resources(local).get("components", [])}
    return None if paths.get("process_launcher") == LAUNCHER else "jobs are started by something else"


def _guard(local: Path) -> str | None:
    paths = [part.get("path") for part in read_json(local / GUARDED).get("components", [])]
    return None if paths == [GUARD] else f"'{GUARDED}' does not install the guard"


def _others(local: Path) -> str | None:
    extra = [path for path in (*local.glob("*_resources.json"), *local.parent.glob("startup/*_resources.json"))]
    extra = [path for path in extra if path.name != GUARDED]
    return "files add components to FLARE's processes" if extra else None


def _custom(local: Path) -> str | None:
    return "the kit brings code of its own" if (local / "custom").exists() else None


def _same(name: str) -> Callable[[Path], str | None]:
    def look(local: Path) -> str | None:
        return None if read_json(local / name) == FILES[name] else f"'{name}' is not as it was provisioned"

    return look


_AGAIN = "put back the file that provisioning wrote into local/"
_LOOKS: tuple[tuple[str, str, Callable[[Path], str | None]], ...] = (
    ("FLARE's version", f"install nvflare=={FLARE}, which this release was tested with", _version),
    ("class allow-list", _AGAIN, _classes),
    ("log streaming", _AGAIN, _streaming),
    ("job validator", _AGAIN, _validator),
    ("job launcher", _AGAIN, _launcher),
    ("guard", _AGAIN, _guard),
    ("other components", f"remove every *_resources.json but {GUARDED} from local/ and startup/", _others),
    ("no code of the kit's own", "remove local/custom: all code comes from the installed package", _custom),
    ("transport", _AGAIN, _same("comm_config.json")),
    ("rights", _AGAIN, _same("authorization.json")),
    ("one privacy scope", _AGAIN, _same("privacy.json")),
)


def audit_places(kit: Path) -> tuple[Path, Path]:
    """Where a site's `site.yml` puts the audit log and the key that signs it. Raises `ConfigError`.

    Read without what needs seconds to import.
    """
    path = kit / "local" / "site.yml"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        folder = path.parent.resolve()
        return folder / found["audit"], folder / found.get("audit_key", "audit.key")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, TypeError, KeyError):
        raise ConfigError("local/site.yml is missing or does not say where the audit log is: fill it in") from None


def record_digests(local: Path) -> None:
    """Remember what provisioning wrote, for `changed`."""
    text = json.dumps(dict(_digests(local)), indent=2)
    (local / DIGESTS).write_text(f"{text}\n", encoding="utf-8")


def changed(kit: Path) -> Check:
    """Whether the files that provisioning wrote are as they were."""
    local, name = kit / "local", "files as provisioned"
    remedy = "put them back; if the change is your own and `doctor` finds nothing else, accept it by `doctor --accept`"
    try:
        recorded = read_json(local / DIGESTS)
    except ConfigError as error:
        return Check(name, str(error), remedy)
    found = dict(_digests(local))
    names = sorted(file for file in {*recorded, *found} if recorded.get(file) != found.get(file))
    return Check(name, f"changed: {', '.join(names)}", remedy) if names else Check(name)


def _digests(local: Path) -> Iterator[tuple[str, str]]:
    for name in (RESOURCES, OWN_RESOURCES, GUARDED, *FILES):
        if (local / name).is_file():
            yield name, hashlib.sha256((local / name).read_bytes()).hexdigest()
