"""The numbers beside the pictures of stitching: reference levels, every run, what the maps are, and how to cite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from embcompare.maps.registry import KERNELS
from embcompare.ui import exports, words
from embcompare.ui import stitching_words as say
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.stitching import Stitching, StitchingResult


def references(result: StitchingResult, score: str) -> None:
    """Show what the cells are held against, and the best cell of every map, with errors."""
    at, rows = result.at(score), []
    own_errors = result.own_b_errors[:, at]
    rows.append(("B alone", _level(result.own_b[:, at], own_errors, score), ""))
    if np.isfinite(result.own_a[:, at]).all():
        rows.append(("A alone", _level(result.own_a[:, at], np.full(result.runs, np.nan), score), ""))
    rows.append((f"base rate: {result.base_name}", _level(result.base[:, at], np.full(result.runs, np.nan), score), ""))
    for name in sorted(result.kernels, key=lambda each: KERNELS[each].control):
        cut, entry = say.best_cell(result, name, score)
        place = (result.kernel(name), at, cut, entry)
        level = _level(result.values[(slice(None), *place)], result.errors[(slice(None), *place)], score)
        label = KERNELS[name].label + (" (control)" if KERNELS[name].control else "")
        rows.append((label, level, f"{cut} of A → layer {entry} of B"))
    st.markdown(f"**{say.SCORES[score]}**, {say.unit(result, score)}", help=say.MEANINGS[score])
    st.table(
        [{"": plain(name), " ": value, "best cell": plain(where)} for name, value, where in rows],
        border="horizontal",
        hide_index=True,
    )
    how = "± standard deviation over runs" if result.runs > 1 else "± one standard error over texts"
    counts = plural(int(result.counts[0]), "text" if result.task == "classes" else "token")
    st.caption(
        f"{how}, where there is one; {counts} scored{' in the first run' if result.runs > 1 else ''}. A best cell is "
        f"the best of all {plural(result.values.shape[-2] * result.values.shape[-1], 'cell')} of its map, cut 0 and "
        "entry 0 included, so it looks a little better than it is; this holds for controls too."
    )


def _level(values: np.ndarray, errors: np.ndarray, score: str) -> str:
    """Say a mean over runs with its spread: over runs where there are several, over texts where there is one."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else float(errors[0])
    mean = float(values.mean())
    if not np.isfinite(spread):
        return say.said(score, mean)
    if say.counted(score) == "share":
        return f"{say.percent(mean, 1)} ± {say.percent(spread, 1)} %"
    return f"{mean:.2f} ± {spread:.2f}"


def every_run(result: StitchingResult, score: str) -> None:
    """Show every run by itself, with mean and standard deviation."""
    at = result.at(score)
    columns = {"B alone": result.own_b[:, at], f"base rate: {result.base_name}": result.base[:, at]}
    for name in result.kernels:
        cut, entry = say.best_cell(result, name, score)
        columns[f"{KERNELS[name].label}, {cut} → {entry}"] = result.values[:, result.kernel(name), at, cut, entry]
    numbers = pd.DataFrame(columns)
    spread = pd.DataFrame({name: [values.mean(), values.std(ddof=1)] for name, values in numbers.items()})
    table = pd.concat([numbers, spread], ignore_index=True)
    table.insert(0, "run", [*result.run_names, "mean", "standard deviation"])
    share = say.counted(score) == "share"
    if share:
        table[list(columns)] *= 100
    kind = st.column_config.NumberColumn(format="%.1f %%" if share else "%.3f", width="medium")
    st.dataframe(
        table,
        hide_index=True,
        height="content" if len(table) <= 16 else 420,
        key="stitching.runs_table",
        column_config={"run": st.column_config.TextColumn("run", pinned=True), **dict.fromkeys(columns, kind)},
        alt=f"{say.SCORES[score]} of {plural(result.runs, 'run')}, with mean and standard deviation.",
    )
    st.caption(
        "Of each map the cell whose mean over runs is best: blocks of A → layer of B. Each run has texts, drawn maps "
        "and tuning of its own seed."
    )


def maps(result: StitchingResult) -> None:
    """Show what each map is and what is known of it here."""
    for at, name in enumerate(result.kernels):
        declared = KERNELS[name]
        known = []
        if np.isfinite(result.condition[at]):
            known.append(f"condition number {result.condition[at]:.3g}")
        if np.isfinite(result.explained[at]):
            known.append(f"it carries {say.percent(result.explained[at], 1)} % of a variance: {declared.explained}")
        if np.isfinite(result.held_out[at]).any():
            low, high = np.nanmin(result.held_out[at]), np.nanmax(result.held_out[at])
            known.append(f"R² on states kept aside {low:.2f} to {high:.2f}")
        here = f" Here: {'; '.join(known)}." if known else ""
        source = f" Source: {declared.source}." if declared.source else ""
        kind = " · control" if declared.control else ""
        st.markdown(f"**{plain(say.plainly(name))}**{kind}\n\n{plain(declared.formula)}")
        st.markdown(plain(f"{declared.meaning}{source}{here}"))


def about(wanted: Stitching, result: StitchingResult) -> None:
    """Show the table, what the maps are, the call, how to cite, and where the numbers come from."""
    with st.expander("Numbers"):
        frame = result.to_frame()
        decimals = {name: st.column_config.NumberColumn(format="%.4f") for name in frame.select_dtypes("float").columns}
        st.dataframe(frame, hide_index=True, height=320, column_config=decimals)
    with st.expander("What the maps are"):
        maps(result)
    with st.expander("How cells are told from chance"):
        st.markdown(
            f"A cell counts as better than {plain(say.base_in_words(result))} where a one-sided test of its "
            f"{say.SCORES[result.main_score].lower()} has a p-value below 5 % divided by the number of cells "
            f"(Bonferroni). Texts are what is sampled: the {plural(result.distinct_texts, 'text')} of all runs "
            "together, each counted once however many runs scored it; of an accuracy by the exact binomial test, of a "
            "loss by Student's t of the differences from the base rate, paired by text. Intervals are 95 % for each "
            "cell by itself: over runs where there are three or more, else over texts."
        )
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("How to cite"):
        st.markdown(
            "Stitching two models by the kernel E_A E_B⁺, without training: Dar, Geva, Gupta and Berant (2023), "
            "*Analyzing Transformers in Embedding Space*, ACL 2023, section 4. Other maps name their sources above. "
            "The whole grid, the controls, the interval and the correction for all cells are embcompare's own."
        )
        st.code(words.CITATION, language="bibtex", wrap_lines=True)
    with st.expander("Where the numbers come from"):
        exports.provenance(result)
