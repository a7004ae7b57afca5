"""Splits, on any set of rows."""

import math
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from medfedvqa.data import PartitionRows, Row, Split, VQAData, build_site, partition
from medfedvqa.errors import DataError
from medfedvqa.evaluation.accuracy import majority_right, question_prior_right

ORGANS = ("chest", "head")
PARTS = ("train", "validate", "test")


@st.composite
def data_sets(draw: st.DrawFn, parts: tuple[str, ...] = ("train", "test")) -> VQAData:
    """Rows of up to 12 patients, each of one organ, in any order and any published split."""
    facts = st.tuples(st.integers(0, 11), st.sampled_from(parts), st.booleans())
    rows = []
    for index, (patient, part, closed) in enumerate(draw(st.lists(facts, min_size=1, max_size=60))):
        rows.append(Row(index, ORGANS[patient % 2], part, closed, "q", "a", f"p{patient}", Path(f"{patient}.jpg")))
    return VQAData("made", ORGANS, rows, publishes_validation="validate" in parts)


def set_of(rows: list[Row]) -> VQAData:
    """A set that publishes no validation rows."""
    return VQAData("made", ORGANS, rows)


def sites(data: VQAData, split: Split) -> dict[str, PartitionRows]:
    """The organs' rows; organs without train rows are left out."""
    parts = {}
    for organ in data.organs:
        try:
            parts[organ] = partition(data, organ, split)
        except DataError:
            continue
    return parts


def patients(rows: tuple[Row, ...]) -> set[str]:
    return {row.patient for row in rows}


def many(count: int) -> VQAData:
    """A patient a row, all of the chest."""
    return set_of([Row(i, "chest", "train", True, "q", "a", f"p{i}", Path(f"{i}.jpg")) for i in range(count)])


@settings(max_examples=examples(40))
@given(data_sets(), st.integers(0, 5))
def test_official_keeps_the_published_test_rows_and_carves_validation_by_patient(data: VQAData, seed: int) -> None:
    """Train patients whose own place is below the share validate, with all their train rows; test rows stay."""
    split = Split(seed=seed, validation=0.3)
    for organ, rows in sites(data, split).items():
        closed = [row for row in data.rows if row.closed and row.organ == organ]
        assert list(rows.test) == [row for row in closed if row.split == "test"]
        for part, below in ((rows.train, False), (rows.validate, True)):
            assert list(part) == [
                row for row in closed if row.split == "train" and (split.place(row.patient) < 0.3) == below
            ]


@settings(max_examples=examples(40))
@given(data_sets(("train", "validate", "test")))
def test_official_keeps_published_validation_rows(data: VQAData) -> None:
    """A set that publishes validation rows keeps all three parts as they are, even where no such row is left."""
    for organ, rows in sites(data, Split(validation=0.9)).items():
        for part in PARTS:
            assert list(getattr(rows, part)) == [
                row for row in data.rows if row.closed and row.organ == organ and row.split == part
            ]


@settings(max_examples=examples(40))
@given(data_sets(), st.integers(0, 5), st.sampled_from([(0.7, 0.15, 0.15), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0)]))
def test_patient_split_is_disjoint_and_complete_and_each_patient_is_where_its_place_says(
    data: VQAData, seed: int, fractions: tuple[float, float, float]
) -> None:
    """The thresholds are the sums of the fractions; a part with fraction 0 is empty."""
    split = Split("patient", seed, fractions)
    for organ, rows in sites(data, split).items():
        parts = rows.train, rows.validate, rows.test
        closed = [row for row in data.rows if row.closed and row.organ == organ]
        assert sorted((row for part in parts for row in part), key=lambda row: row.index) == closed
        lows, highs = (0.0, fractions[0], 1 - fractions[2]), (fractions[0], 1 - fractions[2], 1.0)
        for part, low, high in zip(parts, lows, highs, strict=True):
            assert all(low <= split.place(patient) < high for patient in patients(part))
        assert not any(part for part, fraction in zip(parts, fractions, strict=True) if fraction == 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shares_are_met_within_binomial_error(seed: int) -> None:
    """Of 4000 patients each part holds its fraction, within four standard deviations; so does a carved part."""
    data = many(4000)
    whole = partition(data, "chest", Split("patient", seed)), partition(data, "chest", Split(seed=seed))
    expected = dict(zip(PARTS, (0.7, 0.15, 0.15), strict=True)), {"train": 0.85, "validate": 0.15, "test": 0.0}
    for rows, shares in zip(whole, expected, strict=True):
        for part, share in shares.items():
            error = 4 * math.sqrt(4000 * share * (1 - share))
            assert abs(len(getattr(rows, part)) - 4000 * share) <= error


def test_places_lie_evenly_in_0_to_1() -> None:
    """Kolmogorov's distance of 4000 places to the uniform law is below its 0.1 % point."""
    places = sorted(Split(seed=7).place(f"p{number}") for number in range(4000))
    assert places[0] >= 0 and places[-1] < 1
    assert max(abs(place - (rank + 0.5) / 4000) for rank, place in enumerate(places)) < 1.95 / math.sqrt(4000)


@settings(max_examples=examples(40))
@given(data_sets(), st.randoms(use_true_random=False))
def test_the_order_of_rows_moves_no_row(data: VQAData, random: object) -> None:
    """All three parts hold the same rows whatever order they come in."""
    shuffled = list(data.rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for split in (Split(), Split("patient")):
        before, after = sites(data, split), sites(set_of(shuffled), split)
        assert before.keys() == after.keys()
        for organ, rows in before.items():
            assert all(set(getattr(rows, part)) == set(getattr(after[organ], part)) for part in PARTS)


@settings(max_examples=examples(40))
@given(data_sets())
def test_a_site_that_holds_its_organ_alone_gets_the_same_parts(data: VQAData) -> None:
    """A hospital does not need other sites' rows to know its own parts."""
    for split in (Split(), Split("patient")):
        for organ, rows in sites(data, split).items():
            alone = [row for row in data.rows if row.organ == organ]
            assert partition(set_of(alone), organ, split) == rows


@settings(max_examples=examples(40))
@given(data_sets(("train", "validate", "test")), st.booleans(), st.integers(0, 3))
def test_without_one_patient_all_others_stay_where_they_are(data: VQAData, published: bool, seed: int) -> None:
    """Also if that patient had the only validation rows: what a set publishes is a fact about the set."""
    data = VQAData("made", ORGANS, data.rows, publishes_validation=published)
    for split in (Split(seed=seed, validation=0.5), Split("patient", seed)):
        before = sites(data, split)
        for gone in patients(tuple(data.rows)):
            rest = VQAData("made", ORGANS, [r for r in data.rows if r.patient != gone], publishes_validation=published)
            after = sites(rest, split)
            for organ, rows in after.items():
                for part in PARTS:
                    kept = tuple(row for row in getattr(before[organ], part) if row.patient != gone)
                    assert getattr(rows, part) == kept
            for organ in before.keys() - after.keys():
                assert not [row for row in before[organ].train if row.patient != gone]


def test_another_seed_holds_out_other_patients() -> None:
    """The seed is the key of the digest."""
    data = many(40)
    for kind in ("official", "patient"):
        held_out = {frozenset(patients(partition(data, "chest", Split(kind, seed)).validate)) for seed in range(5)}
        assert len(held_out) == 5


def test_a_patient_with_rows_of_two_organs_is_on_one_side_of_the_patient_split() -> None:
    """Membership of the patient must be the same at both sites."""
    rows = [Row(i, ORGANS[i % 2], "train", True, "q", "a", f"p{i // 2}", Path(f"{i}.jpg")) for i in range(40)]
    both = [partition(set_of(rows), organ, Split("patient")) for organ in ORGANS]
    sides: defaultdict[str, set[str]] = defaultdict(set)
    for site in both:
        for part in PARTS:
            for row in getattr(site, part):
                sides[row.patient].add(part)
    assert len(sides) == 20 and all(len(parts) == 1 for parts in sides.values())


def test_an_organ_without_train_rows_is_refused_and_empty_other_parts_are_not() -> None:
    """Coins may leave a small site without validation or test rows: it loads, and its baselines are counted."""
    few = [
        Row(i, "chest", "train", True, "q", answer, f"p{i}", Path(f"{i}.jpg")) for i, answer in enumerate(("no", "yes"))
    ]
    site = build_site(set_of(few), "chest", Split("patient", fractions=(1.0, 0.0, 0.0)))
    assert (len(site.train), len(site.validate), len(site.test)) == (2, 0, 0)
    for part in (site.validate, site.test):
        assert len(majority_right(site.train.answers, part.answers)) == 0
        assert len(question_prior_right(site.train, part)) == 0
    nobody = Split("patient", fractions=(0.0, 0.5, 0.5))
    with pytest.raises(DataError, match="no train rows"):
        build_site(set_of(few), "chest", nobody)
    assert not len(build_site(set_of(few), "chest", nobody, ("no", "yes")).train)
