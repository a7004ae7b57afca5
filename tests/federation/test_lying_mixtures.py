"""Mixtures and draws under a server that lies, in process: one test for each finding of an attack on version 0.1.0."""

from collections.abc import Collection
from itertools import count
from typing import Any

import numpy as np
import pytest
from lying_dealer import Deal, Ears, draw
from lying_server import LyingServer, assert_refused_in_order, charged, refusals
from server_lies import MIXING, shifted_for
from tiers import examples
from untrained import DP, TWELVE, Averaged, Make, Mixed

from audits import verify
from medfedvqa.core import Tensors
from medfedvqa.federation.admission import Signature
from medfedvqa.federation.site_state import StateFile
from privacy.secagg.channel import Session
from privacy.secagg.committee import Beacon
from privacy.secagg.cut_and_choose import SETS

FOUR = ("a", "b", "c", "d")
COLLUDERS = TWELVE[:3]
LOOSE = {"require_dp": True, "require_fresh": False, "max_epsilon": 1000.0, "repeats": 100}
SUBMITTER = Signature("5" * 64, "")


@pytest.fixture
def mixing(job_on_shares: Make) -> LyingServer:
    """Four sites that mix what they hold in three rounds."""
    return LyingServer(*job_on_shares(Mixed, FOUR, rounds=3))


def mixtures(server: LyingServer) -> dict[str, Tensors]:
    """What sites have saved as their last mixture."""
    saved = {site: StateFile(config.state, server.job_id).load() for site, config in server.configs.items()}
    return {site: state.mixture if state else {} for site, state in saved.items()}


def attempt(server: LyingServer, task: str, round: int, **lies: Any) -> Deal:
    """An attempt of all four sites."""
    return Deal(server, task, round, FOUR, FOUR, **lies)


@pytest.mark.parametrize("name", MIXING)
def test_a_server_that_lies_about_a_mixture_gets_none(mixing: LyingServer, name: str) -> None:
    """A second attempt at a round, attempts of two, and a vector that the dealer adds are refused by all sites that
    hear of them; no site has any other mixture than the plain one."""
    mixing.tell("start", 1, FOUR)
    play, codes = MIXING[name]
    deal = play(mixing, FOUR)
    assert deal.codes == codes and deal.completed == ([] if codes else list(FOUR))
    assert deal.seeds == {} or "attempt" not in codes
    assert off(mixing) < 1e-3
    assert {bool(mixture) for mixture in mixtures(mixing).values()} == {name in ("nothing", "a second mixture")}
    asked = deal.members if "attempt" in codes else FOUR
    assert all(refusals(mixing.configs[site]) == sorted(codes) for site in asked)


@pytest.fixture
def ears(monkeypatch: pytest.MonkeyPatch) -> Ears:
    """What sites unseal."""
    ears = Ears()
    monkeypatch.setattr(Session, "open", ears.listening)
    return ears


def reuse(server: LyingServer, ears: Ears, reused: Collection[int]) -> Deal:
    """Two rounds, where the dealer commits in the second to the tuples of the first in some sets. No member hears
    anything of an owner under them, and none mixes."""
    server.tell("start", 1, FOUR)
    first = attempt(server, "start", 1).play()
    assert first.completed == list(FOUR) and first.index is not None
    used, (before, *_) = first.sets[first.index], ears.shown(ears.attempt, "a", "b", first.layout.size)
    ears.attempt += 1
    server.tell("train", 2, FOUR)
    again = attempt(server, "train", 2, bend=lambda deal, index, parts: used if index in reused else parts).play()
    after = ears.shown(ears.attempt, "a", "b", first.layout.size)
    assert not after, f"member a has the difference of two unit vectors of b: {unit_error(before, after[0])}"
    assert again.completed == [] and again.codes == {"dealer"}
    assert all(verify(config.audit).ok for config in server.configs.values())
    server.close()
    ears.attempt += 1
    return again


def test_tuples_that_were_dealt_before_serve_no_second_mixture(mixing: LyingServer, ears: Ears) -> None:
    """Finding 3: under the same tuples in two rounds, the difference of what an owner showed the members is that of its
    unit vectors. All sets are reused, and members find those that are not used."""
    reuse(mixing, ears, range(SETS))


@pytest.mark.slow
def test_tuples_that_were_dealt_before_are_found_by_each_member_in_the_set_that_is_used(
    job_on_shares: Make, ears: Ears
) -> None:
    """Finding 3: where the coins choose the one set that is reused, no other set shows it: each member knows the mask
    that follows from its own seed. Jobs follow each other until the coins have chosen so."""
    for number in range(64):
        configs, job = job_on_shares(Mixed, FOUR, rounds=3, allowed={"repeats": 100})
        if reuse(LyingServer(configs, job, f"job-{number}"), ears, [0]).index == 0:
            return
    raise AssertionError("the coins never chose the first of four sets")


def unit_error(before: bytes, after: bytes) -> float:
    """How far a difference of what b showed is from that of what it holds in rounds 2 and 1."""
    difference = np.frombuffer(after, "<u8") - np.frombuffer(before, "<u8")
    units = [Mixed.holding("b", round)["prompt.x"].ravel().astype(float) for round in (1, 2)]
    expected = units[1] / np.linalg.norm(units[1]) - units[0] / np.linalg.norm(units[0])
    return float(np.abs(np.ldexp(difference[: len(expected)].view(np.int64).astype(float), -26) - expected).max())


def off(server: LyingServer) -> float:
    """By how much d's mixture differs from the plain one, 0 if it has none."""
    mixture, plain = mixtures(server)["d"], Mixed.plain(FOUR, 1)["d"]["prompt.x"]
    return float(np.abs(mixture["prompt.x"] - plain).max()) if mixture else 0.0


def test_a_dealer_cannot_bend_what_it_has_committed_to(mixing: LyingServer) -> None:
    """Finding 4: bent once the coins have chosen. The site finds it, and the others are left without it."""
    mixing.tell("start", 1, FOUR)
    deal = attempt(mixing, "start", 1)
    assert deal.seed() and deal.toss() and deal.index is not None
    deal.mix(deal.shifted(deal.sets[deal.index], "d"))
    assert deal.completed == [] and refusals(mixing.configs["d"]) == ["dealer"]
    assert off(mixing) == 0.0


@pytest.mark.sampled
def test_a_dealer_that_bends_one_dealing_is_caught_unless_the_coins_choose_that_one(job_on_shares: Make) -> None:
    """What remains, as documented: of `SETS` dealings one may be bent, and passes exactly if it is the one used."""
    for number in range(examples(6, least=2)):
        configs, job = job_on_shares(Mixed, FOUR, rounds=3, allowed={"repeats": 100})
        server = LyingServer(configs, job, f"job-{number}")
        server.tell("start", 1, FOUR)
        deal = attempt(server, "start", 1, bend=shifted_for("d", [0])).play()
        assert (deal.completed == list(FOUR)) == (deal.index == 0) == (off(server) > 0.4)
        assert deal.codes == (set() if deal.index == 0 else {"dealer"})
        server.close()


def test_a_dealer_that_ends_an_attempt_whose_coins_do_not_suit_it_has_to_show_what_it_dealt(
    mixing: LyingServer,
) -> None:
    """Finding 4: tries until the coins choose the bent dealing. Members give no seed to the next attempt without the
    seeds of the one before, and those give the bent dealing away."""
    mixing.tell("start", 1, FOUR)
    first = attempt(mixing, "start", 1, bend=shifted_for("d", [0]))
    assert first.seed() and first.toss()
    silent = attempt(mixing, "start", 1, number=2)
    assert not silent.seed() and silent.codes == {"attempt"}
    mixing.restart(*FOUR)
    shown = attempt(mixing, "start", 1, number=2)
    assert not shown.seed(first.seeds) and shown.codes == {"dealer"}


def test_a_dealer_that_goes_on_without_showing_a_dealing_costs_no_budget(job_on_shares: Make) -> None:
    """Each process of a site refuses the next task before it trains: nothing is charged, however often it is asked."""
    configs, job = job_on_shares(Mixed, FOUR, rounds=2, dp=DP, allowed=LOOSE)
    assert job.dp is not None
    server = LyingServer(configs, job)
    server.tell("start", 1, FOUR)
    deal = attempt(server, "start", 1)
    assert deal.seed() and deal.toss()
    server.restart(*FOUR)
    before = {site: charged(config, job.dp.delta) for site, config in configs.items()}
    for _ in range(3):
        assert {answer.code for answer in server.tell("train", 2, FOUR).values()} == {"dealer"}
        server.restart(*FOUR)
    assert {site: charged(config, job.dp.delta) for site, config in configs.items()} == before


# Draws.


def test_a_round_number_cannot_be_searched_for_a_committee_of_colluders(job_on_shares: Make) -> None:
    """Finding 2: after the draw of a job of one round, the server looks for the number of a round whose committee are
    its colluders. Sites start no round that the job does not have."""
    configs, job = job_on_shares(Averaged, TWELVE, committee=3)
    server = LyingServer(configs, job)
    server.tell("start", 1, TWELVE)
    beacons, _ = draw(server, 1, TWELVE)
    (value,) = set(beacons.values())
    beacon = Beacon(TWELVE, value)
    round = next(n for n in count(2) if beacon.committee(n, 3) == COLLUDERS)
    honest = TWELVE[3:]
    answers = server.tell("start", round, honest)
    assert {answer.code for answer in answers.values()} == {"order"}
    assert_refused_in_order(server, honest)


def test_a_committee_is_not_drawn_again_under_other_jobs(job_on_shares: Make) -> None:
    """Finding 3: redraws under new job ids until the committee suits; 18 jobs did. Of one definition and these sites,
    one draw opens."""
    configs, job = job_on_shares(Averaged, TWELVE[:6], committee=3, allowed={"repeats": 100})
    opened, codes = [], set()
    for number in range(4):
        server = LyingServer(configs, job, f"job-{number}", signature=SUBMITTER)
        server.tell("start", 1, TWELVE[:6])
        beacons, refused = draw(server, 1, TWELVE[:6])
        opened.append(len(beacons) > 0)
        codes |= refused
        server.close(ended=False)
    assert opened == [True, False, False, False] and codes == {"drawn"}
    assert all(verify(config.audit).ok for config in configs.values())
