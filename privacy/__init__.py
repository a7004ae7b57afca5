"""Differential privacy by patient, the site's budget, and how contributions of sites are combined."""

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
from privacy.chance import Chance, PatientChance, PatientStreams, SeededChance
from privacy.errors import AccountingError, PrivacyError, SettingsError
from privacy.gradients import PrivateStep, expanded
from privacy.ledger import Account, BudgetRefused, Charge, JobAccount, Ledger, LedgerError, Limits, Planned
from privacy.mechanisms import CountsMechanism, DPEvent, Use, summed
from privacy.mechanisms.laplace import Laplace
from privacy.mechanisms.sampled_gaussian import SampledGaussian
from privacy.noise import Randomness, RepeatableRandomness, SecureRandomness
from privacy.owners import current_owners, owned
from privacy.recorder import Recorder
from privacy.releases import noisy_share
from privacy.sampling import PatientSampler
from privacy.settings import Cost, DPSettings, NoiseLevels

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
