"""Checks that `medfedvqa doctor` makes of every kind of startup kit: files, folders, keys, certificates, disk, server.

The server's clock is read from its answer to a request for a page: FLARE (2.9) serves connections with aiohttp, which
answers any such request, behind mutual TLS, with a `Date`.
"""

import contextlib
import os
import shutil
import socket
import ssl
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from medfedvqa.errors import ConfigError
from medfedvqa.federation import proxies
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.kit_contents import Check, Party, first, kit_checks, read_json

SKEW = timedelta(minutes=5)
"""The largest difference of two clocks."""

ROOT = "rootCA.pem"
KEY = "key for FLARE"
NEW_KIT = "ask the coordinator for a new startup kit"
SET_CLOCK = "set the clock, best by NTP"

_SPACE = 1 << 30  # bytes
_LEFT, WARNED = timedelta(days=30), timedelta(days=60)
"""A certificate with less than the first time left fails the kit; with less than the second, it is a warning."""
_NEW_CERTIFICATE = "ask the coordinator for a new certificate"
_LARGEST = 1 << 20
"""The most bytes of a settings, key or certificate file of a kit."""
_READ = (".json", ".default", ".yml", ".crt", ".pem", ".key")
"""Endings of the files that this command and the party's processes read completely."""

_PATIENCE = 5.0  # seconds for the whole conversation
_ANSWER = 1 << 14
"""The most bytes of an answer that are read."""
_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's codes for a certificate that is not valid at this machine's time."""

SERVER, CLOCK = "server", "clock against the server"


def hardening_checks(kit: Path, party: Party) -> list[Check]:
    """The checks of a party's kit, or a single failed one if a file is malformed."""
    try:
        return kit_checks(kit, party)
    except (AttributeError, TypeError, ValueError):
        return [Check("hardening", "a file of the kit does not have the form that provisioning gave it", NEW_KIT)]


def untested_version() -> list[Check]:
    """A caution if this release's server was not tested with the installed FLARE."""
    problem = "it is newer than this release's tests, which know all the code of it that is reached into"
    remedy = "update medfedvqa once a release names this version as tested"
    return [] if patches.is_tested() else [Check("FLARE's version", problem, remedy, warning=True)]


def unreadable_files(kit: Path) -> list[Check]:
    """A failed check for each file of the kit that is not regular, or larger than any settings file.

    This runs before any file is read, since reading through a link to a device may never end.
    """
    remedy = "put back the file that belongs there, or remove it"
    return [
        Check("files of the kit", f"'{path.parent.name}/{path.name}' {problem}", remedy)
        for folder in ("startup", "local")
        for path in sorted((kit / folder).iterdir())
        if path.name.endswith(_READ) and (problem := irregularity(path, _LARGEST))
    ]


def irregularity(path: Path, largest: int | None = None) -> str | None:
    """Why an existing path must not be read, as the end of a sentence; None if it may be, or if it does not exist.

    The function follows links. `largest` is in bytes.
    """
    try:
        facts = path.stat()
    except FileNotFoundError:
        return "is a link to nothing" if path.is_symlink() else None
    except OSError:
        return "cannot be looked at"
    if not stat.S_ISREG(facts.st_mode):
        return "is not a regular file"
    if largest is not None and facts.st_size > largest:
        return f"is larger than {largest >> 20} MiB"
    return None


def closed_to_others(kit: Path) -> Check:
    """Whether other accounts of the machine could replace a kit's settings, scripts or certificates."""
    name = "startup and local folders"
    folders = [kit / "startup", kit / "local"]
    for path in (*folders, *(path for folder in folders for path in folder.iterdir())):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_mode & stat.S_IWOTH and not path.is_symlink():
                return Check(name, "every account of this machine can change them", f"run chmod -R o-w on {name}")
    return Check(name)


def nearest(path: Path) -> Path:
    """The path itself, or the first folder above it that exists."""
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def folder_check(path: Path, label: str, private: bool = True) -> Check:
    """Whether this process can write into a folder or make it; if `private`, also whether it is closed to others."""
    place = nearest(path)
    if not place.is_dir():
        return Check(label, "a file stands in its place", "remove the file, or name another folder")
    try:
        # Only a real write shows the file system's answer: `os.access` allows the superuser everything.
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")
    except OSError as error:
        remedy = "give the account that runs the party write access to it, or name another folder"
        return Check(label, f"it cannot be written ({error.strerror})", remedy)
    if private and open_to_others(path):
        return Check(label, "every account of this machine can look into it", "run chmod -R o-rwx on it")
    return Check(label)


def listable(folder: Path) -> bool:
    """Whether this process can list a folder; True if it does not exist yet."""
    try:
        with os.scandir(folder):
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


def open_to_others(folder: Path) -> bool:
    """Whether every account of the machine has any right to a folder; False if it does not exist."""
    return folder.exists() and bool(folder.stat().st_mode & stat.S_IRWXO)


def space(places: Iterable[Path]) -> Check:
    """Whether the disks of these folders have room. Other checks report folders that cannot be written."""
    free = []
    for place in places:
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(nearest(place))
            free += [usage.free] if usage.total else []
    if min(free, default=_SPACE) < _SPACE:
        problem = f"{min(free) >> 20} MiB are free"
        return Check("disk space", problem, "free at least 1 GiB: a party that cannot write stops")
    return Check("disk space")


def private_file(path: Path, label: str, remedy: str, length: int | None = None) -> Check:
    """Whether a key file exists, is readable by its owner only, and has `length` bytes where that is fixed."""
    if problem := irregularity(path, _LARGEST):
        return Check(label, f"it {problem}", remedy)
    if not path.exists():
        return Check(label, "it is missing", remedy)
    facts, damage = path.stat(), f"it is damaged: it does not hold {length} bytes"
    return first(
        label,
        (facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO), "other accounts may read it", "run chmod 600 on it"),
        (length not in (None, facts.st_size), damage, "restore it from the backup"),
    )


def file_times(kit: Path, more: Iterable[Path] = ()) -> Check:
    """Whether files have dates in the future: then the clock was ahead before, or is behind now."""
    latest = (datetime.now(UTC) + SKEW).timestamp()
    for path in (*(kit / "startup").iterdir(), *(kit / "local").iterdir(), *more):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime > latest:
                return Check("clock", "it is behind the times of files that this machine wrote", SET_CLOCK)
    return Check("clock")


def certificate_of(path: Path) -> x509.Certificate | None:
    """The certificate in a file; None if there is none."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None


def subject_of(path: Path, kind: x509.ObjectIdentifier = NameOID.COMMON_NAME) -> str | None:
    """The one value of a kind in a certificate file's subject; None if there is not exactly one."""
    certificate = certificate_of(path)
    try:
        values = certificate.subject.get_attributes_for_oid(kind) if certificate else []
    except ValueError:
        return None
    return str(values[0].value) if len(values) == 1 else None


def credentials(startup: Path, stem: str, party: object) -> Iterator[Check]:
    """The checks of the key `STEM.key` and of the certificate `STEM.crt`, which must name `party`."""
    yield private_file(startup / f"{stem}.key", KEY, _NEW_CERTIFICATE)
    name, subject = "certificate for FLARE", subject_of(startup / f"{stem}.crt")
    certificate, root = certificate_of(startup / f"{stem}.crt"), certificate_of(startup / ROOT)
    try:
        key: Any = load_pem_private_key((startup / f"{stem}.key").read_bytes(), None)
        paired = certificate is not None and key.public_key() == certificate.public_key()
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key, paired = None, False
    if certificate is None or root is None or key is None:
        yield Check(name, "certificate, key or root are missing or damaged", _NEW_CERTIFICATE)
        return
    now = datetime.now(UTC)
    begins = max(certificate.not_valid_before_utc, root.not_valid_before_utc)
    ends = min(certificate.not_valid_after_utc, root.not_valid_after_utc)
    check = first(
        name,
        (not _issued(certificate, root), "the root certificate did not sign it", _NEW_CERTIFICATE),
        (not paired, "it does not belong to the key beside it", _NEW_CERTIFICATE),
        (subject is None or subject != party, "it names another party than the kit's settings", _NEW_CERTIFICATE),
        (now < begins, "it is not valid yet", SET_CLOCK),
        (now + _LEFT > ends, f"it ends on {ends:%Y-%m-%d}", _NEW_CERTIFICATE),
    )
    soon = (now + WARNED > ends, f"it ends on {ends:%Y-%m-%d}", _NEW_CERTIFICATE)
    yield first(name, soon, warning=True) if check.problem is None else check


def _issued(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


@dataclass(frozen=True)
class Address:
    """The network address of a server, and the name in its certificate."""

    host: str
    port: int
    party: str

    @classmethod
    def parse(cls, target: Any, party: Any) -> "Address":
        """The address in a text `host:port`. Raises `ValueError`."""
        if not isinstance(target, str) or not isinstance(party, str):
            raise ValueError("an address and a name must be texts")
        host, _, port = target.rpartition(":")
        number = int(port)
        if not host or not 0 < number < 1 << 16:
            raise ValueError("an address must have a host and a port")
        return cls(host.strip("[]"), number, party)


def site_settings(kit: Path) -> dict[str, Any]:
    """The content of a site's `startup/fed_client.json`; empty if it cannot be read."""
    try:
        return read_json(kit / "startup" / "fed_client.json")
    except ConfigError:
        return {}


def address_in(settings: dict[str, Any]) -> Address | None:
    """The server's address in a site's settings; None if they lack it."""
    try:
        first = settings["servers"][0]
        return Address.parse(first["service"]["target"], first["identity"])
    except (LookupError, TypeError, ValueError):
        return None


class OtherParty(Exception):
    """The peer's certificate names another party."""


def server_checks(startup: Path, stem: str, address: Address | None) -> Iterator[Check]:
    """Whether the server answers this party, with key `STEM.key` and certificate `STEM.crt`, and has the same time."""
    remedy = "check that the network lets this machine reach the server's address in startup/, and that the server runs"
    if address is None:
        yield Check(SERVER, "the kit does not say where it is", "put back the file that provisioning wrote in startup/")
        return
    try:
        answer = ask(startup, stem, address)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
            problem = "its certificate is not valid at the time that this machine has"
            yield Check(SERVER, problem, f"{SET_CLOCK}; if it is right, the coordinator renews the certificate")
        else:
            yield Check(SERVER, "it shows no certificate of this federation", remedy)
    except OtherParty:
        yield Check(SERVER, "what answers there has another party's certificate", remedy)
    except (OSError, ValueError) as error:
        yield _by_proxy(address, error) or Check(
            SERVER, "it does not answer, or does not accept this party's certificate", remedy
        )
    else:
        yield Check(SERVER)
        yield _clock(answer)


def _by_proxy(address: Address, error: Exception) -> Check | None:
    """The check that fails because of a proxy; None if nothing points to one."""
    closed = isinstance(error, TimeoutError | ConnectionRefusedError | socket.gaierror)
    status = None if closed else proxies.status_at(address.host, address.port)
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        problem = "a proxy answers at its address, and asks for a login (407)"
    elif status is not None:
        problem = f"a proxy, or another program without TLS, answers at its address ({status})"
    elif proxies.in_environment(address.host):
        problem = "it does not answer past the proxy that this environment names"
    else:
        return None
    return Check(SERVER, problem, proxies.REMEDY)


def ask(startup: Path, stem: str, address: Address) -> bytes:
    """The head of the server's answer to a request that FLARE ignores.

    Raises `OtherParty`, `ssl.SSLError` or another `OSError`.
    """
    end = time.monotonic() + _PATIENCE
    context = ssl.create_default_context(cafile=str(startup / ROOT))
    context.load_cert_chain(startup / f"{stem}.crt", startup / f"{stem}.key")
    context.check_hostname = False  # FLARE's certificates name parties
    with (
        socket.create_connection((address.host, address.port), _PATIENCE) as plain,
        context.wrap_socket(plain) as connection,
    ):
        if _common_name(connection.getpeercert()) != address.party:
            raise OtherParty
        connection.sendall(b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < _ANSWER:
            connection.settimeout(max(0.001, end - time.monotonic()))
            block = connection.recv(4096)
            if not block:
                break
            answer += block
    if not answer:
        raise ConnectionResetError
    return answer


def _common_name(certificate: Any) -> str | None:
    subject = (certificate or {}).get("subject", ())
    return next((value for part in subject for kind, value in part if kind == "commonName"), None)


def _clock(answer: bytes) -> Check:
    dates = [line[5:] for line in answer.split(b"\r\n\r\n")[0].split(b"\r\n") if line[:5].lower() == b"date:"]
    try:
        date = parsedate_to_datetime(dates[0].decode("ascii").strip()).replace(tzinfo=UTC)
    except (LookupError, ValueError, TypeError):
        return Check(CLOCK, "the server's connection does not say what time it is", "compare the clocks yourself", True)
    difference = datetime.now(UTC) - date
    if abs(difference) > SKEW:
        minutes, way = abs(difference).total_seconds() / 60, "ahead of" if difference.days >= 0 else "behind"
        remedy = f"{SET_CLOCK}; if this machine's clock is right, tell the coordinator that the server's is not"
        return Check(CLOCK, f"it is {minutes:.0f} minutes {way} the server's", remedy)
    return Check(CLOCK)
