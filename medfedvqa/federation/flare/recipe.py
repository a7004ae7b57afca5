"""A FLARE recipe for the project's jobs, in SimEnv, PocEnv and ProdEnv, and the export of job folders."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.apis.fl_constant import SiteType
from nvflare.apis.job_def import JobMetaKey
from nvflare.job_config.api import FedJob
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.controller import FederationController
from medfedvqa.federation.flare.executor import PATIENCE, SiteExecutor
from medfedvqa.federation.flare.provision import prepare_simulation
from medfedvqa.federation.job import STATUS_JOB, JobSpec
from medfedvqa.federation.site_status import NAME

TASK_INTERVAL = 0.05  # seconds between a site's questions for work; FLARE's default is 2

_INLINE = {"np_download_chunk_size": 0, "tensor_download_chunk_size": 0}
"""Arrays travel inside the messages, instead of being fetched by the receiver afterwards."""

_PATIENCE = {"max_runner_sync_timeout": 600.0, "get_task_timeout": PATIENCE, "submit_task_result_timeout": PATIENCE}
"""Seconds that a site waits for a server that is busy."""


class MedfedvqaRecipe(Recipe):
    """A job of configuration only: its classes come from the installed package at every site."""

    def __init__(self, job: JobSpec, sites: Mapping[str, Path] | None = None, tuned: bool = True) -> None:
        """`sites`: a `site.yml` by site name, which a simulation needs; elsewhere sites have their own.

        `tuned=False` keeps FLARE's own transport settings, for comparison.
        """
        addressed = job.terms.sites if job.terms else ()
        super().__init__(_flare_job(job.method, job.to_dict(), job.least_sites, addressed))
        self._sites = sites or {}
        if tuned:
            _tune(self)

    def process_env(self, env: ExecEnv) -> None:
        """Write for simulated sites the files that provisioning writes for real ones."""
        if isinstance(env, SimEnv):
            prepare_simulation(Path(env.workspace_root).resolve() / self.name, self._sites)


class _AddressedJob(FedJob):
    """A job that FLARE deploys only to the sites that it names."""

    def __init__(self, name: str, min_clients: int, sites: tuple[str, ...]) -> None:
        """`sites`: names; none addresses all sites that are connected."""
        super().__init__(name=name, min_clients=min_clients)
        self._sites = sites

    def export_job(self, job_root: str) -> None:
        """See FLARE's `FedJob`, whose own way to name sites gives each an app of its own; here all share one."""
        super().export_job(job_root)
        if self._sites:
            path = Path(job_root) / self.name / "meta.json"
            meta = json.loads(path.read_text(encoding="utf-8"))
            (app,) = meta[JobMetaKey.DEPLOY_MAP.value]
            meta[JobMetaKey.DEPLOY_MAP.value] = {app: [SiteType.SERVER, *self._sites]}
            path.write_text(json.dumps(meta, indent=4), encoding="utf-8")


def _flare_job(name: str, job: dict[str, Any], least_sites: int, sites: tuple[str, ...] = ()) -> FedJob:
    flare_job = _AddressedJob(name, least_sites, sites)
    flare_job.set_app_packages(["medfedvqa"])
    flare_job.to_server(FederationController(job))
    flare_job.to_clients(SiteExecutor(job))
    return flare_job


def _tune(recipe: Recipe) -> None:
    recipe.add_server_config({"server": {"task_request_interval": TASK_INTERVAL}, **_INLINE})
    recipe.add_client_config({**_INLINE, **_PATIENCE})


def export_status_job(folder: Path) -> None:
    """Write the job `site_status` as `folder`. Raises `ConfigError` if the folder exists."""
    recipe = Recipe(_flare_job(NAME, STATUS_JOB, 1))
    _tune(recipe)
    _export(recipe, folder)


def export_job(job: JobSpec, folder: Path, tuned: bool = True) -> None:
    """Write the job as `folder`, ready for `nvflare job submit -j`. Raises `ConfigError` if the folder exists."""
    _export(MedfedvqaRecipe(job, tuned=tuned), folder)


def _export(recipe: Recipe, folder: Path) -> None:
    if folder.exists():
        raise ConfigError(f"'{folder}' exists already: choose another folder, or remove it")
    with TemporaryDirectory() as scratch:
        recipe.export(scratch)
        shutil.copytree(Path(scratch) / recipe.name, folder)
