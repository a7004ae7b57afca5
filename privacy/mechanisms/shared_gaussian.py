"""The Gaussian mechanism on a masked total over several sites, to which each site adds a part of the noise.

With masks nobody sees one site's upload, so noise on the total is enough. Each of at least `sites` honest sites adds
rounded Gaussian noise of deviation noise * C / sqrt(sites). Up to `colluders` further sites may reveal their noise to
the server. Only the total over all is opened, so `noise` protects a patient from server and colluders together.

A rounded Gaussian's probabilities differ from those of the discrete Gaussian by a factor within exp(+-32 / s^2), s the
deviation in grid steps, up to 16 deviations (beyond: probability below 1e-50): the average of exp(-k u / s^2) over
|u| <= 1/2 is at most exp(k^2 / (8 s^4)). Sums of discrete Gaussians are discrete Gaussians up to a factor below
exp(10 exp(-pi^2 s^2)) (P. Kairouz, Z. Liu and T. Steinke, "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation", ICML 2021, theorem 9). So the total is the rounded Gaussian of `sampled_gaussian` up
to `CLOSENESS` per site and step, which `slack` adds to epsilon. The masked sum is exact: no value overflows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from privacy.analysis import PrivacyLoss
from privacy.errors import AccountingError
from privacy.mechanisms.base import DPEvent, Use, is_number
from privacy.mechanisms.sampled_gaussian import SampledGaussian

GRID_SHARE = 2.0**-24
"""The share of the clipping norm that rounding sums to the grid may add: a finer grid than for one site's own noise."""
LEAST_SHARE = 2.0**-4
"""The least noise multiplier of one site: with it, a deviation is at least 2^20 sqrt(values) grid steps."""
CLOSENESS = 32 * 2.0**-40
"""The largest error, over all values of a sum, of the log-probability of one site's noise against the discrete
Gaussian's."""
MOST_SITES = 1024
"""The most sites in a sum; `slack` counts this many."""


@dataclass(frozen=True)
class SharedGaussian(DPEvent):
    """`steps` times the Gaussian mechanism on a Poisson sample of all sites' patients, its noise from `sites` of them.

    `site_noise` is the multiplier of one site's noise. Raises `AccountingError` as `SampledGaussian` does, and unless
    `sites` + `colluders` is from 2 to MOST_SITES.
    """

    mechanism: ClassVar[str] = "shared_gaussian"
    rdp_source: ClassVar[str] = SampledGaussian.rdp_source
    norm: ClassVar[str] = SampledGaussian.norm

    rate: float
    site_noise: float
    sites: int
    colluders: int = 0
    steps: int = 1
    use: Use | None = None

    def __post_init__(self) -> None:
        counts = type(self.sites) is type(self.colluders) is int and self.sites >= 1 and self.colluders >= 0
        if not counts or not 2 <= self.sites + self.colluders <= MOST_SITES:
            raise AccountingError(f"noise can be shared by 2 to {MOST_SITES} sites, at least one of them honest")
        self.alone.times(self.steps)

    @property
    def noise(self) -> float:
        """The multiplier of the honest sites' noise together."""
        return self.site_noise * math.sqrt(self.sites)

    @property
    def alone(self) -> SampledGaussian:
        """One step of the same mechanism with all noise in one place."""
        return SampledGaussian(self.rate, self.noise if is_number(self.site_noise) else self.site_noise)

    def against(self, colluders: int) -> Self:
        return replace(self, sites=self.sites + self.colluders - colluders, colluders=colluders)

    @property
    def observer(self) -> str:
        sites = {0: "none of the other sites", 1: "one of the other sites"}
        who = sites.get(self.colluders, f"{self.colluders} of the other sites")
        return f"the server, and who hears of it, with all that {who} can tell; the rest keep their noise to themselves"

    @property
    def accounted(self) -> Self:
        noise = site_share(self.alone.accounted.noise, self.sites)
        return type(self)(float(self.rate), noise, self.sites, self.colluders)

    @property
    def is_accountable(self) -> bool:
        return self.alone.is_accountable and self.site_noise >= LEAST_SHARE

    @property
    def slack(self) -> float:
        # Twice, for both neighbours: the noise of all sites, and the Gaussian that the total is compared with.
        return 2 * (MOST_SITES + 1) * CLOSENESS

    def rdp(self, orders: Sequence[float]) -> NDArray[np.float64]:
        return self.alone.rdp(orders)

    def loss(self, least: float, most: float) -> PrivacyLoss:
        return self.alone.loss(least, most)

    @property
    def mu_squared(self) -> float:
        return self.alone.times(self.steps).mu_squared

    @property
    def mu_is_exact(self) -> bool:
        return False

    @property
    def sampler(self) -> str:
        return self.alone.sampler

    @property
    def noise_words(self) -> str:
        whose = f"{self.sites} sites together"
        return f"Gaussian noise of multiplier {self.noise:.4g} of {whose}, while {self.colluders} more may collude"

    @property
    def sentence(self) -> str:
        return f"{self.alone.sentence}, shared by all sites under masks"


def site_share(noise: float, sites: int) -> float:
    """The noise multiplier of each of `sites` honest sites whose noise together has the multiplier `noise`."""
    return noise / math.sqrt(sites)
