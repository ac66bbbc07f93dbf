"""Paired rows for maps: one layer of each side, or all, in the models' own coordinates, split by text and scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.experiments.sides import Pair, PairSettings
from embcompare.words import plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.maps.protocol import Prepared, Split, Standardiser


class RowSettings(PairSettings, Protocol):
    """The settings that say which rows maps are fitted and tested on."""

    @property
    def validation(self) -> float:
        """Share of rows that training is stopped by."""

    @property
    def test(self) -> float:
        """Share of rows that no map sees."""


@dataclass(frozen=True)
class FeatureRows:
    """What :func:`~embcompare.experiments.sides.read_pair` asks for: states as they are, in feature space."""

    model_a: str
    model_b: str
    corpus: str
    pooling: str
    pairing: str
    max_rows: int
    seed: int
    what: str = "hidden"
    space: str = "feature"
    standardise: bool = False
    final_norm: bool = False
    centred: bool = True
    common: int = 0
    embedding: str = "output"
    small_overlap: bool = False

    @classmethod
    def of(cls, settings: RowSettings) -> FeatureRows:
        """Return those of an experiment; two sides of vectors are paired row by row, whatever the pooling says."""
        names = "model_a", "model_b", "corpus", "pooling", "pairing", "max_rows", "seed", "what"
        return cls(**{name: getattr(settings, name) for name in names})


def check_shares(settings: RowSettings) -> None:
    """Raise :class:`SettingsError` where nothing would be left to fit on."""
    if settings.validation + settings.test > 0.9:
        raise SettingsError(
            f"Validation ({settings.validation:g}) and test ({settings.test:g}) leave less than a tenth of the rows "
            "to fit on; choose smaller shares."
        )


def split_rows(pair: Pair, settings: RowSettings, seed: int) -> Split:
    """Split by text; raises :class:`Incomparable` that says what to do where the texts are too few."""
    from embcompare.maps.protocol import split_three

    texts = len(np.unique(pair.items))
    if texts < 3:
        raise Incomparable(
            f"The rows come from {plural(texts, 'text')}, and training, validation and test need one each; give more "
            f"texts, or, where they were cut to max_rows ({settings.max_rows:,}), more rows."
        )
    return split_three(len(pair.rows), pair.items, validation=settings.validation, test=settings.test, seed=seed)


def prepared(pair: Pair, settings: RowSettings) -> Prepared:
    """Return the one layer of each side, float32 (n, d), scaled on the training rows if asked for, and the split."""
    import torch

    from embcompare.maps.protocol import Prepared

    split = split_rows(pair, settings, settings.seed)
    x, y = (torch.from_numpy(np.array(side.layers[0])) for side in (pair.a, pair.b))
    scales = [scaler(each, split.train, settings.standardise) for each in (x, y)]
    if settings.standardise:
        x, y = (scale.transform(each) for scale, each in zip(scales, (x, y), strict=True))
    return Prepared(x, y, split, *scales)


def scaler(rows: Any, train: Tensor, standardise: bool) -> Standardiser:
    """Return what scales (n, d): by its training rows, or by nothing."""
    import torch

    from embcompare.maps.protocol import Standardiser

    if standardise:
        return Standardiser.fit(rows[train])
    wide = rows.shape[1]
    return Standardiser(torch.zeros(wide, dtype=torch.float64), torch.ones(wide, dtype=torch.float64))
