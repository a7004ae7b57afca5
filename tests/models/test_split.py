"""UniCon's networks and loss against their card: split equals whole, closed forms, payloads."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medfedvqa.errors import ConfigError
from medfedvqa.models import ClipBackbone, TuningConfig
from medfedvqa.models.backbone import BackboneShape, TokenEmbeddings, TowerShape
from medfedvqa.papers.networks.split import (
    BUFFERS,
    RowContrast,
    ServerNetworks,
    ServerPart,
    SiteNetworks,
    average,
    info_nce,
    same_rows,
    site_shapes,
)
from medfedvqa.papers.networks.trunks import TRUNKS, TrunkBackbone, TrunkConfig

ANSWERS = ("yes", "no", "left lung")
OWN = torch.tensor([0, 1, 2, 0, 1, 2])
VARIANTS = [RowContrast("reference"), RowContrast("paper"), RowContrast("reference", mask_duplicates=False)]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def doubled(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().double().requires_grad_() for name, value in values.items()}


def check_split(site: SiteNetworks, contrast: RowContrast, norm: str) -> dict[str, torch.Tensor]:
    """All gradients of trunk, projection and both adapters, and the buffers of batches, to 1e-10 in float64.

    Returns the gradients of the site's values.
    """
    server, backbone = ServerNetworks(16, 8, norm), site.backbone
    cache = backbone.cache(site.depth, drawn(4, 1, 32, 32).abs(), ["a mass?", "left?"])
    batch = cache.batch(torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([0, 1, 0, 1, 1, 0]), OWN)
    words = backbone.words(ANSWERS, 4)
    part = ServerPart(server, contrast, 1)
    part.values = doubled(part.values) | {n: part.values[n].double() for n in BUFFERS if n in part.values}
    whole = {name: value.detach().clone() for name, value in part.values.items()}
    for name in whole.keys() - set(BUFFERS):
        whole[name].requires_grad_()
    values = doubled(site.initial(torch.Generator().manual_seed(0)))

    rows, answers = site.rows(values, batch), site.answers(values, words, True)[OWN]
    contrast(server.rows(whole, rows, True), server.answers(whole, answers), OWN[:, None] == OWN).backward()
    expected = {name: value.grad for name, value in values.items()}

    for value in values.values():
        value.grad = None
    rows, answers = site.rows(values, batch), site.answers(values, words, True)[OWN]
    torch.autograd.backward([rows, answers], list(part.learn(rows, answers, 0.0)))
    for name, value in values.items():
        assert torch.allclose(value.grad, expected[name], rtol=0, atol=1e-10)
    for name, value in part.values.items():
        found, wanted = (value, whole[name]) if name in BUFFERS else (value.grad, whole[name].grad)
        assert torch.allclose(found, wanted, rtol=0, atol=1e-10)
    return expected


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("contrast", VARIANTS)
def test_split_execution_equals_one_autograd_graph(backbone: ClipBackbone, contrast: RowContrast, norm: str) -> None:
    """With adapters in a CLIP as the trunk, for both losses and both normalisations."""
    gradients = check_split(SiteNetworks(backbone, TuningConfig("adapter"), width=16), contrast, norm)
    for group in ("adapter.image", "adapter.text", "mha.", "apn."):
        assert any(gradient.any() for name, gradient in gradients.items() if name.startswith(group))


@pytest.mark.parametrize("name", TRUNKS)
def test_split_execution_equals_one_autograd_graph_with_each_trunk(backbone: ClipBackbone, name: str) -> None:
    """Every trunk of the paper, trained as a whole on the frozen grid."""
    trunk = TrunkBackbone(backbone, TrunkConfig(name, 8), 0)
    gradients = check_split(SiteNetworks(trunk, TuningConfig("full"), width=16), RowContrast(), "layer")
    assert gradients.keys() >= {f"weight.{name}" for name in trunk.shape.parameters}
    reached = [name for name, gradient in gradients.items() if gradient.any()]
    assert len(reached) > 0.8 * len(gradients) and "weight.reader.input.weight" in reached


def test_payloads_of_the_paper() -> None:
    """LTA 131,328 and NHA 394,496 floats; APN 154,112 where a token is 300 wide, as GloVe's are."""
    sizes = {name: math.prod(size) for name, size in ServerNetworks().shapes.items()}
    assert sum(size for name, size in sizes.items() if name.startswith("lta.")) == 131_328
    assert sum(size for name, size in sizes.items() if name.startswith("nha.")) == 394_496
    shape = BackboneShape({"text": TowerShape(1, 64, 1)}, embed=0, image_size=8, context=8, words=300)
    shapes = site_shapes(shape, TuningConfig("classifier"), 512)
    assert sum(math.prod(size) for name, size in shapes.items() if name.startswith("apn.")) == 154_112


@given(st.integers(2, 6), st.integers(0, 2**16))
def test_the_included_loss_is_softplus_of_the_excluded_one(rows: int, seed: int) -> None:
    """L_incl = log(1 + exp(L_excl)), row by row."""
    scores, negatives = drawn(rows, rows, seed=seed), torch.ones(rows, rows, dtype=torch.bool)
    excluded = info_nce(scores, negatives, included=False)
    assert torch.allclose(info_nce(scores, negatives, included=True), torch.nn.functional.softplus(excluded))


def test_identical_keys_cost_log_b_or_log_b_minus_1_whatever_the_weights() -> None:
    """Duplicate answers are false negatives: nothing can be learnt from a batch with one answer."""
    rows, keys = drawn(5, 8), drawn(1, 8, seed=1).expand(5, 8)
    same = torch.ones(5, 5, dtype=torch.bool)
    included = RowContrast("reference", mask_duplicates=False)(rows, keys, same)
    excluded = RowContrast("paper", mask_duplicates=False)(rows, keys, same) / 5
    assert float(included) == pytest.approx(math.log(5)) and float(excluded) == pytest.approx(math.log(4))


@pytest.mark.parametrize("variant", ["reference", "paper"])
def test_a_batch_with_one_answer_costs_and_teaches_nothing_once_duplicates_are_masked(variant: str) -> None:
    """Loss and gradient are 0, not infinite."""
    rows = drawn(5, 8).requires_grad_()
    loss = RowContrast(variant)(rows, drawn(1, 8, seed=1).expand(5, 8), torch.ones(5, 5, dtype=torch.bool))
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-12) and rows.grad.abs().max() < 1e-12


def test_masked_duplicates_are_no_negatives() -> None:
    """With two answers in a batch of four, each row is held against the two rows of the other answer only."""
    scores, answers = drawn(4, 4), torch.tensor([0, 0, 1, 1])
    losses = info_nce(scores, answers[:, None] != answers, included=True)
    first = torch.logsumexp(scores[0, [0, 2, 3]], dim=0) - scores[0, 0]
    assert torch.allclose(losses[0], first)


def test_the_cosine_loss_does_not_see_lengths() -> None:
    """Scaling rows and keys changes nothing; the paper's dot products are unbounded below."""
    rows, keys, same = drawn(4, 8), drawn(4, 8, seed=1), torch.eye(4, dtype=torch.bool)
    reference, paper = RowContrast("reference"), RowContrast("paper")
    assert torch.allclose(reference(rows, keys, same), reference(3 * rows, 0.1 * keys, same))
    assert paper(20 * rows, rows, same) < paper(5 * rows, rows, same) < paper(rows, rows, same)


@pytest.mark.parametrize("contrast", VARIANTS)
def test_the_loss_s_gradient_is_that_of_finite_differences(contrast: RowContrast) -> None:
    """By rows and by keys."""
    same = torch.tensor([0, 0, 1, 2])[:, None] == torch.tensor([0, 0, 1, 2])
    inputs = drawn(4, 3).requires_grad_(), drawn(4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows, keys: contrast(rows, keys, same), inputs)


def test_words_are_what_lies_between_start_and_end(backbone: ClipBackbone) -> None:
    """Embeddings of an answer's own tokens, cut at the number asked for, zeros beyond its end."""
    words = backbone.words(("ab", "abcdef", ""), 4)
    assert words.present.tolist() == [[True, True, False, False], [True] * 4, [False] * 4]
    ids = backbone.tokenize(["ab"])[0, 1:3]
    assert torch.equal(words.values[0, :2], backbone.parameter("token_embedding.weight")[ids])
    assert not words.values[~words.present].any()


def test_a_backbone_without_an_end_token_gives_no_words(backbone: ClipBackbone, make_clip) -> None:
    """Refused: padding could not be told from words."""
    clip = make_clip(text={"pool_type": "last"})
    with pytest.raises(ConfigError, match="no end token"):
        ClipBackbone("last", clip, backbone.tokenize, backbone.mean, backbone.std, backbone.shape, None, "").words(
            ANSWERS, 4
        )


def test_masked_padding_is_as_no_padding(backbone: ClipBackbone) -> None:
    """v_APN does not depend on how many zeros follow an answer; unmasked, zeros count as relu(bias)."""
    site = SiteNetworks(backbone, TuningConfig("classifier"), width=16)
    values = {name: value.double() for name, value in site.initial(torch.Generator().manual_seed(0)).items()}
    values["apn.bias"] = torch.full((16,), 9.0, dtype=torch.float64)
    short = TokenEmbeddings(*(part[:, :2] for part in vars(backbone.words(("ab",), 8)).values()))
    long = backbone.words(("ab",), 8)
    assert torch.allclose(site.answers(values, short, True), site.answers(values, long, True))
    tokens = site.answers(values, long, True)
    assert torch.equal(site.answers(values, long, False), tokens.clamp(min=9.0))


def test_the_average_of_equal_parts_is_each_of_them() -> None:
    """Identical client data: averaging changes nothing, buffers of batches included; unchosen values stay as well."""
    parts = [ServerPart(ServerNetworks(8, 4, "batch"), RowContrast(), 1) for _ in range(3)]
    for part in parts:
        part.learn(drawn(6, 8).float(), drawn(6, 8, seed=1).float(), 0.1)
    before = {name: value.clone() for name, value in parts[0].values.items()}
    average(parts, lambda name: True)
    assert all(torch.equal(part.values[name], value) for part in parts for name, value in before.items())
    parts[1].learn(drawn(6, 8, seed=2).float(), drawn(6, 8, seed=3).float(), 0.1)
    average(parts, lambda name: name.startswith("nha."))
    assert torch.equal(parts[0].values["nha.norm.mean"], parts[1].values["nha.norm.mean"])
    assert torch.equal(parts[0].values["lta.weight"], before["lta.weight"])


def test_equal_rows_are_found() -> None:
    """The server tells rows with one answer by their equal activations, without any label."""
    keys = drawn(3, 8)[torch.tensor([0, 1, 0, 2])]
    answers = torch.tensor([0, 1, 0, 2])
    assert torch.equal(same_rows(keys), answers[:, None] == answers)
