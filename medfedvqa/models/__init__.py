"""Frozen backbones, what can be tuned in them, and the VQA models that sites train on them."""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use

if TYPE_CHECKING:
    from medfedvqa.models.answer_head import (
        HEAD,
        AskedQuestions,
        Fusion,
        HeadConfig,
        QuestionInput,
        divergence,
        prompt_distance,
        weight_penalty,
    )
    from medfedvqa.models.backbone import (
        NOTHING_TO_TUNE,
        Architecture,
        Backbone,
        BackboneShape,
        Batch,
        Cache,
        Depth,
        TokenEmbeddings,
        TowerShape,
        Tuning,
    )
    from medfedvqa.models.backbones import (
        bundled_for,
        card_in,
        card_of,
        check_card,
        has_seen,
        is_bundled,
        load_backbone,
        outside_architecture,
        seen_by,
        shape_of,
        shape_on,
    )
    from medfedvqa.models.clip import ClipBackbone
    from medfedvqa.models.families import IMAGE, TEXT
    from medfedvqa.models.paired import PairedModel, check_apart
    from medfedvqa.models.picture_space import FeatureStore, PictureSpace
    from medfedvqa.models.picture_stream import PictureStream, Stacked
    from medfedvqa.models.prompts import PromptShape
    from medfedvqa.models.tuned import AnswerModel, TunedModel, check_head
    from medfedvqa.models.tuning import OTHER, PROMPT, Shapes, TuningConfig, Values, adapters

__getattr__, __dir__ = at_first_use(__name__, __file__)

__all__ = [
    "HEAD",
    "IMAGE",
    "NOTHING_TO_TUNE",
    "OTHER",
    "PROMPT",
    "TEXT",
    "AnswerModel",
    "Architecture",
    "AskedQuestions",
    "Backbone",
    "BackboneShape",
    "Batch",
    "Cache",
    "ClipBackbone",
    "Depth",
    "FeatureStore",
    "Fusion",
    "HeadConfig",
    "PairedModel",
    "PictureSpace",
    "PictureStream",
    "PromptShape",
    "QuestionInput",
    "Shapes",
    "Stacked",
    "TowerShape",
    "TunedModel",
    "Tuning",
    "TuningConfig",
    "Values",
    "TokenEmbeddings",
    "adapters",
    "bundled_for",
    "card_in",
    "card_of",
    "check_card",
    "shape_on",
    "is_bundled",
    "check_apart",
    "check_head",
    "divergence",
    "load_backbone",
    "outside_architecture",
    "prompt_distance",
    "has_seen",
    "seen_by",
    "shape_of",
    "weight_penalty",
]
