"""A feed-forward layer as an affine map: its activation replaced by the tangent at what it actually computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from embcompare.models.anatomy import FeedForwardWeights


def double_feed_forward(weights: FeedForwardWeights) -> FeedForwardWeights:
    """Return a feed-forward layer's weights in float64."""
    names = ("keys", "up", "values", "key_bias", "up_bias", "value_bias")
    changed: dict[str, Any] = {name: getattr(weights, name) for name in names}
    changed = {name: None if value is None else value.double() for name, value in changed.items()}
    return dataclasses.replace(weights, **changed)


def tangent(activate: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """Return act(z) and its derivative at z, elementwise, by autograd; at a kink (ReLU at 0) torch's choice, 0."""
    # Callers may run without gradients, or in inference mode, whose tensors autograd refuses: hence the copy.
    with torch.inference_mode(False), torch.enable_grad():
        at = z.detach().clone().requires_grad_()
        value = activate(at)
        (slope,) = torch.autograd.grad(value.sum(), at)
    return value.detach(), slope


@dataclass(frozen=True, eq=False)
class AffineFeedForward:
    """A feed-forward layer linearised at its actual input x (..., d): output(x) = linear(x) + shift, exactly.

    Plain: act(z) is replaced by act'(z) (·) + act(z) - act'(z) z at z = x Kᵀ + b (Oh & Schuler 2023).
    Gated, with u = x Uᵀ + b_u: the product act(z) ⊙ u by its own tangent, act'(z) u ⊙ dz + act(z) ⊙ du, or with the
    gate held, act(z) ⊙ du, so that the gate is a coefficient as an attention weight is.
    """

    weights: FeedForwardWeights
    slope: Tensor | None
    gate: Tensor | None
    shift: Tensor

    @classmethod
    def of(cls, weights: FeedForwardWeights, x: Tensor, gate: Literal["tangent", "held"]) -> AffineFeedForward:
        """Linearise a layer, float64, at its input."""
        z = x @ weights.keys.T
        bias = z.new_zeros(()) if weights.key_bias is None else weights.key_bias
        act, slope = tangent(weights.activate, z + bias)
        if weights.up is None:
            return cls(weights, slope, None, cls._out(weights, act - slope * z))
        u = x @ weights.up.T
        up_bias = u.new_zeros(()) if weights.up_bias is None else weights.up_bias
        if gate == "held":
            return cls(weights, None, act, cls._out(weights, act * up_bias))
        slope = slope * (u + up_bias)
        return cls(weights, slope, act, cls._out(weights, act * up_bias - slope * z))

    @staticmethod
    def _out(weights: FeedForwardWeights, coefficients: Tensor) -> Tensor:
        out = coefficients @ weights.values
        return out if weights.value_bias is None else out + weights.value_bias

    def linear(self, part: Tensor) -> Tensor:
        """Return what the layer makes of a part (..., d) of its input."""
        weights, inner = self.weights, None
        if self.slope is not None:
            inner = (part @ weights.keys.T).mul_(self.slope)
        if self.gate is not None and weights.up is not None:
            gated = (part @ weights.up.T).mul_(self.gate)
            inner = gated if inner is None else inner.add_(gated)
        assert inner is not None
        return inner @ weights.values
