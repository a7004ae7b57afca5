"""The small parts: processes that come back, what a restarted client remembers, messages, progress."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs
from nvflare.private.fed.client.communicator import Communicator
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants
from nvflare.utils.process_utils import ProcessAdapter

from audits import JobRefused, Refusal
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare import launcher, persistent_process
from medfedvqa.federation.flare.executor import PATIENCE, SiteExecutor
from medfedvqa.federation.flare.launcher import LaunchRecord
from medfedvqa.federation.flare.messages import AUDIT_BYTES, REASON, ROUND, TENSORS, audit_bytes, pack, unpack
from medfedvqa.federation.flare.persistent_process import RELAUNCHES, PersistentHandle
from medfedvqa.federation.flare.progress import ProgressReader, write_event
from medfedvqa.federation.flare.reaper import Reaper, flare_processes
from medfedvqa.federation.flare.server_side import _TaskAnswers
from medfedvqa.federation.hub import Refused, TaskAnswer, TaskCall, stop_job

Start = Callable[[], ProcessAdapter]
CREDENTIALS = {
    JobProcessArgs.AUTH_TOKEN: ("-t", "first-token"),
    JobProcessArgs.TOKEN_SIGNATURE: ("-ts", "signature"),
    JobProcessArgs.SSID: ("-d", "ssid"),
}


def python(code: str) -> ProcessAdapter:
    """A Python process in a session of its own, as FLARE starts them."""
    return ProcessAdapter(subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True))


def run(*codes: str) -> int:
    """How many processes a handle starts, if each next one runs the next code, and the last one's again and again."""
    started = 0

    def start() -> ProcessAdapter:
        nonlocal started
        started += 1
        return python(codes[min(started, len(codes)) - 1])

    PersistentHandle(start, lambda: None).wait()
    return started


def test_a_process_that_a_signal_killed_is_started_again_until_it_ends_by_itself() -> None:
    """Twice killed, then done."""
    kill = "import os; os.kill(os.getpid(), 9)"
    assert run(kill, "import os; os.abort()", "pass") == 3


@pytest.mark.parametrize("code", ["pass", "raise SystemExit(1)"])
def test_a_process_that_ended_by_itself_is_not_started_again(code: str) -> None:
    """Exit codes, good or bad, are FLARE's business."""
    assert run(code) == 1


def test_a_process_that_was_asked_to_end_is_started_again_unless_its_party_ends_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service manager sends SIGTERM to all processes at once: the job is not over, however long the party's own
    process takes to end, and nothing is started while it should be gone. An abort meanwhile ends it at once."""
    asked = "import os; os.kill(os.getpid(), 15)"
    monkeypatch.setattr(persistent_process, "STOPPING", 1.0)
    began = time.monotonic()
    assert run(asked, "pass") == 2 and time.monotonic() - began >= 1.0
    monkeypatch.setattr(persistent_process, "STOPPING", 600.0)
    ended = threading.Event()
    handle = PersistentHandle(lambda: python(asked), ended.set)
    waiting = threading.Thread(target=handle.wait)
    waiting.start()
    handle.adapter.wait()
    assert not ended.wait(0.2)
    handle.terminate()
    waiting.join(60)
    assert ended.is_set() and not waiting.is_alive()


def test_a_process_that_dies_every_time_is_given_up() -> None:
    """A crash that repeats becomes the job's failure."""
    assert run("import os; os.kill(os.getpid(), 9)") == RELAUNCHES + 1


def test_a_terminated_process_stays_down() -> None:
    """Aborting a job ends its process for good, though FLARE ends it with SIGKILL."""
    handle = PersistentHandle(lambda: python("import time; time.sleep(60)"), lambda: None)
    waiting = threading.Thread(target=handle.wait)
    waiting.start()
    handle.terminate()
    waiting.join(30)
    assert not waiting.is_alive()
    assert handle.adapter.poll() == -signal.SIGKILL


def test_a_restarted_client_finds_the_credentials_that_its_job_began_with(tmp_path: Path) -> None:
    """They replace the new ones; the file is the account's own and goes with the job."""
    record = LaunchRecord(tmp_path)
    record.write(CREDENTIALS, os.getpid())
    assert record.path.stat().st_mode & 0o077 == 0
    arguments = {**CREDENTIALS, JobProcessArgs.AUTH_TOKEN: ("-t", "second-token"), JobProcessArgs.JOB_ID: ("-n", "job")}
    record.restore(arguments)
    assert arguments == {**CREDENTIALS, JobProcessArgs.JOB_ID: ("-n", "job")}
    record.delete()
    assert not list(tmp_path.iterdir())


def test_a_restarted_client_ends_the_process_that_its_predecessor_left_and_no_other(tmp_path: Path) -> None:
    """The process is known by id and start time, since ids are used again."""
    orphan = python("import time; time.sleep(60)")
    record = LaunchRecord(tmp_path)
    record.write(CREDENTIALS, orphan.pid)
    saved = json.loads(record.path.read_text())
    record.path.write_text(json.dumps({**saved, "created": saved["created"] - 100}))
    record.end_orphan()
    assert psutil.pid_exists(orphan.pid)
    record.path.write_text(json.dumps(saved))
    record.end_orphan()
    assert not psutil.pid_exists(orphan.pid)
    record.end_orphan()
    orphan.wait()


def test_arrays_cross_a_message_bit_for_bit() -> None:
    """Scalars, counts, and floats that compare unlike themselves."""
    flare_decomposers.register()
    common_decomposers.register()
    tensors = {
        "prompt": np.array([[0.1, -0.0, 1e-45], [np.nan, np.inf, 3.0]], np.float32),
        "rows": np.array(7, np.int64),
    }
    round, received = unpack(fobs.loads(fobs.dumps(pack(3, tensors))))
    assert round == 3
    assert received.keys() == tensors.keys()
    for name, array in tensors.items():
        assert (received[name].shape, received[name].dtype) == (array.shape, array.dtype)
        assert received[name].tobytes() == array.tobytes()


def test_progress_is_read_once_even_from_a_line_that_is_still_being_written(tmp_path: Path) -> None:
    """No event is lost or told twice."""
    reader = ProgressReader()
    assert list(reader.events(tmp_path)) == []
    first, second = TaskAnswer(1, 2, "train", "chest"), TaskAnswer(2, 2, "train", "head")
    write_event(tmp_path, first)
    assert list(reader.events(tmp_path)) == [first]
    write_event(tmp_path, second)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert list(reader.events(tmp_path)) == []
    path.write_bytes(whole)
    assert list(reader.events(tmp_path)) == [second]


def test_flares_processes_end_with_the_one_that_started_them_even_if_it_is_killed(tmp_path: Path) -> None:
    """Those in its folders, and no others."""
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    worker, elsewhere = [*sleep, "nvflare.private.worker"], tmp_path.with_name("elsewhere")
    parent = (
        "import sys, time; from pathlib import Path; from medfedvqa.federation.flare.reaper import Reaper\n"
        "folder = Path(sys.argv[1])\n"
        "with Reaper(folder) as reaper:\n"
        "    print(reaper.start(sys.argv[2:], folder, folder / 'log', {}).pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    others = [subprocess.Popen(command) for command in ([*worker, str(elsewhere)], [*sleep, str(tmp_path)])]
    command = [sys.executable, "-c", parent, str(tmp_path), *worker, str(tmp_path / "site")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        started = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
        started.wait(60)
    for other in others:
        assert other.poll() is None
        other.kill()
        other.wait()


def test_the_process_that_starts_jobs_does_not_import_torch() -> None:
    """A site's parent process stays small."""
    code = f"import sys, {launcher.__name__}; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_courier_of_a_job_loads_neither_models_nor_the_schema_of_jobs(tmp_path: Path) -> None:
    """Also once it has read a job's files, which only the vault parses: no torch, no options of methods, no privacy."""
    code = (
        "import sys; from pathlib import Path; import nvflare.private.fed.app.client.worker_process; "
        "from medfedvqa.federation.flare import executor, hardening, job_folder; "
        "job_folder.read_files(Path(sys.argv[1])); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert {"medfedvqa.vault.courier", "nvflare.private.fed.client.client_runner"} <= modules
    assert not modules & {"torch", "open_clip", "privacy", "medfedvqa.federation.job", "medfedvqa.core"}


def test_flare_processes_are_ended_also_when_the_reaper_was_killed(tmp_path: Path) -> None:
    """And the reaper, which names the same folder, is not taken for one of FLARE's processes."""
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)", "nvflare.private.x", str(tmp_path)]
    with Reaper(tmp_path) as reaper:
        process = reaper.start(sleeping, tmp_path, tmp_path / "log", os.environ)
        while not (found := flare_processes([str(tmp_path)])):
            time.sleep(0.05)
        assert [one.pid for one in found] == [process.pid]
        (other,) = [child for child in psutil.Process().children() if str(tmp_path) in child.cmdline()[3:4]]
        other.kill()
    assert not flare_processes([str(tmp_path)]) and process.poll() is not None


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        *((refusal.value, refusal.sentence) for refusal in Refusal),
        *((said, Refusal.FAILED.sentence) for said in ("patient 4711 has", "BUDGET", b"budget", ["budget"], None, 7)),
    ],
)
def test_the_server_tells_of_a_refusal_by_the_sentence_of_its_code(said: object, sentence: str) -> None:
    """A site may be hostile: whatever else it gives as its reason is a failure without a text."""
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply[REASON] = said
    with pytest.raises(FederationError) as caught:
        submitted(reply)
    assert str(caught.value) == f"site 'chest' stopped the job: {sentence}"


@pytest.mark.parametrize(
    "change",
    [
        {ROUND: "1"}, {ROUND: -1}, {ROUND: True}, {ROUND: 10**9}, {TENSORS: None}, {TENSORS: [1]}, {"else": 1},
        {TENSORS: {"x": [1.0]}}, {TENSORS: {"x": np.array([None])}},
        {TENSORS: {"x": np.zeros(1, "M8[s]")}}, {TENSORS: {1: np.zeros(1)}}, {TENSORS: {"x" * 1000: np.zeros(1)}},
    ],
)  # fmt: skip
def test_what_is_not_a_message_of_numbers_is_refused_at_both_ends(change: dict[str, object]) -> None:
    """Rounds that are none, arrays that are none or hold no numbers, names without end, and anything beside
    them. Texts come through: what the job declares is checked later, with the name of the site."""
    message = Shareable(pack(1, {"x": np.zeros(1)}) | change)
    with pytest.raises(JobRefused) as caught:
        unpack(message)
    assert caught.value.code is Refusal.MESSAGE
    with pytest.raises(FederationError) as stopped:
        submitted(message)
    assert str(stopped.value) == f"site 'chest' stopped the job: {Refusal.MESSAGE.sentence}"


def test_the_server_does_not_wait_for_a_site_that_refused_a_job_with_a_quorum() -> None:
    """The refusal's code is handed on, and the call is complete. An unreadable answer stops the job."""
    codes: list[Refusal] = []
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply[REASON] = Refusal.DEVICE.value
    submitted(reply, lambda site, code, detail: codes.append(code))
    assert codes == [Refusal.DEVICE]
    with pytest.raises(FederationError, match="stopped the job"):
        submitted(Shareable(pack(1, {}) | {"else": 1}), lambda site, code, detail: codes.append(code))


def submitted(reply: Shareable, refused: Refused = stop_job) -> None:
    """Has the server take in a site's answer. Raises `FederationError`."""
    gathering = _TaskAnswers(TaskCall("train", 1, {"chest": {}}, refused=refused), lambda replies: ())
    answer = SimpleNamespace(client=SimpleNamespace(name="chest"), result=reply, task_sent_time=0.0)
    gathering._received(answer, None)  # type: ignore[arg-type]
    assert gathering.complete(0.0)


@pytest.mark.parametrize("said", [None, 7, "text", b"x" * (1 << 20), bytearray(1), memoryview(b"1")])
def test_audit_bytes_are_bytes_and_few(said: object) -> None:
    """What else lies beside the arrays is taken for bytes that no reader accepts."""
    assert audit_bytes(Shareable(pack(1, {}, b"said") | {AUDIT_BYTES: said})) == b"?"
    assert audit_bytes(pack(1, {}, b"said")) == b"said"


def test_a_process_that_found_no_server_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it finds one, or until the site has tried for long enough; a process that fails at once is not."""
    monkeypatch.setattr(persistent_process, "SOUGHT", 0.0)
    assert run("raise SystemExit(1)", "raise SystemExit(2)", "pass") == 3
    monkeypatch.setattr(persistent_process, "RETURN_PATIENCE", 0.0)
    assert run("raise SystemExit(1)", "pass") == 1


PARENT = """
import subprocess, sys
from medfedvqa.federation.flare.parent_process import adopt_children
adopt_children()
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdin=subprocess.PIPE, text=True)
print(child.pid, flush=True)
sys.stdin.read()
child.communicate("go")
print(child.returncode, flush=True)
"""
CHILD = """
import sys, time
from medfedvqa.federation.flare.parent_process import die_if_orphaned
sys.stdin.read()
die_if_orphaned()
time.sleep(float(sys.argv[1]))
"""


def test_an_orphan_dies_and_no_other_process() -> None:
    """A child checks once the end of its standard input, and then its parent, is there: it continues while its parent
    lives, and where nobody adopted it."""
    command, pipe = [sys.executable, "-c", PARENT, CHILD], subprocess.PIPE
    with subprocess.Popen([*command, "0"], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.communicate("", 60)[0].split()[1] == "0"
    with subprocess.Popen([*command, "60"], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert not psutil.wait_procs([child], 30)[1]
    assert subprocess.run([sys.executable, "-c", CHILD, "0"], stdin=subprocess.DEVNULL, check=False).returncode == 0


def test_a_site_asks_for_its_task_again_after_a_minute_although_its_kit_allows_five(tmp_path: Path) -> None:
    """FLARE takes the larger one of a job's patience and the kit's, so that a server's death cost five minutes."""
    communicator = Communicator({"client_name": "lung"}, timeout=300.0)
    workspace = SimpleNamespace(get_site_config_dir=lambda: str(tmp_path))
    client = SimpleNamespace(communicator=communicator)
    engine = SimpleNamespace(client=client, get_workspace=lambda: workspace)
    context = FLContext()
    context.get_engine = lambda: engine  # type: ignore[method-assign]
    context.get_job_id = lambda: SimulatorConstants.JOB_NAME  # type: ignore[method-assign]
    context.get_run_abort_signal = lambda: None  # type: ignore[method-assign]
    waits = []

    def send_request(timeout: float, **_: object) -> None:
        waits.append(timeout)
        raise TimeoutError

    communicator.cell = SimpleNamespace(send_request=send_request)
    SiteExecutor({}).handle_event(EventType.START_RUN, context)
    communicator.pull_task("project", "token", "session", context, timeout=PATIENCE)
    assert waits == [PATIENCE]
