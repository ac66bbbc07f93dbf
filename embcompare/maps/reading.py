"""Which kind of map takes one representation to the other, as far as held-out rows can tell.

Maps are compared by their gap in R² on the same test rows, with a bootstrap interval over whole texts: rows of one text
are not independent, and two maps that miss the same rows differ by less than either's own interval suggests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import InputError, SettingsError
from embcompare.maps.base import paired
from embcompare.words import plural


@dataclass(frozen=True)
class Gap:
    """R² of a second map minus that of a first, on the same rows, and the ends of its interval over texts."""

    value: float
    low: float
    high: float

    def shows(self, margin: float) -> bool:
        """Whether the second is better by at least ``margin``, and its interval says that it is better at all."""
        return self.value >= margin and self.low > 0


def r2_gap(
    Y: Any, first: Any, second: Any, items: Any = None, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> Gap:
    """Return how much better ``second`` predicts Y (n, d) than ``first`` does, in R² over all features together.

    Each is one prediction (n, d), or several, one a training seed, whose squared errors are averaged. The interval is
    the percentile bootstrap over items (n,), each row its own without them. NaN where Y is constant; the ends are NaN
    with fewer than 2 items. Raises :class:`InputError`, :class:`SettingsError`. Source: Efron & Tibshirani 1993.
    """
    if draws < 100 or not 0 < level < 1:
        raise SettingsError(f"An interval needs at least 100 draws and a level in (0, 1); got {draws} and {level:g}.")
    y = paired(Y, Y)[0].double()
    missed = [_missed(y, each) for each in (first, second)]
    total = (y - y.mean(0)).square().sum(1).numpy()
    labels = np.arange(len(y)) if items is None else np.asarray(items)
    if labels.shape != (len(y),):
        raise InputError(f"items needs one label for each of {plural(len(y), 'row')}; got shape {labels.shape}.")
    _, member = np.unique(labels, return_inverse=True)
    better, whole = (np.bincount(member, weights=each) for each in (missed[0] - missed[1], total))
    if not whole.sum() > 0:
        return Gap(math.nan, math.nan, math.nan)
    value = float(better.sum() / whole.sum())
    count = len(whole)
    if count < 2:
        return Gap(value, math.nan, math.nan)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = (drawn @ better) / (drawn @ whole)
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Gap(value, float(low), float(high))


def _missed(y: Tensor, predicted: Any) -> np.ndarray:
    several = list(predicted) if isinstance(predicted, list | tuple) else [predicted]
    if not several:
        raise InputError("There is no prediction to compare.")
    errors = []
    for each in several:
        one = torch.as_tensor(each).double().cpu()
        if one.shape != y.shape:
            raise InputError(f"A prediction is {tuple(one.shape)} and the target {tuple(y.shape)}.")
        errors.append((one - y).square().sum(1))
    return np.asarray(torch.stack(errors).mean(0).numpy())


class Kind(StrEnum):
    """What is needed to get from one representation to the other, from the least to the most."""

    UNRELATED = "unrelated"
    ROTATION = "rotation"
    LINEAR = "linear"
    BIJECTION = "bijection"
    BEYOND = "beyond"


@dataclass(frozen=True)
class Reading:
    """The kind, one sentence for a person, and the gaps that it rests on, by the names of the two maps."""

    kind: Kind
    sentence: str
    gaps: dict[tuple[str, str], Gap]


def read_maps(
    Y: Any,
    predicted: dict[str, Any | Sequence[Any]],
    items: Any = None,
    *,
    margin: float = 0.01,
    draws: int = 1000,
    seed: int = 0,
) -> Reading:
    """Return which kind of map is needed, by the predictions of Y (n, d) on test rows.

    ``predicted`` holds those of ``mean``, ``orthogonal``, ``linear`` (least squares or ridge), ``inn`` and ``mlp``,
    each as :func:`r2_gap` takes them. A step to a richer kind counts where R² rises by ``margin`` and the interval of
    the rise is above 0; a map counts at all where its R² is above 0 as well. A kind is said to be enough where the
    intervals of what richer ones add stay below ``margin``; where they do not, the question is left open. "Beyond" says
    that the perceptron finds what no bijection of this size did; that is evidence against a bijection only as far as
    the INN was trained well and on enough rows.
    """
    steps = [("mean", each) for each in ("linear", "inn", "mlp")]
    steps += [("orthogonal", "linear"), ("linear", "inn"), ("linear", "mlp"), ("inn", "mlp")]
    absent = sorted({name for step in steps for name in step} - set(predicted))
    if absent:
        raise SettingsError(f"A reading needs predictions of {', '.join(absent)} too.")
    gaps = {(a, b): r2_gap(Y, predicted[a], predicted[b], items, draws=draws, seed=seed) for a, b in steps}

    def shown(a: str, b: str) -> bool:
        return gaps[a, b].shows(margin)

    if not any(shown("mean", each) and _r2(Y, predicted[each]) > 0 for each in ("linear", "inn", "mlp")):
        kind = Kind.UNRELATED
    elif shown("inn", "mlp"):
        kind = Kind.BEYOND
    elif shown("linear", "inn"):
        kind = Kind.BIJECTION
    else:
        kind = Kind.LINEAR if shown("orthogonal", "linear") else Kind.ROTATION
    return Reading(kind, _sentence(kind, gaps, margin), gaps)


def _r2(Y: Any, predicted: Any) -> float:
    """Return R² over all features together, squared errors averaged over several predictions; NaN for constant rows."""
    y = paired(Y, Y)[0].double()
    total = float((y - y.mean(0)).square().sum())
    return 1 - float(_missed(y, predicted).sum()) / total if total > 0 else math.nan


def _sentence(kind: Kind, gaps: dict[tuple[str, str], Gap], margin: float) -> str:
    def rise(a: str, b: str) -> str:
        gap = gaps[a, b]
        return f"{gap.value:+.3f} R² ({gap.low:+.3f} to {gap.high:+.3f})"

    def enough(what: str, adds: str, *steps: tuple[str, str]) -> str:
        added = rise(*steps[0])
        # an end that is not known rules nothing out
        if all(gaps[step].high < margin for step in steps):
            return f"{what} is enough: {adds} adds {added}."
        return (
            f"Nothing beyond {what[0].lower()}{what[1:]} is shown, nor ruled out: {adds} adds {added}, where "
            f"{margin:g} would count."
        )

    return {
        Kind.UNRELATED: "No map predicts the second representation from the first on texts it has not seen.",
        Kind.ROTATION: enough("A rotation", "any linear map", ("orthogonal", "linear"), ("linear", "inn")),
        Kind.LINEAR: enough("A linear map", "the invertible network", ("linear", "inn")),
        Kind.BIJECTION: f"The invertible network finds more than a linear map, {rise('linear', 'inn')}, and the "
        f"perceptron adds little to it, {rise('inn', 'mlp')}.",
        Kind.BEYOND: f"The perceptron finds what the invertible network did not, {rise('inn', 'mlp')}: the bijection "
        "tried does not account for all that one representation says of the other.",
    }[kind]
