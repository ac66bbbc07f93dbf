"""Attention patterns of two models, head by head: which heads look at the same places, beyond what position explains.

Ren et al. 2023 compare heads by their attention averaged over queries, head against head. Here that form and the full
one, every pair of query and key, over real tokens only, with a null that keeps what any text would give: the same
positions of another text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.errors import SettingsError
from embcompare.experiments.attention_result import MEASURES, AttentionSimilarityResult
from embcompare.experiments.attention_shown import AttentionPatternsResult
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.sides import VECTORS

__all__ = ["AttentionPatterns", "AttentionPatternsResult", "AttentionSimilarity", "AttentionSimilarityResult"]

PATTERNS = {
    "averaged": "what each token receives, on average over the text's queries",
    "full": "every pair of a query and a key that it may attend to",
}
ROWS = {"token": "tokens (both models must cut text alike)", "word": "words (works across tokenizers)"}


@dataclass(frozen=True)
class AttentionSimilarity(Settings):
    """Compare every attention head of A with every head of B by what they attend to on the same text.

    A head is one vector. ``averaged``: a number a token, the attention that it receives. ``full``: a number a pair of
    query and key; Jensen-Shannon compares, query by query, how the two heads spread their attention over the text's
    tokens and, taken together, all else. Attention counts in units of even attention, see
    :mod:`embcompare.activations.patterns`. Of words, attention to one is the sum over its tokens and from one the mean.
    """

    experiment: ClassVar[str] = "attention-similarity"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = AttentionSimilarityResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder or hub name; its heads are the rows.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder or hub name; its heads are columns.")
    pattern: str = option(
        "averaged", label="Pattern", choices=tuple(PATTERNS), help="Attention received by each token, or every pair."
    )
    measure: str = option(
        "pearson", label="Measure", choices=tuple(MEASURES), help="Of two heads; jsd needs the full pattern."
    )
    rows: str = option("token", label="Rows", choices=tuple(ROWS), help="What attends and is attended to.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    max_rows: int = option(
        50_000,
        label="Samples at most",
        low=10,
        high=5_000_000,
        help="Tokens, or pairs of tokens of the full pattern; whole texts are drawn.",
    )
    null_draws: int = option(
        5, label="Null draws", low=0, high=200, help="Texts paired wrongly, position by position; 0 leaves it out."
    )
    halves: int = option(20, label="Halves", low=0, high=1000, help="Of the texts, for the interval; 0 leaves it out.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of texts, wrong pairings and halves.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_models(self.model_a, self.model_b)
        if self.measure == "jsd" and self.pattern != "full":
            raise SettingsError(
                "Jensen-Shannon divergence compares where each query looks, and the averaged pattern has no queries "
                "left; choose the full pattern, or another measure."
            )

    def compute(self, context: Context) -> AttentionSimilarityResult:
        """Read both models' patterns, then the matrix, its wrong pairings and its halves."""
        from embcompare.experiments.attention_run import AttentionRun

        return AttentionRun(self, context).result()


@dataclass(frozen=True)
class AttentionPatterns(Settings):
    """Show where every head of two models looks in one text: its attention from each token to each token."""

    experiment: ClassVar[str] = "attention-patterns"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = AttentionPatternsResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder or hub name.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder or hub name.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    sentence: int = option(0, label="Sentence", low=0, help="Which one of the corpus, from 0.")
    tokens: int = option(48, label="Tokens at most", low=2, high=128, help="The first so many are kept.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_models(self.model_a, self.model_b)

    def compute(self, context: Context) -> AttentionPatternsResult:
        """Run both models on the sentence."""
        from embcompare.experiments.attention_shown import shown

        return shown(self, context)


def _check_models(*names: str) -> None:
    for name in names:
        if name.startswith(VECTORS):
            raise SettingsError(f"{name} is a file of vectors, which has no attention; choose a model.")
