"""Checks that `medfedvqa doctor` makes of every kind of startup kit: files, folders, keys, certificates and disk."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.kit_contents import Check, Party, kit_checks

SKEW = timedelta(minutes=5)
"""The largest difference of two clocks."""

ROOT = "rootCA.pem"
KEY = "key for FLARE"
NEW_KIT = "ask the coordinator for a new startup kit"
SET_CLOCK = "set the clock, best by NTP"

_SPACE = 1 << 30  # bytes
_LEFT, WARNED = timedelta(days=30), timedelta(days=60)
"""A certificate that ends sooner fails the kit, or is a caution."""
_NEW_CERTIFICATE = "ask the coordinator for a new certificate"
_LARGEST = 1 << 20
"""The most bytes of a settings, key or certificate file of a kit."""
_READ = (".json", ".default", ".yml", ".crt", ".pem", ".key")
"""Endings of the files that this command and the party's processes read completely."""


@dataclass(frozen=True)
class Caution(Check):
    """A problem that people should know of, and that keeps no party from joining."""

    @property
    def ok(self) -> bool:
        """Always: a caution fails no kit."""
        return True


@dataclass(frozen=True)
class KitFact(Check):
    """A fact about a kit that people look up; it is no problem."""

    value: str = ""


def hardening_checks(kit: Path, party: Party) -> list[Check]:
    """The checks of a party's kit, or a single failed one if a file does not have its form."""
    try:
        return kit_checks(kit, party)
    except (AttributeError, TypeError, ValueError):
        return [Check("hardening", "a file of the kit does not have the form that provisioning gave it", NEW_KIT)]


def untested_version() -> list[Check]:
    """A caution if this release's server was not tested with the installed FLARE."""
    if patches.is_tested():
        return []
    problem = "it is newer than this release's tests, which know all the code of it that is reached into"
    return [Caution("FLARE's version", problem, "update medfedvqa once a release names this version as tested")]


def unreadable_files(kit: Path) -> list[Check]:
    """The kit's files that must not be read, because they are no regular files or larger than any settings.

    The search comes before any reading, since a link to a device never ends.
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
        return "is no regular file"
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
    facts = path.stat()
    if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return Check(label, "other accounts may read it", "run chmod 600 on it")
    if length is not None and facts.st_size != length:
        return Check(label, f"it is damaged: it does not hold {length} bytes", "restore it from the backup")
    return Check(label)


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
    """The value of a kind in the subject of a certificate's file; None if there is not exactly one."""
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
    ends = min(certificate.not_valid_after_utc, root.not_valid_after_utc)
    if not _issued(certificate, root):
        yield Check(name, "the root certificate did not sign it", _NEW_CERTIFICATE)
    elif not paired:
        yield Check(name, "it does not belong to the key beside it", _NEW_CERTIFICATE)
    elif subject is None or subject != party:
        yield Check(name, "it names another party than the kit's settings", _NEW_CERTIFICATE)
    elif now < max(certificate.not_valid_before_utc, root.not_valid_before_utc):
        yield Check(name, "it is not valid yet", SET_CLOCK)
    elif now + _LEFT > ends:
        yield Check(name, f"it ends on {ends:%Y-%m-%d}", _NEW_CERTIFICATE)
    elif now + WARNED > ends:
        yield Caution(name, f"it ends on {ends:%Y-%m-%d}", _NEW_CERTIFICATE)
    else:
        yield Check(name)


def _issued(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True
