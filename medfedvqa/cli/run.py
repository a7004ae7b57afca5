"""`medfedvqa run` and `demo`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medfedvqa.cli import options
from medfedvqa.cli.plugins import ModuleOption, PluginOption, allow_plugins, import_modules

if TYPE_CHECKING:
    from medfedvqa.cli.terminal import Terminal
    from medfedvqa.federation.launch import Launch

DEMO_OPTIONS: dict[str, Any] = {"learning_rate": 0.002, "decay": 0.3, "decay_every": 4}
DEMO_ROUNDS, DEMO_EPOCHS = 10, 2
"""The paper's 30 rounds of 5 epochs take most of an hour on two cores; the demo takes minutes."""
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
    device: options.DeviceOption = "cpu",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Three organ sites train on VQA-RAD through FLARE's simulator (on the phantom set where no data is given)."""
    announced(f"medfedvqa demo: three organ sites train {DEMO_ROUNDS} rounds, in a few minutes on two cores", quiet)
    # What follows imports torch, which takes seconds.
    from medfedvqa.library.run_job import new_folder

    pairs = [f"{name}={value}" for name, value in DEMO_OPTIONS.items()]
    out = out or new_folder("demo", "prompt_pfl")
    run(
        "prompt_pfl", "", data_root, "simulator", DEMO_ROUNDS, DEMO_EPOCHS, pairs,
        out=out, device=device, as_json=as_json, quiet=quiet,
    )  # fmt: skip
    if not as_json and not quiet:
        typer.echo(NEXT.format(out=out, activate=_activation()))


def _activation() -> str:
    """How the shell finds the command, where it does not: `make` starts it from an environment that is not active."""
    import shutil
    import sys

    script = Path(sys.prefix, "bin", "activate")
    if shutil.which("medfedvqa") or not script.exists():
        return ""
    place = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return f"  . {place}\n      makes the commands below known to this shell\n"


def run(
    method: options.MethodArgument,
    data: options.DataOption = "",
    data_root: options.RootOption = None,
    engine: Annotated[
        options.EngineName,
        typer.Option(
            metavar="ENGINE",
            help="Where sites run: local (in this process), simulator (FLARE's), or provisioned (a loopback mTLS "
            "federation).",
        ),
    ] = "local",
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    backbone: options.BackboneOption = "auto",
    backbone_file: options.BackboneFileOption = None,
    split: Annotated[
        options.SplitName, typer.Option(help="The split of the rows: the published one, or one by patient.")
    ] = "official",
    questions: options.QuestionsOption = "closed",
    seed: options.SeedOption = 0,
    site: options.OrgansOption = None,
    epsilon: options.EpsilonOption = None,
    dp: options.DPOption = None,
    secagg: options.SecaggOption = False,
    committee: options.CommitteeOption = None,
    gather: options.GatherOption = "mean",
    most_norm: options.MostNormOption = None,
    device: options.DeviceOption = "cpu",
    threads: options.ThreadsOption = 1,
    ledger: Annotated[
        Path | None, typer.Option(help="Folder of the ledger of a store. Default: STORE.ledger, as ingest makes it.")
    ] = None,
    out: options.OutOption = None,
    plugin: PluginOption = None,
    module: ModuleOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train a method over one site per organ and write results, table, plots and each site's log."""
    progress = announced(f"medfedvqa run {method}: loading PyTorch and checking the job", quiet)
    # These modules import torch, which takes seconds.
    from medfedvqa.data.data_roots import DRAWN, find_root
    from medfedvqa.library.data_set import Data
    from medfedvqa.library.run_job import launch_of
    from medfedvqa.library.training_job import Job

    allow_plugins(plugin)
    import_modules(module, engine)
    reader, root = find_root(data, data_root)
    job = Job(
        method,
        method_options=options.named_values(option or [], rounds=rounds, local_epochs=local_epochs),
        dp=options.named_values(dp or [], epsilon=epsilon),
        secagg=secagg,
        committee=options.parsed_committee(committee),
        gather=gather,
        most_norm=most_norm,
        split=split,
        questions=questions,
        seed=seed,
        backbone=backbone,
    )
    launch = launch_of(
        job,
        Data(reader, root),
        engine,
        sites=tuple(site or ()),
        device=device,
        out=out,
        threads=threads,
        backbone_files=options.check_backbone_file(backbone, backbone_file),
        ledger=ledger,
    )
    if not data and root is None:
        progress.print(f"Note: {DRAWN}", highlight=False, soft_wrap=True)
    results = _watched(launch, engine, progress)
    _finish(launch, results, as_json, quiet)


def announced(text: str, quiet: bool) -> "Terminal":
    """The console for progress. Its first line is printed before anything slow is imported."""
    from importlib.util import find_spec

    from medfedvqa.cli.terminal import Terminal, sentence

    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    progress = Terminal(stderr=True, quiet=quiet)
    progress.print(sentence(text), highlight=False, soft_wrap=True)
    return progress


def _watched(launch: "Launch", engine: options.EngineName, progress: "Terminal") -> dict[str, Any]:
    """Run the launch while its stages are shown, and return its results."""
    from medfedvqa.cli.progress import Stages
    from medfedvqa.cli.terminal import plain
    from medfedvqa.federation.launch import run as run_launch

    job, count = launch.job, len(launch.sites)
    facts = f"backbone {plain(job.backbone)}, engine {engine}, device {plain(launch.device)}"
    sites = "1 site" if count == 1 else f"{count} sites"
    progress.print(f"[bold]{plain(job.method)}[/] on {plain(job.data)}, {sites}, {facts}", soft_wrap=True)
    if engine != "local":
        progress.print("FLARE starts a process for each site; each loads PyTorch", soft_wrap=True)
    config = job.build().config
    baseline = bool(getattr(config, "local_baseline", False)) and not getattr(config, "finish_epochs", 0)
    with _first_interrupt_stops(progress) as stop, Stages(progress, count, config.rounds, baseline) as stages:
        return run_launch(launch, engine, stages.watch, stop)


def _finish(launch: "Launch", results: dict[str, Any], as_json: bool, quiet: bool) -> None:
    """Print what left each site, where the results are, and last the accuracies."""
    import json

    from medfedvqa.cli.display import show_results
    from medfedvqa.cli.log_totals import show_log_totals
    from medfedvqa.cli.terminal import Terminal, sentence

    if as_json:
        typer.echo(json.dumps({**results, "folder": str(launch.out)}, indent=2))
        return
    console = Terminal(quiet=quiet)
    show_log_totals(console, launch.audit_folders)
    console.print(f"Results, plots and logs are in [bold]{sentence(launch.out)}[/]", soft_wrap=True)
    show_results(console, results)


@contextmanager
def _first_interrupt_stops(console: "Terminal") -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C end the run after the round and an evaluation; the second ends it at once."""
    import signal

    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True
        console.print("Stopping after this round; results so far will be evaluated. Ctrl-C again ends at once.")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: stopping
    finally:
        signal.signal(signal.SIGINT, before)
