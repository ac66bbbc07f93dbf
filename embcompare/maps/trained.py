"""What maps that are trained share: standardised coordinates, validation rows, checkpoints.

Inside, both sides are standardised feature by feature on the training rows, and the error of each feature is weighed
by its variance again, so that what is minimised is the mean squared error of the rows as given, over their variance:
a loss of 1 is that of the mean, and of 0.2 an R² of 0.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import Incomparable, InputError
from embcompare.maps.base import Map, Report, check_range, paired
from embcompare.maps.coupling import Network
from embcompare.maps.paired import need_rows
from embcompare.maps.start import LEAST_ROWS
from embcompare.maps.states import split_items
from embcompare.maps.training import Checkpoint, Paired32, Recipe, Trace, train

_ASIDE = 0.1


@dataclass(eq=False)
class TrainedMap(Map):
    """What the trained maps share; the options are those of :class:`~embcompare.maps.training.Recipe`.

    ``rate`` None is :func:`usual_rate` of the larger width.

    After ``fit``: ``trace`` has the learning curves, ``start`` the name of the linear map it began at, ``ended`` why it
    stopped, and ``checkpoint`` the state after the last epoch, which ``fit(..., resume=checkpoint)`` of a map with the
    same options takes up, to the same bits. The checkpoint is there too when ``report`` raised.
    """

    seed: int = 0
    epochs: int = 200
    patience: int = 20
    batch: int = 256
    rate: float | None = None
    schedule: str = "cosine"
    decay: float = 0.0
    device: str = "cpu"
    trace: Trace | None = field(init=False, default=None, repr=False)
    checkpoint: Checkpoint | None = field(init=False, default=None, repr=False)
    start: str = field(init=False, default="")

    def fit(
        self,
        X: Any,
        Y: Any,
        X_val: Any = None,
        Y_val: Any = None,
        *,
        report: Report | None = None,
        resume: Mapping[str, np.ndarray] | None = None,
    ) -> Self:
        """Train on (n, d_a) and (n, d_b), stopping early by the validation rows; see the class for ``resume``.

        Without validation rows a tenth of the rows, drawn by the seed, is kept aside for it; give them where rows of
        one text belong together. Needs 3 training rows and 1 for validation. What ``report(epoch, epochs, train_loss,
        val_loss)`` raises goes through; losses are shares of the variance of Y's training rows.
        """
        x, y, x_val, y_val = self._parts(X, Y, X_val, Y_val)
        recipe = self._recipe(max(x.shape[1], y.shape[1]))
        self.checkpoint = self.trace = None
        self._scales(x, y)
        self._widths(x.shape[1], y.shape[1])
        xs, ys, xs_val, ys_val = self._in_a(x), self._in_b(y), self._in_a(x_val), self._in_b(y_val)
        share = self._scale_b.square() / (ys.square().mean(0) @ self._scale_b.square())
        self._begin(xs, ys, xs_val, ys_val, share)
        self._network = self._make(x.shape[1], y.shape[1])
        share32 = self._padded(share[None])[0].float()
        training, validation = (self._rows(a, b) for a, b in ((xs, ys), (xs_val, ys_val)))

        def keep(state: Checkpoint) -> None:
            self.checkpoint = state

        self.trace = train(
            self._network,
            training,
            validation,
            share32,
            recipe,
            report=report,
            resume=resume,
            keep=keep,
            sound=self._soundness(xs_val),
        )
        self.width_a, self.width_b, self.rows = x.shape[1], y.shape[1], len(x)
        self._measure(xs)
        return self

    @property
    def ended(self) -> str:
        """Why training stopped; empty before ``fit``."""
        return self.trace.ended if self.trace else ""

    def _recipe(self, width: int) -> Recipe:
        rate = usual_rate(width) if self.rate is None else self.rate
        return Recipe(self.epochs, self.patience, self.batch, rate, self.schedule, self.decay, self.seed, self.device)

    def _parts(self, X: Any, Y: Any, X_val: Any, Y_val: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        check_range("The seed of a training", self.seed, 0, 2**31)
        x, y = (each.double() for each in paired(X, Y))
        if (X_val is None) != (Y_val is None):
            raise InputError("Validation rows come in pairs: give both X_val and Y_val, or neither.")
        if X_val is None:
            need_rows(len(x), LEAST_ROWS + 1, "row", "give more rows")
            aside = split_items(len(x), None, _ASIDE, self.seed)
            return x[~aside], y[~aside], x[aside], y[aside]
        need_rows(len(x), LEAST_ROWS, "training row", "give more rows")
        x_val, y_val = (each.double() for each in paired(X_val, Y_val))
        if (x.shape[1], y.shape[1]) != (x_val.shape[1], y_val.shape[1]):
            raise Incomparable("The validation rows are not as wide as the training rows.")
        return x, y, x_val, y_val

    def _scales(self, x: Tensor, y: Tensor) -> None:
        self._mean_a, self._mean_b = x.mean(0), y.mean(0)
        self._scale_a, self._scale_b = (_spread(each) for each in (x, y))
        for name, rows, scale in (("X", x, self._scale_a), ("Y", y, self._scale_b)):
            if not bool((scale > 0).any()):
                raise Incomparable(
                    f"The {len(rows):,} training rows of {name} are all equal, so nothing can be mapped; choose others."
                )
            scale[scale == 0] = 1.0

    def _in_a(self, x: Tensor) -> Tensor:
        return (x.double() - self._mean_a) / self._scale_a

    def _in_b(self, y: Tensor) -> Tensor:
        return (y.double() - self._mean_b) / self._scale_b

    def _widths(self, width_a: int, width_b: int) -> None:
        """Check what the network can be between the two widths."""

    def _padded(self, rows: Tensor) -> Tensor:
        return rows

    def _begin(self, x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, share: Tensor) -> None:
        raise NotImplementedError

    def _make(self, width_a: int, width_b: int) -> Network:
        raise NotImplementedError

    def _rows(self, x: Tensor, y: Tensor) -> Paired32:
        """Return what the network is given and what it is to give."""
        raise NotImplementedError

    def _predict(self, x: Tensor) -> Tensor:
        """Map standardised coordinates to standardised coordinates, float64: only what is given back is rounded."""
        raise NotImplementedError

    def _soundness(self, x: Tensor) -> Callable[[], bool] | None:
        """Return what says of the network in training whether it may be used, by validation rows."""
        return None

    def _measure(self, x: Tensor) -> None:
        """Note what is known of the Jacobian over training rows."""

    def _started(self, x: Tensor) -> Tensor:
        return x @ self._matrix[: x.shape[1]] + self._offset

    def _forward(self, x: Tensor) -> Tensor:
        return self._predict(self._in_a(x)) * self._scale_b + self._mean_b

    def _backward(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def _arrays(self) -> dict[str, Tensor]:
        scales = {"mean_a": self._mean_a, "scale_a": self._scale_a, "mean_b": self._mean_b, "scale_b": self._scale_b}
        trace = self.trace
        if trace is not None:
            scales |= {"train_curve": trace.train, "validation_curve": trace.validation}
        return scales | {"weights": self._network.weights, "matrix": self._matrix, "offset": self._offset}

    def _facts(self) -> dict[str, Any]:
        best = self.trace.best_epoch if self.trace else 0
        return {"start": self.start, "best_epoch": best, "ended": self.ended}

    def _restore(self, arrays: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._widths(self.width_a, self.width_b)
        for name, width in (("a", self.width_a), ("b", self.width_b)):
            mean, scale = (arrays[f"{what}_{name}"].double() for what in ("mean", "scale"))
            if mean.shape != (width,) or scale.shape != (width,) or not bool((scale > 0).all()):
                raise ValueError(f"mean_{name} and scale_{name}")
            setattr(self, f"_mean_{name}", mean)
            setattr(self, f"_scale_{name}", scale)
        self._matrix, self._offset = arrays["matrix"].double(), arrays["offset"].double()
        self._network = self._make(self.width_a, self.width_b)
        wide = len(self._padded(torch.zeros(1, self.width_b))[0])
        if self._matrix.shape[1] != wide or self._offset.shape != (wide,):
            raise ValueError(f"matrix {tuple(self._matrix.shape)}")
        self._network.weights.copy_(arrays["weights"])
        self.start = str(facts["start"])
        curves = arrays["train_curve"], arrays["validation_curve"]
        self.trace = Trace(*curves, int(facts["best_epoch"]), str(facts["ended"]))


def usual_rate(width: int) -> float:
    """Return Adam's rate at the start for networks of a width: 1e-3, from 128 on as much less as it is wider, ≥ 1e-4.

    A step changes every weight by about the rate, and an output by that times the units it is made of.
    """
    return max(1e-4, 1e-3 * min(1.0, 128 / width))


def _spread(rows: Tensor) -> Tensor:
    """Return each feature's standard deviation, (d,), and 0 for one that is constant up to rounding."""
    spread = rows.std(0, correction=0)
    noise = 32 * torch.finfo(torch.float64).eps * rows.abs().amax(0)
    return torch.where(spread > noise, spread, torch.zeros_like(spread))
