"""A provisioned federation whose server and other site ask a site's couriers for what they should not tell.

What leaves the process that reads the rows is in the site's audit log, to the byte. See docs/hardening.md.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from leaks import ASKED, ROGUE, SECRET
from phantoms import PATIENCE, short_job, vault_of, wait_for
from tapped import TappedFederation
from taps import add_component, disarm

from audits import Entry, Event, Outcome, read, verify
from audits.byte_ledger import reconcile
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job

CLEAN = "head"
SITES = (ASKED, ROGUE, CLEAN)
JOB = short_job(options={"rounds": 2, "blocks": 2})


class AskedFederation(TappedFederation):
    """A federation with `leaks` in the processes of its server and of one site."""

    def start(self, name: str) -> None:
        self.taps.mkdir(exist_ok=True)
        given = {"folder": str(self.taps)}
        if name == SERVER:
            disarm(self.kits / name)
            add_component(self.kits / name, {"id": "leaks", "path": "leaks.Attacker", "args": given})
        if name == ROGUE:
            add_component(self.kits / name, {"id": "leaks", "path": "leaks.AskingSite", "args": given})
        super(TappedFederation, self).start(name)

    def noted(self, name: str) -> object:
        path = self.taps / f"{name}.json"
        wait_for(path.exists)
        return json.loads(path.read_text())

    def closed(self, site: str, job_id: str) -> list[Entry]:
        """The site's log once the job is over there."""
        wait_for(lambda: any(entry.event is Event.CLOSE for entry in self.log(site, job_id)))
        return list(read(self.kits / site / "audit"))


@dataclass(frozen=True)
class Attacked:
    """One job during which everything was tried."""

    federation: AskedFederation
    job_id: str
    status: str
    seen: bytes
    """All that reached the server."""
    networks: dict[str, tuple[str, str]]
    """Of each site's vault, its network interfaces and its status, as the kernel tells them."""


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., AskedFederation]) -> AskedFederation:
    made = phantoms(SITES, AskedFederation, methods=["prompt_pfl"])
    (made.taps / "secret").write_text(SECRET)
    return made


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "job"
    export_job(JOB, folder)
    return folder


@pytest.fixture(scope="module")
def attacked(federation: AskedFederation, job_folder: Path) -> Attacked:
    """The one job: another site and the server ask for a file."""
    (federation.taps / "ask").write_text(json.dumps([ASKED, CLEAN]))
    job_id = federation.submit(job_folder)
    status = federation.wait(job_id, PATIENCE)
    federation.noted("rogue"), federation.noted("server")
    networks = {}
    for name in SITES:
        proc = Path("/proc", str(vault_of(federation.kits / name).pid))
        networks[name] = (proc / "net" / "dev").read_text(), (proc / "status").read_text()
    return Attacked(federation, job_id, status, federation.seen(), networks)


def test_a_job_runs_to_its_end_while_everything_else_is_refused(attacked: Attacked) -> None:
    """The refusals harm nothing, and the recorder sees what does leave: names and values."""
    assert attacked.status == "FINISHED:COMPLETED"
    assert b"medfedvqa_tensors" in attacked.seen and b"submit_update" in attacked.seen


@pytest.mark.parametrize("site", SITES)
def test_the_process_that_reads_the_rows_has_no_network_by_the_kernels_word(attacked: Attacked, site: str) -> None:
    """No interface but its own loopback, over which nothing ever went, and a filter of its system calls."""
    interfaces, status = attacked.networks[site]
    (line,) = interfaces.splitlines()[2:]
    assert line.split()[0] == "lo:" and set(line.split()[1:]) == {"0"}
    assert "Seccomp:\t2" in status
    log = attacked.federation.closed(site, attacked.job_id)
    assert next(entry for entry in log if entry.job == attacked.job_id).isolation == "namespace"


def test_every_byte_that_left_the_vault_is_in_the_log(attacked: Attacked) -> None:
    """Bytes of values are those of the releases; around them is no more than their encoding."""
    log = attacked.federation.closed(CLEAN, attacked.job_id)
    found = reconcile(log)
    assert found.covered and found.ok and found.unexplained == 0
    assert found.left["values of released tensors"] == sum(e.nbytes for e in log if e.outcome is Outcome.SENT) > 0
    assert verify(attacked.federation.kits / CLEAN / "audit").ok


def test_arrays_travel_in_their_message(attacked: Attacked) -> None:
    """No download is offered or asked for: a server that looks at what it gets sees all of it."""
    assert b"download_service__" not in attacked.seen


@pytest.mark.parametrize("who", ["server", "rogue"])
def test_a_site_that_is_asked_for_a_file_or_for_facts_tells_nothing(attacked: Attacked, who: str) -> None:
    """By the server itself or by another site's process, whatever flags and roles the request claims."""
    answers = attacked.federation.noted(who)
    assert isinstance(answers, list) and len(answers) > 40
    told = {re.sub("^user '.*' is not authorized for 'cat'$", "not authorized", answer) for _, _, answer in answers}
    assert told <= {"None", "nothing", "this site does not answer that", "invalid_request", "not authorized"}, told
    assert SECRET.encode() not in attacked.seen


def test_a_job_whose_id_names_another_folder_of_the_kit_harms_nothing(attacked: Attacked) -> None:
    """Deploying would first empty the folder of that name."""
    for site in (ASKED, CLEAN):
        assert (attacked.federation.kits / site / "local" / "site.yml").is_file()
    assert not (attacked.federation.kits / "elsewhere").exists()


def _shadow(app: Path) -> None:
    (app / "config" / "comm_config.json").write_text(json.dumps({"backbone_conn_gen": 2}))


def _code(app: Path) -> None:
    (app / "custom").mkdir()
    (app / "custom" / "mine.py").write_text("print('mine')")


def _config(app: Path, **changes: object) -> None:
    path = app / "config" / "config_fed_client.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _class(app: Path) -> None:
    _config(app, executors=[{"tasks": ["*"], "executor": {"path": "subprocess.Popen", "args": {"args": "true"}}}])


def _component(app: Path) -> None:
    path = "nvflare.app_common.logging.job_log_streamer.JobLogStreamer"
    _config(app, components=[{"id": "logs", "path": path, "args": {}}])


def _by_reference(app: Path) -> None:
    _config(app, np_download_chunk_size=1 << 10, tensor_download_chunk_size=1 << 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_shadow, "refused: folder: "),
        (_code, "BYOC|refused: folder: "),
        (_class, "refused: schema: "),
        (_component, "refused: schema: "),
        (_by_reference, "refused: schema: "),
    ],
)
def test_a_job_that_brings_more_than_configuration_is_not_deployed(
    attacked: Attacked, job_folder: Path, tmp_path: Path, change: object, reason: str
) -> None:
    """Files that shadow the site's own, code, classes, components: no process starts."""
    shutil.copytree(job_folder, tmp_path / "job")
    assert callable(change)
    change(tmp_path / "job" / "app")
    federation = attacked.federation
    job_id = federation.submit(tmp_path / "job")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:FAILED_TO_RUN"
    assert not (federation.kits / CLEAN / job_id).exists()
    assert re.search(reason, (federation.kits / SERVER / "process.log").read_text())
