"""Differential privacy by patient, the site's budget, and the aggregation of sites' uploads.

Names are imported at first use, because training needs torch, and accounting, ledger and reports do not.
"""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use

if TYPE_CHECKING:
    from privacy.accounting import PrivacyCost, calibrate, fitting, spent
    from privacy.aggregation import (
        AggregationError,
        Gathering,
        Mixture,
        Reliability,
        Secagg,
        Unit,
        mean,
        mix,
        reliability_weights,
    )
    from privacy.clipping import current_owners, owned
    from privacy.dp_sgd import PatientSampler, PrivateStep, expanded
    from privacy.errors import AccountingError, PrivacyError, SettingsError
    from privacy.ledger import (
        Account,
        BudgetRefused,
        JobAccount,
        Ledger,
        LedgerCharge,
        LedgerError,
        Limits,
        PlannedTask,
    )
    from privacy.mechanisms import CountsMechanism, DPEvent, Use, merge_steps
    from privacy.mechanisms.laplace import Laplace
    from privacy.mechanisms.sampled_gaussian import SampledGaussian
    from privacy.noise import Randomness, RepeatableRandomness, SecureRandomness
    from privacy.noisy_counts import noisy_share, released_counts
    from privacy.recorder import Recorder
    from privacy.settings import Cost, DPSettings, NoiseLevels
    from privacy.training_randomness import Chance, PatientChance, PatientStreams, SeededChance

__getattr__, __dir__ = at_first_use(__name__, __file__)

__all__ = [
    "Account",
    "AccountingError",
    "AggregationError",
    "BudgetRefused",
    "Chance",
    "Cost",
    "CountsMechanism",
    "DPEvent",
    "DPSettings",
    "Gathering",
    "JobAccount",
    "Laplace",
    "Ledger",
    "LedgerCharge",
    "LedgerError",
    "Limits",
    "Mixture",
    "NoiseLevels",
    "PatientChance",
    "PatientSampler",
    "PatientStreams",
    "PlannedTask",
    "PrivacyCost",
    "PrivacyError",
    "PrivateStep",
    "Randomness",
    "Recorder",
    "Reliability",
    "RepeatableRandomness",
    "SampledGaussian",
    "Secagg",
    "SecureRandomness",
    "SeededChance",
    "SettingsError",
    "Unit",
    "Use",
    "calibrate",
    "current_owners",
    "expanded",
    "fitting",
    "mean",
    "merge_steps",
    "mix",
    "noisy_share",
    "released_counts",
    "owned",
    "reliability_weights",
    "spent",
]
