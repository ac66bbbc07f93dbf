"""Where a network starts: the best linear map on validation rows, and the invertible one nearest to it.

Candidates are least squares, ridge, the scaled rotation and, between equal widths, the identity. Each is fitted on
training rows, made invertible where the network has to be, and only then compared on validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from embcompare.errors import Incomparable
from embcompare.maps.affine import AffineMap, Identity, LeastSquares, Orthogonal, Ridge
from embcompare.maps.kernel import TooFewRows
from embcompare.maps.paired import need_rows

LEAST_ROWS = 3


@dataclass(frozen=True, eq=False)
class Start:
    """``x matrix + offset`` from (n, d_a), the map it was made of, and its validation loss (see ``share``)."""

    matrix: Tensor
    offset: Tensor
    made_of: str
    loss: float


def best_start(
    x: Tensor,
    y: Tensor,
    x_val: Tensor,
    y_val: Tensor,
    share: Tensor,
    most_condition: float | None,
    round_trip: float = math.inf,
    kept: Callable[[Tensor], Tensor] | None = None,
) -> Start:
    """Return the start with the least Σⱼ shareⱼ · mean (ŷⱼ - yⱼ)² on the validation rows, in float64.

    Without ``most_condition`` it is (d_a, d_b) and as fitted. With it, it is (D, D), D the larger width, and of at most
    that condition number: see :func:`invertible`. The number is taken ten times smaller, down to 1, as long as
    validation rows that were mapped and rounded, as ``kept`` does it, do not come back to within ``round_trip`` of
    their length. Raises :class:`TooFewRows` below 3 rows and :class:`Incomparable` where a side is constant.
    """
    need_rows(len(x), LEAST_ROWS, "training row", "give more rows")
    width = max(x.shape[1], y.shape[1])
    found: list[Start] = []
    for candidate in (LeastSquares(), Ridge(), Orthogonal(scale=True), Identity()):
        try:
            candidate.fit(x, y)
        except TooFewRows:
            continue
        except Incomparable:
            if isinstance(candidate, Identity):
                continue
            raise
        start = _made(candidate, most_condition, width)
        bound = most_condition or 1.0
        while kept is not None and bound > 1 and _error(start, x_val, kept) > round_trip:
            bound = max(1.0, bound / 10)
            start = _made(candidate, bound, width)
        moved = x_val @ start.matrix[: x.shape[1], : y.shape[1]] + start.offset[: y.shape[1]]
        loss = float(((moved - y_val).square() @ share).mean())
        found.append(Start(start.matrix, start.offset, start.made_of, loss))
    return min(found, key=lambda each: each.loss if math.isfinite(each.loss) else math.inf)


def _made(fitted: AffineMap, most_condition: float | None, width: int) -> Start:
    if most_condition is None:
        return Start(fitted.matrix, fitted.offset, fitted.name, math.nan)
    offset = torch.zeros(width, dtype=torch.float64)
    offset[: len(fitted.offset)] = fitted.offset
    return Start(invertible(fitted.matrix, width, most_condition), offset, fitted.name, math.nan)


def _error(start: Start, x: Tensor, kept: Callable[[Tensor], Tensor]) -> float:
    given = torch.nn.functional.pad(x, (0, len(start.matrix) - x.shape[1]))
    moved = kept(given @ start.matrix + start.offset)
    back = torch.linalg.solve(start.matrix, moved - start.offset, left=False)
    return float(torch.linalg.matrix_norm(back - given) / torch.linalg.matrix_norm(given).clamp(min=1e-300))


def invertible(matrix: Tensor, width: int, most_condition: float) -> Tensor:
    """Return an invertible (D, D) matrix that holds (p, q) in its first rows and columns, as nearly as it can.

    Singular values below the largest over ``most_condition`` are raised to that. The coordinates that one side has
    more are carried by themselves: the rows or columns beyond (p, q) complete an orthonormal basis, scaled by the
    geometric mean of the singular values, and what is mapped into the first q columns is unchanged by them.
    """
    u, values, vh = torch.linalg.svd(matrix, full_matrices=True)
    values = values.clamp(min=float(values[0]) / most_condition)
    p, q = matrix.shape
    k = min(p, q)
    level = float(values.log().mean().exp())
    whole = torch.zeros(width, width, dtype=torch.float64)
    whole[:p, :q] = (u[:, :k] * values) @ vh[:k]
    if p > q:
        whole[:, q:] = u[:, k:] * level
    elif q > p:
        whole[p:, :] = vh[k:] * level
    return whole
