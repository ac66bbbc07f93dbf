"""Linear maps between all layers of two models at once, scored on held-out rows.

A layer of the first model is factored once, X = U S Vᵀ on its training rows through its Gram matrix, and then one
product Uᵀ Y with each layer of the second gives the map of the pair: least squares, or ridge by shrinking the rows of
UᵀY. A rotation needs XᵀY and its singular value decomposition instead. All in float64, one layer converted at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import EmbcompareError, Incomparable, InputError, SettingsError
from embcompare.maps.base import check_choice
from embcompare.maps.embedding import polar
from embcompare.maps.kernel import TooFewRows
from embcompare.maps.paired import FLOOR, as_rows
from embcompare.maps.states import PENALTIES, split_items
from embcompare.words import plural

LinearKind = Literal["least_squares", "ridge", "orthogonal"]
KINDS = ("least_squares", "ridge", "orthogonal")


@dataclass(frozen=True, eq=False)
class PairScores:
    """R² of the map of every pair of layers, (L_a, L_b) float64, on training rows and on held-out rows.

    Over all features together, against the mean of the rows scored, as scikit-learn's variance-weighted ``r2_score``.
    NaN where it is not defined; ``reasons`` then has a sentence by (i, j). ``strength`` (L_a, L_b) holds the penalties
    that ridge chose, NaN for other kinds. ``rows`` are how many were fitted on and held out.
    """

    train: np.ndarray
    test: np.ndarray
    strength: np.ndarray
    rows: tuple[int, int]
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Side:
    """A layer about its training mean: training rows, held-out rows, float64, and the spread of each part."""

    train: Tensor
    test: Tensor
    energy: float
    test_energy: float

    @property
    def constant(self) -> bool:
        return not self.energy > 0


@dataclass(frozen=True, eq=False)
class _Factored:
    train: Tensor
    test: Tensor
    squares: Tensor
    largest: float


def all_pairs(
    A: Any,
    B: Any,
    *,
    kind: LinearKind = "least_squares",
    items: Any = None,
    held_out: float = 0.2,
    seed: int = 0,
    aside: Any = None,
    report: Callable[[int, int], None] | None = None,
) -> PairScores:
    """Fit and score the ``kind`` of map between every layer of A (L_a, n, d_a) and of B (L_b, n, d_b).

    Each is one array or a sequence of (n, d) layers, which may differ in width; numpy or torch, of any floating dtype.
    Rows are held out as :func:`~embcompare.maps.states.split_items` does by ``items``, ``held_out`` and ``seed``, or as
    ``aside`` (n,) bool says. ``report(done, pairs)`` may raise to stop.

    Least squares and the rotation need more training rows than the layer (for the rotation, the narrower) is wide, and
    ridge 3: pairs with fewer, and with a constant layer, are NaN with a reason. Directions below 1e-6 of the largest
    singular value are not carried. Raises :class:`InputError` for arrays that are malformed or not paired, and
    :class:`SettingsError`.
    """
    check_choice("The kind of map", kind, KINDS)
    first, second = _layers(A, "A"), _layers(B, "B")
    n = len(first[0])
    for name, k, layer in [("A", k, x) for k, x in enumerate(first)] + [("B", k, y) for k, y in enumerate(second)]:
        if len(layer) != n:
            raise InputError(f"Layer {k} of {name} has {plural(len(layer), 'row')} and the first layer has {n:,}.")
        if not bool(torch.isfinite(layer.sum(dtype=torch.float64))) and not bool(torch.isfinite(layer).all()):
            raise InputError(f"Layer {k} of {name} holds NaN or infinite values; leave those rows out of all layers.")
    held = split_items(n, items, held_out, seed) if aside is None else _mask(aside, n)
    rows = [torch.nonzero(part).flatten() for part in (~held, held)]
    if not all(len(each) for each in rows):
        raise SettingsError("Rows to fit on and rows to score on are both needed; hold out a share between 0 and 1.")
    shape = len(first), len(second)
    train, test, strength = (np.full(shape, math.nan) for _ in range(3))
    reasons: dict[tuple[int, int], str] = {}
    for i, layer in enumerate(first):
        x = _side(layer, rows)
        factored = None if kind == "orthogonal" or x.constant else _factor(x)
        for j, y in enumerate(_sides(second, rows)):
            try:
                train[i, j], test[i, j], strength[i, j] = _pair(kind, x, y, factored, len(rows[0]))
            except EmbcompareError as reason:
                reasons[i, j] = str(reason)
            if report is not None:
                report(i * len(second) + j + 1, len(first) * len(second))
    return PairScores(train, test, strength, (len(rows[0]), len(rows[1])), reasons)


def _pair(kind: str, x: _Side, y: _Side, factored: _Factored | None, n: int) -> tuple[float, float, float]:
    if x.constant or y.constant:
        raise Incomparable("A layer is constant over the training rows.")
    least = {"least_squares": x.train.shape[1] + 1, "ridge": 3}.get(kind, min(x.train.shape[1], y.train.shape[1]) + 1)
    if n < least:
        raise TooFewRows(f"The map needs at least {plural(least, 'training row')} and there are {n:,}.")
    chosen = math.nan
    if factored is None:
        matrix, values = polar(x.train.T @ y.train)
        mapped = x.energy if x.train.shape[1] <= y.train.shape[1] else float((x.train @ matrix).square().sum())
        fitted = (2 * float(values.sum()) - mapped) / y.energy
        predicted = x.test @ matrix
    else:
        read = factored.train.T @ y.train
        explained = read.square().sum(1)
        lost = torch.zeros_like(explained)
        if kind == "ridge":
            chosen = penalty(factored.squares, factored.largest, explained, y.energy, n)
            lost = chosen / (factored.squares + chosen)
        fitted = float(((1 - lost.square()) * explained).sum()) / y.energy
        predicted = (factored.test * (1 - lost)) @ read
    missed = float((y.test - predicted).square().sum())
    return fitted, 1 - missed / y.test_energy if y.test_energy > 0 else math.nan, chosen


def penalty(squares: Tensor, largest: float, explained: Tensor, energy: float, n: int) -> float:
    """Return the ridge penalty of least generalised cross-validation error, one of ``maps.states.PENALTIES``.

    ``squares`` (r,) are the squared singular values of the centred X, ``explained`` (r,) how much of Y's ``energy``
    lies along each. Source: Golub, Heath & Wahba 1979.
    """
    penalties = PENALTIES[:, None] * largest
    lost = penalties / (squares + penalties)
    beyond = max(0, n - 1 - len(squares))
    rest = max(0.0, energy - float(explained.sum())) if beyond else 0.0
    error = (rest + lost.square() @ explained) / (beyond + lost.sum(1)).square()
    return float(penalties[int(error.argmin()), 0])


def _factor(x: _Side) -> _Factored:
    values, directions = torch.linalg.eigh(x.train.T @ x.train)
    kept = values > values[-1] * FLOOR**2
    whiten = directions[:, kept] / values[kept].sqrt()
    return _Factored(x.train @ whiten, x.test @ whiten, values[kept], float(values[-1]))


def _sides(layers: Sequence[Tensor], rows: list[Tensor]) -> Iterator[_Side]:
    for layer in layers:
        yield _side(layer, rows)


def _side(layer: Tensor, rows: list[Tensor]) -> _Side:
    train, test = (layer[each].double() for each in rows)
    mean = train.mean(0)
    train -= mean
    test -= mean
    energy, own = float(train.square().sum()), test.mean(0)
    # what the rounding of a mean leaves of equal rows
    if energy <= len(train) * float(mean.square().sum()) * (32 * torch.finfo(torch.float64).eps) ** 2:
        energy = 0.0
    return _Side(train, test, energy, float((test - own).square().sum()))


def _layers(given: Any, name: str) -> list[Tensor]:
    if isinstance(given, Tensor | np.ndarray) and given.ndim != 3:
        raise InputError(f"{name} must be (layers, rows, features); got shape {tuple(given.shape)}.")
    layers = [as_rows(each, f"layer {k} of {name}").cpu() for k, each in enumerate(given)]
    if not layers:
        raise InputError(f"{name} has no layers.")
    return layers


def _mask(aside: Any, n: int) -> Tensor:
    mask = torch.as_tensor(aside)
    if mask.shape != (n,) or mask.dtype != torch.bool:
        raise InputError(f"aside says for each of {plural(n, 'row')} whether it is held out, as (n,) bool.")
    return mask.cpu()
