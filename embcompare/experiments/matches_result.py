"""What a matching of two layers' vectors gives: pairs, their tokens, and what chance would reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.base import Result

if TYPE_CHECKING:
    import pandas as pd

Ends = tuple[tuple[str, ...], tuple[str, ...]]
"""The tokens of a vector at its top and at its bottom."""


@dataclass(frozen=True, eq=False)
class ParameterMatchesResult(Result):
    """The matched vectors of one pair of layers, strongest first."""

    index_a: np.ndarray
    """(k,) int64: which vector (neuron, column, row, head) of A's layer."""
    index_b: np.ndarray
    """(k,) int64: its partner in B's layer."""
    correlation: np.ndarray
    """(k,) float64, signed; a partner of negative correlation is read as its negative."""
    values: np.ndarray
    """(matched,) float64: |correlation| of every matched pair of the two layers, not only of the k listed."""
    tokens_a: tuple[tuple[str, ...], ...]
    """For each listed vector of A, the tokens of largest projection, largest first."""
    tokens_b: tuple[tuple[str, ...], ...]
    """For each partner, likewise, read with the sign of the match."""
    bottom_a: tuple[tuple[str, ...], ...]
    """For each listed vector of A, the tokens of most negative projection, most negative first; none for heads."""
    bottom_b: tuple[tuple[str, ...], ...]
    """For each partner, likewise."""
    shared_tokens: np.ndarray
    """(k,) float64: Jaccard overlap of the token lists of both ends, by end and surface string."""
    null_median: np.ndarray | None = None
    """(draws,) float64: median |correlation| of the matched pairs under each permutation; None without a null."""
    null_strongest: np.ndarray | None = None
    """(draws,) float64: the strongest |correlation| that any matched pair has under each permutation."""
    shared_chance: float = float("nan")
    """Mean Jaccard overlap of the k listed vectors of A with each other's partners, (k² - k) pairs; NaN below k = 2."""

    @property
    def beyond_null(self) -> float:
        """Share of all matched pairs that are stronger than the strongest pair of every permutation; NaN without."""
        if self.null_strongest is None or not self.values.size or not np.isfinite(self.null_strongest).any():
            return float("nan")
        return float(np.mean(self.values > np.nanmax(self.null_strongest)))

    def to_frame(self) -> pd.DataFrame:
        """Return one row a listed pair, tokens joined by spaces."""
        import pandas as pd

        return pd.DataFrame(
            {
                "index_a": self.index_a,
                "index_b": self.index_b,
                "correlation": self.correlation,
                "shared_tokens": self.shared_tokens,
                "tokens_a": [" ".join(row) for row in self.tokens_a],
                "tokens_b": [" ".join(row) for row in self.tokens_b],
                "bottom_a": [" ".join(row) for row in self.bottom_a],
                "bottom_b": [" ".join(row) for row in self.bottom_b],
            }
        )


def overlaps_of(own: Iterable[Ends], others: Iterable[Ends]) -> np.ndarray:
    """Return the Jaccard overlap of each of k pairs of token lists with each of m, (k, m) float64.

    A token counts only at the end where it stands; NaN where both have no token at all.
    """
    from scipy.sparse import csr_array

    number: dict[tuple[int, str], int] = {}
    held = []
    for side in (own, others):
        tokens = [[(end, token) for end, listed in enumerate(ends) for token in listed] for ends in side]
        held.append([sorted({number.setdefault(each, len(number)) for each in row}) for row in tokens])
    tables = []
    for sets in held:
        starts = np.cumsum([0, *map(len, sets)])
        columns = np.concatenate([np.empty(0, dtype=np.int64), *map(np.asarray, sets)]).astype(np.int64)
        tables.append(csr_array((np.ones(len(columns)), columns, starts), shape=(len(sets), max(1, len(number)))))
    common = (tables[0] @ tables[1].T).toarray()
    sizes = [np.array([len(each) for each in sets], dtype=np.float64) for sets in held]
    union = sizes[0][:, None] + sizes[1][None, :] - common
    return np.asarray(np.divide(common, union, out=np.full(common.shape, np.nan), where=union > 0))


def off_diagonal_mean(overlaps: np.ndarray) -> float:
    """Return the mean over all wrong pairings: what the lists share because all of them hold the same few tokens."""
    if len(overlaps) < 2:
        return float("nan")
    others = overlaps[~np.eye(len(overlaps), dtype=bool)]
    return float(np.nanmean(others)) if np.isfinite(others).any() else float("nan")
