"""What maps reach depth by depth: R², the gaps between kinds of maps with their intervals, and one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result
from embcompare.experiments.bijection_result import METRICS, PARTS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class BijectionDepthsResult(Result):
    """``m`` maps in ``r`` runs at ``p`` pairs of layers; NaN, with its reason, where there is no value."""

    maps: tuple[str, ...]
    """(m,) names, see :data:`embcompare.maps.MAPS`."""
    seeds: tuple[int, ...]
    """(r,) seed of each run's training."""
    layers: np.ndarray
    """(p, 2) int64: the layer of A and that of B."""
    names_a: tuple[str, ...]
    """(p,) what each layer of A is."""
    names_b: tuple[str, ...]
    """(p,) what each layer of B is."""
    scores: np.ndarray
    """(p, m, r, 2, 5) float64: by part (train, test) and score; as in :class:`BijectionResult`."""
    rows: np.ndarray
    """(p, 3) int64: rows for training, validation and test."""
    gap_names: tuple[tuple[str, str], ...]
    """(g,) pairs of maps by the names of the reading: mean, orthogonal, linear, inn, mlp."""
    gaps: np.ndarray
    """(p, g, 3) float64: R² of the second minus that of the first on test rows, and the ends of its 95 % interval over
    texts."""
    kinds: tuple[str, ...]
    """(p,) what it takes at each depth, one of :class:`embcompare.maps.Kind`; empty where there is no reading."""
    sentences: tuple[str, ...]
    """(p,) the same in words."""
    sentence: str
    """All depths in one sentence."""
    reasons: tuple[tuple[int, str, str], ...]
    """Depth (place in ``layers``), map, and why it was not fitted there; the map is empty where nothing was."""

    metrics: ClassVar[tuple[str, ...]] = METRICS
    parts: ClassVar[tuple[str, ...]] = PARTS

    def of(self, name: str, metric: str = "r2", part: str = "test") -> np.ndarray:
        """Return a map's score at every depth, its mean over runs, (p,) float64; NaN where it is undefined."""
        for what, value, among in (("map", name, self.maps), ("score", metric, METRICS), ("part", part, PARTS)):
            if value not in among:
                raise SettingsError(f"There is no {what} '{value}' here; there are {', '.join(among)}.")
        found = self.scores[:, self.maps.index(name), :, PARTS.index(part), METRICS.index(metric)]
        defined = np.isfinite(found)
        count = defined.sum(1)
        return np.asarray(np.where(count, np.where(defined, found, 0).sum(1) / np.maximum(count, 1), np.nan))

    def gap(self, first: str, second: str) -> np.ndarray:
        """Return, at every depth, R² of ``second`` minus that of ``first`` and the ends of its interval, (p, 3)."""
        if (first, second) not in self.gap_names:
            raise SettingsError(f"The gap from '{first}' to '{second}' was not taken here.")
        return np.asarray(self.gaps[:, self.gap_names.index((first, second))])

    def to_frame(self) -> pd.DataFrame:
        """Return one row a depth, map and part: every score, its mean over runs, and R²'s spread over them."""
        import pandas as pd

        rows = []
        for at, (a, b) in enumerate(self.layers.tolist()):
            where = {"layer_a": a, "layer_b": b, "name_a": self.names_a[at], "name_b": self.names_b[at]}
            for name in self.maps:
                for part in PARTS:
                    row: dict[str, object] = {**where, "map": name, "part": part}
                    row |= {metric: self.of(name, metric, part)[at] for metric in METRICS}
                    runs = self.scores[at, self.maps.index(name), :, PARTS.index(part), METRICS.index("r2")]
                    runs = runs[np.isfinite(runs)]
                    row["r2_sd"] = float(runs.std(ddof=1)) if len(runs) > 1 else float("nan")
                    rows.append({**row, "kind": self.kinds[at]})
        return pd.DataFrame(rows)

    def gap_frame(self) -> pd.DataFrame:
        """Return one row a depth and gap, with its interval."""
        import pandas as pd

        rows = [
            {"layer_a": a, "layer_b": b, "first": first, "second": second}
            | dict(zip(("gap", "low", "high"), self.gaps[at, g].tolist(), strict=True))
            for at, (a, b) in enumerate(self.layers.tolist())
            for g, (first, second) in enumerate(self.gap_names)
        ]
        return pd.DataFrame(rows, columns=["layer_a", "layer_b", "first", "second", "gap", "low", "high"])
