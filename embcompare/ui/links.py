"""Links: the state of a page lives in its address, under the settings' own names.

Streamlit can bind widgets to the address by itself, but writes labels there, not names, and drops what it does not
understand without a word. Here each page says what it knows; whoever arrives by a link gets those values, and a
sentence about the rest.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import streamlit as st

from embcompare.entries import text
from embcompare.errors import EmbcompareError, SettingsError
from embcompare.experiments.base import Settings
from embcompare.ui.page import plain

_SAID, _PUBLISHED, _BEFORE, _WHEN = "link.said", "link.published", "link.before", "link.when"
# Between a page's new address and the browser's knowing it, a quick click still brings the old one.
_LAG_SECONDS = 2.0


_SHARED = ("model_a", "model_b")
_PLAIN = ("home", "parameters")


def key(page: str, name: str) -> str:
    """Return where a page keeps a value in the session: the pair is every page's, all else is its own."""
    return name if name in _SHARED or page in _PLAIN else f"{page}.{name}"


def choice(*allowed: str) -> Callable[[str], str]:
    """Return a reader that takes one of ``allowed`` and refuses all else."""

    def read(text: str) -> str:
        if text not in allowed:
            raise SettingsError(f"it can be one of {', '.join(allowed)}")
        return text

    return read


def reader(kind: type[Settings], name: str) -> Callable[[str], Any]:
    """Return a reader of one setting, which converts and checks text as the settings themselves do."""
    return functools.partial(kind.read_option, name)


def arrive(page: str, readers: Mapping[str, Callable[[str], Any]], defaults: Mapping[str, Any]) -> None:
    """Take over what the address asks for, if somebody has just come by it, and say what cannot be followed.

    On arrival from elsewhere a value that the address does not name stays what it was in this session; when the
    reader goes back or forward on the same page, it becomes its default. To be called before the widgets.
    """
    asked = {name: st.query_params.get_all(name)[-1] for name in st.query_params}
    published = st.session_state.get(_PUBLISHED)
    fresh = published is None or published[0] != page
    if published is not None and not fresh and (asked == published[1] or _lagging(page, asked)):
        _say(page)
        return
    if fresh:
        _tell_again(key(page, name) for name in readers)
    faults = []
    for name, read in readers.items():
        if name in asked:
            try:
                st.session_state[key(page, name)] = read(asked[name])
                continue
            except EmbcompareError as error:
                faults.append(f"{name}={asked[name][:60]}: {error}")
        if name in asked or not fresh:
            st.session_state[key(page, name)] = defaults[name]
    faults += [f"{name[:60]}: there is no such setting" for name in asked if name not in readers]
    st.session_state[_SAID] = (page, "; ".join(fault.rstrip(".") for fault in faults))
    _say(page)


def _tell_again(keys: Iterable[str]) -> None:
    """Assign what the session holds once more, so that the browser is told of it.

    A widget that nobody has touched since code gave it its value is drawn anew, on another page, at its first option,
    and its next report then replaces the value: the pair of models would change on the way from page to page.
    """
    for each in keys:
        if each in st.session_state:
            st.session_state[each] = st.session_state[each]


def publish(page: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Make the address say ``values``, those that are not defaults, and nothing else.

    An address that says the same with a default spelt out stays: each rewriting is a step for the Back button.
    """
    wanted = {name: text(value) for name, value in values.items() if value != defaults.get(name)}
    said = st.query_params.to_dict()
    same = wanted.items() <= said.items() and all(name in values and said[name] == text(values[name]) for name in said)
    address = said if same else wanted
    former = st.session_state.get(_PUBLISHED)
    if former != (page, address):
        st.session_state[_BEFORE], st.session_state[_WHEN] = former, time.monotonic()
    st.session_state[_PUBLISHED] = (page, address)
    if not same:
        st.query_params.from_dict(wanted)


def forget() -> None:
    """Drop the sentence about the link, once the reader has changed something."""
    st.session_state.pop(_SAID, None)


def _lagging(page: str, asked: dict[str, str]) -> bool:
    recent = time.monotonic() - st.session_state.get(_WHEN, 0.0) < _LAG_SECONDS
    return recent and st.session_state.get(_BEFORE) == (page, asked)


def _say(page: str) -> None:
    said = st.session_state.get(_SAID)
    if said and said[0] == page and said[1]:
        st.warning(f"Part of the link cannot be followed and is left at its default: {plain(said[1])}.")
