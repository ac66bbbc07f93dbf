"""What a corpus decomposed gives: indicators by state and term, losses without each term, and their tidy tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class DecompositionResult(Result):
    """Four indicators of every term in every hidden state of both models, over the tokens of a corpus, and ablations.

    ``S`` states: 0, the embedding output, to L, and L again after the final norm where there is one. ``K`` terms. Means
    and standard deviations (n - 1) are over tokens, special ones left out; intervals are 2.5 to 97.5 % of 1,000
    bootstrap samples of whole texts. Undefined numbers are left out and counted; a mean of none is NaN, and so are
    intervals of fewer than two texts. A term that nothing has been added to yet is zero: its importance is 0 and its
    cosine undefined.
    """

    indicators: tuple[str, ...]
    """(4,) names along the first axis: importance, cosine, distance, norm_ratio; see
    :data:`embcompare.decomposition.INDICATORS`."""
    states_a: tuple[str, ...]
    """(S_a,) what each state of A is."""
    states_b: tuple[str, ...]
    """(S_b,) of B."""
    layers_a: np.ndarray
    """(S_a,) int64: the layer of each state of A."""
    layers_b: np.ndarray
    """(S_b,) of B."""
    terms_a: tuple[str, ...]
    """(K_a,) what each term of A is, such as ``self-attention, layer 2``."""
    terms_b: tuple[str, ...]
    """(K_b,) of B."""
    kinds_a: tuple[str, ...]
    """(K_a,) the kind of each: input, self-attention, cross-attention, feed-forward, correction; or target, source,
    correction."""
    kinds_b: tuple[str, ...]
    """(K_b,) of B."""
    term_layers_a: np.ndarray
    """(K_a,) int64: the block that added it, from 1; -1 where terms are not split by layer."""
    term_layers_b: np.ndarray
    """(K_b,) of B."""
    term_heads_a: np.ndarray
    """(K_a,) int64: the head that added it, from 0; -1 where terms are not split by head."""
    term_heads_b: np.ndarray
    """(K_b,) of B."""
    mean_a: np.ndarray
    """(4, S_a, K_a) float64 means over tokens."""
    mean_b: np.ndarray
    """(4, S_b, K_b), of B."""
    sd_a: np.ndarray
    """(4, S_a, K_a) standard deviations over tokens."""
    sd_b: np.ndarray
    """(4, S_b, K_b), of B."""
    low_a: np.ndarray
    """(4, S_a, K_a) lower end of the mean's interval."""
    low_b: np.ndarray
    """(4, S_b, K_b), of B."""
    high_a: np.ndarray
    """(4, S_a, K_a) upper end."""
    high_b: np.ndarray
    """(4, S_b, K_b), of B."""
    undefined_a: np.ndarray
    """(4, S_a, K_a) int64: tokens at which the indicator is undefined, left out of the mean."""
    undefined_b: np.ndarray
    """(4, S_b, K_b), of B."""
    residual_a: float
    """The largest |sum of terms - state| / |state| of any state and token of A, special tokens included."""
    residual_b: float
    """Of B."""
    tokens_a: int
    """Tokens of A in the means."""
    tokens_b: int
    """Of B."""
    items: int
    """Texts they are in."""
    target_a: str
    """What A's loss is of: ``"next token"`` for causal models, ``"own token"`` for bidirectional ones, which see it,
    and ``"next target token"`` for encoder-decoders."""
    target_b: str
    """Of B."""
    scored_a: int
    """Predictions of A in its loss; 0 where none is scored."""
    scored_b: int
    """Of B."""
    dropped_a: tuple[str, ...]
    """(1 + K_a,) what is left out before the head: nothing first, then each term; empty where no loss is scored."""
    dropped_b: tuple[str, ...]
    """(1 + K_b,) of B."""
    loss_a: np.ndarray | None
    """(3, 1 + K_a) float64: mean loss in nats per token, and the ends of its interval; None where none is scored."""
    loss_b: np.ndarray | None
    """(3, 1 + K_b), of B."""
    rise_a: np.ndarray | None
    """(3, 1 + K_a) float64: how much higher the loss is than with nothing left out, token by token, with the interval
    of that difference."""
    rise_b: np.ndarray | None
    """(3, 1 + K_b), of B."""

    def at(self, indicator: str) -> int:
        """Return the place of an indicator; an unknown one raises :class:`SettingsError`."""
        if indicator not in self.indicators:
            raise SettingsError(f"There is no indicator '{indicator}'; there are {', '.join(self.indicators)}.")
        return self.indicators.index(indicator)

    def of(self, side: str, indicator: str) -> np.ndarray:
        """Return an indicator's means (S, K) of side ``"a"`` or ``"b"``; other names raise :class:`SettingsError`."""
        if side not in ("a", "b"):
            raise SettingsError(f"There is no side '{side}'; there are a and b.")
        return np.asarray(getattr(self, f"mean_{side}")[self.at(indicator)])

    def to_frame(self) -> pd.DataFrame:
        """Return one row a model, state, term and indicator: mean, sd, interval, and how many tokens were undefined."""
        import pandas as pd

        frames = []
        for side in "ab":
            own = {name: getattr(self, f"{name}_{side}") for name in ("mean", "sd", "low", "high", "undefined")}
            n, s, k = own["mean"].shape
            grid = {
                name: np.broadcast_to(
                    np.asarray(values, dtype=object if isinstance(values, tuple) else None), (n, s, k)
                )
                for name, values in self._labels(side).items()
            }
            table = {"model": side, **{name: values.ravel() for name, values in {**grid, **own}.items()}}
            frames.append(pd.DataFrame(table).infer_objects())
        return pd.concat(frames, ignore_index=True)

    def _labels(self, side: str) -> dict[str, Any]:
        def rows(values: Any) -> np.ndarray:
            return np.asarray(values)[:, None]

        return {
            "layer": rows(getattr(self, f"layers_{side}")),
            "state": rows(getattr(self, f"states_{side}")),
            "term": np.asarray(getattr(self, f"terms_{side}")),
            "kind": np.asarray(getattr(self, f"kinds_{side}")),
            "term_layer": getattr(self, f"term_layers_{side}"),
            "head": getattr(self, f"term_heads_{side}"),
            "indicator": np.asarray(self.indicators)[:, None, None],
        }

    def ablation_frame(self) -> pd.DataFrame:
        """Return one row a model and term dropped: its loss and how much higher it is, each with its interval."""
        import pandas as pd

        columns = ("loss", "loss_low", "loss_high", "rise", "rise_low", "rise_high")
        frames = []
        for side in "ab":
            loss, rise = getattr(self, f"loss_{side}"), getattr(self, f"rise_{side}")
            if loss is None or rise is None:
                continue
            names = {
                "model": side,
                "dropped": getattr(self, f"dropped_{side}"),
                "target": getattr(self, f"target_{side}"),
            }
            frames.append(pd.DataFrame({**names, **dict(zip(columns, (*loss, *rise), strict=True))}))
        empty = pd.DataFrame(columns=["model", "dropped", "target", *columns])
        return pd.concat(frames, ignore_index=True) if frames else empty
