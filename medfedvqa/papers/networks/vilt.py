"""ViLT as a backbone: one tower that reads a question and a picture together (W. Kim et al., ICML 2021); and VAuLT."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.models.backbone import UNTUNED, BackboneShape, TowerShape, TowerTuning, Update
from medfedvqa.models.backbones import Family
from medfedvqa.models.checkpoints import Weights, digest, fill
from medfedvqa.models.prompts import JoinedPrompts, Tokens, attention_to_patches, by_head, projected
from medfedvqa.papers.networks.joint import (
    BERT_BASE,
    BERT_QUERIES_VALUES,
    JOINT,
    JointBackbone,
    JointRows,
    bert_block,
    bert_names,
    check_configuration,
    embedded,
    low_rank_parts,
    present,
    transformers_module,
    weights_in,
    word_pieces,
)

WORDS, PATCHES = 0, 1
"""The indices of the embeddings that mark a token as a word or as a patch."""


class ViltBackbone(JointBackbone):
    """A frozen `ViltModel` of transformers, with its pooler."""

    title = "ViLT"

    @property
    def table(self) -> nn.Embedding:
        return self.network.embeddings.text_embeddings.word_embeddings

    def picture_start(self, network: Any, pixels: torch.Tensor, first: int) -> torch.Tensor:
        return embedded_patches(network, pixels)

    def question_start(self, network: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        return embedded_words(network, input_ids=tokens.clamp(min=0))

    def pooled(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        return encoded(network, *self._embedded(network, rows), rows.lengths, tuning)

    def looked(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        return looked(network, *self._embedded(network, rows), rows.lengths, tuning)

    def _embedded(self, network: Any, rows: JointRows) -> tuple[torch.Tensor, torch.Tensor]:
        """The embeddings of words and of patches."""
        if rows.first >= 0:
            return rows.questions, rows.pictures
        return (
            self.question_start(network, rows.questions, rows.first),
            self.picture_start(network, rows.pictures, rows.first),
        )


def looked(
    vilt: Any, words: torch.Tensor, patches: torch.Tensor, lengths: torch.Tensor, tuning: TowerTuning
) -> torch.Tensor:
    """The attention to each patch in the last block, all tokens of a question weighted equally, [rows, patches]."""
    hidden, visible = _below(vilt, words, patches, lengths, tuning)
    last = len(vilt.encoder.layer) - 1
    tokens = _tokens(vilt, tuning.prompts, last)
    queries, keys, _, seen = _heads(vilt.encoder.layer[last], hidden, visible, tokens, False, tuning.updates.get(last))
    # The picture's own first position stands for no patch.
    asking = hidden.shape[1] - patches.shape[1]
    weights = attention_to_patches(queries[:, :, :asking], keys, patches.shape[1] - 1, seen)
    return (weights * visible[:, 0, 0, :asking, None]).sum(dim=1)


def embedded_patches(vilt: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Embeds pictures, [n, 3, size, size] in -1..1 at ViLT's input size; returns [n, patches + 1, width]."""
    embeddings = vilt.embeddings
    patches: torch.Tensor = embeddings.patch_embeddings.projection(pixels).flatten(2).transpose(1, 2)
    patches = torch.cat([embeddings.cls_token.expand(len(patches), -1, -1), patches], dim=1)
    return patches + embeddings.position_embeddings + embeddings.token_type_embeddings.weight[PATCHES]


def embedded_words(vilt: Any, **words: torch.Tensor) -> torch.Tensor:
    """Embeds words, given as `input_ids` or `inputs_embeds`; returns [n, positions, width]."""
    placed = vilt.embeddings.text_embeddings(**words)
    return placed + vilt.embeddings.token_type_embeddings.weight[WORDS]


def encoded(
    vilt: Any, words: torch.Tensor, patches: torch.Tensor, lengths: torch.Tensor, tuning: TowerTuning = UNTUNED
) -> torch.Tensor:
    """Embeddings [rows, tokens, width] to pooled features [rows, width]. Prompts are for the last blocks."""
    hidden, visible = _below(vilt, words, patches, lengths, tuning)
    last = len(vilt.encoder.layer) - 1
    tokens = _tokens(vilt, tuning.prompts, last)
    hidden = _block(vilt.encoder.layer[last], hidden, visible, tokens, True, tuning.updates.get(last))
    hidden = tuning.adapters[last](hidden) if last in tuning.adapters else hidden
    return vilt.pooler(vilt.layernorm(hidden))


def _below(
    vilt: Any, words: torch.Tensor, patches: torch.Tensor, lengths: torch.Tensor, tuning: TowerTuning
) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings up to the last block, and the visible positions, bool [rows, 1, 1, tokens]."""
    words = words[:, : int(lengths.max())]
    hidden = torch.cat([words, patches], dim=1)
    visible = F.pad(present(lengths, words.shape[1]), (0, patches.shape[1]), value=True)
    for index, block in enumerate(vilt.encoder.layer[:-1]):
        tokens = _tokens(vilt, tuning.prompts, index)
        hidden = _block(block, hidden, visible, tokens, False, tuning.updates.get(index))
        hidden = tuning.adapters[index](hidden) if index in tuning.adapters else hidden
    return hidden, visible


def _tokens(vilt: Any, prompts: JoinedPrompts | None, index: int) -> Tokens | None:
    """The prompt tokens of one block; None where it has none."""
    blocks = vilt.encoder.layer
    if prompts is None or index < len(blocks) - prompts.keys.shape[-3]:
        return None
    attention = blocks[index].attention.attention
    return projected(prompts, index - len(blocks), attention.key, attention.value)


def _block(
    block: Any,
    hidden: torch.Tensor,
    visible: torch.Tensor,
    prompts: Tokens | None,
    pool: bool,
    update: Update | None = None,
) -> torch.Tensor:
    """One block as in transformers, with prompts. With `pool`, returns only the first position, [rows, 1, width].

    `visible`: the positions that others may attend to, bool [rows, 1, 1, tokens].
    """
    queries, keys, values, visible = _heads(block, hidden, visible, prompts, pool, update)
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible).transpose(1, 2).flatten(2)
    hidden = (hidden[:, :1] if pool else hidden) + block.attention.output.dense(attended)
    return hidden + block.output.dense(block.intermediate(block.layernorm_after(hidden)))


def _heads(
    block: Any,
    hidden: torch.Tensor,
    visible: torch.Tensor,
    prompts: Tokens | None,
    pool: bool,
    update: Update | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, each [rows, heads, positions, width], and the visible keys."""
    attention, normed = block.attention.attention, block.layernorm_before(hidden)
    keys, values = attention.key(normed), attention.value(normed)
    asking = normed[:, :1] if pool else normed
    queries = attention.query(asking)
    if update is not None:
        queries, values = queries + update.queries(asking), values + update.values(normed)
    if prompts is not None:
        visible = F.pad(visible, (prompts[0].shape[1], 0), value=True)
    return *by_head(attention.num_attention_heads, queries, keys, values, prompts), visible


# The job names the architecture, the site gives the folder of the files: `model.safetensors` (or `pytorch_model.bin`),
# `config.json` and `vocab.txt`, as transformers saves them.

QUERIES_VALUES = "attention.attention.query.weight", "attention.attention.value.weight"
"""The weights in a block that low-rank updates are for."""

VILT_ARCHITECTURES: dict[str, Mapping[str, Any]] = {
    "vilt-b32": {
        "vocab_size": 30522, "type_vocab_size": 2, "modality_type_vocab_size": 2, "max_position_embeddings": 40,
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 384, "patch_size": 32, "num_channels": 3,
        "qkv_bias": True,
    },
}  # fmt: skip
"""The arguments of transformers' `ViltConfig`; `vilt-b32` is the published model."""


def vilt_shape(architecture: str) -> BackboneShape:
    """The shape of a ViLT of this architecture."""
    facts = VILT_ARCHITECTURES[architecture]
    width = facts["hidden_size"]
    parts = tuple((part, 0, width) for part in QUERIES_VALUES)
    tower = TowerShape(facts["num_hidden_layers"], width, facts["num_attention_heads"], "encoder.layer", parts)
    return BackboneShape(
        {JOINT: tower},
        embed=0,
        image_size=facts["image_size"],
        context=facts["max_position_embeddings"],
        words=width,
        build=partial(build_vilt, facts),
    )


def load_vilt(name: str, architecture: str, folder: Path, device: str) -> ViltBackbone:
    """Loads a ViLT from a folder of this machine. Raises `BackboneError`; no message holds a path."""
    facts, shape = VILT_ARCHITECTURES[architecture], vilt_shape(architecture)
    weights = weights_in(name, folder, ("config.json", "vocab.txt"))
    check_configuration(name, architecture, folder / "config.json", facts)
    vilt = build_vilt(facts)
    fill(vilt, name, architecture, weights, vilt_names)
    tokenize = word_pieces(name, folder / "vocab.txt", shape.context, facts["vocab_size"])
    vilt = vilt.to(device).float().eval().requires_grad_(False)
    return ViltBackbone(name, vilt, tokenize, shape, None, digest(vilt))


def build_vilt(facts: Mapping[str, Any]) -> nn.Module:
    """A `ViltModel` of this configuration, with arbitrary weights. Raises `BackboneError` without transformers."""
    return transformers_module(lambda library: library.ViltModel(library.ViltConfig(**facts)))


def vilt_names(weights: Weights) -> Weights:
    """The weights under the names of `ViltModel`, without the prefix `vilt.` and without a head."""
    if any(key.startswith("vilt.") for key in weights):
        return {key.removeprefix("vilt."): value for key, value in weights.items() if key.startswith("vilt.")}
    return weights


VILT = Family(VILT_ARCHITECTURES, vilt_shape, load_vilt)


# VAuLT backbones by name: a folder with ViLT's files, and in it a folder `bert` with those of a BERT.
#
# Both hold `model.safetensors` (or `pytorch_model.bin`) and `config.json`, as transformers saves them, and `bert` the
# `vocab.txt` as well: words are its pieces.

# VAuLT as a backbone: ViLT, whose words are the last states of a BERT (G. Chochlakis et al., arXiv 2208.09021, 2022).
#
# One tower, `joint`: BERT's blocks, which see the question alone, and then ViLT's.


class VaultBackbone(JointBackbone):
    """A frozen module with `bert`, a `BertModel` of transformers, and `vilt`, a `ViltModel`."""

    title = "VAuLT"

    @property
    def table(self) -> nn.Embedding:
        return self.network.bert.embeddings.word_embeddings

    def picture_start(self, network: Any, pixels: torch.Tensor, first: int) -> torch.Tensor:
        return embedded_patches(network.vilt, pixels)

    def question_start(self, network: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        hidden, lengths = embedded(network.bert, tokens), (tokens >= 0).sum(dim=1)
        return self._read(network, hidden, lengths, 0, first, UNTUNED)

    def pooled(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        starts = self._words_and_patches(network, rows, tuning)
        return encoded(network.vilt, *starts, rows.lengths, tuning.counted_from(len(network.bert.encoder.layer)))

    def looked(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        starts = self._words_and_patches(network, rows, tuning)
        return looked(network.vilt, *starts, rows.lengths, tuning.counted_from(len(network.bert.encoder.layer)))

    def _words_and_patches(
        self, network: Any, rows: JointRows, tuning: TowerTuning
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The input of ViLT's first block."""
        pictures, questions = rows.pictures, rows.questions[:, : int(rows.lengths.max())]
        if rows.first < 0:
            pictures, questions = embedded_patches(network.vilt, pictures), embedded(network.bert, questions)
        if rows.first < len(network.bert.encoder.layer):
            questions = self._read(network, questions, rows.lengths, max(rows.first, 0), self.layers, tuning)
        return questions, pictures

    def _read(
        self, network: Any, hidden: torch.Tensor, lengths: torch.Tensor, first: int, end: int, tuning: TowerTuning
    ) -> torch.Tensor:
        """Takes BERT's states from before `first` to before `end`, or to ViLT's embeddings if `end` is beyond BERT."""
        blocks, visible = network.bert.encoder.layer, present(lengths, hidden.shape[1])
        for index in range(first, min(end, len(blocks))):
            hidden = bert_block(blocks[index], hidden, visible, tuning, index, self.layers)
        return embedded_words(network.vilt, inputs_embeds=hidden) if end >= len(blocks) else hidden


VAULT_ARCHITECTURES: dict[str, Mapping[str, Any]] = {
    "vault-b32": {"vilt": VILT_ARCHITECTURES["vilt-b32"], "bert": BERT_BASE},
}
"""The arguments of transformers' `ViltConfig` and `BertConfig`; both are of one width."""


def vault_shape(architecture: str) -> BackboneShape:
    """The shape of a VAuLT of this architecture: BERT's blocks, then ViLT's."""
    facts = VAULT_ARCHITECTURES[architecture]
    vilt, bert = facts["vilt"], facts["bert"]
    width, counts = vilt["hidden_size"], (bert["num_hidden_layers"], vilt["num_hidden_layers"])
    names = tuple(
        f"{part}.encoder.layer.{index}"
        for part, count in zip(("bert", "vilt"), counts, strict=True)
        for index in range(count)
    )
    parts = low_rank_parts(width, *BERT_QUERIES_VALUES), low_rank_parts(width, *QUERIES_VALUES)
    by_block = counts[0] * (parts[0],) + counts[1] * (parts[1],)
    return BackboneShape(
        {JOINT: TowerShape(sum(counts), width, vilt["num_attention_heads"], names=names, by_block=by_block)},
        embed=0,
        image_size=vilt["image_size"],
        context=vilt["max_position_embeddings"],
        words=width,
        build=partial(build_vault, facts),
        aside=("vilt.embeddings.text_embeddings.word_embeddings.weight",),
    )


def load_vault(name: str, architecture: str, folder: Path, device: str) -> VaultBackbone:
    """Loads a VAuLT from a folder of this machine. Raises `BackboneError`; no message holds a path."""
    facts, shape, bert = VAULT_ARCHITECTURES[architecture], vault_shape(architecture), folder / "bert"
    weights = weights_in(name, folder, ("config.json",))
    bert_weights = weights_in(name, bert, ("config.json", "vocab.txt"), "the folder 'bert' in that")
    check_configuration(name, architecture, folder / "config.json", facts["vilt"])
    check_configuration(name, architecture, bert / "config.json", {"model_type": "bert", **facts["bert"]})
    network: Any = build_vault(facts)
    fill(network.vilt, name, architecture, weights, vilt_names)
    fill(network.bert, name, architecture, bert_weights, bert_names)
    tokenize = word_pieces(name, bert / "vocab.txt", shape.context, facts["bert"]["vocab_size"])
    network = network.to(device).float().eval().requires_grad_(False)
    return VaultBackbone(name, network, tokenize, shape, None, digest(network))


def build_vault(facts: Mapping[str, Any]) -> nn.Module:
    def bert(library: Any) -> nn.Module:
        return library.BertModel(library.BertConfig(**facts["bert"]), add_pooling_layer=False)

    return nn.ModuleDict({"bert": transformers_module(bert), "vilt": build_vilt(facts["vilt"])})


VAULT = Family(VAULT_ARCHITECTURES, vault_shape, load_vault)
