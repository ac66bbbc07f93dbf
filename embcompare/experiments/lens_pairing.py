"""What of two models goes together in the lens: positions that have read the same text, and layers of equal depth.

And what does not: the wrong pairings of positions that say how close two models come by chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embcompare.text.words import TokenIndex

_SPAN = 1 << 20  # more characters than a sentence has


def match_positions(
    sentences: tuple[str, ...], a: TokenIndex, b: TokenIndex, *, causal: bool, same_vocabulary: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of A and of B, int64 (n,) each, in order, at which the two have the same text to go by.

    Where both cut the text alike, the same token. Else, causal models are paired where both have read the same
    characters and no more (equal ends, the last token that ends there), and bidirectional ones where both tokens
    cover the same characters, white space at their ends not counted, and no other token of either does.
    """
    n = len(sentences)
    places = [index.bounds(n) for index in (a, b)]
    order_a, order_b = (np.arange(len(i)) - at[i.sentence] for i, at in zip((a, b), places, strict=True))
    step = int(max(order_a.max(initial=0), order_b.max(initial=0))) + 1
    keys = [i.sentence.astype(np.int64) * step + order for i, order in ((a, order_a), (b, order_b))]
    _, rows_a, rows_b = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    columns = ("token", "start", "end") if same_vocabulary else ("start", "end")
    alike = all(np.array_equal(getattr(a, name)[rows_a], getattr(b, name)[rows_b]) for name in columns)
    if alike and (same_vocabulary or bool((a.start[rows_a] >= 0).all())):
        return rows_a, rows_b
    spans = [_read_ends(i) if causal else _covered(sentences, i) for i in (a, b)]
    _, at_a, at_b = np.intersect1d(spans[0][0], spans[1][0], assume_unique=True, return_indices=True)
    return spans[0][1][at_a], spans[1][1][at_b]


def wrong_pairings(n: int, draws: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return groups of positions and, for each draw, every position's wrong partner: (draws or fewer, n) int64.

    A group is n/g positions apart in the text, g of them, and each draw moves all groups round by as many places, no
    two draws alike: the text moved round, by a tenth of it at least. What neighbouring positions have in common is
    kept, so that chance looks no narrower than it is; and a group's distributions serve all draws.
    """
    count = max(1, n // max(2, 13 * draws // 10 + 2))
    groups = [np.arange(first, n, count) for first in range(count)]
    smallest = len(groups[-1])
    least = max(1, smallest // 10)
    possible = np.arange(least, smallest - least + 1) if smallest > 1 else np.empty(0, dtype=np.int64)
    shifts = np.random.default_rng([seed, 2]).choice(possible, min(draws, len(possible)), replace=False)
    partners = np.empty((len(shifts), n), dtype=np.int64)
    for at, shift in enumerate(shifts.tolist()):
        for group in groups:
            partners[at, group] = np.roll(group, -shift)
    return groups, partners


def equal_depths(blocks_a: int, blocks_b: int) -> np.ndarray:
    """Return pairs of layers of equal relative depth, (max + 1, 2) int64: layer k of the deeper model, and the other's.

    Layer k of D blocks goes with the layer nearest to k N / D of N, the upper of two that are as near; so the
    embedding outputs and the last layers are joined, and every layer of both models is in a pair.
    """
    deeper = max(blocks_a, blocks_b)
    k = np.arange(deeper + 1)
    return np.stack([(2 * k * n + deeper) // (2 * deeper) for n in (blocks_a, blocks_b)], axis=1).astype(np.int64)


def _read_ends(index: TokenIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return a key a text prefix that ends with a token, and the last row that ends there."""
    rows = np.flatnonzero(index.end >= 0)[::-1]
    keys, first = np.unique(index.sentence[rows].astype(np.int64) * _SPAN + index.end[rows], return_index=True)
    return keys, rows[first]


def _covered(sentences: tuple[str, ...], index: TokenIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return a key a span of characters that one token alone covers, and the row of that token."""
    start, end = index.start.astype(np.int64), index.end.astype(np.int64)
    for row, (number, low, high) in enumerate(zip(index.sentence.tolist(), start.tolist(), end.tolist(), strict=True)):
        text = sentences[number]
        while 0 <= low < high and text[low].isspace():
            low += 1
        while 0 <= low < high and text[high - 1].isspace():
            high -= 1
        start[row], end[row] = low, high
    rows = np.flatnonzero((start >= 0) & (end > start))
    key = (index.sentence[rows].astype(np.int64) * _SPAN + start[rows]) * _SPAN + end[rows]
    keys, first, count = np.unique(key, return_index=True, return_counts=True)
    return keys[count == 1], rows[first[count == 1]]
