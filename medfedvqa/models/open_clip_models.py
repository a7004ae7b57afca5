"""Builds open_clip's models from their configurations without fetching, and limits open_clip's requests to the hub."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import nn

from medfedvqa.errors import BackboneError

if TYPE_CHECKING:
    from open_clip.hf_model import HFTextEncoder

_BERT = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
_ROBERTA = {**_BERT, "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_ROBERTA |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_PUBMED = {"model_type": "bert", **_BERT, "vocab_size": 30522, "max_position_embeddings": 512, "pad_token_id": 0}
_PUBMED_NAMES = ("BiomedNLP-BiomedBERT-base-uncased-abstract", "BiomedNLP-PubMedBERT-base-uncased-abstract")

TEXT_CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "roberta-base": {"model_type": "roberta", **_ROBERTA},
        "xlm-roberta-base": {"model_type": "xlm-roberta", **_ROBERTA, "vocab_size": 250002},
        "xlm-roberta-large": {
            "model_type": "xlm-roberta", **_ROBERTA, "vocab_size": 250002, "hidden_size": 1024,
            "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
        },
        **{f"microsoft/{name}{end}": _PUBMED for name in _PUBMED_NAMES for end in ("", "-fulltext")},
    }
)  # fmt: skip
"""The configurations of text towers that open_clip would read from the hub, by their names in open_clip's models."""

HUB_SECONDS = 10.0
"""Seconds within which the hub must answer a first request."""


@contextmanager
def asking_the_hub() -> Iterator[None]:
    """A context in which open_clip fetches files that the hub's cache lacks, and fails at once if the hub cannot be
    reached.

    huggingface_hub (2.4) repeats the request for each file for half a minute, and both libraries log every attempt, on
    the terminal. So a first request tests whether the hub answers; `_is_reachable` obeys HF_HUB_OFFLINE too.
    """
    import huggingface_hub

    constants, library, root = huggingface_hub.constants, logging.getLogger("huggingface_hub"), logging.getLogger()
    offline, level, silence = constants.HF_HUB_OFFLINE, library.level, logging.NullHandler()
    root.addHandler(silence)  # `logging.error`, which open_clip calls, gives the root logger a handler if it has none
    root.addFilter(_nothing)  # only what is logged at the root itself, as open_clip does
    library.setLevel(logging.CRITICAL + 1)
    try:
        constants.HF_HUB_OFFLINE = offline or not _is_reachable(constants.ENDPOINT)
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        library.setLevel(level)
        root.removeFilter(_nothing)
        root.removeHandler(silence)


def _is_reachable(hub: str) -> bool:
    import huggingface_hub

    try:
        huggingface_hub.get_session().head(hub, timeout=HUB_SECONDS)
    except Exception:  # the client of the hub's library, which changes with its version, raises its own
        return False
    return True


def _nothing(record: logging.LogRecord) -> bool:
    return False


def build(configuration: Mapping[str, Any]) -> nn.Module:
    """A model of this configuration with arbitrary weights. Raises `BackboneError` for an unknown text tower.

    `keeps_place` and `published_parts`, which open_clip does not know, are explained in `bundled`.
    """
    from open_clip.coca_model import CoCa
    from open_clip.model import CLIP, CustomTextCLIP

    options = {name: dict(part) if isinstance(part, Mapping) else part for name, part in configuration.items()}
    text, custom = options["text_cfg"], options.pop("custom_text", False)
    known, published = text.pop("hf_config", None), bool(options.pop("published_parts", False))
    keeps_place = options.pop("keeps_place", published)
    options["vision_cfg"]["timm_model_pretrained"] = False
    kind = CoCa if "multimodal_cfg" in options else CustomTextCLIP if custom or text.get("hf_model_name") else CLIP
    stand_in = {"context_length": 4, "vocab_size": 8, "width": 8, "heads": 1, "layers": 1}
    other = bool(text.get("hf_model_name"))
    model: nn.Module = kind(**{**options, "text_cfg": stand_in} if other else options)
    if keeps_place:
        model.visual = _place_tower(configuration["vision_cfg"], int(configuration["embed_dim"]), published)
    if other:
        model.text = _text_tower(int(configuration["embed_dim"]), text, known, published)
    return model


def _place_tower(vision: Mapping[str, Any], embed: int, published: bool) -> nn.Module:
    # open_clip takes seconds to import, and a server or a command that builds no model needs none of it.
    from medfedvqa.models.place_tower import PlaceTower
    from medfedvqa.models.published_parts import PublishedStem

    return PlaceTower(
        **({"stem": PublishedStem(vision["width"]), "whole": vision["width"] // 2} if published else {}),
        width=vision["width"],
        image_size=vision["image_size"],
        patch_size=vision["patch_size"],
        layers=vision["layers"],
        heads=vision["width"] // vision["head_width"],
        mlp_ratio=4.0,
        output_dim=embed,
    )


def _text_tower(
    embed: int, text: Mapping[str, Any], known: Mapping[str, Any] | None, published: bool
) -> "HFTextEncoder":
    """A text tower of transformers in open_clip's wrapper, which would fetch its configuration."""
    from open_clip.hf_model import HFTextEncoder

    try:
        from transformers import AutoConfig
    except ImportError:
        raise BackboneError("a text tower of transformers needs that package: pip install 'medfedvqa[vilt]'") from None

    facts = dict(known or TEXT_CONFIGURATIONS.get(text["hf_model_name"], {}))
    if not facts:
        raise BackboneError(f"the text tower '{text['hf_model_name']}' is unknown: put config.json beside it")
    configured = AutoConfig.for_model(facts.pop("model_type"), **facts)
    pooler = text.get("hf_pooler_type") or "mean_pooler"
    tower = HFTextEncoder(
        text["hf_model_name"],
        embed,
        configured,
        pooler,
        text.get("hf_proj_type", "mlp"),
        output_tokens=bool(text.get("output_tokens")),
    )
    if pooler != "cls_pooler":  # open_clip builds no pooling layer then, and no checkpoint has one
        tower.transformer.pooler = None
    if published:
        from medfedvqa.models.published_parts import SentencePooler

        tower.pooler = SentencePooler()
    return tower
