"""The last table of a document: digests in full, to which their short forms link."""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from medfedvqa.report.blocks import Code, Digest, Facts, Inline, Section, Table, row

MAX_ANCHOR = 256
"""The most characters of a digest or key that an anchor holds in full; a longer one is hashed."""


def digests(sections: Sequence[Section]) -> Section:
    """The full forms of shortened digests: first those in the PDF, then those in tables that it leaves out."""
    first = dict[str, tuple[str, bool]]()
    for on_paper in (True, False):
        for section in sections:
            for part in _parts(section, on_paper):
                if isinstance(part, Digest) and part.text != part.full:
                    first.setdefault(part.full, (section.heading, on_paper))
    captions = {True: "As they stand in report.json", False: "Digests of the tables that the PDF leaves out"}
    tables = [
        Table(
            caption,
            ("Digest", "First in"),
            tuple(row(Code(full), where, anchor=anchor(full)) for full, (where, on) in first.items() if on is on_paper),
            "There is none.",
            on_paper,
        )
        for on_paper, caption in captions.items()
    ]
    return Section("digests", "Digests in full", tuple(table for table in tables if table.on_paper or table.rows))


def anchor(full: str) -> str:
    """The anchor of the appendix row with the full digest."""
    if len(full) > MAX_ANCHOR:
        return f"digest-{sha256(full.encode()).hexdigest()}"
    return f"digest-{full.encode().hex() if not full.isalnum() else full}"


def _parts(section: Section, on_paper: bool) -> Iterator[Inline]:
    """The inline parts of the section's figures and tables that are, or are not, for paper."""
    for block in section.blocks:
        if isinstance(block, Facts) and on_paper:
            yield from (part for fact in block.facts for part in fact.value)
        elif isinstance(block, Table) and block.on_paper is on_paper:
            yield from (part for line in block.rows for content in line.cells for part in content)
