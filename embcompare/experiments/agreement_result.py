"""What an agreement of parameters gives, and its tidy table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.base import Result
from embcompare.experiments.readout import TokenLists

if TYPE_CHECKING:
    import pandas as pd

PAIRS = {
    "ff": "FF key and value of one neuron",
    "ff_up": "FF up-projection and value of one neuron (gated FF)",
    "vo": "W_V column and W_O row of one place in a head",
    "qk": "W_Q and W_K column of one place in a head",
}
"""Parameters that belong together by their place."""
TARGETS = ("own", "last")
"""Whose state the active parameters are compared with: the layer's own, or the last layer's."""
KINDS = ("normal", "ff_values", "states")
"""Vectors whose inner products are kept or lost: normal numbers, FF values, hidden states."""


@dataclass(frozen=True, eq=False)
class ParameterAgreementResult(Result):
    """Both models side by side: axis 0 is the model, 0 for A and 1 for B; layers that a model lacks are NaN.

    Intervals hold 95 % (percentile bootstrap): over vectors for ``sim``, over sentences for ``overlap``.
    """

    layers: np.ndarray
    """(2,) int64: blocks of each model; L is the larger number."""
    k: np.ndarray
    """(2,) int64: tokens of a set, cut to those the model has."""
    pairs: tuple[str, ...]
    """Kinds of pairs, keys of ``PAIRS``; p of them."""
    sim: np.ndarray
    """(2, p, L) float64: mean Jaccard index of the two token sets of a pair (top k by |score|)."""
    sim_low: np.ndarray
    """(2, p, L): lower bound of its interval."""
    sim_high: np.ndarray
    """(2, p, L): upper bound."""
    sim_null: np.ndarray
    """(2, p, L): the same with the pairs of the layer shuffled."""
    sim_gap_low: np.ndarray
    """(2, p, L): lower bound of ``sim - sim_null``; above 0 where pairs agree beyond chance."""
    sim_gap_high: np.ndarray
    """(2, p, L): upper bound."""
    sim_pairs: np.ndarray
    """(2, p, L) int64: pairs that entered."""
    groups: tuple[str, ...]
    """Groups of parameters that can be active; g of them."""
    overlap: np.ndarray
    """(2, g, 2, L) float64, axis 2 as ``TARGETS``: share of the state's top k tokens that are among the top k of any of
    the most active parameters, mean over tokens."""
    overlap_low: np.ndarray
    """(2, g, 2, L): lower bound of its interval."""
    overlap_high: np.ndarray
    """(2, g, 2, L): upper bound."""
    overlap_null: np.ndarray
    """(2, g, 2, L): the same with the parameters active at another token, drawn at random."""
    overlap_gap_low: np.ndarray
    """(2, g, 2, L): lower bound of ``overlap - overlap_null``."""
    overlap_gap_high: np.ndarray
    """(2, g, 2, L): upper bound."""
    tokens: np.ndarray
    """(2,) int64: tokens of the text that entered; 0 where no state could be read."""
    sentences: int
    """Sentences that were read."""
    keep: np.ndarray
    """(2, K) int64: entries that are kept of a reading, -1 beyond the model's vocabulary."""
    keep_transpose: np.ndarray
    """(2, 3, K) float64, axis 1 as ``KINDS``: cosine between all inner products of the vectors and those of their
    readings E x of which the ``keep`` largest entries are kept."""
    keep_inverse: np.ndarray
    """(2, 3, K) float64: likewise between readings E x and exact readings E' x by the right inverse."""
    keep_vectors: np.ndarray
    """(2, 3) int64: vectors of each kind."""
    example_model: np.ndarray
    """(e,) int64: 0 for A, 1 for B: the pairs that agree most, in each model and kind of pair."""
    example_pair: np.ndarray
    """(e,) int64: place in ``pairs``."""
    example_layer: np.ndarray
    """(e,) int64."""
    example_index: np.ndarray
    """(e, 2) int64: which vector of the layer, of the first group of the pair and of the second."""
    example_sim: np.ndarray
    """(e,) float64: Jaccard index."""
    example_tokens: TokenLists
    """(e) tuples: tokens that both list, those strongest in the first of them first."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row a number: model, statistic (sim, overlap, keep), what of, target, layer or k, interval."""
        import pandas as pd

        rows: list[dict[str, object]] = []
        for side, model in enumerate("AB"):
            for at, name in enumerate(self.pairs):
                for layer in range(int(self.layers[side])):
                    rows.append(self._row("sim", model, name, "", layer, (side, at, layer)))
            for at, name in enumerate(self.groups):
                for place, target in enumerate(TARGETS):
                    for layer in range(int(self.layers[side])):
                        rows.append(self._row("overlap", model, name, target, layer, (side, at, place, layer)))
            for at, name in enumerate(KINDS):
                for step, keep in enumerate(self.keep[side]):
                    for how, curve in (("transpose", self.keep_transpose), ("inverse", self.keep_inverse)):
                        if keep >= 0:
                            value = {"model": model, "statistic": "keep", "of": name, "target": how, "k": int(keep)}
                            rows.append({**value, "value": curve[side, at, step]})
        columns = ["model", "statistic", "of", "target", "layer", "k", "value", "low", "high", "null"]
        return pd.DataFrame(rows, columns=[*columns, "gap_low", "gap_high"]).astype({"layer": "Int64", "k": "Int64"})

    def _row(
        self, statistic: str, model: str, name: str, target: str, layer: int, at: tuple[int, ...]
    ) -> dict[str, object]:
        numbers = {part or "value": getattr(self, f"{statistic}_{part}" if part else statistic)[at] for part in _PARTS}
        keys = {"model": model, "statistic": statistic, "of": name, "target": target, "layer": layer}
        return {**keys, "k": int(self.k["AB".index(model)]), **numbers}


_PARTS = ("", "low", "high", "null", "gap_low", "gap_high")
