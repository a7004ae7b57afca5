"""`medfedvqa attention` and `similarity`: where a model looks in one of the site's pictures, and how near UniCon brings
its rows to their answers. The pictures stay at the site.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from medfedvqa.cli.options import DataOption, RootOption, writable
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.devices import resolved
from medfedvqa.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch

    from medfedvqa.core import Site
    from medfedvqa.data import Examples

WARNING = "The picture shows a patient's image and question: it must not leave this site."


def attention(
    site: Annotated[
        str, typer.Option(help="Path of a site.yml, the site's name in a run, or its organ in a data set.")
    ],
    row: Annotated[int, typer.Option(help="Number of one of the site's rows, from 0.", min=0)],
    out: Annotated[Path, typer.Option(help="The PNG to write on this machine; must not exist.")],
    run: Annotated[
        Path | None, typer.Option(help="A finished run's folder, to use its method and the model that the site kept.")
    ] = None,
    part: Annotated[
        Literal["train", "validate", "test"], typer.Option(help="The split part in which --row counts.")
    ] = "test",
    data: DataOption = "",
    data_root: RootOption = None,
    backbone: Annotated[
        str, typer.Option(help="Without --run: the backbone, untuned; by default one that has not seen the data.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Without --run: the seed of the split and of the phantom set.", min=0)] = 0,
) -> None:
    """Draw where a model looks in one of the site's own pictures. Patient data: nothing is sent, and nothing may be."""
    check_place(out)
    from medfedvqa.answering.kept_run import load_kept
    from medfedvqa.core import Site
    from medfedvqa.evaluation.picture_maps import draw_attention

    kept = load_kept(run, site) if run else None
    whole = kept.site(kept.own_data()) if kept else _untrained(site, data, data_root, backbone, seed)
    one_row = Site(whole.name, whole.data.only(part, row), whole.backbone, whole.device, whole.seed)
    rows = one_row.data.test
    weights = kept.job.build().attention(one_row, kept.state, rows) if kept else backbone_attention(one_row, rows)
    picture = one_row.data.pictures.load(one_row.backbone.shape.image_size)[0]
    write_private(out, draw_attention(picture, weights[0].float().cpu(), rows.questions[0]))
    Terminal().print(f"[bold]{WARNING}[/] It is in {sentence(out)}", soft_wrap=True)


def backbone_attention(site: "Site", rows: "Examples") -> "torch.Tensor":
    """The attention of the site's backbone without any tuning, [rows, patches]."""
    import torch

    from medfedvqa.data import PictureViews
    from medfedvqa.models.backbone import Tuning

    backbone = site.backbone
    pictures = PictureViews(site.data.pictures, backbone.shape.image_size, site.space)
    cache = backbone.cache_of(dict.fromkeys(backbone.shape.towers, 1), pictures, rows.questions)
    batch = cache.batch(rows.pictures, cache.question_ids(rows.questions), rows.answers)
    with torch.no_grad():
        return backbone.attention(batch, Tuning())


def check_place(out: Path) -> None:
    """Raises `ConfigError` unless `out` is a new PNG in a folder of this machine."""
    if str(out).startswith(("http:", "https:", "s3:", "ftp:", "gs:", "//")):
        raise ConfigError("--out must be a file on this machine, since the picture shows patient data")
    if out.suffix.lower() != ".png" or not out.parent.is_dir():
        raise ConfigError("give --out as a .png file in an existing folder")
    if out.exists():
        raise ConfigError("the file of --out exists already: choose another name")
    writable(out)


def _untrained(name: str, data: str, data_root: Path | None, backbone: str, seed: int) -> "Site":
    """A site's rows, from its site.yml or from a data set, with a backbone."""
    from medfedvqa.answering.kept_run import YAML, read_config
    from medfedvqa.core import Site
    from medfedvqa.data import Split, load_site
    from medfedvqa.data.data_roots import find_root
    from medfedvqa.library.training_job import backbone_for
    from medfedvqa.models import load_backbone

    files, device, answers = {}, "cpu", None
    if name.endswith(YAML):
        config = read_config(Path(name))
        reader, root, organ = config.data.reader, config.data.root, config.data.organ
        files, device, answers = config.backbones, resolved(config.device), config.data.answers
    else:
        (reader, root), organ = find_root(data, data_root), name
    rows = load_site(reader, root, organ, Split(seed=seed), seed, answers)
    return Site(organ, rows, load_backbone(backbone_for(backbone, reader), files, device), device, seed)


def write_private(out: Path, content: bytes) -> None:
    """Write a new file that only the site's account can read."""
    with open(out, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


_SIMILARITY_WARNING = "The picture shows which rows of patients have the same answer: it must not leave this site."


def similarity(
    run: Annotated[Path, typer.Option(help="The folder of a finished run of unicon.")],
    site: Annotated[str, typer.Option(help="Path of a site.yml, or the site's name in the run.")],
    out: Annotated[Path, typer.Option(help="The PNG to write on this machine; must not exist.")],
    rows: Annotated[int, typer.Option(help="The number of rows, from the start of the part.", min=2, max=512)] = 64,
    part: Annotated[Literal["train", "validate", "test"], typer.Option(help="The split part with the rows.")] = "test",
) -> None:
    """Draw the similarity of rows to answers before and after training by UniCon. Patient data: nothing is sent."""
    check_place(out)
    import torch

    from medfedvqa.answering.kept_run import load_kept
    from medfedvqa.evaluation.picture_maps import draw_similarity
    from medfedvqa.papers.methods.unicon import UniCon

    kept = load_kept(run, site)
    method = kept.job.build()
    if not isinstance(method, UniCon):
        raise ConfigError(f"the run is of '{kept.job.method}', which compares no rows with answers: use unicon")
    whole = kept.site(kept.own_data())
    answered = getattr(whole.data, part).answered
    if len(answered) < 2:
        raise DataError(f"the part '{part}' has fewer than two rows with a listed answer: choose another --part")
    before, after = method.similarity(whole, kept.state, answered.chosen(torch.arange(min(rows, len(answered)))))
    write_private(out, draw_similarity(before.float().cpu(), after.float().cpu()))
    Terminal().print(f"[bold]{_SIMILARITY_WARNING}[/] It is in {sentence(out)}", soft_wrap=True)
