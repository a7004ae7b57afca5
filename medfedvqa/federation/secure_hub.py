"""The server's side of a run whose uploads are mixed by the sites themselves, on shares."""

import secrets
from collections.abc import Collection, Mapping
from typing import Any

from medfedvqa.errors import FederationError
from medfedvqa.federation.attempt import Attempt
from medfedvqa.federation.hub import Reply, ServerHub
from medfedvqa.methods import FAULT, SHARED_BYTES, Tensors, mixing
from privacy import Reliability
from privacy.secagg import Layout


class SecureHub(ServerHub):
    """Has `mix` carried out by the sites: it deals correlated randomness, and sees neither uploads nor mixtures."""

    def __init__(self, *arguments: Any, layouts: Mapping[str, Layout], least: int) -> None:
        """`layouts`: what is mixed, by task; `least`: the fewest sites that the job goes on with."""
        super().__init__(*arguments)
        self._layouts, self._least = layouts, least

    def mix(
        self,
        task: str,
        reliability: Reliability,
        down: Mapping[str, Tensors] | None = None,
        targets: tuple[str, ...] | None = None,
    ) -> dict[str, Tensors]:
        """See `Hub.mix`; what is returned holds an empty message for each site, since sites keep their mixtures.

        An attempt that a site breaks is repeated without it, under fresh randomness. A site that has its mixture takes
        part in no second attempt of the round: then the others keep the one that they had.
        Raises `FederationError` when too few sites are left.
        """
        self.collect(task)
        while not self._attempt(task):
            pass
        return {site: {} for site in self.sites}

    def _attempt(self, task: str) -> bool:
        """Whether the round is over with it."""
        # CrypTen takes seconds to import, and only these jobs need it.
        from privacy.secagg.protocol import deal_mix

        sites = tuple(sorted(self.sites))
        if len(sites) < self._least:
            raise FederationError(
                f"round {self._round}: {len(sites)} sites are left ({', '.join(self.history.left_out)} fell out), and "
                f"the job needs {self._least}: fewer could reveal each other"
            )
        name, dealt = secrets.token_hex(8), deal_mix(sites, sites, self._layouts[task])
        messages = {site: Attempt(name, sites, part).message() for site, part in dealt.items()}

        def accused(replies: Mapping[str, Reply]) -> Collection[str]:
            faults = [int(reply.tensors[FAULT.name]) for reply in replies.values()]
            return [sites[rank] for rank in faults if rank >= 0]

        replies = self._ask(mixing(task), messages, accused)
        for site, reply in replies.items():
            self._tally.up[site] += int(reply.tensors[SHARED_BYTES.name])
        blamed = accused(replies)
        # Whoever waits for a dead site is late itself: sites that answered are blamed only if none is silent.
        for site in [site for site in blamed if site not in replies] or blamed[:1]:
            self.history.left_out[site] = self._round
        self.sites = tuple(site for site in self.sites if site not in self.history.left_out)
        return len(blamed) < len(replies)
