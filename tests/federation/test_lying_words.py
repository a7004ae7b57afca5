"""A server that tells sites different things of one computation: they compare its words before anything is opened."""

from dataclasses import replace

import pytest
from lying_dealer import Deal
from lying_network import CLOCK, Letter
from lying_server import (
    LyingServer,
    attempt_message,
    numbers,
    opened_sum,
    opening_message,
    read_opening,
    read_upload,
    refusals,
)
from lying_views import Exchange, MaskedUpload
from untrained import FIVE, Averaged, Make, Mixed

from audits import read, verify
from privacy.secagg import pairwise_masks

NAMES = ["prompt.x", "scale"]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that wait for each other's words look at the clock of the lying server's network."""
    monkeypatch.setattr(pairwise_masks, "time", CLOCK)


@pytest.fixture
def averaging(job_on_shares: Make) -> LyingServer:
    """Five sites that have trained, and wait for the server's word on their mean."""
    server = LyingServer(*job_on_shares(Averaged, FIVE))
    server.tell("start", 1, FIVE)
    return server


@pytest.fixture
def uploads(averaging: LyingServer) -> dict[str, MaskedUpload]:
    """What the five have uploaded to one attempt."""
    answers = averaging.tell("start/mean", 1, FIVE, attempt_message("one", FIVE, FIVE))
    found = {site: upload for site, answer in answers.items() if (upload := read_upload(answer, NAMES, "rows"))}
    assert found.keys() == set(FIVE)
    return found


@pytest.fixture
def uploaded(averaging: LyingServer, uploads: dict[str, MaskedUpload]) -> LyingServer:
    """The server that has these uploads."""
    return averaging


def assert_nothing_left(server: LyingServer, task: str) -> None:
    """No site has sent the server anything in this task, and all logs verify."""
    for config in server.configs.values():
        sent = [entry for entry in read(config.audit) if (entry.task, entry.peer) == (task, "server") and entry.tensors]
        assert not [entry for entry in sent if entry.direction == "out"]
        assert verify(config.audit).ok


def test_sites_that_were_told_different_numbers_of_an_attempt_upload_nothing(averaging: LyingServer) -> None:
    """One of five is told that it is the second attempt. It and all others refuse the job, and say why."""
    messages = {site: attempt_message("one", FIVE, FIVE, 2 if site == "e" else 1) for site in FIVE}
    answers = averaging.ask("start/mean", 1, messages)
    assert not [site for site, answer in answers.items() if answer.tensors and "fault" not in answer.tensors]
    assert refusals(averaging.configs["e"]) == ["views"]
    assert ["views"] in [refusals(averaging.configs[site]) for site in "abcd"]


@pytest.mark.parametrize(("asked", "misled"), [(FIVE, "e"), (FIVE[:4], "a")])
def test_sites_that_were_told_of_different_cohorts_upload_nothing(
    averaging: LyingServer, asked: tuple[str, ...], misled: str
) -> None:
    """One of all is told of five sites, the others of four: it hears nothing of them, and they hear nothing of it. If
    it is one of these four, nobody uploads."""
    views = {site: FIVE if site == misled else FIVE[:4] for site in asked}
    answers = averaging.ask("start/mean", 1, {site: attempt_message("one", view, view) for site, view in views.items()})
    assert "contributors" not in answers[misled].tensors
    assert refusals(averaging.configs[misled]) in ([], ["views"])
    if misled in FIVE[:4]:
        assert not [site for site, answer in answers.items() if "prompt.x" in answer.tensors]
        assert_nothing_left(averaging, "start/mean")


def test_members_that_are_asked_for_different_sums_open_none(uploaded: LyingServer) -> None:
    """Two of five are asked for the sum of all, three for that without `e`. None gives a share away."""
    sums = {member: FIVE if member in "ab" else FIVE[:4] for member in FIVE}
    messages = {member: opening_message("one", sites) for member, sites in sums.items()}
    answers = uploaded.ask("start/unmask", 1, messages)
    assert not any(read_opening(answer) for answer in answers.values())
    assert {answer.code for answer in answers.values()} >= {"views"}
    assert_nothing_left(uploaded, "start/unmask")


def test_a_member_alone_opens_nothing(uploaded: LyingServer) -> None:
    """The server asks one member, and keeps the others from answering it: without their word it gives no share."""
    (answer,) = uploaded.tell("start/unmask", 1, ["a"], opening_message("one", FIVE)).values()
    assert not read_opening(answer)


def test_words_that_the_server_forges_or_keeps_open_nothing(uploaded: LyingServer) -> None:
    """It changes what members say to each other of the sum; that counts as silence, and too few are left."""

    def forge(letter: Letter) -> list[Letter]:
        return [replace(letter, content=bytes(len(letter.content)))]

    uploaded.network.deliver = forge
    answers = uploaded.tell("start/unmask", 1, FIVE, opening_message("one", FIVE))
    assert not any(read_opening(answer) for answer in answers.values())


def test_a_sum_opens_although_a_members_words_are_late(uploaded: LyingServer, uploads: dict[str, MaskedUpload]) -> None:
    """The four others are enough: a server that delays one member delays no sum, and the sum is right."""

    def delay(letter: Letter) -> list[Letter]:
        return [replace(letter, delay=1000.0)] if letter.sender == "e" else [letter]

    uploaded.network.deliver = delay
    answers = uploaded.tell("start/unmask", 1, FIVE[:4], opening_message("one", FIVE))
    total = opened_sum(Exchange(FIVE, FIVE, uploads=uploads), answers)
    assert total is not None and int(total[-1]) == len(FIVE)
    rows = sum(int(Averaged.holding(site, 1)["rows"]) for site in FIVE)
    assert numbers(total)[-1] == rows


def test_sites_that_were_told_of_different_dealings_mix_nothing(job_on_shares: Make) -> None:
    """One site of a mixture is shown other seeds of what was not dealt than the rest. Nobody has a mixture."""
    server = LyingServer(*job_on_shares(Mixed, FIVE))
    server.tell("start", 1, FIVE)
    deal = Deal(server, "start", 1, FIVE, FIVE)
    assert deal.seed() and deal.toss() and deal.index is not None
    messages = deal.mixing_messages(deal.sets[deal.index])
    deal.seeds["e"] = bytes(32)
    messages["a"] = deal.mixing_messages(deal.sets[deal.index])["a"]
    deal.answers = server.ask("start/mix", 1, messages)
    assert deal.completed == []
    assert refusals(server.configs["a"]) == ["dealer"]
