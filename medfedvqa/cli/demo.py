"""`medfedvqa demo`: trains hospitals together and each of them alone, step by step, and explains the result."""

from pathlib import Path
from typing import Any

import typer

from medfedvqa.cli import options
from medfedvqa.cli.run import announced, finish, watched

METHOD = "fedavg"
DEMO_OPTIONS: dict[str, Any] = {"schedule": "stepwise", "tuning": "classifier", "finish_epochs": 10}
"""A head on frozen features, which are computed once, so that 200 steps take minutes on two cores. With finishing, each
site also trains the same model alone, for comparison."""
HOSPITALS, DRAWN_HOSPITALS = 2, 3
"""Hospitals of each organ, and of each in the phantom set, whose pictures need fewer rows. With one hospital for an
organ there is little to gain (docs/benchmark.md)."""
NEXT = """
What to do next: {out}/plots/together.png shows each hospital alone and together.
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
    """Two hospitals for each organ train together through FLARE's simulator: on SLAKE, VQA-RAD, or the phantom set."""
    progress = announced("medfedvqa demo: hospitals train together and alone, within minutes", quiet)
    # What follows imports torch, which takes seconds.
    from medfedvqa.cli.terminal import Terminal, sentence
    from medfedvqa.data.data_roots import DRAWN, PHANTOM, first_root
    from medfedvqa.data.site_cuts import Cut
    from medfedvqa.evaluation.accuracy_table import explained
    from medfedvqa.library.data_set import Data
    from medfedvqa.library.run_job import launch_of, new_folder
    from medfedvqa.library.training_job import Job

    reader, root = first_root(("slake", "vqa-rad"), data_root)
    if reader == PHANTOM:
        progress.print(f"Note: {DRAWN}", highlight=False, soft_wrap=True)
    out = out or new_folder("demo", METHOD)
    data = Data(reader, root, Cut("hospital", DRAWN_HOSPITALS if reader == PHANTOM else HOSPITALS))
    launch = launch_of(Job(METHOD, method_options=DEMO_OPTIONS), data, "simulator", device=device, out=out)
    results = watched(launch, "simulator", progress)
    finish(launch, results, as_json, quiet)
    if as_json or quiet:
        return
    console = Terminal()
    for text in explained(results):
        console.print(sentence(text), highlight=False, soft_wrap=True)
    typer.echo(NEXT.format(out=out, activate=activation()))


def activation() -> str:
    """The shell command that activates the environment of `make`; empty if the shell finds `medfedvqa` already."""
    import shutil
    import sys

    script = Path(sys.prefix, "bin", "activate")
    if shutil.which("medfedvqa") or not script.exists():
        return ""
    place = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return f"  . {place}\n      makes the commands below known to this shell\n"
