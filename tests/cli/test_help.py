"""Every command explains itself: each option in words, no type names, and without importing what it needs to run."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from medfedvqa.cli import COMMANDS, GROUPS
from medfedvqa.cli.lazy import CommandSource, LazyCommand

SOURCES = {(name,): source for name, source in COMMANDS.items()} | {
    (group, name): source for group, (commands, _) in GROUPS.items() for name, source in commands.items()
}
HEAVY = ("torch", "nvflare", "open_clip", "opacus", "crypten", "matplotlib", "numpy")


@pytest.mark.parametrize("names", SOURCES, ids=" ".join)
def test_the_help_of_a_command_names_every_option_in_plain_words(
    medfedvqa: Callable[..., Any], names: tuple[str, ...]
) -> None:
    """Each option stands there with a sentence that begins with a capital letter and ends with a full stop."""
    for flag in ("--help", "-h"):
        done = medfedvqa(*names, flag)
        assert done.returncode == 0 and "Usage" in done.stdout and not re.search(r"<\w+>", done.stdout)
    text = " ".join(done.stdout.replace("│", " ").split())
    for parameter in LazyCommand(names[-1], SOURCES[names]).loaded().params:
        if getattr(parameter, "hidden", False):
            continue
        words = (parameter.help or "").strip()
        assert re.match(r"[A-Z0-9`]|open_clip", words) and words.endswith("."), (parameter.name, words)
        assert all(flag in text for flag in parameter.opts if flag.startswith("-"))
        assert words.split()[0] in text


@pytest.mark.parametrize("name", ["--engine", "--split", "--gather"])
def test_the_choices_of_an_option_are_shown(medfedvqa: Callable[..., Any], name: str) -> None:
    """A reader of `run --help` need not guess what an option may be."""
    choices = {"--engine": ("local", "simulator", "provisioned"), "--split": ("official", "patient")}
    text = medfedvqa("run", "--help").stdout
    assert all(choice in text for choice in choices.get(name, ("mean", "trimmed", "median")))


def test_no_command_imports_what_it_needs_only_to_run() -> None:
    """The modules of all commands, loaded as `--help` loads them, bring no package that takes seconds."""
    modules = sorted({source.module for names, source in SOURCES.items() if not light_enough(source)})
    code = "import sys, importlib\n" + "".join(f"importlib.import_module('medfedvqa.cli.{name}')\n" for name in modules)
    code += f"import json; print(json.dumps(sorted(set({HEAVY!r}) & sys.modules.keys())))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert json.loads(done.stdout) == []


def light_enough(source: CommandSource) -> bool:
    """Whether a command needs NumPy alone: what verifies a report or reads a ledger computes with it."""
    return source.module in ("privacy", "report", "report_verify")


def test_every_source_names_a_function() -> None:
    """The tables are the only list of commands."""
    for source in SOURCES.values():
        assert callable(getattr(import_module(f"medfedvqa.cli.{source.module}"), source.function))


def test_the_version_is_printed(medfedvqa: Callable[..., Any]) -> None:
    """`--version` names the version of the code."""
    from medfedvqa.version import VERSION

    done = medfedvqa("--version")
    assert (done.returncode, done.stdout) == (0, f"medfedvqa {VERSION}\n")


@pytest.mark.parametrize("names", [(), ("audit",), ("privacy",)])
def test_a_group_without_a_command_explains_itself(medfedvqa: Callable[..., Any], names: tuple[str, ...]) -> None:
    """It lists its commands, and exits with 2."""
    done = medfedvqa(*names)
    assert done.returncode == 2 and "Commands" in done.stdout and done.stderr == ""


def test_a_field_of_a_job_is_an_option_of_each_command_and_a_keyword_of_the_library() -> None:
    """One declaration: whoever adds a field to `JobChoices` adds no line elsewhere. No option of a method has its name,
    which a keyword of the library could not tell apart."""
    import medfedvqa
    from medfedvqa.core import method_names, method_type
    from medfedvqa.federation.job_choices import JobChoices

    fields = JobChoices.model_fields.keys()
    assert len(fields) == 8 and fields <= inspect.signature(medfedvqa.Job).parameters.keys()
    for names in (("run",), ("jobs", "export")):
        assert fields <= {parameter.name for parameter in LazyCommand(names[-1], SOURCES[names]).loaded().params}
    assert not [name for name in method_names() if fields & method_type(name).config_type.model_fields.keys()]
