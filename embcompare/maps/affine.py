"""Affine maps ``y = x K + c`` in closed form: the mean, the identity, rotation, least squares and ridge.

They are fitted by :mod:`embcompare.maps.states`, in float64, and map in float64 whatever they are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import Incomparable
from embcompare.maps.base import Map, Report, paired
from embcompare.maps.kernel import Kernel
from embcompare.maps.states import least_squares, orthogonal_fit, ridge

MOST_CONDITION = 1e12
"""A matrix of a larger condition number is singular as far as float64 can tell."""


@dataclass(eq=False)
class AffineMap(Map):
    """``y = x matrix + offset``, (d_a, d_b) and (d_b,) in float64; ``rank`` is how many directions it carries."""

    matrix: Tensor = field(init=False, repr=False)
    offset: Tensor = field(init=False, repr=False)
    rank: int = field(init=False, default=0)

    def fit(
        self,
        X: Any,
        Y: Any,
        X_val: Any = None,
        Y_val: Any = None,
        *,
        report: Report | None = None,
        resume: Mapping[str, np.ndarray] | None = None,
    ) -> Self:
        """Fit in closed form on (n, d_a) and (n, d_b); the other arguments change nothing."""
        x, y = paired(X, Y)
        self._set(self._solve(x, y))
        self.rows = len(x)
        return self

    def _solve(self, x: Tensor, y: Tensor) -> Kernel:
        raise NotImplementedError

    def _set(self, kernel: Kernel) -> None:
        self.matrix, self.offset, self.rank = kernel.matrix, kernel.offset, kernel.rank
        self.width_a, self.width_b = kernel.matrix.shape
        self._singular: Tensor | None = None

    @property
    def singular_values(self) -> Tensor:
        """Singular values of the matrix, descending."""
        self._fitted()
        if self._singular is None:
            self._singular = torch.linalg.svdvals(self.matrix)
        return self._singular

    @property
    def condition(self) -> float:
        """Largest over smallest singular value of the matrix; inf where float64 cannot tell it from singular."""
        values = self.singular_values
        found = float(values[0] / values[-1]) if float(values[-1]) > 0 else math.inf
        return found if found <= MOST_CONDITION else math.inf

    @property
    def log_determinant(self) -> float:
        """Logarithm of |det K|; NaN between different widths and -inf where K is singular."""
        if self.width_a != self.width_b:
            return math.nan
        return float(self.singular_values.log().sum()) if math.isfinite(self.condition) else -math.inf

    @property
    def invertible(self) -> bool:
        """Whether every direction of the first side is carried: into a wider side, on the map's own image."""
        return self.width_a <= self.width_b and math.isfinite(self.condition)

    def _forward(self, x: Tensor) -> Tensor:
        return x.double() @ self.matrix + self.offset

    def _backward(self, y: Tensor) -> Tensor:
        moved = y.double() - self.offset
        if self.width_a == self.width_b:
            back: Tensor = torch.linalg.solve(self.matrix, moved, left=False)
        else:
            back = moved @ torch.linalg.pinv(self.matrix, rtol=1 / MOST_CONDITION)
        return back

    def _arrays(self) -> dict[str, Tensor]:
        return {"matrix": self.matrix, "offset": self.offset}

    def _facts(self) -> dict[str, Any]:
        return {"rank": self.rank}

    def _restore(self, arrays: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        matrix, offset = arrays["matrix"].double(), arrays["offset"].double()
        if matrix.shape != (self.width_a, self.width_b) or offset.shape != (self.width_b,):
            raise ValueError(f"matrix {tuple(matrix.shape)} and offset {tuple(offset.shape)}")
        self._set(Kernel(self.name, matrix, offset, int(facts["rank"]), 1.0))


@dataclass(eq=False)
class MeanPredictor(AffineMap):
    """Every row becomes the mean of the training targets: R² 0 there, and what any map must beat."""

    name: ClassVar[str] = "mean"

    def _solve(self, x: Tensor, y: Tensor) -> Kernel:
        matrix = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64)
        return Kernel(self.name, matrix, y.double().mean(0), 0, math.inf)


@dataclass(eq=False)
class Identity(AffineMap):
    """Rows as they are; raises :class:`Incomparable` between different widths."""

    name: ClassVar[str] = "identity"

    def _solve(self, x: Tensor, y: Tensor) -> Kernel:
        if x.shape[1] != y.shape[1]:
            raise Incomparable(
                f"Rows can be taken as they are only between equal widths, and these are {x.shape[1]} and {y.shape[1]}."
            )
        eye = torch.eye(x.shape[1], dtype=torch.float64)
        return Kernel(self.name, eye, torch.zeros(len(eye), dtype=torch.float64), len(eye), 1.0)


@dataclass(eq=False)
class Orthogonal(AffineMap):
    """The rotation or reflection that brings centred X closest to centred Y, times one number with ``scale``.

    Semi-orthogonal between different widths. Needs more rows than the narrower width. Source: Schönemann 1966.
    """

    name: ClassVar[str] = "orthogonal"
    scale: bool = False

    def _solve(self, x: Tensor, y: Tensor) -> Kernel:
        return orthogonal_fit(x, y, scale=self.scale, held_out=0)


@dataclass(eq=False)
class LeastSquares(AffineMap):
    """The affine map of least squared error, the shortest one where X is rank-deficient. Needs n > d_a."""

    name: ClassVar[str] = "least_squares"

    def _solve(self, x: Tensor, y: Tensor) -> Kernel:
        return least_squares(x, y, held_out=0)


@dataclass(eq=False)
class Ridge(AffineMap):
    """Least squares with a penalty ``strength``, or that of least generalised cross-validation error; needs 3 rows.

    ``chosen`` is the penalty it used. Sources: Hoerl & Kennard 1970; Golub, Heath & Wahba 1979.
    """

    name: ClassVar[str] = "ridge"
    strength: float | None = None
    chosen: float = field(init=False, default=math.nan)

    def _solve(self, x: Tensor, y: Tensor) -> Kernel:
        kernel = ridge(x, y, strength=self.strength, held_out=0)
        self.chosen = float(kernel.strength or math.nan)
        return kernel

    def _facts(self) -> dict[str, Any]:
        return {"rank": self.rank, "chosen": self.chosen}

    def _restore(self, arrays: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        super()._restore(arrays, facts)
        self.chosen = float(facts["chosen"])
