"""A perceptron between two representations: the control that owes nothing to invertibility."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from embcompare.maps.base import check_range
from embcompare.maps.inn import INN, units
from embcompare.maps.networks import Perceptron
from embcompare.maps.start import best_start
from embcompare.maps.trained import TrainedMap
from embcompare.maps.training import Paired32


@dataclass(eq=False)
class MLP(TrainedMap):
    """A perceptron that owes nothing to invertibility: what any map of its size could reach, as control for the INN.

    To the best linear map it adds a network of ``layers`` hidden layers of ``hidden`` units with GELU (None: as many
    weights in all as the INN's default between these widths), which starts at zero. Without ``linear_start`` it is that
    network alone.
    """

    name: ClassVar[str] = "mlp"
    hidden: int | None = None
    layers: int = 2
    linear_start: bool = True

    @property
    def invertible(self) -> bool:
        """False: two rows may map to one."""
        return False

    @property
    def log_determinant(self) -> float:
        """NaN: not reported for a map that needs no inverse."""
        return math.nan

    @property
    def condition(self) -> float:
        """NaN: not reported for a map that needs no inverse."""
        return math.nan

    def why_not_invertible(self) -> str:
        return "The perceptron has no inverse: it may map two rows to one; fit one the other way, or an INN."

    def _begin(self, x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, share: Tensor) -> None:
        if self.linear_start:
            found = best_start(x, y, x_val, y_val, share, None)
            self._matrix, self._offset, self.start = found.matrix, found.offset, found.made_of
        else:
            wide = x.shape[1], y.shape[1]
            self._matrix = torch.zeros(*wide, dtype=torch.float64)
            self._offset, self.start = torch.zeros(wide[1], dtype=torch.float64), "mean"

    def _rows(self, x: Tensor, y: Tensor) -> Paired32:
        return Paired32(x.float(), (y - self._started(x)).float())

    def _predict(self, x: Tensor) -> Tensor:
        return self._started(x) + self._network.forward(x)

    def _make(self, width_a: int, width_b: int) -> Perceptron:
        check_range("The number of hidden layers", self.layers, 1, 16)
        hidden = _as_large(width_a, width_b, self.layers) if self.hidden is None else self.hidden
        check_range("The number of hidden units", hidden, 1, 65536)
        return Perceptron([width_a, *[hidden] * self.layers, width_b], self.seed)


def _as_large(width_a: int, width_b: int, layers: int) -> int:
    """Return the units that give a perceptron as many weights as the INN's default has."""
    wide = max(width_a, width_b)
    hidden = units(wide)
    size = INN.blocks * (hidden * (wide + 2) + 2 * wide * (hidden + 1))
    linear, square = width_a + width_b + layers, layers - 1
    if not square:
        return max(1, round(size / linear))
    return max(1, round((math.sqrt(linear**2 + 4 * square * size) - linear) / (2 * square)))
