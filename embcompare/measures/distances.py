"""Distances between the samples of one layer, in which equal samples are equal in spite of rounding."""

from __future__ import annotations

import numpy as np

from embcompare.measures.declaration import Matrix, UndefinedMeasure
from embcompare.words import agree, plural

# Squared distances below this share of the two squared norms are the rounding of the products, not a distance.
COINCIDE = 1e-13


def squared_distances(x: Matrix, start: int = 0, stop: int | None = None) -> Matrix:
    """Return squared Euclidean distances of samples ``start`` … ``stop`` from all n, (stop - start, n).

    Exactly 0 between a sample and itself and between samples that coincide. ``x`` should be centred: the distances
    come from products, which lose the digits that a common offset takes.
    """
    rows = x[start:stop]
    squares = np.einsum("ij,ij->i", x, x)
    sums = squares[start:stop, None] + squares
    distances = rows @ x.T
    distances *= -2
    distances += sums
    distances[distances <= COINCIDE * sums] = 0.0
    distances[np.arange(len(rows)), np.arange(start, start + len(rows))] = 0.0
    return np.asarray(distances)


def unit_rows(x: Matrix, what: str = "cosines") -> Matrix:
    """Scale every sample to unit length; undefined where a sample is the zero vector, which has no direction."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    if not (largest > 0).all():
        none = int((largest == 0).sum())
        raise UndefinedMeasure(
            f"{none:,} of {plural(len(x), 'sample')} {agree(none, 'has', 'have')} no direction to take {what} with "
            "(zero vector)."
        )
    x = x / largest
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def cosine_distances(x: Matrix) -> Matrix:
    """Return the (n, n) distances 1 - cosine; exactly 0 where the directions coincide. Undefined for zero vectors."""
    return squared_distances(unit_rows(x)) / 2
