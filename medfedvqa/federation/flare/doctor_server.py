"""`medfedvqa doctor` for a server checks its kit, its storage of jobs and results, and its port."""

import socket
from collections.abc import Iterator
from pathlib import Path

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.doctor_common import (
    KEY,
    Caution,
    closed_to_others,
    credentials,
    file_times,
    folder_check,
    hardening_checks,
    open_to_others,
    space,
    subject_of,
    untested_version,
)
from medfedvqa.federation.flare.doctor_contact import Address, OtherParty, ask, server_checks
from medfedvqa.federation.flare.kit_contents import Check, changed, read_json, resources

_AGAIN = "put back the file that provisioning wrote"
_SHARED = Path("/tmp")


def examine_server(kit: Path, server: bool, running: bool) -> list[Check]:
    """All checks of a server's kit that work from outside. `running` says that it should serve already."""
    startup = kit / "startup"
    party = subject_of(startup / "server.crt")
    address, places = _address(startup, party), _store(kit)
    # `credentials` checks the key more closely.
    checks = [check for check in hardening_checks(kit, "server") if check.name != KEY]
    checks += [
        *untested_version(),
        changed(kit),
        closed_to_others(kit),
        *credentials(startup, "server", party),
        file_times(kit),
    ]
    checks += [folder_check(kit, "folder of the kit", private=False), *_storage(places), space((kit, *(places or ())))]
    checks += server_checks(startup, "server", address) if server or running else [_port(startup, address)]
    return checks


def _address(startup: Path, party: str | None) -> Address | None:
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
        if check.ok and place.resolve().is_relative_to(_SHARED):
            remedy = (
                "name a folder of the server's own: `storage` of `SiteBuilder`, or `medfedvqa kit prepare --storage`"
            )
            check = Caution(label, f"it is under {_SHARED}, which a restart of the machine may empty", remedy)
        elif check.ok and open_to_others(place):
            check = Caution(label, "every account of this machine can look into it", "run chmod -R o-rwx on it")
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
            return Check(name, problem, "start the server by an account that may, or provision another port")
        except OSError:
            pass  # somebody listens
    try:
        ask(startup, "server", address)
    except (OSError, OtherParty, ValueError):
        return Check(name, f"another program listens on port {address.port}", "end it, or provision another port")
    return Check(name)
