"""Two modules' parameters by name: which correspond, which are the same bit for bit, how far the others moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.models import LoadedModel

_NUMBERS = 1 << 22


@dataclass(frozen=True, eq=False)
class WeightPairs:
    """Every parameter that both models have under one name and in one shape, in the order of A, and what has no pair.

    ``change`` is ``|b - a| / |a|``, Frobenius norms in float64; infinite where a is zero and b is not. ``same`` says
    that the two are equal number for number. Names are those inside the stack of blocks, whatever stands around it;
    what is outside the stack, a head, has its full name.
    """

    names: tuple[str, ...]
    change: np.ndarray
    same: np.ndarray
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    other_shape: tuple[str, ...]


def pair_weights(a: LoadedModel, b: LoadedModel) -> WeightPairs:
    """Pair two models' parameters by name; tied ones count once."""
    left, right = _named(a), _named(b)
    names, change, same, other = [], [], [], []
    for name, one in left.items():
        if name not in right:
            continue
        two = right[name]
        if one.shape != two.shape:
            other.append(f"{name} ({_size(one)} and {_size(two)})")
            continue
        moved, size = difference_norms(one, two)
        names.append(name)
        same.append(moved == 0)
        change.append(moved / size if size else (0.0 if not moved else float("inf")))
    return WeightPairs(
        tuple(names),
        np.array(change, dtype=np.float64),
        np.array(same, dtype=bool),
        tuple(name for name in left if name not in right),
        tuple(name for name in right if name not in left),
        tuple(other),
    )


def difference_norms(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return ``|b - a|`` and ``|a|``, Frobenius norms, summed in float64 over blocks; exactly 0 only for equal ones."""
    moved = size = 0.0
    rows = max(1, _NUMBERS // max(1, a.shape[1:].numel() if a.ndim else 1))
    for one, two in zip(*(each.split(rows) if each.ndim else (each,) for each in (a, b)), strict=True):
        wide = one.double()
        moved += float((two.to(wide.device).double() - wide).square().sum())
        size += float(wide.square().sum())
    return moved**0.5, size**0.5


def _named(model: LoadedModel) -> dict[str, Tensor]:
    module: Any = model.module
    stack = module.base_model
    inside = {id(value): name for name, value in stack.named_parameters()}
    return {inside.get(id(value), name): value for name, value in module.named_parameters()}


def _size(value: Tensor) -> str:
    return " × ".join(map(str, value.shape)) or "one number"
