"""Sim_k: how many tokens the two parameters of a pair share, layer by layer, against pairs shuffled in the layer."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.token_sets import bounds, jaccard, largest_sets, resampled
from embcompare.experiments.vectors import GROUPS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from embcompare.experiments.agreement import ParameterAgreement
    from embcompare.experiments.commons import Common
    from embcompare.experiments.readout import Readout
    from embcompare.models import Anatomy, AttentionWeights

GROUPS_OF = {
    "ff": ("ff_keys", "ff_values"),
    "ff_up": ("ff_up", "ff_values"),
    "vo": ("w_v", "w_o"),
    "qk": ("w_q", "w_k"),
}
"""The two groups of each kind of pair."""
EXAMPLES = 5
"""Pairs of each kind that are named."""
_SHOWN = 10


@dataclass(frozen=True, eq=False)
class Example:
    """One pair that agrees: Jaccard index, layer, its two vectors, the tokens both list."""

    sim: float
    layer: int
    index: tuple[int, int]
    tokens: tuple[str, ...]


def pairs_of(anatomy: Anatomy) -> tuple[str, ...]:
    """Return the kinds of pairs that a model has."""
    present = anatomy.groups()
    return tuple(name for name, groups in GROUPS_OF.items() if all(group in present for group in groups))


def partners(anatomy: Anatomy, layer: int, pair: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of both groups that belong together, (n,) int64 each.

    Where heads share a key and value head, its columns are the partners of the columns (rows) of each of them.
    """
    block = anatomy.blocks[layer]
    if pair in ("ff", "ff_up"):
        neurons = np.arange(len(block.feed_forward.values))
        return neurons, neurons
    attention = block.attention
    width = int((attention.w_v if pair == "vo" else attention.w_q).shape[2])
    own = np.arange(attention.heads * width)
    shared = shared_rows(attention, own, width)
    return (shared, own) if pair == "vo" else (own, shared)


def shared_rows(attention: AttentionWeights, rows: np.ndarray, width: int) -> np.ndarray:
    """Return the column of the key and value head that stands at the place of each query head's; ``width`` a head."""
    return np.asarray(rows // width // (attention.heads // attention.kv_heads) * width + rows % width)


class PairAgreement:
    """One model's Sim_k: :meth:`layer` measures a layer and remembers its pairs that agree most."""

    def __init__(self, settings: ParameterAgreement, readout: Readout, common: Common, usable: torch.Tensor) -> None:
        self.settings, self.readout, self.common, self.usable = settings, readout, common, usable
        self.anatomy = readout.model.anatomy
        self.pairs = pairs_of(self.anatomy)
        shape = (len(self.pairs), self.anatomy.n_layers)
        self.values = np.full((6, *shape), np.nan)
        """Value, its interval, null, interval of the gap; as the result's fields."""
        self.counts = np.zeros(shape, dtype=np.int64)
        self.undefined: dict[str, int] = {}
        self._best: dict[str, list[tuple[float, int, int, int]]] = {name: [] for name in self.pairs}

    def layer(self, layer: int, tick: Callable[[int, int], None]) -> None:
        """Measure every kind of pair in one layer."""
        drawn = {name: self._drawn(layer, name) for name in self.pairs}
        sets = self._sets(layer, drawn, tick)
        for at, name in enumerate(self.pairs):
            sides = []
            defined = np.ones(len(drawn[name][0]), dtype=bool)
            for group, rows in zip(GROUPS_OF[name], drawn[name], strict=True):
                known, tokens, clear = sets[group]
                place = np.searchsorted(known, rows)
                sides.append(tokens[place])
                defined &= clear[place]
            self.undefined[name] = self.undefined.get(name, 0) + int((~defined).sum())
            one, other = (side[np.flatnonzero(defined)] for side in sides)
            self.counts[at, layer] = len(one)
            if len(one):
                self._measure(at, layer, one, other, [rows[defined] for rows in drawn[name]])

    def _measure(self, at: int, layer: int, one: Tensor, other: Tensor, rows: list[np.ndarray]) -> None:
        import torch

        generator = np.random.default_rng([self.settings.seed, 2, layer, at])
        sim = jaccard(one, other)
        null = np.zeros(len(sim))
        for _ in range(self.settings.null_draws):
            null += jaccard(one, other[torch.from_numpy(generator.permutation(len(sim)))])
        null /= self.settings.null_draws
        columns = np.stack([sim, null, sim - null], axis=1)
        low, high = bounds(resampled(columns, None, generator))
        mean = columns.mean(0)
        self.values[:, at, layer] = mean[0], low[0], high[0], mean[1], low[2], high[2]
        for place in np.argsort(-sim, kind="stable")[:EXAMPLES]:
            entry = (float(sim[place]), -layer, -int(rows[0][place]), -int(rows[1][place]))
            heapq.heappush(self._best[self.pairs[at]], entry)
        self._best[self.pairs[at]] = heapq.nlargest(EXAMPLES, self._best[self.pairs[at]])

    def _drawn(self, layer: int, pair: str) -> tuple[np.ndarray, np.ndarray]:
        one, other = partners(self.anatomy, layer, pair)
        most = self.settings.pairs
        if not most or len(one) <= most:
            return one, other
        # neurons are drawn once, so that a gated layer's two kinds of pairs are about the same ones
        tag = list(GROUPS_OF).index("ff" if pair == "ff_up" else pair)
        chosen = np.random.default_rng([self.settings.seed, 1, layer, tag]).permutation(len(one))[:most]
        chosen.sort()
        return one[chosen], other[chosen]

    def _sets(
        self, layer: int, drawn: dict[str, tuple[np.ndarray, np.ndarray]], tick: Callable[[int, int], None]
    ) -> dict[str, tuple[np.ndarray, Tensor, np.ndarray]]:
        import torch

        wanted: dict[str, list[np.ndarray]] = {}
        for name, rows in drawn.items():
            for group, some in zip(GROUPS_OF[name], rows, strict=True):
                wanted.setdefault(group, []).append(some)
        found = {}
        for group, parts in wanted.items():
            known = np.unique(np.concatenate(parts))
            vectors = self.anatomy.vectors(group, layer)
            chosen = vectors[torch.from_numpy(known).to(vectors.device)]
            tokens, clear = largest_sets(
                self.readout, self.common, chosen, group, self.settings.k, self.usable, tick=tick
            )
            found[group] = (known, tokens.cpu(), clear.cpu().numpy())
        return found

    def notices(self) -> list[str]:
        """Return what a reader must know: what was drawn, shared or left out."""
        label, said = self.readout.model.spec.label, []
        attention = self.anatomy.blocks[0].attention
        if attention.kv_heads < attention.heads:
            said.append(
                f"{label}: {attention.heads} query heads share {attention.kv_heads} key and value heads, so a column "
                "of W_K or W_V is the partner of one column (row) of each head that shares it."
            )
        if attention.position == "rotary":
            said.append(f"{label} rotates queries and keys by position; pairs of W_Q and W_K are read unrotated.")
        sizes = [len(partners(self.anatomy, 0, name)[0]) for name in self.pairs]
        if self.settings.pairs and max(sizes) > self.settings.pairs:
            said.append(
                f"{label}: of up to {max(sizes):,} pairs of a kind and layer {self.settings.pairs:,} were drawn."
            )
        for name, count in self.undefined.items():
            if count:
                first, second = (GROUPS[group] for group in GROUPS_OF[name])
                said.append(
                    f"{label}: {count:,} pairs of {first} and {second} have a vector that scores all tokens alike; "
                    "they were left out."
                )
        return said

    def examples(self) -> dict[str, list[Example]]:
        """Return the pairs of each kind that agree most, over all layers, with the tokens both list."""
        return {name: self._examples(name, best) for name, best in self._best.items() if best}

    def _examples(self, pair: str, best: list[tuple[float, int, int, int]]) -> list[Example]:
        import torch

        lists = []
        for side, group in enumerate(GROUPS_OF[pair]):
            vectors = torch.stack([self.anatomy.vectors(group, -each[1])[-each[2:][side]] for each in best])
            tokens, _ = largest_sets(self.readout, self.common, vectors, group, self.settings.k, self.usable)
            lists.append(tokens.tolist())
        display = self.readout.model.tokens.display
        found = []
        for (sim, layer, one, other), first, second in zip(best, *lists, strict=True):
            both = set(second)
            shown = tuple([display(token) for token in first if token in both][:_SHOWN])
            found.append(Example(sim, -layer, (-one, -other), shown))
        return found
