"""The administrator's connection: what it tries again, what it does not, and how it says that it gave up."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.flare_api import api_spec

from medfedvqa.errors import FederationError
from medfedvqa.federation.flare import admin_client
from medfedvqa.federation.flare.admin_client import AdminClient, pauses


class Server:
    """A server whose answers a test lists: an error of FLARE's own is raised, anything else is returned."""

    def __init__(self, *answers: Any, logins: tuple[Any, ...] = ()) -> None:
        self.answers, self.logins = list(answers), list(logins)
        self.sessions, self.closed, self.tokens = 0, 0, set[str]()
        self.api = SimpleNamespace(unset_command_timeout=lambda: None)

    def connect(self, user: str, kit: str, timeout: float) -> "Server":
        if self.logins and (problem := self.logins.pop(0)) is not None:
            raise problem
        self.sessions += 1
        return self

    def close(self) -> None:
        self.closed += 1
        raise ConnectionError("the server is gone")

    def submit_job(self, folder: str, submit_token: str) -> Any:
        self.tokens.add(submit_token)
        return self.get_job_status(folder)

    def get_job_status(self, job_id: str) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def abort_job(self, job_id: str) -> None:
        self.get_job_status(job_id)

    def download_job_result(self, job_id: str, folder: str) -> None:
        (Path(folder) / job_id).mkdir()
        (Path(folder) / job_id / "part").write_text("x")
        (Path(folder) / job_id / "whole").write_text(self.get_job_status(job_id))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., AdminClient]:
    monkeypatch.setattr(admin_client, "_FIRST_PAUSE", 0.001)
    return lambda server, deadline=60.0: AdminClient("admin", tmp_path, deadline, server.connect)


@pytest.mark.parametrize(
    "error",
    [
        api_spec.NoConnection("down"),
        api_spec.SessionExpired("idle"),
        api_spec.NoReply("slow"),
        api_spec.InternalError("protocol error"),
        api_spec.AuthenticationError("the session is unknown"),
        RuntimeError("runtime error encountered"),
        OSError("reset"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_server_that_is_slow_or_restarts_is_asked_again(client: Callable[..., AdminClient], error: Exception) -> None:
    """After each failed answer a new session asks again, also where a first login fails."""
    server = Server(error, error, "RUNNING", logins=(api_spec.NoConnection("not up yet"),))
    assert client(server).status("job") == "RUNNING"
    assert (server.sessions, server.closed) == (3, 2)


def test_a_job_is_submitted_once_however_often_it_is_sent(client: Callable[..., AdminClient], tmp_path: Path) -> None:
    """All tries of one submission carry one token, by which the server knows it again; the next has another."""
    server = Server(TimeoutError(), "id-1", "id-2")
    connection = client(server)
    assert connection.submit(tmp_path) == "id-1" and len(server.tokens) == 1
    assert connection.submit(tmp_path) == "id-2" and len(server.tokens) == 2


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (Server(logins=(api_spec.AuthenticationError("no"),)), "certificate"),
        (Server(api_spec.AuthorizationError("no")), "does not allow"),
        (Server(api_spec.InvalidJobDefinition("no")), "export it again"),
        (Server(api_spec.JobNotFound("no")), "no job of this id"),
    ],
    ids=["certificate", "role", "folder", "job"],
)
def test_an_answer_that_will_not_change_is_one_sentence_at_once(
    client: Callable[..., AdminClient], server: Server, words: str
) -> None:
    """It is not asked for again, and FLARE's text is not repeated."""
    with pytest.raises(FederationError, match=words):
        client(server).status("job")
    assert not server.answers and not server.logins


def test_a_server_that_never_answers_is_given_up_with_a_sentence(client: Callable[..., AdminClient]) -> None:
    """After the deadline, and not before it has been asked several times."""
    server = Server(*[ConnectionError("secret text") for _ in range(1000)])
    with pytest.raises(FederationError, match=r"did not answer within 0 seconds \(ConnectionError\): see") as given_up:
        client(server, 0.1).status("job")
    assert server.sessions > 3 and "secret" not in str(given_up.value)


def test_pauses_double_up_to_a_limit_and_end_at_the_deadline() -> None:
    """By a clock that the test holds."""
    now = [0.0]
    waits = []
    for pause in islice(pauses(40.0, lambda: now[0]), 100):
        waits.append(pause)
        now[0] += pause
    assert waits[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4] and max(waits) == 10.0 and sum(waits) == pytest.approx(40.0)


def test_aborting_a_job_that_is_over_is_no_error(client: Callable[..., AdminClient]) -> None:
    """The first request may have reached the server although its answer was lost."""
    client(Server(TimeoutError(), api_spec.JobNotRunning("over"))).abort("job")


def test_results_are_fetched_whole_or_not_at_all(client: Callable[..., AdminClient], tmp_path: Path) -> None:
    """A download that breaks off leaves nothing, and the next one is whole."""
    fetched = client(Server(ConnectionError(), "all")).download("job", tmp_path / "results")
    assert (fetched / "whole").read_text() == "all"
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["job"]
