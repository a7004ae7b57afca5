"""A lying courier or server at a vault's socket: each lie is refused, stands in a log, and costs nobody else.

What is between two processes here is what an attacker has who took over FLARE's process of a site, and with it all that
the server says. The vault is the real one, with the root certificate of a provisioned federation.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from attackers import JOB, OPTIONS, RANDOM, Attacked, Authority, Files, SocketLiar, down, started
from lying_dealer import Deal
from lying_server import Answer, attempt_message
from server_lies import MIXING
from vaults import SITES, processes, sites_of

from audits import Event, read, verify
from medfedvqa.federation.job import JobSpec
from medfedvqa.vault.place import VaultPlace

THREE = tuple(sorted(SITES))
pytestmark = pytest.mark.slow

# Jobs that nobody submitted, or not so.


def edited(files: Files) -> Files:
    """Signed files of which one was changed afterwards: one round more."""
    return {path: content.replace(b'"rounds": 2', b'"rounds": 3') for path, content in files.items()}


def saying(old: str, new: str) -> Callable[[Attacked], Files]:
    """Signed files with other text in the job."""

    def change(files: Files) -> Files:
        assert any(old.encode() in content for content in files.values())
        return {path: content.replace(old.encode(), new.encode()) for path, content in files.items()}

    return lambda site: site.files(change=change)


PRIVATE = JobSpec.from_dict(
    {**JOB, "dp": {"noise": 1.0, "count_noise": 10.0}, "options": {**OPTIONS, "answers": "closed"}}
)
JOBS: dict[str, tuple[str, Callable[[Attacked], Files]]] = {
    "not signed": ("signature", lambda site: {p: c for p, c in site.files().items() if p.endswith(".json")}),
    "changed after the signature": ("signature", lambda site: edited(site.files())),
    "signed under another root": ("signature", lambda site: site.files(Authority().submitter())),
    "signed by an authority": ("signature", lambda site: site.files(site.authority.submitter(ca=True))),
    "a file more": ("folder", lambda site: site.files(change=lambda files: {**files, "config/code.py": b"1"})),
    "a path that leads away": ("folder", lambda site: {**site.files(), "../../site.yml": b"isolation: none"}),
    "of the simulator": ("folder", lambda site: {"job.json": json.dumps(site.job.to_dict()).encode()}),
    "no file": ("folder", lambda site: {}),
    "other code": ("schema", lambda site: site.files(change=other_code)),
    "of another federation": ("federation", lambda site: site.files(federation="SHA256" + ":FF" * 32)),
    "for another site": ("federation", lambda site: site.files(sites=("abdomen",))),
    "a variable of the environment": ("schema", saying(RANDOM, "{$HOME}")),
    "a backbone that the network would bring": ("backbone", saying(RANDOM, "hf-hub:hospital/clip")),
    "a prompt of 50,000,000 tokens": ("schema", saying('"blocks": 1', '"blocks": 50000000')),
    "a number of 400 digits": ("schema", saying('"blocks": 1', f'"blocks": 1{"0" * 400}')),
    "data that the site does not have": ("reader", saying('"phantom"', '"slake"')),
    "under privacy, without terms": (
        "fresh",
        lambda site: site.files(job={"terms": None, "dp": PRIVATE.dp, "options": PRIVATE.options}),
    ),
    "expired": ("expired", lambda site: site.files(expires=datetime.now(UTC) - timedelta(days=1))),
}


def other_code(files: Files) -> Files:
    """The job names a class of FLARE's in the place of the project's executor."""
    name = b"medfedvqa.federation.flare.executor.SiteExecutor"
    return {
        path: content.replace(name, b"nvflare.app_common.np.np_trainer.NPTrainer") for path, content in files.items()
    }


@pytest.mark.parametrize(("code", "files"), JOBS.values(), ids=JOBS.keys())
def test_a_job_that_is_none_is_refused_by_code_and_logged(
    site: Attacked, code: str, files: Callable[[Attacked], Files]
) -> None:
    """Asked twice, so that the second answer is as the first; nothing of it leaves, and the next job runs."""
    client = site.open(job_id := str(uuid4()), files(site))
    answers = [client.ask("start", 1), client.ask("start", 1)]
    client.end()
    assert [(answer.code, answer.tensors) for answer in answers] in ([(code, {})] * 2, [(code, {}), ("replay", {})])
    assert {*site.refusals(job_id)} >= {code} and site.released(job_id) == []
    assert site.serves()


def test_a_nonce_opens_one_job(site: Attacked) -> None:
    """The same files under another id, while the first job runs, and under their own after its end."""
    files = site.files()
    first = site.open(job_id := str(uuid4()), files)
    assert first.ask("start", 1).tensors
    again = site.open(other := str(uuid4()), files)
    assert again.ask("start", 1) == Answer(code="replay") and site.refusals(other) == ["replay"]
    first.end()
    last = site.open(job_id, files)
    assert last.ask("start", 1) == Answer(code="replay") and site.refusals(job_id) == ["replay"]
    for client in (again, last):
        client.end()
    assert site.released(job_id) == [("start", 1)] and site.released(other) == [] and site.serves()


OTHERS: dict[str, dict[str, Any]] = {
    "another job": {"job": {"seed": 1}},
    "the same under another nonce": {},
    "an expired one": {"expires": datetime.now(UTC) - timedelta(days=1)},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_the_files_of_an_admitted_job_cannot_be_swapped(site: Attacked, other: dict[str, Any]) -> None:
    """A courier that comes back under the id of an admitted job, with other files that a submitter signed: they would
    run on the state of the first, and their own nonce, expiry and repetitions would be looked at by nobody."""
    first = site.open(job_id := str(uuid4()))
    assert first.ask("start", 1).tensors
    first.socket.close()
    second = site.open(job_id, site.files(**other))
    assert second.ask("start", 1) == Answer(code="replay") and site.refusals(job_id) == ["replay"]
    second.end()
    assert site.released(job_id) == [("start", 1)] and site.serves()


# Messages of a server that is not the job's.

ARRAYS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "not a number": lambda a: a | {"prompt.image": np.full_like(a["prompt.image"], np.nan)},
    "endless": lambda a: a | {"prompt.image": np.full_like(a["prompt.image"], np.inf)},
    "another shape": lambda a: a | {"prompt.image": a["prompt.image"][None]},
    "another type": lambda a: a | {"prompt.image": a["prompt.image"].astype("float64")},
    "bytes for numbers": lambda a: a | {"prompt.image": np.frombuffer(a["prompt.image"].tobytes(), np.uint8)},
    "one more": lambda a: a | {"rows": np.zeros(3, np.float32)},
    "one less": lambda a: {"prompt.image": a["prompt.image"]},
    "none": lambda a: {},
}


@pytest.mark.parametrize("change", ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_that_the_job_does_not_declare_are_used_for_nothing(site: Attacked, change: Any) -> None:
    """The refused message stands in the log; nothing was trained, and the round has no answer."""
    client = site.open(job_id := str(uuid4()))
    start = client.ask("start", 1)
    assert client.ask("train", 2, change(down(start))) == Answer(code="message")
    client.end()
    assert site.refusals(job_id) == ["message"] and site.released(job_id) == [("start", 1)] and site.serves()


ORDERS: dict[str, tuple[str, Any]] = {
    "back": ("start", 1),
    "beyond the plan": ("train", 35),
    "a round of another task": ("start", 2),
    "round 0": ("train", 0),
    "a round below 0": ("train", -1),
    "a round of 13 digits": ("train", 10**12),
    "a task that is none": ("shell", 2),
    "a task that names a file": ("../start", 2),
    "a sum in a job without sums": ("start/mean", 1),
}


@pytest.mark.parametrize(("task", "round"), ORDERS.values(), ids=ORDERS.keys())
def test_a_task_out_of_order_ends_the_sites_part(site: Attacked, task: str, round: Any) -> None:
    """After the second round; the honest task is refused from then on as well, also of the next process."""
    client = site.open(job_id := str(uuid4()), files := site.files())
    start = client.ask("start", 1)
    second = client.ask("train", 2, down(start))
    assert client.ask(task, round, down(start)) == Answer(code="order")
    assert client.ask("evaluate", 2, down(second)) == Answer(code="order")
    client.socket.close()
    last = site.open(job_id, files)
    assert last.ask("evaluate", 2, down(second)).code == "replay"
    last.end()
    assert site.refusals(job_id)[0] == "order" and site.released(job_id) == [("start", 1), ("train", 2)]
    assert site.serves()


def test_a_task_that_is_asked_again_with_other_bytes_gets_the_first_answer(site: Attacked) -> None:
    """Of the same process and of the next one: nobody has two answers to two models. Audit bytes that are none change
    nothing either."""
    client = site.open(job_id := str(uuid4()), files := site.files())
    start = client.ask("start", 1, data=b"\xff" * (1 << 20))
    other = {name: array + np.float32(0.01) for name, array in down(start).items()}
    answers = [client.ask("train", 2, down(start)), client.ask("train", 2, other)]
    client.socket.close()
    last = site.open(job_id, files)
    answers.append(last.ask("train", 2, other))
    last.end()
    bits = [{name: array.tobytes() for name, array in answer.tensors.items()} for answer in answers]
    assert bits[0] == bits[1] == bits[2] != {} and not any(answer.code for answer in answers) and site.serves()


# Sums on shares, at three vaults.


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[Callable[..., SocketLiar]]:
    """Makes a lying server of a new job at the sockets of three sites, which mix on shares. No job there is signed."""
    folder, job = tmp_path_factory.mktemp("sharing"), JobSpec.from_dict(JOB | {"secagg": True})
    paths = sites_of(folder, job, {RANDOM: random_backbone})
    places = {site: VaultPlace(path, site, None, path.parent / "vault") for site, path in paths.items()}
    files = {"job.json": json.dumps(job.to_dict()).encode()}

    def made(**more: Any) -> SocketLiar:
        started(places.values())
        return SocketLiar(places, job, str(uuid4()), files, **more)

    try:
        yield made
    finally:
        for process in [process for place in places.values() for process in processes(place)]:
            process.kill()


def codes(server: SocketLiar) -> set[str]:
    """Those in the logs of all sites."""
    logs = [place.config.parent / "audit" for place in server.places.values()]
    entries = [entry for log in logs for entry in read(log) if entry.job == server.job_id]
    assert all(verify(log).ok for log in logs)
    return {entry.admission["code"] for entry in entries if entry.event is Event.REFUSAL and entry.admission}


@pytest.mark.parametrize("name", MIXING)
def test_a_server_that_lies_about_a_mixture_gets_none(federation: Callable[..., SocketLiar], name: str) -> None:
    """The lies of the federation's tests at the sockets; without a lie all sites have their mixture, and a round that
    was mixed has no second one."""
    server = federation()
    server.tell("start", 1, THREE)
    play, expected = MIXING[name]
    deal = play(server, THREE)
    server.close()
    assert deal.codes == expected == codes(server)
    assert deal.completed == ([] if expected else list(THREE))
    assert deal.seeds == {} or "attempt" not in expected


def test_mail_of_another_attempt_or_site_is_no_mail(federation: Callable[..., SocketLiar]) -> None:
    """A courier that passes on letters under other names: each counts as none, and nobody has a mixture."""
    for bend in ({"attempt": "another"}, {"site": "zoo"}):
        server = federation(bend_mail=lambda head, bend=bend: {k: head[k] for k in ("attempt", "site")} | bend)
        server.tell("start", 1, THREE)
        deal = Deal(server, "start", 1, THREE, THREE).play()
        server.close()
        assert deal.completed == []


def test_an_attempt_that_is_no_json_is_refused(federation: Callable[..., SocketLiar]) -> None:
    """And the next honest job of the same sites mixes."""
    server = federation()
    server.tell("start", 1, THREE)
    message = attempt_message("a", THREE, THREE) | {"attempt": np.frombuffer(b"{", np.uint8)}
    answers = server.tell("start/seed", 1, THREE, message)
    server.close()
    assert {answer.code for answer in answers.values()} <= {"attempt", "message"} and codes(server)
    honest = federation()
    honest.tell("start", 1, THREE)
    assert Deal(honest, "start", 1, THREE, THREE).play().completed == list(THREE)
    honest.close()
