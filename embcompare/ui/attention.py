"""Attention on a page: heads against heads, blocks against blocks, and two heads' patterns on one sentence."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from embcompare import charts, grids, headmaps
from embcompare.errors import EmbcompareError, SettingsError
from embcompare.experiments.attention import AttentionPatterns, AttentionSimilarity, AttentionSimilarityResult
from embcompare.experiments.attention_result import MEASURES
from embcompare.experiments.attention_shown import AttentionPatternsResult
from embcompare.running import resolve_device
from embcompare.shelf import Shelf
from embcompare.ui import attention_words as say
from embcompare.ui import exports, links, pair, picture, runs, settings
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.experiments.representations import RepresentationSimilarity
    from embcompare.models import ModelInfo

PAGE, SLOT, SHOWN = "representations", "attention", "attention_shown"
OWN = ("pattern", "measure", "rows", "max_rows", "null_draws", "halves")
SENTENCE = ("sentence", "tokens")
NONE = "closest"
MOST_CELLS = 25_000
"""Cells of a map of heads; where there are more, it shows the chosen pair of blocks only."""

_FIELDS = {item.name: item for item in dataclasses.fields(AttentionSimilarity)}
_SHOWN_FIELDS = {item.name: item for item in dataclasses.fields(AttentionPatterns)}

DEFAULTS: dict[str, Any] = {
    **{f"attention_{name}": _FIELDS[name].default for name in OWN},
    **{f"attention_{name}": _SHOWN_FIELDS[name].default for name in SENTENCE},
    "attention_a": NONE,
    "attention_b": NONE,
}
"""What an address need not say of attention; heads are ``block.head``, or the closest pair."""


def readers() -> dict[str, Any]:
    """Return the readers of what an address says about attention."""
    return {
        **{f"attention_{name}": links.reader(AttentionSimilarity, name) for name in OWN},
        **{f"attention_{name}": links.reader(AttentionPatterns, name) for name in SENTENCE},
        "attention_a": _read_head,
        "attention_b": _read_head,
    }


def _read_head(text: str) -> str:
    parts = text.split(".")
    if text != NONE and not (len(parts) == 2 and all(p.isascii() and p.isdigit() and len(p) < 5 for p in parts)):
        raise SettingsError("a head is its block, a full stop and its number, such as 3.0")
    return text


def show(wanted: RepresentationSimilarity, infos: tuple[ModelInfo | None, ModelInfo | None], *, arriving: bool) -> None:
    """Show the heads of the chosen pair on the chosen text: settings, run, pictures."""
    st.markdown(
        "Which heads look at the same places? Every attention head of one model is compared with every head of the "
        "other by what it attends to in the same text, beside what they would share on any text of that length."
    )
    asked = _form(wanted)
    if asked is None:
        return
    result = runs.obtained(
        asked,
        AttentionSimilarityResult,
        SLOT,
        lambda: cost(asked, infos),
        arriving=True,
        draw=lambda partial: _maps(asked, partial, None, "attention.partial"),
    )
    if result is not None:
        _show(asked, result)


def _form(wanted: RepresentationSimilarity) -> AttentionSimilarity | None:
    chosen: dict[str, Any] = {}
    for column, name in zip(st.columns(3, gap="small"), OWN[:3], strict=True):
        with column:
            chosen[name] = _widget(name)
    with st.expander("More settings of this comparison"):
        for column, name in zip(st.columns(3, gap="small"), OWN[3:], strict=True):
            with column:
                chosen[name] = _widget(name)
    shared = {name: getattr(wanted, name) for name in ("model_a", "model_b", "corpus", "seed")}
    try:
        return AttentionSimilarity(**shared, **chosen)
    except EmbcompareError as error:
        st.error(plain(str(error)))
        return None


def _widget(name: str) -> Any:
    key = links.key(PAGE, f"attention_{name}")
    return settings.single(AttentionSimilarity, name, key, names=say.NAMES.get(name))


def cost(asked: AttentionSimilarity, infos: tuple[ModelInfo | None, ModelInfo | None]) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate_attention import attention_cost

    sentences = len(Shelf(runs.queue().store).corpus(asked.corpus))
    return attention_cost(asked, *infos, sentences, device=resolve_device("auto"))


def _show(asked: AttentionSimilarity, result: AttentionSimilarityResult) -> None:
    st.subheader("Heads against heads", anchor=False)
    st.markdown(plain(say.takeaway(asked, result)))
    st.markdown(plain(say.layers(result)))
    st.caption(plain(say.surprise()))
    picked = st.session_state.pop(links.key(PAGE, "attention.picked"), None)
    if picked is not None:
        _set(result, picked)
    before = _chosen(result)
    clicked = _maps(asked, result, before, "attention")
    _take(clicked, result)
    st.caption(plain(_legend(asked, result)))
    st.caption(plain(" ".join(filter(None, [say.unit(asked), say.special(result)]))))
    for notice in result.notices:
        st.caption(plain(notice))
    _files(asked, result)
    st.subheader("Two heads, one sentence", anchor=False)
    _choose(result)
    heads = _chosen(result)
    if heads != before:
        st.rerun()
    if heads is not None:
        _pair(asked, result, heads)
    st.subheader("The closest head of each", anchor=False)
    _matches(result)
    if result.special_a.any() or result.special_b.any():
        st.subheader("What special tokens get", anchor=False)
        _special(asked, result)
    _about(asked)


def _maps(
    asked: AttentionSimilarity, result: AttentionSimilarityResult, chosen: tuple[int, int] | None, key: str
) -> dict[str, tuple[int, int] | None]:
    """Draw blocks against blocks and heads against heads; return the clicked cell of each, counted from 0."""
    scale = scale_of(asked, result)
    names = _names(asked)
    left, right = st.columns([2, 3], gap="large")
    clicked: dict[str, tuple[int, int] | None] = {}
    with left:
        st.markdown("**Blocks, their heads matched one to one**")
        panels = {"found": result.layer_values, "position": result.layer_null}
        for name, matrix in panels.items():
            if matrix is None:
                continue
            if name == "position":
                st.markdown("**The same by position alone**")
            outline = result.assignment if name == "found" else None
            axes = charts.Axes(f"block of A: {names[0]}", f"block of B: {names[1]}")
            selection = "blocks" if name == "found" else ""
            chart = charts.heatmap(matrix, scale, axes, assigned=outline, side=190, start=(1, 1), selection=selection)
            finite = matrix[np.isfinite(matrix)]
            ends = f"{finite.min():.3f} to {finite.max():.3f}" if finite.size else "nothing defined"
            alt = f"Blocks, {name}: heat map, {ends}."
            if not selection:
                st.altair_chart(chart, key=f"{key}.{name}", width="content", alt=alt)
                continue
            event = st.altair_chart(chart, key=f"{key}.{name}", width="content", on_select="rerun", alt=alt)
            clicked["blocks"] = _cell(event["selection"].get("blocks"), ("layer_a", "layer_b"), matrix.shape, 1)
    with right:
        clicked["heads"] = _heads(result, scale, names, chosen, key)
        bar = charts.colour_bar(scale).properties(autosize="pad")
        limits = f"Colour scale from {scale.low:g} to {scale.high:g}: {scale.title}."
        st.altair_chart(bar, key=f"{key}.bar", width="content", alt=limits)
    return clicked


def _heads(
    result: AttentionSimilarityResult,
    scale: charts.Scale,
    names: tuple[str, str],
    chosen: tuple[int, int] | None,
    key: str,
) -> tuple[int, int] | None:
    rows, columns = _window(result, chosen)
    part = np.ix_(rows, columns)
    first = (int(rows[0]) // result.heads_a + 1, int(columns[0]) // result.heads_b + 1)
    some = len(rows) < result.values.shape[0] or len(columns) < result.values.shape[1]
    st.markdown("**Heads**" + (f" of block {first[0]} of A and block {first[1]} of B" if some else ""))
    details = {"by position alone": result.null_mean, "z": result.z, "lower end": result.low, "upper end": result.high}
    known = {name: matrix[part] for name, matrix in details.items() if matrix is not None and np.isfinite(matrix).any()}
    faint = None if result.z is None or np.isnan(result.z).all() else ~(result.z[part] >= picture.BEYOND)
    chart = headmaps.heads(
        result.values[part],
        scale,
        charts.Axes(f"head of A, by block: {names[0]}", f"head of B, by block: {names[1]}"),
        (result.heads_a, result.heads_b),
        first=first,
        faint=faint,
        chosen=chosen,
        details=known,
        selection="heads",
    )
    alt = _described(result, part)
    with st.container(key=f"scrolled_{key.replace('.', '_')}_heads"):
        event = st.altair_chart(chart, key=f"{key}.heads", width="content", on_select="rerun", alt=alt)
    return _cell(event["selection"].get("heads"), ("row", "column"), result.values.shape, 0)


def _cell(
    found: list[dict[str, Any]] | None, names: tuple[str, str], shape: tuple[int, ...], first: int
) -> tuple[int, int] | None:
    """Return a clicked cell, counted from 0; None where none was, or one that is not there."""
    if not found:
        return None
    row, column = (int(found[0].get(name, -1)) - first for name in names)
    return (row, column) if 0 <= row < shape[0] and 0 <= column < shape[1] else None


def _window(result: AttentionSimilarityResult, chosen: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the heads that are drawn: all, or those of the chosen pair of blocks where all are too many."""
    if result.values.size <= MOST_CELLS:
        return np.arange(result.values.shape[0]), np.arange(result.values.shape[1])
    at = chosen or (0, 0)
    return (
        np.arange(result.heads_a) + at[0] // result.heads_a * result.heads_a,
        np.arange(result.heads_b) + at[1] // result.heads_b * result.heads_b,
    )


def _described(result: AttentionSimilarityResult, part: Any) -> str:
    values = result.values[part]
    text = f"Heads: heat map of {values.shape[0]} heads of A by {values.shape[1]} of B"
    if np.isnan(values).all():
        return f"{text}, no cell defined."
    closest = np.nanargmax(values if result.higher_is_closer else -values)
    row, column = (int(index.ravel()[closest]) for index in np.broadcast_arrays(*part))
    ends = f"values from {np.nanmin(values):.3f} to {np.nanmax(values):.3f}"
    return f"{text}, {ends}, closest {result.name('a', row)} of A and {result.name('b', column)} of B."


def scale_of(asked: AttentionSimilarity, result: AttentionSimilarityResult) -> charts.Scale:
    """Return the one colour scale of all maps: around zero for correlations, from zero for the others."""
    matrices = [m for m in (result.values, result.layer_values, result.layer_null) if m is not None]
    label = MEASURES[asked.measure]
    if asked.measure == "pearson":
        return charts.signed_scale(label, matrices)
    if asked.measure == "jsd":
        return charts.sequential_scale(
            f"{label}, nats (lower is closer)", matrices, high=float(np.log(2)), full=True, low_is_bright=True
        )
    return charts.sequential_scale(label, matrices)


def _legend(asked: AttentionSimilarity, result: AttentionSimilarityResult) -> str:
    parts = [
        "One colour scale for all maps; lines part the blocks. Click a cell to see what its two heads look at, or a "
        "pair of blocks for their closest heads."
    ]
    parts.append("Squares: the one-to-one assignment of blocks that is closest in total.")
    if result.null_mean is not None:
        draws = plural(asked.null_draws, "draw")
        parts.append(
            f"By position alone: each token beside that at its place in another text of about its length, {draws}."
        )
    if result.z is not None and np.isfinite(result.z).any():
        parts.append(f"Faded: less than {picture.BEYOND:g} standard deviations beyond that.")
    if np.isnan(result.values).any():
        parts.append("Grey: a head that looks everywhere alike has no number.")
    return " ".join(parts)


def _names(asked: AttentionSimilarity) -> tuple[str, str]:
    a, b = (charts.shortened(pair.label_of(name)) for name in (asked.model_a, asked.model_b))
    return a, b


def _chosen(result: AttentionSimilarityResult) -> tuple[int, int] | None:
    """Return the chosen heads, counted over all blocks: those picked, or the closest pair; None where none has one."""
    picked = []
    for side, count, layers in (
        ("a", result.heads_a, result.layers_a),
        ("b", result.heads_b, result.layers_b),
    ):
        value = str(st.session_state.get(links.key(PAGE, f"attention_{side}"), NONE))
        layer, _, head = value.partition(".")
        known = value != NONE and 1 <= int(layer) <= layers and int(head) < count
        picked.append((int(layer) - 1) * count + int(head) if known else -1)
    if min(picked) >= 0:
        return picked[0], picked[1]
    if np.isnan(result.values).all():
        return None
    ranked = result.values if result.higher_is_closer else -result.values
    if picked[0] >= 0 and np.isfinite(ranked[picked[0]]).any():
        return picked[0], int(np.nanargmax(ranked[picked[0]]))
    if picked[1] >= 0 and np.isfinite(ranked[:, picked[1]]).any():
        return int(np.nanargmax(ranked[:, picked[1]])), picked[1]
    row, column = np.unravel_index(int(np.nanargmax(ranked)), ranked.shape)
    return int(row), int(column)


def _set(result: AttentionSimilarityResult, heads: tuple[int, int]) -> None:
    for side, head, count in zip("ab", heads, (result.heads_a, result.heads_b), strict=True):
        layer, number = divmod(head, count)
        st.session_state[links.key(PAGE, f"attention_{side}")] = f"{layer + 1}.{number}"


def _take(clicked: dict[str, tuple[int, int] | None], result: AttentionSimilarityResult) -> None:
    """Turn a new click into the chosen heads, of a pair of blocks the closest; an old one changes nothing."""
    for where, cell in clicked.items():
        known = links.key(PAGE, f"attention.clicked.{where}")
        if cell == st.session_state.get(known):
            continue
        st.session_state[known] = cell
        if cell is None:
            continue
        if where == "blocks":
            a, b = cell[0] * result.heads_a, cell[1] * result.heads_b
            block = result.values[a : a + result.heads_a, b : b + result.heads_b]
            if np.isnan(block).all():
                continue
            closest = np.nanargmax(block if result.higher_is_closer else -block)
            row, column = np.unravel_index(int(closest), block.shape)
            cell = (a + int(row), b + int(column))
        _set(result, cell)


def _choose(result: AttentionSimilarityResult) -> None:
    """Show the two lists of heads."""
    columns = st.columns([1, 1, 2], gap="small")
    for column, side, count, layers in zip(
        columns, "ab", (result.heads_a, result.heads_b), (result.layers_a, result.layers_b), strict=False
    ):
        key = links.key(PAGE, f"attention_{side}")
        options = [NONE, *(f"{layer}.{head}" for layer in range(1, layers + 1) for head in range(count))]
        if st.session_state.get(key) not in options:
            if st.session_state.get(key) is not None:
                column.warning(
                    f"{side.upper()} has no head {plain(str(st.session_state[key]))}; its blocks are 1 to {layers}, "
                    f"with heads 0 to {count - 1} each.",
                    icon=":material/layers_clear:",
                )
            st.session_state[key] = NONE
        column.selectbox(
            f"Head of {side.upper()}",
            options,
            key=key,
            format_func=_called,
            persist_state="session",
            on_change=links.forget,
        )


def _called(option: str) -> str:
    if option == NONE:
        return "the closest"
    layer, _, head = option.partition(".")
    return f"block {layer}, head {head}"


def _pair(asked: AttentionSimilarity, result: AttentionSimilarityResult, heads: tuple[int, int]) -> None:
    st.markdown(plain(say.pair(result, heads, MEASURES[asked.measure])))
    chosen = {}
    for column, name in zip(st.columns([1, 1, 2], gap="small"), SENTENCE, strict=False):
        with column:
            chosen[name] = settings.single(AttentionPatterns, name, links.key(PAGE, f"attention_{name}"))
    wanted = AttentionPatterns(asked.model_a, asked.model_b, corpus=asked.corpus, **chosen)
    shown = runs.at_hand(wanted)
    if shown is None:
        if runs.job_of(wanted) is None and runs.refusal(wanted, SHOWN) is None:
            runs.ask(wanted, SHOWN)
        now = runs.follow(wanted, SHOWN)
        shown = now.result if now is not None else None
        if now is not None and now.state in ("failed", "cancelled"):
            st.button("Show this sentence again", on_click=runs.ask, args=(wanted, SHOWN))
    if isinstance(shown, AttentionPatternsResult):
        _patterns(asked, result, heads, shown, wanted)


def _patterns(
    asked: AttentionSimilarity,
    result: AttentionSimilarityResult,
    heads: tuple[int, int],
    shown: AttentionPatternsResult,
    wanted: AttentionPatterns,
) -> None:
    a, b = divmod(heads[0], result.heads_a), divmod(heads[1], result.heads_b)
    at = {"a": (a[0] + 1, a[1]), "b": (b[0] + 1, b[1])}
    st.markdown(plain(f"Sentence {wanted.sentence}: {shown.text}"))
    st.markdown(plain(say.in_sentence(shown, at["a"], at["b"])))
    for column, side, name in zip(st.columns(2, gap="large"), "ab", _names(asked), strict=True):
        tokens, special = getattr(shown, f"tokens_{side}"), getattr(shown, f"special_{side}")
        attention = shown.head(side, *at[side])
        with column:
            st.markdown(f"**{side.upper()}: {plain(name)}, block {at[side][0]}, head {at[side][1]}**")
            row, key = np.unravel_index(int(attention.argmax()), attention.shape)
            alt = (
                f"Attention of {plural(len(tokens), 'token')} of side {side.upper()}: the most, "
                f"{attention.max():.2f}, from {tokens[row]} to {tokens[key]}."
            )
            chart = headmaps.pattern(attention, tokens, special)
            with st.container(key=f"scrolled_attention_pattern_{side}"):
                st.altair_chart(chart, key=f"attention.pattern.{side}", width="content", alt=alt)
    st.caption(
        "From the token of a row to that of a column, dark to bright from 0 to 1; special tokens in italics; empty "
        "where nothing is seen. Sentences count from 0."
    )
    for notice in shown.notices:
        st.caption(plain(notice))
    frame = shown.pair_frame(at["a"], at["b"])
    with st.expander("Numbers of these two patterns"):
        st.dataframe(frame, hide_index=True, height=280)
    stem = f"attention-{at['a'][0]}-{at['a'][1]}-{at['b'][0]}-{at['b'][1]}-sentence-{wanted.sentence}.csv"
    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "CSV of these two",
            lambda: frame.to_csv(index=False),
            stem,
            "text/csv",
            key="attention.pair.csv",
            on_click="ignore",
            icon=":material/download:",
        )
    st.code(f"{wanted.call()}.pair_frame({at['a']}, {at['b']})", language="python", wrap_lines=True)


def _matches(result: AttentionSimilarityResult) -> None:
    for tab, side, other in zip(st.tabs(["Heads of A", "Heads of B"]), "ab", "ba", strict=True):
        frame = result.match_frame(side)
        own, theirs = (
            [f"block {layer}, head {head}" for layer, head in zip(frame[first], frame[second], strict=True)]
            for first, second in (("layer", "head"), ("closest_layer", "closest_head"))
        )
        shown = frame[["value", "low", "high", "null_mean", "z", "mutual", "special"]].copy()
        shown.insert(0, "own", own)
        shown.insert(1, "closest", theirs)
        number = functools.partial(st.column_config.NumberColumn, format="%.3f", width="small")
        with tab:
            event = st.dataframe(
                shown,
                hide_index=True,
                height=320,
                on_select="rerun",
                selection_mode="single-row",
                key=f"attention.matches.{side}",
                column_config={
                    "own": st.column_config.TextColumn(f"head of {side.upper()}"),
                    "closest": st.column_config.TextColumn(f"closest in {other.upper()}"),
                    "value": number("value"),
                    "low": number("from", help="Lower end of the 95 % interval over texts."),
                    "high": number("to", help="Upper end."),
                    "null_mean": number("position", help="What the two heads reach by position alone."),
                    "z": number("z", format="%.1f", help="Standard deviations beyond position alone."),
                    "mutual": st.column_config.CheckboxColumn("mutual", width="small", help="Each other's closest."),
                    "special": st.column_config.NumberColumn(
                        "special", format="percent", width="small", help="Share of its attention on special tokens."
                    ),
                },
                alt=f"{plural(len(frame), 'head')} of {side.upper()} with the closest head of {other.upper()}.",
            )
        rows = event["selection"]["rows"]
        _take_row(frame, side, int(rows[0]) if rows and rows[0] < len(frame) else None, result)
    st.caption("Choose a row to see that pair of heads above.")


def _take_row(frame: Any, side: str, row: int | None, result: AttentionSimilarityResult) -> None:
    known = links.key(PAGE, f"attention.row.{side}")
    if row == st.session_state.get(known):
        return
    st.session_state[known] = row
    if row is None:
        return
    at = frame.iloc[row]
    counts = (result.heads_a, result.heads_b) if side == "a" else (result.heads_b, result.heads_a)
    own = int(at["layer"] - 1) * counts[0] + int(at["head"])
    other = int(at["closest_layer"] - 1) * counts[1] + int(at["closest_head"])
    st.session_state[links.key(PAGE, "attention.picked")] = (own, other) if side == "a" else (other, own)
    st.rerun()


def _special(asked: AttentionSimilarity, result: AttentionSimilarityResult) -> None:
    scale = charts.sequential_scale("share of attention", [result.special_a, result.special_b])
    for column, side, shares, name in zip(
        st.columns(2, gap="large"), "AB", (result.special_a, result.special_b), _names(asked), strict=True
    ):
        rows = [f"head {head}" for head in range(shares.shape[1])]
        chart = grids.by_layer(shares.T, scale, rows, f"{side}: {name}", layers=list(range(1, len(shares) + 1)))
        alt = f"Share of attention on special tokens by head and block of {side}, mean {shares.mean():.2f}."
        with column, st.container(key=f"scrolled_attention_special_{side.lower()}"):
            st.altair_chart(chart, key=f"attention.special.{side}", width="content", alt=alt)
    bar = charts.colour_bar(scale).properties(autosize="pad")
    limits = f"Colour scale from {scale.low:g} to {scale.high:g}: {scale.title}."
    st.altair_chart(bar, key="attention.special.bar", width="content", alt=limits)


def _files(asked: AttentionSimilarity, result: AttentionSimilarityResult) -> None:
    names = [pair.label_of(name) for name in (asked.model_a, asked.model_b)]
    stem = f"attention {asked.pattern} {asked.measure} {' '.join(names)}"
    kinds = {kind: functools.partial(export, asked, result, kind) for kind in ("png", "svg")}
    exports.downloads(result, stem, "attention.files", kinds)
    with st.expander("Numbers"):
        st.dataframe(result.to_frame(), hide_index=True, height=280)
        st.dataframe(result.layer_frame(), hide_index=True, height=280)


def export(asked: AttentionSimilarity, result: AttentionSimilarityResult, kind: str) -> bytes:
    """Return blocks and heads as one PNG or SVG file with title, caption and white ground."""
    scale, names = scale_of(asked, result), _names(asked)
    faint = None if result.z is None or np.isnan(result.z).all() else ~(result.z >= picture.BEYOND)
    blocks = charts.heatmap(
        result.layer_values,
        scale,
        charts.Axes(f"block of A: {names[0]}", f"block of B: {names[1]}"),
        title="Blocks, heads matched",
        assigned=result.assignment,
        start=(1, 1),
    )
    heads = headmaps.heads(
        result.values,
        scale,
        charts.Axes(f"head of A, by block: {names[0]}", f"head of B, by block: {names[1]}"),
        (result.heads_a, result.heads_b),
        faint=faint,
    ).properties(title="Heads")
    title = f"Attention, {MEASURES[asked.measure]}: {names[0]} and {names[1]}"
    note = say.takeaway(asked, result)
    return charts.picture(
        charts.side_by_side([blocks, heads], charts.colour_bar(scale), title, note), "png" if kind == "png" else "svg"
    )


def _about(asked: AttentionSimilarity) -> None:
    from embcompare.ui import words

    with st.expander("Compute it again"):
        exports.again(asked)
    with st.expander("How to cite"):
        st.markdown(
            "Heads are compared by their attention averaged over queries as in Ren et al. (2023), *All Roads Lead to "
            "Rome? Exploring the Invariance of Transformers' Representations*, there on texts padded to one length, "
            "pads among them; here on real tokens, in units of even attention. The full pattern, the null of position "
            "and the intervals are embcompare's own."
        )
        st.code(words.CITATION_BIJECTION, language="bibtex", wrap_lines=True)
