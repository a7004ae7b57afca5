"""A site's model: what it trains, what it gives, and that grouping rows changes nothing."""

from dataclasses import replace

import pytest
import torch
from medfedvqa.models.vqa import AnswerHead

from medfedvqa.errors import ConfigError
from medfedvqa.models import Cache, ModelConfig, SiteModel, answer_loss, prompt_depth
from medfedvqa.models.clip import towers
from medfedvqa.models.layouts import Packed
from medfedvqa.models.prompts import join

QUESTIONS = ("is it", "is it so", "why", "is it a lung", "what is this thing", "why", "is it so")
PICTURES = torch.tensor([0, 0, 1, 2, 2, 2, 1])
ANSWERS = torch.tensor([0, 2, 1, 1, 0, 2, 2])
PATIENTS = torch.tensor([0, 0, 1, 2, 2, 2, 1])


def pictures() -> torch.Tensor:
    return torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def shared_prompts(model: SiteModel) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(4)
    return {name: torch.randn(prompt.shape, generator=draw).double() for name, prompt in model.prompts.items()}


@pytest.fixture
def make(backbone, generator):
    """A model and a cache for the same options, float64."""

    def build(**options):
        config = ModelConfig(**{"hidden": 16, "prompt_std": 0.5, **options})
        model = SiteModel(backbone, config, 3, generator).double()
        return model, backbone.cache(prompt_depth(backbone.shape, config), pictures(), QUESTIONS)

    return build


def gather(cache: Cache, rows: slice = slice(None), owners: torch.Tensor | None = None):
    return cache.batch(PICTURES[rows], cache.question_ids(QUESTIONS[rows]), ANSWERS[rows], owners)


def one_by_one(backbone, model: SiteModel, shared, reference, generator) -> torch.Tensor:
    """The straightforward way: each row its own picture and its own padded question, plain equations."""
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (backbone.mean, backbone.std))
    images = (pictures()[PICTURES].expand(-1, 3, -1, -1) - mean) / std
    local = model.prompts
    image = reference.image(backbone.clip, images, local.get("prompt.image"), shared.get("prompt.image"))
    tokens = backbone.tokenize(list(QUESTIONS))
    text = reference.text(backbone.clip, tokens, local.get("prompt.text"), shared.get("prompt.text"))
    return model.head(torch.cat([image, text], dim=1), generator)


ABLATIONS = {
    "full": {},
    "AS1": {"image_prompt": False, "text_prompt": False},
    "AS3": {"image_prompt": False},
    "AS4": {"text_prompt": False},
}


def test_the_trained_parameters_are_prompts_and_head_and_none_of_the_backbone(make):
    model, _ = make()
    assert {name: tuple(tensor.shape) for name, tensor in model.state().items()} == {
        "prompt.image": (3, 4, 32),
        "prompt.text": (2, 4, 24),
        "head.hidden.weight": (16, 56),
        "head.hidden.bias": (16,),
        "head.answers.weight": (3, 16),
        "head.answers.bias": (3,),
    }
    assert {name for name, _ in model.named_parameters()} == model.state().keys()


def test_the_head_is_the_papers_by_default(generator):
    head = AnswerHead(56, ModelConfig().hidden, 3, ModelConfig().dropout, generator)
    assert head.hidden.out_features == 512
    features, draw = torch.ones(400, 56), torch.Generator().manual_seed(1)
    kept = (head(features, draw) - head.answers.bias).detach()
    assert ModelConfig().dropout == 0.2
    assert torch.allclose(kept.mean(0), (head(features) - head.answers.bias)[0], rtol=0.1, atol=0.02)


def test_a_state_that_is_taken_out_can_be_put_in_and_does_not_change_afterwards(make):
    (first, cache), (second, _) = make(), make()
    state = first.state()
    with torch.no_grad():
        expected = first(gather(cache))
        for parameter in first.parameters():
            parameter.zero_()
        second.load_state_dict(state)
        assert torch.equal(second(gather(cache)), expected)


def test_initial_values_come_from_the_generator_alone(backbone):
    models = []
    for global_seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(global_seed)
            before = torch.get_rng_state()
            models.append(SiteModel(backbone, ModelConfig(hidden=8), 3, torch.Generator().manual_seed(5)))
            assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, models[1].state()[name]) for name, tensor in models[0].state().items())


def test_dropout_needs_a_generator_and_repeats_with_its_seed(make):
    model, cache = make(dropout=0.5)
    first, second = (model(gather(cache), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(model(gather(cache)), model(gather(cache)))
    assert not torch.allclose(first, model(gather(cache)))


@pytest.mark.parametrize("placing", ["before", "after"])
@pytest.mark.parametrize("joining", ["concatenate", "add"])
@pytest.mark.parametrize("ablation", ABLATIONS.values(), ids=ABLATIONS)
@pytest.mark.parametrize("blocks", [1, None])
def test_grouped_rows_give_the_logits_and_gradients_of_one_row_one_image_padded_text(
    make, backbone, reference, ablation, joining, placing, blocks
):
    model, cache = make(joining=joining, placing=placing, blocks=blocks, **ablation)
    shared, gradients, logits = shared_prompts(model), [], []
    for grouped in (True, False):
        draw = torch.Generator().manual_seed(8)
        if grouped:
            logits.append(model(gather(cache), shared, draw))
        else:
            logits.append(one_by_one(backbone, model, shared, reference(joining, placing), draw))
        model.zero_grad()
        answer_loss(logits[-1], ANSWERS).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert torch.allclose(*logits, rtol=0, atol=1e-10)
    for name, gradient in gradients[1].items():
        assert gradient.abs().max() > 1e-6
        assert torch.allclose(gradients[0][name], gradient, rtol=0, atol=1e-10)


def test_a_batch_holds_each_picture_and_each_question_once(make):
    _, cache = make()
    batch = gather(cache)
    assert len(batch.pictures.start) == 3
    assert batch.questions.item.max() + 1 == 5
    assert torch.equal(batch.answers, ANSWERS)


def test_without_prompts_the_features_are_plain_clips(make, backbone):
    """AS1: the head sees what open_clip's own encoders give."""
    model, cache = make(image_prompt=False, text_prompt=False, features="product")
    assert model.prompts == {}
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (backbone.mean, backbone.std))
    image = backbone.clip.encode_image((pictures()[PICTURES].expand(-1, 3, -1, -1) - mean) / std, normalize=True)
    text = backbone.clip.encode_text(backbone.tokenize(list(QUESTIONS)), normalize=True)
    batch = gather(cache)
    seen, read = batch.pictures.start[batch.pictures.item], batch.questions.start[batch.questions.item]
    assert torch.allclose(model(batch), model.head(torch.cat([seen, read, image * text], dim=1)), rtol=0, atol=1e-10)
    assert torch.allclose(torch.nn.functional.normalize(seen @ backbone.clip.visual.proj, dim=1), image)


def test_for_a_tower_without_prompts_the_cache_holds_final_features_alone(make):
    for options, shapes in (
        ({"image_prompt": False, "text_prompt": False}, ([3, 32], [5, 24])),
        ({"text_prompt": False}, ([3, 17, 32], [5, 24])),
    ):
        batch = gather(make(**options)[1])
        assert ([*batch.pictures.start.shape], [*batch.questions.start.shape]) == shapes
        assert not batch.pictures.start.requires_grad


def test_the_product_gives_the_head_both_features_and_the_product_of_embeddings(make, backbone):
    model, cache = make(features="product")
    assert model.head.hidden.in_features == 32 + 24 + 20
    image, text = towers(backbone.clip, prompt_depth(backbone.shape, model.config))
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (backbone.mean, backbone.std))
    images = (pictures()[PICTURES].expand(-1, 3, -1, -1) - mean) / std
    tokens = backbone.tokenize(list(QUESTIONS))
    words = Packed(text.beginnings(tokens), torch.arange(7))
    joined = {name: join(prompt, None, "concatenate", "before") for name, prompt in model.prompts.items()}
    seen = image.features(image.trunk(images), joined["prompt.image"])
    read = text.features(text.trunk(tokens, words), words, joined["prompt.text"])
    expected = model.head(torch.cat([seen, read, image.embed(seen) * text.embed(read)], dim=1))
    assert torch.allclose(model(gather(cache)), expected, rtol=0, atol=1e-10)


def test_no_gradient_reaches_shared_prompts(make):
    model, cache = make()
    shared = {name: prompt.requires_grad_() for name, prompt in shared_prompts(model).items()}
    answer_loss(model(gather(cache), shared), ANSWERS).backward()
    assert all(prompt.grad is None for prompt in shared.values())


def test_shared_prompts_change_the_answers_and_their_absence_is_not_zeros(make):
    model, cache = make()
    shared = shared_prompts(model)
    zeros = {name: torch.zeros_like(prompt) for name, prompt in shared.items()}
    logits = [model(gather(cache), prompts) for prompts in (None, zeros, shared)]
    assert not torch.allclose(logits[0], logits[1])
    assert not torch.allclose(logits[1], logits[2])


def test_each_owner_gets_the_gradient_of_its_own_rows_alone(make):
    """Prompts expanded to patients: one backward pass, per-patient gradients."""
    model, cache = make()
    shared = shared_prompts(model)
    local = {name: prompt.detach() for name, prompt in model.prompts.items()}
    expanded = {name: prompt.expand(3, *prompt.shape).clone().requires_grad_() for name, prompt in local.items()}
    logits = model(gather(cache, owners=PATIENTS), shared, local=expanded)
    assert torch.allclose(logits, model(gather(cache), shared), rtol=0, atol=1e-10)
    torch.nn.functional.cross_entropy(logits, ANSWERS, reduction="sum").backward()
    for patient in range(3):
        rows = (patient == PATIENTS).nonzero().flatten()
        questions = cache.question_ids([QUESTIONS[row] for row in rows.tolist()])
        batch = cache.batch(PICTURES[rows], questions, ANSWERS[rows])
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(batch, shared), batch.answers, reduction="sum").backward()
        for name, prompt in model.prompts.items():
            assert torch.allclose(expanded[name].grad[patient], prompt.grad, rtol=0, atol=1e-10)


def test_a_picture_or_question_of_two_owners_is_not_shared_between_them(make):
    _, cache = make()
    owners = torch.tensor([0, 1, 0, 0, 0, 1, 0])
    batch = gather(cache, owners=owners)
    for items in (batch.pictures, batch.questions):
        assert torch.equal(items.owner[items.item], owners)
    assert len(batch.pictures.start) == 5


def test_prompts_of_several_owners_need_a_batch_with_owners(make):
    model, cache = make()
    expanded = {name: prompt.detach().expand(3, *prompt.shape) for name, prompt in model.prompts.items()}
    with pytest.raises(ConfigError, match="owners"):
        model(gather(cache), local=expanded)


def test_a_question_that_the_cache_was_not_built_with_is_refused_without_naming_it(make):
    _, cache = make()
    with pytest.raises(ConfigError) as refused:
        cache.question_ids(["secret question"])
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_pictures_of_another_size_are_refused(backbone):
    with pytest.raises(ConfigError, match="32"):
        backbone.cache({"image": 3, "text": 2}, pictures()[..., :16], QUESTIONS)


def test_questions_that_differ_in_writing_but_not_in_tokens_are_one(backbone):
    upper = replace(backbone, tokenize=lambda texts: backbone.tokenize([text.lower() for text in texts]))
    cache = upper.cache({"image": 3, "text": 2}, pictures(), ("Is it", "is it"))
    assert cache.question_ids(["Is it", "is it"]).unique().numel() == 1


@pytest.mark.parametrize("options", [{"dropout": 1.0}, {"dropout": -0.1}, {"hidden": 0}, {"prompt_std": 0.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError):
        ModelConfig(**options)
