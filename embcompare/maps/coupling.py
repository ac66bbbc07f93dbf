"""An invertible network of affine couplings, with its gradient written out.

The weights are one flat float32 vector and so is the gradient, so that an optimiser makes one pass and a checkpoint is
one array. The gradient is by hand because a training step is then little more than its matrix products: see
``benchmarks/inn.py`` for what that gains over libraries of flows.

Block j takes the coordinates in an order πⱼ of its own, drawn once from the seed, as halves a (the larger, where the
width is odd) and b, and does two couplings, so that every coordinate is changed once a block:
``b ← b exp(s(a)) + t(a)``, then ``a ← a exp(s'(b)) + t'(b)``. s and t come of one network with one hidden layer,
``[r, t] = relu(a W₁ + c₁) W₂ + c₂`` and ``s = clip tanh(r / clip)``. W₂ and c₂ start at zero: the network starts as the
identity, exactly. A linear map of the whole width can stand between two blocks (:meth:`CouplingStack.place`), which
bends coordinates of both sides; it is not trained. Source: Dinh, Sohl-Dickstein & Bengio 2017 (RealNVP), sections 3.2
to 3.5.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

Layer = tuple[Tensor, Tensor, Tensor, Tensor]


class Network(Protocol):
    """What the training loop asks of a network: flat weights (P,), their gradient (P,), and the two passes."""

    weights: Tensor
    gradient: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, D)."""

    def to(self, device: torch.device | str) -> None:
        """Move everything to a device."""

    def learn(self, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """Return the loss, Σⱼ shareⱼ · mean over rows of (ŷⱼ - yⱼ)², and leave its gradient in ``gradient``."""


def flat_views(flat: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Cut a flat vector into views of the shapes, in order."""
    sizes = [math.prod(shape) for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


class CouplingStack:
    """``blocks`` pairs of couplings over ``width`` ≥ 2 coordinates; see the module."""

    def __init__(self, width: int, blocks: int, hidden: int, clip: float, seed: int) -> None:
        self.width, self.clip = width, clip
        self.before: int | None = None
        generator = torch.Generator().manual_seed(seed)
        self.orders = torch.stack([torch.randperm(width, generator=generator) for _ in range(blocks)])
        # the order of a block, in the coordinates that the block before left, and that back to the start
        self.steps = [self.orders[0]]
        self.steps += [before.argsort()[after] for before, after in pairwise(self.orders)]
        self.back = [step.argsort() for step in self.steps]
        self.last, self.unlast = self.orders[-1].argsort(), self.orders[-1]
        self.cut = width - width // 2
        self.shapes: list[tuple[int, ...]] = []
        for _ in range(blocks):
            for given, changed in ((self.cut, width - self.cut), (width - self.cut, self.cut)):
                self.shapes += [(given, hidden), (hidden,), (hidden, 2 * changed), (2 * changed,)]
        self.weights = torch.zeros(sum(math.prod(shape) for shape in self.shapes))
        self.gradient = torch.zeros_like(self.weights)
        for first, _, _, _ in self.layers():
            first.copy_(torch.randn(first.shape, generator=generator) * math.sqrt(2 / first.shape[0]))

    def place(self, matrix: Tensor, offset: Tensor, before: int) -> None:
        """Put the fixed map ``x matrix + offset``, (D, D) and (D,), before the block numbered ``before``, from 0.

        It stands where the order changes, and its rows and columns are put into the orders that it stands between.
        """
        if matrix.shape != (self.width, self.width) or offset.shape != (self.width,):
            raise ValueError(f"matrix {tuple(matrix.shape)} and offset {tuple(offset.shape)}")
        into = self.orders[before]
        rows = self.orders[before - 1] if before else torch.arange(self.width)
        self.before, self.matrix, self.offset = before, matrix[rows][:, into].double(), offset[into].double()
        self.matrix32, self.offset32 = self.matrix.float(), self.offset.float()

    def to(self, device: torch.device | str) -> None:
        """Move weights, gradient, orders and the map between blocks to a device."""
        self.weights, self.gradient = self.weights.to(device), self.gradient.to(device)
        self.orders, self.last, self.unlast = (each.to(device) for each in (self.orders, self.last, self.unlast))
        self.steps, self.back = ([each.to(device) for each in orders] for orders in (self.steps, self.back))
        if self.before is not None:
            self.matrix, self.offset = self.matrix.to(device), self.offset.to(device)
            self.matrix32, self.offset32 = self.matrix32.to(device), self.offset32.to(device)

    def layers(self, flat: Tensor | None = None) -> list[Layer]:
        """Return (W₁, c₁, W₂, c₂) of every coupling, as views of the weights or of another vector of their size."""
        views = flat_views(self.weights if flat is None else flat, self.shapes)
        return [(views[k], views[k + 1], views[k + 2], views[k + 3]) for k in range(0, len(views), 4)]

    def _like(self, x: Tensor) -> list[Layer]:
        return self.layers(self.weights.to(x)) if x.dtype != self.weights.dtype else self.layers()

    def _scale_shift(self, given: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
        first, bias, second, bias2 = layer
        out = torch.addmm(bias2, torch.addmm(bias, given, first).relu(), second)
        changed = second.shape[1] // 2
        return torch.tanh(out[:, :changed] / self.clip) * self.clip, out[:, changed:]

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, D) in the dtype of ``x``."""
        return self.forward_with_log(x)[0]

    def forward_with_log(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (n, D), and return log |det J| of every row, (n,): all log-scales, and the fixed map."""
        layers, log = self._like(x), x.new_zeros(len(x))
        for block in range(len(self.steps)):
            x = self._enter(x, block)
            a, b = x[:, : self.cut], x[:, self.cut :]
            s, t = self._scale_shift(a, layers[2 * block])
            b, log = b * s.exp() + t, log + s.sum(1)
            s, t = self._scale_shift(b, layers[2 * block + 1])
            a, log = a * s.exp() + t, log + s.sum(1)
            x = torch.cat([a, b], 1)
        if self.before is not None:
            log = log + torch.linalg.slogdet(self.matrix).logabsdet.to(log)
        return x.index_select(1, self.last), log

    def _enter(self, x: Tensor, block: int) -> Tensor:
        """Take the coordinates from the order of the block before to that of this one."""
        if block != self.before:
            return x.index_select(1, self.steps[block])
        if x.dtype == torch.float32:
            return torch.addmm(self.offset32, x, self.matrix32)
        return torch.addmm(self.offset.to(x), x, self.matrix.to(x))

    def _leave(self, x: Tensor, block: int) -> Tensor:
        if block != self.before:
            return x.index_select(1, self.back[block])
        undone: Tensor = torch.linalg.solve(self.matrix.to(x), x - self.offset.to(x), left=False)
        return undone

    def inverse(self, y: Tensor) -> Tensor:
        """Undo :meth:`forward`: the same passes, backwards."""
        layers = self._like(y)
        y = y.index_select(1, self.unlast)
        for block in reversed(range(len(self.steps))):
            a, b = y[:, : self.cut], y[:, self.cut :]
            s, t = self._scale_shift(b, layers[2 * block + 1])
            a = (a - t) * (-s).exp()
            s, t = self._scale_shift(a, layers[2 * block])
            b = (b - t) * (-s).exp()
            y = self._leave(torch.cat([a, b], 1), block)
        return y

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """Return the loss of a batch and leave its gradient in ``gradient``; see :class:`Network`."""
        layers, slopes, tape = self.layers(), self.layers(self.gradient), []
        for block in range(len(self.steps)):
            x = self._enter(x, block)
            a, b = x[:, : self.cut], x[:, self.cut :]
            x = torch.empty_like(x)
            tape.append(self._couple(a, b, layers[2 * block], x[:, self.cut :]))
            tape.append(self._couple(x[:, self.cut :], a, layers[2 * block + 1], x[:, : self.cut]))
        missed = x.index_select(1, self.last).sub_(y)
        grad = missed * share
        loss = torch.dot(grad.flatten(), missed.flatten()) / len(y)
        grad = grad.mul_(2 / len(y)).index_select(1, self.unlast)
        for block in reversed(range(len(self.steps))):
            g_a, g_b = grad[:, : self.cut], grad[:, self.cut :]
            k = 2 * block
            g_a = self._uncouple(g_a, layers[k + 1], slopes[k + 1], tape[k + 1], g_b)
            g_b = self._uncouple(g_b, layers[k], slopes[k], tape[k], g_a if block else None)
            if block:
                grad = torch.cat([g_a, g_b], 1)
                grad = grad @ self.matrix32.T if block == self.before else grad.index_select(1, self.back[block])
        return loss

    def _couple(self, given: Tensor, changed: Tensor, layer: Layer, out: Tensor) -> tuple[Tensor, ...]:
        first, bias, second, bias2 = layer
        hidden = torch.addmm(bias, given, first).relu_()
        made = torch.addmm(bias2, hidden, second)
        width = changed.shape[1]
        # tanh(r) = 2 σ(2 r) - 1, and on a CPU σ takes a third of the time
        bent = (made[:, :width] * (2 / self.clip)).sigmoid_().mul_(2).sub_(1)
        scale = (bent if self.clip == 1 else bent * self.clip).exp()
        torch.addcmul(made[:, width:], changed, scale, out=out)
        return given, changed, hidden, bent, scale

    def _uncouple(
        self, g_out: Tensor, layer: Layer, slope: Layer, tape: tuple[Tensor, ...], g_given: Tensor | None
    ) -> Tensor:
        """Leave the gradients of a coupling's weights, add to that of the half given, return that of the half changed.

        ``g_out`` is the gradient of the half that the coupling changed, after the change. ``g_given`` is None where
        nobody asks for that of the half it was given: in the first coupling, whose input is data.
        """
        given, changed, hidden, bent, scale = tape
        width = changed.shape[1]
        g_changed = g_out * scale
        g_made = g_out.new_empty(len(g_out), 2 * width)
        # of s = clip tanh(r / clip) by r: 1 - tanh²
        torch.ops.aten.tanh_backward.grad_input(g_changed * changed, bent, grad_input=g_made[:, :width])
        g_made[:, width:] = g_out
        torch.mm(hidden.T, g_made, out=slope[2])
        torch.sum(g_made, 0, out=slope[3])
        g_hidden = torch.ops.aten.threshold_backward(g_made @ layer[2].T, hidden, 0)
        torch.mm(given.T, g_hidden, out=slope[0])
        torch.sum(g_hidden, 0, out=slope[1])
        if g_given is not None:
            g_given.addmm_(g_hidden, layer[0].T)
        return g_changed
