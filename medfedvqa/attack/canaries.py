"""Canaries: random synthetic patients in sites' training data, and jobs with them, in which an auditor observes each
round.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from medfedvqa.core import Method, Probe, Site, State, Tensors
from medfedvqa.core.local_training import Alone
from medfedvqa.data import Examples, Pictures, Row, SiteData, Source, Split, load_site
from medfedvqa.errors import ConfigError
from medfedvqa.federation.hub import Reply, TaskAnswer, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job_budget import look_into
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import load_backbone
from privacy import DPSettings

CELLS = 16
"""The grey squares along each side of a canary's picture."""
WORDS, LETTERS = 4, 5
"""The words of a canary's question, and the letters of each."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Synthetic patients of one site. Each has one picture, one question in several equal rows, and a random answer.

    They resemble no other patient, so a model can only memorise them, and reveals them more than others. All rows of a
    canary have the same gradient, so an audit catches a mechanism that bounds rows instead of patients.
    """

    examples: Examples
    """Patients and pictures are numbered from 0, row by row in order of the patients."""
    pictures: Pictures
    inserted: torch.Tensor
    """Whether each canary is in training, independently with probability 1/2, bool [patients]."""

    def __len__(self) -> int:
        return len(self.inserted)

    def rows(self, patient: int) -> torch.Tensor:
        """The places of a patient's rows in `examples`, int64 [rows]."""
        return torch.where(self.examples.patients == patient)[0]


def draw(count: int, rows: int, answers: int, seed: tuple[int, str]) -> Canaries:
    """Draws `count` patients of `rows` rows each, with answers from an answer space of this size.

    `seed`: a number and the name of the site. Raises `ConfigError` for fewer than two patients, or no rows.
    """
    if count < 2 or rows < 1:
        raise ConfigError("an audit needs at least 2 canaries at each site, of at least 1 row each")
    number, name = seed
    generator = np.random.default_rng([number, *name.encode(), count, rows])
    patients = np.repeat(np.arange(count), rows)
    letters = generator.integers(ord("a"), ord("z") + 1, (count, WORDS, LETTERS)).astype(np.uint8)
    questions = [" ".join(word.tobytes().decode() for word in question) for question in letters]
    examples = Examples(
        questions=tuple(questions[patient] for patient in patients),
        answers=torch.from_numpy(generator.integers(0, answers, count)[patients]),
        pictures=torch.from_numpy(patients),
        patients=torch.from_numpy(patients),
    )
    seeds = generator.integers(2**31, size=count).tolist()
    shown = (
        Row(index, name, "train", True, "", "-", f"canary-{index}", Path(str(picture)))
        for index, picture in enumerate(seeds)
    )
    pictures = Pictures(Source(row, _pattern, _pattern) for row in shown)
    return Canaries(examples, pictures, torch.from_numpy(generator.random(count) < 0.5))


def _pattern(row: Row, size: int) -> torch.Tensor:
    """The picture of a canary. The row's image name is its seed."""
    cells = torch.rand(1, 1, CELLS, CELLS, generator=torch.Generator().manual_seed(int(row.image.name)))
    return F.interpolate(cells, size=(size, size))[0]


def with_canaries(data: SiteData, canaries: Canaries, present: torch.Tensor) -> SiteData:
    """A site's data with the training rows of the `present` canaries, bool [patients].

    Pictures, answer space, validation and test rows do not depend on which canaries are present.
    """
    more = canaries.examples.chosen(torch.where(present[canaries.examples.patients])[0])
    train = Examples(
        questions=data.train.questions + more.questions,
        answers=torch.cat([data.train.answers, more.answers]),
        pictures=torch.cat([data.train.pictures, more.pictures + len(data.pictures)]),
        patients=torch.cat([data.train.patients, more.patients + len(data.patients)]),
    )
    keys = tuple(f"canary-{patient}" for patient in range(len(canaries)))
    inserted = {keys[patient] for patient in torch.where(present)[0].tolist()}
    return replace(
        data,
        train=train,
        pictures=Pictures.joined([data.pictures, canaries.pictures]),
        trained_patients=data.trained_patients | inserted,
        patients=data.patients + keys,
    )


def with_all_canaries(data: SiteData, canaries: Canaries) -> tuple[SiteData, Examples]:
    """For the auditor: a site's data with all canaries, and the canaries' rows with their row numbers in it."""
    data_with_all = with_canaries(data, canaries, torch.ones(len(canaries), dtype=torch.bool))
    last = torch.arange(len(data.train), len(data_with_all.train))
    return data_with_all, data_with_all.train.chosen(last)


@dataclass(frozen=True)
class TaskObservation:
    """One task of training at one site."""

    before: State
    """The site's state before the task."""
    received: Tensors
    after: State
    released: Tensors
    """The tensors that left the site."""


@dataclass(frozen=True)
class SiteObservation:
    """An auditor's observations of one site in a finished job."""

    method: Method[Any]
    site: Site
    """The site, with all canaries among its training rows."""
    base: Examples
    """The other patients' training rows with answers in the model's answer space."""
    canaries: Canaries
    rows: Examples
    """The rows of all canaries, with the picture numbers of `site`."""
    claimed: float | None
    """The worst-off patient's epsilon in the site's ledger; None without differential privacy."""
    tasks: list[TaskObservation] = field(default_factory=list)

    def probe(self, task: TaskObservation) -> Probe:
        """The site's model before a task."""
        return self.method.probe(self.site, task.before, task.received)


def observe(
    launch: Launch, canaries: Mapping[str, Canaries], watch: Callable[[TaskAnswer], None] = lambda event: None
) -> dict[str, SiteObservation]:
    """Runs a job to its end with these canaries at each site. Raises `ConfigError`, and as `serve_job` does."""
    job, method = launch.job, launch.job.build()
    if job.secagg:
        raise ConfigError("secure aggregation hides single uploads: attack the same job without it")
    data = {site: data_of(launch, site) for site in launch.sites}

    def load_with_canaries(
        reader: str, root: Path | None, organ: str, split: Split, seed: int, answers: tuple[str, ...] | None
    ) -> SiteData:
        return with_canaries(data[organ], canaries[organ], canaries[organ].inserted)

    configs = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}
    backbone = load_backbone(job.backbone, launch.backbone_files or {})
    observations: dict[str, list[TaskObservation]] = {site: [] for site in launch.sites}
    sites, rows = {}, {}
    for name in launch.sites:
        with_all, rows[name] = with_all_canaries(data[name], canaries[name])
        sites[name] = Site(name, with_all, backbone, "cpu", job.seed)
    states = {name: method.setup(site) for name, site in sites.items()}
    with closing(LocalEngine(configs, job, launch.out.name, load_data=load_with_canaries)) as engine:

        def call_and_record(call: TaskCall) -> dict[str, Reply]:
            replies = engine.call(call)
            for name, reply in replies.items():
                saved = StateFile(configs[name].state, launch.out.name).load()
                if saved is None:
                    raise ConfigError("a site saved no state for the attack to read: run the job without --secagg")
                if call.task != "evaluate":
                    observations[name].append(
                        TaskObservation(states[name], call.messages[name], saved.state, reply.tensors)
                    )
                states[name] = saved.state
            return replies

        serve_job(job, launch.sites, call_and_record, launch.out, "local", watch)
    return {
        name: SiteObservation(
            method,
            site,
            data[name].train.answered,
            canaries[name],
            rows[name],
            _claimed(configs[name], launch.out.name, job.dp),
            observations[name],
        )
        for name, site in sites.items()
    }


def data_of(launch: Launch, site: str) -> SiteData:
    """A site's data, with the job's list of answers if it has one.

    Canaries' answers are drawn from that list, so that all inserted canaries are trained with.
    """
    job, method = launch.job, launch.job.build()
    answers = method.answers if isinstance(method, Alone) else None
    return load_site(job.data, launch.root, site, job.split, job.seed, answers)


def _claimed(config: SiteConfig, job: str, dp: DPSettings | None) -> float | None:
    """The epsilon of this job in the site's ledger, which may also hold other jobs and other sites of a store."""
    if dp is None:
        return None
    with closing(look_into(config)) as ledger:
        accounts = ledger.accounts(dp.delta)
    jobs = (each for account in accounts for each in account.jobs)
    return max(each.epsilon for each in jobs if (each.site, each.job) == (config.name, job))
