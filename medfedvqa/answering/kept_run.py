"""A site's record of a finished run: its settings, the job, and the state with the model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audits import AuditKey, AuditLog, Tensors, origin_of
from audits.bounded_files import MAX_DOCUMENT, read_bounded
from medfedvqa.core import Site, State
from medfedvqa.data import SiteData, load_site
from medfedvqa.devices import resolved
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.results import RESULTS
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import load_backbone
from medfedvqa.near_miss import check_name
from medfedvqa.plugins import allow

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
