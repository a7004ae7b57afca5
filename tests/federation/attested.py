"""Three sites in process whose server keeps receipts, and logs of a finished job that tests may tamper with."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import _BACKBONES
from tiny_clip import TINY
from untrained import Averaged

from audits import (
    AuditKey,
    Event,
    Examination,
    examine,
    origin_of,
    read,
)
from medfedvqa.core import registry
from medfedvqa.federation.hub import TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.server_receipts import ServerReceipts
from medfedvqa.federation.site_config import SiteConfig

SITES = ("abdomen", "chest", "head")


class Federation:
    """Three sites in process and a notary, in a folder as a run has it; jobs one after the other."""

    def __init__(self, place: Path, configs: dict[str, SiteConfig], job: JobSpec) -> None:
        self.place, self.configs, self.job = place, configs, job
        self.spoil: Callable[[str, bytes], bytes] = lambda site, said: said
        """Changes what the server tells a site."""

    def run(self, job_id: str) -> dict[str, Any]:
        notary = ServerReceipts(self.job.exchange(), job_id, SITES, self.place / "notary", self.place / job_id)
        engine = LocalEngine(self.configs, self.job, job_id)
        engine._backbones = _BACKBONES

        def spoilt(call: TaskCall) -> Any:
            return engine.call(
                replace(call, audit_bytes={site: self.spoil(site, b) for site, b in call.audit_bytes.items()})
            )

        try:
            return serve_job(self.job, SITES, spoilt, self.place / job_id, "local", receipts=notary)
        finally:
            engine.close()
            notary.close()

    def audit(self, site: str) -> Path:
        return self.configs[site].audit

    def key(self, site: str) -> AuditKey:
        return AuditKey.at(self.configs[site].audit_key, origin_of(site))

    def examined(self, site: str, *against: Path) -> Examination:
        """Against all that server and other sites hold, if nothing else is given."""
        places = against or (self.place,)
        return examine(self.audit(site), site, places, network=False)

    def findings(self, site: str) -> list[str]:
        return [str(entry.reason) for entry in read(self.audit(site)) if entry.event is Event.FINDING]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, sites_in: Any) -> Iterator[Federation]:
    """A federation after one job of two rounds; tests take copies of it."""
    place = tmp_path_factory.mktemp("federation")
    facts = {"options": {"rounds": 2, "local_baseline": False}, "data": "phantom", "backbone": TINY}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._METHODS, Averaged.name, Averaged)
        job = JobSpec.from_dict({"method": Averaged.name, **facts})
        federation = Federation(place, sites_in(place / "sites", *SITES, methods=[Averaged.name]), job)
        federation.run("first")
        yield federation


@pytest.fixture
def federation(finished: Federation, tmp_path: Path, sites_in: Any) -> Federation:
    """A copy of it."""
    shutil.copytree(finished.place, tmp_path / "run")
    configs = sites_in(tmp_path / "run" / "sites", *SITES, methods=[Averaged.name])
    return Federation(tmp_path / "run", configs, finished.job)
