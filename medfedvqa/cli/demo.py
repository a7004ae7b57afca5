"""`medfedvqa demo`: a federation that trains until its validation curve is flat, and what its table says."""

from pathlib import Path
from typing import Any

import typer

from medfedvqa.cli import options
from medfedvqa.cli.run import announced, finish, watched

METHOD = "prompt_pfl"
DEMO_OPTIONS: dict[str, Any] = {
    "rounds": 30, "local_epochs": 2, "batch_rows": 32, "learning_rate": 0.003, "decay": 0.3, "decay_every": 8,
    "blocks": 2, "keep": "best",
}  # fmt: skip
"""Prompts in the last two blocks: what lies below is computed once. The paper's prompts in all blocks and 30 rounds of
5 epochs take hours on two cores; the demo takes minutes."""
PATIENCE = 5
"""The rounds without a better mean validation accuracy after which the curve counts as flat."""
NEXT = """
What to do next:
{activate}  medfedvqa audit show {out}
      lists every tensor that left a site
  medfedvqa audit verify {out} --no-network
      checks that every log is whole, and that others confirm it (no network, since all sites ran on this machine)
  medfedvqa audit ui {out} --no-network
      shows the same in a browser on this machine
  medfedvqa methods
      lists other methods, for `medfedvqa run METHOD`
docs/quickstart.md continues with your own data, privacy, and a federation of several machines."""


def demo(
    data_root: options.RootOption = None,
    out: options.OutOption = None,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Organ sites train through FLARE's simulator until their curve is flat: on SLAKE, VQA-RAD, or the phantom set."""
    progress = announced(
        "medfedvqa demo: organ sites train until their validation curve is flat, within minutes", quiet
    )
    # What follows imports torch, which takes seconds.
    from medfedvqa.cli.terminal import Terminal, sentence
    from medfedvqa.data.data_roots import DRAWN, PHANTOM, first_root
    from medfedvqa.evaluation.explanation import explained
    from medfedvqa.library.data_set import Data
    from medfedvqa.library.run_job import launch_of, new_folder
    from medfedvqa.library.training_job import Job

    reader, root = first_root(("slake", "vqa-rad"), data_root)
    if reader == PHANTOM:
        progress.print(f"Note: {DRAWN}", highlight=False, soft_wrap=True)
    out = out or new_folder("demo", METHOD)
    launch = launch_of(
        Job(METHOD, method_options=DEMO_OPTIONS), Data(reader, root), "simulator", device=device, out=out
    )
    results = watched(launch, "simulator", progress, PATIENCE)
    finish(launch, results, as_json, quiet)
    if as_json or quiet:
        return
    console = Terminal()
    for text in (training_length(results), *explained(results)):
        console.print(sentence(text), highlight=False, soft_wrap=True)
    typer.echo(NEXT.format(out=out, activate=activation()))


def training_length(results: dict[str, Any]) -> str:
    """How many rounds the demo trained for, and which of them had the best mean validation accuracy."""
    from statistics import fmean

    from medfedvqa.evaluation.accuracy import percent
    from medfedvqa.evaluation.flatness import rounds_since_best

    curve = [fmean(record["accuracy"].values()) for record in results["rounds"]]
    best = len(curve) - rounds_since_best(curve)
    rounds = f"{len(curve)} of at most {results['rounds_planned']} rounds"
    return f"Training ended after {rounds}; round {best} was best on validation rows, {percent(max(curve))} right."


def activation() -> str:
    """How the shell finds the command, where it does not: `make` starts it from an environment that is not active."""
    import shutil
    import sys

    script = Path(sys.prefix, "bin", "activate")
    if shutil.which("medfedvqa") or not script.exists():
        return ""
    place = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return f"  . {place}\n      makes the commands below known to this shell\n"
