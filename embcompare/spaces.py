"""Spaces: what gives the vectors of two models coordinates in which they can be compared.

In *feature space* a vector is its own d numbers, and two models share these coordinates only by accident.
In *embedding space* a vector ``x`` of model A is read as its projection ``x E_Aᵀ`` on the vocabulary, one number
a token; two models with a common vocabulary share those coordinates whatever their widths (Dar et al. 2023,
section 3).

No V-wide projection is ever built. With ``C`` the centring over the vocabulary, three small Gram matrices hold
all that inner products need::

    G_AA = E_Aᵀ C E_A      G_BB = E_Bᵀ C E_B      G_AB = E_Aᵀ C E_B

``G_AA = T_Aᵀ T_A`` gives coordinates ``x T_Aᵀ`` that keep every norm and inner product among the vectors of A,
likewise for B, and the *overlap* ``M`` with ``G_AB = T_Aᵀ M T_B`` links the two: the inner product of a vector of A
and a vector of B is ``(x T_Aᵀ) M (y T_Bᵀ)ᵀ``, exactly. The singular values of ``M`` are the cosines between the two
subspaces of the vocabulary space. Permuting the vocabulary of B, the null of every comparison, changes nothing
but ``M``.

Everything here is arrays: float64 for the factors, the caller's dtype for the vectors.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from embcompare.errors import Incomparable, SettingsError
from embcompare.words import plural

# Directions whose share of the largest eigenvalue is below this hold rounding noise of the float64 Gram only.
NULL_DIRECTION = 1e-12
# A vector that keeps less than this share of the norm it could have is constant over the vocabulary up to rounding.
UNDEFINED_NORM = 1e-6


class Space:
    """Common coordinates for the vectors of two models.

    ``to_a`` is (r_a, d_a) and ``to_b`` is (r_b, d_b): own-norm coordinates of each model; ``overlap`` is (r_a, r_b),
    the inner products between the two bases, or None where the two bases are one and the same. All float64.
    """

    def __init__(self, to_a: Tensor, to_b: Tensor, overlap: Tensor | None) -> None:
        self.to_a, self.to_b, self.overlap = to_a, to_b, overlap

    @property
    def width_a(self) -> int:
        """Width of the vectors of model A."""
        return self.to_a.shape[1]

    @property
    def width_b(self) -> int:
        """Width of the vectors of model B."""
        return self.to_b.shape[1]

    def own_a(self, x: Tensor) -> Tensor:
        """Map vectors of A, (n, d_a), to (n, r_a): norms and inner products within A are those of the space."""
        return x @ self.to_a.T.to(x)

    def own_b(self, y: Tensor) -> Tensor:
        """Map vectors of B, (n, d_b), to (n, r_b): norms and inner products within B are those of the space."""
        return y @ self.to_b.T.to(y)

    def meet_a(self, own: Tensor) -> Tensor:
        """Bring own coordinates of A, (n, r_a), to the basis in which both models' inner products are taken, (n, r).

        r is the smaller of r_a and r_b: what lies outside the smaller model's subspace meets nothing there, so it is
        dropped. Norms must be taken before, from the own coordinates.
        """
        if self.overlap is None or self.overlap.shape[0] < self.overlap.shape[1]:
            return own
        return own @ self.overlap.to(own)

    def meet_b(self, own: Tensor) -> Tensor:
        """Bring own coordinates of B, (m, r_b), to the same basis as :meth:`meet_a`, (m, r)."""
        if self.overlap is None or self.overlap.shape[0] >= self.overlap.shape[1]:
            return own
        return own @ self.overlap.T.to(own)

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner products in the space between vectors of A (n, d_a) and of B (m, d_b): (n, m)."""
        return self.meet_a(self.own_a(x)) @ self.meet_b(self.own_b(y)).T

    def cosine(self, x: Tensor, y: Tensor) -> Tensor:
        """Cosines in the space, (n, m): Pearson's correlations where the space is centred; NaN where undefined."""
        return self.meet_a(self.unit_a(x)) @ self.meet_b(self.unit_b(y)).T

    def unit_a(self, x: Tensor) -> Tensor:
        """Own coordinates of A scaled to unit norm, (n, r_a); rows of NaN where the vector vanishes in the space."""
        x = _scaled(x)
        return _unit(self.own_a(x), x, self._reach_a)

    def unit_b(self, y: Tensor) -> Tensor:
        """Own coordinates of B scaled to unit norm, (n, r_b); rows of NaN where the vector vanishes in the space."""
        y = _scaled(y)
        return _unit(self.own_b(y), y, self._reach_b)

    @cached_property
    def _reach_a(self) -> float:
        return float(torch.linalg.matrix_norm(self.to_a, 2))

    @cached_property
    def _reach_b(self) -> float:
        return float(torch.linalg.matrix_norm(self.to_b, 2))

    @cached_property
    def _joint_b(self) -> Tensor:
        """The (r_a + s, r_b) isometry of B's own coordinates into the joint basis that starts with A's."""
        if self.overlap is None:
            return torch.eye(self.to_b.shape[0], dtype=torch.float64)
        outside = torch.eye(self.overlap.shape[1], dtype=torch.float64) - self.overlap.T @ self.overlap
        values, vectors = torch.linalg.eigh(outside)
        kept = values > NULL_DIRECTION
        return torch.cat([self.overlap, values[kept].sqrt()[:, None] * vectors[:, kept].T])

    def coordinates_a(self, x: Tensor) -> Tensor:
        """Map vectors of A (n, d_a) to joint coordinates (n, r): the factor R_A; r is at most d_a + d_b."""
        own = self.own_a(x)
        missing = self._joint_b.shape[0] - own.shape[1]
        return torch.nn.functional.pad(own, (0, missing))

    def coordinates_b(self, y: Tensor) -> Tensor:
        """Map vectors of B (n, d_b) to joint coordinates (n, r): the factor R_B."""
        return self.own_b(y) @ self._joint_b.T.to(y)


class FeatureSpace(Space):
    """The hidden coordinates themselves: needs equal widths.

    ``centred`` subtracts each vector's own mean over the d features, so that cosines are Pearson's correlations.
    Raises :class:`Incomparable` for different widths.
    """

    def __init__(self, width_a: int, width_b: int, *, centred: bool = True) -> None:
        if min(width_a, width_b) < 1:
            raise SettingsError(f"Feature space cannot be {min(width_a, width_b)} wide; the smallest width is 1.")
        if width_a != width_b:
            raise Incomparable(
                f"Parameters can be compared in feature space only between models of one width, and these are "
                f"{width_a} and {width_b} wide; embedding space compares any widths that share a vocabulary, and "
                "hidden states can be compared whatever their widths."
            )
        identity = torch.eye(width_a, dtype=torch.float64)
        to = identity - 1.0 / width_a if centred else identity
        super().__init__(to, to, None)

    @property
    def size(self) -> int:
        """How many shared features there are: what the null permutes."""
        return self.width_b

    @property
    def chance(self) -> float:
        """Expected |correlation| of unrelated vectors, sqrt(2 / (π d)): the level of no agreement."""
        return math.sqrt(2.0 / (math.pi * self.width_a))

    def permuted(self, order: Tensor) -> Space:
        """Return the null in which B's d features are shuffled by ``order``, a permutation of 0 … d-1."""
        _check_order(order, self.size)
        return Space(self.to_a, self.to_b, torch.eye(self.width_a, dtype=torch.float64)[order])


class EmbeddingSpace(Space):
    """Every vector read through the vocabulary: works for any two widths.

    ``e_a`` (V, d_a) and ``e_b`` (V, d_b) are the two embedding (or unembedding) matrices with row k the same token in
    both; any floating dtype, summed in float64 by blocks. ``centred`` subtracts each vector's mean over the
    vocabulary (C), so that cosines are Pearson's correlations of the V-wide projections, as in Dar et al. 2023,
    section 4.1. ``common`` leaves out each model's that many strongest directions over the vocabulary: the first is
    mostly how frequent a token is, which all vectors share and which drowns the rest (Mu and Viswanath 2018).
    Raises :class:`Incomparable` when the rows are not paired, one matrix is constant, or no direction is left.
    """

    def __init__(self, e_a: Tensor, e_b: Tensor, *, centred: bool = True, common: int = 0, block: int = 8192) -> None:
        if common < 0 or block < 1:
            raise SettingsError(f"common cannot be {common} nor block {block}; common starts at 0 and block at 1.")
        if e_a.ndim != 2 or e_b.ndim != 2 or len(e_a) != len(e_b) or len(e_a) == 0:
            raise Incomparable(
                "Embedding space needs two matrices with one row a shared token in both; got shapes "
                f"{tuple(e_a.shape)} and {tuple(e_b.shape)}."
            )
        self._e_a, self._e_b, self._block = e_a, e_b, block
        self._mean_a, self._mean_b = (_mean(e, block) if centred else None for e in (e_a, e_b))
        gram_a, gram_b, cross = self._grams()
        to_a, self._back_a = _isometry(gram_a, "A", common)
        to_b, self._back_b = _isometry(gram_b, "B", common)
        super().__init__(to_a, to_b, self._back_a @ cross @ self._back_b.T)

    @property
    def size(self) -> int:
        """How many shared tokens the space is read through: what the null permutes."""
        return len(self._e_a)

    def permuted(self, order: Tensor) -> Space:
        """Return the null in which token k of A is paired with token ``order[k]`` of B: chance, and nothing else."""
        _check_order(order, self.size)
        _, _, cross = self._grams(order, own=False)
        return Space(self.to_a, self.to_b, self._back_a @ cross @ self._back_b.T)

    def seen_a(self, x: Tensor) -> Tensor:
        """Return the part of the vectors of A, (n, d_a), that the space sees: common and null directions taken out."""
        return x @ (self._back_a.T @ self.to_a).to(x)

    def seen_b(self, y: Tensor) -> Tensor:
        """Return the part of the vectors of B, (n, d_b), that the space sees."""
        return y @ (self._back_b.T @ self.to_b).to(y)

    def _grams(self, order: Tensor | None = None, *, own: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Sum G_AA, G_BB and G_AB over the vocabulary in one pass; without ``own`` the first two stay zero.

        In float64, and centred before anything is multiplied: subtracting the mean afterwards loses digits to it.
        """
        e_a, e_b, block = self._e_a, self._e_b, self._block
        d_a, d_b = e_a.shape[1], e_b.shape[1]
        sizes = ((d_a, d_a), (d_b, d_b), (d_a, d_b))
        aa, bb, ab = (torch.zeros(*size, dtype=torch.float64, device=e_a.device) for size in sizes)
        for start in range(0, len(e_a), block):
            a = _centred(e_a[start : start + block], self._mean_a)
            rows_b = e_b[start : start + block] if order is None else e_b[order[start : start + block]]
            b = _centred(rows_b, self._mean_b)
            ab.addmm_(a.T, b)
            if own:
                aa.addmm_(a.T, a)
                bb.addmm_(b.T, b)
        return aa.cpu(), bb.cpu(), ab.cpu()


def _check_order(order: Tensor, size: int) -> None:
    if order.shape != (size,) or not torch.equal(order.sort().values.cpu(), torch.arange(size)):
        raise SettingsError(f"The order is no permutation of 0 to {size - 1}; make it with torch.randperm({size}).")


def _mean(e: Tensor, block: int) -> Tensor:
    total = torch.zeros(e.shape[1], dtype=torch.float64, device=e.device)
    for rows in e.split(block):
        total += rows.double().sum(0)
    return total / len(e)


def _centred(rows: Tensor, mean: Tensor | None) -> Tensor:
    return rows.double() if mean is None else rows - mean


def _isometry(gram: Tensor, which: str, common: int) -> tuple[Tensor, Tensor]:
    """Return T with TᵀT = gram, (r, d), and its left inverse's transpose, (r, d).

    Null directions are dropped, and so are the ``common`` strongest.
    """
    finite = bool(torch.isfinite(gram).all())
    if finite:
        values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    if not finite or values[-1] <= 0:
        raise Incomparable(
            f"The embedding matrix of model {which} says nothing about the shared tokens (its rows are all equal, not "
            "finite, or too small or too large to be squared), so there is no embedding space to compare in; feature "
            "space may still work."
        )
    kept = values > values[-1] * NULL_DIRECTION
    if common:
        if int(kept.sum()) <= common:
            raise Incomparable(
                f"The embedding matrix of model {which} has {plural(int(kept.sum()), 'direction')}, so leaving out "
                f"{common} leaves nothing to compare in; leave out fewer."
            )
        kept[-common:] = False
    root = values[kept].sqrt()[:, None]
    return root * vectors[:, kept].T, vectors[:, kept].T / root


def _scaled(x: Tensor) -> Tensor:
    """Scale each row to a largest entry of 1, so that no tiny or huge vector is lost when it is squared."""
    largest = x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_ones(len(x), 1)
    return torch.where(largest > 0, x / largest, x)


def _unit(own: Tensor, x: Tensor, reach: float) -> Tensor:
    norm = torch.linalg.vector_norm(own, dim=1, keepdim=True)
    possible = torch.linalg.vector_norm(x, dim=1, keepdim=True) * reach
    return torch.where(norm > possible * UNDEFINED_NORM, own / norm, torch.full_like(own, float("nan")))
