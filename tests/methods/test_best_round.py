"""What a site remembers of its best round, and when a site alone stops."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from medfedvqa.core import Method, Site, create
from medfedvqa.core.kept_model import BEST, has_stopped, remembered
from medfedvqa.core.scores import RIGHT, VALIDATED
from medfedvqa.errors import ConfigError
from privacy import DPSettings

SMALL = {
    "rounds": 4, "local_epochs": 1, "batch_rows": 32, "reduction": 4, "hidden": 8, "learning_rate": 0.1, "blocks": 1,
    "answers": "closed", "length": 2,
}  # fmt: skip
METHODS = [
    ("fedavg", {}),
    ("fedavg", {"evaluated": "personal"}),
    ("prompt_pfl", {"local_baseline": False}),
    ("feddat", {"inference": "both"}),
    ("fedkd", {"evaluated": "personal", "mentor_blocks": 1}),
    ("creamfl", {"public_pairs": 8, "trunk": "medclip2-slake"}),
    ("san", {"pixels": 32, "width": 8}),
]
PRIVATE = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=4)
Make = Callable[..., Site]


def method_of(name: str, dp: DPSettings | None = None, **options: Any) -> Any:
    """A method with those of the options that it has."""
    plain: Method = create(name, {})
    known = type(plain).config_type.model_fields
    return create(name, {key: value for key, value in {**SMALL, **options}.items() if key in known}, dp)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_a_site_tests_the_best_of_what_it_would_have_tested_after_each_round(
    name: str, options: dict[str, Any], phantom_site: Site, federation: Any
) -> None:
    """The job is also cut after 1, 2, 3 and 4 rounds: the best of these models by validation rows is the tested one.

    What travels in the rounds is the same to the bit, so that nobody else learns which round was best.
    """
    names = ("one", "two")
    sites = {each: replace(phantom_site, name=each) for each in names}
    best = federation(method_of(name, keep="best", **options), sites)
    best.run()
    cut = []
    for rounds in range(1, 5):
        run = federation(method_of(name, rounds=rounds, **options), sites)
        run.run()
        cut.append(run)
    whole = cut[-1]
    for each in names:
        ended = [(run, run.states[each], run.received[-2 + names.index(each)][3]) for run in cut]
        right = [int(r.method.answered(sites[each], s, m, sites[each].data.validate).sum()) for r, s, m in ended]
        chosen = max(range(4), key=lambda number: (right[number], number))
        assert torch.equal(best.states[each][RIGHT], ended[chosen][1][RIGHT]), (right, chosen)
        assert torch.equal(best.states[each][VALIDATED], whole.states[each][VALIDATED])
        assert len(best.states[each][VALIDATED]) == 4 and BEST not in best.states[each]
    sent, plain = ([part for part in run.sent if part[0] != "evaluate"] for run in (best, whole))
    assert [part[:3] for part in sent] == [part[:3] for part in plain]
    for (*_, one), (*_, other) in zip(sent, plain, strict=True):
        assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def test_a_worse_round_does_not_replace_the_best_one_and_an_equal_one_does(site: Make) -> None:
    """Values are put by hand: those that answer every validation row, then none, then every row again."""
    there, method = site(questions=4), method_of("local", keep="best", own="head", tuning="classifier", answers=None)
    state = method.trained_alone(there, 1)
    answers = there.data.validate.answers
    right, wrong = int(answers.mode().values), (int(answers.mode().values) + 1) % len(there.data.answers)

    def always(answer: int) -> dict[str, torch.Tensor]:
        values = {key: torch.zeros_like(value) for key, value in state["values"].items()}
        values["head.answers.bias"][answer] = 1.0
        return values

    good, bad, later = ({**state, "values": always(answer)} for answer in (right, wrong, right))
    later["number"] = torch.tensor(2)
    one = remembered(method, there, good, {}, ())
    two = remembered(method, there, {**one, "values": bad["values"]}, {}, ())
    three = remembered(method, there, {**two, **later}, {}, ())
    assert one[BEST]["right"] == two[BEST]["right"] == three[BEST]["right"] > 0
    assert "number" not in two[BEST]["state"] and "number" in three[BEST]["state"]


@pytest.mark.parametrize(("curve", "patience", "stops"), [
    ([0.5, 0.6, 0.6], 2, False), ([0.5, 0.6, 0.6, 0.6], 2, True), ([0.7, 0.6, 0.5], 2, True),
    ([0.5, 0.6, 0.7], 2, False), ([0.5], 1, False), ([0.5, 0.5], 1, True), ([0.5, 0.5], None, False), ([], 1, False),
])  # fmt: skip
def test_patience_counts_rounds_since_the_best_one(curve: list[float], patience: int | None, stops: bool) -> None:
    """An equal round is no better one."""
    assert has_stopped({VALIDATED: torch.tensor(curve)}, patience) is stops


@pytest.mark.parametrize("name", ["local", "san"])
def test_a_site_alone_stops_and_nothing_says_so(name: str, site: Make, federation: Any) -> None:
    """At a rate that changes nothing no round is better than the first: training ends after it and `patience` more.

    The job has all its rounds, with a full curve, and its messages are those of a job without patience.
    """
    options = {"keep": "best", "learning_rate": 1e-9, "weight_decay": 0.0, "rounds": 6, "pixels": 32, "width": 8}
    patient = federation(method_of(name, patience=2, **options), {"one": site("one")}, forgetful=True)
    trained = []
    local = patient.method.local
    patient.method.local = lambda *arguments: trained.append(1) or local(*arguments)
    scores, plain = patient.run(), federation(method_of(name, **options), {"one": site("one")})
    assert scores == plain.run() and len(trained) == 3
    assert patient.states["one"][VALIDATED].tolist() == plain.states["one"][VALIDATED].tolist()
    assert [part[:3] for part in patient.sent] == [part[:3] for part in plain.sent]
    assert all(not upload for task, *_, upload in patient.sent if task != "evaluate")


def test_where_a_choice_would_cost_or_show_something_it_is_refused() -> None:
    """Private jobs, and sites whose messages would show when they stopped."""
    for options in ({"keep": "best"}, {"patience": 3}):
        with pytest.raises(ConfigError, match="validation rows without noise"):
            method_of("local", PRIVATE, weighting="uniform", **options)
    for name in ("fedavg", "prompt_pfl", "creamfl"):
        with pytest.raises(ConfigError, match="would show when it stopped"):
            method_of(name, patience=3, public_pairs=8)
    with pytest.raises(ConfigError, match="would show when it stopped"):
        method_of("prompt_pfl", ablation="AS1", patience=3)
