"""Startup kits whose sites and server run this package's jobs and nothing else.

`SiteBuilder` goes into the `builders` of a FLARE project file, after `StaticFileBuilder`.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from nvflare.lighter.constants import CtxKey, ProvFileName
from nvflare.lighter.entity import Project
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Builder, ProvisionContext

from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.flare import kit_contents
from medfedvqa.federation.flare.run_folder import CONTROLLER, EXECUTOR
from medfedvqa.federation.site_config import load_site_config, site_yaml
from medfedvqa.plugins import write_list
from privacy.secagg import Identity

ADMIN = "admin@coordinator.org"
SERVER = "localhost"
"""A server of this name listens on the loopback interface only."""


class SiteBuilder(Builder):
    """Writes each site's `site.yml`, the hardening of sites and server, and narrows every kit to the project's jobs.

    The kits' `resources.json.default` are edited in place, as FLARE's own tools copy them over `resources.json`.
    """

    def __init__(self, sites: Mapping[str, Mapping[str, Any]] | None = None, storage: str | None = None) -> None:
        """`sites`: the values of `site.yml` by site name; a site that is not named gets a form, and refuses jobs until
        it is filled in. `storage`: absolute folder for the server's job store (FLARE's default is under /tmp).
        """
        super().__init__()
        self._sites, self._storage = sites or {}, storage

    def initialize(self, project: Project, ctx: ProvisionContext) -> None:
        """Close the folder of the project's state to other accounts. Raises `ConfigError` if the project has relays, or
        names that only capitals tell apart: people, and the disks of Windows and macOS, take them for one.

        FLARE (2.9) keeps the root key and every party's key there in `cert.json`, which all accounts may read.
        """
        if project.get_relays():
            raise ConfigError(
                "the project has relays, which are neither hardened nor logged: remove participants of type 'relay', "
                "so that every site connects to the server itself"
            )
        names = [party.name for party in project.get_all_participants()]
        folded = [name.casefold() for name in names]
        if alike := sorted(name for name in names if folded.count(name.casefold()) > 1):
            raise ConfigError(f"names of parties must differ in more than case: {', '.join(alike)}; rename all but one")
        close_state(Path(ctx.get_state_dir()))

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """See FLARE's `Builder`."""
        clients = project.get_clients()
        # A site without others in the project, as when a kit is prepared that somebody else made, makes its own key.
        identities = {client.name: _identity(client, ctx) for client in clients if len(clients) > 1}
        for client in project.get_clients():
            local = Path(ctx.get_local_dir(client))
            _harden(local, _narrow_site, kit_contents.GUARDED, kit_contents.guarded(client.name), kit_contents.FILES)
            peers = {name: key.fingerprint for name, key in identities.items() if name != client.name}
            site = _PLACES | {"provisioned_peers": peers} | dict(self._sites.get(client.name, _FORM))
            (local / "site.yml").write_text(site_yaml(**site), encoding="utf-8")
        for party in (*project.get_clients(), project.get_server()):
            _distrust_pids(Path(ctx.get_kit_dir(party)) / "sub_start.sh")
        provisioned = {site: yaml.safe_load(site_yaml(**facts))["policy"] for site, facts in self._sites.items()}
        for admin in project.get_admins():
            _write_json(Path(ctx.get_local_dir(admin)) / kit_contents.POLICIES, provisioned)
        server = Path(ctx.get_local_dir(project.get_server()))
        _harden(
            server,
            self._narrow_server,
            kit_contents.SERVER_GUARDED,
            kit_contents.SERVER_COMPONENTS,
            kit_contents.SERVER_FILES,
        )

    def _narrow_server(self, resources: dict[str, Any]) -> None:
        _narrow(resources, CONTROLLER, kit_contents.SERVER_LAUNCHER)
        if self._storage is not None:
            resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{self._storage}/snapshots"
            _component(resources, "job_manager")["args"]["uri_root"] = f"{self._storage}/jobs"


_SUPERVISION = """\
# Logs, jobs and results are for this account alone.
umask 077

# After a hard reboot the kit's pid files may name processes of others. They count only if they name this kit's.
for file in daemon_pid.fl pid.fl; do
  tr '\\0' '\\n' 2> /dev/null < "/proc/$(cat "$WORKSPACE/$file" 2> /dev/null)/cmdline" |
    grep -qxF -e "$WORKSPACE" -e "$DIR/sub_start.sh" || rm -f "$WORKSPACE/$file"
done
[[ -f "$WORKSPACE/daemon_pid.fl" ]] || rm -f "$WORKSPACE/shutdown.fl" "$WORKSPACE/restart.fl"

"""
"""The first lines of a kit's `sub_start.sh`. Without them, FLARE (2.9) does nothing while any process has the
supervisor's old pid, and its supervisor waits for any process that has the party's old pid."""

_PLACES = {
    "state": "../state",
    "audit": "../audit",
    "ledger": "../ledger",
    "identity": "../identity.key",
    "audit_key": "../audit.key",
}
_FORM: Mapping[str, Any] = {"reader": None, "organ": None, "methods": []}


def _identity(client: Any, ctx: ProvisionContext) -> Identity:
    """A site's key for secure aggregation, copied into its kit.

    The project's state keeps it, as it keeps certificates, so kits that are made again get the same key.
    """
    kept = Path(ctx.get_state_dir()) / f"identity-{client.name}.key"
    if not kept.exists():
        Identity.create(kept)
    shutil.copy2(kept, Path(ctx.get_ws_dir(client)) / "identity.key")
    return Identity.load(kept)


def _distrust_pids(script: Path) -> None:
    """Make a start script trust a pid file only if it names a process of its own kit."""
    before, marker, after = script.read_text(encoding="utf-8").partition("check_daemon() {")
    if not marker:
        raise FederationError(f"'{script.name}' is not as FLARE 2.9 makes it: install a version that was tested")
    script.write_text(before + _SUPERVISION + marker + after, encoding="utf-8")


def _harden(
    local: Path,
    narrow: Callable[[dict[str, Any]], None],
    guarded: str,
    guard: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Any]],
) -> None:
    _edit(local / ProvFileName.RESOURCES_JSON_DEFAULT, narrow)
    for name, content in {guarded: guard, **files}.items():
        _write_json(local / name, content)
    kit_contents.record_digests(local)


def _narrow_site(resources: dict[str, Any]) -> None:
    _narrow(resources, EXECUTOR, kit_contents.LAUNCHER)


def _narrow(resources: dict[str, Any], allowed: str, launcher: str) -> None:
    resources["class_allow_list"] = [allowed]
    resources["allow_log_streaming"] = False
    resources["app_validator"] = {"path": kit_contents.VALIDATOR, "args": {}}
    _component(resources, "process_launcher")["path"] = launcher
    resources["components"] = [part for part in resources["components"] if part["id"] not in kit_contents.LOG_STREAMING]


def _component(resources: dict[str, Any], name: str) -> dict[str, Any]:
    return next(part for part in resources["components"] if part["id"] == name)


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    resources = json.loads(path.read_text(encoding="utf-8"))
    change(resources)
    _write_json(path, resources)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def loopback_project(sites: Sequence[str], port: int) -> dict[str, Any]:
    """A FLARE project file for sites, server and one admin on this machine, without its builders."""
    return {
        "api_version": 3,
        "name": "medfedvqa",
        "description": "a federation on this machine",
        "participants": [
            {"name": SERVER, "type": "server", "org": "coordinator", "fed_learn_port": port},
            # FLARE's organisations have no hyphens in their names.
            *({"name": name, "type": "client", "org": name.replace("-", "_")} for name in sites),
            {"name": ADMIN, "type": "admin", "org": "coordinator", "role": "project_admin"},
        ],
        "builders": [
            {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"},
            {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }


def provision(project: Mapping[str, Any], builders: Sequence[Builder], folder: Path) -> Path:
    """Make the startup kits of a FLARE project file in `folder`; returns the folder with one kit each.

    `builders` run after the project's own. Raises `FederationError`, also if two parties have one name.
    """
    project = dict(project)
    names = [party["name"] for party in project["participants"]]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FederationError(f"the project has two parties with one name ({', '.join(twice)}): give each its own")
    provisioner = Provisioner(str(folder), [*prepare_builders(project), *builders])
    context = provisioner.provision(prepare_project(project), logger=logging.getLogger(__name__))
    if context.get(CtxKey.BUILD_ERROR):
        raise FederationError(f"the startup kits could not be made: {'; '.join(context.get_errors())}")
    close_state(Path(context.get_state_dir()))
    return Path(context.get_result_location())


def close_state(folder: Path) -> None:
    """Restrict a project's state folder, and the files in it, to their owner."""
    folder.chmod(0o700)
    for path in folder.iterdir():
        path.chmod(0o600)


def prepare_simulation(workspace: Path, sites: Mapping[str, Path]) -> None:
    """Write what FLARE's simulator copies to every party: which classes may run, and each site's `site.yml`.

    Raises `ConfigError` if a site holds state already: all jobs of the simulator have one name, and would find it.
    """
    for name, path in sites.items():
        state = load_site_config(path, name).state
        if state.is_dir() and any(state.iterdir()):
            raise ConfigError(f"site '{name}' keeps the state of another run: name an empty folder in its site.yml")
    folder = workspace / "local" / "sites"
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder.parent / "resources.json", {"format_version": 2, "class_allow_list": [CONTROLLER, EXECUTOR]})
    write_list(folder.parent)
    for name, path in sites.items():
        shutil.copy(path, folder / f"{name}.yml")
