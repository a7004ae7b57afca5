"""A site's part of one job: every message passes the gate, and every task ends in saved state."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch

from audits import (
    AuditKey,
    AuditLog,
    Exchange,
    Gate,
    Isolation,
    JobCode,
    JobContext,
    JobRefused,
    Refusal,
    TaskSpec,
    origin_of,
)
from medfedvqa.code_identity import ChangedCode, check_unchanged, running_code
from medfedvqa.core import EPSILON, EVALUATE, Site, Tensors, withheld
from medfedvqa.data import SiteData, Split, load_site, reader_function
from medfedvqa.devices import memory_in_words, resolved
from medfedvqa.errors import BackboneError, FederationError, MedfedvqaError
from medfedvqa.federation.admission import Admission, Signature
from medfedvqa.federation.checkpoint_exchange import CheckpointExchange
from medfedvqa.federation.error_codes import code_of
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import JobBudget, log_charge
from medfedvqa.federation.job_closing import settle_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import Saved, StateFile
from medfedvqa.federation.task_order import TaskOrder
from medfedvqa.installed_code import CompiledElsewhere
from medfedvqa.models import Backbone, PictureSpace, check_card, load_backbone
from medfedvqa.version import code_version
from privacy import PrivacyError, Randomness, RepeatableRandomness, SecureRandomness

if TYPE_CHECKING:
    from medfedvqa.federation.aggregation_attempt import Relays
    from medfedvqa.federation.secure_site import SecureSite

_MIB = 2**20
LoadBackbone = Callable[[str, Mapping[str, Path], str], Backbone]
"""The signature of `medfedvqa.models.load_backbone`."""
LoadData = Callable[[str, Path | None, str, Split, int, tuple[str, ...] | None], SiteData]
"""The signature of `medfedvqa.data.load_site`."""


class SiteRuntime:
    """Answers the tasks of one job. Data and backbone are loaded with the first task."""

    def __init__(
        self,
        config: SiteConfig,
        job: JobSpec,
        job_id: str,
        load: LoadBackbone = load_backbone,
        relays: "Relays | None" = None,
        load_data: LoadData = load_site,
        signature: Signature | None = None,
        isolation: Isolation = Isolation.NONE,
    ) -> None:
        """`load` lets the sites of one process share a backbone. `relays` makes the transports to other sites, where
        there are any. `load_data` replaces the rows of the site's data set. `signature`: see `Admission`.
        """
        self.config, self._job, self._load, self._relays = config, job, load, relays
        self._load_data = load_data
        self._method = job.build()
        self._budget = JobBudget(config, job, job_id, self._method)
        key = AuditKey.at(config.audit_key, origin_of(config.name))
        self._log = AuditLog(config.audit, config.name, key)
        self._admission = Admission(config, job, job_id, self._log, signature, isolation)
        self._checkpoints = CheckpointExchange(config, self._log, key, job_id, job.method)
        self._file, self._order = StateFile(config.state, job_id), TaskOrder(self._method.tasks())
        self._job_id, self._actor, self._isolation = job_id, signature.actor if signature else "", isolation
        self._refused: JobRefused | None = None

    @property
    def private(self) -> bool:
        """Whether the job is under differential privacy."""
        return self._job.dp is not None

    @cached_property
    def _exchange(self) -> Exchange:
        return self._method.final_exchange(self._job.shape)

    @cached_property
    def _device(self) -> str:
        return resolved(self.config.device)

    @cached_property
    def _backbone(self) -> Backbone:
        torch.set_num_threads(self.config.threads)
        with memory_in_words(self._device):
            backbone = self._load(self._job.backbone, self.config.backbones, self._device)
            # The rounding of bfloat16 is coarse, and a patient's states must not depend on who else is in a chunk.
            backbone = backbone.computing("float32" if self.private else self.config.precision)
        if self._job.card is not None:
            check_card(self._job.card, self._job.backbone, backbone.shape)
        return backbone

    @cached_property
    def site(self) -> Site:
        """Data and backbone, loaded once."""
        job, config, backbone = self._job, self.config, self._backbone
        dataset = config.data
        # The questions of a private job must not depend on the rows, and so its list of answers must not either.
        answers = self._method.answers_of(dataset.answers)
        if dataset.require_review and dataset.root is not None:
            from medfedvqa.data import check_reviewed  # only here: other sites load nothing of ingestion

            check_reviewed(dataset.root)
        data = self._load_data(dataset.reader, dataset.root, dataset.organ, job.split, job.seed, answers)
        space = PictureSpace(config.pictures.memory_mb * _MIB, config.pictures.disk_mb * _MIB, config.state)
        return Site(config.name, data, backbone, self._device, job.seed, self._randomness(), self._secret(), space)

    def _secret(self) -> bytes:
        """See `Site.secret`."""
        only_masked = self._job.secagg and not self.private and self.config.repeatable_noise is None
        return self._file.secret() if only_masked else b""

    def _randomness(self) -> Randomness:
        if self.config.repeatable_noise is None:
            return SecureRandomness()
        label = f"{self.config.repeatable_noise}/{self.config.name}".encode()
        return RepeatableRandomness(int.from_bytes(hashlib.sha256(label).digest()[:6]))

    @cached_property
    def _gate(self) -> Gate:
        """The gate of a job that the site takes: signature, policy and budget are checked first, and data last."""
        self._admission.decide()
        with self._refusing(PrivacyError, Refusal.BUDGET):
            self._budget.check()
        with self._refusing(BackboneError, Refusal.BACKBONE):
            digest = self._backbone.digest
        code = self._code()
        with self._refusing((MedfedvqaError, PrivacyError), Refusal.DATA):
            self._method.check_kind(self.site)
            if self._job.dp is None:
                self._method.check_rows(self.site.data)
            self._check_figures()
            self._budget.reserve(self.site.data.trained_patients)
        context = JobContext(
            job=self._job_id,
            method=self._job.method,
            model_digest=digest,
            code_version=code_version(),
            code_digest=code.digest,
            actor=self._actor,
            code=code,
            isolation=self._isolation,
        )
        gate = Gate(self._exchange, self.config.policy, self._log, context)
        gate.open()
        return gate

    def _check_figures(self) -> None:
        """Raises `JobRefused` if a round needs a figure that the policy withholds. A site that only tests has none.

        `_release` checks every message by the same rule; this check comes before anything is trained.
        """
        if self.config.name in getattr(self._method.config, "unseen", ()):
            return
        for task in self._exchange.tasks:
            if task.name != EVALUATE and (names := self._withheld(task)):
                raise JobRefused(Refusal.COUNT, f"{Refusal.COUNT.sentence} ({', '.join(names)})")

    def _withheld(self, task: TaskSpec) -> list[str]:
        """The figures of an upload that stay here: see `SitePolicy.min_count`."""
        return self._method.withheld_figures(task, self.config.policy, self.site.data.patient_counts)

    def _code(self) -> JobCode:
        """All code that takes part in the job at this site. Raises `JobRefused` if a file differs from what runs."""
        loads = (self._load, self._load_data, reader_function(self.config.data.reader))
        with self._refusing((ChangedCode, CompiledElsewhere), Refusal.CODE):
            self._check_unchanged()
            return running_code(type(self), *self._method.code, type(self._backbone), *loads)

    def _check_unchanged(self) -> None:
        """Raises `ChangedCode` if the code of the method or the reader was written again since it was loaded."""
        for part in self._method.code:
            check_unchanged(part)
        check_unchanged(reader_function(self.config.data.reader))

    @contextmanager
    def _refusing(self, kinds: type[Exception] | tuple[type[Exception], ...], code: Refusal) -> Iterator[None]:
        """Refuse the job with this code if one of these errors is raised."""
        try:
            yield
        except JobRefused as error:
            self._admission.refuse(error.code, error.detail)
        except kinds as error:
            self._admission.refuse(code, str(error))

    @cached_property
    def _secure(self) -> "SecureSite | None":
        """This site's part in aggregation on shares, or None if the job has none. Raises `FederationError`."""
        if not self._job.secagg:
            return None
        if self._relays is None:
            raise FederationError("the job aggregates on shares, but this site has no channel to the other sites")
        # Only a job on shares loads what computes on them.
        from medfedvqa.federation.secure_site import SecureSite

        config, job, method, file = self.config, self._job, self._method, self._file
        budget, admission = self._budget, self._admission
        return SecureSite(config, job, self._job_id, method, self._gate, budget, file, self._relays, admission)

    def answer(self, task: str, round: int, received: Tensors, audit_bytes: bytes) -> tuple[Tensors, bytes]:
        """Like `handle`, and also exchanges audit checkpoints: takes in the server's, returns this site's."""
        self._checkpoints.receive(audit_bytes, round)
        return self.handle(task, round, received), self._checkpoints.reply()

    def refuse(self, code: Refusal, detail: str) -> NoReturn:
        """Log, once, that the site stops the job, for a reason that no other entry gives. Raises `JobRefused`."""
        try:
            if self._refused is None:
                self._admission.refuse(code, detail)
        except JobRefused as error:
            self._refused = error
        raise self._refused

    def handle(self, task: str, round: int, received: Tensors) -> Tensors:
        """Run one task: check the message, run and save the task, check and log the answer.

        A task that is repeated after a crash is answered from the saved state without training twice. Raises
        `JobRefused`, and then for every further task too, or another `AuditError`, `MedfedvqaError` or `PrivacyError`;
        `error_codes.code_of` gives the code that the server gets.
        """
        if self._refused is not None:
            raise self._refused
        try:
            return self._handle(task, round, received)
        except JobRefused as error:
            self._refused = error
            raise
        except FederationError as error:
            self.refuse(code_of(error), str(error))

    def _handle(self, task: str, round: int, received: Tensors) -> Tensors:
        gate = self._gate  # this comes first, as the site may refuse the job
        self._admission.require_approval()  # a person may have withdrawn it
        try:
            self._check_unchanged()
        except ChangedCode as error:
            gate.refuse_job(Refusal.CODE, str(error))
        if self._secure and (answer := self._secure.handler(task)):
            return answer(round, received)
        saved = self._file.load()
        try:
            repeated = self._order.repeats(task, round, (saved.task, saved.round) if saved else None)
        except JobRefused as error:
            gate.refuse_job(error.code, error.detail)
        received, beside = self._secure.split(received) if self._secure else (received, {})
        received = gate.receive(task, round, received)
        spec = self._exchange.task(task)
        if saved is None or not repeated:
            code = None
            if self._secure and saved is not None:
                self._secure.check_shown(task, saved)
                saved, code = self._secure.read_hidden(saved, beside), self._secure.requested_code(task, saved, beside)
                received = received | self._secure.results(task, saved)
            saved = self._run(spec, round, saved, received)
            saved = self._secure.offered(saved, received, code) if self._secure else saved
            self._file.save(saved)
        return self._release(spec, saved)

    def _run(self, task: TaskSpec, round: int, before: Saved | None, received: Tensors) -> Saved:
        with self._refusing(PrivacyError, Refusal.BUDGET):
            self._budget.begin(task.name, round)
        with self._memory(), torch.random.fork_rng(devices=[]):
            state = before.state if before else self._method.setup(self.site)
            torch.manual_seed(self.site.task_seed(task.name, round))
            state, reply = self._method.handle(task, self.site, state, received, round)
            reply = self._method.shortened(task, self.site.backbone.shape, reply)
        if before is None:
            return Saved(task.name, round, state, reply)
        answered = replace(before, task=task.name, round=round, state=state, reply=reply)
        return replace(answered, contributions=(), number=0, summand={})

    def _memory(self) -> AbstractContextManager[None]:
        """Turns an out-of-memory error into one that names the option which makes the task smaller."""
        settings, config = self._job.dp, self._method.config
        if settings is not None:
            return memory_in_words(self._device, "physical_patients", settings.physical_patients)
        return memory_in_words(self._device, "batch_rows", getattr(config, "batch_rows", 1))

    def _release(self, task: TaskSpec, saved: Saved) -> Tensors:
        charge = self._budget.settle(task.name, saved.round)
        on_shares = self._job.secagg and task.name in self._method.on_shares
        stays = self._job.keeps_scores and charge is None and task.name not in self._method.in_clear
        if names := self._withheld(task):
            if task.name != EVALUATE:
                self._gate.refuse_job(Refusal.COUNT, f"{Refusal.COUNT.sentence} ({', '.join(names)})")
            self._file.keep(task.name, saved.reply)
            return self._gate.release(withheld(task.name), saved.round, {})
        if stays and not on_shares:
            self._file.keep(task.name, saved.reply)
            return self._gate.release(task.name, saved.round, {})
        declared = {spec.name for spec in task.up}
        reply = {n: a for n, a in saved.reply.items() if n in declared} if on_shares else saved.reply
        charged = log_charge(charge) if charge else None
        if charge is not None:
            reply = {**reply, EPSILON.name: np.array([charge.job_epsilon_before, charge.job_epsilon_after])}
        if self._secure and saved.summand:
            return self._secure.release_masked(saved, reply, charged)
        return self._gate.release(task.name, saved.round, reply, charge=charged)

    def close(self, ended: bool = True) -> None:
        """Release what this process holds of the job. With `ended`, also settle the job and log its end."""
        had_part = self._budget.close()
        try:
            if ended and had_part:
                settle_job(self.config, self._job_id)
        finally:
            if "_gate" in self.__dict__:
                self._gate.close()
            self._log.close()
