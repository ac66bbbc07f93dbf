"""A series in words, from its numbers: what goes with performance, and what so many runs can tell."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.term_series_result import ALL_TERMS, HIGHER_IS_BETTER
from embcompare.experiments.term_series_statistics import (
    LEAST_CHECKPOINTS,
    LEAST_FOR_ALL,
    LEAST_RUNS,
    LEAST_RUNS_APART,
)
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.term_series_result import TermSeriesResult

SHOWN = 4
"""Indicators that a sentence names."""
LEVEL = 0.05
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def verdict(result: TermSeriesResult, metric: str, state: int) -> str:
    """Return which indicators go with a metric in a state, allowing for how many were looked at."""
    at, _, state, _ = result.place(result.indicators[0], ALL_TERMS, metric, state)
    where, rho = result.states[state], None if result.rho is None else result.rho[at, :, state]
    if rho is None or result.rho_low_all is None or result.rho_high_all is None:
        return "Correlations are known once every checkpoint has been read."
    if not np.isfinite(rho).any():
        return (
            f"No indicator in {where} has a correlation with {metric}: that takes at least two checkpoints of a run, "
            "and values that differ."
        )
    low, high = result.rho_low_all[at, :, state], result.rho_high_all[at, :, state]
    clear = (low > 0) | (high < 0)
    order = sorted(zip(*np.nonzero(np.isfinite(rho)), strict=True), key=lambda cell: -abs(rho[cell]))
    if len(result.runs) == 1:
        shown = ", ".join(_named(result, cell, rho[cell], metric) for cell in order[:SHOWN])
        return (
            f"In this one run, what changes most along with {metric} in {where} is {shown}; one run rules out chance "
            f"for none of them. {training_alone(result)}"
        )
    if not (np.isfinite(low) & np.isfinite(high)).any():
        shown = ", ".join(_named(result, cell, rho[cell], metric) for cell in order[:SHOWN])
        return (
            f"So few runs and checkpoints give no interval that allows for all {result.tests} correlations looked at; "
            f"what goes most with {metric} in {where} is {shown}, which may be chance. It takes "
            f"{_count(LEAST_RUNS)} runs of at least {_count(LEAST_CHECKPOINTS)} checkpoints, {LEAST_FOR_ALL} in all."
        )
    if not clear.any():
        best = order[0]
        return (
            f"Allowing for the {result.tests} correlations looked at in {where}, none with {metric} is clear of 0; the "
            f"strongest is {_named(result, best, rho[best], metric)}."
        )
    chosen = [cell for cell in order if clear[cell]]
    shown = ", ".join(_named(result, cell, rho[cell], metric) for cell in chosen[:SHOWN])
    more = f" and {len(chosen) - SHOWN} more" if len(chosen) > SHOWN else ""
    change = agree(len(chosen), "changes", "change")
    return (
        f"Along the training {len(chosen)} of {result.tests} indicators in {where} {change} with {metric}, clear of 0 "
        f"by an interval that allows for all {result.tests}: {shown}{more}. {training_alone(result)} "
        f"{same_step(result, metric, state)}"
    )


def training_alone(result: TermSeriesResult) -> str:
    """Return what ρ of changes is where nothing but training joins two series."""
    if not np.isfinite(result.rho_rising):
        return ""
    return (
        f"But training alone gives as much: two unrelated series that only rise have a ρ of about "
        f"{_signed(result.rho_rising)} here."
    )


def same_step(result: TermSeriesResult, metric: str, state: int) -> str:
    """Return which indicators tell better runs from worse ones at the same step of training."""
    at = result.place(result.indicators[0], ALL_TERMS, metric, state)[0]
    if result.step_rho is None or result.step_low_all is None or result.step_high_all is None:
        return "Runs were not seen at the same steps, so better ones cannot be told from worse ones at one step."
    rho, low, high = (each[at, :, state] for each in (result.step_rho, result.step_low_all, result.step_high_all))
    order = sorted(zip(*np.nonzero(np.isfinite(rho)), strict=True), key=lambda cell: -abs(rho[cell]))
    if not order:
        return f"Between runs at the same step no indicator and {metric} both differ."
    if not np.isfinite(low).any():
        best = _named(result, order[0], rho[order[0]], metric)
        needed = _count(LEAST_RUNS_APART)
        return f"Between runs at the same step the strongest is {best}; it takes {needed} runs to say more."
    chosen = [cell for cell in order if low[cell] > 0 or high[cell] < 0]
    if not chosen:
        best = _named(result, order[0], rho[order[0]], metric)
        return (
            "Between runs at the same step, where what training does to all cancels, none tells better runs from worse "
            f"ones clear of chance; the strongest is {best}."
        )
    shown = ", ".join(_named(result, cell, rho[cell], metric) for cell in chosen[:SHOWN])
    more = f" and {len(chosen) - SHOWN} more" if len(chosen) > SHOWN else ""
    return (
        f"Between runs at the same step, where what training does to all cancels, {len(chosen)} still "
        f"{agree(len(chosen), 'tells', 'tell')} better runs from worse ones: {shown}{more}."
    )


def limits(result: TermSeriesResult) -> str:
    """Return what so many runs can tell of another run, and what no number of them can."""
    runs, checkpoints = len(result.runs), max(map(len, result.checkpoints))
    shared = "Whatever changes steadily in training goes with whatever else does, so a correlation here is no cause."
    if checkpoints < 3:
        few = f"With {plural(checkpoints, 'checkpoint')} a run there is no change to speak of within a run. "
    else:
        few = ""
    if runs == 1:
        return (
            f"{few}One run cannot tell what another seed would do: its intervals resample its "
            f"{plural(checkpoints, 'checkpoint')} alone, are too narrow for that, and allow for one indicator, not for "
            f"all {result.tests}. {shared}"
        )
    least = 2 * 0.5**runs
    single = math.ceil(1 - math.log2(LEVEL))
    needed = math.ceil(1 - math.log2(LEVEL / result.tests))
    said = (
        f"{few}{_count(runs).capitalize()} runs tell little of a further seed: were an indicator to go the same way in "
        f"each, a sign test over runs would give p = 1/{round(1 / least)}"
    )
    if least > LEVEL:
        said += f", above 5 %; {_count(single)} runs are the fewest that could go below, and {needed} to allow for all "
        said += f"{result.tests} correlations"
    elif least > LEVEL / result.tests:
        said += f", below 5 % for one indicator chosen beforehand; to allow for all {result.tests} takes {needed} runs"
    else:
        said += f", which allows for all {result.tests}"
    resampled = " The intervals resample runs and the checkpoints in each."
    if result.rho_low is None or not np.isfinite(result.rho_low).any():
        resampled = " There are too few checkpoints to resample, so there are no intervals."
    return f"{said}.{resampled} {shared}"


def spread(result: TermSeriesResult, indicator: str, state: int) -> str:
    """Return in which terms an indicator varies more between runs than between units within a run."""
    _, at, state, _ = result.place(indicator, ALL_TERMS, None, state)
    if result.variance is None or not np.isfinite(result.variance[3, at, state]).any():
        return "How runs differ takes at least two of them."
    between, within = result.variance[3, at, state], result.variance[4, at, state]
    more = [term for term, wide, narrow in zip(result.terms, between, within, strict=True) if wide > narrow]
    unit = result.units.removesuffix("s")
    what = f"At the last checkpoints, the {indicator.replace('_', ' ')} in {result.states[state]} differs"
    if not more:
        return f"{what} more from {unit} to {unit} than from run to run, in every term."
    which = (
        "every term"
        if len(more) == len(result.terms)
        else " and ".join([", ".join(more[:-1]), more[-1]][len(more) < 2 :])
    )
    return f"{what} more from run to run than from {unit} to {unit} in {which}."


def _named(result: TermSeriesResult, cell: tuple[int, int], rho: float, metric: str) -> str:
    indicator, term = cell
    name = result.indicators[indicator].replace("_", " ")
    of = (*result.terms, ALL_TERMS)[term]
    if of == ALL_TERMS:
        return f"how far the {name} of all terms moves (ρ {_signed(rho)})"
    better = (rho > 0) == HIGHER_IS_BETTER[metric]
    way = "up" if better else "down"
    return f"{name} of {of} ({way} in better models, ρ {_signed(rho)})"


def _signed(rho: float) -> str:
    return f"{rho:.2f}".replace("-", "−")


def _count(number: int) -> str:
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)
