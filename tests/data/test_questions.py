"""Closed and open questions: which rows a site has, which answers it can give, and what a job must say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from medfedvqa.core import Site, create
from medfedvqa.data import CLOSED_ANSWERS, Row, Split, VQAData, build_site, fold, public_list, read, training_answers
from medfedvqa.data.site_data import SiteData, united
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.federation.job import JobSpec

ROWS = [
    ("is it bright", "Yes", True, "train"), ("which organ is it", "the Liver", False, "train"),
    ("what is missing", "", False, "train"), ("is it dark", "No", True, "train"),
    ("is it bright", "yes", True, "test"), ("which organ is it", "the spleen", False, "test"),
]  # fmt: skip


def data_of(rows: list[tuple[str, str, bool, str]] = ROWS) -> VQAData:
    made = [
        Row(n, "chest", part, closed, question, answer, f"patient {n}", Path(str(n)))
        for n, (question, answer, closed, part) in enumerate(rows)
    ]
    return VQAData("small", ("chest",), made, drawn, publishes_validation=True)


def drawn(row: Row, size: int) -> torch.Tensor:
    return torch.rand(1, size, size, generator=torch.Generator().manual_seed(int(row.image.name)))


def site_of(questions: str, answers: tuple[str, ...] | None = None) -> SiteData:
    return build_site(data_of(), "chest", Split(questions=questions), answers)


def test_each_kind_has_its_rows_and_a_question_without_an_answer_has_none() -> None:
    """Closed is the default; the parts of a row do not depend on the kind that is asked for."""
    asked = {
        kind: [part.questions for part in site_of(kind, ("yes", "no")).parts] for kind in ("closed", "open", "all")
    }
    assert asked["closed"] == [("is it bright", "is it dark"), (), ("is it bright",)]
    assert asked["open"] == [("which organ is it",), (), ("which organ is it",)]
    assert asked["all"] == [
        ("is it bright", "which organ is it", "is it dark"),
        (),
        ("is it bright", "which organ is it"),
    ]
    assert Split() == Split(questions="closed")


def test_a_site_s_own_answers_are_those_of_its_rows_of_the_kind() -> None:
    assert site_of("all").answers == ("no", "the liver", "yes") and site_of("closed").answers == ("no", "yes")
    assert site_of("all").test.answers.tolist() == [2, -1]


def test_rows_remember_their_kind_wherever_they_go() -> None:
    """Chosen, and put together with another site's."""
    data = site_of("all")
    assert data.train.are_closed.tolist() == [True, False, True]
    assert data.train.chosen(torch.tensor([1])).are_closed.tolist() == [False]
    assert united([data, site_of("closed")]).test.are_closed.tolist() == [True, False, True]


def test_a_kind_that_an_organ_lacks_or_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DataError, match="no open questions"):
        build_site(data_of(ROWS[:1]), "chest", Split(questions="open"))
    with pytest.raises(ConfigError, match="'closed', 'open' or 'all'"):
        Split(questions="none")


def test_the_bundled_list_is_a_public_list_of_whole_answers() -> None:
    """Folded, distinct, sorted, and far longer than FedP3's filter."""
    answers = training_answers()
    assert public_list(answers) == answers == tuple(sorted(answers)) and len(answers) == 614
    assert all(answer == fold(answer) for answer in answers) and {"yes", "no", "liver"} <= {*answers}


@pytest.mark.parametrize("reader", ["vqa-rad", "slake"])
def test_the_bundled_list_holds_every_training_answer_of_the_published_sets(reader: str, data_folder: Path) -> None:
    """A training row is never left out for its answer."""
    answers = {fold(row.answer) for row in read(reader, data_folder / reader).rows if row.split == "train"} - {""}
    assert answers <= {*training_answers()}


@pytest.mark.parametrize("method", ["fedavg", "ridge", "fedp3"])
def test_a_shared_head_for_open_questions_needs_a_longer_list(method: str) -> None:
    """The list of 48 closed answers would leave almost all rows out, silently."""
    job = {"method": method, "split": {"questions": "all"}}
    with pytest.raises(ConfigError, match="give the option 'answers' as 'public'"):
        JobSpec.from_dict(job)
    assert JobSpec.from_dict({**job, "options": {"answers": "public"}}).build().public_answers == training_answers()
    JobSpec.from_dict({"method": "fedavg", "split": {"questions": "open"}, "options": {"own": "head"}})


def test_a_job_of_an_earlier_version_asks_closed_questions() -> None:
    """Its split says nothing of the kind."""
    assert JobSpec.from_dict({"method": "fedavg", "split": {"kind": "patient", "seed": 3}}).split.questions == "closed"


def test_the_kind_of_each_test_row_stays_in_the_site_s_state(site: Callable[..., Site]) -> None:
    """So that accuracies can be told apart where the state is; what leaves are the counts of before."""
    there = replace(site(), data=site_of("all"), _derived={})
    method = create("local", {"tuning": "classifier", "own": "head", "rounds": 1})
    state, up = method.evaluate(there, method.start(there, method.setup(there), {}, 1)[0], {}, 1)
    assert state["closed"].tolist() == [True, False] and state["right"].shape == (2,)
    assert up.keys() == {spec.name for spec in method.exchange(there.backbone.shape).task("evaluate").up}


def test_a_list_without_any_answer_of_the_site_is_refused(site: Callable[..., Site]) -> None:
    """Without differential privacy, which would make of the refusal a statement about patients."""
    method = create("fedavg", {"answers": ["left lobe", "right lobe"]})
    with pytest.raises(DataError, match="list the classes or answers"):
        method.check_rows(site_of("all"))
    create("fedavg", {"answers": "public"}).check_rows(site_of("closed"))


@pytest.mark.parametrize("method", ["local", "fedavg", "bag_of_words", "ridge", "prompt_pfl", "feddat", "fedp3"])
def test_a_site_with_three_rows_trains_and_is_tested(site: Callable[..., Site], method: str) -> None:
    """Three training rows, none to validate on, and a test question that it has never seen."""
    rows = [ROWS[0], ROWS[1], ROWS[3], ("what lies on the left", "the spleen", False, "test")]
    data = build_site(data_of(rows), "chest", Split(questions="all"))
    there = replace(site(), data=data, _derived={})
    options = {"units": 32} if method == "ridge" else {"rounds": 1, "local_epochs": 1}
    options |= {"blocks": 1} if method == "fedp3" else {}
    made = create(method, {**options, **({} if method in ("bag_of_words", "prompt_pfl") else {"answers": "public"})})
    state, up = made.start(there, made.setup(there), {}, 1)
    down = {
        name: up[name] for name in (spec.name for spec in made.exchange(there.backbone.shape).task("evaluate").down)
    }
    assert int(made.evaluate(there, state, down, 1)[1]["rows"]) == 1


def test_the_closed_list_is_still_what_it_was() -> None:
    """Heads of earlier jobs have an output for each of its answers, in this order."""
    assert len(CLOSED_ANSWERS) == 48 and CLOSED_ANSWERS[:2] == ("no", "yes")
