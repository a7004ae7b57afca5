"""`medfedvqa run`, `demo` and `methods`."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from medfedvqa.cli.display import Bars, show_results
from medfedvqa.cli.log_totals import show_log_totals
from medfedvqa.cli.privacy_matrix import markdown_matrix
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.core import method_names, method_type
from medfedvqa.data.data_roots import find_root
from medfedvqa.errors import ConfigError
from medfedvqa.federation.launch import run as run_launch
from medfedvqa.library.data_set import Data
from medfedvqa.library.run_job import engine_of, launch_of
from medfedvqa.library.training_job import Job

DEMO_OPTIONS: dict[str, Any] = {"learning_rate": 0.002, "decay": 0.3, "decay_every": 4}
DEMO_ROUNDS, DEMO_EPOCHS = 10, 2
"""The paper's 30 rounds of 5 epochs take most of an hour on two cores; the demo takes the same path in minutes."""

DataOption = Annotated[
    str,
    typer.Option(help="vqa-rad, slake, phantom, or a store's folder; by default VQA-RAD if found, else phantom."),
]
RootOption = Annotated[
    Path | None, typer.Option(help="The data set's folder, or the one above it. Default: $MEDFEDVQA_DATA.")
]
OutOption = Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/METHOD-DATA-TIME.")]

EpsilonOption = Annotated[
    float | None, typer.Option(help="Differential privacy: what the whole job may cost each patient, in nats.")
]
SecaggOption = Annotated[
    bool, typer.Option("--secagg", help="Aggregate on shares: nobody sees a single site's upload. From 3 sites.")
]
CommitteeOption = Annotated[
    str | None,
    typer.Option(help="With --secagg: how many sites compute, drawn if there are more, or NAME,NAME,.. Default: 8."),
]
GatherOption = Annotated[
    str,
    typer.Option(help="How the server combines uploads: mean; or trimmed, median, which bear some lying sites."),
]
MostNormOption = Annotated[
    float | None, typer.Option(help="Largest L2 norm of an upload's parameters: sites scale longer ones down to it.")
]
DPOption = Annotated[
    list[str] | None,
    typer.Option("--dp", help="NAME=VALUE, another setting of differential privacy, see `privacy settings`."),
]


def demo(data_root: RootOption = None, out: OutOption = None) -> None:
    """Three organ sites train on VQA-RAD through FLARE's simulator (on the phantom set where no data is found)."""
    options = [f"{name}={value}" for name, value in DEMO_OPTIONS.items()]
    run("prompt_pfl", "", data_root, "simulator", DEMO_ROUNDS, DEMO_EPOCHS, options, out=out)


def run(
    method: Annotated[str, typer.Argument(help="Name of a method, see `medfedvqa methods`.")],
    data: DataOption = "",
    data_root: RootOption = None,
    engine: Annotated[
        str, typer.Option(help="local, simulator or provisioned (a loopback mTLS federation).")
    ] = "local",
    rounds: Annotated[int | None, typer.Option(help="Exchanges; the method's default is the paper's.")] = None,
    local_epochs: Annotated[int | None, typer.Option(help="Passes over a site's rows per round.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", help="NAME=VALUE, any option of the method; repeatable.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="auto, a bundled name, ARCH/TAG of open_clip, hf-hub:NAME, or ARCH@LABEL.")
    ] = "auto",
    backbone_file: Annotated[Path | None, typer.Option(help="The checkpoint of a backbone ARCH@LABEL.")] = None,
    split: Annotated[str, typer.Option(help="official, or patient (disjoint by patient).")] = "official",
    seed: Annotated[int, typer.Option(help="Seed of the split, the phantom set and training.", min=0)] = 0,
    site: Annotated[list[str] | None, typer.Option(help="Only these organs; repeatable. Default: all.")] = None,
    epsilon: EpsilonOption = None,
    dp: DPOption = None,
    secagg: SecaggOption = False,
    committee: CommitteeOption = None,
    gather: GatherOption = "mean",
    most_norm: MostNormOption = None,
    threads: Annotated[int, typer.Option(help="Processor threads per site.", min=1)] = 1,
    ledger: Annotated[
        Path | None, typer.Option(help="Folder of the ledger of a store. Default: STORE.ledger, as ingest makes it.")
    ] = None,
    out: OutOption = None,
) -> None:
    """Train a method over one site per organ and write results, table, plots and each site's log."""
    known = engine_of(engine)
    reader, root = find_root(data, data_root)
    job = Job(
        method,
        method_options=named_values(option or [], rounds=rounds, local_epochs=local_epochs),
        dp=named_values(dp or [], epsilon=epsilon),
        secagg=secagg,
        committee=asked_committee(committee),
        gather=gather,
        most_norm=most_norm,
        split=split,
        seed=seed,
        backbone=backbone,
    )
    files = {backbone: backbone_file} if backbone_file else {}
    places: dict[str, Any] = {"out": out, "backbone_files": files, "ledger": ledger}
    launch = launch_of(job, Data(reader, root), known, sites=site or (), threads=threads, **places)
    console = Terminal()
    trunk = plain(launch.job.backbone)
    console.print(f"[bold]{method}[/] on {reader}, {len(launch.sites)} sites, backbone {trunk}, engine {engine}")
    with _first_interrupt_stops(console) as stop, Bars(console, launch.sites) as bars:
        results = run_launch(launch, known, bars.watch, stop)
    show_results(console, results)
    show_log_totals(console, launch.audit_folders)
    console.print(f"Results, plots and logs are in [bold]{sentence(launch.out)}[/]", soft_wrap=True)


def methods(
    matrix: Annotated[bool, typer.Option("--matrix", help="Which run privately and on shares, as Markdown.")] = False,
) -> None:
    """List methods and their options with defaults."""
    if matrix:
        typer.echo(markdown_matrix(), nl=False)
        return
    console = Terminal()
    for name in method_names():
        kind = method_type(name)
        table = Table("option", "default", "meaning", title=name, title_justify="left")
        for option, field in kind.config_type.model_fields.items():
            table.add_row(option, plain(json.dumps(field.default)), sentence(field.description or ""))
        console.print((kind.__doc__ or "").strip().split("\n")[0])
        console.print(table)


def named_values(pairs: list[str], **named: Any) -> dict[str, Any]:
    """What NAME=VALUE pairs say, values as JSON or else as text, beside what has an option of its own.

    Raises `ConfigError` for a text without an equals sign.
    """
    options = {name: value for name, value in named.items() if value is not None}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"'{pair}' is not NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def asked_committee(text: str | None) -> int | list[str] | None:
    """A number, or names."""
    if text is None:
        return None
    return int(text) if text.isdecimal() else text.split(",")


@contextmanager
def _first_interrupt_stops(console: Console) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks the run to end with the round and evaluate; the second ends it at once."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print("Stopping after this round; results so far will be evaluated. Ctrl-C again ends at once.")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
