"""The kernel: one matrix and one offset from A's coordinates to B's, with what is known of how it was made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embcompare.errors import Incomparable, InputError
from embcompare.words import plural


class SingularEmbedding(Incomparable):
    """An embedding matrix does not tell all directions of its model apart; the message says how many are lost."""


class TooFewRows(Incomparable):
    """There are fewer shared tokens, or fewer paired states, than the map has numbers to determine."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A map of row vectors, ``x_B = x_A K + c``; with ``unit``, of ``x_A`` scaled to length 1 first.

    ``matrix`` is (d_a, d_b) and ``offset`` (d_b,), both float64 on the CPU. ``rank`` is how many directions the map
    carries; ``condition`` the ratio of the largest to the smallest singular value, among those kept, of what was
    inverted to make it (E_B, the centred states of A, with its penalty for ridge; 1 where nothing was). ``rows`` is
    how many tokens or training states it was fitted on. ``explained`` is the share of variance that it reproduces
    there (which variance: see the function that made it) and ``held_out`` the same for states that were kept aside;
    None where there is none. ``strength`` is the penalty of a ridge.
    """

    name: str
    matrix: Tensor
    offset: Tensor
    rank: int
    condition: float
    rows: int = 0
    explained: float | None = None
    held_out: float | None = None
    strength: float | None = None
    unit: bool = False

    @property
    def width_a(self) -> int:
        """Width of the vectors it takes."""
        return self.matrix.shape[0]

    @property
    def width_b(self) -> int:
        """Width of the vectors it gives."""
        return self.matrix.shape[1]

    @property
    def norm(self) -> float:
        """Frobenius norm of the matrix."""
        return float(torch.linalg.matrix_norm(self.matrix))

    def apply(self, x: Tensor) -> Tensor:
        """Map (..., d_a) to (..., d_b) on the device and in the floating dtype of ``x``.

        With ``unit``, a vector of zeros has no direction and gives NaN. Raises :class:`InputError` for anything but
        a floating tensor and :class:`Incomparable` for another width.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
            kind = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(
                f"A kernel maps floating tensors of (n, {self.width_a}) and this is {kind}; convert it first."
            )
        if x.shape[-1] != self.width_a:
            raise Incomparable(
                f"The kernel '{self.name}' takes vectors {self.width_a} wide and these are {x.shape[-1]} wide; it maps "
                f"from the first model ({self.width_a}) to the second ({self.width_b}), not back."
            )
        if self.unit:
            # by the largest entry first, so that no square overflows or vanishes in half precision
            x = x / x.abs().amax(-1, keepdim=True)
            x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x @ self.matrix.to(x) + self.offset.to(x)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., d_a) to (..., d_b); see :meth:`apply`."""
        return self.apply(x)

    def sentence(self) -> str:
        """Return what the kernel is, for a person."""
        carried = f"{self.rank:,} of {plural(min(self.matrix.shape), 'direction')}"
        parts = [f"{self.width_a} to {self.width_b} wide, carries {carried}, condition number {self.condition:.3g}"]
        if self.explained is not None:
            parts.append(f"{self.explained:.1%} of the variance over {plural(self.rows, 'row')}")
        if self.held_out is not None:
            parts.append(f"{self.held_out:.1%} of it in rows that were kept aside")
        return ", ".join(parts) + "."
