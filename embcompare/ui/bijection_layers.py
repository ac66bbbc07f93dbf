"""The pair of layers that is fitted: chosen by a click, by two lists, or by steps, and the same depth unless said."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare.errors import SettingsError
from embcompare.ui import layers as cells
from embcompare.ui import links
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.map_pairs import MapPairs, MapPairsResult
    from embcompare.models import ModelInfo

PAGE = "bijection"
MIDDLE, SAME = "middle", "same"
DEFAULTS: dict[str, Any] = {"layer_a": MIDDLE, "layer_b": SAME}
"""The middle layer of A, and the layer of B at the same relative depth."""
Numbers = tuple[range, range]


def readers() -> dict[str, Any]:
    """Return the readers of what an address says of the two layers."""

    def reader(word: str) -> Any:
        def read(text: str) -> str:
            if text != word and not (text.isascii() and text.isdigit() and len(text) < 6):
                raise SettingsError(f"a layer is a number, or {word}")
            return text if text == word else str(int(text))

        return read

    return {"layer_a": reader(MIDDLE), "layer_b": reader(SAME)}


def numbers(
    wanted: MapPairs,
    infos: tuple[ModelInfo | None, ModelInfo | None],
    given: tuple[int, int],
    result: MapPairsResult | None = None,
) -> Numbers:
    """Return the layers of A and of B: those of a result, or as far as configurations and given vectors tell."""
    found = []
    for side, (info, own) in enumerate(zip(infos, given, strict=True)):
        start = int(info is not None and wanted.what != "hidden")
        count = own if info is None else info.layers + 1 - start
        if result is not None:
            count = result.test.shape[2 + side]
        found.append(range(start, start + count))
    return found[0], found[1]


def chosen(offered: Numbers) -> tuple[int, int]:
    """Return the chosen layers; what is not there is the default."""
    a, b = (str(st.session_state.get(_key(name), DEFAULTS[name])) for name in DEFAULTS)
    layer_a = int(a) if a in map(str, offered[0]) else offered[0][len(offered[0]) // 2]
    return layer_a, int(b) if b in map(str, offered[1]) else same_depth(offered, layer_a)


def same_depth(offered: Numbers, layer_a: int) -> int:
    """Return the layer of B that lies as deep, from the first to the last, as a layer of A."""
    last_a, last_b = len(offered[0]) - 1, len(offered[1]) - 1
    share = offered[0].index(layer_a) / last_a if last_a else 0.5
    return offered[1][int(share * last_b + 0.5)]


def take_click(clicked: list[dict[str, Any]] | None, offered: Numbers) -> None:
    """Turn a new click on a cell into the chosen layers; an old one, or one outside the map, changes nothing."""
    inside = [each for each in clicked or [] if _inside(each, offered)]
    if inside:
        st.session_state.pop(_key("missing"), None)
    cells.take_click(inside, (offered[0].stop, offered[1].stop), PAGE)


def _inside(clicked: dict[str, Any], offered: Numbers) -> bool:
    return all(int(clicked.get(name, -1)) in side for name, side in zip(DEFAULTS, offered, strict=True))


def turn() -> int:
    """Return how often layers were chosen other than by a click: the map of layers then begins without a selection."""
    return int(st.session_state.setdefault(_key("turn"), 0))


def choose(offered: Numbers) -> tuple[int, int]:
    """Show both lists, and steps to the pairs before and after; return the chosen layers."""
    _settle(offered)
    now = chosen(offered)
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        for name, side, which in zip(DEFAULTS, offered, "AB", strict=True):
            middle = offered[0][len(offered[0]) // 2]
            word = f"{middle} · the middle" if which == "A" else f"{same_depth(offered, now[0])} · same depth"
            st.selectbox(
                f"Layer of {which}",
                [DEFAULTS[name], *map(str, side)],
                format_func=functools.partial(_called, default=word),
                key=_key(name),
                persist_state="session",
                on_change=_moved,
                width=190,
            )
        for by, icon, label in ((-1, "arrow_back", "Shallower"), (1, "arrow_forward", "Deeper")):
            then = stepped(offered, now, by)
            st.button(
                label,
                key=f"bijection.step.{by}",
                icon=f":material/{icon}:",
                disabled=then is None,
                on_click=_step,
                args=(then,),
                help=f"Layer {then[0]} of A and layer {then[1]} of B." if then else "There is no such layer.",
            )
    return chosen(offered)


def _called(value: str, default: str) -> str:
    return default if value in (MIDDLE, SAME) else value


def _settle(offered: Numbers) -> None:
    """Drop a chosen layer that is not there, with a sentence that stays until layers are chosen anew."""
    for name, side, which in zip(DEFAULTS, offered, "AB", strict=True):
        value = str(st.session_state.setdefault(_key(name), DEFAULTS[name]))
        if value not in (DEFAULTS[name], *map(str, side)):
            said = f"{which} has no layer {value} here; its layers are {side[0]} to {side[-1]}."
            st.session_state.setdefault(_key("missing"), []).append((offered, said))
            st.session_state[_key(name)] = DEFAULTS[name]
    for known, said in st.session_state.get(_key("missing"), []):
        if known == offered:
            st.warning(plain(said), icon=":material/layers_clear:")


def stepped(offered: Numbers, now: tuple[int, int], by: int) -> tuple[int, int] | None:
    """Return the pair of layers one step on: at the same depth where it was, else one layer on in both."""
    a = now[0] + by
    if a not in offered[0]:
        return None
    b = same_depth(offered, a) if now[1] == same_depth(offered, now[0]) else now[1] + by
    return (a, b) if b in offered[1] else None


def go_to(pair: tuple[int, int]) -> None:
    """Choose a pair of layers."""
    for name, number in zip(DEFAULTS, pair, strict=True):
        st.session_state[_key(name)] = str(number)
    _moved()


def _step(then: tuple[int, int] | None) -> None:
    if then is not None:
        go_to(then)


def _moved() -> None:
    st.session_state[_key("turn")] = turn() + 1
    st.session_state[_key("clicked")] = None
    st.session_state.pop(_key("missing"), None)
    links.forget()


def _key(name: str) -> str:
    return links.key(PAGE, name)
