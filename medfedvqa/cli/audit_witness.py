"""`medfedvqa audit witness`: the cosignature of a witness outside of the federation."""

from typing import Annotated
from urllib.parse import urlsplit

import typer

from audits import VerifierKey, Witness
from audits.outside_witness import ask_witness
from medfedvqa.cli.audit_site import key_of, log_of
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
    Terminal().write_line(0, f"{size} entries of the log are cosigned by {plain(witness.name)}")
