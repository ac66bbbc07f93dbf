"""Reading a layer-by-layer matrix: the assignment of layers, and how far it follows depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

RANDOM_ASSIGNMENTS = 20_000


@dataclass(frozen=True, eq=False)
class DepthAgreement:
    """The best one-to-one assignment of layers, and how much of it joins layers of equal relative depth."""

    pairs: np.ndarray
    """(k, 2) int64, layer of A and layer of B, k the smaller number of layers."""
    rate: float
    """Share of the pairs that join layers of equal relative depth; NaN where cells are undefined."""
    chance: float
    """The same share expected of a random assignment."""
    p_value: float
    """Probability that a random assignment reaches the rate (sampled; the smallest value possible is 1/20,001)."""


def double_centred(matrix: np.ndarray) -> np.ndarray:
    """Subtract row and column means (and add the grand mean): what is left is neither a bright row nor a bright column.

    (L_a, L_b) -> (L_a, L_b); undefined cells (NaN) stay undefined and do not enter the means.
    """
    if np.isnan(matrix).all():
        return matrix.copy()
    with np.errstate(all="ignore"):
        rows = np.nanmean(np.where(np.isnan(matrix).all(1, keepdims=True), 0.0, matrix), axis=1, keepdims=True)
        columns = np.nanmean(np.where(np.isnan(matrix).all(0, keepdims=True), 0.0, matrix), axis=0, keepdims=True)
    return np.asarray(matrix - rows - columns + np.nanmean(matrix))


def equal_depth(layers_a: int, layers_b: int) -> np.ndarray:
    """Mark the cells, (L_a, L_b) bool, that join layers of equal relative depth.

    Depth runs from 0 (first layer) to 1 (last). A cell counts when its layers are no farther apart than half a layer
    of the deeper model, so a square matrix marks its diagonal and nothing else.
    """
    depth_a = np.linspace(0.0, 1.0, layers_a) if layers_a > 1 else np.array([0.5])
    depth_b = np.linspace(0.0, 1.0, layers_b) if layers_b > 1 else np.array([0.5])
    half_step = 0.5 / max(layers_a - 1, layers_b - 1, 1)
    return np.asarray(np.abs(depth_a[:, None] - depth_b[None, :]) <= half_step + 1e-12)


def depth_agreement(matrix: np.ndarray, seed: int = 0, sampled: int = RANDOM_ASSIGNMENTS) -> DepthAgreement:
    """Assign layers one to one for the largest total (Hungarian method) and compare with relative depth.

    (L_a, L_b), not necessarily square; Dar et al. 2023, section 4.1 for the assignment. Undefined cells (NaN) are never
    assigned, and layers without any defined cell enter neither the rate nor its chance. ``sampled`` random assignments
    give the p-value; 0 leaves it out (NaN).
    """
    from scipy.optimize import linear_sum_assignment

    near = equal_depth(*matrix.shape)
    defined = ~np.isnan(matrix)
    rows, columns = np.flatnonzero(defined.any(1)), np.flatnonzero(defined.any(0))
    if not len(rows):
        chance = float(near.sum() / max(near.shape) / min(near.shape))
        return DepthAgreement(np.empty((0, 2), dtype=np.int64), float("nan"), chance, float("nan"))
    part, near = matrix[np.ix_(rows, columns)], near[np.ix_(rows, columns)]
    # worse by more than a whole assignment can gain elsewhere, so that as few undefined cells as possible are taken
    penalty = np.nanmin(part) - (np.nanmax(part) - np.nanmin(part) + 1.0) * (min(part.shape) + 1)
    left, right = linear_sum_assignment(np.where(np.isnan(part), penalty, part), maximize=True)
    kept = ~np.isnan(part[left, right])
    left, right = left[kept], right[kept]
    pairs = np.stack([rows[left], columns[right]], axis=1).astype(np.int64)
    chance = float(near.sum() / max(near.shape) / min(near.shape))
    hits = int(near[left, right].sum())
    return DepthAgreement(pairs, hits / len(pairs), chance, _p_value(near, hits, seed, sampled))


def z_scores(
    values: np.ndarray, mean: np.ndarray | None, sd: np.ndarray | None, sign: float | np.ndarray
) -> np.ndarray | None:
    """Return how many standard deviations of a null lie between it and ``values``, times ``sign``; NaN where it has
    no spread, and None where there is no null.
    """
    if mean is None or sd is None:
        return None
    with np.errstate(all="ignore"):
        return np.asarray(np.where(sd > 0, sign * (values - mean) / sd, np.nan))


def closest(values: np.ndarray, higher_is_closer: bool) -> np.ndarray:
    """Return the column of the closest cell of every row, (rows,) int64; -1 where none is defined."""
    ranked = np.where(np.isnan(values), -np.inf, values if higher_is_closer else -values)
    return np.asarray(np.where(np.isfinite(ranked).any(1), ranked.argmax(1), -1), dtype=np.int64)


def cell_table(
    values: np.ndarray, assignment: np.ndarray, more: Mapping[str, np.ndarray | None]
) -> dict[str, np.ndarray]:
    """Return the columns of a tidy table of a layer matrix, one entry a cell, row by row.

    Layers of both sides, value, double-centred value, the matrices of ``more`` (NaN for those that are None), and
    whether the cell belongs to the ``assignment`` (k, 2).
    """
    rows, columns = np.indices(values.shape)
    assigned = np.zeros(values.shape, dtype=bool)
    assigned[assignment[:, 0], assignment[:, 1]] = True
    table = {"layer_a": rows, "layer_b": columns, "value": values, "centred": double_centred(values)}
    for name, matrix in more.items():
        table[name] = np.full(values.shape, np.nan) if matrix is None else matrix
    table["assigned"] = assigned
    return {name: np.ravel(np.asarray(matrix)) for name, matrix in table.items()}


def closest_at_equal_depth(matrix: np.ndarray) -> tuple[int, int]:
    """Count the layers of A whose largest cell lies at equal relative depth, of those that have a defined cell."""
    near = equal_depth(*matrix.shape)
    rows = [row for row in range(len(matrix)) if not np.isnan(matrix[row]).all()]
    return sum(bool(near[row, int(np.nanargmax(matrix[row]))]) for row in rows), len(rows)


def _p_value(near: np.ndarray, hits: int, seed: int, sampled: int) -> float:
    if not sampled:
        return float("nan")
    short = near if near.shape[0] <= near.shape[1] else near.T
    generator = np.random.default_rng(seed)
    orders = generator.permuted(np.tile(np.arange(short.shape[1]), (sampled, 1)), axis=1)
    reached = short[np.arange(short.shape[0]), orders[:, : short.shape[0]]].sum(1) >= hits
    return float((reached.sum() + 1) / (sampled + 1))
