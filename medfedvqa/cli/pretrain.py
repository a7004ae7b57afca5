"""`medfedvqa pretrain`: trains the bundled backbone again."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from medfedvqa.cli.options import QuietOption, writable
from medfedvqa.cli.terminal import Terminal, sentence


def pretrain(
    data_root: Annotated[Path, typer.Option(help="The data folder: holds open/ and the benchmark's folder.")],
    out: Annotated[
        Path, typer.Option(help="The safetensors file to write; its model card lies beside it.", callback=writable)
    ],
    benchmark: Annotated[
        Literal["slake", "vqa-rad", "none"], typer.Option(help="The data set whose questions are learned, or none.")
    ] = "none",
    architecture: Annotated[
        Literal["medclip2", "medclip3"],
        typer.Option(help="What is trained; medclip3 stands on published networks: medfedvqa[words]."),
    ] = "medclip2",
    steps: Annotated[int, typer.Option(help="Training steps of 64 pictures.", min=1)] = 1500,
    start: Annotated[Path | None, typer.Option(help="Begin from these weights instead of random ones.")] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Take the frozen text tower of these weights; without it no words are learned from."),
    ] = None,
    share_alike: Annotated[bool, typer.Option(help="Use the share-alike set (MedNIST) too.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and augmentation.")] = 7,
    quiet: QuietOption = False,
) -> None:
    """Train the small CLIP on open data, in stages if wanted. Resumes if interrupted; uses a GPU where there is one."""
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from medfedvqa.errors import ConfigError
    from medfedvqa.research.pretraining.card import write_card
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
        write_card(out, corpus, data_root)
    console.print(f"Weights and model card are in [bold]{sentence(out.parent)}[/]")
