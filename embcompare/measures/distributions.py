"""Distributions over tokens: entropy, Kullback-Leibler and Jensen-Shannon divergence, overlap of the top tokens.

Everything reads natural-log probabilities, the vocabulary on the last axis, as torch tensors (arrays are taken too),
and gives float64 in nats. Only what is summed over the vocabulary is computed in the dtype that is given: in float32
a divergence is good to about 1e-6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

LN2 = float(np.log(2.0))
"""The largest Jensen-Shannon divergence, in nats."""

_PART = 4096  # tokens that are held in float64 at once


def entropy(log_p: Any) -> Tensor:
    """Return Shannon's entropy -Σ p ln p of every distribution, (..., V) -> (...), in [0, ln V]."""
    import torch

    log_p = torch.as_tensor(log_p)
    negative: Tensor = (log_p.exp() * log_p).sum(-1).double()
    return negative.neg_().clamp_(min=0.0)


def kl(log_p: Any, log_q: Any) -> Tensor:
    """Return KL(p || q) = Σ p ln(p/q) of paired distributions, (..., V) -> (...), 0 or more (Kullback & Leibler 1951).

    Each token gives p ln(p/q) - p + q, which is never negative and adds up to the same, so that rounding can't make
    the sum negative.
    """
    import torch

    log_p, log_q = torch.as_tensor(log_p), torch.as_tensor(log_q)
    p = log_p.exp()
    terms = (log_p - log_q).mul_(p).sub_(p).add_(log_q.exp())
    found: Tensor = terms.sum(-1).double().clamp_(min=0.0)
    return found


def jsd(log_p: Any, log_q: Any) -> Tensor:
    """Return the Jensen-Shannon divergence of paired distributions, (..., V) -> (...), in [0, ln 2] (Lin 1991).

    With m = (p + q)/2 it is (KL(p || m) + KL(q || m))/2: symmetric, finite even where the supports differ.
    """
    half_p, half_q = _half(log_p), _half(log_q)
    whole = (_negative_entropy(half_p, half_p) + _negative_entropy(half_q, half_q)) / 2
    return (whole - _negative_entropy(half_p, half_q)).clamp_(0.0, LN2)


@dataclass(frozen=True, eq=False)
class Layers:
    """The distributions of several layers at the same n positions, ready to be compared with others'.

    ``log_p`` and ``half``, p/2, are (L, n, V) in the dtype given; ``own`` is Σ p ln p - Σ p and ``total`` Σ p, both
    (n, L) in float64; ``negative_entropy`` (L, n) is Σ p ln p as :func:`jsd` reads it; ``top`` (L, n, k) holds the k
    most probable tokens.
    """

    log_p: Tensor
    half: Tensor
    own: Tensor
    total: Tensor
    negative_entropy: Tensor
    top: Tensor

    @classmethod
    def of(cls, log_p: Any, k: int) -> Layers:
        """Prepare log-probabilities (L, n, V)."""
        import torch

        log_p = torch.as_tensor(log_p)
        half = _half(log_p)
        own, total = (half.new_zeros(half.shape[1::-1], dtype=torch.float64) for _ in range(2))
        for p, log_part in _by_position(half, log_p):
            total += p.sum(-1)
            own += torch.linalg.vecdot(p, log_part)
        mixed = torch.stack([_negative_entropy(p, p) for p in half])
        return cls(log_p, half, own - total, total, mixed, top_tokens(log_p, k))

    def at(self, positions: Any) -> Layers:
        """Return the same at the chosen positions, in their order."""
        import torch

        chosen = torch.as_tensor(positions, device=self.half.device)
        by_layer = (x[:, chosen] for x in (self.log_p, self.half, self.negative_entropy, self.top))
        log_p, half, mixed, top = by_layer
        return Layers(log_p, half, self.own[chosen], self.total[chosen], mixed, top)


def pairwise(a: Layers, b: Layers) -> Tensor:
    """Return four numbers for every layer of A, layer of B and position, float64 (4, L_a, L_b, n).

    Jensen-Shannon divergence, KL(p_i || q_j), KL(q_j || p_i), and the share of the k most probable tokens that both
    have: what :func:`jsd`, :func:`kl` and :func:`overlap` give pair by pair. The KLs are products of matrices in
    float64: Σ p_i ln p_i - Σ p_i ln q_j - Σ p_i + Σ q_j.
    """
    import torch

    buffers = torch.empty_like(a.half[0]), torch.empty_like(a.half[0])
    mixed = torch.stack([torch.stack([_negative_entropy(p, q, buffers) for q in b.half]) for p in a.half])
    divergence = ((a.negative_entropy[:, None] + b.negative_entropy[None]) / 2 - mixed).clamp_(0.0, LN2)
    ab = a.own[:, :, None] + b.total[:, None, :]
    ba = b.own[:, None, :] + a.total[:, :, None]
    for (p, log_p), (q, log_q) in zip(_by_position(a.half, a.log_p), _by_position(b.half, b.log_p), strict=True):
        ab.baddbmm_(p, log_q.mT, alpha=-1.0)
        ba.baddbmm_(log_p, q.mT, alpha=-1.0)
    one_way, other_way = (x.clamp_(min=0.0).permute(1, 2, 0) for x in (ab, ba))
    common = torch.stack([overlap(top, b.top) for top in a.top])
    return torch.stack([divergence, one_way, other_way, common])


def _by_position(half: Tensor, log_p: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield p and ln p, float64 (n, L, v), a part of the vocabulary at a time."""
    import torch

    for x, y in zip(half.split(_PART, dim=-1), log_p.split(_PART, dim=-1), strict=True):
        p, log_part = (
            z.transpose(0, 1).to(torch.float64, memory_format=torch.contiguous_format, copy=True) for z in (x, y)
        )
        yield p.mul_(2.0), log_part


def top_tokens(log_p: Any, k: int) -> Tensor:
    """Return the k most probable tokens, (..., V) -> (..., min(k, V)) int64, the most probable first."""
    import torch

    log_p = torch.as_tensor(log_p)
    found: Tensor = log_p.topk(min(k, log_p.shape[-1]), dim=-1).indices
    return found


def overlap(top_p: Any, top_q: Any) -> Tensor:
    """Return the share of k tokens that two sets of k have in common, (..., k) and (..., k) -> (...), in [0, 1].

    Leading axes broadcast; the order within a set plays no part.
    """
    import torch

    top_p, top_q = torch.as_tensor(top_p), torch.as_tensor(top_q)
    common = (top_p[..., :, None] == top_q[..., None, :]).any(-1)
    share: Tensor = common.double().mean(-1)
    return share


def restrict(log_p: Any, rows: Any) -> tuple[Tensor, Tensor]:
    """Keep the tokens ``rows`` (S,) and renormalise: (..., V) -> (..., S), and the mass (...) they had together.

    Logits do as well as log-probabilities, but for the mass, which is then without meaning.
    """
    import torch

    log_p, rows = torch.as_tensor(log_p), torch.as_tensor(rows)
    low, high = int(rows.min()), int(rows.max()) + 1
    run = torch.equal(rows, torch.arange(low, high, dtype=rows.dtype, device=rows.device))
    kept = log_p[..., low:high] if run else log_p[..., rows]  # a view is far quicker
    own = kept.log_softmax(-1)
    # at the largest entry, where the difference is not lost in rounding
    mass = (kept.amax(-1).double() - own.amax(-1).double()).exp_().clamp_(max=1.0)
    return own, mass


def clustered_mean(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over all positions and its standard error over items, both (...).

    ``sums`` (S, ...) are an item's values added up, ``counts`` (S,) how many they are. Positions of one item are not
    independent, so items are what is sampled: the linearised variance of a ratio of totals (Cochran 1977, chapter 6),
    with n/(n - 1). NaN where there is no position, and for the error where fewer than two items have one.
    """
    total, items = float(counts.sum()), int((counts > 0).sum())
    empty = np.full(sums.shape[1:], np.nan)
    if not total:
        return empty, empty.copy()
    mean = np.asarray(sums.sum(0) / total)
    if items < 2:
        return mean, empty
    rest = sums - counts.reshape(-1, *[1] * mean.ndim) * mean
    return mean, np.asarray(np.sqrt(items / (items - 1) * np.square(rest).sum(0)) / total)


def _half(log_p: Any) -> Tensor:
    """Return p/2, never 0, so that its logarithm is a number."""
    import torch

    p = torch.as_tensor(log_p).exp().mul_(0.5)
    return p.clamp_(min=torch.finfo(p.dtype).tiny)


def _negative_entropy(left: Tensor, right: Tensor, buffers: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return Σ m ln m for m = left + right, (..., V) -> (...)."""
    import torch

    m, log_m = buffers or (torch.empty_like(left), torch.empty_like(left))
    torch.add(left, right, out=m)
    torch.log(m, out=log_m)
    return log_m.mul_(m).sum(-1).double()
