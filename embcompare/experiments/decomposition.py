"""Hidden states of two models as sums of terms, over a corpus: what each term is of its state, and of predictions.

The additive split of Mickus & Vázquez 2023, *Why bother with geometry?* (input, self-attention, feed-forward and a
correction of biases and means; for post-norm models that of Mickus, Paperno & Constant 2022), its four indicators, and
the loss of the model's predictions with a term dropped before the head. Of encoder-decoders the decoder's states are
split, with cross-attention as a fifth term, or by source and target text (Oh & Schuler 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.errors import SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.decomposition_options import split_option
from embcompare.experiments.decomposition_result import DecompositionResult

__all__ = ["Decomposition", "DecompositionResult"]


@dataclass(frozen=True)
class Decomposition(Settings):
    """Split every hidden state of two models into its terms, and say over a corpus what each term is of the state."""

    experiment: ClassVar[str] = "decomposition"
    version: ClassVar[int] = 1
    precision: ClassVar[str] = "float64"
    result_type: ClassVar[type[Result]] = DecompositionResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder or hub name.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder or hub name.")
    corpus: str = option(
        "shipped",
        corpus=True,
        label="Corpus",
        help="shipped, or text/DIGEST of a text you gave; "
        "for encoder-decoders numbers, or a text that you gave with translations.",
    )
    sentences: int = option(64, label="Sentences read", low=1, high=2000, help="The first so many of the corpus.")
    by: str = split_option("by")
    mean: str = split_option("mean")
    attention_bias: str = split_option("attention_bias")
    norm_bias: str = split_option("norm_bias")
    ablation: bool = option(True, label="Drop terms", help="Score predictions with each term dropped before the head.")
    positions: int = option(
        512, label="Predictions scored at most", low=1, high=20_000, help="Drawn from all that have a target."
    )
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of the predictions drawn and of the intervals.")
    split: str = split_option("split", added=True)
    token_mean: str = split_option("token_mean", added=True)
    gate: str = split_option("gate", added=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split != "additive" and self.by != "none":
            raise SettingsError(
                f"Source and target are not split by {self.by}; split by part of the model (additive), or not finer."
            )

    def compute(self, context: Context) -> DecompositionResult:
        """Decompose both models' states in batches, float64, and summarise over tokens with intervals over texts."""
        import torch

        from embcompare.experiments.decomposition_run import DecompositionRun
        from embcompare.experiments.decomposition_texts import check_names

        check_names(self.model_a, self.model_b)
        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            return DecompositionRun(self, context, a, b).result()
