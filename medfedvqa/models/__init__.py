"""Frozen backbones, what can be tuned in them, and the VQA models that sites train on them."""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use, places

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
__all__ = sorted(places(__file__))
