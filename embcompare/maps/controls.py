"""Maps that carry nothing on purpose: what a stitched pair scores with them is the level that a map must beat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from embcompare.errors import Incomparable, SettingsError
from embcompare.maps.embedding import Rows, orthogonal, pseudo_inverse, shared_rows
from embcompare.maps.kernel import Kernel


def permuted(
    E_A: Any,
    E_B: Any,
    *,
    seed: int = 0,
    kind: Literal["pseudo_inverse", "orthogonal"] = "pseudo_inverse",
    tokens: tuple[Rows, Rows] | None = None,
    usable_a: Tensor | None = None,
    usable_b: Tensor | None = None,
    **options: Any,
) -> Kernel:
    """Return the map of ``kind`` with B's shared, usable tokens shuffled: the same two models, each token misread.

    ``explained`` is the share that unrelated embeddings of these sizes reach. ``options`` and errors are those of
    :func:`~embcompare.maps.embedding.pseudo_inverse` and :func:`~embcompare.maps.embedding.orthogonal`.
    """
    makers = {"pseudo_inverse": pseudo_inverse, "orthogonal": orthogonal}
    if kind not in makers:
        raise SettingsError(f"The map that is permuted is 'pseudo_inverse' or 'orthogonal'; got {kind!r}.")
    rows_a, rows_b = shared_rows(E_A, E_B, tokens, usable_a, usable_b)
    order = torch.randperm(len(rows_b), generator=torch.Generator().manual_seed(seed))
    return replace(makers[kind](E_A, E_B, tokens=(rows_a, rows_b[order]), **options), name="permuted")


def random_rotation(like: Kernel, *, seed: int = 0) -> Kernel:
    """Return a (semi-)orthogonal map drawn evenly (Haar) of the widths of ``like``, scaled to its Frobenius norm.

    Without an offset, and taking vectors as they are, of unit length only where ``like`` does. Source: Mezzadri 2007,
    for the correction of signs that makes a QR factor of normal numbers even.
    """
    d_a, d_b = like.width_a, like.width_b
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(max(d_a, d_b), min(d_a, d_b), generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0).double()
    matrix = (q if d_a >= d_b else q.T) * (like.norm / min(d_a, d_b) ** 0.5)
    return Kernel("random_rotation", matrix, torch.zeros(d_b, dtype=torch.float64), min(d_a, d_b), 1.0, unit=like.unit)


def identity(width_a: int, width_b: int) -> Kernel:
    """Return the map that changes nothing; raises :class:`Incomparable` for different widths."""
    if width_a != width_b:
        raise Incomparable(
            f"Vectors can be handed over as they are only between models of one width, and these are {width_a} and "
            f"{width_b} wide; use another map."
        )
    if width_a < 1:
        raise SettingsError(f"A vector cannot be {width_a} wide; the smallest width is 1.")
    matrix = torch.eye(width_a, dtype=torch.float64)
    return Kernel("identity", matrix, torch.zeros(width_a, dtype=torch.float64), width_a, 1.0)
