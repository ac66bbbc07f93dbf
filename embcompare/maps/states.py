"""Maps fitted on paired hidden states: row k of X (n, d_a) and of Y (n, d_b) is the same place in the same text.

A part of the rows is kept aside, whole items (sentences, documents) at a time, for the states of one text are not
independent; R² is given on both parts, over all rows and features together, against the mean of the training rows.
All sums are float64, by blocks of rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import InputError, SettingsError
from embcompare.maps.embedding import carried, procrustes
from embcompare.maps.kernel import Kernel
from embcompare.maps.paired import BLOCK, Factor, Paired, Sums, as_rows, factored, need_rows, summed
from embcompare.words import plural

PENALTIES = torch.logspace(-10, 2, 37, dtype=torch.float64)
"""Ridge strengths tried, as shares of the largest squared singular value of the centred training states."""
_MORE = "give more text or keep fewer rows aside"
_NAMES = ("the first model's states", "the second model's states")


def least_squares(
    X: Any,
    Y: Any,
    *,
    items: Any = None,
    held_out: float = 0.2,
    seed: int = 0,
    cutoff: float | None = None,
    block: int = BLOCK,
) -> Kernel:
    """Return the affine map of least squared error, K = (XᵀX)⁻¹ XᵀY of the centred states, offset ȳ - x̄ K.

    ``items`` (n,) names the text each row belongs to (each row its own, without it) and ``held_out`` the share of
    rows, in whole items, that is kept aside; 0 keeps none. Directions of X below ``cutoff`` (as in
    :func:`~embcompare.maps.embedding.pseudo_inverse`) never occurred in training and are not carried: see ``rank``.

    Raises :class:`TooFewRows` with no more training rows than d_a, :class:`InputError` for arrays that are empty, not
    paired or not finite, :class:`Incomparable` for constant ones, :class:`SettingsError`.
    """
    a, b = _states(X, Y)
    training, test = _parts(a, b, items, held_out, seed, block)
    way_out = "give more text, keep fewer rows aside, or use ridge"
    need_rows(len(training), a.shape[1] + 1, "training row", way_out)
    sums = summed(training, own="a", centred=True)
    factor = factored(sums, "a", training.a.dtype, cutoff)
    read = factor.root @ sums.cross
    matrix = factor.root.T @ read
    return _scored("least_squares", matrix, carried(read), factor.condition, training, test, sums)


def ridge(
    X: Any,
    Y: Any,
    *,
    strength: float | None = None,
    items: Any = None,
    held_out: float = 0.2,
    seed: int = 0,
    block: int = BLOCK,
) -> Kernel:
    """Return the ridge map, K = (XᵀX + λ I)⁻¹ XᵀY of the centred states, offset ȳ - x̄ K (not penalised).

    λ is ``strength``, or that of 37 from 1e-10 to 100 times the largest squared singular value of X with the least
    generalised cross-validation error over the training rows, which takes rows for independent: of long texts it
    may choose too small a λ, and ``held_out`` tells. Works with fewer rows than features; needs 3 for training.

    Other options and errors are those of :func:`least_squares`. Sources: Hoerl & Kennard 1970; Golub, Heath & Wahba
    1979, for the strength.
    """
    if strength is not None and not (strength > 0 and math.isfinite(strength)):
        raise SettingsError(f"The strength of a ridge is above 0; got {strength:g}. Use least_squares for 0.")
    training, test = _parts(*_states(X, Y), items, held_out, seed, block)
    need_rows(len(training), 3, "training row", _MORE)
    sums = summed(training, own="a", centred=True)
    factor = factored(sums, "a", training.a.dtype, None)
    chosen = _strength(factor, sums) if strength is None else strength
    values, directions = torch.linalg.eigh(sums.gram_a)
    damped = values.clamp(min=0) + chosen
    matrix = (directions / damped) @ (directions.T @ sums.cross)
    condition = float((damped[-1] / damped[0]).sqrt())
    return _scored("ridge", matrix, carried(factor.root @ sums.cross), condition, training, test, sums, chosen)


def orthogonal_fit(
    X: Any,
    Y: Any,
    *,
    scale: bool = False,
    items: Any = None,
    held_out: float = 0.2,
    seed: int = 0,
    block: int = BLOCK,
) -> Kernel:
    """Return the Procrustes map: the (semi-)orthogonal K that brings the centred X closest to the centred Y.

    ``scale`` multiplies by the one number of least squared error. Into a narrower model the solution is that of Y
    padded with zeros. The offset takes mean to mean. Other options and errors are those of :func:`least_squares`;
    more training rows than the narrower width are needed, or the rotation is not determined. Source: Schönemann 1966.
    """
    a, b = _states(X, Y)
    training, test = _parts(a, b, items, held_out, seed, block)
    need_rows(len(training), min(a.shape[1], b.shape[1]) + 1, "training row", _MORE)
    sums = summed(training, own="a" if a.shape[1] > b.shape[1] else "none", centred=True)
    matrix, rank, _ = procrustes(sums, scale, _NAMES)
    return _scored("orthogonal_fit", matrix, rank, 1.0, training, test, sums)


def split_items(n: int, items: Any = None, held_out: float = 0.2, seed: int = 0) -> Tensor:
    """Return which of n rows are kept aside, (n,) bool: whole items in a seeded order until the share is reached.

    At least one item stays on each side; 0 keeps none aside. Raises :class:`SettingsError` for a share outside [0, 1)
    and :class:`InputError` for items that do not fit or too few of them.
    """
    if not 0 <= held_out < 1:
        raise SettingsError(f"The share of rows kept aside is from 0 to below 1; got {held_out:g}.")
    labels = np.arange(n) if items is None else np.asarray(items.cpu() if isinstance(items, Tensor) else items)
    if labels.shape != (n,):
        raise InputError(f"items needs one label for each of {plural(n, 'row')}; got shape {labels.shape}.")
    aside = torch.zeros(n, dtype=torch.bool)
    if held_out == 0:
        return aside
    _, member, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise InputError(
            f"All rows belong to {plural(len(sizes), 'item')}, so none can be kept aside; give more texts, or keep "
            "none aside (held_out 0)."
        )
    order = np.random.default_rng(seed).permutation(len(sizes))
    filled = np.cumsum(sizes[order])
    count = int(np.clip(np.searchsorted(filled, held_out * n) + 1, 1, len(sizes) - 1))
    return torch.from_numpy(np.isin(member, order[:count]))


def _states(X: Any, Y: Any) -> tuple[Tensor, Tensor]:
    a, b = as_rows(X, _NAMES[0]), as_rows(Y, _NAMES[1])
    if len(a) != len(b):
        raise InputError(
            f"There are {plural(len(a), 'state')} of the first model and {len(b):,} of the second; row k of both must "
            "be the same place in the same text."
        )
    return a, b


def _parts(a: Tensor, b: Tensor, items: Any, held_out: float, seed: int, block: int) -> tuple[Paired, Paired | None]:
    aside = split_items(len(a), items, held_out, seed)
    rows = [torch.nonzero(part).flatten() for part in (~aside, aside)]
    training, test = (Paired(a, b, r.to(a.device), r.to(b.device), _NAMES, block) for r in rows)
    return training, test if len(test) else None


def _strength(factor: Factor, sums: Sums) -> float:
    """Return the λ of least generalised cross-validation error, ‖Y - Ŷ‖² / (n - 1 - Σ s²/(s²+λ))², in closed form."""
    squares = factor.root.square().sum(1).reciprocal()
    explained = (factor.root @ sums.cross).square().sum(1)
    penalties = PENALTIES[:, None] * squares.max()
    lost = penalties / (squares + penalties)
    beyond = sums.n - 1 - factor.rank
    # where the directions span all training rows nothing is left over, and rounding must not look like something
    rest = max(0.0, sums.energy_b - float(explained.sum())) if beyond > 0 else 0.0
    error = (rest + lost.square() @ explained) / (max(beyond, 0) + lost.sum(1)).square()
    return float(penalties[int(error.argmin()), 0])


def _scored(
    name: str,
    matrix: Tensor,
    rank: int,
    condition: float,
    training: Paired,
    test: Paired | None,
    sums: Sums,
    strength: float | None = None,
) -> Kernel:
    kernel = Kernel(name, matrix, sums.mean_b - sums.mean_a @ matrix, rank, condition, len(training), strength=strength)
    fitted = _r2(kernel, training, sums.mean_b)
    held_out = None if test is None else _r2(kernel, test, sums.mean_b)
    return Kernel(name, matrix, kernel.offset, rank, condition, len(training), fitted, held_out, strength)


def _r2(kernel: Kernel, pairs: Paired, mean: Tensor) -> float:
    missed = total = 0.0
    for a, b in pairs.blocks():
        missed += float((b - kernel(a)).square().sum())
        total += float((b - mean.to(b)).square().sum())
    if not math.isfinite(missed) or not math.isfinite(total):
        pairs.refuse()
    return 1 - missed / total if total > 0 else math.nan
