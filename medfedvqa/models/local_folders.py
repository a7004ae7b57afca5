"""Models in a local folder, in their libraries' published layout: nothing is fetched, and no code runs.

| layout                                   | files                                                                 |
|------------------------------------------|-----------------------------------------------------------------------|
| open_clip (BiomedCLIP, SigLIP, EVA, ...) | `open_clip_config.json`, weights, and a tokenizer if the model has one |
| transformers (PubMedCLIP, PLIP, SigLIP)  | `config.json`, weights, a tokenizer, maybe `preprocessor_config.json`  |

Weights are the first existing file of `WEIGHTS`, whole or in parts with an index.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from medfedvqa.backbone_names import FUSED, refusal
from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import BackboneShape
from medfedvqa.models.checkpoints import weights_file
from medfedvqa.models.families import shape_from
from medfedvqa.models.open_clip_models import build

WEIGHTS = ("open_clip_model.safetensors", "model.safetensors", "open_clip_pytorch_model.bin", "pytorch_model.bin")
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
"""Files that show that a folder has a tokenizer."""

ADAPTER = "adapter_config.json"

HALF = (0.5, 0.5, 0.5)
OPENAI_MEAN, OPENAI_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""CLIP's normalisation of pictures, used where a folder names none."""

TEXT_MODELS = ("bert", "roberta", "xlm-roberta")
MODELS = ("clip", "siglip")

Tokenize = Callable[[list[str]], torch.Tensor]


@dataclass(frozen=True)
class FolderLayout:
    """The facts in a model's files, without its weights."""

    shape: BackboneShape
    tokenize: Tokenize
    """Questions to token ids, int64 [questions, context]."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """`mean` and `std` of pictures are per channel, on the scale 0..1."""
    notes: tuple[str, ...] = ()
    """Sentences on weights that loading left out or interpolated."""


def layout_of(name: str, folder: Path) -> FolderLayout:
    """The layout of the model in this folder. Raises `BackboneError`; no message holds a path."""
    if not folder.is_dir():
        raise BackboneError(f"the backbone '{name}' is a folder, and this machine gives none for it: check its path")
    file = next((file for file in LAYOUTS if (folder / file).is_file()), None)
    if (folder / ADAPTER).is_file() and not weights_file(folder, WEIGHTS):
        raise BackboneError(
            f"the folder of the backbone '{name}' holds an adapter of peft ({ADAPTER}) and no model: load it on its "
            "model, call merge_and_unload() and save_pretrained(), and give that folder"
        )
    if file is None:
        raise BackboneError(f"the folder of the backbone '{name}' has neither {' nor '.join(LAYOUTS)}")
    weights_in(name, folder)
    try:
        return LAYOUTS[file](name, folder)
    except BackboneError:
        raise
    except Exception as error:  # whatever a library raises for a configuration that makes no sense to it
        raise BackboneError(
            f"{file} of the backbone '{name}' does not describe a model that can be built ({type(error).__name__})"
        ) from None


def weights_in(name: str, folder: Path) -> Path:
    """The file of weights in a folder. Raises `BackboneError`."""
    file = weights_file(folder, WEIGHTS)
    if file is None:
        raise BackboneError(f"the folder of the backbone '{name}' has no weights: it needs one of {', '.join(WEIGHTS)}")
    return file


def _json(name: str, path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise BackboneError(f"{path.name} of the backbone '{name}' cannot be read as JSON") from None


def _open_clip_configuration(name: str, folder: Path) -> dict[str, Any]:
    described = _json(name, folder / "open_clip_config.json").get("model_cfg")
    if not isinstance(described, dict) or not {"embed_dim", "vision_cfg", "text_cfg"} <= described.keys():
        raise BackboneError(f"open_clip_config.json of the backbone '{name}' does not describe a model")
    if described["text_cfg"].get("hf_model_name") and (folder / "config.json").is_file():
        text = _json(name, folder / "config.json")
        if text.get("model_type") in TEXT_MODELS:
            described["text_cfg"]["hf_config"] = text
    if reason := refusal(described):
        raise BackboneError(f"the backbone '{name}' cannot be used: {reason}; docs/backbones.md lists what can")
    return described


def _open_clip_layout(name: str, folder: Path) -> FolderLayout:
    configured = _open_clip_configuration(name, folder)
    preprocessing = _json(name, folder / "open_clip_config.json").get("preprocess_cfg") or {}
    mean, std = preprocessing.get("mean", OPENAI_MEAN), preprocessing.get("std", OPENAI_STD)
    tokenize = tokenizer_of(name, folder, configured)
    size, context = configured["vision_cfg"].get("image_size", 224), configured["text_cfg"].get("context_length", 77)
    return FolderLayout(
        shape_from(partial(build, configured), size, context), tokenize, _channels(mean), _channels(std)
    )


def has_own_words(configured: Mapping[str, Any]) -> bool:
    """Whether an open_clip model has another tokenizer than CLIP's, which it would fetch from the hub."""
    text = configured["text_cfg"]
    return bool(text.get("hf_tokenizer_name") or text.get("hf_model_name"))


def tokenizer_of(name: str, folder: Path, configured: Mapping[str, Any]) -> Tokenize:
    """The tokenizer of an open_clip model: CLIP's own, or the one in the folder. Raises `BackboneError`."""
    text = configured["text_cfg"]
    context = text.get("context_length", 77)
    if not has_own_words(configured):
        from open_clip.tokenizer import SimpleTokenizer

        own: Tokenize = SimpleTokenizer(context_length=context, **text.get("tokenizer_kwargs", {}))
        return own
    clean = text.get("tokenizer_kwargs", {}).get("clean", "whitespace")
    return _folder_tokenizer(name, folder, context, clean)


def _folder_tokenizer(name: str, folder: Path, context: int, clean: str | None = None) -> Tokenize:
    """The tokenizer in a folder, padded and cut to `context`. `clean`: how open_clip cleans texts first."""
    if not any((folder / file).is_file() for file in TOKENIZERS):
        raise BackboneError(
            f"the folder of the backbone '{name}' has no tokenizer: copy tokenizer.json (or vocab files) into it"
        )
    from open_clip.tokenizer import get_clean_fn
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        if tokenizer.pad_token is None and clean is None:
            tokenizer.pad_token = tokenizer.eos_token  # as CLIP does, whose texts end there
        if tokenizer.pad_token is None:
            raise BackboneError(
                f"the tokenizer in the folder of the backbone '{name}' has no padding token, which questions of "
                "different length need: name one as pad_token in tokenizer_config.json"
            )
        tokenizer("is it", max_length=context, padding="max_length", truncation=True)
    except BackboneError:
        raise
    except Exception as error:  # the library's own errors have no common type
        raise BackboneError(
            f"the tokenizer in the folder of the backbone '{name}' cannot be read ({type(error).__name__})"
        ) from None
    cleaned = get_clean_fn(clean) if clean else str

    def tokenize(questions: list[str]) -> torch.Tensor:
        ids = tokenizer(
            [cleaned(question) for question in questions],
            max_length=context,
            padding="max_length",
            truncation=True,
            return_tensors="pt",
        ).input_ids
        return torch.as_tensor(ids, dtype=torch.int64)

    return tokenize


def _transformers_configuration(name: str, folder: Path) -> tuple[str, dict[str, Any]]:
    facts = _json(name, folder / "config.json")
    kind = facts.pop("model_type", None)
    if str(kind).removesuffix("_vision_model").removesuffix("_text_model") in MODELS and kind not in MODELS:
        raise BackboneError(
            f"config.json of the backbone '{name}' is of one tower alone ({kind}): the backbone reads questions and "
            "pictures, so give the folder of the whole model, which has both towers"
        )
    if kind not in MODELS:
        raise BackboneError(
            f"config.json of the backbone '{name}' is of a model that this project does not read: it reads "
            f"{' and '.join(MODELS)} of transformers, open_clip's models, and {', '.join(FUSED)} with @LABEL"
        )
    return kind, facts


def _transformers_model(kind: str, facts: Mapping[str, Any]) -> nn.Module:
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise BackboneError("a model of transformers needs that package: pip install 'medfedvqa[vilt]'") from None
    # Prompts join in this kind of attention.
    configured = AutoConfig.for_model(kind, **facts)
    model: nn.Module = AutoModel.from_config(configured, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    return model


def _transformers_shape(kind: str, facts: Mapping[str, Any]) -> BackboneShape:
    make = partial(_transformers_model, kind, facts)
    with torch.device("meta"):
        configured: Any = make().config
    size, context = configured.vision_config.image_size, configured.text_config.max_position_embeddings
    return shape_from(make, size, context)


def _transformers_layout(name: str, folder: Path) -> FolderLayout:
    kind, facts = _transformers_configuration(name, folder)
    shape = _transformers_shape(kind, facts)
    file = folder / "preprocessor_config.json"
    pictures = _json(name, file) if file.is_file() else {}
    usual = (HALF, HALF) if kind == "siglip" else (OPENAI_MEAN, OPENAI_STD)
    mean, std = pictures.get("image_mean", usual[0]), pictures.get("image_std", usual[1])
    tokenize = _folder_tokenizer(name, folder, shape.context)
    return FolderLayout(shape, tokenize, _channels(mean), _channels(std))


def _channels(numbers: Any) -> tuple[float, ...]:
    return tuple(float(number) for number in numbers)


LAYOUTS: Mapping[str, Callable[[str, Path], FolderLayout]] = MappingProxyType(
    {"open_clip_config.json": _open_clip_layout, "config.json": _transformers_layout}
)
"""The functions that read a folder, by the file that identifies its layout."""
