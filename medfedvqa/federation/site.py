"""A site's part of one job: every message passes the gate, every task ends in saved state."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from audits import AuditLog, Gate, JobContext, TaskSpec
from medfedvqa.data import load_site
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.attempt import Attempt, Relays, connect_to, mix_with_others, peers_of
from medfedvqa.federation.budget import JobBudget, logged
from medfedvqa.federation.job import ANY_DATA, JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.state import Saved, StateFile
from medfedvqa.methods import EPSILON, FAULT, SHARED_BYTES, Site, Tensors, mixing
from medfedvqa.models import Backbone, load_backbone, shape_of
from medfedvqa.version import code_digest, code_version
from privacy import PrivacyError, Randomness, RepeatableRandomness, SecureRandomness
from privacy.secagg import SiteError

LoadBackbone = Callable[[str, Mapping[str, Path], str], Backbone]
"""As `medfedvqa.models.load_backbone`."""


class SiteRuntime:
    """Answers the tasks of one job. Data and backbone load with the first task."""

    def __init__(
        self,
        config: SiteConfig,
        job: JobSpec,
        job_id: str,
        load: LoadBackbone = load_backbone,
        relays: Relays | None = None,
    ) -> None:
        """`load`: how sites of one process come to share a backbone. `relays`: the way to other sites, if there is one.

        Raises `ConfigError` if the job is not for this site's data.
        """
        if job.data not in (ANY_DATA, config.data.reader):
            raise ConfigError(f"the job is for data '{job.data}'; this site holds '{config.data.reader}'")
        self.config, self._job, self._load, self._relays = config, job, load, relays
        self._method = job.build()
        self._declared = self._method.exchange(shape_of(job.backbone))
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
        mixed = {mixing(name): name for name in self._method.mixed} if self._job.secagg else {}
        if task in mixed:
            return self._mix(mixed[task], round, received)
        received = self._gate.receive(task, round, received)
        spec = self._exchange.task(task)
        saved = self._file.load()
        if self._job.secagg and saved is not None:
            received = saved.mixture
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
        if before is None:
            return Saved(task.name, round, state, reply)
        return replace(before, task=task.name, round=round, state=state, reply=reply)

    def _release(self, task: TaskSpec, saved: Saved) -> Tensors:
        charge = self._budget.settle(task.name, saved.round)
        to_mix = self._job.secagg and task.name in self._method.mixed
        kept = self._job.keeps_scores and charge is None and task.name not in self._method.in_clear
        if kept and not to_mix:
            self._file.keep(task.name, saved.reply)
            return self._gate.release(task.name, saved.round, {})
        reply = {} if to_mix else saved.reply
        if charge is None:
            return self._gate.release(task.name, saved.round, reply)
        epsilon = np.array([charge.job_epsilon_before, charge.job_epsilon_after])
        return self._gate.release(task.name, saved.round, {**reply, EPSILON.name: epsilon}, charged=logged(charge))

    def _mix(self, task: str, round: int, message: Tensors) -> Tensors:
        """One attempt to mix the saved answer to `task` with those of the other sites; says how it went."""
        attempt, saved = Attempt.read(message), self._file.load()
        self._gate.receive(mixing(task), round, {})
        if self._relays is None or saved is None or (saved.task, saved.round) != (task, round):
            raise FederationError("this site has nothing to mix in this round, or no way to the other sites")
        fault, nbytes = -1, 0
        if saved.mixed != round and saved.attempt != attempt.name:
            try:
                nbytes = self._take_part(task, saved, attempt, self._relays)
            except SiteError as error:
                fault = attempt.sites.index(error.site)
        elif saved.attempt != attempt.name:
            # Two mixtures of one round would show what they differ by.
            raise FederationError("this site has its mixture of this round already, and takes part in no second one")
        elif saved.mixed != round:
            # Died in this very attempt, whose dealt tuples must not serve twice.
            fault = attempt.sites.index(self.config.name)
        report = {FAULT.name: np.array(fault), SHARED_BYTES.name: np.array(nbytes)}
        return self._gate.release(mixing(task), round, report)

    def _take_part(self, task: str, saved: Saved, attempt: Attempt, relays: Relays) -> int:
        """Shares the saved answer and saves the mixture; the bytes that were sent. Raises `SiteError`."""
        round, me = saved.round, self.config.name
        pinned = peers_of(self.config, attempt, self._job.least_sites)
        charge = self._budget.settle(task, round)
        upload = self._gate.share(mixing(task), round, saved.reply, attempt.sharing, charge and logged(charge))
        saved = replace(saved, attempt=attempt.name)
        self._file.save(saved)
        links = connect_to(pinned, self.config, f"{self._job_id}/{round}/{attempt.name}", relays(attempt.name))
        layout = self._method.mixed[task].layout(self._declared.task(task))
        mixture, nbytes = mix_with_others(me, links, attempt.dealt, upload, layout)
        mixture = self._gate.reveal(mixing(task), round, mixture, attempt.sharing)
        self._file.save(replace(saved, mixture=mixture, mixed=round))
        return nbytes

    def close(self, ended: bool = True) -> None:
        """This process is done with the job; with `ended` the job itself is over: say so in the log."""
        self._budget.close(ended)
        if "_gate" in self.__dict__:
            self._gate.close()
        self._log.close()
