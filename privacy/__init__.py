"""Differential privacy by patient, the site's budget, and how contributions of sites are combined.

What trains needs torch and is imported when it is first named: accounting, ledger and reports do without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from privacy.accounting import Spent, calibrate, fitting, spent
from privacy.aggregation import (
    AggregationError,
    Gathering,
    Mixture,
    Reliability,
    mean,
    mix,
    reliability_weights,
)
from privacy.errors import AccountingError, PrivacyError, SettingsError
from privacy.ledger import Account, BudgetRefused, Charge, JobAccount, Ledger, LedgerError, Limits, Planned
from privacy.mechanisms import CountsMechanism, DPEvent, Use, summed
from privacy.mechanisms.laplace import Laplace
from privacy.mechanisms.sampled_gaussian import SampledGaussian
from privacy.settings import Cost, DPSettings, NoiseLevels

if TYPE_CHECKING:
    from privacy.chance import Chance, PatientChance, PatientStreams, SeededChance
    from privacy.gradients import PrivateStep, expanded
    from privacy.noise import Randomness, RepeatableRandomness, SecureRandomness
    from privacy.owners import current_owners, owned
    from privacy.recorder import Recorder
    from privacy.releases import noisy_share
    from privacy.sampling import PatientSampler

_WITH_TORCH = {
    "Chance": "chance",
    "PatientChance": "chance",
    "PatientSampler": "sampling",
    "PatientStreams": "chance",
    "PrivateStep": "gradients",
    "Randomness": "noise",
    "Recorder": "recorder",
    "RepeatableRandomness": "noise",
    "SecureRandomness": "noise",
    "SeededChance": "chance",
    "current_owners": "owners",
    "expanded": "gradients",
    "noisy_share": "releases",
    "owned": "owners",
}
"""The module of each name whose module needs torch."""


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "Account",
    "AccountingError",
    "AggregationError",
    "BudgetRefused",
    "Charge",
    "Chance",
    "Cost",
    "CountsMechanism",
    "DPEvent",
    "DPSettings",
    "Gathering",
    "JobAccount",
    "Laplace",
    "Ledger",
    "LedgerError",
    "Limits",
    "Mixture",
    "NoiseLevels",
    "PatientChance",
    "PatientSampler",
    "PatientStreams",
    "Planned",
    "PrivacyError",
    "PrivateStep",
    "Randomness",
    "Recorder",
    "Reliability",
    "RepeatableRandomness",
    "SampledGaussian",
    "SecureRandomness",
    "SeededChance",
    "SettingsError",
    "Spent",
    "Use",
    "calibrate",
    "current_owners",
    "expanded",
    "fitting",
    "mean",
    "mix",
    "noisy_share",
    "owned",
    "reliability_weights",
    "spent",
    "summed",
]
