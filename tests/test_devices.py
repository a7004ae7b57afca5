"""Devices: their names, what a user reads where there is none, and what happens when the memory is too small."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_clip import TINY
from typer.testing import CliRunner

import medfedvqa as mv
from audits import Refusal
from medfedvqa.cli import app
from medfedvqa.devices import (
    DeviceMemoryError,
    exact_float32,
    in_turn,
    memory_in_words,
    problem_of,
    resolved,
)
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.error_codes import code_of
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.models import load_backbone
from medfedvqa.training.trainer import Trainer

CARDS = torch.cuda.is_available()
TOO_MUCH = 1 << 50
"""Bytes that no machine has."""
SMALL: dict[str, Any] = {
    "rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 2, "hidden": 16,
    "local_baseline": False,
}  # fmt: skip
COMMANDS = {
    "run": ["run", "fedavg", "--data", "phantom"],
    "benchmark": ["benchmark", "--data", "phantom"],
    "tune": ["tune", "--methods", "fedavg", "--data", "phantom"],
    "study": ["study", "--data", "phantom"],
    "demo": ["demo"],
    "audit attack": ["audit", "attack", "fedavg", "--data", "phantom"],
}


def of(command: str, device: str, out: Path) -> Any:
    """What a command with this device ends with; it writes below `out` if anywhere."""
    return CliRunner().invoke(app, [*COMMANDS[command], "--device", device, "--out", str(out)])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_trains_says_in_a_sentence_that_there_is_no_such_device(
    command: str, tmp_path: Path
) -> None:
    """A name that no machine has, and a card that this one lacks, after one that it has: nothing is read or written."""
    sentences = {
        "cuda:x": "cannot train on 'cuda:x': its name is unknown; write auto, cpu, cuda or cuda:NUMBER",
        "cpu,cuda:99": "cannot train on 'cuda:99': ",
    }
    for device, sentence in sentences.items():
        error = of(command, device, tmp_path / "out").exception
        assert isinstance(error, ConfigError) and sentence in str(error)
    assert not list(tmp_path.iterdir())


def test_names_of_devices() -> None:
    """`auto` is a card where torch can use one; numbers are plain; a site's file names one device, not several."""
    assert resolved("auto") == ("cuda" if CARDS else "cpu")
    assert resolved("cpu,auto").split(",")[0] == "cpu"
    assert [in_turn("cuda:0,cuda:1", number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    for name in ("", "CUDA", "cuda:", "cuda:01", "cuda:-1", "cuda:٣", "cpu\n", "mps", "cpu,cuda"):
        assert problem_of(name), name


@pytest.mark.skipif(CARDS, reason="this machine has a graphics card")
def test_a_missing_driver_is_named() -> None:
    """The sentence says what to install, or that the processor serves."""
    with pytest.raises(ConfigError, match="no graphics card or no driver; install the card's driver .* or choose cpu"):
        resolved("cuda")


def test_sites_of_one_run_take_the_devices_in_turn(tmp_path: Path) -> None:
    """Each site's file names one device."""
    job = JobSpec.from_dict({"method": "fedavg", "options": {}, "data": "phantom", "backbone": "medclip2-slake"})
    launch = Launch(job, None, tmp_path, ("a", "b", "c"), device="cuda:0,cuda:1")
    written = {site: yaml.safe_load(path.read_text())["device"] for site, path in write_sites(launch).items()}
    assert written == {"a": "cuda:0", "b": "cuda:1", "c": "cuda:0"}


def test_a_site_may_leave_the_choice_to_torch(
    sites: Callable[..., dict[str, SiteConfig]], quick_job: Callable[..., JobSpec]
) -> None:
    """`device: auto` in `site.yml` is a device by the time that the site's data and backbone are loaded."""
    with closing(SiteRuntime(sites("chest", device="auto")["chest"], quick_job(), "job")) as runtime:
        assert runtime.site.device == resolved("auto")
        assert str(runtime.site.backbone.device).startswith(runtime.site.device)


def test_cards_compute_in_whole_float32() -> None:
    """TF32 is off before a backbone is on a card, whatever torch's default is; the processor changes nothing."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        exact_float32("cpu")
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        exact_float32("cuda:1")
        assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


def allocate(*arguments: Any, **options: Any) -> None:
    torch.empty(TOO_MUCH, dtype=torch.uint8)


def card_is_full(*arguments: Any, **options: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 PiB")


@pytest.mark.parametrize("fails", [allocate, card_is_full])
@pytest.mark.parametrize(
    ("dp", "smaller"),
    [
        ({}, "batch_rows=8 instead of 16"),
        ({"noise": 1.5, "count_noise": 10.0, "physical_patients": 6}, "physical_patients=3 instead of 6"),
    ],
)
def test_too_little_memory_is_a_sentence_with_a_smaller_batch(
    fails: Callable[..., None],
    dp: dict[str, Any],
    smaller: str,
    tiny_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An allocation of the processor's that really fails, and torch's error for a card, in the midst of training."""
    monkeypatch.setattr(Trainer, "step", fails)
    job = mv.Job("prompt_pfl", backbone=TINY, method_options={**SMALL, "answers": "closed"}, dp=dp)
    with pytest.raises(FederationError, match=f"memory of the device 'cpu' is too small .* {smaller}") as raised:
        mv.run(
            job,
            mv.load("phantom"),
            sites=["site-001", "site-002"],
            out=tmp_path / "run",
            backbone_files={TINY: tiny_backbone},
        )
    assert "DefaultCPUAllocator" not in str(raised.value) and "PiB" not in str(raised.value)


def test_a_batch_of_one_cannot_be_halved_and_other_errors_pass() -> None:
    """No sentence proposes an empty batch, and an error that is not of memory stays what it is."""
    with pytest.raises(DeviceMemoryError) as raised, memory_in_words("cpu", "batch_rows", 1):
        allocate()
    assert "batch_rows" not in str(raised.value)
    assert code_of(raised.value) is Refusal.MEMORY and code_of(raised.value, private=True) is Refusal.FAILED
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), memory_in_words("cpu"):
        torch.ones(2, 3) @ torch.ones(2, 3)


@pytest.mark.skipif(not CARDS, reason="this machine has no graphics card")
def test_a_card_computes_the_same_features_and_trains(
    sites: Callable[..., dict[str, SiteConfig]],
    quick_job: Callable[..., JobSpec],
    tiny_backbone: Path,
    tmp_path: Path,
) -> None:
    """Frozen features are the processor's to 1e-4, and a job on the card ends."""
    generator = torch.Generator().manual_seed(0)
    size = load_backbone(TINY, {TINY: tiny_backbone}).shape.image_size
    pictures, features = torch.rand(4, 1, size, size, generator=generator), {}
    for device in ("cpu", "cuda"):
        backbone = load_backbone(TINY, {TINY: tiny_backbone}, device)
        features[device] = (
            backbone.cache({"image": 0, "text": 0}, pictures, ["is it normal"])._pictures[torch.arange(4)].cpu()
        )
    assert torch.allclose(features["cpu"], features["cuda"], atol=1e-4)
    job = quick_job(**SMALL)
    with closing(LocalEngine(sites("chest", "head", device="cuda"), job, "card")) as engine:
        assert serve_job(job, ("chest", "head"), engine.call, tmp_path / "out", "local")["status"] == "finished"
