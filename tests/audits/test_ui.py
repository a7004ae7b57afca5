"""The local pages over the logs, asked for as a program asks: what is answered, to whom, and with what around it."""

import http.client
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from logs import HOSTILE, JOB, fix_clocks, peak, serve, write_logs

from audits import AuditLog, Event, LogError, Outcome, find_logs, read
from audits.checkpoint import origin_of
from audits.retention import expire
from audits.signed_note import AuditKey
from audits.ui import AuditServer
from audits.ui.index import Filter, Index

PAGES = ("", "entries", "entry?site=chest&seq=2", "tensors", "budgets", "verdicts")


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    text: str


class Markup(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


Ask = Callable[..., Got]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with two logs, for tests to copy."""
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        fix_clocks(patch)
        patch.setattr("os.fsync", lambda file: None)
        write_logs(folder, rounds=30)
    return folder


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "run")


@pytest.fixture
def server(run: Path) -> Iterator[AuditServer]:
    with serve(run) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(server: AuditServer) -> Ask:
    """Asks for a page of the server, or for `path` as it stands; an empty `host` sends no such header."""

    def got(page: str = "", path: str | None = None, method: str = "GET", host: str | None = None) -> Got:
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.putrequest(method, address.path + page if path is None else path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or address.netloc)
        connection.endheaders()
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Got(answer.status, dict(answer.getheaders()), text)

    return got


def rows(text: str) -> list[str]:
    """The addresses of the entries that a page lists."""
    return re.findall(r'href="(entry\?[^"]+)"', text)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_locked_down(ask: Ask, page: str) -> None:
    """No script, no cookie, nothing from elsewhere, nothing kept or framed; the server does not say what it is."""
    got = ask(page)
    assert got.status == 200 and got.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = got.headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'" and "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
    assert not any("script" in rule or "unsafe" in rule or "http" in rule for rule in policy)
    assert got.headers["Cache-Control"] == "no-store" and got.headers["Referrer-Policy"] == "no-referrer"
    assert got.headers["X-Content-Type-Options"] == "nosniff" and got.headers["X-Frame-Options"] == "DENY"
    assert "Set-Cookie" not in got.headers and "Python" not in got.headers["Server"]
    markup = Markup()
    markup.feed(got.text)
    assert not markup.tags & {"script", "style", "iframe", "img", "object", "base"}
    assert not any(name.startswith("on") or name in ("style", "src") for name, _ in markup.attributes)
    links = [value or "" for name, value in markup.attributes if name in ("href", "action")]
    assert links and not any(urlsplit(link).scheme or urlsplit(link).netloc for link in links)


def test_it_listens_on_the_loopback_only(server: AuditServer) -> None:
    """No other machine can reach it, whatever its firewall says."""
    assert server.socket.getsockname()[0] == "127.0.0.1" and server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("host", ["", "example.org", "127.0.0.1", "127.0.0.1:1", "example.org:{port}", "[::1]:{port}"])
def test_another_name_for_this_machine_gets_nothing(ask: Ask, server: AuditServer, host: str) -> None:
    """A page from elsewhere that makes its own name point here (DNS rebinding) learns nothing."""
    got = ask(host=host.format(port=server.server_port))
    assert got.status == 421 and "chest" not in got.text
    assert ask(host=f"LocalHost:{server.server_port}").status == 200


def test_two_hosts_are_one_too_many(server: AuditServer) -> None:
    """What a proxy in between might read otherwise is refused."""
    address = urlsplit(server.url)
    text = f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nHost: example.org\r\nConnection: close\r\n\r\n"
    assert raw(server, text).startswith(b"HTTP/1.1 421 ")


def raw(server: AuditServer, request: str) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(partial(connection.recv, 65536), b""))


@pytest.mark.parametrize("path", ["/", "/entries", "/favicon.ico", "/wrong/", "//", "/../", "/%00/", "/ü/"])
def test_without_the_token_there_is_nothing(server: AuditServer, path: str) -> None:
    """Another user of the machine finds the port, but neither a page nor a hint."""
    address = urlsplit(server.url)
    answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n")
    assert re.match(rb"HTTP/1.1 40[04] ", answer) and b"chest" not in answer
    assert len(address.path) > 30


def test_tokens_differ(run: Path, server: AuditServer) -> None:
    """An address from last week opens nothing today."""
    with serve(run) as other:
        assert urlsplit(other.url).path != urlsplit(server.url).path


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_only_reading_is_possible(ask: Ask, run: Path, method: str) -> None:
    """Any other method is refused, and says which are not."""
    got = ask(method=method)
    assert got.status == 405 and got.headers["Allow"] == "GET, HEAD"


def test_head_is_get_without_its_body(ask: Ask) -> None:
    """Same headers, no body."""
    get, head = ask("tensors"), ask("tensors", method="HEAD")
    assert head.text == "" and head.status == 200
    assert {**get.headers, "Date": ""} == {**head.headers, "Date": ""}


def test_looking_changes_nothing(ask: Ask, run: Path) -> None:
    """The logs' folders hold what they held, byte for byte."""
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for page in PAGES:
        ask(page)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_names_from_the_log_are_text(ask: Ask) -> None:
    """A job whose name is markup is shown as its name, wherever jobs are shown."""
    for page in ("", "entries", "tensors", f"entries?job={quote(HOSTILE)}", "entry?site=chest&seq=65"):
        text = ask(page).text
        assert escape(HOSTILE) in text and "<img" not in text and HOSTILE not in text
    assert "&lt;b&gt;" in ask("entries?job=%3Cb%3E").text


def test_pages_hold_every_entry_once(ask: Ask, run: Path) -> None:
    """Going from page to page shows each entry of each log once, the newest first."""
    seen: list[str] = []
    page, more = 1, True
    while more:
        text = ask(f"entries?page={page}").text
        result = rows(text)
        assert 0 < len(result) <= 50
        seen += result
        page, more = page + 1, f"entries?page={page + 1}" in text
    expected = {f"entry?site={site}&amp;seq={e.seq}" for site, log in find_logs(run).items() for e in read(log)}
    assert len(seen) == len(expected) and set(seen) == expected and page == 4
    assert seen[0].startswith("entry?site=head") and seen[-1] == "entry?site=chest&amp;seq=0"


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("site=head", 66),
        ("job=job-1", 124),
        ("job=job-2&site=chest", 2),
        ("event=receive", 60),
        ("outcome=refused", 4),
        ("kind=activations", 2),
        ("kind=statistic&site=chest", 30),
        ("charged=1", 60),
        ("site=&job=&event=release&outcome=sent&kind=&page=2", 62),
        ("site=nowhere", 0),
    ],
)
def test_filters(ask: Ask, query: str, count: int) -> None:
    """By site, job, event, outcome, kind of tensor, charge; an empty field asks for all."""
    text = ask(f"entries?{query}").text
    if not count:
        assert "No entry is like that" in text
    else:
        assert f"<caption>{count} entries" in text


@pytest.mark.parametrize(
    "page", ["entries?page=0", "entries?page=99", "entries?page=-1", "entries?page=%D9%A1", "entries?kind=secret"]
    + ["entry?site=chest&seq=x", "entry?site=chest&seq=2&page=2", "entries?" + "&".join(f"a{n}=1" for n in range(99))]
)  # fmt: skip
def test_what_no_page_understands_is_a_sentence(ask: Ask, page: str) -> None:
    """A bad number or kind gives 400, never a traceback."""
    got = ask(page)
    assert got.status == 400 and "Traceback" not in got.text


@pytest.mark.parametrize(
    "page", ["nothing", "page.css/x", "entry?site=chest&seq=9999", "entry?site=..&seq=0", "entry", "../"]
)
def test_what_is_not_there_is_not_found(ask: Ask, page: str) -> None:
    """Neither a page nor a file of the machine."""
    assert ask(page).status == 404


def test_an_entry_page_says_all_that_the_entry_says(ask: Ask, run: Path) -> None:
    """Every value of the entry and of its tensors is on its page."""
    entry = list(read(find_logs(run)["chest"]))[4]
    text = ask("entry?site=chest&seq=4").text
    for name, value in entry.record().items():
        if isinstance(value, str):
            assert escape(value) in text, name
    for tensor in entry.tensors:
        assert tensor.name in text and str(tensor.sha256) in text and f"{tensor.nbytes:,}" in text
    assert "4 × 4 × 256" in text and "gaussian" in text and "0.5" in text and "seq=3" in text and "seq=5" in text


def test_many_tensors_are_turned_over_by_pages(ask: Ask, run: Path) -> None:
    """An entry with more tensors than a page takes has several pages of them."""
    log = AuditLog(find_logs(run)["chest"], "chest")
    first = next(entry for entry in read(find_logs(run)["chest"]) if entry.tensors)
    seq = log.append(Event.RECEIVE, **JOB, tensors=first.tensors * 120).seq
    texts = [ask(f"entry?site=chest&seq={seq}&page={page}").text for page in (1, 2, 3)]
    assert [text.count('data-label="Tensor"') for text in texts] == [50, 50, 20]
    named = tuple(replace(first.tensors[0], name=f"tensor {number}") for number in range(60))
    log.append(Event.RECEIVE, **JOB, outcome=Outcome.ACCEPTED, tensors=named)
    pages = [ask(f"tensors?site=chest&page={page}").text for page in (1, 2)]
    assert all(sum(f"{tensor.name}<" in text for text in pages) == 1 for tensor in named)


def test_sums_are_those_of_the_log(ask: Ask) -> None:
    """Overview, tensors and budgets say what `totals` says: refused messages are not counted."""
    overview, tensors, budgets = ask().text, ask("tensors?site=chest").text, ask("budgets").text
    assert "31 messages, 508,024 bytes" in overview and "30 messages, 491,520 bytes" in overview
    assert 'data-label="Bytes" class="number">491,520</td>' in tensors and "activations</th>" not in tensors
    assert 'data-label="Epsilon after" class="number">15.0000</td>' in budgets and budgets.count("<svg") == 2


def test_what_a_log_grows_by_is_on_the_next_page(ask: Ask, run: Path) -> None:
    """A page shows the log as it is, also where a crash left a torn line behind."""
    folder = find_logs(run)["head"]
    AuditLog(folder, "head").append(Event.OPEN, **{**JOB, "job": "late"})
    assert "late" in ask().text
    with open(folder / "log.jsonl", "ab") as file:
        file.write(b'{"actor":')
    assert "<caption>67 entries" in ask("entries?site=head").text
    AuditLog(folder, "head").append(Event.CLOSE, **{**JOB, "job": "later"})
    assert "<caption>69 entries" in ask("entries?site=head").text


def test_a_broken_log_is_shown_up_to_where_it_breaks(run: Path, ask: Ask) -> None:
    """The overview names the entry and the verdict says it, whether it broke before or while it was looked at."""
    log = find_logs(run)["head"] / "log.jsonl"
    assert "does not match" not in ask().text
    log.write_bytes(log.read_bytes().replace(b'"round":3', b'"round":4', 1))
    assert "entry 5: the entry does not match its hash" in ask().text
    assert "<caption>5 entries" in ask("entries?site=head").text
    verdicts = ask("verdicts").text
    assert 'class="badge bad"' in verdicts and "Integrity: broken" in verdicts and "Integrity: not shown" in verdicts
    assert 'href="entry?site=head&amp;seq=5"' in verdicts and "the entry does not match its hash" in verdicts


def test_an_entry_that_changed_since_is_not_shown(run: Path, ask: Ask) -> None:
    """What is shown was read from the log just now and matches its hash."""
    log = find_logs(run)["chest"] / "log.jsonl"
    assert ask("entry?site=chest&seq=4").status == 200
    then = log.stat()
    with open(log, "r+b") as file:
        file.write(log.read_bytes().replace(b'"round":2', b'"round":7'))
    os.utime(log, ns=(then.st_atime_ns, then.st_mtime_ns))  # who changes a log may set the clock back as well
    got = ask("entry?site=chest&seq=4")
    assert got.status == 500 and "entry 4 is no longer what it was" in got.text


def test_segments_are_one_log(run: Path, ask: Ask) -> None:
    """Closed segments are shown with the growing one, also those that are closed while somebody looks."""
    folder = find_logs(run)["head"]
    log = AuditLog(folder, "head", segment_bytes=4000)
    for number in range(12):
        log.append(Event.OPEN, **{**JOB, "job": "late"}, round=number)
        if number % 5 == 0:
            assert f"<caption>{67 + number} entries" in ask("entries?site=head").text
    assert len(list(folder.glob("log-*.jsonl"))) > 2
    assert all(ask(f"entry?site=head&seq={seq}").status == 200 for seq in (0, 65, 66, 70, 77))
    assert ask("entry?site=head&seq=78").status == 404


def test_expired_segments_are_said_to_be(run: Path, ask: Ask) -> None:
    """A log whose first segments are past retention is shown from where it begins now."""
    folder = find_logs(run)["head"]
    log = AuditLog(folder, "head", AuditKey.at(run / "key", origin_of("head")), segment_bytes=4000)
    for _ in range(8):
        log.append(Event.OPEN, **{**JOB, "job": "late"})
    later = datetime(2099, 1, 1, tzinfo=UTC)
    assert expire(log, date=later.date(), now=later).deleted > 1
    log.close()
    assert "entries before these" in ask().text and "No entry is like that" in ask("entries?site=head&job=job-1").text
    assert ask("entry?site=head&seq=0").status == 404 and ask("entry?site=head&seq=74").status == 200


def test_a_log_that_vanished_is_a_sentence(run: Path, ask: Ask) -> None:
    """No traceback, no path."""
    (find_logs(run)["chest"] / "log.jsonl").unlink()
    got = ask()
    assert got.status == 500 and "cannot be indexed" in got.text and str(run) not in got.text


def test_a_taken_port_is_a_sentence(server: AuditServer, run: Path) -> None:
    """The error says what to do."""
    with pytest.raises(LogError, match="0 for any free port"):
        serve(run, server.server_port)


def test_a_site_that_has_sent_nothing_has_totals_of_nothing(tmp_path: Path) -> None:
    """Neither messages nor bytes, in either direction."""
    AuditLog(tmp_path, "chest").append(Event.OPEN, **JOB)
    index: Any = Index({"chest": tmp_path})
    index.refresh()
    (facts,) = index.sites()
    assert (facts.entries, facts.released, facts.bytes_out, facts.received, facts.bytes_in) == (1, 0, 0, 0, 0)
    index.close()


def test_memory_does_not_grow_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the entries take no more memory for the index, a page in its middle and one entry."""
    monkeypatch.setattr("os.fsync", lambda file: None)

    def look(folder: Path) -> None:
        index: Any = Index({"chest": folder})
        index.refresh()
        count = index.count(Filter(site="chest"))
        assert len(index.entries(Filter(site="chest"), count // 2, 20)) == 20 and index.entry("chest", count - 1)
        index.close()

    peaks = []
    for entries in (60, 600):
        log = AuditLog(tmp_path / str(entries), "chest")
        for number in range(entries):
            log.append(Event.OPEN, **JOB, round=number, reason="r" * 4000)
        peaks.append(peak(partial(look, tmp_path / str(entries))))
    assert peaks[1] < peaks[0] + 600 * 4000 // 4
