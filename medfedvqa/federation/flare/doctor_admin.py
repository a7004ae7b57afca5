"""`medfedvqa doctor` for an administrator checks key, certificate, role, federation and server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from audits.errors import PolicyError
from audits.policy import SitePolicy
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.doctor_common import (
    KEY,
    NEW_KIT,
    ROOT,
    Caution,
    KitFact,
    certificate_of,
    closed_to_others,
    credentials,
    file_times,
    hardening_checks,
    subject_of,
)
from medfedvqa.federation.flare.doctor_contact import Address, server_checks
from medfedvqa.federation.flare.kit_contents import POLICIES, Check, read_json

_OPERATORS = ("project_admin", "org_admin", "lead")
"""The roles whose jobs the sites accept; the role `member` may only view."""


def examine_admin(kit: Path, server: bool) -> list[Check]:
    """All checks of an administrator's kit that work from outside."""
    startup = kit / "startup"
    settings = _settings(startup)
    # `credentials` checks the key more closely.
    checks = [check for check in hardening_checks(kit, "admin") if check.name != KEY]
    checks += [closed_to_others(kit), *credentials(startup, "client", settings.get("username"))]
    checks += [
        *_fingerprint(startup),
        _role(startup),
        _federation(startup, settings.get("project_name")),
        file_times(kit),
        *_shipped_jobs(kit),
    ]
    if server:
        checks += server_checks(startup, "client", _address(settings))
    return checks


def _settings(startup: Path) -> dict[str, Any]:
    try:
        admin = read_json(startup / "fed_admin.json").get("admin")
    except ConfigError:
        return {}
    return admin if isinstance(admin, dict) else {}


def _address(settings: dict[str, Any]) -> Address | None:
    try:
        return Address.parse(f"{settings['host']}:{settings['port']}", settings["server_identity"])
    except (LookupError, ValueError):
        return None


def _fingerprint(startup: Path) -> Iterator[KitFact]:
    """The fingerprint by which a site's policy names the submitter, and its log the actor."""
    certificate = certificate_of(startup / "client.crt")
    if certificate is not None:
        yield KitFact("fingerprint for sites' policies (submitters)", value=certificate.fingerprint(SHA256()).hex())


def _role(startup: Path) -> Check:
    """Check the role, which FLARE writes into the certificate's subject as `unstructuredName`."""
    name = "role"
    role = subject_of(startup / "client.crt", NameOID.UNSTRUCTURED_NAME)
    if role in _OPERATORS:
        return Check(name)
    if role == "member":
        return Caution(name, "a member may look, and may not submit jobs", "ask the coordinator for the role lead")
    return Check(name, "the certificate gives none that sites know", "ask the coordinator for a new certificate")


def _federation(startup: Path, project: Any) -> Check:
    """Check the federation, after whose project FLARE names the root certificate."""
    name = "federation"
    if not isinstance(project, str) or not project:
        return Check(name, "startup/fed_admin.json does not name it", NEW_KIT)
    if subject_of(startup / ROOT) != project:
        return Check(name, "the kit's settings name another federation than its root certificate", NEW_KIT)
    return Check(name)


def _shipped_jobs(kit: Path) -> Iterator[Check]:
    """The shipped jobs that the sites would refuse, by the policies that they were provisioned with."""
    path, name = kit / "local" / POLICIES, "shipped jobs"
    try:
        read = read_json(path) if path.is_file() else {}
        policies = {site: SitePolicy.from_mapping(policy) for site, policy in read.items()}
    except (ConfigError, PolicyError):
        yield Caution(name, f"local/{POLICIES} is not as provisioning wrote it", NEW_KIT)
        return
    if not policies:
        yield KitFact(name, value="this kit does not have the sites' policies: ask each hospital which jobs it takes")
        return
    # It imports all methods, and so torch.
    from medfedvqa.federation.shipped_jobs import refused_jobs

    for (sites, code), methods in refused_jobs(policies).items():
        value = f"{', '.join(sites)} would refuse {', '.join(methods)} ({code.sentence})"
        yield KitFact(name, value=f"{value}; each job's README says what a hospital has to allow")
