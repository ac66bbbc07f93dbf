"""Linear CKA of all layers of one model with all layers of another, as few large products.

A pair of layers needs ‖XᵀY‖² only (see :mod:`embcompare.measures.cka`), and a layer its own term once. Two ways lead
there, and the cheaper is taken: *features*, one product of each layer of A with all layers of B side by side,
(p, n) × (n, Σq), and of its own symmetric one little more than the upper half; or *samples*, the upper triangle of
each layer's n × n kernel by blocks of rows, whose entries are then multiplied across layers. Products run in float32
on the device (in float64 where there are few), on features that were centred and scaled in float64, and their sums
are added in float64. What outweighs the rest is computed in float64 altogether, for its rounding would not average
out: the entries of XᵀY that outlier dimensions make, and the kernel's rows of heavy samples, such as a first token
that attention rests on. Such samples also stay out of the centre: all other rows would be made similar by it, only to
be told apart again by the estimator, which does not see a shift.

All that is no product goes over a layer by blocks of rows that stay in the cache: first for its mean and norms, which
tell the heavy samples, then for the features themselves, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embcompare.errors import SettingsError
from embcompare.measures.cka import NO_STRUCTURE, VANISHING, least_samples
from embcompare.measures.declaration import BadInput, Matrix, UndefinedMeasure, as_matrix
from embcompare.measures.matrix import LayerMatrix

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

KERNEL_BYTES = 256 * 2**20
# Below this many operations float64 costs nothing that anybody would notice.
SMALL_WORK = 1e10
# A sample with more than this many times the mean squared norm is heavy, or with that share of all of them; the
# heaviest so many are treated apart.
HEAVY_SAMPLE, HEAVY_SHARE, MOST_HEAVY = 64.0, 1 / 8, 64
# An entry of XᵀY with more than this share of ‖XᵀY‖² is computed again in float64.
HEAVY_ENTRY = 1 / 256
KERNEL_COLUMNS = 512
# Entries of a layer that are read at a time; in float64 they take 2 MB, which a processor's cache holds.
BLOCK_ENTRIES = 2**18
# Columns of a layer's own product at a time; what lies left of the diagonal block is not computed.
OWN_COLUMNS = 256
# Numbers that large or small are divided by the largest, lest their squares leave float64's range.
FAR = 1e100
# What a kernel entry costs beyond its products, in the measured time of both ways.
SAMPLES_PENALTY = 1.5


@dataclass
class _Moments:
    """What one layer's features are made with: (x / ``divisor`` - ``centre``) / ``scale``, of mean square 1.

    ``squares`` (n,) are the rows' squared norms about the centre.
    """

    divisor: float
    centre: Matrix
    scale: float
    squares: Matrix


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
    if dtype not in (None, torch.float32, torch.float64):
        raise SettingsError(f"dtype is torch.float32 or torch.float64; got {dtype}.")
    if dtype is None:
        dtype = torch.float64 if min(by_features, by_samples) < SMALL_WORK else torch.float32
    read_a, reasons_a = _read(layers_a)
    read_b, reasons_b = (read_a, reasons_a) if layers_b is layers_a else _read(layers_b)
    heavy = _heavy_samples([*read_a.values(), *read_b.values()], n)
    a = _prepare(layers_a, read_a, reasons_a, heavy, dtype, device)
    b = a if layers_b is layers_a else _prepare(layers_b, read_b, reasons_b, heavy, dtype, device)
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
    own = sum(w * (w + min(w, OWN_COLUMNS)) / 2 for w in (*widths_a, *(() if same else widths_b)))
    cross = sum(widths_a) * sum(widths_b) / (2 if same else 1)
    width = sum(widths_a) + (0 if same else sum(widths_b))
    return 2.0 * n * (own + cross), 1.0 * n * n * width


def _each(work: Callable[[_Item], _Made], items: Sequence[_Item]) -> list[_Made]:
    """Do layers side by side, one to a thread: threads that share each block wait for the slowest after every block."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(work, items))


def _stored(layer: Any) -> np.ndarray:
    """Return a layer as it is stored, where it is stored if that can be."""
    if isinstance(layer, Tensor):
        layer = layer.detach().cpu()
        layer = (layer.float() if layer.dtype is torch.bfloat16 else layer).numpy()
    array = np.asarray(layer)
    return array if array.dtype.kind in "fiub" and array.dtype.itemsize <= 8 else as_matrix(array, "A layer")


def _blocks(x: np.ndarray, divisor: float = 1.0, centre: Any = 0.0) -> Iterator[tuple[slice, Matrix]]:
    """Yield rows of (n, p) and their x / divisor - centre in float64, in a place that the next block overwrites."""
    rows = max(1, BLOCK_ENTRIES // max(1, x.shape[1]))
    place = np.empty((min(rows, len(x)), x.shape[1]))
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        values = place[: len(part)]
        if divisor != 1.0:
            part = np.divide(part, divisor, out=values)
        np.subtract(part, centre, out=values)
        yield slice(start, start + len(part)), values


def _read(layers: Sequence[Any]) -> tuple[dict[int, _Moments], dict[int, str]]:
    """Return the moments of the layers that have a value, and the reasons of the others."""

    def one(layer: Any) -> _Moments | str:
        try:
            return _moments(_stored(layer))
        except UndefinedMeasure as reason:
            return str(reason)

    found = _each(one, layers)
    defined = {index: made for index, made in enumerate(found) if isinstance(made, _Moments)}
    return defined, {index: made for index, made in enumerate(found) if isinstance(made, str)}


def _moments(x: np.ndarray) -> _Moments:
    """Find a layer's mean, and the scale that gives it a mean square of 1 and that no scale of the input can upset."""
    n, p = x.shape
    ends = [float(x.min()), float(x.max())] if x.size else [0.0]
    if not all(map(math.isfinite, ends)):
        as_matrix(x, "A layer")
    largest = max(map(abs, ends))
    divisor = largest if largest > FAR or 0 < largest < 1 / FAR else 1.0
    squares = np.zeros(n)
    if not all((x[k : k + 1024] == x[0]).all() for k in range(0, n, 1024)):
        centre = sum((values.sum(axis=0) for _, values in _blocks(x, divisor)), np.zeros(p)) / n
        for rows, values in _blocks(x, divisor, centre):
            np.einsum("ij,ij->i", values, values, out=squares[rows])
    scale = math.sqrt(squares.sum() / max(1, x.size))
    if scale <= 8 * np.finfo(np.float64).eps * largest / divisor:
        raise UndefinedMeasure("the layer is constant: all samples have the same vector.")
    return _Moments(divisor, centre, scale, squares)


def _heavy_samples(moments: Sequence[_Moments], n: int) -> NDArray[np.intp]:
    """Return the samples whose vector outweighs the others in some layer, the heaviest first if there are many."""
    shares = np.zeros(n)
    for layer in moments:
        np.maximum(shares, layer.squares / layer.squares.mean(), out=shares)
    order = np.argsort(-shares, kind="stable")[: min(MOST_HEAVY, n // 4)]
    return np.asarray(order[shares[order] > min(HEAVY_SAMPLE, n * HEAVY_SHARE)])


def _prepare(
    layers: Sequence[Any],
    moments: dict[int, _Moments],
    reasons: dict[int, str],
    heavy: NDArray[np.intp],
    dtype: torch.dtype,
    device: str | torch.device,
) -> _Layers:
    """Write the features, the heavy samples taken out, with all that the estimator needs of them, in float64."""
    n, defined = len(layers[0]), list(moments)
    offsets = [0, *accumulate(len(layer.centre) for layer in moments.values())]
    features = np.empty((n, offsets[-1]), np.float64 if dtype is torch.float64 else np.float32)
    squares, sums = np.empty((2, len(defined), n))
    kernels = np.empty((len(defined), len(heavy), n))

    def write(at: int) -> None:
        part, layer = features[:, offsets[at] : offsets[at + 1]], moments[defined[at]]
        total = _write(part, _stored(layers[defined[at]]), layer, heavy, squares[at])
        left = part[heavy].astype(np.float64)
        for rows, exact in _blocks(part):
            np.einsum("ij,j->i", exact, total, out=sums[at, rows])
            if len(heavy):
                np.matmul(left, exact.T, out=kernels[at, :, rows])
        part[heavy] = 0

    _each(write, range(len(defined)))
    # pairs of two heavy samples are met from both sides, and a sample with itself does not count
    kernels[:, :, heavy] *= math.sqrt(0.5)
    kernels[:, np.arange(len(heavy)), heavy] = 0
    light = squares.copy()
    light[:, heavy] = 0
    moved, *terms = (torch.from_numpy(array).to(device) for array in (features, squares, sums, light, kernels))
    return _Layers(moved, offsets, defined, reasons, *terms)


def _write(part: np.ndarray, x: np.ndarray, layer: _Moments, heavy: NDArray[np.intp], squares: Matrix) -> Matrix:
    """Fill a layer's features (n, p), centred on the light samples, and their squared norms; return their sum (p,).

    Both are of the rounded features, so that what the estimator takes out is what went in.
    """
    centre = layer.centre
    if len(heavy):
        light = np.ones(len(x), dtype=bool)
        light[heavy] = False
        parts = (values[light[rows]].sum(axis=0) for rows, values in _blocks(x, layer.divisor, centre))
        centre = centre + sum(parts, np.zeros_like(centre)) / (len(x) - len(heavy))
    total = np.zeros_like(centre)
    for rows, values in _blocks(x, layer.divisor, centre):
        values *= 1 / layer.scale
        part[rows] = values
        values[...] = part[rows]
        total += values.sum(axis=0)
        np.einsum("ij,ij->i", values, values, out=squares[rows])
    return total


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
    total: Tensor = torch.linalg.vector_norm(product, dtype=torch.float64).square()
    if product.dtype is torch.float64:
        return total
    limit = total * HEAVY_ENTRY
    if torch.stack(product.aminmax()).double().square().max() <= limit:
        return total
    rows, columns = torch.nonzero(product.square() > limit, as_tuple=True)
    exact = (x[:, rows].double() * y[:, columns].double()).sum(0)
    total += exact.square().sum() - product[rows, columns].double().square().sum()
    return total


def _own(x: Tensor) -> Tensor:
    """Return ‖xᵀx‖² in float64, from the upper half of the product by blocks of columns."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for start in range(0, x.shape[1], OWN_COLUMNS):
        left, rest = x[:, start : start + OWN_COLUMNS], x[:, start + OWN_COLUMNS :]
        product = left.T @ x[:, start:]
        width = left.shape[1]
        total += _square(product[:, :width], left, left)
        if rest.shape[1]:
            total += 2 * _square(product[:, width:], left, rest)
    return total


def _by_features(a: _Layers, b: _Layers, tell: Callable[[float], None]) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_{i≠j} KᵢⱼLᵢⱼ of all pairs as ‖XᵀY‖² - Σ kᵢlᵢ, and of each layer with itself."""
    same = a is b
    cross = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.features.device)
    own_a, own_b = (torch.zeros(len(m), dtype=torch.float64, device=m.features.device) for m in (a, b))
    place = a.features.new_empty(max(a.widths, default=0), b.offsets[-1])
    for i in range(len(a)):
        x = a.layer(i)
        first = i if same else 0
        start = b.offsets[first]
        product = torch.mm(x.T, b.features[:, start:], out=place[: x.shape[1], start:])
        for j in range(first, len(b)):
            cross[i, j] = _square(product[:, b.offsets[j] - start : b.offsets[j + 1] - start], x, b.layer(j))
        if same:
            cross[i:, i] = cross[i, i:].clone()
            own_a[i] = cross[i, i]
        else:
            own_a[i] = _own(x)
        tell((i + 1) / (len(a) + (0 if same else 1)))
    for j in range(0 if same else len(b)):
        own_b[j] = _own(b.layer(j))
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
                own[index] += 2 * torch.linalg.vector_norm(kernel, dtype=torch.float64).square()
        for column in range(0, width, KERNEL_COLUMNS):
            part = slice(column, min(column + KERNEL_COLUMNS, width))
            left = kernels_a[:, :height, part].transpose(0, 1)
            cross += 2 * torch.bmm(left, kernels_b[:, :height, part].permute(1, 2, 0)).sum(0, dtype=torch.float64)
        tell(1 - (width - height) ** 2 / n**2)
    return cross, own_a, own_a if same else own_b
