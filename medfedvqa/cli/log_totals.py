"""Shows what left each site in total."""

from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from audits.verifier import totals
from medfedvqa.cli.terminal import plain


def show_log_totals(console: Console, folders: Mapping[str, Path]) -> None:
    """Print a table of what left each site, by tensor and in total, from the site's own log."""
    table = Table(box=box.SIMPLE_HEAD, title="What left each site (from its audit log)")
    for name, numeric in (("site", False), ("tensor", False), ("releases", True), ("bytes", True)):
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for site, folder in folders.items():
        total = totals(folder)
        for tensor in total.tensors:
            if tensor.direction == "out":
                table.add_row(plain(site), plain(tensor.name), str(tensor.messages), f"{tensor.nbytes:,}")
        whole = "[bold]total[/]", f"[bold]{total.messages_out} messages[/]", f"[bold]{total.bytes_out:,}[/]"
        table.add_row(plain(site), *whole, end_section=True)
    console.print(table)
