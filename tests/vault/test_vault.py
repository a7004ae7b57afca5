"""A site as a process without network: the same job gives the same bits, and what crosses its socket is in its log."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from phantoms import wait_for
from vaults import JOB, SITES, VaultEngine, in_process, place_of, processes, same, sites_of, states

from audits import Event, Isolation, Outcome, Refusal, read
from audits.log_files import RUNNING
from medfedvqa.errors import FederationError
from medfedvqa.federation.job import STATUS_JOB, JobSpec
from medfedvqa.federation.live_processes import working_on
from medfedvqa.federation.serve import serve_job
from medfedvqa.vault.courier import JobCourier, reach
from medfedvqa.vault.frames import Wire
from medfedvqa.vault.place import JOB_FILE
from medfedvqa.version import code_digest

RANDOM = "medclip@random"
OPTIONS = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 8}
WAYS: dict[str, dict[str, Any]] = {
    "clear": {},
    "private": {"dp": {"noise": 1.5, "count_noise": 10.0}},
    "CrypTen": {"secagg": True},
    "masks": {"secagg": True, "method": "fedavg"},
    "shared noise": {
        **{"secagg": True, "method": "fedavg"},
        "dp": {"noise": 1.5, "count_noise": 10.0, "sharers": 2, "colluders": 1},
        "options": {"schedule": "stepwise", "rounds": 2, "tuning": "classifier", "hidden": 8, "weighting": "uniform"},
    },
}

LOADED = """
import json, socket, sys, threading
from pathlib import Path
import numpy as np
from audits import Isolation
from medfedvqa.vault.frames import Wire
from medfedvqa.vault.place import JOB_FILE, VaultPlace
from medfedvqa.vault.tasks import Vault
path, job = Path(sys.argv[1]), sys.argv[2]
one, other = socket.socketpair()
vault = Vault(VaultPlace(path, path.parent.name, None, path.parent), Isolation.FILTER, 0)
served = threading.Thread(target=vault.serve, args=(Wire(other),))
served.start()
wire = Wire(one)
wire.send("job", {JOB_FILE: np.frombuffer(job.encode(), np.uint8)}, id="job", code=sys.argv[3])
ready = wire.receive("ready")
kinds, prompts = [], {}
for task, round in (("start", 1), ("train", 2), ("evaluate", 2)):
    wire.send("task", prompts, task=task, round=round)
    answer = wire.receive("answer", "refused")
    kinds.append(answer.kind)
    prompts = {name: array for name, array in answer.arrays.items() if name not in ("accuracy", "epsilon")}
wire.send("end")
wire.receive("done")
served.join()
files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
root = Path(sys.modules["medfedvqa"].__file__).parents[1]
own = tuple(f"{root / name}/" for name in ("medfedvqa", "privacy", "audits"))  # the environment may lie under the root
ours = [file for file in files if file and file.startswith(own) and file.endswith(".py")]
lines = sum(len(open(file).readlines()) for file in ours)
print(json.dumps({"kinds": kinds, "modules": sorted(sys.modules), "lines": lines}))
"""


def job_of(**fields: Any) -> JobSpec:
    private = {"answers": "closed"} if "dp" in fields else {}
    options = OPTIONS | private | ({} if fields.get("method") == "fedavg" else {"local_baseline": False})
    job = {"method": "prompt_pfl", "options": options, "data": "phantom", "backbone": RANDOM}
    return JobSpec.from_dict(job | fields)


@pytest.fixture
def files(random_backbone: Path) -> dict[str, Path]:
    return {RANDOM: random_backbone}


def serve(out: Path, job: JobSpec, files: dict[str, Path], **changes: Any) -> VaultEngine:
    """The job over vaults, to its end."""
    with VaultEngine(sites_of(out, job, files, **changes), job) as engine:
        serve_job(job, SITES, engine.call, out, "local")
    return engine


def log_of(out: Path, site: str) -> list[Any]:
    return list(read(out / "sites" / site / "audit"))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_vaults_give_the_bits_of_the_engine_in_process(tmp_path: Path, files: dict[str, Path], way: str) -> None:
    """Every model that a site keeps, every result under masks, and without shares all that the server saw; the values
    that came over the socket are, to the byte, those that the logs have as released."""
    job = job_of(**WAYS[way])
    in_process(tmp_path / "here", job, files)
    engine = serve(tmp_path / "vaults", job, files)
    # CrypTen rounds by chance: two runs in process differ as much.
    assert same(states(tmp_path / "here"), states(tmp_path / "vaults"), 1e-3 if way == "CrypTen" else 0.0)
    if not job.secagg:
        one, other = (np.load(tmp_path / name / "transcript.npz") for name in ("here", "vaults"))
        assert one.files == other.files != []
        assert all(one[name].tobytes() == other[name].tobytes() for name in one.files)
    for site in SITES:
        entries = log_of(tmp_path / "vaults", site)
        assert (entries[0].event, entries[0].isolation, entries[-1].event) == (Event.OPEN, "namespace", Event.CLOSE)
        left = [e.nbytes for e in entries if (e.event, e.outcome, e.peer) == (Event.RELEASE, Outcome.SENT, "server")]
        assert engine.answered[site] == sum(left) > 0
        windows = [entry.wire for entry in entries if entry.wire]
        counted = sum(result["nbytes"] + result["beside"] for window in windows for result in window["results"])
        courier, mailed = engine.couriers[site], sum(window["mailed"] for window in windows)
        assert (courier.answered, courier.mailed) == (counted, mailed) and counted > sum(left)
        assert (mailed > 0) is job.secagg


def kill(victims: list[psutil.Process]) -> None:
    """SIGKILL of each that still runs: with its vault a job's process ends by itself."""
    while victims:
        with suppress(psutil.NoSuchProcess):
            victims.pop().kill()


@pytest.mark.slow
def test_a_vault_and_its_processes_may_die_at_any_time(tmp_path: Path, files: dict[str, Path]) -> None:
    """SIGKILL of the process that answers, of the whole vault and of the courier, during tasks and between them: the
    courier asks again, the log goes on, and the bits are those of a run in which nothing died."""
    job = job_of()
    in_process(tmp_path / "here", job, files)
    out, calls = tmp_path / "vaults", 0
    with VaultEngine(sites_of(out, job, files), job) as engine:

        def killing(call: Any) -> Any:
            nonlocal calls
            calls += 1
            running = processes(engine.places[SITES[calls % len(SITES)]])
            victims = {0: running[-1:], 1: running[:1], 2: running}[calls % 3]
            (timer := threading.Timer(0.3 * (calls % 2), kill, [victims])).start()
            if calls % 4 == 3:  # the courier's process is gone, and the next one knows nothing
                engine.couriers[SITES[0]].close(ended=False)
            replies = engine.call(call)
            timer.join()
            return replies

        serve_job(job, SITES, killing, out, "local")
    assert calls >= 3 and same(states(tmp_path / "here"), states(out))
    opened = [sum(entry.event is Event.OPEN for entry in log_of(out, site)) for site in SITES]
    assert sum(opened) > len(SITES) and {log_of(out, site)[-1].event for site in SITES} == {Event.CLOSE}


@pytest.mark.slow
def test_a_site_without_isolation_takes_jobs_only_if_its_file_says_so(tmp_path: Path, files: dict[str, Path]) -> None:
    """`isolation: none`: the vault keeps its network, and the first entry of the job says that nothing held."""
    job = job_of(options=OPTIONS | {"rounds": 1})
    serve(tmp_path / "run", job, files, isolation="none")
    assert {log_of(tmp_path / "run", site)[0].isolation for site in SITES} == {Isolation.NONE}


def loaded(path: Path, job: JobSpec) -> Any:
    """What a process without isolation loads and answers, in which a courier's frames are served."""
    command = [sys.executable, "-c", LOADED, str(path), json.dumps(job.to_dict()), code_digest()]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("way", ("clear", "private", "CrypTen"))
def test_a_vault_that_trains_loads_what_the_job_names(tmp_path: Path, files: dict[str, Path], way: str) -> None:
    """Nothing of FLARE, of research, reports and commands, of other methods, kinds of backbones and readers; and at
    most 25,000 lines of the project, 27,500 for a job on shares: by the modules of a process that trained."""
    job = job_of(**WAYS[way])
    found = loaded(sites_of(tmp_path, job, files)["chest"], job)
    # On shares the site alone computes no mixture, which the task between the others needs.
    assert found["kinds"] == ["answer", "refused" if job.secagg else "answer", "answer"]
    (method,) = {name.split(".")[2] for name in found["modules"] if name.startswith("medfedvqa.methods.")}
    assert method == "prompt_pfl" and {"medfedvqa.data.phantom", "medfedvqa.models.clip"} <= set(found["modules"])
    others = {f"medfedvqa.{room}" for room in ("papers", "research", "attack", "cli", "report")}
    others |= {"nvflare", "privacy.report", "medfedvqa.models.library_towers"}
    others |= {"medfedvqa.evaluation.results", "medfedvqa.data.published_files"}
    loaded_of_others = {name for name in found["modules"] for other in others if f"{name}.".startswith(f"{other}.")}
    # The registry reads the list of the papers' methods, of which it imports none.
    assert loaded_of_others <= {"medfedvqa.papers", "medfedvqa.papers.methods"}
    assert ("medfedvqa.federation.secure_site" in found["modules"]) is job.secagg
    assert found["lines"] <= (27_500 if job.secagg else 25_000)


NOTED = """
import os, sys
from pathlib import Path
from medfedvqa.vault import __main__ as vault, tasks

serve, folder = tasks.Vault.serve, Path(sys.argv.pop(1))
bundled = lambda: sys.modules["medfedvqa.models.bundled"]

def noting(self, wire):
    before = set(sys.modules)
    made = "medfedvqa.models.bundled" in before and bundled().short_vocabulary.cache_info().currsize
    try:
        serve(self, wire)
    finally:
        own = {*sys.modules} - before
        (folder / f"{os.getpid()}.txt").write_text(f"{int(made)} {'torch' in before} {' '.join(own)}")

tasks.Vault.serve = noting
sys.exit(vault.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_vault_imports_torch_once_for_all_of_its_jobs(tmp_path: Path, files: dict[str, Path]) -> None:
    """The processes of two jobs begin with torch, open_clip and the tokenizer: each imports only the parts of the
    project that its job names."""
    job, noted = job_of(), tmp_path / "noted"
    noted.mkdir()
    place = place_of(sites_of(tmp_path, job, files)["chest"])
    command = [sys.executable, "-c", NOTED, str(noted), *place.command("--detached")[3:]]
    subprocess.run(command, stderr=subprocess.PIPE, timeout=240, check=True)
    try:
        (vault,) = processes(place)
        for name in ("one", "two"):
            courier = JobCourier(place, name, {JOB_FILE: json.dumps(job.to_dict()).encode()})
            assert courier.ask("task", task="start", round=1).kind == "answer"
            courier.close()
            psutil.wait_procs(processes(place)[1:], timeout=60)  # once it ends, its note is written
        assert processes(place) == [vault]
    finally:
        for process in processes(place):
            process.kill()
    notes = [path.read_text().split() for path in noted.iterdir()]
    assert len(notes) == 2
    for tokenizer, torch, *modules in notes:
        assert (tokenizer, torch) == ("1", "True") and "medfedvqa.methods.prompt_pfl" in modules
        assert not {name.partition(".")[0] for name in modules} & {"open_clip", "torchvision", "transformers", "sympy"}
        assert not {"torch", "torch._dynamo", "medfedvqa.models.clip"} & set(modules)


@pytest.mark.slow
def test_a_job_is_refused_and_logged_where_the_kernel_holds_nothing(tmp_path: Path, files: dict[str, Path]) -> None:
    """No name space and no filter, and a `site.yml` that asks for one: the vault answers by a code, and its log has
    it; no row is read."""
    job = job_of()
    path = sites_of(tmp_path, job, files)["chest"]
    place = place_of(path)
    place.folder.mkdir()
    program = (
        "import sys; from medfedvqa.vault import isolation, __main__ as vault; "
        "isolation._enter_own_network = lambda: False; isolation.platform.machine = lambda: 'another'; "
        "sys.exit(vault.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *place.command("--detached")[3:]]
    started = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=True)
    assert "PrivateNetwork=yes" in started.stderr and "seccomp" in started.stderr
    courier = JobCourier(place, JOB, {JOB_FILE: json.dumps(job.to_dict()).encode()})
    try:
        frame = courier.ask("task", task="start", round=1)
    finally:
        courier.close()
        for process in processes(place):
            process.kill()
    assert (frame.kind, frame.fields["code"]) == ("refused", Refusal.ISOLATION.value)
    (entry,) = read(tmp_path / "sites" / "chest" / "audit")
    assert (entry.event, entry.isolation) == (Event.REFUSAL, Isolation.NONE)


@pytest.mark.slow
def test_a_second_vault_and_strangers_are_turned_away_and_another_code_replaces_it(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    """A vault that is started twice, a courier that names a folder as a job, and one that speaks no grammar: each gets
    a sentence or nothing, and the vault answers the next one. One that runs other code, as after an upgrade, ends the
    vault, and the next courier starts another."""
    job = job_of()
    place = place_of(sites_of(tmp_path, job, files)["chest"])
    reach(place).close()
    second = subprocess.run([sys.executable, *place.command()], capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == os.EX_TEMPFAIL and "runs already" in second.stderr
    try:
        (first, *_) = processes(place)
        for fields in ({"id": "../local", "code": code_digest()}, {"id": JOB, "code": "0" * 64}):
            assert first.is_running()
            wire = reach(place)
            wire.send("job", {}, **fields)
            wire.receive("ready")
            with pytest.raises(EOFError):
                wire.receive("answer")
            wire.close()
        psutil.wait_procs([first], timeout=60)
        assert not first.is_running()
        reach(place).close()
        assert processes(place)[0] != first
        with Wire(place.connect()).connection as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionResetError):  # what it said is not even read to its end
                assert stranger.recv(1)
        text = place.config.read_text()
        place.config.write_text("policy: none")
        courier = JobCourier(place, JOB, {JOB_FILE: b"{"})
        assert courier.ask("task", task="start", round=1).fields["code"] in set(Refusal)
        courier.close()
        place.config.write_text(text)
        courier = JobCourier(place, JOB, {JOB_FILE: b"{"})
        assert courier.ask("task", task="start", round=1).fields["code"] == Refusal.SCHEMA.value
        courier.close()
        assert "runs other code" in (place.folder / "vault.log").read_text()
    finally:
        for process in processes(place):
            process.kill()


@pytest.mark.slow
def test_a_job_waits_until_as_many_as_the_site_allows_have_ended(tmp_path: Path, files: dict[str, Path]) -> None:
    """`jobs: 1`: a second job's first task is answered, with the same bits, once the first job has ended or its
    process was killed; a job that goes on after that waits as well. `vault.log` says so. The status job has no turn to
    wait for, and a job whose courier leaves before its turn ends."""
    place = place_of(sites_of(tmp_path, job_of(), files, jobs=1)["chest"])
    text = place.config.read_text().replace("methods: [prompt_pfl]", "methods: [prompt_pfl, site_status]")
    place.config.write_text(text)
    job, status = (json.dumps(each).encode() for each in (job_of().to_dict(), STATUS_JOB))
    couriers = {name: JobCourier(place, name, {JOB_FILE: job}) for name in ("one", "two", "three")}

    def start(name: str) -> list[bytes]:
        arrays = couriers[name].ask("task", task="start", round=1).arrays
        return [array.tobytes() for _, array in sorted(arrays.items()) if array.size > 1]

    def said(words: str, times: int = 1) -> None:
        wait_for(lambda: (place.folder / "vault.log").read_text().count(words) >= times)

    with ThreadPoolExecutor() as pool:
        try:
            first = start("one")
            (working,) = processes(place)[1:]
            second = pool.submit(start, "two")
            said("job two waits: no more than 1 work at once")
            asked = JobCourier(place, "status", {JOB_FILE: status})
            assert pool.submit(asked.ask, "task", task="status", round=1).result(120).kind == "answer"
            asked.close()
            assert not second.done()
            working.kill()
            assert second.result(120) == first and len(first) > 1
            others = {name: pool.submit(start, name) for name in ("one", "three")}
            left = Wire(place.connect())
            left.send("job", {JOB_FILE: np.frombuffer(job, np.uint8)}, id="left", code=code_digest())
            left.send("task", task="start", round=1)
            for name in ("one", "three", "left"):
                said(f"job {name} waits")
            left.close()
            couriers["two"].close()
            while others:
                done, _ = wait(others.values(), 120, FIRST_COMPLETED)
                (name,) = [name for name, future in others.items() if future in done]
                assert others.pop(name).result() == first
                couriers[name].close()
            said("has its turn", 3)
            assert psutil.wait_procs(processes(place)[1:], 60)[1] == []
            assert not [*(tmp_path / "sites" / "chest" / "audit" / RUNNING).iterdir()]
            assert {entry.job for entry in log_of(tmp_path, "chest")} == {"one", "two", "three", "status"}
        finally:  # a thread that still waits gets its turn from another vault
            place.config.write_text(f"{text}jobs: 9\n")
            for process in processes(place):
                process.kill()
    for process in processes(place):
        process.kill()


def test_a_vault_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Its last words reach the courier."""
    path = tmp_path / "site" / "site.yml"
    path.parent.mkdir()
    place = place_of(path)
    place.folder.write_text("no folder")
    with pytest.raises(FederationError, match="does not start: .*File exists"):
        reach(place)


def test_one_process_at_a_time_works_on_a_job(tmp_path: Path) -> None:
    """The next one waits, also where the job's file goes while it does."""
    entered, order = threading.Event(), []

    def second() -> None:
        entered.set()
        with working_on(tmp_path, JOB):
            order.append("second")

    waiting = threading.Thread(target=second)
    with working_on(tmp_path, JOB):
        waiting.start()
        entered.wait(10)
        (tmp_path / RUNNING / JOB).unlink()
        order.append("first")
    waiting.join(10)
    assert order[-1] == "second" and not (tmp_path / RUNNING / JOB).exists()
