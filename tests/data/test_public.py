"""The public set of pairs: the same everywhere, and nobody's."""

import torch

from medfedvqa.data import CLOSED_ANSWERS, Split, held_out_pairs, load_site, organs, public_pairs
from medfedvqa.data.public_sets import drawn_pairs


def test_the_public_set_is_the_same_wherever_it_is_drawn() -> None:
    """Whole, and for fewer pairs the first of them."""
    many, few = public_pairs(24), public_pairs(6)
    assert few.captions == many.captions[:6] and torch.equal(few.pictures(32), many.pictures(32)[:6])
    assert few.pictures(32).shape == (6, 1, 32, 32) and 0 <= few.pictures(32).min() <= few.pictures(32).max() <= 1


def test_no_site_holds_a_public_picture() -> None:
    """Not one of the phantom set's pictures is among them, whatever its sites are called."""
    public = public_pairs(24).pictures(32)
    for organ in organs("phantom", None):
        private = load_site("phantom", None, organ, Split(), 0).pictures.load(32)
        assert torch.cdist(public.flatten(1), private.flatten(1)).min() > 0.1


def test_captions_say_what_tells_pictures_apart() -> None:
    """Pairs of one caption show the same findings; the set has many captions and all anatomies."""
    pairs = drawn_pairs(128)
    shown: dict[str, set[object]] = {}
    for scene, caption in zip(pairs.scenes, pairs.captions, strict=True):
        shown.setdefault(caption, set()).add((scene.anatomy, scene.enlarged, scene.mass))
    assert all(len(findings) == 1 for findings in shown.values()) and len(shown) > 50
    assert {caption.split(",")[0] for caption in shown} == {"chest", "abdomen", "head"}


def test_the_held_out_pairs_are_others_of_the_same_kind() -> None:
    """No picture of the public set is among them; captions are."""
    public, held_out = public_pairs(64), held_out_pairs(64)
    assert torch.cdist(public.pictures(32).flatten(1), held_out.pictures(32).flatten(1)).min() > 0.1
    assert {*public.captions} & {*held_out.captions} and len(held_out) == 64


def test_words_alone_answer_half_of_the_public_questions() -> None:
    """Each wording has both of its answers equally often; answers are closed ones, and those of the pictures."""
    pairs = public_pairs(64)
    rows = pairs.questions
    by_words: dict[str, list[str]] = {}
    for question, answer in zip(rows.questions, rows.answers, strict=True):
        by_words.setdefault(question, []).append(answer)
    assert all(answers.count(answers[0]) * 2 == len(answers) for answers in by_words.values()) and len(by_words) > 24
    assert {*rows.answers} <= {*CLOSED_ANSWERS} and len(rows) > 200
    enlarged = [row for row, question in enumerate(rows.questions) if "enlargement" in question]
    for row in enlarged:
        assert (rows.answers[row] == "yes") == pairs.scenes[rows.pictures[row]].enlarged
