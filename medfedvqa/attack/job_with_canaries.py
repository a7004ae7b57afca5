"""Runs a job with canaries in its sites' training data, and records an auditor's observations in each round."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medfedvqa.attack.canaries import Canaries, with_all_canaries, with_canaries
from medfedvqa.core import Method, Probe, Site, State, Tensors
from medfedvqa.core.local_training import Alone
from medfedvqa.data import Examples, SiteData, Split, load_site
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
        raise ConfigError("with secure aggregation nobody sees a single upload: attack the same job without it")
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
                    raise ConfigError("a site answered and kept no state: run the job without --secagg")
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
