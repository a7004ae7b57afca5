"""What one patient changes in a private step, through the real handlers of every method: at most C, and nothing else.

Each run with all patients is compared with a run without one of them, under the same mechanism randomness and step by
step from the same released values. `MEDFEDVQA_ALL_PATIENTS=1` leaves out every patient in turn, and tries more options.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from medfedvqa.attack.neighbours import QUICK, ROUNDING, Move, Neighbours
from medfedvqa.core import create, method_names, method_type
from medfedvqa.data import Row, VQAData, phantom
from medfedvqa.errors import ConfigError
from medfedvqa.models import Backbone, load_backbone
from medfedvqa.models.tuning import Kind as TuningKind
from privacy import DPSettings, SettingsError

ALL_PATIENTS = os.environ.get("MEDFEDVQA_ALL_PATIENTS") == "1"
Options = dict[str, Any]


def quick(name: str, **options: object) -> Options:
    """Those of the options that the method has; all others keep their defaults."""
    known = method_type(name).config_type.model_fields
    return {key: value for key, value in {**QUICK, **options}.items() if key in known}


def private(name: str, rate: float = 1.0, **options: object) -> DPSettings:
    return DPSettings(noise=1.0, count_noise=1.0, sample_rate=rate, **options)


def is_private(name: str) -> bool:
    """Whether the method trains under differential privacy at all."""
    try:
        create(name, quick(name), private(name))
    except ConfigError:
        return False
    return True


PRIVATE_METHODS = [name for name in method_names() if is_private(name)]
CASES: list[tuple[str, Options]] = [
    *((name, {}) for name in PRIVATE_METHODS),
    *(("fedavg", {"tuning": kind}) for kind in get_args(TuningKind) if kind != "adapter"),
    *(("fedavg", {"tuning": "classifier", "fusion": fusion}) for fusion in ("concat", "attend", "text")),
    ("fedp3", {"filter": "random"}),
    ("prompt_pfl", {"views": 3}),
]
LARGE = (
    CASES if ALL_PATIENTS else [case for case in CASES if case[0] in ("prompt_pfl", "feddat", "san") and not case[1]]
)
"""The cases that a large site is tried with; all of them take half an hour."""


IN_EVERY_TIER = {"prompt_pfl", "fedavg", "feddat"}
"""Methods that `make test` tries with their defaults: one that mixes, one that averages, one with a teacher."""


def cases(chosen: list[tuple[str, Options]]) -> pytest.MarkDecorator:
    """A test for each of these cases, named by method and options."""
    return pytest.mark.parametrize(
        "name, options",
        [
            pytest.param(
                name,
                options,
                id="-".join([name, *map(str, options.values())]),
                marks=() if name in IN_EVERY_TIER and not options else pytest.mark.slow,
            )
            for name, options in chosen
        ],
    )


each_case, each_large_case = cases(CASES), cases(LARGE)
each_rate = pytest.mark.parametrize("rate", [1.0, 0.5])


def check(moves: list[Move], alone: bool) -> None:
    """The claim, for one patient's moves. `alone`: each patient has a pass alone, so that not even rounding differs."""
    for move in moves:
        assert move.distance <= 1.0
        assert move.others_moved <= (1e-12 if alone else ROUNDING * move.others)
        assert move.others_alike


def left_out(neighbours: Neighbours) -> list[str]:
    """Patients at the beginning, in the middle and at the end of training, one to validate on, and one to test on."""
    train, validate, test = neighbours.patients
    if ALL_PATIENTS:
        return list(dict.fromkeys((*train, *validate, *test)))
    return list(dict.fromkeys((train[0], train[1], train[len(train) // 2], train[-1], validate[0], test[-1])))


def check_all(neighbours: Neighbours, name: str, options: Options, rate: float) -> None:
    """The claim, and that the test could see a patient who moves a step."""
    method = create(name, quick(name, **options), private(name, rate))
    patients = left_out(neighbours)
    reference, everybody = neighbours.run(method, watched=patients), neighbours.contents()
    moves = {patient: neighbours.moves(method, reference, patient) for patient in patients}
    for patient, each in moves.items():
        check(each, method.jumps)
        assert neighbours.contents(patient) == {key: rows for key, rows in everybody.items() if key != patient}
    assert max(move.distance for each in moves.values() for move in each if move.drawn) > 0.01
    assert any(not move.drawn for each in moves.values() for move in each)


@pytest.fixture(scope="module")
def small(single: Backbone) -> Neighbours:
    """Twelve phantom patients on a tiny CLIP."""
    return Neighbours(phantom.read(("site-001",)), "site-001", single)


@pytest.fixture(scope="module")
def large() -> Neighbours:
    """Eighty phantom patients, some with more rows than a step takes of one, on the bundled backbone."""
    return Neighbours(phantom.read(("chest",)), "chest", load_backbone("medclip2-slake", {}, "cpu"))


def test_every_kind_of_private_training_is_among_the_cases() -> None:
    """The cases follow the registry: a method that trains privately cannot be left out."""
    assert {"prompt_pfl", "fedavg", "fedp3", "feddat", "fedkd", "creamfl", "mevf"} <= set(PRIVATE_METHODS)


@each_rate
@each_case
def test_a_patient_moves_a_step_by_at_most_the_clipping_norm(
    small: Neighbours, name: str, options: Options, rate: float
) -> None:
    """With and without a patient the sums before noise differ by at most C, and by its own contribution alone;
    the coins, the capped rows, the parts and the answers' numbers of all others are the same."""
    check_all(small, name, options, rate)


@pytest.mark.release
@each_rate
@each_large_case
def test_a_patient_of_a_large_site_moves_a_step_by_at_most_the_clipping_norm(
    large: Neighbours, name: str, options: Options, rate: float
) -> None:
    """The same claim where patients have more rows than are kept, on a real backbone."""
    check_all(large, name, options, rate)


@each_rate
def test_a_patient_moves_a_step_of_the_head_of_components_by_at_most_the_clipping_norm(rate: float) -> None:
    """The same claim for the head that is made for private training, which a bundled backbone alone comes with."""
    neighbours = Neighbours(phantom.read(("site-001",)), "site-001", load_backbone("medclip2-vqarad"))
    options = {"tuning": "classifier", "fusion": "components", "question_input": "tower"}
    check_all(neighbours, "fedavg", options, rate)


FIXED = {*QUICK, "sees", "order"}
"""Options that the next test leaves as they are: what makes it quick, and what a private job refuses."""
NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "dropout": st.sampled_from([0.0, 0.3, 0.97]),
    "views": st.integers(1, 3),
    "temperature": st.sampled_from([0.2, 1.0, 5.0]),
    "pretraining": st.integers(0, 2),
    "start_round": st.integers(1, 2),
}


def options_of(name: str) -> st.SearchStrategy[Options]:
    """Any choice of each option that has choices, and of the numbers that change what a row is worth."""
    fields = method_type(name).config_type.model_fields
    choices = {key: field.annotation for key, field in fields.items() if get_origin(field.annotation) is Literal}
    chosen = {key: st.sampled_from(get_args(kinds)) for key, kinds in choices.items() if key not in FIXED}
    numbers = {key: strategy for key, strategy in NUMBERS.items() if key in fields}
    return st.fixed_dictionaries({}, optional={**chosen, **numbers})


PRIVACY = st.fixed_dictionaries(
    {
        "rate": st.sampled_from([1.0, 0.5]),
        "clip": st.sampled_from([0.01, 1.0, 100.0]),
        "patient_rows": st.integers(1, 8),
        "physical_patients": st.integers(1, 5),
    }
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "prompt_pfl" else pytest.mark.slow) for name in PRIVATE_METHODS],
)
@settings(
    max_examples=40 if ALL_PATIENTS else 4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # to shrink a failure would train for minutes
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_patient_moves_a_step_by_at_most_the_clipping_norm_with_any_options(
    single: Backbone, name: str, data: st.DataObject
) -> None:
    """The claim holds whatever the job's options, and however patients are capped, chunked and clipped."""
    options, privacy = data.draw(options_of(name)), data.draw(PRIVACY)
    neighbours = Neighbours(phantom.read(("site-001",)), "site-001", single)
    patient = data.draw(st.sampled_from([key for part in neighbours.patients for key in part]))
    try:
        method = create(name, {**quick(name), **options}, private(name, **privacy))
        reference = neighbours.run(method, watched=[patient])
    except (ConfigError, SettingsError):
        reject()
    check(neighbours.moves(method, reference, patient), method.jumps)


SIDES = ("left", "right")


def drawn(row: Row, size: int) -> torch.Tensor:
    """The picture that a row names by its seed."""
    return torch.rand(1, size, size, generator=torch.Generator().manual_seed(int(row.image.name)))


def rows_with_a_rare_answer() -> Iterator[Row]:
    """Six patients; of the fourth alone an answer is `both`."""
    for index in range(12):
        answer = "both" if index == 6 else SIDES[index % 2]
        part = "validate" if index >= 10 else "train"
        yield Row(index, "chest", part, True, "which side", answer, f"patient {index // 2}", Path(str(index)))


@pytest.mark.parametrize("name", ["prompt_pfl", "fedavg", "san"])
def test_a_patient_with_a_rare_answer_changes_no_other_s_answer(single: Backbone, name: str) -> None:
    """A model has no output more because one patient has an answer that nobody else gives."""
    rows = VQAData("rare", ("chest",), list(rows_with_a_rare_answer()), drawn)
    neighbours = Neighbours(rows, "chest", single)
    head = {"own": "head"} if name == "fedavg" else {}
    method = create(name, quick(name, **head), private(name))
    reference = neighbours.run(method)
    without = neighbours.run(method, "patient 3")
    for one, other in zip(reference.steps, without.steps, strict=True):
        assert [total.shape for total in one.sums] == [total.shape for total in other.sums]
