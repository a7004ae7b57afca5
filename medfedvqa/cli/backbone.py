"""`medfedvqa backbone`: lists and checks pretrained models, and writes their shapes for parties without the weights."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from medfedvqa.cli.options import JsonOption, new_file
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.shape_cards import ShapeCard

NameArgument = Annotated[
    str, typer.Argument(help="ARCH/TAG, ARCH@LABEL, hf-hub:ORG/NAME@LABEL or local-dir:NAME@LABEL.")
]
FileOption = Annotated[
    Path | None, typer.Option("--file", help="For a name with @: its file or folder on this machine.")
]


def list_command(as_json: JsonOption = False) -> None:
    """List open_clip's architectures: which can be used, which take prompts, and why others are refused."""
    from medfedvqa.backbone_names import BUNDLED_NAMES, FUSED, architectures, configuration, refusal, takes_prompts

    ready = (*BUNDLED_NAMES, *(f"{architecture}@LABEL" for architecture in FUSED))
    rows: list[dict[str, Any]] = [{"name": name, "prompts": True, "reason": None} for name in ready]
    for name in architectures():
        described = configuration(name)
        reason = refusal(described)
        rows.append({"name": name, "prompts": reason is None and takes_prompts(described), "reason": reason})
    if as_json:
        typer.echo(json.dumps({"backbones": rows}, indent=2))
        return
    table = Table("name", "loads", "prompts", "why not", box=box.SIMPLE)
    for row in rows:
        words = ["no" if row["reason"] else "yes", "yes" if row["prompts"] else "no", plain(str(row["reason"] or ""))]
        table.add_row(plain(str(row["name"])), *words)
    Terminal().print(table)


def check_command(name: NameArgument, file: FileOption = None, as_json: JsonOption = False) -> None:
    """Say whether a backbone can be used; with --file, load it and show its digest, its shape and its licence."""
    from medfedvqa.backbone_names import check, parse

    check(name)
    facts: dict[str, Any] = {"name": name, "loads": None}
    if file is not None:
        facts |= _loaded(name, file)
    elif parse(name).label is not None:
        facts["note"] = "its file was not tried: give it by --file"
    else:
        facts["note"] = "its weights were not fetched"
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        Terminal().print("\n".join(f"{key}: {sentence(str(value))}" for key, value in facts.items()), soft_wrap=True)


def _loaded(name: str, file: Path) -> dict[str, Any]:
    """The facts about a backbone that loading it shows. Raises `BackboneError`, `ConfigError`."""
    if "@" not in name:
        raise ConfigError("--file belongs to a name with @, such as ViT-B-32@mine: other names have no local file")
    # torch takes seconds to import.
    from medfedvqa.models import load_backbone

    backbone = load_backbone(name, {name: file})
    towers = {
        key: f"{tower.layers} blocks of width {tower.width}{'' if tower.heads else ', convolutions: no prompts'}"
        for key, tower in backbone.shape.towers.items()
    }
    facts = {"loads": True, "digest": backbone.digest, **towers, "pixels": backbone.shape.image_size}
    facts |= {"tokens": backbone.shape.context, "licence": licence_in(file) or "not said in the folder"}
    notes = getattr(backbone, "notes", ())
    return facts | ({"note": "; ".join(notes)} if notes else {})


def licence_in(folder: Path) -> str | None:
    """The licence in the metadata of a folder's README (a Hugging Face model card); None if there is none."""
    readme = folder / "README.md"
    if not readme.is_file():
        return None
    lines = readme.read_text(encoding="utf-8", errors="replace").splitlines()[:200]
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("license:", "licence:")))
    return next((licence[:80] for licence in named if licence), None)


def card_command(
    name: NameArgument,
    out: Annotated[Path, typer.Option(help="The card to write; must not exist.", callback=new_file)],
    file: FileOption = None,
) -> None:
    """Write a backbone's shape card: with it, servers and job authors need neither its weights nor the hub."""
    from medfedvqa.atomic_files import write_whole
    from medfedvqa.backbone_names import check

    check(name)
    from medfedvqa.models import card_in

    card = card_in(name, {} if file is None else {name: file})
    write_whole(out, f"{card.model_dump_json(indent=1)}\n".encode())
    Terminal().print(f"Wrote {sentence(out)}: {len(card.parameters)} shapes, no weights.", soft_wrap=True)


def read_card(path: Path) -> "ShapeCard":
    """The card in a file. Raises `ConfigError`."""
    from medfedvqa.shape_cards import ShapeCard

    try:
        return ShapeCard.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        raise ConfigError("--card is not a shape card: make one by `medfedvqa backbone card`") from None
