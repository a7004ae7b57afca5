"""A real job with canaries in its sites' training, and what an auditor sees of it, round by round."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medfedvqa.attack.canaries import Canaries, everybody, planted
from medfedvqa.core import Method, Site, State, Tensors
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
class ObservedTask:
    """One task of training at one site."""

    before: State
    """What the site kept before it."""
    received: Tensors
    after: State
    released: Tensors
    """What left the site."""


@dataclass(frozen=True)
class Observed:
    """One site's part in a finished job."""

    method: Method[Any]
    site: Site
    """With all canaries among its training rows."""
    base: Examples
    """The training rows that are not canaries', of those whose answers the model can give."""
    canaries: Canaries
    rows: Examples
    """All canaries' rows, with the pictures' numbers of `site`."""
    claimed: float | None
    """The worst patient's epsilon in the site's ledger; None without differential privacy."""
    tasks: list[ObservedTask] = field(default_factory=list)


def observe(
    launch: Launch, canaries: Mapping[str, Canaries], watch: Callable[[TaskAnswer], None] = lambda event: None
) -> dict[str, Observed]:
    """Run a job to its end with these canaries at each site. Raises `ConfigError`, and as `serve_job` does."""
    job, method = launch.job, launch.job.build()
    if job.secagg:
        raise ConfigError("with secure aggregation no single upload is seen: attack the same job without it")
    data = {site: data_of(launch, site) for site in launch.sites}

    def load_planted(
        reader: str, root: Path | None, organ: str, split: Split, seed: int, answers: tuple[str, ...] | None
    ) -> SiteData:
        return planted(data[organ], canaries[organ], canaries[organ].inserted)

    configs = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}
    backbone = load_backbone(job.backbone, launch.backbone_files or {})
    seen: dict[str, list[ObservedTask]] = {site: [] for site in launch.sites}
    sites, rows = {}, {}
    for name in launch.sites:
        with_all, rows[name] = everybody(data[name], canaries[name])
        sites[name] = Site(name, with_all, backbone, "cpu", job.seed)
    states = {name: method.setup(site) for name, site in sites.items()}
    with closing(LocalEngine(configs, job, launch.out.name, load_data=load_planted)) as engine:

        def observed(call: TaskCall) -> dict[str, Reply]:
            replies = engine.call(call)
            for name, reply in replies.items():
                saved = StateFile(configs[name].state, launch.out.name).load()
                if saved is None:
                    raise ConfigError("a site answered and kept no state: run the job without --secagg")
                if call.task != "evaluate":
                    seen[name].append(ObservedTask(states[name], call.messages[name], saved.state, reply.tensors))
                states[name] = saved.state
            return replies

        serve_job(job, launch.sites, observed, launch.out, "local", watch)
    return {
        name: Observed(
            method,
            site,
            data[name].train.answered,
            canaries[name],
            rows[name],
            _claimed(configs[name], launch.out.name, job.dp),
            seen[name],
        )
        for name, site in sites.items()
    }


def data_of(launch: Launch, site: str) -> SiteData:
    """A site's data, with the job's list of answers in the place of the site's own if the job brings one: then
    canaries, whose answers are drawn from the data's, are all trained with."""
    job, method = launch.job, launch.job.build()
    answers = method.answers if isinstance(method, Alone) else None
    return load_site(job.data, launch.root, site, job.split, job.seed, answers)


def _claimed(config: SiteConfig, job: str, dp: DPSettings | None) -> float | None:
    """What the site's ledger says that this job has spent; sites of a store share a ledger with earlier jobs."""
    if dp is None:
        return None
    with closing(look_into(config)) as ledger:
        accounts = ledger.accounts(dp.delta)
    return max(one.epsilon for account in accounts for one in account.jobs if (one.site, one.job) == (config.name, job))
