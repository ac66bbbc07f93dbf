"""Sentences about results, computed from them: what a picture shows, what would be surprising, what a chart says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.depth import DepthAgreement, closest_at_equal_depth, depth_agreement
from embcompare.experiments.vectors import GROUPS
from embcompare.measures.matching import SCORES
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.matches import ParameterMatchesResult
    from embcompare.experiments.parameters import ParameterAlignment, ParameterAlignmentResult

CITATION = """@inproceedings{dar2023analyzing,
  title     = {Analyzing Transformers in Embedding Space},
  author    = {Dar, Guy and Geva, Mor and Gupta, Ankit and Berant, Jonathan},
  booktitle = {Proceedings of the 61st Annual Meeting of the Association for Computational Linguistics
               (Volume 1: Long Papers)},
  year      = {2023},
  eprint    = {2209.02535},
  archivePrefix = {arXiv}
}"""
"""The paper behind parameter alignment."""
CITATION_BIJECTION = """@misc{ren2023roads,
  title  = {All Roads Lead to Rome? Exploring the Invariance of Transformers' Representations},
  author = {Ren, Yuxin and Guo, Qipeng and Jin, Zhijing and Ravfogel, Shauli and Sachan, Mrinmaya and
            Sch{\\"o}lkopf, Bernhard and Cotterell, Ryan},
  year   = {2023},
  eprint = {2305.14555},
  archivePrefix = {arXiv}
}"""
"""The paper behind maps between representations."""

GROUP_MEANINGS: dict[str, str] = {
    "ff_keys": "The rows kᵢ of FF(x) = f(x Kᵀ) V: the directions that switch each neuron of the feed-forward layer on.",
    "ff_up": "The second input projection of a gated feed-forward layer, one vector a neuron, beside its gate.",
    "ff_values": "The rows vᵢ of FF(x) = f(x Kᵀ) V: what each neuron of the feed-forward layer writes when it is on.",
    "w_q": "The columns of W_Q: the directions in which attention reads its queries.",
    "w_k": "The columns of W_K: the directions in which attention reads its keys.",
    "w_v": "The columns of W_V: the directions that attention reads from the positions it attends to.",
    "w_o": "The rows of W_O: the directions in which attention writes what it has read.",
    "w_qk": "W_QK = W_Q W_Kᵀ of each head, read as a token-by-token matrix: which token looks for which.",
    "w_vo": "W_VO = W_V W_O of each head, read as a token-by-token matrix: which token is written when which is read.",
}
"""What each group of parameters is, in one sentence."""


def counted(agreement: DepthAgreement) -> str:
    """Say an agreement as ``5 of 6``; ``none defined`` where there is no assignment."""
    total = len(agreement.pairs)
    return f"{round(agreement.rate * total)} of {total}" if total else "none defined"


def probability(p: float) -> str:
    """Say a p-value: ``p < 0.001`` or three digits."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def agreement_of(result: ParameterAlignmentResult) -> DepthAgreement:
    """Return the depth agreement that the result carries."""
    return DepthAgreement(result.assignment, result.depth_rate, result.depth_chance, result.depth_p)


def takeaway(settings: ParameterAlignment, result: ParameterAlignmentResult) -> str:
    """Say in one sentence how the assignment of layers follows depth, against chance and the controls."""
    own = agreement_of(result)
    total = len(own.pairs)
    what = f"{GROUPS[settings.group]} in {settings.space} space"
    if not total:
        return f"{what}: no pair of layers has a defined score."
    chance = f"chance: {own.chance * total:.1f} of {total}".replace(".0 of", " of")
    tested = f", {probability(own.p_value)}" if np.isfinite(own.p_value) else ""
    sentence = f"{what}: {counted(own)} layers are assigned to the layer of equal depth ({chance}{tested})"
    others = []
    if result.control is not None:
        others.append(f"{counted(depth_agreement(result.control, sampled=0))} in feature space")
    if result.null_mean is not None:
        shuffled = "vocabulary" if settings.space == "embedding" else "features"
        others.append(f"{counted(depth_agreement(result.null_mean, sampled=0))} with the {shuffled} permuted")
    sentence += f"; by the same count {' and '.join(others)}." if others else "."
    plainly, rows = closest_at_equal_depth(result.values)
    centred, _ = closest_at_equal_depth(result.centred)
    return (
        f"{sentence} Row by row, the largest score lies at equal depth in {plainly} of {plural(rows, 'layer')} of A, "
        f"and in {centred} of {rows} once row and column means are taken out."
    )


def levels(settings: ParameterAlignment, result: ParameterAlignmentResult) -> str:
    """Say in one sentence how high the scores are in the space, in the control and under the null."""
    shuffled = "vocabulary" if settings.space == "embedding" else "features"
    matrices = {
        f"in {settings.space} space": result.values,
        "in feature space": result.control,
        f"with the {shuffled} permuted": result.null_mean,
    }
    parts = []
    for where, matrix in matrices.items():
        if matrix is not None and not np.isnan(matrix).all():
            low, high = f"{np.nanmin(matrix):.2f}", f"{np.nanmax(matrix):.2f}"
            parts.append(f"{low} {where}" if low == high else f"{low} to {high} {where}")
    if not parts:
        return ""
    label = SCORES[settings.score].label
    return f"{label[0].upper()}{label[1:]}: {', '.join(parts)}."


def surprise(settings: ParameterAlignment, result: ParameterAlignmentResult) -> str:
    """Say in one sentence what would be surprising to see, or what already is."""
    if settings.space == "feature":
        return (
            "A diagonal here means that the two models share coordinates, as a model and its fine-tuned version do; "
            "between two separate trainings it would be surprising."
        )
    if result.control is not None:
        control = depth_agreement(result.control)
        if len(control.pairs) > 2 and control.p_value < 0.01:
            return (
                "Feature space shows the diagonal as well: these two models share coordinates, as a model and its "
                "fine-tuned version do; between two separate trainings that would be surprising."
            )
    if result.control is None:
        return (
            "It would be surprising to see a diagonal under the permuted vocabulary, which leaves both models whole "
            "and breaks only the link between them."
        )
    return (
        "It would be surprising to see a diagonal in feature space (two separate trainings share those coordinates "
        "only by accident) or under the permuted vocabulary (which leaves both models whole and breaks only the link "
        "between them)."
    )


def described(name: str, matrix: np.ndarray, agreement: DepthAgreement | None, start: tuple[int, int] = (0, 0)) -> str:
    """Describe a matrix for those who cannot see it: size, range, where it is largest, how the assignment runs.

    ``start`` are the numbers of the first layer of A and of B.
    """
    text = f"{name}: heat map of {plural(matrix.shape[0], 'layer')} of A by {plural(matrix.shape[1], 'layer')} of B"
    if np.isnan(matrix).all():
        return f"{text}, no cell defined."
    row, column = np.unravel_index(int(np.nanargmax(matrix)), matrix.shape)
    text += (
        f", values from {np.nanmin(matrix):.3f} to {np.nanmax(matrix):.3f}, largest at layer "
        f"{row + start[0]} of A and layer {column + start[1]} of B"
    )
    if agreement is None or not len(agreement.pairs):
        return f"{text}."
    return f"{text}; {counted(agreement)} layers are assigned to the layer of equal depth."


def matched(result: ParameterMatchesResult, layer_a: int, layer_b: int) -> str:
    """Say in one sentence how strongly the vectors of two layers match."""
    values = result.values[np.isfinite(result.values)]
    if not values.size:
        return f"Layer {layer_a} of A and layer {layer_b} of B: no vectors could be matched."
    strong = int((values >= 0.5).sum())
    return (
        f"Layer {layer_a} of A and layer {layer_b} of B: {plural(values.size, 'matched pair')}, median |\u2060ρ\u2060| "
        f"{np.median(values):.3f}, strongest {values.max():.3f}; {plural(strong, 'pair reaches', 'pairs reach')} 0.5."
        f"{_shared(result)}"
    )


def _shared(result: ParameterMatchesResult) -> str:
    """Say how many tokens matched vectors share, and how many vectors matched wrongly do."""
    shared = result.shared_tokens[np.isfinite(result.shared_tokens)]
    if not shared.size or not np.isfinite(result.shared_chance):
        return ""
    return (
        f" The listed pairs share {shared.mean():.0%} of their tokens on average, wrongly paired they would share "
        f"{result.shared_chance:.0%}."
    )


def score_card(name: str) -> str:
    """Return the card of a score in Markdown: formula, meaning, range, invariances, source."""
    score = SCORES[name]
    direction = "higher is closer" if score.higher_is_closer else "lower is closer"
    return (
        f"**{plain(score.label)}**\n\n{plain(score.formula)}\n\n{score.meaning} "
        f"It runs from {score.low:g} to {score.high:g}; {direction}. It does not change with "
        f"{', nor with '.join(score.invariances)}. Source: {score.source}."
    )


def group_card(name: str) -> str:
    """Return the card of a group of parameters in Markdown."""
    return f"**{GROUPS[name]}**\n\n{GROUP_MEANINGS[name]}"
