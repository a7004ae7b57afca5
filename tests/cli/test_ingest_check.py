"""`medfedvqa ingest check` and `ingest` agree about a table: what one refuses, the other does."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from openpyxl import Workbook

HEAD = "image,question,answer,patient\n"


def workbook(path: Path) -> None:
    book = Workbook()
    book.active.append(("image", "question", "answer", "patient"))
    book.active.append(("a.png", "Left?", 0.5, 4711))
    book.active["C2"].number_format, book.active["D2"].number_format = "0%", "0000000"
    book.active.append(("b.png", "Left?", "yes", "7"))
    book.active.row_dimensions[3].hidden = True
    book.save(path)


def write(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.write_bytes(text.encode(encoding))


TABLES: list[tuple[str, Callable[[Path], None], tuple[str, ...], bool, list[str]]] = [
    ("w.xlsx", workbook, (), False, ["'0004711'", "'50%'", "1 hidden rows"]),
    ("w.xlsx", workbook, ("--hidden", "leave-out"), True, ["1 rows would be read, as xlsx", "are left out"]),
    ("g.csv", lambda path: write(path, HEAD + "a,左侧还是右侧,左,7\n", "gbk"), (), False, ["左侧还是右侧", "gb18030"]),
    ("g.csv", lambda path: write(path, HEAD + "a,左侧,左,7\n", "gbk"), ("--encoding", "gbk"), True, ["as gbk"]),
    ("f.csv", lambda path: write(path, HEAD + "a,b?,c,4711.0\nb,b?,NaN,7\n"), (), False, ["row 0", "row 1"]),
    ("u.csv", lambda path: write(path, HEAD + "a,b?,y\u200bes,7\nb,b?,YES,7\n"), (), True, ["'y\\u200bes'", "'YES'"]),
    ("s.csv", lambda path: write(path, HEAD + "a,b?,[red]c,7\nb,b?,[RED]C,7\n"), (), True, ["[red]c"]),
    ("n.csv", lambda path: None, (), False, ["cannot be read"]),
]


@pytest.mark.parametrize(("name", "make", "options", "is_read", "shown"), TABLES)
def test_check_and_ingest_agree_and_check_shows_why(
    medfedvqa: Callable[..., Any],
    tmp_path: Path,
    name: str,
    make: Callable[[Path], None],
    options: tuple[str, ...],
    is_read: bool,
    shown: list[str],
) -> None:
    """Exit code 1 where an ingestion would refuse; the ingestion then says the same sentence, and quotes nothing."""
    make(table := tmp_path / name)
    checked = medfedvqa("ingest", "check", str(table), *options)
    assert checked.returncode == (0 if is_read else 1), checked.stdout + checked.stderr
    assert all(text in checked.stdout for text in shown)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"none")
    done = medfedvqa(
        "ingest", str(tmp_path / "in"), "--questions", str(table), "--out", str(tmp_path / "out"), *options
    )
    reason = "no question could be kept" if is_read else checked.stdout.partition("refused: ")[2].splitlines()[0]
    assert done.returncode == 1 and reason[:60] in done.stderr and not re.search(r"4711|左|\[red\]", done.stderr)


def test_a_table_is_checked_without_torch(tmp_path: Path) -> None:
    """So the answer is there in less time than torch takes to load."""
    write(tmp_path / "a.csv", HEAD + "a,b?,c,7\n")
    code = (
        "import sys; from medfedvqa.cli import app; app(['ingest', 'check', sys.argv[1]], standalone_mode=False);"
        "print(sorted({'torch', 'cv2', 'pydicom', 'nvflare'} & sys.modules.keys()))"
    )
    done = run([sys.executable, "-c", code, str(tmp_path / "a.csv")], capture_output=True, text=True, check=True)
    assert "1 rows would be read" in done.stdout and done.stdout.endswith("[]\n")
