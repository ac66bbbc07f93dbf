"""Many correlations of series, or over texts, at once: one set of resamples for all, and intervals for many tests.

What :mod:`~embcompare.decomposition.series` says of one pair of series holds for each cell; the resamples are the same
ones, so equal seeds give equal intervals. Beside each 95 % interval stands a wider one: all of a number of ``tests``
such intervals hold together with 95 % (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embcompare.decomposition.series import Weights, checkpoint_pairs, draws, ranks_of

MAX_PAIRS = 2000
"""Pairs of checkpoints that are correlated at most; of more that many are drawn. Mickus & Vázquez 2023 draw 1,000."""
_HELD = 2**22
"""Weights held at once: 32 MiB."""


@dataclass(frozen=True, eq=False)
class Correlations:
    """Spearman's ρ of ``X`` rows with ``Y`` rows, arrays (X, Y) of float64, and two percentile bootstrap intervals.

    ``low`` and ``high`` bound 95 %; ``low_all`` and ``high_all`` what holds for all tests together. ρ of constant
    numbers is NaN, as are intervals where half of the resamples have no ρ, or there are fewer than three units.
    """

    rho: np.ndarray
    low: np.ndarray
    high: np.ndarray
    low_all: np.ndarray
    high_all: np.ndarray
    pairs: int
    units: int


def correlate_changes(
    indicators: Sequence[np.ndarray],
    performance: Sequence[np.ndarray],
    *,
    tests: int = 1,
    resamples: int = 1000,
    seed: int = 0,
    max_pairs: int = MAX_PAIRS,
) -> Correlations:
    """Correlate changes of X indicators with changes of Y metrics between checkpoints of the same run.

    ``indicators`` holds one table (X, checkpoints) a run and ``performance`` one (Y, checkpoints); each cell is
    :func:`~embcompare.decomposition.series.spearman_of_differences` of its two rows. A row that is undefined anywhere
    has no ρ.
    """
    x, y, pairs = _paired(indicators, performance, seed, max_pairs)
    return _correlate(x, y, pairs.weights, pairs.checkpoints, tests, resamples)


def correlate_moves(
    indicators: Sequence[np.ndarray],
    performance: Sequence[np.ndarray],
    *,
    tests: int = 1,
    resamples: int = 1000,
    seed: int = 0,
    max_pairs: int = MAX_PAIRS,
) -> Correlations:
    """Correlate how far X groups of indicators move with how far Y metrics do, whichever way.

    ``indicators`` holds one array (X, terms, checkpoints) a run: the distance of two checkpoints is the L1 norm of
    their difference over terms (Mickus & Vázquez 2023), each term in standard deviations over all checkpoints of all
    runs; a constant term does not move. A group with an undefined term leaves it out.
    """
    every = settled(np.concatenate(list(indicators), -1))
    spread = every.std(-1)
    moves = np.isfinite(spread) & (spread > 0)
    scale = np.where(moves, spread, 1.0)[..., None]
    shape = every.shape[:2]
    ends = np.cumsum([run.shape[-1] for run in indicators])[:-1]
    scaled = np.split(np.where(moves[..., None], every / scale, 0.0).reshape(shape[0] * shape[1], -1), ends, axis=1)
    x, y, pairs = _paired(scaled, performance, seed, max_pairs)
    moved = np.abs(x).reshape(*shape, -1).sum(1)
    return _correlate(moved, np.abs(y), pairs.weights, pairs.checkpoints, tests, resamples)


def correlate_texts(
    indicators: np.ndarray, scores: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> Correlations:
    """Correlate X indicators with Y scores over texts, (X, texts) and (Y, texts): one model, see
    :func:`~embcompare.decomposition.series.text_correlation`.
    """
    rng, texts = np.random.default_rng(seed), indicators.shape[1]
    return _correlate(settled(indicators), settled(scores), lambda count: draws(rng, texts, count), texts, 1, resamples)


def correlate_same_texts(
    indicators: np.ndarray, scores: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> Correlations:
    """Correlate differences between runs on the same text, (X, runs, texts) and (Y, runs, texts), over all pairs of
    runs: see :func:`~embcompare.decomposition.series.same_text_correlation`.
    """
    runs, texts = indicators.shape[1:]
    first, second = np.triu_indices(runs, 1)
    tables = [settled(each.reshape(len(each), -1)).reshape(each.shape) for each in (indicators, scores)]
    x, y = ((each[:, first] - each[:, second]).reshape(len(each), -1) for each in tables)
    rng = np.random.default_rng(seed)

    def weights(count: int) -> np.ndarray:
        return np.tile(draws(rng, texts, count), len(first))

    return _correlate(x, y, weights, texts, 1, resamples, odd=True)


def correlate_same_steps(
    indicators: np.ndarray,
    performance: np.ndarray,
    *,
    tests: int = 1,
    resamples: int = 1000,
    seed: int = 0,
) -> Correlations:
    """Correlate differences between runs at the same step, (X, runs, steps) and (Y, runs, steps), over all pairs of
    runs and all steps.

    What training does to every run cancels, as two quantities that merely rise together do. The interval resamples runs
    and steps; the same runs are drawn at every step. Undefined steps are left out for all.
    """
    runs = indicators.shape[1]
    tables = [settled(each.reshape(len(each), -1)).reshape(each.shape) for each in (indicators, performance)]
    whole = np.isfinite(tables[1]).all((0, 1))
    tables = [each[..., whole] for each in tables]
    first, second = np.triu_indices(runs, 1)
    x, y = ((each[:, first] - each[:, second]).reshape(len(each), -1) for each in tables)
    rng, steps = np.random.default_rng(seed), int(whole.sum())

    def weights(count: int) -> np.ndarray:
        times, at = draws(rng, runs, count), draws(rng, steps, count)
        pairs = times[:, first] * times[:, second]
        return np.asarray((pairs[:, :, None] * at[:, None]).reshape(count, -1))

    return _correlate(x, y, weights, runs, tests, resamples, odd=True)


def rising(lengths: Sequence[int], *, draws: int = 400, seed: int = 0) -> float:
    """Return the median |ρ| of changes of two unrelated series that only rise, in runs of these lengths.

    Steps up are exponential and independent; see :func:`correlate_changes`. NaN without two checkpoints in a run.
    """
    rng = np.random.default_rng([seed, 5])
    found = []
    for _ in range(draws):
        series = [rng.exponential(size=(2, length)).cumsum(1) for length in lengths]
        part = correlate_changes([each[:1] for each in series], [each[1:] for each in series], resamples=0)
        found.append(abs(float(part.rho[0, 0])))
    known = [value for value in found if np.isfinite(value)]
    return float(np.median(known)) if known else float("nan")


def settled(table: np.ndarray) -> np.ndarray:
    """Return rows (..., n) as they are, but those constant that differ by rounding alone, 1e-11 of their largest."""
    if not table.shape[-1]:
        return table
    largest, spread = np.abs(table).max(-1, keepdims=True), np.ptp(table, axis=-1, keepdims=True)
    return np.where(spread <= 1e-11 * largest, table[..., :1], table)


def _paired(
    indicators: Sequence[np.ndarray], performance: Sequence[np.ndarray], seed: int, max_pairs: int
) -> tuple[np.ndarray, np.ndarray, Weights]:
    pairs = checkpoint_pairs([run.shape[1] for run in performance], np.random.default_rng(seed), max_pairs)
    ends = np.cumsum(pairs.lengths)[:-1]
    found = []
    for tables in (indicators, performance):
        runs = np.split(settled(np.concatenate(list(tables), 1)), ends, axis=1)
        parts = zip(runs, pairs.places, strict=True)
        found.append(np.concatenate([run[:, second] - run[:, first] for run, (first, second) in parts], 1))
    return found[0], found[1], pairs


def _correlate(
    x: np.ndarray,
    y: np.ndarray,
    weights: Callable[[int], np.ndarray],
    units: int,
    tests: int,
    resamples: int,
    odd: bool = False,
) -> Correlations:
    """Correlate rows (X, n) with rows (Y, n); ``weights(count)`` says how often each column is in each resample.

    ``odd``: every column stands for itself and for its negative, as a difference does for both directions.
    """
    n, shape = x.shape[1], (len(x), len(y))
    count = 2 * n if odd else n
    ends = np.full((4, *shape), np.nan)
    rho = np.full(shape, np.nan) if count < 2 else _spearman(x, y, np.ones((1, n)), odd)[0]
    if count < 2 or units < 3 or not resamples:
        return Correlations(rho, ends[0], ends[1], ends[2], ends[3], count, units)
    step = max(1, _HELD // n)
    drawn = [_spearman(x, y, weights(min(step, resamples - at)), odd) for at in range(0, resamples, step)]
    found = np.concatenate(drawn)
    enough = np.isfinite(found).sum(0) * 2 >= resamples
    tail = 5 / 2 / max(1, tests)
    if enough.any():
        ends[:, enough] = np.nanpercentile(found[:, enough], [2.5, 97.5, tail, 100 - tail], axis=0)
    return Correlations(rho, ends[0], ends[1], ends[2], ends[3], count, units)


def _spearman(x: np.ndarray, y: np.ndarray, weights: np.ndarray, odd: bool) -> np.ndarray:
    """Return ρ (resamples, X, Y) of rows (X, n) and (Y, n), each column as often as ``weights`` (resamples, n) says."""
    total = weights.sum(1, keepdims=True)

    def centred(row: np.ndarray) -> np.ndarray:
        """Return weighted deviations of the ranks from their mean, and NaN where all ranks are one."""
        if not np.isfinite(row).all():
            return np.full(weights.shape, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            if odd:
                # Among numbers and their negatives, the middle rank is 0's, and a number's own is that of its size.
                ranks = np.sign(row) * ranks_of(np.abs(row), weights)
            else:
                ranks = ranks_of(row, weights)
                ranks -= np.einsum("bn,bn->b", ranks, weights)[:, None] / total
            length = np.sqrt(np.einsum("bn,bn,bn->b", ranks, ranks, weights))[:, None]
            # Ranks are halves of integers, so a spread below this is rounding.
            return np.asarray(ranks / np.where(length > 1e-9 * np.sqrt(total), length, np.nan))

    columns = [weights * centred(row) for row in y]
    return np.stack([np.stack([np.einsum("bn,bn->b", own, each) for each in columns], 1) for own in map(centred, x)], 1)
