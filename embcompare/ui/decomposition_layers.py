"""Sums over a corpus: what each term is of the state, layer by layer, and how much a prediction needs it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from embcompare import charts
from embcompare.experiments.decomposition import Decomposition, DecompositionResult
from embcompare.running import resolve_device
from embcompare.ui import decomposition as frame
from embcompare.ui import decomposition_about as about
from embcompare.ui import decomposition_blocks as blocks
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui import decomposition_words as say
from embcompare.ui import exports, inputs, links, runs
from embcompare.ui.decomposition import PAGE, Look
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate

SLOT = "decomposition"
OWN = ("sentences", "ablation", "positions", "seed")
_DECLARED = Decomposition.__dataclass_fields__
DEFAULTS: dict[str, Any] = {
    "corpus": _DECLARED["corpus"].default,
    **{name: _DECLARED[name].default for name in OWN},
    "drawn": "lines",
    "spread": False,
    "split_kind": "self-attention",
}
"""What an address need not say of this view."""
DRAWN = {"lines": "Lines", "stacked": "Stacked"}


def readers() -> dict[str, Callable[[str], Any]]:
    """Return the readers of what an address says of this view."""
    return {
        "corpus": inputs.read_corpus,
        **{name: links.reader(Decomposition, name) for name in OWN},
        "drawn": links.choice(*DRAWN),
        "spread": links.reader(Decomposition, "ablation"),
        "split_kind": links.choice(*pictures.ORDER),
    }


def show(look: Look) -> None:
    """Show the corpus, the settings, and the result or what leads to it."""
    st.markdown(say.PROMISE)
    wanted = _form(look)
    if wanted is None:
        return
    cost = functools.partial(_cost, wanted, look)
    result = runs.obtained(wanted, DecompositionResult, SLOT, cost, arriving=frame.by_itself("layers", cost()))
    if result is not None:
        _show(wanted, look, result)


def _form(look: Look) -> Decomposition | None:
    any_, both = any(look.translating), all(look.translating)
    frame.settle_corpus("corpus", any_)
    corpus = inputs.corpus(
        links.key(PAGE, "corpus"),
        translated=any_,
        explained="The texts whose hidden states are taken apart; an encoder-decoder reads their translations as well.",
    )
    chosen: dict[str, Any] = {}
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        with st.container(width=180):
            chosen["sentences"] = frame.widget(Decomposition, "sentences", default=DEFAULTS["sentences"])
        with st.container(width=200):
            chosen["by"] = frame.widget(Decomposition, "by")
        if both:
            with st.container(width=220):
                chosen["split"] = frame.widget(Decomposition, "split")
        with st.container(width="content"):
            chosen["ablation"] = frame.widget(Decomposition, "ablation", default=DEFAULTS["ablation"])
    if not both and frame.value("split") != "additive":
        st.caption("Only encoder-decoders have a source and a target to split by, so terms are by part of the model.")
    if chosen.get("split", "additive") != "additive" and chosen["by"] != "none":
        st.caption("Source and target are not split finer, so ‘By layer’ plays no part here.")
        chosen["by"] = "none"
    with st.expander("How states are split, and more"):
        names = (*frame.PARTS, *(frame.TOKENS if both else ()), "positions", "seed")
        for name in ("positions", "seed"):
            frame.value(name, DEFAULTS[name])
        chosen |= frame.widgets(Decomposition, names, 4)
    if corpus is None:
        return None
    names_ = dict(zip(("model_a", "model_b"), look.names, strict=True))
    return frame.settled(Decomposition, {**names_, "corpus": corpus, **chosen})


def _cost(wanted: Decomposition, look: Look) -> Estimate:
    from embcompare.experiments.estimate_decomposition import decomposition_cost

    texts, length = frame.tokens_a_text(wanted.corpus, wanted.sentences)
    return decomposition_cost(wanted, *look.infos, texts, length, device=resolve_device("auto"))


def _show(wanted: Decomposition, look: Look, result: DecompositionResult) -> None:
    labels = look.labels
    verdict = [*(say.carries(result, side, label) for side, label in zip("ab", labels, strict=True))]
    verdict.append(say.apart(result))
    st.markdown("  \n".join(map(plain, verdict)), help=say.IMPORTANCE)
    st.caption(plain(" ".join([say.read(result), *result.notices])))
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        indicator = frame.choose("Indicator", frame.INDICATORS, "indicator")
        drawn = "lines"
        if indicator == "importance":
            drawn = frame.choose("Drawn as", DRAWN, "drawn")
        frame.value("spread", DEFAULTS["spread"])
        spread = drawn == "lines" and st.toggle(
            "Spread over tokens",
            key=links.key(PAGE, "spread"),
            persist_state="session",
            on_change=links.forget,
            help="Shades one standard deviation over tokens on either side, lighter than the interval of the mean.",
        )
    panels = _profile(look, result, indicator, drawn, bool(spread))
    if wanted.by != "none":
        blocks.split(look, result, indicator)
    if wanted.by == "none":
        others = st.expander("The other three indicators", key="decomposition.others", on_change="rerun")
        if others.open:
            with others:
                _others(look, result, indicator)
    blocks.dropped(look, result)
    note = " ".join(verdict)
    kinds = {
        kind: functools.partial(
            pictures.export, panels, f"{frame.INDICATORS[indicator]} by layer: {' and '.join(labels)}", note, kind
        )
        for kind in (("png", "svg") if panels else ())
    }
    exports.downloads(result, f"decomposition {' '.join(labels)}", "decomposition.layers.files", kinds)
    about.layers(wanted, result)


def _tables(result: DecompositionResult, side: str, indicator: str) -> dict[str, np.ndarray | None]:
    """Return mean, interval and sd by state and kind; where kinds are sums of terms, the mean of importance alone."""
    at, kinds = result.at(indicator), getattr(result, f"kinds_{side}")
    names = ("mean", "low", "high", "sd")
    if len(set(kinds)) == len(kinds):
        return {name: pictures.by_kind(getattr(result, f"{name}_{side}")[at], kinds, 1) for name in names}
    mean = pictures.by_kind(getattr(result, f"mean_{side}")[at], kinds, 1) if indicator == "importance" else None
    return {"mean": mean, "low": None, "high": None, "sd": None}


def _limits(tables: list[dict[str, np.ndarray | None]], spread: bool) -> tuple[float, float] | None:
    """Return the limits that both panels share."""
    found: list[np.ndarray] = []
    for table in tables:
        mean, low, high, sd = (table[name] for name in ("mean", "low", "high", "sd"))
        found += [each for each in (mean, low, high) if each is not None]
        if spread and mean is not None and sd is not None:
            found += [mean - sd, mean + sd]
    values = np.concatenate([each[np.isfinite(each)] for each in found]) if found else np.zeros(0)
    if not values.size:
        return None
    room = 0.05 * max(float(values.max() - values.min()), 1e-9)
    return float(values.min()) - room, float(values.max()) + room


def _profile(look: Look, result: DecompositionResult, indicator: str, drawn: str, spread: bool) -> list[Any]:
    tables = {side: _tables(result, side, indicator) for side in "ab"}
    if any(table["mean"] is None for table in tables.values()):
        st.caption(
            f"{frame.INDICATORS[indicator]} of several terms together is not the sum of theirs, so split this finely "
            "it is shown term by term, below."
        )
        return []
    means = {side: np.asarray(table["mean"]) for side, table in tables.items()}
    limits = _limits(list(tables.values()), spread)
    panels = []
    for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
        kinds, names = pictures.kinds_of(getattr(result, f"kinds_{side}")), getattr(result, f"states_{side}")
        short = pictures.places(names, getattr(result, f"layers_{side}"))
        own, title = tables[side], f"{side.upper()}: {charts.shortened(look.labels['ab'.index(side)])}"
        make: Callable[..., Any]
        if drawn == "stacked":
            make = functools.partial(
                pictures.stacked, means[side], kinds, short, names, pictures.extent(*means.values())
            )
        else:
            label = frame.INDICATORS[indicator].lower()
            sd = own["sd"] if spread else None
            make = functools.partial(
                pictures.lines,
                means[side],
                own["low"],
                own["high"],
                kinds,
                short,
                names,
                label,
                sd=sd,
                limits=limits,
            )
        panels.append(make(title=title))
        with column:
            st.markdown(look.heading(side))
            last = say.shares(means[side][-1], kinds)
            st.altair_chart(
                make(),
                key=f"decomposition.profile.{side}",
                alt=f"{side.upper()}: {frame.INDICATORS[indicator].lower()} of each term by layer; last state: {last}.",
            )
    shaded = "" if drawn == "stacked" or tables["a"]["low"] is None else " Shaded: 95 % interval over texts."
    st.caption(f"{plain(say.meaning(indicator))}{shaded} {say.axis(result.states_a, result.states_b)}")
    return panels


def _others(look: Look, result: DecompositionResult, indicator: str) -> None:
    for name in frame.INDICATORS:
        if name == indicator:
            continue
        st.markdown(f"**{frame.INDICATORS[name]}**", help=plain(say.meaning(name)))
        tables = {side: _tables(result, side, name) for side in "ab"}
        limits = _limits(list(tables.values()), False)
        for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
            kinds, names = pictures.kinds_of(getattr(result, f"kinds_{side}")), getattr(result, f"states_{side}")
            short, own = pictures.places(names, getattr(result, f"layers_{side}")), tables[side]
            mean = np.asarray(own["mean"])
            drawn = pictures.lines(
                mean,
                own["low"],
                own["high"],
                kinds,
                short,
                names,
                frame.INDICATORS[name].lower(),
                limits=limits,
                height=190,
            )
            column.altair_chart(
                drawn,
                key=f"decomposition.other.{name}.{side}",
                alt=f"{side.upper()}: {say.SPOKEN[name]} of each term by layer; last: {say.shares(mean[-1], kinds)}.",
            )
