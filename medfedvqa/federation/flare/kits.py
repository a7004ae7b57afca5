"""Prepares startup kits that were provisioned without `SiteBuilder`, and exports a federation's root certificate.

FLARE's dashboard cannot run a project's builders. The recipient of a kit can make `SiteBuilder`'s changes afterwards:
they are all in the kit's folder and touch neither keys nor certificates.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from cryptography import x509
from cryptography.x509.oid import NameOID
from nvflare.tool.cert.fingerprint import cert_fingerprint_sha256

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.provision import SiteBuilder, close_state, provision

_SITE_FILE = Path("local") / "site.yml"
_OWN_RESOURCES = Path("local") / "resources.json"
_CERTIFICATES = {"client": Path("startup") / "client.crt", "server": Path("startup") / "server.crt"}
_ELSEWHERE = "an-other-party"


def prepare_kit(kit: Path, storage: str | None = None) -> list[Path]:
    """Apply `SiteBuilder`'s changes to a site's or server's kit; returns the files written, relative to the kit.

    `storage`: for a server only, see `SiteBuilder`. A site gets a form of `site.yml` unless it has one. Files that are
    prepared already stay as they are. Raises `ConfigError` if the folder is not such a kit, or its files differ from
    those that this version of FLARE makes.
    """
    kind = _kind_of(kit)
    if (kit / _OWN_RESOURCES).exists():
        raise ConfigError(f"the kit has a file '{_OWN_RESOURCES}', which overrides the prepared one: remove it")
    name, org = _owner(kit / _CERTIFICATES[kind])
    project = partial(_project, kind, name, org, _config_folder(kit))  # FLARE takes a project's dictionary apart
    with TemporaryDirectory() as scratch:
        bare = provision(project(), [], Path(scratch) / "bare") / name
        prepared = provision(project(), [SiteBuilder(storage=storage)], Path(scratch) / "made") / name
        changed = list(_changed(kit, bare, prepared))
        for path in changed:
            shutil.copy(prepared / path, kit / path)
    return changed


def party_of(kit: Path) -> Literal["site", "server"]:
    """The kind of party that a startup kit is for. Raises `ConfigError` if it is not a kit of a site or a server."""
    return "server" if _kind_of(kit) == "server" else "site"


def _kind_of(kit: Path) -> str:
    """FLARE's word for the party."""
    kind = next((kind for kind, path in _CERTIFICATES.items() if (kit / path).is_file()), None)
    if kind is None or (kit / "startup" / "fed_admin.json").exists():
        raise ConfigError("this folder is not the startup kit of a site or a server")
    return kind


def _owner(path: Path) -> tuple[str, str]:
    """Name and organisation in a kit's certificate. Raises `ConfigError`."""
    try:
        subject = x509.load_pem_x509_certificate(path.read_bytes()).subject
        [name] = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        [org] = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    except ValueError:
        raise ConfigError(f"the kit's '{path.name}' is not a certificate of a party: get a fresh kit") from None
    return str(name.value), str(org.value)


def _config_folder(kit: Path) -> str:
    """The settings folder that the start script names, or `config`, since `nvflare package` names none."""
    script = _content(kit / "startup" / "sub_start.sh") or b""
    named = re.search(rb"config_folder=(\w*)", script)
    return named[1].decode() if named else "config"


def _project(kind: str, name: str, org: str, config_folder: str) -> dict[str, Any]:
    """A FLARE project with this party in it, whose kits get neither keys nor certificates."""
    party = {"name": name, "type": kind, "org": org}
    server = {"name": _ELSEWHERE, "type": "server", "org": "org"}
    static = {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": config_folder}}
    return {
        "api_version": 3,
        "name": "kit",
        "participants": [party] if kind == "server" else [server, party],
        "builders": [{"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"}, static],
    }


def _changed(kit: Path, bare: Path, prepared: Path) -> Iterator[Path]:
    """The files that the builder adds or edits, without those that the kit has already. Raises `ConfigError`."""
    for path in sorted(path.relative_to(prepared) for path in prepared.rglob("*") if path.is_file()):
        before, after = _content(bare / path), _content(prepared / path)
        current = _content(kit / path)
        if before == after or current == after or (path == _SITE_FILE and current is not None):
            continue
        if current != before:
            raise ConfigError(
                f"the kit's file '{path}' is not as this version of FLARE makes it: get a fresh kit, or use the "
                "version that made this one"
            )
        yield path


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def root_folder(project: Path, out: Path) -> str:
    """Write the root certificate and its key, as `nvflare cert approve` takes them, into the new folder `out`.

    `project`: the folder of a project that `nvflare provision` made. Returns the certificate's fingerprint. Raises
    `ConfigError` if there is no such project, or `out` exists.
    """
    if out.exists():
        raise ConfigError(f"'{out}' exists already: choose another folder, or remove it")
    try:
        state = json.loads((project / "state" / "cert.json").read_text(encoding="utf-8"))
        pem, key = str(state["root_cert"]).encode(), str(state["root_pri_key"]).encode()
        newest = max(path.name for path in project.glob("prod_*"))
    except (OSError, ValueError, KeyError):
        raise ConfigError(
            "this folder has no project of `nvflare provision`: name the folder with its `state`"
        ) from None
    close_state(project / "state")
    fingerprint = cert_fingerprint_sha256(x509.load_pem_x509_certificate(pem))
    facts = {
        "project": project.resolve().name,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "provision_version": newest.removeprefix("prod_"),
        "rootCA_fingerprint": fingerprint,
    }
    out.mkdir(mode=0o700, parents=True)
    for name, content in (("rootCA.pem", pem), ("rootCA.key", key), ("ca.json", json.dumps(facts, indent=2).encode())):
        with open(out / name, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(content)
    return str(fingerprint)
