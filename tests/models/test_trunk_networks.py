"""The trunks against their papers' equations written out row by row, their sizes, and what backbones they take."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models import Backbone, BackboneShape, Tuning, shape_of
from medfedvqa.models.backbone import Regions
from medfedvqa.papers.networks.trunk_networks import DECODER, ENCODER, GLIMPSES, Attention, Reader, Trunk, relations_of
from medfedvqa.papers.networks.trunks import TRUNKS, TrunkBackbone, TrunkConfig

REGIONS, WORDS, WIDTH, SIDE = 6, 5, 8, 3
LENGTHS = (3, 1, 4)
Named = dict[str, torch.Tensor]
Golden = Callable[[Named, torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    """All weights of this file in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def trunk(name: str) -> Trunk:
    """A tiny trunk, none of whose weights is 0 or 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        network = TrunkConfig(name, WIDTH).build(REGIONS, WORDS)
        for parameter in network.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        for key, parameter in network.named_parameters():
            if key.endswith("prior.bias"):  # so few units of a relation may all be below 0, where a rectifier is silent
                parameter.data += 3
    return network


def inputs() -> tuple[Regions, torch.Tensor, torch.Tensor]:
    """Regions, words and which words there are, of three rows. What lies beyond a question's end is not 0."""
    generator = torch.Generator().manual_seed(7)
    regions = torch.randn(3, SIDE**2, REGIONS, generator=generator)
    words = torch.randn(3, max(LENGTHS), WORDS, generator=generator)
    return Regions(regions), words, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def layer(v: Named, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ v[f"{name}.weight"].T + v[f"{name}.bias"]


def normed(v: Named, name: str, x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * v[f"{name}.weight"] + v[f"{name}.bias"]


def attended(v: Named, name: str, x: torch.Tensor, y: torch.Tensor, prior: torch.Tensor | float = 0.0) -> torch.Tensor:
    """LayerNorm(x + softmax(q k^T / sqrt(d) + prior) v), one head."""
    q, k, u = (layer(v, f"{name}.attention.{part}", t) for part, t in (("queries", x), ("keys", y), ("values", y)))
    weights = (q @ k.T / math.sqrt(WIDTH) + prior).exp()
    mixed = layer(v, f"{name}.attention.out", weights / weights.sum(1, keepdim=True) @ u)
    return normed(v, f"{name}.norm", x + mixed)


def fed_forward(v: Named, name: str, x: torch.Tensor) -> torch.Tensor:
    hidden = layer(v, f"{name}.layers.0", x).clamp(min=0)
    return normed(v, f"{name}.norm", x + layer(v, f"{name}.layers.2", hidden))


def pooled(v: Named, regions: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for side, states in (("regions", regions), ("words", words)):
        hidden = layer(v, f"pooled.{side}.scores.0", states).clamp(min=0)
        scores = layer(v, f"pooled.{side}.scores.2", hidden)[:, 0].exp()
        total = total + layer(v, f"pooled.{side}.out", (scores / scores.sum()) @ states)
    return normed(v, "pooled.norm", total)


def read(v: Named, cell: type[nn.RNNBase], words: torch.Tensor) -> torch.Tensor:
    """torch's own cell on one question, [words, width]."""
    reader = cell(WORDS, WIDTH, batch_first=True)
    reader.weight_ih_l0.data, reader.weight_hh_l0.data = v["reader.input.weight"], v["reader.state.weight"]
    reader.bias_ih_l0.data = v["reader.input.bias"]
    reader.bias_hh_l0.data = v.get("reader.state.bias", torch.zeros_like(reader.bias_hh_l0))
    return reader(words[None])[0][0]


def mcan(v: Named, regions: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    words, regions = read(v, nn.LSTM, words), layer(v, "regions", regions)
    for number in range(6):
        words = attended(v, f"encoder.{number}.attend", words, words)
        words = fed_forward(v, f"encoder.{number}.forward_unit", words)
    for number in range(6):
        regions = attended(v, f"decoder.{number}.attend", regions, regions)
        regions = attended(v, f"decoder.{number}.guide", regions, words)
        regions = fed_forward(v, f"decoder.{number}.forward_unit", regions)
    return pooled(v, regions, words)


def mmnas(v: Named, regions: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    words, regions = read(v, nn.LSTM, words), layer(v, "regions", regions)
    for number, operation in enumerate(ENCODER):
        name = f"encoder.{number}"
        words = fed_forward(v, name, words) if operation == "FFN" else attended(v, name, words, words)
    for number, operation in enumerate(DECODER):
        name = f"decoder.{number}"
        if operation == "FFN":
            regions = fed_forward(v, name, regions)
        elif operation == "RSA":
            regions = attended(v, f"{name}.unit", regions, regions, relation_prior(v, f"{name}.prior"))
        else:
            regions = attended(v, name, regions, words if operation == "GA" else regions)
    return pooled(v, regions, words)


def relation_prior(v: Named, name: str) -> torch.Tensor:
    """log max(relu(W relu(W' r)), 1e-6) of every pair of cells, from their centres, a cell being 1 wide and high."""
    centres = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    prior = torch.zeros(SIDE**2, SIDE**2)
    for i, (y, x) in enumerate(centres):
        for j, (other_y, other_x) in enumerate(centres):
            distances = [max(abs(x - other_x), 1e-3), max(abs(y - other_y), 1e-3), 1, 1]
            relation = layer(v, "relations.0", torch.tensor(distances, dtype=torch.float64).log()).clamp(min=0)
            prior[i, j] = layer(v, name, relation).clamp(min=1e-6).log()[0]
    return prior


def gated(v: Named, name: str, x: torch.Tensor) -> torch.Tensor:
    return layer(v, f"{name}.value", x).tanh() / (1 + (-layer(v, f"{name}.gate", x)).exp())


def butd(v: Named, regions: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    question = read(v, nn.GRU, words)[-1]
    scores = torch.stack([layer(v, "score", gated(v, "attend", torch.cat([r, question])))[0] for r in regions]).exp()
    picture = (scores / scores.sum()) @ regions
    return gated(v, "joint", gated(v, "question", question) * gated(v, "picture", picture))


def bilinear(v: Named, name: str, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    product = layer(v, f"{name}.left", left) * layer(v, f"{name}.right", right)
    sums = torch.stack([part.sum() for part in product.split(5)])
    rooted = sums.sign() * sums.abs().sqrt()
    return rooted / (rooted**2).sum().sqrt()


def glimpses(v: Named, name: str, scored: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    scores = layer(v, f"{name}.scores.2", layer(v, f"{name}.scores.0", scored).clamp(min=0)).exp()
    weights = scores / scores.sum(0)
    return torch.cat([weights[:, glimpse] @ states for glimpse in range(2)])


def mfb(v: Named, regions: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    states = read(v, nn.LSTM, words)
    question = glimpses(v, "question", states, states)
    looked = torch.stack([bilinear(v, "looked", region, question) for region in regions])
    return bilinear(v, "joint", glimpses(v, "picture", looked, regions), question)


def ban(v: Named, regions: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    states = first = read(v, nn.GRU, words)
    left, right = layer(v, "maps.words", first).clamp(min=0), layer(v, "maps.regions", regions).clamp(min=0)
    weights = v["maps.glimpses.weight"].view(3 * WIDTH, GLIMPSES)
    for number in range(GLIMPSES):
        scores = ((left * weights[:, number]) @ right.T).exp()
        weighed = scores / scores.sum()
        name = f"glimpses.{number}"
        left_factor = layer(v, f"{name}.words", states).clamp(min=0)
        right_factor = layer(v, f"{name}.regions", regions).clamp(min=0)
        joint = torch.stack([left_factor[:, k] @ weighed @ right_factor[:, k] for k in range(WIDTH)])
        states = states + layer(v, f"{name}.out", joint)
    return states.sum(0)


GOLDEN: dict[str, Golden] = {
    "mfb": mfb,
    "butd": butd,
    "ban": ban,
    "mcan-small": mcan,
    "mcan-large": mcan,
    "mmnas-small": mmnas,
    "mmnas-large": mmnas,
}


@pytest.mark.parametrize("name", TRUNKS)
def test_a_trunk_is_its_paper_s_equations(name: str) -> None:
    """Each row by itself, each question without its padding, with plain operations on tensors; to 1e-10."""
    network, (regions, words, present) = trunk(name), inputs()
    features, attention = network(regions, words, present)
    values = dict(network.named_parameters())
    for row, length in enumerate(LENGTHS):
        expected = GOLDEN[name](values, regions.values[row], words[row, :length])
        assert torch.allclose(features[row], expected, rtol=0, atol=1e-10)
    assert features.shape == (3, network.features) and attention.shape == (3, SIDE**2)
    assert torch.allclose(attention.sum(dim=1), torch.ones(3)) and not torch.allclose(attention[0], attention[2])


@pytest.mark.parametrize("name", TRUNKS)
def test_regions_that_do_not_exist_change_nothing(name: str) -> None:
    """Rows of 9, 4 and 1 regions beside padding that is not zero: as each row with its own regions alone, to 1e-10."""
    network, (grid, words, present) = trunk(name), inputs()
    counts, generator = (9, 4, 1), torch.Generator().manual_seed(2)
    corners = torch.rand(3, SIDE**2, 2, generator=generator)
    boxes = torch.cat([corners, corners + 0.1 + torch.rand(3, SIDE**2, 2, generator=generator)], dim=2)
    existing = torch.arange(SIDE**2) < torch.tensor(counts)[:, None]
    boxes = boxes * existing[..., None]
    features, attention = network(Regions(grid.values, existing, boxes), words, present)
    for row, count in enumerate(counts):
        part = slice(row, row + 1)
        regions = Regions(grid.values[part, :count], existing[part, :count], boxes[part, :count])
        alone, weights = network(regions, words[part], present[part])
        assert torch.allclose(features[row], alone[0], rtol=0, atol=1e-10)
        assert torch.allclose(attention[row, :count], weights[0], rtol=0, atol=1e-10)
        assert not attention[row, count:].any()


def test_the_relations_of_boxes_are_those_of_the_paper_and_on_a_grid_those_of_the_grid() -> None:
    """Two boxes by hand, in which the first one's width and height divide; nine unit cells as boxes are the grid."""
    boxes = torch.tensor([[[0.0, 0.0, 2.0, 1.0], [1.0, 3.0, 2.0, 5.0]]])
    relations, between = relations_of(Regions(torch.zeros(1, 2, REGIONS), torch.ones(1, 2, dtype=torch.bool), boxes))
    # Centres (1, 0.5) and (1.5, 4), sizes (2, 1) and (1, 2).
    expected = {(0, 1): (0.25, 3.5, 0.5, 2.0), (1, 0): (0.5, 1.75, 2.0, 0.5), (1, 1): (1e-3, 1e-3, 1.0, 1.0)}
    for pair, numbers in expected.items():
        assert torch.allclose(relations[0, between[pair]], torch.tensor(numbers, dtype=torch.float64).log())
    rows, columns = torch.arange(SIDE).repeat_interleave(SIDE), torch.arange(SIDE).repeat(SIDE)
    cells = torch.stack([columns, rows, columns + 1, rows + 1], dim=1)[None].double()
    values, all_of_them = torch.zeros(1, SIDE**2, REGIONS), torch.ones(1, SIDE**2, dtype=torch.bool)
    (of_boxes, pairs), (of_grid, offsets) = (
        relations_of(regions) for regions in (Regions(values, all_of_them, cells), Regions(values))
    )
    assert torch.allclose(of_boxes[0, pairs], of_grid[0, offsets], rtol=0, atol=1e-12)
    with pytest.raises(ConfigError, match="write 'boxes' into the region files"):
        relations_of(Regions(values, all_of_them))


@pytest.mark.parametrize("name", TRUNKS)
def test_every_weight_of_a_trunk_takes_part(name: str) -> None:
    """None is without a gradient, so that all that is trained and averaged counts."""
    network = trunk(name)
    (network(*inputs())[0] ** 3).sum().backward()
    idle = {key for key, value in network.named_parameters() if value.grad is None or not value.grad.any()}
    # A bias that moves all scores of a softmax alike changes nothing.
    constant = ("keys.bias", "scores.2.bias", "score.bias")
    assert not {key for key in idle if not key.endswith(constant)}


def test_a_question_without_words_has_finite_features() -> None:
    regions, words, present = inputs()
    for name in TRUNKS:
        features, attention = trunk(name)(regions, words, present & (torch.arange(3) > 0)[:, None])
        assert features.isfinite().all() and attention.isfinite().all()


def test_attention_is_torch_s_own_with_several_heads() -> None:
    """Two heads of 64, with a mask; the same four layers in `nn.MultiheadAttention`."""
    ours, theirs = Attention(128), nn.MultiheadAttention(128, 2, batch_first=True)
    generator = torch.Generator().manual_seed(3)
    states, others = (torch.randn(3, n, 128, generator=generator) for n in (5, 4))
    layers = (ours.queries, ours.keys, ours.values)
    theirs.in_proj_weight.data = torch.cat([part.weight for part in layers])
    theirs.in_proj_bias.data = torch.cat([part.bias for part in layers])
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    present = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
    expected, _ = theirs(states, others, others, key_padding_mask=~present)
    assert ours.heads == 2 and torch.allclose(ours(states, others, present), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("cell", "whole"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_a_reader_is_torch_s_own_layer(cell: str, whole: type[nn.RNNBase]) -> None:
    """The state after each word, and beyond a question's end its last one."""
    reader, (_, words, present) = Reader(cell, WORDS, WIDTH), inputs()
    states = reader(words, present)
    values = {f"reader.{name}": value for name, value in reader.named_parameters()}
    for row, length in enumerate(LENGTHS):
        expected = read(values, whole, words[row, :length])
        assert torch.allclose(states[row, :length], expected, rtol=0, atol=1e-12)
        assert torch.equal(states[row, length - 1 :], states[row, length - 1 : length].expand(5 - length, -1))


def attention_unit(width: int) -> int:
    return 4 * width * (width + 1) + 2 * width


def feed_forward_unit(width: int) -> int:
    return 4 * width * (width + 1) + width * (4 * width + 1) + 2 * width


def around(width: int, output: int) -> int:
    """A reader of GloVe's 300 numbers a word, a projection of 2,048 numbers a region, and both poolings."""
    pooling = 512 * (width + 1) + 512 + 1 + output * (width + 1)
    return 4 * width * (300 + 1 + width) + width * (2048 + 1) + 2 * pooling + 2 * output


def searched(width: int) -> int:
    heads = width // 64
    attention, forward, related = 5 + 6 + 1 + 4, 7 + 7, 4
    units = attention * attention_unit(width) + forward * feed_forward_unit(width)
    return around(width, 1024) + units + 64 * (4 + 1) + related * heads * (64 + 1)


SIZES = {
    "mcan-small": around(512, 1024) + 18 * attention_unit(512) + 12 * feed_forward_unit(512),
    "mcan-large": around(1024, 2048) + 18 * attention_unit(1024) + 12 * feed_forward_unit(1024),
    "mmnas-small": searched(512),
    "mmnas-large": searched(1024),
    "butd": 3 * 512 * (300 + 512 + 2) + 2 * 512 * (2561 + 513 + 2049 + 513) + 513,
    "ban": 3 * 1024 * (300 + 1024 + 2) + 3072 * (1025 + 2049 + 8) + 8 * 1024 * (1025 + 2049 + 1025),
    "mfb": 4 * 1024 * (300 + 1 + 1024)
    + (512 * 1025 + 2 * 513)
    + (512 * 1001 + 2 * 513)
    + 5000 * (2049 + 2049)
    + 5000 * (4097 + 2049),
}


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_sizes_at_the_papers_widths(name: str, size: int) -> None:
    """Regions of 2,048 numbers and words of 300, as in all the papers; without word embeddings and answer layer."""
    with torch.device("meta"):
        network = TrunkConfig(name).build(2048, 300)
    assert sum(value.numel() for value in network.parameters()) == size


@pytest.mark.parametrize("name", TRUNKS)
def test_a_trunk_on_a_backbone_reads_its_frozen_grid_and_words(name: str, backbone: Backbone) -> None:
    """The features of a batch are the trunk's on `places` and `words` of the backbone, with the initial weights."""
    trunked = TrunkBackbone(backbone, TrunkConfig(name, WIDTH), 5)
    pictures = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    questions = ["a mass?", "left or not", "a mass?"]
    cache = trunked.cache({"trunk": 2}, pictures, questions)
    batch = cache.batch(torch.tensor([0, 1, 0]), cache.question_ids(questions), torch.tensor([0, 1, 0]))
    weights = {key: trunked.parameter(key) for key in trunked.shape.parameters}
    features = trunked.features(batch, Tuning(weights=weights))

    network = trunked.shape.build()
    network.load_state_dict(weights)
    words = backbone.words(questions, 32)
    expected, attention = network(Regions(backbone.places(pictures)[[0, 1, 0]]), words.values, words.present)
    assert torch.allclose(features, expected, rtol=0, atol=1e-10) and features.shape[1] == trunked.shape.width
    assert torch.allclose(trunked.attention(batch, Tuning(weights=weights)), attention, rtol=0, atol=1e-10)
    other = TrunkBackbone(backbone, TrunkConfig(name, WIDTH), 6)
    same = TrunkBackbone(backbone, TrunkConfig(name, WIDTH), 5)
    moved = [key for key in weights if not torch.equal(weights[key], other.parameter(key))]
    assert len(moved) > len(weights) / 2 and all(torch.equal(weights[key], same.parameter(key)) for key in weights)


@pytest.mark.parametrize("name", ["vilt-b32@here", "RN50@here", "ViT-B-16-SigLIP@here"])
def test_a_backbone_without_a_grid_is_refused_by_its_shape(name: str) -> None:
    """Server and site know it before any weights are read, and `places` is what the refused ones lack."""
    with pytest.raises(ConfigError, match="gives none"):
        TrunkConfig("butd").shape(shape_of(name))


@pytest.mark.parametrize("name", ["medclip2-slake", "ViT-B-32@here"])
def test_open_clip_s_own_transformers_have_a_grid(name: str) -> None:
    shape: BackboneShape = TrunkConfig("mcan-small").shape(shape_of(name))
    assert shape.width == 1024 and list(shape.towers) == ["trunk"]
