"""Representational similarity analysis: whether two layers find the same pairs of samples far apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import rankdata

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
from embcompare.measures.distances import cosine_distances, squared_distances, unit_rows
from embcompare.words import plural

RDMS = ("correlation", "cosine", "euclidean", "sqeuclidean")
COMPARISONS = ("spearman", "pearson", "cosine")


@dataclass(frozen=True)
class Dissimilarities:
    """The n(n-1)/2 dissimilarities of a layer (ranked for Spearman; centred but for cosine), of unit norm."""

    values: Matrix


def rsa(
    X: Any,
    Y: Any,
    *,
    rdm: Literal["correlation", "cosine", "euclidean", "sqeuclidean"] = "correlation",
    compare: Literal["spearman", "pearson", "cosine"] = "spearman",
) -> float:
    """Similarity of the two layers' dissimilarity matrices, for (n, p) and (n, q), in float64; in [-1, 1].

    ``rdm`` is the dissimilarity of two samples: 1 - Pearson's correlation over the features, 1 - cosine, or the
    (squared) Euclidean distance. ``compare`` correlates the n(n-1)/2 upper entries: Spearman (ties share their mean
    rank), Pearson, or cosine. Below 0 is legitimate. Kriegeskorte et al. 2008. Needs n ≥ 4, and 3 features for
    correlation. Raises :class:`BadInput`, :class:`SettingsError`; NaN with a warning where undefined.
    """
    return evaluate("rsa", prepare_rsa, compare_rsa, X, Y, rdm=rdm, compare=compare)


def prepare_rsa(X: Any, *, rdm: str = "correlation", compare: str = "spearman") -> Dissimilarities:
    """Build a layer's dissimilarity vector, ready for a dot product."""
    if compare not in COMPARISONS:
        raise SettingsError(f"RSA compares by {', '.join(COMPARISONS)}; got {compare!r}.")
    x = as_matrix(X)
    require_samples(len(x), 4, "with fewer there are at most three pairs")
    values = _unscaled(x, rdm)
    if compare == "spearman":
        # distances that differ by rounding only are one rank
        values = rankdata(np.round(values / max(float(values.max()), 1e-300), 12))
    scale = float(np.linalg.norm(values))
    if compare != "cosine":
        values = values - values.mean()
    norm = float(np.linalg.norm(values))
    if norm <= 1e-12 * scale:
        raise UndefinedMeasure("all pairs of samples are equally far apart, so there is nothing to correlate.")
    return Dissimilarities(values / norm)


def compare_rsa(a: Dissimilarities, b: Dissimilarities) -> float:
    """Return the correlation (or cosine) of two prepared dissimilarity vectors."""
    return float(a.values @ b.values)


def dissimilarities(X: Any, rdm: str = "correlation") -> Matrix:
    """Return the upper triangle of the dissimilarity matrix, row by row, (n(n-1)/2,), distances in the data's units."""
    x = as_matrix(X)
    values = _unscaled(x, rdm)
    return values if rdm in ("cosine", "correlation") else values * _scale(x, rdm)


def _unscaled(x: Matrix, rdm: str) -> Matrix:
    """Dissimilarities up to a factor that no correlation sees, and that could overflow."""
    if rdm not in RDMS:
        raise SettingsError(f"A dissimilarity is one of {', '.join(RDMS)}; got {rdm!r}.")
    upper = np.triu_indices(len(x), 1)
    if rdm == "cosine":
        return np.asarray(cosine_distances(x)[upper])
    if rdm == "correlation":
        if x.shape[1] < 3:
            raise UndefinedMeasure(
                f"a correlation over {plural(x.shape[1], 'feature')} is ±1 or nothing; use rdm='euclidean'."
            )
        return np.asarray(cosine_distances(_deviations(x))[upper])
    squared = squared_distances(centred(x))[upper]
    return np.asarray(squared if rdm == "sqeuclidean" else np.sqrt(squared))


def _scale(x: Matrix, rdm: str) -> float:
    largest = float(np.abs(x).max(initial=0.0)) or 1.0
    moved = x / largest
    norm = float(np.linalg.norm(moved - moved.mean(axis=0))) * largest
    return norm**2 if rdm == "sqeuclidean" else norm


def _deviations(x: Matrix) -> Matrix:
    largest = np.abs(x).max(axis=1, keepdims=True)
    moved = x - x.mean(axis=1, keepdims=True)
    moved[np.abs(moved).max(axis=1) <= 8 * np.finfo(np.float64).eps * largest[:, 0]] = 0.0
    unit_rows(moved, "correlations")
    return np.asarray(moved)


_TURNED = frozenset({Invariance.ORTHOGONAL, Invariance.JOINT_ORTHOGONAL, Invariance.SCALING, Invariance.SAMPLE_ORDER})
_INVARIANCES = {
    "correlation": frozenset({Invariance.SCALING, Invariance.SAMPLE_SCALING, Invariance.SAMPLE_ORDER}),
    "cosine": _TURNED | {Invariance.SAMPLE_SCALING},
    "euclidean": _TURNED | {Invariance.TRANSLATION},
}
_LABELS = {"correlation": "1 - r(xᵢ, xⱼ)", "cosine": "1 - cos(xᵢ, xⱼ)", "euclidean": "‖xᵢ - xⱼ‖"}


def _declare(name: str, rdm: str, compare: str, meaning: str) -> Measure:
    low = 0.0 if compare == "cosine" else -1.0
    return Measure(
        name,
        f"RSA ({rdm} RDMs, {compare})",
        f"{compare} of the upper triangles of dᵢⱼ = {_LABELS[rdm]}",
        meaning,
        low,
        1.0,
        True,
        _INVARIANCES[rdm],
        "n ≥ 4" + ("; p, q ≥ 3" if rdm == "correlation" else ""),
        lambda p, q: 4,
        "n² p a layer" + (" and a sort of n²/2" if compare == "spearman" else "") + ", n² a pair",
        lambda n, p: 4 * n * (n - 1),
        "Kriegeskorte et al. 2008",
        rsa,
        prepare_rsa,
        compare_rsa,
        {"rdm": rdm, "compare": compare},
    )


MEASURES = (
    _declare("rsa", "correlation", "spearman", "Do both layers rank the pairs of samples alike, from near to far?"),
    _declare("rsa_pearson", "correlation", "pearson", "As RSA, but the sizes of the dissimilarities count too."),
    _declare("rsa_cosine", "cosine", "pearson", "As RSA with Pearson, by the angles between the raw hidden states."),
    _declare("rsa_euclidean", "euclidean", "spearman", "As RSA, by distances: a shift of a layer changes nothing."),
)
