"""What fine-tuning changed: the difference of two models' parameters, how large it is, and what it says in tokens.

Dar et al. 2023, section 4.2: ``(W_B - W_A) E`` of a base model A and a fine-tuned model B, by rows of the classifier,
by vector, and here also by the directions that the changes of many vectors share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.commons import common_option
from embcompare.experiments.difference_result import ROWS, ParameterDifferenceResult
from embcompare.experiments.readout import reading_option
from embcompare.experiments.vectors import GROUPS, INTERACTIONS

__all__ = ["ROWS", "ParameterDifference", "ParameterDifferenceResult"]

VECTOR_GROUPS = tuple(name for name in GROUPS if name not in INTERACTIONS)


@dataclass(frozen=True)
class ParameterDifference(Settings):
    """Subtract a base model's parameters from a fine-tuned model's, and read what changed as tokens."""

    experiment: ClassVar[str] = "parameter-difference"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = ParameterDifferenceResult

    model_a: str = option(model=True, label="Base model", help="Demo model, folder, or hub name with @revision.")
    model_b: str = option(model=True, label="Fine-tuned model", help="One that was trained on from the base model.")
    group: str = option(
        "all", label="Parameters", choices=("all", *VECTOR_GROUPS), help="Which vectors are compared; all of them do."
    )
    layer: int = option(-1, label="Layer", low=-1, help="Counted from 0, the first block; -1 compares all.")
    top: int = option(20, label="Tokens", low=1, high=200, help="Tokens listed at each end. The paper: 20 to 30.")
    count: int = option(25, label="Vectors", low=0, high=1000, help="Vectors that are read, those that carry most.")
    directions: int = option(3, label="Directions", low=1, high=20, help="Of the whole change and of each layer's.")
    embedding: str = reading_option("embedding")
    centred: bool = reading_option("centred")
    common: int = common_option(1)
    inverse: str = reading_option("inverse")
    fold_norm: bool = reading_option("fold_norm")
    words_only: bool = reading_option("words_only")
    stop_words: str = reading_option("stop_words")
    only: str = reading_option("only")
    words_of: str = reading_option("words_of")
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")

    def compute(self, context: Context) -> ParameterDifferenceResult:
        """Subtract a layer at a time in float64; nothing of size vectors by tokens exists."""
        import torch

        from embcompare.experiments.difference_run import DifferenceRun

        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            return DifferenceRun(self, context, a, b).result()
