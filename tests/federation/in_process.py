"""Sites in the process of the test: what passes between them and the server is kept, dies or changes as a test says."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from medfedvqa.core import Tensors
from medfedvqa.errors import FederationError
from medfedvqa.federation.aggregation_attempt import Attempt
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.models import Backbone
from privacy import Ledger, spent

Sites = Callable[..., dict[str, SiteConfig]]
"""The fixtures `sites` and `introduced`."""
Job = Callable[..., JobSpec]
"""The fixture `quick_job`."""
_BACKBONES: dict[tuple[str, Path | None, str], Backbone] = {}
"""All that were loaded, for all engines: to load one takes longer than most jobs that do not train."""


class Engine:
    """Calls sites; by task, `before` and `after` say which of them die, before the task or before its answer arrives.
    `tamper` sees, and may change, each message to a site, and `bend` each answer on its way, as if it had no gate."""

    def __init__(self, configs: Mapping[str, SiteConfig], job: JobSpec, job_id: str = "job") -> None:
        self.local = LocalEngine(configs, job, job_id)
        self.local._backbones = _BACKBONES
        self.before: dict[str, set[str]] = {}
        self.after: dict[str, set[str]] = {}
        self.tamper: Callable[[str, str, Tensors], Tensors] = lambda task, site, message: message
        self.bend: Callable[[str, str, Tensors], Tensors] = lambda task, site, answer: answer
        self.dead: set[str] = set()
        self.restarts = True
        """Whether a site's process that refused is followed by another, which knows what the site's files say."""
        self.passed: list[tuple[str, Tensors]] = []
        """Task and message of all that was sent, to sites and by them."""

    def call(self, call: TaskCall) -> dict[str, Reply]:
        """See `medfedvqa.federation.hub.Engine`."""
        task = call.task
        self.dead |= self.before.get(task, set())
        messages = {site: self.tamper(task, site, message) for site, message in call.messages.items()}
        self.passed += [(task, message) for message in messages.values()]
        living = {site: message for site, message in messages.items() if site not in self.dead}
        try:
            replies = self.local.call(replace(call, messages=living))
        except FederationError:
            while self.restarts and self.local._running:
                self.local._running.popitem()[1].close(ended=False)
            raise
        self.passed += [(task, reply.tensors) for reply in replies.values()]
        self.dead |= self.after.get(task, set())
        bent = {site: reply._replace(tensors=self.bend(task, site, reply.tensors)) for site, reply in replies.items()}
        return {site: reply for site, reply in bent.items() if site not in self.dead}

    @property
    def attempts(self) -> list[Attempt]:
        """In order."""
        said = [Attempt.read(message) for _, message in self.passed if "attempt" in message]
        return list({attempt.name: attempt for attempt in said}.values())

    def sent(self, task: str, name: str) -> list[np.ndarray]:
        """A tensor of this name in every message of a task."""
        return [tensors[name] for asked, tensors in self.passed if asked == task and name in tensors]


def ask(engine: Engine, task: str, sites: Collection[str], message: Tensors) -> dict[str, Reply]:
    return engine.call(TaskCall(task, 1, dict.fromkeys(sites, message)))


def in_clear_and_on_shares(
    configs: Mapping[str, SiteConfig], job: JobSpec, folder: Path
) -> tuple[dict[str, Engine], dict[str, Any]]:
    """The engines after the job `plain`, and after the same on shares, `secure`; and the results of that."""
    runs = {}
    for name, secagg in (("plain", False), ("secure", True)):
        (folder / name).mkdir()
        spec = JobSpec.from_dict(job.to_dict() | {"secagg": secagg})
        runs[name] = Engine(configs, spec, name)
        results = serve_job(spec, tuple(configs), runs[name].call, folder / name, "local")
    return runs, results


def work(config: SiteConfig, job: JobSpec, job_id: str) -> list[Tensors]:
    """All tasks of a job at one site, which mixes with itself."""
    runtime = SiteRuntime(config, job, job_id)
    try:
        replies = [runtime.handle("start", 1, {})]
        shared = {name: replies[0][name] for name in ("prompt.image", "prompt.text")}
        replies.append(runtime.handle("train", 2, shared))
        return [*replies, runtime.handle("evaluate", 2, shared)]
    finally:
        runtime.close()


def cost(job: JobSpec, times: int = 1) -> float:
    """The epsilon of a patient who is in the whole job, by itself or several times."""
    assert job.dp is not None
    return spent([event for task in job.build().plan() for event in task.events] * times, job.dp.delta).epsilon


@contextmanager
def opened(config: SiteConfig) -> Iterator[Ledger]:
    """The site's ledger."""
    with closing(Ledger(config.ledger, config.name)) as ledger:
        yield ledger


def budget(config: SiteConfig, delta: float = 1e-5) -> tuple[float, float]:
    """The epsilon that a site's ledger says was spent, and authorised, over all jobs."""
    with opened(config) as ledger:
        return ledger.together(delta, False).epsilon, ledger.together(delta, True).epsilon
