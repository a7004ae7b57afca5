"""`medfedvqa peers`: the other sites' keys in site.yml, and the words by which people compare them."""

import json
from typing import Annotated

import typer

from medfedvqa.cli.options import JsonOption
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain


def add_command(
    name: Annotated[str, typer.Argument(help="The other site's name in the federation.")],
    fingerprint: Annotated[str, typer.Argument(help="Its fingerprint, 64 hex digits: `medfedvqa identity` shows it.")],
    site: SiteFile,
    replace: Annotated[bool, typer.Option("--replace", help="The site has a new key: pin this one instead.")] = False,
) -> None:
    """Pin another site's key in site.yml, and show the words by which to compare it."""
    from medfedvqa.federation.peers import pin
    from privacy.secagg.spoken_words import words_of

    pin(site, config_of(site).name, name, fingerprint, replace)
    console = Terminal()
    console.print(f"{plain(name)} is pinned. Its words: [bold]{words_of(fingerprint)}[/]", soft_wrap=True)
    console.print("Call the site: it must read out the same words, from `medfedvqa peers verify` on its own machine.")


def verify_command(site: SiteFile, as_json: JsonOption = False) -> None:
    """Show this site's words, to read out by phone, and the words that each pinned site must read out."""
    from medfedvqa.federation.aggregation_attempt import load_identity
    from privacy.secagg.spoken_words import words_of

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
            f"{plain(name)} is as the kit brought it. If the words are right: "
            f"`medfedvqa peers add {plain(name)} {fingerprints[name]}`",
            soft_wrap=True,
        )
    if not peers:
        console.print("No other site is pinned: `medfedvqa peers add NAME FINGERPRINT` pins one.", soft_wrap=True)
