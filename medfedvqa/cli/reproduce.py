"""`medfedvqa reproduce`: the tables and figures of the founding papers, each with a command or the reason why not."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medfedvqa.cli import options
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.research.benchmark.grid import Grid
    from medfedvqa.research.reproduce.entries import PaperEntry, PrintedSetting, Program

PAGE = "reproduced.md"
WARNING = "The pictures show rows of patients: they must not leave this machine."


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(help="A paper: fedp3, feddat, prompt-pfl, unicon, creamfl, or its number.", show_default=False),
    ],
    entry: Annotated[
        str,
        typer.Argument(
            help="A table or figure of the paper; `medfedvqa reproduce list` shows all.", show_default=False
        ),
    ],
    data: options.DataOption = "",
    data_root: options.RootOption = None,
    rows: Annotated[
        str,
        typer.Option(help="Rows of the paper's table, by number from 1 or by name, separated by commas. Default: all."),
    ] = "",
    unseen: Annotated[
        str,
        typer.Option(
            help="Sites that never train, separated by commas. Default: as many as in the paper, the last sites, or "
            "the first sites for a second table of this kind."
        ),
    ] = "",
    sites: options.CutOption = "",
    as_printed: Annotated[
        bool, typer.Option("--as-printed", help="Use the settings that the paper prints; -O takes precedence.")
    ] = False,
    seeds: options.SeedsOption = 3,
    backbone: options.UnseenBackboneOption = "auto",
    backbone_file: options.BackboneFileOption = None,
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    questions: Annotated[
        options.QuestionsName | None,
        typer.Option(help="Kind of questions. Default: that of the entry.", show_default=False),
    ] = None,
    workers: options.WorkersOption = 1,
    device: options.DeviceOption = "auto",
    cache: options.CacheOption = None,
    tuned: options.TunedOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs, which are resumed. Default: reproduced/PAPER-ENTRY, or -as-printed."),
    ] = None,
    quiet: options.QuietOption = False,
) -> None:
    """Run a table or figure of a founding paper on your data, and compare its figures with this run's."""
    from medfedvqa.cli.benchmark import check_folder
    from medfedvqa.research.reproduce.catalogue import entry_of, paper_of
    from medfedvqa.research.reproduce.entries import Absent, Program, Scale

    chosen = paper_of(paper)
    asked = entry_of(chosen, entry)
    stem = f"{chosen.name}-{asked.name}{'-as-printed' if as_printed else ''}"
    folder, protocol = out or Path("reproduced") / stem, asked.protocol
    if isinstance(protocol, Absent):
        raise ConfigError(f"'{asked.name}' of '{chosen.name}' is not run here: {protocol.reason}")
    check_folder(folder)
    if isinstance(protocol, Program):
        _run_program(protocol, folder)
        return
    from medfedvqa.cli.run import announced

    progress = announced(f"medfedvqa reproduce {chosen.name} {asked.name}: loading PyTorch and the data", quiet)
    from medfedvqa.cli.benchmark import planned_grid, regime_with, scaled
    from medfedvqa.research.reproduce import tables
    from medfedvqa.research.reproduce.tables import labels_of, on_paper_s_sites, with_budget

    labels = labels_of(protocol, rows)
    changes = options.named_values(option or [], rounds=rounds, local_epochs=local_epochs)
    settings = (*chosen.settings, *asked.settings)
    set_by_paper = {each.option for each in settings} if as_printed else set()
    common = {name: value for name, value in changes.items() if name not in set_by_paper}
    grid = planned_grid(
        *(",".join(labels), data or asked.data, data_root, backbone, common, seeds, device, cache, folder),
        *(tuned, questions or asked.questions, sites or asked.sites),
    )
    grid = replace(grid, files=options.check_backbone_file(backbone, backbone_file))
    all_sites, grid = grid.organs, on_paper_s_sites(with_budget(grid, protocol, changes), protocol, as_printed)
    if unseen:
        grid = replace(grid, regime=regime_with(unseen, grid))
    if as_printed:
        grid = replace(tables.as_printed(grid, settings, changes), fractions=asked.fractions)
    grid = tables.fitted(grid, settings, changes)
    if isinstance(protocol, Scale):
        path = scaled(progress, list(protocol.counts), replace(grid, organs=()), workers)
        Terminal(quiet=quiet).print(f"The plot is in [bold]{sentence(path)}[/]", soft_wrap=True)
    else:
        left_out = [] if grid.reader == "phantom" else [site for site in all_sites if site not in grid.organs]
        _write(asked, grid, progress, workers, quiet, settings, changes if as_printed else None, left_out)


def list_command(
    paper: Annotated[
        str | None, typer.Argument(help="A paper, to list only its tables and figures.", show_default=False)
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """List every table and figure of the five founding papers, with its command or the reason why there is none."""
    from rich.table import Table

    from medfedvqa.research.reproduce.catalogue import PAPERS, lines, paper_of
    from medfedvqa.version import code_digest, code_version

    papers = (paper_of(paper),) if paper else PAPERS
    if as_json:
        code = {"version": code_version(), "code_digest": code_digest()}
        typer.echo(json.dumps({**code, "entries": list(lines(papers))}, indent=2))
        return
    for each in papers:
        table = Table(
            "entry",
            "shows",
            "data",
            "command, or why there is none",
            "started by",
            title=f"{each.number}: {each.title}",
        )
        for line in lines((each,)):
            table.add_row(
                *(
                    sentence(cell)
                    for cell in (
                        *(line["entry"], line["title"], line["data"], line["command"] or line["reason"]),
                        line["tested_by"] or "",
                    )
                )
            )
        Terminal().print(table)
    Terminal().print(
        f"'started by': the target of make whose tests, at version {code_version()} with the code "
        f"{code_digest()[:12]}, start the entry at the smallest budget. This list does not know whether they passed.",
        soft_wrap=True,
    )


def _run_program(program: "Program", folder: Path) -> None:
    """Runs a program of the source tree. Raises `ConfigError` if there is no source tree, or the program fails."""
    import os
    import subprocess
    import sys

    root = Path(__file__).parents[2]
    path = root / "benchmarks" / f"{program.name}.py"
    if not path.is_file():
        raise ConfigError(f"benchmarks/{program.name}.py is in the source tree only: run it from there")
    words = [str(folder / "runs") if word == "OUT" else word for word in program.options]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    if subprocess.run([sys.executable, str(path), *words], env=environment, check=False).returncode:
        raise ConfigError(f"benchmarks/{program.name}.py failed: see its output above")


def _write(
    entry: "PaperEntry",
    grid: "Grid",
    progress: Terminal,
    workers: int,
    quiet: bool,
    settings: "Sequence[PrintedSetting]",
    changes: "Mapping[str, Any] | None",
    left_out: Sequence[str],
) -> None:
    """Run what is missing, write the page or the pictures, and show the page. `left_out`: sites that do not run."""
    from medfedvqa.atomic_files import write_whole
    from medfedvqa.cli.benchmark import complete
    from medfedvqa.research.benchmark.benchmark_table import draw_convergence, listed
    from medfedvqa.research.benchmark.grid import data_of, results
    from medfedvqa.research.benchmark.statistics import compared
    from medfedvqa.research.reproduce import pictures, tables
    from medfedvqa.research.reproduce.entries import PaperPicture, PaperTable, PrintedCounts, Trunks

    protocol, console = entry.protocol, Terminal(quiet=quiet)
    if isinstance(protocol, PaperPicture):
        paths = pictures.draw(protocol, grid)
        console.print(f"[bold]{WARNING}[/] They are {', '.join(map(sentence, paths))}", soft_wrap=True)
        console.print(sentence(f"What differs: {entry.differs}."), soft_wrap=True)
        if protocol.system:
            options = grid.job(grid.systems[0], 0).options
            console.print(sentence(f"Options of '{grid.systems[0].label}': {listed(options)}."), soft_wrap=True)
        return
    if isinstance(protocol, PrintedCounts):
        text = tables.counts_page(entry, protocol, data_of(grid, 0))
    else:
        assert isinstance(protocol, PaperTable | Trunks)
        grid, remarks = tables.runnable(grid)
        if left_out:
            remarks.append(f"Left out: the sites {', '.join(left_out)}, since the paper has {len(grid.organs)}.")
        complete(progress, grid, workers)
        comparison = compared(results(grid))
        text = tables.page(entry, protocol, comparison, remarks, grid, settings, changes)
        if isinstance(protocol, PaperTable) and protocol.curve:
            draw_convergence(grid.out, comparison.rows)
    path = write_whole(grid.out / PAGE, text.encode())
    if not quiet:
        typer.echo(text)
    console.print(f"The page is in [bold]{sentence(path)}[/]", soft_wrap=True)
