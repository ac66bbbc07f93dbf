"""Heads read as pairs of tokens: which token looks for which, or which is written where which is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare.experiments.heads import HeadReading, HeadReadingResult
from embcompare.experiments.reading import SIDES
from embcompare.experiments.vectors import GROUPS
from embcompare.ui import exports, links, pair, runs, settings, words
from embcompare.ui import vocabulary as frame
from embcompare.ui.page import plain
from embcompare.ui.vocabulary import PAGE, Look, Vector
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate

DEFAULTS: dict[str, Any] = {
    "kind": "w_vo",
    "identical": "text",
    "pairs": 50,
    **{f"head_{what}_{side}": 0 for side in "ab" for what in ("layer", "number")},
}
"""What an address need not say of this view."""
_FIELDS = {"kind": "kind", "identical": "identical", "pairs": "top"}
NAMES = {
    "kind": {name: GROUPS[name] for name in SIDES},
    "identical": {"none": "none", "token": "a token with itself", "text": "one text, any case or word mark"},
}


def readers() -> dict[str, Any]:
    """Return the readers of what an address says of this view."""
    own = {name: links.reader(HeadReading, field) for name, field in _FIELDS.items()}
    for side in "ab":
        own[f"head_layer_{side}"] = links.reader(HeadReading, "layer")
        own[f"head_number_{side}"] = links.reader(HeadReading, "head")
    return own


def show(look: Look) -> None:
    """Show one head of each model: the pairs of tokens at both ends of its V × V matrix, exactly."""
    st.markdown(
        "A head's product, read through the vocabulary on both sides, has an entry for every pair of tokens. The "
        "largest and smallest of all of them are listed, exactly; the matrix itself never exists."
    )
    chosen: dict[str, Any] = {}
    for column, (name, field) in zip(st.columns([2, 2, 1], gap="small"), _FIELDS.items(), strict=True):
        with column:
            chosen[field] = settings.single(
                HeadReading, field, links.key(PAGE, name), default=DEFAULTS[name], names=NAMES.get(name)
            )
    for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
        with column:
            _side(look, side, chosen)
    with st.expander("What these matrices are"):
        st.markdown(words.group_card(str(chosen["kind"])))


def cost(wanted: HeadReading, info: Any) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate_vocabulary import heads_cost

    return heads_cost(wanted, info, device=frame.device())


def _side(look: Look, side: str, chosen: dict[str, Any]) -> None:
    name, info = frame.name_of(look, side), frame.info_of(look, side)
    st.markdown(f"**{side.upper()}: {plain(pair.label_of(name))}**")
    place = {}
    for column, (what, field, count) in zip(
        st.columns(2, gap="small"), (("layer", "layer", info.layers), ("number", "head", info.heads)), strict=True
    ):
        with column:
            place[field] = settings.single(
                HeadReading,
                field,
                links.key(PAGE, f"head_{what}_{side}"),
                label=f"{field.capitalize()} of {side.upper()}",
                default=0,
                high=count - 1,
                where=f"{field.capitalize()} of {side.upper()}: {plain(info.label)}",
            )
    wanted = look.of(HeadReading, model=name, **place, **chosen)
    if wanted is None:
        return
    result = runs.obtained(
        wanted, HeadReadingResult, f"heads.{side}", lambda: cost(wanted, info), arriving=True, beside=""
    )
    if result is None:
        return
    _pairs(wanted, result, side)
    vector = Vector(side, wanted.kind, wanted.layer, wanted.head)
    st.button(
        f"Find the nearest heads in {frame.other(side).upper()}",
        key=f"heads.nearest.{side}",
        icon=":material/compare_arrows:",
        on_click=frame.choose_vector,
        args=(vector,),
    )
    exports.downloads(result, f"{wanted.kind} {wanted.model} {wanted.layer} {wanted.head}", f"heads.files.{side}")
    st.code(f"{wanted.call()}.to_frame()", language="python", wrap_lines=True)


def chance(result: HeadReadingResult) -> str:
    """Say what random heads reach at both ends, and how many of the listed entries lie beyond; "" without draws."""
    if result.null is None or not np.isfinite(result.null).all():
        return ""
    parts = []
    for at, (end, values) in enumerate((("largest", result.top_values), ("smallest", result.bottom_values))):
        reached = np.sort(np.abs(result.null[:, at]))
        beyond = int((np.abs(values) > reached[-1]).sum())
        sign = "−" if at else ""
        reach = f"{sign}{reached[0]:.3f}" if len(reached) == 1 else f"{sign}{reached[0]:.3f} to {sign}{reached[-1]:.3f}"
        which = f"{beyond} of the {plural(len(values), f'{end} entry', f'{end} entries')}"
        parts.append(
            f"the {end} of such a head reaches {reach}, and {which} listed here {agree(beyond, 'lies', 'lie')} beyond"
        )
    draws = plural(len(result.null), "random head")
    return f"Chance, by {draws} with the same singular values in random directions: {'; '.join(parts)}."


def _pairs(wanted: HeadReading, result: HeadReadingResult, side: str) -> None:
    first, second = SIDES[wanted.kind]
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    for end, pairs, values in (
        ("largest", result.top_pairs, result.top_values),
        ("smallest", result.bottom_pairs, result.bottom_values),
    ):
        table = pd.DataFrame({"first": pairs[:, 0], "second": pairs[:, 1], "value": values, "z": result.z(values)})
        st.dataframe(
            table,
            hide_index=True,
            height=300,
            row_height=32,
            key=f"heads.{end}.{side}",
            column_config={
                "first": text(first),
                "second": text(second),
                "value": number(f"{end} entries", format="%.3f"),
                "z": number("z", format="%+.1f", width="small"),
            },
            alt=f"The {len(table)} {end} entries of the head, each a pair of tokens.",
        )
    strongest = result.spectrum[0] ** 2 / max(float((result.spectrum**2).sum()), 1e-300)
    st.caption(
        f"Of {result.usable:,} × {result.usable:,} pairs; z counts standard deviations of all entries from their mean. "
        f"The leading direction holds {strongest:.0%} of the matrix."
    )
    said = chance(result)
    if said:
        st.caption(said)
    for notice in result.notices:
        st.caption(plain(notice))
