"""Bijection by depth: what kind of map it takes, at every layer of A, to the layer of B at the same depth.

The hypothesis of Ren et al. 2023 as a question with an answer: how much more an invertible network predicts than a
linear map, and a perceptron than that, each with its interval, layer by layer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from embcompare.errors import SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.bijection import Bijection, parse_maps
from embcompare.experiments.bijection_depths_result import BijectionDepthsResult
from embcompare.experiments.bijection_rows import check_shares
from embcompare.experiments.sides import check_what

__all__ = ["DEFAULT_MAPS", "BijectionDepths", "BijectionDepthsResult"]

DEFAULT_MAPS = "mean, orthogonal, least_squares, ridge, inn, mlp"
"""What the reading needs."""
_BIJECTION = {item.name: item for item in dataclasses.fields(Bijection)}


def _like(name: str) -> Any:
    """Declare a setting as :class:`Bijection` does."""
    return option(_BIJECTION[name].default, **_BIJECTION[name].metadata)


@dataclass(frozen=True)
class BijectionDepths(Settings):
    """Fit maps at every depth of two models, and say at each which kind of map it takes.

    A depth is read exactly as :class:`~embcompare.experiments.bijection.Bijection` reads the pair of layers.
    """

    experiment: ClassVar[str] = "bijection-depths"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = BijectionDepthsResult

    model_a: str = _like("model_a")
    model_b: str = _like("model_b")
    layers: str = option(
        "",
        label="Pairs of layers",
        help="As 2:3, 4:4, A's before B's; empty for every layer of A with the one of B at the same depth.",
    )
    maps: str = option(DEFAULT_MAPS, label="Maps", help=_BIJECTION["maps"].metadata["help"])
    what: str = _like("what")
    corpus: str = _like("corpus")
    pooling: str = _like("pooling")
    max_rows: int = _like("max_rows")
    validation: float = _like("validation")
    test: float = _like("test")
    standardise: bool = _like("standardise")
    runs: int = _like("runs")
    epochs: int = _like("epochs")
    patience: int = _like("patience")
    batch: int = _like("batch")
    rate: float = _like("rate")
    margin: float = _like("margin")
    pairing: str = _like("pairing")
    seed: int = _like("seed")

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
        shared = {name: getattr(self, name) for name in _BIJECTION if hasattr(self, name)}
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
