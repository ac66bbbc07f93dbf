"""The CCA family: canonical correlations of two representations and three ways to sum them up.

The canonical correlations ρ₁ ≥ ρ₂ ≥ … are the singular values of U_XᵀU_Y, with U an orthonormal basis of the centred
features (Björck & Golub 1973); directions that are null up to the stored precision are left out. They see a layer up
to any invertible linear map, so with n ≤ p every layer is every other: the family is undefined unless n > max(p, q).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from embcompare.errors import SettingsError
from embcompare.measures.declaration import (
    Invariance,
    Matrix,
    Measure,
    UndefinedMeasure,
    as_matrix,
    centred,
    check_pairing,
    evaluate,
    require_samples,
    resolution,
)
from embcompare.words import plural


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis (n, r) of a centred layer, and the (p, r) loadings with layer = basis loadingsᵀ."""

    basis: Matrix
    loadings: Matrix
    summary: str


def cca(X: Any, Y: Any, *, summary: Literal["mean", "r2"] = "mean") -> float:
    """Mean canonical correlation, or mean squared (R²_CCA), of (n, p) and (n, q), in float64; in [0, 1].

    Divided by the smaller rank of the two centred layers (min(p, q) where nothing is degenerate). Kornblith et al.
    2019 (ρ̄_CCA and R²_CCA). Needs n > max(p, q), and many more before unrelated data come near 0. Raises
    :class:`BadInput`; NaN with a warning where undefined.
    """
    return evaluate("cca", prepare_cca, compare_cca, X, Y, summary=summary)


def canonical_correlations(X: Any, Y: Any) -> Matrix:
    """Return all canonical correlations, descending, (min rank,); raises :class:`UndefinedMeasure`."""
    check_pairing(X, Y)
    return correlations(prepare_cca(X), prepare_cca(Y))


def canonical_variates(X: Any, Y: Any) -> tuple[Matrix, Matrix, Matrix]:
    """Return the variates of X and of Y, (n, r) each, orthonormal, and the correlation of each pair, (r,), descending.

    Column i of both are X aᵢ and Y bᵢ of the centred layers. Raises :class:`BadInput`, :class:`UndefinedMeasure`.
    """
    check_pairing(X, Y)
    a, b = prepare_cca(X), prepare_cca(Y)
    left, rho, right = np.linalg.svd(a.basis.T @ b.basis, full_matrices=False)
    return a.basis @ left, b.basis @ right.T, rho


def prepare_cca(X: Any, *, summary: str = "mean", keep: float | None = None) -> Basis:
    """Factor a centred layer; ``keep`` leaves only the top directions with that share of the variance."""
    if summary not in ("mean", "r2"):
        raise SettingsError(f"CCA is summed up by its 'mean' or its 'r2'; got {summary!r}.")
    x = as_matrix(X)
    n, p = x.shape
    require_samples(n, p + 1, f"more samples than the {plural(p, 'feature')}, or every layer correlates perfectly")
    u, s, vt = np.linalg.svd(centred(x), full_matrices=False)
    kept = s > 10 * resolution(X) * s[0]
    if keep is not None:
        # the smallest number of directions that reaches the share; the slack forgives rounding at 1.0
        kept &= np.arange(len(s)) <= np.searchsorted(np.cumsum(s**2) / np.sum(s**2), keep - 1e-12)
    return Basis(u[:, kept], vt[kept].T * s[kept], summary)


def correlations(a: Basis, b: Basis) -> Matrix:
    """Return the canonical correlations of two prepared layers, descending."""
    return np.asarray(np.linalg.svd(a.basis.T @ b.basis, compute_uv=False))


def compare_cca(a: Basis, b: Basis) -> float:
    """Return the mean (squared) canonical correlation of two prepared layers."""
    rho = correlations(a, b)
    return float(np.mean(rho**2 if a.summary == "r2" else rho))


def svcca(X: Any, Y: Any, *, keep: float = 0.99) -> float:
    """Mean canonical correlation of the top principal directions of each layer, in float64; in [0, 1].

    Each layer is centred, then reduced to the fewest directions that hold ``keep`` of its variance. Raghu et al.
    2017. Needs n > max(p, q). Raises :class:`BadInput` and, for ``keep`` outside (0, 1],
    :class:`SettingsError`; NaN with a warning where undefined.
    """
    return evaluate("svcca", prepare_svcca, compare_cca, X, Y, keep=keep)


def prepare_svcca(X: Any, *, keep: float = 0.99) -> Basis:
    """Factor a centred layer and keep its top directions."""
    if not 0 < keep <= 1:
        raise SettingsError(f"SVCCA keeps a share of the variance above 0 and up to 1; got keep={keep}.")
    return prepare_cca(X, keep=keep)


@dataclass(frozen=True)
class WeightedBasis:
    """A basis and the side, 'x', 'y' or 'smaller', whose variates weigh the correlations."""

    basis: Basis
    side: str


def pwcca(X: Any, Y: Any, *, side: Literal["x", "y", "smaller"] = "x") -> float:
    """Mean canonical correlation weighted by how much of a layer each canonical variate carries; in [0, 1].

    The weight of variate hᵢ = X aᵢ is Σⱼ |<hᵢ, xⱼ>| over the centred features xⱼ of X, so the value is not symmetric:
    ``side`` says whose variates weigh: the first layer's ('x', the default), the second's, or those of the layer of
    smaller rank (x on a tie). Morcos et al. 2018. Needs n > max(p, q). Raises :class:`BadInput`; NaN with
    a warning where undefined.
    """
    return evaluate("pwcca", prepare_pwcca, compare_pwcca, X, Y, side=side)


def prepare_pwcca(X: Any, *, side: str = "x") -> WeightedBasis:
    """Factor a centred layer and note the weighing side."""
    if side not in ("x", "y", "smaller"):
        raise SettingsError(f"PWCCA weighs by side 'x', 'y' or 'smaller'; got {side!r}.")
    return WeightedBasis(prepare_cca(X), side)


def compare_pwcca(a: WeightedBasis, b: WeightedBasis) -> float:
    """Return the projection-weighted mean of two prepared layers."""
    first, second = a.basis, b.basis
    left, rho, right = np.linalg.svd(first.basis.T @ second.basis, full_matrices=False)
    by_x = a.side == "x" or (a.side == "smaller" and first.basis.shape[1] <= second.basis.shape[1])
    # <h_i, x_j> = (loadings left)_ji: the variates U left are orthonormal already
    weights = np.abs(first.loadings @ left if by_x else second.loadings @ right.T).sum(axis=0)
    if not weights.sum() > 0:
        raise UndefinedMeasure("the canonical variates carry none of the layer.")
    return float(weights @ rho / weights.sum())


_SHAPE = frozenset(
    {Invariance.ORTHOGONAL, Invariance.JOINT_ORTHOGONAL, Invariance.SCALING, Invariance.TRANSLATION}
    | {Invariance.SAMPLE_ORDER}
)
_ANY_BASIS = _SHAPE | {Invariance.LINEAR, Invariance.FEATURE_SCALING}
_WEIGHTED = frozenset({Invariance.SCALING, Invariance.TRANSLATION, Invariance.SAMPLE_ORDER})
_NEEDS = "n > max(p, q), else undefined; n ≥ 10 (p + q) before unrelated data come near 0"


def _least(p: int, q: int) -> int:
    return max(p, q) + 1


def _bytes(n: int, p: int) -> int:
    return 8 * (n + p) * p


_COST = "n p² a layer, n p q + min(p, q)² max(p, q) a pair"

MEASURES = (
    Measure(
        "cca",
        "mean CCA",
        "1/r Σᵢ ρᵢ, r the smaller rank",
        "How well does the best linear map of one layer predict the other's best linear map, direction by direction?",
        0.0, 1.0, True, _ANY_BASIS, _NEEDS, _least, _COST, _bytes,
        "Kornblith et al. 2019 (ρ̄_CCA)",
        cca, prepare_cca, compare_cca, {"summary": "mean"},
    ),
    Measure(
        "cca_r2",
        "CCA R²",
        "1/r Σᵢ ρᵢ², r the smaller rank",
        "As mean CCA, in explained variance: every direction counts alike, however little of the layer it carries.",
        0.0, 1.0, True, _ANY_BASIS, _NEEDS, _least, _COST, _bytes,
        "Kornblith et al. 2019 (R²_CCA)",
        cca, prepare_cca, compare_cca, {"summary": "r2"},
    ),
    Measure(
        "svcca",
        "SVCCA",
        "1/r Σᵢ ρᵢ over the principal directions that hold 99 % of the variance",
        "As mean CCA, with the directions of least variance left out as noise.",
        0.0, 1.0, True, _SHAPE, _NEEDS, _least, _COST, _bytes,
        "Raghu et al. 2017",
        svcca, prepare_svcca, compare_cca,
    ),
    Measure(
        "pwcca",
        "PWCCA",
        "Σᵢ αᵢ ρᵢ / Σᵢ αᵢ, αᵢ = Σⱼ |<X aᵢ, xⱼ>|, centred; weighed by the first layer",
        "As mean CCA, but a direction counts by how much of the first layer's neurons it carries. Not symmetric.",
        0.0, 1.0, True, _WEIGHTED, _NEEDS, _least, _COST, _bytes,
        "Morcos et al. 2018",
        pwcca, prepare_pwcca, compare_pwcca, {"side": "x"}, symmetric=False,
        of_second=frozenset({Invariance.ORTHOGONAL, Invariance.LINEAR, Invariance.FEATURE_SCALING}),
    ),
)  # fmt: skip
