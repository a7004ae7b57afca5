"""A random lying server: whatever it asks, no honest site's input follows from what it and its colluders know."""

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from in_process import Sites
from lying_network import CLOCK
from lying_views import COMMON, OWN, Equations, Exchange, MaskedUpload, Row, input_of
from random_scripts import METHODS, NAMES, MeanScript, MixScript
from tiers import examples

from medfedvqa.core import registry
from medfedvqa.federation.secure_site import SecureSite
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.task_order import TaskOrder
from privacy.secagg import pairwise_masks
from privacy.secagg.channel import Session

Configs = dict[str, SiteConfig]
SCRIPTS = int(os.environ.get("MEDFEDVQA_SCRIPTS", examples(4, least=1)))
"""How many are played against each protocol."""
MEMORY = Path("/dev/shm")
FIRST = int(os.environ.get("MEDFEDVQA_FIRST_SCRIPT", "0"))
"""The seed of the first; those of others follow."""


@pytest.fixture
def federation(introduced: Sites, monkeypatch: pytest.MonkeyPatch) -> Configs:
    """Eight sites, and methods that are known during the test."""
    for method in METHODS:
        monkeypatch.setitem(registry._METHODS, method.name, method)
    # Members that wait for each other's words look at a clock of their own.
    monkeypatch.setattr(pairwise_masks, "time", CLOCK)
    return introduced(*NAMES, organ="chest")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is a file system for that: sites wait for the disk after every task."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        yield Path(path)


@pytest.mark.sampled
def test_no_random_server_of_a_mean_learns_an_upload_or_spends_beyond_the_plan(
    federation: Configs, folder: Path
) -> None:
    """Going back, leaping, repeating, equivocating, denying, dropping, redrawing, under new jobs as well."""
    for seed in range(FIRST, FIRST + SCRIPTS):
        MeanScript(seed, federation, folder / f"mean-{seed}").run()


@pytest.mark.sampled
def test_no_random_dealer_and_members_of_a_mixture_learn_an_input_or_spend_beyond_the_plan(
    federation: Configs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuples repeated and bent, attempts ended when the coins do not suit, under new jobs as well. Members who
    collude see what others show them; the server, who deals, sees no share."""
    for seed in range(FIRST, FIRST + SCRIPTS):
        script = MixScript(seed, federation, folder / f"mix-{seed}")
        with monkeypatch.context() as patch:
            patch.setattr(Session, "open", script.overheard.listening)
            script.run()


# Whether the checks would find what they look for.


def test_the_equations_find_what_follows_from_sums() -> None:
    """A sum over four sites and one over three expose the fourth; sums that differ by two sites expose neither, and
    with three of them one does. A mask that is not known hides an upload; used twice it hides no difference."""
    four, three = ("a", "b", "c", "d"), ("a", "b", "c")
    assert exposed([sum_over(four)]) == []
    assert exposed([sum_over(four), sum_over(three)]) == ["d"]
    five = (*four, "e")
    assert exposed([sum_over(three), sum_over(("a", "d", "e"))]) == []
    assert exposed([sum_over(three), sum_over(("a", "d", "e")), sum_over(five)]) == ["a"]
    masked = {input_of("a", 0, 1): 1, ("mask", b"1"): 1}
    again = {input_of("a", 0, 2): 1, ("mask", b"1"): 1}
    assert exposed([masked]) == [] and exposed([masked, again]) == ["a"]


def test_the_equations_of_an_exchange_know_a_mask_by_a_threshold_of_shares() -> None:
    """Three of four members open the sum by all own masks; both halves of one site open its upload alone."""
    four = ("a", "b", "c", "d")
    exchange = Exchange(four, four, uploads=dict.fromkeys(four, MaskedUpload(np.zeros(1, np.uint64), b"")))
    for members in ("ab", "c"):
        for site in four:
            exchange.shares[site, OWN] |= dict.fromkeys(members, b"")
        assert exposed(exchange.equations(0, ())) == []
    exchange.shares["d", COMMON] |= dict.fromkeys("abc", b"")
    assert exposed(exchange.equations(0, ())) == ["d"]


@pytest.mark.slow
def test_a_random_server_finds_the_upload_of_a_site_that_goes_back(
    federation: Configs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the order of tasks and the memory of cohorts, as in 0.1.0, some of a few scripts expose a site."""
    monkeypatch.setattr(TaskOrder, "repeats", lambda order, task, round, last: (task, round) == last)
    monkeypatch.setattr(SecureSite, "check_cohort", lambda *_: None)
    with pytest.raises(AssertionError, match="are exposed"):
        for seed in range(12):
            MeanScript(seed, federation, folder / f"mean-{seed}").run()


def test_all_members_of_a_mixture_together_would_be_found_and_all_but_one_are_not(
    federation: Configs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the documentation, by the equations of a job that runs as planned: five sites, of which four
    compute. What all four heard exposes the fifth; what any three of them heard exposes nobody."""
    script = MixScript(4, federation, folder / "mix")
    monkeypatch.setattr(Session, "open", script.overheard.listening)
    assert (len(script.sites), script.committee) == (5, 4)
    script.honesty = 10**9
    while script.place < len(script.plan):
        script.honest()
    for deal in script.deals:
        assert deal.completed == list(deal.sites)
        (owner,) = set(deal.sites) - set(deal.members)
        assert owner in script.overheard.exposed(deal.members)
        for honest in deal.members:
            assert script.overheard.exposed_by_masks(deal, set(deal.members) - {honest}) == []


def sum_over(sites: Collection[str]) -> Row:
    """The equation of an opened sum."""
    return {input_of(site, 0, 1): 1 for site in sites}


def exposed(rows: Sequence[Row]) -> list[str]:
    """The sites of whose inputs something follows."""
    equations = Equations()
    for row in rows:
        equations.add(row)
    return equations.exposed()
