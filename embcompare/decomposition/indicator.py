"""Four numbers for a term beside its sum, token by token, and what they are on average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embcompare.errors import SettingsError

INDICATORS: Mapping[str, str] = {
    "importance": "e·d/|e|²: the term's share of the state along the state's own direction; sums to 1 over terms.",
    "cosine": "cos(e, d): whether the term points where the state points.",
    "distance": "|d - e|: how far the term alone is from the state, in the model's own units.",
    "norm_ratio": "|d|/|e|: how long the term is beside the state; terms that cancel may all be longer.",
}
"""Name: formula and meaning, for a term d of a state e (Mickus & Vázquez 2023)."""


def indicators(values: Tensor, hidden: Tensor) -> dict[str, Tensor]:
    """Return each of :data:`INDICATORS`, (terms, ...), for terms (terms, ..., d) of states (..., d), in float64.

    Undefined numbers are NaN: importance and norm ratio of a zero state, the cosine also of a zero term.
    """
    d, e = values.double(), hidden.double()
    # A common scale, so that squares of very large or very small states neither overflow nor vanish.
    unit = e.abs().amax(-1, keepdim=True)
    unit = torch.where((unit > 0) & unit.isfinite(), unit, 1.0)
    d, e = d / unit, e / unit
    length, own = d.norm(dim=-1), e.norm(dim=-1)
    dot = (d * e).sum(-1)
    nan = float("nan")
    there = own > 0
    largest = d.abs().amax(-1, keepdim=True)
    direction = d / torch.where(largest > 0, largest, 1.0)
    cosine = (direction * e).sum(-1) / (direction.norm(dim=-1) * own)
    return {
        "importance": torch.where(there, dot / own.square(), nan),
        "cosine": torch.where(there & (largest[..., 0] > 0), cosine.clamp(-1.0, 1.0), nan),
        "distance": (d - e).norm(dim=-1) * unit[..., 0],
        "norm_ratio": torch.where(there, length / own, nan),
    }


@dataclass(frozen=True, eq=False)
class Summary:
    """Mean and standard deviation over tokens with a 95 % interval of the mean, arrays (...,) of float64.

    ``count`` says how many tokens were defined and ``undefined`` how many were not and are left out; the mean of no
    token is NaN, and so are sd and interval of fewer than two (of fewer than two texts, where texts are given).
    """

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray
    undefined: np.ndarray


def summarise(
    values: Tensor | np.ndarray, texts: np.ndarray | None = None, *, resamples: int = 1000, seed: int = 0
) -> Summary:
    """Summarise indicators (..., tokens) over tokens.

    The interval is the percentile bootstrap (Efron 1979), 2.5 to 97.5 %, over whole texts where ``texts`` (tokens,)
    says which text each token is of, since tokens of one text are not independent, and over tokens otherwise. The
    standard deviation is that of tokens, with n - 1. Raises :class:`SettingsError` where ``texts`` do not fit.
    """
    x = np.asarray(values.numpy(force=True) if isinstance(values, Tensor) else values, dtype=np.float64)
    labels = np.arange(x.shape[-1]) if texts is None else np.asarray(texts)
    if labels.shape != x.shape[-1:]:
        raise SettingsError(f"{x.shape[-1]} tokens need one text number each, not {labels.shape}.")
    defined = np.isfinite(x)
    filled = np.where(defined, x, 0.0)
    count = defined.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(-1) / count
        spread = np.where(defined, (x - mean[..., None]) ** 2, 0.0).sum(-1)
        sd = np.sqrt(np.where(count > 1, spread / (count - 1), np.nan))
    low, high = _interval(np.where(defined, x - mean[..., None], 0.0), defined, labels, resamples, seed)
    return Summary(mean, sd, mean + low, mean + high, count, (~defined).sum(-1))


def _interval(
    off: np.ndarray, defined: np.ndarray, labels: np.ndarray, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval's ends around the mean, for deviations from it (..., tokens)."""
    _, which = np.unique(labels, return_inverse=True)
    groups = int(which.max()) + 1 if len(which) else 0
    flat, there = off.reshape(-1, off.shape[-1]), defined.reshape(-1, off.shape[-1])
    sums, counts = np.zeros((groups, len(flat))), np.zeros((groups, len(flat)))
    np.add.at(sums, which, flat.T)
    np.add.at(counts, which, there.T.astype(np.float64))
    low, high = np.full(len(flat), np.nan), np.full(len(flat), np.nan)
    enough = (counts > 0).sum(0) > 1
    if enough.any():
        drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=resamples)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (drawn @ sums[:, enough]) / (drawn @ counts[:, enough])
        low[enough], high[enough] = np.nanpercentile(means, [2.5, 97.5], axis=0)
    return low.reshape(off.shape[:-1]), high.reshape(off.shape[:-1])
