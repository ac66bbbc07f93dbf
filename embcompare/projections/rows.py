"""The rows of an embedding matrix: block by block, their mean, and the exact right inverse of the whole.

Dar et al. 2023, section 3, read keys and heads exactly through a right inverse E' of E, and in practice through E
itself; both are here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from embcompare.errors import SettingsError

BLOCK = 8192
"""Tokens of a block at most."""
NULL_DIRECTION = 1e-12
"""Directions whose share of the Gram's largest eigenvalue is below this hold the rounding of float64 only."""


def usable_ids(E: Tensor, usable: Tensor | None) -> Tensor | None:
    """Return the usable rows of E in order, or None where all are."""
    if usable is None:
        return None
    if usable.shape != (len(E),) or usable.dtype != torch.bool:
        raise SettingsError(f"usable must be {len(E)} true or false, one for each row of the embedding.")
    ids = torch.nonzero(usable).flatten().to(E.device)
    return None if len(ids) == len(E) else ids


def row_blocks(E: Tensor, ids: Tensor | None, block: int) -> Iterator[Tensor]:
    for start in range(0, len(E) if ids is None else len(ids), block):
        yield E[start : start + block] if ids is None else E[ids[start : start + block]]


def mean_row(E: Tensor, usable: Tensor | None = None, block: int = BLOCK) -> Tensor:
    """Return the mean of the usable rows of E, (d,) float64; zero without any."""
    total, count = torch.zeros(E.shape[1], dtype=torch.float64, device=E.device), 0
    for rows in row_blocks(E, usable_ids(E, usable), block):
        total += rows.sum(0, dtype=torch.float64)
        count += len(rows)
    return total / max(count, 1)


@dataclass(frozen=True, eq=False)
class RightInverse:
    """The exact right inverse of an embedding: ``E' = E G⁺`` with ``G = EᵀE``, so that ``Eᵀ E' = I``.

    ``inverse`` is G⁺, (d, d) float64; ``rank`` how many directions E has and ``condition`` the ratio of its largest to
    its smallest singular value among them. Below full rank ``Eᵀ E'`` projects on what E sees.
    """

    inverse: Tensor
    rank: int
    condition: float

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return (n, d) float64 ``x G⁺``, whose plain reading ``E (x G⁺)`` is the exact reading ``E' x``."""
        return vectors.double() @ self.inverse.to(vectors.device)


def gram(E: Tensor, *, usable: Tensor | None = None, mean: Tensor | None = None, block: int = BLOCK) -> Tensor:
    """Return EᵀE over the usable rows, (d, d) float64; ``mean`` (d,) is subtracted from every row first."""
    total = torch.zeros(E.shape[1], E.shape[1], dtype=torch.float64, device=E.device)
    for rows in row_blocks(E, usable_ids(E, usable), block):
        part = rows.double() if mean is None else rows - mean
        total.addmm_(part.T, part)
    return total


def right_inverse(
    E: Tensor,
    *,
    usable: Tensor | None = None,
    mean: Tensor | None = None,
    gain: Tensor | None = None,
    block: int = BLOCK,
) -> RightInverse:
    """Return the right inverse of E, (V, d), by its (d, d) Gram matrix in float64.

    ``usable`` leaves rows out, ``mean`` (d,) is subtracted from every row, then ``gain`` (d,) multiplies it. Directions
    below 1e-6 of the largest singular value hold rounding only and are dropped. (A pseudo-inverse in float32 drops what
    is below V times the rounding unit, 0.006 of the largest at V = 50,257, and says nothing.) Raises
    :class:`SettingsError` where E is not finite or zero.
    """
    squares = gram(E, usable=usable, mean=mean, block=block)
    if gain is not None:
        squares = gain.double()[:, None] * squares * gain.double()
    if not bool(torch.isfinite(squares).all()) or not bool(squares.any()):
        raise SettingsError(
            "The embedding matrix is zero or not finite, so it has no inverse; read it by its transpose."
        )
    values, directions = torch.linalg.eigh((squares + squares.T) / 2)
    kept = values > values[-1] * NULL_DIRECTION
    values, directions = values[kept], directions[:, kept]
    return RightInverse((directions / values) @ directions.T, len(values), float((values[-1] / values[0]).sqrt()))
