"""Maps read off two embedding matrices alone: no text is run, nothing is trained.

Rows are tokens here: E_A is (V_A, d_a) and E_B (V_B, d_b), as models store them. The paper writes E as (d, V), and its
kernel ``E_A E_B⁺`` (Dar et al. 2023, section 4) is, in rows, ``E_Aᵀ E_B (E_Bᵀ E_B)⁻¹``. It asks that the vector
given to B read like the vector of A on every shared token: of all y, ``x K`` brings ``y E_Bᵀ`` closest to ``x E_Aᵀ``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from embcompare.errors import Incomparable, SettingsError
from embcompare.maps.kernel import Kernel, SingularEmbedding
from embcompare.maps.paired import BLOCK, FLOOR, Factor, Paired, Sums, as_rows, factored, need_rows, summed
from embcompare.words import plural

Rows = Tensor | Sequence[int] | Any

_FEW_TOKENS = (
    "with no more tokens than directions any two models fit perfectly, so share more tokens or fit on hidden states "
    "(in Python, allow_singular=True takes the shortest of all solutions)"
)


def pseudo_inverse(
    E_A: Any,
    E_B: Any,
    *,
    tokens: tuple[Rows, Rows] | None = None,
    usable_a: Tensor | None = None,
    usable_b: Tensor | None = None,
    centred: bool = False,
    cutoff: float | None = None,
    allow_singular: bool = False,
    block: int = BLOCK,
) -> Kernel:
    """Return ``K = E_A E_B⁺`` over the shared tokens, (d_a, d_b), by E_B's (d_b, d_b) Gram matrix in float64.

    ``E_A`` (V_A, d_a) and ``E_B`` (V_B, d_b) are of any floating dtype, on any device. ``tokens`` are the rows of A
    and of B that are the same token, pair by pair; without it row k is the same token in both. ``usable_a`` (V_A,)
    and ``usable_b`` (V_B,) are false for rows to leave out: special, unused, padded. ``centred`` subtracts each
    model's mean token, so that readings are matched up to a constant over the vocabulary, which no softmax sees; a
    vector then still maps without an offset.

    ``condition`` is E_B's, ``rank`` K's: the narrower width unless an embedding is singular. Directions of E_B below
    ``cutoff`` of its largest singular value are dropped; the default is what the stored dtype resolves, at least 1e-6
    (see :func:`embcompare.maps.paired.factored`). ``explained`` is the share of E_A's variance over the tokens that
    ``E_B Kᵀ`` reproduces. The relative error of K is about 1e-16 times the square of ``condition``, 1e-11 at 400.

    Raises :class:`SingularEmbedding` where directions are lost and :class:`TooFewRows` with no more tokens than the
    wider width, both unless ``allow_singular``; :class:`Incomparable`, :class:`InputError`, :class:`SettingsError`.
    Source: Dar et al. 2023, section 4.
    """
    pairs = _paired(E_A, E_B, tokens, usable_a, usable_b, block)
    _enough(pairs, centred, allow_singular)
    return _solve(pairs, "pseudo_inverse", centred, cutoff, allow_singular)[0]


def orthogonal(
    E_A: Any,
    E_B: Any,
    *,
    of: Literal["kernel", "tokens"] = "kernel",
    scale: bool = False,
    tokens: tuple[Rows, Rows] | None = None,
    usable_a: Tensor | None = None,
    usable_b: Tensor | None = None,
    centred: bool = False,
    cutoff: float | None = None,
    allow_singular: bool = False,
    block: int = BLOCK,
) -> Kernel:
    """Return the orthogonal map nearest to ``E_A E_B⁺`` (``of="kernel"``) or between the tokens (``of="tokens"``).

    Both are polar factors, ``U Vᵀ`` of a singular value decomposition: of the kernel, the rotation nearest to it; of
    ``E_Aᵀ E_B``, the Procrustes solution that brings A's token vectors closest to B's. They are the same only where
    E_B has equal variance in all directions. Of different widths the factor is semi-orthogonal: it keeps lengths into
    a wider model, and keeps those of what survives into a narrower one; there the Procrustes solution is that of the
    narrower model padded with zeros. ``scale`` multiplies by the one number that fits best.

    ``centred`` is as in :func:`pseudo_inverse`; of tokens it adds the offset that takes the mean token to the mean
    token. ``explained`` is, of the kernel, that of :func:`pseudo_inverse`, and of tokens the share of E_B's variance
    that the mapped E_A reproduces; either can be negative without ``scale``. Other options and errors are those of
    :func:`pseudo_inverse`. Sources: Schönemann 1966; Dar et al. 2023, section 4, for the kernel.
    """
    if of not in ("kernel", "tokens"):
        raise SettingsError(f"The orthogonal map is that of the 'kernel' or of the 'tokens'; got {of!r}.")
    pairs = _paired(E_A, E_B, tokens, usable_a, usable_b, block)
    _enough(pairs, centred, allow_singular)
    if of == "kernel":
        kernel, sums = _solve(pairs, "orthogonal", centred, cutoff, allow_singular)
        rotation, values = polar(kernel.matrix)
        matrix = rotation * values.mean() if scale else rotation
        return Kernel(
            "orthogonal", matrix, kernel.offset, kernel.rank, kernel.condition, sums.n, _read_share(matrix, sums)
        )
    sums = summed(pairs, own="a" if pairs.a.shape[1] > pairs.b.shape[1] else "none", centred=centred)
    matrix, rank, explained = procrustes(sums, scale, pairs.names)
    if rank < min(matrix.shape) and not allow_singular:
        raise SingularEmbedding(_lost("the tokens' vectors together", rank, min(matrix.shape)))
    return Kernel("orthogonal", matrix, sums.mean_b - sums.mean_a @ matrix, rank, 1.0, sums.n, explained)


def anchors(
    E_A: Any,
    E_B: Any,
    chosen: Rows,
    *,
    tokens: tuple[Rows, Rows] | None = None,
    norm: Literal["unit", "keep"] = "unit",
    cutoff: float | None = None,
    block: int = BLOCK,
) -> Kernel:
    """Return the map through relative representations: cosines to A's anchors, undone by B's anchors.

    ``chosen`` are the anchors as places among the shared tokens (see :func:`draw_anchors`), at least 2, none twice.
    With the anchors' rows scaled to length 1, Â_A (k, d_a) and Â_B (k, d_b), a vector x becomes its cosines
    ``x/‖x‖ Â_Aᵀ`` and these the vector ``x/‖x‖ Â_Aᵀ (Â_Bᵀ)⁺`` whose products with B's anchors come closest to them.

    What it is: the matrix is :func:`pseudo_inverse` over the anchors' directions, so lengths of tokens do not count.
    ``norm="unit"`` is the cosine as published, and not linear: every multiple of x gives the same vector and the
    length of x is lost. ``norm="keep"`` multiplies it back, which makes the map linear. With fewer anchors than
    widths, only what lies in the anchors' span is carried (``rank``). The decoder of the source is trained on the
    cosines; undoing them by a pseudo-inverse is this function's own. ``explained`` is over the anchors.

    Raises :class:`TooFewRows`, :class:`Incomparable`, :class:`InputError` (an anchor of length 0 too),
    :class:`SettingsError`. Source: Moschella et al. 2023.
    """
    if norm not in ("unit", "keep"):
        raise SettingsError(f"norm is 'unit' (lengths are lost) or 'keep'; got {norm!r}.")
    pairs = _paired(E_A, E_B, tokens, None, None, block)
    places = _ids(chosen, len(pairs), "anchors")
    need_rows(len(places), 2, "anchor", "choose more tokens")
    if len(places.unique()) < len(places):
        raise SettingsError("An anchor is chosen twice; choose each token once.")
    rows_a, rows_b = (places if rows is None else rows.cpu()[places] for rows in (pairs.rows_a, pairs.rows_b))
    unit = Paired(pairs.a, pairs.b, rows_a.to(pairs.a.device), rows_b.to(pairs.b.device), pairs.names, block, unit=True)
    kernel, sums = _solve(unit, "anchors", False, cutoff, True)
    return Kernel(
        "anchors",
        kernel.matrix,
        kernel.offset,
        kernel.rank,
        kernel.condition,
        sums.n,
        kernel.explained,
        unit=norm == "unit",
    )


def draw_anchors(n: int, count: int, *, seed: int = 0) -> Tensor:
    """Draw ``count`` of ``n`` shared tokens without replacement, int64 in ascending order; raises SettingsError."""
    if not 2 <= count <= n:
        raise SettingsError(f"{count:,} anchors cannot be drawn from {plural(n, 'shared token')}; choose 2 to {n:,}.")
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count].sort().values


def polar(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (semi-)orthogonal polar factor of (p, q) float64, and the singular values, descending."""
    u, values, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u @ vh, values


def procrustes(sums: Sums, scale: bool, names: tuple[str, str]) -> tuple[Tensor, int, float]:
    """Return the (scaled) Procrustes solution, (d_a, d_b), how many directions determine it, and b's share explained.

    ``sums`` hold ``gram_a`` where d_a > d_b. Raises :class:`Incomparable` where aᵀb is zero.
    """
    rotation, values = polar(sums.cross)
    if not float(values[0]) > 0:
        raise Incomparable(f"{names[0]} and {names[1]} have nothing in common, so no rotation brings them together.")
    mapped = sums.energy_a if not sums.gram_a.numel() else float((rotation * (sums.gram_a @ rotation)).sum())
    overlap = float(values.sum())
    factor = overlap / mapped if scale else 1.0
    explained = (2 * factor * overlap - factor**2 * mapped) / sums.energy_b
    return factor * rotation, int((values > values[0] * FLOOR**2).sum()), explained


def _solve(pairs: Paired, name: str, centred: bool, cutoff: float | None, allow_singular: bool) -> tuple[Kernel, Sums]:
    sums = summed(pairs, own="b", centred=centred)
    factor = factored(sums, "b", pairs.b.dtype, cutoff)
    read = sums.cross @ factor.root.T
    rank = carried(read)
    if not allow_singular:
        _check_singular(pairs, factor, rank)
    matrix = read @ factor.root
    offset = torch.zeros(matrix.shape[1], dtype=torch.float64)
    explained = float(read.square().sum()) / sums.energy_a
    return Kernel(name, matrix, offset, rank, factor.condition, sums.n, explained), sums


def carried(read: Tensor) -> int:
    """Count the directions that a kernel carries, from its matrix in own-norm coordinates of one side, (p, r)."""
    values = torch.linalg.eigvalsh(read @ read.T if read.shape[0] < read.shape[1] else read.T @ read)
    return int((values > values[-1].clamp(min=0) * FLOOR**2).sum())


def _check_singular(pairs: Paired, factor: Factor, rank: int) -> None:
    d_a, d_b = pairs.a.shape[1], pairs.b.shape[1]
    if factor.rank < d_b:
        told = f"{pairs.names[1]} ({factor.cutoff:.1g} of its largest singular value is where the noise begins)"
        raise SingularEmbedding(_lost(told, factor.rank, d_b))
    if rank < min(d_a, d_b):
        raise SingularEmbedding(_lost(f"{pairs.names[0]}, as {pairs.names[1]} reads it,", rank, min(d_a, d_b)))


def _lost(what: str, rank: int, width: int) -> str:
    return (
        f"Over the shared tokens {what} tells {rank:,} of {plural(width, 'direction')} apart, so {width - rank:,} "
        "would be lost on the way; share more tokens, use another embedding, or fit on hidden states (in Python, "
        "allow_singular=True carries the rest)."
    )


def _read_share(matrix: Tensor, sums: Sums) -> float:
    """Share of A's variance over the tokens that B's reading of the mapped vectors reproduces."""
    kept = 2 * (matrix * sums.cross).sum() - (matrix * (matrix @ sums.gram_b)).sum()
    return float(kept) / sums.energy_a


def _enough(pairs: Paired, centred: bool, allow_singular: bool) -> None:
    wider = max(pairs.a.shape[1], pairs.b.shape[1])
    need_rows(len(pairs), 2 if allow_singular else wider + 1 + centred, "shared token", _FEW_TOKENS)


def _paired(
    E_A: Any,
    E_B: Any,
    tokens: tuple[Rows, Rows] | None,
    usable_a: Tensor | None,
    usable_b: Tensor | None,
    block: int,
) -> Paired:
    names = ("the first model's embedding", "the second model's embedding")
    a, b = as_rows(E_A, names[0]), as_rows(E_B, names[1])
    if tokens is None:
        if len(a) != len(b):
            raise Incomparable(
                f"The embeddings have {len(a):,} and {plural(len(b), 'row')}, so row k is not the same token in both; "
                "say which rows are (tokens)."
            )
        rows_a = rows_b = torch.arange(len(a))
    else:
        rows_a, rows_b = _ids(tokens[0], len(a), names[0]), _ids(tokens[1], len(b), names[1])
        if len(rows_a) != len(rows_b):
            raise SettingsError(
                f"tokens pairs {plural(len(rows_a), 'row')} with {len(rows_b):,}; both lists are the same tokens in "
                "one order."
            )
    keep = _usable(usable_a, len(a), names[0])[rows_a] & _usable(usable_b, len(b), names[1])[rows_b]
    if tokens is None and bool(keep.all()):
        return Paired(a, b, None, None, names, block)
    return Paired(a, b, rows_a[keep].to(a.device), rows_b[keep].to(b.device), names, block)


def _usable(usable: Tensor | None, size: int, name: str) -> Tensor:
    if usable is None:
        return torch.ones(size, dtype=torch.bool)
    flags = torch.as_tensor(usable).cpu()
    if flags.shape != (size,) or flags.dtype != torch.bool:
        raise SettingsError(f"The usable rows of {name} must be {size:,} true or false, one for each row.")
    return flags


def _ids(rows: Rows, size: int, name: str) -> Tensor:
    ids = torch.as_tensor(rows).cpu()
    if ids.shape == (0,):
        return ids.long()
    if ids.ndim != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise SettingsError(
            f"The rows of {name} are a list of whole numbers; got shape {tuple(ids.shape)}, {ids.dtype}."
        )
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise SettingsError(f"There is no row {wrong} for {name}; rows are numbered from 0 to {size - 1:,}.")
    return ids.long()


def shared_rows(
    E_A: Any, E_B: Any, tokens: tuple[Rows, Rows] | None, usable_a: Tensor | None, usable_b: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the rows of A and of B, int64, that are the same usable token; errors as in :func:`pseudo_inverse`."""
    pairs = _paired(E_A, E_B, tokens, usable_a, usable_b, BLOCK)
    every = torch.arange(len(pairs))
    return every if pairs.rows_a is None else pairs.rows_a.cpu(), every if pairs.rows_b is None else pairs.rows_b.cpu()
