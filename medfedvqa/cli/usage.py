"""Explains in one sentence what is wrong with a command, or which packages it lacks."""

import errno
import re
from typing import Any

import typer

from medfedvqa.near_miss import suggestion

PLACES = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT})
"""Errors about a path, which a user can replace by another."""
CHOICE = re.compile(r"'([^']*)' is not one of (.*)$")
RENAMED = {"--budget": "--rounds", "--epochs": "--local-epochs", "--root": "--data-root", "--output": "--out"}
"""The options that people mean by these names."""


def explained(error: typer.TyperException) -> str:
    """The error as a sentence, with the nearest names that exist and the command that lists them."""
    context: Any = getattr(error, "ctx", None)
    text = error.message.strip().rstrip(".")
    if context is None:
        return text
    name = getattr(error, "option_name", None)
    if name is not None and text.startswith("No such option"):
        options = [flag for option in context.command.params for flag in (*option.opts, *option.secondary_opts)]
        text = f"there is no option '{name}'"
        hint = f"did you mean '{RENAMED[name]}'?" if RENAMED.get(name) in options else suggestion(name, options)
        text = f"{text}: {hint}" if hint else text
    else:
        text = error.format_message().strip().rstrip(".").replace("Value error, ", "")
        text = text[:1].lower() + text[1:]
        if choice := CHOICE.search(text):
            close = suggestion(choice[1], re.findall(r"'([^']*)'", choice[2]))
            text = f"{text}: {close}" if close else text
    end = "" if text.endswith("?") else "."
    return f"{text}{end} `{context.command_path} --help` lists what there is."


def place_of(error: OSError) -> str | None:
    """Why a path that the user named cannot be used; None for an error of another kind."""
    if error.errno not in PLACES or error.filename is None:
        return None
    return f"'{error.filename}' cannot be used ({error.strerror}): choose another place"


TRAINING = frozenset(
    {
        *("torch", "torchvision", "open_clip", "opacus", "crypten", "nvflare", "monai", "pydicom", "PIL", "scipy"),
        *("matplotlib", "safetensors", "typst", "pyarrow", "pyrage"),
    }
)
"""The modules that the extra `train` brings."""
SENTENCE = (
    "this command needs packages that are not installed here, as torch: install them with "
    "`pip install 'medfedvqa[train]'`"
)


def is_missing_extra(error: BaseException) -> bool:
    """Whether the error is about a module that the extra `train` brings."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in TRAINING
