"""Frozen backbones, what can be tuned in them, and the VQA models that sites train on them."""

from medfedvqa.models.attention_networks import ClipFusion, EnhancedAttention, NetworkConfig, StackedAttention
from medfedvqa.models.backbone import Backbone, BackboneShape, Batch, Cache, Depth, TowerShape, Tuning, Words
from medfedvqa.models.backbones import bundled_for, load_backbone, seen_by, shape_of
from medfedvqa.models.clip import IMAGE, TEXT, ClipBackbone
from medfedvqa.models.losses import answer_loss, divergence, prompt_distance, weight_penalty
from medfedvqa.models.paired import PairedModel, check_apart
from medfedvqa.models.prompts import PromptShape
from medfedvqa.models.split import Contrast, ServerNetworks, ServerPart, SiteNetworks, similarities, site_shapes
from medfedvqa.models.tuned import HEAD, AnswerModel, HeadConfig, TunedModel, trained_shapes
from medfedvqa.models.tuning import Shapes, TuningConfig, Values, adapters
from medfedvqa.models.vqa import PROMPT, AnswerHead, ModelConfig, Prompts, SiteModel, prompt_depth, prompt_shapes

__all__ = [
    "HEAD",
    "IMAGE",
    "PROMPT",
    "TEXT",
    "AnswerHead",
    "AnswerModel",
    "Backbone",
    "BackboneShape",
    "Batch",
    "Cache",
    "ClipBackbone",
    "ClipFusion",
    "Contrast",
    "Depth",
    "EnhancedAttention",
    "HeadConfig",
    "ModelConfig",
    "NetworkConfig",
    "PairedModel",
    "PromptShape",
    "Prompts",
    "ServerNetworks",
    "ServerPart",
    "Shapes",
    "SiteModel",
    "SiteNetworks",
    "StackedAttention",
    "TowerShape",
    "TunedModel",
    "Tuning",
    "TuningConfig",
    "Values",
    "Words",
    "adapters",
    "answer_loss",
    "bundled_for",
    "check_apart",
    "divergence",
    "load_backbone",
    "prompt_depth",
    "prompt_distance",
    "prompt_shapes",
    "seen_by",
    "shape_of",
    "similarities",
    "site_shapes",
    "trained_shapes",
    "weight_penalty",
]
