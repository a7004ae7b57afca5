"""Counts, and figures computed from counts, that leave a site under differential privacy."""

import torch

from privacy.errors import SettingsError
from privacy.mechanisms.base import UNITS, CountsMechanism
from privacy.noise import Randomness


def noisy_share(shares: torch.Tensor, counts: CountsMechanism | None, randomness: Randomness) -> float:
    """The mean of `shares` [patients], each in 0..1, by one application of a mechanism for pairs of counts.

    Each patient adds (share, 1 - share) to a pair of sums, in whole numbers of `UNITS`, so that adding or removing a
    patient moves the pair by exactly 1 in the L1 norm and at most 1 in the L2 norm: that is its sensitivity, and it
    hides the number of patients too. Computations on the noisy pair cost nothing: each count gets the noise's deviation
    added, which shrinks the result towards 1/2, within 0..1. Raises `SettingsError` without a mechanism.
    """
    if counts is None:
        raise SettingsError("the job's plan has no noise for an accuracy: include its counts in the job's cost")
    good, bad = (max(0.0, count) + counts.deviation for count in counts.noisy(pair_of(shares), randomness))
    return good / (good + bad)


def pair_of(shares: torch.Tensor) -> tuple[int, int]:
    """The sum of the shares and the sum of 1 - share, in 1/UNITS of a patient."""
    parts = (shares.double().clamp(0, 1) * UNITS).round().long()
    return int(parts.sum()), int((UNITS - parts).sum())


def released_counts(shares: torch.Tensor, counts: CountsMechanism | None, randomness: Randomness) -> tuple[float, ...]:
    """The sums over patients of `shares` [patients, categories], by one application of a mechanism for counts.

    Negative shares count as 0, and a patient's shares are scaled down to a sum of 1 if it is more. They are rounded
    down to 1/UNITS, so adding or removing a patient moves the vector by at most 1 in the L1 norm. Raises
    `SettingsError` without a mechanism.
    """
    if counts is None:
        raise SettingsError("the job's plan has no noise for counts: include them in the job's cost")
    shares = shares.double().nan_to_num(0, 0, 0).clamp(min=0)
    whole = (shares / shares.sum(1, keepdim=True).clamp(min=1) * UNITS).floor().long()
    over = (whole.sum(1, keepdim=True) - UNITS).clamp(min=0)  # rounding of the division, at most
    return counts.noisy((whole - over).clamp(min=0).sum(0).tolist(), randomness)
