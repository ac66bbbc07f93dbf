"""Token-wise cosine: the plainest comparison, for layers that already share their coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from embcompare.errors import Incomparable
from embcompare.measures.declaration import Invariance, Matrix, Measure, as_matrix, evaluate, require_samples
from embcompare.measures.distances import unit_rows


def tokenwise_cosine(X: Any, Y: Any) -> float:
    """Mean over samples of cos(xᵢ, yᵢ) for two (n, p) arrays in shared coordinates, in float64; in [-1, 1].

    Shared are the coordinates of embedding space (``EmbeddingSpace.coordinates_a`` and ``coordinates_b``), or the
    features of one model and its fine-tuned copy; between two independent models it says nothing. Raises
    :class:`Incomparable` for different widths and :class:`BadInput`; NaN with a warning where a sample is zero.
    """
    return evaluate("tokenwise_cosine", prepare_tokenwise, compare_tokenwise, X, Y)


def prepare_tokenwise(X: Any) -> Matrix:
    """Scale every sample to unit length, (n, p)."""
    x = as_matrix(X)
    require_samples(len(x), 1, "a mean of cosines needs one")
    return unit_rows(x)


def compare_tokenwise(a: Matrix, b: Matrix) -> float:
    """Return the mean cosine of paired samples of two prepared layers."""
    if a.shape[1] != b.shape[1]:
        raise Incomparable(
            f"Token-wise cosine needs shared coordinates, and these layers are {a.shape[1]} and {b.shape[1]} wide; "
            "read both in embedding space first."
        )
    return float(np.einsum("ij,ij->i", a, b).mean())


_NEEDS_MORE = frozenset({Invariance.ORTHOGONAL, Invariance.TRANSLATION, Invariance.LINEAR, Invariance.FEATURE_SCALING})

MEASURES = (
    Measure(
        "tokenwise_cosine",
        "token-wise cosine",
        "1/n Σᵢ cos(xᵢ, yᵢ)",
        "Does each token's vector point the same way in both layers? Needs shared coordinates (embedding space).",
        -1.0,
        1.0,
        True,
        frozenset(Invariance) - _NEEDS_MORE,
        "shared coordinates; no zero vector",
        lambda p, q: 1,
        "n p a pair",
        lambda n, p: 8 * n * p,
        "cosine similarity; in embedding space, Dar et al. 2023, section 3",
        tokenwise_cosine,
        prepare_tokenwise,
        compare_tokenwise,
        needs_shared_coordinates=True,
    ),
)
