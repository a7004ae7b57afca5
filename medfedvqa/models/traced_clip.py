"""A tuned model on a CLIP as a function of tensors alone, which torch can export as a program (`torch.export`).

Training computes each distinct state once, by tables that depend on the questions. A program has no such tables: it
computes one question at full length, with the same towers.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.answer_head import AnswerBatch
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.clip import ClipBackbone
from medfedvqa.models.families import IMAGE, TEXT, Texts, image_tower, text_tower
from medfedvqa.models.layouts import Packed
from medfedvqa.models.library_towers import LibraryTextTower
from medfedvqa.models.ngrams import NGRAMS
from medfedvqa.models.towers import ClassTextTower, ImageTower
from medfedvqa.models.tuned import TunedModel

FROZEN, TUNED, SHARED = "frozen.", "tuned.", "shared."
"""The prefixes of a program's weights: the backbone's, those trained at the site, and others' mixed prompts."""
Weights = dict[str, torch.Tensor]


class FullLength(Packed):
    """Questions at the full context, [items, context, width]. Nothing is shared, so nothing is packed."""

    def __init__(self, ends: torch.Tensor, tokens: torch.Tensor) -> None:
        """`ends`: the position that is pooled, int64 [items]; `tokens`: the token ids, int64 [items, context]."""
        self._ends, self.tokens, self.length = ends, tokens, tokens.shape[1]
        self.present = self.positions <= ends[:, None]

    @property
    def positions(self) -> torch.Tensor:
        return torch.arange(self.length, device=self.tokens.device).expand(self.tokens.shape)

    def pad(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def pack(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[torch.arange(len(hidden), device=hidden.device), self._ends][:, None]

    def pooled_mask(self, mask: torch.Tensor) -> torch.Tensor:
        return mask[self._ends][:, None, None]

    def pooled_owners(self, owners: torch.Tensor | None) -> torch.Tensor | None:
        return owners


def weights_of(model: TunedModel, values: Mapping[str, torch.Tensor]) -> Weights:
    """All weights of a trained model, contiguous on the processor, by prefixed name. Raises `ConfigError`."""
    clip = check_traceable(model)[1].clip
    replaced = {name.removeprefix("weight."): value for name, value in values.items() if name.startswith("weight.")}
    if replaced and model.head.fusion == "attend":
        raise ConfigError("an export cannot hold the two sets of weights of a head on frozen features")
    frozen = dict(clip.named_parameters()) | dict(clip.named_buffers()) | replaced
    tuned = {name: value for name, value in values.items() if not name.startswith("weight.")}
    parts = {FROZEN: frozen, TUNED: tuned, SHARED: model.shared or {}}
    named = {prefix + name: value for prefix, part in parts.items() for name, value in part.items()}
    return {name: named[name].detach().cpu().contiguous().clone() for name in sorted(named)}


def check_traceable(model: object) -> tuple[TunedModel, ClipBackbone]:
    """Returns a model that can become a program, and its CLIP. Raises `ConfigError` for other models."""
    if type(model) is not TunedModel or not isinstance(model.backbone, ClipBackbone):
        raise ConfigError("only a tuned CLIP with an answer head can be exported: choose another method or backbone")
    if isinstance(text_tower(model.backbone.clip, 1), ClassTextTower):
        raise ConfigError("the text tower of CoCa cannot be exported: choose another backbone")
    return model, model.backbone


class TracedModel(nn.Module):
    """Computes logits [1, answers] from weights, a picture [1, 1, size, size] in 0..1, tokens [1, context] and n-grams
    [1, NGRAMS].

    It has no weights of its own: they are its first argument.
    """

    def __init__(self, model: TunedModel) -> None:
        super().__init__()
        self._held = check_traceable(model)  # a tuple, so that the backbone is not part of this module

    @property
    def example(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A picture, a question's tokens and its n-grams, to trace with."""
        _, backbone = self._held
        size = backbone.shape.image_size
        return torch.full((1, 1, size, size), 0.5), backbone.tokenize(["is it"]), torch.zeros(1, NGRAMS)

    def forward(
        self, weights: Weights, picture: torch.Tensor, tokens: torch.Tensor, grams: torch.Tensor
    ) -> torch.Tensor:
        model, backbone = self._held
        frozen, values, shared = (_part(weights, prefix) for prefix in (FROZEN, TUNED, SHARED))
        tuning = model.tuning.applied(backbone, values, shared or None)
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (backbone.mean, backbone.std))
        pixels = (picture.expand(-1, 3, -1, -1) - mean) / std
        whole = replace(tuning, weights=frozen)
        return whole.call(_logits, backbone.clip, model, tuning, values, pixels, tokens, grams)


def _logits(
    clip: nn.Module,
    model: TunedModel,
    tuning: Tuning,
    values: Weights,
    pixels: torch.Tensor,
    tokens: torch.Tensor,
    grams: torch.Tensor,
) -> torch.Tensor:
    image, text = image_tower(clip, 1), text_tower(clip, 1)
    image, text = image_tower(clip, image.layers), text_tower(clip, text.layers)
    below, layout = image.trunk(pixels), FullLength(_ends(text, tokens), tokens)
    pictures = image.features(below, tuning.tower(IMAGE))
    questions = text.features(text.trunk(tokens, layout), layout, tuning.tower(TEXT))
    parts = [pictures, questions]
    if model.join == "product":
        parts.append(image.embed(pictures) * text.embed(questions))
    places = image.places(below) if model.head.fusion == "attend" and isinstance(image, ImageTower) else None
    batch = AnswerBatch(None, grams, places)
    return model.head.logits(values, model.shape, torch.cat(parts, dim=1), batch, None, model.components)


def _ends(text: Texts, tokens: torch.Tensor) -> torch.Tensor:
    """The position that is pooled, int64 [items]."""
    return text.encoder.ends(tokens) if isinstance(text, LibraryTextTower) else text._ends(tokens)


def _part(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
