"""The founding papers, found by name or number, and the entries of each."""

import re
from collections.abc import Iterator

from medfedvqa.near_miss import check_name
from medfedvqa.research.reproduce.entries import Absent, Paper, PaperEntry, Program
from medfedvqa.research.reproduce.papers import creamfl, feddat, fedp3, prompt_pfl, unicon

PAPERS: tuple[Paper, ...] = tuple(each.PAPER for each in (fedp3, feddat, prompt_pfl, unicon, creamfl))
"""The founding papers, in the order of their numbers."""


def paper_of(name: str) -> Paper:
    """The paper of this name (`prompt-pfl`, `prompt_pfl`) or number (`2`, `002`). Raises `ConfigError`."""
    by_name = {paper.name: paper for paper in PAPERS} | {str(paper.number): paper for paper in PAPERS}
    wanted = name.strip().lower().replace("_", "-")
    wanted = str(int(wanted)) if wanted.isdecimal() else wanted
    check_name("paper", wanted, by_name, f"the papers are {', '.join(paper.name for paper in PAPERS)}")
    return by_name[wanted]


def entry_of(paper: Paper, name: str) -> PaperEntry:
    """The entry of this name, also as the paper writes it: `Table 2`, `Fig. 5`, `Figure 5`. Raises `ConfigError`."""
    by_name = {entry.name: entry for entry in paper.entries}
    wanted = re.sub(r"[\s._-]", "", name.lower())
    wanted = re.sub(r"^(figure|f)(?=\d)", "fig", re.sub(r"^(tab|t)(?=\d)", "table", wanted))
    check_name("table", wanted, by_name, f"it has {', '.join(by_name)}", f" of '{paper.name}'")
    return by_name[wanted]


def command_of(paper: Paper, entry: PaperEntry) -> str:
    """The command to type; empty for an entry that nothing runs."""
    if isinstance(entry.protocol, Absent):
        return ""
    folder = f" --data {entry.data} --data-root FOLDER" if entry.data_root else ""
    return f"medfedvqa reproduce {paper.name} {entry.name}{folder}"


TESTED_BY = {"slow": "test-all", "release": "test-release"}
"""The target of make that runs each tier of the tests in which entries are started."""


def tier_of(paper: Paper, entry: PaperEntry) -> str | None:
    """The tier of the tests that starts the entry at the smallest budget; None for an entry that nothing runs.

    `tests/reproduce/test_every_entry.py` starts the entries by this function. UniCon's take minutes a pass.
    """
    if isinstance(entry.protocol, Absent):
        return None
    return "release" if paper.name == "unicon" else "slow"


def lines(papers: tuple[Paper, ...] = PAPERS) -> Iterator[dict[str, str | None]]:
    """Every entry as a record: its paper, name and title, the command, and the reason where there is none.

    `tested_by`: the target of make whose tests start it at the smallest budget.
    """
    for paper in papers:
        for entry in paper.entries:
            protocol, tier = entry.protocol, tier_of(paper, entry)
            yield {
                "paper": paper.name,
                "entry": entry.name,
                "title": entry.title,
                "data": "" if isinstance(protocol, Absent) else entry.data or "any",
                "command": command_of(paper, entry) or None,
                "program": f"benchmarks/{protocol.name}.py" if isinstance(protocol, Program) else None,
                "reason": protocol.reason if isinstance(protocol, Absent) else None,
                "differs": entry.differs or None,
                "tested_by": tier and TESTED_BY[tier],
            }
