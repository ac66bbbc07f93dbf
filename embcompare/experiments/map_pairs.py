"""Map pairs: linear maps between all layers of two models, and what they predict of texts that they have not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.experiments.base import Context, Result, Settings, like, option
from embcompare.experiments.bijection import Bijection, parse_maps
from embcompare.experiments.bijection_rows import FeatureRows, check_shares
from embcompare.experiments.map_pairs_result import MapPairsResult
from embcompare.experiments.sides import check_what, read_pair

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

    model_a: str = like(Bijection, "model_a")
    model_b: str = like(Bijection, "model_b")
    maps: str = option(
        "orthogonal, ridge",
        label="Maps",
        help="With commas: orthogonal, least_squares, ridge; see embcompare.maps.MAPS.",
    )
    what: str = like(Bijection, "what")
    corpus: str = like(Bijection, "corpus")
    pooling: str = like(Bijection, "pooling")
    max_rows: int = like(Bijection, "max_rows")
    validation: float = like(Bijection, "validation", help="Of the rows: left out, as networks need them.")
    test: float = like(Bijection, "test")
    standardise: bool = like(Bijection, "standardise")
    splits: int = option(3, label="Splits", low=1, high=50, help="Into training and test, each drawn by its own seed.")
    null_draws: int = option(3, label="Null draws", low=0, high=1000, help="Wrong pairings; 0 leaves the null out.")
    pairing: str = like(Bijection, "pairing")
    seed: int = like(Bijection, "seed", help="Of rows, splits and wrong pairings.")

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
