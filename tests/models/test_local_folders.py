"""Folders in the layouts of open_clip and transformers: they load as they are, train, and what is broken is refused."""

import json
import pickle
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from tiny_folders import LAYOUTS, biomedclip, write
from tiny_models import small_timm

from medfedvqa import Data, Job, run
from medfedvqa.errors import BackboneError, FederationError
from medfedvqa.federation import launch
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import TuningConfig, card_in, load_backbone
from medfedvqa.models.clip import towers
from medfedvqa.models.layouts import Packed

NAMES = tuple(LAYOUTS)
PUBMEDCLIP = "local-dir:pubmedclip@mine"
SECRET = "hospital-folder"
"""Part of every path in these tests; no message may hold it."""
QUESTIONS = ["is it bright?", "why"]


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with small_timm():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each layout's folder."""
    root = tmp_path_factory.mktemp(SECRET)
    return {name: make(root / str(number)) for number, (name, make) in enumerate(LAYOUTS.items())}


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Path:
    """A PubMedCLIP to break."""
    return Path(shutil.copytree(made[PUBMEDCLIP], tmp_path / SECRET))


def frozen_features(name: str, folder: Path) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The backbone, its features of two pictures and two questions, and the grey pictures."""
    backbone = load_backbone(name, {name: folder})
    size = backbone.shape.image_size
    pictures = torch.rand(2, 1, size, size, generator=torch.Generator().manual_seed(1))
    cache = backbone.cache({"image": 0, "text": 0}, pictures, QUESTIONS)
    ids = cache.question_ids(QUESTIONS)
    batch = cache.batch(torch.arange(2), ids, torch.zeros(2, dtype=torch.int64))
    return backbone, backbone.features(batch, TuningConfig("classifier").applied(backbone, {})), pictures


def test_a_model_of_transformers_gives_what_transformers_give(made: dict[str, Path]) -> None:
    """Pictures and questions through transformers' own loader, tokenizer and model: equal to 1e-5."""
    from transformers import AutoModel, AutoTokenizer

    for name in NAMES[1:]:
        backbone, features, pictures = frozen_features(name, made[name])
        model, tokenizer = AutoModel.from_pretrained(made[name]).eval(), AutoTokenizer.from_pretrained(made[name])
        ids = tokenizer(QUESTIONS, padding="max_length", max_length=40, return_tensors="pt").input_ids
        with torch.no_grad():
            seen = model.vision_model(pixel_values=backbone.normalised(pictures)).pooler_output
            words = model.text_model(input_ids=ids)
        read = words.pooler_output if "clip" in name and "siglip" not in name else words.last_hidden_state[:, -1]
        torch.testing.assert_close(features, torch.cat([seen, read], dim=1), rtol=0, atol=1e-5)


def test_biomedclip_gives_what_open_clip_gives(made: dict[str, Path]) -> None:
    """Through open_clip's wrapper of the same weights, after its projections: equal to 1e-5."""
    backbone, _, pictures = frozen_features(NAMES[0], made[NAMES[0]])
    image, text = towers(backbone.clip, {"image": 0, "text": 0})
    ids, pixels = backbone.tokenize(QUESTIONS), backbone.normalised(pictures)
    layout = Packed(text.beginnings(ids), torch.arange(2))
    with torch.no_grad():
        read = text.features(text.trunk(ids, layout), layout)
        found = image.embed(image.features(image.trunk(pixels))), text.embed(read)
        expected = backbone.clip.encode_image(pixels, True), backbone.clip.encode_text(ids, True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert ids.tolist()[1][:5] == [2, 27, 49, 66, 3]  # [CLS] w ##h ##y [SEP]


def refused(folder: Path, name: str = PUBMEDCLIP) -> str:
    """The message of a refusal, which names no path."""
    with pytest.raises(BackboneError) as caught:
        load_backbone(name, {name: folder})
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_weights_of_another_architecture_are_refused(copied: Path, made: dict[str, Path]) -> None:
    """SigLIP's weights in a CLIP's folder."""
    shutil.copy(made["local-dir:siglip@mine"] / "model.safetensors", copied / "model.safetensors")
    assert "tensors differ" in refused(copied)


def test_a_truncated_file_is_refused(copied: Path) -> None:
    """And not read as far as it goes."""
    whole = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "cannot be read" in refused(copied)


class _Runs:
    """A pickle that would leave a file behind."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


@pytest.mark.parametrize("plain", [True, False])
def test_a_pickle_with_code_is_never_run(copied: Path, tmp_path: Path, plain: bool) -> None:
    """Neither a bare pickle nor one in torch's archive: the file that it would make is not there."""
    mark = tmp_path / "ran"
    (copied / "model.safetensors").unlink()
    target = copied / "pytorch_model.bin"
    if plain:
        target.write_bytes(pickle.dumps(_Runs(mark)))
    else:
        torch.save({"state_dict": {"weight": _Runs(mark)}}, target)
    assert "cannot be read" in refused(copied) and not mark.exists()
    with suppress(Exception):  # unlike ours, this runs it, whether or not it then finds an archive
        torch.load(target, weights_only=False)
    assert mark.exists()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (("vocab.json", "merges.txt"), "no tokenizer"),
        (("model.safetensors",), "no weights"),
        (("config.json",), "neither open_clip_config.json nor config.json"),
    ],
)
def test_a_folder_without_a_part_is_refused_by_the_part(copied: Path, missing: tuple[str, ...], message: str) -> None:
    """The message names the files that belong there."""
    for file in missing:
        (copied / file).unlink()
    assert message in refused(copied)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "cannot be read as JSON"),
        ("config.json", {"model_type": "blip"}, "does not read"),
        (
            "config.json",
            {"model_type": "clip", "auto_map": {"AutoModel": "code.py"}, "vision_config": 3},
            "config.json",
        ),
        ("open_clip_config.json", {"model_cfg": {"embed_dim": 3}}, "does not describe a model"),
        ("open_clip_config.json", {"model_cfg": 3}, "does not describe a model"),
    ],
)
def test_a_configuration_that_is_none_is_refused(copied: Path, file: str, content: Any, message: str) -> None:
    """Whatever it holds, in a sentence."""
    if isinstance(content, str):
        (copied / file).write_text(content, encoding="utf-8")
    else:
        write(copied / file, content)
    assert message in refused(copied)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """And a file in its place."""
    assert "gives none" in refused(tmp_path / SECRET)
    (tmp_path / SECRET).touch()
    assert "gives none" in refused(tmp_path / SECRET)


def test_an_architecture_by_name_may_have_a_folder_with_its_tokenizer(tmp_path: Path, monkeypatch: Any) -> None:
    """So that `ViT-B-16-SigLIP@mine` needs no hub for its words."""
    folder = biomedclip(tmp_path / SECRET)
    described = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))["model_cfg"]
    described["text_cfg"]["hf_config"] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny-bio", described)
    backbone = load_backbone("tiny-bio@mine", {"tiny-bio@mine": folder})
    assert backbone.digest == load_backbone(NAMES[0], {NAMES[0]: folder}).digest
    assert backbone.tokenize(["why"]).tolist()[0][:3] == [2, 27, 49]


PRIVATE = {"prompt_pfl": {"answers": "closed"}, "fedavg": {"weighting": "uniform", "answers": "closed"}}
LORA = {"tuning": "lora", "rank": 2}


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["private", "on-shares"])
@pytest.mark.parametrize("method", ["prompt_pfl", "fedavg"])
@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_train(name: str, method: str, shared: bool, made: dict[str, Path], tmp_path: Path) -> None:
    """Prompts and LoRA, under differential privacy and on shares, at three sites that all report."""
    options = {"rounds": 2, "local_epochs": 1, **(LORA if method == "fedavg" else {})}
    settings: dict[str, Any] = {"secagg": True} if shared else {"epsilon": 8.0}
    job = Job(method, backbone=name, method_options=options | ({} if shared else PRIVATE[method]), **settings)
    sites, out = ("abdomen", "chest", "head"), tmp_path / "out"
    results = run(job, Data("phantom"), sites=sites, out=out, backbone_files={name: made[name]})
    facts = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert set(facts["sites"]) == set(sites) and "finished" in repr(results)
    if not shared:
        assert all(0 < site["epsilon"] <= 8.0 for site in facts["sites"].values())


@pytest.mark.slow
def test_a_site_refuses_a_job_whose_card_is_not_that_of_its_folder(made: dict[str, Path], tmp_path: Path) -> None:
    """Nothing trains, and nothing leaves."""
    other = card_in(NAMES[2], {NAMES[2]: made[NAMES[2]]}).model_copy(update={"name": PUBMEDCLIP})
    card = json.loads(other.model_dump_json())
    job = JobSpec.from_dict({"method": "prompt_pfl", "backbone": PUBMEDCLIP, "data": "phantom", "card": card})
    planned = launch.plan(job, None, tmp_path / "out", ("chest", "head"), backbone_files={PUBMEDCLIP: made[PUBMEDCLIP]})
    with pytest.raises(FederationError, match="shape card"):
        launch.run(planned, "local", lambda event: None)
    logs = [path.read_text(encoding="utf-8") for path in (tmp_path / "out" / "sites").rglob("*.jsonl")]
    assert logs and not any('"event":"release"' in log for log in logs)
