"""The in-process engine: sites take turns in one process, through the same gates as in a federation."""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from medfedvqa.core import Site, State
from medfedvqa.data import load_site
from medfedvqa.errors import FederationError
from medfedvqa.federation.error_codes import ACTIONABLE, code_of
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.quorum import Quorum
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import LoadData, SiteRuntime
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import Backbone, FeatureStore, load_backbone
from privacy.secagg import InProcessRelay


def _in_time(replies: dict[str, Reply], quorum: Quorum) -> dict[str, Reply]:
    """The answers that arrive before the quorum is reached, in their order."""
    by_time = sorted(replies, key=lambda site: replies[site].seconds)
    late = {site for place, site in enumerate(by_time) if quorum.reached(place, replies[site].seconds)}
    return {site: reply for site, reply in replies.items() if site not in late}


class LocalEngine:
    """Calls sites one after the other, on one backbone, and all at once where they aggregate on shares.

    At most `resident` sites keep their pictures in memory.
    """

    def __init__(
        self,
        sites: Mapping[str, SiteConfig],
        job: JobSpec,
        job_id: str,
        resident: int = 128,
        load_data: LoadData = load_site,
        store: FeatureStore | None = None,
    ) -> None:
        """`store`: where outputs of the frozen backbone are kept for other runs of this machine, if anywhere."""
        self._sites, self._job, self._job_id, self._load_data = sites, job, job_id, load_data
        # Sites that exchange messages must all stay in memory.
        self._resident = max(resident, len(sites)) if job.secagg else resident
        shared = job.build().aggregated
        self._together = {name for task, how in shared.items() for name in how.joint(task)}
        self._relays: dict[str, InProcessRelay] = defaultdict(InProcessRelay)
        self._running: OrderedDict[str, SiteRuntime] = OrderedDict()
        self._store = store
        self._backbones: dict[tuple[str, Path | None, str], Backbone] = {}

    def call(self, call: TaskCall) -> dict[str, Reply]:
        """One task at each addressed site. Raises what `TaskCall.refused` raises when a site refuses.

        Sites take turns, and each has the whole time of the call for itself: where the call has a limit of time or of
        answers, the sites that took longest miss it, as if all had worked at once.
        """

        def answer(site: str) -> tuple[str, Reply] | None:
            began = time.monotonic()
            try:
                incoming = call.audit_bytes.get(site, b"")
                tensors, outgoing = self._runtime(site).answer(call.task, call.round, call.messages[site], incoming)
            except ACTIONABLE as error:
                try:
                    call.refused(site, code_of(error, private=self._job.dp is not None), str(error))
                except FederationError as end:
                    raise end from error
                return None
            call.answered(site)
            return site, Reply(tensors, time.monotonic() - began, outgoing)

        if call.task not in self._together:
            return _in_time(dict(filter(None, map(answer, call.messages))), call.quorum)
        with ThreadPoolExecutor(len(call.messages)) as pool:
            done = as_completed([pool.submit(answer, site) for site in call.messages])
            return dict(filter(None, (one.result() for one in done)))

    def _runtime(self, site: str) -> SiteRuntime:
        if site not in self._running:
            self._running[site] = SiteRuntime(
                self._sites[site],
                self._job,
                self._job_id,
                self._backbone,
                lambda attempt: self._relays[attempt].of(site),
                self._load_data,
            )
        self._running.move_to_end(site)
        if len(self._running) > self._resident:
            _, longest_idle = self._running.popitem(last=False)
            longest_idle.close(ended=False)
        return self._running[site]

    def _backbone(self, name: str, files: Mapping[str, Path], device: str) -> Backbone:
        key = name, files.get(name), device
        if key not in self._backbones:
            self._backbones[key] = load_backbone(name, files, device).storing(self._store)
        return self._backbones[key]

    def kept(self) -> dict[str, tuple[Site, State]]:
        """Each site with its saved state, for analyses on this machine; empty if a site has none or is not in
        memory.
        """
        saved = {site: StateFile(config.state, self._job_id).load() for site, config in self._sites.items()}
        states = {site: each.state for site, each in saved.items() if each and site in self._running}
        return {n: (self._runtime(n).site, state) for n, state in states.items() if len(states) == len(self._sites)}

    def close(self) -> None:
        """End the job: close the log of every site in memory."""
        while self._running:
            self._running.popitem()[1].close()
