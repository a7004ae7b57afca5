"""Options of the prompt method: rate and norm of prompts, a loss that is a sum, and what sites compare."""

from typing import Any

import numpy as np
import pytest
import torch

from medfedvqa.core import create
from medfedvqa.core.method import TESTED, Answering
from medfedvqa.errors import ConfigError
from medfedvqa.models import HEAD, PROMPT
from privacy import DPSettings

SMALL: dict[str, Any] = {
    "rounds": 2, "local_epochs": 1, "batch_rows": 6, "hidden": 8, "dropout": 0.0, "local_baseline": False,
    "optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.01,
}  # fmt: skip
NAMES = ("here", "there", "yonder")


def moved(method: Any, site: Any, start: str) -> torch.Tensor:
    """How far one round moves the values whose names begin so."""
    before = method.setup(site)
    after, _ = method.start(site, before, {}, 1)
    return torch.cat([(after["values"][n] - v).flatten() for n, v in before["values"].items() if n.startswith(start)])


def test_prompts_have_a_rate_of_their_own(site) -> None:
    """One step of plain gradient descent moves prompts ten times as far at ten times their rate, and the head alike."""
    one, ten = (create("prompt_pfl", {**SMALL, "batch_rows": 100, "prompt_rate": rate}) for rate in (10.0, 100.0))
    assert torch.allclose(moved(ten, site(), PROMPT), 10 * moved(one, site(), PROMPT), rtol=1e-2, atol=1e-6)
    assert torch.equal(moved(ten, site(), HEAD), moved(one, site(), HEAD)) and moved(one, site(), PROMPT).any()


def test_a_rate_of_their_own_decays_with_the_head_s_and_lasts_over_rounds(site) -> None:
    """In the second round both rates are a tenth, also where the optimiser continues from its memory."""
    method = create("prompt_pfl", {**SMALL, "decay": 0.1, "decay_every": 1, "prompt_rate": 0.5})
    here, rates = site(), []
    state = method.setup(here)
    for number in (1, 2):
        state, _ = method.train(here, state, {}, number)
        rates.append({name: memory["param_groups"][0]["lr"] for name, memory in state["memory"].items()})
    assert rates[0] == pytest.approx({"prompts": 0.5, "head": 0.01})
    assert rates[1] == pytest.approx({"prompts": 0.05, "head": 0.001})


def test_without_momentum_steps_are_those_of_algorithm_1(site) -> None:
    """P less the rate times the gradient, in two steps from the same start; momentum moves the second one further."""
    method = create("prompt_pfl", SMALL)
    here = site()
    start = method.setup(here)
    trainer = method._trainer(here, {})
    values = {name: value.clone() for name, value in start["values"].items()}
    for (draw,) in trainer.draws(here.task_seed("train", 1)):
        part = trainer.part(values, 1)
        rows = trainer._rows.rows(trainer.train_rows, draw.chosen)
        logits = trainer.model.logits(part.values, rows.batch)
        loss = torch.nn.functional.cross_entropy(logits, rows.answers) + method._penalty(trainer)(part.values)
        gradients = torch.autograd.grad(loss, list(part.values.values()))
        values = {n: v - 0.01 * g for (n, v), g in zip(values.items(), gradients, strict=True)}
    after, _ = method.start(here, start, {}, 1)
    assert all(torch.allclose(after["values"][name], value, atol=1e-6) for name, value in values.items())
    pushed, _ = create("prompt_pfl", {**SMALL, "momentum": 0.9}).start(here, start, {}, 1)
    assert not all(torch.allclose(pushed["values"][name], value, atol=1e-6) for name, value in values.items())


def test_prompts_in_the_norm_of_states_work_the_same_at_any_length(site) -> None:
    """Ten times as long prompts, own and shared, give the same logits; free ones give others."""
    for norm, same in (("states", True), ("free", False)):
        method = create("prompt_pfl", {**SMALL, "prompt_norm": norm, "prompt_std": 0.5})
        here = site()
        values = method.setup(here)["values"]
        shared = {name: 2 * value.flip(0) for name, value in values.items() if name.startswith(PROMPT)}
        longer = {name: 10 * value if name.startswith(PROMPT) else value for name, value in values.items()}
        one, ten = (
            Answering(method.model(here, own), each, method._space(here)).probabilities(here, here.data.test)
            for each, own in ((values, shared), (longer, {name: 10 * value for name, value in shared.items()}))
        )
        assert torch.allclose(one, ten, atol=1e-6) == same


def test_a_loss_that_is_a_sum_over_rows_weighs_its_penalties_by_one_over_their_number(site) -> None:
    """Bit for bit training with alpha and beta divided by the site's training rows; refused where these are private."""
    here = site()
    rows = len(here.data.train)
    summed = create("prompt_pfl", {**SMALL, "loss": "sum", "alpha": 0.5 * rows, "beta": 0.25 * rows})
    mean = create("prompt_pfl", {**SMALL, "alpha": 0.5, "beta": 0.25})
    state = mean.setup(here)
    message = {
        name: np.full(value.shape, 0.1, np.float32)
        for name, value in mean.reply(mean._trainer(here, {}), state).items()
    }
    after = [method.train(here, state, message, 2)[0]["values"] for method in (summed, mean)]
    assert all(torch.allclose(value, after[1][name], atol=1e-7) for name, value in after[0].items())
    unweighed = create("prompt_pfl", {**SMALL, "alpha": 0.0, "beta": 0.0}).train(here, state, message, 2)[0]["values"]
    assert not all(torch.allclose(value, after[1][name], atol=1e-4) for name, value in unweighed.items())
    with pytest.raises(ConfigError, match="number of rows, which is private"):
        create("prompt_pfl", {"loss": "sum", "answers": "closed"}, DPSettings(noise=1.0, count_noise=1.0))


def uploads(federation, site, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """A run of three sites, and each one's last upload as a vector."""
    run = federation(create("prompt_pfl", {**SMALL, **options}), {name: site(name) for name in NAMES})
    run.run()
    sent = run.uploads("train", 2)
    return run, {name: np.concatenate([sent[name][key].ravel() for key in sorted(sent[name]) if key != "accuracy"])
                 for name in NAMES}  # fmt: skip


def cosines(vectors: dict[str, np.ndarray]) -> list[float]:
    first, *others = vectors.values()
    return [float(first @ other / np.linalg.norm(first) / np.linalg.norm(other)) for other in others]


FAR = {"prompt_std": 1.0, "prompt_rate": 0.05, "alpha": 0.0, "optimizer": "adam"}


def test_similarity_of_changes_is_not_that_of_the_common_start(federation, site) -> None:
    """Whole prompts that start far from zero are alike whatever training does, and weighed by accuracy alone; their
    changes are not, and the weights that follow differ from those of accuracy."""
    whole, changed = uploads(federation, site, **FAR), uploads(federation, site, **FAR, compared="changes")
    assert min(cosines(whole[1])) > 0.98 and min(cosines(changed[1])) < 0.6
    weights = []
    for run, _ in (whole, changed):
        last = run.hub.history.rounds[-1]
        accuracy = [last.accuracy[name] for name in NAMES[1:]]
        by_accuracy = accuracy[0] / sum(accuracy) if sum(accuracy) else 0.5
        weights.append(abs(np.mean([table[0][1] for table in last.reliability.values()]) - by_accuracy))
    assert weights[0] < 0.02 < weights[1]


def test_sites_use_the_others_prompts_whether_these_or_their_changes_travel(federation, site) -> None:
    """Two sites: what travels is P, or P less the common start; the model joins the other's whole prompt either way."""
    for compared in ("prompts", "changes"):
        method = create("prompt_pfl", {**SMALL, "compared": compared})
        run = federation(method, {name: site(name) for name in NAMES[:2]})
        run.run()
        start = {name: value for name, value in method.setup(site("here"))["values"].items() if name.startswith(PROMPT)}
        theirs = run.states["there"]["values"]
        here = run.sites["here"]
        model = method.answering_with(here, run.states["here"], run.states["here"][TESTED]).model
        for name, value in start.items():
            assert torch.allclose(model.shared[name], theirs[name], atol=1e-6)
            sent = torch.from_numpy(run.uploads("train", 2)["there"][name])
            assert torch.allclose(sent, theirs[name] - (value if compared == "changes" else 0), atol=1e-6)
