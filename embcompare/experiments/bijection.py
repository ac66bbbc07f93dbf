"""Bijection: what kind of map takes one model's layer to another's, and is it invertible: asked on unseen texts.

The question of Ren et al. 2023, asked so that it can be answered: paired rows, texts kept apart, linear maps in closed
form, an invertible network that starts at the best of them, and a perceptron that owes nothing to invertibility.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.errors import SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.bijection_result import BijectionResult
from embcompare.experiments.bijection_rows import FeatureRows, check_shares
from embcompare.experiments.sides import LAYER_HELP, POOLINGS, WHAT, check_what, read_pair

__all__ = ["DEFAULT_MAPS", "Bijection", "BijectionResult", "parse_maps"]

DEFAULT_MAPS = "mean, orthogonal, least_squares, ridge, cca_matched, inn, mlp"


@dataclass(frozen=True)
class Bijection(Settings):
    """Fit maps from one layer of A to one of B, and say on texts that no map saw which kind of map it takes."""

    experiment: ClassVar[str] = "bijection"
    version: ClassVar[int] = 2
    result_type: ClassVar[type[Result]] = BijectionResult

    model_a: str = option(
        model=True, vectors=True, label="Model A", help="Maps start here: demo model, folder, hub name, vectors/DIGEST."
    )
    model_b: str = option(
        model=True, vectors=True, label="Model B", help="Maps lead here: demo model, folder, hub name, vectors/DIGEST."
    )
    layer_a: int = option(label="Layer of A", low=0, help=LAYER_HELP)
    layer_b: int = option(label="Layer of B", low=0, help=LAYER_HELP)
    maps: str = option(DEFAULT_MAPS, label="Maps", help="Which maps are fitted, with commas; see embcompare.maps.MAPS.")
    what: str = option("hidden", added=True, label="What", choices=tuple(WHAT), help="What of each block is mapped.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    pooling: str = option("token", label="Rows", choices=tuple(POOLINGS), help="What is mapped, row by row.")
    max_rows: int = option(4000, label="Rows at most", low=10, high=200_000, help="Whole sentences are drawn.")
    validation: float = option(
        0.15, label="Share for validation", low=0.01, high=0.8, help="Of the rows, whole texts; training stops by it."
    )
    test: float = option(
        0.2, label="Share for test", low=0.01, high=0.8, help="Of the rows, whole texts; no map sees it."
    )
    standardise: bool = option(
        True, label="Standardise", help="Scale features by their training rows; a rotation may show only without."
    )
    runs: int = option(1, label="Runs", low=1, high=50, help="Trainings of each network, each of its own seed.")
    epochs: int = option(200, label="Epochs", low=1, high=10_000, help="At most, for networks.")
    patience: int = option(20, label="Patience", low=1, high=10_000, help="Epochs without a better validation loss.")
    batch: int = option(256, label="Batch", low=1, high=100_000, help="Rows of a training step.")
    rate: float = option(0.0, label="Rate", low=0, high=1, help="Adam's at the start; 0 takes one that goes by width.")
    margin: float = option(
        0.01, label="Margin", low=0, high=1, help="Rise in R² by which a richer kind of map counts as needed."
    )
    downstream: int = option(
        40, label="Texts for B's predictions", low=0, high=5000, help="Test texts that B reads from mapped states on."
    )
    shown: int = option(400, label="Rows drawn", low=1, high=5000, help="Test rows kept for the scatter plot.")
    pairing: str = option(
        "auto",
        label="Pair vectors by",
        choices=("auto", "row", "id"),
        help="Your own vectors: auto pairs by id where both sides have ids, else row by row.",
    )
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of rows, split, training and what is drawn.")

    def __post_init__(self) -> None:
        super().__post_init__()
        # written in one way, so that the same maps are the same run
        object.__setattr__(self, "maps", ", ".join(parse_maps(self.maps)))
        check_what(self)
        check_shares(self)
        if 0 < self.rate < 1e-8:
            raise SettingsError(f"Rate cannot be {self.rate:g}; give at least 1e-8, or 0 for one that goes by width.")

    def map_names(self) -> tuple[str, ...]:
        """Return the names of the maps, in order."""
        return parse_maps(self.maps)

    def compute(self, context: Context) -> BijectionResult:
        """Read one layer a side, fit every map, score it, and let B go on from what it gives."""
        from embcompare.experiments.bijection_run import BijectionRun

        pair = read_pair(FeatureRows.of(self), context, only=(self.layer_a, self.layer_b))
        return BijectionRun(self, context, pair).result()


def parse_maps(text: str, among: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return the names of maps in a list with commas or spaces between them, each once.

    Raises :class:`SettingsError` that lists the maps there are, or those of ``among``.
    """
    from embcompare.maps.catalogue import MAPS, get_map

    names = tuple(dict.fromkeys(text.replace(",", " ").split()))
    known = among or tuple(MAPS)
    if not names:
        raise SettingsError(f"No map was chosen; there are {', '.join(known)}.")
    for name in names:
        if among and name in MAPS and name not in among:
            raise SettingsError(f"The map '{name}' is not fitted between all layers; choose among {', '.join(among)}.")
    if among and (unknown := [name for name in names if name not in among]):
        raise SettingsError(f"There is no map '{unknown[0]}'; there are {', '.join(among)}.")
    return tuple(get_map(name).name for name in names)
