"""BERT's blocks in a fused backbone: transformers' own modules, with tuned parts and attention to a picture.

They normalise after each sum. FedDAT's adapter is placed as in its authors' code: it reads the block's output without
an adapter, and adds to the feed-forward layer's output before the last normalisation (J. Pfeiffer et al.,
"AdapterFusion", EACL 2021).
"""

from typing import Any

import torch

from medfedvqa.models.backbone import TowerTuning
from medfedvqa.models.block_readers import attention_of
from medfedvqa.models.library_towers import tuned_block


def embedded(bert: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Token ids [n, positions], -1 beyond a question's end, to [n, positions, width]."""
    hidden: torch.Tensor = bert.embeddings(input_ids=tokens.clamp(min=0))
    return hidden


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
    output: torch.Tensor = block.output.LayerNorm(raw + added + attended)
    return output


def self_attended(
    block: Any, hidden: torch.Tensor, visible: torch.Tensor, tuning: TowerTuning, index: int, layers: int
) -> torch.Tensor:
    """A question's self-attention in a block, with residual and normalisation; see `bert_block`."""
    with tuned_block(block, attention_of(block), tuning, index, layers):
        attended: torch.Tensor = block.attention(hidden, visible)[0]
    return attended
