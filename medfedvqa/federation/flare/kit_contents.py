"""The settings of a startup kit that limit FLARE (2.9) to what this project's jobs need.

`SiteBuilder` writes them. The processes of sites and servers check them when they start, and end if one is missing.
"""

import hashlib
import json
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from medfedvqa.atomic_files import require_none_pending
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.run_folder import CONTROLLER, EXECUTOR
from medfedvqa.federation.proxies import refuse_settings

LAUNCHER = "medfedvqa.federation.flare.launcher.SiteJobLauncher"
VALIDATOR = "medfedvqa.federation.flare.validator.ConfigurationOnly"
GUARD = "medfedvqa.federation.flare.hardening.SiteGuard"
SERVER_LAUNCHER = "medfedvqa.federation.flare.server_guard.ServerJobLauncher"
SERVER_GUARD = "medfedvqa.federation.flare.server_guard.ServerGuard"

RESOURCES, OWN_RESOURCES, GUARDED = "resources.json.default", "resources.json", "egress__resources.json"
SERVER_GUARDED = "guard__resources.json"
DIGESTS = "hardening.json"
POLICIES = "site_policies.json"
"""In an administrator's kit: the policies that provisioning wrote into the sites' kits, by site."""
LOG_STREAMING = {"site_log_streamer", "log_receiver"}

TRANSPORT = {"backbone_conn_gen": 1, "allow_adhoc_conns": False}
"""With these settings, a job's process connects only to its own site's, or server's, process."""

SCHEMES = {"http", "tcp"}
"""FLARE's transports that this project's tests run."""

_RIGHTS = {"shell_commands": "none", "byoc": "none", "server-predeployed-flwr": "none"}


def _rights(submit: str, clone: str, own_jobs: str) -> dict[str, str]:
    jobs = {"submit_job": submit, "clone_job": clone, "manage_job": own_jobs, "download_job": own_jobs}
    return jobs | {"view": "any", "operate": "o:site"} | _RIGHTS


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
"""Files of a kit's `local/` folder that are the same at every site."""

SERVER_FILES: Mapping[str, Mapping[str, Any]] = {
    "comm_config.json": TRANSPORT,
    "authorization.json": {
        "format_version": "1.0",
        "permissions": {
            "project_admin": dict.fromkeys(_OPERATE, "any") | _RIGHTS,
            "org_admin": _rights("none", "none", "o:submitter"),
            "lead": _rights("any", "n:submitter", "n:submitter"),
            "member": {"view": "any"},
        },
    },
}
"""Files of a server kit's `local/` folder. The rights are FLARE's defaults, but nobody runs commands or brings code."""

SERVER_COMPONENTS: Mapping[str, Any] = {
    "format_version": 2,
    "components": [{"id": "server_guard", "path": SERVER_GUARD, "args": {}}],
}
"""The component that installs the guard in a server's processes."""


def guarded(site: str) -> dict[str, Any]:
    """The component that installs the guard in a site's processes, before they send anything."""
    return {"format_version": 2, "components": [{"id": "site_guard", "path": GUARD, "args": {"site": site}}]}


Party = Literal["site", "server", "admin"]
Probe = Callable[[Path], str | None]
"""Takes a kit's `local/` folder and returns what is wrong with it, or None."""


@dataclass(frozen=True)
class Check:
    """The result of one check. `problem` is None if all is well; otherwise `remedy` says what to do."""

    name: str
    problem: str | None = None
    remedy: str = ""
    warning: bool = False
    """Whether the problem is only a warning, and keeps no party from joining."""
    value: str | None = None
    """A fact that people look up; it is no problem."""

    @property
    def ok(self) -> bool:
        """Whether the party may join."""
        return self.problem is None or self.warning

    @property
    def state(self) -> str:
        """The result in one word: `ok`, `warning` or `failed`."""
        return "failed" if not self.ok else "ok" if self.problem is None else "warning"


Row = tuple[object, str, str]
"""A condition, the problem that exists if it is true or any text, and the remedy."""


def first(name: str, *rows: Row, warning: bool = False) -> Check:
    """The check of this name; it fails with the problem and remedy of the first row whose condition holds."""
    wrong = ((problem, remedy) for holds, problem, remedy in rows if holds)
    return next((Check(name, problem, remedy, warning) for problem, remedy in wrong), Check(name))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `ConfigError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ConfigError(f"'{path.name}' is missing or holds no JSON object")
    return content


def kit_checks(kit: Path, party: Party) -> list[Check]:
    """The checks of a party's kit: the hardening of a site or server, or the secrets of an administrator."""
    return [_checked(name, remedy, probe, kit) for name, remedy, probe in _PROBES[party]]


def kit_problem(kit: Path, party: Party) -> str | None:
    """Why a party must not start with its kit, in one sentence; None if it may."""
    failed = next((check for check in kit_checks(kit, party) if not check.ok), None)
    return f"{failed.name}: {failed.problem}; {failed.remedy}" if failed else None


def server_url(kit: Path) -> str:
    """The address of the server in a site's kit, as FLARE writes it. Raises `ConfigError`."""
    try:
        service = read_json(kit / "startup" / "fed_client.json")["servers"][0]["service"]
        scheme, target = service["scheme"], service["target"]
    except (LookupError, TypeError):
        raise ConfigError("'fed_client.json' does not say where the server is: get a fresh kit") from None
    if scheme not in SCHEMES:
        raise ConfigError("the kit's transport is not one that this project is tested with")
    return f"{scheme}://{target}"


def _checked(name: str, remedy: str, probe: Probe, kit: Path) -> Check:
    try:
        problem = probe(kit / "local")
    except ConfigError as error:
        problem = str(error)
    return Check(name, problem, remedy if problem else "")


def resources(local: Path) -> dict[str, Any]:
    """The resources that FLARE reads. Raises `ConfigError`."""
    override = local / OWN_RESOURCES
    return read_json(override if override.exists() else local / RESOURCES)


def _classes(allowed: str) -> Probe:
    def probe(local: Path) -> str | None:
        settings = resources(local)
        listed = settings.get("class_allow_list") == [allowed]
        enforced = settings.get("class_list_enforcement_mode", "enforce") == "enforce"
        return None if listed and enforced else "jobs may bring classes other than this project's"

    return probe


def _streaming(local: Path) -> str | None:
    settings = resources(local)
    streams = {part.get("id") for part in settings.get("components", [])} & LOG_STREAMING
    return (
        None if settings.get("allow_log_streaming") is False and not streams else "logs may be streamed to the server"
    )


def _validator(local: Path) -> str | None:
    validator = resources(local).get("app_validator")
    return None if validator == {"path": VALIDATOR, "args": {}} else "jobs are not looked at before they are deployed"


def _launcher(path: str) -> Probe:
    def probe(local: Path) -> str | None:
        paths = {part.get("id"): part.get("path") for part in resources(local).get("components", [])}
        return None if paths.get("process_launcher") == path else "jobs are started by something else"

    return probe


def _guard(name: str, path: str) -> Probe:
    def probe(local: Path) -> str | None:
        paths = [part.get("path") for part in read_json(local / name).get("components", [])]
        return None if paths == [path] else f"'{name}' does not install the guard"

    return probe


def _others(name: str) -> Probe:
    def probe(local: Path) -> str | None:
        files = (*local.glob("*_resources.json"), *local.parent.glob("startup/*_resources.json"))
        return "files add components to FLARE's processes" if any(path.name != name for path in files) else None

    return probe


def _server(local: Path) -> str | None:
    try:
        server_url(local.parent)
    except ConfigError as error:
        return str(error)
    return None


def _key(name: str) -> Probe:
    def probe(local: Path) -> str | None:
        path = local.parent / "startup" / name
        if not path.is_file():
            return "it is missing"
        return "other accounts may read it" if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO) else None

    return probe


def _other_keys(local: Path) -> str | None:
    extra = [path for path in local.parent.rglob("*.key") if path != local.parent / "startup" / "client.key"]
    return "the kit holds keys of somebody else, or of the federation's root" if extra else None


def _authenticated(local: Path) -> str | None:
    admin = read_json(local.parent / "startup" / "fed_admin.json").get("admin")
    secure = isinstance(admin, dict) and admin.get("connection_security", "mtls") == "mtls"
    return None if secure else "it connects without mutual TLS"


def _custom(local: Path) -> str | None:
    return "the kit brings code of its own" if (local / "custom").exists() else None


def _same(name: str, files: Mapping[str, Mapping[str, Any]]) -> Probe:
    def probe(local: Path) -> str | None:
        return None if read_json(local / name) == files[name] else f"'{name}' is not as it was provisioned"

    return probe


_Question = tuple[str, str, Probe]
_AGAIN = "put back the file that provisioning wrote into local/"
_VERSION = f"install nvflare {' or '.join(patches.TESTED)}, or a release of medfedvqa that was tested with it"


def _hardening(
    allowed: str, launcher: str, file: str, guard: str, files: Mapping[str, Mapping[str, Any]]
) -> tuple[_Question, ...]:
    """The checks that the kits of sites and servers share; each row has a name, a remedy and a probe."""
    return (
        ("class allow-list", _AGAIN, _classes(allowed)),
        ("log streaming", _AGAIN, _streaming),
        ("job validator", _AGAIN, _validator),
        ("job launcher", _AGAIN, _launcher(launcher)),
        ("guard", _AGAIN, _guard(file, guard)),
        (
            "other components",
            f"remove every *_resources.json but {file} from local/ and startup/",
            _others(file),
        ),
        ("no code of the kit's own", "remove local/custom: all code comes from the installed package", _custom),
        ("transport", _AGAIN, _same("comm_config.json", files)),
        ("rights", _AGAIN, _same("authorization.json", files)),
    )


_PROBES: Mapping[Party, tuple[_Question, ...]] = {
    "site": (
        *_hardening(EXECUTOR, LAUNCHER, GUARDED, GUARD, FILES),
        ("one privacy scope", _AGAIN, _same("privacy.json", FILES)),
        ("server's address", "ask the coordinator for a kit with scheme http, which is FLARE's default", _server),
    ),
    "server": (
        ("FLARE's version", _VERSION, lambda local: patches.problem()),
        *_hardening(CONTROLLER, SERVER_LAUNCHER, SERVER_GUARDED, SERVER_GUARD, SERVER_FILES),
        ("key for FLARE", "run chmod 600 on startup/server.key, or get a fresh kit", _key("server.key")),
    ),
    "admin": (
        ("key for FLARE", "run chmod 600 on startup/client.key, or get a fresh kit", _key("client.key")),
        ("no key of others", "keep every other key in a place of its own", _other_keys),
        ("mutual TLS", "get a fresh kit", _authenticated),
    ),
}


def require_settings(kit: Path) -> None:
    """Raises `ConfigError` unless a site's `site.yml` is there and filled in.

    This does without `site_config`, whose imports take seconds; the vault reads the rest.
    """
    path = kit / "local" / "site.yml"
    require_none_pending(path.parent)
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        refuse_settings(settings)
        path.parent.joinpath(settings["audit"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, TypeError, KeyError, RecursionError):
        raise ConfigError("local/site.yml is missing or does not say where the audit log is: fill it in") from None


def record_digests(local: Path) -> None:
    """Record the digests of the files that provisioning wrote, for `changed`."""
    text = json.dumps(dict(_digests(local)), indent=2)
    (local / DIGESTS).write_text(f"{text}\n", encoding="utf-8")


def changed(kit: Path) -> Check:
    """Whether the files that provisioning wrote are unchanged."""
    local, name = kit / "local", "files as provisioned"
    remedy = "put them back; if the change is your own and `doctor` finds nothing else, accept it by `doctor --accept`"
    try:
        recorded = read_json(local / DIGESTS)
    except ConfigError as error:
        return Check(name, str(error), remedy)
    digests = dict(_digests(local))
    names = sorted(file for file in {*recorded, *digests} if recorded.get(file) != digests.get(file))
    return Check(name, f"changed: {', '.join(names)}", remedy) if names else Check(name)


def _digests(local: Path) -> Iterator[tuple[str, str]]:
    for name in (RESOURCES, OWN_RESOURCES, GUARDED, SERVER_GUARDED, *FILES):
        if (local / name).is_file():
            yield name, hashlib.sha256((local / name).read_bytes()).hexdigest()
