"""One run of a benchmark: a job at its sites, in this process, or the same model trained on the rows of all sites."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from medfedvqa.core import Method, Site, State
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.local_training import Alone
from medfedvqa.core.scores import RIGHT, VALIDATED
from medfedvqa.data import Examples, SiteData, Split, united
from medfedvqa.data.site_cuts import by_digest, hospitals, organ_of, rows_of
from medfedvqa.devices import CPU
from medfedvqa.errors import ConfigError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import check_sites, serve_job
from medfedvqa.federation.shared_model import MODEL, SharedModel
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import Backbone, FeatureStore, load_backbone
from medfedvqa.research.benchmark.results_file import ALL_ROWS, RunOutcome, numbered_patients


@dataclass(frozen=True)
class Machine:
    """The resources of this machine that a run uses."""

    device: str = CPU
    """The device on which all sites train."""
    store: FeatureStore | None = None
    """The folder that keeps the frozen backbone's outputs for other runs; None keeps none."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """This machine's files and folders of backbones, by name."""

    def backbone(self, job: JobSpec) -> Backbone:
        """The job's backbone on the device. Raises `BackboneError`."""
        return load_backbone(job.backbone, self.files, self.device).storing(self.store)


UNION = "all sites"
"""The name of the site that has the rows of all sites, for centralised training."""


def federated(
    job: JobSpec,
    root: Path | None,
    folder: Path,
    data: Mapping[str, SiteData],
    machine: Machine = Machine(),
) -> tuple[RunOutcome, dict[str, State]]:
    """Runs the job at sites with these data. Returns the outcome, and each site's state at the end.

    `root` is the folder of the data set. Files of the run go into `folder`, which does not exist yet.
    """
    launch = Launch(job, root, folder, tuple(data), backbone_files=machine.files, device=machine.device)
    sites = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}

    def load(
        _reader: str, _root: Path | None, site: str, _split: Split, _seed: int, _answers: tuple[str, ...] | None
    ) -> SiteData:
        return data[site]

    began = time.process_time()
    with closing(LocalEngine(sites, job, "benchmark", load_data=load, store=machine.store)) as engine:
        results = serve_job(job, launch.sites, engine.call, folder, "local")
    seconds = time.process_time() - began
    states = {}
    for site in launch.sites:
        saved = StateFile(launch.out / "sites" / site / "state", "benchmark").load()
        states[site] = saved.state if saved else {}
    return _outcome(job, data, results, states, seconds, machine), states


def centralised(job: JobSpec, folder: Path, data: Mapping[str, SiteData], machine: Machine = Machine()) -> RunOutcome:
    """Trains the job on the rows of all sites together, and tests it on each site's own rows.

    A method that cannot train alone, such as a split model, runs as a federation whose one site has all rows; its files
    go into `folder`. Raises `ConfigError` if it needs more sites, and `DataError` if no training row has a listed
    answer.
    """
    method = job.build()
    if not isinstance(method, Alone):
        return _at_one_site(job, folder, data, machine)
    everywhere = Site(UNION, united(list(data.values())), machine.backbone(job), machine.device, job.seed)
    method.check_kind(everywhere)
    method.check_rows(everywhere.data)
    began = time.process_time()
    state = method.trained_alone(everywhere, method.config.rounds)
    state, _ = method.evaluate(everywhere, state, {}, method.config.rounds)
    seconds = (time.process_time() - began) / method.config.rounds
    right = state[RIGHT].split([len(each.test) for each in data.values()])
    return RunOutcome(
        right={site: rows.tolist() for site, rows in zip(data, right, strict=True)},
        validated={UNION: state[VALIDATED].tolist()},
        patients=patients_of(data),
        closed=closed_of(data),
        types=types_of(job, data),
        bytes_up=0.0,
        bytes_down=0.0,
        seconds=seconds,
        parameters=sum(value.numel() for value in method.trained(state).values()),
    )


def _at_one_site(job: JobSpec, folder: Path, data: Mapping[str, SiteData], machine: Machine) -> RunOutcome:
    check_sites(job, 1)
    everywhere = united(list(data.values()))
    outcome, _ = federated(job, None, folder, {everywhere.organ: everywhere}, machine)
    rows = iter(outcome.right[everywhere.organ])
    return replace(
        outcome,
        right={site: list(islice(rows, len(each.test))) for site, each in data.items()},
        validated=dict(zip([UNION], outcome.validated.values(), strict=False)),
        patients=patients_of(data),
        closed=closed_of(data),
        types=types_of(job, data),
        personal={},
        bytes_up=0.0,
        bytes_down=0.0,
    )


def _outcome(
    job: JobSpec,
    data: Mapping[str, SiteData],
    results: Mapping[str, Any],
    states: Mapping[str, State],
    seconds: float,
    machine: Machine,
) -> RunOutcome:
    method, rounds = job.build(), len(results["rounds"])
    traffic = [results["sites"][site]["bytes"] for site in states]
    trained = method.trained(next(iter(states.values())))
    return RunOutcome(
        right={site: state[RIGHT].tolist() for site, state in states.items()},
        validated={site: state[VALIDATED].tolist() for site, state in states.items() if VALIDATED in state},
        patients=patients_of(data),
        bytes_up=sum(each["up"] for each in traffic) / len(traffic) / rounds,
        bytes_down=sum(each["down"] for each in traffic) / len(traffic) / rounds,
        seconds=seconds / rounds,
        parameters=sum(value.numel() for value in trained.values()),
        personal=_personal(job, method, states, data, machine),
        closed=closed_of(data),
        types=types_of(job, data),
        server=_server(results["server_model"]),
    )


def _server(tested: Mapping[str, Any] | None) -> dict[str, Any]:
    """The counts of the server's model, see `RunOutcome.server`."""
    if tested is None:
        return {}
    found = {way: tested[way]["found"] for way in ("image_to_text", "text_to_image")}
    return {"questions": tested["n"], **{name: tested[name] for name in ("correct", "pictures", "captions")}, **found}


def _personal(
    job: JobSpec, method: Method[Any], states: Mapping[str, State], data: Mapping[str, SiteData], machine: Machine
) -> dict[str, list[bool]]:
    """The test rows that each site's kept model answers right, or its model before the last mean, if it has either.

    A site that never trains has the last mean in both places.
    """
    if all(KEPT in state for state in states.values()):
        return {name: state[KEPT][RIGHT][state[KEPT]["model"]].tolist() for name, state in states.items()}
    if not isinstance(method, Averaging) or not method.shares or not method.has_personal_models:
        return {}
    personal = type(method)(method.config.model_copy(update={"evaluated": "personal"}), secagg=job.secagg)
    backbone, right = machine.backbone(job), {}
    for name, state in states.items():
        if name in method.config.unseen:
            right[name] = state[RIGHT].tolist()
            continue
        site = Site(name, data[name], backbone, machine.device, job.seed)
        right[name] = personal.answered(site, state, {}, site.data.test).tolist()
    return right


def patients_of(data: Mapping[str, SiteData]) -> dict[str, list[int]]:
    """The patient of each test row by site, see `RunOutcome.patients`."""
    return {site: numbered_patients(each.test.patients.tolist()) for site, each in data.items()}


def closed_of(data: Mapping[str, SiteData]) -> dict[str, list[bool]]:
    """Whether the question of each test row is closed by site, see `RunOutcome.closed`."""
    kinds = {site: each.test.are_closed.tolist() for site, each in data.items()}
    return {site: each for site, each in kinds.items() if not all(each)}


def types_of(job: JobSpec, data: Mapping[str, SiteData]) -> dict[str, str]:
    """The letters of the types of the test rows' answers by site, see `RunOutcome.types`."""
    return {site: each.test.types for site, each in data.items()} if job.split.questions == "all" else {}


# Regimes: how a study divides the rows of a data set among sites. Patients stay whole, and test rows complete.
#
# Which patients a site keeps or gets depends on a digest of each patient's key alone, the same for all systems and
# seeds.
#
# In a regime of joining, each hospital in turn has few labelled patients, and the others have already trained a model.
#
# The hospital receives their model through the job that `medfedvqa join` makes, tests it, trains it further, and
# keeps the best. Two references: the same model trained alone on these patients, and one trained on the rows of all
# hospitals.

EVERY = 1_000_000
"""A number of labelled patients above that of any site: the joining site uses all of its own."""


@dataclass(frozen=True)
class Regime:
    """One division of the rows. At most one of `share`, `hospitals`, `unseen` differs from its default."""

    share: float = 1.0
    """The share of each site's training rows, in 0..1, whole patients."""
    hospitals: int = 1
    """The number of hospitals into which the patients of each organ are divided."""
    mislabelled: float = 0.0
    """The share, in 0..1, of the first site's training and validation rows among which labels are shuffled."""
    joining: int | None = None
    """The number of labelled patients with which each site in turn joins the others; None: all sites train together."""
    new_organ: bool = False
    """Whether the sites of the joining one's organ are not among the others."""
    unseen: tuple[str, ...] = ()
    """The sites that never train what is shared, and test the others' last mean."""
    cut: str = "organ"
    """The cut of the data set that makes the sites in `organs`."""

    @property
    def name(self) -> str:
        """The name in tables and results."""
        cut = "" if self.cut == "organ" else f"sites by {self.cut}"
        if self.unseen:
            return ", ".join(filter(None, (cut, f"{' and '.join(self.unseen)} unseen")))
        if self.joining is not None:
            count = "all" if self.joining >= EVERY else f"{self.joining}"
            return f"joining with {count} labelled patients{', organ new' if self.new_organ else ''}"
        if self.hospitals > 1:
            wrong = f", {100 * self.mislabelled:g} % of the first one's labels exchanged" if self.mislabelled else ""
            return f"{self.hospitals} hospitals per organ{wrong}"
        return cut or (ALL_ROWS if self.share == 1 else f"{100 * self.share:g} % of the rows")

    def sites(self, organs: Sequence[str]) -> tuple[str, ...]:
        """The names of the sites."""
        if self.hospitals == 1:
            return tuple(organs)
        return tuple(f"{organ}-{number}" for organ in organs for number in range(1, 1 + self.hospitals))

    def divided(self, organs: Mapping[str, SiteData]) -> dict[str, SiteData]:
        """Each site's data, from each organ's. `newcomer` reduces a joining site.

        Raises `ConfigError` for an organ with too few patients.
        """
        if self.hospitals == 1:
            return {organ: fewer_rows(data, self.share) for organ, data in organs.items()}
        parts = [part for data in organs.values() for part in hospitals(data, self.hospitals)]
        first, *rest = parts
        return dict(zip(self.sites(list(organs)), [mislabelled(first, self.mislabelled), *rest], strict=True))

    def others(self, joining: str, sites: Mapping[str, SiteData]) -> dict[str, SiteData]:
        """The data of the sites that train before this one joins."""
        own = self.organ(joining)
        left_out = {site for site in sites if site == joining or self.new_organ and self.organ(site) == own}
        return {site: data for site, data in sites.items() if site not in left_out}

    def organ(self, site: str) -> str:
        """The organ of a site."""
        return site.rpartition("-")[0] if self.hospitals > 1 else organ_of(site)

    def pooled(self, sites: Mapping[str, SiteData]) -> dict[str, SiteData]:
        """The data for one model of all rows: unseen sites lose their training and validation rows."""
        return {
            site: replace(data, train=rows_of(data.train, ()), validate=rows_of(data.validate, ()))
            if site in self.unseen
            else data
            for site, data in sites.items()
        }


def fewer_rows(data: SiteData, share: float) -> SiteData:
    """The site with only the first training patients by digest who together have at least this share of its rows."""
    wanted, kept, rows = share * len(data.train), list[int](), 0
    counts = torch.bincount(data.train.patients, minlength=len(data.patients)).tolist()
    for patient in by_digest(data, data.train.patients):
        if rows >= wanted:
            break
        kept.append(patient)
        rows += counts[patient]
    return replace(data, train=rows_of(data.train, kept))


def mislabelled(data: SiteData, share: float) -> SiteData:
    """The site with label noise: shuffles the answers within this share of its training and validation rows."""

    def changed(rows: Examples) -> Examples:
        drawn = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(rows), generator=drawn)[: round(share * len(rows))]
        answers = rows.answers.clone()
        answers[chosen] = answers[chosen[torch.randperm(len(chosen), generator=drawn)]]
        return replace(rows, answers=answers)

    return replace(data, train=changed(data.train), validate=changed(data.validate)) if share else data


def newcomer(data: SiteData, patients: int) -> SiteData:
    """The site with only this many labelled patients, chosen by digest; every fourth of them validates.

    With `EVERY` the site has all its rows.
    """
    if patients >= EVERY:
        return data
    trained, validating = (by_digest(data, part.patients) for part in (data.train, data.validate))
    kept = validating[: patients // 4]
    train, validate = rows_of(data.train, trained[: patients - len(kept)]), rows_of(data.validate, kept)
    labelled = {data.patients[patient] for patient in {*train.patients.tolist(), *validate.patients.tolist()}}
    return replace(data, train=train, validate=validate, trained_patients=frozenset(labelled))


def has_joiners(job: JobSpec, regime: Regime) -> bool:
    """Whether a joining hospital has a well-defined model: a complete one from the others, or one from its own rows."""
    method = job.build()
    if isinstance(method, Averaging) and method.shares:
        return bool(method.config.own == "nothing" and method.config.mixing == "none")
    return isinstance(method, Alone) and method.silent and regime.joining != 0


def joining_sites(
    job: JobSpec,
    root: Path | None,
    folder: Path,
    data: Mapping[str, SiteData],
    regime: Regime,
    union: bool,
    machine: Machine,
) -> RunOutcome:
    """The outcome at each hospital in turn as the one that joins. `union`: one model trains on the rows of all.

    `right` scores the others' model as received, `personal` the one that the hospital keeps. The others' federation is
    trained once, and kept beside `folder` for other numbers of labelled patients. Raises `ConfigError` if `has_joiners`
    is false, or no other site is left to train.
    """
    if not has_joiners(job, regime):
        raise ConfigError(f"'{job.method}' has no model that a hospital could join with: leave it out of this study")
    method, turns = job.build(), dict[str, RunOutcome]()
    for site, whole in data.items():
        small, others = newcomer(whole, regime.joining or 0), regime.others(site, data)
        if not others:
            raise ConfigError("a hospital joins others: the study needs at least two sites that may train without it")
        if union:
            turns[site] = centralised(job, folder, {**others, site: small}, machine)
        elif not isinstance(method, Averaging) or not method.shares:
            turns[site] = federated(job, root, folder / site, {site: small}, machine)[0]
        else:
            place = folder.parents[2] / "federations" / f"{job.definition[:16]}-{'-'.join(others)}"
            organs = sorted({regime.organ(other) for other in others})
            small = replace(small, organ=regime.organ(site))
            turns[site] = _joined(job, root, place, folder / site, others, {site: small}, organs, machine)
    first = next(iter(turns.values()))
    seconds = sum(turn.seconds for turn in turns.values())
    return replace(
        first,
        right={site: turn.right[site] for site, turn in turns.items()},
        patients={site: turn.patients[site] for site, turn in turns.items()},
        personal={site: turn.personal[site] for site, turn in turns.items() if turn.personal},
        closed={site: turn.closed[site] for site, turn in turns.items() if site in turn.closed},
        types={site: turn.types[site] for site, turn in turns.items() if site in turn.types},
        validated={},
        bytes_up=max(turn.bytes_up for turn in turns.values()),
        bytes_down=max(turn.bytes_down for turn in turns.values()),
        seconds=seconds,
    )


def _joined(
    job: JobSpec,
    root: Path | None,
    federation: Path,
    folder: Path,
    others: Mapping[str, SiteData],
    small: Mapping[str, SiteData],
    organs: Sequence[str],
    machine: Machine,
) -> RunOutcome:
    if not (federation / MODEL).exists():
        shutil.rmtree(federation, ignore_errors=True)  # of a process that died
        federated(job, root, federation, others, machine)
    model = SharedModel.read(federation / MODEL)
    model.write(folder / MODEL)
    outcome, states = federated(model.joining(organs), root, folder, small, machine)
    kept = {site: state[KEPT] for site, state in states.items() if KEPT in state}
    personal = {site: each[RIGHT][each["model"]].tolist() for site, each in kept.items()}
    return replace(outcome, personal=personal or outcome.right)
