"""Centred kernel alignment of two representations, with a linear or a Gaussian kernel, biased or debiased.

With centred features and K = X Xᵀ the rows of K sum to 0, and HSIC₁ of Song et al. 2012, eq. 5, which leaves the
diagonals out, needs nothing but the squares of one cross product and the rows' squared norms kᵢ = |xᵢ|²::

    n(n-3) HSIC₁ = ‖XᵀY‖² - n/(n-2) Σ kᵢ lᵢ + Σ kᵢ Σ lᵢ / ((n-1)(n-2))

so no n × n matrix has to exist where the features are fewer than the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from embcompare.measures.declaration import (
    Invariance,
    Matrix,
    Measure,
    UndefinedMeasure,
    as_matrix,
    centred,
    evaluate,
    require_samples,
)
from embcompare.measures.distances import squared_distances

# An own HSIC₁ below this share of the squared kernel is what rounding leaves of 0.
VANISHING = 1e-13
NO_STRUCTURE = (
    "beyond each sample's own norm the layer has no structure (all pairs of samples are equally similar), so its "
    "debiased self-similarity is 0."
)


@dataclass(frozen=True)
class LinearState:
    """Centred features (n, p) of unit Frobenius norm, their rows' squared norms, the root of the layer's own HSIC."""

    features: Matrix
    squares: Matrix
    own: float
    debiased: bool


def linear_cka(X: Any, Y: Any, *, debiased: bool = True) -> float:
    """Linear CKA of (n, p) and (n, q) in float64: at most 1; the debiased one may be below 0 and is shown so.

    ``debiased`` uses HSIC₁ (Song et al. 2012, eq. 5; Nguyen et al. 2021, eq. 3), else the biased estimator of
    Kornblith et al. 2019, eq. 4, which rises towards 1 for unrelated data as n falls below about 10 times the width.
    Needs n ≥ 4 (biased: 2). Raises :class:`BadInput`; NaN with a warning where undefined.
    """
    return evaluate("linear_cka", prepare_linear, compare_linear, X, Y, debiased=debiased)


def prepare_linear(X: Any, *, debiased: bool = True) -> LinearState:
    """Centre a layer and compute its own term; raises :class:`UndefinedMeasure` for a constant layer or small n."""
    x = as_matrix(X)
    least_samples(len(x), debiased)
    features = centred(x)
    squares = np.einsum("ij,ij->i", features, features)
    own = _hsic(features, squares, features, squares, debiased)
    scale = float(squares @ squares) if debiased else 0.0
    if own <= VANISHING * max(own, scale):
        raise UndefinedMeasure(NO_STRUCTURE)
    return LinearState(features, squares, float(np.sqrt(own)), debiased)


def compare_linear(a: LinearState, b: LinearState) -> float:
    """Return the CKA of two prepared layers."""
    return _hsic(a.features, a.squares, b.features, b.squares, a.debiased) / (a.own * b.own)


def least_samples(n: int, debiased: bool) -> None:
    """Raise :class:`UndefinedMeasure` when n is too small for the estimator."""
    require_samples(n, 4 if debiased else 2, "HSIC₁ divides by n-3" if debiased else "one sample has no spread")


def debias(overlap: Any, products: Any, trace_a: Any, trace_b: Any, n: int) -> Any:
    """Turn ‖XᵀY‖², Σ kᵢlᵢ, Σ kᵢ and Σ lᵢ into n(n-3) HSIC₁; numbers or arrays of layer pairs alike."""
    return overlap - n / (n - 2) * products + trace_a * trace_b / ((n - 1) * (n - 2))


def _hsic(x: Matrix, k: Matrix, y: Matrix, l: Matrix, debiased: bool) -> float:  # noqa: E741
    n, products = len(x), float(k @ l)
    if n * (x.shape[1] + y.shape[1]) > 2 * x.shape[1] * y.shape[1]:
        overlap = float(np.linalg.norm(x.T @ y) ** 2)
        return float(debias(overlap, products, k.sum(), l.sum(), n)) if debiased else overlap
    # few samples: the pairs are summed without the diagonal, which would drown them
    gram_x, gram_y = x @ x.T, (y @ y.T)
    np.fill_diagonal(gram_x, 0.0)
    apart = float(np.vdot(gram_x, gram_y))
    if not debiased:
        return apart + products
    return apart - 2 / (n - 2) * products + float(k.sum() * l.sum()) / ((n - 1) * (n - 2))


@dataclass(frozen=True)
class KernelState:
    """A centred kernel matrix (n, n) of unit Frobenius norm."""

    kernel: Matrix


def rbf_cka(X: Any, Y: Any, *, bandwidth: float = 1.0, debiased: bool = True) -> float:
    """CKA with Gaussian kernels exp(-d²/2σ²) of (n, p) and (n, q), in float64.

    σ² is ``bandwidth``² times the layer's median squared distance over the pairs of different samples; where more
    than half of the pairs coincide, the median over those that do not. Kornblith et al. 2019. Needs n ≥ 4
    (biased: 2) and n² numbers a layer. Raises :class:`BadInput`; NaN with a warning for a constant layer.
    """
    return evaluate("rbf_cka", prepare_rbf, compare_rbf, X, Y, bandwidth=bandwidth, debiased=debiased)


def prepare_rbf(X: Any, *, bandwidth: float = 1.0, debiased: bool = True) -> KernelState:
    """Build and centre a layer's kernel; the debiased one is U-centred (Székely & Rizzo 2014), its diagonal is 0."""
    x = as_matrix(X)
    n = len(x)
    least_samples(n, debiased)
    distances = squared_distances(centred(x))
    kernel = np.exp(-distances / (2 * bandwidth**2 * median_distance(distances)))
    if debiased:
        np.fill_diagonal(kernel, 0.0)
        sums = kernel.sum(axis=0)
        kernel += sums.sum() / ((n - 1) * (n - 2)) - (sums[:, None] + sums) / (n - 2)
        np.fill_diagonal(kernel, 0.0)
    else:
        means = kernel.mean(axis=0)
        kernel += means.mean() - means[:, None] - means
    norm = float(np.linalg.norm(kernel))
    if norm <= VANISHING * n:
        raise UndefinedMeasure(NO_STRUCTURE)
    return KernelState(kernel / norm)


def compare_rbf(a: KernelState, b: KernelState) -> float:
    """Return the CKA of two prepared layers."""
    return float(np.vdot(a.kernel, b.kernel))


def median_distance(distances: Matrix) -> float:
    """Median squared distance of the pairs i < j, or of those that do not coincide if most do."""
    pairs = distances[np.triu_indices(len(distances), 1)]
    median = float(np.median(pairs))
    return median if median > 0 else float(np.median(pairs[pairs > 0]))


def linear_cka_matrix(layers_a: Any, layers_b: Any, *, debiased: bool = True, **options: Any) -> Any:
    """Linear CKA of all pairs of two sequences of layers; see :func:`embcompare.measures.cka_matrix.cka_matrix`."""
    from embcompare.measures.cka_matrix import cka_matrix

    return cka_matrix(layers_a, layers_b, debiased=debiased, **options)


_SEES_SHAPE = frozenset(
    {Invariance.ORTHOGONAL, Invariance.JOINT_ORTHOGONAL, Invariance.SCALING, Invariance.TRANSLATION}
    | {Invariance.SAMPLE_ORDER}
)


def _declare(name: str, label: str, linear: bool, debiased: bool, formula: str, meaning: str, source: str) -> Measure:
    return Measure(
        name,
        label,
        formula,
        meaning,
        -1.0 if debiased else 0.0,
        1.0,
        True,
        _SEES_SHAPE,
        "n ≥ 4" if debiased else "n ≥ 2; n ≥ 10 times the width before unrelated data come near 0",
        lambda p, q: 4 if debiased else 2,
        "n p q a pair, or n² (p + q) for few samples" if linear else "n² p a layer, n² a pair",
        (lambda n, p: 8 * n * (p + 1)) if linear else (lambda n, p: 8 * n * n),
        source,
        linear_cka if linear else rbf_cka,
        prepare_linear if linear else prepare_rbf,
        compare_linear if linear else compare_rbf,
        {"debiased": debiased},
        matrix=linear_cka_matrix if linear else None,
    )


MEASURES = (
    _declare(
        "linear_cka",
        "linear CKA, debiased",
        True,
        True,
        "HSIC₁(X Xᵀ, Y Yᵀ) / √(HSIC₁(X Xᵀ, X Xᵀ) HSIC₁(Y Yᵀ, Y Yᵀ))",
        "Are the same pairs of samples similar in both layers? Unrelated layers score about 0 at any n.",
        "Kornblith et al. 2019; HSIC₁: Song et al. 2012, eq. 5; Nguyen et al. 2021, eq. 3",
    ),
    _declare(
        "linear_cka_biased",
        "linear CKA, biased",
        True,
        False,
        "‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖), centred",
        "As linear CKA, but unrelated layers score higher the fewer the samples; kept to compare with older papers.",
        "Kornblith et al. 2019, eq. 4",
    ),
    _declare(
        "rbf_cka",
        "Gaussian CKA, debiased",
        False,
        True,
        "CKA of exp(-‖xᵢ-xⱼ‖²/2σ²), σ² the median squared distance, with HSIC₁",
        "As linear CKA, but near pairs count more than far ones.",
        "Kornblith et al. 2019; HSIC₁: Song et al. 2012, eq. 5",
    ),
    _declare(
        "rbf_cka_biased",
        "Gaussian CKA, biased",
        False,
        False,
        "CKA of exp(-‖xᵢ-xⱼ‖²/2σ²), σ² the median squared distance",
        "As Gaussian CKA, but unrelated layers score higher the fewer the samples.",
        "Kornblith et al. 2019",
    ),
)
