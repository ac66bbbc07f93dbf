"""What a comparison of attention heads gives: heads by heads, layers by layers, the null of position, best matches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.experiments.base import Result
from embcompare.experiments.depth import cell_table, closest, z_scores

if TYPE_CHECKING:
    import pandas as pd

MEASURES = {
    "pearson": "Pearson correlation",
    "cosine": "Cosine",
    "jsd": "Jensen-Shannon divergence",
}
"""How two heads are compared, and what it is called. Of the last, in nats from 0 to ln 2, less is closer."""


@dataclass(frozen=True, eq=False)
class AttentionSimilarityResult(Result):
    """All heads of A (rows) against all heads of B (columns), layer by layer: head k of block l is (l - 1) H + k.

    Heads count from 0 and blocks from 1. A head without a value has NaN; ``reasons`` says why.
    """

    values: np.ndarray
    """(L_a H_a, L_b H_b) float64."""
    null_mean: np.ndarray | None
    """The same shape: mean over draws of texts paired wrongly, each token with that at its place in another text of
    about the same length. What is left is position; None without draws."""
    null_sd: np.ndarray | None
    """Standard deviation over them, with n - 1; NaN for one draw."""
    null_best: np.ndarray | None
    """The closest of them."""
    spread: np.ndarray | None
    """Standard error over texts: from random halves of them, or, of ``jsd``, of a mean over queries in texts."""
    layer_values: np.ndarray
    """(L_a, L_b) float64: mean over the heads of two blocks, matched one to one so that it is closest in total."""
    layer_null: np.ndarray | None
    """(L_a, L_b): the same of wrong pairings, matched anew, averaged over draws: what matching gains by chance."""
    assignment: np.ndarray
    """(k, 2) int64: the one-to-one assignment of layers, from 0, that is closest in total by ``layer_values``."""
    depth_rate: float
    """Share of assigned pairs that join layers of equal relative depth."""
    depth_chance: float
    """The same share expected of a random assignment."""
    depth_p: float
    """Probability that a random assignment reaches it."""
    heads_a: int
    """H_a: heads of each block of A."""
    heads_b: int
    """H_b."""
    special_a: np.ndarray
    """(L_a, H_a) float64: share of a head's attention that goes to special tokens, over all queries of the text."""
    special_b: np.ndarray
    """(L_b, H_b) float64."""
    rows: int
    """Samples: tokens or words, or pairs of them; of ``jsd`` queries."""
    items: int
    """Texts they come from."""
    causal_a: bool
    """Whether A's queries see nothing behind them."""
    causal_b: bool
    """Whether B's do."""
    reasons: tuple[tuple[str, int, str], ...]
    """Side (``a`` or ``b``), head, and why it has no value."""
    higher_is_closer: bool
    """Direction of the measure."""

    axes: ClassVar[tuple[str, str]] = ("head of A", "head of B")

    @property
    def layers_a(self) -> int:
        """L_a: blocks of A."""
        return len(self.special_a)

    @property
    def layers_b(self) -> int:
        """L_b: blocks of B."""
        return len(self.special_b)

    @property
    def z(self) -> np.ndarray | None:
        """Closer than wrong pairings by so many of their standard deviations; None without them."""
        return z_scores(self.values, self.null_mean, self.null_sd, 1.0 if self.higher_is_closer else -1.0)

    @property
    def low(self) -> np.ndarray | None:
        """Lower end of the 95 % interval."""
        return None if self.spread is None else self.values - 1.96 * self.spread

    @property
    def high(self) -> np.ndarray | None:
        """Upper end of the 95 % interval."""
        return None if self.spread is None else self.values + 1.96 * self.spread

    @property
    def best_a(self) -> np.ndarray:
        """(L_a H_a,) int64: the closest head of B for each head of A; -1 where none is defined."""
        return closest(self.values, self.higher_is_closer)

    @property
    def best_b(self) -> np.ndarray:
        """(L_b H_b,) int64: the closest head of A for each head of B."""
        return closest(self.values.T, self.higher_is_closer)

    def name(self, side: str, head: int) -> str:
        """Return what a head is called: ``block 3, head 0``."""
        layer, number = divmod(head, self.heads_a if side == "a" else self.heads_b)
        return f"block {layer + 1}, head {number}"

    def match_frame(self, side: str = "a") -> pd.DataFrame:
        """Return one row a head of a side: its closest head of the other, with interval, null, and whether mutual."""
        import pandas as pd

        own = side == "a"
        best, back = (self.best_a, self.best_b) if own else (self.best_b, self.best_a)
        heads = np.flatnonzero(best >= 0)
        partners = best[heads]
        at = (heads, partners) if own else (partners, heads)
        count, other = (self.heads_a, self.heads_b) if own else (self.heads_b, self.heads_a)
        special = self.special_a if own else self.special_b
        table: dict[str, np.ndarray] = {
            "layer": heads // count + 1,
            "head": heads % count,
            "closest_layer": partners // other + 1,
            "closest_head": partners % other,
            "value": self.values[at],
        }
        for name in ("low", "high", "null_mean", "z"):
            matrix = getattr(self, name)
            table[name] = np.full(len(heads), np.nan) if matrix is None else matrix[at]
        table["mutual"] = back[partners] == heads
        table["special"] = special.ravel()[heads]
        return pd.DataFrame(table)

    def layer_frame(self) -> pd.DataFrame:
        """Return one row a pair of layers: mean over matched heads, the same of wrong pairings, assigned or not."""
        import pandas as pd

        frame = pd.DataFrame(cell_table(self.layer_values, self.assignment, {"null": self.layer_null}))
        frame["layer_a"] += 1
        frame["layer_b"] += 1
        return frame

    def to_frame(self) -> pd.DataFrame:
        """Return one row a pair of heads: layer and head of both, value, interval, null, z."""
        import pandas as pd

        rows, columns = (index.ravel() for index in np.indices(self.values.shape))
        table: dict[str, np.ndarray] = {
            "layer_a": rows // self.heads_a + 1,
            "head_a": rows % self.heads_a,
            "layer_b": columns // self.heads_b + 1,
            "head_b": columns % self.heads_b,
            "value": self.values.ravel(),
        }
        for name in ("low", "high", "null_mean", "null_sd", "null_best", "z"):
            matrix = getattr(self, name)
            table[name] = np.full(self.values.size, np.nan) if matrix is None else matrix.ravel()
        return pd.DataFrame(table)
