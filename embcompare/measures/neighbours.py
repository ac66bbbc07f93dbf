"""Neighbour measures: whether two layers give each sample the same nearest samples.

A sample is never its own neighbour. Ties have a rule: samples as far as the k-th nearest (to 9 digits) share the
places that are left equally, so that the value does not depend on the order of the samples, duplicates are counted
fairly and a layer agrees with itself perfectly. With weights w in [0, 1], the samples that two neighbourhoods share
count min(w_X, w_Y), those of their union max(w_X, w_Y).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array, vstack

from embcompare.errors import SettingsError
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
from embcompare.measures.distances import squared_distances, unit_rows

TIE = 1e-9
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Neighbourhoods:
    """For every sample the weights of its neighbours: sparse (n, n), rows of sum k, zero diagonal."""

    weights: csr_array
    k: int


def mutual_knn(X: Any, Y: Any, *, k: int = 10, metric: Literal["cosine", "euclidean"] = "cosine") -> float:
    """Mean share of the k nearest neighbours that (n, p) and (n, q) have in common; in [0, 1], chance k/(n-1).

    Huh et al. 2024. Needs n ≥ k + 2. Raises :class:`BadInput`, :class:`SettingsError` for
    ``k`` or ``metric``; NaN with a warning where undefined.
    """
    return evaluate("mutual_knn", prepare_neighbours, compare_mutual, X, Y, k=k, metric=metric)


def neighbourhood_jaccard(X: Any, Y: Any, *, k: int = 10, metric: Literal["cosine", "euclidean"] = "cosine") -> float:
    """Mean over samples of |N_X ∩ N_Y| / |N_X ∪ N_Y| of the k nearest neighbours; in [0, 1].

    Klabunde et al. 2025 (Jaccard similarity of neighbourhoods). Needs n ≥ k + 2. Raises
    :class:`BadInput`, :class:`SettingsError`; NaN with a warning where undefined.
    """
    return evaluate("neighbourhood_jaccard", prepare_neighbours, compare_jaccard, X, Y, k=k, metric=metric)


def prepare_neighbours(X: Any, *, k: int = 10, metric: str = "cosine") -> Neighbourhoods:
    """Find every sample's neighbours in one layer."""
    _check(k, metric)
    x = as_matrix(X)
    require_samples(len(x), k + 2, f"with k = {k} everybody would be everybody's neighbour")
    points = unit_rows(x) if metric == "cosine" else centred(x)
    return Neighbourhoods(neighbour_weights(points, k), k)


def compare_mutual(a: Neighbourhoods, b: Neighbourhoods) -> float:
    """Return the mean shared share of two prepared layers."""
    shared = float(a.weights.minimum(b.weights).sum())
    return shared / (a.k * len(a.weights.indptr[1:]))


def compare_jaccard(a: Neighbourhoods, b: Neighbourhoods) -> float:
    """Return the mean Jaccard index of two prepared layers."""
    shared = np.asarray(a.weights.minimum(b.weights).sum(axis=1))
    return float(np.mean(shared / (2 * a.k - shared)))


def neighbour_weights(points: Matrix, k: int) -> csr_array:
    """Weigh the k nearest of every point (n, r) by the tie rule, (n, n); undefined where all are equally far."""
    n = len(points)
    blocks = [_block_weights(points, start, min(start + BLOCK_ROWS, n), k) for start in range(0, n, BLOCK_ROWS)]
    weights = csr_array(vstack(blocks, format="csr"))
    if weights.nnz == n * (n - 1):
        raise UndefinedMeasure("all samples are equally far from each other, so none is nearest.")
    return weights


def _block_weights(points: Matrix, start: int, stop: int, k: int) -> csr_array:
    apart = squared_distances(points, start, stop)
    widest = apart.max(axis=1, keepdims=True)
    apart[np.arange(stop - start), np.arange(start, stop)] = np.inf
    kth = np.partition(apart, k - 1, axis=1)[:, k - 1 : k]
    slack = TIE * np.maximum(kth, 1e-6 * widest)
    closer, tied = apart < kth - slack, np.abs(apart - kth) <= slack
    share = (k - closer.sum(axis=1, keepdims=True)) / tied.sum(axis=1, keepdims=True)
    return csr_array(closer + tied * share)


@dataclass(frozen=True)
class LocalKernel:
    """Cosine kernel of a layer, (n, n), each row minus its mean; its neighbour weights; its own alignment's root."""

    kernel: Matrix
    neighbours: csr_array
    own: float


def cknna(X: Any, Y: Any, *, k: int = 10) -> float:
    """CKA restricted to pairs that are k-nearest neighbours in both layers, for (n, p) and (n, q), float64.

    Samples are scaled to unit length; with K̄ᵢⱼ = <xᵢ, xⱼ> - mean_l <xᵢ, x_l> and αᵢⱼ the shared neighbours, it is
    A(K, L) / √(A(K, K) A(L, L)), A(K, L) = Σᵢⱼ αᵢⱼ K̄ᵢⱼ L̄ᵢⱼ. Huh et al. 2024, appendix A. Needs n ≥ k + 2. Raises
    :class:`BadInput`, :class:`SettingsError` for ``k``; NaN with a warning where undefined.
    """
    return evaluate("cknna", prepare_cknna, compare_cknna, X, Y, k=k)


def prepare_cknna(X: Any, *, k: int = 10) -> LocalKernel:
    """Build a layer's kernel and neighbours."""
    neighbours = prepare_neighbours(X, k=k).weights
    unit = unit_rows(as_matrix(X))
    kernel = unit @ (unit - unit.mean(axis=0)).T
    own = float(neighbours.multiply(kernel**2).sum())
    if own <= 1e-26 * len(unit):
        raise UndefinedMeasure("neighbours are no more alike than any two samples, so there is nothing to align.")
    return LocalKernel(kernel, neighbours, float(np.sqrt(own)))


def compare_cknna(a: LocalKernel, b: LocalKernel) -> float:
    """Return the local alignment of two prepared layers."""
    shared = a.neighbours.minimum(b.neighbours).tocoo()
    rows, columns = shared.coords
    return float(np.sum(shared.data * a.kernel[rows, columns] * b.kernel[rows, columns])) / (a.own * b.own)


def _check(k: int, metric: str = "cosine") -> None:
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise SettingsError(f"k, the number of neighbours, is a whole number of at least 1; got {k!r}.")
    if metric not in ("cosine", "euclidean"):
        raise SettingsError(f"Neighbours are found by 'cosine' or 'euclidean' distance; got {metric!r}.")


_DIRECTIONS = frozenset(
    {Invariance.ORTHOGONAL, Invariance.JOINT_ORTHOGONAL, Invariance.SCALING, Invariance.SAMPLE_SCALING}
    | {Invariance.SAMPLE_ORDER}
)


def _declare(name: str, label: str, formula: str, meaning: str, source: str, *faces: Any, k: int = 10) -> Measure:
    """Declare a measure of ``k`` neighbours; ``{k}`` in the formula stands for the number."""
    _check(k)
    function, prepare, compare = faces
    return Measure(
        name,
        label,
        formula.format(k=k),
        meaning,
        -1.0 if name == "cknna" else 0.0,
        1.0,
        True,
        _DIRECTIONS,
        f"n ≥ k + 2 = {k + 2}",
        lambda p, q: k + 2,
        "n² p a layer, " + ("n k a pair, n² memory" if name == "cknna" else "n k a pair"),
        (lambda n, p: 8 * n * n + 12 * k * n) if name == "cknna" else (lambda n, p: 12 * k * n),
        source,
        function,
        prepare,
        compare,
        {"k": k},
        for_k=lambda other: _declare(name, label, formula, meaning, source, *faces, k=other),
    )


MEASURES = (
    _declare(
        "mutual_knn",
        "mutual nearest neighbours",
        "1/(n k) Σᵢ |N_X(i) ∩ N_Y(i)|, k = {k}, by cosine",
        "What share of a sample's nearest samples is the same in both layers? Chance is k/(n-1).",
        "Huh et al. 2024",
        mutual_knn,
        prepare_neighbours,
        compare_mutual,
    ),
    _declare(
        "neighbourhood_jaccard",
        "neighbourhood Jaccard",
        "1/n Σᵢ |N_X(i) ∩ N_Y(i)| / |N_X(i) ∪ N_Y(i)|, k = {k}, by cosine",
        "As mutual nearest neighbours, in proportion to all samples that are near in either layer.",
        "Klabunde et al. 2025",
        neighbourhood_jaccard,
        prepare_neighbours,
        compare_jaccard,
    ),
    _declare(
        "cknna",
        "CKNNA",
        "Σ αᵢⱼ K̄ᵢⱼ L̄ᵢⱼ / √(Σ αᵢⱼ K̄ᵢⱼ² Σ αᵢⱼ L̄ᵢⱼ²), α: mutual {k} nearest neighbours, K̄ row-centred cosines",
        "Linear CKA among near samples only: do both layers agree on how near the nearest are?",
        "Huh et al. 2024, appendix A",
        cknna,
        prepare_cknna,
        compare_cknna,
    ),
)
