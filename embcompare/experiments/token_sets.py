"""Sets of tokens: what a vector speaks of most, how far two sets agree, and how sure a mean over many is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from embcompare.experiments.commons import Common
    from embcompare.experiments.readout import Readout

LEVEL = 0.95
"""Of every interval."""
RESAMPLES = 1000
_BITMAP = 32e6


def largest_sets(
    readout: Readout,
    common: Common,
    vectors: Tensor,
    group: str,
    k: int,
    usable: Tensor,
    tick: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k tokens of largest |score| of each vector, (n, k) int64, the largest first, and which have any.

    Of equal ones the lower token comes first; k is cut to the usable tokens. A vector that scores all tokens alike
    speaks of none: False in the second, (n,) bool.
    """
    import torch

    from embcompare.projections import token_ends

    y = common.taken_out(readout.vectors(vectors, group))
    ends = token_ends(y, readout.E, k, usable=usable, tick=tick)
    tokens = torch.cat([ends.top, ends.bottom], 1)
    size = (torch.cat([ends.top_scores, ends.bottom_scores], 1) - readout.shift(y)[:, None]).abs()
    scale = size.amax(1) if size.shape[1] else size.new_zeros(len(size))
    tokens, order = tokens.sort(dim=1)
    size = size.gather(1, order)
    # both ends list a token where they meet; it counts once
    size[:, 1:][tokens[:, 1:] == tokens[:, :-1]] = -1
    order = size.sort(dim=1, descending=True, stable=True).indices
    return tokens.gather(1, order)[:, : ends.top.shape[1]], ends.sd > 1e-6 * scale


def jaccard(one: Tensor, other: Tensor) -> np.ndarray:
    """Return intersection over union of the sets in corresponding rows, (n,) float64; both (n, k), no token twice."""
    import torch

    both = torch.cat([one, other], 1).sort(dim=1).values
    shared = (both[:, 1:] == both[:, :-1]).sum(1).double()
    found: np.ndarray = (shared / (both.shape[1] - shared)).cpu().numpy()
    return found


def covered(parts: Tensor, wanted: Tensor, orders: list[Tensor], size: int) -> np.ndarray:
    """Return for every order the share of the tokens ``wanted`` (T, k) that stand in ``parts`` (T, p), (orders, T).

    An order is a permutation of the rows: with order π row t is looked up in row π(t) of ``parts``. ``size`` is the
    number of rows of E.
    """
    import torch

    rows, device = len(parts), parts.device
    found = np.empty((len(orders), rows))
    places = [torch.empty_like(order).scatter_(0, order, torch.arange(rows, device=device)) for order in orders]
    step = max(1, int(_BITMAP // max(size, 1)))
    for at in range(0, rows, step):
        here = slice(at, at + step)
        bits = torch.zeros(len(parts[here]), size, dtype=torch.bool, device=device)
        bits.scatter_(1, parts[here], True)
        for row, place in zip(found, places, strict=True):
            target = place[here]
            row[target.cpu().numpy()] = bits.gather(1, wanted[target]).double().mean(1).cpu().numpy()
    return found


def resampled(values: np.ndarray, items: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
    """Return means of ``values`` (n, c) over resampled items, (RESAMPLES, c): the bootstrap of Efron 1979.

    ``items`` (n,) says which item (sentence) a row belongs to, resampled whole; None resamples the rows themselves.
    Fewer than two items give NaN.
    """
    if items is None:
        sums, counts = values, np.ones(len(values))
    else:
        _, place = np.unique(items, return_inverse=True)
        sums = np.zeros((place.max(initial=-1) + 1, values.shape[1]))
        np.add.at(sums, place, values)
        counts = np.bincount(place, minlength=len(sums)).astype(np.float64)
    if len(sums) < 2:
        return np.full((RESAMPLES, values.shape[1]), np.nan)
    means = np.empty((RESAMPLES, values.shape[1]))
    step = max(1, int(4e6 // len(sums)))
    for at in range(0, RESAMPLES, step):
        size = len(means[at : at + step])
        weights = generator.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=size).astype(np.float64)
        means[at : at + step] = (weights @ sums) / (weights @ counts)[:, None]
    return means


def bounds(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper bound of the percentile interval of each column of (RESAMPLES, c)."""
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high
