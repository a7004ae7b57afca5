"""`medfedvqa audit key`, `receipt`, `publish`, `expire`, `witness` and `serve-witness`: commands on the log of the site
that runs them, and cosignatures from outside of a federation.
"""

import contextlib
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from audits import EXIT_CODES, AuditKey, AuditLog, Checkpoint, VerdictState, VerifierKey, Witness, origin_of
from audits.entry_proof import ENTRY, RECEIPT, issue
from audits.escaping import quantity
from audits.retention import RETENTION_DAYS, expire
from audits.tlog_witness import ask_witness
from audits.witness import KEYS, read_keys
from medfedvqa.cli.audit import Port
from medfedvqa.cli.options import SiteFile, config_of, new_file
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError, DataError

if TYPE_CHECKING:
    from medfedvqa.federation.site_config import SiteConfig


def key_command(site: SiteFile) -> None:
    """Show the verifier key of a site's log, which others pin or give to `check`; it is made at first use."""
    typer.echo(str(key_of(config_of(site)).public))


def key_of(config: "SiteConfig") -> AuditKey:
    """The key of a site's log."""
    return AuditKey.at(config.audit_key, origin_of(config.name))


def log_of(config: "SiteConfig") -> closing[AuditLog]:
    """A site's log, closed after use."""
    return closing(AuditLog(config.audit, config.name, key_of(config)))


def receipt_command(
    seq: Annotated[int, typer.Argument(help="Number of the entry, from 0.")],
    site: SiteFile,
    out: Annotated[Path, typer.Option(help="The folder to make; must not exist.", callback=new_file)],
) -> None:
    """Sign a COSE Receipt (RFC 9942) for one entry of a site's log, which `medfedvqa audit check` and others read."""
    config = config_of(site)
    receipt, entry = issue(config.audit, seq, key_of(config))
    out.mkdir(parents=True)
    for name, content in ((RECEIPT, receipt), (ENTRY, entry)):
        (out / name).write_bytes(content)
    Terminal().write_line(0, f"Entry {seq} and its receipt are in '{sentence(out)}'")


def publish_command(
    site: SiteFile,
    anew: Annotated[
        bool, typer.Option("--anew", help="Delete the public form, and make all of it again from the log.")
    ] = False,
) -> None:
    """Sign a site's log, and bring its public form up to the last entry: the folder `tlog` for standard clients."""
    with log_of(config_of(site)) as log:
        size = Checkpoint.parse(log.publish(anew).text).size
    Terminal().print(f"{size} entries of the log are published", highlight=False)


def expire_command(
    site: SiteFile,
    days: Annotated[
        int, typer.Option(help="Delete the lines of closed log files older than this many days.", min=1, max=36500)
    ] = RETENTION_DAYS,
    date: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="Today's date, checked by a person; needed if nobody cosigns the site's log.",
        ),
    ] = None,
) -> None:
    """Delete lines of a site's log that are past their retention; their hashes stay, and the log says so.

    Times that other parties signed must show that the retention has passed: this machine's clock alone does not count.
    Exit code 2: some files are past it by the clock alone, and are kept.
    """
    config = config_of(site)
    pinned = list(map(VerifierKey.parse, config.audit_peers.values()))
    with log_of(config) as log:
        result = expire(log, days, pinned, date.date() if date else None)
    terminal = Terminal()
    terminal.print(f"{result.deleted} files of the log expired", highlight=False)
    if result.waiting:
        terminal.print(
            f"{result.waiting} more are past their retention by this machine's clock alone, and are kept: take part in "
            "a job, whose sites sign the time, or give today's date yourself with --date",
            highlight=False,
        )
        raise typer.Exit(EXIT_CODES[VerdictState.NOT_SHOWN])


def witness_command(
    site: SiteFile,
    url: Annotated[str, typer.Option(help="The witness's submission prefix, https://...")],
    key: Annotated[str, typer.Option(help="The witness's verifier key, from its operator.")],
) -> None:
    """Have a C2SP tlog-witness cosign a site's log; its signed checkpoint and hashes go out, and nothing else."""
    import requests

    from medfedvqa.guarded_http import AnswerLimits, guarded_session, origin

    try:
        scheme, host, _ = origin(url)
    except ValueError:
        scheme = host = ""
    if scheme not in ("http", "https") or not host or urlsplit(url).username:
        raise ConfigError("the witness's address must be a URL without user and password: https://HOST/PREFIX")
    config, witness = config_of(site), VerifierKey.parse(key)
    limits = AnswerLimits(1 << 20, 60)
    with log_of(config) as log, guarded_session(url, limits, scheme == "http", None) as session:

        def post(body: bytes) -> tuple[int, bytes]:
            address = f"{url.rstrip('/')}/add-checkpoint"
            try:
                answer = session.post(address, data=body, allow_redirects=False)
            except requests.RequestException:
                raise DataError("the witness does not answer: check the URL and the network") from None
            return answer.status_code, answer.content

        Witness(config.audit, key_of(config)).introduce(witness)
        size = ask_witness(log, witness, post)
    entries = quantity(size, "entry of the log is", "entries of the log are")
    Terminal().write_line(0, f"{entries} cosigned by {plain(witness.name)}")


def serve_witness_command(
    folder: Annotated[
        Path, typer.Argument(help="Folder for the witness's key and for the checkpoints that it cosigned.")
    ],
    name: Annotated[str, typer.Option(help="The witness's name, such as hospital.example/witness.")],
    logs: Annotated[Path, typer.Option(help="File with the verifier keys of the logs to cosign, one per line.")],
    port: Port = 0,
) -> None:
    """Run a C2SP tlog-witness for the logs of other hospitals, on 127.0.0.1, until Ctrl-C."""
    from audits.tlog_witness import WitnessService

    known, console = read_keys(logs), Terminal()
    if not known:
        raise ConfigError("the file of the logs' keys is missing or empty: put what `medfedvqa audit key` prints there")
    key = AuditKey.at(folder / "witness.key", name)
    if any(each.raw == key.public.raw and each.name != name for each in read_keys(folder / KEYS).values()):
        raise ConfigError("the witness in this folder has another name: give that name, or another folder")
    witness = Witness(folder, key, known)
    with WitnessService(witness, known, port) as server, contextlib.suppress(KeyboardInterrupt):
        console.print(f"http://127.0.0.1:{server.server_port}", highlight=False, soft_wrap=True)
        console.print(f"The witness's key is {key.public.of_witness}", highlight=False, soft_wrap=True)
        console.print(f"This witness cosigns {quantity(len(known), 'log')}. Ctrl-C ends it.")
        server.serve_forever()
