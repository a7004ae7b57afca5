"""`medfedvqa doctor` for a site checks site.yml and what it names, hardening, log, ledger, clock and processes."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from audits import AuditError
from audits.policy import MOST_EPSILON
from audits.secrets import SECRET_BYTES
from medfedvqa.data import READERS, check_reviewed, read, reader_function
from medfedvqa.devices import problem_of
from medfedvqa.errors import ConfigError, DataError, MedfedvqaError
from medfedvqa.federation.flare.doctor_common import (
    Caution,
    closed_to_others,
    credentials,
    file_times,
    folder_check,
    hardening_checks,
    listable,
    private_file,
    space,
)
from medfedvqa.federation.flare.doctor_contact import address_in, server_checks, site_settings
from medfedvqa.federation.flare.doctor_jobs import budget_and_jobs, clock, log_check, process_check, read_log
from medfedvqa.federation.flare.kit_contents import Check, changed
from medfedvqa.federation.live_processes import live_processes
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.plugins import PlugInRefused, allow, installed
from medfedvqa.vault.isolation import REMEDY, permitted

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_FILL_IN = "fill in local/site.yml; docs/site.md explains each line"


def examine_site(kit: Path, server: bool, running: bool) -> list[Check]:
    """All checks of a site's kit that work from outside."""
    startup, settings = kit / "startup", site_settings(kit)
    name = settings.get("client", {}).get("fqsn") if isinstance(settings.get("client"), dict) else None
    checks = [*hardening_checks(kit, "site"), changed(kit), closed_to_others(kit)]
    config, check = _site(kit, name if isinstance(name, str) else kit.name)
    checks += [check, *credentials(startup, "client", name)]
    checks += _of_config(kit, config, running) if config is not None else [file_times(kit)]
    if server:
        checks += server_checks(startup, "client", address_in(settings))
    return checks


def _of_config(kit: Path, config: SiteConfig, running: bool) -> Iterator[Check]:
    for name in ("state", "audit", "ledger"):
        yield folder_check(getattr(config, name), f"folder of {name}")
    yield space((config.state, config.audit, config.ledger))
    yield _isolation(config)
    yield _plug_ins(config)
    yield from _data(config)
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
        return None, Check("site.yml", "it holds something that is no setting", _FILL_IN)


def _isolation(config: SiteConfig) -> Check:
    """Whether the kernel would keep the network from a process that is started now, as the vault is."""
    if config.isolation == "none":
        problem = "site.yml lets a process with a network read the rows"
        return Caution("isolation", problem, "write `isolation: kernel`, unless this machine permits no other")
    try:
        if permitted() != "none":
            return Check("isolation")
    except OSError:
        return Caution("isolation", "this account starts no process to try it in", "run doctor by the site's account")
    return Check("isolation", "the process that reads the rows would keep its network", REMEDY)


def _plug_ins(config: SiteConfig) -> Check:
    """Whether every distribution that site.yml allows is installed with the allowed code, which is not imported."""
    digests = {plug_in.name: plug_in.sha256 for plug_in in installed()} if config.plugins else {}
    wrong = sorted(name for name, digest in config.plugins.items() if digests.get(name) != digest)
    if not wrong:
        return Check("plug-ins")
    remedy = "install what you allowed, or look at its code and write what `medfedvqa plugins` prints into site.yml"
    return Check("plug-ins", f"not installed, or with other code: {', '.join(wrong)}", remedy)


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
    try:
        data = read(reader, root, organ)
        if config.data.require_review and root is not None:
            check_reviewed(root)
    except (DataError, OSError, ValueError, RecursionError) as error:
        problem = str(error) if isinstance(error, DataError) else "it cannot be read"
        yield Check("data", problem, "put right `data` in local/site.yml, or the data set in its folder")
        return
    if organ not in data.organs:
        problem = f"the data set has no such organ; it has {', '.join(data.organs)}"
        yield Check("data", problem, "name one of them as `organ` in local/site.yml")
    elif not any(row.closed and row.organ == organ for row in data.rows):
        yield Check("data", "the data set has no closed questions on the organ", "name another organ, or another root")
    else:
        yield Check("data")


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
    if problem := problem_of(device):
        return Check("device", problem.problem, f"{problem.remedy}: `device` in local/site.yml")
    return Check("device")


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
    if malformed:
        yield Check(label, f"no fingerprint of 64 hex digits: {', '.join(malformed)}", remedy)
    elif len(set(others.values())) < len(others):
        yield Check(label, "two sites have the same fingerprint", remedy)
    elif unpinned:
        yield Check(label, f"members of the committee are missing: {', '.join(unpinned)}", remedy)
    elif _on_shares(config) and len(others) < enough:
        problem = f"{len(others)} other sites are pinned, and jobs on shares need at least {enough}"
        yield Check(label, problem, remedy)
    elif uncompared := sorted(others.keys() - config.peers.keys()):
        problem = f"the fingerprints of {', '.join(uncompared)} are as the kit brought them, and nobody compared them"
        yield Caution(label, problem, "compare by phone, `medfedvqa peers verify`; then `medfedvqa peers add`")
    elif config.peers or _on_shares(config):
        yield Check(label)


def _policy(config: SiteConfig) -> Check:
    policy = config.policy
    if policy.require_dp and policy.max_epsilon is None:
        problem = "it demands differential privacy and writes no max_epsilon"
        return Caution("policy", problem, f"write a max_epsilon of at most {MOST_EPSILON:g}")
    if policy.require_dp and policy.max_epsilon is not None and policy.max_epsilon > MOST_EPSILON:
        problem = f"its max_epsilon of {policy.max_epsilon:g} promises a patient little"
        return Caution("policy", problem, f"write at most {MOST_EPSILON:g}")
    if config.repeatable_noise is not None:
        return Caution("policy", "the site's noise repeats, and protects nobody", "remove repeatable_noise: for tests")
    return Check("policy")
