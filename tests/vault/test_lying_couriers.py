"""What is no courier, or no whole one, at a vault's socket: it is cut off, and costs nobody else."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from attackers import PREFIX, Attacked, Client, down, encoded, half
from vaults import processes

from audits import Event
from medfedvqa.vault.courier import SiteCourier
from medfedvqa.version import code_digest

pytestmark = pytest.mark.slow


def test_two_connections_on_one_job_are_served_one_after_the_other(site: Attacked) -> None:
    """Both ask at once; the second gets the saved bits of the first, once that one is gone."""
    files, job_id = site.files(), str(uuid4())

    def one(_: int) -> dict[str, bytes]:
        client = site.open(job_id, files)
        answer = client.ask("start", 1)
        client.socket.close()
        return {name: array.tobytes() for name, array in answer.tensors.items()}

    with ThreadPoolExecutor(2) as pool:
        bits = list(pool.map(one, range(2)))
    assert bits[0] == bits[1] != {}
    events = [entry.event for entry in site.entries(job_id) if entry.event is not Event.WIRE]
    turn = [Event.OPEN, Event.RECEIVE, Event.RELEASE]
    assert events == [Event.ADMITTED, *turn, *turn] and site.serves()


# What is no frame of a courier's, or no whole one.

LONG = PREFIX.pack(b"mfv1", 20, 1 << 40)
FRAMES: dict[str, bytes] = {
    "2^40 bytes": LONG,
    "another version": encoded("job", id="job", code="0" * 64),
    "mail before a job": encoded("mail", attempt="a", site="head"),
    "a job's end before it begins": encoded("end"),
    "a refusal that only a vault gives": encoded("turned away", id="job", digest="", reason="data", code=code_digest()),
    "a refusal of no reason": encoded("turned away", id="job", digest="", reason="a name", code=code_digest()),
    "a refusal of a path": encoded("turned away", id="../job", digest="", reason="schema", code=code_digest()),
    "what only a vault says": encoded("answer", round=1),
}
IDS = ("../x", "a/b", "/etc", "*", "[a-z]*", ".x", "", "a\0b", "job.lock", "x" * 129)
"""None names files of one job, and of that one alone."""
FRAMES |= {f"the id {name!r:.9}": encoded("job", id=name, code=code_digest()) for name in IDS}


@pytest.mark.parametrize("content", FRAMES.values(), ids=FRAMES.keys())
def test_what_is_no_courier_is_cut_off_and_writes_no_file(site: Attacked, content: bytes) -> None:
    """The vault's own output says why. One that runs other code ends the vault, and the next one starts another."""
    state, log = site.place.config.parent / "state", site.place.folder / "vault.log"
    before, said = sorted(state.iterdir()), len(log.read_text())
    client = Client(site.place)
    client.socket.sendall(content)
    assert client.hung_up() and sorted(state.iterdir()) == before
    assert len(log.read_text()) > said
    site.start()
    assert site.serves()


CUT: dict[str, bytes] = {
    "task": encoded("task", {"prompt.image": np.zeros(1000, np.float32)}, task="train", round=2),
    "malformed": encoded("malformed"),
    "end": encoded("end"),
    "mail": encoded("mail", data=b"x" * 1000, attempt="a", site="head"),
    "silence": encoded("silence"),
}


@pytest.mark.parametrize("kind", CUT)
def test_a_courier_that_goes_away_within_a_frame_leaves_the_job_as_it_was(site: Attacked, kind: str) -> None:
    """While half of the frame hangs, other jobs are served; the next courier has the saved answer, and goes on."""
    client = site.open(job_id := str(uuid4()), files := site.files())
    start = client.ask("start", 1)
    client.socket.sendall(half(CUT[kind]))
    assert site.serves()
    client.socket.close()
    last = site.open(job_id, files)
    assert last.ask("start", 1).tensors["prompt.image"].tobytes() == start.tensors["prompt.image"].tobytes()
    assert last.ask("train", 2, down(start)).tensors
    last.end()
    assert site.refusals(job_id) == [] and site.entries(job_id)[-1].event is Event.CLOSE


@pytest.mark.parametrize("kind", ["job", "close"])
def test_a_courier_that_goes_away_within_its_first_frame_is_nobody(site: Attacked, kind: str) -> None:
    """No entry, no file, and a running job is neither closed nor ended."""
    client = site.open(job_id := str(uuid4()))
    assert client.ask("start", 1).tensors
    fields: dict[str, Any] = {"job": {"id": str(uuid4())}, "close": {"running": [], "ended": []}}[kind]
    gone = Client(site.place)
    gone.socket.sendall(half(encoded(kind, code=code_digest(), **fields)))
    assert site.serves()
    gone.socket.close()
    assert not client.ask("train", 2, {}).tensors
    client.end()
    assert site.released(job_id) == [("start", 1)]


def test_silent_connections_keep_nobody_out_for_long(site: Attacked) -> None:
    """200 at once, which say nothing and stay: more than the vault serves at a time. The next job has its answers."""
    with ThreadPoolExecutor(200) as pool:
        clients = list(pool.map(lambda _: Client(site.place), range(200)))
    assert site.serves()
    assert all(client.hung_up() for client in clients)


def test_a_vault_that_dies_makes_room_for_another_while_its_jobs_go_on(site: Attacked) -> None:
    """The process that listens is killed; its process for a job answers on, and the next courier starts a vault."""
    client = site.open(job_id := str(uuid4()))
    start = client.ask("start", 1)
    (listening,) = [process for process in processes(site.place) if os.getsid(process.pid) == process.pid]
    listening.kill()
    site.start()
    assert site.serves()
    assert client.ask("train", 2, down(start)).tensors
    client.end()
    assert site.released(job_id) == [("start", 1), ("train", 2)]


def test_a_job_that_began_since_the_courier_said_which_ones_run_is_not_closed(site: Attacked) -> None:
    """The site's courier may have to wait for the vault between both. A job that it says has ended is closed, although
    a process still works on it."""
    client = site.open(job_id := str(uuid4()))
    start = client.ask("start", 1)
    courier = SiteCourier()
    courier.close_jobs(site.place, running=[])
    assert client.ask("train", 2, down(start)).tensors
    courier.close_jobs(site.place, running=[], ended=[job_id])
    assert client.hung_up() and site.entries(job_id)[-1].event is Event.CLOSE
    assert courier._presence is not None
    courier._presence.close()
