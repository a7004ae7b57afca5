"""The in-process engine: sites take turns in one process, through the same gates as in a federation."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from medfedvqa.errors import FederationError
from medfedvqa.federation.failures import ACTIONABLE
from medfedvqa.federation.hub import Reply
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site import SiteRuntime
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.methods import Tensors
from medfedvqa.models import Backbone, load_backbone


class LocalEngine:
    """Calls sites one after the other, on one backbone. At most `resident` sites keep their pictures in memory."""

    def __init__(self, sites: Mapping[str, SiteConfig], job: JobSpec, job_id: str, resident: int = 128) -> None:
        self._sites, self._job, self._job_id, self._resident = sites, job, job_id, resident
        self._running: OrderedDict[str, SiteRuntime] = OrderedDict()
        self._backbones: dict[tuple[str, Path | None, str], Backbone] = {}

    def call(
        self, task: str, round: int, messages: Mapping[str, Tensors], answered: Callable[[str], None]
    ) -> dict[str, Reply]:
        """One task at each addressed site. Raises `FederationError` naming the site that refused."""
        replies = {}
        for site, tensors in messages.items():
            began = time.monotonic()
            try:
                answer = self._runtime(site).handle(task, round, tensors)
            except ACTIONABLE as error:
                raise FederationError(f"site '{site}' stopped the job: {error}") from error
            replies[site] = Reply(answer, time.monotonic() - began)
            answered(site)
        return replies

    def _runtime(self, site: str) -> SiteRuntime:
        if site not in self._running:
            self._running[site] = SiteRuntime(self._sites[site], self._job, self._job_id, self._backbone)
        self._running.move_to_end(site)
        if len(self._running) > self._resident:
            _, longest_idle = self._running.popitem(last=False)
            longest_idle.close(ended=False)
        return self._running[site]

    def _backbone(self, name: str, files: Mapping[str, Path], device: str) -> Backbone:
        key = name, files.get(name), device
        if key not in self._backbones:
            self._backbones[key] = load_backbone(name, files, device)
        return self._backbones[key]

    def close(self) -> None:
        """The job is over: close the log of every site in memory."""
        while self._running:
            self._running.popitem()[1].close()
