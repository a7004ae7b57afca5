"""What a newcomer types wrong: one sentence that says what to do, before anything is trained or written."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.cli.options import SETS, method_words
from medfedvqa.core import method_names
from medfedvqa.data import READERS
from medfedvqa.near_miss import suggestion

Command = Callable[..., Any]
RUN = ("run", "prompt_pfl")
DRAWN = (*RUN, "--data", "phantom")

MISTAKES = [
    # Version 0.1 trained on drawn data without a word.
    ((*RUN, "--data-root", "/nowhere"), "the folder '/nowhere' of --data-root does not exist: check its spelling"),
    (("demo", "--data-root", "/nowhere"), "the folder '/nowhere' of --data-root does not exist: check its spelling"),
    ((*RUN, "--data-root", "{empty}"), "no vqa-rad data is found in '{empty}'"),
    (("demo", "--data-root", "{empty}"), "no data of slake or vqa-rad is found in '{empty}'"),
    (("tune", "--methods", "fedavg", "--data", "phantom", "--rates", "x"), "--rates needs numbers separated by commas"),
    (("benchmark", "--data", "phantom", "--tuned", "{file}"), "the file of --tuned is missing or is not JSON"),
    ((*DRAWN, "--engine", "simulator", "--cache", "{empty}"), "a cache is for sites in this process: leave it out"),
    # It ignored the folder.
    ((*DRAWN, "--data-root", "{empty}"), "the phantom set is synthetic and has no folder: leave out --data-root"),
    # A traceback.
    ((*DRAWN, "--out", "{file}/run"), "'{file}/run' cannot be written, because '{file}' is a file: choose another"),
    (("privacy", "report", "--site", "x", "--out", "{file}/x"), "because '{file}' is a file: choose another place"),
    (("jobs", "export", "fedavg", "--out", "{file}/x"), "because '{file}' is a file: choose another place"),
    # It trained for a minute, then failed.
    ((*DRAWN, "--site", "chest", "--site", "chest"), "the site 'chest' is named twice: name each site once"),
    # A list of all names that there are, or a frame of six lines.
    (("run", "prompt_pfi"), "there is no method 'prompt_pfi': did you mean 'prompt_pfl'?"),
    (
        (*DRAWN, "-O", "learning_rat=1"),
        "there is no option 'learning_rat' of 'prompt_pfl': did you mean 'learning_rate'?",
    ),
    ((*RUN, "--data", "phantm"), "unknown data 'phantm': did you mean 'phantom'?"),
    ((*DRAWN, "--backbone", "ViT-B-33/openai"), "no architecture 'ViT-B-33': did you mean 'ViT-B-32'"),
    ((*DRAWN, "--backbone", "medclip-slake"), "was bundled up to version 0.2.0: name medclip2-slake, or"),
    ((*DRAWN, "--backbone", "medclip2-slak"), "unknown backbone 'medclip2-slak': did you mean 'medclip2-slake'"),
    ((*DRAWN, "--round", "3"), "there is no option '--round': did you mean '--rounds'?"),
    ((*DRAWN, "--engine", "simulater"), "did you mean 'simulator'?"),
    (("rum",), "no such command 'rum'. Did you mean 'run'?"),
    (("audit", "shwo"), "no such command 'shwo'. Did you mean 'show'?"),
    (
        ("pretrain", "--data-root", "{empty}", "--out", "{empty}/x", "--architecture", "medclip3", "--text", "{file}"),
        "medclip3 has a published text tower: leave --text out",
    ),
    # A second name for the same option, and two values of one.
    (("benchmark", "--budget", "rounds=3"), "there is no option '--budget': did you mean '--rounds'?"),
    ((*DRAWN, "--budget", "rounds=3"), "there is no option '--budget': did you mean '--rounds'?"),
    ((*DRAWN, "--rounds", "3", "-O", "rounds=4"), "'rounds' is given twice with two values: give it once"),
    # It was ignored, or the device failed at every site.
    (("benchmark", "--data", "phantom", "-O", "learning_rat=1"), "there is no option 'learning_rat' of these methods"),
    ((*DRAWN, "--backbone-file", "{file}"), "--backbone-file belongs to a backbone NAME@LABEL"),
    ((*DRAWN, "--device", "gpu"), "this machine cannot train on 'gpu'"),
]


@pytest.mark.parametrize(("typed", "expected"), MISTAKES, ids=lambda value: " ".join(value)[:60].replace("/", "."))
def test_a_mistake_is_one_sentence(medfedvqa: Command, tmp_path: Path, typed: tuple[str, ...], expected: str) -> None:
    """The last line of the errors is that sentence, there is no traceback, and nothing is written or trained."""
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    places = {"empty": str(empty), "file": str(file)}
    before = sorted(tmp_path.rglob("*"))
    done = medfedvqa(*(word.format(**places) for word in typed))
    last = done.stderr.splitlines()[-1]
    assert done.returncode in (1, 2) and last.startswith("Error: ") and expected.format(**places) in last
    assert "Traceback" not in done.stderr and "round 1" not in done.stderr and sorted(tmp_path.rglob("*")) == before


def test_a_mistyped_data_variable_is_an_error(medfedvqa: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also `$MEDFEDVQA_DATA` has to exist; version 0.1 trained on drawn data."""
    monkeypatch.setenv("MEDFEDVQA_DATA", "/nowhere")
    done = medfedvqa(*RUN)
    assert done.returncode == 1 and "the folder '/nowhere' of $MEDFEDVQA_DATA does not exist" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").is_dir(), reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_one_sentence(medfedvqa: Command) -> None:
    """Nothing can be made in /proc, not even by root; version 0.1 printed a traceback."""
    done = medfedvqa("jobs", "export", "fedavg", "--out", "/proc/self/job")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: '/proc/self/job") and "choose another place" in done.stderr


def test_a_read_only_folder_is_named_before_anything_is_done(
    medfedvqa: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder is asked for by its permissions, which bind root in no other way."""
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != tmp_path)
    done = medfedvqa(*DRAWN, "--out", str(tmp_path / "run"))
    assert done.returncode == 1 and f"because '{tmp_path}' is read-only: choose another place" in done.stderr


@pytest.mark.parametrize(
    ("typed", "names", "expected"),
    [
        ("--rouns", ["--rounds", "--out"], "did you mean '--rounds'?"),
        ("FEDAVG", ["fedavg", "moon"], "did you mean 'fedavg'?"),
        ("xyz", ["fedavg", "moon"], ""),
    ],
)
def test_only_names_that_resemble_are_suggested(typed: str, names: list[str], expected: str) -> None:
    """A name that resembles nothing gets no suggestion."""
    assert suggestion(typed, names) == expected


def test_a_shell_knows_the_methods_and_the_sets() -> None:
    """The names that completion reads from the sources are those that the library registers."""
    assert set(method_words("")) >= set(method_names()) and method_words("prompt") == ["prompt_pfl"]
    assert set(SETS) <= set(READERS)


def test_a_shell_completes_without_torch() -> None:
    """One TAB behind `medfedvqa run --data p` answers with no heavy module imported."""
    code = (
        "import sys, os\n"
        "os.environ.update(_MEDFEDVQA_COMPLETE='complete_bash', COMP_WORDS='medfedvqa run --data p', COMP_CWORD='3')\n"
        "from medfedvqa.cli import app\n"
        "try:\n    app(prog_name='medfedvqa')\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'nvflare'} & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.split() == ["phantom"] and done.stderr.strip() == "[]"
