"""What a text taken apart gives: indicators, logits and their parts for each model, and their tidy tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result

if TYPE_CHECKING:
    import pandas as pd

SUM = "sum"
"""The last row of what is read in tokens: all terms together, with the head's output bias."""
SOURCE = "source"
"""The part of a state that cross-attention brought, all source tokens together."""
BIAS = "output bias"
"""The last part of a logit: what the head adds whatever the state is."""


@dataclass(frozen=True, eq=False)
class SentenceTermsResult(Result):
    """One text in two models: ``T`` tokens, special ones among them, ``S`` states, ``K`` terms, ``k`` tokens listed.

    States are 0, the embedding output, to L, and L again after the final norm where there is one. Logits are before any
    softcap; those of a lower layer are what the final norm and the head would make of it. All that is read in tokens is
    None for a model without a head.
    """

    indicators: tuple[str, ...]
    """(4,) names along the first axis: importance, cosine, distance, norm_ratio; see
    :data:`embcompare.decomposition.INDICATORS`."""
    tokens_a: tuple[str, ...]
    """(T_a,) the tokens as A reads them."""
    tokens_b: tuple[str, ...]
    """(T_b,) as B does."""
    special_a: np.ndarray
    """(T_a,) bool: tokens that stand for no text."""
    special_b: np.ndarray
    """(T_b,) of B."""
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
    """(K_a,) the kind of each: input, self-attention, feed-forward, correction."""
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
    values_a: np.ndarray
    """(4, S_a, K_a, T_a) float64 indicators; NaN where undefined, as the cosine of a term that is zero."""
    values_b: np.ndarray
    """(4, S_b, K_b, T_b), of B."""
    residual_a: float
    """The largest |sum of terms - state| / |state| of any state and token of A."""
    residual_b: float
    """Of B."""
    state_a: int
    """Which state of A is read in tokens and split by input tokens, a place in ``states_a``."""
    state_b: int
    """Of B."""
    top_a: np.ndarray | None
    """(K_a + 1, T_a, k) int64: the tokens that each term, and last their sum, gives the highest logits to; -1 for one
    that gives all tokens the same, as a term that is zero does."""
    top_b: np.ndarray | None
    """(K_b + 1, T_b, k), of B."""
    top_logits_a: np.ndarray | None
    """(K_a + 1, T_a, k) float64: these logits, highest first."""
    top_logits_b: np.ndarray | None
    """(K_b + 1, T_b, k), of B."""
    bottom_a: np.ndarray | None
    """(K_a + 1, T_a, k) int64: the tokens of the lowest logits."""
    bottom_b: np.ndarray | None
    """(K_b + 1, T_b, k), of B."""
    bottom_logits_a: np.ndarray | None
    """(K_a + 1, T_a, k) float64: these logits, lowest first."""
    bottom_logits_b: np.ndarray | None
    """(K_b + 1, T_b, k), of B."""
    parts_a: np.ndarray | None
    """(K_a + 1, T_a, k) float64: what each term, and last the output bias, gives to the sum's top tokens; they add up
    to the sum's logits."""
    parts_b: np.ndarray | None
    """(K_b + 1, T_b, k), of B."""
    logit_residual_a: float | None
    """The largest |sum of parts - logit| of any token and any entry of the vocabulary, over the largest |logit|; the
    logits are those of the head itself, softcap included."""
    logit_residual_b: float | None
    """Of B."""
    position_a: int
    """Which token's state is split by input tokens, a place in ``tokens_a``."""
    position_b: int
    """Of B."""
    sources_a: np.ndarray
    """(4, N_a + 1) float64: the indicators of what each input token has sent into the state, last of the correction; in
    a causal model N_a is ``position_a`` + 1, and T_a in others. In an encoder-decoder, (4, N_a + 2): before the
    correction stands the source, what cross-attention brought."""
    sources_b: np.ndarray
    """(4, N_b + 1), of B."""
    source_residual_a: float
    """|sum of these - state| / |state|."""
    source_residual_b: float
    """Of B."""
    source_parts_a: np.ndarray | None
    """(N_a + 2, k) float64: what each input token, the correction and last the output bias give to the sum's top tokens
    at ``position_a``; they add up to its logits. In an encoder-decoder (N_a + 3, k), with the source as above."""
    source_parts_b: np.ndarray | None
    """(N_b + 2, k), of B."""
    listed_a: np.ndarray
    """(u_a,) int64: all tokens listed for A, ascending."""
    listed_b: np.ndarray
    """(u_b,) for B."""
    names_a: tuple[str, ...]
    """(u_a,) how each is written."""
    names_b: tuple[str, ...]
    """(u_b,) for B."""
    source_tokens_a: tuple[str, ...] | None = None
    """The text as the encoder of A reads it, where A is an encoder-decoder, whose ``tokens_a`` are those of its
    decoder: its start token, a special one, and the translation; None for other models."""
    source_tokens_b: tuple[str, ...] | None = None
    """Of B."""
    translation_a: str | None = None
    """What the decoder of A reads, in words."""
    translation_b: str | None = None
    """Of B."""
    own_translation_a: bool = False
    """Whether A wrote that itself."""
    own_translation_b: bool = False
    """Of B."""

    def of(self, side: str, indicator: str) -> np.ndarray:
        """Return an indicator (S, K, T) of side ``"a"`` or ``"b"``; other names raise :class:`SettingsError`."""
        if side not in ("a", "b"):
            raise SettingsError(f"There is no side '{side}'; there are a and b.")
        if indicator not in self.indicators:
            raise SettingsError(f"There is no indicator '{indicator}'; there are {', '.join(self.indicators)}.")
        return np.asarray(getattr(self, f"values_{side}")[self.indicators.index(indicator)])

    def name(self, side: str, token: int) -> str:
        """Return a listed token of a side as it is written; empty for -1."""
        if token < 0:
            return ""
        at = int(np.searchsorted(getattr(self, f"listed_{side}"), token))
        written: str = getattr(self, f"names_{side}")[at]
        return written

    def to_frame(self) -> pd.DataFrame:
        """Return one row a model, state, term and token: the four indicators."""
        import pandas as pd

        frames = []
        for side in "ab":
            values = getattr(self, f"values_{side}")
            _, s, k, t = values.shape
            state, term, place = (each.ravel() for each in np.indices((s, k, t)))
            own = {name: np.asarray(getattr(self, f"{name}_{side}")) for name in _LABELS}
            table: dict[str, Any] = {
                "model": side,
                "layer": own["layers"][state],
                "state": own["states"][state],
                "place": place,
                "token": own["tokens"][place],
                "special": own["special"][place],
                "term": own["terms"][term],
                "kind": own["kinds"][term],
                "term_layer": own["term_layers"][term],
                "head": own["term_heads"][term],
            }
            frames.append(pd.DataFrame({**table, **dict(zip(self.indicators, values.reshape(4, -1), strict=True))}))
        return pd.concat(frames, ignore_index=True)

    def vocabulary_frame(self) -> pd.DataFrame:
        """Return one row a model, token, term (and sum) and rank: the token listed at either end, with its logit."""
        import pandas as pd

        rows = []
        for side in self._read():
            top, top_logits, bottom, bottom_logits = (
                getattr(self, f"{name}_{side}") for name in ("top", "top_logits", "bottom", "bottom_logits")
            )
            terms = (*getattr(self, f"terms_{side}"), SUM)
            for row, place, rank in np.ndindex(top.shape):
                cell = row, place, rank
                rows.append(
                    {
                        "model": side,
                        "place": place,
                        "token": getattr(self, f"tokens_{side}")[place],
                        "term": terms[row],
                        "rank": rank + 1,
                        "top": self.name(side, top[cell]),
                        "top_logit": top_logits[cell],
                        "bottom": self.name(side, bottom[cell]),
                        "bottom_logit": bottom_logits[cell],
                    }
                )
        return pd.DataFrame(rows)

    def parts_frame(self) -> pd.DataFrame:
        """Return one row a model, token, top token of the sum and part: what the part gives to that token's logit."""
        import pandas as pd

        rows = []
        for side in self._read():
            parts, top = getattr(self, f"parts_{side}"), getattr(self, f"top_{side}")[-1]
            names = (*getattr(self, f"terms_{side}"), BIAS)
            for row, place, rank in np.ndindex(parts.shape):
                rows.append(
                    {
                        "model": side,
                        "place": place,
                        "token": getattr(self, f"tokens_{side}")[place],
                        "rank": rank + 1,
                        "predicted": self.name(side, top[place, rank]),
                        "part": names[row],
                        "logit": parts[row, place, rank],
                    }
                )
        return pd.DataFrame(rows)

    def source_frame(self) -> pd.DataFrame:
        """Return one row a model and input token, then the source of an encoder-decoder, the correction and the output
        bias: indicators, and as ``part1`` to ``partk`` what it gives to the sum's top tokens at the position.
        """
        import pandas as pd

        rows = []
        for side in "ab":
            found, parts = getattr(self, f"sources_{side}"), getattr(self, f"source_parts_{side}")
            rest = ["correction"] if getattr(self, f"source_tokens_{side}") is None else [SOURCE, "correction"]
            count = found.shape[1] - len(rest)
            names = [*getattr(self, f"tokens_{side}")[:count], *rest, *([] if parts is None else [BIAS])]
            for at, name in enumerate(names):
                row: dict[str, Any] = {"model": side, "place": at if at < count else -1, "token": name}
                # the output bias is no part of the state
                own = found[:, at] if at < found.shape[1] else np.full(len(found), np.nan)
                row |= dict(zip(self.indicators, own, strict=True))
                if parts is not None:
                    row |= {f"part{rank + 1}": part for rank, part in enumerate(parts[at])}
                rows.append(row)
        return pd.DataFrame(rows)

    def _read(self) -> Iterator[str]:
        return (side for side in "ab" if getattr(self, f"top_{side}") is not None)


_LABELS = ("layers", "states", "tokens", "special", "terms", "kinds", "term_layers", "term_heads")
