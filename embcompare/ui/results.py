"""Stored results: listed, opened, taken away, deleted."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from embcompare import entries as entries_
from embcompare.errors import EmbcompareError, StoreError
from embcompare.models import ModelSpec, policy
from embcompare.shelf import digest_of
from embcompare.store import Entry, Store
from embcompare.ui import exports, given, keptlist, runs
from embcompare.ui.opened import NAMES, OPENED_ON, WITHOUT_PAGE, beyond, link_of
from embcompare.ui.page import plain
from embcompare.words import in_words, plural

LISTED = 12
"""Results that the list on a small screen shows at first, and that each press adds."""
# A table needs width; where there is none, the same results are a list.
_STYLE = """<style>
.st-key-results_list { display: none; }
@media (max-width: 640px) {
  .st-key-results_wide { display: none; }
  .st-key-results_list { display: flex; }
}
</style>"""


def show() -> None:
    """Show the page below its lead."""
    store = runs.queue().store
    # newest first, whatever is looked at: a row keeps its place while it is chosen
    entries = sorted(filter(seen, store.entries()), key=lambda entry: entry.created, reverse=True)
    _said()
    for notice in [] if policy.hosted() else store.take_notices():
        st.warning(plain(notice))
    broken = store.writable()
    if broken:
        st.error(plain(broken))
    st.markdown(
        f"**{plural(len(entries), 'result')}**, {in_words(store.size())} of "
        f"{in_words(store.max_bytes)} in use; beyond that, what was used longest ago is dropped."
    )
    if not entries:
        st.info("No result is kept yet. Run a comparison and it will be listed here.")
        keptlist.show(store)
        return
    st.html(_STYLE)
    with st.container(key="results_wide"):
        chosen = _table(entries)
        if chosen is None:
            what = "open or export" if policy.hosted() else "open, export or delete"
            st.caption(f"Choose a row to {what} the result.")
        else:
            with st.container(border=True):
                st.markdown(f"**{plain(name_of(chosen))}** · {plain(pair_of(chosen))} · {plain(described(chosen))}")
                _actions(store, chosen)
    with st.container(key="results_list", gap="small"):
        _list(store, entries, None if chosen is not None else st.session_state.get("results.chosen"))
    if not policy.hosted():
        _clear(store, len(entries))
    keptlist.show(store)


def seen(entry: Entry) -> bool:
    """Say whether this session may see a result: where strangers are served, own texts and vectors stay private."""
    kept = [value for value in entry.settings.values() if isinstance(value, str) and digest_of(value)]
    known = {*given.own(given.TEXTS), *given.own(given.VECTORS)}
    return not policy.hosted() or known.issuperset(kept)


def name_of(entry: Entry) -> str:
    """Return what a result's experiment is called."""
    return NAMES.get(entry.experiment, entry.experiment)


def pair_of(entry: Entry) -> str:
    """Return the two sides of a result in words."""
    return " and ".join(entries_.sides(entry, _called))


def _table(entries: list[Entry]) -> Entry | None:
    frame = pd.DataFrame(
        {
            "experiment": [name_of(entry) for entry in entries],
            "A": [[*entries_.sides(entry, _called), "–"][0] for entry in entries],
            "B": [[*entries_.sides(entry, _called), "–", "–"][1] for entry in entries],
            "settings": [described(entry) for entry in entries],
            "size": [in_words(entry.bytes) for entry in entries],
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
            "experiment": st.column_config.TextColumn("experiment", width=230),
            "A": st.column_config.TextColumn("model A"),
            "B": st.column_config.TextColumn("model B"),
            "settings": st.column_config.TextColumn("settings other than the defaults", width="large"),
            "size": st.column_config.TextColumn("size", width="small"),
            "created": st.column_config.DatetimeColumn("created (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC"),
            "seconds": st.column_config.NumberColumn("seconds", format="%.1f", width="small"),
        },
        alt=f"Table of {plural(len(entries), 'stored result')}.",
    )
    rows = event["selection"]["rows"]
    return entries[rows[0]] if rows and rows[0] < len(entries) else None


def _list(store: Store, entries: list[Entry], chosen: str | None) -> None:
    """Show the results one below the other: each a link to its page, with files and more at the press of a button."""
    shown = int(st.session_state.setdefault("results.listed", LISTED))
    for entry in entries[:shown]:
        with st.container(border=True, gap="xsmall"):
            with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
                _headline(entry)
                if entry.key != chosen:
                    st.button(
                        "Files",
                        key=f"results.{entry.key}.more",
                        type="tertiary",
                        help="Take the result away, or delete it.",
                        on_click=_choose,
                        args=(entry.key,),
                    )
            when = datetime.fromtimestamp(entry.created, UTC)
            st.markdown(plain(pair_of(entry)))
            st.caption(plain(f"{described(entry)} · {when:%Y-%m-%d %H:%M} UTC · {in_words(entry.bytes)}"))
            if entry.key == chosen:
                _actions(store, entry, opening=False)
    if len(entries) > shown:
        st.button("Show more", key="results.show_more", on_click=_show_more)


def _headline(entry: Entry) -> None:
    link = link_of(entry)
    if link is None:
        st.markdown(f"**{plain(name_of(entry))}**", width="content")
    else:
        label = f"**{name_of(entry)}**"
        st.page_link(link[0], label=label, icon=":material/open_in_new:", query_params=link[1], width="content")


def _choose(key: str) -> None:
    st.session_state["results.chosen"] = key


def _show_more() -> None:
    st.session_state["results.listed"] += LISTED


def _called(name: str) -> str:
    if digest_of(name):
        return given.called(name)
    try:
        return ModelSpec.parse(name).label
    except EmbcompareError:
        return name


def described(entry: Entry) -> str:
    """Return an entry's settings other than the models and the defaults, as one line."""
    return entries_.described(entry, given.called)


def _actions(store: Store, entry: Entry, *, opening: bool = True) -> None:
    """Show what can be done with a result: open it, take it away, delete it."""
    result = store.get(entry.key)
    if result is None:
        st.warning("This result cannot be read any more; what happened is said above once the page reloads.")
    else:
        if entry.experiment in WITHOUT_PAGE:
            st.caption("No page shows such a result; it comes from Python or a shell, and can be exported.")
        missed = beyond(entry) if entry.experiment in OPENED_ON else {}
        if missed:
            said = ", ".join(f"{name}={value}" for name, value in missed.items())
            st.caption(plain(f"No page shows a result with {said}; it can be exported."))
        link = link_of(entry) if opening else None
        if link is not None:
            st.page_link(link[0], label="Open", icon=":material/open_in_new:", query_params=link[1])
        exports.downloads(result, f"{entry.experiment} {pair_of(entry)}", f"results.{entry.key}")
    if not policy.hosted():
        st.button("Delete", key="results.delete", icon=":material/delete:", on_click=_delete, args=(store, entry.key))


def _delete(store: Store, key: str) -> None:
    try:
        deleted = store.delete(key)
        runs.forget(key)
        st.session_state["results.said"] = "The result was deleted." if deleted else "The result was gone already."
    except StoreError as error:
        st.session_state["results.said"] = str(error)
    st.session_state.pop("results.table", None)


def _clear(store: Store, count: int) -> None:
    with st.popover("Delete all …", icon=":material/delete_sweep:"):
        what = "the one result" if count == 1 else f"all {count:,} results"
        st.markdown(f"Delete {what}? What is deleted can be computed again, but not brought back.")
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
    return f"{plural(count, 'result was', 'results were')} deleted."


def _said() -> None:
    said = st.session_state.pop("results.said", None)
    if said:
        st.info(plain(said))
