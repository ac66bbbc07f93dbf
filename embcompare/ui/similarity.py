"""Representation similarity on a page: its form, its run, its pictures, and what lies behind a cell."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare.experiments.representations import RepresentationSimilarity, RepresentationSimilarityResult
from embcompare.experiments.sides import VECTORS
from embcompare.running import resolve_device
from embcompare.ui import (
    attention,
    difference,
    exports,
    inputs,
    layers,
    lens,
    links,
    pair,
    picture,
    rowpairs,
    runs,
    settings,
    warm,
)
from embcompare.ui import similarity_picture as pictures
from embcompare.ui import similarity_words as say
from embcompare.ui.alignment import views
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.models import ModelInfo

PAGE, SLOT = "representations", "similarity"
TABS = {
    "matrix": "Layer by layer",
    "difference": "Difference of two matrices",
    "lens": "Logit lens",
    "attention": "Attention",
}
Infos = tuple["ModelInfo | None", "ModelInfo | None"]

_ROWS = (("measure", "what", "space", "pooling"),)
_APART = ("model_a", "model_b", "corpus", *_ROWS[0])
_ADVANCED = tuple(i.name for i in dataclasses.fields(RepresentationSimilarity) if i.name not in _APART)

DEFAULTS: dict[str, Any] = {
    **{item.name: item.default for item in dataclasses.fields(RepresentationSimilarity)},
    **pair.DEFAULT_PAIR,
    "view": "raw",
    "range": "fitted",
    "layer_a": "none",
    "layer_b": "none",
    "tab": "matrix",
    **lens.DEFAULTS,
    **attention.DEFAULTS,
    **difference.DEFAULTS,
}
"""What an address need not say."""


def names_of_choices() -> dict[str, dict[Any, str]]:
    """Return how the choices of each setting are called."""
    from embcompare.measures import MEASURES

    return {
        "measure": {name: measure.label for name, measure in MEASURES.items()},
        "what": say.WHAT,
        "space": {"feature": "Feature space", "embedding": "Embedding space"},
        "pooling": {
            "mean": "Sentences: mean of the tokens",
            "last": "Sentences: last token",
            "cls": "Sentences: classification token",
            "token": "Tokens",
            "word": "Words",
        },
        "embedding": {"output": "Output (unembedding)", "input": "Input"},
        "pairing": {"auto": "Id where both have ids, else row", "row": "Row number", "id": "Id"},
    }


def read_side(text: str) -> str:
    """Read a side as a link gives it: a model, or vectors that this machine has."""
    return inputs.read_kept_vectors(text) if text.startswith(VECTORS) else pair.read(text)


def _readers() -> dict[str, Any]:
    own = [item.name for item in dataclasses.fields(RepresentationSimilarity)]
    return {
        **{name: links.reader(RepresentationSimilarity, name) for name in own},
        "measure": _read_measure,
        "model_a": read_side,
        "model_b": read_side,
        "corpus": inputs.read_corpus,
        "view": links.choice(*picture.VIEWS),
        "range": links.choice(*picture.RANGES),
        "layer_a": layers.read,
        "layer_b": layers.read,
        "tab": links.choice(*TABS),
        **lens.readers(),
        **attention.readers(),
        **difference.readers(read_side, _read_measure),
    }


def _read_measure(text: str) -> str:
    from embcompare.measures import get_measure

    get_measure(text)
    return text


def form() -> tuple[RepresentationSimilarity, Infos] | None:
    """Show the sides, the text and every setting; None, with a sentence, where something is refused."""
    from embcompare.measures import MEASURES

    warm.ready()
    links.arrive(PAGE, _readers(), DEFAULTS)
    names = pair.choose(inputs.offered_vectors())
    corpus = inputs.corpus(links.key(PAGE, "corpus"), with_vectors=True)
    sides = dict(zip(pair.DEFAULT_PAIR, names, strict=True))
    edited = settings.edited(
        RepresentationSimilarity,
        {**sides, "corpus": corpus or DEFAULTS["corpus"]},
        _ROWS,
        _ADVANCED,
        names_of_choices(),
        {"measure": tuple(MEASURES)},
        PAGE,
        hidden=_unused(),
    )
    infos = informed(names)
    if edited is None or infos is None or corpus is None:
        return None
    publish(edited)
    return edited, infos


def _unused() -> tuple[str, ...]:
    """Return the settings that what is looked at does not use: lens and attention have their own."""
    from embcompare.measures import MEASURES

    tab = st.session_state.get(links.key(PAGE, "tab"))
    if tab not in ("lens", "attention"):
        measure = MEASURES.get(str(st.session_state.get(links.key(PAGE, "measure"), DEFAULTS["measure"])))
        return ("k",) if measure is not None and measure.k is None else ()
    used = ("small_overlap", "seed") if tab == "lens" else ("seed",)
    return tuple(name for name in (*_ROWS[0], *_ADVANCED) if name not in used)


def informed(names: tuple[str, str]) -> Infos | None:
    """Return what each side is, None for a side of vectors; None, with a sentence, when a side cannot be had."""
    found: list[ModelInfo | None] = []
    for side, name in zip("AB", names, strict=True):
        info = pair.informed_side(side, name) if not name.startswith(VECTORS) else None
        if info is None and not name.startswith(VECTORS):
            return None
        found.append(info)
    return found[0], found[1]


def publish(wanted: RepresentationSimilarity) -> None:
    """Make the address say the settings and what is looked at."""
    more = [name for name in DEFAULTS if name not in wanted.to_dict()]
    seen = {name: st.session_state.get(links.key(PAGE, name), DEFAULTS[name]) for name in more}
    links.publish(PAGE, {**wanted.to_dict(), **seen}, DEFAULTS)


def body(wanted: RepresentationSimilarity, infos: Infos, *, arriving: bool) -> None:
    """Show what the reader chose to look at: the matrix, the difference of two, the lens, or attention."""
    tab = settings.tab(PAGE, TABS, DEFAULTS["tab"])
    publish(wanted)
    if tab == "lens":
        lens.show(wanted, infos, arriving=arriving)
        return
    if tab == "attention":
        attention.show(wanted, infos, arriving=arriving)
        publish(wanted)
        return
    result = obtained(wanted, infos, SLOT, arriving=arriving)
    if result is None:
        return
    if tab == "difference":
        difference.show(wanted, result, obtained, informed, names_of_choices())
        publish(wanted)
        return
    show(wanted, result)


def obtained(
    wanted: RepresentationSimilarity, infos: Infos, slot: str, *, arriving: bool
) -> RepresentationSimilarityResult | None:
    """Return the result, or show what leads to it; ``arriving`` starts a quick run without a click."""
    return runs.obtained(
        wanted,
        RepresentationSimilarityResult,
        slot,
        lambda: cost(wanted, infos),
        arriving=arriving,
        draw=lambda partial: picture.show(pictures.compose(wanted, partial), key=f"{slot}.partial"),
    )


def cost(wanted: RepresentationSimilarity, infos: Infos) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate import similarity_cost
    from embcompare.shelf import Shelf

    shelf = Shelf(runs.queue().store)
    names = (wanted.model_a, wanted.model_b)
    given = [shelf.vectors(name) if name.startswith(VECTORS) else None for name in names]
    rows = [len(side) for side in given if side is not None]
    widths, depths = ([getattr(side, of) if side else 0 for side in given] for of in ("width", "layers"))
    return similarity_cost(
        wanted,
        *infos,
        rows[0] if rows else len(shelf.corpus(wanted.corpus)),
        device=resolve_device("auto"),
        widths=(widths[0], widths[1]),
        layers=(depths[0], depths[1]),
    )


def show(wanted: RepresentationSimilarity, result: RepresentationSimilarityResult) -> None:
    """Show a result: sentences, the matrix and its null, profiles, one pair of layers, geometry, files, cards."""
    shape = (result.values.shape[0], result.values.shape[1])
    single = result.values.size == 1
    title = say.capital(wanted.declaration.label)
    title = f"{title}{say.of_what(wanted)}"
    st.subheader(title if single else f"{title}, layer by layer", anchor=False)
    st.markdown(plain(f"{say.takeaway(wanted, result)} {say.levels(wanted, result)}"))
    st.caption(plain(say.surprise(wanted)))
    view, range_ = views(result, PAGE)
    drawn = pictures.compose(wanted, result, view, range_)
    before = layers.chosen(shape, PAGE, result.start)
    ring = None if before is None else (before[0] - result.start[0], before[1] - result.start[1])
    clicked = picture.show(drawn, key="similarity.matrix", selection="cell", chosen=ring)
    layers.take_click(clicked, shape, PAGE, result.start)
    legend = [picture.legend(drawn, wanted.null_draws, "wrong pairings"), say.interval_note(wanted, result)]
    st.caption(plain(" ".join(filter(None, legend))))
    st.caption(plain(say.ends(wanted, result)))
    for notice in result.notices:
        st.caption(plain(notice))
    _reasons(result)
    _files(wanted, result, drawn)
    st.subheader("Row by row" if single else "One pair of layers", anchor=False)
    st.markdown("Click a cell of the first panel, or choose two layers, to see which neighbours they share.")
    cell = layers.choose(shape, PAGE, result.start)
    publish(wanted)
    if cell != before:
        st.rerun()
    if cell is not None:
        rowpairs.show(wanted, cell, result.notices)
    if not single:
        st.subheader("Along the depth", anchor=False)
        pictures.profile(wanted, result)
    st.subheader("Each side by itself" if single else "Each layer by itself", anchor=False)
    pictures.geometry(wanted, result)
    _about(wanted, result)


def _reasons(result: RepresentationSimilarityResult) -> None:
    if not result.reasons:
        return
    why: dict[str, int] = {}
    for _, _, text in result.reasons:
        why[text] = why.get(text, 0) + 1
    cells = len(result.reasons)
    with st.expander("Why the cell has no value" if cells == 1 else f"Why {cells} cells have no value"):
        for text, count in why.items():
            st.markdown(f"- {plain(text)} ({plural(count, 'cell')})")


def _files(wanted: RepresentationSimilarity, result: RepresentationSimilarityResult, drawn: picture.Picture) -> None:
    note = say.takeaway(wanted, result)
    stem = f"{wanted.measure} {pictures.short(wanted, 'a')} {pictures.short(wanted, 'b')}"
    kinds = {kind: functools.partial(picture.export, drawn, note, kind) for kind in ("png", "svg")}
    exports.downloads(result, stem, "similarity.files", kinds)
    with st.expander("Numbers"):
        frame = result.to_frame()
        decimals = {name: st.column_config.NumberColumn(format="%.4f") for name in frame.select_dtypes("float").columns}
        st.dataframe(frame, hide_index=True, height=320, column_config=decimals)


def _about(wanted: RepresentationSimilarity, result: RepresentationSimilarityResult) -> None:
    from embcompare.measures import MEASURES

    st.subheader("About these numbers", anchor=False)
    with st.container(border=True):
        st.markdown(say.measure_card(wanted.declaration))
    with st.expander("All measures"):
        for name, measure in MEASURES.items():
            if name != wanted.measure:
                st.markdown(say.measure_card(measure))
                st.divider()
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("How to cite"):
        exports.cite_measure(wanted.declaration, wanted.space)
    with st.expander("Where the numbers come from"):
        exports.provenance(result)
