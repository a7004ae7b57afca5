"""Frozen backbones, what can be tuned in them, and the VQA models that sites train on them."""

from medfedvqa.models.attention_networks import ClipFusion, EnhancedAttention, NetworkConfig, StackedAttention
from medfedvqa.models.backbone import Backbone, BackboneShape, Batch, Cache, Depth, TowerShape, Tuning
from medfedvqa.models.backbones import bundled_for, load_backbone, seen_by, shape_of
from medfedvqa.models.clip import ClipBackbone
from medfedvqa.models.losses import answer_loss, divergence, prompt_distance, weight_penalty
from medfedvqa.models.prompts import PromptShape
from medfedvqa.models.tuned import HEAD, AnswerModel, HeadConfig, TunedModel, trained_shapes
from medfedvqa.models.tuning import Shapes, TuningConfig, Values, adapters
from medfedvqa.models.vqa import PROMPT, AnswerHead, ModelConfig, Prompts, SiteModel, prompt_depth, prompt_shapes

__all__ = [
    "HEAD",
    "PROMPT",
    "AnswerHead",
    "AnswerModel",
    "Backbone",
    "BackboneShape",
    "Batch",
    "Cache",
    "ClipBackbone",
    "ClipFusion",
    "Depth",
    "EnhancedAttention",
    "HeadConfig",
    "ModelConfig",
    "NetworkConfig",
    "PromptShape",
    "Prompts",
    "Shapes",
    "SiteModel",
    "StackedAttention",
    "TowerShape",
    "TunedModel",
    "Tuning",
    "TuningConfig",
    "Values",
    "adapters",
    "answer_loss",
    "bundled_for",
    "divergence",
    "load_backbone",
    "prompt_depth",
    "prompt_distance",
    "prompt_shapes",
    "seen_by",
    "shape_of",
    "trained_shapes",
    "weight_penalty",
]
