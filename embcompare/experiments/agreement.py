"""Do parameters agree with what belongs to them: with their partners, with the states they act on, with themselves.

Dar et al. 2023, section 4 and appendix, for two models at once, every number with an interval and its own chance level:
``Sim_k`` of the parameters that form a pair (key and value of a neuron; W_V and W_O, W_Q and W_K at one place of a
head); ``R_k`` of the parameters most active at a token and the hidden state there; and the keep-k test, whether a
reading by E or by its exact inverse keeps inner products when only its k largest entries are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.experiments.agreement_result import KINDS, PAIRS, TARGETS, ParameterAgreementResult
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.commons import common_option
from embcompare.experiments.readout import reading_option

__all__ = ["KINDS", "PAIRS", "TARGETS", "ParameterAgreement", "ParameterAgreementResult"]


@dataclass(frozen=True)
class ParameterAgreement(Settings):
    """Measure in two models how far parameters agree with their partners and with the states they are active at."""

    experiment: ClassVar[str] = "parameter-agreement"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = ParameterAgreementResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder, or hub name with optional @revision.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder, or hub name with optional @revision.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    k: int = option(50, label="Tokens of a set", low=1, high=500, help="Top tokens of each vector. The paper: 50, 100.")
    active: int = option(5, label="Active parameters", low=1, high=50, help="The strongest at a token. The paper: 5.")
    sentences: int = option(48, label="Sentences read", low=2, high=2000, help="Drawn from the corpus.")
    pairs: int = option(
        1000, label="Pairs a layer", low=0, help="Pairs drawn of each kind and layer; 0 takes all, as the paper does."
    )
    null_draws: int = option(5, label="Null draws", low=1, high=100, help="Shuffles of the pairs and of the tokens.")
    keep_vectors: int = option(
        200,
        label="Vectors of the keep-k test",
        low=0,
        high=1000,
        help="Of each kind; 0 leaves it out. The paper: 1000.",
    )
    centred: bool = reading_option("centred")
    common: int = common_option(1)
    embedding: str = reading_option("embedding")
    words_only: bool = reading_option("words_only")
    stop_words: str = reading_option("stop_words")
    only: str = reading_option("only")
    words_of: str = reading_option("words_of")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of all that is drawn.")

    inverse: ClassVar[str] = "transpose"
    fold_norm: ClassVar[bool] = False

    def compute(self, context: Context) -> ParameterAgreementResult:
        """Measure one model after the other, layer by layer; no array of all vectors by tokens ever exists."""
        import torch

        from embcompare.experiments.agreement_run import measured, together

        corpus = context.corpus(self.corpus)
        names = tuple(dict.fromkeys((self.model_a, self.model_b)))
        found = {}
        with torch.inference_mode():
            for at, name in enumerate(names):
                with context.lease(name) as model:
                    found[name] = measured(self, context, model, corpus, at, len(names))
        return together(found[self.model_a], found[self.model_b])
