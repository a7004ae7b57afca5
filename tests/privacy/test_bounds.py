"""Bounds on patients' gradients hold in floating point, also where rows of one patient cancel.

A Gram product in single precision loses small norms: of rows that cancel it gives too little, and a sum that is clipped
by it is longer than C. Exact figures are in extended precision, whose rounding is 2,000 times finer than float64's.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from torch.overrides import TorchFunctionMode

from privacy import PrivateStep, SettingsError
from privacy.clipping import Lookups, Products, Segments, Separate

CLIP = 1.0
Sides = tuple[torch.Tensor, torch.Tensor]
"""Left and right rows of one patient, [rows, left] and [rows, right]."""


def exact_norm(sides: Sides) -> float:
    """The norm of the sum of outer products."""
    left, right = (side.numpy().astype(np.longdouble) for side in sides)
    return float(np.sqrt((np.einsum("na,nb->ab", left, right) ** 2).sum()))


def products_of(patients: Sequence[Sides]) -> Products:
    """As a linear layer contributes them."""
    left, right = (torch.cat(side) for side in zip(*patients, strict=True))
    value = torch.zeros(left.shape[1], right.shape[1])
    counts = torch.tensor([len(sides[0]) for sides in patients])
    return Products(value, 0, len(value), left, right, Segments(counts))


def clipped(products: Products, clip: float = CLIP) -> torch.Tensor:
    """The clipped sum."""
    step = PrivateStep([products.value], clip)
    step.add([products], torch.ones(len(products.segments.counts), dtype=torch.bool))
    return step._sums[products.value]


def plain_norms(products: Products) -> torch.Tensor:
    """Of each patient by a Gram product in single precision, without a margin."""
    sides = [(products.left[rows], products.right[rows]) for _, rows in products.segments.runs]
    return torch.stack([((a @ a.T) * (b @ b.T)).sum().clamp(min=0).sqrt() for a, b in sides]).double()


def cancelling(
    pairs: int, left: int, right: int, size: float, apart: float, seed: int, rank: int | None = None
) -> Sides:
    """Rows in pairs that are near-opposite on the left and near-equal on the right, and all of length `size`."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(width: int) -> torch.Tensor:
        if rank is None:
            return torch.randn(pairs, width, generator=generator)
        basis = torch.randn(rank, width, generator=generator)
        return torch.randn(pairs, rank, generator=generator) @ basis

    def sized(rows: torch.Tensor) -> torch.Tensor:
        return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-9) * size

    item, other = sized(drawn(left)), sized(drawn(right))
    noise = [apart * torch.randn(side.shape, generator=generator) for side in (item, other)]
    order = torch.randperm(2 * pairs, generator=generator)
    return torch.cat([item, noise[0] - item])[order], torch.cat([other, other + noise[1]])[order]


CANCELLING = st.builds(
    cancelling,
    pairs=st.integers(1, 40),
    left=st.integers(1, 24),
    right=st.integers(1, 24),
    size=st.floats(-3, 6).map(lambda power: 10**power),
    apart=st.floats(-9, 0).map(lambda power: 10**power),
    seed=st.integers(0, 2**20),
    rank=st.sampled_from([None, 1, 2, 3]),
)


@settings(max_examples=examples(300))
@given(CANCELLING)
def test_the_norm_that_is_clipped_is_never_below_the_exact_one(sides: Sides) -> None:
    """For rows of lengths up to a million that cancel to nothing, few and many, of full and of low rank."""
    bound = float(products_of([sides]).squared_norms().sqrt())
    assert math.isfinite(bound) and bound >= exact_norm(sides)


@settings(max_examples=examples(300))
@given(CANCELLING, st.floats(-3, 3).map(lambda power: 10**power))
def test_the_sum_that_is_computed_for_a_patient_alone_is_never_longer_than_c(sides: Sides, clip: float) -> None:
    """Rounding of the weights, of the weighted rows and of their sum included."""
    assert float(clipped(products_of([sides]), clip).norm()) <= clip


@settings(max_examples=examples(100))
@given(st.lists(CANCELLING, min_size=1, max_size=1), st.integers(1, 20), st.integers(0, 1000))
def test_a_patient_whose_rows_cancel_moves_the_sum_of_others_by_no_more_than_c(
    mine: list[Sides], others: int, seed: int
) -> None:
    """Its large numbers meet the small ones of others in one product, or else are kept apart from them."""
    (sides,), generator = mine, torch.Generator().manual_seed(seed)
    widths = [side.shape[1] for side in sides]
    rows = [
        (torch.randn(n, widths[0], generator=generator), torch.randn(n, widths[1], generator=generator))
        for n in torch.randint(1, 60, (others,), generator=generator).tolist()
    ]
    for place in (0, others // 2, others):
        together = [*rows[:place], sides, *rows[place:]]
        moved = clipped(products_of(together)) - clipped(products_of(rows))
        assert float(moved.norm()) <= CLIP


class TwoLanes(TorchFunctionMode):
    """A matrix product that sums even rows and odd rows apart, as kernels may that split a sum."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in (torch.Tensor.__matmul__, torch.Tensor.matmul):
            return function(*args, **(kwargs or {}))
        left, right = args
        lanes = []
        for lane in range(2):
            total = torch.zeros(left.shape[0], right.shape[1])
            for row in range(lane, left.shape[1], 2):
                total += torch.outer(left[:, row], right[row])
            lanes.append(total)
        return lanes[0] + lanes[1]


def test_however_a_product_splits_its_sums_others_keep_their_contributions() -> None:
    """Large numbers that cancel between two parts of a product would swallow what others add to each part."""
    generator = torch.Generator().manual_seed(0)
    left, right = 1e5 * torch.randn(10, 1, 8, generator=generator), 1e3 * torch.randn(10, 1, 8, generator=generator)
    mine = (torch.cat([left, -left], dim=1).flatten(0, 1), torch.cat([right, right], dim=1).flatten(0, 1))
    others = [(torch.full((1, 8), 2e-4), torch.ones(1, 8)) for _ in range(4000)]
    with TwoLanes():
        moved = clipped(products_of([mine, *others])) - clipped(products_of(others))
    assert float(moved.norm()) <= CLIP


def excess(size: float) -> tuple[float, float]:
    """How long a clipped patient is in the worst of 20 trials: by plain norms, and by bounds. Both in units of C."""
    plain, bounded = [], []
    for seed in range(20):
        sides = cancelling(20, 192, 192, size, 1e-3 * size**0.5, seed)
        products = products_of([sides])
        weight = (CLIP / plain_norms(products).clamp(min=1e-30)).clamp(max=1.0)
        plain.append(float(weight) * exact_norm(sides))
        bounded.append(float(clipped(products).norm()))
    return max(plain), max(bounded)


@pytest.mark.parametrize(("size", "least"), [(100.0, 1.0), (10_000.0, 2.0)])
def test_without_the_margin_such_rows_exceed_c(size: float, least: float) -> None:
    """Norms by plain Gram products let a patient contribute more than C: the tests above would find it."""
    plain, bounded = excess(size)
    assert plain > least * CLIP >= bounded


WIDTHS = [(192, 192), (192, 768), (768, 192), (64, 512), (48, 192)]


@pytest.mark.parametrize("widths", WIDTHS, ids=lambda w: f"{w[0]}x{w[1]}")
@pytest.mark.parametrize("rows", [1, 8, 65, 260, 500])
def test_on_ordinary_rows_the_margin_costs_little(widths: tuple[int, int], rows: int) -> None:
    """Of independent Gaussian rows the bound exceeds the exact norm by less than 0.5 %."""
    generator = torch.Generator().manual_seed(rows)
    sides = (torch.randn(rows, widths[0], generator=generator), torch.randn(rows, widths[1], generator=generator))
    exact = float((sides[0].double().T @ sides[1].double()).norm())
    assert exact <= float(products_of([sides]).squared_norms().sqrt()) <= 1.005 * exact


@settings(max_examples=examples(60))
@given(st.floats(-30, -8), st.floats(0, 18), st.integers(1, 40), st.integers(1, 300), st.integers(0, 1000))
def test_numbers_too_small_for_single_precision_are_covered(
    small: float, large: float, rows: int, width: int, seed: int
) -> None:
    """Squares of the left rows vanish in float32, and the right rows make up for it."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.rand(rows, width, generator=generator) * 10.0**small
    right = torch.rand(rows, 3, generator=generator) * 10.0**large
    sides = (left, right)
    assert float(products_of([sides]).squared_norms().sqrt()) >= exact_norm(sides)
    assert float(clipped(products_of([sides]), 1e-6).norm()) <= 1e-6


@settings(max_examples=examples(60))
@given(st.integers(1, 30), st.integers(1, 24), st.lists(st.integers(0, 90), max_size=8), st.integers(0, 1000))
def test_a_bound_follows_from_the_patients_own_rows(rows: int, width: int, others: list[int], seed: int) -> None:
    """Neither the formula nor the figure depends on how many others there are, and how many rows they have.

    The rows are small whole numbers, whose products are exact in any order, so that the figures are equal.
    """
    generator = torch.Generator().manual_seed(seed)
    everybody = [
        (
            torch.randint(-8, 9, (count, width), generator=generator).float(),
            torch.randint(-8, 9, (count, 7), generator=generator).float(),
        )
        for count in (*others, rows)
    ]
    alone = products_of(everybody[-1:]).squared_norms()[0]
    assert torch.equal(products_of(everybody).squared_norms()[-1], alone)


def test_a_norm_that_overflows_counts_as_not_finite_and_leaves_the_sum_of_others_alone() -> None:
    """In each form of contribution: rows and gradients are finite, their products and sums are not."""
    ordinary = (torch.randn(3, 4), torch.randn(3, 5))
    huge = (torch.full((3, 4), 1e30), torch.full((3, 5), 1e30))
    alone = clipped(products_of([ordinary]))
    for together in ([ordinary, huge], [huge, ordinary]):
        assert torch.equal(clipped(products_of(together)), alone)
    value = torch.zeros(4, 5)
    for endless in (torch.inf, 1e38, torch.nan):
        each = torch.stack([torch.randn(4, 5), torch.full((4, 5), endless)])
        table = Lookups(value, torch.arange(4).repeat(2), each.flatten(0, 1), Segments(torch.tensor([4, 4])))
        for part in (Separate(value, each), table):
            step = PrivateStep([value], CLIP)
            step.add([part], torch.tensor([True, True]))
            assert step.unbounded == 1 and bool(step._sums[value].isfinite().all())
            assert float(step._sums[value].norm()) == pytest.approx(CLIP, rel=2e-3)


def test_products_in_less_than_single_precision_are_refused() -> None:
    """The margin is for float32: with bfloat16 or TF32 it would be too small."""
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(SettingsError, match="single precision"):
            PrivateStep([torch.zeros(2, 2)], CLIP)
    finally:
        torch.set_float32_matmul_precision("highest")
