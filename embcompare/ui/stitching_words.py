"""What stitching is called on its page: scores, cells, numbers, and the sentences that stand beside a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.stitching_result import HIGHER_IS_BETTER
from embcompare.maps.registry import KERNELS
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.stitching import StitchingResult

SCORES = {
    "accuracy": "Accuracy",
    "loss": "Loss",
    "kl": "Divergence from B",
    "agreement": "Agreement with B",
}
"""What each score is called."""
MEANINGS = {
    "accuracy": "Share of texts whose class is right.",
    "loss": "Minus the log-probability of what is right, in nats; lower is better.",
    "kl": "KL divergence from what B alone predicts, in nats; 0 is B itself.",
    "agreement": "Share of places where the first choice is B's.",
}
"""What each score is, in one sentence."""
GLOSSARY = (
    "**Cut**: how many blocks of A run. **Entry**: the layer of B at which A's mapped states go in; B's blocks from "
    "there on follow, and entry 0 is B's embedding output. **All cells allowed for**: the 5 % of the test are divided "
    "by the number of cells, so that chance alone lets any cell pass in at most one grid of twenty. **As it is**: "
    "states are handed over without any map, as if both models had the same coordinates."
)
"""What the words of this page mean."""


def counted(score: str) -> str:
    """Return whether a score is a share: said in per cent."""
    return "share" if score in ("accuracy", "agreement") else "nats"


def percent(value: float, decimals: int = 0) -> str:
    """Return a share in per cent without the sign, halves rounded up: 0.125 is ``13``."""
    # a share such as 0.285 is stored a little below itself
    return f"{math.floor(100 * value * 10**decimals + 0.5 + 1e-9) / 10**decimals:.{decimals}f}"


def said(score: str, value: float) -> str:
    """Return a value as a sentence says it: ``62.1 %`` or ``5.52``."""
    if not np.isfinite(value):
        return "–"
    return f"{percent(value, 1)} %" if counted(score) == "share" else f"{value:.2f}"


def unit(result: StitchingResult, score: str) -> str:
    """Return what a value counts: ``nats a token``, ``of texts``."""
    item = "text" if result.task == "classes" else "token"
    return f"of {item}s" if counted(score) == "share" else f"nats a {item}"


def titled(result: StitchingResult, score: str) -> str:
    """Return a score's name with its unit, for axes and scales."""
    return f"{SCORES[score].lower()}, {unit(result, score)}".replace("from b", "from B").replace("with b", "with B")


def promise(task: str) -> str:
    """Say what the picture will show, and what would be surprising."""
    shown = {
        "classes": "how many texts it puts into the right class, beside B alone and the larger class",
        "masked token": "its loss on masked tokens, beside B alone and token frequencies",
    }.get(task, "its loss on the next token, beside B alone and token frequencies")
    return (
        "Every cell of the picture is one stitched model: A's first blocks, a map between their coordinates, B's "
        f"last blocks and head. It shows {shown}. Neither half was trained with the other, so it would be "
        "surprising if it worked at all between two separate trainings; and more so if a control did, whose map "
        "carries no meaning."
    )


def place(result: StitchingResult, cut: int, entry: int) -> str:
    """Say one cell: ``after 3 blocks of A, into layer 4 of B``."""
    return f"after {plural(cut, 'block')} of A, into layer {entry} of B"


def numbers(values: Sequence[int]) -> str:
    """Say numbers in a row: ``0, 1 and 4``, runs of three and more as ``2 to 6``."""
    parts: list[str] = []
    at = 0
    ordered = sorted(values)
    while at < len(ordered):
        end = at
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        if end - at >= 2:
            parts.append(f"{ordered[at]} to {ordered[end]}")
        else:
            parts += [str(value) for value in ordered[at : end + 1]]
        at = end + 1
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""


def controls(result: StitchingResult) -> list[str]:
    """Return the names of the controls that were run."""
    return [name for name in result.kernels if KERNELS[name].control]


def plainly(name: str) -> str:
    """Return a map's label, with a capital."""
    label = KERNELS[name].label
    return label[:1].upper() + label[1:]


def named(score: str) -> str:
    """Return a score's name inside a sentence."""
    return SCORES[score][:1].lower() + SCORES[score][1:]


def best_cell(result: StitchingResult, kernel: str, score: str) -> tuple[int, int]:
    """Return the best of all cells of a map, those at the embedding outputs included."""
    mean = result.mean(kernel, score) * (1 if HIGHER_IS_BETTER[score] else -1)
    cut, entry = np.unravel_index(int(np.where(np.isnan(mean), -np.inf, mean).argmax()), mean.shape)
    return int(cut), int(entry)


def base_in_words(result: StitchingResult) -> str:
    """Say the base rate: what it is and how high."""
    level = said(result.main_score, float(result.base[:, result.at(result.main_score)].mean()))
    return f"{'the majority class' if result.task == 'classes' else 'token frequencies'} ({level})"


def identity(result: StitchingResult) -> str:
    """Say how exactly B stitched to itself is B."""
    return (
        f"Checked in this run: stitched to itself, model B gives its own logits to {result.identity_error.max():.0e} "
        "of the largest, at every layer."
    )


def advantages(result: StitchingResult, kernel: str, cut: int, entry: int) -> list[tuple[str, float, float]]:
    """Return for each control its name, how much less loss the map has at a cell, paired by text, and the error."""
    found = []
    for name in controls(result):
        if name != kernel:
            gain, error = result.advantage(kernel, name)
            found.append((name, float(gain[cut, entry]), float(error[cut, entry])))
    return found


def described(result: StitchingResult, kernel: str, score: str) -> str:
    """Describe the map of cells for those who cannot see it."""
    mean = result.mean(kernel, score)
    if np.isnan(mean).all():
        return f"{plainly(kernel)}: heat map without a defined cell."
    cut, entry = best_cell(result, kernel, score)
    path = ", ".join(str(int(each)) for each in result.best_entries(kernel, score))
    return (
        f"{plainly(kernel)}: heat map of {plural(mean.shape[0], 'cut')} of A by {plural(mean.shape[1], 'layer')} of B, "
        f"{SCORES[score].lower()} from {np.nanmin(mean):.3f} to {np.nanmax(mean):.3f}, best {mean[cut, entry]:.3f} "
        f"{place(result, cut, entry)}; best entries, above cut 0 without entry 0, for the cuts in turn: {path}."
    )
