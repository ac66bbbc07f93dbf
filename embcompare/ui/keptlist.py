"""What is kept beside the results, on a page: texts and vectors that were given, hidden states, trained maps."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from embcompare import kept
from embcompare.errors import EmbcompareError
from embcompare.models import policy
from embcompare.store import Store
from embcompare.ui import given
from embcompare.ui.page import plain
from embcompare.words import in_words, plural


def show(store: Store) -> None:
    """List what is kept, each thing with its size, and offer to delete it; strangers see what they gave themselves."""
    # in an order that use does not change, for a ticked row is known by its place
    items = sorted(filter(_seen, kept.items(store)), key=lambda item: (item.kind, item.title, item.name))
    if not items:
        return
    total = in_words(sum(item.bytes for item in items))
    st.subheader("Kept beside them", anchor=False)
    st.markdown(
        f"**{plural(len(items), 'thing')}**, {total}: texts and vectors that were given, hidden states that models "
        "computed from texts, and maps that were trained between them. Without them results stay, and what is needed "
        "again is computed or asked for again."
    )
    frame = pd.DataFrame(
        {
            "kind": [item.kind for item in items],
            "title": [item.title or item.name for item in items],
            "size": [in_words(item.bytes) for item in items],
            "used": [datetime.fromtimestamp(item.last_used, UTC) for item in items],
        }
    )
    names = hashlib.sha256(repr([item.name for item in items]).encode()).hexdigest()[:12]
    event = st.dataframe(
        frame,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        height=min(38 + 35 * len(items), 300),
        key=f"kept.table.{names}",
        column_config={
            "kind": st.column_config.TextColumn("kind", width=150),
            "title": st.column_config.TextColumn("what it is", width="large"),
            "size": st.column_config.TextColumn("size", width="small"),
            "used": st.column_config.DatetimeColumn("last used (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC"),
        },
        alt=f"Table of {plural(len(items), 'thing')} kept beside the results.",
    )
    if policy.hosted():
        return
    chosen = [items[row] for row in event["selection"]["rows"] if row < len(items)]
    if not chosen:
        st.caption("Choose rows to delete them.")
        return
    st.markdown(f"Chosen: {', '.join(plain(item.title or item.name[:24]) for item in chosen)}")
    st.button(
        f"Delete {plural(len(chosen), 'thing')}",
        key="kept.delete",
        icon=":material/delete:",
        on_click=_delete,
        args=(store, [item.name for item in chosen]),
    )


def _seen(item: kept.Item) -> bool:
    return not policy.hosted() or item.name in {*given.own(given.TEXTS), *given.own(given.VECTORS)}


def _delete(store: Store, names: list[str]) -> None:
    removed, problems = 0, []
    for name in names:
        try:
            removed += kept.delete(name, store)
        except EmbcompareError as error:
            problems.append(str(error))
    gone = len(names) - removed - len(problems)
    said = [f"{plural(removed, 'thing was', 'things were')} deleted."] if removed else []
    said += [f"{plural(gone, 'thing was', 'things were')} gone already."] if gone else []
    st.session_state["results.said"] = " ".join([*said, *problems])
