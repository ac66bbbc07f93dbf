"""The numbers of a run of bijection as they come: NaN where there are none yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.experiments.bijection_result import METRICS, PARTS

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.maps.base import Map

Rows = tuple["Tensor", "Tensor"]


@dataclass(eq=False)
class Table:
    """Arrays of ``maps`` by ``runs``, as :class:`~embcompare.experiments.bijection_result.BijectionResult` has them.

    ``member`` (t,) numbers the text of each test row, ``listed`` (q,) are the test rows of the sample, and
    ``directions`` (d, c) what the sample is projected on.
    """

    maps: int
    runs: int
    epochs: int
    member: np.ndarray
    listed: np.ndarray
    directions: Tensor

    def __post_init__(self) -> None:
        m, r, q = self.maps, self.runs, len(self.listed)
        self.text_rows = np.bincount(self.member)
        self.scores = np.full((m, r, len(PARTS), len(METRICS)), np.nan)
        self.curves = np.full((m, r, self.epochs + 1, 2), np.nan)
        self.log_determinant, self.condition, self.seconds = (np.full((m, r), np.nan) for _ in range(3))
        self.best_epoch = np.full((m, r), -1, dtype=np.int64)
        self.sample_mapped = np.full((m, q, self.directions.shape[1]), np.nan)
        self.start, self.ended = [""] * m, [""] * m
        self._text_sums, self._sample_sums = np.zeros((m, len(self.text_rows))), np.zeros((m, q))
        self._fits = np.zeros((m, 1))

    @property
    def text_errors(self) -> np.ndarray:
        """(m, s): mean squared error on each test text, over a map's fits so far."""
        return self._averaged(self._text_sums)

    @property
    def sample_errors(self) -> np.ndarray:
        """(m, q): mean squared error of each row of the sample, likewise."""
        return self._averaged(self._sample_sums)

    def _averaged(self, sums: np.ndarray) -> np.ndarray:
        return np.asarray(np.divide(sums, self._fits, out=np.full_like(sums, np.nan), where=self._fits > 0))

    def known_curves(self) -> np.ndarray:
        """Return the curves up to the last epoch that any has, (m, r, e, 2)."""
        used = np.flatnonzero(np.isfinite(self.curves[..., 1]).any((0, 1)))
        return self.curves[:, :, : int(used[-1]) + 1 if len(used) else 0].copy()

    def set_curves(self, at: int, run: int, training: Any, validation: Any) -> None:
        """Put both curves of a training in place of what was there."""
        self.curves[at, run] = np.nan
        for k, curve in enumerate((training, validation)):
            values = np.asarray(curve)[: self.epochs + 1]
            self.curves[at, run, : len(values), k] = values

    def add(self, at: int, run: int, made: Map, seconds: float, training: Rows, test: Rows) -> dict[Any, str]:
        """Score a fitted map on training and test rows, and return reasons by (part, metric)."""
        from embcompare.maps.protocol import evaluate

        reasons: dict[Any, str] = {}
        for k, rows in enumerate((training, test)):
            found = evaluate(made, *rows)
            self.scores[at, run, k] = [getattr(found, metric) for metric in METRICS]
            reasons |= {(PARTS[k], metric): reason for metric, reason in found.reasons.items()}
        self.log_determinant[at, run], self.condition[at, run] = made.log_determinant, made.condition
        self.seconds[at, run] = seconds
        mapped = made.transform(test[0]).double()
        errors = (mapped - test[1].double()).square().mean(1).numpy()
        self._fits[at] += 1
        self._text_sums[at] += np.bincount(self.member, errors) / self.text_rows
        self._sample_sums[at] += errors[self.listed]
        if not run:
            self.sample_mapped[at] = (mapped[self.listed] @ self.directions).numpy()
        return reasons
