"""Measures secure noise, in values per second, compared with torch's noise on one thread in the same run.

Secure noise is exact Gaussians from ChaCha20, rounded to whole numbers; torch.randn draws from its seeded generator.
Target: a model of 300,000 parameters gets its noise in at most 30 ms.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from privacy.noise import SecureRandomness

TARGET = 0.030
"""Seconds for the noise of one step."""


def seconds(draw: Callable[[], torch.Tensor], repeats: int) -> float:
    """Median seconds of one call, after one that warms up."""
    draw()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        draw()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Measure both and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    count = arguments.parameters
    torch.set_num_threads(1)
    secure = seconds(lambda: SecureRandomness().rounded_normal(count, 2.0**20), arguments.repeats)
    plain = seconds(lambda: torch.randn(count), arguments.repeats)
    print(f"secure noise: {count / secure / 1e6:8.1f} million values per second")
    print(f"torch.randn:  {count / plain / 1e6:8.1f} million values per second, {secure / plain:.1f} times as many")
    verdict = "met" if secure <= TARGET else "missed"
    print(f"{count} parameters: {secure * 1e3:.1f} ms (target {TARGET * 1e3:.0f} ms: {verdict})")


if __name__ == "__main__":
    main()
