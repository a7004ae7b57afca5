"""What all tests share: the data folder, a small backbone, and sites on disk."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from medfedvqa.federation.attempt import load_identity
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from medfedvqa.models.bundled import build
from medfedvqa.pretraining.train import write_weights

RANDOM = "medclip@random"
"""Name of a backbone with random weights, for tests of everything but accuracy."""

Sites = Callable[..., dict[str, SiteConfig]]


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the published data sets; tests that need it are skipped without it."""
    folder = Path(os.environ.get("MEDFEDVQA_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data")
    if not (folder / "vqa-rad").is_dir():
        pytest.skip("the data folder is absent: set MEDFEDVQA_DATA")
    return folder.resolve()


@pytest.fixture(scope="session")
def random_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the bundled architecture with random weights."""
    path = tmp_path_factory.mktemp("backbone") / "random.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write_weights(build(), path, [])
    return path


@pytest.fixture(scope="session")
def sites_in(random_backbone: Path) -> Sites:
    """As `sites`, below a folder that is given first."""

    def make(place: Path, *names: str, **changes: object) -> dict[str, SiteConfig]:
        configs = {}
        for name in names or ("chest", "abdomen", "head"):
            folder = place / name
            folder.mkdir(parents=True, exist_ok=True)
            facts = {"reader": "phantom", "organ": name, "methods": ["prompt_pfl"], **changes}
            (folder / "site.yml").write_text(site_yaml(backbones={RANDOM: str(random_backbone)}, **facts))
            configs[name] = load_site_config(folder / "site.yml", name)
        return configs

    return make


@pytest.fixture
def sites(tmp_path: Path, sites_in: Sites) -> Sites:
    """Writes `site.yml` files for phantom sites and loads them; keywords change what the files say."""
    return partial(sites_in, tmp_path / "sites")


@pytest.fixture
def quick_job() -> Callable[..., JobSpec]:
    """A job that trains in a second per site and round; keywords are options of prompt_pfl."""

    def make(**options: object) -> JobSpec:
        small = {"rounds": 2, "local_epochs": 2, "local_unit": "batches", "batch_rows": 16, "blocks": 2, "hidden": 16}
        settings = {**small, "local_baseline": False, **options}
        return JobSpec.from_dict({"method": "prompt_pfl", "options": settings, "data": "phantom", "backbone": RANDOM})

    return make


@pytest.fixture
def introduced(sites: Sites) -> Sites:
    """As `sites`, where each site pins the fingerprints of the others."""

    def make(*names: str, **changes: object) -> dict[str, SiteConfig]:
        configs = sites(*names, **changes)
        pins = {name: load_identity(config).fingerprint for name, config in configs.items()}
        return {name: config.model_copy(update={"peers": pins}) for name, config in configs.items()}

    return make
