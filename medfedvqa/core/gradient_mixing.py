"""How a stepwise job weighs sites' gradients for each site's model: all alike, or similar sites more.

The sites of one group receive one model, and the server keeps one optimiser for it. The server uses only the mean
gradient of each group. Groups have no site in common, so combining their sums shows nothing about fewer sites than the
smallest group has: with at least three sites in every group, groups run on shares.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from audits import Tensors
from medfedvqa.bounds import MOST_SITES, Share, SiteName
from medfedvqa.core.hub import GroupMean
from medfedvqa.core.scores import ACCURACY
from medfedvqa.core.stepwise import ServerState, StepwiseConfig
from medfedvqa.data.site_cuts import named, organ_of
from medfedvqa.errors import ConfigError
from privacy import DPSettings, Secagg
from privacy.aggregation import NEGLIGIBLE, Floats, weights_by
from privacy.secagg import MINIMUM

Group = Annotated[tuple[SiteName, ...], Field(min_length=1, max_length=MOST_SITES)]
Step = Callable[[Tensors, Tensors, ServerState], tuple[Tensors, ServerState]]
"""See `Stepwise.server_step`."""

KEEPS = 0.9
"""The weight of the past in a running mean of gradients, because the gradients of single batches are mostly noise."""
RECORDS = 10
"""At about this many exchanges of a job, the last included, the weights are recorded in the results."""


class MixingConfig(StepwiseConfig, frozen=True):
    """Options of methods whose server may keep several models."""

    mixing: Literal["none", "organ", "reliability"] = Field(
        "none",
        description="whose gradients a site's model takes in a stepwise job: all sites' ('none', one model), those of "
        "its organ's sites and less of the others', or each site's by validation accuracy and similarity",
    )
    others: Share = Field(0.3, description="with mixing 'organ', the weight of a gradient from a site of another organ")
    groups: Annotated[tuple[Group, ...], Field(max_length=MOST_SITES)] = Field(
        (),
        description="with mixing 'organ', the sites of each organ, by name; a site that no group names is a group by "
        "itself; empty: names say it, as 'lung-1of2' does",
    )


def check_mixing(config: MixingConfig, dp: DPSettings | None, secagg: Secagg, training: bool) -> None:
    """Raises `ConfigError` unless the job can mix as its options say. `training`: whether all sites always train."""
    if config.groups and config.mixing != "organ":
        raise ConfigError("'groups' holds sites of one organ in each group: set 'mixing' to 'organ'")
    if config.mixing == "none":
        return
    if not config.is_stepwise:
        raise ConfigError("'mixing' mixes the gradients of single steps: set 'schedule' to 'stepwise'")
    if not training:
        raise ConfigError("'mixing' needs every site's gradient in each exchange: leave out 'unseen' and 'sampled'")
    if config.mixing == "reliability" and secagg:
        raise ConfigError(
            "'mixing' by reliability compares gradients of single sites, which secure aggregation hides: choose 'organ'"
        )
    if config.mixing == "reliability" and dp is not None:
        raise ConfigError(
            "'mixing' by reliability releases a validation accuracy in each exchange, and each would cost epsilon: "
            "choose 'organ'"
        )
    names = [site for group in config.groups for site in group]
    if len(names) > len(set(names)):
        raise ConfigError("'groups' names a site twice: give each site one organ")
    if secagg and config.groups:
        _check_sizes(config.groups)


class Mixer:
    """The models of a job's server, one for each group of sites, with the states of their optimisers."""

    def __init__(self, config: MixingConfig, sites: Sequence[str], secagg: Secagg, step: Step) -> None:
        """Raises `ConfigError` for sites of unknown organ, and on shares for a group that is too small."""
        self._mixing, self._others, self._step = config.mixing, config.others, step
        self.groups = _groups(config, sites)
        """The sites by group."""
        if secagg and len(self.groups) > 1:
            _check_sizes(self.groups.values())
        self._group_of = {site: name for name, sites in self.groups.items() for site in sites}
        self._models = dict[str, Tensors]()
        self._states = dict[str, ServerState]()
        self._running = dict[str, Floats]()

    def model(self, site: str) -> Tensors:
        """The values for the site's next step; empty before the first exchange, and for a site without a group."""
        return self._models.get(self._group_of.get(site, ""), {})

    @property
    def shared(self) -> Tensors:
        """The one model of all sites; empty if there are several."""
        return next(iter(self._models.values()), {}) if len(self.groups) == 1 else {}

    def take(self, means: Mapping[str, GroupMean]) -> dict[str, dict[str, float]]:
        """Steps each model along its mixture, and returns the weight of each site's gradient for each site's model.

        A lost mean takes no part, and its group keeps its model: the previous mean that stands in for it
        came from an earlier model, so it gives no gradient of the current one.

        `means`: by group, the mean of the sites' values after one step. The returned weights sum to 1 for each model.
        They depend on organ or reliability alone; the mixture also multiplies them by `GroupMean.weight`.
        """
        moving = [name for name in self.groups if name not in means or not means[name].lost]
        means = {name: mean for name, mean in means.items() if not mean.lost}
        accuracies = np.array([float(mean.tensors.pop(ACCURACY, 0.0)) for mean in means.values()])
        if len(self.groups) == 1 or not means:
            self._move({name: mean.tensors for name, mean in means.items()})
            return {}
        gradients = {name: self._gradient(name, mean.tensors) for name, mean in means.items()}
        weights = self._weights(list(means), accuracies, gradients)
        shares = _normed(weights * [mean.weight for mean in means.values()])
        mixed = shares.astype(np.float32) @ np.stack([*gradients.values()])
        like = next(iter(means.values())).tensors
        along = dict(zip(self.groups, mixed, strict=True))
        self._move({name: self._moved(name, along[name], like) for name in moving})
        return self._by_site(list(means), weights)

    def _gradient(self, group: str, mean: Tensors) -> Floats:
        """The mean gradient of a group in one vector: the group's model (0 in the first exchange) - mean."""
        held = self._models.get(group)
        return np.concatenate([((held[name] if held else 0) - array).ravel() for name, array in mean.items()])

    def _moved(self, group: str, along: Floats, like: Tensors) -> Tensors:
        """The group's model minus the gradient, by name: the values that its sites would have sent for this
        gradient.
        """
        ends, held = np.cumsum([array.size for array in like.values()])[:-1], self._models.get(group)
        parts = zip(like.items(), np.split(along, ends), strict=True)
        return {name: (held[name] if held else 0) - part.reshape(array.shape) for (name, array), part in parts}

    def _move(self, targets: Mapping[str, Tensors]) -> None:
        for name, mean in targets.items():
            held, state = self._models.get(name), self._states.get(name, {})
            self._models[name], self._states[name] = self._step(held, mean, state) if held else (mean, state)

    def _weights(self, present: list[str], accuracies: Floats, gradients: Mapping[str, Floats]) -> Floats:
        """The weight of a gradient of each present group in the mixture for each group's model, [groups, present]."""
        same = np.array([[float(group == other) for other in present] for group in self.groups])
        if self._mixing == "organ":
            return same + self._others * (1 - same)
        if not self._models:
            return np.ones_like(same)
        for name, gradient in gradients.items():
            self._running[name] = KEEPS * self._running.get(name, 0) + (1 - KEEPS) * gradient
        units = {name: value / max(float(np.linalg.norm(value)), NEGLIGIBLE) for name, value in self._running.items()}
        given = np.stack([units[name] for name in present])
        cosines = [given @ units[name] if name in units else np.zeros(len(present)) for name in self.groups]
        return np.stack([weights_by(cosine.astype(np.float64), accuracies) for cosine in cosines])

    def _by_site(self, present: list[str], weights: Floats) -> dict[str, dict[str, float]]:
        sites = [(site, place) for place, name in enumerate(present) for site in self.groups[name]]
        table = _normed(weights[:, [place for _, place in sites]])
        rows = {
            name: dict(zip(dict(sites), row.tolist(), strict=True))
            for name, row in zip(self.groups, table, strict=True)
        }
        return {site: rows[name] for site, name in self._group_of.items()}


def _normed(weights: Floats) -> Floats:
    """The weights with each row scaled to sum to 1; a row of zeros becomes equal weights."""
    sums = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.where(sums < NEGLIGIBLE, 1 / weights.shape[1], weights / np.maximum(sums, NEGLIGIBLE)))


def _groups(config: MixingConfig, sites: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The sites of each group, by its name. Raises `ConfigError` if no site's organ is declared."""
    if config.mixing == "none":
        return {"": tuple(sites)}
    names = {site: site for site in sites}
    if config.mixing == "organ":
        if not config.groups and not any(map(named, sites)):
            raise ConfigError(
                "no site's name says its organ, as 'lung-1of2' does: give the option 'groups', the names of the sites "
                "of each organ"
            )
        names = {site: organ_of(site) for site in sites}
        if config.groups:
            names = {site: site for site in sites} | {site: min(group) for group in config.groups for site in group}
    return {name: tuple(site for site in sites if names[site] == name) for name in sorted({names[s] for s in sites})}


def _check_sizes(groups: Collection[Collection[str]]) -> None:
    if min(map(len, groups)) < MINIMUM:
        raise ConfigError(
            f"on shares every group of 'mixing' needs {MINIMUM} sites, or its sum would show a site's gradient to the "
            "others of its group: leave out 'mixing', or secure aggregation"
        )
