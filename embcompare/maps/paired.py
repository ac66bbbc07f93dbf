"""Paired rows of two matrices, read block by block in float64, and the small Gram matrices that maps are made of.

No copy of a whole matrix is made: a block of rows is taken, converted, centred, multiplied into sums of (d, d), and
dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from embcompare.errors import Incomparable, InputError, SettingsError
from embcompare.maps.kernel import TooFewRows
from embcompare.words import plural

BLOCK = 2048
"""Rows of a block at most."""
FLOOR = 1e-6
"""Singular values below this share of the largest drown in the rounding of a float64 Gram matrix."""
LOWEST_CUTOFF = 1e-7
_PANEL = 192


@dataclass(frozen=True, eq=False)
class Paired:
    """Rows of ``a`` (m_a, d_a) and ``b`` (m_b, d_b) that belong together, pair by pair.

    ``rows_a`` and ``rows_b`` are int64 on the devices of their matrices, None for all rows in order. With ``unit``
    every row is scaled to length 1 as it is read.
    """

    a: Tensor
    b: Tensor
    rows_a: Tensor | None
    rows_b: Tensor | None
    names: tuple[str, str]
    block: int = BLOCK
    unit: bool = False

    def __post_init__(self) -> None:
        if self.block < 1:
            raise SettingsError(f"block is the number of rows read at a time and at least 1; got {self.block}.")

    def __len__(self) -> int:
        return len(self.a) if self.rows_a is None else len(self.rows_a)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the pairs a block at a time, (m, d_a) and (m, d_b), float64 on one device."""
        for start in range(0, len(self), self.block):
            yield self._read(self.a, self.rows_a, start), self._read(self.b, self.rows_b, start)

    def _read(self, matrix: Tensor, rows: Tensor | None, start: int) -> Tensor:
        part = slice(start, start + self.block)
        taken = (matrix[part] if rows is None else matrix[rows[part]]).to(working_device(self.a)).double()
        return taken / torch.linalg.vector_norm(taken, dim=1, keepdim=True) if self.unit else taken

    def refuse(self) -> None:
        """Raise :class:`InputError` that names the first row that is not finite, or cannot be squared or scaled."""
        for name, matrix, rows in zip(self.names, (self.a, self.b), (self.rows_a, self.rows_b), strict=True):
            for start in range(0, len(self), self.block):
                read = self._read(matrix, rows, start)
                bad = torch.nonzero(~torch.isfinite(read.square().sum(1))).flatten()
                if len(bad):
                    row = start + int(bad[0])
                    row = row if rows is None else int(rows[row])
                    zero = self.unit and not bool(matrix[row].any())
                    why = "is zero, so it has no direction" if zero else "holds NaN, infinite or too large values"
                    raise InputError(f"Row {row:,} of {name} {why}; leave it out of both models.")


@dataclass(frozen=True, eq=False)
class Sums:
    """What a map needs of its pairs, float64 on the CPU: means, (centred) Gram matrices, and total squares."""

    n: int
    mean_a: Tensor
    mean_b: Tensor
    cross: Tensor
    gram_a: Tensor
    gram_b: Tensor
    energy_a: float
    energy_b: float


def working_device(matrix: Tensor) -> torch.device:
    """Return where sums of this matrix are made: where it lies, but for devices that have no float64."""
    return torch.device("cpu") if matrix.device.type == "mps" else matrix.device


def summed(pairs: Paired, *, own: Literal["a", "b", "none"], centred: bool) -> Sums:
    """Sum aᵀb, and aᵀa or bᵀb as ``own`` says, over the pairs; ``centred`` subtracts both means before multiplying.

    A Gram that was not asked for is (0, 0). Raises :class:`InputError` where the rows are not finite and
    :class:`Incomparable` where one side has no variance.
    """
    d_a, d_b, where = pairs.a.shape[1], pairs.b.shape[1], working_device(pairs.a)
    mean_a, mean_b, cross = (torch.zeros(*s, dtype=torch.float64, device=where) for s in ((d_a,), (d_b,), (d_a, d_b)))
    size = {"a": d_a, "b": d_b, "none": 0}[own]
    gram = torch.zeros(size, size, dtype=torch.float64, device=where)
    energy = torch.zeros(2, dtype=torch.float64, device=where)
    if centred:
        for a, b in pairs.blocks():
            mean_a += a.sum(0)
            mean_b += b.sum(0)
        mean_a, mean_b = mean_a / len(pairs), mean_b / len(pairs)
    for a, b in pairs.blocks():
        if centred:
            a, b = a - mean_a, b - mean_b
        cross.addmm_(a.T, b)
        energy += torch.stack([torch.linalg.vector_norm(a), torch.linalg.vector_norm(b)]).square()
        if own != "none":
            _add_gram(gram, a if own == "a" else b)
    if not bool(torch.isfinite(cross).all() & torch.isfinite(energy).all()):
        pairs.refuse()
        raise InputError(f"{pairs.names[0]} and {pairs.names[1]} hold values too large to be squared; scale them down.")
    for name, mean, left in zip(pairs.names, (mean_a, mean_b), energy.tolist(), strict=True):
        # what the rounding of a mean leaves of n equal rows
        if left <= len(pairs) * float(mean.square().sum()) * (32 * torch.finfo(torch.float64).eps) ** 2:
            raise Incomparable(
                f"The rows of {name} are all zero, all equal, or too small to be squared, so no map can be read off "
                "them; choose other rows."
            )
    gram = torch.triu(gram) + torch.triu(gram, 1).T
    empty = gram.new_zeros(0, 0)
    return Sums(
        len(pairs),
        mean_a.cpu(),
        mean_b.cpu(),
        cross.cpu(),
        (gram if own == "a" else empty).cpu(),
        (gram if own == "b" else empty).cpu(),
        float(energy[0]),
        float(energy[1]),
    )


def _add_gram(total: Tensor, rows: Tensor) -> None:
    """Add the upper triangle of rowsᵀ rows, panel by panel: little over half of the products."""
    for start in range(0, rows.shape[1], _PANEL):
        total[start : start + _PANEL, start:].addmm_(rows[:, start : start + _PANEL].T, rows[:, start:])


@dataclass(frozen=True, eq=False)
class Factor:
    """The pseudo-inverse of a Gram matrix as ``rootᵀ root``, root (r, d).

    ``condition`` is the ratio of the largest to the smallest singular value kept, ``cutoff`` the share of the largest
    below which they were dropped.
    """

    root: Tensor
    rank: int
    condition: float
    cutoff: float


def factored(sums: Sums, which: Literal["a", "b"], dtype: torch.dtype, cutoff: float | None) -> Factor:
    """Invert the Gram matrix of ``which`` side on the directions that rows stored in ``dtype`` resolve.

    The sums are float64, so what blurs a direction is how the rows were stored: rounding with unit ε puts noise of
    about 0.2 ε times the root-mean-square singular value (of the rows before centring) into every direction, however
    many rows there are. Directions below ``cutoff`` times the largest singular value are dropped; the default is ε
    r.m.s. / largest, five times the noise, and never below 1e-6, which a float64 Gram resolves. For float32 and
    float64 that is 1e-6, for bfloat16 0.0078 r.m.s. / largest. Raises :class:`SettingsError`
    for a cut-off below 1e-7 or not below 1.
    """
    if cutoff is not None and not LOWEST_CUTOFF <= cutoff < 1:
        raise SettingsError(
            f"cutoff is a share of the largest singular value from {LOWEST_CUTOFF:g} to below 1; got {cutoff:g}."
        )
    gram, mean = (sums.gram_a, sums.mean_a) if which == "a" else (sums.gram_b, sums.mean_b)
    values, directions = torch.linalg.eigh(gram)
    largest = float(values[-1])
    if cutoff is None:
        stored = float(gram.trace() + sums.n * mean.square().sum()) / len(gram)
        cutoff = min(max(FLOOR, torch.finfo(dtype).eps * math.sqrt(stored / largest)), 0.5)
    kept = values > largest * cutoff**2
    values, directions = values[kept], directions[:, kept]
    condition = float((values[-1] / values[0]).sqrt())
    return Factor(directions.T / values.sqrt()[:, None], len(values), condition, cutoff)


def as_rows(given: Any, name: str) -> Tensor:
    """Return a floating (m, d) tensor, where it lies and as it is stored; numpy is taken too. Raises InputError."""
    try:
        matrix = given.detach() if isinstance(given, Tensor) else torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a numeric array of (rows, features); got {type(given).__name__}.") from error
    if matrix.ndim != 2 or not matrix.is_floating_point():
        raise InputError(
            f"{name} must be a floating array of (rows, features); got shape {tuple(matrix.shape)}, {matrix.dtype}."
        )
    if not matrix.numel():
        raise InputError(f"{name} is empty, of shape {tuple(matrix.shape)}; a map needs rows and features.")
    return matrix


def need_rows(have: int, least: int, what: str, way_out: str) -> None:
    """Raise :class:`TooFewRows` below ``least``."""
    if have < least:
        raise TooFewRows(f"The map needs at least {plural(least, what)} and there are {have:,}; {way_out}.")
