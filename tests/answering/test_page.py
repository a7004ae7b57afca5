"""The local page asks as the command does, and is locked down like the pages of the audit log."""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from browsers import CONTRASTS, UNNAMED, browsed, browser, opened
from playwright.sync_api import Browser

from audits import Event, read
from medfedvqa.answering.answerer import Answerer, AnswerServer
from medfedvqa.answering.kept_run import load_kept

__all__ = ["browser"]
QUESTION = "Is there a <b>mass</b> & more?"


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    text: str


Ask = Callable[..., Got]


@pytest.fixture(scope="module")
def server(finished: Path) -> Iterator[AnswerServer]:
    with Answerer(load_kept(finished, "chest")) as answerer, AnswerServer(answerer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(server: AnswerServer) -> Ask:
    """Asks for the page, or sends it a form with these fields."""

    def got(fields: dict[str, bytes] | None = None, host: str | None = None, path: str | None = None) -> Got:
        address = urlsplit(server.url)
        parts = [
            b'--edge\r\nContent-Disposition: form-data; name="%s"; filename="Zaphod.png"\r\n\r\n%s\r\n'
            % (name.encode(), value)
            for name, value in (fields or {}).items()
        ]
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
        headers = {"Host": host or address.netloc, "Content-Type": "multipart/form-data; boundary=edge"}
        method = "GET" if fields is None else "POST"
        connection.request(method, path or address.path, b"".join(parts) + b"--edge--\r\n" if fields else b"", headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Got(answer.status, dict(answer.getheaders()), text)

    return got


def answered(finished: Path) -> int:
    return sum(entry.event is Event.ANSWERED for entry in read(finished / "sites" / "chest" / "audit"))


def test_a_form_is_answered_as_the_command_answers(ask: Ask, finished: Path, picture: Path) -> None:
    """The same answers and probabilities, the attention as a picture, the warning, one more entry in the log."""
    before = answered(finished)
    got = ask({"picture": picture.read_bytes(), "question": QUESTION.encode()})
    assert got.status == 200 and answered(finished) == before + 1
    with Answerer(load_kept(finished, "chest")) as answerer:
        best, share = answerer.ask(picture.read_bytes(), QUESTION, 1).answers[0]
    assert f">{best}<" in got.text and f"{share:.1%}" in got.text and "not a medical device" in got.text
    assert "data:image/png;base64," in got.text
    assert "<b>mass" not in got.text and "&lt;b&gt;mass" in got.text and "Zaphod" not in got.text


def test_the_page_is_locked_down(ask: Ask, server: AnswerServer) -> None:
    """No script, nothing from elsewhere but pictures in the page itself; nothing kept; loopback only; no other name."""
    got = ask()
    rules = got.headers["Content-Security-Policy"].split("; ")
    assert rules[0] == "default-src 'none'" and "form-action 'self'" in rules and "img-src data:" in rules
    assert not any("script" in rule or "unsafe" in rule or "http" in rule for rule in rules)
    assert got.headers["Cache-Control"] == "no-store" and got.headers["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in got.headers and "<script" not in got.text and "not a medical device" in got.text
    assert server.socket.getsockname()[0] == "127.0.0.1"
    form = {"picture": b"x", "question": b"x"}
    assert ask(host="example.org").status == ask(form, host="example.org").status == 421
    assert ask(path="/wrong/").status == ask(form, path="/wrong/").status == 404


@pytest.mark.parametrize("fields", [{"picture": b"Zaphod", "question": b"is it"}, {"picture": b""}, {"question": b"?"}])
def test_what_is_no_question_about_a_picture_is_refused(ask: Ask, finished: Path, fields: dict[str, bytes]) -> None:
    """One sentence, the form again, and no entry."""
    before = answered(finished)
    got = ask(fields)
    assert got.status == 400 and "Not answered" in got.text and "<form" in got.text and "Zaphod" not in got.text
    assert answered(finished) == before


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 999999999\r\nContent-Type: multipart/form-data; boundary=edge",
        "Content-Length: 4\r\nContent-Type: text/plain",
        "Content-Length: 9\r\nContent-Type: multipart/form-data; boundary=edge",
        "Content-Type: multipart/form-data; boundary=edge",
    ],
)
def test_another_body_is_no_form(server: AnswerServer, head: str) -> None:
    """Too large, of another kind, cut, of unsaid length: refused without being read."""
    address = urlsplit(server.url)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(
            f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n{head}\r\n\r\n--edge--x".encode()
        )
        assert connection.makefile("rb").readline().split()[1] == b"400"


@pytest.mark.parametrize("page", [True, False])
def test_the_command_takes_a_page_or_a_question(medfedvqa: Callable[..., Got], finished: Path, page: bool) -> None:
    """Not both, and not a question without a picture."""
    more = ("--page",) if page else ()
    done = medfedvqa("answer", "--run", str(finished), "--site", "chest", "--question", "is it", *more)
    assert done[0] == 1 and "--picture and --question together, or --page" in done[2]


class TestInABrowser:
    pytestmark = browsed

    def test_a_person_asks_and_sees(self, browser: Browser, server: AnswerServer, picture: Path) -> None:
        """Picks a picture, types a question, and gets answers, attention and warning; without any complaint of the
        browser, from this server alone; every control has a name, and all text is legible."""
        page = opened(browser, viewport={"width": 1100, "height": 900})
        asked, complaints = list[str](), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(server.url)
        page.get_by_label("Picture").set_input_files(picture)
        page.get_by_label("Question").fill(QUESTION)
        page.keyboard.press("Enter")
        page.wait_for_selector("figure.attention img")
        assert page.locator("tbody tr").count() == 5 and QUESTION in page.locator("main").inner_text()
        assert "not a medical device" in page.locator("main").inner_text()
        drawn = page.locator("figure.attention img")
        assert drawn.evaluate("image => image.complete && image.naturalWidth > 400")
        assert page.evaluate(UNNAMED) == [] and min(page.evaluate(CONTRASTS)) >= 4.5
        here = urlsplit(server.url).netloc
        assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {here} and complaints == []
        page.context.close()
