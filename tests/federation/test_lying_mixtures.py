"""Mixtures and draws under a server that lies, in process: one test for each finding of an attack on 1bcfca7."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from lying_dealer import bent, deal, draw, mix, mixed_layout
from lying_server import LyingServer
from test_lying_server import assert_refused_in_order
from untrained import Averaged, Mixed

from audits import verify
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.state import StateFile
from medfedvqa.methods import Tensors
from privacy.secagg.channel import Session
from privacy.secagg.committee import Beacon

Make = Callable[..., tuple[dict[str, SiteConfig], JobSpec]]
FOUR = ("a", "b", "c", "d")
TWELVE = tuple(f"site-{number:03d}" for number in range(1, 13))
COLLUDERS = TWELVE[:3]


@pytest.fixture
def mixing(job_on_shares: Make) -> LyingServer:
    """Four sites that mix what they hold in three rounds."""
    return LyingServer(*job_on_shares(Mixed, FOUR, rounds=3))


def mixtures(server: LyingServer) -> dict[str, Tensors]:
    """What sites have saved as their last mixture."""
    saved = {site: StateFile(config.state, server.job_id).load() for site, config in server.configs.items()}
    return {site: state.mixture if state else {} for site, state in saved.items()}


def completed(answers: dict) -> list[str]:
    """The sites that have a mixture of this attempt."""
    return [site for site, answer in answers.items() if not answer.code and int(answer.tensors["fault"]) < 0]


def test_a_server_that_goes_back_gets_no_second_mixture_of_a_round(mixing: LyingServer) -> None:
    """Finding 3: rounds 2, 3, 2. All sites refuse the task, and none mixes."""
    mixing.tell("start", 1, FOUR)
    assert completed(mix(mixing, "start", 1, FOUR)) == list(FOUR)
    for round in (2, 3):
        mixing.tell("train", round, FOUR)
        assert completed(mix(mixing, "train", round, FOUR)) == list(FOUR)
    again = mixing.tell("train", 2, FOUR)
    assert completed(mix(mixing, "train", 2, FOUR)) == []
    assert {answer.code for answer in again.values()} == {"order"}
    assert_refused_in_order(mixing, FOUR)


def test_tuples_that_were_dealt_before_serve_no_second_mixture(
    mixing: LyingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding 3: under the same tuples in two rounds, the difference of what an owner showed the members is that of its
    unit vectors. No member hears anything of an owner under tuples of an earlier round."""
    heard: list[tuple[str, str, bytes]] = []
    unsealed = Session.open

    def recorded(session: Session, sealed: bytes) -> bytes:
        content = unsealed(session, sealed)
        heard.append((session.me, session.peer, content))
        return content

    monkeypatch.setattr(Session, "open", recorded)
    dealing = deal(mixing.job, "start", FOUR)
    mixing.tell("start", 1, FOUR)
    assert completed(mix(mixing, "start", 1, FOUR, dealing)) == list(FOUR)
    first = shown_to("a", heard, "b", mixing.job)
    heard.clear()
    mixing.tell("train", 2, FOUR)
    again = mix(mixing, "train", 2, FOUR, dealing)
    second = shown_to("a", heard, "b", mixing.job)
    assert second is None, f"member a has the difference of two unit vectors of b: {unit_error(second - first)}"
    assert completed(again) == []
    assert all(verify(config.audit).ok for config in mixing.configs.values())


def shown_to(member: str, heard: list[tuple[str, str, bytes]], owner: str, job: JobSpec) -> np.ndarray | None:
    """What an owner showed a member under its mask: unit vector, norm and accuracy as ring elements."""
    size = 8 * (mixed_layout(job, "start").size + 2)
    shown = [content for me, peer, content in heard if (me, peer, len(content)) == (member, owner, size)]
    return np.frombuffer(shown[0], "<u8") if shown else None


def unit_error(difference: np.ndarray) -> float:
    """How far a difference of what b showed is from that of what it holds in rounds 2 and 1."""
    units = [Mixed.holding("b", round)["prompt.x"].ravel().astype(float) for round in (1, 2)]
    expected = units[1] / np.linalg.norm(units[1]) - units[0] / np.linalg.norm(units[0])
    return float(np.abs(np.ldexp(difference[: len(expected)].view(np.int64).astype(float), -26) - expected).max())


def test_a_dealer_cannot_add_a_vector_to_a_mixture(mixing: LyingServer) -> None:
    """Finding 4: the dealer adds a vector of its choice to the correction of one site's mixture. The site has its plain
    mixture or none."""
    size = mixed_layout(mixing.job, "start").size
    vector = np.full(size, 2**51, np.uint64)
    dealing = deal(mixing.job, "start", FOUR)
    dealing["d"] = bent(dealing["d"], len(FOUR), size, vector)
    mixing.tell("start", 1, FOUR)
    mix(mixing, "start", 1, FOUR, dealing)
    mixture = mixtures(mixing)["d"]
    plain = Mixed.plain(FOUR, 1)["d"]["prompt.x"]
    assert not mixture or np.abs(mixture["prompt.x"] - plain).max() < 1e-3, (
        f"d's mixture is off by {np.mean(mixture['prompt.x'] - plain):.5f}"
    )


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
    opened = []
    for number in range(4):
        server = LyingServer(configs, job, f"job-{number}")
        server.tell("start", 1, TWELVE[:6])
        beacons, _ = draw(server, 1, TWELVE[:6])
        opened.append(len(beacons) > 0)
        server.close(ended=False)
    assert opened == [True, False, False, False]
    assert all(verify(config.audit).ok for config in configs.values())
