"""Every option of every method is bounded, so that a hostile job cannot ask a site for absurd amounts of anything."""

import math
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, Field

from medfedvqa.bounds import MOST_LENGTH, MOST_WIDTH
from medfedvqa.core import create, method_names, method_type
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import TuningConfig, shape_of
from privacy import DPSettings, PrivacyError

HUGE = [10**400, -(10**400), math.inf, -math.inf, math.nan, 1e308, 2**63]
GIBIBYTE = 1 << 30


def limits(metadata: Any) -> set[str]:
    """The kinds of bounds that pydantic's metadata set."""
    found: set[str] = set()
    for item in metadata:
        found |= limits(getattr(item, "metadata", ()))
        found |= {name for name in ("ge", "gt", "le", "lt", "max_length") if getattr(item, name, None) is not None}
    return found


def unbounded(name: str, annotation: Any, bounds: set[str]) -> Iterator[str]:
    """The parts of a field that have no bounds."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from unbounded(name, parts[0], bounds | limits(parts[1:]))
    elif origin in (Union, UnionType):
        for part in parts:
            yield from unbounded(name, part, bounds)
    elif annotation in (int, float):
        if not ({"ge", "gt"} & bounds and {"le", "lt"} & bounds):
            yield name
    elif annotation is str or origin in (tuple, list, dict):
        fixed = origin is tuple and Ellipsis not in parts
        if "max_length" not in bounds and not fixed:
            yield name
        for part in parts:
            if part is not Ellipsis:
                yield from unbounded(f"{name}[]", part, set())
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from unbounded_fields(annotation)
    elif origin is not Literal and annotation not in (bool, type(None)):
        yield name


def unbounded_fields(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield from unbounded(name, field.annotation, limits(field.metadata))


@pytest.mark.parametrize("name", method_names())
def test_every_option_of_a_method_has_bounds(name: str) -> None:
    """Numbers at both ends; texts and lists in their length, and what is in them."""
    assert list(unbounded_fields(method_type(name).config_type)) == []


def test_the_walk_finds_what_has_no_bounds() -> None:
    """Each kind of field that could be forgotten."""

    class Inner(BaseModel):
        number: float = Field(1.0, ge=0)

    class Forgetful(BaseModel):
        count: int = 1
        half: int | None = Field(None, ge=1)
        text: str = ""
        texts: tuple[str, ...] = Field((), max_length=3)
        table: dict[str, int] = {}
        other: Any = None
        pair: tuple[str, Literal["x"]] = ("", "x")
        inner: Inner = Inner()
        fine: Annotated[tuple[Annotated[int, Field(ge=0, le=3)], ...], Field(max_length=3)] | Literal["x"] | bool = ()

    found = ["count", "half", "text", "texts[]", "table", "table[]", "table[]", "other", "pair[]", "number"]
    assert list(unbounded_fields(Forgetful)) == found


def test_the_fields_of_a_job_have_bounds() -> None:
    """All but the options, which are the methods', the tables of split and privacy, which check themselves, a time."""
    found = {name.rstrip("[]") for name in unbounded_fields(JobSpec)}
    assert found <= {"options", "split", "dp", "expires"}


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("name", method_names())
def test_a_number_beyond_all_bounds_is_refused_in_one_sentence(name: str, number: float) -> None:
    """Not by an error of arithmetic, and without the number in the sentence."""
    for option, field in method_type(name).config_type.model_fields.items():
        if limits(field.metadata) & {"ge", "gt"}:
            with pytest.raises(ConfigError) as refused:
                create(name, {option: number})
            assert option in str(refused.value) and str(number) not in str(refused.value)


@pytest.mark.parametrize("number", HUGE)
def test_numbers_of_privacy_and_split_beyond_all_bounds_are_refused(number: float) -> None:
    """In settings that are made directly, and in those of a job."""
    private: dict[str, Any] = {"epsilon": 1.0}
    for name in ("epsilon", "clip", "sample_rate", "delta", "count_share", "expected_patients", "patient_rows"):
        with pytest.raises(PrivacyError):
            DPSettings(**private | {name: number})
        with pytest.raises((ConfigError, PrivacyError)):
            JobSpec.from_dict({"method": "fedavg", "dp": private | {name: number}})
    for split in ({"seed": number}, {"validation": number}, {"fractions": [number, 0.5, 0.5]}):
        with pytest.raises(ConfigError):
            JobSpec.from_dict({"method": "fedavg", "split": split})
    for field in ("seed", "min_sites", "wait_for", "round_timeout"):
        with pytest.raises(ConfigError):
            JobSpec.from_dict({"method": "fedavg", field: number})


@pytest.mark.parametrize(
    "change",
    [
        {"answers": ["yes", "{$HOME}"]},
        {"answers": ["yes", "n" * 201]},
        {"answers": ["yes", "no\x00"]},
        {"answers": [f"answer {number}" for number in range(10_001)]},
        {"unseen": ["../elsewhere"]},
        {"unseen": ["chest\n"]},
    ],
)
def test_texts_and_lists_beyond_their_bounds_are_refused(change: dict[str, Any]) -> None:
    """Answers and names of sites; nothing of them is in the sentence."""
    with pytest.raises(ConfigError) as refused:
        create("fedavg", change)
    assert not any(text in str(refused.value) for value in change.values() for text in value if len(text) > 3)


def test_an_unknown_option_is_refused_without_its_name_and_with_all_that_there_are() -> None:
    """A key may hold anything, too."""
    with pytest.raises(ConfigError) as refused:
        create("fedavg", {"planted_secret": 1})
    assert "planted" not in str(refused.value) and "local_epochs" in str(refused.value)


def test_the_largest_prompt_and_head_fit_in_a_gibibyte() -> None:
    """Of the widest bundled and published towers; prompts are what grows with three options at once."""
    for backbone in ("medclip2-slake", "ViT-B-32@x", "ViT-L-14@x", "ViT-bigG-14@x"):
        shapes = TuningConfig("prompt", length=MOST_LENGTH).shapes(shape_of(backbone))
        assert 4 * sum(math.prod(shape) for shape in shapes.values()) < GIBIBYTE
    assert 4 * MOST_WIDTH * (10_000 + MOST_WIDTH) < GIBIBYTE


def test_several_unknown_options_are_one_sentence() -> None:
    """The options that there are come once, however many names are wrong."""
    with pytest.raises(ConfigError) as caught:
        create("fedavg", {"colour": 1, "size": 2, "rounds": 0})
    assert str(caught.value).count("an unknown key; the keys are ") == 1 and "'rounds'" in str(caught.value)
