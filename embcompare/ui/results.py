"""Stored results: listed, opened, taken away, deleted."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from embcompare.errors import EmbcompareError, StoreError
from embcompare.experiments import settings_type
from embcompare.models import ModelSpec, policy
from embcompare.store import Entry, Store
from embcompare.ui import exports, links, runs
from embcompare.ui.alignment import DEFAULTS
from embcompare.ui.page import PARAMETERS, plain

OPENED_ON: dict[str, str] = {"parameter-alignment": PARAMETERS, "parameter-matches": PARAMETERS}
"""The page that shows each experiment."""
_MODELS = ("model_a", "model_b")


def show() -> None:
    """Show the page below its lead."""
    store = runs.queue().store
    entries = store.entries()
    _said()
    for notice in store.notices():
        st.warning(plain(notice))
    broken = store.writable()
    if broken:
        st.error(plain(broken))
    st.markdown(
        f"**{len(entries):,} result{'' if len(entries) == 1 else 's'}**, {_size(store.size())} of "
        f"{_size(store.max_bytes)} in use; beyond that, what was used longest ago is dropped."
    )
    if not entries:
        st.info("Nothing is kept yet. Run a comparison and it will be listed here.")
        return
    chosen = _table(entries)
    if chosen is None:
        st.caption("Choose a row to open, export or delete the result.")
    else:
        _one(store, chosen)
    if not policy.hosted():
        _clear(store, len(entries))


def _table(entries: list[Entry]) -> Entry | None:
    frame = pd.DataFrame(
        {
            "experiment": [entry.experiment for entry in entries],
            "A": [_label(entry, "model_a") for entry in entries],
            "B": [_label(entry, "model_b") for entry in entries],
            "settings": [described(entry) for entry in entries],
            "size": [_size(entry.bytes) for entry in entries],
            "created": [datetime.fromtimestamp(entry.created, UTC) for entry in entries],
            "seconds": [entry.seconds for entry in entries],
        }
    )
    event = st.dataframe(
        frame,
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        key="results.table",
        column_config={
            "experiment": st.column_config.TextColumn("experiment", width=170),
            "A": st.column_config.TextColumn("model A"),
            "B": st.column_config.TextColumn("model B"),
            "settings": st.column_config.TextColumn("settings other than the defaults", width="large"),
            "size": st.column_config.TextColumn("size", width="small"),
            "created": st.column_config.DatetimeColumn("created (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC"),
            "seconds": st.column_config.NumberColumn("seconds", format="%.1f", width="small"),
        },
        alt=f"Table of {len(entries)} stored results.",
    )
    rows = event["selection"]["rows"]
    return entries[rows[0]] if rows and rows[0] < len(entries) else None


def _label(entry: Entry, name: str) -> str:
    try:
        return ModelSpec.parse(str(entry.settings.get(name, "–"))).label
    except EmbcompareError:
        return str(entry.settings.get(name))


def described(entry: Entry) -> str:
    """Return an entry's settings other than the models and the defaults, as one line."""
    try:
        fields = settings_type(entry.experiment).__dataclass_fields__
    except EmbcompareError:
        fields = {}
    changed = [
        f"{name}={links.text(value)}"
        for name, value in entry.settings.items()
        if name not in _MODELS and (name not in fields or fields[name].default != value)
    ]
    return ", ".join(changed) or "all defaults"


def _one(store: Store, entry: Entry) -> None:
    result = store.get(entry.key)
    with st.container(border=True):
        st.markdown(
            f"**{plain(entry.experiment)}** · {plain(_label(entry, 'model_a'))} and {plain(_label(entry, 'model_b'))} "
            f"· {plain(described(entry))}"
        )
        if result is None:
            st.warning("This result cannot be read any more; what happened is said above once the page reloads.")
        else:
            script = OPENED_ON.get(entry.experiment)
            if script is not None:
                link = {name: links.text(value) for name, value in entry.settings.items() if name in DEFAULTS}
                st.page_link(script, label="Open", icon=":material/open_in_new:", query_params=link)
            stem = f"{entry.experiment} {_label(entry, 'model_a')} {_label(entry, 'model_b')}"
            exports.downloads(result, stem, f"results.{entry.key[:12]}")
        if not policy.hosted():
            st.button(
                "Delete", key="results.delete", icon=":material/delete:", on_click=_delete, args=(store, entry.key)
            )


def _delete(store: Store, key: str) -> None:
    try:
        store.delete(key)
        runs.forget(key)
        st.session_state["results.said"] = "The result was deleted."
    except StoreError as error:
        st.session_state["results.said"] = str(error)
    st.session_state.pop("results.table", None)


def _clear(store: Store, count: int) -> None:
    with st.popover("Delete all …", icon=":material/delete_sweep:"):
        st.markdown(f"Delete all {count:,} results? They can be computed again, but not brought back.")
        st.button("Delete all results", key="results.clear", type="primary", on_click=_clear_now, args=(store,))


def _clear_now(store: Store) -> None:
    try:
        for entry in store.entries():
            runs.forget(entry.key)
        st.session_state["results.said"] = _deleted(store.clear())
    except StoreError as error:
        st.session_state["results.said"] = str(error)
    st.session_state.pop("results.table", None)


def _deleted(count: int) -> str:
    return "1 result was deleted." if count == 1 else f"{count:,} results were deleted."


def _said() -> None:
    said = st.session_state.pop("results.said", None)
    if said:
        st.info(plain(said))


def _size(size: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
