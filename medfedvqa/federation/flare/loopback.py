"""A provisioned federation on this machine: real startup kits, mutual TLS, one process per party and job."""

import contextlib
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.admin_client import AdminClient
from medfedvqa.federation.flare.provision import ADMIN, SERVER, SiteBuilder, loopback_project, provision
from medfedvqa.federation.flare.reaper import Reaper, flare_processes
from medfedvqa.federation.flare.run_folder import RESULTS
from medfedvqa.federation.job import Terms
from medfedvqa.federation.job_signature import federation_of
from medfedvqa.plugins import write_list

_START_TIMEOUT = 300.0  # seconds, for a machine that is busy with other things
_POLL = 0.2
_PORTS = range(20_000, 32_000)  # below those of connections: from 32,768 on Linux, from 49,152 elsewhere
_LOG = "process.log"
_LAST_LINES = 30

_LAST_WORD = {"NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "30"}
"""Seconds after which the server calls a job finished although a site that died never said so; FLARE: 900."""


class LoopbackFederation:
    """Provisions into a folder, starts server and sites, and ends every process when it is left."""

    def __init__(
        self,
        folder: Path,
        sites: Mapping[str, Path],
        environment: Mapping[str, str] | None = None,
        kits: Path | None = None,
    ) -> None:
        """`sites`: a `site.yml` by site name. `environment` is added to that of all processes. `kits`: the folder of an
        earlier federation's kits, which are started as they are; None: new ones are provisioned."""
        self.folder, self._sites = folder.resolve(), sites
        self._environment = {**_LAST_WORD, **os.environ, **(environment or {})}
        # The kits' scripts start whichever python3 comes first.
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self._environment['PATH']}"
        self._client: AdminClient | None = None
        self._earlier, self.kits = kits, Path()

    def __enter__(self) -> Self:
        """Provision and start the federation.

        Raises `FederationError` if it does not come up, with the end of the server's log as its note.
        """
        self.kits = self._earlier or self._provisioned()
        with contextlib.ExitStack() as ending:
            self._reaper = ending.enter_context(Reaper(*(self.kits / name for name in (SERVER, *self._sites))))
            for name in (SERVER, *self._sites):
                self.start(name)
            self._client = AdminClient(ADMIN, self.admin_kit, _START_TIMEOUT)
            ending.callback(self._client.close)
            try:
                self._wait_for(set(self._sites))
            except FederationError as error:
                # For a traceback: the folder is a temporary one, and its logs are gone with it.
                error.add_note(self._end_of_log(SERVER))
                raise
            self._ending = ending.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def _provisioned(self) -> Path:
        """New kits, with the sites' files in them."""
        builder = SiteBuilder(storage=str(self.folder / "storage"))
        kits = provision(loopback_project(list(self._sites), free_port()), [builder], self.folder)
        for name, path in self._sites.items():
            shutil.copy(path, kits / name / "local" / "site.yml")
        write_list(kits / SERVER / "local")
        return kits

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of its sites."""
        return tuple(self._sites)

    @property
    def admin_kit(self) -> Path:
        """The startup kit that `nvflare job submit --startup-kit` takes."""
        return self.kits / ADMIN

    def start(self, name: str) -> None:
        """Start the server or a site by its kit's own script."""
        kit = self.kits / name
        script = ["bash", str(kit / "startup" / "sub_start.sh"), "--once"]
        self._reaper.start(script, kit, kit / _LOG, self._environment)

    def restart(self, name: str) -> None:
        """Start a site that was killed, and wait until it has joined again. Raises `FederationError` if it does not."""
        began = time.time()
        self.start(name)
        self._wait_for({name}, began)

    def processes(self, name: str, job: bool) -> list[psutil.Process]:
        """A party's own process, or (`job`) those of the jobs that it runs."""
        matches = []
        for process in flare_processes([str(self.kits / name)]):
            with contextlib.suppress(psutil.Error):
                if _is_job(process.cmdline()) == job:
                    matches.append(process)
        return matches

    def terms(self) -> Terms:
        """New terms, which make one job fresh for all sites of this federation."""
        return Terms.fresh(federation_of(self.admin_kit / "startup" / "rootCA.pem"), tuple(self._sites))

    def submit(self, job_folder: Path) -> str:
        """Submit a job folder; returns the job's id."""
        return self._admin.submit(job_folder)

    def status(self, job_id: str) -> str:
        """FLARE's status of the job; it begins with FINISHED once the job is over."""
        return self._admin.status(job_id)

    def finished(self, job_id: str) -> bool:
        """Whether the job is over, well or not."""
        return self.status(job_id).startswith("FINISHED")

    def wait(self, job_id: str, timeout: float) -> str:
        """The status in which the job finished. Raises `FederationError` if it has not after `timeout` seconds."""
        for _ in _until(timeout):
            if self.finished(job_id):
                return self.status(job_id)
        raise FederationError(f"the job is '{self.status(job_id)}' after {timeout:.0f} seconds, and has not finished")

    def abort(self, job_id: str) -> None:
        """End a job at once."""
        self._admin.abort(job_id)

    def results(self, job_id: str) -> Path:
        """A job's results: in the server's own folder while the job runs, fetched from the server afterwards."""
        running = self.kits / SERVER / job_id / RESULTS
        if running.is_dir() or not self.finished(job_id):
            return running
        folder = self.folder / "results"
        fetched = folder / job_id
        if not fetched.exists():
            self._admin.download(job_id, folder)
        return fetched / "workspace" / RESULTS

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            raise FederationError("the federation is not running")
        return self._client

    def _end_of_log(self, name: str) -> str:
        lines = (self.kits / name / _LOG).read_text(errors="replace").splitlines()
        return "\n".join([f"the log of '{name}' ends with:", *lines[-_LAST_LINES:]])

    def _wait_for(self, sites: Collection[str], since: float = 0.0) -> None:
        missing = set(sites)
        for _ in _until(_START_TIMEOUT):
            missing -= {client.name for client in self._admin.sites() if (client.last_connect_time or 0.0) >= since}
            if not missing:
                return
        raise FederationError(f"sites did not join the federation: {', '.join(sorted(missing))}")


def _is_job(line: list[str]) -> bool:
    return any(part.endswith(("worker_process", "runner_process")) for part in line)


def _until(timeout: float) -> Iterator[None]:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        yield
        time.sleep(_POLL)


def free_port() -> int:
    """A free port of this machine, outside the ranges from which systems choose ports for connections."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.choice(_PORTS)))
            return int(probe.getsockname()[1])
