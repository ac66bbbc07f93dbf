"""What every measure says about itself, and the rules for input that all of them share.

A declaration drives the documentation, the cards and colour bars of the dashboard, and the property tests: each
invariance a measure claims, and each it denies, is tested on random data.

Arrays are (samples, features), numpy or torch, of any floating dtype; they are read as stored and computed in
float64. Malformed input (:class:`BadInput`) is an error. A value that mathematics does not define, as for a constant
layer, is :class:`UndefinedMeasure` inside, and NaN with a warning that tells the reason outside; it is never 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embcompare.errors import EmbcompareError, EmbcompareWarning
from embcompare.words import agree, plural

Matrix = NDArray[np.float64]


class BadInput(EmbcompareError):
    """An array is not (samples, features), holds NaN or infinite values, or its samples are not paired."""


class UndefinedMeasure(EmbcompareError):
    """The value is not defined for these arrays; the text is the reason, fit to be shown beside the empty cell."""


class Invariance(StrEnum):
    """A change of one representation (or of both, where it says so) that a measure may or may not see."""

    ORTHOGONAL = "orthogonal map"
    SCALING = "isotropic scaling"
    TRANSLATION = "translation"
    LINEAR = "invertible linear map"
    FEATURE_SCALING = "scaling of each feature"
    SAMPLE_SCALING = "positive scaling of each sample"
    SAMPLE_ORDER = "order of the samples, the same in both"
    JOINT_ORTHOGONAL = "orthogonal map, the same in both"

    @property
    def meaning(self) -> str:
        """One sentence that says what is done to the arrays."""
        return _MEANINGS[self]


_MEANINGS = {
    Invariance.ORTHOGONAL: "X Q for any rotation, reflection or reordering Q of the features of X alone.",
    Invariance.SCALING: "c X for any c > 0.",
    Invariance.TRANSLATION: "X + v, the same vector added to every sample.",
    Invariance.LINEAR: "X A for any invertible A.",
    Invariance.FEATURE_SCALING: "every column of X times its own positive number, as when features are standardised.",
    Invariance.SAMPLE_SCALING: "every row of X times its own positive number, as when samples are normalised.",
    Invariance.SAMPLE_ORDER: "the rows of X and Y permuted together.",
    Invariance.JOINT_ORTHOGONAL: "X Q and Y Q: a change of the coordinates that both share.",
}


@dataclass(frozen=True)
class Measure:
    """One measure's declaration and its two faces.

    ``function(X, Y, **options)`` is the public one. ``prepare(X, **options)`` gives a layer's state and
    ``compare(a, b)`` the value of two states; both raise :class:`UndefinedMeasure`. ``low`` and ``high`` are the range
    the mathematics allows: values are never clamped to it. ``min_samples(p, q)`` is the least n for p and q features,
    ``state_bytes(n, p)`` the memory of one layer's state. ``options`` are what this entry fixes, and can be overridden.
    ``invariances`` hold for a change of either layer, ``of_first`` and ``of_second`` for one of the two only.
    ``matrix(layers_a, layers_b, **options)``, where there is one, does all pairs faster than one by one.
    ``for_k(k)``, where there is one, declares the same measure for another number of neighbours.
    """

    name: str
    label: str
    formula: str
    meaning: str
    low: float
    high: float
    higher_is_closer: bool
    invariances: frozenset[Invariance]
    needs: str
    min_samples: Callable[[int, int], int]
    cost: str
    state_bytes: Callable[[int, int], int]
    source: str
    function: Callable[..., float]
    prepare: Callable[..., Any]
    compare: Callable[[Any, Any], float]
    options: Mapping[str, Any] = field(default_factory=dict)
    symmetric: bool = True
    of_first: frozenset[Invariance] = frozenset()
    of_second: frozenset[Invariance] = frozenset()
    matrix: Callable[..., Any] | None = None
    needs_shared_coordinates: bool = False
    stochastic: bool = False
    for_k: Callable[[int], Measure] | None = None

    @property
    def k(self) -> int | None:
        """Neighbours of a sample that are counted; None for a measure that counts none."""
        return self.options["k"] if self.for_k is not None else None

    def counting(self, k: int) -> Measure:
        """Return this measure with ``k`` neighbours, everything it says of itself included; itself if it counts none.

        Raises :class:`~embcompare.errors.SettingsError` for a ``k`` that is no whole number of at least 1.
        """
        return self if self.for_k is None or k == self.k else self.for_k(k)

    @property
    def non_invariances(self) -> frozenset[Invariance]:
        """Changes that do change the value, in general, whichever layer they are made to."""
        return frozenset(Invariance) - self.invariances - self.of_first - self.of_second

    def __call__(self, X: Any, Y: Any, **options: Any) -> float:
        """Return the value for (n, p) and (n, q), or NaN with an :class:`EmbcompareWarning` where undefined."""
        return self.function(X, Y, **{**self.options, **options})


def evaluate(
    name: str, prepare: Callable[..., Any], compare: Callable[[Any, Any], float], X: Any, Y: Any, /, **options: Any
) -> float:
    """Prepare and compare two arrays; NaN with a warning where undefined. Raises :class:`BadInput`."""
    check_pairing(X, Y)
    try:
        return float(compare(prepare(X, **options), prepare(Y, **options)))
    except UndefinedMeasure as reason:
        warnings.warn(f"{name} is undefined here: {reason}", EmbcompareWarning, stacklevel=3)
        return float("nan")


def check_pairing(X: Any, Y: Any) -> None:
    """Raise :class:`BadInput` unless both arrays are (samples, features) of the same samples, finite throughout."""
    x, y = as_matrix(X, "X"), as_matrix(Y, "Y")
    if len(x) != len(y):
        raise BadInput(
            f"X has {plural(len(x), 'sample')} and Y has {len(y):,}; row k of both must be the same sample, so select "
            "the samples that both have, in one order."
        )


def as_matrix(X: Any, name: str = "X") -> Matrix:
    """Return a (samples, features) array in float64 on the CPU; raises :class:`BadInput`."""
    if hasattr(X, "detach"):
        X = X.detach().double().cpu().numpy()
    array = np.asarray(X)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise BadInput(f"{name} must be a real array of (samples, features); got shape {array.shape}, {array.dtype}.")
    matrix = np.asarray(array, dtype=np.float64)
    finite = np.isfinite(matrix).all(axis=1)
    if not finite.all():
        bad = int((~finite).sum())
        raise BadInput(
            f"{bad:,} of {plural(len(matrix), 'row')} of {name} {agree(bad, 'holds', 'hold')} NaN or infinite values "
            f"(the first is row {int(np.argmin(finite))}); drop these samples from both arrays."
        )
    return matrix


def resolution(X: Any) -> float:
    """Relative rounding of the stored numbers: float64's for float64, float32's for anything narrower."""
    wide = str(getattr(X, "dtype", "float64")).split(".")[-1] not in ("float32", "float16", "bfloat16")
    return float(np.finfo(np.float64 if wide else np.float32).eps)


def require_samples(n: int, least: int, why: str) -> None:
    """Raise :class:`UndefinedMeasure` for fewer than ``least`` samples."""
    if n < least:
        raise UndefinedMeasure(f"it needs at least {plural(least, 'sample')} ({why}) and there are {n:,}.")


def centred(x: Matrix) -> Matrix:
    """Subtract each feature's mean and scale to unit Frobenius norm, (n, p); undefined for a constant layer."""
    if not x.size:
        raise UndefinedMeasure("the layer is empty.")
    largest = np.abs(x).max()
    moved = x / largest if largest > 0 else x
    moved = moved - moved.mean(axis=0)
    norm = float(np.linalg.norm(moved))
    # what the rounding of a mean leaves of n equal rows
    if norm <= 8 * np.finfo(np.float64).eps * np.sqrt(x.size):
        raise UndefinedMeasure("the layer is constant: all samples have the same vector.")
    return np.asarray(moved / norm)
