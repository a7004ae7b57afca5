"""Methods whose sites do not train: what each site holds follows from its name and the round, so that a test knows
what must come of it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import ClassVar

import numpy as np
from fate import Fate

from audits import Exchange, Kind, TaskSpec, TensorSpec
from medfedvqa.core import ACCURACY, Hub, MeanOnShares, Method, MixOnShares, OnShares, Site, State, Tensors
from medfedvqa.core.method import tensors_of, trained_by_rounds
from medfedvqa.core.scores import MOST_ROWS
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import Saved, StateFile
from medfedvqa.methods.prompt_pfl import PromptPFLConfig
from medfedvqa.models import BackboneShape
from privacy import Cost, DPSettings, Reliability, mean, mix

Make = Callable[..., tuple[dict[str, SiteConfig], JobSpec]]
"""The fixture `job_on_shares`."""
THREE, FIVE = ("abdomen", "chest", "head"), ("a", "b", "c", "d", "e")
TWELVE = tuple(f"site-{number:03d}" for number in range(1, 13))
DP = DPSettings(noise=2.0, count_noise=20.0, sample_rate=0.3, patient_rows=4, physical_patients=5)


class Mixed(Method[PromptPFLConfig]):
    """Sites mix what they hold, and keep what they are given. A task costs what one step of training would."""

    name: ClassVar[str] = "mixed"
    config_type = PromptPFLConfig
    how: ClassVar[OnShares] = MixOnShares()
    weight: ClassVar[str | None] = ACCURACY

    @classmethod
    def holding(cls, site: str, round: int) -> Tensors:
        """What a site puts in: a prompt, all of them similar, and by what it is weighed."""
        rng = _rng(site, round)
        return {"prompt.x": _prompt(rng), ACCURACY: np.array(rng.uniform(0.5, 1.0), np.float32)}

    @classmethod
    def plain(cls, sites: Collection[str], round: int) -> dict[str, Tensors]:
        """What the computation in clear gives each of these sites."""
        held = {site: cls.holding(site, round) for site in sites}
        accuracies = {site: float(tensors.pop(ACCURACY)) for site, tensors in held.items()}
        return dict(mix(held, accuracies, Reliability()).shared)

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        return {"start": self.how, "train": self.how}

    def exchange(self, shape: BackboneShape) -> Exchange:
        bounds = {ACCURACY: (0, 1), "rows": (0, MOST_ROWS)}
        up = tuple(
            TensorSpec(
                name,
                array.shape,
                str(array.dtype),
                _kind(name, self.weight),
                "what a site holds",
                bounds=bounds.get(name),
            )
            for name, array in self.holding("any", 1).items()
        )
        down = tuple(spec for spec in up if spec.kind is Kind.PARAMETERS)
        return Exchange(
            self.name, (TaskSpec("start", up, ()), TaskSpec("train", up, down), TaskSpec("evaluate", (), down))
        )

    def tasks(self) -> Iterator[tuple[str, int]]:
        return trained_by_rounds(self.config.rounds)

    def cost(self, task: str) -> Cost:
        return Cost() if task == "evaluate" else Cost(steps=1)

    def setup(self, site: Site) -> State:
        return {}

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        Fate.here.meet("working")
        return _kept(state, received, round - 1), self.holding(site.name, round)

    train = start

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        return _kept(state, received, round), {}

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        for number in hub.rounds(self.config.rounds):
            hub.mix("start" if number == 1 else "train", Reliability())
        return hub.collect("evaluate")


class Averaged(Mixed):
    """The same with a mean for the server, which sends it to the sites."""

    name = "averaged"
    how = MeanOnShares("rows")
    weight = "rows"
    averages = True

    @classmethod
    def holding(cls, site: str, round: int) -> Tensors:
        """A prompt, a scalar that all have alike, and a count of rows."""
        rng = _rng(site, round)
        return {"prompt.x": _prompt(rng), "scale": np.array(2.5, np.float32), "rows": np.array(rng.integers(1, 4000))}

    @classmethod
    def plain(cls, sites: Collection[str], round: int) -> dict[str, Tensors]:
        """The mean, for each of these sites."""
        held = {site: cls.holding(site, round) for site in sites}
        return dict.fromkeys(
            sites, mean(held, {site: float(tensors.pop(cls.weight, 1.0)) for site, tensors in held.items()})
        )

    @classmethod
    def mean(cls, sites: Collection[str], round: int) -> Tensors:
        """The same for all of them."""
        return next(iter(cls.plain(sites, round).values()))

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        now: Tensors = {}
        for number in hub.rounds(self.config.rounds):
            now = hub.mean("start" if number == 1 else "train", dict.fromkeys(hub.sites, now), self.weight)
        return hub.collect("evaluate", dict.fromkeys(hub.sites, now))


class AveragedAtSites(Averaged):
    """The same with a mean for sites only."""

    name = "averaged_at_sites"
    how = MeanOnShares("rows", to="sites")


class Unweighted(Averaged):
    """All sites weigh the same: a count of rows is not released under differential privacy."""

    name = "unweighted"
    how = MeanOnShares()
    weight = None

    @classmethod
    def holding(cls, site: str, round: int) -> Tensors:
        return {name: array for name, array in super().holding(site, round).items() if name != "rows"}


class Lasting(Averaged):
    """The same under masks whose keys the sites keep."""

    name = "lasting"
    how = MeanOnShares("rows", lasting=True)


METHODS = (Mixed, Averaged, AveragedAtSites)


def _rng(site: str, round: int) -> np.random.Generator:
    return np.random.default_rng([*site.encode(), round])


def _prompt(rng: np.random.Generator) -> np.ndarray:
    return np.float32(1 + rng.normal(scale=0.5, size=(2, 2, 4)))


def _kind(name: str, weight: str | None) -> Kind:
    return Kind.STATISTIC if name == weight else Kind.PARAMETERS


def _kept(state: State, received: Tensors, round: int) -> State:
    """What was received is the aggregate of that round."""
    return state | ({f"{round}": tensors_of(received)} if received else {})


def saved(config: SiteConfig, job_id: str = "job") -> Saved:
    """What a site has saved of a job."""
    found = StateFile(config.state, job_id).load()
    assert found is not None
    return found


def given(config: SiteConfig, round: int, job_id: str = "job") -> Tensors:
    """What a site was given as the aggregate of a round; empty if nothing."""
    return {name: tensor.numpy() for name, tensor in saved(config, job_id).state.get(f"{round}", {}).items()}


def assert_mixed(configs: Mapping[str, SiteConfig], sites: Collection[str], round: int, job_id: str = "job") -> None:
    """These sites have their mixtures of a round, each within 1e-3 of the plain one."""
    for site, plain in Mixed.plain(sites, round).items():
        assert_near(given(configs[site], round, job_id), plain)


def assert_near(found: Tensors, plain: Tensors) -> None:
    """A mixture on shares is the plain one to 1e-3 of its norm."""
    assert found.keys() == plain.keys()
    for name, array in plain.items():
        assert np.linalg.norm(found[name] - array) <= 1e-3 * np.linalg.norm(array)


def assert_alike(found: Tensors, plain: Tensors) -> None:
    """A mean under masks is the plain one to 2^-22."""
    assert found.keys() == plain.keys()
    for name, array in plain.items():
        assert found[name].dtype == array.dtype and np.allclose(found[name], array, rtol=1e-6, atol=2.0**-22)
