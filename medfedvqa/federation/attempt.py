"""One attempt of the sites to aggregate on shares: what the server says of it, and a site's part in it."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from audits import Sharing, Tensors
from medfedvqa.errors import FederationError
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.methods import ACCURACY
from privacy.secagg import Group, Identity, Layout, Link, Relay, connect

MESSAGE_TIMEOUT = 30.0
"""Seconds that a site waits for another's next message before it gives the attempt up."""

DEALER = "server"

Relays = Callable[[str], Relay]
"""A site's transport to the other sites, for an attempt that has this name; what earlier ones left is dropped."""


@dataclass(frozen=True)
class Attempt:
    """What the server tells one site: the attempt's name, who takes part, and the tuples dealt to this site.

    A place in `sites`, which are in order of their names, is the site's rank in the protocol.
    """

    name: str
    sites: tuple[str, ...]
    dealt: bytes

    def message(self) -> Tensors:
        """As arrays of bytes; `read` is its inverse."""
        said = json.dumps({"name": self.name, "sites": self.sites}).encode()
        return {"attempt": np.frombuffer(said, np.uint8), "dealt": np.frombuffer(self.dealt, np.uint8)}

    @classmethod
    def read(cls, message: Tensors) -> "Attempt":
        """Raises `FederationError` if the server sent anything else, or sites out of order."""
        try:
            said = json.loads(message["attempt"].tobytes())
            attempt = cls(str(said["name"]), tuple(map(str, said["sites"])), message["dealt"].tobytes())
        except (KeyError, TypeError, ValueError, AttributeError):
            raise FederationError("the server's message does not describe an attempt to aggregate on shares") from None
        if list(attempt.sites) != sorted(set(attempt.sites)):
            raise FederationError("the server's message does not name each site once, in order of names")
        return attempt

    @property
    def sharing(self) -> Sharing:
        """What the log says of it."""
        return Sharing(self.name, "mix", self.sites, DEALER)


def peers_of(config: SiteConfig, attempt: Attempt, least: int) -> dict[str, str]:
    """Fingerprints of the other sites, as this site's own file pins them.

    Raises `FederationError` if a site is not pinned, there are fewer than `least`, or this one is not among them.
    """
    if config.name not in attempt.sites or len(attempt.sites) < least:
        raise FederationError(f"an attempt to aggregate on shares needs this site and at least {least} in all")
    others = [site for site in attempt.sites if site != config.name]
    if missing := [site for site in others if site not in config.peers]:
        raise FederationError(f"site.yml pins no fingerprint of {', '.join(missing)}: add it under 'peers'")
    return {site: config.peers[site] for site in others}


def load_identity(config: SiteConfig) -> Identity:
    """The site's long-term key, made when it is first asked for. Raises `SecureAggregationError`."""
    if config.identity.exists():
        return Identity.load(config.identity)
    config.identity.parent.mkdir(parents=True, exist_ok=True)
    return Identity.create(config.identity)


def connect_to(pinned: dict[str, str], config: SiteConfig, session: str, relay: Relay) -> dict[str, Link]:
    """Links to these sites. `session` names job, round and attempt. Raises `SiteError`."""
    return connect(load_identity(config), session, config.name, pinned, relay, MESSAGE_TIMEOUT)


def mix_with_others(
    me: str, links: dict[str, Link], dealt: bytes, upload: Tensors, layout: Layout
) -> tuple[Tensors, int]:
    """This site's mixture, and the bytes of shares that it sent.

    Raises `SiteError` naming the site that broke the attempt, `RangeError` before anything is shared.
    """
    # CrypTen takes seconds to import, and only these jobs need it.
    from privacy.secagg.communicator import Metered
    from privacy.secagg.protocol import secure_mix

    sites = tuple(sorted([me, *links]))
    metered = {site: Metered(link) for site, link in links.items()}
    prompts = {name: upload[name] for name, _ in layout.shapes}
    mixture = secure_mix(Group(me, sites, sites), metered, dealt, prompts, float(upload[ACCURACY]), layout)
    return mixture, sum(link.nbytes for link in metered.values())
