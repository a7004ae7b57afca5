"""VAuLT as a backbone: transformers' BERT and ViLT one behind the other, tuned in both, from files of both."""

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
    pfeiffer,
    pictures,
    prompt_for,
    prompted,
    put_weights,
    refused,
    values_of,
)
from safetensors.torch import load_file, save_file

from medfedvqa.models import TuningConfig, load_backbone, shape_of
from medfedvqa.models.backbone import Tuning

transformers = pytest.importorskip("transformers")

NAME = "vault-tiny@random"
KINDS = ("lora", "prompt", "bias", "adapter", "blocks")
CONFIGS = [
    TuningConfig("classifier"),
    TuningConfig("full"),
    *(TuningConfig(kind, blocks=blocks, rank=3, reduction=4) for kind in KINDS for blocks in (None, 4, 1)),
]
each_kind = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.kind}-{config.blocks}")


@pytest.fixture(scope="module")
def exact(vault):
    """In float64."""
    return replace(vault, network=copy.deepcopy(vault.network).double())


def plain(backbone, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Features by the forward passes of `BertModel` and `ViltModel`, with what is tuned put into their modules."""
    network = copy.deepcopy(backbone.network)
    bert, vilt = list(network.bert.encoder.layer), list(network.vilt.encoder.layer)
    put_weights(network, bert + vilt, values)
    for number, block in enumerate(bert + vilt):
        inner = block.attention.self if number < len(bert) else block.attention.attention
        if (prompt := prompt_for(values, number, len(bert + vilt))) is not None:
            inner.forward = prompted(inner, *prompt.chunk(2))
        if f"adapter.joint.{number}.up.bias" in values:
            if number < len(bert):
                block.output.forward = pfeiffer(block.output, values, f"adapter.joint.{number}")
            else:
                block.register_forward_hook(adapted(values, f"adapter.joint.{number}"))
    tokens = backbone.tokenize([QUESTIONS[row] for row in ROWS])
    mask = (tokens >= 0).long()
    read = network.bert(input_ids=tokens.clamp(min=0), attention_mask=mask).last_hidden_state
    images = (pictures()[PICTURES].expand(-1, 3, -1, -1) - 0.5) / 0.5
    return network.vilt(inputs_embeds=read, attention_mask=mask, pixel_values=images).pooler_output


@each_kind
def test_features_and_gradients_are_those_of_transformers_own_models(exact, config):
    """To 1e-10 in float64; every declared value has a gradient, and no frozen weight has one."""
    assert_same_as(plain, exact, config)


@each_kind
def test_the_cache_may_end_anywhere_below_what_is_tuned(exact, config):
    """Within ViLT, between both, within BERT, and below the embeddings."""
    assert_cache_may_end_anywhere(exact, config)


def test_a_row_is_the_same_whatever_stands_beside_it(exact):
    """A longer question in the batch pads the others, and padding is not looked at."""
    assert_rows_alone_are_the_same(exact, 5)


def test_the_map_is_vilt_s_on_bert_s_states(exact):
    """Each row sums to 1 over the patches, and what is tuned in BERT alone changes it."""
    config = TuningConfig("adapter")
    values = {name: value for name, value in values_of(config, exact).items() if name.split(".")[2] in "01"}
    found = exact.attention(batch_of(exact, 5), config.applied(exact, values))
    untuned = exact.attention(batch_of(exact, 5), Tuning())
    assert found.shape == (7, 16) and torch.allclose(found.sum(dim=1), torch.ones(7).double())
    assert torch.allclose(untuned, exact.attention(batch_of(exact, 1), Tuning()), **EXACT)
    assert (found - untuned).abs().max() > 1e-6


def test_the_shape_of_the_papers_vault_is_known_without_its_files():
    """24 blocks of width 768; adapters of reduction 16 are FedDAT's 1,789,056 floats, ViLT's half of them 894,528."""
    shape = shape_of("vault-b32@anywhere")
    assert [(tower.layers, tower.width, tower.heads) for tower in shape.towers.values()] == [(24, 768, 12)]
    assert (shape.width, shape.image_size, shape.context) == (768, 384, 40)
    counts = {
        blocks: sum(torch.Size(size).numel() for size in TuningConfig("adapter", blocks=blocks).shapes(shape).values())
        for blocks in (None, 12)
    }
    assert counts == {None: 1_789_056, 12: 894_528}
    assert len(TuningConfig("bias").shapes(shape)) == 24 * 8
    # Both published models, less ViLT's table of words, which BERT's states replace, and BERT's pooler.
    assert (
        sum(torch.Size(size).numel() for size in shape.parameters.values()) == 111_595_008 - 30_522 * 768 + 108_891_648
    )


@pytest.fixture
def folder(vault_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(vault_folder, tmp_path / "hospital-folder"))


def test_bert_loads_in_every_spelling_that_is_published(folder, vault):
    """With a head and the prefix `bert.`, without both, and with the names of 2018's bert-base-uncased."""
    saved = load_file(folder / "bert" / "model.safetensors")
    assert any(key.startswith("cls.") for key in saved)
    bare = {key.removeprefix("bert."): value for key, value in saved.items() if key.startswith("bert.")}
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in saved.items()
    }
    for weights in (saved, {**bare, "pooler.dense.bias": torch.zeros(16)}, old):
        save_file(weights, folder / "bert" / "model.safetensors")
        backbone = load_backbone(NAME, {NAME: folder})
        assert backbone.digest == vault.digest and backbone.seen is None
    assert not backbone.network.training and backbone.shape == shape_of(NAME)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "bert/model.safetensors", "bert/config.json", "bert/vocab.txt"]
)
def test_missing_files_are_named(folder, file):
    (folder / file).unlink()
    message = refused(folder, NAME)
    assert Path(file).name in message and ("'bert'" in message) == file.startswith("bert/")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("bert/model.safetensors", "no weights", "as a checkpoint of vault-tiny"),
        ("bert/config.json", "{", "not JSON"),
        ("bert/config.json", '{"num_attention_heads": 4}', "num_attention_heads"),
        ("bert/config.json", '{"model_type": "roberta"}', "model_type"),
        ("config.json", '{"hidden_act": "relu"}', "hidden_act"),
        ("bert/vocab.txt", "\n".join(map(str, range(65))), "vocabulary of 64"),
    ],
)
def test_files_of_something_else_are_refused(folder, file, content, message):
    (folder / file).write_text(content)
    assert message in refused(folder, NAME)


def test_weights_of_another_size_are_refused(folder):
    """A BERT of three blocks where two are expected, though its configuration says two."""
    facts = json.loads((folder / "bert" / "config.json").read_text())
    model = transformers.BertModel(transformers.BertConfig(**{**facts, "num_hidden_layers": 3}))
    save_file(dict(model.state_dict()), folder / "bert" / "model.safetensors")
    assert "not of architecture vault-tiny" in refused(folder, NAME)
