"""`medfedvqa similarity`: how near UniCon brings a site's rows to their answers. The picture stays at the site."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from medfedvqa.cli.attention import check_place, write_private
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError, DataError

WARNING = "The picture shows which rows of patients have the same answer: it must not leave this site."


def similarity(
    run: Annotated[Path, typer.Option(help="The folder of a finished run of unicon.")],
    site: Annotated[str, typer.Option(help="Path of a site.yml, or the site's name in the run.")],
    out: Annotated[Path, typer.Option(help="The PNG to write on this machine; must not exist.")],
    rows: Annotated[int, typer.Option(help="The number of rows, the first of the part.", min=2, max=512)] = 64,
    part: Annotated[Literal["train", "validate", "test"], typer.Option(help="The part that the rows are of.")] = "test",
) -> None:
    """Draw the similarity of rows to answers before and after training by UniCon. Patient data: nothing is sent."""
    check_place(out)
    import torch

    from medfedvqa.answering.kept_run import load_kept
    from medfedvqa.evaluation.similarity_map import draw_similarity
    from medfedvqa.papers.methods.unicon import UniCon

    kept = load_kept(run, site)
    method = kept.job.build()
    if not isinstance(method, UniCon):
        raise ConfigError(f"the run is of '{kept.job.method}', which compares no rows with answers: name one of unicon")
    whole = kept.site(kept.own_data())
    answered = getattr(whole.data, part).answered
    if len(answered) < 2:
        raise DataError(f"the part '{part}' has fewer than two rows with a listed answer: choose another --part")
    before, after = method.similarity(whole, kept.state, answered.chosen(torch.arange(min(rows, len(answered)))))
    write_private(out, draw_similarity(before.float().cpu(), after.float().cpu()))
    Terminal().print(f"[bold]{WARNING}[/] It is in {sentence(out)}", soft_wrap=True)
