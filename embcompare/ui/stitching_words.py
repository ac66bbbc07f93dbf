"""Sentences about a stitched run, computed from it: what to expect, what came out, and where it does not work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.stitching_result import HIGHER_IS_BETTER
from embcompare.maps.registry import KERNELS
from embcompare.words import agree, plural

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


def counted(score: str) -> str:
    """Return whether a score is a share: said in per cent."""
    return "share" if score in ("accuracy", "agreement") else "nats"


def said(score: str, value: float) -> str:
    """Return a value as a sentence says it: ``62.1 %`` or ``5.52``."""
    if not np.isfinite(value):
        return "–"
    return f"{100 * value:.1f} %" if counted(score) == "share" else f"{value:.2f}"


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
        "masked token": "what it loses on masked tokens, beside B alone and token frequencies",
    }.get(task, "what it loses on the next token, beside B alone and token frequencies")
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


def best_cell(result: StitchingResult, kernel: str, score: str) -> tuple[int, int]:
    """Return the best cell along the best entries, behind the first cut."""
    mean, entries = result.mean(kernel, score), result.best_entries(kernel, score)
    along = mean[np.arange(len(entries)), entries] * (1 if HIGHER_IS_BETTER[score] else -1)
    inner = np.where(np.isnan(along), -np.inf, along)
    cut = int(inner[1:].argmax()) + 1 if len(inner) > 1 else 0
    return cut, int(entries[cut])


def middle(result: StitchingResult) -> int:
    """Return the cut in the middle of A."""
    return max(1, int(result.values.shape[-2] - 1) // 2)


def best_control(result: StitchingResult, score: str, cut: int | None = None) -> tuple[str, float] | None:
    """Return the control that does best, at its own best entry of a cut or, without one, anywhere; and its value."""
    found = []
    for name in controls(result):
        at = (cut, int(result.best_entries(name, score)[cut])) if cut is not None else best_cell(result, name, score)
        value = float(result.mean(name, score)[at])
        if np.isfinite(value):
            found.append((name, value))
    if not found:
        return None
    choose = max if HIGHER_IS_BETTER[score] else min
    return choose(found, key=lambda each: each[1])


def verdict(result: StitchingResult, kernel: str) -> str:
    """Say whether a map joins the two models, against B alone, controls and base rate; and where it does not."""
    beats = result.beyond_base(kernel)
    return f"{_level(result, kernel)} {_cells(result, kernel, beats)} {_failing(beats)}"


def _level(result: StitchingResult, kernel: str) -> str:
    score = result.main_score
    cut, blocks = middle(result), result.values.shape[-2] - 1
    entry = int(result.best_entries(kernel, score)[cut])
    value, own = float(result.mean(kernel, score)[cut, entry]), float(result.own_b[:, result.at(score)].mean())
    control = best_control(result, score, cut)
    where = f"{plainly(kernel)}: in the middle, after {cut} of {plural(blocks, 'block')} of A, the stitched model"
    if score == "accuracy":
        of = f"{result.counts[0]:,} texts{f' in each of {result.runs} runs' if result.runs > 1 else ''}"
        text = f"{where} puts {said(score, value)} of {of} into the right class at its best entry (layer {entry} of B)"
        others = [f"B alone {said(score, own)}"]
        if control is not None and control[0] != kernel:
            others.append(f"the best control there {said(score, control[1])} ({KERNELS[control[0]].label})")
        return f"{text}, {', '.join(others)}."
    text = f"{where} loses {said(score, value)} {unit(result, score)} at its best entry (layer {entry} of B), "
    text += f"{_apart(value - own, 'more', 'less')} than B alone ({said(score, own)})"
    if control is None or control[0] == kernel:
        return f"{text}."
    name, level = control
    return (
        f"{text} and {_apart(value - level, 'more', 'less')} than the best control there "
        f"({KERNELS[name].label}, {said(score, level)})."
    )


def _apart(difference: float, above: str, below: str) -> str:
    return f"{abs(difference):.2f} {above if difference > 0 else below}"


def base_in_words(result: StitchingResult) -> str:
    """Say the base rate: what it is and how high."""
    level = said(result.main_score, float(result.base[:, result.at(result.main_score)].mean()))
    return f"{'the majority class' if result.task == 'classes' else 'token frequencies alone'} ({level})"


def _cells(result: StitchingResult, kernel: str, beats: np.ndarray) -> str:
    text = (
        f"Of its {plural(beats.size, 'cell')} {_many(int(beats.sum()))} {base_in_words(result)}, all cells allowed for"
    )
    others = [name for name in controls(result) if name != kernel]
    if not others:
        return f"{text}."
    most = max(int(result.beyond_base(name).sum()) for name in others)
    if not most:
        return f"{text}; no cell of a control does."
    return f"{text}; of a control's cells at most {_many(most, 'does', 'do')}."


def _many(count: int, one: str = "beats", many: str = "beat") -> str:
    return f"{count:,} {agree(count, one, many)}" if count else f"none {one}"


def _failing(beats: np.ndarray) -> str:
    failing = [int(cut) for cut in np.flatnonzero(~beats.any(1))]
    if len(failing) == len(beats):
        return "It does not work at any cut of A."
    if not failing:
        return "There is such a cell at every cut of A."
    return f"It does not work at {agree(len(failing), 'cut')} {numbers(failing)} of A, where no cell does."


def identity(result: StitchingResult) -> str:
    """Say how exactly B stitched to itself is B."""
    return (
        f"Checked in this run: stitched to itself, model B gives its own logits to {result.identity_error.max():.0e} "
        "of the largest, at every layer."
    )


def cell(result: StitchingResult, kernel: str, cut: int, entry: int) -> str:
    """Say one cell against B alone and the base rate."""
    score = result.main_score
    value, own = float(result.mean(kernel, score)[cut, entry]), float(result.own_b[:, result.at(score)].mean())
    low, high = (float(bound[cut, entry]) for bound in result.interval(kernel))
    beats = bool(result.beyond_base(kernel)[cut, entry])
    return (
        f"{plainly(kernel)}: {said(score, value)} {unit(result, score)} (95 %: {said(score, low)} to "
        f"{said(score, high)}); B alone {said(score, own)}. It {'beats' if beats else 'does not beat'} "
        f"{base_in_words(result)}, all cells allowed for."
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
        f"{place(result, cut, entry)}; best entries for the cuts in turn: {path}."
    )
