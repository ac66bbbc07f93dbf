"""A close look at two layers under way: neighbours, spectra, both clouds brought into one plane, and chance."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from embcompare.errors import EmbcompareWarning, Incomparable
from embcompare.experiments.base import Context
from embcompare.experiments.pairs_result import RepresentationPairResult
from embcompare.experiments.pairs_texts import row_texts
from embcompare.experiments.sides import Pair, Side, SideSettings, wrong_order
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.measures.declaration import Matrix

BLOCK_ENTRIES = 1 << 20
"""Distances held at once."""
CHANCE_DRAWS = 3
"""Wrong pairings that the chance of the fit is averaged over."""
DOMINANT = 0.5
"""A share of the variance in one dimension above this draws a warning."""
MOST = 0.9
"""The share of the variance that ``components_a`` and ``components_b`` count the components of."""

Found = TypeVar("Found")


class PairSettings(SideSettings, Protocol):
    """The settings that a run reads."""

    @property
    def k(self) -> int:
        """Neighbours looked at."""

    @property
    def metric(self) -> str:
        """What makes rows near, ``"cosine"`` or ``"euclidean"``."""

    @property
    def shown(self) -> int:
        """Rows listed and drawn."""


class PairRun:
    """One run's moving parts: the paired rows, the notices so far, and the count of steps done."""

    def __init__(self, settings: PairSettings, context: Context, pair: Pair) -> None:
        self.settings, self.context, self.pair = settings, context, pair
        self.notices = [*pair.notices]
        self.n = len(pair.rows)
        if self.n < 3:
            raise Incomparable(
                f"Only {self.n} row{'s' * (self.n != 1)} can be paired, and neighbours need at least 3; give more text."
            )
        self.k = min(settings.k, self.n - 2)
        if self.k < settings.k:
            self.notices.append(
                f"With {self.n} rows {settings.k} neighbours would be (nearly) everybody; {self.k} are counted."
            )
        self.block = max(1, BLOCK_ENTRIES // self.n)
        self.steps, self.done = 2 * -(-self.n // self.block) + 3, 0

    def result(self) -> RepresentationPairResult:
        """Find neighbours, spectra and the plane, and put them together."""
        from embcompare.experiments.clouds import evenly_drawn, shared_counts

        a, b = self.pair.a, self.pair.b
        listed = evenly_drawn(self.n, self.settings.shown, self.settings.seed)
        near_a, near_b = self._neighbours(a), self._neighbours(b)
        kept = shared_counts(near_a, near_b) / self.k
        undefined = (near_a[:, 0] < 0) | (near_b[:, 0] < 0)
        kept[undefined] = np.nan
        cloud_a, cloud_b = self._cloud(a), self._cloud(b)
        spectra = [self._spectrum(side, cloud) for side, cloud in ((a, cloud_a), (b, cloud_b))]
        view = self._view(cloud_a, cloud_b)
        near_a, near_b = near_a[listed], near_b[listed]
        referenced = np.unique(np.concatenate([listed, near_a.ravel(), near_b.ravel()]))
        return RepresentationPairResult(
            name_a=a.names[0],
            name_b=b.names[0],
            rows=self.n,
            items=len(np.unique(self.pair.items)),
            k=self.k,
            listed=listed,
            neighbours_a=near_a,
            neighbours_b=near_b,
            kept=kept,
            jaccard=kept / (2 - kept),
            mean_kept=float(kept.mean()),
            kept_chance=self.k / (self.n - 1),
            spectrum_a=spectra[0][0],
            spectrum_b=spectra[1][0],
            effective_rank_a=spectra[0][1],
            effective_rank_b=spectra[1][1],
            components_a=spectra[0][2],
            components_b=spectra[1][2],
            aligned_by="rotation" if self._turned else "shared coordinates",
            xy_a=view.xy_a[listed],
            xy_b=view.xy_b[listed],
            plane_share_a=view.share_a,
            plane_share_b=view.share_b,
            residual=view.residual,
            fit=1 - float(np.mean(view.residual**2)) / 2,
            fit_chance=view.chance,
            **row_texts(self.settings, self.context, self.pair, referenced),
            notices=tuple(self.notices),
        )

    @property
    def _turned(self) -> bool:
        return self.settings.space == "feature"

    def _step(self, message: str) -> None:
        self.context.report(self.done, self.steps, message)
        self.done += 1

    def _defined(self, what: str, side: Side, value: Callable[[], Found]) -> Found | None:
        from embcompare.measures import UndefinedMeasure

        try:
            return value()
        except UndefinedMeasure as reason:
            which = "A" if side is self.pair.a else "B"
            self.notices.append(f"{what} of {side.label} ({which}, {side.names[0]}) cannot be given: {reason}")
            return None

    def _neighbours(self, side: Side) -> np.ndarray:
        """Return every row's neighbours on one side, (n, k) int64, -1 where they are undefined."""
        from embcompare.experiments.clouds import nearest
        from embcompare.measures.declaration import as_matrix, centred
        from embcompare.measures.distances import unit_rows

        def found() -> tuple[np.ndarray, int]:
            x = as_matrix(side.layers[0])
            points = unit_rows(x) if self.settings.metric == "cosine" else centred(x)
            return nearest(points, self.k, self.block, lambda: self._step(f"{side.label}: nearest rows"))

        before = self.done
        answer = self._defined("The neighbours", side, found)
        self.done = before + -(-self.n // self.block)
        if answer is None:
            return np.full((self.n, self.k), -1, dtype=np.int64)
        if answer[1]:
            self.notices.append(
                f"{side.label}: {plural(answer[1], 'row has', 'rows have')} several others equally near for "
                f"their last place among {self.k}; the first in the text are taken, where the measures of neighbours "
                "share the place."
            )
        return answer[0]

    def _cloud(self, side: Side) -> tuple[Matrix, Matrix] | None:
        """Return one side's points, centred and of unit norm, (n, r), and their singular values; None if constant."""
        from embcompare.measures import top_dimension_share
        from embcompare.measures.declaration import as_matrix, centred

        self._step(f"{side.label}: spectrum")
        unit = self._defined("Spectrum and place in the plane", side, lambda: centred(as_matrix(side.layers[0])))
        if unit is None:
            return None
        if self._turned and top_dimension_share(unit) > DOMINANT:
            self.notices.append(
                f"{side.label}: one dimension holds more than half of the variance of {side.names[0]} and decides the "
                "plane and the fit; standardise to give all dimensions a say."
            )
        if self._turned and unit.shape[1] > self.n:  # principal coordinates: what a rotation leaves is the same
            u, singular, _ = np.linalg.svd(unit, full_matrices=False)
            return u * singular, np.asarray(singular, dtype=np.float64)
        return unit, np.asarray(np.linalg.svd(unit, compute_uv=False), dtype=np.float64)

    def _spectrum(self, side: Side, cloud: tuple[Matrix, Matrix] | None) -> tuple[Matrix, float, int | None]:
        from embcompare.measures import effective_rank
        from embcompare.measures.declaration import resolution

        if cloud is None:
            return np.empty(0), float("nan"), None
        layer, singular = side.layers[0], cloud[1]
        shares = singular[singular > 10 * resolution(layer) * singular[0]] ** 2
        shares = shares / shares.sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmbcompareWarning)
            rank = effective_rank(layer)
        # a share of exactly 90 % must not be missed by a rounding
        return shares, rank, int(np.searchsorted(np.cumsum(shares), MOST - 1e-12)) + 1

    def _view(self, cloud_a: tuple[Matrix, Matrix] | None, cloud_b: tuple[Matrix, Matrix] | None) -> _View:
        from embcompare.experiments.clouds import leading_plane, turned

        self._step("aligning both layers")
        nothing = np.full((self.n, 2), np.nan)
        if cloud_a is None or cloud_b is None:
            return _View(nothing, nothing, float("nan"), float("nan"), nothing[:, 0], float("nan"))
        a, b = cloud_a[0], cloud_b[0]
        chance = self._chance(a, b)
        width = max(self.pair.a.layers[0].shape[1], self.pair.b.layers[0].shape[1])
        if self._turned:
            if self.n < 10 * width:
                self.notices.append(
                    f"{plural(self.n, 'row')} for vectors {width} wide are few for a rotation: wrongly paired rows "
                    f"reach a fit of {chance:.2f} too, so read the fit beside that."
                )
            a, b = turned(a, b)
        xy_a, xy_b = leading_plane(a, b)
        unit = np.sqrt(self.n)
        return _View(
            xy_a * unit,
            xy_b * unit,
            float(np.sum(xy_a**2)),
            float(np.sum(xy_b**2)),
            np.linalg.norm(a - b, axis=1) * unit,
            chance,
        )

    def _chance(self, a: Matrix, b: Matrix) -> float:
        """Return the mean fit of wrong pairings: ⟨A, B R⟩ is the sum of the singular values of AᵀB at the best R."""
        generator = np.random.default_rng([self.settings.seed, 2])
        fits = []
        for _ in range(CHANCE_DRAWS):
            wrong = b[wrong_order(generator, self.pair.items)]
            fits.append(np.linalg.svd(a.T @ wrong, compute_uv=False).sum() if self._turned else np.sum(a * wrong))
        return float(np.mean(fits))


@dataclass(frozen=True, eq=False)
class _View:
    """Both clouds in the plane, (n, 2), in the unit of the result, and what is said about them."""

    xy_a: Matrix
    xy_b: Matrix
    share_a: float
    share_b: float
    residual: Matrix
    chance: float
