"""A server that lies to real sites: it makes and reads all arrays itself, and asks for any task in any order.

Nothing of the honest server is in it. What it knows is what it was sent: `lying_views` shows what a curious or
malicious server computes from that.
"""

import json
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from in_process import _BACKBONES, budget, cost, opened
from lying_network import Network
from lying_views import Exchange, MaskedUpload

from audits import Event, JobRefused, ReceiptRefused, ReleaseRefused, read, verify
from medfedvqa.core import Tensors
from medfedvqa.data import SiteData, Split, load_site
from medfedvqa.federation.admission import Signature
from medfedvqa.federation.error_codes import code_of
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import LoadData, SiteRuntime
from medfedvqa.models import Backbone, load_backbone
from privacy.secagg.pairwise_masks import threshold
from privacy.secagg.ring import Ring

DEADLINE = 120.0
"""Seconds after which a task that no site has answered counts as a hang."""

TOGETHER = ("/mean", "/unmask", "/mix")
"""Endings of the tasks in which sites talk to each other."""


@dataclass(frozen=True)
class Answer:
    """What a site replied: arrays, or the code of a refusal."""

    tensors: Tensors = field(default_factory=dict)
    code: str = ""


class Liar(ABC):
    """A server without its transport."""

    job: JobSpec

    @abstractmethod
    def ask(self, task: str, round: int, messages: Mapping[str, Tensors]) -> dict[str, Answer]:
        """One task at each of these sites, each with its own message. Raises `AssertionError` if one hangs."""

    def tell(
        self, task: str, round: int, sites: Collection[str], message: "Tensors | None" = None
    ) -> dict[str, Answer]:
        """One task at each of these sites, with the same message for all."""
        return self.ask(task, round, {site: dict(message or {}) for site in sites})

    def mean(
        self, task: str, round: int, sites: Collection[str], names: Sequence[str], weight: str, number: int = 1
    ) -> Ring | None:
        """Asks for one sum over the saved answers to a task, and opens it; None if it does not come to that.

        `names`: of the tensors that are averaged.
        """
        name, group = secrets.token_hex(8), tuple(sorted(sites))
        answers = self.tell(f"{task}/mean", round, group, attempt_message(name, group, group, number))
        uploads = {site: upload for site, answer in answers.items() if (upload := read_upload(answer, names, weight))}
        if len(uploads) < threshold(len(group)):
            return None
        openings = self.tell(f"{task}/unmask", round, sorted(uploads), opening_message(name, uploads))
        return opened_sum(Exchange(group, group, uploads=uploads), openings)


class NearLiar(Liar):
    """Asks sites on this machine, which reach each other by `network`."""

    network: Network

    @abstractmethod
    def _answer(self, site: str, task: str, round: int, message: Tensors) -> Answer:
        """One site's answer."""

    def ask(self, task: str, round: int, messages: Mapping[str, Tensors]) -> dict[str, Answer]:
        """See `Liar.ask`; sites that talk to each other work at once."""
        answers: dict[str, Answer] = {}

        def work(site: str) -> None:
            try:
                answers[site] = self._answer(site, task, round, messages[site])
            finally:
                self.network.end()

        crowds = [list(messages)] if task.endswith(TOGETHER) else [[site] for site in messages]
        for crowd in crowds:
            self.network.begin(len(crowd))
            threads = [threading.Thread(target=work, args=(site,), daemon=True) for site in crowd]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE)
            assert not any(thread.is_alive() for thread in threads), f"a site hangs in the task {task}"
        return {site: answers[site] for site in messages}


class LyingServer(NearLiar):
    """Asks sites of this process. A site keeps its runtime until it is restarted."""

    def __init__(
        self,
        configs: Mapping[str, SiteConfig],
        job: JobSpec,
        job_id: str = "job",
        load_data: LoadData = load_site,
        signature: Signature | None = None,
    ) -> None:
        """`signature`: who signed the job, which a server cannot change; None for a job that nobody signs."""
        self.configs, self.job, self.job_id, self.network = configs, job, job_id, Network()
        self._load_data, self._signature = load_data, signature
        self._runtimes: dict[str, SiteRuntime] = {}

    def _answer(self, site: str, task: str, round: int, message: Tensors) -> Answer:
        """As a site answers in a federation: a failure is logged as a refusal, and ends the site's part."""
        runtime = self._runtime(site)
        try:
            return Answer(runtime.handle(task, round, message))
        except Exception as error:
            if not isinstance(error, JobRefused | ReleaseRefused | ReceiptRefused):
                self._refuse(runtime, error)
            return Answer(code=code_of(error).value)

    def _refuse(self, runtime: SiteRuntime, error: Exception) -> None:
        with suppress(JobRefused):
            runtime.refuse(code_of(error), str(error))

    def _runtime(self, site: str) -> SiteRuntime:
        if site not in self._runtimes:
            self._runtimes[site] = SiteRuntime(
                self.configs[site],
                self.job,
                self.job_id,
                _shared_backbone,
                lambda attempt: self.network.relay(site, attempt),
                self._load_data,
                self._signature,
            )
        return self._runtimes[site]

    def restart(self, *sites: str) -> None:
        """The processes of these sites die and come back: what they saved and logged is all that they know."""
        for site in sites:
            if runtime := self._runtimes.pop(site, None):
                # Dead, not closed: a job that is closed is over.
                runtime._budget.close()
                runtime._log.close()

    def close(self, ended: bool = True) -> None:
        """The job is over at all sites."""
        for runtime in self._runtimes.values():
            runtime.close(ended)
        self._runtimes.clear()


def _shared_backbone(name: str, files: Mapping[str, Path], device: str) -> Backbone:
    key = name, files.get(name), device
    if key not in _BACKBONES:
        _BACKBONES[key] = load_backbone(name, files, device)
    return _BACKBONES[key]


@cache
def shared_data(
    reader: str, root: Path | None, organ: str, split: Split, seed: int, answers: tuple[str, ...] | None
) -> SiteData:
    """The rows of all sites whose method looks at none: drawing them takes longer than a script."""
    return load_site(reader, root, organ, split, seed, answers)


# What the server writes.


def as_json(value: Any) -> np.ndarray:
    """Plain JSON as bytes in an array."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def attempt_message(
    name: str, sites: Collection[str], members: Collection[str], number: int = 1, dealt: bytes = b""
) -> Tensors:
    """The message that describes an attempt, true or not."""
    description = {"name": name, "sites": list(sites), "members": list(members), "number": number}
    return {"attempt": as_json(description), "dealt": np.frombuffer(dealt, np.uint8)}


def opening_message(name: str, uploaded: Collection[str]) -> Tensors:
    """The message that asks members to open the sum of these sites' uploads."""
    return {"uploaded": as_json({"attempt": name, "sites": sorted(uploaded)})}


def hex_message(array: str, parts: Mapping[str, bytes]) -> Tensors:
    """The message that carries what each site sent in a draw."""
    return {array: as_json({site: part.hex() for site, part in parts.items()})}


# What the server reads and computes.


def read_upload(answer: Answer, names: Sequence[str], weight: str) -> MaskedUpload | None:
    """The masked upload in an answer, if it holds one."""
    parts = [*sorted(names), weight, "contributors"]
    if not {*parts, "mask_key"} <= answer.tensors.keys():
        return None
    values = np.concatenate([np.asarray(answer.tensors[part], np.int64).reshape(-1) for part in parts])
    return MaskedUpload(values.view(np.uint64), np.asarray(answer.tensors["mask_key"], "<i8").tobytes())


def read_opening(answer: Answer) -> list[bytes]:
    """A member's shares by the rank of their site; none if it refused."""
    return [np.asarray(row, "<i8").tobytes() for row in answer.tensors.get("opening", ())]


def opened_sum(exchange: Exchange, openings: Mapping[str, Answer]) -> Ring | None:
    """The sum of all uploads, after members were asked for it; None if fewer than the threshold gave shares."""
    for member, answer in openings.items():
        exchange.opened(member, read_opening(answer), exchange.uploads)
    return exchange.sum_of(exchange.uploads, exchange.keys())


def numbers(total: Ring) -> np.ndarray:
    """A sum as numbers: what is averaged times the weights, then the weights; without the count of sites."""
    return np.asarray(np.ldexp(total[:-1].view(np.int64).astype(np.float64), -24))


def refusals(config: SiteConfig) -> list[str]:
    """The codes of the refusals in a site's log."""
    entries = read(config.audit)
    return [entry.admission["code"] for entry in entries if entry.event is Event.REFUSAL and entry.admission]


def assert_refused_in_order(server: LyingServer, sites: tuple[str, ...]) -> None:
    """Each of these sites logged one refusal, with the code of a task out of order, in a log that verifies."""
    for site in sites:
        assert refusals(server.configs[site]) == ["order"]
        assert verify(server.configs[site].audit).ok


def overspent(config: SiteConfig, job: JobSpec) -> bool:
    """Whether a job in a site's ledger has spent more than the plan of this one."""
    assert job.dp is not None
    if not config.ledger.exists():
        return False
    with opened(config) as ledger:
        accounts = ledger.accounts(job.dp.delta)
    return any(part.epsilon > cost(job) + 1e-9 for account in accounts for part in account.jobs)


def charged(config: SiteConfig, delta: float) -> tuple[float, int]:
    """The epsilon that the site's ledger says was spent, and how many entries of its log carry a charge."""
    return budget(config, delta)[0], sum(entry.dp_event is not None for entry in read(config.audit))
