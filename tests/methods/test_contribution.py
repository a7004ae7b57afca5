"""What a part of a model is said to contribute is what the answers lose without it, counted by other means."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from medfedvqa.core import create
from medfedvqa.core.contribution import PARTS, contributions
from medfedvqa.core.contribution import tests_of as rows_of_tests
from medfedvqa.core.method import TESTED
from medfedvqa.core.scores import RIGHT
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.models import PROMPT
from medfedvqa.models.ngrams import NGRAMS

STRONG: dict[str, Any] = {
    "rounds": 3, "local_epochs": 4, "batch_rows": 6, "hidden": 16, "dropout": 0.0, "local_baseline": False,
    "fusion": "concat", "learning_rate": 0.01, "prompt_rate": 0.3, "prompt_std": 1.0, "prompt_norm": "states",
    "compared": "changes", "loss": "sum",
}  # fmt: skip
SEEING = {**STRONG, "question_input": "tower", "prompt_rate": 3.0}
WEAK = {**SEEING, "prompt_rate": 1e-6, "prompt_std": 1e-3, "prompt_norm": "free", "placing": "after"}
NAMES = ("here", "there", "yonder")


@pytest.fixture
def finished(federation, site):
    """A run of three small sites: the method, and each site with its state."""

    def make(method: str = "prompt_pfl", options: dict[str, Any] = STRONG) -> tuple[Any, dict[str, Any]]:
        sites = {name: replace(each, data=with_tests(each.data)) for name in NAMES for each in [site(name)]}
        run = federation(create(method, options), sites)
        run.run()
        return run.method, {name: (run.sites[name], run.states[name]) for name in NAMES}

    return make


def with_tests(data: Any) -> Any:
    """The site with its training rows as test rows, which make more of them; each picture has one answer."""
    train = replace(data.train, answers=data.train.pictures % len(data.answers))
    return replace(data, train=train, test=train)


def by_hand(method: Any, kept: dict[str, Any], part: str) -> tuple[int, float]:
    """The right answers that a part is worth over all sites, in rows, and as a mean over sites."""
    losses = []
    for place, name in enumerate(NAMES):
        site, state = kept[name]
        values, received = state["values"], {key: value.numpy() for key, value in state[TESTED].items()}
        own = {key: value for key, value in values.items() if key.startswith(PROMPT)}
        shared = method.model(site, state[TESTED]).shared
        unshared = create("prompt_pfl", {**method.config.model_dump(), "ablation": "AS2"})
        if part == "own_prompts":
            right = unshared.answered(site, {"values": {**values, **shared}}, {}, site.data.test)
        elif part == "shared_prompts":
            right = unshared.answered(site, state, {}, site.data.test)
        elif part == "exchanged_prompts":
            other = kept[NAMES[(place + 1) % 3]][1]["values"]
            right = method.answered(
                site, {"values": {**values, **{key: other[key] for key in own}}}, received, site.data.test
            )
        elif part == "tuning":
            untuned = create("prompt_pfl", {**method.config.model_dump(), "ablation": "AS1"})
            right = untuned.answered(site, state, {}, site.data.test)
        elif part == "ngrams":
            weight = values["head.hidden.weight"].clone()
            weight[:, -NGRAMS:] = 0
            right = method.answered(
                site, {"values": {**values, "head.hidden.weight": weight}}, received, site.data.test
            )
        else:
            dark = replace(site, data=replace(site.data, pictures=site.data.pictures.blank()), _derived={})
            right = method.answered(dark, state, received, dark.data.test)
        losses.append(int(state[RIGHT].sum()) - int(right.sum()))
    rows = [len(kept[name][0].data.test) for name in NAMES]
    return sum(losses), sum(loss / count for loss, count in zip(losses, rows, strict=True)) / 3


def test_each_part_s_figures_are_those_of_the_same_model_without_it_by_hand(finished) -> None:
    """For all six parts: the accuracy lost is that of AS1, AS2, other values, weights of 0 or black pictures, tested by
    the trainer; at least as many answers change as right ones are lost; the same for the test rows alone."""
    losses = dict.fromkeys(PARTS, 0)
    for options in (SEEING, {**SEEING, "question_input": "both", "dropout": 0.5}):
        method, kept = finished(options=options)
        parts = contributions(method, kept)
        assert list(parts) == [part for part in PARTS if part != "ngrams" or options["question_input"] == "both"]
        rows = sum(len(site.data.test) for site, _ in kept.values())
        for part, figures in parts.items():
            right, lost = by_hand(method, kept, part)
            assert figures["lost"] == pytest.approx(lost, abs=1e-9)
            assert figures["rows"] == rows and figures["changed"] >= abs(right)
            low, high = figures["interval"] or (lost, lost)
            assert low <= lost <= high
            losses[part] += abs(right)
        alone = {
            name: (replace(site, data=rows_of_tests(site.data), _derived={}), state)
            for name, (site, state) in kept.items()
        }
        assert contributions(method, alone) == parts
    assert all(losses.values()), losses


def test_the_picture_that_is_taken_away_is_black(finished) -> None:
    """As many answers change as on black pictures, by the probabilities of the model with which a site answers; on
    another picture of the site others do."""
    method, kept = finished(options={**SEEING, "prompt_rate": 0.1, "local_epochs": 10})
    changed = {"black": 0, "first": 0}
    for site, state in kept.values():
        test = site.data.test
        dark = replace(site, data=replace(site.data, pictures=site.data.pictures.blank()), _derived={})
        first = replace(test, pictures=torch.zeros_like(test.pictures))
        whole, black, other = (
            method.answering_with(each, state, state[TESTED]).probabilities(each, rows).argmax(dim=1)
            for each, rows in ((site, test), (dark, test), (site, first))
        )
        changed["black"] += int(black.ne(whole).sum())
        changed["first"] += int(other.ne(whole).sum())
    assert contributions(method, kept)["picture"]["changed"] == changed["black"] != changed["first"]


def test_prompts_with_a_scale_of_their_own_change_answers_and_prompts_near_nothing_do_not(finished) -> None:
    """The effect that the exchange is for: with own rate, deviation and norm, own prompts change at least a tenth of
    the answers; values of a thousandth, which training cannot move, change none."""
    share = {}
    for name, options in (("strong", SEEING), ("weak", WEAK)):
        parts = contributions(*finished(options=options))
        share[name] = {part: each["changed"] / each["rows"] for part, each in parts.items()}
    assert share["strong"]["exchanged_prompts"] >= 0.1 and share["strong"]["own_prompts"] >= 0.1
    assert share["weak"]["exchanged_prompts"] == 0


def test_a_method_without_prompts_has_the_rows_that_apply(finished) -> None:
    """Adapters: what is tuned, n-grams and the picture; a head or a trunk that reads no n-grams: the picture."""
    small = {"rounds": 1, "local_epochs": 1, "batch_rows": 6, "hidden": 8, "answers": "closed"}
    assert list(contributions(*finished("fedavg", {**small, "reduction": 4}))) == ["tuning", "ngrams", "picture"]
    bare = {**small, "tuning": "classifier", "question_input": "tower"}
    assert list(contributions(*finished("local", bare))) == ["picture"]
    trunk = {"trunk": "butd", "trunk_width": 16, "tuning": "full", "fusion": "concat"}
    assert list(contributions(*finished("fedavg", {**bare, **trunk}))) == ["picture"]


def test_of_one_site_nothing_is_said_of_another_s_prompts(finished) -> None:
    """One site of a run has no other site's prompts; its own rows count alone."""
    method, kept = finished()
    parts = contributions(method, {"here": kept["here"]})
    assert "exchanged_prompts" not in parts and "shared_prompts" in parts
    assert parts["picture"]["rows"] == len(kept["here"][0].data.test)


def test_without_a_tested_model_or_test_rows_there_is_no_figure(finished, site) -> None:
    """A sentence for a state from before the evaluation, for sites without test rows, for a method without heads."""
    method, kept = finished()
    here, state = kept["here"]
    untested = {name: value for name, value in state.items() if name != TESTED}
    with pytest.raises(ConfigError, match="has no tested model"):
        contributions(method, {"here": (here, untested)})
    none = replace(here.data, test=here.data.test.chosen(torch.tensor([], dtype=torch.int64)))
    with pytest.raises(DataError, match="no site has test rows"):
        contributions(method, {"here": (replace(here, data=none), state)})
    with pytest.raises(ConfigError, match="no parts to take away"):
        contributions(create("ridge", {}), kept)
