"""The verdict on a stitched run: what came out, where it works, where it does not, and where texts are too few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.stitching_result import HIGHER_IS_BETTER, LEVEL
from embcompare.maps.registry import KERNELS
from embcompare.ui import stitching_words as say
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.stitching import StitchingResult


def middle(result: StitchingResult) -> int:
    """Return the cut in the middle of A."""
    return max(1, int(result.values.shape[-2] - 1) // 2)


def best_control(result: StitchingResult, score: str, cut: int) -> tuple[str, float] | None:
    """Return the control that does best at its own best entry of a cut, and its value."""
    found = []
    for name in say.controls(result):
        value = float(result.mean(name, score)[cut, int(result.best_entries(name, score)[cut])])
        if np.isfinite(value):
            found.append((name, value))
    if not found:
        return None
    choose = max if HIGHER_IS_BETTER[score] else min
    return choose(found, key=lambda each: each[1])


def verdict(result: StitchingResult, kernel: str, score: str = "") -> str:
    """Say whether a map joins the two models, against B alone, controls and base rate; and where it does not.

    It speaks of the main score; where another ``score`` is shown, its value stands beside it.
    """
    standing = result.standing(kernel)
    parts = [_level(result, kernel), _shown(result, kernel, score), _cells(result, kernel), _cuts(result, standing)]
    return " ".join(filter(None, parts))


def _level(result: StitchingResult, kernel: str) -> str:
    score = result.main_score
    cut, blocks = middle(result), result.values.shape[-2] - 1
    entry = int(result.best_entries(kernel, score)[cut])
    value, own = float(result.mean(kernel, score)[cut, entry]), float(result.own_b[:, result.at(score)].mean())
    control = best_control(result, score, cut)
    where = f"{say.plainly(kernel)}: in the middle, after {cut} of {plural(blocks, 'block')} of A, the stitched model"
    best = f"at its best entry above 0 (layer {entry} of B)"
    if score == "accuracy":
        of = f"{result.counts[0]:,} texts{f' in each of {result.runs} runs' if result.runs > 1 else ''}"
        text = f"{where} puts {say.said(score, value)} of {of} into the right class {best}"
        others = [f"B alone {say.said(score, own)}"]
        if control is not None and control[0] != kernel:
            others.append(f"the best control there {say.said(score, control[1])} ({KERNELS[control[0]].label})")
        return f"{text}, {', '.join(others)}."
    text = f"{where} has a {say.named(score)} of {say.said(score, value)} {say.unit(result, score)} {best}, "
    text += f"{_apart(value - own, 'more', 'less')} than B alone ({say.said(score, own)})"
    if control is None or control[0] == kernel:
        return f"{text}."
    name, level = control
    return (
        f"{text} and {_apart(value - level, 'more', 'less')} than the best control there "
        f"({KERNELS[name].label}, {say.said(score, level)})."
    )


def _shown(result: StitchingResult, kernel: str, score: str) -> str:
    """Say the score that is shown where it is not the one that all else speaks of."""
    if score in ("", result.main_score):
        return ""
    cut = middle(result)
    entry = int(result.best_entries(kernel, result.main_score)[cut])
    return f"{_beside(result, kernel, score, cut, entry)} What follows speaks of {say.named(result.main_score)}."


def _beside(result: StitchingResult, kernel: str, score: str, cut: int, entry: int) -> str:
    value, own = float(result.mean(kernel, score)[cut, entry]), float(result.own_b[:, result.at(score)].mean())
    level = f"{say.said(score, value)} {say.unit(result, score)}"
    return f"The score shown, {say.named(score)}, is {level} in this cell (B alone {say.said(score, own)})."


def _apart(difference: float, above: str, below: str) -> str:
    return f"{abs(difference):.2f} {above if difference > 0 else below}"


def _cells(result: StitchingResult, kernel: str) -> str:
    beats = result.beyond_base(kernel)
    if not result.can_tell:
        return (
            f"With {plural(result.distinct_texts, 'text')} no outcome could have passed the test against "
            f"{say.base_in_words(result)}, for {plural(beats.size, 'cell')} are allowed for: score more texts."
        )
    many = _many(int(beats.sum()))
    text = f"Of its {plural(beats.size, 'cell')} {many} {say.base_in_words(result)}, all cells allowed for"
    others = [] if KERNELS[kernel].control else say.controls(result)
    if not others:
        return f"{text}."
    most = max(int(result.beyond_base(name).sum()) for name in others)
    if not most:
        return f"{text}; no cell of a control does."
    return f"{text}; of a control's cells at most {_many(most, 'does', 'do')}."


def _many(count: int, one: str = "beats", many: str = "beat") -> str:
    return f"{count:,} {agree(count, one, many)}" if count else f"none {one}"


def _cuts(result: StitchingResult, standing: np.ndarray) -> str:
    """Say of every cut whether a cell works, whether none is better, or whether these texts are too few to tell."""
    best = standing.max(1)
    if (best > 0).all():
        return "There is such a cell at every cut of A."
    said_of = []
    worse, open_ = np.flatnonzero(best < 0).tolist(), np.flatnonzero(best == 0).tolist()
    if worse:
        where = "any cut" if len(worse) == len(best) else _named_cuts(worse)
        said_of.append(f"No cell is better than the base rate at {where} of A.")
    if open_:
        more = ": score more texts" if result.can_tell else ""
        texts = plural(result.distinct_texts, "text")
        those = agree(result.distinct_texts, "this", "these")
        where = "every cut" if len(open_) == len(best) else _named_cuts(open_)
        said_of.append(f"Cells are better, but not beyond doubt with {those} {texts}, at {where} of A{more}.")
    return " ".join(said_of)


def _named_cuts(cuts: Sequence[int]) -> str:
    return f"{agree(len(cuts), 'cut')} {say.numbers(cuts)}"


def texts_needed(task: str, cells: int) -> int:
    """Return how many texts are the least with which any outcome could pass the test, all cells allowed for.

    Of classes: all right, where half the texts are of the larger class, must have a chance below 5 % over the cells.
    """
    if task != "classes":
        return 3
    return math.floor(math.log2(cells / LEVEL)) + 1


def too_few(task: str, texts: int, cells: int) -> str:
    """Say that so few texts cannot tell anything from the base rate, whatever comes out; empty where they can."""
    least = texts_needed(task, cells)
    if texts >= least:
        return ""
    what = "the majority class, even with two classes of one size" if task == "classes" else "token frequencies"
    return (
        f"With {plural(texts, 'text')} no outcome can pass the test against {what}, for {plural(cells, 'cell')} are "
        f"allowed for: score at least {least}."
    )


def cell(result: StitchingResult, kernel: str, cut: int, entry: int, score: str = "") -> str:
    """Say one cell against B alone and the base rate, and beside the main score another ``score`` that is shown."""
    main = result.main_score
    value, own = float(result.mean(kernel, main)[cut, entry]), float(result.own_b[:, result.at(main)].mean())
    low, high = (float(bound[cut, entry]) for bound in result.interval(kernel))
    if not np.isfinite(value):
        return f"{say.plainly(kernel)}: this cell has no value, for the map gave no number for a state."
    level = f"{say.said(main, value)} {say.unit(result, main)}"
    text = (
        f"{say.plainly(kernel)}: {say.named(main)} {level} (95 %: {say.said(main, low)} to {say.said(main, high)}); "
        f"B alone {say.said(main, own)}. {_stands(result, int(result.standing(kernel)[cut, entry]))}"
    )
    return text if score in ("", main) else f"{text} {_beside(result, kernel, score, cut, entry)}"


def _stands(result: StitchingResult, standing: int) -> str:
    base = say.base_in_words(result)
    if standing > 0:
        return f"It beats {base}, all cells allowed for."
    if standing < 0:
        return f"It is no better than {base}."
    doubt = f"with {plural(result.distinct_texts, 'text')}, all cells allowed for"
    if not result.can_tell:
        return f"It is better than {base}, but no outcome could be beyond doubt {doubt}."
    return f"It is better than {base}, but not beyond doubt {doubt}."
