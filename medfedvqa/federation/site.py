"""A site's part of one job: every message passes the gate, every task ends in saved state."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from audits import AuditLog, Gate, JobContext
from medfedvqa.data import load_site
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import ANY_DATA, JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.methods import Site, Tensors, create
from medfedvqa.models import Backbone, load_backbone, shape_of
from medfedvqa.version import code_digest, code_version

LoadBackbone = Callable[[str, Mapping[str, Path], str], Backbone]
"""As `medfedvqa.models.load_backbone`."""


@dataclass(frozen=True)
class Saved:
    """What survives a killed process: the state after a task, and the answer that the task gave."""

    task: str
    round: int
    state: dict[str, Any]
    reply: Tensors


class StateFile:
    """One job's state at one site, replaced atomically."""

    def __init__(self, folder: Path, job_id: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{job_id}.pt"

    def load(self) -> Saved | None:
        """The last saved task, or None before the first."""
        if not self._path.exists():
            return None
        fields = torch.load(self._path, weights_only=True)
        reply = {name: tensor.numpy() for name, tensor in fields.pop("reply").items()}
        return Saved(**fields, reply=reply)

    def save(self, saved: Saved) -> None:
        """Durable before it returns: the task must not run twice once its answer may have left."""
        partial = self._path.with_suffix(".partial")
        reply = {name: torch.from_numpy(array) for name, array in saved.reply.items()}
        fields = {"task": saved.task, "round": saved.round, "state": saved.state, "reply": reply}
        with partial.open("wb") as file:
            torch.save(fields, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)


class SiteRuntime:
    """Answers the tasks of one job. Data and backbone load with the first task."""

    def __init__(self, config: SiteConfig, job: JobSpec, job_id: str, load: LoadBackbone = load_backbone) -> None:
        """`load`: how sites of one process come to share a backbone. Raises `ConfigError` if the job is not for this site's data."""
        if job.data not in (ANY_DATA, config.data.reader):
            raise ConfigError(f"the job is for data '{job.data}'; this site holds '{config.data.reader}'")
        self.config, self._job, self._load = config, job, load
        self._method = create(job.method, job.options)
        self._exchange = self._method.exchange(shape_of(job.backbone))
        self._log = AuditLog(config.audit, config.name)
        self._file = StateFile(config.state, job_id)
        self._job_id = job_id

    @cached_property
    def site(self) -> Site:
        """Data and backbone, loaded once."""
        job, config = self._job, self.config
        torch.set_num_threads(config.threads)
        data = load_site(config.data.reader, config.data.root, config.data.organ, job.split, job.seed)
        backbone = self._load(job.backbone, config.backbones, config.device)
        return Site(config.name, data, backbone, config.device, job.seed)

    @cached_property
    def _gate(self) -> Gate:
        context = JobContext(
            job=self._job_id,
            method=self._job.method,
            model_digest=self.site.backbone.digest,
            code_version=code_version(),
            code_digest=code_digest(),
        )
        gate = Gate(self._exchange, self.config.policy, self._log, context)
        gate.open()
        return gate

    def handle(self, task: str, round: int, received: Tensors) -> Tensors:
        """One task: checked in, run, saved, checked and logged out.

        The same task of the same round, asked again after a crash, is answered from the saved state
        without training twice. Raises `MedfedvqaError` or `AuditError`, both safe to share.
        """
        received = self._gate.receive(task, round, received)
        saved = self._file.load()
        if saved is None or (saved.task, saved.round) != (task, round):
            state = saved.state if saved else self._method.setup(self.site)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.site.task_seed(task, round))
                state, reply = self._method.handle(self._exchange.task(task), self.site, state, received, round)
            saved = Saved(task, round, state, reply)
            self._file.save(saved)
        return self._gate.release(task, round, saved.reply)

    def close(self) -> None:
        """The job is over for this process: say so in the log."""
        if "_gate" in self.__dict__:
            self._gate.close()
        self._log.close()
