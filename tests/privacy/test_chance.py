"""What patients draw: each from a stream of its own, out of reach of other patients and of a job's seeds."""

import string

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiers import examples

from privacy import PatientChance, PatientStreams, RepeatableRandomness, SeededChance, SettingsError, owned

SECRET = RepeatableRandomness(1).secret()
DRAWS = 200_000
RARE = 1e-4
"""Fixed seeds: what fails once fails always, so that a rare figure was chosen once and for all."""
KEYS = st.lists(st.text(string.ascii_letters + "/#0é", max_size=6), min_size=1, max_size=6, unique=True)


def drawn(keys: list[str], counts: list[int], kind: str = "uniform", secret: bytes = SECRET) -> dict[str, torch.Tensor]:
    """Two calls' numbers of each patient, [2, items of the patient, 2, 3]."""
    owners = torch.arange(len(keys)).repeat_interleave(torch.tensor(counts))
    chance = PatientChance(PatientStreams(secret), keys)
    with owned(owners):
        calls = torch.stack([getattr(chance, kind)((len(owners), 2, 3)) for _ in range(2)])
    return {key: calls[:, owners == number] for number, key in enumerate(keys)}


@settings(max_examples=examples(60))
@given(st.data(), KEYS, st.sampled_from(["uniform", "normal"]))
def test_a_patients_numbers_depend_on_no_other_patient(data: st.DataObject, keys: list[str], kind: str) -> None:
    """Bit for bit, whoever else is there, in whatever order, and with however many items."""
    counts = data.draw(st.lists(st.integers(1, 4), min_size=len(keys), max_size=len(keys)))
    together = drawn(keys, counts, kind)
    order = data.draw(st.permutations(range(len(keys))))
    kept = order[: data.draw(st.integers(1, len(keys)))]
    some = drawn([keys[number] for number in kept], [counts[number] for number in kept], kind)
    for key, numbers in some.items():
        assert torch.equal(numbers, together[key])


@settings(max_examples=examples(30))
@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_no_seed_of_a_job_reaches_what_patients_draw(seed: int, other: int) -> None:
    """Nor does drawing move torch's generator."""
    results = []
    for chosen in (seed, other):
        torch.manual_seed(chosen)
        np.random.seed(chosen)
        before = torch.get_rng_state()
        results.append(drawn(["a", "b"], [2, 3])["b"])
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*results)


def test_streams_differ_between_patients_secrets_calls_and_purposes() -> None:
    """No two of them share a number; the same ones repeat."""
    first, second = drawn(["a", "b"], [4, 4]), drawn(["a", "b"], [4, 4], secret=RepeatableRandomness(2).secret())
    chance = PatientChance(PatientStreams(SECRET), ["a"])
    with owned(torch.zeros(4, dtype=torch.int64)):
        views, inner = (chance.apart(name).uniform((4, 2, 3)) for name in ("views", "views/views"))
        later = chance.apart("views").uniform((4, 2, 3))  # the same stream, further on, as a seeded one's
        again = PatientChance(PatientStreams(SECRET), ["a"])
        assert torch.equal(views, again.apart("views").uniform((4, 2, 3)))
        assert torch.equal(chance.uniform((4, 2, 3)), first["a"][0])  # what drew from other streams changed nothing
    series = [*first["a"], *first["b"], *second["a"], *second["b"], views, later, inner]
    numbers = torch.stack(series)
    assert numbers.unique().numel() == numbers.numel()


def test_patients_whose_keys_are_alike_have_nothing_in_common() -> None:
    """Keys are neither cut nor joined to what stands beside them."""
    keys = ["", "a", "aa", "a/", "/a", "a#1", "A", "a" * 100, "a" * 101, "\udcff"]
    numbers = torch.cat([part.flatten() for part in drawn(keys, [2] * len(keys)).values()])
    assert numbers.unique().numel() == numbers.numel()


def test_a_patients_mask_is_the_same_in_every_chunk() -> None:
    """However a step's patients are cut into passes, whose calls begin anew."""
    streams, keys = PatientStreams(SECRET), ["a", "b", "c"]
    with owned(torch.arange(3)):
        whole = PatientChance(streams, keys).uniform((3, 5))
    for number, key in enumerate(keys):
        with owned(torch.zeros(1, dtype=torch.int64)):
            assert torch.equal(PatientChance(streams, [key]).uniform((1, 5))[0], whole[number])


def test_uniforms_are_uniform_across_patients_and_within_one() -> None:
    """Kolmogorov-Smirnov, a chi-square of the lowest bits, and no correlation between neighbours or patients."""
    keys = [f"patient {number}" for number in range(DRAWS // 100)]
    for name, owners, width in (("one", torch.zeros(1), DRAWS), ("many", torch.arange(len(keys)), 100)):
        with owned(owners.long()):
            numbers = PatientChance(PatientStreams(SECRET), keys).uniform((len(owners), width)).double().numpy()
        assert numbers.min() >= 0 and numbers.max() < 1, name
        assert stats.kstest(numbers.ravel(), "uniform").pvalue > RARE, name
        lowest = np.bincount((numbers.ravel() * 2.0**24).astype(np.int64) % 64, minlength=64)
        assert stats.chisquare(lowest).pvalue > RARE, name
        for along in (numbers.ravel(), numbers.T.ravel()):
            assert abs(np.corrcoef(along[1:], along[:-1])[0, 1]) < 5 / DRAWS**0.5, name


def test_normals_are_standard_gaussian() -> None:
    """Kolmogorov-Smirnov, four moments within five standard errors, and tails beyond four deviations."""
    with owned(torch.zeros(10, dtype=torch.int64)):
        drawn = PatientChance(PatientStreams(SECRET), ["a"]).normal((10, DRAWS // 10))
    numbers = drawn.double().numpy().ravel()
    assert stats.kstest(numbers, "norm").pvalue > RARE
    assert abs(numbers.mean()) < 5 / DRAWS**0.5
    assert abs(numbers.var() - 1) < 5 * (2 / DRAWS) ** 0.5
    assert abs(stats.skew(numbers)) < 5 * (6 / DRAWS) ** 0.5
    assert abs(stats.kurtosis(numbers)) < 5 * (24 / DRAWS) ** 0.5
    beyond = int((np.abs(numbers) > 4).sum())
    assert stats.binomtest(beyond, DRAWS, 2 * stats.norm.sf(4)).pvalue > RARE


@pytest.mark.parametrize("owners", [None, torch.tensor([0, 0])])
def test_drawing_for_items_whose_patients_nobody_names_is_refused(owners: torch.Tensor | None) -> None:
    """A mask must not come from a stream that other patients draw from, too."""
    chance = PatientChance(PatientStreams(SECRET), ["a"])
    for draw in (chance.uniform, chance.normal), (chance.apart("views").uniform,):
        for call in draw:
            with owned(owners), pytest.raises(SettingsError, match="owned"):
                call((3, 2))


def test_nothing_is_drawn_for_no_items() -> None:
    """A kind of item that no patient of the pass has."""
    chance = PatientChance(PatientStreams(SECRET), ["a"])
    with owned(torch.zeros(0, dtype=torch.int64)):
        assert chance.uniform((0, 3)).shape == (0, 3) and chance.normal((0, 3)).shape == (0, 3)


def test_a_seeded_chance_is_torchs_generator_of_this_seed() -> None:
    """Plain training draws what torch draws, and streams apart neither share numbers nor move each other."""
    chance, generator = SeededChance(5), torch.Generator().manual_seed(5)
    apart = chance.apart("views").uniform((8,))
    assert torch.equal(chance.uniform((4, 2)), torch.rand(4, 2, generator=generator))
    assert torch.equal(chance.normal((3,)), torch.randn(3, generator=generator))
    assert torch.equal(SeededChance(5).apart("views").uniform((8,)), apart)
    assert not torch.equal(SeededChance(5).apart("filters").uniform((8,)), apart)
    assert not torch.equal(SeededChance(6).apart("views").uniform((8,)), apart)
    assert chance.apart("views") is chance.apart("views")
