"""Do indicators follow performance? Statistics of series of checkpoints from several runs.

A series is one number a checkpoint, in training order; a run is one training, with its own seed. Signs are plain: a
correlation is positive where indicator and performance rise together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embcompare.errors import SettingsError

Series = Sequence[Any] | np.ndarray
"""Numbers (checkpoints,) or, for several runs, one such row for each; runs may be of different lengths."""
MAX_PAIRS = 20_000
_HELD = 2**21
"""Weights of pairs held at once: 16 MiB."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ with a 95 % interval by the percentile bootstrap (Efron 1979).

    ``pairs`` counts the differences, or items, that were correlated, ``units`` what was resampled: runs and the
    checkpoints within each, or texts. ρ of constant numbers is NaN; so is the interval where half of the resamples have
    no ρ, or there are fewer than three units.
    """

    rho: float
    low: float
    high: float
    pairs: int
    units: int


@dataclass(frozen=True)
class VarianceComponents:
    """Variance of one number over runs and tokens, crossed: value = mean + run + token + rest.

    ``runs``, ``tokens`` and ``rest`` are the unbiased estimates from mean squares (random effects; Searle, Casella &
    McCulloch 1992), as they come: an estimate may be below zero. ``sd_of_means`` is the standard deviation
    of the runs' means, ``sd_within`` that of tokens within a run, averaged in variance over runs.
    """

    runs: float
    tokens: float
    rest: float
    sd_of_means: float
    sd_within: float


def spearman_of_differences(
    indicator: Series, performance: Series, *, resamples: int = 1000, seed: int = 0, max_pairs: int = MAX_PAIRS
) -> Correlation:
    """Correlate changes of an indicator with changes of performance between checkpoints of the same run.

    Both are (checkpoints,) or one row a run. Every two checkpoints of a run make a pair, taken in both directions so
    that no order is preferred (Mickus & Vázquez 2023 draw pairs at random); above ``max_pairs`` that many
    are drawn. Pairs share checkpoints and are not independent, so the interval resamples runs, and checkpoints within
    each; with one run only the checkpoints, which says nothing about another run. Raises :class:`SettingsError` where
    the series do not fit together.
    """
    x, y = _runs(indicator), _runs(performance)
    if [len(run) for run in x] != [len(run) for run in y]:
        raise SettingsError(
            f"Indicator and performance need the same checkpoints; there are {[len(run) for run in x]} and "
            f"{[len(run) for run in y]}."
        )
    series = [np.stack([a, b]) for a, b in zip(x, y, strict=True)]
    series = [run[:, np.isfinite(run).all(0)] for run in series]
    pairs = checkpoint_pairs([run.shape[1] for run in series], np.random.default_rng(seed), max_pairs)
    differences = np.concatenate(
        [run[:, second] - run[:, first] for run, (first, second) in zip(series, pairs.places, strict=True)], 1
    )
    return _correlation(differences, pairs.weights, pairs.checkpoints, resamples)


@dataclass(frozen=True, eq=False)
class Weights:
    """Pairs of checkpoints of the same run: ``places`` (first, second) for each run, whose lengths are ``lengths``."""

    lengths: tuple[int, ...]
    places: tuple[tuple[np.ndarray, np.ndarray], ...]
    rng: np.random.Generator

    @property
    def checkpoints(self) -> int:
        """Checkpoints of all runs."""
        return sum(self.lengths)

    def weights(self, count: int) -> np.ndarray:
        """Say how often each pair is in each of ``count`` resamples: as often as its run, and its checkpoints in that,
        are drawn.
        """
        runs = len(self.lengths)
        found = [np.zeros((count, len(first))) for first, _ in self.places]
        for _ in range(runs):
            drawn = self.rng.integers(0, runs, count) if runs > 1 else np.zeros(count, dtype=int)
            for number, (length, (first, second)) in enumerate(zip(self.lengths, self.places, strict=True)):
                rows = np.flatnonzero(drawn == number)
                times = draws(self.rng, length, len(rows))
                found[number][rows] += times[:, first] * times[:, second]
        return np.concatenate(found, 1)


def checkpoint_pairs(lengths: Sequence[int], rng: np.random.Generator, max_pairs: int = MAX_PAIRS) -> Weights:
    """Return every two checkpoints of each run, in both directions; above ``max_pairs`` that many are drawn."""
    places = [np.nonzero(~np.eye(length, dtype=bool)) for length in lengths]
    if (total := sum(len(first) for first, _ in places)) > max_pairs:
        kept = np.zeros(total, dtype=bool)
        kept[rng.choice(total, max_pairs, replace=False)] = True
        masks = np.split(kept, np.cumsum([len(first) for first, _ in places])[:-1])
        places = [(first[m], second[m]) for (first, second), m in zip(places, masks, strict=True)]
    return Weights(tuple(lengths), tuple((first, second) for first, second in places), rng)


def text_correlation(indicator: Series, score: Series, *, resamples: int = 1000, seed: int = 0) -> Correlation:
    """Correlate an indicator with a score text by text, (texts,) each, for one model; the interval resamples texts."""
    pairs = np.stack(_fitting(indicator, score))
    if pairs.ndim != 2:
        raise SettingsError(
            "A correlation over texts takes one number a text; for several runs see same_text_correlation."
        )
    pairs = pairs[:, np.isfinite(pairs).all(0)]
    rng, texts = np.random.default_rng(seed), pairs.shape[1]
    return _correlation(pairs, lambda count: draws(rng, texts, count), texts, resamples)


def same_text_correlation(indicator: Series, score: Series, *, resamples: int = 1000, seed: int = 0) -> Correlation:
    """Correlate differences between runs on the same text, (runs, texts) each: all pairs of runs, both directions.

    What makes a text easy or hard cancels, so what is left is whether the run that does a text better also has the
    larger indicator there. The interval resamples texts.
    """
    x, y = _fitting(indicator, score)
    if x.ndim != 2 or len(x) < 2:
        raise SettingsError("Differences between runs need at least two runs, (runs, texts).")
    first, second = np.nonzero(~np.eye(len(x), dtype=bool))
    differences = np.stack([x[first] - x[second], y[first] - y[second]])
    differences = differences[..., np.isfinite(differences).all((0, 1))]
    rng, (pairs, texts) = np.random.default_rng(seed), differences.shape[1:]
    flat = differences.reshape(2, -1)
    return _correlation(flat, lambda count: np.tile(draws(rng, texts, count), pairs), texts, resamples)


def variance_components(values: Series) -> VarianceComponents:
    """Split the variance of ``values`` (runs, tokens), the same tokens in each run; NaN for fewer than two of either.

    Tokens that are undefined (NaN) in any run are left out.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 2:
        raise SettingsError(f"Variance components need a table (runs, tokens), not shape {x.shape}.")
    x = x[:, np.isfinite(x).all(0)]
    runs, tokens = x.shape
    if runs < 2 or tokens < 2:
        return VarianceComponents(*[float("nan")] * 5)
    by_run, by_token = x.mean(1), x.mean(0)
    rest = x - by_run[:, None] - by_token + x.mean()
    error = float((rest**2).sum() / ((runs - 1) * (tokens - 1)))
    return VarianceComponents(
        float(by_run.var(ddof=1)) - error / tokens,
        float(by_token.var(ddof=1)) - error / runs,
        error,
        float(by_run.std(ddof=1)),
        float(np.sqrt(x.var(1, ddof=1).mean())),
    )


def dtw(a: Series, b: Series) -> float:
    """Return the dynamic time warping distance of two series, (n,) and (m,) or (n, p) and (m, p) (Sakoe & Chiba 1978).

    The least sum of Euclidean distances along any path from the first to the last pair that steps on in one series or
    both; exact, n · m steps. It is 0 for equal series and symmetric, and grows with length: compare like with like.
    """
    x, y = (np.asarray(each, dtype=np.float64) for each in (a, b))
    x, y = (each[:, None] if each.ndim == 1 else each for each in (x, y))
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or not len(x) or not len(y):
        raise SettingsError(f"Two series of one width are compared, not {x.shape} with {y.shape}.")
    costs = np.sqrt(((x[:, None] - y) ** 2).sum(-1))
    above = np.concatenate([[0.0], np.full(len(y), np.inf)])
    for row in costs:
        here = np.full(len(y) + 1, np.inf)
        for j, cost in enumerate(row, 1):
            here[j] = cost + min(above[j], above[j - 1], here[j - 1])
        above = here
    return float(above[-1])


def common_language(a: Series, b: Series) -> float:
    """Return the chance that a number drawn from ``a`` is above one from ``b``, ties half (McGraw & Wong 1992)."""
    from scipy.stats import mannwhitneyu

    x, y = (np.asarray(each, dtype=np.float64) for each in (a, b))
    x, y = x[np.isfinite(x)], y[np.isfinite(y)]
    if not len(x) or not len(y):
        return float("nan")
    return float(mannwhitneyu(x, y).statistic) / (len(x) * len(y))


def standardised(series: Series) -> np.ndarray:
    """Return (x - mean) / sd of a series (checkpoints,), with n in the sd: rising stays rising; constant ones are 0."""
    x = np.asarray(series, dtype=np.float64)
    spread = x.std()
    return (x - x.mean()) / spread if spread > 0 else np.zeros_like(x)


def _runs(series: Series) -> list[np.ndarray]:
    rows = [series] if np.ndim(series[0]) == 0 else list(series)
    return [np.asarray(row, dtype=np.float64) for row in rows]


def _fitting(indicator: Series, score: Series) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(indicator, dtype=np.float64), np.asarray(score, dtype=np.float64)
    if x.shape != y.shape:
        raise SettingsError(f"Indicator and score need the same texts; they are {x.shape} and {y.shape}.")
    return x, y


def draws(rng: np.random.Generator, units: int, count: int) -> np.ndarray:
    """Return how often each of ``units`` is drawn in each of ``count`` resamples with replacement, (count, units)."""
    if not units:
        return np.zeros((count, 0))
    return rng.multinomial(units, np.full(units, 1 / units), size=count).astype(np.float64)


def _correlation(pairs: np.ndarray, weights: Callable[[int], np.ndarray], units: int, resamples: int) -> Correlation:
    """Correlate (2, pairs); ``weights(count)`` says how often each pair is in each of ``count`` resamples."""
    rho = float(_spearman(pairs, np.ones((1, pairs.shape[1])))[0])
    low = high = float("nan")
    if units >= 3 and pairs.shape[1]:
        step = max(1, _HELD // pairs.shape[1])
        parts = [_spearman(pairs, weights(min(step, resamples - at))) for at in range(0, resamples, step)]
        found = np.concatenate(parts)
        found = found[np.isfinite(found)]
        if len(found) * 2 >= resamples > 0:
            low, high = map(float, np.percentile(found, [2.5, 97.5]))
    return Correlation(rho, low, high, pairs.shape[1], units)


def _spearman(pairs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return ρ of pairs (2, n), each there as often as a row of ``weights`` (resamples, n) says; else NaN."""
    if pairs.shape[1] < 2:
        return np.full(len(weights), np.nan)
    x, y = (ranks_of(row, weights) for row in pairs)
    total = weights.sum(1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        x, y = (each - (each * weights).sum(1, keepdims=True) / total for each in (x, y))
        length = np.sqrt((weights * x * x).sum(1) * (weights * y * y).sum(1))
        # Ranks are halves of integers, so a spread below this is rounding: all ranks are one.
        return np.where(length > 1e-9 * total[:, 0], (weights * x * y).sum(1) / length, np.nan)


def ranks_of(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean rank of each value among all copies of all values, (resamples, n), ties sharing theirs."""
    # Differences that are equal but for rounding are ties: 0.3 - 0.2 and 0.2 - 0.1 must rank alike.
    largest = np.abs(values).max()
    _, group = np.unique(np.round(values / (largest or 1.0), 12), return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    copies = np.add.reduceat(weights[:, order], starts, axis=1)
    middle = copies.cumsum(1) - copies / 2
    ranks: np.ndarray = middle[:, group]
    return ranks
