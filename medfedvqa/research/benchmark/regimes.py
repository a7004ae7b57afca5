"""Regimes: how a study divides the rows of a data set among sites. Patients stay whole, and test rows complete.

Which patients a site keeps or gets depends on a digest of each patient's key alone, the same for all systems and seeds.

In a regime of joining, each hospital in turn has few labelled patients, and the others have already trained a model.

The hospital receives their model through the job that `medfedvqa join` makes, tests it, trains it further, and keeps
the best. Two references: the same model trained alone on these patients, and one trained on the rows of all hospitals.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from medfedvqa.core.averaging import Averaging
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.local_training import Alone
from medfedvqa.core.scores import RIGHT
from medfedvqa.data import Examples, SiteData
from medfedvqa.data.site_cuts import by_digest, hospitals, organ_of, rows_of
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.shared_model import MODEL, SharedModel
from medfedvqa.research.benchmark.results_file import ALL_ROWS, RunOutcome
from medfedvqa.research.benchmark.single_run import Machine, centralised, federated

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
        return {site: tested_only(data) if site in self.unseen else data for site, data in sites.items()}


def tested_only(data: SiteData) -> SiteData:
    """The site with its test rows alone."""
    return replace(data, train=rows_of(data.train, ()), validate=rows_of(data.validate, ()))


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
