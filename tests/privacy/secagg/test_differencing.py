"""Sums over different cohorts: which combinations of them show few sites, against rational linear algebra."""

import random
from collections.abc import Collection, Sequence
from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy.secagg.differencing import Cohort, sites_shown

SITES = "abcdef"
COHORTS = st.frozensets(st.sampled_from(SITES), min_size=1)


def rank(rows: Sequence[Sequence[int]]) -> int:
    """By Gaussian elimination in fractions."""
    left, result = [[Fraction(value) for value in row] for row in rows], 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((row for row in left[result:] if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        left.insert(result, pivot)
        for row in left[result + 1 :]:
            factor = row[column] / pivot[column]
            row[:] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
        result += 1
    return result


def rows(cohorts: Collection[Cohort], sites: Collection[str]) -> list[list[int]]:
    return [[int(site in cohort) for site in sorted(sites)] for cohort in cohorts]


def few_are_shown(cohorts: Collection[Cohort], size: int) -> bool:
    """Whether some combination is zero everywhere but at some sites, at most `size`."""
    everywhere = rank(rows(cohorts, SITES))
    return any(rank(rows(cohorts, set(SITES) - set(few))) < everywhere for few in combinations(SITES, size))


@given(st.sets(COHORTS, max_size=6), COHORTS, st.integers(2, 5))
@settings(max_examples=examples(400))
def test_what_is_found_is_what_rational_linear_algebra_finds(earlier: set[Cohort], cohort: Cohort, least: int) -> None:
    """For every set of fewer than `least` sites: the rank outside of it drops exactly where a combination is inside."""
    shown, together = sites_shown(earlier, cohort, least), {*earlier, cohort}
    if rank(rows(together, SITES)) == rank(rows(earlier, SITES)):
        assert shown == ()
        return
    assert bool(shown) == few_are_shown(together, least - 1)
    if shown:
        assert len(shown) < least
        assert rank(rows(together, set(SITES) - set(shown))) < rank(rows(together, SITES))
        assert len(shown) == 1 or not few_are_shown(together, len(shown) - 1)


@given(st.sets(COHORTS, max_size=4), COHORTS)
@settings(max_examples=examples(200))
def test_no_combination_by_small_coefficients_gets_past_it(earlier: set[Cohort], cohort: Cohort) -> None:
    """Where nothing is found, none of the combinations by -3 .. 3 is of one site or two."""
    if few_are_shown(earlier, 2) or sites_shown(earlier, cohort, 3):
        return
    together = rows({*earlier, cohort}, SITES)
    for coefficients in product(range(-3, 4), repeat=len(together)):
        totals = [sum(c * row[place] for c, row in zip(coefficients, together, strict=True)) for place in range(6)]
        assert sum(map(bool, totals)) not in (1, 2)


@pytest.mark.parametrize(
    ("earlier", "cohort", "least", "shown"),
    [
        (["abcd"], "abc", 2, "d"),
        (["abc"], "abcd", 2, "d"),
        (["abcd"], "abcd", 4, ""),
        (["abcdef"], "abcd", 2, ""),
        (["abcdef"], "abcd", 3, "ef"),
        # Each two differ by two sites; half of the first two, less half of the third, is a's.
        (["abc", "ade"], "bcde", 2, "a"),
        ([], "abc", 4, "abc"),
        (["abcd", "ab"], "abcd", 3, ""),
        (["abcd", "ab"], "abcdef", 3, "ab"),
    ],
)
def test_cases(earlier: list[str], cohort: str, least: int, shown: str) -> None:
    """Two sums that differ by one site, three of which no two do, the same sum again, and a cohort that is too small;
    a cohort that adds nothing passes even where earlier ones show too much, another one does not."""
    assert sites_shown({frozenset(past) for past in earlier}, frozenset(cohort), least) == tuple(shown)


def test_fifty_sites_and_a_thousand_cohorts_stay_exact() -> None:
    """Random halves span everything, so that the last sums show each site; pairs that never part show two."""
    draw = random.Random(1)
    halves = {frozenset(f"{site:02d}" for site in draw.sample(range(50), 25)) for _ in range(1000)}
    assert (
        len(sites_shown(set(sorted(halves, key=sorted)[:49]), frozenset(f"{site:02d}" for site in range(50)), 2)) == 1
    )
    pairs = {
        frozenset(f"{2 * pair + side:02d}" for pair in draw.sample(range(25), 12) for side in (0, 1)) for _ in range(20)
    }
    everybody = frozenset(f"{site:02d}" for site in range(50))
    assert sites_shown(pairs, everybody, 2) == ()
    assert sites_shown(halves, everybody, 5) == ()  # They span everything before.
