"""`medfedvqa doctor` checks the startup kit of a site, a server or an administrator, without starting anything.

A check is a list of conditions, each with a problem and a remedy: see `first`. Each party has a list of them.
"""

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from audits import AuditError
from audits.errors import PolicyError
from audits.policy import MOST_EPSILON, SitePolicy
from audits.secrets import SECRET_BYTES
from medfedvqa.data import READERS, check_reviewed, is_built_in, read, reader_function
from medfedvqa.devices import problem_of
from medfedvqa.errors import ConfigError, DataError, MedfedvqaError
from medfedvqa.federation.approvals import forecast, waiting_jobs
from medfedvqa.federation.flare.doctor_checks import (
    KEY,
    NEW_KIT,
    ROOT,
    Address,
    OtherParty,
    address_in,
    ask,
    certificate_of,
    closed_to_others,
    credentials,
    file_times,
    folder_check,
    hardening_checks,
    listable,
    open_to_others,
    private_file,
    server_checks,
    site_settings,
    space,
    subject_of,
    unreadable_files,
    untested_version,
)
from medfedvqa.federation.flare.kit_contents import (
    POLICIES,
    Check,
    changed,
    first,
    read_json,
    record_digests,
    resources,
)
from medfedvqa.federation.flare.site_health import budget_and_jobs, clock, log_check, process_check, read_log
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.live_processes import live_processes
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.plugins import PlugInRefused, allow, installed
from medfedvqa.vault.confinement import opens_network
from medfedvqa.vault.isolation import REMEDY, permitted

SITE, SERVER, ADMIN = "fed_client.json", "fed_server.json", "fed_admin.json"
"""The files in `startup/` that identify the kind of a kit."""
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_FILL_IN = "fill in local/site.yml; docs/site.md explains each line"
_AGAIN = "put back the file that provisioning wrote"
_SHARED = Path("/tmp")
_OPERATORS = ("project_admin", "org_admin", "lead")
"""The roles whose jobs the sites accept; the role `member` may only view."""


def kind_of(kit: Path) -> str:
    """One of `SITE`, `SERVER`, `ADMIN`. Raises `ConfigError` if the folder is not a startup kit."""
    kinds = [kind for kind in (SITE, SERVER, ADMIN) if (kit / "startup" / kind).is_file()]
    if len(kinds) != 1 or not (kit / "local").is_dir():
        raise ConfigError(
            "this folder is not the startup kit of a site, a server or an administrator: give the folder with "
            "startup/ and local/"
        )
    return kinds[0]


def examine(kit: Path, server: bool = False, running: bool = False) -> list[Check]:
    """All checks of a kit that can be made without starting the party.

    With `server`, they include whether the server answers and has the same time; with `running`, whether the party
    runs. Raises `ConfigError` if the folder is not a startup kit, or for `running` with an administrator's kit.
    """
    try:
        return _examine(kit.resolve(), server, running)
    except PermissionError:
        raise ConfigError(
            "this account may not read the kit: run the command as the account that runs the party"
        ) from None


def _examine(kit: Path, server: bool, running: bool) -> list[Check]:
    kind = kind_of(kit)
    if kind == ADMIN and running:
        raise ConfigError("an administrator's kit runs nothing: leave --running out")
    if unreadable := unreadable_files(kit):
        return unreadable
    if kind == SITE:
        return _examine_site(kit, server, running)
    return _examine_server(kit, server, running) if kind == SERVER else _examine_admin(kit, server)


def accept_changes(kit: Path) -> None:
    """Record the files of a site's or server's kit as they are now. Raises `ConfigError` if the hardening fails."""
    kit = kit.resolve()
    kind = kind_of(kit)
    if kind == ADMIN:
        raise ConfigError("an administrator's kit has no files to accept: leave --accept out")
    if unreadable_files(kit) or not all(
        check.ok for check in hardening_checks(kit, "site" if kind == SITE else "server")
    ):
        raise ConfigError(
            "the hardening is incomplete, which cannot be accepted: `medfedvqa doctor` lists what is wrong"
        )
    record_digests(kit / "local")


def _examine_site(kit: Path, server: bool, running: bool) -> list[Check]:
    """All checks of a site's kit."""
    startup, settings = kit / "startup", site_settings(kit)
    name = settings.get("client", {}).get("fqsn") if isinstance(settings.get("client"), dict) else None
    config, check = _site(kit, name if isinstance(name, str) else kit.name)
    return [
        *hardening_checks(kit, "site"),
        changed(kit),
        closed_to_others(kit),
        check,
        *credentials(startup, "client", name),
        *(_of_config(kit, config, running) if config is not None else [file_times(kit)]),
        *(server_checks(startup, "client", address_in(settings)) if server else ()),
    ]


def _of_config(kit: Path, config: SiteConfig, running: bool) -> Iterator[Check]:
    for name in ("state", "audit", "ledger"):
        yield folder_check(getattr(config, name), f"folder of {name}")
    yield space((config.state, config.audit, config.ledger))
    yield _isolation(config)
    yield _plug_ins(config)
    data = list(_data(config))
    yield from data
    if all(check.ok for check in data):
        yield from _forecasts(config)
    yield _device(config.device)
    yield from _keys(config)
    yield from _peers(config)
    yield _policy(config)
    yield from _log(kit, config, running)


def _log(kit: Path, config: SiteConfig, running: bool) -> Iterator[Check]:
    """The checks of log and ledger. Other checks report folders that cannot be listed."""
    if not listable(config.audit):
        yield file_times(kit)
        return
    log, processes = read_log(config.audit), live_processes(config.audit, kit)
    yield log_check(log)
    yield clock(kit, config, log)
    if log.problem is None and listable(config.ledger):
        yield from budget_and_jobs(config, log, processes)
    if running:
        yield process_check(processes)


def _site(kit: Path, name: str) -> tuple[SiteConfig | None, Check]:
    try:
        return load_site_config(kit / "local" / "site.yml", name), Check("site.yml")
    except (MedfedvqaError, AuditError) as error:
        return None, Check("site.yml", str(error), _FILL_IN)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None, Check("site.yml", "it holds something that is not a setting", _FILL_IN)


def _isolation(config: SiteConfig) -> Check:
    """Whether the kernel can deny the network to a new process, as it must for the vault."""
    if config.isolation == "none":
        problem = "site.yml lets a process with a network read the rows"
        return Check("isolation", problem, "write `isolation: kernel`, unless this machine permits no other", True)
    try:
        none = permitted() == "none"
    except OSError:
        problem = "this account starts no process to try it in"
        return Check("isolation", problem, "run doctor by the site's account", warning=True)
    return first("isolation", (none, "the process that reads the rows would keep its network", REMEDY))


def _plug_ins(config: SiteConfig) -> Check:
    """Whether every distribution that site.yml allows is installed with the allowed code, which is not imported."""
    digests = {plug_in.name: plug_in.sha256 for plug_in in installed()} if config.plugins else {}
    wrong = sorted(name for name, digest in config.plugins.items() if digests.get(name) != digest)
    remedy = "install what you allowed, or look at its code and write what `medfedvqa plugins` prints into site.yml"
    return first("plug-ins", (wrong, f"not installed, or with other code: {', '.join(wrong)}", remedy))


def _data(config: SiteConfig) -> Iterator[Check]:
    """Read the site's data as a job would. No check shows anything of its rows."""
    reader, root, organ = config.data.reader, config.data.root, config.data.organ
    try:
        allow(config.plugins)
        reader_function(reader)
    except PlugInRefused as error:
        yield Check("data", f"the reader cannot be loaded: {error}", "see `plugins` in docs/site.md")
        return
    except ConfigError:
        yield Check("data", "the reader is unknown", f"name one of {', '.join(READERS)} in local/site.yml")
        return
    if reader != "phantom":
        check = _root(root)
        yield check
        if not check.ok:
            return
    opened: list[str] = []
    if config.isolation == "kernel" and not is_built_in(reader):  # a hook stays until the process ends
        sys.addaudithook(lambda event, given: opened.append(event) if opens_network(event, given) else None)
    problem, remedy = "", "put right `data` in local/site.yml, or the data set in its folder"
    try:
        data = read(reader, root, organ)
        if config.data.require_review and root is not None:
            check_reviewed(root)
    except (DataError, OSError, ValueError, RecursionError) as error:
        problem = str(error) if isinstance(error, DataError) else "it cannot be read"
    if opened:
        problem = "the reader opens a connection, which the vault refuses"
        remedy = "mount the network's folder, and name a reader that opens its files"
    if problem:
        yield Check("data", problem, remedy)
        return
    other = f"the data set has no such organ; it has {', '.join(data.organs)}"
    closed = any(row.closed and row.organ == organ for row in data.rows)
    yield first(
        "data",
        (organ not in data.organs, other, "name one of them as `organ` in local/site.yml"),
        (not closed, "the data set has no closed questions on the organ", "name another organ, or another root"),
    )


def _forecasts(config: SiteConfig) -> Iterator[Check]:
    """How much of the gain in accuracy would be left of each private job that waits for a person's decision.

    Other checks report folders that cannot be listed.
    """
    if not (listable(config.state) and listable(config.audit)):
        return
    remedy = "see `medfedvqa jobs pending`"
    try:
        jobs = waiting_jobs(config)
    except MedfedvqaError as error:
        yield Check("waiting jobs", str(error), remedy, warning=True)
        return
    for waiting in jobs:
        name = f"forecast of job {waiting.name}"
        try:
            if (job := JobSpec.from_dict(waiting.job)).dp is not None:
                yield Check(name, value=forecast(config, job))
        except MedfedvqaError as error:  # such as a method that is no longer installed
            yield Check(name, str(error), remedy, warning=True)


def _root(root: Path | None) -> Check:
    name, remedy = "data root", "name the data set's folder as `root` in local/site.yml, and let the site's account in"
    if root is None or not os.path.lexists(root):
        return Check(name, "it is missing", remedy)
    try:
        with os.scandir(root) as entries:
            next(entries, None)
    except OSError as error:
        return Check(name, f"it cannot be read as a folder ({error.strerror})", remedy)
    return Check(name)


def _device(device: str) -> Check:
    problem = problem_of(device)
    return (
        Check("device", problem.problem, f"{problem.remedy}: `device` in local/site.yml")
        if problem
        else Check("device")
    )


def _keys(config: SiteConfig) -> Iterator[Check]:
    """The checks of the keys that the site makes itself, each at its first use."""
    if os.path.lexists(config.identity) or config.known_peers or _on_shares(config):
        remedy = "`medfedvqa identity` makes it: tell the peers its fingerprint"
        yield private_file(config.identity, "key for secure aggregation", remedy, SECRET_BYTES)
    if os.path.lexists(config.audit_key):
        yield private_file(config.audit_key, "key of the audit log", "restore it from the backup", SECRET_BYTES)


def _on_shares(config: SiteConfig) -> bool:
    return config.policy.require_secagg or bool(config.policy.committee)


def _peers(config: SiteConfig) -> Iterator[Check]:
    policy, label = config.policy, "peers"
    remedy = (
        "write the fingerprints, compared by phone, under `peers` in local/site.yml: `medfedvqa identity` shows each"
    )
    malformed = sorted(name for name, pin in config.known_peers.items() if not _FINGERPRINT.fullmatch(pin))
    others = {name: pin for name, pin in config.known_peers.items() if name != config.name}
    unpinned = sorted(set(policy.committee) - {config.name, *others})
    # A job on shares has at least `min_sites` sites, of which at least `min_committee` compute.
    enough = max(policy.min_sites, policy.min_committee) - 1
    uncompared = sorted(others.keys() - config.peers.keys())
    if config.known_peers or _on_shares(config):
        few = f"{len(others)} other sites are pinned, and jobs on shares need at least {enough}"
        check = first(
            label,
            (malformed, f"no fingerprint of 64 hex digits: {', '.join(malformed)}", remedy),
            (len(set(others.values())) < len(others), "two sites have the same fingerprint", remedy),
            (unpinned, f"members of the committee are missing: {', '.join(unpinned)}", remedy),
            (_on_shares(config) and len(others) < enough, few, remedy),
        )
        brought = f"the fingerprints of {', '.join(uncompared)} are as the kit brought them, and nobody compared them"
        compare = "compare by phone, `medfedvqa peers verify`; then `medfedvqa peers add`"
        yield check if check.problem else first(label, (uncompared, brought, compare), warning=True)


def _policy(config: SiteConfig) -> Check:
    policy = config.policy
    epsilon, most = policy.max_epsilon, f"at most {MOST_EPSILON:g}"
    open_ended = policy.require_dp and epsilon is None
    large = policy.require_dp and epsilon is not None and epsilon > MOST_EPSILON
    repeats, protects = config.repeatable_noise is not None, "the site's noise repeats, and protects nobody"
    return first(
        "policy",
        (open_ended, "it demands differential privacy and writes no max_epsilon", f"write a max_epsilon of {most}"),
        (large, f"its max_epsilon of {epsilon or 0:g} promises a patient little", f"write {most}"),
        (repeats, protects, "remove repeatable_noise: for tests"),
        warning=True,
    )


def _examine_server(kit: Path, server: bool, running: bool) -> list[Check]:
    """All checks of a server's kit. `running` says that it should serve already."""
    startup = kit / "startup"
    party = subject_of(startup / "server.crt")
    address, places = _server_address(startup, party), _store(kit)
    return [
        # `credentials` checks the key more closely.
        *(check for check in hardening_checks(kit, "server") if check.name != KEY),
        *untested_version(),
        changed(kit),
        closed_to_others(kit),
        *credentials(startup, "server", party),
        file_times(kit),
        folder_check(kit, "folder of the kit", private=False),
        *_storage(places),
        space((kit, *(places or ()))),
        *(server_checks(startup, "server", address) if server or running else [_port(startup, address)]),
    ]


def _server_address(startup: Path, party: str | None) -> Address | None:
    """The server's address on this machine; others may reach it by another name."""
    try:
        target = read_json(startup / "fed_server.json")["servers"][0]["service"]["target"]
        return Address("localhost", Address.parse(target, party).port, str(party))
    except (ConfigError, LookupError, TypeError, ValueError):
        return None


def _store(kit: Path) -> list[Path] | None:
    """The folders in which FLARE keeps jobs and snapshots; None if the kit does not name them."""
    try:
        settings = resources(kit / "local")
        jobs = next(part for part in settings["components"] if part["id"] == "job_manager")["args"]["uri_root"]
        return [Path(jobs), Path(settings["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"])]
    except (ConfigError, LookupError, StopIteration, TypeError):
        return None


def _storage(places: list[Path] | None) -> Iterator[Check]:
    if places is None:
        yield Check("storage", "local/ does not say where jobs and results are kept", _AGAIN)
        return
    for label, place in zip(("storage of jobs", "storage of snapshots"), places, strict=True):
        check = folder_check(place, label, private=False)
        if check.ok:
            shared = f"it is under {_SHARED}, which a restart of the machine may empty"
            own = "name a folder of the server's own: `storage` of `SiteBuilder`, or `medfedvqa kit prepare --storage`"
            check = first(
                label,
                (place.resolve().is_relative_to(_SHARED), shared, own),
                (open_to_others(place), "every account of this machine can look into it", "run chmod -R o-rwx on it"),
                warning=True,
            )
        yield check


def _port(startup: Path, address: Address | None) -> Check:
    """Whether the server can listen on its port, or does so already."""
    name = "port"
    if address is None:
        return Check(name, "startup/fed_server.json does not say which", _AGAIN)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as FLARE's server does
        try:
            probe.bind(("", address.port))
            probe.listen()
            return Check(name)
        except PermissionError:
            problem = f"this account may not listen on port {address.port}"
            return Check(name, problem, "use an account that may listen on this port, or provision another port")
        except OSError:
            pass  # somebody listens
    try:
        ask(startup, "server", address)
    except (OSError, OtherParty, ValueError):
        return Check(name, f"another program listens on port {address.port}", "end it, or provision another port")
    return Check(name)


def _examine_admin(kit: Path, server: bool) -> list[Check]:
    """All checks of an administrator's kit."""
    startup = kit / "startup"
    settings = _admin_settings(startup)
    return [
        # `credentials` checks the key more closely.
        *(check for check in hardening_checks(kit, "admin") if check.name != KEY),
        closed_to_others(kit),
        *credentials(startup, "client", settings.get("username")),
        *_fingerprint(startup),
        _role(startup),
        _federation(startup, settings.get("project_name")),
        file_times(kit),
        *_shipped_jobs(kit),
        *(server_checks(startup, "client", _admin_address(settings)) if server else ()),
    ]


def _admin_settings(startup: Path) -> dict[str, Any]:
    try:
        admin = read_json(startup / "fed_admin.json").get("admin")
    except ConfigError:
        return {}
    return admin if isinstance(admin, dict) else {}


def _admin_address(settings: dict[str, Any]) -> Address | None:
    try:
        return Address.parse(f"{settings['host']}:{settings['port']}", settings["server_identity"])
    except (LookupError, ValueError):
        return None


def _fingerprint(startup: Path) -> Iterator[Check]:
    """The fingerprint by which a site's policy names the submitter, and its log the actor."""
    certificate = certificate_of(startup / "client.crt")
    if certificate is not None:
        yield Check("fingerprint for sites' policies (submitters)", value=certificate.fingerprint(SHA256()).hex())


def _role(startup: Path) -> Check:
    """Check the role, which FLARE writes into the certificate's subject as `unstructuredName`."""
    role, unknown = (
        subject_of(startup / "client.crt", NameOID.UNSTRUCTURED_NAME),
        "the certificate gives none that sites know",
    )
    if role == "member":
        return Check(
            "role", "a member may look at jobs but not submit them", "ask the coordinator for the role lead", True
        )
    return first("role", (role not in _OPERATORS, unknown, "ask the coordinator for a new certificate"))


def _federation(startup: Path, project: Any) -> Check:
    """Check that the root certificate belongs to the kit's federation: FLARE names it after the project."""
    other = "the kit's settings name another federation than its root certificate"
    return first(
        "federation",
        (not isinstance(project, str) or not project, "startup/fed_admin.json does not name it", NEW_KIT),
        (subject_of(startup / ROOT) != project, other, NEW_KIT),
    )


def _shipped_jobs(kit: Path) -> Iterator[Check]:
    """The shipped jobs that the sites would refuse, by the policies that they were provisioned with."""
    path, name = kit / "local" / POLICIES, "shipped jobs"
    try:
        read = read_json(path) if path.is_file() else {}
        policies = {site: SitePolicy.from_mapping(policy) for site, policy in read.items()}
    except (ConfigError, PolicyError):
        yield Check(name, f"local/{POLICIES} is not as provisioning wrote it", NEW_KIT, warning=True)
        return
    if not policies:
        yield Check(name, value="this kit does not have the sites' policies: ask each hospital which jobs it takes")
        return
    # It imports all methods, and so torch.
    from medfedvqa.federation.shipped_jobs import refused_jobs

    for (sites, code), methods in refused_jobs(policies).items():
        value = f"{', '.join(sites)} would refuse {', '.join(methods)} ({code.sentence})"
        yield Check(name, value=f"{value}; each job's README says what a hospital has to allow")
