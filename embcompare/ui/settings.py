"""Settings as widgets, made from the declarations of the experiment and checked by the experiment itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

from embcompare.errors import EmbcompareError
from embcompare.experiments.base import Settings
from embcompare.ui import links
from embcompare.ui.page import plain

S = TypeVar("S", bound=Settings)
Names = Mapping[str, Mapping[Any, str]]


def edited(
    kind: type[S],
    fixed: Mapping[str, Any],
    rows: Sequence[Sequence[str]],
    advanced: Sequence[str],
    names: Names,
    choices: Mapping[str, Sequence[Any]] | None = None,
    page: str = "parameters",
) -> S | None:
    """Show a widget for every setting and return the settings; None, with a sentence, when they are refused.

    ``fixed`` are settings that are chosen elsewhere, ``rows`` the plain ones, row by row, ``advanced`` those in the
    expander; ``names`` says how the choices of a setting are called, ``choices`` what a setting can be whose
    declaration has no list; ``page`` is whose values they are.
    """
    offered = choices or {}
    fields = {item.name: item for item in dataclasses.fields(kind)}
    values: dict[str, Any] = dict(fixed)
    for row in rows:
        for column, name in zip(st.columns(len(row), gap="small"), row, strict=True):
            with column:
                values[name] = _widget(fields[name], links.key(page, name), names.get(name, {}), offered.get(name))
    with st.expander("Advanced settings"):
        columns = st.columns(4, gap="small")
        for i, name in enumerate(advanced):
            with columns[i % 4]:
                values[name] = _widget(fields[name], links.key(page, name), names.get(name, {}), offered.get(name))
    try:
        return kind.from_dict(values)
    except EmbcompareError as error:
        st.error(plain(str(error)))
        return None


def _widget(item: dataclasses.Field, key: str, names: Mapping[Any, str], choices: Sequence[Any] | None) -> Any:
    meta, default = item.metadata, item.default
    label = meta["label"] or item.name
    st.session_state.setdefault(key, default)
    shared: dict[str, Any] = {
        "key": key,
        "help": meta["help"],
        "persist_state": "session",
        "on_change": links.forget,
    }
    offered = meta["choices"] or choices
    if offered:
        return st.selectbox(label, offered, format_func=lambda value: names.get(value, value), **shared)
    if isinstance(default, bool):
        return st.toggle(label, **shared)
    return st.number_input(label, int(meta["low"]), int(meta["high"]), step=1, **shared)
