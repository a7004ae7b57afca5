"""Random scripts for a lying server: moves drawn by a seed, honest ones and lies of every kind, against real sites.

A script ends with two questions: does any honest site's input follow from what the server and its colluders know, and
was more of a budget spent than the jobs planned? Against means the server lies about attempts, and opens whatever
members let it open; against mixtures it deals what it likes, and colluding members show each other what they hear.
"""

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from lying_dealer import Deal, Overheard, Parts, draw
from lying_network import Letter
from lying_server import (
    Answer,
    LyingServer,
    attempt_message,
    opening_message,
    overspent,
    read_opening,
    read_upload,
    shared_data,
)
from lying_views import COMMON, OWN, Equations, Exchange, found_in_sums
from server_lies import LETTERS, PARTS, VIEWS, Sites, View, all_but_one, some_of
from tiny_clip import TINY
from untrained import DP, Averaged, Mixed, Unweighted

from medfedvqa.core import Tensors
from medfedvqa.federation.admission import Signature
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import StateFile
from privacy.secagg import TensorLayout, shamir
from privacy.secagg.committee import Beacon
from privacy.secagg.cut_and_choose import SETS
from privacy.secagg.layout import summand
from privacy.secagg.ring import Ring

MOVES = 30
ROUNDS = 3
SUBMITTER = Signature("5" * 64, "")
NAMES = tuple(f"site-{number}" for number in range(1, 9))
METHODS = (Averaged, Unweighted, Mixed)
SHAPES = {"prompt.x": (2, 2, 4), "scale": ()}
PUBLIC = {"tuple_seed", "coin_commitment", "coin", "fault", "shared_bytes", "commitment", "nonce", "beacon", "epsilon"}
"""All that the server is sent in a job that mixes."""


@dataclass
class Script:
    """One server of one script; `run` plays it. Subclasses know how a round's answers are aggregated."""

    seed: int
    known: Mapping[str, SiteConfig]
    """Eight sites that know each other; each script gives some of them folders without a past."""
    folder: Path
    log: list[str] = field(default_factory=list)
    """The moves so far, for whoever has to find out what went wrong."""
    mixes: ClassVar[bool]

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        number, self.private = self.rng.randint(4, 8), self.rng.random() < 0.1
        self.method = Mixed if self.mixes else Unweighted if self.private else Averaged
        self.committee = self.rng.choice([None, None, 4]) if number > 4 else None
        colluders = self.rng.randint(0, 1 if number < 6 else 2)
        self.sites = tuple(sorted(self.known)[:number])
        self.configs, self.job = self.fresh(colluders + 2), self.first_job(max(3, colluders + 2))
        self.colluders = frozenset(self.rng.sample(self.sites, colluders))
        self.plan = list(self.job.build().tasks())
        self.honesty = self.rng.choice([13, 40, 130])
        # A site that refused a signed job never takes it up again: without a signature scripts get further.
        self.signature = SUBMITTER if self.rng.random() < 0.3 else None
        self.jobs = 0
        self.begin_job()

    def fresh(self, fewest: int) -> dict[str, SiteConfig]:
        """The script's sites, with policies for its number of colluders."""
        allowed: dict[str, Any] = {"methods": (self.method.name,), "require_dp": self.private, "require_secagg": True}
        allowed |= {"min_sites": max(3, fewest), "min_difference": fewest, "require_fresh": False}
        allowed |= {"max_epsilon": 1000.0 if self.private else None, "repeats": 1000}
        configs = {}
        for name in self.sites:
            places = {place: self.folder / name / place for place in ("state", "audit", "ledger")}
            policy = replace(self.known[name].policy, **allowed)
            configs[name] = self.known[name].model_copy(update={**places, "policy": policy})
        return configs

    def first_job(self, fewest: int) -> JobSpec:
        """The others are like it."""
        spec: dict[str, Any] = {"method": self.method.name, "options": {"rounds": ROUNDS, "answers": "closed"}}
        spec |= {"data": "phantom", "backbone": TINY, "secagg": True, "committee": self.committee}
        return JobSpec.from_dict({**spec, "min_sites": fewest, **({"dp": DP} if self.private else {})})

    def run(self) -> None:
        """All moves, then the folders are removed unless the answers to the two questions are wrong."""
        for _ in range(MOVES):
            self.move()
        self.server.close()
        self.check()
        shutil.rmtree(self.folder)

    def check(self) -> None:
        """Raises `AssertionError` with the moves of the script."""
        exposed = sorted(set(self.exposed()) - self.colluders)
        assert not exposed, f"script {self.seed}: {exposed} are exposed\n" + "\n".join(self.log)
        for name, config in self.configs.items():
            over = self.private and overspent(config, self.job)
            assert not over, f"script {self.seed}: {name} spent more than planned\n" + "\n".join(self.log)

    def exposed(self) -> list[str]:
        """Sites of whose inputs something is known."""
        raise NotImplementedError

    # Moves.

    def move(self) -> None:
        """One of them; a third are lies, and an honest move may carry a lie as well."""
        moves = {self.honest: self.honesty, self.any_task: 3, self.any_aggregate: 5, self.restart: 3}
        moves |= {self.redraw: 1, self.begin_job: 1}
        chosen = self.rng.choices(list(moves), list(moves.values()))[0]
        self.server.network.deliver = self.tampering() if self.lying(0.5) else lambda letter: [letter]
        chosen()

    def begin_job(self) -> None:
        """A job of the same definition under a new name, whose server knows all that the ones before it learned."""
        if self.jobs:
            self.server.close(ended=self.rng.random() < 0.5)
        self.jobs += 1
        if self.rng.random() < 0.7:
            # Another definition, for which a committee may be drawn.
            self.job = self.job.model_copy(update={"seed": self.jobs})
        self.server = LyingServer(self.configs, self.job, f"job-{self.jobs}", shared_data, self.signature)
        self.place, self.aggregated, self.group, self.number = 0, False, self.sites, 0
        self.refused: set[str] = set()
        self.log.append("a new job")

    def honest(self) -> None:
        """The next step of the job with all sites that the server still counts in."""
        if self.place == len(self.plan) or (self.signature and len(self.refused) > 2):
            self.begin_job()
            return
        if self.rng.random() < 0.9:
            self.server.restart(*self.refused)
        task, round = self.plan[self.place]
        if self.aggregated or task == "evaluate":
            self.aggregate(task, round, self.group)
            self.place, self.aggregated = self.place + 1, False
        else:
            self.ask_task(task, round, self.group)

    def any_task(self) -> None:
        """Any task under any number, at some of the sites: going back, repeating, and leaping ahead."""
        task, round = self.rng.choice(self.plan[:-1])
        if self.rng.random() < 0.3:
            task, round = self.rng.choice(["start", "train", "evaluate"]), self.rng.choice([1, 2, 3, 4, 0, -1, 35])
        self.server.restart(*self.refused)
        self.ask_task(task, round, self.some_sites())

    def any_aggregate(self) -> None:
        """Another aggregate of what sites answered last, or of an earlier or later round, over some of the sites."""
        task, round = self.rng.choice(self.plan[:-1])
        if self.place < len(self.plan) - 1 and self.rng.random() < 0.7:
            task, round = self.plan[self.place]
        self.aggregate(task, round, self.some_sites())

    def aggregate(self, task: str, round: int, group: Sites) -> None:
        """Asks for the aggregate of a round, under a number that may be a lie."""
        if task == "evaluate":
            self.ask_task(task, round, group)
            return
        self.number = self.rng.randint(0, 9) if self.lying(0.4) else self.number + 1
        self.attempt(task, round, group)

    def attempt(self, task: str, round: int, group: Sites) -> None:
        """One attempt at it."""
        raise NotImplementedError

    def ask_task(self, task: str, round: int, group: Sites) -> None:
        """One task of the plan, or none of it."""
        values = self.rng.choice([np.ones(16), np.arange(16)]).astype(np.float32)
        down = {"prompt.x": values.reshape(SHAPES["prompt.x"]), "scale": np.array(2.5, np.float32)}
        answers = self.server.tell(task, round, group, {} if task == "start" or self.mixes else down)
        self.hear(answers, f"{task} {round} {group}")
        if (task, round) in self.plan and any(not answer.code for answer in answers.values()):
            self.place, self.aggregated = self.plan.index((task, round)), True

    def restart(self) -> None:
        """Some sites die and come back."""
        group = self.some_sites()
        self.server.restart(*group)
        self.log.append(f"restart {group}")

    def redraw(self) -> None:
        """A draw of a committee, by all or some, in any round."""
        self.draw(self.rng.choice([1, 1, 2]), self.some_sites())

    def draw(self, round: int, group: Sites) -> None:
        """A draw by these sites."""
        beacons, codes = draw(self.server, round, group)
        self.log.append(f"draw {group}: {len(beacons)} beacons, {codes}")

    def members(self, group: Sites, round: int) -> Sites:
        """As the job's rule has them; if it needs a draw and there was none, the sites draw first."""
        if self.job.members_rule(self.beacon(group)).needs_draw(group):
            self.draw(round, group)
        rule = self.job.members_rule(self.beacon(group))
        if rule.needs_draw(group) or (rule.beacon and not set(group) <= set(rule.beacon.sites)):
            return group[: self.committee]
        return rule.members(group, round)

    def beacon(self, group: Sites) -> Beacon | None:
        """What sites know of the draw: it is public."""
        saved = [StateFile(self.configs[site].state, self.server.job_id).load() for site in group]
        return next((state.beacon for state in saved if state and state.beacon), None)

    # What moves have in common.

    def lying(self, share: float) -> bool:
        """Whether a move carries a lie, which is as rare as the script is honest."""
        return self.rng.random() < share * 13 / (13 + self.honesty)

    def hear(self, answers: Mapping[str, Answer], move: str) -> None:
        """Remembers the move, and who refuses everything until it is restarted."""
        self.log.append(f"{move}: {[answer.code or 'answered' for answer in answers.values()]}")
        self.refused |= {site for site, answer in answers.items() if answer.code}
        self.refused -= {site for site, answer in answers.items() if not answer.code}

    def some_sites(self) -> Sites:
        """All of them, or all but one or two."""
        return some_of(self.rng, self.sites)

    def tampering(self) -> Callable[[Letter], list[Letter]]:
        """What the server does to letters during one move."""
        lie, share = LETTERS[self.rng.choice(list(LETTERS))], self.rng.choice([0.02, 0.2, 1.0])
        chance = random.Random(self.rng.random())
        return lambda letter: [letter] if chance.random() >= share else lie(letter, chance.uniform(1, 100))


@dataclass
class MeanScript(Script):
    """The server of a mean."""

    held: list[Exchange] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    mixes = False

    def begin_job(self) -> None:
        self.last: dict[str, Exchange] = {}
        super().begin_job()

    def attempt(self, task: str, round: int, group: Sites) -> None:
        """True or with a lie, and what members open of it."""
        self.upload(task, round, group)
        for _ in range(2 if self.lying(1.0) else 1):
            self.open(task, round)

    def upload(self, task: str, round: int, group: Sites) -> None:
        """Under masks, if the sites believe what they are told."""
        name = self.rng.choice(self.names) if self.names and self.lying(0.2) else f"attempt-{len(self.names)}"
        self.names.append(name)
        views = dict.fromkeys(group, View(name, group, self.members(group, round), self.number))
        if self.lying(0.6):
            for site in self.rng.sample(group, self.rng.randint(1, len(group))):
                views[site] = self.rng.choice(list(VIEWS.values()))(self.rng, views[site], self.sites)
        answers = self.server.ask(f"{task}/mean", round, {s: attempt_message(*view) for s, view in views.items()})
        self.hear(answers, f"{task}/mean {round} {set(views.values())}")
        exchanges: dict[tuple[Sites, Sites], Exchange] = {}
        # Under differential privacy inputs of several jobs are not the same.
        job = self.jobs if self.private else 0
        for site, answer in answers.items():
            upload = read_upload(answer, list(SHAPES), "weight" if self.private else "rows")
            if upload is not None:
                _, *parties, _ = views[site]
                self.last[site] = exchanges.setdefault(tuple(parties), Exchange(*parties, job, round))
                self.last[site].uploads[site] = upload
        self.held += exchanges.values()
        for site in self.colluders & set(group):
            self.collude(site)

    def collude(self, site: str) -> None:
        """A colluding member gives the server its shares of all keys."""
        saved = StateFile(self.configs[site].state, self.server.job_id).load()
        if saved is None or not saved.contributions or site not in self.last:
            return
        for owner, share in saved.contributions[-1].shares.items():
            self.last[site].shares[owner, COMMON][site] = share[: shamir.ELEMENT_BYTES]
            self.last[site].shares[owner, OWN][site] = share[shamir.ELEMENT_BYTES :]

    def open(self, task: str, round: int) -> None:
        """Members are asked to open a sum; with a lie, not all the same one."""
        if not self.last:
            return
        held = self.rng.choice(self.held) if self.lying(0.4) else self.held[-1]
        group = [site for site in held.members if site in self.last]
        sums = dict.fromkeys(group, self.summed(held))
        if self.lying(1.0):
            sums.update({site: self.summed(held) for site in group})
        name = self.rng.choice(self.names) if self.lying(0.2) else self.names[-1]
        answers = self.server.ask(f"{task}/unmask", round, {s: opening_message(name, sums[s]) for s in group})
        self.hear(answers, f"{task}/unmask {round} {sums}")
        for member, answer in answers.items():
            self.last[member].opened(member, read_opening(answer), sums[member])

    def summed(self, held: Exchange) -> Sites:
        """The sites that uploaded; with a lie, one fewer, or another set."""
        uploaded = tuple(sorted(held.uploads))
        if not uploaded or not self.lying(1.0):
            return uploaded
        denied = self.rng.choice(uploaded)
        return tuple(site for site in uploaded if site != denied) if self.rng.random() < 0.7 else self.sites

    def exposed(self) -> list[str]:
        equations = Equations()
        for number, held in enumerate(self.held):
            for row in held.equations(number, self.colluders):
                equations.add(row)
        # Only sums of one job have an input in common, if there is noise.
        jobs = [[held for held in self.held if held.job == job] for job in {held.job for held in self.held}]
        secrets = {(site, round): self.planted(site, round) for site in self.sites for round in range(1, ROUNDS + 1)}
        return [*equations.exposed(), *(site for job in jobs for site in found_in_sums(job, secrets, self.colluders))]

    def planted(self, site: str, round: int) -> Ring:
        """What a site puts into a sum, in the ring."""
        held: Tensors = Averaged.holding(site, round)
        weight = 1.0 if self.private else float(held.pop("rows"))
        return summand({name: held[name] for name in SHAPES}, weight, TensorLayout.of(SHAPES), len(self.sites))


@dataclass
class MixScript(Script):
    """The server of a mixture, whose colluders are members or owners that do what they are told."""

    overheard: Overheard = field(default_factory=Overheard)
    mixes = True

    @property
    def deals(self) -> list[Deal]:
        """All so far."""
        return [deal for _, deal in self.overheard.deals]

    def attempt(self, task: str, round: int, group: Sites) -> None:
        """A mixture, as far as it comes."""
        deal = Deal(self.server, task, round, group, self.members(group, round), self.number, self.bend)
        if self.deals and self.lying(0.2):
            deal.name = self.rng.choice(self.deals).name
        if self.lying(0.2):
            deal.members = all_but_one(self.rng, group)
        unused = None if self.lying(0.3) or not self.deals else self.deals[-1].seeds
        self.overheard.begin(self.jobs, deal)
        reached = deal.seed(unused) and deal.toss()
        self.heard(deal, f"{task} {round} deal {group} {deal.members} {deal.number} {reached}")
        if not reached or self.lying(0.5):
            self.overheard.reveal(deal, range(SETS) if reached else ())
            return
        self.mix(deal)
        if self.lying(0.4):
            self.mix(deal)

    def mix(self, deal: Deal) -> None:
        """The last step; with a lie, under other parts than were committed to, or with other words for some."""
        assert deal.index is not None
        parts = deal.sets[deal.index]
        if self.lying(0.3):
            parts = self.bent(deal, parts)
        messages = deal.mixing_messages(parts)
        if self.lying(0.3):
            site = self.rng.choice(deal.sites)
            messages[site] = messages[site] | {"opened": messages[site]["committed"]}
        if self.lying(0.3):
            messages.pop(self.rng.choice(deal.sites))
        deal.answers = self.server.ask(f"{deal.task}/mix", deal.round, messages)
        self.overheard.reveal(deal, [index for index in range(SETS) if index != deal.index])
        self.heard(deal, f"{deal.task}/mix {deal.round} {deal.completed}")
        self.overheard.mixed += [(self.jobs, deal, site) for site in deal.completed]

    def bend(self, deal: Deal, index: int, parts: Parts) -> Parts:
        """What the dealer commits to in the place of the honest parts."""
        return self.bent(deal, parts) if self.lying(0.15) else parts

    def bent(self, deal: Deal, parts: Parts) -> Parts:
        """By a lie of the table."""
        earlier = [each for deal in self.deals for each in deal.sets if each.keys() == parts.keys()]
        lies = [lie for name, lie in PARTS.items() if earlier or name != "reused"]
        return self.rng.choice(lies)(self.rng, deal, parts, earlier)

    def heard(self, deal: Deal, move: str) -> None:
        """Remembers who refuses, and that the server was sent nothing but what is public."""
        self.hear(deal.answers, move)
        sent = {name for answer in deal.answers.values() for name in answer.tensors}
        assert sent <= PUBLIC, f"script {self.seed}: the server was sent {sorted(sent - PUBLIC)}"

    def exposed(self) -> list[str]:
        return self.overheard.exposed(self.colluders)
