"""Upgrades a federation that an older version made, and checks that its logs and budgets continue.

`OLD` is a checkout of the older version, which runs with this environment's libraries. It provisions three phantom
sites and runs a private job; this version prepares its kits, looks at them (`medfedvqa doctor`), starts them and runs a
second job. Then each site's log must be whole with entries of both versions, and its ledger must hold the charges of
both jobs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from audits import VerdictState, examine, read
from medfedvqa import __version__
from medfedvqa.data import phantom
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import look_into
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.site_config import SiteConfig, load_site_config

SITES = phantom.organs(3)
BRIEF = {
    "rounds": 2,
    "local_unit": "batches",
    "local_epochs": 2,
    "batch_rows": 8,
    "blocks": 1,
    "hidden": 8,
    "length": 2,
}
OPTIONS = {**BRIEF, "local_baseline": False, "answers": "closed"}
PRIVACY = {"noise": 2.0, "count_noise": 20.0, "sample_rate": 0.3, "patient_rows": 4, "physical_patients": 5}
JOB = {"method": "prompt_pfl", "data": "phantom", "options": OPTIONS, "dp": PRIVACY}
PATIENCE = 900.0
"""Seconds within which a job must end."""


def run_job(federation: LoopbackFederation, folder: Path, seed: int) -> str:
    """The ID of a private job that ended with results."""
    job = JobSpec.from_dict({**JOB, "seed": seed}).model_copy(update={"terms": federation.terms()})
    export_job(job, folder / f"job-{seed}")
    job_id = federation.submit(folder / f"job-{seed}")
    status = federation.wait(job_id, PATIENCE)
    if status != "FINISHED:COMPLETED":
        raise SystemExit(f"the job of version {__version__} ended as {status}")
    print(f"version {__version__}: job {job_id} has run", flush=True)
    return job_id


def begin(folder: Path) -> None:
    """Provision and run the first job. This runs in a process of the older version."""
    paths = write_sites(Launch(JobSpec.from_dict(JOB), None, folder / "sites", SITES))
    with LoopbackFederation(folder, paths) as federation:
        run_job(federation, folder, 1)


def prepare(kits: Path, storage: Path) -> None:
    """Give each kit what this version adds, and look at it."""
    command = str(Path(sys.executable).with_name("medfedvqa"))
    for name in (*SITES, "localhost"):
        kept = ["--storage", str(storage)] if name == "localhost" else []
        subprocess.run([command, "kit", "prepare", str(kits / name), *kept], check=True)
        looked = subprocess.run([command, "doctor", str(kits / name)], check=True, capture_output=True, text=True)
        print(f"{name}: {looked.stdout.splitlines()[-1]}")


def versions(config: SiteConfig) -> set[str]:
    """The versions of the code that wrote entries of a site's log."""
    return {entry.code_version for entry in read(config.audit) if entry.code_version}


def holds(site: str, config: SiteConfig, earlier: set[str]) -> bool:
    """Whether a site's log is whole, with entries of both versions, and its ledger has both jobs; and print it."""
    integrity, found = examine(config.audit, site).integrity.state, versions(config)
    jobs = {entry.job for entry in read(config.audit) if entry.job and entry.dp_event}
    with closing(look_into(config)) as ledger:
        charged = sum(ledger.holds(job) for job in jobs)
        spent = ledger.together(config.policy.delta, reserved=False).epsilon
    said = f"versions {', '.join(sorted(found))}; {charged} jobs charged, epsilon {spent:.4f}"
    print(f"{site}: integrity {integrity.value}; {said}")
    return integrity is VerdictState.SHOWN and found == earlier | {__version__} and len(jobs) == charged == 2


def main() -> None:
    """Upgrade once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD", help="a checkout of the older version")
    parser.add_argument("--begin", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.begin:
        begin(arguments.begin)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        older = {**os.environ, "PYTHONPATH": str(arguments.old.resolve())}
        subprocess.run([sys.executable, __file__, str(arguments.old), "--begin", str(folder)], check=True, env=older)
        kits = folder / "medfedvqa" / "prod_00"
        prepare(kits, folder / "storage")
        paths = {site: kits / site / "local" / "site.yml" for site in SITES}
        configs = {site: load_site_config(path, site) for site, path in paths.items()}
        earlier = {site: versions(config) for site, config in configs.items()}
        with LoopbackFederation(folder, paths, kits=kits) as federation:
            run_job(federation, folder, 2)
        held = [holds(site, config, earlier[site]) for site, config in configs.items()]
        raise SystemExit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
