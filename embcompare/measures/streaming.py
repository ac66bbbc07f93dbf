"""Measures of two layers that arrive in batches: any split of the samples gives the one-shot value.

What is kept are sums about the running mean, in float64: the second moments, and for the debiased CKA the fourth
moments Σ kᵢ lᵢ with kᵢ = |xᵢ|². When batches are joined, both are first moved to the common mean, exactly (as in Chan,
Golub & LeVeque 1979); so neither a large offset, nor different scales, nor the number of batches costs digits. Memory
is (p + q)² numbers whatever the number of samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from embcompare.errors import EmbcompareWarning
from embcompare.measures.cka import NO_STRUCTURE, VANISHING, debias, least_samples
from embcompare.measures.declaration import (
    BadInput,
    Matrix,
    UndefinedMeasure,
    as_matrix,
    check_pairing,
    require_samples,
)


@dataclass(frozen=True)
class _Moments:
    """Sums over n centred samples of two arrays: xᵢyᵢᵀ (p, q), |x|²|y|², |x|²y (q,), |y|²x (p,)."""

    cross: Matrix
    products: float
    square_x_y: Matrix
    square_y_x: Matrix

    @classmethod
    def of(cls, x: Matrix, y: Matrix) -> _Moments:
        k, l = np.einsum("ij,ij->i", x, x), np.einsum("ij,ij->i", y, y)  # noqa: E741
        return cls(x.T @ y, float(k @ l), k @ y, l @ x)

    def moved(self, n: int, by_x: Matrix, by_y: Matrix, trace_x: float, trace_y: float) -> _Moments:
        """Return the sums about means that lie ``by_x`` and ``by_y`` further."""
        far_x, far_y = float(by_x @ by_x), float(by_y @ by_y)
        products = (
            self.products
            - 2 * float(by_y @ self.square_x_y)
            - 2 * float(by_x @ self.square_y_x)
            + 4 * float(by_x @ self.cross @ by_y)
            + far_y * trace_x
            + far_x * trace_y
            + n * far_x * far_y
        )
        return _Moments(
            self.cross + n * np.outer(by_x, by_y),
            products,
            self.square_x_y - trace_x * by_y - 2 * (by_x @ self.cross) - n * far_x * by_y,
            self.square_y_x - trace_y * by_x - 2 * (self.cross @ by_y) - n * far_y * by_x,
        )

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(
            self.cross + other.cross,
            self.products + other.products,
            self.square_x_y + other.square_x_y,
            self.square_y_x + other.square_y_x,
        )


class StreamingPair:
    """Two layers in batches of paired samples: ``partial_fit(X, Y)`` as they come, then the measures.

    Batches are (any number ≥ 1, p) and (the same, q), of any floating dtype. :meth:`merge` joins two streams, as of two
    workers. Raises :class:`BadInput` for unpaired samples, NaN rows or a change of width.
    """

    def __init__(self) -> None:
        self.n = 0
        self._means: tuple[Matrix, Matrix] | None = None
        self._xx = self._yy = self._xy = _Moments(np.zeros((0, 0)), 0.0, np.zeros(0), np.zeros(0))

    def partial_fit(self, X: Any, Y: Any) -> StreamingPair:
        """Add a batch of paired samples, (m, p) and (m, q)."""
        check_pairing(X, Y)
        x, y = as_matrix(X), as_matrix(Y)
        if not len(x):
            return self
        batch = StreamingPair()
        batch.n, batch._means = len(x), (x.mean(axis=0), y.mean(axis=0))
        x, y = x - batch._means[0], y - batch._means[1]
        batch._xx, batch._yy, batch._xy = _Moments.of(x, x), _Moments.of(y, y), _Moments.of(x, y)
        return self.merge(batch)

    def merge(self, other: StreamingPair) -> StreamingPair:
        """Add the samples of another stream."""
        if other._means is None:
            return self
        if self._means is None:
            self.n, self._means = other.n, other._means
            self._xx, self._yy, self._xy = other._xx, other._yy, other._xy
            return self
        widths, others = (tuple(len(mean) for mean in pair) for pair in (self._means, other._means))
        if widths != others:
            raise BadInput(f"A batch is {others} wide and those before it {widths}; a stream is of one layer each.")
        n = self.n + other.n
        means = tuple(
            mine + (theirs - mine) * (other.n / n) for mine, theirs in zip(self._means, other._means, strict=True)
        )
        here, there = self._about(means), other._about(means)
        self._xx, self._yy, self._xy = (a + b for a, b in zip(here, there, strict=True))
        self.n, self._means = n, (means[0], means[1])
        return self

    def _about(self, means: tuple[Matrix, ...]) -> tuple[_Moments, _Moments, _Moments]:
        assert self._means is not None
        by_x, by_y = means[0] - self._means[0], means[1] - self._means[1]
        trace_x, trace_y = self._traces()
        return (
            self._xx.moved(self.n, by_x, by_x, trace_x, trace_x),
            self._yy.moved(self.n, by_y, by_y, trace_y, trace_y),
            self._xy.moved(self.n, by_x, by_y, trace_x, trace_y),
        )

    def _traces(self) -> tuple[float, float]:
        return float(np.trace(self._xx.cross)), float(np.trace(self._yy.cross))

    def linear_cka(self, *, debiased: bool = True) -> float:
        """Linear CKA of all samples so far, as :func:`~embcompare.measures.linear_cka` gives it."""
        return _defined("linear_cka", lambda: self._cka(debiased))

    def _cka(self, debiased: bool) -> float:
        least_samples(self.n, debiased)
        self._check_spread()
        trace_x, trace_y = self._traces()
        terms = []
        for moments, k, l in ((self._xy, trace_x, trace_y), (self._xx, trace_x, trace_x), (self._yy, trace_y, trace_y)):  # noqa: E741
            overlap = float(np.linalg.norm(moments.cross) ** 2)
            terms.append(float(debias(overlap, moments.products, k, l, self.n)) if debiased else overlap)
        if debiased and (terms[1] <= VANISHING * self._xx.products or terms[2] <= VANISHING * self._yy.products):
            raise UndefinedMeasure(NO_STRUCTURE)
        return float(terms[0] / (np.sqrt(terms[1]) * np.sqrt(terms[2])))

    def procrustes(self) -> float:
        """Angular Procrustes distance in radians; within 1e-7 of the one-shot value where the shapes coincide."""
        return _defined("procrustes", self._angle)

    def _angle(self) -> float:
        require_samples(self.n, 2, "one sample has no shape")
        self._check_spread()
        trace_x, trace_y = self._traces()
        nuclear = float(np.linalg.svd(self._xy.cross, compute_uv=False).sum())
        cosine = nuclear / (np.sqrt(trace_x) * np.sqrt(trace_y))
        # rounding may carry the cosine of equal shapes past 1, where there is no angle
        return float(np.arctan2(np.sqrt(max(0.0, (1 - cosine) * (1 + cosine))), cosine))

    def cca(self, *, summary: str = "mean") -> float:
        """Mean canonical correlation ('mean') or its square ('r2') from the covariances.

        Whitening squares the condition number: directions below 1e-6 of the largest are left out, which the one-shot
        value in float64 would still see.
        """
        return _defined("cca", lambda: self._canonical(summary))

    def _canonical(self, summary: str) -> float:
        require_samples(self.n, max(self._xy.cross.shape) + 1, "more samples than features")
        self._check_spread()
        left, right = _whitening(self._xx.cross), _whitening(self._yy.cross)
        rho = np.linalg.svd(left.T @ self._xy.cross @ right, compute_uv=False)
        return float(np.mean(rho**2 if summary == "r2" else rho))

    def _check_spread(self) -> None:
        assert self._means is not None
        for trace, mean in zip(self._traces(), self._means, strict=True):
            if trace <= self.n * (8 * np.finfo(np.float64).eps) ** 2 * float(mean @ mean):
                raise UndefinedMeasure("the layer is constant: all samples have the same vector.")


def _whitening(covariance: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-12 * values[-1]
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def _defined(name: str, value: Callable[[], float]) -> float:
    try:
        return float(value())
    except UndefinedMeasure as reason:
        warnings.warn(f"{name} is undefined here: {reason}", EmbcompareWarning, stacklevel=3)
        return float("nan")
