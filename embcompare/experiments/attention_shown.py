"""Where every head of two models looks in one text: attention from token to token, special tokens among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from embcompare.experiments.attention import AttentionPatterns
    from embcompare.experiments.base import Context
    from embcompare.models import LoadedModel


@dataclass(frozen=True, eq=False)
class AttentionPatternsResult(Result):
    """All heads of two models on one text, h = (block - 1) H + head; each model's own tokens, special ones included."""

    text: str
    """The sentence."""
    tokens_a: tuple[str, ...]
    """(t_a,) the tokens of A, as a person reads them."""
    tokens_b: tuple[str, ...]
    """(t_b,) those of B."""
    special_a: np.ndarray
    """(t_a,) bool: which are special tokens."""
    special_b: np.ndarray
    """(t_b,) bool."""
    attention_a: np.ndarray
    """(L_a H_a, t_a, t_a) float32: probabilities, from row to column. Rows add up to 1 unless the text is longer than
    what is kept."""
    attention_b: np.ndarray
    """(L_b H_b, t_b, t_b) float32."""
    heads_a: int
    """H_a."""
    heads_b: int
    """H_b."""
    cut_a: int
    """Tokens of A behind those that are kept."""
    cut_b: int
    """Those of B."""

    def head(self, side: str, layer: int, head: int) -> np.ndarray:
        """Return the attention of one head of block ``layer`` (from 1), (t, t); ``SettingsError`` where it is none."""
        if side not in ("a", "b"):
            raise SettingsError(f"There is no side '{side}'; there are a and b.")
        attention, heads = (self.attention_a, self.heads_a) if side == "a" else (self.attention_b, self.heads_b)
        if not (1 <= layer <= len(attention) // heads and 0 <= head < heads):
            raise SettingsError(
                f"Side {side.upper()} has no head {head} in block {layer}; its blocks are 1 to "
                f"{len(attention) // heads}, with heads 0 to {heads - 1} each."
            )
        return np.asarray(attention[(layer - 1) * heads + head])

    @property
    def same_tokens(self) -> bool:
        """Whether both models read the text as the same tokens, so that they can be laid over each other."""
        return self.tokens_a == self.tokens_b

    def divergence(self, a: tuple[int, int], b: tuple[int, int]) -> np.ndarray | None:
        """Return how differently two heads (block, head) look from each token, (t,) nats; None for other tokens.

        Jensen-Shannon divergence, at most ln 2. Rows of a cut text that do not add up to 1 have the rest as a place of
        its own.
        """
        from embcompare.measures.distributions import jsd

        if not self.same_tokens:
            return None
        rows = []
        for side, (layer, head) in (("a", a), ("b", b)):
            pattern = self.head(side, layer, head).astype(np.float64)
            rest = np.clip(1.0 - pattern.sum(-1, keepdims=True), 0.0, None)
            with np.errstate(divide="ignore"):
                rows.append(np.log(np.concatenate([pattern, rest], axis=-1)))
        return np.asarray(jsd(rows[0], rows[1]).numpy())

    def pair_frame(self, a: tuple[int, int], b: tuple[int, int]) -> pd.DataFrame:
        """Return one row a side, query and key of two heads (block, head): the attention from the one to the other."""
        import pandas as pd

        parts = [self._frame(side, self.head(side, *which)[None]) for side, which in (("a", a), ("b", b))]
        return pd.concat(parts, ignore_index=True).drop(columns="at")

    def to_frame(self) -> pd.DataFrame:
        """Return one row a side, head, query and key."""
        import pandas as pd

        parts = []
        for side, attention, heads in (("a", self.attention_a, self.heads_a), ("b", self.attention_b, self.heads_b)):
            frame = self._frame(side, attention)
            at = frame.pop("at")
            frame.insert(1, "layer", at // heads + 1)
            frame.insert(2, "head", at % heads)
            parts.append(frame)
        return pd.concat(parts, ignore_index=True)

    def _frame(self, side: str, attention: np.ndarray) -> pd.DataFrame:
        import pandas as pd

        at, query, key = (index.ravel() for index in np.indices(attention.shape))
        names = np.array(self.tokens_a if side == "a" else self.tokens_b, dtype=object)
        return pd.DataFrame(
            {
                "side": side,
                "at": at,
                "query": query,
                "key": key,
                "query_token": names[query],
                "key_token": names[key],
                "attention": attention.ravel(),
            }
        )


def shown(settings: AttentionPatterns, context: Context) -> AttentionPatternsResult:
    """Run both models on one sentence of the corpus."""
    corpus = context.corpus(settings.corpus)
    if settings.sentence >= len(corpus):
        raise SettingsError(
            f"Sentence cannot be {settings.sentence}; {corpus.name} has {len(corpus):,}, numbered from 0."
        )
    text = corpus.sentences[settings.sentence]
    found: dict[str, Any] = {}
    notices: list[str] = []
    for done, (side, name) in enumerate((("a", settings.model_a), ("b", settings.model_b))):
        with context.lease(name) as model:
            context.report(done, 2, f"Attention patterns of {model.spec.label}")
            own = _side(model, text, settings.tokens)
            if own["cut"]:
                notices.append(
                    f"{model.spec.label}: the first {len(own['tokens'])} of {len(own['tokens']) + own['cut']:,} tokens "
                    "are kept; all were read."
                )
        found |= {f"{what}_{side}": value for what, value in own.items()}
    return AttentionPatternsResult(text=text, **found, notices=tuple(notices))


def _side(model: LoadedModel, text: str, most: int) -> dict[str, Any]:
    from embcompare.activations.forward import heads_of, longest_input, stack_of
    from embcompare.activations.patterns import observe_patterns
    from embcompare.text.encoding import encode

    stack = stack_of(model)
    encoded = encode([text], model.tokenizer, model.tokens, longest_input(model, stack))
    ids = encoded.ids[0]
    kept = min(most, len(ids))
    blocks: list[np.ndarray] = []

    def see(_: int, probabilities: Tensor) -> None:
        blocks.append(probabilities[0, :, :kept, :kept].float().cpu().numpy())

    observe_patterns(model, [ids], see)
    names = tuple(
        model.tokens.display(token) if token < len(model.tokens) else f"[row {token}]" for token in ids[:kept].tolist()
    )
    return {
        "tokens": names,
        "special": ~np.asarray(encoded.is_text[0][:kept], dtype=bool),
        "attention": np.concatenate(blocks),
        "heads": heads_of(model, stack),
        "cut": len(ids) - kept,
    }
