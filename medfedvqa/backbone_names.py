"""Names of backbones, and checks that need only the name and open_clip's configuration files, not torch.

| name                     | weights                                                                       |
|--------------------------|-------------------------------------------------------------------------------|
| `medclip2-slake`         | shipped, as is `medclip2-vqarad`                                              |
| `medclip3-open`          | shipped in part; the rest comes with the extra `words`                        |
| `none`                   | no backbone: the job trains a network of its own                              |
| `ARCH/tag`               | an architecture and a tag that open_clip knows; open_clip fetches them        |
| `hf-hub:org/name`        | an open_clip model of the Hugging Face hub, fetched by open_clip              |
| `ARCH@label`             | a local file or folder of an architecture of open_clip, our own or `FUSED`    |
| `hf-hub:org/name@label`  | a local folder with the files of that model: nothing is fetched               |
| `local-dir:name@label`   | a local folder of any model that `docs/backbones.md` lists                    |
| `NAME+words-300@label`   | any of these but a folder, with words from a local file of vectors this wide  |
| `NAME+regions-36x2048@label` | the same with at most 36 regions a picture, of 2,048 numbers, for trunks  |

A site's `site.yml` gives the file or folder of each name with `@`; a job names no path.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from medfedvqa.errors import BackboneError
from medfedvqa.near_miss import suggestion

BUNDLED_NAMES: Mapping[str, str] = MappingProxyType(
    {"medclip2-slake": "medclip2", "medclip2-vqarad": "medclip2", "medclip3-open": "medclip3"}
)
"""The bundled backbones, each with its architecture."""
NO_BACKBONE = "none"
"""The backbone name of a job that trains a network of its own, see `picture_networks`."""
FORMERLY_BUNDLED = ("medclip-slake", "medclip-vqarad")
"""The first edition, which versions up to 0.2.0 shipped: old jobs and results name it."""
OWN = ("medclip", "medclip2", "medclip3")
"""The project's own architectures."""
FUSED = ("vilt-b32", "vault-b32", "albef-b16")
"""Architectures that read picture and question together; they have local files only."""
HUB, FOLDER = "hf-hub:", "local-dir:"
NO_REGIONS = 0, 0
"""The `regions` of a backbone without region files: its regions are the grid of its picture tower."""

_LABEL = r"[A-Za-z0-9][\w.\-]*"
_FORMS = (
    rf"(?P<architecture>[A-Za-z0-9][^@/:\\+]*)(?P<kind>[@/])(?P<label>{_LABEL})",
    rf"(?P<architecture>hf-hub:[\w.\-]+/[\w.\-]+)(?:(?P<kind>@)(?P<label>{_LABEL}))?",
    rf"(?P<architecture>local-dir:[\w.\-]+)(?P<kind>@)(?P<label>{_LABEL})",
)

_ADDED = (
    rf"(?P<below>.+)\+(?:words-(?P<words>[1-9][0-9]{{0,3}})|"
    rf"regions-(?P<most>[1-9][0-9]{{0,2}})x(?P<width>[1-9][0-9]{{0,3}}))@(?P<label>{_LABEL})"
)
"""A backbone whose words have vectors from a file, or whose pictures have regions from a folder of files."""

ALTERED_ATTENTION = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")
"""Options of open_clip's own blocks that change attention, which `towers` does not support."""

READ_BY_TIMM_NAME = ("vit_", "vitamin_", "eva_", "eva02_", "convnext_", "fastvit_")
"""Prefixes of the timm models whose picture towers this project can read."""

READ_TEXTS = ("bert", "roberta", "biomed", "pubmed")
"""A text tower of transformers is read if its name contains one of these, else refused."""

CONVOLUTIONS = ("convnext_", "fastvit_")


@dataclass(frozen=True)
class BackboneName:
    """A name in its parts."""

    full: str
    architecture: str
    """A bundled, fused or open_clip architecture, a distribution's, `hf-hub:...` or `local-dir:...`."""
    tag: str | None
    """open_clip's tag of pretrained weights."""
    label: str | None
    """The site's label of a local file or folder."""
    below: str = ""
    """The name of the backbone to which word vectors or region files are added; empty without any."""
    adds: Literal["", "words", "regions"] = ""
    """What this backbone adds to `below`."""
    words: int = 0
    """The width of the word vectors, its own or those of `below`; 0 without any."""
    regions: tuple[int, int] = NO_REGIONS
    """The most regions of a picture and their width, where they come from files."""

    @property
    def is_folder(self) -> bool:
        """Whether the model is known only from a local folder."""
        return self.label is not None and self.architecture.startswith((HUB, FOLDER))


def parse(name: str, others: tuple[str, ...] = ()) -> BackboneName:
    """The parts of a name; `others`: further architectures that only have local files. Raises `BackboneError`."""
    if added := re.fullmatch(_ADDED, name):
        return _with_files(name, parse(added["below"], others), added)
    if name == NO_BACKBONE:
        return BackboneName(name, name, None, None)
    if name in BUNDLED_NAMES:
        return BackboneName(name, BUNDLED_NAMES[name], None, None)
    if name in FORMERLY_BUNDLED:
        raise BackboneError(
            f"the backbone '{name}' was bundled up to version 0.2.0: name {name.replace('medclip', 'medclip2')}, or, "
            f"for the same weights, medclip@LABEL with {name}.safetensors of that version as its file"
        )
    parts = next((match for form in _FORMS if (match := re.fullmatch(form, name))), None)
    if parts is None:
        raise BackboneError(f"unknown backbone '{_shown(name)}': {_hint(name)}")
    architecture, label = parts["architecture"], parts["label"]
    if parts["kind"] == "/":
        if architecture in (*OWN, *FUSED, *others):
            raise BackboneError(f"unknown backbone '{name}': it has no tags, only local files: {architecture}@LABEL")
        return BackboneName(name, architecture, label, None)
    return BackboneName(name, architecture, None, label)


def _with_files(name: str, below: BackboneName, added: re.Match[str]) -> BackboneName:
    """The parts of a name that adds word vectors or region files to another. Raises `BackboneError`."""
    what = "word vectors" if added["words"] else "region files"
    if below.is_folder:
        raise BackboneError(
            f"{what} cannot be combined with a local folder: name an architecture, or a bundled backbone"
        )
    if below.words if added["words"] else below.regions != NO_REGIONS:
        raise BackboneError(f"unknown backbone '{_shown(name)}': it names {what} twice")
    whole = replace(below, full=name, label=added["label"], below=below.full)
    if added["words"]:
        return replace(whole, adds="words", words=int(added["words"]))
    return replace(whole, adds="regions", regions=(int(added["most"]), int(added["width"])))


def looks_like_path(name: str) -> bool:
    """Whether a name looks like a path of this machine."""
    return (
        name.startswith(("/", "~", ".", FOLDER + "/", FOLDER + ".", FOLDER + "~"))
        or "\\" in name
        or (name.count("/") > 1 and not name.startswith(HUB))
        or name.endswith((".pt", ".pth", ".bin", ".safetensors"))
    )


def _shown(name: str) -> str:
    """A name as an error shows it: never a path."""
    return "(a path)" if looks_like_path(name) else name


def _hint(name: str) -> str:
    if looks_like_path(name):
        return (
            "a job names no path. Choose a name such as ViT-B-32@mine, hf-hub:org/name@mine or local-dir:model@mine, "
            "and say in site.yml which file or folder it is: `backbones: {local-dir:model@mine: FOLDER}`"
        )
    known = [*BUNDLED_NAMES, *(f"{architecture}@LABEL" for architecture in architectures())]
    if name in architectures():
        return f"name its weights: {name}/TAG for one of open_clip's tags, or {name}@LABEL for a file of this machine"
    return suggestion(name, known) or (
        f"there is {', '.join(BUNDLED_NAMES)}, ARCH/tag of open_clip (as ViT-B-32/openai), hf-hub:org/name, and "
        "ARCH@label, hf-hub:org/name@label or local-dir:name@label for local files"
    )


@cache
def _files() -> Mapping[str, Path]:
    """open_clip's configurations by architecture; its own listing would take seconds to import."""
    spec = find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'open_clip'", name="open_clip")
    folder = Path(spec.origin).parent / "model_configs"
    return MappingProxyType({path.stem: path for path in sorted(folder.glob("*.json"))})


def architectures() -> tuple[str, ...]:
    """The architectures that open_clip ships."""
    return tuple(_files())


def configuration(architecture: str) -> dict[str, Any]:
    """open_clip's configuration of an architecture. Raises `BackboneError` for an unknown one."""
    if architecture in _files():
        return dict(json.loads(_files()[architecture].read_text(encoding="utf-8")))
    # `open_clip.add_model_config` adds further ones while a program runs.
    added = sys.modules["open_clip"].get_model_config(architecture) if "open_clip" in sys.modules else None
    if added is None:
        hint = suggestion(architecture, (*architectures(), *OWN, *FUSED)) or "`medfedvqa backbone list` lists them"
        raise BackboneError(f"open_clip has no architecture '{architecture}': {hint}")
    return dict(added)


def refusal(configuration: Mapping[str, Any]) -> str | None:
    """The reason why a model of this configuration cannot be used; None if it can."""
    return next((reason for reason, holds in _reasons(configuration) if holds), None)


def _reasons(configuration: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    vision, text = configuration["vision_cfg"], configuration["text_cfg"]
    timm, hugging_face = vision.get("timm_model_name", ""), text.get("hf_model_name", "")
    yield "its tokenizer brings code of its own", text.get("tokenizer_kwargs", {}).get("trust_remote_code")
    yield (
        f"its picture tower is timm's {timm}, whose blocks are not read",
        timm and (not timm.startswith(READ_BY_TIMM_NAME) or "relpos" in timm),
    )
    known = text.get("hf_config", {}).get("model_type", hugging_face).lower()
    yield (
        f"its text tower is {hugging_face}, and only BERT, RoBERTa and XLM-RoBERTa are read",
        hugging_face and not any(part in known for part in READ_TEXTS),
    )
    own = [tower for tower, other in ((vision, timm), (text, hugging_face)) if not other]
    yield "a tower does not pool", any(tower.get("pool_type") == "none" for tower in own)
    yield "its text tower hides padding while it looks in both directions", text.get("use_pad_mask")
    yield (
        "its attention blocks are not the plain ones",
        any(
            tower.get("block_type") not in (None, "default") or any(tower.get(key) for key in ALTERED_ATTENTION)
            for tower in own
        ),
    )
    yield "its pictures are not square", not isinstance(vision.get("image_size", 224), int)


def check(name: str) -> None:
    """Raises `BackboneError` for a name that cannot be used, as far as the name and open_clip's files show."""
    # `medfedvqa.plugins` decides whether a distribution's architecture is allowed.
    outside = tuple(point.name for point in entry_points(group="medfedvqa.backbones"))
    parsed = parse(name, outside)
    if parsed.architecture not in outside:
        check_architecture(parsed)


def takes_prompts(configuration: Mapping[str, Any]) -> bool:
    """Whether both towers can take prompts: convolutions cannot."""
    vision = configuration["vision_cfg"]
    return not isinstance(vision.get("layers"), list) and not vision.get("timm_model_name", "").startswith(CONVOLUTIONS)


def check_architecture(name: BackboneName) -> None:
    """Raises `BackboneError` for an architecture of open_clip that is unknown or cannot be used, without torch."""
    if name.architecture.startswith((HUB, FOLDER)) or name.architecture in (*OWN, *FUSED, NO_BACKBONE):
        return
    if reason := refusal(configuration(name.architecture)):
        raise BackboneError(f"the backbone '{name.full}' cannot be used: {reason}; docs/backbones.md lists what can")
