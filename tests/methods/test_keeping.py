"""What a site trains after its last release, and which model it keeps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from medfedvqa.core import Method, Site, Tensors, create
from medfedvqa.core.kept_model import KEPT, Keeping
from medfedvqa.core.scores import FINISHED, RIGHT
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.history import KEPT_MODELS
from privacy import DPSettings

SMALL = {
    "rounds": 2, "local_epochs": 1, "batch_rows": 6, "reduction": 4, "hidden": 8, "learning_rate": 0.01, "blocks": 1,
    "answers": "closed", "finish_epochs": 3,
}  # fmt: skip
PERSONAL = [
    ("prompt_pfl", {}),
    ("fedavg", {"own": "head", "weighting": "uniform"}),
    ("fedavg", {"evaluated": "personal", "weighting": "uniform"}),
    ("fedavg", {"weighting": "uniform"}),
    ("fedavg", {"weighting": "uniform", "schedule": "stepwise", "local_unit": "batches"}),
    ("feddat", {}),
    ("fedp3", {"own": "head", "weighting": "uniform", "tuning": "adapter"}),
    ("fedkd", {"evaluated": "personal", "weighting": "uniform", "mentor_blocks": 1}),
    ("feddc", {"own": "head", "weighting": "uniform"}),
    ("creamfl", {"public_pairs": 8, "trunk": "medclip2-slake", "weighting": "uniform"}),
    ("local", {"weighting": "uniform"}),
    ("san", {}),
    ("mevf", {"pixels": 32}),
]
PRIVATE = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=4)
Make = Callable[..., Site]


def method_of(name: str, options: dict[str, Any], dp: DPSettings | None = None) -> Any:
    """A method with those of the options that it has."""
    plain: Method = create(name, {})
    known = type(plain).config_type.model_fields
    return create(name, {key: value for key, value in {**SMALL, **options}.items() if key in known}, dp)


def after_two_rounds(method: Any, site: Site) -> tuple[dict[str, Any], Tensors]:
    """A site's state before the evaluation, and the message that comes with it: what it sent last, a little moved."""
    state, received = method.setup(site), {}
    for number, (task, round) in enumerate(list(method.tasks())[:-1], 1):
        spec = method.exchange(site.backbone.shape).task(task)
        down = {each.name: np.full(each.shape, 0.05, np.float32) for each in spec.down}
        state, reply = method.handle(spec, site, state, down if task != "start" else {}, round)
        assert number == round
        received = {each.name: np.float32(1.01) * reply[each.name] for each in method.exchange(site.backbone.shape)
                    .task("evaluate").down if each.name in reply}  # fmt: skip
    return state, received


@pytest.mark.parametrize(
    "dp", [pytest.param(None, id="plain", marks=pytest.mark.slow), pytest.param(PRIVATE, id="private")]
)
@pytest.mark.parametrize(("name", "options"), PERSONAL, ids=[f"{n}-{i}" for i, (n, _) in enumerate(PERSONAL)])
def test_a_site_finishes_its_model_after_the_last_release_and_keeps_what_is_good(
    site: Make, name: str, options: dict[str, Any], dp: DPSettings | None
) -> None:
    """For every method with a personal part: training moves the values, no task is charged for it, the kept model is
    on validation rows the finished one or better, and the released model's test rows stay what they are."""
    method, here = method_of(name, options, dp), site("here")
    state, received = after_two_rounds(method, here)
    released = method.answered(here, state, received, here.data.test)
    last, counts = method.evaluate(here, state, received, 2)
    assert method.cost("evaluate") == type(method.cost("evaluate"))()
    assert torch.equal(last[RIGHT], released) and int(counts["correct"]) == int(released.sum())
    kept = last[KEPT]
    assert set(kept[RIGHT]) == set(KEPT_MODELS) and set(FINISHED) <= counts.keys()
    again = Keeping(method, here, state, received, 2)
    right = {name: int(again.right(name, here.data.validate).sum()) for name in kept[RIGHT]}
    assert kept["model"] == "finished" or right[kept["model"]] == max(right.values()) > right["finished"]
    assert KEPT_MODELS[int(counts["kept_model"])] == kept["model"]
    assert torch.equal(kept[RIGHT]["received"], released)
    before, after = state["values"], again.finished["values"]
    assert any(not torch.equal(before[value], after[value]) for value in before)


def test_finishing_is_training_without_noise_from_the_site_s_own_state(site: Make) -> None:
    """Of a private job: the same values as plain training of the same passes from the released ones, bit for bit, with
    a new optimiser, since the moments of the old one are those of the noise."""
    private, plain, here = method_of("prompt_pfl", {}, PRIVATE), method_of("prompt_pfl", {}), site("here")
    state, received = after_two_rounds(private, here)
    assert state["memory"]
    finished = Keeping(private, here, state, received, 2).finished
    longer = plain.without_others(3)
    by_hand, _ = longer.train(here, {**state, "memory": {}}, received, 2)
    assert all(torch.equal(by_hand["values"][name], value) for name, value in finished["values"].items())


def test_a_model_trained_alone_is_that_of_a_site_without_others_and_without_noise(site: Make) -> None:
    """Bit for bit, and equal steps are the same, trained on for the passes of finishing."""
    private, plain, here = method_of("feddat", {}, PRIVATE), method_of("feddat", {}), site("here")
    state, received = after_two_rounds(private, here)
    keeping = Keeping(private, here, state, received, 2)
    alone = plain.setup(here)
    for number in (1, 2):
        alone, _ = plain.train(here, alone, {}, number)
    assert all(torch.equal(alone["values"][name], value) for name, value in keeping.alone["values"].items())
    longer, _ = plain.without_others(3).train(here, alone, {}, 2)
    assert all(torch.equal(longer["values"][name], value) for name, value in keeping.alone_equal["values"].items())


def test_where_a_site_has_no_model_finishing_is_refused_in_one_sentence() -> None:
    """Sites that never train; a method without a model of its sites' own."""
    with pytest.raises(ConfigError, match="never train: leave out 'finish_epochs'"):
        create("fedavg", {"finish_epochs": 1, "evaluated": "personal", "unseen": ("far",)})
    with pytest.raises(ConfigError, match="keeps no model of its own at a site: leave out 'finish_epochs'"):
        create("unicon", {"finish_epochs": 1})
