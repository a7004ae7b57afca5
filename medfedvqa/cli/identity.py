"""`medfedvqa identity`: shows the fingerprint that other sites pin."""

import json

import typer

from medfedvqa.cli.options import JsonOption
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain


def identity(site: SiteFile, as_json: JsonOption = False) -> None:
    """Show the fingerprint of a site's key for secure aggregation; the key is made at first use and stays.

    The other sites write it into their own site.yml, under `peers`, after having compared it by phone.
    """
    from medfedvqa.federation.aggregation_attempt import load_identity

    config = config_of(site)
    fingerprint = load_identity(config).fingerprint
    if as_json:
        typer.echo(json.dumps({"site": config.name, "fingerprint": fingerprint}, indent=2))
    else:
        Terminal().print(f"{plain(config.name)}: {fingerprint}", highlight=False, soft_wrap=True)
