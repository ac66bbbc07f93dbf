"""Networks that are trained through autograd: the single block of BERT-INN, and a perceptron that has no inverse.

Both keep flat weights and a flat gradient as :class:`embcompare.maps.coupling.Network` asks.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from embcompare.maps.coupling import flat_views

OFFSET = 1e-8
"""What the single block adds to every scale."""


class FlatNetwork:
    """Weights in one vector, cut into the shapes of its layers: (out, in), each followed by its bias (out,)."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.weights = torch.zeros(sum(math.prod(shape) for shape in shapes))
        self.gradient = torch.zeros_like(self.weights)

    def to(self, device: torch.device | str) -> None:
        """Move weights and gradient to a device."""
        self.weights, self.gradient = self.weights.to(device), self.gradient.to(device)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, D) in the dtype of ``x``."""
        return self.run(x, flat_views(self.weights.to(x.dtype), self.shapes))

    def run(self, x: Tensor, layers: list[Tensor]) -> Tensor:
        """Map (n, D) with the layers given."""
        raise NotImplementedError

    def learn(self, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """Return the loss of a batch and leave its gradient in ``gradient``."""
        layers = [each.detach().requires_grad_() for each in flat_views(self.weights, self.shapes)]
        loss = torch.mv((self.run(x, layers) - y).square(), share).mean()
        slopes = torch.autograd.grad(loss, layers)
        for into, slope in zip(flat_views(self.gradient, self.shapes), slopes, strict=True):
            into.copy_(slope)
        return loss.detach()


class SingleBlock(FlatNetwork):
    """The one block of the official BERT-INN code: two couplings by even and odd coordinates that share their networks.

    With b the mask of the coordinates kept, first the even ones and then the odd ones:
    ``y = b x + (1 - b) (x (exp(s) + 1e-8) + t)``, ``s = tanh(f_s(b x))`` and ``t = f_t(b x)``, f_s and f_t being of
    layers D, 4D, 4D, D with SELU, started as Xavier's normal numbers, biases too. Source: Ren et al. 2023 and the code
    published with it, re-derived.
    """

    def __init__(self, width: int, seed: int) -> None:
        sizes = [width, 4 * width, 4 * width, width]
        super().__init__(2 * _layers(sizes))
        self.width = width
        self.matrix, self.offset = torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        for view in flat_views(self.weights, self.shapes):
            # a bias counts as one column
            fans = view.shape[0] + (view.shape[1] if view.ndim == 2 else 1)
            view.copy_(torch.randn(view.shape, generator=generator) * math.sqrt(2 / fans))

    def place(self, matrix: Tensor, offset: Tensor) -> None:
        """Put the fixed map ``x matrix + offset``, (D, D) and (D,), before the block."""
        self.matrix, self.offset = matrix.double(), offset.double()

    def to(self, device: torch.device | str) -> None:
        """Move weights, gradient and the map before the block to a device."""
        super().to(device)
        self.matrix, self.offset = self.matrix.to(device), self.offset.to(device)

    def _enter(self, x: Tensor) -> Tensor:
        return torch.addmm(self.offset.to(x), x, self.matrix.to(x))

    def _kept(self, x: Tensor) -> tuple[Tensor, Tensor]:
        even = (torch.arange(self.width, device=x.device) % 2 == 0).to(x.dtype)
        return even, 1 - even

    @staticmethod
    def _read(x: Tensor, layers: list[Tensor]) -> Tensor:
        for k in range(0, len(layers), 2):
            x = functional.linear(x, layers[k], layers[k + 1])
            x = functional.selu(x) if k < len(layers) - 2 else x
        return x

    def _scale_shift(self, kept: Tensor, layers: list[Tensor]) -> tuple[Tensor, Tensor]:
        half = len(layers) // 2
        return self._read(kept, layers[:half]).tanh().exp() + OFFSET, self._read(kept, layers[half:])

    def run(self, x: Tensor, layers: list[Tensor]) -> Tensor:
        """Map (n, D)."""
        x = self._enter(x)
        for mask in self._kept(x):
            scale, shift = self._scale_shift(x * mask, layers)
            x = x * mask + (1 - mask) * (x * scale + shift)
        return x

    def forward_with_log(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (n, D), and return log |det J| of every row, (n,)."""
        layers, x = flat_views(self.weights.to(x.dtype), self.shapes), self._enter(x)
        log = x.new_zeros(len(x)) + torch.linalg.slogdet(self.matrix).logabsdet.to(x)
        for mask in self._kept(x):
            scale, shift = self._scale_shift(x * mask, layers)
            x = x * mask + (1 - mask) * (x * scale + shift)
            log = log + scale.log() @ (1 - mask)
        return x, log

    def inverse(self, y: Tensor) -> Tensor:
        """Undo :meth:`forward`."""
        layers = flat_views(self.weights.to(y.dtype), self.shapes)
        for mask in reversed(self._kept(y)):
            scale, shift = self._scale_shift(y * mask, layers)
            y = y * mask + (1 - mask) * ((y - shift) / scale)
        undone: Tensor = torch.linalg.solve(self.matrix.to(y), y - self.offset.to(y), left=False)
        return undone


class Perceptron(FlatNetwork):
    """Layers of the sizes given, GELU between them; the last starts at zero, and so does the network."""

    def __init__(self, sizes: list[int], seed: int) -> None:
        super().__init__(_layers(sizes))
        generator = torch.Generator().manual_seed(seed)
        views = flat_views(self.weights, self.shapes)
        for view in views[:-2]:
            if view.ndim == 2:
                view.copy_(torch.randn(view.shape, generator=generator) * math.sqrt(2 / view.shape[1]))

    def run(self, x: Tensor, layers: list[Tensor]) -> Tensor:
        """Map (n, D)."""
        for k in range(0, len(layers), 2):
            x = functional.linear(x, layers[k], layers[k + 1])
            x = functional.gelu(x) if k < len(layers) - 2 else x
        return x


def _layers(sizes: list[int]) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    for given, made in pairwise(sizes):
        shapes += [(made, given), (made,)]
    return shapes
