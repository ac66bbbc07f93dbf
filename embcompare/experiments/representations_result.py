"""What a comparison of all layers of hidden states gives: the matrix, its null, its interval, each layer's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.experiments.base import Result
from embcompare.experiments.depth import cell_table, closest, double_centred, z_scores

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class RepresentationSimilarityResult(Result):
    """One measure between all layers: axis 0 is the layer of A, axis 1 that of B, in the order of ``layers_a`` and
    ``layers_b``. Of hidden states the first is layer 0, the embedding output; of what blocks add it is block 1.
    """

    values: np.ndarray
    """(L_a, L_b) float64; NaN where undefined, with its reason in ``reasons``."""
    null_mean: np.ndarray | None
    """(L_a, L_b) mean over wrong pairings of the same rows."""
    null_sd: np.ndarray | None
    """(L_a, L_b) standard deviation over the wrong pairings, with n - 1."""
    null_best: np.ndarray | None
    """(L_a, L_b) the closest that any wrong pairing came."""
    spread: np.ndarray | None
    """(L_a, L_b) standard error, from random halves of the sentences."""
    assignment: np.ndarray
    """(k, 2) int64: the one-to-one assignment of layers that is closest in total."""
    depth_rate: float
    """Share of assigned pairs that join layers of equal relative depth."""
    depth_chance: float
    """The same share expected of a random assignment."""
    depth_p: float
    """Probability that a random assignment reaches it."""
    layers_a: tuple[str, ...]
    """What each layer of A is."""
    layers_b: tuple[str, ...]
    """What each layer of B is."""
    geometry: tuple[str, ...]
    """Names of the indicators in ``geometry_a`` and ``geometry_b``."""
    geometry_a: np.ndarray
    """(L_a, g) float64 indicators of every layer of A in the space compared in."""
    geometry_b: np.ndarray
    """(L_b, g) float64, likewise of B."""
    rows: int
    """Rows (sentences, words or tokens) compared."""
    items: int
    """Sentences they come from."""
    reasons: tuple[tuple[int, int, str], ...]
    """Row, column, and why the cell has no value."""
    higher_is_closer: bool
    """Direction of the measure."""
    k: int | None = None
    """Neighbours counted; None for a measure that counts none."""
    numbered_from: tuple[int, int] | None = None
    """Numbers of the first layer of A and of B; None, in results of hidden states from before, for 0."""

    axes: ClassVar[tuple[str, str]] = ("layer of A", "layer of B")

    @property
    def start(self) -> tuple[int, int]:
        """Numbers of the first layer of A and of B as they are shown: 0, or 1 for what a block adds."""
        return self.numbered_from or (0, 0)

    @property
    def centred(self) -> np.ndarray:
        """(L_a, L_b): row and column means taken out."""
        return double_centred(self.values)

    @property
    def z(self) -> np.ndarray | None:
        """(L_a, L_b): closer than the null by so many of its standard deviations; None without a null."""
        return z_scores(self.values, self.null_mean, self.null_sd, 1.0 if self.higher_is_closer else -1.0)

    @property
    def low(self) -> np.ndarray | None:
        """(L_a, L_b): lower end of the 95 % interval."""
        return None if self.spread is None else self.values - 1.96 * self.spread

    @property
    def high(self) -> np.ndarray | None:
        """(L_a, L_b): upper end of the 95 % interval."""
        return None if self.spread is None else self.values + 1.96 * self.spread

    @property
    def best_match_a(self) -> np.ndarray:
        """(L_a,) int64: the column of the closest layer of B for each layer of A; -1 where no cell is defined."""
        return closest(self.values, self.higher_is_closer)

    @property
    def best_match_b(self) -> np.ndarray:
        """(L_b,) int64: the row of the closest layer of A for each layer of B; -1 where no cell is defined."""
        return closest(self.values.T, self.higher_is_closer)

    def to_frame(self) -> pd.DataFrame:
        """Return one row a cell: both layers, value, interval, null, z, assigned or not, reason if undefined."""
        import pandas as pd

        more = {name: getattr(self, name) for name in ("low", "high", "null_mean", "null_sd", "null_best", "z")}
        frame = pd.DataFrame(cell_table(self.values, self.assignment, more))
        why = {(i, j): text for i, j, text in self.reasons}
        frame["reason"] = [why.get((int(i), int(j)), "") for i, j in zip(frame.layer_a, frame.layer_b, strict=True)]
        frame["layer_a"] += self.start[0]
        frame["layer_b"] += self.start[1]
        return frame
