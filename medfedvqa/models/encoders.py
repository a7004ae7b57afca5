"""Encoders, one per library and kind of tower: the tower's own embedding, blocks, pooling and projection.

Each calls the library's modules in the library's order, so that a tower can be cut below its tuned blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import nn

from medfedvqa.errors import BackboneError
from medfedvqa.models.published_parts import sentence_means, state_means


class ImageEncoder(ABC):
    """The picture tower of a model."""

    attends: ClassVar[bool] = True
    """Whether its blocks have attention, which prompts can join."""

    def __init__(self, tower: Any, prefix: str) -> None:
        """`prefix`: the name of the tower within the model, with a dot at its end."""
        self._tower, self._prefix = tower, prefix

    @property
    @abstractmethod
    def blocks(self) -> Mapping[str, nn.Module]:
        """The tower's blocks in order, by their names within the model."""

    @abstractmethod
    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalised pictures [n, 3, size, size] to the input of the first block."""

    def run(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """The output of one block."""
        return list(self.blocks.values())[index](hidden)

    @abstractmethod
    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        """The last block's output to features, [n, width]."""

    @abstractmethod
    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Features to the space that pictures and texts share, [n, embed]."""

    @property
    @abstractmethod
    def aside(self) -> tuple[str, ...]:
        """The names within the model of modules and parameters that features do not depend on."""

    def _listed(self, path: str) -> dict[str, nn.Module]:
        modules = self._tower.get_submodule(path)
        return {f"{self._prefix}{path}.{index}": block for index, block in enumerate(modules)}


class TimmVit(ImageEncoder):
    """A ViT of timm in open_clip's wrapper; SigLIP's, MobileCLIP's and ViTamin's as well."""

    @property
    def blocks(self) -> Mapping[str, nn.Module]:
        return self._listed("trunk.blocks")

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        trunk = self._tower.trunk
        return trunk.norm_pre(trunk.patch_drop(trunk._pos_embed(trunk.patch_embed(pixels))))

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        trunk = self._tower.trunk
        return trunk.forward_head(trunk.norm(hidden), pre_logits=True)

    def project(self, features: torch.Tensor) -> torch.Tensor:
        return self._tower.head(self._tower.trunk.get_classifier()(features))

    @property
    def aside(self) -> tuple[str, ...]:
        classifier = self._tower.trunk.get_classifier()
        name = next(name for name, module in self._tower.trunk.named_modules() if module is classifier)
        return f"{self._prefix}trunk.{name}.", f"{self._prefix}head."


class TimmEva(TimmVit):
    """An EVA or a Perception Encoder of timm; its blocks use rotary positions, and prompts get none."""

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        trunk = self._tower.trunk
        return trunk.norm_pre(trunk._pos_embed(trunk.patch_embed(pixels))[0])

    def run(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        trunk = self._tower.trunk
        grid = {} if hasattr(trunk.rope, "feat_shape") else {"shape": trunk.patch_embed.grid_size}
        rope = None if trunk.rope is None else trunk.rope.get_embed(**grid)
        return trunk.blocks[index](hidden, rope=rope)


class TimmStages(TimmVit):
    """A ConvNeXt or a FastViT of timm: stages of blocks of convolutions."""

    attends = False

    @property
    def blocks(self) -> Mapping[str, nn.Module]:
        return {
            f"{self._prefix}trunk.stages.{number}.blocks.{index}": block
            for number, stage in enumerate(self._tower.trunk.stages)
            for index, block in enumerate(stage.blocks)
        }

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._tower.trunk.stem(pixels)

    def run(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        for stage in self._tower.trunk.stages:
            if index < len(stage.blocks):
                if index == 0:
                    hidden = getattr(stage, "pos_emb", nn.Identity())(stage.downsample(hidden))
                return stage.blocks[index](hidden)
            index -= len(stage.blocks)
        raise IndexError(index)

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        trunk = self._tower.trunk
        last = trunk.norm_pre if hasattr(trunk, "norm_pre") else trunk.final_conv
        return trunk.forward_head(last(hidden), pre_logits=True)


class OpenClipResNet(ImageEncoder):
    """open_clip's ResNet. Its attention pool ends in the projection, so its features are the pool's outputs."""

    attends = False

    @property
    def blocks(self) -> Mapping[str, nn.Module]:
        return {name: block for number in range(1, 5) for name, block in self._listed(f"layer{number}").items()}

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._tower.stem(pixels)

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._tower.attnpool(hidden)

    def project(self, features: torch.Tensor) -> torch.Tensor:
        return features

    @property
    def aside(self) -> tuple[str, ...]:
        return ()


class HuggingFaceVision(ImageEncoder):
    """The picture tower of a `CLIPModel` or `SiglipModel` of transformers."""

    @property
    def blocks(self) -> Mapping[str, nn.Module]:
        return self._listed("vision_model.encoder.layers")

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        vision = self._tower.vision_model
        return getattr(vision, "pre_layrnorm", nn.Identity())(vision.embeddings(pixels))

    def run(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        return self._tower.vision_model.encoder.layers[index](hidden, None)

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        vision = self._tower.vision_model
        if hasattr(vision, "head"):  # SigLIP
            return vision.head(vision.post_layernorm(hidden))
        return vision.post_layernorm(hidden[:, 0])

    def project(self, features: torch.Tensor) -> torch.Tensor:
        return getattr(self._tower, "visual_projection", nn.Identity())(features)

    @property
    def aside(self) -> tuple[str, ...]:
        return ("visual_projection.",)


class TextEncoder(ABC):
    """The text tower of a model."""

    causal: ClassVar[bool] = False

    def __init__(self, tower: Any, prefix: str) -> None:
        self._tower, self._prefix = tower, prefix

    @property
    @abstractmethod
    def blocks(self) -> Mapping[str, nn.Module]:
        """The tower's blocks in order, by their names within the model."""

    @property
    @abstractmethod
    def table(self) -> nn.Embedding:
        """The table of token embeddings."""

    @abstractmethod
    def ends(self, tokens: torch.Tensor) -> torch.Tensor:
        """The last position on which a text's features depend, int64 [n], for token ids [n, context]."""

    @abstractmethod
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [n, length] to [n, length, width]."""

    def mask(self, present: torch.Tensor) -> torch.Tensor | None:
        """The attention mask, bool, for `present` [n, length], the positions of each text; None: no mask."""
        return present[:, None, None]

    def run(self, index: int, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The output of one block."""
        return list(self.blocks.values())[index](hidden, mask)

    @abstractmethod
    def pool(self, hidden: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """The last block's output to features, [n, width]."""

    @abstractmethod
    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Features to the space that pictures and texts share, [n, embed]."""

    @property
    @abstractmethod
    def aside(self) -> tuple[str, ...]:
        """The names within the model of modules and parameters that features do not depend on."""


class BertText(TextEncoder):
    """BERT, RoBERTa or XLM-RoBERTa in open_clip's wrapper."""

    @property
    def blocks(self) -> Mapping[str, nn.Module]:
        layers = self._tower.transformer.encoder.layer
        return {f"{self._prefix}transformer.encoder.layer.{index}": layer for index, layer in enumerate(layers)}

    @property
    def table(self) -> nn.Embedding:
        return self._tower.transformer.embeddings.word_embeddings

    def ends(self, tokens: torch.Tensor) -> torch.Tensor:
        # open_clip's mask hides padding wherever it stands; the tokenizers pad at the end.
        present: torch.Tensor = tokens != self._tower.config.pad_token_id
        return (present * torch.arange(tokens.shape[1], device=tokens.device)).amax(dim=1)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._tower.transformer.embeddings(input_ids=tokens)

    def pool(self, hidden: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        kind = type(self._tower.pooler).__name__
        if kind == "MeanPooler":
            return state_means(hidden, present)
        if kind == "SentencePooler":
            return sentence_means(hidden, present)
        if kind == "ClsPooler" and self._tower.transformer.pooler is not None:
            return self._tower.transformer.pooler(hidden)
        return hidden[:, 0]

    def project(self, features: torch.Tensor) -> torch.Tensor:
        return self._tower.proj(features)

    @property
    def aside(self) -> tuple[str, ...]:
        return (f"{self._prefix}proj.",)


class HuggingFaceClipText(TextEncoder):
    """The text tower of a `CLIPModel` of transformers: causal, pooled at its end token."""

    causal = True
    _head = "text_projection"

    @property
    def blocks(self) -> Mapping[str, nn.Module]:
        layers = self._tower.text_model.encoder.layers
        return {f"text_model.encoder.layers.{index}": layer for index, layer in enumerate(layers)}

    @property
    def table(self) -> nn.Embedding:
        return self._tower.text_model.embeddings.token_embedding

    def ends(self, tokens: torch.Tensor) -> torch.Tensor:
        end = int(self._tower.text_model.eos_token_id)
        # Configurations before 2023 name a wrong end token, 2; the right one has the highest id.
        return tokens.argmax(dim=-1) if end == 2 else (tokens == end).int().argmax(dim=-1)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._tower.text_model.embeddings(tokens)

    def mask(self, present: torch.Tensor) -> torch.Tensor | None:
        length = present.shape[1]
        return torch.ones(1, 1, length, length, dtype=torch.bool, device=present.device).tril()

    def pool(self, hidden: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        ends = present.sum(dim=1) - 1
        return self._tower.text_model.final_layer_norm(hidden[torch.arange(len(hidden), device=hidden.device), ends])

    def project(self, features: torch.Tensor) -> torch.Tensor:
        return self._tower.get_submodule(self._head)(features)

    @property
    def aside(self) -> tuple[str, ...]:
        return (f"{self._head}.",)


class HuggingFaceSiglipText(HuggingFaceClipText):
    """The text tower of a `SiglipModel`: every position attends to all, padding included, and the last is pooled."""

    causal = False
    _head = "text_model.head"

    def ends(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tokens[:, 0], tokens.shape[1] - 1)

    def mask(self, present: torch.Tensor) -> torch.Tensor | None:
        return None


IMAGES: Mapping[str, Callable[[Any, str], ImageEncoder]] = MappingProxyType(
    {
        "VisionTransformer": TimmVit,
        "Eva": TimmEva,
        "ConvNeXt": TimmStages,
        "FastVit": TimmStages,
        "ModifiedResNet": OpenClipResNet,
        "CLIPModel": HuggingFaceVision,
        "SiglipModel": HuggingFaceVision,
    }
)
TEXTS: Mapping[str, Callable[[Any, str], TextEncoder]] = MappingProxyType(
    {"HFTextEncoder": BertText, "CLIPModel": HuggingFaceClipText, "SiglipModel": HuggingFaceSiglipText}
)
"""Encoders by class of their module; for timm, by class of the module within open_clip's wrapper."""


def image_encoder(model: Any) -> ImageEncoder:
    """The encoder of a model's pictures. Raises `BackboneError` for a class that has none."""
    tower, prefix = (model.visual, "visual.") if hasattr(model, "visual") else (model, "")
    kind = type(getattr(tower, "trunk", tower)).__name__
    if kind not in IMAGES:
        raise BackboneError(f"its picture tower is of the class {kind}, which this project does not support")
    return IMAGES[kind](tower, prefix)


def text_encoder(model: Any) -> TextEncoder:
    """The encoder of a model's texts. Raises `BackboneError` for a class that has none."""
    tower, prefix = (model.text, "text.") if hasattr(model, "text") else (model, "")
    kind = type(tower).__name__
    if kind not in TEXTS:
        raise BackboneError(f"its text tower is of the class {kind}, which this project does not support")
    return TEXTS[kind](tower, prefix)
