"""Map pairs: linear maps between all layers of two models, and what they predict of texts that they have not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.bijection import parse_maps
from embcompare.experiments.bijection_rows import FeatureRows, check_shares
from embcompare.experiments.map_pairs_result import MapPairsResult
from embcompare.experiments.sides import POOLINGS, WHAT, check_what, read_pair

__all__ = ["CLOSED", "MapPairs", "MapPairsResult"]

CLOSED = ("orthogonal", "least_squares", "ridge")
"""Maps that are fitted between all layers at once."""


@dataclass(frozen=True)
class MapPairs(Settings):
    """Fit linear maps from every layer of A to every layer of B, and score them on texts that they have not seen.

    A cell of the first split is the test R² that :class:`~embcompare.experiments.bijection.Bijection` gives for the
    pair with the same settings: rows are drawn, split and scaled alike, and its validation rows are left out here.
    """

    experiment: ClassVar[str] = "map-pairs"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = MapPairsResult

    model_a: str = option(
        model=True, vectors=True, label="Model A", help="Maps start here: demo model, folder, hub name, vectors/DIGEST."
    )
    model_b: str = option(
        model=True, vectors=True, label="Model B", help="Maps lead here: demo model, folder, hub name, vectors/DIGEST."
    )
    maps: str = option(
        "orthogonal, ridge",
        label="Maps",
        help="With commas: orthogonal, least_squares, ridge; see embcompare.maps.MAPS.",
    )
    what: str = option("hidden", added=True, label="What", choices=tuple(WHAT), help="What of each block is mapped.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    pooling: str = option("token", label="Rows", choices=tuple(POOLINGS), help="What is mapped, row by row.")
    max_rows: int = option(4000, label="Rows at most", low=10, high=200_000, help="Whole sentences are drawn.")
    validation: float = option(
        0.15, label="Share for validation", low=0.01, high=0.8, help="Of the rows: left out, as networks need them."
    )
    test: float = option(
        0.2, label="Share for test", low=0.01, high=0.8, help="Of the rows, whole texts; no map sees it."
    )
    standardise: bool = option(
        True, label="Standardise", help="Scale features by their training rows; a rotation may show only without."
    )
    splits: int = option(3, label="Splits", low=1, high=50, help="Into training and test, each drawn by its own seed.")
    null_draws: int = option(3, label="Null draws", low=0, high=1000, help="Wrong pairings; 0 leaves the null out.")
    pairing: str = option(
        "auto",
        label="Pair vectors by",
        choices=("auto", "row", "id"),
        help="Your own vectors: auto pairs by id where both sides have ids, else row by row.",
    )
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of rows, splits and wrong pairings.")

    def __post_init__(self) -> None:
        super().__post_init__()
        # written in one way, so that the same maps are the same run
        object.__setattr__(self, "maps", ", ".join(parse_maps(self.maps, CLOSED)))
        check_what(self)
        check_shares(self)

    def map_names(self) -> tuple[str, ...]:
        """Return the names of the maps, in order."""
        return parse_maps(self.maps, CLOSED)

    def compute(self, context: Context) -> MapPairsResult:
        """Read all layers once, then every map on every split, and on wrong pairings of the first."""
        from embcompare.experiments.map_pairs_run import MapPairsRun

        return MapPairsRun(self, context, read_pair(FeatureRows.of(self), context)).result()
