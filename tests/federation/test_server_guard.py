"""A server's kit and processes: what keeps jobs from configuring the server, and what says so when it does not hold.

Also what is looked at in an administrator's kit.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import doctored
import pytest
from doctored import edited
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.security.security import COMMAND_CATEGORIES, FLAuthorizer

from medfedvqa.federation.flare import pinned_settings, server_guard
from medfedvqa.federation.flare.kit_contents import SERVER_FILES, changed, kit_checks, kit_problem
from medfedvqa.federation.flare.kits import prepare_kit
from medfedvqa.federation.flare.provision import ADMIN, SERVER, loopback_project, provision

JOB_ID = "9a0427e4-902a-42e3-b4ac-9c705cce5caa"


def test_the_guard_takes_rights_from_every_role_and_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By FLARE's own decision on the rights in a kit: nobody sets log levels, which an administrator could before, all
    may ask for the version, which nobody could, and no other command changes."""

    def granted() -> set[tuple[str, str]]:
        admins = [Person("name", "coordinator", role) for role in SERVER_FILES["authorization.json"]["permissions"]]
        asked = [(admin, right) for admin in admins for right in {*COMMAND_CATEGORIES, "report_version", "get_job_log"}]
        decided = (AuthorizationService.authorize(AuthzContext(right, admin, admin)) for admin, right in asked)
        return {(admin.role, right) for (admin, right), (held, _) in zip(asked, decided, strict=True) if held}

    roles = SERVER_FILES["authorization.json"]["permissions"]
    authorizer = FLAuthorizer("coordinator", dict(SERVER_FILES["authorization.json"]))
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer)
    before = granted()
    assert ("project_admin", "configure_site_log") in before and ("project_admin", "configure_job_log") in before
    assert pinned_settings.pin_rights(pinned_settings.SERVER_RIGHTS)
    levels = {(role, f"configure_{which}_log") for role in roles for which in ("site", "job")}
    assert granted() == (before - levels) | {(role, "report_version") for role in roles}
    monkeypatch.setattr(AuthorizationService, "the_authorizer", None)
    assert not pinned_settings.pin_rights(pinned_settings.SERVER_RIGHTS)


@pytest.fixture
def kit(site_kits: Path, tmp_path: Path) -> Path:
    """A server's kit."""
    return Path(shutil.copytree(site_kits / SERVER, tmp_path / SERVER))


@pytest.fixture
def admin(site_kits: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(site_kits / ADMIN, tmp_path / ADMIN))


BREAKS = doctored.BREAKS | {
    "classes": (edited("resources.json.default", class_allow_list=["medfedvqa."]), "class allow-list"),
    "guard": (lambda kit: (kit / "local" / "guard__resources.json").unlink(), "guard"),
    "key": (lambda kit: (kit / "startup" / "server.key").chmod(0o640), "key for FLARE"),
}
ADMIN_BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "readable": (lambda kit: (kit / "startup" / "client.key").chmod(0o644), "key for FLARE"),
    "missing": (lambda kit: (kit / "startup" / "client.key").unlink(), "key for FLARE"),
    "root": (lambda kit: (kit / "startup" / "rootCA.key").write_text("key"), "no key of others"),
    "clear": (
        lambda kit: (kit / "startup" / "fed_admin.json").write_text('{"admin": {"connection_security": "clear"}}'),
        "mutual TLS",
    ),
}


def test_fresh_kits_of_server_and_administrator_are_fit(kit: Path, admin: Path) -> None:
    """Nothing is left to do by hand, and nothing differs from what provisioning wrote."""
    assert kit_problem(kit, "server") is None and changed(kit).ok
    assert all(check.ok for check in (*kit_checks(kit, "server"), *kit_checks(admin, "admin")))


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_in_a_servers_kit_is_named_with_a_remedy(kit: Path, name: str) -> None:
    """One failing line each, and the server would not start."""
    change, line = BREAKS[name]
    change(kit)
    failed = [check for check in kit_checks(kit, "server") if not check.ok]
    assert [check.name.startswith(line) for check in failed] == [True] and failed[0].remedy
    assert (kit_problem(kit, "server") or "").startswith(failed[0].name)


@pytest.mark.parametrize("name", ADMIN_BREAKS)
def test_what_others_could_misuse_in_an_administrators_kit_is_named(admin: Path, name: str) -> None:
    """Its key, keys that do not belong there, and a connection without certificates."""
    change, line = ADMIN_BREAKS[name]
    change(admin)
    assert [check.name for check in kit_checks(admin, "admin") if not check.ok] == [line]


def test_a_servers_file_that_changed_since_provisioning_is_named(kit: Path) -> None:
    """A change that opens nothing, such as the number of jobs at a time."""
    path = kit / "local" / "resources.json.default"
    path.write_text(path.read_text().replace('"max_jobs": 4', '"max_jobs": 2'))
    assert kit_problem(kit, "server") is None and "resources.json.default" in str(changed(kit).problem)


def test_a_servers_kit_that_others_made_is_hardened_afterwards(tmp_path: Path) -> None:
    """`medfedvqa kit` writes what provisioning with our builder would have written."""
    plain = provision(loopback_project(["chest"], 8002), [], tmp_path) / SERVER
    assert kit_problem(plain, "server") is not None
    assert Path("local/guard__resources.json") in prepare_kit(plain)
    assert kit_problem(plain, "server") is None and changed(plain).ok


def test_nobody_runs_commands_or_brings_code_at_a_server() -> None:
    """Whatever the role; all other rights are as FLARE provisions them."""
    permissions = SERVER_FILES["authorization.json"]["permissions"]
    for role in ("project_admin", "org_admin", "lead"):
        assert permissions[role]["shell_commands"] == permissions[role]["byoc"] == "none"
    assert permissions["lead"]["manage_job"] == "n:submitter" and permissions["org_admin"]["submit_job"] == "none"


def start(kit: Path, module: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"nvflare.private.fed.app.server.{module}", "-m", str(kit)]
    command += ["-s", "fed_server.json", *more, "--set", "secure_train=true", "org=coordinator", "config_folder=config"]
    return subprocess.run(command, capture_output=True, text=True, cwd=kit, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "guard", "validator"])
def test_a_servers_process_ends_with_one_sentence_if_its_kit_is_not_hardened(kit: Path, name: str) -> None:
    """Before it takes jobs; also if what would look is what is missing."""
    change, line = BREAKS[name]
    change(kit)
    ended = start(kit, "server_train")
    (sentence,) = [text for text in ended.stderr.splitlines() if "does not start" in text]
    assert ended.returncode == 1 and line in sentence


@pytest.mark.slow
def test_a_job_process_of_a_server_that_is_not_hardened_ends_with_one_sentence(kit: Path) -> None:
    """Each process looks for itself."""
    edited("comm_config.json", allow_adhoc_conns=True)(kit)
    (kit / JOB_ID / "app_server" / "config").mkdir(parents=True)
    (kit / JOB_ID / "meta.json").write_text("{}")
    job = ["-r", str(kit / JOB_ID / "app_server"), "-n", JOB_ID, "-ts", "none", "-u", "http://localhost:8002"]
    job += ["-host", "localhost", "-port", "8002", "-id", "none", "-p", "tcp://localhost:1"]
    ended = start(kit, "runner_process", *job)
    (sentence,) = [text for text in ended.stderr.splitlines() if "does not start" in text]
    assert ended.returncode == 1 and "transport" in sentence


SETTINGS = """
import argparse, json, sys
from medfedvqa.federation.flare import pinned_settings
from medfedvqa.federation.flare.server_guard import ServerGuard
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.private.fed.app.fl_conf import FLServerStarterConfiger
from nvflare.apis.workspace import Workspace

kit = sys.argv[2]
args = argparse.Namespace(workspace=kit, job_id=sys.argv[4], config_folder="config")
FLServerStarterConfiger(Workspace(kit, "server"), args, ["secure_train=true"]).configure()
ConfigService.initialize({}, [f"{kit}/{sys.argv[4]}/app_server"], args, {})  # as for a job's own configuration
print(json.dumps({
    "adhoc": CommConfigurator().allow_adhoc_connections(False),
    "logs": ConfigService.get_bool_var("allow_log_streaming", "resources_config", True),
    "module": ConfigService.get_str_var("decomposer_module", "resources_config", "none"),
    "found": ConfigService.find_file("planted.json"),
    "missing": pinned_settings.not_pinned(__import__("pathlib").Path(kit)),
}))
"""


def test_no_file_of_a_job_configures_a_process_of_the_server(kit: Path) -> None:
    """FLARE looks for settings in the whole workspace; a guarded process finds those of the kit only."""
    for folder in (kit / "0", kit / JOB_ID / "app_server", kit / JOB_ID / "app_server" / "config"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comm_config.json").write_text(json.dumps({"allow_adhoc_conns": True}))
        (folder / "resources.json").write_text(
            json.dumps({"allow_log_streaming": True, "decomposer_module": "planted"})
        )
        (folder / "planted.json").write_text("{}")
    command = [sys.executable, "-c", SETTINGS, "-m", str(kit), "-n", JOB_ID]
    done = subprocess.run(command, capture_output=True, text=True, cwd=kit, timeout=300, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"adhoc": False, "logs": False, "module": "none", "found": None, "missing": []}


def test_a_job_that_was_refused_after_it_was_deployed_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when sites refuse it, or it is not signed; the error is the one that FLARE raised."""
    run = tmp_path / JOB_ID

    def deploy(runner: JobRunner, job: SimpleNamespace, sites: dict[str, Any], fl_ctx: object) -> str:
        (run / "app_server" / "config").mkdir(parents=True)
        if sites:
            raise RuntimeError("deploy failure")
        return "deployed"

    (tmp_path / "startup").mkdir(), (tmp_path / "local").mkdir()
    monkeypatch.setattr(JobRunner, "_deploy_job", deploy)
    server_guard._leave_nothing_of_refused_jobs()
    runner, job = SimpleNamespace(workspace_root=str(tmp_path)), SimpleNamespace(job_id=JOB_ID)
    with pytest.raises(RuntimeError, match="deploy failure"):
        JobRunner._deploy_job(runner, job, {"chest": None}, None)
    assert not run.exists()
    assert JobRunner._deploy_job(runner, job, {}, None) == "deployed" and run.exists()
