"""A site's record of a finished run: its settings, the job, and the state with the model."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from audits import AuditKey, AuditLog, Tensors, origin_of
from audits.bounded_files import MAX_DOCUMENT, read_bounded
from medfedvqa.core import Site, State
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.scores import RIGHT, SCORED, scored
from medfedvqa.data import Examples, SiteData, load_site
from medfedvqa.devices import resolved
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.patient_intervals import AGE, LEAST, SCHEMA, UNKNOWN, WHOLE, Labels, figures_of, groups_of
from medfedvqa.evaluation.results import RESULTS
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_state import StateFile
from medfedvqa.ingest.store import PICTURES, read_store
from medfedvqa.models import load_backbone
from medfedvqa.near_miss import check_name
from medfedvqa.plugins import allow
from medfedvqa.training import CLIPPED

YAML = (".yml", ".yaml")


@dataclass(frozen=True)
class KeptRun:
    """A finished run at one of its sites."""

    config: SiteConfig
    job: JobSpec
    job_id: str
    results: Mapping[str, Any] = field(repr=False)
    """The run's results file."""
    state: State = field(repr=False)
    reply: Tensors = field(default_factory=dict, repr=False)
    """The site's answer to the run's last task."""

    def own_data(self) -> SiteData:
        """The site's rows, split as in the job."""
        source = self.config.data
        answers = self.job.build().answers_of(source.answers)
        return load_site(source.reader, source.root, source.organ, self.job.split, self.job.seed, answers)

    def site(self, data: SiteData) -> Site:
        """The site with its backbone, and these rows."""
        device = resolved(self.config.device)
        backbone = load_backbone(self.job.backbone, self.config.backbones, device)
        return Site(self.config.name, data, backbone, device, self.job.seed)

    def open_log(self) -> AuditLog:
        """The site's audit log, to append to. Raises `LogError`."""
        key = AuditKey.at(self.config.audit_key, origin_of(self.config.name))
        return AuditLog(self.config.audit, self.config.name, key)


def load_kept(run: Path, site: str, job_id: str | None = None) -> KeptRun:
    """A run at a site. `site`: its name in the run's folder, or the path of a `site.yml`.

    `job_id`: which job's state, where the site keeps several. Raises `ConfigError` or `FederationError`.
    """
    try:
        results = json.loads(read_bounded(run / RESULTS, MAX_DOCUMENT))
        fields = ("method", "options", "split", "seed", "secagg")
        settings = {name: results[name] for name in fields} | {"backbone": results["backbone"]["name"]}
        sites = tuple(results["sites"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(f"the folder of --run holds no {RESULTS}: name the folder of a finished run") from None
    if not site.endswith(YAML):
        check_name("site", site, sites, f"the run's sites are {', '.join(sites)}", " in this run")
    config = read_config(Path(site) if site.endswith(YAML) else run / "sites" / site / "site.yml")
    job, kept = JobSpec.from_dict(settings), _job_kept(config.state, job_id)
    saved = StateFile(config.state, kept).load()
    if saved is None:
        raise ConfigError("the site's state is gone: name a run whose sites still have theirs")
    return KeptRun(config, job, kept, results, saved.state, saved.reply)


def read_config(path: Path) -> SiteConfig:
    """The settings of a site. Its plug-ins become allowed in this process."""
    config = load_site_config(path, path.resolve().parent.name)
    allow(config.plugins)
    return config


def _job_kept(state: Path, wanted: str | None) -> str:
    """The identifier of the job whose state the site keeps. Raises `ConfigError` unless it is clear which."""
    jobs = sorted(path.stem for path in state.glob("*.pt"))
    if wanted is not None:
        if wanted not in jobs:
            raise ConfigError("the site keeps no state of the job that --job names")
        return wanted
    if len(jobs) != 1:
        raise ConfigError(f"the site keeps the state of {len(jobs)} jobs: name one by --job, as its log names it")
    return jobs[0]


# The cost of privacy by groups of patients: accuracies and clipped gradients of a finished run at a site.
#
# Everything is computed at the site, from its own rows and its kept state of the run. The figures have no noise, so no
# epsilon covers them: they are for the site's own staff.

YEARS = {"D": 365, "W": 52, "M": 12, "Y": 1}
"""The number of each unit of an age in a year."""
SEXES = {"M": "male", "F": "female", "O": "other"}
STAYS = (
    "No noise is on these figures and no epsilon covers them: they stay at the site. Only its own choice, `medfedvqa "
    "privacy report --groups`, shares the accuracies; how often gradients were clipped is in no report."
)
SMALL = (
    f"Groups of fewer than {LEAST} patients are joined with others, and what gives one group only is left out. Groups "
    "of few patients have wide intervals: where these overlap, chance may be the difference."
)
NO_STORE = "Sex and age are not known: they are in a store that was ingested with `--retain characteristics`."


def by_group(kept: KeptRun, without: KeptRun | None) -> dict[str, Any]:
    """The figures of a run at a site, next to those of the same job without privacy.

    Raises `ConfigError` if a run was not evaluated, or on other rows than the site has now; `DataError`.
    """
    data, models = _tested(kept)
    other = _tested(without) if without else None
    if without and other:
        if kept.results["dp"] is None or without.results["dp"] is not None:
            raise ConfigError("the run must have differential privacy, and --baseline be of the same job without it")
        if _asked(data) != _asked(other[0]):
            raise ConfigError("--baseline was tested on other rows: give the same job, split and seed, without privacy")
    labels = _labels(kept, data, data.test)
    figures = [
        {"model": model} | figures_of(group, data.test.patients, right, other[1].get(model) if other else None)
        for group in groups_of(labels)
        for model, right in models.items()
    ]
    unknown = [] if {"sex", AGE} & labels.keys() else [NO_STORE]
    return {
        "schema": SCHEMA,
        "site": kept.config.name,
        "job": kept.job_id,
        "private": kept.results["dp"] is not None,
        "baseline": without.job_id if without else None,
        "groups": figures,
        "clipped": [*_clipped(kept, data)],
        "notes": [SMALL, *unknown, STAYS],
    }


def _tested(kept: KeptRun) -> tuple[SiteData, dict[str, torch.Tensor]]:
    """The site's rows, and whether the released and the kept model answer each test row right, bool [rows]."""
    state = kept.state
    if RIGHT not in state:
        raise ConfigError("the site kept no tested model of this job: name a run that reached its evaluation")
    data = kept.own_data()
    right = {"released": state[RIGHT], **({"kept": state[KEPT][RIGHT][state[KEPT]["model"]]} if KEPT in state else {})}
    _, now = scored(state, data, state[RIGHT])
    if any(int(now[name]) != int(kept.reply.get(name, -1)) for name in SCORED):
        raise ConfigError("the site's rows have changed since this job: train it again, or name a later run")
    return data, right


def _asked(data: SiteData) -> tuple[Any, ...]:
    """The questions and patients of the test rows, equal if two runs were tested on the same rows."""
    return data.test.questions, [data.patients[number] for number in data.test.patients.tolist()]


def _labels(kept: KeptRun, data: SiteData, examples: Examples) -> Labels:
    """The labels of all patients with one of these rows: of organ, modality, sex and age, as far as they are known."""
    numbers = {*examples.patients.tolist()}
    labels: dict[str, dict[int, str | int]] = {WHOLE: dict.fromkeys(numbers, data.organ)}
    if any(examples.modalities):
        first = dict(zip(reversed(examples.patients.tolist()), reversed(examples.modalities), strict=True))
        labels["modality"] = {number: first[number] or "unknown" for number in numbers}
    source = kept.config.data
    if source.reader == "store" and source.root is not None:
        known = _sex_and_decade(source.root, {data.patients[number] for number in numbers})
        facts = {number: known[data.patients[number]] for number in numbers}
        if any(sex for sex, _ in facts.values()):
            labels["sex"] = {number: SEXES.get(sex, "unknown") for number, (sex, _) in facts.items()}
        if any(decade is not None for _, decade in facts.values()):
            labels[AGE] = {number: UNKNOWN if age is None else age for number, (_, age) in facts.items()}
    return labels


def _sex_and_decade(root: Path, patients: Collection[str]) -> dict[str, tuple[str, int | None]]:
    """The sex of each of these patients, empty if unknown, and the first year of the age's decade, None if unknown.

    Both come from the patient's first picture, if the store was ingested with `--retain characteristics`. Ages above
    89 are stored as 90. Raises `DataError`.
    """
    from pydicom import dcmread

    _, images, _ = read_store(root)
    first = {image.patient: image.id for image in reversed(images.values()) if image.patient in patients}
    facts: dict[str, tuple[str, int | None]] = {}
    for patient, name in first.items():
        header = dcmread(root / PICTURES / f"{name}.dcm", specific_tags=["PatientSex", "PatientAge"])
        age = str(header.get("PatientAge") or "")
        decade = int(age[:-1]) // YEARS[age[-1]] // 10 * 10 if age else None
        facts[patient] = str(header.get("PatientSex") or ""), decade
    return facts


def _clipped(kept: KeptRun, data: SiteData) -> Iterator[Mapping[str, Any]]:
    """For each group of training patients, the share of their gradients that were clipped."""
    if CLIPPED not in kept.state:
        return
    for group in groups_of(_labels(kept, data, data.train)):
        drawn, clipped = kept.state[CLIPPED][sorted(group.patients)].sum(dim=0).tolist()
        facts = {"by": group.by, "group": group.name, "patients": len(group.patients)}
        yield {**facts, "gradients": drawn, "clipped": clipped / drawn if drawn else None}
