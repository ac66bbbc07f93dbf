"""What teaching a classifier of texts takes, whatever the model: batches, padding, a rate that rises and falls, steps.

Pure functions over token ids, tensors and numpy generators: no model, no file, and no global seed is read or set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

BETAS = (0.9, 0.98)
"""Decay of AdamW's two running means, a step."""
LARGEST_GRADIENT = 1.0
"""Norm, over all weights together, to which a larger gradient is cut."""


def batches_by_length(
    lengths: NDArray[np.int64], size: int, random: np.random.Generator, *, every: bool, pool: int = 16
) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of ``lengths`` in batches of ``size``: one epoch, in random order.

    ``pool`` batches at a time are sorted by length together, so that little of a batch is padding. Where the batches
    do not come out even, ``every`` text is used all the same, in batches of nearly equal size, none larger than
    ``size``; without it the longest texts of the last pool are left out.
    """
    order = random.permutation(len(lengths))
    pools = [order[at : at + size * pool] for at in range(0, len(order), size * pool)]
    order = np.concatenate([each[np.argsort(lengths[each], kind="stable")] for each in pools])
    count = -(-len(order) // size) if every else len(order) // size
    batches = np.array_split(order if every else order[: count * size], max(1, count))
    for index in random.permutation(count):
        yield batches[index]


def padded(ids: Sequence[Sequence[int] | NDArray[np.int64]], fill: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return token ids (texts, longest) filled up with ``fill`` on the right, and where they are real."""
    lengths = np.array([len(each) for each in ids])
    filled = np.full((len(ids), int(lengths.max())), fill)
    real = np.arange(filled.shape[1]) < lengths[:, None]
    filled[real] = np.concatenate([np.array(each) for each in ids])
    return filled, real


def mean_over_tokens(values: Tensor, real: Tensor) -> Tensor:
    """Return the mean (texts, k) of ``values`` (texts, tokens, k) over the tokens that are ``real`` (texts, tokens)."""
    return (values * real[..., None]).sum(1) / real.sum(1, keepdim=True)


def share_of_peak(step: int, steps: int) -> float:
    """Return what part of its peak the rate is at ``step`` (from 0): up for a tenth of ``steps``, then down to 0."""
    warmup = max(1, steps // 10)
    return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def descend(
    losses: Iterable[Tensor], weights: Sequence[Tensor], groups: Sequence[dict[str, Any]], steps: int, rate: float
) -> Iterator[float]:
    """Take one step of AdamW (Loshchilov & Hutter 2019) down each loss as it comes; yield the loss, in its own unit.

    ``losses`` is asked for the next loss after the step before it was made. ``groups`` hold the ``weights`` as
    AdamW's parameter groups do, each with ``times``, a factor on the learning rate, whose peak is ``rate``.
    """
    import torch

    optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)
    for step, loss in enumerate(losses):
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, LARGEST_GRADIENT)
        for group in optimizer.param_groups:
            group["lr"] = group["times"] * (rate * share_of_peak(step, steps))
        optimizer.step()
        yield float(loss.detach())


def wilson(right: Any, examples: int, z: float = 1.959963984540054) -> tuple[Any, Any]:
    """Return the bounds of Wilson's score interval (1927) for a share, or an array; ``z`` is 1.96 for 95 %."""
    share, spread = right / examples, z * z / examples
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * (share * (1 - share) / examples + spread / examples / 4) ** 0.5
    return middle - half, middle + half
