"""Orthogonal Procrustes: how far two layers stay apart after the best rotation of one onto the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from embcompare.errors import Incomparable
from embcompare.measures.declaration import (
    Invariance,
    Matrix,
    Measure,
    as_matrix,
    centred,
    check_pairing,
    evaluate,
    require_samples,
)

# Above this cosine the angle is read from the residual, for arccos would lose half of the digits.
NEARLY_ALIGNED = 0.99


def procrustes(X: Any, Y: Any) -> float:
    """Angular Procrustes distance of (n, p) and (n, q) in radians, float64: 0 for equal shapes, at most π/2.

    θ = arccos(‖XᵀY‖_* / (‖X‖ ‖Y‖)) of the centred layers; the narrower layer is understood to be padded with zeros. A
    metric on shapes: symmetric, with the triangle inequality. Williams et al. 2021. Needs n ≥ 2. Raises
    :class:`BadInput`; NaN with a warning for a constant layer.
    """
    return evaluate("procrustes", prepare_procrustes, compare_procrustes, X, Y)


def prepare_procrustes(X: Any) -> Matrix:
    """Centre a layer, (n, p), and scale it to unit Frobenius norm."""
    x = as_matrix(X)
    require_samples(len(x), 2, "one sample has no shape")
    return centred(x)


def compare_procrustes(a: Matrix, b: Matrix) -> float:
    """Return the angle of two prepared layers."""
    cosine = float(np.linalg.svd(a.T @ b, compute_uv=False).sum())
    if cosine < NEARLY_ALIGNED:
        return float(np.arccos(cosine))
    width = max(a.shape[1], b.shape[1])
    a, b = (np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (a, b))
    return float(2 * np.arcsin(np.linalg.norm(a @ _rotation(a, b) - b) / 2))


def aligning_rotation(X: Any, Y: Any) -> Matrix:
    """Return the orthogonal R, (p, p), that brings the centred X closest to the centred Y: X R ≈ Y.

    Maps source to target in this order; scale is not fitted. Schönemann 1966. Raises :class:`Incomparable` for
    different widths, :class:`BadInput` and :class:`UndefinedMeasure`.
    """
    check_pairing(X, Y)
    source, target = prepare_procrustes(X), prepare_procrustes(Y)
    if source.shape[1] != target.shape[1]:
        raise Incomparable(
            f"A rotation needs two layers of one width, and these are {source.shape[1]} and {target.shape[1]} wide; "
            "compare them by procrustes(), or map them by regression."
        )
    return _rotation(source, target)


def _rotation(source: Matrix, target: Matrix) -> Matrix:
    u, _, vt = np.linalg.svd(source.T @ target)
    return np.asarray(u @ vt)


MEASURES = (
    Measure(
        "procrustes",
        "Procrustes angle",
        "arccos(‖XᵀY‖_* / (‖X‖ ‖Y‖)), centred, in radians",
        "How far apart are the two layers after the best rotation? 0 is the same shape.",
        0.0,
        float(np.pi / 2),
        False,
        frozenset(
            {Invariance.ORTHOGONAL, Invariance.JOINT_ORTHOGONAL, Invariance.SCALING, Invariance.TRANSLATION}
            | {Invariance.SAMPLE_ORDER}
        ),
        "n ≥ 2; n ≥ 10 times the width before unrelated data come near π/2",
        lambda p, q: 2,
        "n p q + min(p, q)² max(p, q) a pair",
        lambda n, p: 8 * n * p,
        "Williams et al. 2021",
        procrustes,
        prepare_procrustes,
        compare_procrustes,
    ),
)
