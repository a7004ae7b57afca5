"""Shared code for the folders of fused backbones: word pieces, configurations, and refusals.

Nothing is ever fetched. Shapes need no folder, so server and sites agree on what travels.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import TowerTuning
from medfedvqa.models.block_readers import attention_of
from medfedvqa.models.checkpoints import Weights, weights_file
from medfedvqa.models.library_towers import tuned_block

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of weight files that transformers writes, whole or in parts with an index; the first one found is used."""

BERT_QUERIES_VALUES = "attention.self.query.weight", "attention.self.value.weight"
"""The weights in a block of BERT that low-rank updates are for."""
BERT_BASE: Mapping[str, Any] = {
    "vocab_size": 30522, "type_vocab_size": 2, "max_position_embeddings": 512, "hidden_size": 768,
    "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}  # fmt: skip
"""The arguments of transformers' `BertConfig` for BERT-base in lower case."""


def low_rank_parts(width: int, *names: str) -> tuple[tuple[str, int, int, int], ...]:
    """The weights of a block that make queries and values, as `TowerShape.by_block` has them."""
    return tuple((name, 0, width, width) for name in names)


def transformers_module(make: Callable[[Any], nn.Module]) -> nn.Module:
    """A module that `make` builds from the package transformers. Raises `BackboneError` where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise BackboneError("this backbone needs the package transformers: pip install 'medfedvqa[vilt]'") from None
    return make(transformers)


def weights_in(name: str, folder: Path, needed: tuple[str, ...], what: str = "the folder") -> Path:
    """The file of weights. Raises `BackboneError` if it or one of the files `needed` beside it is missing."""
    weights = weights_file(folder, WEIGHTS)
    if weights is None or not all((folder / file).is_file() for file in needed):
        listed = f"{', '.join((WEIGHTS[0], *needed[:-1]))} and {needed[-1]}"
        raise BackboneError(f"{what} of the backbone '{name}' lacks files: it holds {listed}")
    return weights


def check_configuration(name: str, architecture: str, path: Path, facts: Mapping[str, Any]) -> None:
    """Raises `BackboneError` if a `config.json` contradicts the architecture in a way that shapes do not show."""
    try:
        configuration = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise BackboneError(f"config.json of the backbone '{name}' is not JSON") from None
    if wrong := sorted(key for key, value in facts.items() if configuration.get(key, value) != value):
        raise BackboneError(f"config.json of the backbone '{name}' is not of {architecture}: it differs in {wrong}")


def bert_names(weights: Weights) -> Weights:
    """A BERT's weights under the current names of `BertModel`, without prefix, heads and pooler."""
    if any(key.startswith("bert.") for key in weights):
        weights = {key.removeprefix("bert."): value for key, value in weights.items() if key.startswith("bert.")}
    # The published bert-base-uncased still has TensorFlow's names of a normalisation's parameters.
    spelled = {
        key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): value
        for key, value in weights.items()
    }
    return {key: value for key, value in spelled.items() if key.startswith(("embeddings.", "encoder."))}


def word_pieces(name: str, path: Path, context: int, size: int) -> Callable[[list[str]], torch.Tensor]:
    """The tokenizer for BERT's lower-case word pieces. It cuts questions that are too long."""
    from tokenizers import BertWordPieceTokenizer

    try:
        vocabulary = {word: number for number, word in enumerate(path.read_text(encoding="utf-8").splitlines())}
        if len(vocabulary) > size:
            raise ValueError
        tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
    except Exception as error:  # the library's own errors have no common type
        raise BackboneError(
            f"vocab.txt of the backbone '{name}' is not a vocabulary of {size} word pieces ({type(error).__name__})"
        ) from None
    tokenizer.enable_truncation(context)
    return partial(_tokenized, tokenizer, context)


def _tokenized(tokenizer: Any, context: int, questions: list[str]) -> torch.Tensor:
    ids = torch.full((len(questions), context), -1, dtype=torch.int64)
    for row, encoding in zip(ids, tokenizer.encode_batch(questions), strict=True):
        row[: len(encoding.ids)] = torch.tensor(encoding.ids)
    return ids


# BERT's blocks in a fused backbone: transformers' own modules, with tuned parts and attention to a picture.
#
# They normalise after each sum. FedDAT's adapter is placed as in its authors' code: it reads the block's output without
# an adapter, and adds to the feed-forward layer's output before the last normalisation (J. Pfeiffer et al.,
# "AdapterFusion", EACL 2021).


def embedded(bert: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Token ids [n, positions], -1 beyond a question's end, to [n, positions, width]."""
    return bert.embeddings(input_ids=tokens.clamp(min=0))


def bert_block(
    block: Any,
    hidden: torch.Tensor,
    visible: torch.Tensor,
    tuning: TowerTuning,
    index: int,
    layers: int,
    picture: torch.Tensor | None = None,
) -> torch.Tensor:
    """One block, the one of this index in a tower with this many layers: [n, positions, width] to the same.

    `visible`: the positions that others may attend to, bool [n, 1, 1, positions]. `picture`: the states for
    cross-attention, [n, patches, width]. Prompts and low-rank updates apply to a question's self-attention only.
    """
    attended = self_attended(block, hidden, visible, tuning, index, layers)
    if picture is not None:
        attended, _ = block.crossattention(attended, encoder_hidden_states=picture)
    raw = block.output.dense(block.intermediate(attended))
    normalised: torch.Tensor = block.output.LayerNorm(raw + attended)
    if index not in tuning.adapters:
        return normalised
    # An adapter returns its input plus its addition.
    added = tuning.adapters[index](normalised) - normalised
    return block.output.LayerNorm(raw + added + attended)


def self_attended(
    block: Any, hidden: torch.Tensor, visible: torch.Tensor, tuning: TowerTuning, index: int, layers: int
) -> torch.Tensor:
    """A question's self-attention in a block, with residual and normalisation; see `bert_block`."""
    with tuned_block(block, attention_of(block), tuning, index, layers):
        attended: torch.Tensor = block.attention(hidden, visible)[0]
    return attended
