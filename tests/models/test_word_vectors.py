"""Words from a local file of vectors: what a trunk and UniCon's answers read, and files that are refused."""

from pathlib import Path

import pytest
import torch
from tiny_clip import TINY

from medfedvqa.backbone_names import parse
from medfedvqa.core import Site, create
from medfedvqa.data import Split, load_site
from medfedvqa.errors import BackboneError
from medfedvqa.models import load_backbone, seen_by, shape_of

NAME = f"{TINY}+words-3@glove"
LINES = "left 1 0 -0.5\nlobe 0 2e-1 3\nleft 9 9 9\n. . 1 1 1\nx-ray 4 5 6\n"


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text(LINES)
    return path


def test_words_are_the_file_s_and_unknown_ones_are_zeros(tiny_backbone: Path, vectors: Path) -> None:
    """Lower case, the first of two lines of a word, punctuation left out; the width is that of the name."""
    backbone = load_backbone(NAME, {NAME: vectors, TINY: tiny_backbone})
    words = backbone.words(["Left lobe, of the X-ray?", "", "lobe"], 4)
    expected = [[1, 0, -0.5], [0, 0.2, 3], [0, 0, 0], [0, 0, 0]]
    assert torch.allclose(words.values[0], torch.tensor(expected)) and words.present[0].all()
    assert not words.present[1].any() and not words.values[1].any()
    assert words.present[2].tolist() == [True, False, False, False]
    assert torch.equal(backbone.words(["x-ray"], 1).values[0, 0], torch.tensor([4.0, 5.0, 6.0]))
    assert backbone.shape.words == shape_of(NAME).words == 3 and backbone.shape == shape_of(TINY)


def test_the_digest_is_of_weights_and_vectors_and_pictures_stay_those_of_the_backbone_below(
    tiny_backbone: Path, vectors: Path
) -> None:
    """Another file has another digest, so a log tells them apart; the grid of a picture is the same to the bit."""
    files = {NAME: vectors, TINY: tiny_backbone}
    backbone, below = load_backbone(NAME, files), load_backbone(TINY, files)
    size = below.shape.image_size
    pictures = torch.rand(2, 1, size, size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(backbone.places(pictures), below.places(pictures))
    vectors.write_text(LINES.replace("3", "2"))
    assert len({backbone.digest, below.digest, load_backbone(NAME, files).digest}) == 3


@pytest.mark.parametrize("options", [{}, {"trunk": "butd", "trunk_width": 16, "tuning": "full"}])
def test_unicon_trains_on_the_vectors(tiny_backbone: Path, vectors: Path, options: dict) -> None:
    """The answer projection, and a trunk's reader, are as wide as the file; no path is in the job or the exchange."""
    small = {"rounds": 1, "steps": 1, "batch_rows": 4, "width": 16, "space": 8, "aggregate": "none"}
    backbone = load_backbone(NAME, {NAME: vectors, TINY: tiny_backbone})
    site = Site("one", load_site("phantom", None, "site-001", Split()), backbone, "cpu", 0)
    method = create("unicon", {**small, "blocks": 1, **options})
    state = method.setup(site)
    assert state["values"]["apn.weight"].shape == (16, 3)
    assert ("weight.reader.input.weight" in state["values"]) is bool(options)
    if options:
        assert state["values"]["weight.reader.input.weight"].shape[1] == 3
    state, sent = method.handle(method.exchange(backbone.shape).task("start"), site, state, {}, 1)
    assert sent["v_apn"].shape == (4, 16)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("left 1 0\n", 1), ("left 1 0 2\nlobe 1 2\n", 2), ("2 3\nleft 1 0 2\n", 1), ("left 1 0 2\n\n", 2),
        ("left 1 0 " + "2" * 5000, 1),
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_refused_when_it_is_loaded(
    tiny_backbone: Path, vectors: Path, content: str, line: int
) -> None:
    """By the number of the line alone: too few numbers, a header, an empty line, a line without an end."""
    vectors.write_text(content)
    with pytest.raises(BackboneError, match=f"line {line} of the file of word vectors is not a word and 3") as error:
        load_backbone(NAME, {NAME: vectors, TINY: tiny_backbone})
    assert "left" not in str(error.value) and str(vectors) not in str(error.value)


@pytest.mark.parametrize("number", ["nan", "inf", "word"])
def test_what_is_no_finite_number_is_refused_where_it_is_read(tiny_backbone: Path, vectors: Path, number: str) -> None:
    """A line that no text needs is never parsed; the others are, and name no content."""
    vectors.write_text(f"left 1 {number} 2\nlobe 1 1 1\n")
    backbone = load_backbone(NAME, {NAME: vectors, TINY: tiny_backbone})
    assert backbone.words(["lobe"], 1).present.all()
    with pytest.raises(BackboneError, match="line 1 of the file"):
        backbone.words(["left"], 1)


def test_names_of_word_vectors() -> None:
    """The name says the width and a label, never a path; a folder takes none; data that were seen stay seen."""
    parsed = parse("medclip2-slake+words-300@glove")
    assert (parsed.below, parsed.words, parsed.label) == ("medclip2-slake", 300, "glove") and not parsed.is_folder
    assert seen_by("medclip2-slake+words-300@glove") == seen_by("medclip2-slake")
    with pytest.raises(BackboneError, match="cannot be combined with a local folder"):
        parse("local-dir:model@mine+words-300@glove")
    for name in ("medclip2-slake+words-0@glove", "medclip2-slake+words-300", "medclip2-slake+words-300@/etc/x"):
        with pytest.raises(BackboneError, match="unknown backbone"):
            parse(name)
    with pytest.raises(BackboneError, match="name its file of word vectors in site.yml"):
        load_backbone("medclip2-slake+words-300@glove")
