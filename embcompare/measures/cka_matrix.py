"""Linear CKA of all layers of one model with all layers of another, as few large products.

A pair of layers needs ‖XᵀY‖² only (see :mod:`embcompare.measures.cka`), and a layer its own term once. Two ways lead
there, and the cheaper is taken: *features*, one product of each layer of A with all layers of B side by side,
(p, n) × (n, Σq); or *samples*, the upper triangle of each layer's n × n kernel by blocks of rows, whose entries are
then multiplied across layers. Products run in float32 on the device (in float64 where there are few), on features
that were centred and scaled in float64, and their sums are added in float64. What outweighs the rest is computed in
float64 altogether, for its rounding would not average out: the entries of XᵀY that outlier dimensions make, and the
kernel's rows of heavy samples, such as a first token that attention rests on. Such samples also stay out of the centre:
all other rows would be made similar by it, only to be told apart again by the estimator, which does not see a shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import SettingsError
from embcompare.measures.cka import NO_STRUCTURE, VANISHING, least_samples
from embcompare.measures.declaration import BadInput, UndefinedMeasure, as_matrix
from embcompare.measures.matrix import LayerMatrix

KERNEL_BYTES = 256 * 2**20
# Below this many operations float64 costs nothing that anybody would notice.
SMALL_WORK = 1e10
# A sample with more than this many times the mean squared norm is heavy; the heaviest so many are treated apart.
HEAVY_SAMPLE, MOST_HEAVY = 64.0, 64
# An entry of XᵀY with more than this share of ‖XᵀY‖² is computed again in float64.
HEAVY_ENTRY = 1 / 256
KERNEL_COLUMNS = 512
# What a kernel entry costs beyond its products, in the measured time of both ways.
SAMPLES_PENALTY = 1.5


@dataclass
class _Layers:
    """All layers of one model that have a value: features side by side (n, Σp), and each one's column offset.

    ``squares`` (L, n) are the rows' squared norms, ``sums`` (L, n) those of the kernel's rows, both of all samples;
    the heavy ones' kernel rows are in ``heavy`` (L, h, n), and their features are 0. ``light`` is ``squares`` for the
    others only.
    """

    features: Tensor
    offsets: list[int]
    defined: list[int]
    reasons: dict[int, str]
    squares: Tensor
    sums: Tensor
    light: Tensor
    heavy: Tensor

    def __len__(self) -> int:
        return len(self.defined)

    def layer(self, index: int) -> Tensor:
        return self.features[:, self.offsets[index] : self.offsets[index + 1]]

    @property
    def widths(self) -> list[int]:
        return [b - a for a, b in zip(self.offsets, self.offsets[1:], strict=False)]


def cka_matrix(
    layers_a: Sequence[Any],
    layers_b: Sequence[Any],
    *,
    debiased: bool = True,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    side: str = "auto",
    progress: Callable[[float], None] | None = None,
) -> LayerMatrix:
    """Return the (L_A, L_B) linear CKA of two sequences of (n, p) and (n, q) arrays with the same n samples.

    Pass the same sequence twice for one model with itself: half of the work. ``dtype`` is that of the products
    (float64 where they are few, else float32), ``side`` 'features', 'samples' or 'auto'; ``progress`` is told the
    share done, and may raise to stop. Within 1e-6 of the float64 formula. A constant layer gives a row of NaN with its
    reason. Raises :class:`BadInput` for unpaired samples or NaN rows.
    """
    if side not in ("auto", "features", "samples"):
        raise SettingsError(f"side is 'auto', 'features' or 'samples'; got {side!r}.")
    n = _samples(layers_a, layers_b)
    shape = (len(layers_a), len(layers_b))
    try:
        least_samples(n, debiased)
    except UndefinedMeasure as reason:
        return LayerMatrix.undefined(shape, str(reason))
    widths_a, widths_b = _widths(layers_a), _widths(layers_b)
    by_features, by_samples = _work(widths_a, widths_b, n, layers_b is layers_a)
    if dtype is None:
        dtype = torch.float64 if min(by_features, by_samples) < SMALL_WORK else torch.float32
    a = _prepare(layers_a, widths_a, n, dtype, device)
    b = a if layers_b is layers_a else _prepare(layers_b, widths_b, n, dtype, device)
    heavy = _heavy_samples(a, b)
    for layers in (a,) if a is b else (a, b):
        _set_apart(layers, heavy)
    tell = progress or (lambda share: None)
    if side == "auto":
        side = "features" if by_features < SAMPLES_PENALTY * by_samples else "samples"
    way = _by_features if side == "features" else _by_samples
    apart, own_a, own_b = way(a, b, tell)
    flat_a, flat_b = a.heavy.flatten(1), b.heavy.flatten(1)
    cross = _estimate(apart + 2 * flat_a @ flat_b.T, a, b, debiased)
    own_a = _estimate(torch.diag(own_a + 2 * flat_a.square().sum(1)), a, a, debiased).diagonal().clone()
    own_b = _estimate(torch.diag(own_b + 2 * flat_b.square().sum(1)), b, b, debiased).diagonal().clone()
    vanishing = VANISHING if dtype is torch.float64 else torch.finfo(dtype).eps
    for own, layers in ((own_a, a), (own_b, b)):
        for index in torch.nonzero(own <= vanishing * layers.light.square().sum(1)).flatten().tolist():
            layers.reasons[layers.defined[index]] = NO_STRUCTURE
            own[index] = torch.nan
    values = np.full(shape, np.nan)
    values[np.ix_(a.defined, b.defined)] = (cross / (own_a[:, None] * own_b).sqrt()).cpu().numpy()
    return LayerMatrix.of_layers(values, a.reasons, b.reasons)


def _samples(layers_a: Sequence[Any], layers_b: Sequence[Any]) -> int:
    sizes = [len(layer) for layer in (*layers_a, *layers_b)]
    if not sizes:
        raise BadInput("There is no layer to compare.")
    odd = next((size for size in sizes if size != sizes[0]), None)
    if odd is not None:
        raise BadInput(f"All layers need the same samples in one order; one has {sizes[0]} and another {odd}.")
    return sizes[0]


def _widths(layers: Sequence[Any]) -> list[int]:
    return [int((x if getattr(x, "ndim", 0) == 2 else as_matrix(x, "A layer")).shape[1]) for x in layers]


def _work(widths_a: list[int], widths_b: list[int], n: int, same: bool) -> tuple[float, float]:
    """Operations that the features' and the samples' way take."""
    own = sum(w * w for w in widths_a) + (0 if same else sum(w * w for w in widths_b))
    cross = sum(widths_a) * sum(widths_b) / (2 if same else 1)
    width = sum(widths_a) + (0 if same else sum(widths_b))
    return 2.0 * n * (own + cross), 1.0 * n * n * width


def _prepare(
    layers: Sequence[Any], widths: list[int], n: int, dtype: torch.dtype, device: str | torch.device
) -> _Layers:
    features = torch.empty(n, sum(widths), dtype=dtype, device=device)
    offsets, defined, reasons = [0], [], {}
    for index, layer in enumerate(layers):
        try:
            moved = _centre(layer, device)
        except UndefinedMeasure as reason:
            reasons[index] = str(reason)
            continue
        part = features[:, offsets[-1] : offsets[-1] + moved.shape[1]]
        part.copy_(moved)
        offsets.append(offsets[-1] + moved.shape[1])
        defined.append(index)
    none = torch.empty(len(defined), n, dtype=torch.float64, device=device)
    return _Layers(features[:, : offsets[-1]], offsets, defined, reasons, none, none.clone(), none, none[:, None])


def _heavy_samples(*models: _Layers) -> Tensor:
    """Return the samples whose vector outweighs the others in some layer, the heaviest first if there are many."""
    n = models[0].features.shape[0]
    shares = torch.zeros(n, dtype=torch.float64, device=models[0].features.device)
    for layers in models:
        for index in range(len(layers)):
            squares = torch.einsum("ij,ij->i", layers.layer(index), layers.layer(index)).double()
            shares = torch.maximum(shares, squares / squares.mean())
    heaviest, order = shares.sort(descending=True)
    return order[heaviest > HEAVY_SAMPLE][:MOST_HEAVY]


def _set_apart(layers: _Layers, heavy: Tensor) -> None:
    """Take the heavy samples out of the features, with all that the estimator needs of them, in float64."""
    n = layers.features.shape[0]
    light = torch.ones(n, dtype=torch.bool, device=heavy.device)
    light[heavy] = False
    layers.heavy = torch.empty(len(layers), len(heavy), n, dtype=torch.float64, device=heavy.device)
    for index in range(len(layers)):
        part = layers.layer(index)
        if len(heavy):
            part -= part[light].mean(0, dtype=torch.float64).to(part.dtype)
        # of the rounded features, so that what the estimator takes out is what went in
        exact = part.double()
        layers.squares[index] = exact.square().sum(1)
        layers.sums[index] = exact @ exact.sum(0)
        kernel = exact[heavy] @ exact.T
        # pairs of two heavy samples are met from both sides, and a sample with itself does not count
        kernel[:, heavy] *= math.sqrt(0.5)
        kernel[torch.arange(len(heavy), device=heavy.device), heavy] = 0
        layers.heavy[index] = kernel
        part[heavy] = 0
    layers.light = layers.squares * light


def _centre(layer: Any, device: str | torch.device) -> Tensor:
    """Centre in float64 and scale to a mean square of 1, so that no scale of the input can overflow float32."""
    x = layer.detach() if isinstance(layer, Tensor) else torch.tensor(np.asarray(layer))
    x = x.to(device).double()
    largest = x.abs().max() if x.numel() else torch.zeros(())
    if not torch.isfinite(largest):
        as_matrix(layer, "A layer")
    if largest > 0:
        x = x / largest
    x = x - x.mean(0)
    scale = x.square().mean().sqrt() if x.numel() else torch.zeros(())
    if scale <= 8 * torch.finfo(torch.float64).eps:
        raise UndefinedMeasure("the layer is constant: all samples have the same vector.")
    return x / scale


def _estimate(apart: Tensor, a: _Layers, b: _Layers, debiased: bool) -> Tensor:
    """Turn Σ_{i≠j} KᵢⱼLᵢⱼ of all pairs into HSIC, up to the factor that cancels, wherever the features are centred."""
    n = a.features.shape[0]
    if not debiased:
        totals = torch.outer(a.sums.sum(1), b.sums.sum(1)) / n**2
        return apart + a.squares @ b.squares.T - 2 / n * (a.sums @ b.sums.T) + totals
    rest_a, rest_b = a.sums - a.squares, b.sums - b.squares
    totals = torch.outer(rest_a.sum(1), rest_b.sum(1)) / ((n - 1) * (n - 2))
    return apart + totals - 2 / (n - 2) * (rest_a @ rest_b.T)


def _square(product: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return ‖xᵀy‖² in float64 from the product in the working precision, its heavy entries computed again."""
    squared = product.square()
    total = squared.sum(dtype=torch.float64)
    if product.dtype is torch.float64:
        return total
    rows, columns = torch.nonzero(squared > HEAVY_ENTRY * total, as_tuple=True)
    exact = (x[:, rows].double() * y[:, columns].double()).sum(0)
    return total + exact.square().sum() - squared[rows, columns].sum(dtype=torch.float64)


def _by_features(a: _Layers, b: _Layers, tell: Callable[[float], None]) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_{i≠j} KᵢⱼLᵢⱼ of all pairs as ‖XᵀY‖² - Σ kᵢlᵢ, and of each layer with itself."""
    same = a is b
    cross = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.features.device)
    own_a, own_b = (torch.zeros(len(m), dtype=torch.float64, device=m.features.device) for m in (a, b))
    for i in range(len(a)):
        x = a.layer(i)
        first = i if same else 0
        start = b.offsets[first]
        product = x.T @ b.features[:, start : b.offsets[-1]]
        for j in range(first, len(b)):
            cross[i, j] = _square(product[:, b.offsets[j] - start : b.offsets[j + 1] - start], x, b.layer(j))
        if same:
            cross[i:, i] = cross[i, i:].clone()
            own_a[i] = cross[i, i]
        else:
            own_a[i] = _square(x.T @ x, x, x)
        tell((i + 1) / (len(a) + (0 if same else 1)))
    for j in range(0 if same else len(b)):
        y = b.layer(j)
        own_b[j] = _square(y.T @ y, y, y)
    tell(1.0)
    own_a -= a.light.square().sum(1)
    own_b = own_a if same else own_b - b.light.square().sum(1)
    return cross - a.light @ b.light.T, own_a, own_b


def _by_samples(a: _Layers, b: _Layers, tell: Callable[[float], None]) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_{i≠j} KᵢⱼLᵢⱼ from the kernels' upper triangles, by blocks of rows: no diagonal ever enters."""
    same, n = a is b, a.features.shape[0]
    layers = max(1, len(a) + (0 if same else len(b)))
    # narrow blocks, for the part of a block below the diagonal is computed in vain
    rows = max(1, min(n, max(64, n // 12), KERNEL_BYTES // (a.features.element_size() * layers * n)))
    kernels_a = a.features.new_empty(len(a), rows, n)
    kernels_b = kernels_a if same else b.features.new_empty(len(b), rows, n)
    cross = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.features.device)
    own_a, own_b = (torch.zeros(len(m), dtype=torch.float64, device=m.features.device) for m in (a, b))
    for start in range(0, n, rows):
        height, width = min(rows, n - start), n - start
        for m, kernels, own in ((a, kernels_a, own_a),) if same else ((a, kernels_a, own_a), (b, kernels_b, own_b)):
            for index in range(len(m)):
                x, kernel = m.layer(index)[start:], kernels[index, :height, :width]
                torch.mm(x[:height], x.T, out=kernel)
                kernel[:, :height].triu_(1)
                own[index] += 2 * kernel.square().sum(dtype=torch.float64)
        for column in range(0, width, KERNEL_COLUMNS):
            part = slice(column, min(column + KERNEL_COLUMNS, width))
            left = kernels_a[:, :height, part].transpose(0, 1)
            cross += 2 * torch.bmm(left, kernels_b[:, :height, part].permute(1, 2, 0)).sum(0, dtype=torch.float64)
        tell(1 - (width - height) ** 2 / n**2)
    return cross, own_a, own_a if same else own_b
