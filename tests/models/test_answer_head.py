"""Answer heads: what each of them sees of picture and question, against the formulas, and what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from medfedvqa.core import create
from medfedvqa.errors import ConfigError
from medfedvqa.models import (
    Backbone,
    ClipBackbone,
    HeadConfig,
    TunedModel,
    TuningConfig,
    Values,
    check_head,
    load_backbone,
    shape_of,
)
from medfedvqa.models.bundled import BUNDLED, COMPONENTS, bundled_components
from medfedvqa.models.ngrams import NGRAMS, hashed_ngrams, ngrams
from privacy import SeededChance

QUESTIONS = ("Is it a lung?", "which side", "is it a heart")
EXACT = {"rtol": 0, "atol": 1e-6}


def made(backbone: Backbone, **head: Any) -> tuple[TunedModel, Values]:
    model = TunedModel(backbone, TuningConfig("classifier"), HeadConfig(5, 7, 0.0, units=6, **head))
    return model, model.initial(torch.Generator().manual_seed(1), torch.Generator().manual_seed(2))


def batch_of(model: TunedModel, pictures: list[int], questions: list[int]) -> Any:
    size = model.backbone.shape.image_size
    stored = torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(2))
    cache = model.cache(model.depth, stored, QUESTIONS)
    asked = cache.question_ids([QUESTIONS[number] for number in questions])
    return cache.batch(torch.tensor(pictures), asked, torch.zeros(len(questions), dtype=torch.int64))


def layer(values: Values, name: str, inputs: torch.Tensor) -> torch.Tensor:
    return inputs @ values[f"head.{name}.weight"].T + values[f"head.{name}.bias"]


def test_ngrams_are_the_runs_of_one_to_three_words() -> None:
    """Case and punctuation make no difference; a question without words is zeros."""
    assert [*ngrams("Is it, a?")] == ["is", "it", "a", "is it", "it a", "is it a"]
    one, same, other, none = hashed_ngrams(["Is it a lung?", "is IT a lung", "is it a heart", "?"])
    assert torch.equal(one, same) and not torch.equal(one, other) and not none.any()
    assert float(one.square().mean()) == pytest.approx(1)


def test_the_place_of_an_ngram_is_the_same_on_all_machines() -> None:
    """A shared head would otherwise average layers that read other words at each site."""
    place, sign = hashed_ngrams(["side"])[0].abs().argmax(), hashed_ngrams(["side"])[0].sum().sign()
    assert (int(place), float(sign)) == (474, -1.0)


def test_the_product_head_is_the_product_of_tanh_units(single: ClipBackbone) -> None:
    """The question is the tower's features and the n-grams, side by side."""
    model, values = made(single, fusion="product", question="both")
    batch = batch_of(model, [0, 1, 2], [0, 2, 1])
    features = model.features(values, batch)
    asked = layer(values, "question", torch.cat([features[:, 32:], batch.grams], dim=1)).tanh()
    seen = layer(values, "picture", features[:, :32]).tanh()
    expected = layer(values, "answers", layer(values, "hidden", seen * asked).relu())
    assert torch.allclose(model.logits(values, batch), expected, **EXACT)


def test_a_normed_head_has_a_layernorm_before_its_relu(single: ClipBackbone) -> None:
    """It begins at weight 1 and bias 0, has weights in each member, and adds two values for each hidden unit."""
    model, values = made(single, normed=True)
    batch = batch_of(model, [0, 1, 2], [0, 2, 1])
    hidden = layer(values, "hidden", model.features(values, batch))
    centred = hidden - hidden.mean(1, keepdim=True)
    normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(model.logits(values, batch), layer(values, "answers", normed.relu()), **EXACT)
    values["head.norm.weight"], values["head.norm.bias"] = torch.full((7,), 2.0), torch.full((7,), 0.5)
    assert torch.allclose(model.logits(values, batch), layer(values, "answers", (2 * normed + 0.5).relu()), **EXACT)
    plain, _ = made(single)
    added = model.head.shapes(single.shape).keys() - plain.head.shapes(single.shape).keys()
    assert added == {"head.norm.weight", "head.norm.bias"}
    several, values = made(single, normed=True, members=2)
    assert values["head.norm.1.weight"].tolist() == [1.0] * 7 and values["head.norm.1.bias"].tolist() == [0.0] * 7


def test_the_attending_head_adds_the_places_that_the_question_weighs(single: ClipBackbone) -> None:
    """Place by place, with open_clip's own output tokens as the grid."""
    model, values = made(single, fusion="attend", question="ngrams")
    batch = batch_of(model, [0, 2], [1, 0])
    features = model.features(values, batch)
    stored = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(2))
    tokens = single.clip.visual.transformer(single.clip.visual._embeds(single.normalised(stored)))[:, 1:]
    places = single.clip.visual.ln_post(tokens)[[0, 2]]
    asked = layer(values, "question", batch.grams).tanh()
    query = layer(values, "looking", asked)
    weights = torch.stack([(places[row] @ query[row] / 32**0.5).softmax(dim=0) for row in range(2)])
    looked = torch.stack([weights[row] @ places[row] for row in range(2)])
    seen = (layer(values, "picture", features[:, :32]) + layer(values, "places", looked)).tanh()
    expected = layer(values, "answers", layer(values, "hidden", seen * asked).relu())
    assert torch.allclose(model.logits(values, batch), expected, **EXACT)


@pytest.mark.parametrize("fusion", ["concat", "product", "attend"])
def test_heads_that_answer_together_give_the_mean_of_their_log_probabilities(single: ClipBackbone, fusion: Any) -> None:
    """Each begins at values of its own, and has the names of a single head once its number is taken out of them."""
    model, values = made(single, fusion=fusion, question="both", members=3)
    batch = batch_of(model, [0, 1, 2], [0, 2, 1])
    alone = replace(model, head=replace(model.head, members=1))
    names = replace(model.head, members=1).shapes(single.shape)
    each = [
        {name: values[name.replace(".weight", f"{number}.weight").replace(".bias", f"{number}.bias")] for name in names}
        for number in ("", ".1", ".2")
    ]
    assert not torch.equal(each[0]["head.hidden.weight"], each[1]["head.hidden.weight"])
    expected = sum(alone.logits(own, batch).log_softmax(dim=1) for own in each) / 3
    assert torch.allclose(model.logits(values, batch), expected, **EXACT)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("question", ["tower", "ngrams", "both"])
@pytest.mark.parametrize("fusion", ["concat", "product", "attend", "text"])
def test_every_head_depends_on_what_it_sees_and_declares_what_it_trains(
    single: ClipBackbone, fusion: Any, question: Any, members: int
) -> None:
    """Only `text` is blind to the picture, and none to the question; every declared value takes part."""
    model, values = made(single, fusion=fusion, question=question, members=members)
    assert {name: tuple(value.shape) for name, value in values.items()} == model.head.shapes(single.shape)
    one, picture, asked = model.logits(values, batch_of(model, [0, 1, 0], [0, 0, 1]))
    assert torch.allclose(one, picture, **EXACT) == (fusion == "text") and not torch.allclose(one, asked)
    leaves = {name: value.requires_grad_() for name, value in values.items()}
    loss = model.logits(leaves, batch_of(model, [0, 1, 2], [0, 1, 2]), SeededChance(0)).square().sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    assert all(gradient is not None and bool(gradient.any()) for gradient in gradients)


def test_the_head_of_components_is_one_layer_on_products_of_few_numbers() -> None:
    """Each row is a constant, the question and the product of both in few directions, and all rows have length 8."""
    backbone = load_backbone("medclip2-vqarad")
    model, values = made(backbone, fusion="components", components=(2, 3))
    assert {name: tuple(value.shape) for name, value in values.items()} == {"head.answers.weight": (5, 1 + 3 + 2 * 3)}
    batch = batch_of(model, [0, 1, 2], [0, 2, 1])
    features, few = model.features(values, batch), backbone.components
    width = backbone.shape.towers["image"].width
    expected = []
    for row in features:
        seen = (few.picture[:2] @ (row[:width] - few.picture_mean)).tolist()
        asked = (few.question[:3] @ (row[width:] - few.question_mean)).tolist()
        seen, asked = ([each / math.hypot(*part) for each in part] for part in (seen, asked))
        expected.append([0.5, *asked, *(p * q for p in seen for q in asked)])
    joined = torch.tensor(expected) * 8 / math.sqrt(2.25)
    assert joined.norm(dim=1).tolist() == pytest.approx([8.0] * 3, rel=1e-5)
    assert torch.allclose(model.logits(values, batch), joined @ values["head.answers.weight"].T, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", BUNDLED)
def test_each_bundled_backbone_comes_with_orthonormal_components(name: str) -> None:
    """The server knows their numbers from the backbone's name; each file has them, on its towers' features."""
    few = bundled_components(name)
    for directions, mean, number in zip(
        (few.picture, few.question), (few.picture_mean, few.question_mean), COMPONENTS, strict=True
    ):
        assert directions.shape == (number, len(mean))
        assert torch.allclose(directions @ directions.T, torch.eye(number), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"components": (33, 64)}, "up to 32 principal components of pictures and 96 of questions"),
        ({"components": (16, 97)}, "up to 32 principal components of pictures and 96 of questions"),
        ({"question": "both"}, "one linear layer on the features of both towers"),
        ({"members": 2}, "one linear layer on the features of both towers"),
    ],
)
def test_components_that_a_backbone_lacks_are_refused_before_any_site_reads_it(
    head: dict[str, Any], message: str
) -> None:
    shape = shape_of("medclip2-slake")
    with pytest.raises(ConfigError, match=message):
        HeadConfig(5, fusion="components", **head).shapes(shape)


def test_a_backbone_without_components_says_so(single: ClipBackbone, vilt: Backbone) -> None:
    """A site's checkpoint and a backbone with one tower come without them; one modality of a bundled one is too few."""
    whole = shape_of("medclip2-slake")
    with pytest.raises(ConfigError, match="the features of both towers"):
        HeadConfig(5, fusion="components", question="tower").shapes(
            replace(whole, towers={"image": whole.towers["image"]})
        )
    for backbone in (single, vilt):
        with pytest.raises(ConfigError, match="up to 0 principal components"):
            HeadConfig(5, fusion="components").shapes(backbone.shape)
        with pytest.raises(ConfigError, match="comes without principal components"):
            backbone.components  # noqa: B018  # reading it is what is tested


@pytest.mark.parametrize("head", [{"fusion": "product"}, {"fusion": "concat", "members": 2}, {"fusion": "attend"}])
def test_a_low_rank_head_is_the_full_head_whose_weights_are_products(
    single: ClipBackbone, head: dict[str, Any]
) -> None:
    """Layers that would not have fewer numbers stay full, and new weights spread as full ones do."""
    model, values = made(single, question="both", rank=2, **head)
    full, drawn = made(single, question="both", **head)
    factors = [name.removesuffix(".down") for name in values if name.endswith(".down")]
    assert factors and sum(map(torch.numel, values.values())) < sum(map(torch.numel, drawn.values()))
    whole = {name: value for name, value in values.items() if not name.endswith(".down")}
    whole |= {f"{name}.weight": values[f"{name}.weight"] @ values[f"{name}.down"] for name in factors}
    assert {name: value.shape for name, value in whole.items()} == {name: v.shape for name, v in drawn.items()}
    batch = batch_of(model, [0, 1, 2], [0, 1, 2])
    torch.testing.assert_close(model.logits(values, batch), full.logits(whole, batch), **EXACT)
    wide = TunedModel(single, TuningConfig("classifier"), HeadConfig(300, 400, 0.0, fusion="concat", rank=40))
    spread = wide.initial(torch.Generator(), torch.Generator().manual_seed(3))
    product = spread["head.answers.weight"] @ spread["head.answers.down"]
    assert float(product.std()) == pytest.approx(float((3 * 400) ** -0.5), rel=0.05)


def test_a_rank_that_saves_nothing_is_refused() -> None:
    """Such as one above the width: the job would train more numbers than without it."""
    with pytest.raises(ConfigError, match="lower 'head_rank'"):
        create("fedavg", {"head_rank": 500}).exchange(shape_of("ViT-B-32/openai"))


def test_questions_that_a_backbone_takes_for_one_keep_their_own_ngrams(single: ClipBackbone) -> None:
    """The tiny tower reads ten letters; words beyond them reach the head of the row that asked, and of no other."""
    model, _ = made(single, fusion="product", question="both")
    texts = ("is it a left lung", "is it a lefthand side")
    cache = model.cache(model.depth, torch.zeros(1, 1, 32, 32), texts)
    ids = cache.question_ids(texts)
    batch = cache.batch(torch.zeros(2, dtype=torch.int64), ids, torch.zeros(2, dtype=torch.int64))
    assert len(batch.rows.questions.start) == 1
    assert torch.equal(batch.grams, hashed_ngrams(texts))
    with pytest.raises(ConfigError, match="without some of these questions"):
        cache.question_ids(["why"])


def test_a_backbone_with_one_tower_has_ngrams_as_its_question(vilt: Backbone) -> None:
    """The joint features are the picture; without n-grams there is no question apart, and there is no grid."""
    model, values = made(vilt, fusion="product", question="both")
    assert values["head.question.weight"].shape == (6, NGRAMS)
    one, other = model.logits(values, batch_of(model, [0, 1], [0, 0]))
    assert not torch.allclose(one, other)
    with pytest.raises(ConfigError, match="one tower"):
        model.head.shapes(vilt.shape) and replace(model.head, question="tower").shapes(vilt.shape)
    with pytest.raises(ConfigError, match="tower for pictures alone"):
        replace(model.head, fusion="attend").shapes(vilt.shape)


@pytest.mark.parametrize(
    ("head", "kind", "message"),
    [
        ({"fusion": "text", "question": "both"}, "adapter", "image tower"),
        ({"fusion": "product", "question": "ngrams"}, "prompt", "text tower"),
    ],
)
def test_what_the_head_does_not_see_is_not_tuned(
    single: ClipBackbone, head: dict[str, Any], kind: Any, message: str
) -> None:
    """Parts without a gradient would travel, and under differential privacy carry noise, for nothing."""
    with pytest.raises(ConfigError, match=message):
        check_head(HeadConfig(3, **head), TuningConfig(kind), single.shape)
    check_head(HeadConfig(3, **head), TuningConfig("classifier"), single.shape)


@pytest.mark.parametrize("name", ["fedavg", "prompt_pfl", "feddat", "creamfl", "fedp3", "local"])
def test_methods_refuse_such_a_head_before_anything_travels(single: ClipBackbone, name: str) -> None:
    """The exchange, which server and sites make first, names what to change."""
    with pytest.raises(ConfigError, match="image tower"):
        create(name, {"fusion": "text", "blocks": 1}).exchange(single.shape)


def test_clip_s_common_space_goes_with_a_plain_head(single: ClipBackbone) -> None:
    """`features` and `fusion` both multiply; together they are refused."""
    with pytest.raises(ConfigError, match="leave 'features'"):
        create("prompt_pfl", {"features": "product"}).exchange(single.shape)
    create("prompt_pfl", {"features": "product", "fusion": "concat"}).exchange(single.shape)
