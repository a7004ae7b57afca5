"""ALBEF backbones by name: a folder with the authors' checkpoint, one `.pth` file, and BERT's `vocab.txt`.

The checkpoint is of pre-training (`visual_encoder.`, `text_encoder.bert.`) or of VQA (without `bert.`). Momentum
copies, queues, heads and the decoder are left out.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import UNTUNED, BackboneShape, TowerShape, TowerTuning
from medfedvqa.models.backbones import Family
from medfedvqa.models.block_readers import attention_of
from medfedvqa.models.checkpoints import Weights, digest, fill
from medfedvqa.models.library_towers import adapted, tuned_block
from medfedvqa.models.prompts import attention_to_patches, by_head
from medfedvqa.papers.networks.joint import (
    BERT_BASE,
    BERT_QUERIES_VALUES,
    JOINT,
    JointBackbone,
    JointRows,
    bert_block,
    bert_names,
    embedded,
    low_rank_parts,
    present,
    self_attended,
    transformers_module,
    word_pieces,
)

# ALBEF as a backbone: a ViT, and a BERT whose upper half attends to its patches (J. Li et al., NeurIPS 2021).
#
# One tower, `joint`: the ViT's blocks, which see the picture alone, BERT's lower ones, which see the question alone,
# and its upper ones, which see both. Features are the last state of the question's first token, as ALBEF itself
# classifies.


class AlbefBackbone(JointBackbone):
    """A frozen module with `visual_encoder`, timm's ViT, and `text_encoder`, a `BertModel` with cross-attention."""

    title = "ALBEF"
    mean = (0.48145466, 0.4578275, 0.40821073)
    std = (0.26862954, 0.26130258, 0.27577711)

    @property
    def table(self) -> nn.Embedding:
        return self.network.text_encoder.embeddings.word_embeddings

    def picture_start(self, network: Any, pixels: torch.Tensor, first: int) -> torch.Tensor:
        return self._seen(network.visual_encoder, patches(network.visual_encoder, pixels), 0, first, UNTUNED)

    def question_start(self, network: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        hidden, lengths = embedded(network.text_encoder, tokens), (tokens >= 0).sum(dim=1)
        return self._read(network, None, hidden, lengths, 0, min(first, alone(network)), UNTUNED)

    def pooled(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        _, hidden = self._up_to(network, rows, self.layers, tuning)
        return hidden[:, 0]

    def looked(self, network: Any, rows: JointRows, tuning: TowerTuning) -> torch.Tensor:
        last = self.layers - 1
        picture, hidden = self._up_to(network, rows, last, tuning)
        block, visible = network.text_encoder.encoder.layer[-1], present(rows.lengths, hidden.shape[1])
        attended = self_attended(block, hidden, visible, tuning, last, self.layers)
        cross = block.crossattention.self
        queries, keys, _ = by_head(
            cross.num_attention_heads, cross.query(attended), cross.key(picture), cross.value(picture), None
        )
        # The picture's first position is its class token, not a patch.
        weights = attention_to_patches(queries, keys, picture.shape[1] - 1)
        return (weights * visible[:, 0, 0, :, None]).sum(dim=1)

    def _up_to(self, network: Any, rows: JointRows, end: int, tuning: TowerTuning) -> tuple[torch.Tensor, torch.Tensor]:
        """A picture's states after all of its blocks, and a question's states before the block `end`."""
        pictures, questions = rows.pictures, rows.questions[:, : int(rows.lengths.max())]
        if rows.first < 0:
            pictures = patches(network.visual_encoder, pictures)
            questions = embedded(network.text_encoder, questions)
        # Blocks that see both have no start in the cache, tuned or not.
        begin = min(max(rows.first, 0), alone(network))
        if rows.first < len(network.visual_encoder.blocks):
            pictures = self._seen(network.visual_encoder, pictures, begin, end, tuning)
        return pictures, self._read(network, pictures, questions, rows.lengths, begin, end, tuning)

    def _seen(self, visual: Any, hidden: torch.Tensor, first: int, end: int, tuning: TowerTuning) -> torch.Tensor:
        """Takes a picture's states from before the block `first` to before `end`; normalises them after the last."""
        for index, block in list(enumerate(visual.blocks))[first:end]:
            with tuned_block(block, attention_of(block), tuning, index, self.layers):
                hidden = block(hidden)
            hidden = adapted(tuning, index, hidden)
        return visual.norm(hidden) if end >= len(visual.blocks) else hidden

    def _read(
        self,
        network: Any,
        picture: torch.Tensor | None,
        hidden: torch.Tensor,
        lengths: torch.Tensor,
        first: int,
        end: int,
        tuning: TowerTuning,
    ) -> torch.Tensor:
        """Takes a question's states from before the block `first` to before `end`; upper blocks see `picture`."""
        visible, below = present(lengths, hidden.shape[1]), len(network.visual_encoder.blocks)
        for index, block in enumerate(network.text_encoder.encoder.layer, below):
            if first <= index < end:
                attended = picture if hasattr(block, "crossattention") else None
                hidden = bert_block(block, hidden, visible, tuning, index, self.layers, attended)
        return hidden


def patches(visual: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Normalised pictures of the model's own size, [n, 3, size, size], to [n, patches + 1, width]."""
    return visual._pos_embed(visual.patch_embed(pixels))


def alone(network: Any) -> int:
    """The number of blocks that see the picture or the question alone."""
    text = sum(not hasattr(block, "crossattention") for block in network.text_encoder.encoder.layer)
    return len(network.visual_encoder.blocks) + text


ARCHITECTURES: dict[str, Mapping[str, Any]] = {
    "albef-b16": {
        "vision": {"img_size": 384, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12},
        "bert": BERT_BASE,
        "fused_from": 6,
        "context": 40,
    },
}
"""The arguments of timm's `VisionTransformer` and of `BertConfig`, the first block of BERT that attends to the picture,
and the most tokens of a question. The size of pictures is that of the authors' VQA."""

POSITIONS = "visual_encoder.pos_embed"


def albef_shape(architecture: str) -> BackboneShape:
    """The shape of an ALBEF of this architecture: the ViT's blocks, then BERT's."""
    facts = ARCHITECTURES[architecture]
    vision, bert = facts["vision"], facts["bert"]
    width, counts = bert["hidden_size"], (vision["depth"], bert["num_hidden_layers"])
    lists = "visual_encoder.blocks", "text_encoder.encoder.layer"
    names = tuple(f"{part}.{index}" for part, count in zip(lists, counts, strict=True) for index in range(count))
    rows = (0, width), (2 * width, 3 * width)
    fused = tuple(("attn.qkv.weight", first, end, width) for first, end in rows)
    by_block = counts[0] * (fused,) + counts[1] * (low_rank_parts(width, *BERT_QUERIES_VALUES),)
    return BackboneShape(
        {JOINT: TowerShape(sum(counts), width, bert["num_attention_heads"], names=names, by_block=by_block)},
        embed=0,
        image_size=vision["img_size"],
        context=facts["context"],
        words=width,
        build=partial(_build, facts),
    )


def load_albef(name: str, architecture: str, folder: Path, device: str) -> AlbefBackbone:
    """Loads an ALBEF from a folder of this machine. Raises `BackboneError`; no message holds a path."""
    facts, shape = ARCHITECTURES[architecture], albef_shape(architecture)
    files = sorted(folder.glob("*.pth"))
    if len(files) != 1 or not (folder / "vocab.txt").is_file():
        raise BackboneError(
            f"the folder of the backbone '{name}' is not as it should be: it holds one .pth file, and vocab.txt"
        )
    network: Any = _build(facts)
    fill(network, name, architecture, files[0], partial(_own, network.visual_encoder.patch_embed.grid_size[0]))
    tokenize = word_pieces(name, folder / "vocab.txt", shape.context, facts["bert"]["vocab_size"])
    network = network.to(device).float().eval().requires_grad_(False)
    return AlbefBackbone(name, network, tokenize, shape, None, digest(network))


def _build(facts: Mapping[str, Any]) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    visual = VisionTransformer(**facts["vision"], num_classes=0)
    return nn.ModuleDict({"visual_encoder": visual, "text_encoder": transformers_module(partial(_text, facts))})


def _text(facts: Mapping[str, Any], library: Any) -> nn.Module:
    """A BERT whose upper blocks also have transformers' cross-attention."""
    from transformers.models.bert.modeling_bert import BertAttention

    attention: Any = BertAttention
    model: Any = library.BertModel(library.BertConfig(**facts["bert"]), add_pooling_layer=False)
    for index, block in enumerate(model.encoder.layer):
        if index >= facts["fused_from"]:
            block.crossattention = attention(model.config, layer_idx=index, is_cross_attention=True)
    return model


def _own(grid: int, weights: Weights) -> Weights:
    """The backbone's weights in an ALBEF checkpoint, with positions resized to `grid` x `grid` patches."""
    nested: Any = weights.get("model", weights)
    whole: Weights = dict(nested)
    text = {key.removeprefix("text_encoder."): value for key, value in whole.items() if key.startswith("text_encoder.")}
    own = {key: value for key, value in whole.items() if key.startswith("visual_encoder.")}
    own |= {f"text_encoder.{key}": value for key, value in bert_names(text).items() if not key.endswith("position_ids")}
    if POSITIONS in own:
        own[POSITIONS] = _resized(own[POSITIONS], grid)
    return own


def _resized(positions: torch.Tensor, grid: int) -> torch.Tensor:
    """Position embeddings [1, patches + 1, width], resized to `grid` x `grid` patches as the authors do it."""
    side = round((positions.shape[1] - 1) ** 0.5)
    if side == grid or side**2 != positions.shape[1] - 1:
        return positions
    first, places = positions[:, :1], torch.unflatten(positions[:, 1:].transpose(1, 2), 2, (side, side))
    places = F.interpolate(places, size=(grid, grid), mode="bicubic", align_corners=False)
    return torch.cat([first, places.flatten(2).transpose(1, 2)], dim=1)


ALBEF = Family(ARCHITECTURES, albef_shape, load_albef)
