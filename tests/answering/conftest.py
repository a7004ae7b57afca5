"""A small finished run, and pictures to ask about."""

from pathlib import Path

import pytest
import torch
from cli.conftest import medfedvqa
from PIL import Image
from tiny_clip import TINY

from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run

__all__ = ["medfedvqa"]
QUESTIONS = ("Is there a pneumothorax?", "is the MASS on the left side??", "What is it: CT-2, or X-ray's film in 3D?")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """The folder of a finished run of two phantom sites, with prompts, whose answers are a public list."""
    out = tmp_path_factory.mktemp("runs") / "run"
    options = {"rounds": 2, "local_epochs": 2, "local_unit": "batches", "batch_rows": 16, "blocks": 2, "hidden": 16}
    options |= {"local_baseline": False, "answers": "closed"}
    job = {"method": "prompt_pfl", "options": options, "data": "phantom", "backbone": TINY}
    launch = plan(JobSpec.from_dict(job), None, out, ("chest", "head"), 1, {TINY: tiny_backbone})
    run(launch, "local", lambda event: None)
    return out


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PNG of noise, 90 x 61 pixels."""
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    grey = torch.randint(256, (61, 90), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    Image.fromarray(grey.numpy()).save(path)
    return path
