"""What goes with performance, in pictures and tables: series, correlations, variance, distances, and text by text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import altair as alt
import numpy as np
import pandas as pd
import streamlit as st

from embcompare import charts
from embcompare.experiments.term_series_result import ALL_TERMS, BETWEEN, HIGHER_IS_BETTER
from embcompare.ui import decomposition as frame
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui import decomposition_run_picture as run_pictures
from embcompare.ui.page import plain
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.term_series import TermSeriesResult

METRICS = {
    "loss": "Loss",
    "accuracy": "Accuracy",
    "exact match": "Exact match",
    "BLEU": "BLEU",
    "chrF": "chrF",
}
_UNITS = {"loss": "loss, nats a token", "accuracy": "accuracy of the next token", "exact match": "share exactly right"}


def state_names(result: TermSeriesResult) -> dict[str, str]:
    """Return the states that can be looked at: the one of the verdict, called ``last``, then all by number."""
    names = {str(at): f"{at} · {name}" for at, name in enumerate(result.states)}
    return {"last": result.states[result.state], **names}


def state_of(result: TermSeriesResult, chosen: str) -> int:
    """Return the place of the state that is looked at."""
    return int(chosen) if chosen.isdigit() and int(chosen) < len(result.states) else result.state


def strongest(result: TermSeriesResult) -> str:
    """Return the term whose importance goes most clearly with the metric that says most; the first if none does."""
    if result.rho is None:
        return result.terms[0]
    at, indicator, state, _ = result.place(result.indicators[0], ALL_TERMS)
    rho = np.abs(np.nan_to_num(result.rho[at, indicator, state, :-1]))
    return result.terms[int(rho.argmax())]


def performance(result: TermSeriesResult, metric: str, key: str) -> alt.LayerChart:
    """Show a metric by checkpoint, one line a run, and return the picture."""
    number = result.metrics.index(metric)
    known = bool((result.steps[:, 0] >= 0).all())
    rows = []
    for run, name in enumerate(result.runs):
        for at, checkpoint in enumerate(result.checkpoints[run]):
            value, error = result.performance[number, run, at], result.performance_se[number, run, at]
            rows.append(
                {
                    "run": name,
                    "checkpoint": checkpoint,
                    "order": at,
                    "x": float(result.steps[run, at]) if known else at + 1.0,
                    "y": value,
                    "low": value - 1.96 * error,
                    "high": value + 1.96 * error,
                    "last": False,
                }
            )
    title = _UNITS.get(metric, metric)
    chart = run_pictures.run_lines(pd.DataFrame(rows), "training step" if known else "checkpoint", title, result.runs)
    st.markdown(f"**{METRICS[metric]} along the training**")
    ends = ", ".join(
        f"{name} {result.performance[number, run, 0]:.3g} to {result.performance[number, run, len(of) - 1]:.3g}"
        for run, (name, of) in enumerate(zip(result.runs, result.checkpoints, strict=True))
    )
    st.altair_chart(chart, key=f"decomposition.performance.{key}", alt=f"{METRICS[metric]} by checkpoint: {ends}.")
    better = "higher is better" if HIGHER_IS_BETTER[metric] else "lower is better"
    st.caption(f"{better[:1].upper()}{better[1:]}. Upright lines: 95 % interval over texts.")
    return chart


def against(result: TermSeriesResult, metric: str, indicator: str, term: str, state: int) -> alt.LayerChart | None:
    """Show an indicator's mean against a metric, one line a run in training order; None for all terms at once."""
    label = frame.INDICATORS[indicator]
    if term == ALL_TERMS:
        st.markdown(f"**{label} of all terms**")
        st.caption(
            "For all terms together it is correlated how far they move, whichever way, which is no single number a "
            "checkpoint; choose one term to see it against the metric."
        )
        return None
    number, at, state, place = result.place(indicator, term, metric, state)
    rows = []
    for run, name in enumerate(result.runs):
        last = len(result.checkpoints[run]) - 1
        for step, checkpoint in enumerate(result.checkpoints[run]):
            rows.append(
                {
                    "run": name,
                    "checkpoint": checkpoint,
                    "order": step,
                    "x": result.mean[at, run, step, state, place],
                    "y": result.performance[number, run, step],
                    "last": step == last,
                }
            )
    title = f"{label.lower()} of {term}"
    chart = run_pictures.run_lines(pd.DataFrame(rows), title, _UNITS.get(metric, metric), result.runs, ordered=True)
    st.markdown(f"**{label} of {term} against {metric}**")
    said = _rho(result, number, at, state, place)
    st.altair_chart(chart, key="decomposition.against", alt=f"{title} against {metric}, one line a run. {said}")
    st.caption(f"Joined in the order of training; the last checkpoint is large. {said}")
    return chart


def _rho(result: TermSeriesResult, *cell: int) -> str:
    if result.rho is None or result.rho_low is None or result.rho_high is None or not np.isfinite(result.rho[cell]):
        return "Their changes have no correlation to compute."
    rho, low, high = (
        pictures.number(float(each[cell]), sign="+") for each in (result.rho, result.rho_low, result.rho_high)
    )
    return f"Spearman's ρ of their changes {rho} (95 % interval {low} to {high})."


def table(result: TermSeriesResult, metric: str, state: int) -> None:
    """Show the correlations of a metric with every indicator of every term in a state: picture and sortable table."""
    found = result.correlation_frame()
    if not len(found):
        return
    st.subheader(f"What goes with {metric}", anchor=False)
    own = found[(found["metric"] == metric) & (found["state"] == result.states[state])].copy()
    own["name"] = [
        f"{frame.INDICATORS[indicator].lower()} · {term}"
        for indicator, term in zip(own["indicator"], own["term"], strict=True)
    ]
    own = own.sort_values("rho", key=lambda rho: rho.abs(), ascending=False, na_position="last")
    left, right = st.columns([5, 6], gap="medium")
    clear = own[own["clear"]]
    with left:
        st.altair_chart(
            run_pictures.forest(own, own["name"].tolist(), result.rho_rising),
            key="decomposition.forest",
            alt=f"Correlations with {metric} in {result.states[state]}, strongest first; clear of 0: "
            f"{', '.join(clear['name']) or 'none'}.",
        )
    with right:
        shown = pd.DataFrame(
            {
                "indicator": [frame.INDICATORS[name].lower() for name in own["indicator"]],
                "term": own["term"],
                "rho": own["rho"],
                "low": own["low"],
                "high": own["high"],
                "clear": own["clear"],
                "alike": own["runs_alike"],
                "step": own["step_rho"],
                "step_low": own["step_low"],
                "step_high": own["step_high"],
                "step_clear": own["step_clear"],
            }
        )
        number = st.column_config.NumberColumn
        st.dataframe(
            shown,
            hide_index=True,
            height=min(560, 38 + 35 * len(shown)),
            key="decomposition.correlations",
            column_config={
                "rho": number("ρ", format="%+.2f", width=60),
                "low": number("from", format="%+.2f", width=60, help="95 % interval, each for itself."),
                "high": number("to", format="%+.2f", width=60),
                "clear": st.column_config.CheckboxColumn(
                    "clear of 0", width=80, help=f"By an interval that allows for all {result.tests} of this table."
                ),
                "alike": number(
                    "runs alike", width=80, help=f"Of {len(result.runs)} runs, in how many alone the sign is the same."
                ),
                "step": number(
                    "same step",
                    format="%+.2f",
                    width=80,
                    help="ρ of differences between runs at the same step, over all pairs of runs and all steps: what "
                    "training does to every run cancels.",
                ),
                "step_low": number("from ", format="%+.2f", width=60, help="95 % interval, each for itself."),
                "step_high": number("to ", format="%+.2f", width=60),
                "step_clear": st.column_config.CheckboxColumn(
                    "clear of 0 ", width=80, help=f"By an interval that allows for all {result.tests}."
                ),
            },
            alt=f"{len(shown)} correlations with {metric}.",
        )
    better = (
        ""
        if HIGHER_IS_BETTER[metric]
        else " The loss falls as models get better, so what goes with better models is negative."
    )
    st.caption(
        "Filled: Spearman's ρ of changes between every two checkpoints of a run, in both directions, as in the paper. "
        f"Thick: 95 % interval; thin: the one that allows for all {result.tests}; coloured where that is clear of 0. "
        f"{_dotted(result)}Hollow: ρ of differences between runs at the same step.{better} Click a heading of the "
        "table to sort."
    )


def _dotted(result: TermSeriesResult) -> str:
    if not np.isfinite(result.rho_rising):
        return ""
    return f"Dotted: ±{result.rho_rising:.2f}, what two unrelated series have that only rise in training. "


def variance(result: TermSeriesResult, indicator: str, state: int) -> None:
    """Show how much an indicator differs between runs and between tokens, term by term."""
    from embcompare.experiments.term_series_words import spread

    st.subheader("Between runs, and within them", anchor=False)
    st.markdown(plain(spread(result, indicator, state)))
    if result.variance is None or not np.isfinite(result.variance).any():
        return
    at = result.indicators.index(indicator)
    rows = []
    kinds = (f"between {result.units} of a run", "between runs (of their means)")
    for place, term in enumerate(result.terms):
        for kind, part in zip(kinds, (4, 3), strict=True):
            rows.append({"name": term, "model": kind, "value": float(result.variance[part, at, state, place])})
    st.altair_chart(
        run_pictures.interval_bars(
            pd.DataFrame(rows), f"standard deviation of {frame.INDICATORS[indicator].lower()}", result.terms, kinds
        ),
        key="decomposition.variance",
        alt=spread(result, indicator, state),
    )
    what = plural(result.units_read, result.units.removesuffix("s"))
    st.caption(
        f"Over the last checkpoint of every run and {what} that all of them read. Variance components, runs and "
        f"{result.units} crossed, are in the table below."
    )


def distances(result: TermSeriesResult, indicator: str, term: str, state: int) -> None:
    """Show how far every two runs' series of an indicator are from each other."""
    if result.distance is None or len(result.runs) < 2:
        return
    st.subheader("Between the runs' series", anchor=False)
    at, place = result.indicators.index(indicator), (*result.terms, ALL_TERMS).index(term)
    matrix = result.distance[at, state, place]
    top = float(np.nanmax(matrix)) if np.isfinite(matrix).any() else 1.0
    scale = charts.Scale(0.0, top or 1.0, False, "distance", low_is_bright=True)
    left, right = st.columns([3, 2], gap="medium")
    with left, st.container(key="scrolled_distances"):
        st.altair_chart(
            pictures.cells(
                matrix,
                result.runs,
                result.runs,
                scale,
                "distance",
                heads=("run", "run "),
                step=64,
                row_height=34,
                write=functools.partial(pictures.number, digits=1),
                clip=10,
            ),
            key="decomposition.distances",
            width="content",
            alt=f"Distances of {len(result.runs)} runs' series, 0 to {top:.1f}.",
        )
    with right:
        st.caption(
            f"Dynamic time warping between two runs' series of {frame.INDICATORS[indicator].lower()} of {term}, in "
            "standard deviations over all checkpoints of all runs; bright is close. Runs of one recipe need not be "
            "close: the paper found seeds of one language pair no closer than other pairs."
        )


def texts(result: TermSeriesResult, indicator: str, state: int) -> None:
    """Show whether an indicator goes with the score of single texts, in each run and between runs."""
    if result.text_rho is None or result.text_low is None or result.text_high is None:
        return
    st.subheader("Text by text", anchor=False)
    score = frame.choose("Score", {name: METRICS[name] for name in result.scores}, "score")
    at, number = result.indicators.index(indicator), result.scores.index(score)
    pairs = [
        (result.text_rho, result.same_rho),
        (result.text_low, result.same_low),
        (result.text_high, result.same_high),
    ]
    rho, low, high = (
        one[number, at, state]
        if same is None
        else np.concatenate([one[number, at, state], same[number, at, state][:, None]], 1)
        for one, same in pairs
    )
    columns = [*result.runs, *([BETWEEN] if result.same_rho is not None else [])]
    clear = (low > 0) | (high < 0)
    signed = functools.partial(pictures.number, sign="+")
    spans = np.empty(rho.shape, dtype=object)
    for cell in np.ndindex(rho.shape):
        spans[cell] = f"{signed(float(low[cell]))} to {signed(float(high[cell]))}"
    with st.container(key="scrolled_texts"):
        st.altair_chart(
            pictures.cells(
                rho,
                result.terms,
                columns,
                charts.Scale(-1.0, 1.0, True, "Spearman's ρ"),
                "Spearman's ρ",
                heads=("term", "run"),
                step=96,
                write=functools.partial(pictures.number, sign="+"),
                details={"95 % interval": spans},
                clip=14,
            ),
            key="decomposition.texts",
            width="content",
            alt=f"Correlations of {indicator} with {score} over texts: {len(result.terms)} terms, {len(columns)} runs.",
        )
    count = int(clear.sum())
    ends = f"{plural(count, 'cell')} of {clear.size} {agree(count, 'has', 'have')} an interval clear of 0"
    last = (
        f" ‘{BETWEEN.capitalize()}’: differences between runs on the same text, where what makes a text hard cancels."
        if result.same_rho is not None
        else ""
    )
    st.caption(
        f"Over {plural(result.texts, 'text')} at the last checkpoints: a text's mean "
        f"{frame.INDICATORS[indicator].lower()} with its {score}. {ends}, each for itself; about one in "
        f"twenty would be by chance.{last}"
    )
