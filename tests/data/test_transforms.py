"""Augmented views: seeded, slight, and never mirrored."""

import numpy as np
import pytest
import torch

from medfedvqa.data import Split, load_site, views


@pytest.fixture(scope="module")
def one_sided() -> torch.Tensor:
    """A bright disc in each quarter of the picture in turn, [4, 1, 48, 48]."""
    axis = torch.arange(48.0)
    centres = [(12, 12), (12, 36), (36, 12), (36, 36)]
    discs = [(axis[:, None] - y).square() + (axis - x).square() < 9**2 for y, x in centres]
    return 0.2 + 0.6 * torch.stack(discs)[:, None]


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def test_no_view_is_mirrored(one_sided: torch.Tensor) -> None:
    """Each view is more like its picture than like the picture flipped either way, or both."""
    for picture, its_views in zip(one_sided, views(one_sided, 25, range(4)), strict=True):
        for view in its_views:
            mirrored = [correlation(view, picture.flip(axes)) for axes in ([-1], [-2], [-1, -2])]
            assert correlation(view, picture) > max(mirrored)


def test_a_mass_stays_on_its_side_in_every_view() -> None:
    """The brightest hundredth of a phantom picture belongs to its mass."""
    site = load_site("phantom", None, "chest", Split())
    asked = [i for i, question in enumerate(site.train.questions) if "left or right" in question][:12]
    answers = [site.answers[site.train.answers[i]] for i in asked]
    assert set(answers) == {"left", "right"}
    pictures = site.pictures.load(64)[site.train.pictures[asked]]
    for its_views, side in zip(views(pictures, 6, range(len(asked))), answers, strict=True):
        for view in its_views:
            columns = view.flatten().topk(40).indices % 64
            assert (columns.float().mean() < 31.5) == (side == "left")


def test_view_0_is_the_picture_and_the_others_are_not(one_sided: torch.Tensor) -> None:
    result = views(one_sided, 4, range(4))
    assert result.shape == (4, 4, 1, 48, 48) and result.dtype == torch.float32
    assert torch.equal(result[:, 0], one_sided)
    assert all(not torch.equal(result[i, a], result[i, b]) for i in range(4) for a in range(4) for b in range(a))


def test_views_stay_in_0_to_1(one_sided: torch.Tensor) -> None:
    result = views(one_sided, 10, range(4))
    assert result.min() >= 0 and result.max() <= 1


def test_views_depend_on_the_seeds_alone(one_sided: torch.Tensor) -> None:
    """And draw nothing from, and leave nothing in, the generators that training uses."""
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    first = views(one_sided, 3, [5, 6, 7, 8])
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    torch.manual_seed(2)
    np.random.seed(2)
    assert torch.equal(views(one_sided, 3, [5, 6, 7, 8]), first)
    assert not torch.equal(views(one_sided, 3, [9, 10, 11, 12]), first)


def test_a_picture_keeps_its_views_whichever_pictures_come_with_it(one_sided: torch.Tensor) -> None:
    """The views of a picture depend on its own seed and pixels, never on its place: one picture less moves no other."""
    whole = views(one_sided, 3, [5, 6, 7, 8])
    for gone in range(4):
        rest = [place for place in range(4) if place != gone]
        assert torch.equal(views(one_sided[rest], 3, [5 + place for place in rest]), whole[rest])
    assert torch.equal(views(one_sided.flip(0), 3, [8, 7, 6, 5]), whole.flip(0))


def test_every_picture_needs_a_seed(one_sided: torch.Tensor) -> None:
    """Fewer seeds than pictures are refused, not repeated."""
    with pytest.raises(ValueError, match="shorter"):
        views(one_sided, 3, [1, 2, 3])


def test_the_pictures_are_left_as_they_were(one_sided: torch.Tensor) -> None:
    copy = one_sided.clone()
    views(one_sided, 3, range(4))
    assert torch.equal(one_sided, copy)
