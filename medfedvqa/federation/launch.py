"""From what a user asked for to a running job: checked first, so that nothing is written for a job that cannot run."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medfedvqa.data import load_site, organs
from medfedvqa.errors import ConfigError
from medfedvqa.federation.hub import Event
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.local import LocalEngine
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import load_site_config, site_yaml
from medfedvqa.methods import create
from medfedvqa.models import load_backbone

Engine = Literal["local", "simulator", "provisioned"]


@dataclass(frozen=True)
class Launch:
    """One run on this machine: a site per organ of one data set."""

    job: JobSpec
    root: Path | None
    """Folder of the data set; None for the phantom set."""
    out: Path
    sites: tuple[str, ...]
    threads: int = 1
    """Processor threads per site."""
    backbone_files: Mapping[str, Path] | None = None

    @property
    def audit_folders(self) -> dict[str, Path]:
        """Where each site's log is kept."""
        return {site: self.out / "sites" / site / "audit" for site in self.sites}


def plan(
    job: JobSpec,
    root: Path | None,
    out: Path,
    sites: tuple[str, ...] = (),
    threads: int = 1,
    backbone_files: Mapping[str, Path] | None = None,
) -> Launch:
    """Check everything that can be checked without training; writes nothing.

    Raises `ConfigError`, `DataError` or `BackboneError`.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"'{out}' already holds a run: choose another folder, or remove it")
    method = create(job.method, job.options)
    sites = sites or organs(job.data, root)
    if len(sites) < method.least_sites:
        raise ConfigError(f"'{job.method}' needs at least {method.least_sites} sites; there is {len(sites)}")
    for site in sites:
        load_site(job.data, root, site, job.split, job.seed)
    load_backbone(job.backbone, backbone_files or {})
    return Launch(job, root, out, sites, threads, backbone_files)


def write_sites(launch: Launch) -> dict[str, Path]:
    """Each site's `site.yml` under `out/sites/NAME`; returns their paths."""
    paths = {}
    for site in launch.sites:
        folder = launch.out / "sites" / site
        folder.mkdir(parents=True)
        paths[site] = folder / "site.yml"
        paths[site].write_text(
            site_yaml(
                reader=launch.job.data,
                root=launch.root and str(launch.root.resolve()),
                organ=site,
                threads=launch.threads,
                state=str((folder / "state").resolve()),
                audit=str((folder / "audit").resolve()),
                backbones={name: str(path.resolve()) for name, path in (launch.backbone_files or {}).items()},
                methods=[launch.job.method],
            ),
            encoding="utf-8",
        )
    return paths


def run(
    launch: Launch, engine: Engine, watch: Callable[[Event], None], stop: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Run to the end, or to the end of the round in which `stop` says so. Returns the results."""
    paths = write_sites(launch)
    if engine == "local":
        sites = {site: load_site_config(path, site) for site, path in paths.items()}
        with closing(LocalEngine(sites, launch.job, launch.out.name)) as local:
            return serve_job(launch.job, launch.sites, local.call, launch.out, engine, watch, stop)
    # FLARE takes seconds to import, and the in-process engine does without it.
    from medfedvqa.federation.flare.engine import run_on_flare

    return run_on_flare(launch.job, paths, launch.out, engine, watch, stop)
