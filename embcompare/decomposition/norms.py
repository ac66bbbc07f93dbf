"""Norms as linear maps: once a token's own mean and length are known, a norm scales and shifts its terms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from embcompare.models.anatomy import NormWeights


def double_norm(weights: NormWeights) -> NormWeights:
    """Return a norm in float64; nothing is copied that is float64 already."""
    bias = weights.bias
    return dataclasses.replace(weights, gain=weights.gain.double(), bias=None if bias is None else bias.double())


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A LayerNorm or RMSNorm with the statistics of the states ``x`` that it read, as an affine map of parts of x.

    With mean m and standard deviation s of each token's x (s the root of its mean square for RMSNorm, where m = 0),
    gain g and bias b: norm(x) = linear(x) + shift (Mickus, Paperno & Constant 2022). Where
    ``own_mean``, each part is centred by its own mean, linear(p) = g/s (p - mean(p)) and shift = b; else linear(p) =
    g/s p and shift = b - g m/s. Both ways parts that add up to x add up to norm(x).
    """

    weights: NormWeights
    scale: Tensor
    mean: Tensor | None
    own_mean: bool

    @classmethod
    def of(cls, weights: NormWeights, x: Tensor, *, own_mean: bool = False) -> FrozenNorm:
        """Freeze a norm, float64, on what it read, (..., d)."""
        mean = x.mean(-1, keepdim=True) if weights.kind == "layer" else None
        centred = x if mean is None else x - mean
        scale = (centred.square().mean(-1, keepdim=True) + weights.eps).rsqrt()
        return cls(weights, scale, mean, own_mean)

    def linear(self, part: Tensor) -> Tensor:
        """Return what the norm makes of a part (..., d) of what it read."""
        if self.own_mean and self.mean is not None:
            part = part - part.mean(-1, keepdim=True)
        return part * self.scale * self.weights.gain

    def shift(self) -> Tensor | None:
        """Return what the norm adds beside, (..., d) or (d,); None where it adds nothing."""
        bias = self.weights.bias
        if self.mean is None or self.own_mean:
            return bias
        moved = -self.mean * self.scale * self.weights.gain
        return moved if bias is None else moved + bias
