"""Scores of two sets of vectors: how well the vectors of one layer find partners in another.

A score reads the (n, m) matrix of correlations between the n vectors of one set and the m of the other as a stream
of row blocks, so that no matrix larger than a block has to exist (the one-to-one score alone needs it whole). Signs
are ignored: a query column, a value column and their partners may be flipped together without changing the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Smaller blocks run at two thirds of the machine's rate; larger ones no longer fit the cache when they are summed.
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Score:
    """One score's declaration: what it computes, and how to read it."""

    name: str
    label: str
    formula: str
    meaning: str
    source: str
    function: Callable[[Iterable[Tensor]], float]
    low: float = 0.0
    high: float = 1.0
    higher_is_closer: bool = True
    invariances: tuple[str, ...] = ("scale and sign of every vector", "order of the vectors in each set")


def correlation_blocks(u: Tensor, v: Tensor, rows: int = BLOCK_ROWS) -> Iterator[Tensor]:
    """Yield the products ``u vᵀ`` of (n, r) and (m, r) by blocks of rows; each block overwrites the one before."""
    import torch

    buffer = torch.empty(min(rows, len(u)), len(v), dtype=u.dtype, device=u.device)
    for part in u.split(rows):
        yield torch.mm(part, v.T, out=buffer[: len(part)])


def mean_abs(blocks: Iterable[Tensor]) -> float:
    """Mean |correlation| over all n × m pairs (Dar et al. 2023, section 4.1); NaN without any pair."""
    import torch

    total, count = 0.0, 0
    scratch: Tensor | None = None
    for block in blocks:
        if scratch is None or scratch.shape != block.shape:
            scratch = torch.empty_like(block)
        # not a vector norm: torch adds that up in too few float32 lanes and loses four digits on a large block
        total += float(torch.abs(block, out=scratch).sum())
        count += block.numel()
    return total / count if count else float("nan")


def best_match(blocks: Iterable[Tensor]) -> float:
    """Mean |correlation| of every vector with its best partner, averaged over both directions; NaN without any pair."""
    import torch

    by_row: list[Tensor] = []
    by_column: Tensor | None = None
    for block in blocks:
        if not block.numel():
            continue
        strength = block.abs()
        by_row.append(strength.amax(1))
        columns = strength.amax(0)
        by_column = columns if by_column is None else torch.maximum(by_column, columns)
    if by_column is None:
        return float("nan")
    return (float(torch.cat(by_row).double().mean()) + float(by_column.double().mean())) / 2


def one_to_one(blocks: Iterable[Tensor]) -> float:
    """Mean |correlation| of the best one-to-one matching of the vectors; NaN without any pair.

    The smaller set is matched completely (Hungarian method); needs the n × m matrix in memory, in float64.
    """
    from scipy.optimize import linear_sum_assignment

    strength = whole(blocks).abs()
    if not strength.numel():
        return float("nan")
    rows, columns = linear_sum_assignment(strength.numpy(), maximize=True)
    return float(strength[rows, columns].mean())


def whole(blocks: Iterable[Tensor]) -> Tensor:
    """Put a stream of blocks together into one float64 matrix on the CPU."""
    import torch

    parts = [block.double().cpu().clone() for block in blocks]
    return torch.cat(parts) if parts else torch.empty(0, 0, dtype=torch.float64)


SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score(
            "mean_abs",
            "mean |correlation| over all pairs",
            "1/(n m) Σᵢⱼ |ρ(xᵢ, yⱼ)|",
            "Do the two layers speak about the same things at all? No neuron is matched with another.",
            "Dar et al. 2023, section 4.1",
            mean_abs,
        ),
        Score(
            "best_match",
            "mean best |correlation|",
            "½ (1/n Σᵢ maxⱼ |ρ(xᵢ, yⱼ)| + 1/m Σⱼ maxᵢ |ρ(xᵢ, yⱼ)|)",
            "Has every vector a partner in the other layer? Several may share one partner.",
            "nearest-neighbour matching, as in Li et al. 2016",
            best_match,
        ),
        Score(
            "one_to_one",
            "mean |correlation| of the best one-to-one matching",
            "max over matchings π of 1/min(n, m) Σᵢ |ρ(xᵢ, y_π(i))|",
            "Is one layer the other with its vectors in another order? Slow for wide layers.",
            "bipartite matching, as in Li et al. 2016",
            one_to_one,
        ),
    )
}
"""Scores by name; add one by writing a function of blocks and its declaration here."""
