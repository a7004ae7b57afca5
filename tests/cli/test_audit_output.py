"""What `medfedvqa audit` prints of logs of others, by the command as users call it, into a pipe and onto a terminal."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import unicodedata
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.text import Text

from audits import AuditLog, Event, Kind, Outcome, Protection, TensorRecord
from audits.escaping import for_terminal, visible
from medfedvqa.cli.terminal import HANGING, Terminal, plain

COMMAND = (str(Path(sys.executable).with_name("medfedvqa")),)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What rich writes between words onto a terminal, and nothing else that begins with an escape."""
WIDTH = 60
SHOWN = "integrity: shown"
CLEARS = f"chest\x1b[2J\x1b[H\x1b]0;taken\x07\r\n  {SHOWN}\r\n    chain: shown, 9 entries hold\x1b[8m"
"""Clears the screen, takes the title, prints a verdict of its own and hides what follows."""
MARKUP = f"[/][green]{SHOWN}[/green]\n  [bold green]{SHOWN}[/] :warning: [link=http://example.org]here[/link]"
TURNED = f"\u202e{SHOWN[::-1]}\u2066\u200b\x9b2J\u2028  {SHOWN}"
PADDED = "chest" + " " * (2 * WIDTH - 5 - len("chest")) + f"  {SHOWN}"
"""Its spaces move a verdict of its own to where a terminal begins a line."""
LONG = f"{SHOWN} " * 5_000
ATTACKS = {"clears": CLEARS, "markup": MARKUP, "turned": TURNED, "padded": PADDED, "long": LONG}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A run's folder with a log of each attack, whose texts all are the attack."""
    for place, text in ATTACKS.items():
        log = AuditLog(tmp_path / "sites" / place / "audit", text)
        tensor = TensorRecord(text, (), "float32", 4, None, Kind.STATISTIC, Protection.NONE)
        more = {"tensors": (tensor,), "nbytes": 4, "outcome": Outcome.SENT, "direction": "out"}
        for number in (1, 2):
            log.append(Event.RELEASE, job=text, task=text, round=number, peer=text, reason=text, **more)
        log.close()
    return tmp_path


def break_them(logs: Path) -> None:
    """Change an entry of each log."""
    for log in logs.glob("sites/*/audit/log.jsonl"):
        log.write_bytes(log.read_bytes().replace(b'"round":2', b'"round":7'))


def piped(*arguments: str) -> tuple[int, str, str]:
    """The exit code of the command, and what it writes into pipes."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, timeout=240, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def on_terminal(*arguments: str) -> tuple[int, str]:
    """The exit code of the command, and what it writes onto a terminal of `WIDTH` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"TERM": "xterm-256color"}
    with subprocess.Popen([*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as child:
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 1 << 16):
                written += part
        except OSError:  # what Linux says when nobody holds the other end any more
            pass
        finally:
            os.close(ours)
        code = child.wait(timeout=240)
    return code, written.decode().replace("\r\n", "\n")


def only_text(output: str) -> bool:
    """Whether every character of it shows itself, but for line feeds."""
    return all(one in "\n \u00a0" or unicodedata.category(one)[0] not in "CZ" for one in output)


def verdicts(output: str, name: str) -> list[str]:
    """The lines that a reader takes for a verdict on `name`."""
    return [line for line in output.split("\n") if re.match(rf" {{0,{HANGING - 1}}}{name}: ", line)]


def test_a_tampered_log_is_said_to_be_broken_before_anything_of_it(logs: Path) -> None:
    """In a pipe and on a terminal: the verdict is the first line, no line with another verdict begins where those of
    the command do, no character steers the terminal, and the exit code is 1."""
    break_them(logs)
    code, output, errors = piped("audit", "verify", str(logs))
    assert code == 1 and errors == "" and only_text(output)
    assert output.startswith(f"Verdict on {len(ATTACKS)} logs: BROKEN\n")
    assert verdicts(output, "integrity") == ["  integrity: BROKEN"] * len(ATTACKS)
    code, written = on_terminal("audit", "verify", str(logs))
    coloured = COLOUR.sub("", written)
    assert code == 1 and COLOUR.search(written) and only_text(coloured)
    assert coloured.startswith(f"Verdict on {len(ATTACKS)} logs: BROKEN\n")
    assert verdicts(coloured, "integrity") == ["  integrity: BROKEN"] * len(ATTACKS)
    assert all(len(line) <= WIDTH for line in coloured.split("\n"))


def test_a_tampered_log_is_not_shown(logs: Path) -> None:
    """`show` prints none of its entries, and says on which one it stopped; exit code 1."""
    break_them(logs)
    code, output, errors = piped("audit", "show", str(logs))
    assert code == 1 and only_text(output + errors) and "entry 1" in errors and SHOWN not in output
    code, written = on_terminal("audit", "show", str(logs))
    assert code == 1 and only_text(COLOUR.sub("", written)) and "Error: entry 1" in COLOUR.sub("", written)


def test_a_foreign_log_that_holds_is_shown_as_text(logs: Path) -> None:
    """Its own verdicts stand in a table below the sentence that says what it is; JSON gives them back unchanged."""
    for output in (piped("audit", "show", str(logs))[1], COLOUR.sub("", on_terminal("audit", "show", str(logs))[1])):
        assert only_text(output) and output.startswith("These are the logs' entries")
        assert verdicts(output, "integrity") == []
    code, output, errors = piped("audit", "verify", "--json", str(logs))
    assert code == 2 and only_text(output) and errors == ""
    assert {one["site"] for one in json.loads(output)["logs"]} == set(ATTACKS.values())


@given(st.text(st.characters(exclude_categories=())))
@example("[/]")
@example("[bold]:warning: [link=http://example.org]here[/link]\\")
def test_no_text_steers_a_terminal_or_is_markup(text: str) -> None:
    """Escaped where it should be, it comes out as it is shown; where that was forgotten, it still steers nothing."""
    for forced in (True, False):
        out = StringIO()
        terminal = Terminal(file=out, force_terminal=forced, width=80, color_system=None)
        terminal.print(plain(text), soft_wrap=True, highlight=False)
        assert out.getvalue() == re.sub(r"\\$", r"\\u005c", for_terminal(text)) + "\n"
        terminal.print(Text(text), soft_wrap=True)
        assert only_text(out.getvalue())
    assert visible(visible(text)) == visible(text)
