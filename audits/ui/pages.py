"""The pages, made from the index and the query in the address, and the server that shows them to a browser on the same
machine. It answers only GET and HEAD.
"""

import math
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

from audits.entry import Entry, Event, Outcome, TensorRecord
from audits.errors import LogError, Refusal, known_code
from audits.escaping import Child, Html, for_html, join, tag
from audits.examination import Examination
from audits.exchange import Kind, canonical
from audits.judgement import VerdictState
from audits.ui.index import Filter, Index, SiteFacts
from audits.ui.local_server import Answer, LocalServer, Upload, html_answer
from audits.ui.widgets import (
    Query,
    badge,
    chooser,
    code,
    course,
    document,
    facts,
    link,
    moment,
    nats,
    pager,
    table,
)  # fmt: skip

# The three verdicts on each log, kept until they are asked for again.

Judge = Callable[[], Examination]


@dataclass(frozen=True)
class Checked:
    """The verdicts on a log at `time` (UTC), or the reason why there are none."""

    time: str
    found: Examination | None
    reason: str = ""


class Checks:
    """Verdicts by site, as `judges` give them."""

    def __init__(self, judges: Mapping[str, Judge]) -> None:
        self._judges = dict(judges)
        self._latest: dict[str, Checked] = {}

    def latest(self, site: str) -> Checked:
        """The verdicts on a log as they were when it was last checked."""
        return self._latest.get(site) or self.check(site)

    def check(self, site: str) -> Checked:
        """The verdicts on a log as it is now."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            self._latest[site] = Checked(time, self._judges[site]())
        except LogError as error:
            self._latest[site] = Checked(time, None, str(error))
        return self._latest[site]


PAGE = 50  # rows to a page
JOBS = 200  # jobs that a list shows at most
NAMES = 2  # tensors of an entry that a list names
RAW = 1 << 16  # characters of an entry's line that a page shows at most
_STATES = {VerdictState.SHOWN: "good", VerdictState.NOT_SHOWN: "open", VerdictState.BROKEN: "bad"}
_LABELS = {
    "seq": "Number", "time": "Time", "site": "Site", "event": "Event", "outcome": "Outcome", "reason": "Reason",
    "direction": "Direction", "peer": "Other end", "job": "Job", "method": "Method", "round": "Round", "task": "Task",
    "actor": "Submitted by", "nbytes": "Bytes", "epsilon_before": "Epsilon before", "epsilon_after": "Epsilon after",
    "admission": "Admission", "dp_event": "Charge", "wire": "Bytes on the network",
    "policy": "Site policy", "exchange": "Exchange spec",
    "code_version": "Code version", "code_digest": "Code digest", "code": "Parts of the code",
    "isolation": "Network kept away by",
    "model_digest": "Model digest",
    "leaf_hash": "Hash of this entry", "prev_hash": "Hash of the entry before", "monotonic": "Steady clock, ns",
}  # fmt: skip


class BadQuery(Exception):
    """A malformed query in an address; the text says what is wrong."""


@dataclass(frozen=True)
class Sight:
    """The data that the pages show."""

    index: Index
    checks: Checks

    @property
    def sites(self) -> list[str]:
        return list(self.index.folders)


def overview(sight: Sight, query: Query) -> Html:
    """The page with totals of each log, and the jobs."""
    cards = (_card(sight, site) for site in sight.index.sites())
    return document("Overview", "./", tag("div", *cards, class_="cards"), _jobs(sight, None))


def _card(sight: Sight, site: SiteFacts) -> Html:
    checked = sight.checks.latest(site.site)
    refused_jobs = link(f"{site.refused_jobs:,}", "entries", site=site.site, event="refusal")
    told: list[tuple[str, Child]] = [
        ("Entries", link(f"{site.entries:,}", "entries", site=site.site)),
        ("Expired", f"{site.first:,} entries before these" if site.first else None),
        ("Released", f"{site.released:,} messages, {site.bytes_out:,} bytes"),
        ("Received", f"{site.received:,} messages, {site.bytes_in:,} bytes"),
        ("Refused", link(f"{site.refused:,}", "entries", site=site.site, outcome="refused") if site.refused else "0"),
        ("Refused jobs", refused_jobs if site.refused_jobs else None),
        ("Epsilon", nats(site.epsilon) or "nothing charged"),
        ("Last entry", moment(site.last) or "none"),
        ("Checked", moment(checked.time)),
    ]
    broken = site.broken and tag("p", f"Only what comes before it is shown: {site.broken}.", class_="finding")
    head = tag("h2", f"Site {site.site}")
    return tag("section", head, _badges(checked), broken or None, facts(told))


def _jobs(sight: Sight, site: str | None) -> Html | None:
    jobs = sight.index.jobs(site, JOBS + 1)
    if not jobs:
        return None
    columns = "Job", "Site", "Released", "Bytes", "Refused", "Entries", "Last entry"
    rows = (
        (
            link(job.job, "entries", job=job.job, site=job.site), job.site, f"{job.released:,}", f"{job.bytes_out:,}",
            f"{job.refused:,}", f"{job.entries:,}", moment(job.last),
        )
        for job in jobs[:JOBS]
    )  # fmt: skip
    caption = "By site, the latest first" if len(jobs) <= JOBS else f"The latest {JOBS}, by site"
    return tag("section", tag("h2", "Jobs"), table(caption, columns, rows))


def entries(sight: Sight, query: Query) -> Html:
    """Entries that the filter lets through, newest first."""
    asked, page = _filter(query), _page(query)
    count = sight.index.count(asked)
    _check_page(page, count)
    found = sight.index.entries(asked, (page - 1) * PAGE, PAGE)
    columns = "Entry", "Time", "Site", "Job", "Event", "Round, task", "Other end", "Tensors", "Bytes", "Epsilon"
    rows = (_entry_row(site, entry) for site, entry in found)
    choices = {
        "site": sight.sites,
        "job": sorted({job.job for job in sight.index.jobs(asked.site, JOBS)}),
        "event": [str(event) for event in Event],
        "outcome": [str(outcome) for outcome in Outcome],
        "code": [str(code) for code in Refusal],
        "kind": [str(kind) for kind in Kind],
    }
    form = chooser("entries", query, choices, {"charged": "charged to the budget"})
    if not count:
        return document("Entries", "entries", form, tag("p", "No entry is like that."))
    told = f"{count:,} entries, the newest first" if count > 1 else "1 entry"
    turn = pager("entries", "entries", query, page, PAGE, count)
    return document("Entries", "entries", form, table(told, columns, rows), turn)


def _entry_row(site: str, entry: Entry) -> tuple[Child, ...]:
    names = ", ".join(tensor.name for tensor in entry.tensors[:NAMES])
    return (
        link(f"{entry.seq:,}", "entry", site=site, seq=entry.seq),
        moment(entry.time),
        site,
        entry.job,
        _event(entry),
        ", ".join(str(part) for part in (entry.round, entry.task) if part is not None),
        f"{'to' if entry.direction == 'out' else 'from'} {entry.peer}" if entry.peer else "",
        names + (f" and {len(entry.tensors) - NAMES} more" if len(entry.tensors) > NAMES else ""),
        f"{entry.nbytes:,}" if entry.tensors else "",
        f"{nats(entry.epsilon_before)} → {nats(entry.epsilon_after)}" if entry.epsilon_after is not None else "",
    )


def _event(entry: Entry) -> Child:
    if entry.outcome is Outcome.REFUSED:
        code = known_code(entry.admission)
        return join((entry.event, badge("bad", entry.outcome), *([code.value] if code else [])), between=" ")
    return f"{entry.event}, {entry.outcome}" if entry.outcome else entry.event


def entry(sight: Sight, query: Query) -> Html | None:
    """One entry with all its fields and tensors; None if there is no such entry."""
    site, seq = query.get("site", ""), _number(query, "seq", 0)
    found = sight.index.entry(site, seq) if site in sight.sites else None
    if found is None:
        return None
    record = found.record()
    told = [(_LABELS.get(name, name.replace("_", " ")), _value(name, record[name])) for name in _ordered(record)]
    raw = canonical(record).decode()
    shown = (
        tag("pre", Html(for_html(raw, RAW)), tabindex="0")
        if len(raw) <= RAW
        else tag("p", f"It has {len(raw):,} characters: see the log.")
    )
    beside = [
        link(text, "entry", site=site, seq=place)
        for text, place in ((f"← Entry {seq - 1:,}", seq - 1), (f"Entry {seq + 1:,} →", seq + 1))
        if sight.index.entry(site, place)
    ]
    return document(
        f"Entry {seq:,} of {site}",
        "entries",
        tag("p", *(tag("span", part, class_="step") for part in beside)),
        facts(told),
        _tensors_of(found, query),
        tag("details", tag("summary", "The line as it stands in the log"), shown),
    )


def _ordered(record: Mapping[str, object]) -> list[str]:
    known = [name for name in _LABELS if name in record]
    return known + sorted(record.keys() - _LABELS.keys() - {"tensors"})


def _value(name: str, value: object) -> Child:
    if value is None or value == "":
        return None
    if isinstance(value, Outcome):
        return badge(_mark(value), value)
    if name == "time":
        return tag("time", str(value), datetime=str(value))
    if isinstance(value, str):
        return code(value) if len(value) == 64 else value
    if isinstance(value, int | float):
        return f"{value:,}" if type(value) is int else str(value)
    return code(canonical(value).decode())


def _tensors_of(found: Entry, query: Query) -> Html | None:
    if not found.tensors:
        return None
    page, count = _page(query), len(found.tensors)
    _check_page(page, count)
    columns = "Tensor", "Shape", "Type", "Bytes", "Kind", "Protection", "SHA-256 of the bytes"
    part = found.tensors[(page - 1) * PAGE : page * PAGE]
    listed = table(f"{count:,} tensors of this entry", columns, map(_tensor_row, part))
    return tag("section", tag("h2", "Tensors"), listed, pager("tensors", "entry", query, page, PAGE, count))


def _tensor_row(tensor: TensorRecord) -> tuple[Child, ...]:
    shape = " × ".join(map(str, tensor.shape)) or "scalar"
    digest = code(tensor.sha256) or "none: refused or shared"
    return tensor.name, shape, tensor.dtype, f"{tensor.nbytes:,}", tensor.kind, tensor.protection, digest


def tensors(sight: Sight, query: Query) -> Html:
    """The page of messages and bytes that passed, by tensor."""
    asked, page = _filter(query), _page(query)
    found = sight.index.tensors(asked, (page - 1) * PAGE, PAGE + 1)
    choices = {"site": sight.sites, "job": sorted({job.job for job in sight.index.jobs(asked.site, JOBS)})}
    form = chooser("tensors", query, {**choices, "kind": [str(kind) for kind in Kind]}, {})
    if not found:
        return document("Tensors", "tensors", form, tag("p", "No tensor is like that."))
    columns = "Tensor", "Site", "Way", "Kind", "Protection", "Messages", "Bytes"
    ways = {"out": "left, to ", "in": "came, from "}
    rows = (
        (
            row.name, row.site, ways.get(row.direction, "") + row.peer, row.kind, row.protection,
            f"{row.messages:,}", f"{row.nbytes:,}",
        )
        for row in found[:PAGE]
    )  # fmt: skip
    count = (page - 1) * PAGE + len(found)
    listed = table("What passed, summed over messages; refused ones are not counted", columns, rows)
    return document("Tensors", "tensors", form, listed, pager("tensors", "tensors", query, page, PAGE, count))


def budgets(sight: Sight, query: Query) -> Html:
    """The page of charges, by site and job, and the growth of epsilon."""
    asked = _filter(query)
    form = chooser("budgets", query, {"site": sight.sites}, {})
    told = tag("p", "Epsilon, in nats, is that of the cohort’s worst patient over all jobs of the site.")
    spent = sight.index.spent(asked, JOBS)
    if not spent:
        nothing = tag("p", "Nothing was charged: no release in these logs was under differential privacy.")
        return document("Budgets", "budgets", form, nothing)
    drawn = [
        course(f"Site {site}: epsilon charge by charge", sight.index.course(site))
        for site in dict.fromkeys(row.site for row in spent)
    ]
    columns = "Job", "Site", "Charges", "Epsilon before", "Epsilon after", "Delta"
    rows = (
        (
            link(row.job or "none", "entries", job=row.job or None, site=row.site, charged=1), row.site,
            f"{row.charges:,}", nats(row.before), nats(row.after), "" if row.delta is None else f"{row.delta:g}",
        )
        for row in spent
    )  # fmt: skip
    listed = table("Charges by job; a job leads to its entries", columns, rows)
    return document("Budgets", "budgets", form, told, listed, tag("div", *drawn, class_="courses"))


def verdicts(sight: Sight, query: Query) -> Html:
    """The page of verdicts, after checking every log again from its beginning."""
    told = tag(
        "p",
        "Integrity: is the log whole? Completeness: does it say everything? Consistency: do others agree? "
        "What is not shown is neither proven nor refuted. Every log was checked just now; to check again, reload.",
    )
    return document("Verdicts", "verdicts", told, *(_verdict(site, sight.checks.check(site)) for site in sight.sites))


def _verdict(site: str, checked: Checked) -> Html:
    head = tag("h2", f"Site {site}")
    if checked.found is None:
        return tag("section", head, _badges(checked), tag("p", f"{checked.reason}.", class_="finding"))
    rows = (
        (
            f"{name.capitalize()}: {part.name}", badge(_STATES[part.state], part.state), part.said,
            None if part.entry is None else link(f"{part.entry:,}", "entry", site=site, seq=part.entry),
        )
        for name, verdict in checked.found.verdicts()
        for part in verdict.parts
    )  # fmt: skip
    entries, torn = checked.found.entries, checked.found.torn_bytes
    caption = f"{entries:,} entries hold" + (f"; then {torn:,} bytes of one that a crash cut off" if torn else "")
    listed = table(caption, ("Question", "Verdict", "Finding", "Entry"), rows)
    hashes = [("Last hash", code(checked.found.head)), ("Root of the tree", code(checked.found.root))]
    return tag("section", head, _badges(checked), listed, facts(hashes))


def _badges(checked: Checked) -> Html:
    """The three verdicts, one word each."""
    if checked.found is None:
        return tag("p", badge("bad", "cannot be judged"))
    words = (badge(_STATES[one.state], f"{name.capitalize()}: {one.state}") for name, one in checked.found.verdicts())
    return tag("ul", *(tag("li", word) for word in words), class_="badges")


PAGES: Mapping[str, Callable[[Sight, Query], Html | None]] = {
    "": overview,
    "entries": entries,
    "entry": entry,
    "tensors": tensors,
    "budgets": budgets,
    "verdicts": verdicts,
}


def _mark(outcome: Outcome) -> str:
    return "bad" if outcome is Outcome.REFUSED else "good"


def _filter(query: Query) -> Filter:
    def chosen(name: str) -> str | None:
        return query.get(name) or None

    kind = chosen("kind")
    if kind is not None and kind not in frozenset(Kind):
        raise BadQuery("there is no such kind of tensor")
    site, job, event, outcome, code = (chosen(name) for name in ("site", "job", "event", "outcome", "code"))
    return Filter(site, job, event, outcome, code, Kind(kind) if kind else None, "charged" in query)


def _number(query: Query, name: str, otherwise: int) -> int:
    text = query.get(name, str(otherwise))
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise BadQuery(f"'{name}' is a whole number")
    return int(text)


def _page(query: Query) -> int:
    page = _number(query, "page", 1)
    if page < 1:
        raise BadQuery("pages count from 1")
    return page


def _check_page(page: int, count: int) -> None:
    if page > max(1, math.ceil(count / PAGE)):
        raise BadQuery("there is no page with this number")


class AuditServer(LocalServer):
    """Pages on these logs (site: folder) at `url`, once `serve_forever` runs. Port 0 takes a free one.

    `judges` give the three verdicts on each of them whenever they are asked for.

    Raises `LogError` if a log cannot be read or the port is taken.
    """

    def __init__(self, logs: Mapping[str, Path], judges: Mapping[str, Judge], port: int = 0) -> None:
        self._turn = threading.Lock()
        self._sight = Sight(Index(logs), Checks(judges))
        self._sight.index.refresh()
        try:
            super().__init__(port)
        except LogError:
            self._sight.index.close()
            raise

    def server_close(self) -> None:
        """Stops listening and closes the index."""
        super().server_close()
        with self._turn:
            self._sight.index.close()

    def page(self, name: str, query: Mapping[str, str], upload: Upload | None) -> Answer:
        with self._turn:
            return self._page(name, query)

    def _page(self, name: str, query: Mapping[str, str]) -> Answer:
        try:
            self._sight.index.refresh()
            page = PAGES[name](self._sight, query) if name in PAGES else None
        except BadQuery as error:
            return _sentence(HTTPStatus.BAD_REQUEST, "This cannot be asked", f"In the address, {error}.")
        except sqlite3.Error:
            return _sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "The log cannot be shown", "Its sums are too large.")
        except LogError as error:
            return _sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "The log cannot be shown", f"{error}.")
        if page is None:
            return _sentence(HTTPStatus.NOT_FOUND, "Not found", "There is no such page or entry.")
        return html_answer(page)


def _sentence(status: HTTPStatus, title: str, text: str) -> Answer:
    return html_answer(document(title, "", tag("p", text)), status)
