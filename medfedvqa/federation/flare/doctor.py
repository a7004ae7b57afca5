"""Looks a startup kit over, a site's, a server's or an administrator's, without starting anything."""

from pathlib import Path

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.checks import Check, record_digests
from medfedvqa.federation.flare.doctor_admin import examine_admin
from medfedvqa.federation.flare.doctor_common import unreadable_files
from medfedvqa.federation.flare.doctor_server import examine_server
from medfedvqa.federation.flare.doctor_site import examine_site, hardening_checks

SITE, SERVER, ADMIN = "fed_client.json", "fed_server.json", "fed_admin.json"
"""The file in `startup/` by which a kit's kind is recognised."""


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
    """Everything about a kit that can be seen from outside.

    With `server`, also whether the server answers and has the same time; with `running`, whether the party runs.
    Raises `ConfigError` if the folder is no startup kit, or `running` is asked of an administrator's.
    """
    kit = kit.resolve()
    kind = kind_of(kit)
    if kind == ADMIN and running:
        raise ConfigError("an administrator's kit runs nothing: leave --running out")
    if unreadable := unreadable_files(kit):
        return unreadable
    if kind == SITE:
        return examine_site(kit, server, running)
    return examine_server(kit, server, running) if kind == SERVER else examine_admin(kit, server)


def accept_changes(kit: Path) -> None:
    """Remember a site's files as they are now. Raises `ConfigError` if the hardening does not hold."""
    kit = kit.resolve()
    if kind_of(kit) != SITE:
        raise ConfigError("only a site's kit has files to accept: leave --accept out")
    if unreadable_files(kit) or not all(check.ok for check in hardening_checks(kit)):
        raise ConfigError(
            "the hardening does not hold, and that cannot be accepted: `medfedvqa doctor` says what is off"
        )
    record_digests(kit / "local")
