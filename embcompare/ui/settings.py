"""Settings as widgets, made from the declarations of the experiment and checked by the experiment itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

from embcompare.errors import EmbcompareError
from embcompare.experiments.base import Settings
from embcompare.ui import links
from embcompare.ui.page import plain

S = TypeVar("S", bound=Settings)
Names = Mapping[str, Mapping[Any, str]]
LONGEST = 2000
"""Characters of a setting that is text."""
SHARE_STEP = 0.05
"""How far the buttons of a number that is not whole go."""


def edited(
    kind: type[S],
    fixed: Mapping[str, Any],
    rows: Sequence[Sequence[str]],
    advanced: Sequence[str],
    names: Names,
    choices: Mapping[str, Sequence[Any]] | None = None,
    page: str = "parameters",
    hidden: Collection[str] = (),
) -> S | None:
    """Show a widget for every setting and return the settings; None, with a sentence, when they are refused.

    ``fixed`` are settings that are chosen elsewhere, ``rows`` the plain ones, row by row, ``advanced`` those in the
    expander; ``names`` says how the choices of a setting are called, ``choices`` what a setting can be whose
    declaration has no list; ``page`` is whose values they are. ``hidden`` settings keep their values and have no
    widget, for what is looked at makes no use of them.
    """
    offered = choices or {}

    def key(name: str) -> str:
        return links.key(page, name)

    fields = {item.name: item for item in dataclasses.fields(kind)}
    values: dict[str, Any] = dict(fixed)
    for name in hidden:
        values[name] = st.session_state.setdefault(key(name), fields[name].default)
    for row in [[name for name in row if name not in hidden] for row in rows]:
        if not row:
            continue
        for column, name in zip(st.columns(len(row), gap="small"), row, strict=True):
            with column:
                values[name] = _widget(fields[name], key(name), names.get(name, {}), offered.get(name))
    with st.expander("Advanced settings"):
        columns = st.columns(4, gap="small")
        for i, name in enumerate(name for name in advanced if name not in hidden):
            with columns[i % 4]:
                values[name] = _widget(fields[name], key(name), names.get(name, {}), offered.get(name))
    try:
        return kind.from_dict(values)
    except EmbcompareError as error:
        st.error(plain(str(error)))
        return None


def single(
    kind: type[Settings],
    name: str,
    key: str,
    *,
    label: str = "",
    default: Any = None,
    names: Mapping[Any, str] | None = None,
    high: int | None = None,
    where: str = "",
) -> Any:
    """Show the widget of one setting of an experiment under the session's ``key`` and return its value.

    ``high`` bounds a number that only the model bounds, such as a layer; a value beyond it becomes the last one, with a
    sentence in which ``where`` has that many.
    """
    item = next(item for item in dataclasses.fields(kind) if item.name == name)
    meta = dict(item.metadata)
    value = st.session_state.setdefault(key, item.default if default is None else default)
    if high is not None:
        meta["high"] = high
        if isinstance(value, int) and value > high:
            st.warning(f"{where} has no {value}; the last is {high}.")
            st.session_state[key] = high
    return _shown(item, meta, key, names or {}, None, label)


def tab(page: str, views: Mapping[str, str], default: str) -> str:
    """Show what can be looked at on a page, label by name, and return the choice."""
    key = links.key(page, "tab")
    if st.session_state.get(key) not in views:
        st.session_state[key] = default
    chosen = st.segmented_control(
        "Look at",
        list(views),
        required=True,
        format_func=lambda name: views[name],
        key=key,
        persist_state="session",
        label_visibility="collapsed",
    )
    return str(chosen or default)


def _widget(item: dataclasses.Field, key: str, names: Mapping[Any, str], choices: Sequence[Any] | None) -> Any:
    st.session_state.setdefault(key, item.default)
    return _shown(item, item.metadata, key, names, choices)


def _shown(
    item: dataclasses.Field,
    meta: Mapping[str, Any],
    key: str,
    names: Mapping[Any, str],
    choices: Sequence[Any] | None,
    label: str = "",
) -> Any:
    title = label or meta["label"] or item.name
    shared: dict[str, Any] = {
        "key": key,
        "help": meta["help"],
        "persist_state": "session",
        "on_change": links.forget,
    }
    offered = meta["choices"] or choices
    value = st.session_state[key]
    if offered:
        return st.selectbox(title, offered, format_func=lambda value: names.get(value, value), **shared)
    if isinstance(value, bool):
        return st.toggle(title, **shared)
    if isinstance(value, str):
        return st.text_input(title, max_chars=LONGEST, **shared)
    if isinstance(value, float):
        low, high = (None if meta[end] is None else float(meta[end]) for end in ("low", "high"))
        return st.number_input(title, low, high, step=SHARE_STEP, format="%.6g", **shared)
    most = None if meta["high"] is None else int(meta["high"])
    return st.number_input(title, int(meta["low"]), most, step=1, **shared)
