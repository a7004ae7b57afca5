"""What tests of secure aggregation in process share."""

from collections.abc import Callable
from typing import Any

import pytest

from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.methods import Method, base

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]


@pytest.fixture
def job_on_shares(
    introduced: Sites, quick_job: Job, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[dict[str, SiteConfig], JobSpec]]:
    """Sites that know each other, and a job on shares of a method that is known during the test.

    Keywords are fields of the job; `rounds`, and `allowed`, what the sites' files say."""

    def made(
        method: type[Method[Any]], names: tuple[str, ...], rounds: int = 1, allowed: Any = None, **fields: Any
    ) -> tuple[dict[str, SiteConfig], JobSpec]:
        monkeypatch.setitem(base._METHODS, method.name, method)
        configs = introduced(*names, organ="chest", methods=[method.name], **(allowed or {}))
        job = quick_job(rounds=rounds, answers="closed").to_dict() | {"method": method.name, "secagg": True, **fields}
        return configs, JobSpec.from_dict(job)

    return made
