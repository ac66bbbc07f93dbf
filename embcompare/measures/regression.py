"""Cross-validated regression: how much of one layer a linear map from the other predicts on held-out samples.

Samples are split into folds by a seeded shuffle, whole groups (sentences, documents) at a time where given, for the
tokens of one sentence are not independent. In each fold the map and both means are fitted on the rest. The value is
R² over all held-out samples and features together, against the mean of the training samples: features count by
their variance, and a map that predicts worse than that mean is below 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embcompare.errors import SettingsError
from embcompare.measures.declaration import (
    BadInput,
    Invariance,
    Matrix,
    Measure,
    UndefinedMeasure,
    as_matrix,
    centred,
    evaluate,
    require_samples,
    resolution,
)
from embcompare.words import plural

# Penalties tried, as shares of the largest squared singular value of the training samples.
PENALTIES = np.logspace(-10, 2, 37)


class BothWays(NamedTuple):
    """R² of predicting Y from X, and X from Y."""

    x_to_y: float
    y_to_x: float


class _Fold(NamedTuple):
    held_out: NDArray[np.bool_]
    mean: Matrix
    directions: Matrix
    singular: Matrix


@dataclass(frozen=True)
class Regressor:
    """A layer as both predictor and target: centred features of unit norm, and the factored training part of each fold.

    ``refusal`` is why it cannot predict (it can still be predicted), or None.
    """

    features: Matrix
    folds: tuple[_Fold, ...]
    kind: str
    refusal: str | None


def regression_r2(
    X: Any,
    Y: Any,
    *,
    kind: Literal["linear", "ridge"] = "linear",
    folds: int = 5,
    groups: Any = None,
    seed: int = 0,
) -> float:
    """Cross-validated R² of predicting Y (n, q) from X (n, p), in float64: at most 1, below 0 if worse than the mean.

    ``linear`` is least squares and needs more training samples than p; ``ridge`` chooses its penalty on each training
    part by generalised cross-validation (Golub, Heath & Wahba 1979). ``groups`` (n,) keeps samples of one group in
    one fold. See :func:`regression_r2_both` for both directions. Raises :class:`BadInput`, :class:`SettingsError`;
    NaN with a warning where undefined.
    """
    options = {"kind": kind, "folds": folds, "groups": groups, "seed": seed}
    return evaluate("regression_r2", prepare_regression, compare_regression, X, Y, **options)


def regression_r2_both(X: Any, Y: Any, **options: Any) -> BothWays:
    """Return :func:`regression_r2` in both directions, on the same folds, with the same options."""
    return BothWays(regression_r2(X, Y, **options), regression_r2(Y, X, **options))


def fold_numbers(n: int, folds: int, groups: Any = None, seed: int = 0) -> NDArray[np.intp]:
    """Assign each of n samples to a fold, (n,): shuffled, whole groups, each next one to the smallest fold."""
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
        raise SettingsError(f"folds is a whole number of at least 2; got {folds!r}.")
    labels = np.arange(n) if groups is None else np.asarray(groups)
    if labels.shape != (n,):
        raise BadInput(f"groups needs one label for each of the {n} samples; got shape {labels.shape}.")
    _, member, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    require_samples(len(sizes), folds, f"one {'group' if groups is not None else 'sample'} for each fold")
    fold_of, filled = np.empty(len(sizes), dtype=np.intp), np.zeros(folds)
    for group in np.random.default_rng(seed).permutation(len(sizes)):
        fold_of[group] = np.argmin(filled)
        filled[fold_of[group]] += sizes[group]
    return np.asarray(fold_of[member])


def prepare_regression(X: Any, *, kind: str = "linear", folds: int = 5, groups: Any = None, seed: int = 0) -> Regressor:
    """Split a layer and factor each training part."""
    if kind not in ("linear", "ridge"):
        raise SettingsError(f"The regression is 'linear' or 'ridge'; got {kind!r}.")
    x = as_matrix(X)
    require_samples(len(x), 4, "two to fit and two to test")
    numbers = fold_numbers(len(x), folds, groups, seed)
    features = centred(x)
    least = len(x) - int(np.bincount(numbers).max())
    if kind == "linear" and least <= x.shape[1]:
        fitted = f"{plural(least, 'training sample')} of {plural(x.shape[1], 'feature')}"
        why = f"a linear fit on {fitted} is not determined; use ridge."
        return Regressor(features, (), kind, why)
    return Regressor(features, tuple(_factor(features, numbers == f, resolution(X)) for f in range(folds)), kind, None)


def _factor(features: Matrix, held_out: NDArray[np.bool_], eps: float) -> _Fold:
    training = features[~held_out]
    mean = training.mean(axis=0)
    _, s, vt = np.linalg.svd(training - mean, full_matrices=False)
    kept = s > 10 * eps * max(float(s[0]), 1e-8)
    return _Fold(held_out, mean, vt[kept].T, s[kept])


def compare_regression(a: Regressor, b: Regressor) -> float:
    """Return R² of predicting the prepared layer b from a."""
    if a.refusal:
        raise UndefinedMeasure(a.refusal)
    missed = total = 0.0
    for fold in a.folds:
        training, target = b.features[~fold.held_out], b.features[fold.held_out]
        offset = training.mean(axis=0)
        training = training - offset
        scores = (a.features[~fold.held_out] - fold.mean) @ fold.directions / fold.singular
        weights = scores.T @ training
        shrink = _shrinkage(fold.singular, weights, training) if a.kind == "ridge" else np.ones_like(fold.singular)
        held_out = (a.features[fold.held_out] - fold.mean) @ fold.directions
        predicted = (held_out * (shrink / fold.singular)) @ weights
        missed += float(np.sum((target - offset - predicted) ** 2))
        total += float(np.sum((target - offset) ** 2))
    return 1 - missed / total


def _shrinkage(singular: Matrix, weights: Matrix, training: Matrix) -> Matrix:
    """Return s²/(s²+λ) for the λ of least generalised cross-validation error over all targets together."""
    if not len(singular):
        return np.ones_like(singular)
    penalties = PENALTIES[:, None] * singular[0] ** 2
    lost = penalties / (singular**2 + penalties)
    explained = np.sum(weights**2, axis=1)
    beyond = len(training) - 1 - len(singular)
    # where the directions span all training samples nothing is left over, and rounding must not look like something
    rest = max(0.0, float(np.sum(training**2) - explained.sum())) if beyond > 0 else 0.0
    error = (rest + lost**2 @ explained) / (beyond + lost.sum(axis=1)) ** 2
    return np.asarray(1 - lost[np.argmin(error)])


_EITHER = frozenset({Invariance.ORTHOGONAL, Invariance.JOINT_ORTHOGONAL, Invariance.SCALING, Invariance.TRANSLATION})


def _bytes(n: int, p: int) -> int:
    return 8 * p * (n + 5 * min(n, p))


MEASURES = (
    Measure(
        "regression_r2", "linear regression R²",
        "1 - Σ‖y - ŷ‖² / Σ‖y - ȳ‖² over held-out samples of 5 folds, least squares of Y on X",
        "What share of the second layer does a linear map from the first predict on unseen samples? Not symmetric.",
        -math.inf, 1.0, True, _EITHER,
        "more training samples (n - n/5) than p; groups where samples hang together",
        lambda p, q: max(5, math.ceil(5 * (p + 1) / 4)),
        "5 n p² a layer, 5 n p q a pair", _bytes,
        "least squares, cross-validated",
        regression_r2, prepare_regression, compare_regression, {"kind": "linear"},
        symmetric=False, of_first=frozenset({Invariance.LINEAR, Invariance.FEATURE_SCALING}), stochastic=True,
    ),
    Measure(
        "ridge_r2", "ridge regression R²",
        "1 - Σ‖y - ŷ‖² / Σ‖y - ȳ‖² over held-out samples of 5 folds, ridge of Y on X, λ by GCV",
        "As linear regression R², for layers that are wide for the number of samples. Not symmetric.",
        -math.inf, 1.0, True, _EITHER,
        "n ≥ 5; groups where samples hang together",
        lambda p, q: 5,
        "5 n p min(n, p) a layer, 5 n p q a pair", _bytes,
        "Hoerl & Kennard 1970; Golub, Heath & Wahba 1979",
        regression_r2, prepare_regression, compare_regression, {"kind": "ridge"},
        symmetric=False, stochastic=True,
    ),
)  # fmt: skip
