"""Weights as people have them: an accepted form gives the library's features, any other is refused by its cause."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_folders import biomedclip, pubmedclip, siglip, write
from tiny_models import small_timm

from medfedvqa.errors import BackboneError
from medfedvqa.models import TuningConfig, load_backbone
from medfedvqa.models.clip import ClipBackbone

SECRET = "hospital-folder"
"""Part of every path in these tests; no message may hold it."""
QUESTIONS = ["is it bright?", "why"]
CLIP = "local-dir:pubmedclip@mine"
Weights = dict[str, torch.Tensor]
Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A CLIP as transformers saves it."""
    return pubmedclip(tmp_path / SECRET)


def features(folder: Path, name: str = CLIP) -> tuple[ClipBackbone, torch.Tensor, torch.Tensor]:
    """The backbone, its features of two pictures and two questions, and the normalised pictures."""
    backbone: Any = load_backbone(name, {name: folder})
    size = backbone.shape.image_size
    pictures = torch.rand(2, 1, size, size, generator=torch.Generator().manual_seed(1))
    cache = backbone.cache({"image": 0, "text": 0}, pictures, QUESTIONS)
    batch = cache.batch(torch.arange(2), cache.question_ids(QUESTIONS), torch.zeros(2, dtype=torch.int64))
    found = backbone.features(batch, TuningConfig("classifier").applied(backbone, {}))
    return backbone, found, backbone.normalised(pictures)


def library_features(folder: Path, pixels: torch.Tensor, interpolate: bool = False) -> torch.Tensor:
    """By transformers' own loader, tokenizer and model."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(QUESTIONS, padding="max_length", max_length=40, return_tensors="pt").input_ids
    with torch.no_grad():
        seen = model.vision_model(pixel_values=pixels, interpolate_pos_encoding=interpolate).pooler_output
        words = model.text_model(input_ids=ids)
    is_clip = model.config.model_type == "clip"
    return torch.cat([seen, words.pooler_output if is_clip else words.last_hidden_state[:, -1]], dim=1)


def weights_of(folder: Path) -> Weights:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return weights


def changed(change: Callable[[Weights], Weights]) -> Change:
    """Writes changed weights."""
    return lambda folder: save_file(change(weights_of(folder)), folder / "model.safetensors", {"format": "pt"})


def as_bin(change: Callable[[Weights], dict[str, Any]]) -> Change:
    """Writes changed weights as torch saves them."""
    return lambda folder: torch.save(change(weights_of(folder)), folder / "pytorch_model.bin")


def parts(folder: Path, suffix: str = "safetensors") -> None:
    """Two files and their index."""
    weights, stem = weights_of(folder), "model" if suffix == "safetensors" else "pytorch_model"
    names = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    places = {key: names[number % 2] for number, key in enumerate(sorted(weights))}
    for name in names:
        part = {key: weights[key] for key, place in places.items() if place == name}
        save_file(part, folder / name, {"format": "pt"}) if suffix == "safetensors" else torch.save(part, folder / name)
    write(folder / f"{stem}.{suffix}.index.json", {"metadata": {}, "weight_map": places})


def prefixed(prefix: str) -> Callable[[Weights], Weights]:
    return lambda weights: {f"{prefix}{key}": tensor for key, tensor in weights.items()}


def unpadded(folder: Path) -> None:
    """The same tokenizer as a class that has no padding of its own."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(folder).backend_tokenizer.save(str(folder / "tokenizer.json"))
    for file in ("vocab.json", "merges.txt"):
        (folder / file).unlink()
    special = dict.fromkeys(("eos_token", "unk_token"), "<|endoftext|>")
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})


FORMS: dict[str, tuple[Change, str]] = {
    "parts of safetensors": (parts, ""),
    "parts of torch": (lambda folder: parts(folder, "bin"), ""),
    "DataParallel": (as_bin(prefixed("module.")), ""),
    "model. and module.": (changed(prefixed("module.model.")), ""),
    "torch.compile": (changed(prefixed("_orig_mod.")), ""),
    "a checkpoint of Lightning with its loss": (
        as_bin(lambda weights: {"state_dict": prefixed("model.")(weights) | {"loss.w": torch.ones(2)}, "epoch": 3}),
        "left out, since the backbone has no such part: loss",
    ),
    "a training checkpoint": (as_bin(lambda weights: {"model_state_dict": weights, "optimizer": {}}), ""),
    "without logit_scale": (
        changed(lambda weights: {key: value for key, value in weights.items() if key != "logit_scale"}),
        "absent, and not needed: logit_scale",
    ),
    "with position_ids": (
        changed(lambda weights: weights | {"text_model.embeddings.position_ids": torch.arange(40)[None]}),
        "",
    ),
    "with a classifier": (
        changed(lambda weights: weights | {"classifier.weight": torch.zeros(2, 24)}),
        "left out, since the backbone has no such part: classifier",
    ),
    "a tokenizer without padding": (unpadded, ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_gives_the_features_of_transformers(folder: Path, tmp_path: Path, form: str) -> None:
    """Those of the folder as transformers saved it, to 1e-5; what is left out is said."""
    whole = Path(shutil.copytree(folder, tmp_path / "whole"))
    change, note = FORMS[form]
    change(folder)
    backbone, found, pixels = features(folder)
    torch.testing.assert_close(found, library_features(whole, pixels), rtol=0, atol=1e-5)
    assert backbone.notes == ((note,) if note else ())


def test_a_siglip_without_the_weights_of_its_loss_gives_the_same(tmp_path: Path) -> None:
    """Scale and bias are the loss's alone, and the digest does not depend on chance."""
    name, folder = "local-dir:siglip@mine", siglip(tmp_path / SECRET)
    whole = Path(shutil.copytree(folder, tmp_path / "whole"))
    changed(lambda weights: {key: value for key, value in weights.items() if not key.startswith("logit_")})(folder)
    backbone, found, pixels = features(folder, name)
    torch.testing.assert_close(found, library_features(whole, pixels), rtol=0, atol=1e-5)
    assert backbone.digest == features(folder, name)[0].digest and "logit_scale, logit_bias" in backbone.notes[0]


@pytest.mark.parametrize("make", [pubmedclip, siglip])
def test_positions_of_another_picture_size_are_interpolated_as_transformers_does(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    """Weights of 32 pixels under a configuration of 64: what transformers gives with `interpolate_pos_encoding`."""
    folder = make(tmp_path / SECRET)
    whole = Path(shutil.copytree(folder, tmp_path / "whole"))
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    facts["vision_config"]["image_size"] = 64
    write(folder / "config.json", facts)
    backbone, found, pixels = features(folder)
    assert pixels.shape[-1] == 64 and "interpolated" in backbone.notes[0]
    torch.testing.assert_close(found, library_features(whole, pixels, interpolate=True), rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [16, 64])
def test_positions_are_interpolated_as_open_clip_does(tmp_path: Path, monkeypatch: Any, side: int) -> None:
    """Weights of 32 pixels in an architecture of more or fewer: what open_clip's own loader gives."""
    described = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 64, "layers": 2},
        "text_cfg": {"context_length": 9, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 2},
    }
    path = tmp_path / "tiny.safetensors"
    save_file(open_clip.model.CLIP(**described).state_dict(), path)
    other = {**described, "vision_cfg": {**described["vision_cfg"], "image_size": side}}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", other)
    backbone: Any = load_backbone("tiny@mine", {"tiny@mine": path})
    model = open_clip.model.CLIP(**other).eval()
    open_clip.load_checkpoint(model, str(path))
    for key, value in model.state_dict().items():
        torch.testing.assert_close(backbone.clip.state_dict()[key], value, rtol=0, atol=1e-5)
    pixels = torch.rand(2, 3, side, side)
    torch.testing.assert_close(backbone.clip.encode_image(pixels), model.encode_image(pixels), rtol=0, atol=1e-5)


def refused(folder: Path, name: str = CLIP) -> str:
    """The message of a refusal, which names no path."""
    with pytest.raises(BackboneError) as caught:
        load_backbone(name, {name: folder})
    assert SECRET not in str(caught.value)
    return str(caught.value)


def poisoned(key: str, value: float) -> Change:
    """One number is not finite."""

    def change(weights: Weights) -> Weights:
        weights[key].view(-1)[0] = value
        return weights

    return changed(change)


def truncated(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:-1000])


def extended(weights: Weights) -> Weights:
    """One block more than the configuration says, and a head."""
    block = {key: value for key, value in weights.items() if "text_model.encoder.layers.1." in key}
    more = {key.replace("layers.1.", "layers.2."): value.clone() for key, value in block.items()}
    return weights | more | {"classifier.weight": torch.zeros(2, 24)}


def reconfigured(folder: Path, **facts: Any) -> None:
    write(folder / "config.json", json.loads((folder / "config.json").read_text(encoding="utf-8")) | facts)


REFUSED: dict[str, tuple[Change, str]] = {
    "NaN": (poisoned("visual_projection.weight", float("nan")), "'visual_projection.weight' holds NaN or infinity"),
    "infinity": (poisoned("text_model.final_layer_norm.bias", float("inf")), "holds NaN or infinity"),
    "a pointer of Git LFS": (
        lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid x\n"),
        "Git LFS pointer",
    ),
    "a cut file": (lambda folder: truncated(folder, "model.safetensors"), "cut or damaged"),
    "an empty file": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cut or damaged"),
    "a cut file of torch": (
        lambda folder: (as_bin(dict)(folder), truncated(folder, "pytorch_model.bin")),
        "cut or damaged",
    ),
    "a missing part": (
        lambda folder: (parts(folder), (folder / "model-00002-of-00002.safetensors").unlink()),
        "1 of 2 parts are missing",
    ),
    "a cut part": (
        lambda folder: (parts(folder), truncated(folder, "model-00002-of-00002.safetensors")),
        "cut or damaged",
    ),
    "a whole pickled model": (lambda folder: torch.save(torch.nn.Linear(2, 2), _bin(folder)), "whole pickled model"),
    "an adapter": (
        lambda folder: (weights_of(folder), (folder / "config.json").rename(folder / "adapter_config.json")),
        "merge_and_unload",
    ),
    "a picture tower alone": (lambda folder: reconfigured(folder, model_type="clip_vision_model"), "both towers"),
    "one block too many": (changed(extended), "tensors differ"),
    "another context": (
        lambda folder: reconfigured(
            folder,
            text_config=json.loads((folder / "config.json").read_text(encoding="utf-8"))["text_config"]
            | {"max_position_embeddings": 50},
        ),
        "another picture size or context",
    ),
}


def _bin(folder: Path) -> Path:
    weights_of(folder)
    return folder / "pytorch_model.bin"


@pytest.mark.parametrize("form", REFUSED)
def test_what_cannot_be_used_is_refused_by_its_cause(folder: Path, form: str) -> None:
    """The sentence says what to do, and nothing loads."""
    change, message = REFUSED[form]
    change(folder)
    assert message in refused(folder)


def test_weights_that_are_not_finite_are_refused_by_every_way_to_load(tmp_path: Path, monkeypatch: Any) -> None:
    """open_clip's tags, local files and folders, whatever holds them: nothing trains on NaN."""
    described = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 64, "layers": 2},
        "text_cfg": {"context_length": 9, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 2},
    }
    model = open_clip.model.CLIP(**described)
    model.state_dict()["visual.proj"][0, 0] = torch.nan
    path = tmp_path / "tiny.safetensors"
    save_file(model.state_dict(), path)
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", described)
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"tag": {"file": str(path)}})
    with small_timm():
        bio = biomedclip(tmp_path / SECRET)
        weights = load_file(bio / "open_clip_model.safetensors")
        next(iter(weights.values())).view(-1)[0] = -torch.inf
        save_file(weights, bio / "open_clip_model.safetensors")
        for name, file in {"tiny@mine": path, "tiny/tag": path, "hf-hub:microsoft/BiomedCLIP@mine": bio}.items():
            with pytest.raises(BackboneError, match="holds NaN or infinity"):
                load_backbone(name, {name: file})


def test_a_tokenizer_of_open_clip_without_padding_is_refused_with_what_to_name(tmp_path: Path) -> None:
    """Its text tower finds the padding by the token's number, so no other token can stand for it."""
    with small_timm():
        folder = biomedclip(tmp_path / SECRET)
        for file in ("vocab.txt", "special_tokens_map.json"):
            (folder / file).unlink(missing_ok=True)
        write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]"})
        assert "pad_token in tokenizer_config.json" in refused(folder, "hf-hub:microsoft/BiomedCLIP@mine")
