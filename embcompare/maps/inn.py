"""Invertible networks between two representations: embcompare's own, and the single block of BERT-INN.

Between different widths they work in the larger width D, and the narrower side is padded with zero coordinates: into a
wider side the map is one-to-one and its inverse exact on its image; into a narrower side the surplus coordinates of
the result are dropped, so that it is not one-to-one, and has no inverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import Incomparable
from embcompare.maps.base import check_range, paired
from embcompare.maps.coupling import CouplingStack
from embcompare.maps.networks import SingleBlock
from embcompare.maps.start import best_start
from embcompare.maps.trained import TrainedMap
from embcompare.maps.training import Paired32

_PROBED = 4
_CHECKED = 512


@dataclass(eq=False)
class InvertibleMap(TrainedMap):
    """A linear start and an invertible network over D = max(d_a, d_b) coordinates.

    The start is of condition ``most_condition`` at most, less where float32 needs it, as far as that helps. An epoch
    after which validation rows do not come back in float32 to within ``round_trip`` of their spread is not taken for
    better, however small its loss: a network can come as near to merging rows as numbers allow, and would then be
    invertible by name only.
    """

    most_condition: float = 1e3
    round_trip: float = 5e-5
    _log: float = field(init=False, default=math.nan, repr=False)
    _condition: float = field(init=False, default=math.nan, repr=False)

    @property
    def invertible(self) -> bool:
        """True but into a narrower side."""
        return 0 < self.width_a <= self.width_b

    @property
    def log_determinant(self) -> float:
        """Mean over the training rows of log |det J|, between the coordinates given; NaN between different widths."""
        return self._log

    @property
    def condition(self) -> float:
        """Median condition number of the Jacobian at 4 training rows, between standardised coordinates."""
        return self._condition

    def log_determinants(self, X: Any) -> np.ndarray:
        """Return log |det J| at every row of (n, d), float64; raises :class:`Incomparable` between different widths."""
        self._fitted()
        if self.width_a != self.width_b:
            raise Incomparable(
                f"A Jacobian of {self.width_a} by {self.width_b} has no determinant; its condition can be had."
            )
        x = paired(X, X)[0].double()
        return np.asarray(self._logs(self._in_a(x)))

    def jacobian(self, x: Any) -> np.ndarray:
        """Return the Jacobian at one row (d_a,), (d_b, d_a) float64, between standardised coordinates."""
        self._fitted()
        row = torch.as_tensor(x).double()
        if row.shape != (self.width_a,):
            raise Incomparable(f"A Jacobian is taken at one row of {self.width_a}; got shape {tuple(row.shape)}.")
        return self._jacobian(self._in_a(row)).numpy()

    def _jacobian(self, row: Tensor) -> Tensor:
        def run(one: Tensor) -> Tensor:
            return self._predict(one[None])[0]

        jacobian: Tensor = torch.func.jacfwd(run)(row)
        return jacobian.detach()

    def _logs(self, x: Tensor) -> Tensor:
        logs = torch.cat([self._invertible.forward_with_log(part)[1] for part in x.split(4096)])
        scales = self._scale_b.log().sum() - self._scale_a.log().sum()
        return logs + scales

    def _measure(self, x: Tensor) -> None:
        if self.width_a == self.width_b:
            self._log = float(self._logs(x).mean())
        probed = x[torch.linspace(0, len(x) - 1, min(_PROBED, len(x))).long()]
        values = [torch.linalg.svdvals(self._jacobian(row)) for row in probed]
        self._condition = float(np.median([float(each[0] / each[-1]) for each in values]))

    def _soundness(self, x: Tensor) -> Callable[[], bool] | None:
        if len(self._scale_a) > len(self._scale_b):
            return None
        probed = x[:: max(1, len(x) // _CHECKED)]
        spread = torch.linalg.matrix_norm(probed)

        def sound() -> bool:
            back = self._undone(self._kept(self._predict(probed)))
            return bool(torch.linalg.matrix_norm(back - probed) <= self.round_trip * spread)

        return sound

    def _kept(self, y: Tensor) -> Tensor:
        """Return what float32 keeps of mapped rows: they are rounded in their own coordinates, mean and all."""
        return self._in_b((y * self._scale_b + self._mean_b).float())

    def _undone(self, y: Tensor) -> Tensor:
        """Undo the network, from standardised coordinates to standardised coordinates, float64."""
        inner = self._padded(y).to(self._network.weights.device)
        return self._invertible.inverse(inner).cpu()[:, : len(self._scale_a)]

    @property
    def _invertible(self) -> CouplingStack | SingleBlock:
        return cast("CouplingStack | SingleBlock", self._network)

    def _widths(self, width_a: int, width_b: int) -> None:
        if max(width_a, width_b) < 2:
            raise Incomparable("A coupling splits the coordinates in two, and there is only 1 on each side; use ridge.")

    def _padded(self, rows: Tensor) -> Tensor:
        wide = max(len(self._scale_a), len(self._scale_b))
        return torch.nn.functional.pad(rows, (0, wide - rows.shape[1]))

    def _begin(self, x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, share: Tensor) -> None:
        check_range("The largest condition number of the start", self.most_condition, 1, 1e7)
        check_range("The largest error of the round trip", self.round_trip, 1e-7, 1)
        kept = self._kept if x.shape[1] <= y.shape[1] else None
        found = best_start(x, y, x_val, y_val, share, self.most_condition, self.round_trip, kept)
        self._matrix, self._offset, self.start = found.matrix, found.offset, found.made_of

    def _rows(self, x: Tensor, y: Tensor) -> Paired32:
        return Paired32(self._padded(x).float(), self._padded(y).float())

    def _predict(self, x: Tensor) -> Tensor:
        inner = self._padded(x).to(self._network.weights.device)
        return self._network.forward(inner).cpu()[:, : len(self._scale_b)]

    def _backward(self, y: Tensor) -> Tensor:
        return self._undone(self._in_b(y)) * self._scale_a + self._mean_a

    def _facts(self) -> dict[str, Any]:
        finite = {
            name: value if math.isfinite(value) else None
            for name, value in (("log_determinant", self._log), ("condition", self._condition))
        }
        return super()._facts() | finite

    def _restore(self, arrays: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        super()._restore(arrays, facts)
        if len(self._matrix) != self._matrix.shape[1]:
            raise ValueError(f"matrix {tuple(self._matrix.shape)}")
        self._log, self._condition = (
            math.nan if facts[name] is None else float(facts[name]) for name in ("log_determinant", "condition")
        )


@dataclass(eq=False)
class INN(InvertibleMap):
    """An invertible network that starts as the best invertible linear map and can only improve on it in validation.

    ``blocks`` of two affine couplings each, ``hidden`` units in each coupling's network (None: D, from 16 to 256),
    log-scales within ±``clip``. Half of the blocks stand before the linear map and half after it, so that the
    coordinates of both sides are bent; it is not trained, the couplings are. Needs 2 coordinates on one side. Source:
    see :mod:`embcompare.maps.coupling`; the start is this project's own.
    """

    name: ClassVar[str] = "inn"
    blocks: int = 4
    hidden: int | None = None
    clip: float = 1.0

    def _make(self, width_a: int, width_b: int) -> CouplingStack:
        check_range("The number of blocks", self.blocks, 1, 64)
        check_range("The bound of the log-scales", self.clip, 0.01, 5)
        wide = max(width_a, width_b)
        hidden = units(wide) if self.hidden is None else self.hidden
        check_range("The number of hidden units", hidden, 1, 65536)
        made = CouplingStack(wide, self.blocks, hidden, self.clip, self.seed)
        made.place(self._matrix, self._offset, self.blocks // 2)
        return made


@dataclass(eq=False)
class BertINN(InvertibleMap):
    """The single block of the official BERT-INN code, under this module's training; 48 D² weights.

    ``linear_start`` puts the best invertible linear map before it. It is off as published; one block is then a poor
    fit even to a rotation. Source: Ren et al. 2023; see :class:`embcompare.maps.networks.SingleBlock`.
    """

    name: ClassVar[str] = "bert_inn"
    linear_start: bool = False

    def _begin(self, x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, share: Tensor) -> None:
        if self.linear_start:
            return super()._begin(x, y, x_val, y_val, share)
        wide = max(x.shape[1], y.shape[1])
        self._matrix, self._offset = torch.eye(wide, dtype=torch.float64), torch.zeros(wide, dtype=torch.float64)
        self.start = "identity"
        return None

    def _make(self, width_a: int, width_b: int) -> SingleBlock:
        made = SingleBlock(max(width_a, width_b), self.seed)
        made.place(self._matrix, self._offset)
        return made


def units(width: int) -> int:
    """Return the INN's hidden units between widths of which ``width`` is the larger."""
    return min(256, max(16, width))
