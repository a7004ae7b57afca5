"""The empirical audit of a job: runs it with canaries, attacks it, and compares the result with its ledger's claim.

Membership inference by patient: a score for each canary, larger if it seems to be in the training data.

`loss`: the decrease of the loss on a patient's rows by training (Yeom et al., 2018).
`update`: the amount of a patient's gradient in the change by training, round by round (Nasr et al., 2023, in the space
of gradients). Updates are decoded for all canaries together, since their gradients overlap.
The attacker knows everything except which canaries are inserted: the canaries, the other patients, the values before
each round, and for the shared artefact also the answer head, which never leaves. Differential privacy assumes such an
attacker, who knows more than a server.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from audits.epsilon_lower_bound import (
    EmpiricalError,
    Guesses,
    epsilon_lower_bound,
    guess,
    log_odds,
    p_value,
    rate_interval,
    rate_p_value,
)
from medfedvqa.core import Method, Probe, Site, State, Tensors
from medfedvqa.core.local_training import Alone
from medfedvqa.core.method import tensors_of
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
from medfedvqa.version import code_version
from privacy import DPSettings

# Canaries: random synthetic patients in sites' training data, and jobs with them, in which an auditor observes each
# round.

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


Scores = dict[tuple[str, str], torch.Tensor]
"""The scores of each artefact and attack, [canaries]."""
Values = Mapping[str, torch.Tensor]

PERSONAL, SHARED = "personal", "shared"
LOSS, UPDATE = "loss", "update"
MIN_RIDGE, MAX_RIDGE = 1e-2, 1e3
"""Bounds of the ridge, which is added to the Gram matrix of unit gradients. At the lower bound, nearly equal directions
count as one; at the upper, the result is each direction's inner product with the update."""
INDEPENDENT, TINY = 1e-6, 1e-30


def membership(observation: SiteObservation) -> Scores:
    """The scores of all attacks on one site; the shared artefact has scores only if the site shares what it trains."""
    return {**_by_loss(observation), **_by_update(observation)}


@torch.no_grad()
def _by_loss(observation: SiteObservation) -> Scores:
    first, last = observation.tasks[0], observation.tasks[-1]
    began, ended = observation.probe(first), observation.probe(last)
    trained = observation.method.trained(last.after)
    start = _summed(began, began.values, observation)
    scores = {(PERSONAL, LOSS): start - _summed(ended, trained, observation)}
    if released := released_values(last.released, began.values):
        scores[SHARED, LOSS] = start - _summed(ended, {**began.values, **released}, observation)
    return scores


def _summed(probe: Probe, values: Values, observation: SiteObservation) -> torch.Tensor:
    """The summed loss of each canary's rows, [canaries]."""
    losses = probe.losses(values, observation.rows)
    return losses.new_zeros(len(observation.canaries)).index_add_(0, observation.canaries.examples.patients, losses)


def _by_update(observation: SiteObservation) -> Scores:
    scores: Scores = {}
    others: torch.Tensor = torch.unique(observation.base.patients)
    patients = [
        *(observation.rows.chosen(observation.canaries.rows(patient)) for patient in range(len(observation.canaries))),
        *(observation.base.chosen(torch.where(observation.base.patients == patient)[0]) for patient in others),
    ]
    for task in observation.tasks:
        probe = observation.probe(task)
        values = differentiable(probe)
        gradients = [gradient(probe, values, rows) for rows in patients]
        ends = {PERSONAL: observation.method.trained(task.after), SHARED: released_values(task.released, values)}
        for artefact, end in ends.items():
            if names := [name for name in values if name in end]:
                update = flat({name: values[name].detach() - end[name] for name in names}, names)
                shares = decode(update, torch.stack([flat(gradient, names) for gradient in gradients]))
                shares = shares[: len(observation.canaries)]
                total = scores.get((artefact, UPDATE), torch.zeros_like(shares))
                scores[artefact, UPDATE] = total + shares / shares.std().clamp(min=TINY)
    return scores


def decode(update: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """The coefficient of each direction, [n, parameters], in the update, [parameters], by ridge regression, [n].

    The ridge is the ratio of noise to signal, both estimated by moments: the part of the update outside of all
    directions is noise, and the part within them is noise and signal.
    """
    units = directions.double() / directions.double().norm(dim=1, keepdim=True).clamp(min=TINY)
    along = units @ update.double()
    scale, basis = torch.linalg.eigh(units @ units.T)
    independent = scale > INDEPENDENT
    within = (basis.T @ along)[independent].square() / scale[independent]
    outside = max(1, update.numel() - int(independent.sum()))
    noise = (update.double().square().sum() - within.sum()).clamp(min=0) / outside
    signal = ((within.sum() - independent.sum() * noise) / scale[independent].sum()).clamp(min=TINY)
    ridge = (noise / signal).clamp(MIN_RIDGE, MAX_RIDGE)
    shares: torch.Tensor = basis @ ((basis.T @ along) / (scale.clamp(min=0) + ridge))
    return shares


def differentiable(probe: Probe) -> dict[str, torch.Tensor]:
    """The probe's values as leaves that require gradients."""
    return {name: value.detach().requires_grad_() for name, value in probe.values.items()}


def gradient(probe: Probe, values: dict[str, torch.Tensor], rows: Examples) -> dict[str, torch.Tensor]:
    """The gradient of the summed loss of these rows, by name."""
    gradients = torch.autograd.grad(probe.losses(values, rows).sum(), list(values.values()), materialize_grads=True)
    return dict(zip(values, gradients, strict=True))


def released_values(released: Tensors, values: Values) -> dict[str, torch.Tensor]:
    """The values that the site both trains and releases."""
    return {name: tensor for name, tensor in tensors_of(released).items() if name in values}


def flat(tensors: Values, names: list[str]) -> torch.Tensor:
    """The tensors of these names as one vector, [parameters]."""
    return torch.cat([tensors[name].flatten() for name in names])


# Inversion of a release: infers a patient's answer from a site's upload after its first round.
#
# The attacker is the server. It knows the initial values of training (the job's seed draws prompts and heads), the
# number of answers, and also the patient's picture and question, which is more than a server knows. It computes the
# question's gradient under every possible answer, and infers the answer with the gradient closest to the release (label
# inference after Zhao et al., "iDLG", 2020, by search). Canaries' answers are drawn uniformly, so that a higher rate
# than one over the number of answers comes from the release.


@dataclass(frozen=True)
class InversionCount:
    """The number of answers that the attacker infers, and of those that are right."""

    patients: int = 0
    right: int = 0
    by_chance: float = 0.0
    """The expected number of right answers without the release."""

    def __add__(self, other: "InversionCount") -> "InversionCount":
        return InversionCount(
            self.patients + other.patients, self.right + other.right, self.by_chance + other.by_chance
        )


def invert(observation: SiteObservation) -> InversionCount:
    """Infers the answers of inserted canaries from the site's first release; none if the site shares nothing."""
    task = observation.tasks[0]
    probe = observation.probe(task)
    values = differentiable(probe)
    released = released_values(task.released, values)
    if not released:
        return InversionCount()
    names = list(released)
    update = flat({name: values[name].detach() - released[name] for name in names}, names)
    answers = len(observation.site.data.answers)
    patients = torch.where(observation.canaries.inserted)[0].tolist()
    right = 0
    for patient in patients:
        row = observation.rows.chosen(observation.canaries.rows(patient)[:1])
        scores = []
        for answer in range(answers):
            direction = flat(gradient(probe, values, replace(row, answers=torch.tensor([answer]))), names)
            scores.append(float(direction @ update / direction.norm().clamp(min=1e-30)))
        right += max(range(answers), key=scores.__getitem__) == int(row.answers)
    return InversionCount(len(patients), right, len(patients) / answers)


SCHEMA = "medfedvqa.empirical-audit/1"
FILE = "attack.json"


@dataclass(frozen=True)
class AuditPlan:
    """The settings of an audit, which are fixed before anything is trained."""

    canaries: int = 64
    """The number of canaries at each site, in each run."""
    rows: int = 8
    """The rows of each canary. A step takes at most the job's `patient_rows` of them."""
    share: float = 0.5
    """The share of the canaries that the attacker guesses about."""
    confidence: float = 0.95
    """The confidence of all bounds together."""
    seeds: tuple[int, ...] = (0,)
    """The seeds of the runs."""

    def __post_init__(self) -> None:
        if not self.seeds or not 0 < self.confidence < 1 or int(self.share * self.canaries / 2) < 1:
            raise EmpiricalError("an audit needs a run, a confidence between 0 and 1, and canaries to guess about")


def audit(
    launch_of: Callable[[int], Launch], plan: AuditPlan, watch: Callable[[TaskAnswer], None] = lambda event: None
) -> dict[str, Any]:
    """Runs the job once for each seed, attacks it, and returns the findings that `docs/empirical-audit.md` describes.

    `launch_of` gives the launch of a seed; launches differ in seed and folder alone. Raises as `observe` does.
    """
    guesses: dict[tuple[str, str], Guesses] = {}
    inverted, claims, inserted = InversionCount(), list[float | None](), 0
    for seed in plan.seeds:
        launch = launch_of(seed)
        canaries = {site: _draw(launch, site, seed, plan) for site in launch.sites}
        for observation in observe(launch, canaries, watch).values():
            present = observation.canaries.inserted.tolist()
            inserted += sum(present)
            claims.append(observation.claimed)
            inverted += invert(observation)
            for key, scores in membership(observation).items():
                counts = guess(scores.tolist(), present, plan.share)
                guesses[key] = guesses.get(key, Guesses(0, 0, 0)) + counts
    job = launch.job
    largest = max((claim for claim in claims if claim is not None), default=None)
    claimed = None if job.dp is None else {"epsilon": largest, "delta": job.dp.delta, "unit": job.dp.unit}
    delta = job.dp.delta if job.dp else 0.0
    attacks = list(_findings(guesses, plan, claimed, delta))
    return {
        "schema": SCHEMA,
        "version": code_version(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "job": {
            "method": job.method,
            "options": job.options,
            "data": job.data,
            "backbone": job.backbone,
            "split": job.split.kind,
            "dp": job.dp and asdict(job.dp),
        },
        "sites": list(launch.sites),
        "seeds": list(plan.seeds),
        "claimed": claimed,
        "confidence": plan.confidence,
        "canaries": {
            "unit": "patient",
            "rows_each": plan.rows,
            "per_site_and_run": plan.canaries,
            "total": plan.canaries * len(claims),
            "inserted": inserted,
        },
        "attacks": attacks,
        "inversion": _inversion(inverted, plan.confidence),
        "contradicted": claimed and any(attack["contradicts_claim"] for attack in attacks),
    }


def write(findings: dict[str, Any], folder: Path) -> Path:
    """Writes the findings as JSON into a folder; returns the file."""
    path = folder / FILE
    path.write_text(json.dumps(findings, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _draw(launch: Launch, site: str, seed: int, plan: AuditPlan) -> Canaries:
    return draw(plan.canaries, plan.rows, len(data_of(launch, site).answers), (seed, site))


def _findings(
    guesses: dict[tuple[str, str], Guesses], plan: AuditPlan, claimed: dict[str, Any] | None, delta: float
) -> Iterator[dict[str, Any]]:
    """The findings of each attack. The bounds together hold with the plan's confidence (Bonferroni)."""
    each = 1 - (1 - plan.confidence) / len(guesses)  # Bonferroni
    for (artefact, attack), counts in guesses.items():
        bound = epsilon_lower_bound(counts, delta, each)
        low, high = rate_interval(counts.correct, counts.guessed, each)
        yield {
            "artefact": artefact,
            "attack": attack,
            **asdict(counts),
            "accuracy": counts.correct / counts.guessed,
            "accuracy_interval": [low, high],
            "epsilon_lower_bound": bound,
            "epsilon_of_accuracy_interval": [log_odds(low), log_odds(high) if high < 1 else None],
            "most_provable": epsilon_lower_bound(Guesses(counts.canaries, counts.guessed, counts.guessed), delta, each),
            "p_value_of_claim": claimed and p_value(counts, claimed["epsilon"], delta),
            "contradicts_claim": claimed and bound > claimed["epsilon"],
        }


def _inversion(count: InversionCount, confidence: float) -> dict[str, Any] | None:
    """The share of answers that the attacker infers, compared with the share by chance.

    If sites differ in their number of answers, their mean chance is used, which makes the p-value conservative
    (Hoeffding, 1956).
    """
    if not count.patients:
        return None
    chance = count.by_chance / count.patients
    return {
        "artefact": "shared",
        "target": "answers",
        "patients": count.patients,
        "right": count.right,
        "rate": count.right / count.patients,
        "rate_interval": list(rate_interval(count.right, count.patients, confidence)),
        "random_guess": chance,
        "p_value_of_random_guess": rate_p_value(count.right, count.patients, chance),
    }
