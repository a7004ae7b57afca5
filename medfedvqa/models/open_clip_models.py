"""Builds open_clip's models from their configurations without fetching, limits open_clip's requests to the hub, and has
a picture tower that keeps positions: a convolutional stem, attention blocks, and pooling by place.

The stem sees edges at full resolution, which a cut into patches of 16 pixels does not. The pooled output is not one
summary token but the features of 4 x 4 places, each narrowed to the same small width, one after the other. So an answer
head can tell where something is. The class token stays as a token that all places can write to.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from open_clip.transformer import VisionTransformer
from torch import nn

from medfedvqa.errors import BackboneError

if TYPE_CHECKING:
    from open_clip.hf_model import HFTextEncoder

PLACES = 4
"""Rows and columns of places in the pooled output."""

STEM = (48, 96)
"""Channels of the stem at a quarter and at an eighth of the input's side."""


class PlaceTower(VisionTransformer):  # type: ignore[misc]  # open_clip has no annotations
    """open_clip's vision transformer with another stem and another pooling, and with `pool_type` `places`.

    Its width less `whole` is a multiple of `PLACES` squared.
    """

    def __init__(self, width: int, stem: nn.Module | None = None, whole: int = 0, **options: Any) -> None:
        """`stem`: pictures to [n, width, rows, columns], without later normalisation; None: the tower's own
        convolutions. `whole`: the width of the whole picture's part of the pooled output. `options`: open_clip's."""
        super().__init__(width=width, pool_type="avg", **options)
        # open_clip admits only the names of its own kinds of pooling.
        self.pool_type = "places"
        self.conv1 = _stem(width) if stem is None else stem
        if stem is not None:
            self.ln_pre, self.ln_post = nn.Identity(), nn.Identity()
        self.narrow = nn.Linear(width, (width - whole) // PLACES**2)
        self.whole = nn.Linear(width, whole) if whole else None

    def _pool(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [n, 1 + cells, width] to the pooled output [n, width] and the cells [n, cells, width]."""
        cells = self.ln_post(x)[:, 1:]
        grid = cells.transpose(1, 2).unflatten(2, self.grid_size)
        places = F.adaptive_avg_pool2d(grid, PLACES).flatten(2).transpose(1, 2)
        pooled = self.narrow(places).flatten(1)
        return pooled if self.whole is None else torch.cat([self.whole(cells.mean(1)), pooled], dim=1), cells


def _stem(width: int) -> nn.Sequential:
    """Pictures [n, 3, side, side] to [n, width, side / 16, side / 16].

    Normalisation is within one picture and has no weights, so that patients stay separate under differential privacy.
    """
    quarter, eighth = STEM
    return nn.Sequential(
        nn.Conv2d(3, quarter, 7, stride=4, padding=3),
        _Normalised(),
        nn.Conv2d(quarter, eighth, 3, stride=2, padding=1),
        _Normalised(),
        _Residual(eighth),
        _Normalised(),
        nn.Conv2d(eighth, width, 3, stride=2, padding=1),
    )


class _Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(_GroupNorm(), nn.GELU())


class _GroupNorm(nn.Module):
    """Normalises each picture's channels in eight groups."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.group_norm(hidden, 8)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = hidden + self.conv(hidden)
        return output


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
    """Within it open_clip fetches files that the hub's cache lacks, and fails at once if the hub cannot be reached.

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
        raise BackboneError(f"nothing is known of the text tower '{text['hf_model_name']}': put config.json beside it")
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
