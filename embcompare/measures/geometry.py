"""Geometry of one layer: how many directions it uses, how evenly, and how long its vectors are.

Each indicator reads (n, p) samples of any floating dtype and computes in float64; NaN with a warning where it is
undefined, :class:`~embcompare.measures.declaration.BadInput` for malformed input.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from embcompare.errors import EmbcompareWarning
from embcompare.measures.declaration import (
    Invariance,
    Matrix,
    UndefinedMeasure,
    as_matrix,
    centred,
    require_samples,
    resolution,
)
from embcompare.measures.distances import unit_rows


@dataclass(frozen=True)
class Indicator:
    """One indicator's declaration: ``function(X)`` is a number about a single layer."""

    name: str
    label: str
    formula: str
    meaning: str
    low: float
    high: float
    invariances: frozenset[Invariance]
    source: str
    function: Callable[[Any], float]

    @property
    def non_invariances(self) -> frozenset[Invariance]:
        """Changes that do change the value, in general."""
        return frozenset(Invariance) - self.invariances


def effective_rank(X: Any) -> float:
    """Effective number of directions, exp(-Σ pᵢ log pᵢ), pᵢ = σᵢ / Σσ of the centred singular values; in [1, p].

    Roy & Vetterli 2007, definition 1. Needs n ≥ 2.
    """
    return _defined("effective_rank", lambda: _effective_rank(X))


def _effective_rank(X: Any) -> float:
    x = as_matrix(X)
    require_samples(len(x), 2, "one sample has no spread")
    singular = np.linalg.svd(centred(x), compute_uv=False)
    shares = singular[singular > 10 * resolution(X) * singular[0]]
    shares = shares / shares.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def iso_score(X: Any) -> float:
    """IsoScore: how evenly the variance fills the p directions, from 0 (one direction) to 1 (all alike).

    Rudman et al. 2022, algorithm 1. Needs n ≥ 2 and p ≥ 2; n ≥ 10 p before isotropic data come near 1.
    """
    return _defined("iso_score", lambda: _iso_score(X))


def _iso_score(X: Any) -> float:
    x = as_matrix(X)
    p = x.shape[1]
    require_samples(len(x), 2, "one sample has no spread")
    if p < 2:
        raise UndefinedMeasure("one feature cannot be isotropic or not.")
    variances = np.zeros(p)
    singular = np.linalg.svd(centred(x), compute_uv=False) ** 2
    variances[: len(singular)] = singular
    normalised = math.sqrt(p) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - 1) / math.sqrt(2 * (p - math.sqrt(p)))
    filled = (p - defect**2 * (p - math.sqrt(p))) ** 2 / p**2
    return float((p * filled - 1) / (p - 1))


def mean_cosine(X: Any) -> float:
    """Mean cosine of all pairs of different samples: anisotropy, near 1 for a narrow cone; in [-1/(n-1), 1].

    Exact, (|Σuᵢ|² - n) / (n(n-1)) of the unit vectors, where Ethayarajh 2019, section 3.2, samples pairs. Needs n ≥ 2.
    """
    return _defined("mean_cosine", lambda: _mean_cosine(X))


def _mean_cosine(X: Any) -> float:
    x = as_matrix(X)
    n = len(x)
    require_samples(n, 2, "a pair needs two")
    total = unit_rows(x).sum(axis=0)
    return (float(total @ total) - n) / (n * (n - 1))


def top_dimension_share(X: Any) -> float:
    """Share of the total variance in the one coordinate of most variance; in [1/p, 1].

    A share near 1 says that a single dimension decides CKA and every distance (the outlier dimensions of Kovaleva et
    al. 2021): standardise the features then. Needs n ≥ 2.
    """
    return _defined("top_dimension_share", lambda: _top_share(X))


def _top_share(X: Any) -> float:
    x = as_matrix(X)
    require_samples(len(x), 2, "one sample has no spread")
    # columns of a matrix of unit norm: their squares add up to 1
    return float(np.max(np.sum(centred(x) ** 2, axis=0)))


def norms(X: Any) -> Matrix:
    """Return the Euclidean norm of every sample, (n,)."""
    x = as_matrix(X)
    largest = float(np.abs(x).max(initial=0.0)) or 1.0
    # squares of very large numbers would overflow
    return np.asarray(np.linalg.norm(x / largest, axis=1) * largest)


def mean_norm(X: Any) -> float:
    """Mean Euclidean norm of the samples, in the units of the hidden state. Needs n ≥ 1."""
    return _defined("mean_norm", lambda: _mean_norm(X))


def _mean_norm(X: Any) -> float:
    lengths = norms(X)
    require_samples(len(lengths), 1, "a mean needs one")
    return float(lengths.mean())


def norm_spread(X: Any) -> float:
    """Standard deviation of the samples' norms over their mean; 0 where all are as long. Needs n ≥ 2."""
    return _defined("norm_spread", lambda: _norm_spread(X))


def _norm_spread(X: Any) -> float:
    lengths = norms(X)
    require_samples(len(lengths), 2, "one sample has no spread")
    if not lengths.mean() > 0:
        raise UndefinedMeasure("all samples are zero.")
    return float((lengths / lengths.mean()).std())


def _defined(name: str, value: Callable[[], float]) -> float:
    try:
        return float(value())
    except UndefinedMeasure as reason:
        warnings.warn(f"{name} is undefined here: {reason}", EmbcompareWarning, stacklevel=3)
        return float("nan")


_TURN = frozenset({Invariance.ORTHOGONAL, Invariance.JOINT_ORTHOGONAL, Invariance.SAMPLE_ORDER})
_SPREAD = _TURN | {Invariance.SCALING, Invariance.TRANSLATION}

GEOMETRY: dict[str, Indicator] = {
    indicator.name: indicator
    for indicator in (
        Indicator(
            "effective_rank", "effective rank", "exp(-Σ pᵢ log pᵢ), pᵢ = σᵢ / Σσ, centred",
            "How many directions does the layer use?",
            1.0, math.inf, _SPREAD, "Roy & Vetterli 2007", effective_rank,
        ),
        Indicator(
            "iso_score", "IsoScore", "(p φ - 1) / (p - 1), φ = (p - δ²(p - √p))² / p², δ the isotropy defect",
            "How evenly is the variance spread over all directions? 1 is a ball, 0 a line.",
            0.0, 1.0, _SPREAD, "Rudman et al. 2022, algorithm 1", iso_score,
        ),
        Indicator(
            "mean_cosine", "mean cosine", "1/(n(n-1)) Σ_{i≠j} cos(xᵢ, xⱼ)",
            "Do all vectors point into one narrow cone? 1 is one direction, 0 no preferred one.",
            -1.0, 1.0, _TURN | {Invariance.SCALING, Invariance.SAMPLE_SCALING},
            "Ethayarajh 2019, section 3.2", mean_cosine,
        ),
        Indicator(
            "top_dimension_share", "top-dimension variance share", "maxⱼ Var(xⱼ) / Σⱼ Var(xⱼ)",
            "Does one coordinate outweigh all others? Above a half it decides CKA and every distance.",
            0.0, 1.0, frozenset({Invariance.SCALING, Invariance.TRANSLATION, Invariance.SAMPLE_ORDER}),
            "outlier dimensions: Kovaleva et al. 2021", top_dimension_share,
        ),
        Indicator(
            "mean_norm", "mean norm", "1/n Σᵢ ‖xᵢ‖", "How long are the vectors?",
            0.0, math.inf, _TURN, "Euclidean norm", mean_norm,
        ),
        Indicator(
            "norm_spread", "spread of the norms", "std(‖xᵢ‖) / mean(‖xᵢ‖)", "Are some vectors much longer than others?",
            0.0, math.inf, _TURN | {Invariance.SCALING}, "coefficient of variation", norm_spread,
        ),
    )
}  # fmt: skip
"""Indicators by name; add one by writing a function of one layer and its declaration here."""
