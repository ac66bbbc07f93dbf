"""A run of map pairs: each map between all layers, on every split of the texts and on wrong pairings of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.experiments.bijection_rows import scaler, split_rows
from embcompare.experiments.map_pairs_result import MapPairsResult
from embcompare.experiments.sides import wrong_order
from embcompare.maps.catalogue import get_map
from embcompare.words import plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.base import Context
    from embcompare.experiments.map_pairs import MapPairs
    from embcompare.experiments.sides import Pair
    from embcompare.maps.protocol import Split

FEW = 5
"""Training rows for each feature, below which linear maps are said to have few."""


class MapPairsRun:
    """One run's moving parts: the paired rows, the matrices so far, and the count of cells done."""

    def __init__(self, settings: MapPairs, context: Context, pair: Pair) -> None:
        import torch

        self.settings, self.context, self.pair = settings, context, pair
        self.names = settings.map_names()
        self.layers = [[torch.from_numpy(np.array(layer)) for layer in side.layers] for side in (pair.a, pair.b)]
        self.seeds = tuple((settings.seed + split) % 2**31 for split in range(settings.splits))
        self.shape = len(self.layers[0]), len(self.layers[1])
        self.cells = self.shape[0] * self.shape[1]
        self.total = len(self.names) * (settings.splits + settings.null_draws) * self.cells
        self.done = 0
        whole = (len(self.names), settings.splits, *self.shape)
        self.test, self.train, self.strength = (np.full(whole, np.nan) for _ in range(3))
        self.null = np.full((settings.null_draws, len(self.names), *self.shape), np.nan)
        self.reasons: dict[tuple[str, int, int], str] = {}
        self.rows = (0, 0)
        self.notices = [*pair.notices]

    def result(self) -> MapPairsResult:
        """Go through splits, then through wrong pairings."""
        everything = np.arange(len(self.pair.rows))
        for number, seed in enumerate(self.seeds):
            split = split_rows(self.pair, self.settings, seed)
            what = "all layers" if not number else f"split {number + 1} of {len(self.seeds)}"
            for at, found in self._matrices(split, everything, what):
                self.test[at, number], self.train[at, number] = found.test, found.train
                self.strength[at, number] = found.strength
                self.rows = self.rows if number else found.rows
                self.reasons |= {(self.names[at], i, j): text for (i, j), text in found.reasons.items()}
                self._report(f"{get_map(self.names[at]).label}: {what}", self._assemble(0))
            if not number:
                self._warn_of_size()
        self._against_chance(split_rows(self.pair, self.settings, self.seeds[0]))
        return self._assemble(len(self.null))

    def _against_chance(self, split: Split) -> None:
        generator = np.random.default_rng([self.settings.seed, 2])
        for draw in range(len(self.null)):
            order = wrong_order(generator, self.pair.items)
            for at, found in self._matrices(split, order, f"wrong pairing {draw + 1} of {len(self.null)}"):
                self.null[draw, at] = found.test
            self._report(f"wrong pairing {draw + 1} of {len(self.null)}", self._assemble(draw + 1))

    def _matrices(self, split: Split, order: np.ndarray, what: str) -> Any:
        """Yield (place, scores) of every map, of A's rows with B's rows in ``order``."""
        import torch

        from embcompare.maps import all_pairs

        kept = torch.ones(len(order), dtype=torch.bool)
        kept[split.validation] = False
        aside = torch.zeros(len(order), dtype=torch.bool)
        aside[split.test] = True
        moved = torch.from_numpy(order)
        a = [self._scaled(layer, split, kept) for layer in self.layers[0]]
        b = [self._scaled(layer[moved], split, kept) for layer in self.layers[1]]
        for at, name in enumerate(self.names):
            before = self.done

            def report(done: int, cells: int, name: str = name, before: int = before) -> None:
                self.done = before + done
                self._report(f"{get_map(name).label}: {what}")

            yield at, all_pairs(a, b, kind=name, aside=aside[kept], report=report)  # type: ignore[arg-type]

    def _scaled(self, layer: Tensor, split: Split, kept: Tensor) -> Tensor:
        rows: Tensor = layer[kept]
        if not self.settings.standardise:
            return rows
        scaled: Tensor = scaler(layer, split.train, True).transform(rows)
        return scaled

    def _report(self, message: str, partial: MapPairsResult | None = None) -> None:
        self.context.report(self.done, self.total, message, partial)

    def _warn_of_size(self) -> None:
        n, wide = self.rows[0], self.pair.a.width
        if n < FEW * wide:
            self.notices.append(
                f"{plural(n, 'training row')} for vectors {wide} wide are few, so that linear maps miss on test rows "
                "what more text would give them; compare with the null."
            )

    def _assemble(self, draws: int) -> MapPairsResult:
        null = self.null[:draws]
        return MapPairsResult(
            maps=self.names,
            test=self.test.copy(),
            train=self.train.copy(),
            strength=self.strength.copy(),
            null_mean=null.mean(0) if draws else None,
            null_sd=None if not draws else (np.full(null.shape[1:], np.nan) if draws < 2 else null.std(0, ddof=1)),
            null_best=null.max(0) if draws else None,
            layers_a=self.pair.a.names,
            layers_b=self.pair.b.names,
            widths=(self.pair.a.width, self.pair.b.width),
            rows=self.rows,
            texts=len(np.unique(self.pair.items)),
            seeds=self.seeds,
            reasons=tuple((*key, text) for key, text in sorted(self.reasons.items())),
            numbered_from=(self.pair.a.first, self.pair.b.first),
            notices=tuple(dict.fromkeys(self.notices)),
        )
