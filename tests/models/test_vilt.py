"""ViLT as a backbone: it is transformers' own, every kind of tuning is what it is called, and only its files load."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fused_models import (
    EXACT,
    PICTURES,
    QUESTIONS,
    ROWS,
    adapted,
    assert_cache_may_end_anywhere,
    assert_rows_alone_are_the_same,
    assert_same_as,
    batch_of,
    features,
    pictures,
    prompt_for,
    prompted,
    put_weights,
    refused,
    values_of,
)

from medfedvqa.errors import BackboneError, ConfigError
from medfedvqa.models import TuningConfig, load_backbone, shape_of
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.prompts import join
from medfedvqa.papers.networks.vilt import vilt_shape

transformers = pytest.importorskip("transformers")

NAME = "vilt-tiny@random"
CONFIGS = [
    TuningConfig("classifier"),
    *(TuningConfig(kind, rank=3, reduction=4) for kind in ("lora", "prompt", "bias", "adapter", "blocks", "full")),
    *(TuningConfig(kind, blocks=1, rank=3) for kind in ("lora", "prompt", "bias", "adapter", "blocks")),
]
each_kind = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.kind}-{config.blocks}")


@pytest.fixture(scope="module")
def exact(vilt):
    """In float64."""
    return replace(vilt, network=copy.deepcopy(vilt.network).double())


def plain(backbone, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Features by transformers' own forward pass; prompts as longer keys and values of its attention."""
    vilt = copy.deepcopy(backbone.network)
    blocks = vilt.encoder.layer
    put_weights(vilt, blocks, values)
    for number, block in enumerate(blocks):
        if f"adapter.joint.{number}.up.bias" in values:
            block.register_forward_hook(adapted(values, f"adapter.joint.{number}"))
        if (prompt := prompt_for(values, number, len(blocks))) is not None:
            block.attention.attention.forward = prompted(block.attention.attention, *prompt.chunk(2))
    tokens = backbone.tokenize([QUESTIONS[row] for row in ROWS])
    images = (pictures()[PICTURES].expand(-1, 3, -1, -1) - 0.5) / 0.5
    result = vilt(input_ids=tokens.clamp(min=0), attention_mask=(tokens >= 0).long(), pixel_values=images)
    return result.pooler_output


@each_kind
def test_features_and_gradients_are_those_of_transformers_own_model(exact, config):
    """To 1e-10 in float64, for questions of different lengths; untuned, tuned, and changed by hand."""
    assert_same_as(plain, exact, config, least_change=1e-3)


@each_kind
def test_the_cache_may_end_anywhere_below_what_is_tuned(exact, config):
    assert_cache_may_end_anywhere(exact, config)


def test_a_row_is_the_same_whatever_stands_beside_it(exact):
    """A longer question in the batch pads the others, and padding is not looked at."""
    assert_rows_alone_are_the_same(exact, 3)


@pytest.mark.parametrize("placing", ["before", "after"])
def test_owners_have_prompts_of_their_own(exact, placing):
    """Each gets the features and the gradient that it would have alone."""
    owners = torch.tensor([0, 0, 1, 2, 2, 2, 1])
    own = torch.randn(3, 2, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    batch = batch_of(exact, 2, owners)
    joined = join(own, None, "concatenate", placing, batch.owners["joint"])
    found = exact.features(batch, Tuning({"joint": joined}))
    found.square().sum().backward()
    for owner in range(3):
        leaf = own.detach()[owner].requires_grad_()
        alone = exact.features(batch_of(exact, 2), Tuning({"joint": join(leaf, None, "concatenate", placing)}))
        alone[owners == owner].square().sum().backward()
        assert torch.allclose(found[owners == owner], alone[owners == owner], **EXACT)
        assert torch.allclose(own.grad[owner], leaf.grad, **EXACT)


def test_features_of_a_pair_are_computed_once(exact):
    """With nothing tuned; questions that differ in case and spaces are one."""
    cache = exact.cache({"joint": 0}, pictures(), QUESTIONS)
    for _ in range(2):
        cache.batch(PICTURES, cache.question_ids([QUESTIONS[row] for row in ROWS]), torch.zeros(7, dtype=torch.int64))
    assert [features.shape for features in cache._pairs.values()] == [(16,)] * 6


def test_words_are_what_lies_between_class_and_separator(vilt):
    """Embeddings of a text's own pieces, cut at the number asked for, zeros beyond its end; of the shape's width."""
    words = vilt.words(("is it", "masses is it a what", ""), 4)
    assert words.present.tolist() == [[True, True, False, False], [True] * 4, [False] * 4]
    table = vilt.parameter("embeddings.text_embeddings.word_embeddings.weight")
    assert torch.equal(words.values[0, :2], table[vilt.tokenize(["is it"])[0, 1:3]])
    assert not words.values[~words.present].any() and words.values.shape[-1] == vilt.shape.words
    assert vilt.words(("is",), 20).present.sum() == 1


def test_the_shape_of_the_published_vilt_is_known_without_its_files():
    """12 blocks of width 768; adapters of reduction 16 are FedDAT's 894,528 floats."""
    shape = shape_of("vilt-b32@anywhere")
    assert [(tower.layers, tower.width, tower.heads) for tower in shape.towers.values()] == [(12, 768, 12)]
    assert (shape.width, shape.image_size, shape.context) == (768, 384, 40)
    sizes = TuningConfig("adapter").shapes(shape)
    assert sum(torch.Size(size).numel() for size in sizes.values()) == 894_528
    assert len(TuningConfig("bias").shapes(shape)) == 12 * 8
    assert sum(torch.Size(size).numel() for size in shape.parameters.values()) == 111_595_008


@pytest.fixture
def folder(vilt_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(vilt_folder, tmp_path / "hospital-folder"))


def test_it_loads_frozen_in_float32_and_evaluation_mode(vilt, vilt_folder):
    assert not vilt.network.training and vilt.shape == shape_of(NAME) == vilt_shape("vilt-tiny")
    assert not any(weight.requires_grad for weight in vilt.network.parameters())
    assert vilt.digest == load_backbone("vilt-tiny@other", {"vilt-tiny@other": vilt_folder}).digest
    assert vilt.seen is None


def test_questions_become_word_pieces_of_the_site_s_vocabulary(vilt):
    """Lower case, [CLS] and [SEP] around, -1 after the end, cut where they are too long."""
    assert vilt.tokenize(["Is it masses"]).tolist() == [[2, 5, 6, 10, 11, 3] + 6 * [-1]]
    assert vilt.tokenize(["is " * 20])[0].tolist() == [2] + 10 * [5] + [3]


def test_a_model_with_a_head_loads_without_it(folder, vilt):
    """As published: names begin with `vilt.`, and a head for another task is there."""
    vocabulary = (folder / "vocab.txt").read_text()
    config = transformers.ViltConfig(**json.loads((folder / "config.json").read_text()))
    config.num_labels = 5
    model = transformers.ViltForQuestionAnswering(config)
    model.vilt.load_state_dict(vilt.network.state_dict())
    shutil.rmtree(folder)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text(vocabulary)
    assert load_backbone(NAME, {NAME: folder}).digest == vilt.digest


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "vocab.txt"])
def test_missing_files_are_named(folder, file):
    (folder / file).unlink()
    assert file in refused(folder, NAME)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", "no weights", "as a checkpoint of vilt-tiny"),
        ("config.json", "{", "not JSON"),
        ("config.json", '{"num_attention_heads": 4}', "num_attention_heads"),
        ("config.json", '{"hidden_act": "relu"}', "hidden_act"),
        ("vocab.txt", "\n".join(map(str, range(65))), "vocabulary of 64"),
        ("vocab.txt", "only\nwords", "vocabulary of 64"),
    ],
)
def test_files_of_something_else_are_refused(folder, file, content, message):
    (folder / file).write_text(content)
    assert message in refused(folder, NAME)


def test_weights_of_another_size_are_refused(folder):
    assert "vilt-b32" in refused(folder, "vilt-b32@mine") and "differs in" in refused(folder, "vilt-b32@mine")


def test_a_folder_that_this_machine_does_not_name_is_refused():
    with pytest.raises(BackboneError, match="no file is given"):
        load_backbone(NAME)


@pytest.mark.parametrize("name", ["vilt-b32", "vilt-b32/tag", "vilt-b32@"])
def test_it_is_never_fetched(name):
    with pytest.raises(BackboneError, match="unknown backbone"):
        shape_of(name)


def test_what_one_tower_cannot_do_is_refused(exact, vilt):
    with pytest.raises(ConfigError, match="concat"):
        exact.features(batch_of(exact, 1), Tuning(), "product")
    with pytest.raises(ConfigError, match="below"):
        config = TuningConfig("adapter")
        features(exact, config, values_of(config, exact), 1)
    with pytest.raises(ConfigError, match="tune fewer"):
        vilt.cache({"joint": 5}, pictures().float(), QUESTIONS)
    with pytest.raises(ConfigError, match="takes"):
        vilt.cache({"joint": 1}, torch.zeros(1, 1, 16, 16), QUESTIONS)
    with pytest.raises(ConfigError, match="without some"):
        vilt.cache({"joint": 1}, pictures().float(), QUESTIONS).question_ids(["why"])
