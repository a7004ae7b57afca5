"""Splits, on any set of rows."""

from collections import defaultdict
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from medfedvqa.data import Row, SiteRows, Split, VQAData, partition
from medfedvqa.errors import DataError

ORGANS = ("chest", "head")


@st.composite
def data_sets(draw: st.DrawFn, parts: tuple[str, ...] = ("train", "test")) -> VQAData:
    """Rows of up to 12 patients, each of one organ, in any order and any published split."""
    facts = st.tuples(st.integers(0, 11), st.sampled_from(parts), st.booleans())
    rows = []
    for index, (patient, part, closed) in enumerate(draw(st.lists(facts, min_size=1, max_size=60))):
        rows.append(Row(index, ORGANS[patient % 2], part, closed, "q", "a", f"p{patient}", Path(f"{patient}.jpg")))
    return VQAData("made", ORGANS, rows)


def sites(data: VQAData, split: Split) -> dict[str, SiteRows]:
    """The organs' rows; organs without train rows are left out."""
    found = {}
    for organ in data.organs:
        try:
            found[organ] = partition(data, organ, split)
        except DataError:
            continue
    return found


def patients(rows: tuple[Row, ...]) -> set[str]:
    return {row.patient for row in rows}


@settings(deadline=None, max_examples=40)
@given(data_sets(), st.integers(0, 5))
def test_official_keeps_the_published_test_rows_and_carves_validation_by_patient(data: VQAData, seed: int) -> None:
    for organ, rows in sites(data, Split(seed=seed, validation=0.3)).items():
        closed = [row for row in data.rows if row.closed and row.organ == organ]
        assert list(rows.test) == [row for row in closed if row.split == "test"]
        assert sorted((*rows.train, *rows.validate), key=lambda row: row.index) == [
            row for row in closed if row.split == "train"
        ]
        assert not patients(rows.train) & patients(rows.validate)
        published = len({row.patient for row in closed if row.split == "train"})
        assert len(patients(rows.validate)) == round(0.3 * published)


@settings(deadline=None, max_examples=40)
@given(data_sets(("train", "validate", "test")))
def test_official_keeps_published_validation_rows(data: VQAData) -> None:
    if any(row.split == "validate" and row.closed for row in data.rows):
        for organ, rows in sites(data, Split()).items():
            assert list(rows.validate) == [
                row for row in data.rows if row.closed and row.organ == organ and row.split == "validate"
            ]


@settings(deadline=None, max_examples=40)
@given(data_sets(), st.integers(0, 5), st.sampled_from([(0.7, 0.15, 0.15), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0)]))
def test_patient_split_is_disjoint_complete_and_of_the_asked_size(
    data: VQAData, seed: int, fractions: tuple[float, float, float]
) -> None:
    for organ, rows in sites(data, Split("patient", seed, fractions)).items():
        parts = rows.train, rows.validate, rows.test
        closed = [row for row in data.rows if row.closed and row.organ == organ]
        assert sorted((row for part in parts for row in part), key=lambda row: row.index) == closed
        total = len({row.patient for row in closed})
        held = [patients(part) for part in parts]
        assert sum(map(len, held)) == total == len(set.union(*held))
        assert [len(part) for part in held[1:]] == [round(fraction * total) for fraction in fractions[1:]]


@settings(deadline=None, max_examples=40)
@given(data_sets(), st.randoms(use_true_random=False))
def test_the_order_of_rows_moves_no_patient(data: VQAData, random: object) -> None:
    shuffled = list(data.rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for split in (Split(), Split("patient")):
        before, after = sites(data, split), sites(VQAData("made", ORGANS, shuffled), split)
        assert {organ: patients(rows.train) for organ, rows in before.items()} == {
            organ: patients(rows.train) for organ, rows in after.items()
        }


@settings(deadline=None, max_examples=40)
@given(data_sets())
def test_a_site_that_holds_its_organ_alone_gets_the_same_parts(data: VQAData) -> None:
    for split in (Split(), Split("patient")):
        for organ, rows in sites(data, split).items():
            own = [row for row in data.rows if row.organ == organ]
            assert partition(VQAData("made", ORGANS, own), organ, split) == rows


def test_another_seed_holds_out_other_patients() -> None:
    rows = [Row(i, "chest", "train", True, "q", "a", f"p{i}", Path(f"{i}.jpg")) for i in range(40)]
    data = VQAData("made", ORGANS, rows)
    for kind in ("official", "patient"):
        held = {frozenset(patients(partition(data, "chest", Split(kind, seed)).validate)) for seed in range(5)}
        assert len(held) == 5


def test_a_patient_with_rows_of_two_organs_is_on_one_side_of_the_patient_split() -> None:
    """Membership of the patient must be the same at both sites."""
    rows = [Row(i, ORGANS[i % 2], "train", True, "q", "a", f"p{i // 2}", Path(f"{i}.jpg")) for i in range(40)]
    both = [partition(VQAData("made", ORGANS, rows), organ, Split("patient")) for organ in ORGANS]
    sides: defaultdict[str, set[str]] = defaultdict(set)
    for site in both:
        for part in ("train", "validate", "test"):
            for row in getattr(site, part):
                sides[row.patient].add(part)
    assert len(sides) == 20 and all(len(parts) == 1 for parts in sides.values())
