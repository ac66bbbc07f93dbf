"""What the logit lens gives: layers as distributions over tokens, compared between and within two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result
from embcompare.experiments.depth import cell_table, z_scores

if TYPE_CHECKING:
    import pandas as pd

BETWEEN = ("jsd", "kl_ab", "kl_ba", "overlap")
"""What is said of a layer of A and a layer of B."""
WITHIN = ("kl", "jsd", "overlap", "entropy", "log_loss")
"""What is said of one layer and the same model's last."""


@dataclass(frozen=True, eq=False)
class LogitLensResult(Result):
    """Distributions over tokens, layer by layer, in nats; layer 0 is the embedding output, L_a and L_b count blocks.

    All means are over the same positions, those in ``positions``; every standard error is over sentences.
    """

    measures: tuple[str, ...]
    """Names along axis 0 of ``values``: jsd; kl_ab, KL(A || B); kl_ba, KL(B || A); overlap, the share of the k most
    probable tokens that both have."""
    values: np.ndarray
    """(4, L_a + 1, L_b + 1) float64 means over positions; over the shared tokens, renormalised."""
    spread: np.ndarray
    """(4, L_a + 1, L_b + 1) standard errors; NaN with fewer than two sentences."""
    null_mean: np.ndarray | None
    """(4, L_a + 1, L_b + 1) mean over wrong pairings of the positions; None without any."""
    null_sd: np.ndarray | None
    """(4, L_a + 1, L_b + 1) standard deviation over the wrong pairings, with n - 1; NaN with fewer than two."""
    left_out_a: np.ndarray
    """(L_a + 1,) mean probability of A on tokens that are not shared."""
    left_out_b: np.ndarray
    """(L_b + 1,) likewise of B."""
    indicators: tuple[str, ...]
    """Names along axis 0 of ``within_a``, over the model's own whole vocabulary: kl, KL(last layer || layer); jsd and
    overlap with the last layer; entropy; log_loss of the target, see ``target``."""
    within_a: np.ndarray
    """(5, L_a + 1) float64 means over positions, for log_loss over those that have a target."""
    within_b: np.ndarray
    """(5, L_b + 1), likewise of B."""
    within_spread_a: np.ndarray
    """(5, L_a + 1) standard errors."""
    within_spread_b: np.ndarray
    """(5, L_b + 1), likewise of B."""
    assignment: np.ndarray
    """(min(L_a, L_b) + 1, 2) int64: the one-to-one assignment of layers of smallest total divergence (JSD)."""
    depth_rate: float
    """Share of assigned pairs that join layers of equal relative depth."""
    depth_chance: float
    """The same share expected of a random assignment."""
    depth_p: float
    """Probability that a random assignment reaches it."""
    depth_pairs: np.ndarray
    """(P, 2) int64, P = max(L_a, L_b) + 1: layers of equal relative depth, every layer in one pair at least."""
    layers_a: tuple[str, ...]
    """What each layer of A is."""
    layers_b: tuple[str, ...]
    """What each layer of B is."""
    target: str
    """``"next token"`` for causal models, ``"own token"`` for bidirectional ones, which see that token."""
    k: int
    """How many top tokens the overlap of A and B counts."""
    positions: int
    """Positions in the means."""
    items: int
    """Sentences they are in."""
    targets_a: int
    """Positions in A's log_loss."""
    targets_b: int
    """Positions in B's log_loss."""
    shared: int
    """Tokens that both vocabularies have."""
    sentence: int
    """Which sentence is shown, counted from 0."""
    text: str
    """The shown sentence."""
    shown_a: tuple[str, ...]
    """(T_a,) its tokens as A reads them."""
    shown_b: tuple[str, ...]
    """(T_b,) as B does."""
    shown_target_a: tuple[str, ...]
    """(T_a,) the target of each; empty where there is none."""
    shown_target_b: tuple[str, ...]
    """(T_b,), likewise of B."""
    shown_top_a: tuple[tuple[tuple[str, ...], ...], ...]
    """(L_a + 1, T_a, m) the m most probable of the shared tokens, the most probable first; m is 5, or fewer where fewer
    are shared. As all that is shown, over the shared tokens, renormalised: the distributions that are compared."""
    shown_top_b: tuple[tuple[tuple[str, ...], ...], ...]
    """(L_b + 1, T_b, m), likewise of B."""
    shown_probability_a: np.ndarray
    """(L_a + 1, T_a, m) float64 probabilities of these."""
    shown_probability_b: np.ndarray
    """(L_b + 1, T_b, m), likewise of B."""
    shown_entropy_a: np.ndarray
    """(L_a + 1, T_a) float64 entropies over the shared tokens."""
    shown_entropy_b: np.ndarray
    """(L_b + 1, T_b), likewise of B."""
    shown_target_probability_a: np.ndarray
    """(L_a + 1, T_a) float64 probability of the target; NaN where there is none or it is not shared."""
    shown_target_probability_b: np.ndarray
    """(L_b + 1, T_b), likewise of B."""
    shown_left_out_a: np.ndarray
    """(L_a + 1, T_a) float64 probability that A gives to tokens that are not shared, special ones among them."""
    shown_left_out_b: np.ndarray
    """(L_b + 1, T_b), likewise of B."""
    shown_pairs: np.ndarray
    """(M, 2) int64: places in ``shown_a`` and ``shown_b`` at which the models are compared."""
    shown_jsd: np.ndarray
    """(P, M) float64 divergence of the layers ``depth_pairs`` at the places ``shown_pairs``, over the shared tokens."""

    axes: ClassVar[tuple[str, str]] = ("layer of A", "layer of B")

    def of(self, measure: str) -> np.ndarray:
        """Return the matrix (L_a + 1, L_b + 1) of one of ``measures``; another name raises ``SettingsError``."""
        if measure not in self.measures:
            raise SettingsError(f"The lens has no measure '{measure}'; it has {', '.join(self.measures)}.")
        return np.asarray(self.values[self.measures.index(measure)])

    @property
    def z(self) -> np.ndarray | None:
        """(4, L_a + 1, L_b + 1): closer than the null by so many of its standard deviations; None without a null."""
        sign = np.array([1.0 if name == "overlap" else -1.0 for name in self.measures])[:, None, None]
        return z_scores(self.values, self.null_mean, self.null_sd, sign)

    def to_frame(self) -> pd.DataFrame:
        """Return one row a cell: both layers, each measure with its error, null and z, assigned, of equal depth."""
        import pandas as pd

        more: dict[str, np.ndarray | None] = {}
        for at, name in enumerate(self.measures):
            more |= {name: self.values[at], f"{name}_se": self.spread[at]}
            for what in ("null_mean", "null_sd", "z"):
                whole = getattr(self, what)
                more[f"{name}_{what}"] = None if whole is None else whole[at]
        equal = np.zeros(self.values.shape[1:], dtype=bool)
        equal[self.depth_pairs[:, 0], self.depth_pairs[:, 1]] = True
        table = cell_table(self.of("jsd"), self.assignment, {**more, "equal_depth": equal})
        return pd.DataFrame({name: column for name, column in table.items() if name not in ("value", "centred")})

    def layer_frame(self) -> pd.DataFrame:
        """Return one row a model and layer: each of ``indicators`` with its standard error, and the mass left out."""
        import pandas as pd

        frames = []
        for side in "ab":
            mean, error = getattr(self, f"within_{side}"), getattr(self, f"within_spread_{side}")
            table: dict[str, Any] = {"model": side, "layer": range(mean.shape[1])}
            table["name"] = getattr(self, f"layers_{side}")
            for at, name in enumerate(self.indicators):
                table |= {name: mean[at], f"{name}_se": error[at]}
            frames.append(pd.DataFrame({**table, "left_out": getattr(self, f"left_out_{side}")}))
        return pd.concat(frames, ignore_index=True)

    def sentence_frame(self) -> pd.DataFrame:
        """Return one row a model, layer and token of the shown sentence: top tokens, entropy, target, mass left out."""
        import pandas as pd

        rows = []
        for side in "ab":
            tokens, targets = getattr(self, f"shown_{side}"), getattr(self, f"shown_target_{side}")
            probability = getattr(self, f"shown_probability_{side}")
            entropy = getattr(self, f"shown_entropy_{side}")
            of_target = getattr(self, f"shown_target_probability_{side}")
            left_out = getattr(self, f"shown_left_out_{side}")
            for layer, lists in enumerate(getattr(self, f"shown_top_{side}")):
                for at, top in enumerate(lists):
                    row = {
                        "model": side,
                        "layer": layer,
                        "place": at,
                        "token": tokens[at],
                        "entropy": entropy[layer, at],
                    }
                    for rank, token in enumerate(top):
                        row |= {f"top{rank + 1}": token, f"p{rank + 1}": probability[layer, at, rank]}
                    row |= {"target": targets[at], "p_target": of_target[layer, at]}
                    rows.append({**row, "left_out": left_out[layer, at]})
        return pd.DataFrame(rows)
