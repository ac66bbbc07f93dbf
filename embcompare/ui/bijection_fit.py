"""One pair of layers on the page Bijection: what is fitted, its run with curves that grow, pairs fitted before."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st

from embcompare.experiments.bijection import Bijection, BijectionResult
from embcompare.experiments.bijection_run import TAKEN_UP
from embcompare.running import fingerprints
from embcompare.ui import bijection_form as forms
from embcompare.ui import bijection_layers as layers
from embcompare.ui import bijection_picture as pictures
from embcompare.ui import bijection_result as results
from embcompare.ui import bijection_table as tables
from embcompare.ui import bijection_words as say
from embcompare.ui import runs
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.map_pairs import MapPairs
    from embcompare.store import Entry
    from embcompare.ui.bijection_form import Sides

SLOT = "bijection"


def show(
    wanted: MapPairs, sides: Sides, offered: layers.Numbers, told: tuple[str, ...]
) -> tuple[Bijection | None, BijectionResult | None]:
    """Show the layers, the maps, their settings, and the fit or what leads to it; return what was asked and found.

    ``told`` are notices that stand on the page already.
    """
    chosen = layers.choose(offered)
    maps = forms.choose_maps(sides, wanted)
    settings = forms.fit_settings(wanted, chosen, maps)
    if settings is None:
        return None, None
    forms.publish()
    result = runs.obtained(
        settings,
        BijectionResult,
        SLOT,
        lambda: forms.fit_cost(settings, sides),
        arriving=False,
        draw=lambda partial: _so_far(settings, partial),
    )
    if result is not None:
        results.show(settings, result, told)
    _fitted_before(settings)
    return settings, result


def _so_far(settings: Bijection, partial: BijectionResult) -> None:
    """Show a run that is under way, or was stopped: learning curves and the maps that are done."""
    job = runs.job_of(settings)
    stopped = say.stopped_at(job) if job is not None and job.state == "cancelled" else None
    if stopped is not None:
        st.caption(f"Stopped in {plain(stopped[0])} after epoch {stopped[1]}; Run takes it up from there.")
    else:
        for notice in partial.notices:
            if TAKEN_UP in notice:
                st.caption(plain(notice))
    curves = partial.curve_frame()
    if len(curves):
        drawn = pictures.learning(curves, pictures.kept_epochs(partial))
        st.altair_chart(drawn, key="bijection.learning.partial", alt=results.described_curves(partial))
    known = say.table(partial).dropna(subset=["r2"])
    if len(known):
        tables.maps(known, key="bijection.partial_table")


def _fitted_before(settings: Bijection) -> None:
    """List the pairs of layers that were fitted with these settings."""
    if runs.fetches(settings):
        return
    frame = fitted_before(settings)
    others = frame[(frame["layer_a"] != settings.layer_a) | (frame["layer_b"] != settings.layer_b)]
    if not len(others):
        return
    st.subheader("Pairs of layers fitted so far, with these settings", anchor=False)
    tables.pairs(frame, (settings.layer_a, settings.layer_b), "bijection.before")


def fitted_before(settings: Bijection) -> pd.DataFrame:
    """Return one row a pair of layers whose fit with these settings is stored: the layers, the kind, R² of each map."""
    store = runs.queue().store
    prints = fingerprints(settings)
    rows: list[dict[str, Any]] = []
    for entry in store.entries():
        if _alike(entry, settings, prints):
            found = _summary(entry.key)
            if found:
                rows.append({"layer_a": entry.settings["layer_a"], "layer_b": entry.settings["layer_b"], **found})
    columns = ["layer_a", "layer_b", "kind", *settings.map_names()]
    return pd.DataFrame(rows, columns=columns).sort_values(["layer_a", "layer_b"], ignore_index=True)


def _alike(entry: Entry, settings: Bijection, prints: dict[str, str]) -> bool:
    if entry.experiment != settings.experiment or entry.version != settings.version:
        return False
    named = ("model_a", "model_b", "corpus")
    same = all(
        entry.settings.get(item.name, item.default) == getattr(settings, item.name)
        for item in dataclasses.fields(settings)
        if item.name not in ("layer_a", "layer_b", *named)
    )
    return same and all(
        entry.models.get(str(entry.settings.get(name))) == prints.get(getattr(settings, name)) for name in named
    )


@st.cache_data(max_entries=512, show_spinner=False)
def _summary(key: str) -> dict[str, Any] | None:
    """Return what a stored fit says in a row; what is stored under a key never changes."""
    result = runs.queue().store.get(key)
    if not isinstance(result, BijectionResult):
        return None
    return {"kind": result.kind, **{name: result.mean(name, "r2") for name in result.maps}}
