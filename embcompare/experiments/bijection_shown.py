"""What of a run of maps is kept to be looked at: a plane to draw rows in, their names, the texts that fare worst."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.bijection_rows import FeatureRows, RowSettings
from embcompare.experiments.pairs_texts import row_texts
from embcompare.text.tokens import visible

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.base import Context
    from embcompare.experiments.sides import Pair

DIRECTIONS = 8
"""Principal directions that sampled rows are kept along."""
TEXTS = 2000
"""Test texts that are kept with the result."""


def principal_directions(rows: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return the principal directions of rows (n, d), float64 (d, c), c ≤ 8, and their shares of the variance.

    The largest number of each direction is positive, so that its sign is the same everywhere.
    """
    import torch
    from scipy.linalg import eigh

    wide = rows.double()
    centred = wide - wide.mean(0)
    covariance = (centred.T @ centred).numpy()
    width = len(covariance)
    values, vectors = eigh(covariance, subset_by_index=[max(0, width - DIRECTIONS), width - 1])
    top, total = vectors[:, ::-1], float(np.trace(covariance))
    largest = np.take_along_axis(top, np.abs(top).argmax(0)[None], axis=0)
    shares = np.clip(values[::-1], 0.0, None) / total if total > 0 else np.zeros(len(values))
    return torch.from_numpy(top * np.where(largest < 0, -1.0, 1.0)), shares


def row_names(
    settings: RowSettings, context: Context, pair: Pair, rows: np.ndarray
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what each of ``rows`` is, ``word — its sentence with the [word] marked`` for parts, and its label."""
    some = replace(
        pair,
        items=pair.items[rows],
        rows=pair.rows[rows],
        spans=None if pair.spans is None else pair.spans[rows],
        tokens=None if pair.tokens is None else pair.tokens[rows],
        names=tuple(pair.names[row] for row in rows.tolist()) if pair.names else (),
    )
    found = row_texts(FeatureRows.of(settings), context, some, np.arange(len(rows)))
    sentences, at = found["sentences"], found["sentence_of"].tolist()
    names = []
    for number, (start, end) in zip(at, found["spans"].tolist(), strict=True):
        whole = sentences[number]
        marked = f"{visible(whole[start:end])} — {whole[:start]}[{whole[start:end]}]{whole[end:]}"
        names.append(whole if start < 0 else marked)
    labels = found["sentence_labels"]
    return tuple(names), tuple(labels[number] for number in at) if labels else ()


def worst_texts(errors: np.ndarray) -> np.ndarray:
    """Return which of (m, s) texts are kept, ascending: all, or those with the largest errors over all maps.

    A map's errors count in units of their mean, so that no bad map decides alone.
    """
    if errors.shape[1] <= TEXTS:
        return np.arange(errors.shape[1])
    known = errors[np.isfinite(errors).all(1)]
    means = known.mean(1, keepdims=True)
    relative = np.divide(known, means, out=np.zeros_like(known), where=means > 0)
    return np.sort(np.argsort(-relative.sum(0), kind="stable")[:TEXTS])
