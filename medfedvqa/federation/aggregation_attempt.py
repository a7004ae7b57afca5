"""One attempt of the sites to aggregate on shares: the server's announcement of it, and a site's part in it."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from audits import Sharing, Stage, Tensors, canonical
from medfedvqa.core import ACCURACY
from medfedvqa.errors import FederationError
from medfedvqa.federation.quorum import MembersRule, Protocol
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import Saved
from privacy.secagg import Group, Identity, Relay, SecureLink, TensorLayout

MESSAGE_TIMEOUT = 30.0
"""Seconds that a member waits for another site's next message before it gives up the attempt. Other sites wait twice as
long, since the members may themselves be waiting."""

ATTEMPTS = 8
"""The largest number of attempts of one round, at the server and at the sites."""

DEALER = "server"

UPLOADED, HIDDEN_SUM, MASKS = "uploaded", "hidden_sum", "masks"
"""Names of three arrays: the sites whose uploads are in a sum; the sum, which the server cannot read; and the attempt
whose masks last, and hide the answer to the task."""

_NAME = re.compile(r"[0-9a-z-]{1,64}")
"""The pattern of an attempt's name, which the log holds."""

Links = dict[str, SecureLink]

Relays = Callable[[str], Relay]
"""Makes a site's transport to the other sites for the attempt of this name, and drops what earlier attempts left."""

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Attempt:
    """The server's announcement of an attempt to one site.

    `sites` are in order of names; a site's index is its rank in the protocol. `members` are the sites that compute.
    `dealt` holds the tuples for this site, which only a mixture needs. `number` counts a round's attempts from 1.
    """

    name: str
    sites: tuple[str, ...]
    dealt: bytes = b""
    members: tuple[str, ...] = ()
    number: int = 1

    def message(self) -> Tensors:
        """The announcement as arrays of bytes; `read` is the inverse."""
        described = {"name": self.name, "sites": self.sites, "members": self.members, "number": self.number}
        return {"attempt": as_array(described), "dealt": np.frombuffer(self.dealt, np.uint8)}

    def lasting(self, exponent: int) -> Tensors:
        """The request to answer a task under this attempt's masks; `named_masks` reads it."""
        return {MASKS: as_array({"attempt": self.name, "exponent": exponent})}

    @classmethod
    def read(cls, message: Tensors) -> "Attempt":
        """The announcement in a message. Raises `FederationError` if it is anything else, or has sites out of order."""

        def parse(fields: Any) -> Attempt:
            name, number = fields["name"], fields["number"]
            sites, members = (tuple(map(str, fields[names])) for names in ("sites", "members"))
            dealt = message["dealt"].tobytes() if "dealt" in message else b""
            if not _NAME.fullmatch(name) or type(number) is not int:
                raise ValueError
            return cls(name, sites, dealt, members, number)

        attempt = from_array(message, "attempt", parse, "describe an attempt to aggregate on shares")
        if list(attempt.sites) != sorted(set(attempt.sites)):
            raise FederationError("the server's message must name each site once, in alphabetical order")
        return attempt

    def sharing(self, protocol: Protocol, rule: MembersRule, stage: Stage, private: bool) -> Sharing:
        """The attempt as the log holds it."""
        computed, dealer = rule.sentence(self.sites, self.members, protocol), DEALER if protocol == "mix" else ""
        return Sharing(self.name, protocol, self.sites, dealer, computed, stage, private)

    def label(self, round: int) -> bytes:
        """Everything that the server announced except the dealt tuples; the sites compare it with each other."""
        return canonical([round, self.name, list(self.sites), list(self.members), self.number])


@dataclass(frozen=True)
class Opening:
    """The server's announcement of the sites whose uploads have arrived in an attempt at a mean."""

    attempt: str
    uploaded: tuple[str, ...]

    def sharing(self, protocol: str, private: bool) -> Sharing:
        """The sum as the log holds it."""
        return Sharing(self.attempt, protocol, self.uploaded, "", stage=Stage.OPENED, private=private)

    @property
    def label(self) -> bytes:
        """Everything that the server announced; the members compare it with each other."""
        return canonical([self.attempt, list(self.uploaded)])

    def message(self, hidden_sum: NDArray[np.uint64] | None = None) -> Tensors:
        """The announcement as arrays; `read` is the inverse. Only the sites can read `hidden_sum`, if there is one."""
        uploaders = {UPLOADED: as_array({"attempt": self.attempt, "sites": self.uploaded})}
        return uploaders if hidden_sum is None else {**uploaders, HIDDEN_SUM: hidden_sum.view(np.int64)}

    @classmethod
    def read(cls, message: Tensors) -> "Opening":
        """The announcement in a message. Raises `FederationError` if it is anything else."""

        def parse(fields: Any) -> Opening:
            return cls(str(fields["attempt"]), tuple(sorted(set(map(str, fields["sites"])))))

        return from_array(message, UPLOADED, parse, "say whose uploads are summed up")


def named_masks(message: Tensors) -> tuple[str, int]:
    """The attempt whose masks are to hide the answer, and the exponent of weights (see `SumCode`).

    Raises `FederationError` if the message does not say that.
    """

    def parse(fields: Any) -> tuple[str, int]:
        if type(fields["exponent"]) is not int:
            raise ValueError
        return str(fields["attempt"]), fields["exponent"]

    return from_array(message, MASKS, parse, "name the masks of an earlier mean")


def as_array(plain: Any) -> NDArray[np.uint8]:
    """Plain JSON as bytes in an array."""
    return np.frombuffer(json.dumps(plain).encode(), np.uint8)


def from_array(message: Tensors, name: str, parse: Callable[[Any], _Parsed], purpose: str) -> _Parsed:
    """The JSON in an array of a message, as `parse` reads it.

    Raises `FederationError` if the array is missing or holds no JSON, or if `parse` does not accept it; `purpose` ends
    that error's sentence: the server's message does not ...
    """
    try:
        fields = json.loads(message[name].tobytes())
    except (KeyError, ValueError, AttributeError, RecursionError):
        raise FederationError(f"the server's message lacks its part '{name}', or the part is not JSON") from None
    try:
        return parse(fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FederationError(f"the server's message does not {purpose}") from None


def hex_by_name(values: Mapping[str, bytes]) -> dict[str, str]:
    """Bytes in hex, in order of names."""
    return {name: values[name].hex() for name in sorted(values)}


def bytes_by_name(fields: Any) -> dict[str, bytes]:
    """The inverse of `hex_by_name`. Raises `TypeError`, `ValueError` or `AttributeError` for anything else."""
    return {str(name): bytes.fromhex(value) for name, value in fields.items()}


def admit(attempt: Attempt, saved: Saved, rule: MembersRule) -> None:
    """Raises `FederationError` unless sites, members and number may follow the job's earlier attempts."""
    if saved.group and not set(attempt.sites) <= set(saved.group):
        raise FederationError("the attempt includes sites that an earlier one left out: they may not return")
    if attempt.members != rule.members(attempt.sites, saved.round):
        raise FederationError("the server names members that do not follow from the job: they could open any upload")
    if not saved.number < attempt.number <= ATTEMPTS:
        raise FederationError(f"the attempt's number is not above the last one, or exceeds {ATTEMPTS}")


def peers_of(config: SiteConfig, attempt: Attempt, least: int) -> dict[str, str]:
    """Pinned fingerprints of the sites that this one exchanges messages with: all sites for a member, else the members.

    Raises `FederationError` if a site is not pinned, there are fewer than `least`, or this one is not among them.
    """
    if config.name not in attempt.sites or len(attempt.sites) < least:
        raise FederationError(f"an attempt to aggregate on shares needs this site and at least {least} in all")
    needed = attempt.sites if config.name in attempt.members else attempt.members
    require_pins(config, needed)
    return {site: config.known_peers[site] for site in needed if site != config.name}


def require_pins(config: SiteConfig, sites: Iterable[str]) -> None:
    """Raises `FederationError` unless `site.yml` pins the keys of all these sites but its own."""
    if missing := sorted(set(sites) - config.known_peers.keys() - {config.name}):
        raise FederationError(f"site.yml pins no fingerprint of {', '.join(missing)}: add it under 'peers'")


def load_identity(config: SiteConfig) -> Identity:
    """The site's long-term key, made at its first use. Raises `SecureAggregationError`."""
    if config.identity.exists():
        return Identity.load(config.identity)
    config.identity.parent.mkdir(parents=True, exist_ok=True)
    return Identity.create(config.identity)


def mix_with_others(
    group: Group,
    links: Links,
    dealt: bytes,
    seed: bytes,
    upload: Tensors,
    layout: TensorLayout,
    most_share: float,
) -> tuple[Tensors, int]:
    """This site's mixture, and the number of bytes of shares that it sent.

    Raises `SiteError` naming the site that broke the attempt; before anything is shared, `RangeError` for a value that
    does not fit.
    """
    # CrypTen takes seconds to import, and only these jobs need it.
    from privacy.secagg.communicator import MeteredWire
    from privacy.secagg.protocol import secure_mix

    metered = {site: MeteredWire(link) for site, link in links.items()}
    prompts = {name: upload[name] for name, _ in layout.shapes}
    mixture = secure_mix(group, metered, dealt, prompts, float(upload[ACCURACY]), layout, seed, most_share)
    return mixture, sum(link.nbytes for link in metered.values())
