"""What tests of secure aggregation in process share, and really provisioned kits."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctored import DP, SITE, charge, edit_site, provisioned

from medfedvqa.core import Method, registry
from medfedvqa.federation.aggregation_attempt import load_identity
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig

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
        monkeypatch.setitem(registry._METHODS, method.name, method)
        configs = introduced(*names, organ="chest", methods=[method.name], **(allowed or {}))
        job = quick_job(rounds=rounds, answers="closed").to_dict() | {"method": method.name, "secagg": True, **fields}
        return configs, JobSpec.from_dict(job)

    return made


@pytest.fixture(scope="session")
def site_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of a site, its server and an administrator."""
    return provisioned(tmp_path_factory.mktemp("kits"))


@pytest.fixture
def site_kit(site_kits: Path, tmp_path: Path) -> Path:
    """A copy of the site's kit."""
    kit = Path(shutil.copytree(site_kits / SITE, tmp_path / SITE))
    edit_site(kit)
    return kit


@pytest.fixture(scope="session")
def charged_kit(site_kits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit with all files that a site makes itself."""
    kit = Path(shutil.copytree(site_kits / SITE, tmp_path_factory.mktemp("charged") / SITE))
    charge(kit)
    load_identity(edit_site(kit, **DP))
    return kit
