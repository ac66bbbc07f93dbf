"""The leading directions of a head's V x V matrix, from its factors in residual width alone."""

from __future__ import annotations

import torch
from torch import Tensor

from embcompare.projections.rows import NULL_DIRECTION


def leading_directions(left: Tensor, right: Tensor, gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what reads the leading singular vectors of ``(E Lᵀ)(E Rᵀ)ᵀ``, (d,) each, and all singular values (r,).

    ``left`` and ``right`` are (r, d) float64 and ``gram`` is EᵀE, (d, d): the V x V matrix and its factors never exist.
    ``E x`` of a returned x is a singular vector itself, of unit length; zero where the matrix is.
    """
    roots = []
    for factor in (left, right):
        values, basis = torch.linalg.eigh(factor @ gram @ factor.T)
        kept = values > values[-1].clamp(min=0) * NULL_DIRECTION
        roots.append((values[kept].sqrt(), basis[:, kept]))
    (size_l, basis_l), (size_r, basis_r) = roots
    if not len(size_l) or not len(size_r):
        nothing = left.new_zeros(left.shape[1])
        return nothing, nothing, left.new_zeros(1)
    u, values, vh = torch.linalg.svd(size_l[:, None] * (basis_l.T @ basis_r) * size_r)
    one = (basis_l @ (u[:, 0] / size_l)) @ left
    other = (basis_r @ (vh[0] / size_r)) @ right
    return one, other, values
