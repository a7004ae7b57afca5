"""Options that several commands share, each under one name. This module is fast to import."""

import json
import os
from importlib.metadata import entry_points
from pathlib import Path
from re import MULTILINE, findall
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from medfedvqa.devices import check_names
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.federation.site_config import SiteConfig

SETS = ("vqa-rad", "slake", "store", "phantom")
"""The built-in readers, for completion in a shell: `medfedvqa.data.READERS` takes seconds to import."""
ENTRY_POINTS = "medfedvqa.methods"

EngineName = Literal["local", "simulator", "provisioned"]
SplitName = Literal["official", "patient"]
QuestionsName = Literal["closed", "open", "all"]


def method_words(incomplete: str) -> list[str]:
    """Names of methods, for completion in a shell. They are read from the sources, since an import takes seconds."""
    folders = (Path(__file__).parents[1] / place for place in ("methods", "papers/methods"))
    texts = (path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    names = {name for text in texts for name in findall(r'^    name = "(\w+)"$', text, MULTILINE)}
    names |= {entry.name for entry in entry_points(group=ENTRY_POINTS)}
    return sorted(name for name in names if name.startswith(incomplete))


def set_words(incomplete: str) -> list[str]:
    """Names of data sets, for completion in a shell."""
    return [name for name in SETS if name.startswith(incomplete)]


def checked_backbone(name: str) -> str:
    """The name, unchanged. Raises `BackboneError`, before torch and data are loaded, for one that cannot be used."""
    if name not in ("", "auto"):
        # Help and completion need no names of architectures.
        from medfedvqa.backbone_names import check

        check(name)
    return name


def writable(out: Path | None) -> Path | None:
    """The path that a command will write. Raises `ConfigError`, before any work, if it cannot be written."""
    if out is None:
        return None
    existing = out.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if existing != out.absolute() and not existing.is_dir():
        raise ConfigError(f"'{out}' cannot be written, because '{existing}' is a file: choose another place")
    if not os.access(existing, os.W_OK):
        raise ConfigError(f"'{out}' cannot be written, because '{existing}' is read-only: choose another place")
    return out


def new_file(out: Path) -> Path:
    """The path of a file that a command will make. Raises `ConfigError` if it exists or cannot be written."""
    if out.exists():
        raise ConfigError(f"'{out}' exists already: choose another file")
    writable(out)
    return out


MethodArgument = Annotated[
    str,
    typer.Argument(
        help="The name of a method; `medfedvqa methods` lists them.", autocompletion=method_words, show_default=False
    ),
]
OptionalMethodArgument = Annotated[
    str,
    typer.Argument(
        help="The name of a method; `medfedvqa methods` lists them. Leave it out only with --resume.",
        autocompletion=method_words,
        show_default=False,
    ),
]
DataOption = Annotated[
    str,
    typer.Option(
        help="The data set: vqa-rad, slake, phantom (synthetic), store, or a store's folder. By default VQA-RAD from "
        "--data-root or $MEDFEDVQA_DATA, and the phantom set only if neither is given.",
        autocompletion=set_words,
    ),
]
RootOption = Annotated[
    Path | None, typer.Option(help="The data set's folder, or the one above it. Default: $MEDFEDVQA_DATA.")
]
BackboneOption = Annotated[
    str,
    typer.Option(
        help="The frozen backbone: auto (a bundled one that has not seen the data), a bundled name, ARCH/TAG of "
        "open_clip, hf-hub:NAME, or NAME@LABEL.",
        callback=checked_backbone,
    ),
]
BackboneFileOption = Annotated[Path | None, typer.Option(help="The file or folder of a backbone NAME@LABEL.")]
StartFromOption = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="The folder of an earlier run of fedavg whose model all sites start from, as on open data."
    ),
]
RoundsOption = Annotated[int | None, typer.Option(help="Rounds of the federation. Default: the method's.", min=1)]
EpochsOption = Annotated[
    int | None, typer.Option(help="Passes over a site's rows in each round. Default: the method's.", min=1)
]
MethodOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-O",
        metavar="NAME=VALUE",
        help="Any option of the method, as `medfedvqa methods NAME` lists them; repeatable. `-O rounds=3` is another "
        "way to write `--rounds 3`.",
    ),
]
OrgansOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only this site, named by its organ; repeatable. Default: all.")
]
CutOption = Annotated[
    str,
    typer.Option(
        "--sites",
        metavar="CUT",
        help="How the data are divided into sites by patient: organ, hospital:N (of each organ), question-type, "
        "modality, halves:N (at random), dirichlet:ALPHA or quantity:ALPHA (a further :N for the number of sites).",
    ),
]
OwnOrganOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="An organ of your own that questions name; repeatable.")
]
EncodingOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Encoding of a table that is not Unicode, such as cp1252 or gb18030.")
]
HiddenOption = Annotated[
    Literal["refuse", "read", "leave-out"], typer.Option(help="How to treat a workbook's hidden rows and columns.")
]
ThreadsOption = Annotated[int, typer.Option(help="Processor threads per site.", min=1)]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Keep outputs of the frozen backbone in this folder, for later runs on this machine. They are as personal "
        "as the pictures.",
    ),
]
SeedsOption = Annotated[int, typer.Option(help="Runs of each system, with seeds 0, 1, ...", min=1)]
WorkersOption = Annotated[int, typer.Option(help="Number of parallel runs, each on one thread.", min=1)]
UnseenBackboneOption = Annotated[
    str,
    typer.Option(
        help="The frozen backbone, as in `medfedvqa run`; auto: a bundled one that has not seen the data.",
        callback=checked_backbone,
    ),
]
TunedOption = Annotated[
    Path | None, typer.Option(help="The file tuned.json of `medfedvqa tune`: its learning rates and weight decays.")
]
RunsOption = Annotated[Path, typer.Option(help="Folder of all runs; runs that it already holds are not repeated.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        "--devices",
        help="Where sites train: cpu, cuda, cuda:N, or auto (a graphics card if torch can use one). Several, "
        "separated by commas, are taken in turn by sites, and in a benchmark by runs.",
        callback=check_names,
    ),
]
EpsilonOption = Annotated[
    float | None, typer.Option(help="Differential privacy: epsilon of the whole job for each patient.")
]
DPOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dp",
        metavar="NAME=VALUE",
        help="Any setting of differential privacy, as `medfedvqa privacy settings` lists them; repeatable.",
    ),
]
QuestionsOption = Annotated[
    QuestionsName, typer.Option(help="The questions for training and test, by their published kind.")
]
OutOption = Annotated[
    Path | None, typer.Option(help="Folder for the results. Default: runs/METHOD-DATA-TIME.", callback=writable)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no tables, only errors.")]


def named_values(pairs: list[str], **named: Any) -> dict[str, Any]:
    """The values of NAME=VALUE pairs, as JSON or else as text, with the values that have a separate option.

    Raises `ConfigError` for a text without an equals sign, and for a name with two different values.
    """
    options = {name: value for name, value in named.items() if value is not None}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise ConfigError(f"'{pair}' is not NAME=VALUE, as in -O learning_rate=0.001")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if name in options and options[name] != value:
            raise ConfigError(f"'{name}' is given twice with two values: give it once")
        options[name] = value
    return options


def check_backbone_file(backbone: str, file: Path | None) -> dict[str, Path]:
    """The checkpoint by the backbone's name. Raises `ConfigError` if the file is missing or no backbone needs one."""
    if file is None:
        return {}
    if "@" not in backbone:
        raise ConfigError("--backbone-file belongs to a backbone NAME@LABEL: give one by --backbone")
    if not file.exists():
        raise ConfigError("the file of --backbone-file does not exist: check its path")
    return {backbone: file}


SiteFile = Annotated[Path, typer.Option("--site", help="The site's own site.yml.")]


def config_of(site: Path) -> "SiteConfig":
    """The settings in a site.yml. Its folder has the site's name; in a startup kit, the folder above `local` has it."""
    from medfedvqa.federation.site_config import load_site_config

    folder = site.resolve().parent
    return load_site_config(site, (folder.parent if folder.name == "local" else folder).name)
