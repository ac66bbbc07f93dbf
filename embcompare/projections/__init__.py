"""Vectors and products of weights read over a vocabulary: the tokens, or pairs of tokens, at both ends.

The reading of a vector ``x`` is ``E x``, one number a token (Dar et al. 2023, section 3); a head's matrix becomes
``(E L) (E R)ᵀ``, one number a pair of tokens. Neither is ever held: both are made block by block, and what a block
holds that could be among the k extremes is kept.

Products are float32 and only screen. What they may have got wrong is bounded, everything within the bound is computed
again in float64, and where that leaves a doubt the whole row is: the tokens listed, their order and their scores are
those of float64. Equal scores are listed in the order of the vocabulary. Arrays only: no model, no text.
"""

from embcompare.projections.directions import leading_directions
from embcompare.projections.ends import TokenEnds, token_ends, token_scores, top_tokens
from embcompare.projections.entries import Entries, entry_ends, top_entries
from embcompare.projections.rows import RightInverse, gram, mean_row, right_inverse

__all__ = [
    "Entries",
    "RightInverse",
    "TokenEnds",
    "entry_ends",
    "gram",
    "leading_directions",
    "mean_row",
    "right_inverse",
    "token_ends",
    "token_scores",
    "top_entries",
    "top_tokens",
]
