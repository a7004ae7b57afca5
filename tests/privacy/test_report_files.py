"""What the commands on reports are given to read may be no file at all, or one without end."""

import json
from pathlib import Path

import pytest
from hostile import KINDS, alone, put

from privacy.report.report_files import ENVELOPE, JSON

_RUN = """
import contextlib, io, json, sys
from medfedvqa.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["medfedvqa", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
KEY = "medfedvqa/audit/chest+8a3e5b9d+AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.timeout(300)
def test_what_is_no_plain_file_or_has_no_end_is_one_sentence(tmp_path: Path) -> None:
    """Reports, their envelopes, bundles, joined reports and lists of withdrawn versions, in bounded memory."""
    commands: list[list[str]] = []
    for kind in KINDS:
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        put(folder / JSON, kind)
        put(folder / "list.json", kind)
        commands.append(["privacy", "verify-report", str(folder)])
        commands.append(["privacy", "verify-report", str(folder), "--withdrawn", str(folder / "list.json")])
        commands.append(["privacy", "join-reports", str(folder), "--out", str(folder / "out")])
        commands.append(["audit", "check", str(folder / "list.json"), "--key", KEY])
        commands.append(["audit", "verify", str(folder / "list.json")])
    ran = alone(_RUN, json.dumps(commands))
    assert ran.returncode == 0, ran.stderr[-2000:]
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(answers) == len(commands)
    for (code, _, errors), command in zip(answers, commands, strict=True):
        assert code == 1 and errors.startswith("Error: ") and errors.count("\n") == 1, (command, errors)


@pytest.mark.parametrize("kind", KINDS)
def test_an_envelope_that_is_no_plain_file_is_broken(tmp_path: Path, kind: str) -> None:
    """Beside a report: it is not as if there were none."""
    from privacy.report.verify import _signature

    put(tmp_path / ENVELOPE, kind)
    (part,) = _signature(None, b"", None, tmp_path)  # type: ignore[arg-type]
    assert part.state == "broken" and "/" not in part.said
