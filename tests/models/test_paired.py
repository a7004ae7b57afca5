"""Models that see one modality, or both, on one backbone."""

from typing import Any

import pytest
import torch

from medfedvqa.errors import ConfigError
from medfedvqa.models import HeadConfig, PairedModel, TunedModel, TuningConfig

BOTH = ("image", "text")
PICTURES = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(1))
TEXTS = ("is it bright", "which side", "what")


def model(backbone: Any, sees: tuple[str, ...], kind: str = "adapter") -> PairedModel:
    return PairedModel(backbone, TuningConfig(kind, 2, rank=2, reduction=4), HeadConfig(4, 8), sees=sees, space=5)


def initial(made: TunedModel) -> dict[str, torch.Tensor]:
    values = made.initial(torch.Generator().manual_seed(1), torch.Generator().manual_seed(2))
    return {name: value.double() + 0.1 for name, value in values.items()}


def batch(made: TunedModel, pictures: list[int], texts: list[int]) -> Any:
    cache = made.cache(made.depth, PICTURES.double(), TEXTS)
    asked = cache.question_ids([TEXTS[number] for number in texts])
    return cache.batch(torch.tensor(pictures), asked, torch.zeros(len(texts), dtype=torch.int64))


def test_with_both_modalities_it_is_the_plain_model(backbone: Any) -> None:
    """The same names, the same first values, the same logits to the bit."""
    paired, plain = model(backbone, BOTH), TunedModel(backbone, TuningConfig("adapter", 2, 2, 4), HeadConfig(4, 8))
    values, rows = initial(plain), batch(plain, [0, 1, 2], [2, 0, 1])
    assert {name: value.tolist() for name, value in initial(paired).items()} == {
        n: v.tolist() for n, v in values.items()
    }
    assert torch.equal(paired.logits(values, rows), plain.logits(values, rows))


@pytest.mark.parametrize("kind", ["adapter", "lora", "prompt", "bias", "blocks", "classifier"])
@pytest.mark.parametrize("sees", BOTH)
def test_a_model_of_one_modality_is_blind_to_the_other(backbone: Any, sees: str, kind: str) -> None:
    """Other pictures, or other questions, change nothing; every value it trains takes part."""
    made = model(backbone, (sees,), kind)
    values = {name: value.requires_grad_() for name, value in initial(made).items()}
    pictures, texts = ([0, 1, 2], [1, 1, 1]) if sees == "image" else ([1, 1, 1], [0, 1, 2])
    others = (pictures, [2, 0, 2]) if sees == "image" else ([2, 0, 2], texts)
    logits = made.logits(values, batch(made, pictures, texts))
    assert torch.allclose(logits, made.logits(values, batch(made, *others)), atol=1e-12)
    assert not torch.allclose(logits[0], logits[1])
    assert None not in torch.autograd.grad(logits.square().sum(), list(values.values()), allow_unused=True)


def test_a_model_that_sees_no_pictures_has_no_map_of_attention(backbone: Any) -> None:
    """Its backbone's would show what the model never looked at."""
    for sees, kind in ((("image",), "lora"), (BOTH, "lora")):
        made = model(backbone, sees, kind)
        assert made.attention(initial(made), batch(made, [0, 1], [0, 1])).shape == (2, 16)
    made = model(backbone, ("text",))
    with pytest.raises(ConfigError, match="sees no pictures"):
        made.attention(initial(made), batch(made, [0, 1], [0, 1]))


def test_representations_are_unit_vectors_of_what_is_seen(backbone: Any) -> None:
    """One for each row and modality, in the common space."""
    for sees in (BOTH, ("image",), ("text",)):
        made = model(backbone, sees)
        projection = {name: w.double() for name, w in made.projection(torch.Generator().manual_seed(3)).items()}
        found = made.represent({**initial(made), **projection}, batch(made, [0, 1, 2], [0, 1, 2]))
        assert tuple(found) == sees and all(each.shape == (3, 5) for each in found.values())
        assert all(torch.allclose(each.norm(dim=1), torch.ones(3).double()) for each in found.values())


def test_what_cannot_be_seen_apart_is_refused(backbone: Any, vilt: Any) -> None:
    """A backbone with one tower, and one modality of a backbone that is tuned as a whole."""
    with pytest.raises(ConfigError, match="one tower"):
        _ = model(vilt, BOTH).depth
    with pytest.raises(ConfigError, match="cannot tune a whole backbone"):
        initial(model(backbone, ("text",), "full"))
