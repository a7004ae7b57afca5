"""Names of backbones: what is refused without torch, and the sentences that help."""

import subprocess
import sys
from pathlib import Path

import open_clip
import pytest
from open_clip.pretrained import list_pretrained

from medfedvqa.backbone_names import architectures, check, configuration, looks_like_path, parse, refusal
from medfedvqa.errors import BackboneError

ROOT = Path(__file__).parents[2]


def refused(name: str) -> str:
    with pytest.raises(BackboneError) as caught:
        check(name)
    return str(caught.value)


def test_the_configurations_are_open_clips() -> None:
    """Read from its files without importing it."""
    assert set(architectures()) <= set(open_clip.list_models()) and len(architectures()) >= 144
    assert all(configuration(name) == open_clip.get_model_config(name) for name in ("RN50", "EVA02-B-16", "coca_base"))


def test_every_tag_of_an_accepted_architecture_is_a_name() -> None:
    """As open_clip lists its pretrained models."""
    for architecture, tag in list_pretrained():
        parsed = parse(f"{architecture}/{tag}")
        assert (parsed.architecture, parsed.tag, parsed.label) == (architecture, tag, None)


@pytest.mark.parametrize(
    ("name", "architecture", "folder"),
    [
        ("ViT-B-32@mine", "ViT-B-32", False),
        ("hf-hub:org/name.v2@mine", "hf-hub:org/name.v2", True),
        ("local-dir:plip@mine", "local-dir:plip", True),
        ("hf-hub:org/name", "hf-hub:org/name", False),
    ],
)
def test_names_have_parts(name: str, architecture: str, folder: bool) -> None:
    """A name with a label is a local file, or a folder that alone says what the model is."""
    parsed = parse(name)
    assert (parsed.full, parsed.architecture, parsed.is_folder) == (name, architecture, folder)


PATHS = (
    "/models/clip.pt",
    "models/clip/weights",
    "~/clip",
    "./clip.pt",
    "clip.safetensors",
    "C:\\models",
    "local-dir:/a/b",
)


@pytest.mark.parametrize("name", PATHS)
def test_a_path_gives_the_sentence_that_helps_and_is_not_repeated(name: str) -> None:
    """It belongs into site.yml."""
    message = refused(name)
    assert looks_like_path(name) and name not in message and "site.yml" in message and "@mine" in message


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ViT-B-33/openai", "'ViT-B-32'"),
        ("RN5O@mine", "'RN50'"),
        ("medclip2-slak", "'medclip2-slake'"),
        ("ViT-B-32", "ViT-B-32/TAG"),
        ("medclip-slake", "up to version 0.2.0: name medclip2-slake"),
        ("medclip/tag", "medclip@LABEL"),
        ("biomedclip", "hf-hub:org/name"),
    ],
)
def test_a_near_name_is_suggested(name: str, part: str) -> None:
    """Or else what forms there are."""
    assert part in refused(name)


def test_what_is_refused_has_a_reason_and_is_at_most_14_of_144() -> None:
    """Each reason names the part that is not read."""
    reasons = {name: reason for name in architectures() if (reason := refusal(configuration(name)))}
    assert len(reasons) <= 14 and all("tower" in reason for reason in reasons.values())


def test_a_refusal_takes_no_torch_and_less_than_150_megabytes() -> None:
    """Of the command that trains; no data set is read."""
    command = "from medfedvqa.cli import main; main()"
    words = ["run", "prompt_pfl", "--data", "vqa-rad", "--backbone", "swin_base_patch4_window7_224@x"]
    script = f"""
import sys
sys.argv[1:] = {words!r}
try:
    {command}
finally:
    most = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(int(most) // 1024, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    megabytes, torch_is_there = done.stdout.split()
    assert done.returncode == 1 and "cannot be used" in done.stderr and torch_is_there == "False"
    assert int(megabytes) < 150
