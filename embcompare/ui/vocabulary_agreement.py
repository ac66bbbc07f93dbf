"""Whether parameters agree with what belongs to them: their partners, the states they act on, their own geometry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from embcompare import curves
from embcompare.experiments.agreement import KINDS, PAIRS, TARGETS, ParameterAgreement, ParameterAgreementResult
from embcompare.experiments.vectors import GROUPS
from embcompare.ui import exports, given, inputs, links, pair, runs, settings
from embcompare.ui import vocabulary as frame
from embcompare.ui.page import plain
from embcompare.ui.vocabulary import PAGE, Look
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate

SLOT = "agreement"
_FIELDS = {"set_k": "k", "active": "active", "read_sentences": "sentences", "shuffles": "null_draws"}
DEFAULTS: dict[str, Any] = {
    "corpus": "shipped",
    "set_k": 50,
    "active": 5,
    "read_sentences": 48,
    "shuffles": 5,
    "partners": "ff",
    "acting": "ff_values",
    "target": "own",
    "kept": "ff_values",
}
"""What an address need not say of this view."""
WHOSE = {"own": "the layer's own state", "last": "the last layer's state"}
VECTORS = {"normal": "Normal numbers", "ff_values": "FF values", "states": "Hidden states"}


def readers() -> dict[str, Any]:
    """Return the readers of what an address says of this view."""
    return {
        "corpus": inputs.read_corpus,
        **{name: links.reader(ParameterAgreement, field) for name, field in _FIELDS.items()},
        "partners": links.choice(*PAIRS),
        "acting": links.choice(*GROUPS),
        "target": links.choice(*TARGETS),
        "kept": links.choice(*KINDS),
    }


def show(look: Look) -> None:
    """Show how far both models' parameters agree with their partners and with the states they are active at."""
    st.markdown(
        "Is reading parameters as tokens more than a game? If it is, parameters that work together should speak of the "
        "same tokens more often than parameters paired at random, and those active at a token should speak of what the "
        "hidden state there says. Three tests after Dar et al. (2023), for both models."
    )
    corpus = inputs.corpus(links.key(PAGE, "corpus"))
    chosen: dict[str, Any] = {}
    for column, (name, field) in zip(st.columns(4, gap="small"), _FIELDS.items(), strict=True):
        with column:
            chosen[field] = settings.single(ParameterAgreement, field, links.key(PAGE, name), default=DEFAULTS[name])
    if corpus is None:
        return
    wanted = look.of(ParameterAgreement, model_a=look.names[0], model_b=look.names[1], corpus=corpus, **chosen)
    if wanted is None:
        return
    result = runs.obtained(wanted, ParameterAgreementResult, SLOT, lambda: cost(wanted, look.infos), arriving=True)
    if result is not None:
        _show(wanted, result)


def cost(wanted: ParameterAgreement, infos: tuple[Any, Any]) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate_vocabulary import agreement_cost

    sentences = len(given.shelf().corpus(wanted.corpus))
    return agreement_cost(wanted, *infos, sentences, device=frame.device())


def _show(wanted: ParameterAgreement, result: ParameterAgreementResult) -> None:
    for notice in result.notices:
        st.caption(plain(notice))
    st.subheader("Do partners speak of the same tokens?", anchor=False)
    partners = _choice("partners", {name: PAIRS[name] for name in result.pairs}, "Partners")
    at = result.pairs.index(partners)
    _curves(wanted, result, "sim", (at,), f"Jaccard index of {int(result.k[0])}", "shuffled within the layer")
    st.caption(
        f"Sim_k: Jaccard index of the top {int(result.k[0])} tokens (by size) of both, mean over "
        f"{_many(result.sim_pairs[:, at])} pairs a layer. Shaded: 95 % intervals over pairs."
    )
    _examples(result, at)
    st.subheader("Do active parameters speak of what the state says?", anchor=False)
    if not (result.tokens > 0).any():
        st.caption("No hidden state could be read.")
    else:
        left, right = st.columns(2, gap="small")
        with left:
            acting = _choice("acting", {name: GROUPS[name] for name in result.groups}, "Parameters")
        with right:
            target = _choice("target", WHOSE, "Compared with")
        place = (result.groups.index(acting), TARGETS.index(target))
        _curves(wanted, result, "overlap", place, "share of the state's tokens", "active at another token")
        st.caption(
            f"R_k: of the {int(result.k[0])} top tokens of the state, how many are among those of the {wanted.active} "
            f"parameters most active there; mean over {_many(result.tokens)} tokens of "
            f"{plural(result.sentences, 'sentence')}. Shaded: 95 % intervals over sentences."
        )
    _keep(wanted, result)
    exports.downloads(result, f"agreement {wanted.model_a} {wanted.model_b}", "agreement.files")
    with st.expander("Numbers"):
        st.dataframe(result.to_frame(), hide_index=True, height=320)
    with st.expander("Compute it again"):
        exports.again(wanted)
    with st.expander("How to cite"):
        exports.cite()
    with st.expander("Where the numbers come from"):
        exports.provenance(result)


def _choice(name: str, labels: dict[str, str], title: str) -> str:
    key = links.key(PAGE, name)
    if st.session_state.get(key) not in labels:
        asked = st.session_state.get(key)
        if asked is not None and asked != DEFAULTS[name]:
            st.caption(f"These models have no {asked}; the first of what they have is shown.")
        st.session_state[key] = DEFAULTS[name] if DEFAULTS[name] in labels else next(iter(labels))
    return str(
        st.selectbox(
            title,
            list(labels),
            format_func=lambda option: labels[option],
            key=key,
            persist_state="session",
            on_change=links.forget,
        )
    )


def _many(counts: np.ndarray) -> str:
    known = sorted({int(count) for count in np.ravel(counts) if count > 0})
    if not known:
        return "no"
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


def verdict(result: ParameterAgreementResult, name: str, place: tuple[int, ...], side: int) -> str:
    """Say in which layers the statistic lies beyond its shuffle, and name those where it does not."""
    layers = int(result.layers[side])
    low = getattr(result, f"{name}_gap_low")[(side, *place)][:layers]
    high = getattr(result, f"{name}_gap_high")[(side, *place)][:layers]
    known = np.isfinite(low)
    if not known.any():
        return "Not defined for this model."
    above, below = np.flatnonzero(known & (low > 0)), np.flatnonzero(known & (high < 0))
    text = f"Above chance in {len(above)} of {plural(int(known.sum()), 'layer')}"
    rest = [int(layer) for layer in np.flatnonzero(known) if layer not in above]
    if rest:
        listed = ", ".join(map(str, rest))
        text += f"; not in {agree(len(rest), 'layer')} {listed}"
    if len(below):
        text += f" (below chance in {', '.join(str(int(layer)) for layer in below)})"
    return f"{text}."


def _curves(
    wanted: ParameterAgreement,
    result: ParameterAgreementResult,
    name: str,
    place: tuple[int, ...],
    title: str,
    chance: str,
) -> None:
    values, low, high, null = (getattr(result, name + part) for part in ("", "_low", "_high", "_null"))
    top = max(float(np.nanmax(np.where(np.isfinite(side), side, 0.0)[place], initial=0.0)) for side in (*high, *null))
    for side, column in enumerate(st.columns(2, gap="medium")):
        model = pair.label_of((wanted.model_a, wanted.model_b)[side])
        layers = int(result.layers[side])
        where = (side, *place)
        with column:
            st.markdown(f"**{'AB'[side]}: {plain(model)}**")
            said = verdict(result, name, place, side)
            st.markdown(said)
            if np.isfinite(values[where][:layers]).any():
                chart = curves.along(
                    {"together": values[where][:layers], chance: null[where][:layers]},
                    "layer",
                    title,
                    bands={"together": (low[where][:layers], high[where][:layers])},
                    domain=(0.0, max(1.05 * top, 1e-3)),
                )
                st.altair_chart(chart, key=f"agreement.{name}.{side}", alt=f"{title} by layer. {said}")


def _examples(result: ParameterAgreementResult, at: int) -> None:
    rows = np.flatnonzero(result.example_pair == at)
    if not len(rows):
        return
    table = pd.DataFrame(
        {
            "model": ["AB"[int(side)] for side in result.example_model[rows]],
            "layer": result.example_layer[rows],
            "first": result.example_index[rows, 0],
            "second": result.example_index[rows, 1],
            "sim": result.example_sim[rows],
            "tokens": [list(result.example_tokens[row]) for row in rows],
        }
    )
    with st.expander("Partners that agree most"):
        st.dataframe(
            table,
            hide_index=True,
            height=300,
            key=f"agreement.examples.{at}",
            column_config={
                "sim": st.column_config.NumberColumn("Sim", format="%.2f", width="small"),
                "tokens": st.column_config.ListColumn(
                    "tokens that both list", width=frame.lists_width(table["tokens"])
                ),
            },
            alt=f"{plural(len(table), 'pair')} of parameters that share most tokens.",
        )


def crossing(kept: np.ndarray, plain_: np.ndarray, exact: np.ndarray) -> str:
    """Say from how many kept entries on the exact inverse keeps inner products better than the embedding itself."""
    better = np.flatnonzero(exact > plain_)
    if not len(better):
        return "The embedding keeps inner products better however many entries are kept."
    if better[0] == 0:
        return "The exact inverse keeps inner products better however few entries are kept."
    last, first = int(kept[better[0] - 1]), int(kept[better[0]])
    return f"The embedding is better up to {last:,} entries, the exact inverse from {first:,} on."


def _keep(wanted: ParameterAgreement, result: ParameterAgreementResult) -> None:
    if not (result.keep_vectors > 0).any():
        return
    st.subheader("Why the embedding itself, and not its exact inverse?", anchor=False)
    st.markdown(
        "Who reads a vector sees its largest entries only. If only the k largest are kept, do inner products between "
        "vectors survive? Compared are readings by the embedding on both sides, as everything here is read, and "
        "readings whose other side is the exact right inverse, which is right when all entries are kept."
    )
    kind = _choice("kept", dict(VECTORS), "Vectors")
    at = KINDS.index(kind)
    for side, column in enumerate(st.columns(2, gap="medium")):
        known = result.keep[side] >= 0
        x = result.keep[side][known].astype(float)
        lines = {
            "embedding": result.keep_transpose[side, at][known],
            "exact inverse": result.keep_inverse[side, at][known],
        }
        with column:
            st.markdown(f"**{'AB'[side]}: {plain(pair.label_of((wanted.model_a, wanted.model_b)[side]))}**")
            if not len(x) or not np.isfinite(lines["embedding"]).any():
                st.caption("Not defined for this model.")
                continue
            chart = curves.along(
                lines,
                "entries kept",
                "cosine of the inner products",
                x=dict.fromkeys(lines, x),
                domain=(min(0.0, float(np.nanmin(list(lines.values())))), 1.0),
                log_x=True,
            )
            st.caption(crossing(x, lines["embedding"], lines["exact inverse"]))
            ends = "; ".join(f"{name} from {line[0]:.2f} to {line[-1]:.2f}" for name, line in lines.items())
            st.altair_chart(chart, key=f"agreement.keep.{side}", alt=f"By entries kept: {ends}.")
