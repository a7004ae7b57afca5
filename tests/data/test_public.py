"""The public set of pairs: the same everywhere, and nobody's."""

import torch

from medfedvqa.data import Split, load_site, organs, public_pairs


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
    pairs = public_pairs(128)
    shown: dict[str, set[object]] = {}
    for scene, caption in zip(pairs.scenes, pairs.captions, strict=True):
        shown.setdefault(caption, set()).add((scene.anatomy, scene.enlarged, scene.mass))
    assert all(len(findings) == 1 for findings in shown.values()) and len(shown) > 50
    assert {caption.split(",")[0] for caption in shown} == {"chest", "abdomen", "head"}
