"""How maps are compared: standardise on the training rows, split by text, fit, and score on training and test rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import Incomparable, InputError, SettingsError
from embcompare.maps.base import Map, paired
from embcompare.maps.paired import as_rows
from embcompare.maps.states import split_items
from embcompare.words import agree, plural

_BLOCK = 2048
_NO_LENGTH = 1e-9
_TIE = 1e-12


@dataclass(frozen=True, eq=False)
class Standardiser:
    """Each feature minus its mean, over its standard deviation, both of the rows it was fitted on, in float64.

    A feature that is constant there has ``scale`` 1: its training values become 0.
    """

    mean: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, X: Any) -> Self:
        """Fit on (n, d), n ≥ 1; raises :class:`InputError`."""
        x = paired(X, X)[0].double()
        spread = x.std(0, correction=0)
        noise = 32 * torch.finfo(torch.float64).eps * x.abs().amax(0)
        return cls(x.mean(0), torch.where(spread > noise, spread, torch.ones_like(spread)))

    def transform(self, X: Any) -> Any:
        """Standardise (n, d): numpy or torch as given, float64 for float64 and float32 for anything narrower."""
        return self._through(X, lambda x: (x - self.mean) / self.scale)

    def inverse_transform(self, X: Any) -> Any:
        """Undo :meth:`transform`."""
        return self._through(X, lambda x: x * self.scale + self.mean)

    def _through(self, given: Any, way: Callable[[Tensor], Tensor]) -> Any:
        rows = as_rows(given, "the array to standardise")
        if rows.shape[1] != len(self.mean):
            raise Incomparable(f"The rows are {rows.shape[1]} wide and were {len(self.mean)} wide when it was fitted.")
        out = way(rows.double().cpu()).to(torch.float64 if rows.dtype == torch.float64 else torch.float32)
        return out.to(rows.device) if isinstance(given, Tensor) else out.numpy()


@dataclass(frozen=True, eq=False)
class Split:
    """Rows for training, validation and test, int64 in ascending order; no text is in two of them."""

    train: Tensor
    validation: Tensor
    test: Tensor


def split_three(n: int, items: Any = None, *, validation: float = 0.15, test: float = 0.2, seed: int = 0) -> Split:
    """Split n rows, whole items at a time where ``items`` (n,) names the text of each, each row its own without it.

    ``validation`` and ``test`` are shares of all rows, above 0 and below 1 together. Raises :class:`SettingsError`, and
    :class:`InputError` for items that do not fit or fewer than three of them.
    """
    if min(validation, test) <= 0 or validation + test >= 1:
        raise SettingsError(
            f"Shares for validation and test are above 0 and below 1 together; got {validation:g} and {test:g}."
        )
    labels = np.arange(n) if items is None else np.asarray(items.cpu() if isinstance(items, Tensor) else items)
    aside = split_items(n, labels, test, seed)
    rest = torch.nonzero(~aside).flatten()
    left, whole = (len(np.unique(each)) for each in (labels[rest.numpy()], labels))
    if left < 2 and n > 2:
        raise InputError(
            f"With a share of {test:g} for test {plural(left, 'text')} of {whole:,} {agree(left, 'is', 'are')} left, "
            "and training and validation need one each; choose a smaller share for test, or give more texts."
        )
    held = split_items(len(rest), labels[rest.numpy()], validation / (1 - test), seed + 1)
    return Split(rest[~held], rest[held], torch.nonzero(aside).flatten())


@dataclass(frozen=True)
class Scores:
    """What a map reaches on rows; NaN where it is not defined, and then ``reasons`` has a sentence by the same name.

    ``mse`` is over rows and features, ``r2`` is over all features together (by variance), ``cosine`` the mean of
    cos(ŷ, y) over rows, ``retrieval`` the share of rows whose target is the nearest by cosine to ŷ of all rows' targets
    (k equally near share it), and ``cycle`` is ‖g(f(x)) - x‖ / ‖x - x̄‖, Frobenius, in the dtype of x.
    """

    n: int
    mse: float
    r2: float
    cosine: float
    retrieval: float
    cycle: float
    reasons: Mapping[str, str] = field(default_factory=dict)

    METRICS = ("mse", "r2", "cosine", "retrieval", "cycle")


def evaluate(fitted: Map, X: Any, Y: Any) -> Scores:
    """Score a fitted map on (n, d_a) and (n, d_b); raises as :meth:`Map.transform`, never for a score."""
    x, y = paired(X, Y)
    mapped = torch.as_tensor(fitted.transform(x)).double()
    y = y.double()
    reasons: dict[str, str] = {}
    missed = float((y - mapped).square().sum())
    total = float((y - y.mean(0)).square().sum())
    if not total > 0:
        reasons["r2"] = "The target rows are all equal."
    cosine, retrieval = _directions(mapped, y, reasons)
    cycle = _cycle(fitted, x, reasons)
    return Scores(
        len(x), missed / y.numel(), 1 - missed / total if total > 0 else math.nan, cosine, retrieval, cycle, reasons
    )


def _directions(mapped: Tensor, y: Tensor, reasons: dict[str, str]) -> tuple[float, float]:
    lengths = [torch.linalg.vector_norm(each, dim=1, keepdim=True) for each in (mapped, y)]
    # a mean that is zero up to rounding points nowhere, whatever its last digits say
    least = _NO_LENGTH * float(torch.cat(lengths).square().mean().sqrt())
    for name, each in zip(("mapped", "target"), lengths, strict=True):
        none = int((each <= least).sum())
        if none:
            reasons["cosine"] = reasons["retrieval"] = f"{plural(none, f'{name} row')} of length 0 point nowhere."
            return math.nan, math.nan
    a, b = mapped / lengths[0], y / lengths[1]
    own = (a * b).sum(1)
    won = 0.0
    for start in range(0, len(a), _BLOCK):
        part = slice(start, start + _BLOCK)
        near = a[part] @ b.T
        mine = own[part]
        hit = near.amax(1) <= mine + _TIE
        # equal targets share a hit
        won += float((hit.double() / (near >= mine[:, None] - _TIE).sum(1)).sum())
    return float(own.mean()), won / len(a)


def _cycle(fitted: Map, x: Tensor, reasons: dict[str, str]) -> float:
    if not fitted.invertible:
        reasons["cycle"] = fitted.why_not_invertible()
        return math.nan
    spread = float(torch.linalg.matrix_norm(x.double() - x.double().mean(0)))
    if not spread > 0:
        reasons["cycle"] = "The rows are all equal."
        return math.nan
    back = torch.as_tensor(fitted.inverse_transform(fitted.transform(x)))
    return float(torch.linalg.matrix_norm(back.double() - x.double())) / spread


@dataclass(frozen=True, eq=False)
class Fitted:
    """One map under the protocol: the map itself and its scores on the rows it was fitted on and on test rows."""

    name: str
    seed: int
    map: Map
    train: Scores
    test: Scores


@dataclass(frozen=True, eq=False)
class Prepared:
    """Both sides standardised on the training rows, float32 or float64 as given, and the split."""

    x: Tensor
    y: Tensor
    split: Split
    scale_x: Standardiser
    scale_y: Standardiser

    def part(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of those rows."""
        return self.x[rows], self.y[rows]


def prepare(
    X: Any, Y: Any, items: Any = None, *, validation: float = 0.15, test: float = 0.2, seed: int = 0
) -> Prepared:
    """Split paired rows as :func:`split_three` does and standardise both sides on the training rows."""
    x, y = paired(X, Y)
    split = split_three(len(x), items, validation=validation, test=test, seed=seed)
    scale_x, scale_y = Standardiser.fit(x[split.train]), Standardiser.fit(y[split.train])
    return Prepared(scale_x.transform(x), scale_y.transform(y), split, scale_x, scale_y)


Progress = Callable[[str, int, int, int, float, float], None]
"""``progress(map, seed, epoch, epochs, train_loss, val_loss)``; what it raises ends the run."""


def run_protocol(
    data: Prepared,
    maps: Mapping[str, Callable[[int], Map]],
    *,
    seeds: Sequence[int] = (0,),
    progress: Progress | None = None,
) -> list[Fitted]:
    """Fit every map on the training rows and score it there and on the test rows.

    ``maps`` makes a map for a seed, by name; one in closed form (without an option ``seed``) is fitted once, for the
    first seed. Raises what fitting raises, with the map's name in front, and what ``progress`` raises.
    """
    if not seeds:
        raise SettingsError("The protocol needs at least one seed.")
    done: list[Fitted] = []
    x, y = data.part(data.split.train)
    for name, make in maps.items():
        for seed in seeds:
            chosen = make(seed)

            def report(epoch: int, epochs: int, loss: float, held: float, name: str = name, seed: int = seed) -> None:
                if progress is not None:
                    progress(name, seed, epoch, epochs, loss, held)

            chosen.fit(x, y, *data.part(data.split.validation), report=report)
            test = evaluate(chosen, *data.part(data.split.test))
            done.append(Fitted(name, seed, chosen, evaluate(chosen, x, y), test))
            if "seed" not in chosen.options:
                break
    return done


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return the mean over seeds and the ends of its Student interval; the ends are NaN for a single value.

    Raises :class:`InputError` for no values.
    """
    if not len(values):
        raise InputError("There are no values to take the mean of.")
    given = np.asarray(values, dtype=np.float64)
    mean = float(given.mean())
    if len(given) < 2:
        return mean, math.nan, math.nan
    from scipy.stats import t

    half = float(t.ppf((1 + level) / 2, len(given) - 1) * given.std(ddof=1) / math.sqrt(len(given)))
    return mean, mean - half, mean + half
