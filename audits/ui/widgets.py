"""The parts of the pages: the frame, tables, paging, the filter's form, badges, the chart of epsilon."""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode

from audits.escaping import SENTENCE, Child, Html, bounded, tag

NAVIGATION = {
    "./": "Overview",
    "entries": "Entries",
    "tensors": "Tensors",
    "budgets": "Budgets",
    "verdicts": "Verdicts",
}
Query = Mapping[str, str]
_NUMBERS = ("Bytes", "Charges", "Delta", "Entries", "Epsilon", "Epsilon after", "Epsilon before", "Messages", "Refused")
_SHAPES = dict.fromkeys((*_NUMBERS, "Released"), "number") | dict.fromkeys(("Job", "Tensor", "Tensors"), "long")
"""The CSS class of a column, by its name."""


def document(title: str, here: str, *content: Child) -> Html:
    """A whole page; `here` is the entry of the navigation that it belongs to."""
    links = (
        tag("li", tag("a", name, href=path, aria_current="page" if path == here else None))
        for path, name in NAVIGATION.items()
    )
    navigation = tag("nav", tag("ul", *links), aria_label="Pages of this log")
    note = "Read only, and on this machine only. Times are UTC, bytes those of tensors’ values."
    return framed(title, "Audit log", navigation, note, *content)


def framed(title: str, name: str, navigation: Child, note: str, *content: Child) -> Html:
    """A whole page of a local server, with the server's `name` at its head and the `note` at its foot."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · {name}"),
        tag("link", rel="stylesheet", href="page.css"),
    )
    top = tag("header", tag("p", name, class_="name"), navigation)
    foot = tag("footer", tag("p", note))
    main = tag("main", tag("h1", title), *content, id="main", tabindex="-1")
    body = tag("body", tag("a", "Skip to content", href="#main", class_="skip"), top, main, foot)
    return Html("<!doctype html>\n" + tag("html", head, body, lang="en"))


def link(text: Child, path: str, **query: str | int | None) -> Html:
    """A link to a page; query values that are `None` are left out. A name too long for an address gives no link."""
    asked = urlencode({name: value for name, value in query.items() if value is not None})
    if len(asked) > SENTENCE - len(path) - 1:
        return tag("span", text)
    return tag("a", text, href=f"{path}?{asked}" if asked else path)


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Child]]) -> Html:
    """A table whose rows become cards on a narrow screen. It sets ARIA roles, which the cards' styles would remove."""
    heads = (tag("th", name, scope="col", role="columnheader", class_=_SHAPES.get(name)) for name in columns)
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *heads, role="row"), role="rowgroup"),
        tag("tbody", *(_row(columns, row) for row in rows), role="rowgroup"),
        role="table",
    )


def _row(columns: Sequence[str], cells: Sequence[Child]) -> Html:
    (first, head), *others = zip(columns, cells, strict=True)
    shown = [tag("th", head, scope="row", role="rowheader", data_label=first, class_=_SHAPES.get(first))]
    shown += [tag("td", cell, role="cell", data_label=name, class_=_SHAPES.get(name)) for name, cell in others]
    return tag("tr", *shown, role="row")


def pager(what: str, path: str, query: Query, page: int, size: int, count: int) -> Html | None:
    """Links to the other pages of `count` things, `size` to a page; pages count from 1. None if one page holds all."""
    last = max(1, -(-count // size))
    if last == 1:
        return None

    def to(name: str, number: int) -> Html:
        here = number == page or not 1 <= number <= last
        kept = {key: value for key, value in query.items() if key != "page"}
        shown = tag("span", name, aria_disabled="true") if here else link(name, path, **kept, page=number)
        return tag("li", shown)

    first, until = (page - 1) * size + 1, min(page * size, count)
    place = tag("li", f"{first:,} to {until:,} of {count:,}", class_="place")
    steps = to("First", 1), to("Previous", page - 1), place, to("Next", page + 1), to("Last", last)
    return tag("nav", tag("ul", *steps), class_="pager", aria_label=f"Pages of {what}")


def chooser(path: str, chosen: Query, choices: Mapping[str, Sequence[str]], flags: Mapping[str, str]) -> Html:
    """The form that filters: a list for each name in `choices`, a box for each in `flags`."""
    fields = [
        tag("div", tag("label", name, for_=name), _select(name, chosen.get(name, ""), known))
        for name, known in choices.items()
    ]
    for name, text in flags.items():
        box = tag("input", type="checkbox", id=name, name=name, value="1", checked=name in chosen)
        fields.append(tag("div", box, tag("label", text, for_=name), class_="box"))
    clear = link("Show all", path) if any(chosen.get(name) for name in (*choices, *flags)) else None
    last = tag("div", tag("button", "Apply", type="submit"), clear, class_="do")
    return tag("form", *fields, last, method="get", action=path, role="search", aria_label="Filter")


def _select(name: str, chosen: str, known: Sequence[str]) -> Html:
    values = [*known, *([chosen] if chosen and chosen not in known else [])]
    values = [value for value in values if bounded(value, SENTENCE) == value]  # others are not what the form would ask
    options = (tag("option", value, value=value, selected=value == chosen) for value in values)
    return tag("select", tag("option", "all", value=""), *options, name=name, id=name)


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """A list of names with their values; a name without a value is left out."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value is not None))


def badge(mark: str, text: str) -> Html:
    """A word marked as `good`, `bad` or `open`, by a sign as well as by colour."""
    sign = {"good": "✓", "bad": "✕", "open": "–"}[mark]
    return tag("span", tag("span", sign, aria_hidden="true"), f" {text}", class_=f"badge {mark}")


def moment(time: str | None) -> Html | None:
    """A time of the log, shown to the second; the complete time is in the `datetime` attribute."""
    return time and tag("time", time[:19].replace("T", " "), datetime=time) or None


def code(text: str | None) -> Html | None:
    """A hash or a name that may break anywhere; None stays None."""
    return tag("code", text) if text else None


def nats(epsilon: float | None) -> str:
    """Epsilon to four decimals; empty if there is none."""
    return "" if epsilon is None else f"{epsilon:.4f}"


def course(title: str, charges: Sequence[tuple[int, float, float]]) -> Html:
    """A chart of epsilon in steps, one for each charge (entry number, epsilon before and after); needs at least one."""
    begin, before, _ = charges[0]
    end, _, now = charges[-1]
    top = max(after for *_, after in charges) or 1.0
    steps = f"M0 {_height(before, top)}"
    for place, (_, _, after) in enumerate(charges, 1):
        steps += f"V{_height(after, top)}H{1000 * place / len(charges):.1f}"
    drawn = tag(
        "svg",
        tag("path", d=f"{steps}V100H0Z", class_="area"),
        tag("path", d=steps, class_="steps"),
        viewBox="0 0 1000 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{title}: from {nats(before)} before entry {begin} to {nats(now)} after entry {end}",
    )
    ends = tag("div", tag("span", f"entry {begin:,}"), tag("span", f"entry {end:,}"), aria_hidden="true")
    highest = tag("div", tag("span", nats(top)), aria_hidden="true")
    return tag("figure", tag("figcaption", title), highest, drawn, ends, class_="course")


def _height(epsilon: float, top: float) -> str:
    return f"{100 - 100 * epsilon / top:.1f}"
