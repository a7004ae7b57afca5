"""`medfedvqa audit witness` and `serve-witness`: cosignatures from outside of a federation, and for logs outside."""

import contextlib
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from audits import AuditKey, VerifierKey, Witness
from audits.outside_witness import ask_witness
from audits.plurals import quantity
from audits.witness import KEYS, read_keys
from medfedvqa.cli.audit_site import key_of, log_of
from medfedvqa.cli.audit_ui import Port
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain
from medfedvqa.errors import ConfigError, DataError


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
        raise ConfigError("the witness's address is a URL without a user: https://HOST/PREFIX")
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
    folder: Annotated[Path, typer.Argument(help="Where the witness keeps its key and what it cosigned.")],
    name: Annotated[str, typer.Option(help="The witness's name, as hospital.example/witness.")],
    logs: Annotated[Path, typer.Option(help="The verifier keys of the logs to cosign, a line each.")],
    port: Port = 0,
) -> None:
    """Be a C2SP tlog-witness for the logs of other hospitals, on 127.0.0.1, until Ctrl-C."""
    from audits.witness_service import WitnessService

    known, console = read_keys(logs), Terminal()
    if not known:
        raise ConfigError("the file of the logs' keys is missing or empty: put what `medfedvqa audit key` prints there")
    key = AuditKey.at(folder / "witness.key", name)
    if any(each.raw == key.public.raw and each.name != name for each in read_keys(folder / KEYS).values()):
        raise ConfigError("the witness of this folder has another name: give that one, or another folder")
    witness = Witness(folder, key, known)
    with WitnessService(witness, known, port) as server, contextlib.suppress(KeyboardInterrupt):
        console.print(f"http://127.0.0.1:{server.server_port}", highlight=False, soft_wrap=True)
        console.print(f"The witness's key is {key.public.of_witness}", highlight=False, soft_wrap=True)
        console.print(f"It cosigns {quantity(len(known), 'log')}. Ctrl-C ends it.")
        server.serve_forever()
