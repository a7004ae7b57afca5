"""Drawing a committee: nobody chooses it, and whoever tampers with the draw is found out."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from privacy.secagg import SecureAggregationError, SiteError
from privacy.secagg.committee import Beacon, Nonce, colluding

SITES = ("abdomen", "chest", "head", "spine", "thorax")
FALSE_ALARM = 1e-6
Draw = tuple[Nonce, dict[str, bytes], dict[str, bytes]]


def draw(own: str = "chest", seed: int = 0, fixed: tuple[str, ...] = ()) -> Draw:
    """A draw as `own` sees it; the nonces of `fixed` are the same for all seeds."""
    nonces = {site: Nonce("job", site, _bytes(site, 0 if site in fixed else seed)) for site in SITES}
    opened = {site: nonce.value for site, nonce in nonces.items()}
    return nonces[own], {site: nonce.commitment for site, nonce in nonces.items()}, opened


def _bytes(site: str, seed: int) -> bytes:
    return hashlib.sha256(f"{site} {seed}".encode()).digest()


@pytest.mark.parametrize("fixed", [(), tuple(site for site in SITES if site != "chest")])
def test_every_committee_is_equally_likely_if_one_site_is_honest(fixed: tuple[str, ...]) -> None:
    """Chi-square over all ten committees of three out of five, for nonces that are all random, or only one."""
    counts = Counter(Beacon.open(*draw(seed=seed, fixed=fixed)).committee(1, 3) for seed in range(5000))
    assert chisquare([counts[members] for members in combinations(SITES, 3)]).pvalue > FALSE_ALARM


def test_every_round_has_a_draw_of_its_own() -> None:
    """Chi-square over rounds under one beacon."""
    beacon = Beacon.open(*draw())
    counts = Counter(beacon.committee(round, 3) for round in range(1, 5001))
    assert chisquare([counts[members] for members in combinations(SITES, 3)]).pvalue > FALSE_ALARM


def test_all_sites_come_to_the_same_committee() -> None:
    """Whatever order the nonces came in."""
    beacons = set()
    for site in SITES:
        own, commitments, opened = draw(site)
        beacons.add(Beacon.open(own, dict(reversed(commitments.items())), dict(sorted(opened.items()))))
    assert len(beacons) == 1


@given(st.sampled_from(SITES), st.integers(0, 255), st.integers(1, 255))
def test_a_changed_nonce_or_commitment_is_refused_by_name(site: str, place: int, flip: int) -> None:
    """Any bit of any site's; of one's own too."""
    for part in (1, 2):
        seen: Any = draw()
        tampered = bytearray(seen[part][site])
        tampered[place % 32] ^= flip
        seen[part][site] = bytes(tampered)
        with pytest.raises(SecureAggregationError) as raised:
            Beacon.open(*seen)
        assert getattr(raised.value, "site", "chest") == site


def left_out(draw: Draw) -> None:
    for part in (draw[1], draw[2]):
        del part["chest"]


def added(draw: Draw) -> None:
    draw[2]["spy"] = bytes(32)


def unopened(draw: Draw) -> None:
    del draw[2]["head"]


def short(draw: Draw) -> None:
    draw[2]["head"] = b"short"
    draw[1]["head"] = Nonce("job", "head", b"short").commitment


def of_another_site(draw: Draw) -> None:
    draw[1]["head"], draw[2]["head"] = draw[1]["spine"], draw[2]["spine"]


def of_another_job(draw: Draw) -> None:
    draw[1]["head"] = Nonce("another job", "head", draw[2]["head"]).commitment


@pytest.mark.parametrize(
    ("tamper", "error", "sentence"),
    [
        (left_out, SecureAggregationError, "leaves out this site's own nonce"),
        (added, SecureAggregationError, "did not commit .spy."),
        (unopened, SiteError, "'head' committed to a nonce and did not open it"),
        (short, SiteError, "'head' opened another nonce"),
        (of_another_site, SiteError, "'head' opened another nonce"),
        (of_another_job, SiteError, "'head' opened another nonce"),
    ],
)
def test_a_draw_that_was_tampered_with_is_refused(
    tamper: Callable[[Draw], None], error: type[Exception], sentence: str
) -> None:
    """With a sentence that says what is wrong and with whom."""
    seen = draw()
    tamper(seen)
    with pytest.raises(error, match=sentence):
        Beacon.open(*seen)


def test_a_commitment_hides_the_nonce_and_is_fresh() -> None:
    """Nonces come from the operating system; equal ones of two sites have unlike commitments."""
    assert Nonce.draw("job", "chest").value != Nonce.draw("job", "chest").value
    alike = {Nonce(job, site, bytes(32)).commitment for job in ("job", "jobc") for site in ("chest", "hest")}
    assert len(alike) == 4


def test_who_fell_out_is_in_no_committee_and_too_few_are_refused() -> None:
    """The others keep their order in the draw."""
    beacon = Beacon.open(*draw())
    ranked = [next(iter(set(beacon.committee(1, k)) - set(beacon.committee(1, k - 1)))) for k in (4, 5)]
    first = set(beacon.committee(1, 3))
    gone = sorted(first)[0]
    assert set(beacon.committee(1, 3, left_out=[gone])) == first - {gone} | {ranked[0]}
    for size, without in ((2, ()), (6, ()), (4, ("chest", "head"))):
        with pytest.raises(SecureAggregationError, match="cannot be drawn"):
            beacon.committee(1, size, without)


def test_the_chance_of_enough_colluders_is_hypergeometric() -> None:
    """Against a count of all committees; nonsense is refused."""
    for colluders in range(7):
        for members in range(1, 7):
            for enough in range(1, members + 1):
                result = [len(set(draw) & set(range(colluders))) >= enough for draw in combinations(range(6), members)]
                assert math.isclose(colluding(6, colluders, members, enough), sum(result) / len(result))
    assert math.isclose(colluding(200, 40, 5, 5), 2.595e-4, rel_tol=1e-3)
    for wrong in (
        (5, 6, 3, 3),
        (5, -1, 3, 3),
        (5, 2, 6, 6),
        (5, 2, 0, 0),
        (5, 2, 3, 4),
        (5, 2, 3, 0),
        (5, 2, 3, 3, -1),
    ):
        with pytest.raises(SecureAggregationError, match="check the numbers"):
            colluding(*wrong)


def test_who_leaves_honest_sites_out_after_the_draw_gains_no_more_than_is_counted() -> None:
    """Against the best choice of two honest sites, over all rankings of seven sites, three of them colluding."""
    won = 0
    for ranking in permutations(range(7)):
        places = [ranking.index(colluder) for colluder in range(3)]
        won += max(places) < 3 + 2
    assert math.isclose(colluding(7, 3, 3, 3, left_out=2), won / math.factorial(7))
    assert colluding(7, 3, 3, 3, left_out=9) == 1


@pytest.mark.parametrize(
    ("colluders", "members", "enough", "left_out", "rounds"), [(4, 3, 3, 0, 5), (4, 3, 3, 2, 3), (5, 4, 2, 1, 2)]
)
def test_a_server_that_searches_a_jobs_rounds_finds_a_committee_as_often_as_is_counted(
    colluders: int, members: int, enough: int, left_out: int, rounds: int
) -> None:
    """The best search over all rounds and all choices of sites to leave out, over draws of the real beacon: the number
    of draws in which it finds one is within five standard deviations of what `colluding` says."""
    sites, draws = [f"site {number:02d}" for number in range(12)], 1500
    mine = set(sites[:colluders])

    def suits(beacon: Beacon) -> bool:
        for round in range(1, rounds + 1):
            gone: list[str] = []
            while len(set(beacon.committee(round, members, gone)) & mine) < enough:
                honest = [site for site in beacon.committee(round, members, gone) if site not in mine]
                if len(gone) + 1 > left_out:
                    break
                gone.append(honest[0])
            else:
                return True
        return False

    won = sum(suits(Beacon(tuple(sites), hashlib.sha256(b"draw %d" % number).digest())) for number in range(draws))
    expected = colluding(len(sites), colluders, members, enough, left_out, rounds)
    assert abs(won / draws - expected) < 5 * math.sqrt(expected * (1 - expected) / draws)
