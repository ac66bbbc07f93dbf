"""What a series says: correlations of changes, variance between runs and within them, distances, and texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from embcompare.decomposition.series import dtw, variance_components
from embcompare.decomposition.series_table import (
    Correlations,
    correlate_changes,
    correlate_moves,
    correlate_same_steps,
    correlate_same_texts,
    correlate_texts,
    rising,
    settled,
)

RESAMPLES = 2000
"""Of runs and checkpoints."""
LEAST_CHECKPOINTS, LEAST_FOR_ONE = 3, 6
"""Checkpoints of a run that counts, and of all such runs together, below which a correlation has no interval."""
LEAST_RUNS, LEAST_FOR_ALL = 3, 12
"""Such runs, and checkpoints of theirs together, below which no interval allows for all correlations."""
LEAST_RUNS_APART = 4
"""Runs below which differences between them have no interval."""
TEXT_RESAMPLES = 400
"""Of texts."""
TEXT_PAIRS = 4000
"""Differences between two runs on the same text that are correlated at most; of more texts a sample is drawn."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """What the statistics are of: ``performance`` (M, R, C), ``mean`` (4, R, C, S, K), NaN where there is none.

    At the last checkpoint of each run: ``units``, a list of R tables (4, S, K, tokens or texts), equal ones in each
    run; ``by_text`` (4, R, S, K, N) mean indicators of each text, and ``scores`` (Q, R, N).
    """

    lengths: tuple[int, ...]
    steps: np.ndarray
    performance: np.ndarray
    mean: np.ndarray
    units: list[np.ndarray]
    by_text: np.ndarray
    scores: np.ndarray


def correlations(found: Gathered, seed: int) -> dict[str, Any]:
    """Return the fields of a result on changes: every metric with every indicator, state and term, and all terms."""
    _, runs, _, states, terms = found.mean.shape
    count, tests = len(found.performance), 4 * (terms + 1)
    tables = [found.mean[:, run, :n].transpose(0, 2, 3, 1) for run, n in enumerate(found.lengths)]  # (4, S, K, n)
    performance = [found.performance[:, run, :n] for run, n in enumerate(found.lengths)]

    def both(chosen: list[int], resamples: int) -> list[np.ndarray]:
        """Return ρ and the ends of both intervals, (M, 4, S, K + 1) each, over the chosen runs."""
        shown = [performance[run] for run in chosen]
        options: dict[str, Any] = {"tests": tests, "resamples": resamples, "seed": seed}
        flat = [tables[run].reshape(4 * states * terms, -1) for run in chosen]
        whole = [tables[run].reshape(4 * states, terms, -1) for run in chosen]
        parts = correlate_changes(flat, shown, **options), correlate_moves(whole, shown, **options)

        def shaped(name: str) -> np.ndarray:
            single, together = (getattr(part, name).T for part in parts)
            return np.concatenate([single.reshape(count, 4, states, terms), together.reshape(count, 4, states, 1)], -1)

        return [shaped(name) for name in ("rho", "low", "high", "low_all", "high_all")]

    rho, low, high, low_all, high_all = both(list(range(runs)), RESAMPLES)
    single, together = can_resample(found.lengths)
    if not single:
        low, high = np.full_like(rho, np.nan), np.full_like(rho, np.nan)
    if not together:
        low_all, high_all = np.full_like(rho, np.nan), np.full_like(rho, np.nan)
    return {
        "rho": rho,
        "rho_low": low,
        "rho_high": high,
        "rho_low_all": low_all,
        "rho_high_all": high_all,
        "rho_run": np.stack([both([run], 0)[0] for run in range(runs)], -1),
        "rho_rising": rising(found.lengths, seed=seed),
        "tests": tests,
        **same_steps(found, tests, seed),
    }


def same_steps(found: Gathered, tests: int, seed: int) -> dict[str, Any]:
    """Return the fields of a result on differences between runs at the same step; None where steps are not the same."""
    names = ("step_rho", "step_low", "step_high", "step_low_all", "step_high_all")
    _, runs, _, states, terms = found.mean.shape
    if runs < 2 or len(set(found.lengths)) > 1 or (found.steps != found.steps[0]).any():
        return dict.fromkeys(names)
    flat = found.mean.transpose(0, 3, 4, 1, 2).reshape(-1, runs, found.lengths[0])
    part = correlate_same_steps(flat, found.performance, tests=tests, resamples=RESAMPLES, seed=seed)
    shape = len(found.performance), 4, states, terms
    tables = dict(zip(names, (part.rho, part.low, part.high, part.low_all, part.high_all), strict=True))
    fields: dict[str, Any] = {name: each.T.reshape(shape) for name, each in tables.items()}
    if runs < LEAST_RUNS_APART:
        fields |= {name: np.full(shape, np.nan) for name in names[1:]}
    return fields


def can_resample(lengths: tuple[int, ...]) -> tuple[bool, bool]:
    """Return whether runs of these lengths are enough for an interval of one correlation, and for those of all.

    Runs of two checkpoints have one change each, whose direction is all there is to resample. By trials with noise, of
    20 series one was clear of 0 by the wide interval in all trials of 2 runs of 2, in 85 % of 2 of 3, 10 % of 3 of 3,
    25 % of one of 6, and at most 7 % of what is let through here; the narrow one was clear in 51 % of 2 of 2.
    """
    enough = [length for length in lengths if length >= LEAST_CHECKPOINTS]
    return sum(enough) >= LEAST_FOR_ONE, len(enough) >= LEAST_RUNS and sum(enough) >= LEAST_FOR_ALL


def variances(found: Gathered) -> np.ndarray:
    """Return the parts of the variance, (5, 4, S, K)."""
    table = np.stack(found.units)
    parts = np.full((5, *table.shape[1:4]), np.nan)
    for cell in np.ndindex(table.shape[1:4]):
        own = variance_components(table[(slice(None), *cell)])
        parts[(slice(None), *cell)] = own.runs, own.tokens, own.rest, own.sd_of_means, own.sd_within
    return parts


def distances(found: Gathered) -> np.ndarray:
    """Return the dynamic time warping distance of every two runs, (4, S, K + 1, R, R)."""
    indicators, runs, _, states, terms = found.mean.shape
    result = np.full((indicators, states, terms + 1, runs, runs), np.nan)
    for indicator, state in np.ndindex(indicators, states):
        series = [found.mean[indicator, run, :n, state] for run, n in enumerate(found.lengths)]  # (n, K) each
        every = settled(np.concatenate(series).T).T
        spread = every.std(0)
        scaled = np.split(
            (every - every.mean(0)) / np.where(spread > 0, spread, 1.0), np.cumsum(found.lengths)[:-1], axis=0
        )
        for term in range(terms + 1):
            # a term that is undefined somewhere has no distance, and plays no part in that of all terms
            columns = [term] if term < terms else np.flatnonzero(np.isfinite(every).all(0)).tolist()
            if not columns or not np.isfinite(every[:, columns]).all():
                continue
            for one in range(runs):
                result[indicator, state, term, one, one] = 0.0
                for other in range(one):
                    apart = dtw(scaled[one][:, columns], scaled[other][:, columns])
                    result[indicator, state, term, [one, other], [other, one]] = apart
    return result


def over_texts(found: Gathered, seed: int) -> dict[str, Any]:
    """Return the fields of a result on texts: in each run, and between runs on the same text."""
    indicators, runs, states, terms, texts = found.by_text.shape
    shape = len(found.scores), indicators, states, terms

    def ends(part: Correlations) -> np.ndarray:
        return np.stack([part.rho.T, part.low.T, part.high.T]).reshape(3, *shape)

    flat = found.by_text.transpose(0, 2, 3, 1, 4).reshape(-1, runs, texts)
    alone = [
        ends(correlate_texts(flat[:, run], found.scores[:, run], resamples=TEXT_RESAMPLES, seed=seed))
        for run in range(runs)
    ]
    rho, low, high = np.stack(alone, -1)
    fields = {
        "text_rho": rho,
        "text_low": low,
        "text_high": high,
        "same_rho": None,
        "same_low": None,
        "same_high": None,
    }
    if runs > 1:
        most = max(3, TEXT_PAIRS // (runs * (runs - 1)))
        chosen = np.arange(texts)
        if texts > most:
            chosen = np.sort(np.random.default_rng([seed, 2]).choice(texts, most, replace=False))
        scores = found.scores[..., chosen]
        between = ends(correlate_same_texts(flat[..., chosen], scores, resamples=TEXT_RESAMPLES, seed=seed))
        fields |= dict(zip(("same_rho", "same_low", "same_high"), between, strict=True))
    return fields
