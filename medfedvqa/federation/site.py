"""A site's part of one job: every message passes the gate, every task ends in saved state."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from audits import AuditLog, Gate, JobContext, TaskSpec
from medfedvqa.data import load_site
from medfedvqa.errors import ConfigError
from medfedvqa.federation.budget import JobBudget, logged
from medfedvqa.federation.job import ANY_DATA, JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.methods import EPSILON, Site, Tensors
from medfedvqa.models import Backbone, load_backbone, shape_of
from medfedvqa.version import code_digest, code_version
from privacy import PrivacyError, Randomness, RepeatableRandomness, SecureRandomness

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
        reply = {name: torch.from_numpy(array) for name, array in saved.reply.items()}
        fields = {"task": saved.task, "round": saved.round, "state": saved.state, "reply": reply}
        with _replaced(self._path) as file:
            torch.save(fields, file)

    def keep(self, task: str, reply: Tensors) -> None:
        """Write what a task found and the site keeps, figures by name, for the hospital itself: `JOB.TASK.json`."""
        figures = {name: array.tolist() for name, array in reply.items()}
        with _replaced(self._path.with_suffix(f".{task}.json")) as file:
            file.write(json.dumps(figures, indent=2).encode() + b"\n")


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` whole and durably, for the site's own account only."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class SiteRuntime:
    """Answers the tasks of one job. Data and backbone load with the first task."""

    def __init__(self, config: SiteConfig, job: JobSpec, job_id: str, load: LoadBackbone = load_backbone) -> None:
        """`load`: how sites of one process come to share a backbone.

        Raises `ConfigError` if the job is not for this site's data.
        """
        if job.data not in (ANY_DATA, config.data.reader):
            raise ConfigError(f"the job is for data '{job.data}'; this site holds '{config.data.reader}'")
        self.config, self._job, self._load = config, job, load
        self._method = job.build()
        self._exchange = self._method.final_exchange(shape_of(job.backbone))
        self._budget = JobBudget(config, job, job_id, self._method)
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
        return Site(config.name, data, backbone, config.device, job.seed, self._randomness())

    def _randomness(self) -> Randomness:
        if self.config.repeatable_noise is None:
            return SecureRandomness()
        named = f"{self.config.repeatable_noise}/{self.config.name}".encode()
        return RepeatableRandomness(int.from_bytes(hashlib.sha256(named).digest()[:6]))

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
        if refusal := self.config.policy.refusal(self._job.offer()):
            gate.refuse_job(refusal)
        try:
            self._budget.reserve(self.site.data.trained_patients)
        except PrivacyError as error:
            gate.refuse_job(str(error))
        gate.open()
        return gate

    def handle(self, task: str, round: int, received: Tensors) -> Tensors:
        """One task: checked in, run, saved, checked and logged out.

        The same task of the same round, asked again after a crash, is answered from the saved state
        without training twice. Raises `MedfedvqaError` or `AuditError`, both safe to share.
        """
        received = self._gate.receive(task, round, received)
        spec = self._exchange.task(task)
        saved = self._file.load()
        if saved is None or (saved.task, saved.round) != (task, round):
            saved = self._run(spec, round, saved, received)
            self._file.save(saved)
        return self._release(spec, saved)

    def _run(self, task: TaskSpec, round: int, before: Saved | None, received: Tensors) -> Saved:
        try:
            self._budget.begin(task.name, round)
        except PrivacyError as error:
            self._gate.refuse_job(str(error))
        state = before.state if before else self._method.setup(self.site)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.site.task_seed(task.name, round))
            state, reply = self._method.handle(task, self.site, state, received, round)
        return Saved(task.name, round, state, reply)

    def _release(self, task: TaskSpec, saved: Saved) -> Tensors:
        if self._job.dp is None:
            return self._gate.release(task.name, saved.round, saved.reply)
        charge = self._budget.settle(task.name, saved.round)
        if charge is None:
            self._file.keep(task.name, saved.reply)
            return self._gate.release(task.name, saved.round, {})
        epsilon = np.array([charge.job_epsilon_before, charge.job_epsilon_after])
        reply = {**saved.reply, EPSILON.name: epsilon}
        return self._gate.release(task.name, saved.round, reply, charged=logged(charge))

    def close(self, ended: bool = True) -> None:
        """This process is done with the job; with `ended` the job itself is over: say so in the log."""
        self._budget.close(ended)
        if "_gate" in self.__dict__:
            self._gate.close()
        self._log.close()
