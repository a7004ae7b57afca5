"""Options of the commands on audit logs: where the logs are, and what they are compared with."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from audits import Examination, VerifierKey, check_site, examine, find_logs
from audits.examination import sites_of

Folder = Annotated[Path, typer.Argument(help="A run's folder, or one site's audit folder.")]
Against = Annotated[list[Path] | None, typer.Option(help="What others hold: a file of notes, or a folder; repeatable.")]
Key = Annotated[str | None, typer.Option(help="The site's verifier key, if you have it from the site itself.")]
Running = Annotated[list[str] | None, typer.Option(help="A job that is not over yet; repeatable.")]
Network = Annotated[bool, typer.Option(help="False for a job in one process: it puts no byte on a network.")]


def judges(
    folder: Path, against: Sequence[Path] | None, key: str | None, running: Sequence[str] | None, network: bool
) -> dict[str, Callable[[], Examination]]:
    """A function for each log below the folder, by site, that examines it.

    Raises `LogError` if there is no log, or if the key is malformed.
    """
    trusted = VerifierKey.parse(key) if key else None

    def judge(path: Path, name: str, others: Sequence[Path]) -> Examination:
        places = (*others, *(against or ()))
        return examine(path, check_site(path, name), places, trusted, running or (), network)

    logs = sites_of(find_logs(folder), folder)
    return {name: partial(judge, path, name, others) for name, (path, others) in logs.items()}
