"""Clouds of points, one a layer, on the same rows: nearest neighbours, spectrum, rotation, and a plane to see both in.

Arrays only, float64, (samples, features).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embcompare.measures.declaration import Matrix, UndefinedMeasure
from embcompare.measures.distances import squared_distances
from embcompare.measures.neighbours import TIE
from embcompare.measures.shape import aligning_rotation


def evenly_drawn(n: int, shown: int, seed: int) -> np.ndarray:
    """Return at most ``shown`` of n rows, int64, ascending: one at random of each of ``shown`` equal stretches."""
    if n <= shown:
        return np.arange(n, dtype=np.int64)
    bounds = np.arange(shown + 1) * n // shown
    return np.asarray(np.random.default_rng([seed, 4]).integers(bounds[:-1], bounds[1:]), dtype=np.int64)


def nearest(
    points: Matrix, k: int, block: int, on_block: Callable[[], object] = lambda: None
) -> tuple[np.ndarray, int]:
    """Return the k nearest others of every point (n, r), (n, k) int64, nearest first, and how many rows had ties.

    Distances are Euclidean, ``block`` rows of them at once. Points as far as the k-th nearest, to the precision the
    measures of neighbours use, are tied for the places that are left: the lowest row numbers get them. Raises
    ``UndefinedMeasure`` where all are equally far.
    """
    n = len(points)
    found = np.empty((n, k), dtype=np.int64)
    rows_with_ties = candidates = 0
    for start in range(0, n, block):
        on_block()
        stop = min(start + block, n)
        apart = squared_distances(points, start, stop)
        widest = apart.max(axis=1, keepdims=True)
        apart[np.arange(stop - start), np.arange(start, stop)] = np.inf
        kth = np.partition(apart, k - 1, axis=1)[:, k - 1 : k]
        slack = TIE * np.maximum(kth, 1e-6 * widest)
        closer, tied = apart < kth - slack, np.abs(apart - kth) <= slack
        left = k - closer.sum(axis=1, keepdims=True)
        over = tied.sum(axis=1) > left[:, 0]
        candidates += int(closer.sum() + tied.sum())
        rows_with_ties += int(over.sum())
        tied[over] &= np.cumsum(tied[over], axis=1) <= left[over]
        columns = (np.flatnonzero(closer | tied) % n).reshape(-1, k)
        order = np.argsort(np.take_along_axis(apart, columns, 1), axis=1, kind="stable")
        found[start:stop] = np.take_along_axis(columns, order, 1)
    if candidates == n * (n - 1):
        raise UndefinedMeasure("all rows are equally far from each other, so none is nearest.")
    return found, rows_with_ties


def shared_counts(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return how many numbers each row of ``a`` and of ``b`` share, (n,) float64; none occurs twice in a row."""
    both = np.sort(np.concatenate([a, b], axis=1), axis=1)
    return np.asarray((both[:, 1:] == both[:, :-1]).sum(axis=1), dtype=np.float64)


def turned(a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return A and B R, (n, r) both: the narrower padded with zeros, R the rotation of B onto A.

    Orthogonal Procrustes (Schönemann 1966); both are centred and of unit norm.
    """
    width = max(a.shape[1], b.shape[1])
    a, b = (np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (a, b))
    return a, b @ aligning_rotation(b, a)


def leading_plane(a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return the coordinates of A and B, (n, r) each and centred, in their common plane of most variance, (n, 2).

    The axes are the two leading principal directions of the 2n points; each points to where A reaches farthest.
    """
    from scipy.linalg import eigh

    n, r = a.shape
    if r > 2 * n:
        basis, _ = np.linalg.qr(np.concatenate([a, b]).T)
        a, b = a @ basis, b @ basis
    elif r < 2:
        a, b = (np.pad(x, ((0, 0), (0, 2 - r))) for x in (a, b))
    width = a.shape[1]
    _, directions = eigh(a.T @ a + b.T @ b, subset_by_index=(width - 2, width - 1))
    directions = directions[:, ::-1]
    xy_a, xy_b = a @ directions, b @ directions
    farthest = xy_a[np.abs(xy_a).argmax(axis=0), np.arange(2)]
    signs = np.where(farthest < 0, -1.0, 1.0)
    return xy_a * signs, xy_b * signs
