"""What linear maps between all layers of two models predict: R² on training and test rows, and of wrong pairings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class MapPairsResult(Result):
    """R² of ``k`` maps on ``s`` splits between all layers; the last axes are the layer of A and that of B.

    R² is over all features together, against the mean of the rows scored: 1 is perfect, 0 no better than the mean, and
    below 0 worse. NaN where it is undefined, with its reason.
    """

    maps: tuple[str, ...]
    """(k,) names, see :data:`embcompare.maps.MAPS`."""
    test: np.ndarray
    """(k, s, L_a, L_b) float64 on texts that no map saw."""
    train: np.ndarray
    """(k, s, L_a, L_b) float64 on the rows that maps were fitted on."""
    strength: np.ndarray
    """(k, s, L_a, L_b) float64: the penalty that ridge chose; NaN for other maps."""
    null_mean: np.ndarray | None
    """(k, L_a, L_b) mean test R² over wrong pairings of the rows of the first split; None without a null."""
    null_sd: np.ndarray | None
    """(k, L_a, L_b) standard deviation over them, with n - 1; NaN for one."""
    null_best: np.ndarray | None
    """(k, L_a, L_b) the best of them."""
    layers_a: tuple[str, ...]
    """What each layer of A is."""
    layers_b: tuple[str, ...]
    """What each layer of B is."""
    widths: tuple[int, int]
    """d_a and d_b."""
    rows: tuple[int, int]
    """Training and test rows of the first split."""
    texts: int
    """Texts (or given rows) that all rows come from."""
    seeds: tuple[int, ...]
    """(s,) the seed of each split."""
    reasons: tuple[tuple[str, int, int, str], ...]
    """Map, row, column, and why the cell has no value."""
    numbered_from: tuple[int, int] | None = None
    """Numbers of the first layer of A and of B; None, in results of hidden states from before, for 0."""

    axes: ClassVar[tuple[str, str]] = ("layer of A", "layer of B")

    @property
    def start(self) -> tuple[int, int]:
        """Numbers of the first layer of A and of B as they are shown: 0, or 1 for what a block adds."""
        return self.numbered_from or (0, 0)

    def at(self, name: str) -> int:
        """Return the place of a map; an unknown one raises :class:`SettingsError`."""
        if name not in self.maps:
            raise SettingsError(f"The map '{name}' was not fitted here; there are {', '.join(self.maps)}.")
        return self.maps.index(name)

    def mean(self, name: str, part: str = "test") -> np.ndarray:
        """Return the mean R² over splits, (L_a, L_b); ``part`` is ``"test"`` or ``"train"``."""
        return np.asarray(self._part(part)[self.at(name)].mean(0))

    def sd(self, name: str, part: str = "test") -> np.ndarray:
        """Return the standard deviation over splits, with n - 1, (L_a, L_b): how much the choice of texts matters.

        NaN for one split. Splits share rows, so it is no standard error.
        """
        found = self._part(part)[self.at(name)]
        return np.full(found.shape[1:], np.nan) if len(found) < 2 else np.asarray(found.std(0, ddof=1))

    def beyond_null(self, name: str) -> np.ndarray | None:
        """Return where the mean test R² is above 0 and above every wrong pairing's, (L_a, L_b) bool; None without."""
        if self.null_best is None:
            return None
        return np.asarray(self.mean(name) > np.maximum(self.null_best[self.at(name)], 0.0))

    def best_b(self, name: str) -> np.ndarray:
        """Return for every row the column of the layer of B that it predicts best, (L_a,) int64; -1 where undefined."""
        mean = self.mean(name)
        best = np.where(np.isnan(mean), -np.inf, mean).argmax(1)
        return np.where(np.isnan(mean).all(1), -1, best).astype(np.int64)

    def to_frame(self) -> pd.DataFrame:
        """Return one row a map and pair of layers: R² with its spread, and the null."""
        import pandas as pd

        rows = []
        for at, name in enumerate(self.maps):
            test, train, sd = self.mean(name), self.mean(name, "train"), self.sd(name)
            strength = self.strength[at, 0]
            for i, j in np.ndindex(*test.shape):
                row: dict[str, object] = {
                    "map": name,
                    "layer_a": i + self.start[0],
                    "layer_b": j + self.start[1],
                    "name_a": self.layers_a[i],
                    "name_b": self.layers_b[j],
                    "r2": test[i, j],
                    "sd": sd[i, j],
                    "r2_train": train[i, j],
                    "strength": strength[i, j],
                }
                if self.null_mean is not None and self.null_best is not None:
                    row |= {"null_mean": self.null_mean[at, i, j], "null_best": self.null_best[at, i, j]}
                rows.append(row)
        return pd.DataFrame(rows)

    def _part(self, part: str) -> np.ndarray:
        if part not in ("test", "train"):
            raise SettingsError(f"There is no part '{part}'; there are test and train.")
        return self.test if part == "test" else self.train
