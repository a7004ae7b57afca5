"""Random scripts against means under masks: the server lies about attempts, and opens whatever members let it open."""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from lying_server import MaskedUpload, attempt_message, common_mask, opening_message, read_opening, read_upload
from lying_views import COMMON, OWN, Equations, Exchange
from random_scripts import ROUNDS, Script, TinyMean

from medfedvqa.core import Tensors
from medfedvqa.federation.site_state import StateFile
from privacy.secagg import TensorLayout, shamir
from privacy.secagg.layout import summand
from privacy.secagg.pairwise_masks import threshold
from privacy.secagg.ring import Ring, Stream

COMBINED = 3
"""The most sums that the numeric check adds and subtracts."""


@dataclass
class Held:
    """The bytes that the server and its colluders hold of one exchange of keys."""

    exchange: Exchange
    uploads: dict[str, MaskedUpload] = field(default_factory=dict)
    shares: defaultdict[tuple[str, int], dict[str, bytes]] = field(default_factory=lambda: defaultdict(dict))


@dataclass
class MeanScript(Script):
    """The server of a mean."""

    mixes = False

    def __post_init__(self) -> None:
        self.held: list[Held] = []
        self.last: dict[str, Held] = {}
        self.names: list[str] = []
        self.number = 0
        super().__post_init__()

    def begin_job(self) -> None:
        self.last, self.number = {}, 0
        super().begin_job()

    # Moves.

    def aggregate(self, task: str, round: int, group: tuple[str, ...]) -> None:
        """An attempt, true or with a lie, and what members open of it."""
        if task == "evaluate":
            self.ask_task(task, round, group)
            return
        self.attempt(task, round, group)
        for _ in range(2 if self.lying(1.0) else 1):
            self.open(task, round)

    def attempt(self, task: str, round: int, group: tuple[str, ...]) -> None:
        """Uploads under masks, if the sites believe what they are told."""
        self.number += 1
        if self.lying(0.4):
            self.number = self.rng.randint(0, 9)
        name = self.rng.choice(self.names) if self.names and self.lying(0.2) else f"attempt-{len(self.names)}"
        self.names.append(name)
        members = self.members(group, round)
        views = dict.fromkeys(group, (name, group, members, self.number))
        if self.lying(0.6):
            for site in self.rng.sample(group, self.rng.randint(1, len(group))):
                views[site] = self.lie(*views[site])
        messages = {site: attempt_message(*view) for site, view in views.items()}
        weight = "weight" if self.setting.private else "rows"
        answers = self.server.ask(f"{task}/mean", round, messages)
        self.hear(answers)
        self.note(f"{task}/mean {round} {set(views.values())}: {[answer.code for answer in answers.values()]}")
        exchanges: dict[tuple[tuple[str, ...], tuple[str, ...]], Held] = {}
        for site, answer in answers.items():
            upload = read_upload(answer, ["prompt.x"], weight)
            if upload is not None:
                _, sites, computing, _ = views[site]
                held = exchanges.setdefault((sites, computing), Held(Exchange(self.occasion, round, sites, computing)))
                held.uploads[site] = upload
                held.exchange.uploaded.add(site)
                self.last[site] = held
        self.held += exchanges.values()
        for site in self.colluders & set(group):
            self.collude(site)

    @property
    def occasion(self) -> int:
        """The job, where inputs of several jobs are not the same."""
        return self.jobs if self.setting.private else 0

    def lie(
        self, name: str, sites: tuple[str, ...], members: tuple[str, ...], number: int
    ) -> tuple[str, tuple[str, ...], tuple[str, ...], int]:
        """Another view of an attempt."""
        kind = self.rng.choice(["name", "sites", "members", "number", "order"])
        if kind == "name":
            return f"{name}-else", sites, members, number
        if kind == "sites":
            others = self.some_sites()
            return name, others, others if members == sites else members, number
        if kind == "members":
            return name, sites, tuple(sorted(self.rng.sample(sites, max(1, len(sites) - 1)))), number
        if kind == "number":
            return name, sites, members, self.rng.randint(0, 9)
        return name, sites[::-1], members, number

    def collude(self, site: str) -> None:
        """A colluding member gives the server its shares of all keys."""
        saved = StateFile(self.configs[site].state, self.server.job_id).load()
        if saved is None or not saved.contributions or site not in self.last:
            return
        held = self.last[site]
        for owner, share in saved.contributions[-1].shares.items():
            held.shares[owner, COMMON][site] = share[: shamir.ELEMENT_BYTES]
            held.shares[owner, OWN][site] = share[shamir.ELEMENT_BYTES :]

    def open(self, task: str, round: int) -> None:
        """Members are asked to open a sum; with a lie, not all the same one."""
        if not self.last:
            return
        held = self.rng.choice(self.held) if self.lying(0.4) else self.held[-1]
        group = [site for site in held.exchange.members if site in self.last]
        sums = dict.fromkeys(group, self.summed(held))
        if self.lying(1.0):
            sums.update({site: self.summed(held) for site in group})
        name = self.rng.choice(self.names) if self.lying(0.2) else self.names[-1]
        answers = self.server.ask(f"{task}/unmask", round, {s: opening_message(name, sums[s]) for s in group})
        self.hear(answers)
        self.note(f"{task}/unmask {round} {sums}: {[answer.code for answer in answers.values()]}")
        for member, answer in answers.items():
            rows, mine = read_opening(answer), self.last[member]
            for site, row in zip(mine.exchange.sites, rows, strict=False):
                half = OWN if site in sums[member] else COMMON
                mine.exchange.given[site, half].add(member)
                mine.shares[site, half][member] = row

    def summed(self, held: Held) -> tuple[str, ...]:
        """The sites that uploaded; with a lie, one fewer, or another set."""
        uploaded = tuple(sorted(held.uploads))
        if not uploaded or not self.lying(1.0):
            return uploaded
        denied = self.rng.choice(uploaded)
        return tuple(site for site in uploaded if site != denied) if self.rng.random() < 0.7 else self.sites

    # Checks.

    def exposed(self) -> list[str]:
        equations = Equations()
        for number, held in enumerate(self.held):
            for row in held.exchange.equations(number, self.colluders):
                equations.add(row)
        # Under differential privacy a site draws noise for each job: only sums of one job have an input in common.
        jobs = {held.exchange.job for held in self.held}
        return [*equations.exposed(), *(site for job in jobs for site in self.exposed_in_numbers(job))]

    def exposed_in_numbers(self, job: int) -> list[str]:
        """Honest sites whose planted input is a sum or difference of a few opened sums."""
        sums = [opened for held in self.held if held.exchange.job == job for opened in opened_sums(held)]
        honest = list({total.tobytes(): total for total in (self.reduced(*each) for each in sums)}.values())
        planted = {
            self.planted(site, round)[:-1].tobytes(): site
            for site in set(self.sites) - self.colluders
            for round in range(1, ROUNDS + 1)
        }
        exposed = set()
        for count in range(1, COMBINED + 1):
            for chosen in itertools.combinations(honest, count):
                for signs in itertools.product((1, -1), repeat=count):
                    total = np.sum([s * v.view(np.int64) for s, v in zip(signs, chosen, strict=True)], axis=0)
                    exposed.add(planted.get(total[:-1].tobytes()))
        return sorted(exposed - {None})

    def reduced(self, round: int, sites: frozenset[str], total: Ring) -> Ring:
        """A sum without what colluders put in."""
        for site in sites & self.colluders:
            total = total - self.planted(site, round)
        return total

    def planted(self, site: str, round: int) -> Ring:
        """What a site puts into a sum, in the ring."""
        held: Tensors = TinyMean.holding(site, round)
        weight = 1.0 if self.setting.private else float(held["rows"])
        return summand({"prompt.x": held["prompt.x"]}, weight, TensorLayout.of({"prompt.x": (4,)}), len(self.sites))


def opened_sums(held: Held) -> list[tuple[int, frozenset[str], Ring]]:
    """Every sum of one exchange whose masks the server can take away, with its round and sites."""
    exchange, sums = held.exchange, []
    needed = threshold(len(exchange.members))
    keys = {
        owner: shamir.to_bytes(
            shamir.rebuild({exchange.members.index(m): shamir.from_bytes(s) for m, s in shares.items()}, needed)
        )
        for owner, shares in held.shares.items()
        if len(shares) >= needed
    }
    for count in range(1, len(held.uploads) + 1):
        for sites in map(frozenset, itertools.combinations(sorted(held.uploads), count)):
            if all((site, OWN) in keys for site in sites) and _cancels(exchange, sites, keys):
                sums.append((exchange.round, sites, _total(held, sites, keys)))
    return sums


def _cancels(exchange: Exchange, sites: frozenset[str], keys: Mapping[tuple[str, int], bytes]) -> bool:
    """Whether the masks that these sites have in common with others can be computed."""
    others = {peer for site in sites for peer in exchange.peers(site)} - sites
    return all((peer, COMMON) in keys for peer in others)


def _total(held: Held, sites: frozenset[str], keys: Mapping[tuple[str, int], bytes]) -> Ring:
    """The sum of these sites' inputs."""
    total: Ring = np.sum([held.uploads[site].values for site in sites], axis=0, dtype=np.uint64)
    for site in sites:
        total = total - Stream(keys[site, OWN]).ring(total.shape)
        for peer in set(held.exchange.peers(site)) - sites:
            mask = common_mask(keys[peer, COMMON], held.uploads[site].key, total.shape)
            total = total - mask if site < peer else total + mask
    return total
