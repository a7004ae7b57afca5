"""Synthetic patients: whole, told apart by nothing but chance, and put nowhere but among the rows to train on."""

import pytest
import torch

from medfedvqa.attack.empirical_audit import Canaries, draw, with_all_canaries, with_canaries
from medfedvqa.data import SiteData, Split, load_site
from medfedvqa.errors import ConfigError


@pytest.fixture(scope="module")
def data() -> SiteData:
    """A phantom site of twelve patients."""
    return load_site("phantom", None, "site-001", Split())


def drawn(data: SiteData, count: int = 20, rows: int = 3, seed: int = 0) -> Canaries:
    return draw(count, rows, len(data.answers), (seed, "site-001"))


def test_a_canary_is_in_with_all_of_its_rows_or_with_none(data: SiteData) -> None:
    """A patient is the unit: new patients, one picture and as many rows each."""
    canaries = drawn(data)
    with_some = with_canaries(data, canaries, canaries.inserted)
    new = with_some.train.patients[len(data.train) :]
    assert torch.bincount(new).unique().tolist() == [0, 3]
    assert len(new.unique()) == int(canaries.inserted.sum())
    old = torch.cat([part.patients for part in data.parts])
    assert not set(new.tolist()) & set(old.tolist())
    pictures = with_some.train.pictures[len(data.train) :]
    assert all(len(pictures[new == patient].unique()) == 1 for patient in new.unique())


@pytest.mark.slow
def test_nothing_but_training_rows_and_patients_depends_on_who_is_in(data: SiteData) -> None:
    """Answer space, pictures, validation and test rows are those of a site without, whoever is chosen."""
    canaries = drawn(data)
    some, others = (with_canaries(data, canaries, chosen) for chosen in (canaries.inserted, ~canaries.inserted))
    assert some.answers == others.answers == data.answers
    assert some.validate is data.validate and some.test is data.test
    torch.testing.assert_close(some.pictures.load(16), others.pictures.load(16))
    assert some.train.chosen(torch.arange(len(data.train))).questions == data.train.questions
    assert len(some.trained_patients) == len(data.trained_patients) + int(canaries.inserted.sum())


def test_the_auditors_rows_are_those_that_are_trained_with(data: SiteData) -> None:
    """Same questions, answers and pictures, so that a gradient on them is the gradient in training."""
    canaries = drawn(data)
    with_all, rows = with_all_canaries(data, canaries)
    trained = with_canaries(data, canaries, canaries.inserted).train
    chosen = rows.chosen(torch.where(canaries.inserted[canaries.examples.patients])[0])
    assert trained.questions[len(data.train) :] == chosen.questions
    assert torch.equal(trained.pictures[len(data.train) :], chosen.pictures)
    assert torch.equal(trained.answers[len(data.train) :], chosen.answers)
    assert int(rows.pictures.max()) < len(with_all.pictures)


def test_each_canary_is_in_with_probability_one_half_and_independently_of_what_it_is(data: SiteData) -> None:
    """Over 200 draws: the mean, and no more canaries in that have the first answer than that have another."""
    many = [drawn(data, seed=seed) for seed in range(200)]
    inserted = torch.cat([one.inserted for one in many])
    answers = torch.cat([one.examples.answers[::3] for one in many])
    assert float(inserted.float().mean()) == pytest.approx(0.5, abs=0.03)
    first = answers == 0
    assert float(inserted[first].float().mean() - inserted[~first].float().mean()) == pytest.approx(0, abs=0.06)


def test_seeds_draw_the_same_canaries_again_and_sites_others(data: SiteData) -> None:
    """An audit can be repeated."""
    again = drawn(data)
    assert again.examples.questions == drawn(data).examples.questions
    assert torch.equal(again.inserted, drawn(data).inserted)
    assert draw(20, 3, 4, (0, "elsewhere")).examples.questions != again.examples.questions


def test_too_few_canaries_are_refused() -> None:
    """One cannot be told from another."""
    with pytest.raises(ConfigError, match="at least 2 canaries"):
        draw(1, 3, 4, (0, "here"))
