"""A site's prompted model: what it trains, what it gives, and that grouping rows changes nothing."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_models import PICTURES, pictures

from medfedvqa.errors import ConfigError
from medfedvqa.models import Cache, HeadConfig, TunedModel, TuningConfig, Values
from medfedvqa.models.backbone import TowerTuning
from medfedvqa.models.clip import towers
from medfedvqa.models.layouts import Packed
from medfedvqa.models.prompts import join
from privacy import Chance, SeededChance

QUESTIONS = ("is it", "is it so", "why", "is it a lung", "what is this thing", "why", "is it so")
ANSWERS = torch.tensor([0, 2, 1, 1, 0, 2, 2])
PATIENTS = torch.tensor([0, 0, 1, 2, 2, 2, 1])
WITHOUT_PROMPTS = {"kind": "classifier"}


@dataclass
class Made:
    """A model with values to train, float64, and the cache of its site."""

    model: TunedModel
    values: Values
    cache: Cache

    @property
    def prompts(self) -> Values:
        return {name: value for name, value in self.values.items() if name.startswith("prompt.")}

    def shared(self) -> Values:
        """Prompts as others send them."""
        draw = torch.Generator().manual_seed(4)
        return {name: torch.randn(prompt.shape, generator=draw).double() for name, prompt in self.prompts.items()}

    def logits(self, batch: Any, shared: Values | None = None, chance: Chance | None = None, **values: Any):
        model = replace(self.model, shared=shared or None)
        return model.logits(self.values | values.get("local", {}), batch, chance)


@pytest.fixture
def make(backbone, generator):
    """A model, its values and a cache for the same options."""

    def build(kind: str = "prompt", join: str = "concat", dropout: float = 0.2, **options: Any) -> Made:
        tuning = TuningConfig(kind, **{"std": 0.5, **options})
        model = TunedModel(backbone, tuning, HeadConfig(3, 16, dropout), join)
        values = {name: v.double().requires_grad_() for name, v in model.initial(generator, generator).items()}
        return Made(model, values, model.cache(model.depth, pictures(), QUESTIONS))

    return build


def gather(cache: Cache, rows: slice = slice(None), owners: torch.Tensor | None = None):
    return cache.batch(PICTURES[rows], cache.question_ids(QUESTIONS[rows]), ANSWERS[rows], owners)


def normalised(backbone) -> torch.Tensor:
    """Each row's own picture as the encoder takes it."""
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (backbone.mean, backbone.std))
    return (pictures()[PICTURES].expand(-1, 3, -1, -1) - mean) / std


def one_by_one(backbone, made: Made, shared, reference, chance) -> torch.Tensor:
    """The straightforward way: each row its own picture and its own padded question, plain equations."""
    local = made.prompts
    image = reference.image(backbone.clip, normalised(backbone), local.get("prompt.image"), shared.get("prompt.image"))
    tokens = backbone.tokenize(list(QUESTIONS))
    text = reference.text(backbone.clip, tokens, local.get("prompt.text"), shared.get("prompt.text"))
    return made.model.answer(made.values, torch.cat([image, text], dim=1), None, chance)


ABLATIONS = {
    "full": {},
    "AS1": WITHOUT_PROMPTS,
    "AS3": {"without": ("image",)},
    "AS4": {"without": ("text",)},
}


def test_the_trained_values_are_prompts_and_head_and_none_of_the_backbone(make):
    """Both where they are drawn and where they are declared."""
    made = make()
    expected = {
        "prompt.image": (3, 4, 32),
        "prompt.text": (2, 4, 24),
        "head.hidden.weight": (16, 56),
        "head.hidden.bias": (16,),
        "head.answers.weight": (3, 16),
        "head.answers.bias": (3,),
    }
    assert {name: tuple(tensor.shape) for name, tensor in made.values.items()} == expected
    assert made.model.tuning.shapes(made.model.shape) | made.model.head.shapes(made.model.shape) == expected
    assert not any(parameter.requires_grad for parameter in made.model.backbone.clip.parameters())


def test_the_head_is_the_papers_by_default(backbone, generator):
    """512 hidden units, a fifth of them dropped in training, without a change of the mean."""
    model = TunedModel(backbone, TuningConfig("prompt"), HeadConfig(3))
    values = model.initial(generator, generator)
    assert values["head.hidden.weight"].shape == (512, 56) and model.head.dropout == 0.2
    features, bias = torch.ones(400, 56), values["head.answers.bias"]
    kept = model.answer(values, features, None, SeededChance(1)) - bias
    assert torch.allclose(kept.mean(0), (model.answer(values, features, None) - bias)[0], rtol=0.1, atol=0.02)


def test_initial_values_come_from_the_generators_alone(backbone):
    """The global generator changes nothing, and is left as it is."""
    drawn = []
    for global_seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(global_seed)
            before = torch.get_rng_state()
            model = TunedModel(backbone, TuningConfig("prompt"), HeadConfig(3, 8))
            drawn.append(model.initial(torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)))
            assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, drawn[1][name]) for name, tensor in drawn[0].items())


def test_dropout_needs_a_chance_and_repeats_with_its_seed(make):
    """Without a chance, answers are the same every time."""
    made = make(dropout=0.5)
    first, second = (made.logits(gather(made.cache), chance=SeededChance(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(made.logits(gather(made.cache)), made.logits(gather(made.cache)))
    assert not torch.allclose(first, made.logits(gather(made.cache)))


@pytest.mark.parametrize("placing", ["before", "after"])
@pytest.mark.parametrize("joining", ["concatenate", "add"])
@pytest.mark.parametrize("ablation", ABLATIONS.values(), ids=ABLATIONS)
@pytest.mark.parametrize("blocks", [1, None])
def test_grouped_rows_give_the_logits_and_gradients_of_one_row_one_image_padded_text(
    make, backbone, reference, ablation, joining, placing, blocks
):
    """The paper's equations, word for word, with the same dropout."""
    made = make(joining=joining, placing=placing, blocks=blocks, **ablation)
    shared, gradients, logits = made.shared(), [], []
    for grouped in (True, False):
        chance = SeededChance(8)
        if grouped:
            logits.append(made.logits(gather(made.cache), shared, chance))
        else:
            logits.append(one_by_one(backbone, made, shared, reference(joining, placing), chance))
        found = torch.autograd.grad(F.cross_entropy(logits[-1], ANSWERS), list(made.values.values()))
        gradients.append(dict(zip(made.values, found, strict=True)))
    assert torch.allclose(*logits, rtol=0, atol=1e-10)
    for name, gradient in gradients[1].items():
        assert gradient.abs().max() > 1e-6
        assert torch.allclose(gradients[0][name], gradient, rtol=0, atol=1e-10)


def test_a_batch_holds_each_picture_and_each_question_once(make):
    """Rows that show one picture share its computation."""
    batch = gather(make().cache)
    assert len(batch.rows.pictures.start) == 3
    assert batch.rows.questions.item.max() + 1 == 5
    assert torch.equal(batch.answers, ANSWERS)


def test_without_prompts_the_features_are_plain_clips(make, backbone):
    """AS1: the head sees what open_clip's own encoders give."""
    made = make(**WITHOUT_PROMPTS, join="product")
    assert made.prompts == {}
    image = backbone.clip.encode_image(normalised(backbone), normalize=True)
    text = backbone.clip.encode_text(backbone.tokenize(list(QUESTIONS)), normalize=True)
    batch = gather(made.cache)
    seen, read = (
        batch.rows.pictures.start[batch.rows.pictures.item],
        batch.rows.questions.start[batch.rows.questions.item],
    )
    expected = made.model.answer(made.values, torch.cat([seen, read, image * text], dim=1), None)
    assert torch.allclose(made.logits(batch), expected, rtol=0, atol=1e-10)
    assert torch.allclose(F.normalize(seen @ backbone.clip.visual.proj, dim=1), image)


def test_for_a_tower_without_prompts_the_cache_holds_final_features_alone(make):
    """Nothing changes in it, so nothing of it is computed again."""
    for options, shapes in (
        (WITHOUT_PROMPTS, ([3, 32], [5, 24])),
        ({"without": ("text",)}, ([3, 17, 32], [5, 24])),
    ):
        batch = gather(make(**options).cache)
        assert ([*batch.rows.pictures.start.shape], [*batch.rows.questions.start.shape]) == shapes
        assert not batch.rows.pictures.start.requires_grad


def test_the_product_gives_the_head_both_features_and_the_product_of_embeddings(make, backbone):
    """Computed by the towers themselves."""
    made = make(join="product")
    assert made.values["head.hidden.weight"].shape[1] == 32 + 24 + 20
    image, text = towers(backbone.clip, made.model.depth)
    tokens = backbone.tokenize(list(QUESTIONS))
    words = Packed(text.beginnings(tokens), torch.arange(7))
    joined = {name: join(prompt, None, "concatenate", "before") for name, prompt in made.prompts.items()}
    seen = image.features(image.trunk(normalised(backbone)), TowerTuning(joined["prompt.image"]))
    read = text.features(text.trunk(tokens, words), words, TowerTuning(joined["prompt.text"]))
    expected = made.model.answer(
        made.values, torch.cat([seen, read, image.embed(seen) * text.embed(read)], dim=1), None
    )
    assert torch.allclose(made.logits(gather(made.cache)), expected, rtol=0, atol=1e-10)


def test_no_gradient_reaches_shared_prompts(make):
    """They are constants, received from others."""
    made = make()
    shared = {name: prompt.requires_grad_() for name, prompt in made.shared().items()}
    F.cross_entropy(made.logits(gather(made.cache), shared), ANSWERS).backward()
    assert all(prompt.grad is None for prompt in shared.values())


def test_shared_prompts_change_the_answers_and_their_absence_is_not_zeros(make):
    """Before the first exchange no token stands for others."""
    made = make()
    shared = made.shared()
    zeros = {name: torch.zeros_like(prompt) for name, prompt in shared.items()}
    logits = [made.logits(gather(made.cache), prompts) for prompts in (None, zeros, shared)]
    assert not torch.allclose(logits[0], logits[1])
    assert not torch.allclose(logits[1], logits[2])


def test_each_owner_gets_the_gradient_of_its_own_rows_alone(make):
    """Prompts expanded to patients: one backward pass, per-patient gradients."""
    made = make()
    shared, cache = made.shared(), made.cache
    expanded = {n: p.detach().expand(3, *p.shape).clone().requires_grad_() for n, p in made.prompts.items()}
    logits = made.logits(gather(cache, owners=PATIENTS), shared, local=expanded)
    assert torch.allclose(logits, made.logits(gather(cache), shared), rtol=0, atol=1e-10)
    F.cross_entropy(logits, ANSWERS, reduction="sum").backward()
    for patient in range(3):
        rows = (patient == PATIENTS).nonzero().flatten()
        questions = cache.question_ids([QUESTIONS[row] for row in rows.tolist()])
        batch = cache.batch(PICTURES[rows], questions, ANSWERS[rows])
        loss = F.cross_entropy(made.logits(batch, shared), batch.answers, reduction="sum")
        for name, gradient in zip(made.prompts, torch.autograd.grad(loss, [*made.prompts.values()]), strict=True):
            assert torch.allclose(expanded[name].grad[patient], gradient, rtol=0, atol=1e-10)


def test_a_picture_or_question_of_two_owners_is_not_shared_between_them(make):
    """Each owner has an item of its own."""
    owners = torch.tensor([0, 1, 0, 0, 0, 1, 0])
    batch = gather(make().cache, owners=owners)
    for items in (batch.rows.pictures, batch.rows.questions):
        assert torch.equal(items.owner[items.item], owners)
    assert len(batch.rows.pictures.start) == 5


def test_prompts_of_several_owners_need_a_batch_with_owners(make):
    """Nobody could tell whose token an item sees."""
    made = make()
    expanded = {name: prompt.detach().expand(3, *prompt.shape) for name, prompt in made.prompts.items()}
    with pytest.raises(ConfigError, match="owners"):
        made.logits(gather(made.cache), local=expanded)


def test_a_question_that_the_cache_was_not_built_with_is_refused_without_naming_it(make):
    """A question is a patient's data: no error repeats it."""
    with pytest.raises(ConfigError) as refused:
        make().cache.question_ids(["secret question"])
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_pictures_of_another_size_are_refused(backbone):
    """Nothing scales a picture on the way."""
    with pytest.raises(ConfigError, match="32"):
        backbone.cache({"image": 3, "text": 2}, pictures()[..., :16], QUESTIONS)


def test_questions_that_differ_in_writing_but_not_in_tokens_are_one(backbone):
    """What the model cannot tell apart is computed once."""
    upper = replace(backbone, tokenize=lambda texts: backbone.tokenize([text.lower() for text in texts]))
    cache = upper.cache({"image": 3, "text": 2}, pictures(), ("Is it", "is it"))
    assert cache.question_ids(["Is it", "is it"]).unique().numel() == 1


@pytest.mark.parametrize("options", [{"std": 0.0}, {"std": -1.0}, {"rank": 0}, {"reduction": 0}, {"blocks": 0}])
def test_options_out_of_range_are_refused(options):
    """Those of the head: see `test_tuned`."""
    with pytest.raises(ConfigError):
        TuningConfig("prompt", **options)
