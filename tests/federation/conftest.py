"""What tests of secure aggregation in process share, provisioned kits, and federations that run."""

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from doctored import DP, SITE, charge, edit_site, provisioned
from in_process import Job, Sites
from phantoms import Phantoms
from untrained import DP as NOISY
from untrained import Make

from medfedvqa.core import Method, registry
from medfedvqa.federation.aggregation_attempt import load_identity
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests through FLARE have half an hour each; FLARE's transport has a deprecated call on one of its threads."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name.startswith("test_flare_"):
            item.add_marker(pytest.mark.timeout(1800))
            item.add_marker(pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"))


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[Callable[..., Phantoms]]:
    """Starts federations of phantom sites, which end with the file's tests. `kind`: of the federation, as an attacker
    has it; other keywords are its own, or facts of every `site.yml`."""
    with ExitStack() as running:

        def start(names: Collection[str], kind: type[Phantoms] = Phantoms, **options: Any) -> Phantoms:
            return running.enter_context(kind(tmp_path_factory.mktemp("federation"), names, random_backbone, **options))

        yield start


@pytest.fixture
def private_job(quick_job: Job) -> Job:
    """A quick job under differential privacy; keywords are options of the method."""
    return lambda **options: quick_job(answers="closed", **options).model_copy(update={"dp": NOISY})


@pytest.fixture
def job_on_shares(introduced: Sites, quick_job: Job, monkeypatch: pytest.MonkeyPatch) -> Make:
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
