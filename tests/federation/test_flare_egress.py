"""A provisioned federation whose job, other site and server try every way by which FLARE could let bytes leave a site.

Each is refused, or the byte ledger in the site's audit log explains it. See docs/hardening.md.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from leaks import INJECTED, LEAKY, MARK, ROGUE, SECRET, WAYS, marked
from taps import TappedFederation, add_component, disarm

from audits import Event, Outcome, Refusal, read, verify
from audits.byte_ledger import Reconciliation, Traffic, reconcile
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import site_yaml

pytestmark = [
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

CLEAN = "head"
SITES = (LEAKY, ROGUE, CLEAN)
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "blocks": 2, "hidden": 16}
JOB = JobSpec.from_dict(
    {
        "method": "prompt_pfl",
        "options": {**OPTIONS, "local_baseline": False},
        "data": "phantom",
        "backbone": BACKBONE,
    }
)
PATIENCE = 300.0  # seconds


class LeakingFederation(TappedFederation):
    """A federation with `leaks` in its processes."""

    def start(self, name: str) -> None:
        self.taps.mkdir(exist_ok=True)
        if name == SERVER:
            disarm(self.kits / name)
        given = {"folder": str(self.taps)} | ({} if name == SERVER else {"site": name})
        kind = "Attacker" if name == SERVER else "SiteLeaks"
        add_component(self.kits / name, {"id": "leaks", "path": f"leaks.{kind}", "args": given})
        super(TappedFederation, self).start(name)

    def order(self, site: str, what: str) -> None:
        (self.taps / f"order.{site}").write_text(what)

    def noted(self, name: str) -> object:
        path = self.taps / f"{name}.json"
        end = time.monotonic() + PATIENCE
        while not path.exists():
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.1)
        return json.loads(path.read_text())

    def audit(self, site: str) -> Path:
        return self.kits / site / "audit"

    def settled(self, site: str, job_id: str) -> Reconciliation:
        """The site's ledger once the job's process has gone and the site has written what it passed on."""
        end = time.monotonic() + PATIENCE
        while True:
            log = list(read(self.audit(site)))
            over = [e.seq for e in log if e.event is Event.WIRE and e.job == job_id and (e.wire or {})["last"]]
            if over and any(e.event is Event.WIRE and e.job is None and e.seq > over[-1] for e in log):
                return reconcile(log)
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.2)


@dataclass(frozen=True)
class Attacked:
    """One job during which everything was tried."""

    federation: LeakingFederation
    job_id: str
    status: str
    seen: bytes
    """All that reached the server."""
    tried: dict[str, str]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[LeakingFederation]:
    folder = tmp_path_factory.mktemp("federation")
    paths = {}
    for name in SITES:
        paths[name] = folder / f"{name}.yml"
        own = {place: f"../{place}" for place in ("state", "audit", "ledger")}
        facts = {"reader": "phantom", "organ": name, "methods": ["prompt_pfl"], **own}
        paths[name].write_text(site_yaml(**facts, backbones={BACKBONE: str(random_backbone)}))
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with LeakingFederation(folder, paths, {"PYTHONPATH": os.pathsep.join(places)}) as federation:
        (federation.taps / "secret").write_text(SECRET)
        yield federation


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "job"
    export_job(JOB, folder)
    return folder


@pytest.fixture(scope="module")
def attacked(federation: LeakingFederation, job_folder: Path) -> Attacked:
    """The one job: one site's process tries all ways out, another site and the server ask for a file."""
    federation.order(LEAKY, "ways out")
    federation.order(ROGUE, "ask a site")
    (federation.taps / "ask").write_text(json.dumps([LEAKY, CLEAN]))
    job_id = federation.submit(job_folder)
    status = federation.wait(job_id, PATIENCE)
    tried = federation.noted("tried")
    federation.noted("rogue"), federation.noted("server")
    assert isinstance(tried, dict)
    return Attacked(federation, job_id, status, federation.seen(), tried)


def test_a_job_runs_to_its_end_while_everything_else_is_refused(attacked: Attacked) -> None:
    """The refusals harm nothing, and the recorder sees what does leave: names and values."""
    assert attacked.status == "FINISHED:COMPLETED"
    assert b"medfedvqa_tensors" in attacked.seen and b"submit_update" in attacked.seen
    job_log = attacked.federation.kits / CLEAN / attacked.job_id / "log.txt"
    assert "not sent" not in job_log.read_text()


@pytest.mark.parametrize("way", [name for name in WAYS if name != "injected"])
def test_nothing_leaves_by_a_way_that_is_not_on_the_list(attacked: Attacked, way: str) -> None:
    """It was tried, and of what it should have carried nothing reached the server."""
    assert attacked.tried[way] not in ("raised TypeError", "raised AttributeError", "raised NameError")
    assert marked(way).encode() not in attacked.seen


def test_refused_frames_are_counted_in_the_sites_log(attacked: Attacked) -> None:
    """Of the site that tried, and of no other."""
    found = attacked.federation.settled(LEAKY, attacked.job_id)
    assert found.refused_frames >= 6
    assert attacked.federation.settled(CLEAN, attacked.job_id).refused_frames == 0
    log = read(attacked.federation.audit(LEAKY))
    assert {count["traffic"] for e in log if e.wire for count in e.wire["refused"]} == {
        Traffic.UNLISTED,
        Traffic.PRESENCE,
    }


def test_every_byte_of_a_normal_job_is_explained(attacked: Attacked) -> None:
    """Bytes of values are those of the releases; all others are of a named kind and within its bounds."""
    found = attacked.federation.settled(CLEAN, attacked.job_id)
    assert found.covered and found.ok and found.unexplained == 0
    released = sum(e.nbytes for e in read(attacked.federation.audit(CLEAN)) if e.outcome is Outcome.SENT)
    assert found.left["values of released tensors"] == released > 0
    assert Traffic.UNLISTED not in found.left
    assert verify(attacked.federation.audit(CLEAN)).ok


def test_a_byte_that_was_put_below_the_gate_is_found(attacked: Attacked) -> None:
    """One byte, in a frame of a listed kind."""
    found = attacked.federation.settled(LEAKY, attacked.job_id)
    assert not found.ok
    assert [(one.nbytes, "handed over" in one.reason) for one in found.findings] == [(INJECTED, True)]


def test_arrays_travel_in_their_message(attacked: Attacked) -> None:
    """No download is offered or asked for; what was encoded is what the release held."""
    assert b"download_service__" not in attacked.seen
    results = [e.wire["results"] for e in read(attacked.federation.audit(CLEAN)) if e.wire and e.wire["results"]]
    assert all(one["encoded"] > one["nbytes"] > 0 for (one,) in results)


@pytest.mark.parametrize("who", ["server", "rogue"])
def test_a_site_that_is_asked_for_a_file_or_for_facts_tells_nothing(attacked: Attacked, who: str) -> None:
    """By the server itself or by another site's process, whatever flags and roles the request claims."""
    answers = attacked.federation.noted(who)
    assert isinstance(answers, list) and len(answers) > 40
    told = {answer for _, _, answer in answers}
    assert told <= {"None", "nothing", "this site does not answer that"}, told
    assert SECRET.encode() not in attacked.seen
    asked = (attacked.federation.kits / LEAKY / "process.log").read_text()
    assert asked.count("does not answer was refused") >= len([site for site, _, _ in answers if site == LEAKY])


def test_a_job_whose_id_names_another_folder_of_the_kit_harms_nothing(attacked: Attacked) -> None:
    """Deploying would first empty the folder of that name."""
    for site in (LEAKY, CLEAN):
        assert (attacked.federation.kits / site / "local" / "site.yml").is_file()
    assert not (attacked.federation.kits / "elsewhere").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("order", "told"), [("extra key", Refusal.FAILED.sentence), ("exception", "")])
def test_a_result_or_an_exception_with_data_in_it_ends_the_job_without_the_data(
    attacked: Attacked, job_folder: Path, order: str, told: str
) -> None:
    """The server is told by which site, and not what it was."""
    federation = attacked.federation
    federation.forget()
    federation.order(CLEAN, order)
    job_id = federation.submit(job_folder)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:EXECUTION_EXCEPTION"
    failure = json.loads((federation.results(job_id) / "results.json").read_text())["failure"]
    assert f"site '{CLEAN}' stopped the job" in failure and told in failure
    assert MARK.encode() not in federation.seen()
    assert federation.settled(CLEAN, job_id).ok


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
