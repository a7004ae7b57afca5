"""`medfedvqa export`: the model that a site kept of a run, as a folder that needs this project no more."""

from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.cli.answer import JobIdOption, RunOption, SiteOption
from medfedvqa.cli.options import writable
from medfedvqa.cli.terminal import Terminal, sentence


def export(
    run: RunOption,
    site: SiteOption,
    out: Annotated[Path, typer.Option(help="The folder to write; new or empty.", callback=writable)],
    job: JobIdOption = None,
) -> None:
    """Write the model that a site kept of a finished run into a folder: weights, program, answers, model card.

    The site's policy must allow it, and its log names it. The folder needs torch and safetensors only.
    """
    from medfedvqa.answering.answerer import WARNING, Answerer
    from medfedvqa.answering.export import check_allowed, export
    from medfedvqa.answering.kept_run import load_kept
    from medfedvqa.federation.launch import check_new

    check_new(out)
    kept = load_kept(run, site, job)
    check_allowed(kept)
    with Answerer(kept) as answerer:
        export(kept, answerer, out)
    terminal = Terminal()
    terminal.print(f"The model is in [bold]{sentence(out)}[/]; read its README.md first.", soft_wrap=True)
    terminal.print(f"[bold]{WARNING}[/]", highlight=False, soft_wrap=True)
