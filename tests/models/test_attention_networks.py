"""The baselines' networks: their parts against torch's own, their shapes, and that no row depends on another."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models import Backbone
from medfedvqa.papers.networks.attention_networks import (
    CODED,
    ClipFusion,
    EnhancedAttention,
    Network,
    NetworkConfig,
    StackedAttention,
)
from privacy import SeededChance

CONFIG = NetworkConfig(pixels=32, width=8)
QUESTIONS = ("is it bright", "which side of it, left or right", "no", "is it dark")
KINDS = ("san", "mevf", "pubmedclip")


@pytest.fixture
def network(single: Backbone) -> Callable[[str], Network]:
    def make(kind: str) -> Network:
        kinds = {"san": StackedAttention, "mevf": EnhancedAttention}
        return kinds[kind](3, CONFIG) if kind in kinds else ClipFusion(3, CONFIG, backbone=single)

    return make


def values_of(network: Network) -> dict[str, torch.Tensor]:
    return network.initial(torch.Generator().manual_seed(1), torch.Generator().manual_seed(2))


def batch_of(network: Network, rows: tuple[int, ...] = (0, 1, 2, 3, 1)):
    pictures = torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(3))
    cache = network.cache({}, pictures, QUESTIONS)
    return cache.batch(torch.tensor(rows) % 4, torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_answered_by_itself(network, kind) -> None:
    """The same logits alone as among others, so that a patient's gradient is the patient's own."""
    model = network(kind)
    values, rows = values_of(model), (0, 1, 2, 3, 1)
    together = model.logits(values, batch_of(model, rows))
    assert together.shape == (5, 3)
    for number, row in enumerate(rows):
        assert torch.allclose(model.logits(values, batch_of(model, (row,)))[0], together[number], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_that_are_declared_and_the_same_for_a_seed(network, kind) -> None:
    model = network(kind)
    one, other = values_of(model), values_of(model)
    assert {name: tuple(value.shape) for name, value in one.items()} == model.shapes()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("kind", ["san", "mevf"])
def test_attention_weights_sum_to_one_and_are_what_features_are_made_of(network, kind) -> None:
    """Four regions of 16 pixels each; with weights that are all on one region, that region alone is seen."""
    model = network(kind)
    values, batch = values_of(model), batch_of(model)
    found = model.attention(values, batch)
    assert found.shape == (5, 4) and torch.allclose(found.sum(dim=1), torch.ones(5))
    silent = {name: value * 0 if name.endswith("score.weight") else value for name, value in values.items()}
    assert torch.allclose(model.attention(silent, batch), torch.full((5, 4), 0.25))


def test_two_hops_by_hand(network) -> None:
    """Eqs. 15 to 22 of the paper, region by region."""
    model = network("san")
    values, batch = values_of(model), batch_of(model)
    regions = (model.regions(values, batch.pixels) @ values["regions.weight"].T + values["regions.bias"]).tanh()
    asked = model.read(values, batch.words)[0][:, -1]
    for row in range(5):
        query = asked[batch.question[row]]
        for hop in range(2):
            own = {part: values[f"hop.{hop}.{part}"] for part in ("regions.weight", "query.weight", "query.bias")}
            context = own["query.weight"] @ query + own["query.bias"]
            seen = regions[batch.picture[row]]
            scores = [values[f"hop.{hop}.score.weight"][0] @ (own["regions.weight"] @ v + context).tanh() for v in seen]
            query = query + torch.stack(scores).softmax(dim=0) @ seen
        assert torch.allclose(model.features(values, batch)[row], query, atol=1e-5)


def test_the_reader_is_torch_s_lstm_up_to_each_question_s_end(network) -> None:
    model = network("san")
    values, words = values_of(model), batch_of(model).words
    lstm = nn.LSTM(4, 8, batch_first=True)
    state = {
        "weight_ih_l0": values["reader.input.weight"],
        "weight_hh_l0": values["reader.state.weight"],
        "bias_ih_l0": values["reader.input.bias"],
        "bias_hh_l0": torch.zeros(32),
    }
    lstm.load_state_dict(state)
    states, there = model.read(values, words)
    for question, ids in enumerate(words):
        length = int((ids > 0).sum())
        expected = lstm(values["words.weight"][ids[:length]][None])[0][0]
        assert torch.allclose(states[question, :length], expected, atol=1e-6) and int(there[question].sum()) == length
        assert torch.allclose(states[question, -1], expected[-1], atol=1e-6)


def test_the_auto_encoder_learns_to_reconstruct(network) -> None:
    """From noisy pictures with little in them; what it makes has the picture's shape."""
    model = network("mevf")
    values, batch = values_of(model), batch_of(model)
    smooth = torch.nn.functional.interpolate(batch.pixels[:, :, ::16, ::16], size=32, mode="bilinear")
    object.__setattr__(batch, "pixels", smooth)
    part = {name: values[name].requires_grad_() for name in model.coder}
    assert model.coded(part, smooth).shape == (4, CODED[-1], 2, 2)
    assert model.decoded(part, model.coded(part, smooth)).shape == smooth.shape
    optimizer, chance = torch.optim.Adam(part.values(), 0.01), SeededChance(0)
    for _ in range(150):
        optimizer.zero_grad()
        model.reconstruction(part, batch, chance).mean().backward()
        optimizer.step()
    assert model.reconstruction(part, batch, None).mean() < 0.2 * smooth.var()


def test_clip_s_features_are_those_of_its_image_tower(network, single) -> None:
    model = network("pubmedclip")
    pictures = torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(3))
    expected = single.clip.visual._pool(
        single.clip.visual.transformer(single.clip.visual._embeds(single.normalised(pictures)))
    )[0]
    assert torch.allclose(batch_of(model, (0, 1, 2, 3)).clip, expected, atol=1e-4)


def test_a_batch_without_clip_s_features_is_refused(network) -> None:
    """The batch of another network's cache holds none: the sentence names the cache to take."""
    fusion = network("pubmedclip")
    with pytest.raises(ConfigError, match="this network's own cache"):
        fusion.features(values_of(fusion), batch_of(network("mevf")))


def test_a_network_without_regions_shows_no_attention(network) -> None:
    model = network("pubmedclip")
    with pytest.raises(ConfigError, match="no attention"):
        model.attention(values_of(model), batch_of(model))


@pytest.mark.parametrize("wrong", [{"pixels": 40}, {"pixels": 0}, {"width": 0}, {"hops": 0}])
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="pixels"):
        NetworkConfig(**wrong)


def test_questions_that_were_never_given_are_refused(network) -> None:
    cache = network("san").cache({}, torch.zeros(1, 1, 32, 32), QUESTIONS)
    with pytest.raises(ConfigError, match="some of these questions"):
        cache.question_ids(["something else"])
