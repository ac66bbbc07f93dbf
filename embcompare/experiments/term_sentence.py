"""One text taken apart in two models: every state's terms, what they say in tokens, and what each input token brought.

Terms are those of Mickus & Vázquez 2023; through the vocabulary they are read where the model itself reads their sum,
the logit lens of the sum's parts. The parts of single input tokens are those of Oh & Schuler 2023: the model with its
attention, its norms' statistics and the tangents of its activations held. An encoder-decoder reads the text as its
source; taken apart are its decoder's states on a translation, a given one or its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.errors import SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.decomposition_options import split_option
from embcompare.experiments.term_result import SentenceTermsResult

__all__ = ["SentenceTerms", "SentenceTermsResult"]

MAX_CHARACTERS = 5000
"""Of the text, and of its translation."""


@dataclass(frozen=True)
class SentenceTerms(Settings):
    """Take one text's hidden states apart in two models, and read the parts through the vocabulary."""

    experiment: ClassVar[str] = "sentence-terms"
    version: ClassVar[int] = 1
    precision: ClassVar[str] = "float64"
    result_type: ClassVar[type[Result]] = SentenceTermsResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder or hub name.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder or hub name.")
    text: str = option(
        label="Text", help="What both models read, encoder-decoders as their source; the first 128 tokens of it."
    )
    layer_a: int | None = option(
        None, label="Layer of A", low=0, help="Whose terms are read in tokens; none for the last, after its final norm."
    )
    layer_b: int | None = option(None, label="Layer of B", low=0, help="Likewise of B.")
    position_a: int | None = option(
        None, label="Token of A", low=0, help="Whose state is split by input tokens, from 0; none for the text's last."
    )
    position_b: int | None = option(None, label="Token of B", low=0, help="Likewise of B.")
    k: int = option(10, label="Tokens listed", low=1, high=50, help="Highest and lowest of each term.")
    by: str = split_option("by")
    mean: str = split_option("mean")
    attention_bias: str = split_option("attention_bias")
    norm_bias: str = split_option("norm_bias")
    token_mean: str = split_option("token_mean")
    gate: str = split_option("gate")
    target: str = option(
        "",
        label="Translation",
        help="What an encoder-decoder's decoder reads; empty for what it writes itself, the likeliest token each time.",
        added=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text.strip():
            raise SettingsError("The text is empty; give a few words.")
        if len(self.text) > MAX_CHARACTERS:
            raise SettingsError(f"The text has {len(self.text):,} characters; give at most {MAX_CHARACTERS:,}.")
        if len(self.target) > MAX_CHARACTERS:
            raise SettingsError(
                f"The translation has {len(self.target):,} characters; give at most {MAX_CHARACTERS:,}."
            )

    def compute(self, context: Context) -> SentenceTermsResult:
        """Take the text apart in both models, float64, one after the other."""
        import torch

        from embcompare.experiments.decomposition_texts import check_names
        from embcompare.experiments.term_run import SentenceRun

        check_names(self.model_a, self.model_b)
        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            return SentenceRun(self, context, a, b).result()
