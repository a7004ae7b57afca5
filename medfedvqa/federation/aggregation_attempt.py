"""One attempt of the sites to aggregate on shares: what the server says of it, and a site's part in it."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audits import Sharing, Stage, Tensors, canonical
from medfedvqa.core import ACCURACY
from medfedvqa.errors import FederationError
from medfedvqa.federation.aggregation_members import MembersRule, Protocol
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import Saved
from privacy.secagg import Group, Identity, Relay, SecureLink, TensorLayout, connect

MESSAGE_TIMEOUT = 30.0
"""Seconds that a member waits for another site's next message before it gives the attempt up; other sites wait twice
as long for members, which may themselves be waiting."""

ATTEMPTS = 8
"""The most attempts of one round, at server and sites."""

DEALER = "server"

UPLOADED, HIDDEN_SUM = "uploaded", "hidden_sum"
"""Arrays that say which sum is meant, and what the server has of it."""

_NAME = re.compile(r"[0-9a-z-]{1,64}")
"""An attempt's name, which stands in the log."""

Links = dict[str, SecureLink]

Relays = Callable[[str], Relay]
"""A site's transport to the other sites, for an attempt that has this name; what earlier ones left is dropped."""


@dataclass(frozen=True)
class Attempt:
    """What the server tells one site: the attempt's name, who takes part, which of these, the members, compute, and the
    tuples dealt to this site, which only a mixture needs.

    A place in `sites`, which are in order of their names, is the site's rank in the protocol. `number` counts the
    attempts of a round, from 1.
    """

    name: str
    sites: tuple[str, ...]
    dealt: bytes = b""
    members: tuple[str, ...] = ()
    number: int = 1

    def message(self) -> Tensors:
        """As arrays of bytes; `read` is its inverse."""
        described = {"name": self.name, "sites": self.sites, "members": self.members, "number": self.number}
        return {"attempt": as_array(described), "dealt": np.frombuffer(self.dealt, np.uint8)}

    @classmethod
    def read(cls, message: Tensors) -> "Attempt":
        """Raises `FederationError` if the server sent anything else, or sites out of order."""
        described = from_array(message, "attempt")
        try:
            name, number = described["name"], described["number"]
            sites, members = (tuple(map(str, described[names])) for names in ("sites", "members"))
            dealt = message["dealt"].tobytes() if "dealt" in message else b""
            if not _NAME.fullmatch(name) or type(number) is not int:
                raise ValueError
            attempt = cls(name, sites, dealt, members, number)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise FederationError("the server's message does not describe an attempt to aggregate on shares") from None
        if list(attempt.sites) != sorted(set(attempt.sites)):
            raise FederationError("the server's message does not name each site once, in order of names")
        return attempt

    def sharing(self, protocol: Protocol, rule: MembersRule, stage: Stage, private: bool) -> Sharing:
        """What the log says of it."""
        computed, dealer = rule.sentence(self.sites, self.members, protocol), DEALER if protocol == "mix" else ""
        return Sharing(self.name, protocol, self.sites, dealer, computed, stage, private)

    def label(self, round: int) -> bytes:
        """All that the server said of it but what was dealt, for the sites to compare."""
        return canonical([round, self.name, list(self.sites), list(self.members), self.number])


@dataclass(frozen=True)
class Opening:
    """What the server says once the uploads of an attempt at a mean are in: whose they are."""

    attempt: str
    uploaded: tuple[str, ...]

    def sharing(self, protocol: str, private: bool) -> Sharing:
        """What the log says of the sum."""
        return Sharing(self.attempt, protocol, self.uploaded, "", stage=Stage.OPENED, private=private)

    @property
    def label(self) -> bytes:
        """All that the server said of it, for the members to compare."""
        return canonical([self.attempt, list(self.uploaded)])

    def message(self, hidden_sum: NDArray[np.uint64] | None = None) -> Tensors:
        """As arrays; `read` is its inverse. `hidden_sum`: for sites to read, where the server must not know a mean."""
        whose = {UPLOADED: as_array({"attempt": self.attempt, "sites": self.uploaded})}
        return whose if hidden_sum is None else {**whose, HIDDEN_SUM: hidden_sum.view(np.int64)}

    @classmethod
    def read(cls, message: Tensors) -> "Opening":
        """Raises `FederationError` if the server sent anything else."""
        described = from_array(message, UPLOADED)
        try:
            return cls(str(described["attempt"]), tuple(sorted(set(map(str, described["sites"])))))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise FederationError("the server's message does not say whose uploads are summed up") from None


def as_array(plain: Any) -> NDArray[np.uint8]:
    """Plain JSON as bytes in an array."""
    return np.frombuffer(json.dumps(plain).encode(), np.uint8)


def from_array(message: Tensors, name: str) -> Any:
    """What such an array of a message holds. Raises `FederationError` if there is none, or no JSON in it."""
    try:
        return json.loads(message[name].tobytes())
    except (KeyError, ValueError, AttributeError, RecursionError):
        raise FederationError(f"the server's message lacks its part '{name}', or that is no JSON") from None


def admit(attempt: Attempt, saved: Saved, rule: MembersRule) -> None:
    """Raises `FederationError` unless sites, members and number are such as may follow what the job has seen so far."""
    if saved.group and not set(attempt.sites) <= set(saved.group):
        raise FederationError("the attempt has sites that an earlier one left out, and these never come back")
    if attempt.members != rule.members(attempt.sites, saved.round):
        raise FederationError("the server names other members than follow from the job: its own could open anything")
    if not saved.number < attempt.number <= ATTEMPTS:
        raise FederationError(f"a round has at most {ATTEMPTS} attempts, in order of their numbers")


def peers_of(config: SiteConfig, attempt: Attempt, least: int) -> dict[str, str]:
    """Fingerprints of the sites with which this one exchanges messages, as its own file pins them: the members, and at
    a member all sites.

    Raises `FederationError` if a site is not pinned, there are fewer than `least`, or this one is not among them.
    """
    if config.name not in attempt.sites or len(attempt.sites) < least:
        raise FederationError(f"an attempt to aggregate on shares needs this site and at least {least} in all")
    needed = attempt.sites if config.name in attempt.members else attempt.members
    others = [site for site in needed if site != config.name]
    if missing := [site for site in others if site not in config.peers]:
        raise FederationError(f"site.yml pins no fingerprint of {', '.join(missing)}: add it under 'peers'")
    return {site: config.peers[site] for site in others}


def load_identity(config: SiteConfig) -> Identity:
    """The site's long-term key, made when it is first asked for. Raises `SecureAggregationError`."""
    if config.identity.exists():
        return Identity.load(config.identity)
    config.identity.parent.mkdir(parents=True, exist_ok=True)
    return Identity.create(config.identity)


def connect_to(
    pinned: dict[str, str], config: SiteConfig, attempt: Attempt, session: str, relay: Relay, transcript: bytes
) -> Links:
    """Links to these sites. `session` names job, round and attempt; `told`: all that the server said of it.

    Raises `SiteError`, or `EquivocationError` if it said something else to one of them.
    """
    timeout = MESSAGE_TIMEOUT if config.name in attempt.members else 2 * MESSAGE_TIMEOUT
    return connect(load_identity(config), session, config.name, pinned, relay, timeout, transcript)


def mix_with_others(
    group: Group, links: Links, dealt: bytes, seed: bytes, upload: Tensors, layout: TensorLayout
) -> tuple[Tensors, int]:
    """This site's mixture, and the bytes of shares that it sent.

    Raises `SiteError` naming the site that broke the attempt, `RangeError` before anything is shared.
    """
    # CrypTen takes seconds to import, and only these jobs need it.
    from privacy.secagg.communicator import MeteredWire
    from privacy.secagg.protocol import secure_mix

    metered = {site: MeteredWire(link) for site, link in links.items()}
    prompts = {name: upload[name] for name, _ in layout.shapes}
    mixture = secure_mix(group, metered, dealt, prompts, float(upload[ACCURACY]), layout, seed)
    return mixture, sum(link.nbytes for link in metered.values())
