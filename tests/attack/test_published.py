"""The table of epsilons: what each published mechanism claims, what it is, and what a distinguisher proves of it."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from medfedvqa.attack.controls import DELTA, proved, published
from medfedvqa.cli import main

DOCS = Path(__file__).parents[2] / "docs" / "empirical-audit.md"
BROKEN, PATIENT, SITE = 7, -2, -1
"""The number of mechanisms whose claim does not hold, which come first; and the two last ones, whose claim does."""


def test_claims_of_broken_mechanisms_are_below_what_they_are_and_of_sound_ones_not() -> None:
    """0.4 is 63 for a row and 396 for a patient by the divergences that its authors use, 2.19 is 14.4."""
    assert [round(each.by_rdp) for each in published()[:2]] == [63, 396]
    assert published()[3].claimed == 2.19 and published()[3].accounted == pytest.approx(14.4, abs=0.05)
    assert all(each.accounted > 3 * each.claimed for each in published()[:BROKEN])
    assert all(each.accounted <= each.claimed for each in published()[BROKEN:])


def test_sites_as_units_have_the_epsilon_that_two_accountants_from_outside_give() -> None:
    """Noise 2.4 over 20 rounds: 9.84 by Renyi divergences, 9.17 by Google's accountant of privacy losses."""
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(2.4), 20))
    assert accountant.get_epsilon(DELTA) == pytest.approx(9.17, abs=0.005)
    assert published()[SITE].claimed == pytest.approx(9.84, abs=0.005)
    assert accountant.get_epsilon(DELTA) <= published()[SITE].accounted <= accountant.get_epsilon(DELTA) + 0.03


@pytest.mark.parametrize("number", range(BROKEN))
def test_a_distinguisher_refutes_each_claim_that_does_not_hold(number: int) -> None:
    """Its lower bound is above the claim, and never above what the accountants say that the mechanism is."""
    each = published()[number]
    assert each.claimed < each.measured(6000, 0.95, seed=1) <= each.accounted


@pytest.mark.parametrize("number", [PATIENT, SITE])
def test_no_claim_that_holds_is_refuted(number: int) -> None:
    """At ten seeds; a distinguisher learns something about sites, whose epsilon is large."""
    each = published()[number]
    bounds = [each.measured(6000, 0.95, seed) for seed in range(10)]
    assert max(bounds) <= each.accounted and (number == PATIENT or min(bounds) > 2)


def test_a_lower_bound_holds_as_often_as_it_says() -> None:
    """Laplace noise of epsilon 1 is proved to be more in at most one of a hundred audits, which claim one of twenty: a
    threshold that were tried on the trials that chose it would be wrong three times as often."""
    generator, bounds = np.random.default_rng(0), []
    for _ in range(400):
        outside, inside = generator.laplace(size=400), 1 + generator.laplace(size=400)
        bounds.append(proved(outside, inside, 0.95))
    assert np.mean(np.array(bounds) > 1) <= 0.01 and np.median(bounds) > 0.4


@pytest.mark.slow
def test_the_table_in_the_docs_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row by row, to two digits; the seed is fixed."""
    monkeypatch.setattr(sys, "argv", ["medfedvqa", "audit", "controls", "--published", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)["mechanisms"]
    rows = re.findall(
        r"^\| (.+?) \|$", DOCS.read_text("utf-8").split("## Epsilons as published")[1].split("\n## ")[0], re.M
    )
    shown = [[*map(str, (value if value is not None else "none" for value in each.values()))] for each in found]
    tables = [[f"{float(cell):.2f}" if cell.replace(".", "").isdigit() else cell for cell in row] for row in shown]
    assert [row.split(" | ") for row in rows[1:]] == tables
