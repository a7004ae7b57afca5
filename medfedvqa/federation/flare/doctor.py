"""Checks the startup kit of a site, a server or an administrator, without starting anything."""

from pathlib import Path

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.doctor_admin import examine_admin
from medfedvqa.federation.flare.doctor_common import hardening_checks, unreadable_files
from medfedvqa.federation.flare.doctor_server import examine_server
from medfedvqa.federation.flare.doctor_site import examine_site
from medfedvqa.federation.flare.kit_contents import Check, record_digests

SITE, SERVER, ADMIN = "fed_client.json", "fed_server.json", "fed_admin.json"
"""The files in `startup/` that identify the kind of a kit."""


def kind_of(kit: Path) -> str:
    """One of `SITE`, `SERVER`, `ADMIN`. Raises `ConfigError` if the folder is no startup kit."""
    kinds = [kind for kind in (SITE, SERVER, ADMIN) if (kit / "startup" / kind).is_file()]
    if len(kinds) != 1 or not (kit / "local").is_dir():
        raise ConfigError(
            "this folder is not the startup kit of a site, a server or an administrator: point at the folder with "
            "startup/ and local/"
        )
    return kinds[0]


def examine(kit: Path, server: bool = False, running: bool = False) -> list[Check]:
    """All checks of a kit that work from outside.

    With `server`, they include whether the server answers and has the same time; with `running`, whether the party
    runs. Raises `ConfigError` if the folder is no startup kit, or for `running` with an administrator's kit.
    """
    try:
        return _examine(kit.resolve(), server, running)
    except PermissionError:
        raise ConfigError(
            "this account may not look into the kit: run the command by the account that runs the party"
        ) from None


def _examine(kit: Path, server: bool, running: bool) -> list[Check]:
    kind = kind_of(kit)
    if kind == ADMIN and running:
        raise ConfigError("an administrator's kit runs nothing: leave --running out")
    if unreadable := unreadable_files(kit):
        return unreadable
    if kind == SITE:
        return examine_site(kit, server, running)
    return examine_server(kit, server, running) if kind == SERVER else examine_admin(kit, server)


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
            "the hardening does not hold, and that cannot be accepted: `medfedvqa doctor` says what is off"
        )
    record_digests(kit / "local")
