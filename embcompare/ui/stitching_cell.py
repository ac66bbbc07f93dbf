"""One cell of a stitched grid: how it is chosen, what it makes of each text, and how far it leads the controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare.maps.registry import KERNELS
from embcompare.ui import links
from embcompare.ui import stitching_verdict as verdicts
from embcompare.ui import stitching_words as say
from embcompare.ui.page import plain
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.stitching import StitchingResult

PAGE = "stitching"
Cell = tuple[int, int]


def take_click(clicked: list[dict[str, Any]] | None, shape: Cell) -> None:
    """Turn a new click into the chosen cell; an old one, or one outside the grid, changes nothing."""
    cell = (int(clicked[0].get("layer_a", -1)), int(clicked[0].get("layer_b", -1))) if clicked else None
    known = links.key(PAGE, "clicked")
    if cell == st.session_state.get(known):
        return
    st.session_state[known] = cell
    if cell is not None and 0 <= cell[0] < shape[0] and 0 <= cell[1] < shape[1]:
        for name, number in zip(("cut", "entry"), cell, strict=True):
            st.session_state[links.key(PAGE, name)] = str(number)


def chosen(shape: Cell) -> Cell | None:
    """Return the chosen cell; None where none is chosen or it does not exist."""
    picked = [str(st.session_state.get(links.key(PAGE, name), "none")) for name in ("cut", "entry")]
    if any(value not in map(str, range(count)) for value, count in zip(picked, shape, strict=True)):
        return None
    return int(picked[0]), int(picked[1])


def settle(shape: Cell) -> None:
    """Drop a chosen number that these models do not have, with a sentence."""
    for name, count, side in zip(("cut", "entry"), shape, "AB", strict=True):
        key = links.key(PAGE, name)
        value = str(st.session_state.setdefault(key, "none"))
        if value not in ("none", *map(str, range(count))):
            what = "be cut after" if side == "A" else "be entered at layer"
            st.warning(
                f"{side} cannot {what} {plain(value)}{' blocks' if side == 'A' else ''}; it has 0 to {count - 1} here.",
                icon=":material/layers_clear:",
            )
            st.session_state[key] = "none"


def choose(shape: Cell) -> None:
    """Show the two lists that a cell can be chosen by as well."""
    labels = ("After blocks of A", "Into layer of B")
    helps = (
        "The cut: so many blocks of A run.",
        "The entry: A's mapped states take the place of B's hidden state at this layer, and B's blocks from there on "
        "follow; 0 is B's embedding output.",
    )
    with st.container(horizontal=True, gap="small"):
        for name, label, explained, count in zip(("cut", "entry"), labels, helps, shape, strict=True):
            st.selectbox(
                label,
                ["none", *map(str, range(count))],
                key=links.key(PAGE, name),
                persist_state="session",
                on_change=links.forget,
                help=explained,
                width=160,
            )


def turn() -> int:
    """Return how often a cell was closed: the picture then begins without a selection."""
    return int(st.session_state.setdefault(links.key(PAGE, "turn"), 0))


def close() -> None:
    """Choose no cell any more."""
    for name in ("cut", "entry"):
        st.session_state[links.key(PAGE, name)] = "none"
    st.session_state[links.key(PAGE, "clicked")] = None
    st.session_state[links.key(PAGE, "turn")] = turn() + 1
    links.forget()


def heading(cell: Cell, left: int) -> None:
    """Show which cell it is, with a way to close it."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.subheader(f"After {plural(cell[0], 'block')} of A, into layer {cell[1]} of B", anchor=False, width="content")
        st.button("Close", key="stitching.close", icon=":material/close:", type="tertiary", on_click=close)
    what = f"{plural(left, 'block')} of B {agree(left, 'follows', 'follow')}" if left else "B's head follows at once"
    below = (
        "A's embedding output goes in"
        if not cell[0]
        else f"{plural(cell[0], 'block')} of A {agree(cell[0], 'runs', 'run')}"
    )
    st.caption(f"{below}; {what}.")


def show(result: StitchingResult, kernel: str, score: str, cell: Cell) -> None:
    """Show a cell: its level, its lead over each control, and what it makes of every text."""
    st.markdown(plain(verdicts.cell(result, kernel, *cell, score)))
    gains = say.advantages(result, kernel, *cell)
    if gains:
        item = "text" if result.task == "classes" else "token"
        parts = [
            f"{abs(gain):.2f} ± {error:.2f} nats a {item} {'less' if gain > 0 else 'more'} than with the map "
            f"‘{KERNELS[name].label}’"
            for name, gain, error in gains
        ]
        st.markdown(plain(f"At this same cell, text by text, its loss is {'; '.join(parts)}."))
        st.caption("± one standard error over texts of the first run.")
    _texts(result, kernel, cell)


def _texts(result: StitchingResult, kernel: str, cell: Cell) -> None:
    frame = result.example_frame(kernel, *cell).sort_values("worse_by", ignore_index=True)
    better = int((frame["worse_by"] < 0).sum())
    best, worst = frame.iloc[0], frame.iloc[-1]
    st.markdown(
        f"**Text by text**: on {better:,} of {plural(len(frame), 'text')} the stitched model has a lower loss than B "
        "alone."
    )
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    # Streamlit's own format for shares writes as many decimals as a number happens to have
    shown = frame.assign(agreement=100 * frame["agreement"]) if "agreement" in frame else frame
    st.dataframe(
        shown,
        hide_index=True,
        height=250,
        row_height=32,
        key=f"stitching.texts.{kernel}.{cell[0]}.{cell[1]}",
        column_config={
            "text": text("text", width=240),
            "label": text("class", width=90),
            "loss": number("loss", format="%.2f", width=70, help="Of the stitched model, in nats."),
            "loss_b": number("B alone", format="%.2f", width=70),
            "worse_by": number("worse by", format="%+.2f", width=80, help="Loss beyond B alone's; negative: a win."),
            "right": number("right", format="%d", width=60),
            "right_b": number("B right", format="%d", width=65),
            "places": number("scored", format="%d", width=65, help="Tokens, or one class."),
            "agreement": number(
                "as B", format="%.0f %%", width=70, help="Share of places where the first choice is B's."
            ),
        },
        alt=f"{plural(len(frame), 'text')} with the loss of the stitched model and of B alone, best first.",
    )
    st.caption(
        plain(
            f"Best first; click a heading to sort. Best: “{_short(best['text'])}” ({best['worse_by']:+.2f}); worst: "
            f"“{_short(worst['text'])}” ({worst['worse_by']:+.2f})."
        )
    )
    st.download_button(
        "Texts as CSV",
        lambda: frame.to_csv(index=False).encode(),
        f"stitching-{kernel}-{cell[0]}-{cell[1]}-texts.csv",
        "text/csv",
        key="stitching.texts.csv",
        on_click="ignore",
        icon=":material/download:",
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
