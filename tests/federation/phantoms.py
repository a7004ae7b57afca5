"""Provisioned federations of phantom sites on this machine, short jobs for them, and what sites logged of a job."""

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psutil
from taps import add_component, disarm

from audits import Entry, Event, read
from audits.log_files import segments
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.reaper import vault_processes
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from privacy.secagg import Identity

BACKBONE = "medclip@random"
PATIENCE = 600.0  # seconds
ORGANS = {"new": "site-003", "thorax": "site-004"}
"""The phantom rows of a site whose name is no organ of the phantom set."""
SHORT = {"rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "blocks": 1, "hidden": 16}


def short_job(method: str = "prompt_pfl", options: Mapping[str, Any] | None = None, **fields: Any) -> JobSpec:
    """A job of one round and one batch, unless `options` say more; `fields` are those of the job."""
    alone = {"local_baseline": False} if method == "prompt_pfl" else {}
    every = {**SHORT, **alone, **(options or {})}
    return JobSpec.from_dict({"method": method, "options": every, "data": "phantom", "backbone": BACKBONE, **fields})


def wait_for(condition: Callable[[], object], pause: float = 0.1) -> None:
    """Until the condition holds, asked every `pause` seconds; fails the test if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(pause)


def vault_of(kit: Path) -> psutil.Process:
    """The process of a site's vault that lasts; what it forks has the same command line, and may have a smaller id."""
    return min(vault_processes([str(kit)]), key=lambda process: process.create_time())


class Phantoms(LoopbackFederation):
    """A federation of phantom sites. Its subclasses attack: they change the kit of a party before it starts."""

    modules: ClassVar[bool] = False
    """Whether the processes can import the tests' modules, as those of attackers do."""

    def __init__(
        self,
        folder: Path,
        names: Collection[str],
        backbone: Path,
        environment: Mapping[str, str] | None = None,
        introduced: bool = False,
        attackers: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> None:
        """`introduced`: sites have keys and pin each other's. `attackers`: by party, a component of the tests' modules
        that its processes load; a server has no guard then. `facts`: of every `site.yml`."""
        self._attackers = attackers or {}
        places = {place: f"../{place}" for place in ("state", "audit", "ledger")}
        self._facts = {"reader": "phantom", "backbones": {BACKBONE: str(backbone)}, **places, **facts}
        self._own: dict[str, dict[str, Any]] = {name: {"organ": ORGANS.get(name, name)} for name in names}
        paths = {name: folder / f"{name}.yml" for name in names}
        if introduced:
            keys = {name: folder / f"{name}.key" for name in names}
            peers = {name: Identity.create(key).fingerprint for name, key in keys.items()}
            for name, own in self._own.items():
                own |= {"identity": str(keys[name]), "peers": peers}
        for name, path in paths.items():
            path.write_text(self.site_file(name))
        modules = [str(Path(__file__).parent)] if self.modules or attackers else []
        search = [*modules, os.environ.get("PYTHONPATH", "")]
        path = {"PYTHONPATH": os.pathsep.join(filter(None, search))}
        super().__init__(folder, paths, {**path, **(environment or {})})

    def start(self, name: str) -> None:
        if path := self._attackers.get(name):
            if name == SERVER:
                disarm(self.kits / name)
            add_component(self.kits / name, {"id": "attacker", "path": path, "args": {"folder": str(self.folder)}})
        super().start(name)

    def site_file(self, name: str, **changes: Any) -> str:
        """The text of a site's `site.yml`; `changes` replace what it says."""
        return site_yaml(**{**self._facts, **self._own[name], **changes})

    @contextmanager
    def changed(self, name: str, **changes: Any) -> Iterator[None]:
        """A site has other settings for a while."""
        file = self.kits / name / "local" / "site.yml"
        before = file.read_text()
        file.write_text(self.site_file(name, **changes))
        try:
            yield
        finally:
            file.write_text(before)

    def kill(self, *parties: str, job: tuple[bool, ...] = (False, True)) -> None:
        """All processes of these parties, or those of one kind, die at one moment: they are halted first, so that none
        sees another die."""
        processes = [each for name in parties for kind in job for each in self.processes(name, kind)]
        for process in processes:
            process.suspend()
        for process in processes:
            process.kill()
        psutil.wait_procs(processes)

    def run(self, job: JobSpec, folder: Path, *sites: str) -> str:
        """The id of a job, which has ended; see `submit_job`."""
        job_id = self.submit_job(job, folder, *sites)
        self.wait(job_id, PATIENCE)
        return job_id

    def submit_job(self, job: JobSpec, folder: Path, *sites: str) -> str:
        """The id of a job whose folder is written first; with `sites`, it is fresh and for these alone."""
        terms = self.terms().model_copy(update={"sites": sites}) if sites else None
        export_job(job.model_copy(update={"terms": terms}) if terms else job, folder)
        return self.submit(folder)

    def outcome(self, job_id: str) -> dict[str, Any]:
        """What is in the job's `results.json`."""
        outcome: dict[str, Any] = json.loads((self.results(job_id) / "results.json").read_text())
        return outcome

    def config(self, name: str) -> SiteConfig:
        """A site's settings."""
        return load_site_config(self.kits / name / "local" / "site.yml", name)

    def log(self, name: str, job_id: str) -> list[Entry]:
        """A site's entries of a job; none before its first job, when a site has no log."""
        audit = self.kits / name / "audit"
        return [entry for entry in read(audit) if entry.job == job_id] if segments(audit) else []

    def logged(self, name: str, job_id: str, event: Event, round: int) -> bool:
        """Whether a site has logged an event of a training round."""
        found = ((entry.event, entry.round) for entry in self.log(name, job_id) if entry.task != "evaluate")
        return (event, round) in found

    def codes(self, name: str, job_id: str) -> list[str]:
        """The codes with which a site refused a job."""
        refused = [entry for entry in self.log(name, job_id) if entry.event is Event.REFUSAL and entry.admission]
        return [str(entry.admission["code"]) for entry in refused if entry.admission]
