"""How much each part of a finished model contributes: the test rows are answered again without the part.

Nothing is retrained: a figure measures the part's effect in this model, not the accuracy of training without the part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from medfedvqa.backbone_names import NO_REGIONS
from medfedvqa.core.local_training import Alone
from medfedvqa.core.method import TESTED, Method, State
from medfedvqa.data import SiteData
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.evaluation.patient_intervals import crossed
from medfedvqa.models import HEAD, PROMPT, AnswerModel, TunedModel, TuningConfig, Values
from medfedvqa.training import Site, SiteRows

PARTS = {
    "own_prompts": "without the site's own prompts",
    "exchanged_prompts": "with the next site's prompts in place of its own",
    "shared_prompts": "without the shared prompts",
    "tuning": "with the head alone, on the backbone as it was",
    "ngrams": "without n-grams of the question",
    "picture": "without the picture",
}
"""Each part, and how the model answers without it."""
_RIGHT, _WHOLE, _ROWS = "right", "whole", 256  # rows that are answered at once


def contributions(method: Method[Any], sites: Mapping[str, tuple[Site, State]]) -> dict[str, dict[str, Any]]:
    """For each part that the models have: the answers that change without it, and the accuracy that is lost.

    A part's figures are `changed` of `rows` test rows; `lost`, the accuracy with the part minus that without it, in
    -1..1, averaged over sites; and `interval`, its 95 % interval over patients, None where it cannot be estimated.
    Sites of captions, which answer nothing, are left out.
    Raises `ConfigError` if the method keeps no model at a site, and `DataError` if no site has test rows.
    """
    if not isinstance(method, Alone):
        raise ConfigError(f"the method '{method.name}' keeps no answer head at a site: there are no parts to take away")
    answering = (name for name, (site, _) in sites.items() if len(site.data.test) and not site.data.captioned)
    if not (names := sorted(answering)):
        raise DataError("no site has test rows: choose a run whose split has some")
    following = dict(zip(names, [*names[1:], *names[:1]], strict=True))
    answers = [_answers(method, *sites[name], sites[following[name]][1]) for name in names]
    patients = [sites[name][0].data.test.patients.tolist() for name in names]
    parts = [part for part in PARTS if all(part in each for each in answers)]
    return {part: _figures(part, answers, patients) for part in parts}


def _figures(part: str, sites: Sequence[Values], patients: Sequence[list[int]]) -> dict[str, Any]:
    losses = [each[_WHOLE].eq(each[_RIGHT]).double() - each[part].eq(each[_RIGHT]).double() for each in sites]
    lost = crossed([[(loss.numpy()[None], owners) for loss, owners in zip(losses, patients, strict=True)]])
    changed, interval = sum(int(each[part].ne(each[_WHOLE]).sum()) for each in sites), lost.interval
    return {"changed": changed, "rows": sum(map(len, losses)), "lost": lost.mean, "interval": interval and [*interval]}


def _answers(method: Alone[Any], site: Site, state: State, following: State) -> Values:
    """Answers to a site's test rows, int64 [rows] each: the right ones, the tested model's, and without each part.

    `following`: the next site's state, or its own if it is alone.
    """
    if TESTED not in state or TESTED not in following:
        raise ConfigError("a site has no tested model of this job: name a run that reached its evaluation")
    tested = method.answering_with(site, state, state[TESTED])
    model, values, asked = tested.model, tested.values, _Asked(site, tested.model, tested.answers)
    answers = {_RIGHT: asked.right, _WHOLE: asked.chosen(model, values)}
    if site.backbone.shape.regions == NO_REGIONS:
        answers["picture"] = _Asked(_in_the_dark(site), model, tested.answers).chosen(model, values)
    if not isinstance(model, TunedModel):
        return answers
    if model.head.question != "tower":
        answers["ngrams"] = asked.chosen(model, values, grams=False)
    own = {name: value for name, value in values.items() if name.startswith(PROMPT)}
    unshared = replace(model, shared=None)
    if own and following is not state:
        theirs = {name: following["values"][name].to(site.device) for name in own}
        answers["exchanged_prompts"] = asked.chosen(model, {**values, **theirs})
    if own and model.shared:
        # The shared prompts stand where the own ones stood, with none beside them.
        answers["own_prompts"] = asked.chosen(unshared, {**values, **model.shared})
        answers["shared_prompts"] = asked.chosen(unshared, values)
    if any(model.depth.values()) and model.tuning.kind != "full":  # A trunk has no weights of its own to go back to.
        head = {name: value for name, value in values.items() if name.startswith(HEAD)}
        answers["tuning"] = asked.chosen(replace(unshared, tuning=TuningConfig("classifier")), head)
    return answers


class _Asked:
    """A site's test rows, with backbone features cached to the depth of the whole model."""

    def __init__(self, site: Site, model: AnswerModel, answers: tuple[str, ...]) -> None:
        self._rows = SiteRows(site, model, model.depth, 1, answers)
        self._encoded = self._rows.encoded(site.data.test)
        self.right = self._encoded.answers

    @torch.no_grad()
    def chosen(self, model: AnswerModel, values: Values, grams: bool = True) -> torch.Tensor:
        """The model's answers, int64 [rows]; without `grams` the questions' n-grams are zeros."""
        parts = torch.split(torch.arange(len(self._encoded)), _ROWS)
        batches = (self._rows.rows(self._encoded, part).batch for part in parts)
        seen = (each if grams else replace(each, grams=torch.zeros_like(each.grams)) for each in batches)
        return torch.cat([model.logits(values, each).argmax(dim=1).cpu() for each in seen])


def tests_of(data: SiteData) -> SiteData:
    """The site's data with only its test rows and their pictures."""
    numbers, places = torch.unique(data.test.pictures, return_inverse=True)
    none = data.test.chosen(torch.tensor([], dtype=torch.int64))
    tests, pictures = replace(data.test, pictures=places), data.pictures.chosen(numbers.tolist())
    return replace(data, train=none, validate=none, test=tests, pictures=pictures)


def _in_the_dark(site: Site) -> Site:
    """The site with its test rows, all on the same black picture."""
    data = tests_of(site.data)
    tests = replace(data.test, pictures=torch.zeros_like(data.test.pictures))
    return replace(site, data=replace(data, test=tests, pictures=data.pictures.chosen([0]).blank()), _derived={})
