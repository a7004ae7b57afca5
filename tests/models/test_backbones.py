"""Backbones by name: what loads, what is refused, and what a refusal says."""

import json
import traceback
from dataclasses import replace
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP
from open_clip.transformer import QuickGELU
from safetensors.torch import load_file, save_file

import medfedvqa.models
from medfedvqa.backbone_names import BUNDLED_NAMES
from medfedvqa.errors import BackboneError
from medfedvqa.models import BackboneShape, TowerShape, bundled_for, is_bundled, load_backbone, seen_by, shape_of
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.backbones import IMAGE_DEFAULTS, TEXT_DEFAULTS, _agreed
from medfedvqa.models.bundled import BUNDLED, BundledModel, build, bundled_components, components_file
from medfedvqa.models.published_parts import parts_are_installed

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 64, "layers": 2},
    "text_cfg": {"context_length": 9, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 3},
}
TINY_SHAPE = BackboneShape(
    {"image": TowerShape(2, 64, 1), "text": TowerShape(3, 8, 2)}, embed=16, image_size=32, context=9
)
SECRET = "hospital-folder"
"""Part of every path in these tests; no message may hold it."""


def test_what_a_configuration_leaves_out_is_what_open_clip_takes() -> None:
    """So that a shape needs no open_clip, which takes seconds to import."""
    assert vars(CLIPVisionCfg()).items() >= IMAGE_DEFAULTS.items()
    assert vars(CLIPTextCfg()).items() >= TEXT_DEFAULTS.items()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / SECRET
    path.mkdir()
    return path


def state(clip: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in clip.state_dict().items()}


@pytest.fixture
def tiny(monkeypatch, folder) -> Path:
    """An architecture `tiny` that open_clip knows for the time of a test, with weights in a file."""
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", TINY)
    save_file(state(CLIP(**TINY)), folder / "tiny.safetensors")
    return folder / "tiny.safetensors"


@pytest.fixture
def hub(monkeypatch, tiny) -> Path:
    """A folder in place of the hub's server."""

    def download(model_id: str, filename: str = "tiny.safetensors", **_: object) -> str:
        if not (tiny.parent / filename).is_file():
            raise FileNotFoundError(f"no {tiny.parent / filename}")
        return str(tiny.parent / filename)

    monkeypatch.setattr(open_clip.factory, "download_pretrained_from_hf", download)
    return tiny.parent


def refused(name: str, file: Path | None = None) -> str:
    """The message of a refusal, after having made sure that it names no path."""
    with pytest.raises(BackboneError) as caught:
        load_backbone(name, {name: file} if file else {})
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None and caught.value.__suppress_context__ == bool(caught.value.__context__)
    return str(caught.value)


def test_the_shape_of_vit_b_32_is_known_without_weights():
    expected = BackboneShape(
        {"image": TowerShape(12, 768, 12), "text": TowerShape(12, 512, 8)}, embed=512, image_size=224, context=77
    )
    assert shape_of("ViT-B-32/openai") == shape_of("ViT-B-32@site") == shape_of("ViT-B-32-quickgelu/openai") == expected


def test_the_shape_of_the_bundled_architecture():
    expected = BackboneShape(
        {"image": TowerShape(6, 256, 4), "text": TowerShape(4, 256, 4)}, embed=256, image_size=128, context=64
    )
    towers = expected.towers | {"image": TowerShape(4, 192, 3)}
    third = {"image": TowerShape(2, 384, 6), "text": TowerShape(6, 384, 12)}
    shapes = {"medclip": expected, "medclip2": replace(expected, towers=towers)}
    shapes["medclip3"] = replace(expected, towers=third, image_size=224)
    assert all(shape_of(f"{name}@mine") == shape for name, shape in shapes.items())
    assert BUNDLED.keys() == BUNDLED_NAMES.keys()
    assert all(shape_of(name) == shapes[architecture] for name, architecture in BUNDLED_NAMES.items())


def test_what_bundled_weights_have_seen_is_known_and_of_others_it_is_not():
    assert seen_by("medclip2-slake") == ("open", "slake")
    assert seen_by("medclip2-vqarad") == ("open", "vqa-rad")
    assert seen_by("medclip3-open") == ("open",) and bundled_for("slake+vqa-rad") == "medclip3-open"
    assert [seen_by(name) for name in ("ViT-B-32/openai", "medclip@mine", "hf-hub:org/name")] == [None] * 3


@pytest.mark.parametrize("data", ["vqa-rad", "slake", "phantom"])
def test_the_backbone_for_a_benchmark_has_not_seen_it(data):
    assert data not in seen_by(bundled_for(data))
    assert bundled_for(data).startswith("medclip2-")


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_backbone_loads(name):
    if not (Path(medfedvqa.models.__file__).parent / "weights" / BUNDLED[name].file).is_file():
        pytest.skip("the bundled weights are not built yet: `medfedvqa pretrain` makes them")
    if not is_bundled(name):
        pytest.skip("the extra `words` is not installed")
    backbone = load_backbone(name)
    assert backbone.seen == BUNDLED[name].seen
    assert backbone.tokenize(["is it"]).shape == (1, 64)


@pytest.mark.skipif(not parts_are_installed(), reason="the extra `words` is not installed")
def test_the_published_encoder_knows_what_a_question_means():
    """Two ways to ask one thing are nearer to each other than to another question with the same words."""
    questions = ["Is there a pneumothorax?", "Does the patient have a collapsed lung?", "Is there a kidney?"]
    numbers = torch.arange(3)
    backbone = load_backbone("medclip3-open")
    cache = backbone.cache({"image": 0, "text": 0}, torch.rand(3, 1, 224, 224), questions)
    features = backbone.features(cache.batch(numbers, cache.question_ids(questions), numbers), Tuning())
    texts = torch.nn.functional.normalize(features[:, 384:], dim=1)
    assert texts[0] @ texts[1] > texts[0] @ texts[2] + 0.1


def test_the_first_edition_is_refused_with_what_to_name_now_and_loads_from_its_old_file(folder):
    """Up to 0.2.0 it was bundled: its architecture stays, so that old figures can be computed again."""
    for benchmark in ("slake", "vqarad"):
        message = refused(f"medclip-{benchmark}")
        assert "bundled up to version 0.2.0" in message
        assert f"name medclip2-{benchmark}," in message and "medclip@LABEL" in message
        with pytest.raises(BackboneError, match="bundled up to version 0.2.0"):
            shape_of(f"medclip-{benchmark}")
    file = folder / "medclip-slake.safetensors"
    save_file({name: tensor.half() for name, tensor in state(build("medclip")).items()}, file)
    assert load_backbone("medclip@first", {"medclip@first": file}).shape == shape_of("medclip@mine")


def test_bundled_weights_take_less_than_40_megabytes():
    """All of them together, as the wheel holds them."""
    folder = Path(medfedvqa.models.__file__).parent / "weights"
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.safetensors")}
    files = {name for model in BUNDLED.values() for name in (model.file, components_file(model.file))}
    assert sizes.keys() <= files and sum(sizes.values()) < 40e6


def test_bundled_weights_that_are_not_there_are_refused_with_the_command_that_makes_them(monkeypatch):
    """So are their principal components."""
    monkeypatch.setitem(BUNDLED, "medclip2-slake", BundledModel("absent.safetensors", ("open", "slake")))
    assert "medfedvqa pretrain" in refused("medclip2-slake")
    with pytest.raises(BackboneError, match="components of the backbone 'medclip2-slake' are missing"):
        bundled_components("medclip2-slake")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_local_checkpoint_loads_frozen_in_float32_and_evaluation_mode(folder, suffix):
    weights = {name: tensor.half() for name, tensor in state(build("medclip")).items()}
    path = folder / f"mine.{suffix}"
    if suffix == "pt":
        torch.save({"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in weights.items()}}, path)
    else:
        save_file(weights, path)
    backbone = load_backbone("medclip@mine", {"medclip@mine": path})
    assert backbone.shape == shape_of("medclip@mine")
    assert not backbone.clip.training
    for name, tensor in backbone.clip.state_dict().items():
        assert torch.equal(tensor, weights[name].float())
    assert not any(parameter.requires_grad for parameter in backbone.clip.parameters())
    assert backbone.seen is None
    assert (backbone.mean, backbone.std) == ((0.26,) * 3, (0.26,) * 3)


def test_the_digest_tells_weights_apart_and_nothing_else(folder):
    first = state(build("medclip"))
    second = {name: tensor.clone() for name, tensor in first.items()}
    second["positional_embedding"][0, 0] += 1e-3
    digests = []
    for number, weights in enumerate((first, first, second)):
        save_file(weights, folder / f"{number}.safetensors")
        name = f"medclip@{number}"
        digests.append(load_backbone(name, {name: folder / f"{number}.safetensors"}).digest)
    assert digests[0] == digests[1] != digests[2]
    assert len(bytes.fromhex(digests[0])) == 32


def test_an_open_clip_architecture_loads_from_a_local_file_with_its_own_tokenizer(tiny):
    backbone = load_backbone("tiny@site", {"tiny@site": tiny})
    assert backbone.shape == shape_of("tiny@site") == TINY_SHAPE
    assert backbone.tokenize(["is this the left lung?"]).shape == (1, 9)
    assert backbone.mean == open_clip.OPENAI_DATASET_MEAN


def test_a_clip_with_a_text_tower_of_its_own_loads(monkeypatch, folder):
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", {**TINY, "custom_text": True})
    save_file(state(CustomTextCLIP(**TINY)), folder / "custom.safetensors")
    assert isinstance(load_backbone("tiny@a", {"tiny@a": folder / "custom.safetensors"}).clip, CustomTextCLIP)


def test_a_tag_loads_through_open_clip_with_the_activation_and_normalisation_that_its_weights_need(monkeypatch, tiny):
    """open_clip itself only warns of a wrong activation."""
    tags = {"plain": {"file": str(tiny), "mean": (0.1, 0.2, 0.3)}, "quick": {"file": str(tiny), "quick_gelu": True}}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", tags)
    plain, quick = load_backbone("tiny/plain"), load_backbone("tiny/quick")
    assert plain.mean == (0.1, 0.2, 0.3)
    assert isinstance(plain.clip.transformer.resblocks[0].mlp.gelu, torch.nn.GELU)
    assert isinstance(quick.clip.transformer.resblocks[0].mlp.gelu, QuickGELU)
    assert plain.digest == quick.digest == load_backbone("tiny@site", {"tiny@site": tiny}).digest


def test_a_model_of_the_hub_loads_with_its_configuration(hub):
    config = {"model_cfg": TINY, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (hub / "open_clip_config.json").write_text(json.dumps(config))
    backbone = load_backbone("hf-hub:org/tiny")
    assert backbone.shape == shape_of("hf-hub:org/tiny") == TINY_SHAPE
    assert (backbone.mean, backbone.std) == ((0.5,) * 3, (0.5,) * 3)


def test_an_unreachable_hub_is_an_error_that_says_so(hub):
    assert "hub" in refused("hf-hub:org/tiny")


def test_hub_weights_that_are_missing_are_an_error(hub):
    (hub / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY}))
    (hub / "tiny.safetensors").unlink()
    assert "could not be fetched" in refused("hf-hub:org/tiny")


def test_a_hub_model_whose_tokenizer_brings_code_is_refused(hub):
    text = {**TINY["text_cfg"], "hf_tokenizer_name": "org/code", "tokenizer_kwargs": {"trust_remote_code": True}}
    (hub / "open_clip_config.json").write_text(json.dumps({"model_cfg": {**TINY, "text_cfg": text}}))
    assert "code" in refused("hf-hub:org/tiny")


def test_a_file_of_another_architecture_is_refused_with_the_expected_one(tiny):
    assert "medclip" in refused("medclip@mine", file=tiny)


def test_a_position_table_of_another_context_is_refused_and_not_resampled(monkeypatch, tiny):
    """open_clip's own loader would stretch it silently. Positions in pictures are stretched, and a note says it."""
    longer = {**TINY, "text_cfg": {**TINY["text_cfg"], "context_length": 12}}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "longer", longer)
    message = refused("longer@mine", file=tiny)
    assert "'positional_embedding'" in message and "another picture size or context" in message
    assert "(9, 8)" in message and "(12, 8)" in message


@pytest.mark.parametrize("content", [b"", b"no weights at all", b"\x80\x04}."])
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_file_that_is_no_checkpoint_is_refused_with_the_expected_architecture(folder, content, suffix):
    path = folder / f"broken.{suffix}"
    path.write_bytes(content)
    assert "medclip" in refused("medclip@mine", file=path)


def test_a_checkpoint_that_would_run_code_is_refused(folder):
    """Pickled objects other than tensors are not loaded."""
    torch.save({"state_dict": {"weight": Path("anything")}}, folder / "code.pt")
    assert "UnpicklingError" in refused("medclip@mine", file=folder / "code.pt")


def test_openais_state_dict_loads_with_its_three_constants(tiny, folder):
    """They are buffers of OpenAI's module, and no weights; in half precision, as OpenAI saved it."""
    constants = {
        "input_resolution": torch.tensor(32),
        "context_length": torch.tensor(9),
        "vocab_size": torch.tensor(49408),
    }
    weights = {name: tensor.half() for name, tensor in load_file(tiny).items()}
    torch.save({**weights, **constants}, folder / "openai.pt")
    backbone = load_backbone("tiny@openai", {"tiny@openai": folder / "openai.pt"})
    assert all(torch.equal(tensor, weights[name].float()) for name, tensor in backbone.clip.state_dict().items())


def test_a_file_whose_words_need_the_hub_is_refused_without_the_hub(folder):
    """A local label never fetches anything, not even a vocabulary."""
    (folder / "siglip.safetensors").touch()
    message = refused("ViT-B-16-SigLIP@mine", file=folder / "siglip.safetensors")
    assert "give a folder" in message


def test_a_local_file_is_normalised_as_all_tags_of_its_architecture_are(monkeypatch, tiny):
    """As SigLIP's pictures, whichever file the weights come from; where tags differ, as CLIP's."""
    assert _agreed("ViT-B-16-SigLIP") == {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    tags = {"one": {"file": str(tiny), "mean": (0.1, 0.2, 0.3), "std": (1, 1, 1)}}
    for more, mean in (({}, (0.1, 0.2, 0.3)), ({"two": {"file": str(tiny)}}, open_clip.OPENAI_DATASET_MEAN)):
        monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", tags | more)
        assert load_backbone("tiny@site", {"tiny@site": tiny}).mean == mean


def test_a_missing_file_is_refused_with_the_expected_architecture(folder):
    message = refused("ViT-B-32@mine", file=folder / "absent.pt")
    assert "ViT-B-32" in message and "missing" in message


def test_a_local_checkpoint_that_this_machine_does_not_name_is_refused():
    with pytest.raises(BackboneError, match=r"no file is given .*ViT-B-32"):
        load_backbone("ViT-B-32@mine", {"ViT-B-32@other": Path("x")})


@pytest.mark.parametrize(
    "name",
    ["", "ViT-B-32", "medclip", "medclip/tag", "@a", "ViT-B-32@", "ViT-B-32/openai@a", "hf-hub:org@a", "a@b@c"],
)
def test_a_name_of_no_known_form_is_refused(name):
    with pytest.raises(BackboneError, match="unknown backbone"):
        shape_of(name)


@pytest.mark.parametrize("name", ["local-dir:{}", "local-dir:{}@mine", "local-dir:{}/tag"])
def test_a_name_cannot_make_a_site_read_a_folder(folder, name):
    """open_clip reads a model from any folder named so."""
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY}))
    with pytest.raises(BackboneError, match="unknown backbone"):
        shape_of(name.format(folder))


@pytest.mark.parametrize("name", ["ViT-Z-99/openai", "ViT-Z-99@mine"])
def test_an_unknown_architecture_is_refused(name):
    with pytest.raises(BackboneError, match="ViT-Z-99"):
        shape_of(name)


def test_a_tag_cannot_be_a_path(tiny):
    """open_clip would load any file of that name; a job must not reach into a site's folders."""
    with pytest.raises(BackboneError, match="a job names no path") as caught:
        load_backbone(f"tiny/{tiny}")
    assert SECRET not in str(caught.value)
    with pytest.raises(BackboneError, match="its tags: none"):
        load_backbone("tiny/other")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("swin_base_patch4_window7_224/any", "swin"),
        ("vit_relpos_medium_patch16_cls_224/any", "relpos"),
        ("mt5-base-ViT-B-32@mine", "mt5"),
        ("nllb-clip-base/v1", "nllb"),
    ],
)
def test_architectures_whose_blocks_are_not_read_are_refused_with_the_reason(name, reason):
    with pytest.raises(BackboneError, match=reason):
        shape_of(name)
    with pytest.raises(BackboneError, match=reason):
        load_backbone(name)


@pytest.mark.parametrize(
    ("vision", "text"),
    [
        ({"pool_type": "none"}, {}),
        ({}, {"pool_type": "none"}),
        ({"qk_norm": True}, {}),
        ({}, {"block_type": "custom"}),
        ({"image_size": [32, 64]}, {}),
    ],
)
def test_variants_of_the_vit_that_the_towers_do_not_compute_are_refused(monkeypatch, vision, text):
    changed = {**TINY, "vision_cfg": {**TINY["vision_cfg"], **vision}, "text_cfg": {**TINY["text_cfg"], **text}}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "changed", changed)
    with pytest.raises(BackboneError, match="cannot be used"):
        shape_of("changed@mine")
