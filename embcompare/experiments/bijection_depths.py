"""Bijection by depth: what kind of map it takes, at every layer of A, to the layer of B at the same depth.

The hypothesis of Ren et al. 2023 as a question with an answer: how much more an invertible network predicts than a
linear map, and a perceptron than that, each with its interval, layer by layer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from embcompare.errors import SettingsError
from embcompare.experiments.base import Context, Result, Settings, like, option
from embcompare.experiments.bijection import Bijection, parse_maps
from embcompare.experiments.bijection_depths_result import BijectionDepthsResult
from embcompare.experiments.bijection_rows import check_shares
from embcompare.experiments.sides import check_what

__all__ = ["DEFAULT_MAPS", "BijectionDepths", "BijectionDepthsResult"]

DEFAULT_MAPS = "mean, orthogonal, least_squares, ridge, inn, mlp"
"""What the reading needs."""


@dataclass(frozen=True)
class BijectionDepths(Settings):
    """Fit maps at every depth of two models, and say at each which kind of map it takes.

    A depth is read exactly as :class:`~embcompare.experiments.bijection.Bijection` reads the pair of layers.
    """

    experiment: ClassVar[str] = "bijection-depths"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = BijectionDepthsResult

    model_a: str = like(Bijection, "model_a")
    model_b: str = like(Bijection, "model_b")
    layers: str = option(
        "",
        label="Pairs of layers",
        help="As 2:3, 4:4, A's before B's; empty for every layer of A with the one of B at the same depth.",
    )
    maps: str = like(Bijection, "maps", default=DEFAULT_MAPS)
    what: str = like(Bijection, "what")
    corpus: str = like(Bijection, "corpus")
    pooling: str = like(Bijection, "pooling")
    max_rows: int = like(Bijection, "max_rows")
    validation: float = like(Bijection, "validation")
    test: float = like(Bijection, "test")
    standardise: bool = like(Bijection, "standardise")
    runs: int = like(Bijection, "runs")
    epochs: int = like(Bijection, "epochs")
    patience: int = like(Bijection, "patience")
    batch: int = like(Bijection, "batch")
    rate: float = like(Bijection, "rate")
    margin: float = like(Bijection, "margin")
    pairing: str = like(Bijection, "pairing")
    seed: int = like(Bijection, "seed")

    def __post_init__(self) -> None:
        super().__post_init__()
        # written in one way, so that the same maps and layers are the same run
        object.__setattr__(self, "maps", ", ".join(parse_maps(self.maps)))
        object.__setattr__(self, "layers", ", ".join(f"{a}:{b}" for a, b in parse_layers(self.layers)))
        check_what(self)
        check_shares(self)

    def map_names(self) -> tuple[str, ...]:
        """Return the names of the maps, in order."""
        return parse_maps(self.maps)

    def at(self, layer_a: int, layer_b: int) -> Bijection:
        """Return the settings of one depth by itself, with B's predictions and drawn rows left out."""
        shared = {item.name: getattr(self, item.name) for item in fields(Bijection) if hasattr(self, item.name)}
        return Bijection(**shared, layer_a=layer_a, layer_b=layer_b, downstream=0, shown=1)

    def compute(self, context: Context) -> BijectionDepthsResult:
        """Go through the depths, and read all of them together."""
        from embcompare.experiments.bijection_depths_run import BijectionDepthsRun

        return BijectionDepthsRun(self, context).result()


def parse_layers(text: str) -> tuple[tuple[int, int], ...]:
    """Return pairs of layers from a list such as ``2:3, 4:4``, each once; empty for an empty text.

    Raises :class:`SettingsError` for what is no such list.
    """
    found = []
    for part in text.replace(",", " ").split():
        a, colon, b = part.partition(":")
        if not colon or not (a.isdecimal() and b.isdecimal()) or len(part) > 12:
            raise SettingsError(f"Pairs of layers are written as 2:3, 4:4, A's before B's; got '{part[:40]}'.")
        found.append((int(a), int(b)))
    return tuple(dict.fromkeys(found))
