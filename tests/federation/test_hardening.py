"""A site's kit and couriers: what they do for a server, and what says so when a kit is not as it was provisioned."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import doctored
import pytest
from doctored import SITE, edited, problems
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.fuel.f3.message import Message
from nvflare.fuel.sec.audit import AuditService
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.private import admin_defs
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.security.security import EmptyAuthorizer, FLAuthorizer
from typer.testing import CliRunner

from audits import Refusal
from medfedvqa.cli import app
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare import hardening
from medfedvqa.federation.flare.kit_contents import FILES, kit_problem
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.flare.validator import ConfigurationOnly
from medfedvqa.federation.job import JobSpec


@pytest.fixture
def kit(site_kits: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(site_kits / SITE, tmp_path / SITE))


def shadowed(kit: Path) -> None:
    """A file that FLARE takes instead of the provisioned one."""
    (kit / "local" / "resources.json").write_text(json.dumps({"format_version": 2, "components": []}))


def without_sockets(kit: Path) -> None:
    """A transport whose connections a library opens that the site cannot watch."""
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"scheme": "http"', '"scheme": "grpc"'))


BREAKS = doctored.BREAKS | {
    "classes": (edited("resources.json.default", class_allow_list=["*"]), "class allow-list"),
    "shadowed": (shadowed, "class allow-list"),
    "guard": (lambda kit: (kit / "local" / "egress__resources.json").unlink(), "guard"),
    "scopes": (edited("privacy.json", scopes=FILES["privacy.json"]["scopes"] * 2), "one privacy scope"),
    "grpc": (without_sockets, "server's address"),
}


def test_a_fresh_kit_is_fit_to_join(kit: Path) -> None:
    """Nothing to do for the hospital but its own site.yml."""
    assert kit_problem(kit, "site") is None
    assert problems(kit) == {}


@pytest.mark.parametrize("name", BREAKS)
def test_the_doctor_and_the_site_itself_see_what_is_broken_and_say_what_to_do(kit: Path, name: str) -> None:
    """One failing line each, and the site would not start."""
    change, line = BREAKS[name]
    change(kit)
    reason = kit_problem(kit, "site")
    assert reason is not None and line in reason
    assert any(name.startswith(line) for name in problems(kit))
    assert CliRunner().invoke(app, ["doctor", str(kit), "--accept"]).exit_code == 1


def test_a_file_that_changed_since_provisioning_is_named_until_it_is_accepted(kit: Path) -> None:
    """A change that opens nothing, such as graphics cards."""
    path = kit / "local" / "resources.json.default"
    path.write_text(path.read_text().replace('"num_of_gpus": 0', '"num_of_gpus": 1'))
    assert kit_problem(kit, "site") is None
    (problem,) = problems(kit).values()
    assert "resources.json.default" in problem and problems(kit, "--accept") == {}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda kit: (kit / "local" / "site.yml").write_text("policy: {}"), "site.yml"),
        (lambda kit: (kit / "startup" / "client.key").chmod(0o644), "key for FLARE"),
        (lambda kit: (kit / "startup" / "client.crt").write_text("none"), "certificate for FLARE"),
        (lambda kit: (kit / "audit").mkdir(mode=0o755), "folder of audit"),
    ],
    ids=["site.yml", "key", "certificate", "folder"],
)
def test_the_doctor_sees_what_the_hospital_has_to_put_right(
    kit: Path, change: Callable[[Path], object], line: str
) -> None:
    """Its own file, its keys, its folders."""
    change(kit)
    (kit / "audit").exists() and (kit / "audit").chmod(0o755)
    assert line in problems(kit)


def test_the_doctor_sees_that_a_server_does_not_answer(kit: Path) -> None:
    """Only when asked to look."""
    assert list(problems(kit, "--server")) == ["server"]


def test_the_doctor_looks_at_kits_only(tmp_path: Path) -> None:
    """Any other folder is an error."""
    result = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "guard", "grpc"])
def test_a_sites_process_ends_with_one_sentence_if_its_kit_is_not_hardened(kit: Path, name: str) -> None:
    """Before it talks to anybody; also if what would look is what is missing."""
    change, line = BREAKS[name]
    change(kit)
    module = "nvflare.private.fed.app.client.client_train"
    command = [sys.executable, "-m", module, "-m", str(kit), "-s", "fed_client.json"]
    command += ["--set", "secure_train=true", f"uid={SITE}", "org=chest", "config_folder=config"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=kit, timeout=300)
    (said,) = [text for text in ended.stderr.splitlines() if "does not join" in text]
    assert ended.returncode == 1 and line in said
    assert not (kit / "audit").exists() or name == "guard"


@pytest.fixture(autouse=True)
def flares_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test changes in FLARE's classes is put back."""
    own = [*ClientRequestProcessors.request_processors]
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", own)
    monkeypatch.setattr(AuthorizationService, "the_authorizer", None)


class Engine:
    """As much of a client as an administrative request meets."""

    def __init__(self) -> None:
        self._contexts = FLContextManager(self, SITE, "", {}, {})

    def new_context(self) -> FLContext:
        return self._contexts.new_context()

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Nobody listens."""


POLICIES: dict[str, dict[str, Any] | None] = {
    "ours": dict(FILES["authorization.json"]),
    "any": {"format_version": "1.0", "permissions": {"project_admin": "any", "member": "any"}},
    "shell": {"format_version": "1.0", "permissions": {"project_admin": {"shell_commands": "any"}}},
    "none": {"format_version": "1.0", "permissions": {"project_admin": "none", "member": "none"}},
    "no policy": None,
}


@pytest.mark.parametrize("role", ["project_admin", "member", ""])
@pytest.mark.parametrize("flag", ["true", "false", None])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_to_read_a_file_is_refused_whatever_the_sites_rights_say(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, policy: str, flag: str | None, role: str
) -> None:
    """FLARE alone answers some of them: it asks its rights only if the request wishes so."""
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    if AuditService.get_auditor() is None:  # FLARE has one in a process
        AuditService.initialize(str(tmp_path_factory.mktemp("flare") / "audit.log"))
    config = POLICIES[policy]
    AuthorizationService.initialize(FLAuthorizer("chest", config) if config else EmptyAuthorizer())
    asked = admin_defs.Message("sys.shell", f"cat {secret}")
    asked.set_headers({RequestHeader.ADMIN_COMMAND: "shell_commands", RequestHeader.USER_ROLE: role})
    asked.set_headers({RequestHeader.USER_NAME: "a", RequestHeader.USER_ORG: "o"})
    if flag is not None:
        asked.set_header(RequestHeader.REQUIRE_AUTHZ, flag)
    if flag != "true":
        assert told(asked) == "SECRET"
    hardening._answer_only_what_is_listed()
    assert "SECRET" not in told(asked)


def told(asked: admin_defs.Message) -> str:
    """What a client's administration answers, with the processors that it has now."""
    agent = FedAdminAgent(SITE, Cell(), Engine())
    for processor in ClientRequestProcessors.request_processors:
        agent.register_processor(processor)
    return str(agent._dispatch_request(Message({}, asked)).payload.body)


class Cell:
    """As much of a cell as an administration registers with."""

    def register_request_cb(self, **_: Any) -> None:
        """Requests are handed over by the test."""


@pytest.mark.parametrize("job", ["local", "startup", "../chest", "", "9A0427E4-902A-42E3-B4AC-9C705CCE5CAA", 7])
def test_a_jobs_id_must_be_an_id(job: object) -> None:
    """It becomes a folder's name in the kit, which is emptied first."""
    deployed = list[str]()

    class Deploy(RequestProcessor):
        def get_topics(self) -> list[str]:
            return ["train.deploy"]

        def process(self, req: admin_defs.Message, app_ctx: object) -> admin_defs.Message:
            deployed.append(req.get_header(RequestHeader.JOB_ID))
            return admin_defs.ok_reply()

    ClientRequestProcessors.request_processors[:] = [Deploy()]
    hardening._answer_only_what_is_listed()
    (processor,) = ClientRequestProcessors.request_processors
    asked = admin_defs.Message("train.deploy", b"")
    asked.set_header(RequestHeader.JOB_ID, job)
    assert processor.process(asked, None).body == "this site does not answer that" and not deployed
    asked.set_header(RequestHeader.JOB_ID, "9a0427e4-902a-42e3-b4ac-9c705cce5caa")
    processor.process(asked, None)
    assert deployed == ["9a0427e4-902a-42e3-b4ac-9c705cce5caa"]


def test_a_site_takes_the_jobs_that_this_project_exports(tmp_path: Path) -> None:
    """And none with as much as a file more."""
    export_job(JobSpec(method="prompt_pfl"), tmp_path / "job")
    folder = tmp_path / "job" / "app"
    assert ConfigurationOnly().validate(str(folder)) == ("", {})
    (folder / "config" / "resources.json").write_text("{}")
    assert ConfigurationOnly().validate(str(folder)) == (f"refused: folder: {Refusal.FOLDER.sentence}", {})


@pytest.mark.parametrize(
    "change",
    [
        {"components": [{"id": "x", "path": "y"}]},
        {"task_result_filters": [{"tasks": ["*"], "filters": []}]},
        {"allow_log_streaming": True},
        {"executors": []},
        {"executors": [{"tasks": ["*"], "executor": {"path": "subprocess.Popen", "args": {}}}]},
        {"executors": "all"},
    ],
)
def test_a_job_with_anything_but_our_executor_is_not_taken(tmp_path: Path, change: dict[str, Any]) -> None:
    """Components, filters, options, other classes, none, nonsense."""
    export_job(JobSpec(method="prompt_pfl"), tmp_path / "job")
    path = tmp_path / "job" / "app" / "config" / "config_fed_client.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert ConfigurationOnly().validate(str(tmp_path / "job" / "app"))[0] == (
        f"refused: schema: {Refusal.SCHEMA.sentence}"
    )
