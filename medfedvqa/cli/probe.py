"""`medfedvqa probe`: how much of a set's closed questions frozen descriptions of its pictures answer."""

import json
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from medfedvqa.cli.options import BackboneFileOption, DataOption, JsonOption, RootOption, check_backbone_file
from medfedvqa.cli.terminal import Terminal, plain


def probe(
    data: DataOption = "",
    data_root: RootOption = None,
    backbone: Annotated[
        list[str] | None, typer.Option(help="A backbone to probe; repeatable. Default: all bundled ones.")
    ] = None,
    backbone_file: BackboneFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare backbones with a thumbnail, edges and an untrained network by one probe of their frozen features.

    It prints the accuracy on validation and test rows of a kernel ridge regression, the same for every description.
    Test rows are for the report: choose by validation rows.
    """
    from rich.table import Table

    from medfedvqa.data import read
    from medfedvqa.data.data_roots import find_root
    from medfedvqa.errors import ConfigError
    from medfedvqa.models import has_seen, load_backbone
    from medfedvqa.models.bundled import BUNDLED
    from medfedvqa.research.pretraining.answer_probes import compared, probed_rows

    names = backbone or [*BUNDLED]
    local = [name for name in names if "@" in name]
    if len(local) > 1:
        raise ConfigError("one file is given for one backbone ARCH@LABEL: probe them one after the other")
    files = check_backbone_file(local[0] if local else "", backbone_file)
    reader, root = find_root(data, data_root)
    backbones = {name: load_backbone(name, files) for name in names}
    probes = compared(partial(probed_rows, read(reader, root)), backbones, plain=True)
    if as_json:
        typer.echo(json.dumps({"data": reader, "probes": [asdict(each) for each in probes]}, indent=2))
        return
    console = Terminal()
    table = Table("closed questions", "validation", "test", title=plain(reader))
    for each in probes:
        table.add_row(plain(each.name), f"{each.validation:.1%}", f"{each.test:.1%}")
    console.print(table)
    for name in names:
        if has_seen(name, reader):
            console.print(f"{plain(name)} was trained on {plain(reader)}: its figures say nothing about unseen data")
