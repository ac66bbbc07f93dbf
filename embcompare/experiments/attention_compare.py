"""Heads against heads: correlation or cosine of samples, or Jensen-Shannon divergence by query; and their nulls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embcompare.experiments.depth import depth_agreement
from embcompare.measures.distributions import LN2

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.attention_units import Pattern

_ROWS_AT_ONCE = 8192
_NUMBERS_AT_ONCE = 1 << 22
"""Numbers of mixed distributions held at once: 16 MiB."""
_CONSTANT = 10 * float(np.finfo(np.float32).eps)
"""A head whose samples vary less than this share of the largest is constant up to rounding."""

Partner = np.ndarray
"""(s,) int64: for each text the one that it is paired with."""


class Comparison(Protocol):
    """Both sides' heads on the same texts, ready to be compared in several ways."""

    @property
    def sizes(self) -> np.ndarray:
        """(s,) int64: units of each text."""

    @property
    def rows(self) -> int:
        """Samples."""

    def values(self, step: Callable[[float], None]) -> np.ndarray:
        """Return heads by heads, (h_a, h_b) float64; NaN where undefined."""

    def wrong(self, partner: Partner, step: Callable[[float], None]) -> np.ndarray:
        """Return the same with B's texts replaced by their partners, place by place, cut to the shorter."""

    def constant(self) -> list[tuple[str, int]]:
        """Return side and head of those that have no value."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Heads as columns: ``x`` (n, h_a) and ``y`` (n, h_b), ``text`` (n,) numbers the text of a row from 0, ascending.

    ``reach`` (n,) is how many units of its text a sample needs: it is left out where a wrong partner is shorter.
    """

    x: np.ndarray
    y: np.ndarray
    text: np.ndarray
    reach: np.ndarray
    sizes: np.ndarray
    centred: bool

    @property
    def rows(self) -> int:
        """Samples."""
        return len(self.text)

    def values(self, step: Callable[[float], None]) -> np.ndarray:
        """Return Pearson correlations, or cosines, of all heads."""
        return agreement(self.x, self.y, centred=self.centred)

    def wrong(self, partner: Partner, step: Callable[[float], None]) -> np.ndarray:
        """Return the same of samples at the same places of wrong texts."""
        rows_a, rows_b = same_places(self.text, self.reach, self.sizes, partner)
        return agreement(self.x[rows_a], self.y[rows_b], centred=self.centred)

    def half(self, texts: np.ndarray) -> np.ndarray:
        """Return the same of some texts only."""
        rows = np.flatnonzero(np.isin(self.text, texts))
        return agreement(self.x[rows], self.y[rows], centred=self.centred)

    def constant(self) -> list[tuple[str, int]]:
        """Return the heads whose samples are all alike, or zero where nothing is centred."""
        found = []
        for side, samples in (("a", self.x), ("b", self.y)):
            flat = _flat(samples, _means(samples, self.centred))
            found += [(side, int(head)) for head in np.flatnonzero(flat)]
        return found


@dataclass(frozen=True, eq=False)
class Queries:
    """Each text's patterns on both sides, compared query by query as distributions over its units and the rest."""

    a: tuple[Pattern, ...]
    b: tuple[Pattern, ...]

    @property
    def sizes(self) -> np.ndarray:
        """(s,) int64: units, which are the queries, of each text."""
        return np.array([len(each.even) for each in self.a], dtype=np.int64)

    @property
    def rows(self) -> int:
        """Queries."""
        return int(self.sizes.sum())

    def values(self, step: Callable[[float], None]) -> np.ndarray:
        """Return mean divergences, in nats."""
        return self.with_error(step)[0]

    def with_error(self, step: Callable[[float], None]) -> tuple[np.ndarray, np.ndarray]:
        """Return mean divergences and their standard errors over texts, one pass, nothing held a text."""
        counts = self.sizes
        shape = len(self.a[0].attention), len(self.b[0].attention)
        total, squares, crossed = (np.zeros(shape) for _ in range(3))
        for at, (sums, count) in enumerate(zip(self._sums(np.arange(len(counts))), counts.tolist(), strict=True)):
            total += sums
            squares += sums**2
            crossed += count * sums
            step((at + 1) / len(counts))
        mean = np.asarray(total / counts.sum())
        if len(counts) < 2:
            return mean, np.full(mean.shape, np.nan)
        # Σ (s - c mean)², as clustered_mean takes it from the texts' sums s and counts c
        rest = np.maximum(squares - 2 * mean * crossed + mean**2 * float(np.square(counts).sum()), 0.0)
        return mean, np.asarray(np.sqrt(len(counts) / (len(counts) - 1) * rest) / counts.sum())

    def wrong(self, partner: Partner, step: Callable[[float], None]) -> np.ndarray:
        """Return mean divergences from the same places of wrong texts; what lies behind the shorter is the rest."""
        total, count, n = np.zeros((len(self.a[0].attention), len(self.b[0].attention))), 0, len(partner)
        for at, sums in enumerate(self._sums(partner)):
            total += sums
            count += int(min(self.sizes[at], self.sizes[partner[at]]))
            step((at + 1) / n)
        return np.asarray(total / count)

    def constant(self) -> list[tuple[str, int]]:
        """Return nothing: every head has a divergence."""
        return []

    def _sums(self, partner: Partner) -> Iterator[np.ndarray]:
        for at, other in enumerate(partner.tolist()):
            size = min(len(self.a[at].even), len(self.b[other].even))
            yield divergence(distributions(self.a[at], size), distributions(self.b[other], size))


def agreement(x: np.ndarray, y: np.ndarray, *, centred: bool) -> np.ndarray:
    """Return the correlation, or without centring the cosine, of all columns of (n, p) and (n, q): (p, q) float64.

    Sums are taken in float64, of columns centred first. NaN where a column is constant (or zero), or n < 2.
    """
    if len(x) < 2:
        return np.full((x.shape[1], y.shape[1]), np.nan)
    middle = [_means(each, centred) for each in (x, y)]
    product = np.zeros((x.shape[1], y.shape[1]))
    squares = [np.zeros(each.shape[1]) for each in (x, y)]
    for low in range(0, len(x), _ROWS_AT_ONCE):
        left, right = (
            each[low : low + _ROWS_AT_ONCE].astype(np.float64) - mean for each, mean in zip((x, y), middle, strict=True)
        )
        product += left.T @ right
        for total, each in zip(squares, (left, right), strict=True):
            total += np.square(each).sum(0)
    norms = [
        np.where(_flat(each, mean), np.nan, np.sqrt(total))
        for each, mean, total in zip((x, y), middle, squares, strict=True)
    ]
    return np.clip(product / np.outer(*norms), -1.0, 1.0)


def _means(samples: np.ndarray, centred: bool) -> np.ndarray:
    return samples.mean(0, dtype=np.float64) if centred else np.zeros(samples.shape[1])


def _flat(samples: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Mark the columns that do not leave ``mean`` by more than rounding."""
    low, high = samples.min(0).astype(np.float64), samples.max(0).astype(np.float64)
    largest = np.maximum(np.abs(low), np.abs(high))
    return np.asarray(np.maximum(high - mean, mean - low) <= _CONSTANT * largest)


def distributions(pattern: Pattern, size: int) -> np.ndarray:
    """Return where each of the first ``size`` queries looks: (H, size, size + 1), the last for all other places."""
    inside = pattern.attention[:, :size, :size]
    rest = np.clip(1.0 - inside.sum(-1, keepdims=True, dtype=np.float64), 0.0, None)
    return np.concatenate([inside, rest.astype(np.float32)], axis=-1)


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return Jensen-Shannon divergences of (H_a, n, k) and (H_b, n, k), added up over n: (H_a, H_b) float64, in nats.

    With m = (p + q)/2 it is Σ m ln(1/m) less the mean of both entropies (Lin 1991), each in [0, ln 2].
    """
    import torch

    left, right = torch.from_numpy(p), torch.from_numpy(q)
    own = [torch.xlogy(each, each).sum(-1).double() for each in (left, right)]
    total = torch.zeros(len(p), len(q), dtype=torch.float64)
    step = max(1, _NUMBERS_AT_ONCE // max(1, len(q) * p.shape[-1]))
    for low in range(0, p.shape[1], step):
        part = slice(low, low + step)
        half = right[:, part] / 2
        for head in range(len(left)):
            mixed = half + left[head, part] / 2
            found = (own[0][head, part] + own[1][:, part]) / 2 - _summed(mixed)
            total[head] += found.clamp_(0.0, LN2).sum(-1)
    return np.asarray(total.numpy())


def _summed(mixed: Tensor) -> Tensor:
    import torch

    return torch.xlogy(mixed, mixed).sum(-1).double()


def partners(sizes: np.ndarray, generator: np.random.Generator) -> Partner:
    """Return for each text another one of about the same size: its neighbour by size, some places on."""
    shuffled = generator.permutation(len(sizes))
    order = shuffled[np.argsort(sizes[shuffled], kind="stable")]
    on = int(generator.integers(1, max(2, len(sizes) // 10 + 1)))
    found = np.empty(len(sizes), dtype=np.int64)
    found[order] = np.roll(order, -on)
    return found


def same_places(
    text: np.ndarray, reach: np.ndarray, sizes: np.ndarray, partner: Partner
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of A and of B that go together: each sample with that at its place in the partner of its text."""
    starts = np.searchsorted(text, np.arange(len(sizes) + 1))
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for at, other in enumerate(partner.tolist()):
        shorter = min(int(sizes[at]), int(sizes[other]))
        for own, chosen in zip(rows, (at, other), strict=True):
            some = np.arange(starts[chosen], starts[chosen + 1])
            own.append(some[reach[some] <= shorter])
    return np.concatenate(rows[0]), np.concatenate(rows[1])


def matched_layers(values: np.ndarray, heads: tuple[int, int], *, higher_is_closer: bool) -> np.ndarray:
    """Return, for each pair of blocks, the mean over heads matched one to one for the closest total: (L_a, L_b)."""
    shape = values.shape[0] // heads[0], values.shape[1] // heads[1]
    sign, found = (1.0 if higher_is_closer else -1.0), np.full(shape, np.nan)
    for i, j in np.ndindex(*shape):
        block = values[i * heads[0] : (i + 1) * heads[0], j * heads[1] : (j + 1) * heads[1]]
        pairs = depth_agreement(sign * block, sampled=0).pairs
        if len(pairs):
            found[i, j] = block[pairs[:, 0], pairs[:, 1]].mean()
    return found
