"""`medfedvqa pretrain` and `probe`: trains the bundled backbone; measures how many closed questions of a set a simple
model answers from frozen features of the pictures.
"""

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from medfedvqa.cli.options import (
    BackboneFileOption,
    DataOption,
    JsonOption,
    QuietOption,
    RootOption,
    check_backbone_file,
    writable,
)
from medfedvqa.cli.terminal import Terminal, plain, sentence


def pretrain(
    data_root: Annotated[Path, typer.Option(help="The data folder: holds open/ and the benchmark's folder.")],
    out: Annotated[
        Path, typer.Option(help="The safetensors file to write, with its model card beside it.", callback=writable)
    ],
    benchmark: Annotated[
        Literal["slake", "vqa-rad", "none"], typer.Option(help="The data set of training questions, or none.")
    ] = "none",
    architecture: Annotated[
        Literal["medclip2", "medclip3"],
        typer.Option(help="The model to train; medclip3 extends published networks and needs medfedvqa[words]."),
    ] = "medclip2",
    steps: Annotated[int, typer.Option(help="Training steps of 64 pictures.", min=1)] = 1500,
    start: Annotated[Path | None, typer.Option(help="Start from these weights instead of random ones.")] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Weights whose text tower is used, frozen; without it, training uses no text."),
    ] = None,
    share_alike: Annotated[bool, typer.Option(help="Use the share-alike set (MedNIST) too.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and augmentation.")] = 7,
    quiet: QuietOption = False,
) -> None:
    """Train the small CLIP on open data, in stages if wanted. Resumes if interrupted; uses a GPU where there is one."""
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from medfedvqa.errors import ConfigError
    from medfedvqa.research.pretraining.card import trained_backbone, write_card, write_components
    from medfedvqa.research.pretraining.corpus import PIXELS, load
    from medfedvqa.research.pretraining.train import Recipe, stages_of, train, write_weights

    if text and architecture == "medclip3":
        raise ConfigError("medclip3 has a published text tower: leave --text out")
    console = Terminal(quiet=quiet)
    stages = stages_of(start) if start else []
    with console.status("Reading pictures"):
        side = 224 if architecture == "medclip3" else PIXELS
        corpus = load(data_root, None if benchmark == "none" else benchmark, share_alike, side)
    recipe, began = Recipe(steps=steps, architecture=architecture, seed=seed), time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("pre-training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=steps, loss="")

        def progress(step: int, _: int, loss: float) -> None:
            bar.update(task, completed=step, loss=f"loss {loss:.3f}")

        clip = train(corpus, recipe, out.with_suffix(".checkpoint"), start, text, progress)
    device = "a GPU" if torch.cuda.is_available() else f"{torch.get_num_threads()} processor threads"
    facts = {"benchmark": benchmark, "text": text.stem if text else None, "device": device}
    stage = {**asdict(recipe), **facts, "seconds": time.monotonic() - began}
    write_weights(clip, out, [*stages, stage])
    out.with_suffix(".checkpoint").unlink()
    with console.status("Measuring for the model card"):
        backbone = trained_backbone(out)
        write_components(backbone, corpus, out)
        write_card(out, backbone, corpus, data_root)
    console.print(f"Weights, their principal components and model card are in [bold]{sentence(out.parent)}[/]")


def probe(
    data: DataOption = "",
    data_root: RootOption = None,
    backbone: Annotated[
        list[str] | None, typer.Option(help="A backbone to probe; repeatable. Default: all bundled ones.")
    ] = None,
    backbone_file: BackboneFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare backbones with a thumbnail, edges and an untrained network by one probe of their frozen features.

    It prints the accuracy on validation and test rows of a kernel ridge regression, the same for every description.
    Test rows are for the report: choose by validation rows.
    """
    from rich.table import Table

    from medfedvqa.data import read
    from medfedvqa.data.data_roots import find_root
    from medfedvqa.errors import ConfigError
    from medfedvqa.models import has_seen, load_backbone
    from medfedvqa.models.bundled import BUNDLED
    from medfedvqa.research.pretraining.answer_probes import compared, probed_rows

    names = backbone or [*BUNDLED]
    local = [name for name in names if "@" in name]
    if len(local) > 1:
        raise ConfigError("one file is given for one backbone ARCH@LABEL: probe them one after the other")
    files = check_backbone_file(local[0] if local else "", backbone_file)
    reader, root = find_root(data, data_root)
    backbones = {name: load_backbone(name, files) for name in names}
    probes = compared(partial(probed_rows, read(reader, root)), backbones, plain=True)
    if as_json:
        typer.echo(json.dumps({"data": reader, "probes": [asdict(each) for each in probes]}, indent=2))
        return
    console = Terminal()
    table = Table("closed questions", "validation", "test", title=plain(reader))
    for each in probes:
        table.add_row(plain(each.name), f"{each.validation:.1%}", f"{each.test:.1%}")
    console.print(table)
    for name in names:
        if has_seen(name, reader):
            console.print(f"{plain(name)} was trained on {plain(reader)}: its figures say nothing about unseen data")
