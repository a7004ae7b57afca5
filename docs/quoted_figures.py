"""The tables of the benchmark, and the figures with intervals in README.md and docs/benchmark.md, from raw lines.

`python docs/quoted_figures.py` writes them anew from the lines in docs/benchmark: the tables, and in the text every
figure that an interval in brackets follows, with the p value behind it. `QUOTES` says what each figure is, in the
order of the text, so that a figure without an entry, or one that is out of date, fails a test. What the words around a
figure say, no program can tell.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from medfedvqa.research.benchmark.benchmark_table import (
    ABSENT,
    cell,
    corrected,
    gain_cell,
    gains,
    markdown,
    p_cell,
    table,
)
from medfedvqa.research.benchmark.results_file import Result, RunOutcome
from medfedvqa.research.benchmark.statistics import PERSONAL, Comparison, average, compared, gain, holm

ROOT = Path(__file__).parents[1]
TABLES = {
    "slake": "SLAKE, closed questions",
    "vqa-rad": "VQA-RAD, closed questions",
    "slake-all": "SLAKE, open and closed questions",
    "vqa-rad-all": "VQA-RAD, open and closed questions",
}
"""The titles of the files of raw results that have a page of tables, in the order of docs/benchmark.md."""
ONE = "slake-hospitals: all rows"
TWO, THREE, FOUR = (f"slake-hospitals: {count} hospitals per organ" for count in (2, 3, 4))
WORDS_FIRST = "slake-words"
WRONG = "% of the first one's labels exchanged"
ROWS = re.compile(r"^\|[^\n]*$", re.MULTILINE)
"""What is not text: the rows of tables."""
INTERVAL = r"\[-?[\d.]+, -?[\d.]+\]"
FIGURE = re.compile(
    rf"(?P<sign>[+-]?)(?<![\d.])\d+\.\d(?P<words>(?:(?!\d\.\d)[^\[\]|])*){INTERVAL}(?:(?P<p>, p) [\d.< ]*\d)?"
)
COUNTS = re.compile(
    r"of \d+ gains in the table \d+ have intervals without 0, and \d+ p < 0.05 after correction for all of them"
)
"""One such sentence for each set of closed questions, in the order of `TABLES`."""

STEP, PM, ALONE, WORDS = "FedAdam adapter (a step a round)", "prompt_pfl (PM)", "local (DT)", "bag of words"
POOLED = "frozen features (rows of all sites)"
BLIND, AS2 = " without the picture", "prompt_pfl AS2 (not shared)"
OWN = "FedAvg last 3 blocks (personal)"

Quote = tuple[str, str] | tuple[str, str, str]
"""A file of raw results and a system: its average. With a second system: by how much the first has more."""

QUOTES: dict[str, tuple[Quote, ...]] = {
    "README.md": (
        (TWO, "stepwise", "frozen features"),
        (THREE, "stepwise", "frozen features"),
        ("slake", PM),
        ("slake", AS2, PM),
    ),
    "docs/benchmark.md": (
        (TWO, "stepwise", "frozen features"),
        (THREE, "stepwise", "frozen features"),
        (FOUR, "stepwise", "frozen features"),
        (ONE, "stepwise", "frozen features"),
        (TWO, "stepwise", POOLED),
        (THREE, "stepwise", POOLED),
        (TWO, "FedAvg classifier", "local classifier"),
        (TWO, "ridge", "ridge (not shared)"),
        (TWO, "stepwise", "stepwise (own bias)"),
        (TWO, "stepwise", "stepwise (own last layer)"),
        (TWO, "stepwise (100 exchanges of 2 batches)", "stepwise"),
        (TWO, "stepwise (50 exchanges of 4 batches)", "stepwise"),
        (f"{TWO}, 50 {WRONG}", "stepwise", "frozen features"),
        (f"{TWO}, 100 {WRONG}", "stepwise", "frozen features"),
        (TWO, "stepwise (by organ)", "stepwise"),
        (TWO, "stepwise (by reliability)", "stepwise"),
        ("vqa-rad-hospitals", "stepwise", "frozen features"),
        (f"{WORDS_FIRST}: 2 hospitals per organ", "stepwise", "frozen features"),
        (f"{WORDS_FIRST}: 3 hospitals per organ", "stepwise", "frozen features"),
        ("slake", "frozen features", "frozen features" + BLIND),
        ("slake", PM, PM + BLIND),
        ("slake", ALONE, ALONE + BLIND),
        ("slake", "FedDAT", "FedDAT" + BLIND),
        ("slake", "FedAvg full", "FedAvg full" + BLIND),
        ("slake", AS2, PM),
        ("slake", "local (DT) local head", "FedDAT"),
        ("slake", "ridge", "ridge (not shared)"),
        ("slake", STEP, ALONE),
        ("slake", OWN, "local last 3 blocks"),
        ("slake", "local full", "FedAvg full"),
        ("slake", ALONE, "FedAvg adapter"),
        ("slake", "local classifier", "FedAvg classifier"),
        ("slake", STEP, "FedAvg adapter"),
        ("slake", ALONE, "UniCon"),
        ("slake", "centralised", STEP),
        ("slake", "prompt_pfl (five heads)"),
        ("slake", "prompt_pfl (five heads)", WORDS),
        ("vqa-rad", "split learning"),
        ("vqa-rad", "split learning", "split learning" + BLIND),
        ("vqa-rad", PM + BLIND, PM),
        ("vqa-rad", PM, AS2),
        ("vqa-rad", ALONE, "FedAvg adapter"),
        ("vqa-rad", ALONE, STEP),
        ("vqa-rad-all", "local full", WORDS),
    ),
}


@cache
def results(name: str) -> tuple[Result, ...]:
    """The results in a file of raw lines."""
    text = (ROOT / "docs" / "benchmark" / f"{name}.jsonl").read_text(encoding="utf-8")
    return tuple(map(Result.model_validate_json, text.splitlines()))


@cache
def comparison(name: str) -> Comparison:
    """The comparison of a file, or of one regime of the study, as `NAME: REGIME`."""
    file, _, regime = name.partition(": ")
    return compared(each for each in results(file) if not regime or each.regime == regime)


def quoted(quote: Quote, signed: bool = False) -> tuple[str, str, str]:
    """The figure, its interval and its p value as the text has them. An average has no p value."""
    rows = comparison(quote[0]).rows
    first: list[RunOutcome] = list(rows[quote[1]])
    if len(quote) == 2:
        summary = average(first)
        return f"{100 * summary.mean:.1f}", "[{:.0f}, {:.0f}]".format(*(100 * end for end in summary.interval)), ""
    more = gain(first, rows[quote[2]])
    assert more.interval is not None
    mean, low, high = (f"{100 * value:z.1f}" for value in (more.mean, *more.interval))
    return (
        "+" * (signed and more.mean >= 0) + mean,
        f"[{low}, {high}]",
        "< 0.0001" if more.p < 1e-4 else f"{more.p:.4f}",
    )


def counts(name: str) -> str:
    """How many of a table's gains from pictures and federation exclude 0, alone and corrected after Holm."""
    table = comparison(name)
    every = {f"{label}{place}": each for label in table.rows for place, each in enumerate(gains(table, label)) if each}
    values = {name: each.p for name, each in every.items()}
    alone, corrected = (sum(p < 0.05 for p in each.values()) for each in (values, holm(values)))
    return (
        f"of {len(values)} gains in the table {alone} have intervals without 0, and {corrected} p < 0.05 after "
        "correction for all of them"
    )


def documents() -> dict[Path, str]:
    """Each document with today's figures. Raises `AssertionError` if it has another number of them than `QUOTES`."""
    texts = {ROOT / name: updated((ROOT / name).read_text(encoding="utf-8"), quotes) for name, quotes in QUOTES.items()}
    return texts | {ROOT / "docs" / "benchmark" / f"{name}.md": table_page(name) for name in TABLES}


def table_page(name: str) -> str:
    """The page of a file of raw results: settings, a short table of all systems, and other tables of the benchmark.

    Pages of all questions have the literature, pages of closed ones the prompt paper's table and the servers' models.
    The whole table, with each site's accuracy and all costs, is what `medfedvqa benchmark --from` makes.
    """
    each = comparison(name)
    first, *sections = markdown(each).strip().split("\n\n## ")
    facts = first.partition("\n")[0]
    kept = "".join(
        f"\n\n## {section}" for section in sections if section.startswith(LITERATURE) is name.endswith("-all")
    )
    reading = READING.format(reference=each.reference, hours=f"{each.seconds / 3600:.1f}")
    head = f"# {TABLES[name]}\n\n[What it says](../benchmark.md), in words."
    return "\n\n".join([head, facts, short_table(each), reading]) + kept + "\n"


LITERATURE = "Closed and open questions in the literature"
READING = (
    "*p*: against {reference}. All runs: {hours} processor hours. "
    "[How to read it](../benchmark.md#how-the-tables-are-read)."
)
KINDS = ("average", "closed", "open", "together")
"""The averages that a short table shows, of those that the comparison has."""


def short_table(each: Comparison) -> str:
    """The averages, the gains and the bytes up; personal models and those without the picture are columns, no rows."""
    tested = corrected(each)
    kinds = [kind for kind in each.averages(each.reference) if kind in KINDS]
    rows = []
    for label, runs in each.rows.items():
        if any(label.endswith(end) and label.removesuffix(end) in each.rows for end in (PERSONAL, BLIND)):
            continue
        averages = each.averages(label)
        personal_label = label + PERSONAL
        personal = (
            short(cell(list(each.averages(personal_label).values())[-1])) if personal_label in each.rows else ABSENT
        )
        p = "reference" if label == each.reference else p_cell(tested[label]) if label in tested else ABSENT
        sent = f"{runs[0].bytes_up:,.0f}" if runs[0].parameters else ABSENT
        accuracies = [short(cell(averages[kind])) for kind in kinds]
        cells = [*accuracies, p, *map(gain_cell, gains(each, label)), personal, sent]
        rows.append([label, str(len(runs)), *("" if printed == ABSENT else printed for printed in cells)])
    head = ["system", "seeds", *kinds, "p", "from pictures", "from federation", "personal", "bytes up"]
    return table(head, rows)


def short(printed: str) -> str:
    """The printed accuracy without its standard deviation over seeds, which its interval holds."""
    return re.sub(r" ± [\d.]+", "", printed)


def updated(text: str, quotes: Sequence[Quote]) -> str:
    """The text with today's figures. Raises `AssertionError` as `documents`."""
    counted, left = iter(TABLES), list(quotes)

    def figure(match: re.Match[str]) -> str:
        assert left, f"QUOTES lacks the figure '{match.group()}'"
        mean, interval, p = quoted(left.pop(0), signed=bool(match["sign"]))
        return f"{mean}{match['words']}{interval}" + (f", p {p}" if match["p"] else "")

    rows = ROWS.findall(text)
    prose = FIGURE.sub(figure, ROWS.sub("\0", text))
    prose = COUNTS.sub(lambda match: counts(next(counted)), prose)
    assert not left, f"the text lacks the figure of {left[0]}"
    return re.sub("\0", lambda match: rows.pop(0), prose)


def main() -> None:
    """Write everything in its place."""
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
