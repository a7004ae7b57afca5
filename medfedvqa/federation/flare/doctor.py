"""Looks a site's startup kit over, without starting anything: hardening, site.yml, folders, keys, disk, clock."""

import os
import shutil
import socket
import ssl
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from audits import AuditError, LogError, read
from medfedvqa.errors import ConfigError, MedfedvqaError
from medfedvqa.federation.flare.checks import Check, changed, hardening, read_json
from medfedvqa.federation.site_config import SiteConfig, load_site_config

SPACE = 1 << 30  # bytes
_LEFT = timedelta(days=30)
_SKEW = timedelta(minutes=5)
_PATIENCE = 5.0  # seconds


def examine(kit: Path, server: bool = False) -> list[Check]:
    """Everything about a kit that can be seen from outside; with `server`, also whether the server answers.

    Raises `ConfigError` if the folder is no site's startup kit.
    """
    if not (kit / "startup" / "fed_client.json").is_file() or not (kit / "local").is_dir():
        raise ConfigError("this folder is not the startup kit of a site: point at the folder with startup/ and local/")
    found = [*hardening(kit), changed(kit)]
    config, check = _site(kit)
    found.append(check)
    if config is not None:
        found += [*_folders(config), _space(config), *_identity(config), _clock(config)]
    found += [*_certificate(kit / "startup")]
    if server:
        found.append(_server(kit / "startup"))
    return found


def _site(kit: Path) -> tuple[SiteConfig | None, Check]:
    try:
        return load_site_config(kit / "local" / "site.yml", kit.name), Check("site.yml")
    except (MedfedvqaError, AuditError) as error:
        return None, Check("site.yml", str(error), "fill in local/site.yml; docs/site.md explains each line")


def _nearest(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _folders(config: SiteConfig) -> Iterator[Check]:
    for name in ("state", "audit", "ledger"):
        path = getattr(config, name)
        place, label = _nearest(path), f"folder of {name}"
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            yield Check(label, "it cannot be written", "give the account that runs the site write access to it")
        elif path.exists() and path.stat().st_mode & stat.S_IRWXO:
            yield Check(label, "every account of this machine can look into it", "run chmod -R o-rwx on it")
        else:
            yield Check(label)


def _space(config: SiteConfig) -> Check:
    places = {_nearest(path) for path in (config.state, config.audit, config.ledger)}
    free = min(shutil.disk_usage(place).free for place in places)
    if free < SPACE:
        return Check("disk space", f"{free >> 20} MiB are free", "free at least 1 GiB: a site that cannot log stops")
    return Check("disk space")


def _private(path: Path, label: str, remedy: str) -> Check:
    if not path.is_file():
        return Check(label, "it is missing", remedy)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return Check(label, "other accounts may read it", "run chmod 600 on it")
    return Check(label)


def _identity(config: SiteConfig) -> Iterator[Check]:
    if config.identity.exists() or config.peers:
        yield _private(config.identity, "key for secure aggregation", "`medfedvqa identity` makes it: tell the peers")


def _clock(config: SiteConfig) -> Check:
    """Against the newest entry of the log: a clock that was set back makes times in it contradict each other."""
    last = None
    try:
        for entry in read(config.audit):
            last = entry
    except LogError:
        return Check("clock")  # no log yet, or a broken one, of which `audit verify` says where
    if last is not None and datetime.now(UTC) + _SKEW < datetime.fromisoformat(last.time):
        return Check("clock", "it is behind the newest entry of the audit log", "set the clock, best by NTP")
    return Check("clock")


def _certificate(startup: Path) -> Iterator[Check]:
    again = "ask the coordinator for a new certificate"
    yield _private(startup / "client.key", "key for FLARE", again)
    name = "certificate for FLARE"
    try:
        certificate = x509.load_pem_x509_certificate((startup / "client.crt").read_bytes())
        root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        key = load_pem_private_key((startup / "client.key").read_bytes(), None)
        certificate.verify_directly_issued_by(root)
    except (OSError, ValueError, TypeError):
        yield Check(name, "certificate, key or root are missing or damaged", again)
        return
    except InvalidSignature:
        yield Check(name, "the root certificate did not sign it", again)
        return
    now = datetime.now(UTC)
    if key.public_key() != certificate.public_key():
        yield Check(name, "it does not belong to the key beside it", again)
    elif now < certificate.not_valid_before_utc:
        yield Check(name, "it is not valid yet", "set the clock, best by NTP")
    elif now + _LEFT > certificate.not_valid_after_utc:
        yield Check(name, f"it ends on {certificate.not_valid_after_utc:%Y-%m-%d}", again)
    else:
        yield Check(name)


def _server(startup: Path) -> Check:
    name, remedy = "server", "check that the network lets this machine reach the address in startup/fed_client.json"
    try:
        service = read_json(startup / "fed_client.json")["servers"][0]["service"]["target"]
        host, _, port = service.rpartition(":")
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.check_hostname = False  # FLARE's certificates name parties
        with socket.create_connection((host, int(port)), _PATIENCE) as plain, context.wrap_socket(plain):
            return Check(name)
    except (ConfigError, LookupError, TypeError, ValueError, OSError):
        return Check(name, "it does not answer with a certificate of this federation", remedy)
