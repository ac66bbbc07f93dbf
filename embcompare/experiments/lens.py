"""The logit lens of two models side by side: what every layer would predict, were it the last.

Each hidden state goes through the final norm (once: the last state of many families has passed it already), the head's
own transform where there is one, and the unembedding with its bias, scale and softcap; what comes out for the last
state is the model's own prediction. Layers of two models are compared by these distributions, over the tokens both
have, at positions where both have read the same text. After nostalgebraist 2020, *interpreting GPT: the logit lens*;
the divergences between layers as in Belrose et al. 2023, *Eliciting Latent Predictions with the Tuned Lens*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.errors import Incomparable
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.lens_result import LogitLensResult
from embcompare.experiments.lens_run import LensRun
from embcompare.experiments.lens_sides import check_kinds, first_sentences, read_side, shared_tokens
from embcompare.experiments.sides import VECTORS
from embcompare.models.heads import read_head

__all__ = ["LogitLens", "LogitLensResult"]


@dataclass(frozen=True)
class LogitLens(Settings):
    """Read every layer of two models as a distribution over tokens, and compare these layer by layer."""

    experiment: ClassVar[str] = "logit-lens"
    version: ClassVar[int] = 2
    result_type: ClassVar[type[Result]] = LogitLensResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder or hub name; it needs a token head.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder or hub name; it needs a token head.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    sentences: int = option(64, label="Sentences read", low=1, high=2000, help="The first so many of the corpus.")
    sentence: int = option(0, label="Sentence shown", low=0, help="Which one is shown token by token, from 0.")
    k: int = option(10, label="Top tokens", low=1, high=100, help="How many top tokens the overlap counts.")
    positions: int = option(512, label="Positions at most", low=1, high=20_000, help="Drawn from all that fit.")
    null_draws: int = option(5, label="Null draws", low=0, high=100, help="Wrong pairings; 0 leaves the null out.")
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    dtype: str = option(
        "float32", label="Precision", choices=("float32", "float64"), help="Of logits and distributions."
    )
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of the positions and the wrong pairings.")

    def compute(self, context: Context) -> LogitLensResult:
        """Capture both models' states on the first sentences, pair positions, and go through them block by block."""
        import torch

        for name in (self.model_a, self.model_b):
            if name.startswith(VECTORS):
                raise Incomparable(
                    f"{name} is a file of vectors, which has no unembedding to read them with; choose a model, or "
                    "compare the vectors with representation-similarity."
                )
        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            check_kinds(a, b)
            heads = [read_head(model, getattr(torch, self.dtype)) for model in (a, b)]
            match = shared_tokens(a, b, small_overlap=self.small_overlap)
            corpus = first_sentences(context.corpus(self.corpus), self.sentences, self.sentence)
            sides = [read_side(m, head, corpus, context) for m, head in zip((a, b), heads, strict=True)]
            return LensRun(self, context, corpus, match, sides[0], sides[1]).result()
