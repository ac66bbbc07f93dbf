"""Both ends of every vector's reading: the tokens of largest and of smallest projection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from embcompare.errors import SettingsError
from embcompare.projections.rows import BLOCK, mean_row, row_blocks, usable_ids

Tick = Callable[[int, int], None]
"""Called with the blocks done and their number; raise in it to stop."""

_SPARE = 8  # candidates beyond k that the screen keeps, so that rounding seldom leaves a doubt
_CHUNK = 32  # neighbours of which first only the largest is looked at
_BYTES = 32e6  # of a block of scores: larger ones leave the cache
_GATHERED = 4e6  # of the rows of E that are read again in float64: used while they are still in the cache


@dataclass(frozen=True, eq=False)
class TokenEnds:
    """Both ends of every vector's reading over the usable tokens, and its mean and spread there.

    ``top`` and ``bottom`` are (n, k) int64 rows of E, the most extreme first; their scores (n, k) float64 are the plain
    ``E x``. k is cut to the number of usable tokens. ``mean`` and ``sd`` are (n,) float64 over the usable tokens, the
    latter with n; NaN without any.
    """

    top: Tensor
    top_scores: Tensor
    bottom: Tensor
    bottom_scores: Tensor
    mean: Tensor
    sd: Tensor


def top_tokens(
    vectors: Tensor,
    E: Tensor,
    k: int,
    largest: bool = True,
    usable: Tensor | None = None,
    block: int = BLOCK,
    tick: Tick | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k tokens of largest (or smallest) projection for each vector, (n, k) int64, and scores (n, k) float64.

    ``vectors`` is (n, d) and ``E`` (V, d), of any floating dtype; ``usable`` a bool mask (V,) of the tokens that may be
    listed. The most extreme comes first, of equal ones the lower token; with fewer than k usable tokens the result has
    fewer columns. ``tick(done, total)`` is called after each block. Raises :class:`SettingsError` for shapes that do
    not fit and numbers that are not finite.
    """
    screen = _Screen(vectors, E, k, usable, block)
    screen.run((largest,), tick)
    return screen.listed(largest)


def token_ends(
    vectors: Tensor,
    E: Tensor,
    k: int,
    *,
    usable: Tensor | None = None,
    block: int = BLOCK,
    tick: Tick | None = None,
) -> TokenEnds:
    """Read every vector at both ends in one pass over E; as :func:`top_tokens`, with the mean and spread beside it."""
    screen = _Screen(vectors, E, k, usable, block)
    screen.run((True, False), tick)
    return TokenEnds(*screen.listed(True), *screen.listed(False), *screen.moments())


def token_scores(vectors: Iterable[Tensor], directions: Tensor, rows: int = BLOCK) -> Tensor:
    """Return what every vector gives to a few tokens: (N, t) float64 for a stream of (n, d) and their rows (t, d) of E.

    Summed in float64, a block of rows at a time: the search for the vectors that promote or suppress a token.
    """
    wanted = directions.double()
    parts = [part.to(wanted.device).double() @ wanted.T for each in vectors for part in each.split(rows)]
    return torch.cat(parts) if parts else wanted.new_empty(0, len(wanted))


class _Screen:
    """One pass over E: float32 candidates for each end of each vector, then the float64 proof."""

    def __init__(self, vectors: Tensor, E: Tensor, k: int, usable: Tensor | None, block: int) -> None:
        if vectors.ndim != 2 or E.ndim != 2 or vectors.shape[1] != E.shape[1]:
            raise SettingsError(
                f"Vectors (n, d) are read with an embedding (V, d); got {tuple(vectors.shape)} and {tuple(E.shape)}."
            )
        if k < 1 or block < 1:
            raise SettingsError(f"k cannot be {k} nor block {block}; the smallest value is 1.")
        self.E, self.ids, self.device = E, usable_ids(E, usable), E.device
        self.x = vectors.to(E.device)
        self.size = _largest(self.x)
        self.n, self.d = self.x.shape
        self.V = len(E) if self.ids is None else len(self.ids)
        self.k = min(k, self.V)
        self.kept = min(self.k + _SPARE, self.V)
        self.block = min(block, max(256, int(2 * _BYTES / (8 * max(self.d, 1)))))
        self.rows = max(64, int(_BYTES / (4 * min(self.block, max(self.V, 1)))))
        self.true_mean = mean_row(E, usable, self.block)
        # any centre does, for it moves all scores of a vector alike; this one float32 can subtract
        self.mean = self.true_mean.float().double()
        if not bool(torch.isfinite(self.mean).all()):
            raise SettingsError(
                "The embedding matrix holds numbers that are not finite, so nothing can be read with it."
            )
        self.squares = torch.zeros(self.n, dtype=torch.float64, device=self.device)
        self.norm = 0.0
        self.found: dict[bool, tuple[Tensor, Tensor]] = {}

    def run(self, ends: tuple[bool, ...], tick: Tick | None = None) -> None:
        self.found = {
            end: (
                torch.full((self.n, self.kept), -math.inf, device=self.device),
                torch.zeros(self.n, self.kept, dtype=torch.int64, device=self.device),
            )
            for end in ends
        }
        buffer = torch.empty(0, device=self.device)
        start = done = 0
        total = -(-self.V // self.block) * -(-self.n // self.rows)
        for rows in row_blocks(self.E, self.ids, self.block):
            e = self._centred(rows)
            self.norm = max(self.norm, float(torch.linalg.vector_norm(e, dim=1).max()))
            wide = -(-len(e) // _CHUNK) * _CHUNK
            if buffer.shape[-1] != wide:
                buffer = torch.empty(min(self.rows, self.n), wide, device=self.device)
            for at in range(0, self.n, self.rows):
                scores = buffer[: min(self.rows, self.n - at)]
                torch.mm(self._scaled(at).float(), e.T, out=scores[:, : len(e)])
                self._keep(scores, len(e), at, start, ends)
                done += 1
                if tick is not None:
                    tick(done, total)
            start += len(e)

    def _keep(self, scores: Tensor, width: int, at: int, start: int, ends: tuple[bool, ...]) -> None:
        here = slice(at, at + len(scores))
        scores[:, width:] = 0
        # short sums, so that float32 keeps its digits; then float64
        short = torch.linalg.vector_norm(scores.unflatten(1, (-1, _CHUNK)), dim=2)
        self.squares[here] += short.double().square().sum(1)
        for end in ends:
            if not end:
                scores.neg_()
            scores[:, width:] = -math.inf
            values, index = _largest_of_rows(scores, min(self.kept, width))
            best, token = self.found[end]
            values = torch.cat([best[here], values], 1)
            tokens = torch.cat([token[here], index + start], 1)
            best[here], order = values.topk(self.kept, dim=1, sorted=False)
            token[here] = tokens.gather(1, order)

    def listed(self, end: bool) -> tuple[Tensor, Tensor]:
        """Return tokens and scores (n, k) of one end, proven in float64."""
        screened, tokens = self.found[end]
        index = torch.zeros(self.n, self.k, dtype=torch.int64, device=self.device)
        scores = torch.zeros(self.n, self.k, dtype=torch.float64, device=self.device)
        gathered = _GATHERED if self.device.type == "cpu" else 8 * _BYTES
        step = max(1, int(gathered / (8 * self.d * max(self.kept, 1))))
        sign = 1.0 if end else -1.0
        doubtful: list[int] = []
        for at in range(0, self.n if self.k else 0, step):
            here = slice(at, at + step)
            x = sign * self._scaled(at, step)
            ordered = tokens[here].sort(dim=1).values  # a stable sort by score then leaves equal ones in this order
            exact = self._take(ordered).to(torch.float64, copy=True).mul_(x[:, None, :]).sum(2)
            best, order = torch.sort(exact, dim=1, descending=True, stable=True)
            scores[here], index[here] = best[:, : self.k], ordered.gather(1, order)[:, : self.k]
            if self.kept < self.V:
                doubt = best[:, self.k - 1] - x @ self.mean <= screened[here].amin(1).double() + self._error(x)
                zero = ~x.any(1)
                index[here][zero] = torch.arange(self.k, device=self.device)
                doubt &= ~zero
                doubtful += (at + torch.nonzero(doubt).flatten()).tolist()
        for at in range(0, len(doubtful), 16):
            chosen = doubtful[at : at + 16]
            index[chosen], scores[chosen] = self._anew(chosen, sign)
        scores *= sign * self.size[:, None]
        return (index if self.ids is None else self.ids[index]), scores

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation over the usable tokens, (n,) each."""
        if not self.V:
            nothing = torch.full_like(self.squares, math.nan)
            return nothing, nothing
        x = self.x.double()
        off = x @ (self.true_mean - self.mean) / self.size
        variance = (self.squares / self.V - off.square()).clamp(min=0)
        return x @ self.true_mean, variance.sqrt() * self.size

    def _anew(self, chosen: list[int], sign: float) -> tuple[Tensor, Tensor]:
        """Read a few vectors whole in float64: all that the screen could not tell apart are compared again."""
        x = sign * self.x[chosen].double() / self.size[chosen][:, None]
        whole = torch.cat([x @ rows.double().T for rows in row_blocks(self.E, self.ids, self.block)], 1)
        last = whole.topk(self.k, dim=1).values[:, -1]
        reach = self.norm + torch.linalg.vector_norm(self.mean)
        slack = self.d * 2.0**-50 * reach * torch.linalg.vector_norm(x, dim=1)
        index, scores = [], []
        for vector, row, low in zip(x, whole, last - slack, strict=True):
            near = torch.nonzero(row >= low).flatten()
            # one row's sum is the same wherever the row stands, which a matrix product does not promise
            exact = torch.cat([(self._take(part).double() * vector).sum(1) for part in near.split(self.block)])
            best, order = torch.sort(exact, descending=True, stable=True)
            index.append(near[order[: self.k]])
            scores.append(best[: self.k])
        return torch.stack(index), torch.stack(scores)

    def _scaled(self, at: int, count: int | None = None) -> Tensor:
        here = slice(at, at + (self.rows if count is None else count))
        scaled: Tensor = self.x[here].double() / self.size[here][:, None]
        return scaled

    def _error(self, x: Tensor) -> Tensor:
        """Return what a screened score of each vector may be off."""
        reach = self.norm + 2.0**-20 * float(torch.linalg.vector_norm(self.mean))
        error: Tensor = float32_error(self.d) * reach * torch.linalg.vector_norm(x, dim=1)
        return error

    def _centred(self, rows: Tensor) -> Tensor:
        """Return rows of E in float32 about the common centre; lower precisions fit into float32 as they are."""
        if rows.dtype == torch.float64:
            return (rows - self.mean).float()
        return rows.float() - self.mean.float()

    def _take(self, tokens: Tensor) -> Tensor:
        rows: Tensor = self.E[tokens if self.ids is None else self.ids[tokens]]
        return rows


def _largest_of_rows(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row and where they stand, in any order; rows are a whole number of chunks wide."""
    chunks = scores.unflatten(1, (-1, _CHUNK))
    if chunks.shape[1] <= k:
        values, index = scores.topk(k, dim=1, sorted=False)
        return values, index
    # the k largest stand in the k chunks whose largest are largest
    _, which = chunks.amax(2).topk(k, dim=1, sorted=False)
    rows = torch.arange(len(scores), device=scores.device)[:, None]
    flat = (which + rows * chunks.shape[1]).flatten()
    inside = chunks.flatten(0, 1).index_select(0, flat).view(len(scores), -1)
    values, order = inside.topk(k, dim=1, sorted=False)
    return values, which.gather(1, order // _CHUNK) * _CHUNK + order % _CHUNK


def float32_error(d: int) -> float:
    """Return what a float32 inner product of d terms may be off, for vectors of unit norm.

    ``d u`` is the most that rounding can do and ``8 √d u`` what it does not reach in practice (Higham and Mary 2019);
    4 u more for rounding the factors.
    """
    return (min(d, 8 * math.sqrt(d)) + 4) * 2.0**-24


def _largest(x: Tensor) -> Tensor:
    """Return a power of two for each vector by which it can be divided without rounding; 1 for a zero vector."""
    if not x.shape[1]:
        return torch.ones(len(x), dtype=torch.float64, device=x.device)
    size = x.abs().amax(1).double()
    if not bool(torch.isfinite(size).all()):
        raise SettingsError("The vectors hold numbers that are not finite, so they cannot be read.")
    return power_of_two(size)


def power_of_two(size: Tensor) -> Tensor:
    """Return the power of two at or above each number, so that dividing by it rounds nothing; 1 for zero."""
    return torch.where(size > 0, torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent), 1.0)
