"""Frozen CLIP backbones with prefix prompts, and the VQA model that a site trains on them."""

from medfedvqa.models.backbones import (
    Backbone,
    BackboneShape,
    TowerShape,
    bundled_for,
    load_backbone,
    seen_by,
    shape_of,
)
from medfedvqa.models.cache import FrozenCache
from medfedvqa.models.losses import answer_loss, prompt_distance, weight_penalty
from medfedvqa.models.prompts import PromptShape
from medfedvqa.models.vqa import (
    IMAGE_PROMPT,
    TEXT_PROMPT,
    AnswerHead,
    Batch,
    ModelConfig,
    Prompts,
    SiteModel,
    prompt_shapes,
)

__all__ = [
    "IMAGE_PROMPT",
    "TEXT_PROMPT",
    "AnswerHead",
    "Backbone",
    "BackboneShape",
    "Batch",
    "FrozenCache",
    "ModelConfig",
    "PromptShape",
    "Prompts",
    "SiteModel",
    "TowerShape",
    "answer_loss",
    "bundled_for",
    "load_backbone",
    "prompt_distance",
    "prompt_shapes",
    "seen_by",
    "shape_of",
    "weight_penalty",
]
