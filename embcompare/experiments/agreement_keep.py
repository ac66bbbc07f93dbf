"""Keep-k: do inner products survive when of every reading only the k largest entries are looked at.

Dar et al. 2023, appendix: readings by E itself against the exact pair of E and its right inverse E'. With all entries
the exact pair keeps every inner product; with the few that a person reads the plain transpose does better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from embcompare.experiments.commons import Common
    from embcompare.experiments.readout import Readout
    from embcompare.projections import RightInverse


def keep_counts(size: int) -> np.ndarray:
    """Return how many entries are kept, (K,) int64: 10, 20, 50, 100, … below ``size``, then ``size``."""
    steps = [digit * 10**power for power in range(1, 8) for digit in (1, 2, 5)]
    return np.array([step for step in steps if step < size] + [size], dtype=np.int64)


def keep_curve(
    readout: Readout, common: Common, inverse: RightInverse, vectors: Tensor, usable: torch.Tensor, counts: np.ndarray
) -> np.ndarray:
    """Return the cosine of all inner products with those of what is kept, (2, K): by E alone, by E and its inverse.

    ``vectors`` is (n, d); its readings over the usable tokens are held, two times n by V, and nothing larger.
    """
    import torch

    kind = torch.float64 if readout.E.dtype == torch.float64 else torch.float32
    x = common.taken_out(vectors.to(readout.E.device)).double()
    reference = x @ x.T
    readings = [_reading(readout, each, usable, kind) for each in (x, inverse(x))]
    ranks = []
    for reading in readings:
        order = reading.abs().argsort(dim=1, descending=True, stable=True)
        place = torch.arange(order.shape[1], device=order.device, dtype=torch.int32).expand_as(order)
        ranks.append(torch.empty_like(order, dtype=torch.int32).scatter_(1, order, place))
    out = np.full((2, len(counts)), np.nan)
    for at, count in enumerate(counts.tolist()):
        plain, exact = (torch.where(rank < count, reading, 0) for rank, reading in zip(ranks, readings, strict=True))
        out[:, at] = _cosine(reference, _products(plain, plain)), _cosine(reference, _products(plain, exact))
    return out


def _reading(readout: Readout, x: Tensor, usable: torch.Tensor, kind: torch.dtype) -> Tensor:
    """Return (n, V) scores over the usable tokens, centred where the readout is."""
    import torch

    ids = torch.nonzero(usable).flatten()
    parts = []
    for some in ids.split(8192):
        rows = readout.E[some]
        rows = rows.to(kind) if readout.mean is None else (rows - readout.mean).to(kind)
        parts.append(x.to(kind) @ rows.T)
    return torch.cat(parts, 1)


def _products(one: Tensor, other: Tensor, block: int = 8192) -> Tensor:
    total = one.new_zeros(len(one), len(one), dtype=_wide(one))
    for left, right in zip(one.split(block, 1), other.split(block, 1), strict=True):
        total += left @ right.T
    return total


def _wide(x: Tensor) -> torch.dtype:
    import torch

    return torch.promote_types(x.dtype, torch.float64)


def _cosine(one: Tensor, other: Tensor) -> float:
    size = float((one * one).sum()) ** 0.5 * float((other * other).sum()) ** 0.5
    return float((one * other).sum()) / size if size > 0 else float("nan")
