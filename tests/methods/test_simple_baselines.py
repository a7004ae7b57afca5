"""Bag of words and one-exchange ridge: what they compute, and what they are blind to."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from audits import Tensors
from medfedvqa.core import Method, Site, State, create
from medfedvqa.data.site_data import united
from medfedvqa.errors import ConfigError
from medfedvqa.methods.ridge import solution
from medfedvqa.models import shape_of
from privacy import DPSettings

Make = Callable[..., Site]
ANSWERS = ["yes", "no", "left", "something odd"]


def trained(method: Method, site: Site, rounds: int) -> State:
    state = method.setup(site)
    for number in range(1, rounds + 1):
        state, sent = (method.start if number == 1 else method.train)(site, state, {}, number)
        assert not sent
    return state


def test_a_bag_of_words_learns_the_answer_to_each_question_and_sees_no_picture(site: Make) -> None:
    """All rows with questions seen in training are right, and other pictures change no logit."""
    there, method = site(), create("bag_of_words", {"rounds": 10, "local_epochs": 3, "learning_rate": 0.01})
    state = trained(method, there, 10)
    assert method.answered(there, state, {}, there.data.test).all()
    trainer, rows = method.trainer(there), there.data.test
    moved = replace(rows, pictures=rows.pictures.flip(0))
    logits = [trainer.model.logits(state["values"], trainer.all_rows(each).batch) for each in (rows, moved)]
    assert torch.equal(*logits)


def test_a_question_never_seen_in_training_still_has_an_answer(site: Make) -> None:
    """Its n-grams that are new have weights of zero; the others answer."""
    there, method = site(), create("bag_of_words", {"rounds": 5, "learning_rate": 0.01})
    train = there.data.train.chosen(torch.tensor([0, 1, 3, 4]))
    there = replace(there, data=replace(there.data, train=train))
    assert "which side" not in train.questions and "which side" in there.data.test.questions
    right = method.answered(there, trained(method, there, 5), {}, there.data.test)
    assert right.any() and not right.all()


def test_a_bag_of_words_has_no_map_of_attention_and_sends_counts_alone(site: Make) -> None:
    there, method = site(), create("bag_of_words", {"rounds": 1})
    with pytest.raises(ConfigError, match="sees no pictures"):
        method.attention(there, method.setup(there), there.data.test)
    assert not any(t.up for t in method.exchange(shape_of("medclip2-slake")).tasks if t.name != "evaluate")


def sums(method: Method, *sites: Site) -> list[Tensors]:
    return [method.start(there, method.setup(there), {}, 1)[1] for there in sites]


def mean_of(uploads: list[Tensors]) -> Tensors:
    rows = np.array([float(up["train_rows"]) for up in uploads])
    return {n: np.tensordot(rows / rows.sum(), [up[n] for up in uploads], 1) for n in ("gram", "moments")}


def test_the_mean_of_the_sites_sums_is_that_of_all_rows_at_one_site(site: Make) -> None:
    """So that one exchange gives each site what pooled rows would give."""
    method = create("ridge", {"units": 6, "answers": ANSWERS})
    sites = [site(name, questions=count) for name, count in (("here", 3), ("there", 4))]
    everywhere = replace(sites[0], name="all", data=united([each.data for each in sites]), _derived={})
    uploads, (pooled,) = sums(method, *sites), sums(method, everywhere)
    assert len({int(up["train_rows"]) for up in uploads}) == 2
    mean = mean_of(uploads)
    assert all(np.allclose(mean[name], pooled[name], atol=1e-6) for name in mean)
    assert all(np.abs(up[name]).max() <= 1 for up in uploads for name in mean)


def test_the_constant_s_row_of_moments_is_the_share_of_each_answer(site: Make) -> None:
    """What the page says that the server learns in clear."""
    there = site()
    (up,) = sums(create("ridge", {"units": 6, "answers": ANSWERS}), there)
    named = [there.data.answers[number] for number in there.data.train.answers.tolist()]
    assert np.allclose(up["moments"][0], [named.count(answer) / len(named) for answer in ANSWERS])


def test_the_solution_is_that_of_ridge_regression() -> None:
    """Against least squares on rows to which the penalty is appended."""
    generator = torch.Generator().manual_seed(0)
    rows, answers = (torch.randn(40, n, generator=generator, dtype=torch.float64) for n in (7, 3))
    found = solution(rows.T @ rows / 40, rows.T @ answers / 40, 0.3)
    more = torch.cat([rows, (0.3 * 40) ** 0.5 * torch.eye(7, dtype=torch.float64)])
    expected = torch.linalg.lstsq(more, torch.cat([answers, torch.zeros(7, 3, dtype=torch.float64)])).solution
    assert torch.allclose(found, expected)


def test_ridge_keeps_the_best_penalty(site: Make) -> None:
    """On validation rows; of equally good ones the largest. Its own sums answer all its questions with any penalty."""
    there, penalties = site(questions=4), (1e-6, 1e-3, 1e-2, 1e3)

    def ended(mean: Tensors, chosen: tuple[float, ...]) -> tuple[State, Tensors]:
        method = create("ridge", {"units": 8, "answers": ANSWERS, "penalties": chosen, "mixes": (1.0,)})
        state, up = method.start(there, method.setup(there), {}, 1)
        return method.evaluate(there, state, mean or {name: up[name] for name in ("gram", "moments")}, 1)

    generator = np.random.default_rng(1)
    rows, answers = generator.normal(size=(12, 17)), generator.normal(size=(12, 4))
    mean = {"gram": np.float32(rows.T @ rows / 100), "moments": np.float32(rows.T @ answers / 100)}
    alone = {penalty: ended(mean, (penalty,))[0] for penalty in penalties}
    validated = {penalty: float(state["validated"]) for penalty, state in alone.items()}
    best = max(penalty for penalty in penalties if validated[penalty] == max(validated.values()))
    assert min(validated.values()) < validated[best]
    assert torch.equal(ended(mean, penalties)[0]["solution"], alone[best]["solution"])
    state, found = ended({}, penalties)
    assert torch.equal(state["solution"], ended({}, (1e3,))[0]["solution"])
    assert int(found["correct"]) == int(found["rows"])


def test_ridge_solves_with_the_mix_of_own_and_all_sites_sums_that_validation_rows_favour(site: Make) -> None:
    """A mean that says nothing is left aside; equal sums make the largest mix as good, and it is kept."""
    there, penalty = site(questions=4), 1e-3
    mixes = (0.0, 0.5, 1.0)
    method = create("ridge", {"units": 8, "answers": ANSWERS, "penalties": (penalty,), "mixes": mixes})
    state, up = method.start(there, method.setup(there), {}, 1)
    own = {name: torch.from_numpy(up[name]).double() for name in ("gram", "moments")}
    nothing = {"gram": np.full_like(up["gram"], 0), "moments": -1e3 * np.ones_like(up["moments"]) * [1, 0, 0, 0]}
    for mean, mix in ((nothing, 0.0), ({name: up[name] for name in own}, 1.0)):
        kept = method.evaluate(there, state, {n: np.float32(v) for n, v in mean.items()}, 1)[0]["solution"]
        mixed = [torch.lerp(own[name], torch.from_numpy(np.float64(mean[name])), mix) for name in own]
        assert torch.allclose(kept.double(), solution(*mixed, penalty), atol=1e-3)


def test_ridge_with_no_share_of_the_mean_exchanges_nothing(site: Make) -> None:
    """It is the same regression alone at a site, which the benchmark compares it with."""
    there, alone = site(questions=4), create("ridge", {"units": 8, "answers": ANSWERS, "mixes": (0.0,)})
    assert [task.name for task in alone.exchange(there.backbone.shape).tasks] == ["evaluate"]
    state, found = alone.evaluate(there, alone.setup(there), {}, 1)
    shared = create("ridge", {"units": 8, "answers": ANSWERS, "mixes": (1.0,)})
    (up,) = sums(shared, there)
    received = {name: up[name] for name in ("gram", "moments")}
    same = shared.evaluate(there, shared.setup(there), received, 1)[0]["solution"]
    assert torch.allclose(state["solution"], same, atol=1e-3) and int(found["correct"]) == int(found["rows"])


def test_ridge_is_refused_under_differential_privacy() -> None:
    """Its sums carry no noise."""
    with pytest.raises(ConfigError, match="differential privacy"):
        create("ridge", {}, DPSettings(epsilon=8.0))
