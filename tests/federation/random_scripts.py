"""Random scripts for a lying server: moves drawn by a seed, honest ones and lies of every kind, against real sites.

A script ends with two questions: does any honest site's input follow from what the server and its colluders know, and
was more of a budget spent than the jobs planned?
"""

import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from lying_dealer import draw
from lying_network import Letter
from lying_server import Answer, LyingServer
from untrained import Averaged, Mixed

from medfedvqa.core import ACCURACY, MeanOnShares, Tensors
from medfedvqa.data import SiteData, Split, load_site
from medfedvqa.federation.admission import Signature
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import StateFile
from privacy import DPSettings, Ledger, spent
from privacy.secagg.committee import Beacon

MOVES = 30
ROUNDS = 3
DP = DPSettings(noise=2.0, count_noise=20.0, sample_rate=0.3, patient_rows=4, physical_patients=5)
SUBMITTER = Signature("5" * 64, "")
NAMES = tuple(f"site-{number}" for number in range(1, 9))


class TinyMean(Averaged):
    """Four numbers and a count of rows, averaged for the server."""

    name = "tiny_mean"

    @classmethod
    def holding(cls, site: str, round: int) -> Tensors:
        rng = np.random.default_rng([*site.encode(), round])
        return {"prompt.x": np.float32(1 + rng.normal(size=4)), "rows": np.array(rng.integers(1, 4000))}


class TinyUnweighted(TinyMean):
    """The same with equal weights, as differential privacy asks for."""

    name = "tiny_unweighted"
    how = MeanOnShares()
    weight = None

    @classmethod
    def holding(cls, site: str, round: int) -> Tensors:
        return {"prompt.x": super().holding(site, round)["prompt.x"]}


class TinyMix(Mixed):
    """Four numbers, mixed by accuracy among the sites."""

    name = "tiny_mix"

    @classmethod
    def holding(cls, site: str, round: int) -> Tensors:
        rng = np.random.default_rng([*site.encode(), round])
        prompt = np.float32(1 + rng.normal(size=4))
        return {"prompt.x": prompt, ACCURACY: np.array(rng.uniform(0.5, 1.0), np.float32)}


METHODS = (TinyMean, TinyUnweighted, TinyMix)


@cache
def shared_data(
    reader: str, root: Path | None, organ: str, split: Split, seed: int, answers: tuple[str, ...] | None
) -> SiteData:
    """The rows of all sites: no method here looks at them, and drawing them takes longer than a script."""
    return load_site(reader, root, organ, split, seed, answers)


@dataclass(frozen=True)
class Federation:
    """Eight sites that know each other; each script gives them folders without a past."""

    configs: dict[str, SiteConfig]
    backbone: str

    def fresh(self, folder: Path, script: "Setting") -> dict[str, SiteConfig]:
        """The script's sites, with policies for its number of colluders."""
        fewest = script.colluders + 2
        configs = {}
        for name in NAMES[: script.sites]:
            policy = replace(
                self.configs[name].policy,
                methods=(script.method,),
                require_dp=script.private,
                require_secagg=True,
                min_sites=max(3, fewest),
                min_difference=max(2, fewest),
                max_epsilon=1000.0 if script.private else None,
                require_fresh=False,
                repeats=1000,
            )
            places = {place: folder / name / place for place in ("state", "audit", "ledger")}
            configs[name] = self.configs[name].model_copy(update={**places, "policy": policy})
        return configs

    def job(self, script: "Setting") -> JobSpec:
        """The script's job."""
        spec = {
            "method": script.method,
            "options": {"rounds": ROUNDS, "answers": "closed"},
            "data": "phantom",
            "backbone": self.backbone,
            "secagg": True,
            "min_sites": max(3, script.colluders + 2),
            "committee": script.committee,
        }
        return JobSpec.from_dict(spec | ({"dp": DP} if script.private else {}))


@dataclass(frozen=True)
class Setting:
    """What the seed of a script decides first."""

    method: str
    sites: int
    colluders: int
    committee: int | None
    private: bool

    @classmethod
    def drawn(cls, rng: random.Random, mixes: bool) -> "Setting":
        """Of a mean or of a mixture."""
        sites, private = rng.randint(4, 8), rng.random() < 0.1
        method = TinyMix if mixes else TinyUnweighted if private else TinyMean
        committee = rng.choice([None, None, 4]) if sites > 4 else None
        return cls(method.name, sites, rng.randint(0, 1 if sites < 6 else 2), committee, private)


@dataclass
class Script:
    """One server of one script; `run` plays it. Subclasses know how a round's answers are aggregated."""

    seed: int
    federation: Federation
    folder: Path
    mixes: ClassVar[bool]
    log: list[str] = field(default_factory=list)
    """The moves so far, for whoever has to find out what went wrong."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.setting = Setting.drawn(self.rng, self.mixes)
        self.configs = self.federation.fresh(self.folder, self.setting)
        self.job, self.sites = self.federation.job(self.setting), tuple(sorted(self.configs))
        self.colluders = frozenset(self.rng.sample(self.sites, self.setting.colluders))
        self.plan = list(self.job.build().tasks())
        self.honesty = self.rng.choice([13, 40, 130])
        # A site that refused a signed job never takes it up again: without a signature scripts get further.
        self.signature = SUBMITTER if self.rng.random() < 0.3 else None
        self.jobs = 0
        self.begin_job()

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
        if self.setting.private:
            for name, config in self.configs.items():
                over = overspent(config, self.job)
                assert not over, f"script {self.seed}: {name} spent more than planned\n" + "\n".join(self.log)

    def exposed(self) -> list[str]:
        """Sites of whose inputs something is known."""
        raise NotImplementedError

    # Moves.

    def move(self) -> None:
        """One of them; a third are lies, and an honest move may carry a lie as well."""
        lies: list[tuple[int, Callable[[], None]]] = [
            (3, self.any_task),
            (5, self.any_aggregate),
            (3, self.restart),
            (1, self.redraw),
            (1, self.begin_job),
        ]
        moves = [(self.honesty, self.honest), *lies]
        weights = [weight for weight, _ in moves]
        chosen = self.rng.choices([each for _, each in moves], weights)[0]
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
        self.place, self.aggregated, self.group = 0, False, self.sites
        self.refused: set[str] = set()
        self.note("a new job")

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

    def aggregate(self, task: str, round: int, group: tuple[str, ...]) -> None:
        """Asks for the aggregate of a round."""
        raise NotImplementedError

    def ask_task(self, task: str, round: int, group: tuple[str, ...]) -> None:
        """One task of the plan, or none of it."""
        down = self.rng.choice([{"prompt.x": np.float32(np.ones(4))}, {"prompt.x": np.float32(np.arange(4))}])
        message = down if self.receives(task) else {}
        answers = self.server.tell(task, round, group, message)
        self.hear(answers)
        if (task, round) in self.plan and any(not answer.code for answer in answers.values()):
            self.place, self.aggregated = self.plan.index((task, round)), True
        self.note(f"{task} {round} {group}: {[answer.code or 'answered' for answer in answers.values()]}")

    def receives(self, task: str) -> bool:
        """Whether the method declares a message for a task."""
        return task != "start" and not self.mixes

    def restart(self) -> None:
        """Some sites die and come back."""
        group = self.some_sites()
        self.server.restart(*group)
        self.note(f"restart {group}")

    def redraw(self) -> None:
        """A draw of a committee, by all or some, in any round."""
        self.draw(self.rng.choice([1, 1, 2]), self.some_sites())

    def draw(self, round: int, group: tuple[str, ...]) -> None:
        """A draw by these sites."""
        beacons, codes = draw(self.server, round, group)
        self.note(f"draw {group}: {len(beacons)} beacons, {codes}")

    def members(self, group: tuple[str, ...], round: int) -> tuple[str, ...]:
        """As the job's rule has them; if it needs a draw and there was none, the sites draw first."""
        if self.job.members_rule(self.beacon(group)).needs_draw(group):
            self.draw(round, group)
        rule = self.job.members_rule(self.beacon(group))
        if rule.needs_draw(group) or (rule.beacon and not set(group) <= set(rule.beacon.sites)):
            return group[: self.setting.committee]
        return rule.members(group, round)

    def beacon(self, group: tuple[str, ...]) -> Beacon | None:
        """What sites know of the draw: it is public."""
        saved = [StateFile(self.configs[site].state, self.server.job_id).load() for site in group]
        return next((state.beacon for state in saved if state and state.beacon), None)

    # What moves have in common.

    def lying(self, share: float) -> bool:
        """Whether a move carries a lie, which is as rare as the script is honest."""
        return self.rng.random() < share * 13 / (13 + self.honesty)

    def hear(self, answers: Mapping[str, Answer]) -> None:
        """Remembers who refuses everything until it is restarted."""
        self.refused |= {site for site, answer in answers.items() if answer.code}
        self.refused -= {site for site, answer in answers.items() if not answer.code}

    def some_sites(self) -> tuple[str, ...]:
        """All of them, or all but one or two, or any."""
        count = len(self.sites) - self.rng.choice([0, 0, 0, 1, 1, 2])
        return tuple(sorted(self.rng.sample(self.sites, max(1, count))))

    def tampering(self) -> Callable[[Letter], list[Letter]]:
        """What the server does to letters during one move."""
        kind, share = self.rng.choice(["drop", "delay", "double", "replace"]), self.rng.choice([0.02, 0.2, 1.0])
        chance = random.Random(self.rng.random())

        def deliver(letter: Letter) -> list[Letter]:
            if chance.random() >= share:
                return [letter]
            late = replace(letter, delay=chance.uniform(1, 100))
            flipped = replace(letter, content=letter.content[:-1] + bytes([letter.content[-1] ^ 1]))
            return {"drop": [], "delay": [late], "double": [letter, letter], "replace": [flipped]}[kind]

        return deliver

    def note(self, line: str) -> None:
        """What happened."""
        self.log.append(line)


def overspent(config: SiteConfig, job: JobSpec) -> bool:
    """Whether a site's ledger holds more charges of a job than the job's plan has, or any epsilon beyond it."""
    assert job.dp is not None
    planned = spent([event for task in job.build().plan() for event in task.events], job.dp.delta).epsilon
    if not config.ledger.exists():
        return False
    with closing(Ledger(config.ledger, config.name)) as ledger:
        accounts = ledger.accounts(job.dp.delta)
        return any(part.epsilon > planned + 1e-9 for account in accounts for part in account.jobs)
