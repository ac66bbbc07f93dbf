"""The extreme entries of a product of two tall factors: what a head says of all pairs of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embcompare.errors import SettingsError
from embcompare.projections.ends import Tick, float32_error, power_of_two
from embcompare.projections.rows import usable_ids

TILE = 1024
"""Side of the blocks: multiplied and searched without leaving the cache."""
_PIECE = 16384  # pairs computed again in float64 at a time


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of a matrix, the most extreme first: ``rows``, ``columns`` (k,) int64 and ``values`` (k,) float64."""

    rows: Tensor
    columns: Tensor
    values: Tensor


def top_entries(
    left: Tensor,
    right: Tensor,
    k: int,
    largest: bool = True,
    *,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    identical: tuple[Tensor, Tensor] | None = None,
    tile: int = TILE,
    tick: Tick | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k largest (or smallest) entries of ``left @ right.T``: rows, columns (k,) int64, values (k,) float64.

    ``left`` is (V, r) and ``right`` (W, r), of any floating dtype. ``rows`` (V,) and ``columns`` (W,) are bool masks of
    what may be listed; ``identical`` holds a whole number for each row and each column, and a pair of equal numbers is
    not listed. Of equal entries the one of lower row, then lower column, comes first; fewer than k where no more are
    allowed. Exact to float64. ``tick(done, total)`` is called after each row of blocks. Raises :class:`SettingsError`
    for shapes that do not fit or numbers that are not finite.
    """
    ends = _Search(left, right, k, rows, columns, identical, tile).run((largest,), tick)
    found = ends[largest].entries()
    return found.rows, found.columns, found.values


def entry_ends(
    left: Tensor,
    right: Tensor,
    k: int,
    *,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    identical: tuple[Tensor, Tensor] | None = None,
    tile: int = TILE,
    tick: Tick | None = None,
) -> tuple[Entries, Entries]:
    """Return the k largest and the k smallest entries in one pass; all else as :func:`top_entries`."""
    ends = _Search(left, right, k, rows, columns, identical, tile).run((True, False), tick)
    return ends[True].entries(), ends[False].entries()


class _Best:
    """The k best entries so far at one end, in scaled float64 units, ties by row and column."""

    def __init__(self, k: int, sign: float, unit: float, device: torch.device) -> None:
        self.k, self.sign, self.unit = k, sign, unit
        self.rows = self.columns = torch.zeros(0, dtype=torch.int64, device=device)
        self.values = torch.zeros(0, dtype=torch.float64, device=device)
        self.last = -math.inf
        """The k-th best value, below which nothing can enter."""

    def add(self, rows: Tensor, columns: Tensor, values: Tensor) -> None:
        close = values >= self.last
        rows = torch.cat([self.rows, rows[close]])
        columns = torch.cat([self.columns, columns[close]])
        values = torch.cat([self.values, values[close]])
        order = torch.argsort(columns, stable=True)
        order = order[torch.argsort(rows[order], stable=True)]
        order = order[torch.argsort(values[order], descending=True, stable=True)][: self.k]
        self.rows, self.columns, self.values = rows[order], columns[order], values[order]
        if len(values) >= self.k:
            self.last = float(self.values[-1])

    def entries(self) -> Entries:
        return Entries(self.rows, self.columns, self.sign * self.values * self.unit)


class _Search:
    """Blocks of the product from the longest factors down, until no block can hold anything better."""

    def __init__(
        self,
        left: Tensor,
        right: Tensor,
        k: int,
        rows: Tensor | None,
        columns: Tensor | None,
        identical: tuple[Tensor, Tensor] | None,
        tile: int,
    ) -> None:
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise SettingsError(
                f"The two factors need one width, (V, r) and (W, r); got {tuple(left.shape)} and {tuple(right.shape)}."
            )
        if k < 1 or tile < 1:
            raise SettingsError(f"k cannot be {k} nor tile {tile}; the smallest value is 1.")
        if identical is not None and (len(identical[0]) != len(left) or len(identical[1]) != len(right)):
            raise SettingsError(f"identical needs {len(left)} numbers for the rows and {len(right)} for the columns.")
        self.k, self.tile, self.device = k, tile, left.device
        self.error = float32_error(left.shape[1])
        self.row_ids, self.left, size_left = _sorted(left, rows)
        self.column_ids, self.right, size_right = _sorted(right.to(left.device), columns)
        self.unit = size_left * size_right
        self.same: tuple[Tensor, Tensor] | None = None
        self.most_equal = 0  # columns that one row can lose to ``identical``
        if identical is not None:
            self.same = identical[0].to(self.device)[self.row_ids], identical[1].to(self.device)[self.column_ids]
            if len(self.column_ids):
                self.most_equal = int(torch.unique(self.same[1], return_counts=True)[1].max())

    def run(self, ends: tuple[bool, ...], tick: Tick | None) -> dict[bool, _Best]:
        best = {end: _Best(self.k, 1.0 if end else -1.0, self.unit, self.device) for end in ends}
        tile = self.tile
        left, right = self.left.float(), self.right.float()
        longest_rows, longest_columns = (
            torch.linalg.vector_norm(side, dim=1)[::tile].tolist() for side in (self.left, self.right)
        )
        buffer = torch.empty(min(tile, len(left)) * min(tile, len(right)), device=self.device)
        for i, row_norm in enumerate(longest_rows):
            part = left[i * tile : (i + 1) * tile]
            for j, column_norm in enumerate(longest_columns):
                bound = row_norm * column_norm
                # rows and columns are sorted by length, so that no later block of this row of blocks reaches further
                if all(bound * (1 + 1e-12) < each.last for each in best.values()):
                    break
                other = right[j * tile : (j + 1) * tile]
                block = buffer[: len(part) * len(other)].view(len(part), len(other))
                torch.mm(part, other.T, out=block)
                low, high = (float(each) for each in torch.aminmax(block))
                error = self.error * bound
                for end in ends:
                    if (high if end else -low) >= best[end].last - error:
                        self._search(block, best[end], end, i * tile, j * tile, error)
            if tick is not None:
                tick(i + 1, len(longest_rows))
        return best

    def _search(self, block: Tensor, best: _Best, end: bool, row: int, column: int, error: float) -> None:
        """Look at a block's extremes by row; compute again what could enter."""
        screen = best.last - error
        extremes = block.amax(1) if end else -block.amin(1)
        hits = torch.nonzero(extremes >= screen).flatten()
        if not error:  # factors of zero: all entries are equal, and the first ones in order enter
            allowed = block.shape[1] - self.most_equal
            hits = torch.sort(self.row_ids[row + hits]).indices[: self.k // allowed + 2] if allowed > 0 else hits
        chosen = block[hits] if end else -block[hits]
        if self.same is not None:
            equal = self.same[0][row + hits][:, None] == self.same[1][column : column + block.shape[1]]
            chosen.masked_fill_(equal, -math.inf)
        if chosen.numel() > self.k:
            # as many as are wanted lie above their own k-th, so that only what rounding could lift over it is left
            screen = max(screen, float(chosen.flatten().topk(self.k).values[-1]) - 2 * error)
        where = torch.nonzero((chosen >= screen) & (chosen > -math.inf))
        for piece in where.split(_PIECE):
            at_row, at_column = row + hits[piece[:, 0]], column + piece[:, 1]
            exact = (self.left[at_row] * self.right[at_column]).sum(1) * best.sign
            best.add(self.row_ids[at_row], self.column_ids[at_column], exact)


def _sorted(factor: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """Return the allowed rows' numbers, the rows in float64, longest first, and the largest entry, taken out."""
    ids = usable_ids(factor, mask)
    ids = torch.arange(len(factor), device=factor.device) if ids is None else ids
    kept = factor[ids].double()
    largest = kept.abs().max() if kept.numel() else kept.new_zeros(())
    if not bool(torch.isfinite(largest)):
        raise SettingsError("The factors hold numbers that are not finite, so their product cannot be searched.")
    size = float(power_of_two(largest))
    kept /= size
    order = torch.argsort(torch.linalg.vector_norm(kept, dim=1), descending=True, stable=True)
    return ids[order], kept[order], size
