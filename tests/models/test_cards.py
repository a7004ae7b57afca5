"""Shape cards: a server does without weights, a job carries no lie past a site, and a card is bounded text."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_folders import pubmedclip, siglip

from medfedvqa.errors import BackboneError, ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import TuningConfig, card_in, card_of, check_card, load_backbone, shape_of, shape_on
from medfedvqa.shape_cards import ShapeCard

NAME = "local-dir:pubmedclip@mine"
KINDS = ("prompt", "adapter", "lora", "bias", "blocks", "full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pubmedclip(tmp_path_factory.mktemp("card") / "model")


@pytest.fixture(scope="module")
def card(folder: Path) -> ShapeCard:
    return card_in(NAME, {NAME: folder})


CARDED = ("RN50/openai", "ViT-B-32/openai", "medclip2-slake")
FURTHER = (pytest.param(name, marks=pytest.mark.slow) for name in ("EVA02-B-16@mine", "convnext_base@mine"))


@pytest.mark.parametrize("name", [*CARDED, *FURTHER])
def test_a_card_says_all_that_tuning_asks_of_a_shape(name: str) -> None:
    """Names and shapes of what travels are the same from a card that went through JSON, for every kind of tuning."""
    shape = shape_of(name)
    read = shape_on(ShapeCard.model_validate_json(card_of(name, shape).model_dump_json()))
    assert read == shape and read.width == shape.width
    for kind in KINDS:
        config = TuningConfig(kind, without=("image",))
        assert config.shapes(read) == config.shapes(shape) and config.depth(read) == config.depth(shape)


def test_a_card_of_a_folder_says_the_shape_of_what_loads(folder: Path, card: ShapeCard) -> None:
    """It is made from the configuration, without weights."""
    check_card(card, NAME, load_backbone(NAME, {NAME: folder}).shape)
    assert "weights" not in card.model_dump_json() and str(folder) not in card.model_dump_json()


def test_a_card_of_another_model_is_refused_at_the_site(folder: Path, card: ShapeCard, tmp_path: Path) -> None:
    """What would travel is not what the job declared."""
    other = load_backbone(NAME, {NAME: siglip(tmp_path / "siglip")})
    with pytest.raises(BackboneError, match="does not match this site"):
        check_card(card, NAME, other.shape)


def job(card: Any = None, name: str = NAME) -> dict[str, Any]:
    content = {"method": "prompt_pfl", "backbone": name}
    return content if card is None else {**content, "card": card}


def test_a_job_with_a_card_needs_neither_folder_nor_hub(card: ShapeCard) -> None:
    """It declares what leaves, and goes through JSON and FLARE's schema. Without the card it says what is missing."""
    spec = JobSpec.from_dict(job(json.loads(card.model_dump_json())))
    assert spec.exchange().tasks and JobSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    JobSpec.model_validate_json(json.dumps(spec.to_dict()), strict=True)
    with pytest.raises(BackboneError, match="backbone card"):
        JobSpec.from_dict(job()).exchange()


def test_a_job_without_a_card_is_the_job_that_it_was() -> None:
    """Its JSON, and so its definition, has no such field."""
    assert "card" not in JobSpec(method="prompt_pfl").to_dict()


@pytest.mark.parametrize("name", ["medclip2-slake", "ViT-B-32@mine", "local-dir:other@mine"])
def test_a_card_is_for_the_folder_whose_name_it_bears(card: ShapeCard, name: str) -> None:
    """A job cannot give a known backbone another shape."""
    with pytest.raises(ConfigError, match="card"):
        JobSpec.from_dict(job(json.loads(card.model_dump_json()), name))


HOSTILE: dict[str, Any] = {
    "format": 2,
    "embed": -1,
    "image_size": 10**6,
    "context": 0,
    "towers": {},
    "parameters": {"a b": [1]},
    "more": 1,
    "words": "many",
    "name": "/etc/passwd",
}


@pytest.mark.parametrize("field", HOSTILE)
def test_a_card_out_of_bounds_is_refused(card: ShapeCard, field: str) -> None:
    """As untrusted text, by a sentence."""
    content = {**json.loads(card.model_dump_json()), field: HOSTILE[field]}
    with pytest.raises(ConfigError, match="card"):
        JobSpec.from_dict(job(content))
