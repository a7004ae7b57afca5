"""`medfedvqa identity`, `peers` and `rotate`: a site's own keys, other sites' keys, and words to compare them by."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from medfedvqa.cli.options import JsonOption, SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain
from medfedvqa.errors import ConfigError


def add_command(
    name: Annotated[str, typer.Argument(help="The other site's name in the federation.")],
    fingerprint: Annotated[str, typer.Argument(help="Its fingerprint, 64 hex digits: `medfedvqa identity` shows it.")],
    site: SiteFile,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the pinned key, since the site has a new one.")
    ] = False,
) -> None:
    """Pin another site's key in site.yml, and show the words by which to compare it."""
    from medfedvqa.federation.site_keys import pin
    from privacy.secagg.channel import words_of

    pin(site, config_of(site).name, name, fingerprint, replace)
    console = Terminal()
    console.print(f"{plain(name)} is pinned. The words of its key: [bold]{words_of(fingerprint)}[/]", soft_wrap=True)
    console.print("Call the site: it must read out the same words, from `medfedvqa peers verify` on its own machine.")


def verify_command(site: SiteFile, as_json: JsonOption = False) -> None:
    """Show this site's words, to read out by phone, and the words that each pinned site must read out."""
    from medfedvqa.federation.aggregation_attempt import load_identity
    from privacy.secagg.channel import words_of

    config = config_of(site)
    mine = words_of(load_identity(config).fingerprint)
    fingerprints = {name: pinned for name, pinned in sorted(config.known_peers.items()) if name != config.name}
    peers = {name: words_of(pinned) for name, pinned in fingerprints.items()}
    uncompared = sorted(fingerprints.keys() - config.peers.keys())
    if as_json:
        typer.echo(json.dumps({"site": config.name, "words": mine, "peers": peers, "uncompared": uncompared}, indent=2))
        return
    console = Terminal()
    console.print(f"Read out ({plain(config.name)}): [bold]{mine}[/]", soft_wrap=True)
    for name, words in peers.items():
        console.print(f"{plain(name)} must read out: [bold]{words}[/]", soft_wrap=True)
    for name in uncompared:
        console.print(
            f"{plain(name)} has the key from the kit, not yet compared. If the words match: "
            f"`medfedvqa peers add {plain(name)} {fingerprints[name]}`",
            soft_wrap=True,
        )
    if not peers:
        console.print("No other site is pinned: `medfedvqa peers add NAME FINGERPRINT` pins one.", soft_wrap=True)


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


class KeyName(StrEnum):
    """The keys of a site."""

    AUDIT = "audit"
    IDENTITY = "identity"
    COHORT = "cohort"
    STORE = "store"


_FIXED = {
    KeyName.COHORT: "the ledger knows patients by digests under this key alone: under another one, who has left the "
    "data since could not be recognised, and would get a second budget. Keep the ledger's folder closed to others",
    KeyName.STORE: "pseudonyms and dates of a store follow from this key, and its ledger is bound to it: under another "
    "one its patients would count as new. Keep the key apart from the store",
}


def rotate(
    key: Annotated[KeyName, typer.Argument(help="The key to replace. `cohort` and `store` cannot be replaced.")],
    site: SiteFile,
) -> None:
    """Replace a stopped site's key of its audit log or of secure aggregation; old signatures still verify."""
    from medfedvqa.federation.site_keys import finish_rotation, rotate_audit_key, rotate_identity

    if key in _FIXED:
        raise ConfigError(f"this key cannot be replaced: {_FIXED[key]}")
    console = Terminal()
    if finish_rotation(site):
        console.print("An interrupted replacement was finished; no other key was made.", soft_wrap=True)
        return
    config = config_of(site)
    if key is KeyName.AUDIT:
        console.print(f"new key: {rotate_audit_key(config, site)}", highlight=False, soft_wrap=True)
        text = "The other parties follow it with the next job. Whoever pinned the old key can pin this one."
    else:
        console.print(f"new fingerprint: {rotate_identity(config, site)}", highlight=False, soft_wrap=True)
        text = "Read it to all other sites: `medfedvqa peers add --replace` pins it. Until then jobs on shares fail."
    console.print(f"{text} Make a new backup now.", highlight=False, soft_wrap=True)
