"""Pages, messages, comments and docstrings have none of the turns of phrase in `prose.txt`."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("medfedvqa", "privacy", "audits", "benchmarks", "nvflare_jobs")
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md")


def phrases() -> dict[str, re.Pattern[str]]:
    """Each phrase by the words to use instead."""
    lines = (ROOT / "tests" / "prose.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("=>") for line in lines if line and not line.startswith("#"))
    return {words.strip(): re.compile(phrase.strip(), re.IGNORECASE) for phrase, words in pairs}


def texts() -> Iterator[tuple[str, str]]:
    """Each file of prose or code, by its name from the root."""
    files = [ROOT / name for name in PAGES]
    files += sorted((ROOT / "docs").rglob("*.md"))
    files += sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    for path in files:
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def matches() -> list[str]:
    """Where a phrase stands, and what to write instead. A phrase may begin on one line and end on the next."""
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: '{match.group()}'; write: {words}"
        for name, text in texts()
        for words, phrase in phrases().items()
        for match in phrase.finditer(text)
    ]


def test_no_page_message_or_docstring_has_a_phrase_that_reads_as_translated() -> None:
    """`make prose` lists them."""
    assert matches() == []


if __name__ == "__main__":
    print("\n".join(matches()) or "none")
