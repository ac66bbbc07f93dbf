"""The shape that all fitted maps share: sklearn's verbs over paired rows, and arrays with a header to keep them by.

Row k of X (n, d_a) and of Y (n, d_b) is the same place in the same text. What every map does with awkward input:

- arrays that are empty, not (rows, features), not floating, not finite or not paired: :class:`InputError`;
- rows that are all equal, on either side: :class:`Incomparable`, but for the mean and the identity, which need no
  variance;
- too few rows: :class:`~embcompare.maps.kernel.TooFewRows`, which names how many would do;
- duplicated or constant features, and directions that never occur: carried by no linear map (``rank``), which is then
  not ``invertible``; a network is invertible all the same, and says how badly (``condition``);
- duplicated rows: taken as they are, each counts;
- a score that is not defined: NaN with a reason.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import EmbcompareError, EmbcompareWarning, Incomparable, InputError, SettingsError
from embcompare.maps.paired import as_rows
from embcompare.words import plural

Report = Callable[[int, int, float, float], None]
"""``report(epoch, epochs, train_loss, val_loss)``; what it raises ends the fit."""
FORMAT = 1
"""Number of the layout that :meth:`Map.to_arrays` writes."""


class NotFitted(EmbcompareError):
    """A map is asked to map before it was fitted."""


class NotInvertible(Incomparable):
    """A map has no inverse; the message says why."""


@dataclass(eq=False)
class Map(ABC):
    """A map of row vectors of one representation to another; its fields are its options, set before ``fit``.

    ``width_a`` and ``width_b`` are the widths it was fitted on, ``rows`` on how many rows. ``invertible`` says whether
    ``inverse_transform(transform(x))`` is x for every x, ``log_determinant`` is log |det J| (NaN between different
    widths, -inf where J is singular), ``condition`` the ratio of J's largest to its smallest singular value; of a
    network both are over training rows.
    """

    name: ClassVar[str] = ""
    width_a: int = field(init=False, default=0)
    width_b: int = field(init=False, default=0)
    rows: int = field(init=False, default=0)

    @abstractmethod
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
        """Fit on (n, d_a) and (n, d_b), numpy or torch of any floating dtype, and return self.

        Validation rows, ``report`` and ``resume`` are for maps that are trained; one in closed form ignores them.
        Errors: see the module.
        """

    @property
    @abstractmethod
    def invertible(self) -> bool:
        """Whether every x comes back from ``inverse_transform(transform(x))``."""

    @property
    @abstractmethod
    def log_determinant(self) -> float:
        """Logarithm of |det J|; NaN between different widths."""

    @property
    @abstractmethod
    def condition(self) -> float:
        """Largest over smallest singular value of the Jacobian; inf where it is singular."""

    @abstractmethod
    def _forward(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _backward(self, y: Tensor) -> Tensor: ...

    @abstractmethod
    def _arrays(self) -> dict[str, Tensor]: ...

    @abstractmethod
    def _restore(self, arrays: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None: ...

    def _facts(self) -> dict[str, Any]:
        return {}

    def transform(self, X: Any) -> Any:
        """Map (n, d_a) to (n, d_b): numpy or torch as given, float64 for float64 and float32 for anything narrower.

        Raises :class:`NotFitted`, :class:`InputError`, :class:`Incomparable` for another width.
        """
        return self._through(X, self.width_a, self._forward)

    def inverse_transform(self, Y: Any) -> Any:
        """Map (n, d_b) back to (n, d_a); dtypes and errors as :meth:`transform`, and :class:`NotInvertible`."""
        self._fitted()
        if not self.invertible:
            raise NotInvertible(self.why_not_invertible())
        return self._through(Y, self.width_b, self._backward)

    def score(self, X: Any, Y: Any) -> float:
        """R² over all features together, 1 - ‖Y - Ŷ‖² / ‖Y - ȳ‖² with ȳ the mean of the rows given.

        That is scikit-learn's ``r2_score`` with ``multioutput="variance_weighted"``. NaN with a warning where Y is
        constant. Errors as :meth:`transform`.
        """
        _, y = paired(X, Y)
        total = float((y.double() - y.double().mean(0)).square().sum())
        missed = float((y.double() - torch.as_tensor(self.transform(X)).double().cpu()).square().sum())
        if not total > 0:
            warnings.warn("R² is undefined here: the target rows are all equal.", EmbcompareWarning, stacklevel=2)
            return math.nan
        return 1 - missed / total

    @property
    def options(self) -> dict[str, Any]:
        """What it was made with, ready for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the learned arrays by name and a header ready for JSON; raises :class:`NotFitted`."""
        self._fitted()
        header = {"map": self.name, "format": FORMAT, "options": self.options, "facts": self._facts()}
        header |= {"width_a": self.width_a, "width_b": self.width_b, "rows": self.rows}
        return {name: np.ascontiguousarray(each.cpu().numpy()) for name, each in self._arrays().items()}, header

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], header: Mapping[str, Any]) -> Self:
        """Make the map that :meth:`to_arrays` described; raises :class:`InputError` where the two do not fit."""
        if header.get("map") != cls.name or header.get("format") != FORMAT:
            raise InputError(
                f"The header is of a map '{header.get('map')}' in layout {header.get('format')}, and this reads "
                f"'{cls.name}' in layout {FORMAT}."
            )
        try:
            made = cls(**header["options"])
            made.width_a, made.width_b, made.rows = (int(header[each]) for each in ("width_a", "width_b", "rows"))
            made._restore({name: torch.tensor(np.asarray(each)) for name, each in arrays.items()}, header["facts"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"The arrays of a map '{cls.name}' do not fit its header: {error}.") from error
        for name, each in made._arrays().items():
            if each.is_floating_point() and not bool(torch.isfinite(each).all()):
                raise InputError(f"The array '{name}' of a map '{cls.name}' holds NaN or infinite values.")
        return made

    def _fitted(self) -> None:
        if not self.width_a:
            raise NotFitted(f"The map '{self.name}' is not fitted yet; call fit(X, Y) first.")

    def why_not_invertible(self) -> str:
        if self.width_a > self.width_b:
            return (
                f"The map '{self.name}' from {self.width_a} to {self.width_b} wide loses directions, so it has no "
                "inverse; fit one the other way."
            )
        return f"The map '{self.name}' does not carry every direction, so it has no inverse."

    def _through(self, given: Any, width: int, way: Callable[[Tensor], Tensor]) -> Any:
        self._fitted()
        rows = as_rows(given, "the array to map")
        if rows.shape[1] != width:
            raise Incomparable(f"The map '{self.name}' takes vectors {width} wide here, and these are {rows.shape[1]}.")
        finite = torch.isfinite(rows).all(1)
        if not bool(finite.all()):
            raise InputError(f"Row {int((~finite).nonzero()[0]):,} to map holds NaN or infinite values; leave it out.")
        wide = rows.dtype == torch.float64
        out = way(rows.cpu() if wide else rows.float().cpu()).to(torch.float64 if wide else torch.float32)
        return out.to(rows.device) if isinstance(given, Tensor) else out.numpy()


def paired(X: Any, Y: Any) -> tuple[Tensor, Tensor]:
    """Return both as finite tensors of equally many rows, as stored, on the CPU; raises :class:`InputError`."""
    x, y = as_rows(X, "X").cpu(), as_rows(Y, "Y").cpu()
    if len(x) != len(y):
        raise InputError(
            f"X has {plural(len(x), 'row')} and Y has {len(y):,}; row k of both must be one place in one text."
        )
    for name, rows in (("X", x), ("Y", y)):
        finite = torch.isfinite(rows).all(1)
        if not bool(finite.all()):
            bad = int((~finite).nonzero()[0])
            raise InputError(f"Row {bad:,} of {name} holds NaN or infinite values; leave it out of both arrays.")
    return x, y


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise :class:`SettingsError` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise SettingsError(f"{what} is one of {', '.join(choices)}; got {value!r}.")


def check_range(what: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise :class:`SettingsError` unless ``low`` ≤ ``value`` ≤ ``high`` and it is finite."""
    if not (low <= value <= high and math.isfinite(value)):
        upto = f"{low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
        raise SettingsError(f"{what} is {upto}; got {value:g}.")
