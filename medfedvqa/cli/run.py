"""`medfedvqa run`, and the options of a job on the command line, made from the fields of `JobChoices`."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from annotated_types import Ge

from medfedvqa.cli import options
from medfedvqa.cli.plugins import ModuleOption, PluginOption, allow_plugins, import_modules
from medfedvqa.devices import Precision
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job_choices import JobChoices

if TYPE_CHECKING:
    from medfedvqa.cli.progress import Stages
    from medfedvqa.cli.terminal import Terminal
    from medfedvqa.federation.launch import Launch

Choices = Mapping[str, Any]
NO_CHOICES: Choices = {}
_KINDS: Mapping[str, Any] = {"secagg": Literal["masks", "crypten"] | None, "committee": str | None}
"""The types of options whose fields accept several types; if not given, they leave the field's default."""
_METAVARS = {"committee": "N|NAME,NAME,.."}


def with_job_options(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of a job, in place of its parameter `choices`.

    The command gets the values in `choices`, by the names of the fields. `defaults`: its own ones, where they differ.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            choices = {name: given.pop(name) for name in JobChoices.model_fields}
            choices["secagg"] = choices["secagg"] or False
            if committee := choices["committee"]:
                choices["committee"] = int(committee) if committee.isdecimal() else committee.split(",")
            command(choices=choices, **given)

        parameters = dict(inspect.signature(command).parameters)
        options = [_option(name, defaults) for name in JobChoices.model_fields]
        whole = [each for name, own in parameters.items() for each in (options if name == "choices" else [own])]
        called.__annotations__ = {each.name: each.annotation for each in whole}
        vars(called)["__signature__"] = inspect.Signature(whole)
        return called

    return decorated


def _option(name: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    field = JobChoices.model_fields[name]
    help = f"{(field.description or '')[:1].upper()}{(field.description or '')[1:]}."
    least: Any = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
    option = typer.Option(help=help, min=least, metavar=_METAVARS.get(name))
    kind, default = _KINDS.get(name, field.annotation), None if name in _KINDS else field.default
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=defaults.get(name, default),
        annotation=Annotated[kind, option],
    )


@with_job_options(round_timeout=None)
def run(
    method: options.OptionalMethodArgument = "",
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
        options.SplitName, typer.Option(help="The split of the rows: as published, or by patient.")
    ] = "official",
    questions: options.QuestionsOption = "closed",
    site: options.OrgansOption = None,
    hospitals: Annotated[
        int, typer.Option(help="Hospitals per organ, among which its patients are divided.", min=1, max=99)
    ] = 1,
    sites: options.CutOption = "organ",
    epsilon: options.EpsilonOption = None,
    dp: options.DPOption = None,
    choices: Choices = NO_CHOICES,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 1,
    precision: Annotated[
        Precision,
        typer.Option(help="Number format of the backbone before its first trained block; not with --epsilon."),
    ] = "float32",
    cache: options.CacheOption = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Folder of a store's ledger. Default: STORE.ledger, which ingest creates.")
    ] = None,
    out: options.OutOption = None,
    start_from: options.StartFromOption = None,
    plugin: PluginOption = None,
    module: ModuleOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Continue a run of the engine local whose process was killed."),
    ] = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train a method over one site per organ and write results, table, plots and each site's log."""
    if resume is not None:
        _resume(method, resume, plugin, module, as_json, quiet)
        return
    if not method:
        raise typer.BadParameter("name a method, as in `medfedvqa run fedavg`; `medfedvqa methods` lists them")
    progress = announced(f"medfedvqa run {method}: loading PyTorch and checking the job", quiet)
    # These modules import torch, which takes seconds.
    from medfedvqa.data.data_roots import DRAWN, find_root
    from medfedvqa.library.data_set import Data, cut_of
    from medfedvqa.library.run_job import launch_of
    from medfedvqa.library.training_job import Job

    allow_plugins(plugin)
    import_modules(module, engine)
    reader, root = find_root(data, data_root)
    job = Job(
        method,
        method_options=options.named_values(option or [], rounds=rounds, local_epochs=local_epochs),
        dp=options.named_values(dp or [], epsilon=epsilon),
        split=split,
        questions=questions,
        backbone=backbone,
        **choices,
    )
    launch = launch_of(
        job,
        Data(reader, root, cut_of(sites, hospitals)),
        engine,
        sites=tuple(site or ()),
        device=device,
        out=out,
        threads=threads,
        backbone_files=options.check_backbone_file(backbone, backbone_file),
        ledger=ledger,
        cache=cache,
        precision=precision,
        start_from=start_from,
    )
    if not data and root is None:
        progress.print(f"Note: {DRAWN}", highlight=False, soft_wrap=True)
    results = watched(launch, engine, progress)
    finish(launch, results, as_json, quiet)


def _resume(
    method: str, folder: Path, plugin: list[str] | None, module: list[str] | None, as_json: bool, quiet: bool
) -> None:
    """Continue the run in a folder."""
    if method:
        raise ConfigError("--resume takes method and options from its folder: leave them out")
    progress = announced(f"medfedvqa run --resume {folder}: loading PyTorch", quiet)
    from medfedvqa.federation.launch import Launch
    from medfedvqa.federation.launch import resume as resume_launch

    allow_plugins(plugin)
    import_modules(module, "local")
    launch = Launch.read(folder)
    with _stages(launch, progress) as (stages, stop):
        results = resume_launch(folder, stages.watch, stop)
    finish(launch, results, as_json, quiet)


def announced(text: str, quiet: bool) -> "Terminal":
    """The console for progress. Its first line is printed before anything slow is imported."""
    from importlib.util import find_spec

    from medfedvqa.cli.terminal import Terminal, sentence

    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    progress = Terminal(stderr=True, quiet=quiet)
    progress.print(sentence(text), highlight=False, soft_wrap=True)
    return progress


def watched(launch: "Launch", engine: options.EngineName, progress: "Terminal") -> dict[str, Any]:
    """Run the launch while its stages are shown, and return its results."""
    from medfedvqa.cli.terminal import plain, sentence
    from medfedvqa.devices import in_words
    from medfedvqa.federation.launch import run as run_launch
    from medfedvqa.federation.server_reads import in_a_line, server_reads

    job, count = launch.job, len(launch.sites)
    facts = f"backbone {plain(job.backbone)}, engine {engine}, device {plain(in_words(launch.device))}"
    sites = "1 site" if count == 1 else f"{count} sites"
    progress.print(f"[bold]{plain(job.method)}[/] on {plain(job.data)}, {sites}, {facts}", soft_wrap=True)
    reads = in_a_line(server_reads(job))
    progress.print(f"Each site sends {sentence(reads)}", soft_wrap=True, highlight=False)
    if engine != "local":
        progress.print("FLARE starts a process for each site, and each process loads PyTorch", soft_wrap=True)
    with _stages(launch, progress) as (stages, stop):
        return run_launch(launch, engine, stages.watch, stop)


@contextmanager
def _stages(launch: "Launch", progress: "Terminal") -> Iterator[tuple["Stages", Callable[[], bool]]]:
    """Shows the stages of a launch; yields them, and a function that says whether the user asked to stop."""
    from medfedvqa.cli.progress import Stages

    method = launch.job.build()
    config, rounds = method.config, method.rounds
    baseline = bool(getattr(config, "local_baseline", False)) and not getattr(config, "finish_epochs", 0)
    count = len(launch.sites)
    with _first_interrupt_stops(progress) as stop, Stages(progress, count, rounds, baseline) as stages:
        yield stages, stop


def finish(launch: "Launch", results: dict[str, Any], as_json: bool, quiet: bool) -> None:
    """Print what left each site, where the results are, and last the accuracies."""
    import json

    from medfedvqa.cli.audit import show_log_totals
    from medfedvqa.cli.progress import show_results
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
