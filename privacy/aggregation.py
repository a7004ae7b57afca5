"""Means and reliability-weighted mixtures of site uploads, in clear.

Source: "Prompt-based Personalized Federated Learning for Medical Visual Question Answering", Eqs. 10 and 11.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from audits import Tensors
from privacy.errors import PrivacyError

Floats = NDArray[np.float64]

Unit = Literal["prompt", "block", "upload"]
"""The unit of comparison and weighting: each prompt, each of its blocks, or all prompts of a site as one vector."""

Secagg = bool | Literal["masks", "crypten"]
"""Whether a job aggregates on shares, and how it computes means. True or `masks`: under masks, which survive sites that
drop out; `crypten`: by a committee with CrypTen. Mixtures are computed with CrypTen in both cases."""

PARTS = 32
"""Weights are limited in steps of 1/PARTS: small enough that shares can be multiplied by whole parts in their ring."""

NEGLIGIBLE = 1e-8
"""A sum of weights below this counts as zero and is not divided by."""


class AggregationError(PrivacyError):
    """The uploads cannot be combined by the requested rule or weights."""


@dataclass(frozen=True)
class Reliability:
    """How weights follow from accuracy and similarity.

    `clamped`: negative similarities count as 0, so the weights are a convex combination.
    `paper`: Eq. 11 as printed; raises where its weights leave 0..1 instead of using them.
    `most_share`: no weight is above it, see `kept_parts`; at 1 a mixture may be one other site's values.
    """

    mode: Literal["clamped", "paper"] = "clamped"
    unit: Unit = "prompt"
    most_share: float = 1.0


@dataclass(frozen=True)
class Mixture:
    """`shared[target]`: each site's mixed tensors; `weights[name]`: [targets, sources], a mean over blocks."""

    shared: dict[str, Tensors]
    weights: dict[str, Floats]


def mean(uploads: Mapping[str, Tensors], weights: Mapping[str, float] | None = None) -> Tensors:
    """Weighted mean over sites, accumulated in float64; equal weights unless given.

    Raises `AggregationError` without uploads, or when the weights are negative or sum to nothing.
    """
    if not uploads:
        raise AggregationError("there is no upload to average")
    shares = np.array([1.0 if weights is None else weights[site] for site in uploads])
    if (shares < 0).any() or shares.sum() < NEGLIGIBLE:
        raise AggregationError("weights must not be negative, and their sum must be positive")
    return {
        name: np.asarray(_combined((shares / shares.sum())[None], _stack(uploads, name))[0], first.dtype)
        for name, first in next(iter(uploads.values())).items()
    }


LEAST_ROBUST = 3
TRIMMED = 5
"""A trimmed mean leaves out 1/TRIMMED of the sites, rounded up, at each end: as many may lie without moving it beyond
the others' values (D. Yin et al., "Byzantine-Robust Distributed Learning", 2018). The median tolerates almost half."""


def trimmed_mean(stack: Floats) -> Floats:
    """The trimmed mean over sites of each coordinate, [sites, ...] to [...]."""
    cut = -(-len(stack) // TRIMMED)
    return np.asarray(np.sort(stack, axis=0)[cut : len(stack) - cut].mean(axis=0))


def _median(stack: Floats) -> Floats:
    return np.asarray(np.median(stack, axis=0))


_ROBUST: Mapping[str, Callable[[Floats], Floats]] = {"trimmed": trimmed_mean, "median": _median}


@dataclass(frozen=True)
class Gathering:
    """How a server averages uploads, and the norm that the parameters of one upload may have.

    Raises `AggregationError` for an unknown rule, or a norm that is not positive.
    """

    rule: Literal["mean", "trimmed", "median"] = "mean"
    """`trimmed`: the mean of each coordinate without the smallest and largest values, see `TRIMMED`; `median`: of each
    coordinate. Both weigh all sites the same, whatever weights they claim."""
    most_norm: float | None = None
    """The largest joint L2 norm of an upload's parameters."""

    def __post_init__(self) -> None:
        if self.rule not in ("mean", *_ROBUST):
            raise AggregationError(f"'gather' must be one of mean, {', '.join(_ROBUST)}")
        if self.most_norm is not None and not 0 < self.most_norm < np.inf:
            raise AggregationError("'most_norm' must be a positive number")

    @property
    def robust(self) -> bool:
        """Whether a few lying sites cannot move the result out of the range of the others' values."""
        return self.rule != "mean"

    @property
    def least_sites(self) -> int:
        """The fewest uploads that can be combined: of two that differ, a robust rule cannot tell which one lies."""
        return LEAST_ROBUST if self.robust else 1

    @property
    def sentence(self) -> str:
        """The sentence about the rule and the limit in the results; empty for a plain mean without a limit."""
        rule = f"Uploads were combined by '{self.rule}', coordinate by coordinate, all sites weighing the same."
        norm = f"The parameters of an upload had an L2 norm of at most {self.most_norm}."
        return " ".join([rule] * self.robust + [norm] * (self.most_norm is not None))

    def gathered(self, uploads: Mapping[str, Tensors], weights: Mapping[str, float] | None = None) -> Tensors:
        """The combined tensors, by name; `weights` count in a mean only. Raises `AggregationError` for too few uploads,
        and as `mean` does."""
        if not self.robust:
            return mean(uploads, weights)
        if len(uploads) < self.least_sites:
            raise AggregationError(
                f"'gather' {self.rule} needs {self.least_sites} uploads: of two, either may be wrong"
            )
        return {
            name: _ROBUST[self.rule](_stack(uploads, name)).astype(first.dtype)
            for name, first in next(iter(uploads.values())).items()
        }


def mix(
    prompts: Mapping[str, Tensors],
    accuracy: Mapping[str, float],
    reliability: Reliability,
    targets: Sequence[str] | None = None,
) -> Mixture:
    """For each target site, the others' prompts mixed by reliability (Eq. 10): S_t = sum over i != t of eta_i P_i.

    `prompts[site][name]` is [blocks, tokens, width]; each name (encoder) has weights of its own, unless the unit is
    the whole upload.
    Raises `AggregationError` with fewer than two sites, or as `reliability_weights` does.
    """
    if len(prompts) < 2:
        raise AggregationError("sharing needs at least 2 sites")
    sites = list(prompts)
    accuracies = np.array([accuracy[site] for site in sites])
    mixtures: dict[str, Tensors] = {target: {} for target in targets or sites}
    table, first_upload = {}, next(iter(prompts.values()))
    stacks = {name: _stack(prompts, name) for name in first_upload}
    uploads = np.concatenate([stack.reshape(len(sites), -1) for stack in stacks.values()], axis=1)
    rows = [sites.index(target) for target in mixtures]
    for name, first in first_upload.items():
        compared = uploads if reliability.unit == "upload" else stacks[name]
        cosines = _cosines(compared[rows], compared, reliability.unit == "block")
        eta = np.zeros_like(cosines)
        for place, row in enumerate(rows):
            others = np.arange(len(sites)) != row
            eta[place, others] = _widened(cosines[place, others], accuracies[others], reliability)
        for target, mixed in zip(mixtures, _combined(eta, stacks[name]), strict=True):
            mixtures[target][name] = np.asarray(mixed, first.dtype)
        table[name] = np.zeros((len(sites), len(sites)))
        table[name][rows] = eta.reshape(*eta.shape[:2], -1).mean(axis=2)
    return Mixture(mixtures, table)


def reliability_weights(
    own_values: NDArray[np.generic], others: NDArray[np.generic], accuracy: Floats, reliability: Reliability
) -> Floats:
    """Eq. 11: eta_i proportional to acc_i * cos(P_i, P_t), over the other sites.

    `own_values`: [blocks, tokens, width], or a whole upload; `others`: [others, ...]; `accuracy`: [others].
    Returns [others], or [others, blocks] by block. Clamped weights without any positive similarity
    fall back to accuracy alone, then to equal weights. Then weights are widened to `most_share`.
    Raises `AggregationError` in `paper` mode when a weight leaves 0..1.
    """
    (cosines,) = _cosines(own_values[None], others, reliability.unit == "block")
    return _widened(cosines, accuracy, reliability)


def _widened(cosines: Floats, accuracy: Floats, reliability: Reliability) -> Floats:
    """The weights from cosines, [others] or [others, blocks], widened to `most_share`."""
    weights = weights_by(cosines, accuracy, reliability.mode)
    kept = kept_parts(reliability.most_share, len(weights)) / PARTS
    return np.asarray(kept * weights + (1 - kept) / len(weights))


def kept_parts(most_share: float, others: int) -> int:
    """The largest k such that no weight exceeds `most_share` once k/PARTS of each weight is kept and the rest is spread
    evenly over all other sites. It depends on public figures alone.

    Raises `AggregationError` if even equal weights exceed `most_share`.
    """
    if most_share * others < 1:
        raise AggregationError("with so few sites one has a larger share of a mixture than 'most_share' allows")
    return PARTS if most_share == 1 else math.floor(PARTS * (most_share * others - 1) / (others - 1))


def weights_by(cosine: Floats, accuracy: Floats, mode: Literal["clamped", "paper"] = "clamped") -> Floats:
    """The weights of `reliability_weights`, from cosines, [others] or [others, blocks]."""
    accuracies = accuracy.reshape(-1, *[1] * (cosine.ndim - 1))
    if mode == "paper":
        return _as_printed(accuracies * cosine)
    scores = accuracies * np.maximum(cosine, 0.0)
    fallback = np.broadcast_to(accuracies, cosine.shape)
    if accuracy.sum() < NEGLIGIBLE:
        fallback = np.ones_like(cosine)
    scores = np.where(scores.sum(axis=0) < NEGLIGIBLE, fallback, scores)
    return np.asarray(scores / scores.sum(axis=0))


def _as_printed(scores: Floats) -> Floats:
    total = scores.sum(axis=0)
    if (np.abs(total) < NEGLIGIBLE).any():
        raise AggregationError("mode 'paper': the reliabilities sum to zero; use mode 'clamped'")
    eta = scores / total
    if eta.min() < 0 or eta.max() > 1:
        raise AggregationError("mode 'paper': a reliability is outside 0..1 (negative similarity); use mode 'clamped'")
    return np.asarray(eta)


def _cosines(rows: NDArray[np.generic], others: NDArray[np.generic], by_block: bool) -> Floats:
    """Cosine similarities, [rows, others] or [rows, others, blocks]; a zero vector is similar to nothing."""
    blocks = rows.shape[1] if by_block else 1
    a, b = (np.asarray(each, np.float64).reshape(len(each), blocks, -1).swapaxes(0, 1) for each in (rows, others))
    norms = np.linalg.norm(a, axis=2)[:, :, None] * np.linalg.norm(b, axis=2)[:, None, :]
    cosine = np.divide(a @ b.swapaxes(1, 2), norms, out=np.zeros_like(norms), where=norms > 0)
    return np.asarray(np.moveaxis(cosine, 0, 2) if by_block else cosine[0])


def _stack(uploads: Mapping[str, Tensors], name: str) -> Floats:
    """One tensor of every site, float64 [sites, ...]."""
    return np.stack([tensors[name] for tensors in uploads.values()]).astype(np.float64)


def _combined(weights: Floats, stack: Floats) -> Floats:
    """For each row of weights, the sum over sites of weight times tensor, as one product of matrices for each block.

    `weights`: [rows, sites], or [rows, sites, blocks]; the result is [rows, ...].
    """
    blocks = weights.shape[2] if weights.ndim == 3 else 1
    values = stack.reshape(len(stack), blocks, -1).swapaxes(0, 1)
    products = weights.reshape(*weights.shape[:2], blocks).transpose(2, 0, 1) @ values
    return np.asarray(products.swapaxes(0, 1).reshape(len(weights), *stack.shape[1:]))
