"""VAuLT backbones by name: a folder with ViLT's files, and in it a folder `bert` with those of a BERT.

Both hold `model.safetensors` (or `pytorch_model.bin`) and `config.json`, as transformers saves them, and `bert` the
`vocab.txt` as well: words are its pieces.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medfedvqa.models.backbone import UNTUNED, BackboneShape, TowerShape, TowerTuning
from medfedvqa.models.backbones import Family
from medfedvqa.models.checkpoints import digest, fill
from medfedvqa.papers.networks.fused_files import (
    BERT_BASE,
    BERT_QUERIES_VALUES,
    bert_block,
    bert_names,
    check_configuration,
    embedded,
    low_rank_parts,
    transformers_module,
    weights_in,
    word_pieces,
)
from medfedvqa.papers.networks.joint import JOINT, JointBackbone, JointRows, present
from medfedvqa.papers.networks.vilt import ARCHITECTURES as VILT_ARCHITECTURES
from medfedvqa.papers.networks.vilt import (
    QUERIES_VALUES,
    build_vilt,
    embedded_patches,
    embedded_words,
    encoded,
    looked,
    vilt_names,
)

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


ARCHITECTURES: dict[str, Mapping[str, Any]] = {
    "vault-b32": {"vilt": VILT_ARCHITECTURES["vilt-b32"], "bert": BERT_BASE},
}
"""The arguments of transformers' `ViltConfig` and `BertConfig`; both are of one width."""


def vault_shape(architecture: str) -> BackboneShape:
    """The shape of a VAuLT of this architecture: BERT's blocks, then ViLT's."""
    facts = ARCHITECTURES[architecture]
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
        build=partial(_build, facts),
        aside=("vilt.embeddings.text_embeddings.word_embeddings.weight",),
    )


def load_vault(name: str, architecture: str, folder: Path, device: str) -> VaultBackbone:
    """Loads a VAuLT from a folder of this machine. Raises `BackboneError`; no message holds a path."""
    facts, shape, bert = ARCHITECTURES[architecture], vault_shape(architecture), folder / "bert"
    weights = weights_in(name, folder, ("config.json",))
    bert_weights = weights_in(name, bert, ("config.json", "vocab.txt"), "the folder 'bert' in that")
    check_configuration(name, architecture, folder / "config.json", facts["vilt"])
    check_configuration(name, architecture, bert / "config.json", {"model_type": "bert", **facts["bert"]})
    network: Any = _build(facts)
    fill(network.vilt, name, architecture, weights, vilt_names)
    fill(network.bert, name, architecture, bert_weights, bert_names)
    tokenize = word_pieces(name, bert / "vocab.txt", shape.context, facts["bert"]["vocab_size"])
    network = network.to(device).float().eval().requires_grad_(False)
    return VaultBackbone(name, network, tokenize, shape, None, digest(network))


def _build(facts: Mapping[str, Any]) -> nn.Module:
    def bert(library: Any) -> nn.Module:
        return library.BertModel(library.BertConfig(**facts["bert"]), add_pooling_layer=False)

    return nn.ModuleDict({"bert": transformers_module(bert), "vilt": build_vilt(facts["vilt"])})


VAULT = Family(ARCHITECTURES, vault_shape, load_vault)
