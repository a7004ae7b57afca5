"""Single figures that leave a site under differential privacy."""

import torch

from privacy.noise import Randomness


def noisy_share(shares: torch.Tensor, noise: float, randomness: Randomness) -> float:
    """The mean of `shares` [patients], each in 0..1, by one Gaussian mechanism of noise multiplier `noise`.

    Each patient adds (share, 1 - share) to a pair of sums, a vector no longer than 1, so that adding or removing a
    patient moves the pair by at most 1: that is its sensitivity, and it hides the number of patients too. What is
    computed from the noisy pair is free: it is drawn to 1/2 by as much as the noise makes up for, and lies in 0..1.
    """
    pair = torch.stack([shares.sum(), (1 - shares).sum()]).double() + randomness.normal((2,), noise).double()
    good, bad = (pair.clamp(min=0) + noise).tolist()
    return float(good / (good + bad))
