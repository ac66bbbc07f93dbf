"""Maps through canonical variates: X becomes its variates X aᵢ, these predict Y's variates Y bᵢ, and these Y.

aᵢ and bᵢ are such that X aᵢ and Y bᵢ, of the centred training rows, are orthonormal among themselves and the
correlation of the pair i is ρᵢ (Hotelling 1936). What predicts Y best from X aᵢ is ρᵢ times the Y variate, so with
every variate kept the CCA map *is* least squares; SVCCA and PWCCA leave variates out, each by its own rule. With
``shrink=False`` a variate is replaced by its partner without the ρᵢ: the variance of Y is kept, at the cost of error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from embcompare.errors import Incomparable
from embcompare.maps.affine import AffineMap
from embcompare.maps.base import check_range
from embcompare.maps.kernel import Kernel
from embcompare.maps.paired import need_rows
from embcompare.measures.canonical import prepare_cca
from embcompare.measures.declaration import UndefinedMeasure

_MORE = "give more rows, or keep fewer aside: with fewer every layer correlates perfectly with every other"


@dataclass(eq=False)
class CCAMap(AffineMap):
    """Prediction of Y through all canonical variates; least squares with ``shrink``. Needs n > max(d_a, d_b).

    ``directions_a`` (d_a, k) and ``directions_b`` (d_b, k) hold aᵢ and bᵢ, ``correlations`` (k,) the ρᵢ, descending,
    and ``weights`` (k,) how much of X each variate carries, αᵢ = Σⱼ |⟨X aᵢ, xⱼ⟩| over the features xⱼ of X, as shares.
    """

    name: ClassVar[str] = "cca"
    shrink: bool = True
    directions_a: Tensor = field(init=False, repr=False)
    directions_b: Tensor = field(init=False, repr=False)
    correlations: Tensor = field(init=False, repr=False)
    weights: Tensor = field(init=False, repr=False)

    def _keep_of_layer(self) -> float | None:
        return None

    def _keep_of_weights(self, weights: Tensor) -> Tensor:
        return torch.ones(len(weights), dtype=torch.bool)

    def _solve(self, x: Tensor, y: Tensor) -> Kernel:
        need_rows(len(x), max(x.shape[1], y.shape[1]) + 1, "row", _MORE)
        basis_x, loadings_x = self._basis(x, "X")
        basis_y, loadings_y = self._basis(y, "Y")
        left, rho, right = torch.linalg.svd(basis_x.T @ basis_y, full_matrices=False)
        weights = (loadings_x @ left).abs().sum(0)
        weights = weights / weights.sum()
        kept = self._keep_of_weights(weights)
        left, rho, right = left[:, kept], rho[kept], right.T[:, kept]
        self.directions_a = loadings_x / loadings_x.square().sum(0) @ left
        self.directions_b = loadings_y / loadings_y.square().sum(0) @ right
        self.correlations, self.weights = rho, weights[kept]
        carried = rho if self.shrink else torch.ones_like(rho)
        matrix = (self.directions_a * carried) @ (loadings_y @ right).T
        offset = y.double().mean(0) - x.double().mean(0) @ matrix
        rank = int((carried > 1e-12).sum())
        return Kernel(self.name, matrix, offset, rank, 1.0)

    def _basis(self, rows: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return an orthonormal basis (n, r) of the centred rows, and loadings (d, r): rows = basis loadingsᵀ."""
        try:
            basis = torch.from_numpy(prepare_cca(rows, keep=self._keep_of_layer()).basis)
        except UndefinedMeasure as reason:
            raise Incomparable(f"The map '{self.name}' cannot be fitted on {name}: {reason}") from reason
        centred = rows.double() - rows.double().mean(0)
        return basis, centred.T @ basis

    def _arrays(self) -> dict[str, Tensor]:
        own = ("directions_a", "directions_b", "correlations", "weights")
        return super()._arrays() | {each: getattr(self, each) for each in own}

    def _restore(self, arrays: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        super()._restore(arrays, facts)
        k = len(arrays["correlations"])
        shapes = {"directions_a": (self.width_a, k), "directions_b": (self.width_b, k)}
        for name, shape in (shapes | {"correlations": (k,), "weights": (k,)}).items():
            if arrays[name].shape != shape:
                raise ValueError(f"{name} is {tuple(arrays[name].shape)}")
            setattr(self, name, arrays[name].double())


@dataclass(eq=False)
class SVCCAMap(CCAMap):
    """The CCA map of the fewest principal directions of each side that hold ``keep`` of its variance.

    Source: Raghu et al. 2017, for the reduction; the prediction through it as for :class:`CCAMap`.
    """

    name: ClassVar[str] = "svcca"
    keep: float = 0.99

    def _keep_of_layer(self) -> float | None:
        check_range("The share of variance that SVCCA keeps", self.keep, 1e-6, 1)
        return self.keep


@dataclass(eq=False)
class PWCCAMap(CCAMap):
    """The CCA map of the variates that carry most of X: the fewest that together hold ``keep`` of the weights αᵢ.

    Source: Morcos et al. 2018, for the weights. That work uses them for a mean of the ρᵢ and defines no map; leaving
    out the variates of least weight is this project's own.
    """

    name: ClassVar[str] = "pwcca"
    keep: float = 0.99

    def _keep_of_weights(self, weights: Tensor) -> Tensor:
        check_range("The share of projection weight that PWCCA keeps", self.keep, 1e-6, 1)
        order = weights.argsort(descending=True, stable=True)
        before = weights[order].cumsum(0) - weights[order]
        kept = torch.zeros(len(weights), dtype=torch.bool)
        # the slack forgives rounding at 1.0
        kept[order[before < self.keep - 1e-12]] = True
        return kept
