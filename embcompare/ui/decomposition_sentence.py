"""One text taken apart in both models: shares by layer, token by token, what the parts say, and what tokens brought."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from embcompare import charts
from embcompare.errors import SettingsError
from embcompare.experiments.term_sentence import MAX_CHARACTERS, SentenceTerms, SentenceTermsResult
from embcompare.running import resolve_device
from embcompare.ui import decomposition as frame
from embcompare.ui import decomposition_about as about
from embcompare.ui import decomposition_parts as parts
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui import decomposition_tokens as tokens
from embcompare.ui import decomposition_words as say
from embcompare.ui import exports, links, runs
from embcompare.ui.decomposition import PAGE, Look
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate

SLOT = "sentence_terms"
EXAMPLE, EXAMPLE_NUMBER = (
    "The old whale went down slowly into the deep sea",
    "the twenty-third of September, nineteen eighty-three",
)
DEFAULTS: dict[str, Any] = {
    "text": EXAMPLE,
    "target": "",
    "k": 10,
    **{f"{what}_{side}": "last" for what in ("layer", "position") for side in "ab"},
    "over": "average",
    "brought": "importance",
}
"""What an address need not say of this view."""
OVER = {"average": "Average over the text's tokens", "token": "The chosen token"}
SETTINGS = ("text", "target", "k", "layer_a", "layer_b", "position_a", "position_b")


def readers() -> dict[str, Callable[[str], Any]]:
    """Return the readers of what an address says of this view."""
    return {
        **{name: functools.partial(_read_text, name) for name in ("text", "target")},
        "k": links.reader(SentenceTerms, "k"),
        **{name: functools.partial(_read_place, name) for name in SETTINGS if name.startswith(("layer", "position"))},
        "over": links.choice(*OVER),
        "brought": links.choice(*parts.BROUGHT),
    }


def _read_text(name: str, text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise SettingsError(f"it has {len(text):,} characters; at most {MAX_CHARACTERS:,} are taken")
    return text or DEFAULTS[name]


def _read_place(name: str, text: str) -> str:
    """Read a layer or a token as a link gives it: a number, or ``last``."""
    return "last" if text in ("last", "None") else str(SentenceTerms.read_option(name, text))


def show(look: Look) -> None:
    """Show the text, its settings, and the result or what leads to it."""
    st.markdown(say.PROMISE)
    wanted = _form(look)
    if wanted is None:
        return
    cost = functools.partial(_cost, wanted, look)
    result = runs.obtained(wanted, SentenceTermsResult, SLOT, cost, arriving=frame.by_itself("sentence", cost()))
    if result is not None:
        _show(wanted, look, result)
    elif (wanted.position_a, wanted.position_b) != (None, None):
        st.button("Look at the last token", key="decomposition.last", on_click=_reset_places)


def _form(look: Look) -> SentenceTerms | None:
    translating = any(look.translating)
    for name in ("text", "target"):
        frame.value(name, DEFAULTS[name])
    _settle_example(translating)
    with st.form("decomposition.text.form", border=False):
        boxes = st.columns([3, 2] if translating else 1, gap="small")
        shared: dict[str, Any] = {"max_chars": MAX_CHARACTERS, "height": 82, "persist_state": "session"}
        boxes[0].text_area(
            "Source text" if translating else "Text",
            key=links.key(PAGE, "text"),
            help="What both models read; an encoder-decoder reads it as its source. The first 128 tokens are taken.",
            **shared,
        )
        if translating:
            boxes[1].text_area(
                "Translation",
                key=links.key(PAGE, "target"),
                placeholder="empty: what the model itself writes",
                help="What an encoder-decoder's decoder reads, whose states are taken apart.",
                **shared,
            )
        st.form_submit_button("Take apart", icon=":material/call_split:")
    _new_text(look)
    with st.expander("How states are split"):
        chosen = frame.widgets(SentenceTerms, ("by", *frame.PARTS, *frame.TOKENS, "k"), 4)
        st.caption(
            "Every choice keeps the sum exact; it says which term receives what the sum leaves open. Those by tokens "
            "are for what each input token brought."
        )
    places = {}
    with st.container(horizontal=True, gap="small"):
        for side, info in zip("ab", look.infos, strict=True):
            places[f"layer_{side}"] = _layer(side, info.layers)
    positions = {f"position_{side}": _number(str(frame.value(f"position_{side}", "last"))) for side in "ab"}
    text = {name: str(st.session_state[links.key(PAGE, name)]) for name in ("text", "target")}
    if not translating:
        text["target"] = ""
    names = dict(zip(("model_a", "model_b"), look.names, strict=True))
    return frame.settled(SentenceTerms, {**names, **text, **chosen, **places, **positions})


def _settle_example(translating: bool) -> None:
    """Put an example in the box that suits the models, as long as nobody has written anything else."""
    key = links.key(PAGE, "text")
    if st.session_state[key] in (EXAMPLE, EXAMPLE_NUMBER):
        st.session_state[key] = EXAMPLE_NUMBER if translating else EXAMPLE


def _new_text(look: Look) -> None:
    """Go to the last token of a text that is not the one whose token was chosen."""
    state, known = st.session_state, "decomposition.sentence.read"
    now = (look.names, state[links.key(PAGE, "text")], state[links.key(PAGE, "target")])
    if state.get(known) not in (None, now):
        _reset_places()
    state[known] = now


def _reset_places() -> None:
    for side in "ab":
        st.session_state[links.key(PAGE, f"position_{side}")] = "last"


def _layer(side: str, last: int) -> int | None:
    key = links.key(PAGE, f"layer_{side}")
    options = ["last", *map(str, range(last + 1))]
    if frame.value(f"layer_{side}", "last") not in options:
        st.warning(f"{side.upper()} has no layer {plain(str(st.session_state[key]))}; its layers are 0 to {last}.")
        st.session_state[key] = "last"
    names = {"last": f"last ({last})", "0": "0, embedding output"}
    chosen = st.selectbox(
        f"Layer of {side.upper()}",
        options,
        format_func=lambda each: names.get(each, each),
        key=key,
        persist_state="session",
        on_change=links.forget,
        help="Whose state is looked at token by token and read in tokens; the last after its final norm.",
        width=200,
    )
    return _number(str(chosen))


def _number(text: str) -> int | None:
    return None if text == "last" else int(text)


def _cost(wanted: SentenceTerms, look: Look) -> Estimate:
    from embcompare.experiments.estimate_decomposition import sentence_terms_cost

    return sentence_terms_cost(wanted, *look.infos, device=resolve_device("auto"))


def _show(wanted: SentenceTerms, look: Look, result: SentenceTermsResult) -> None:
    chosen = {side: int(getattr(result, f"position_{side}")) for side in "ab"}
    states = {side: int(getattr(result, f"state_{side}")) for side in "ab"}
    st.markdown(
        "  \n".join(plain(say.of_token(result, side, states[side], chosen[side])) for side in "ab"),
        help=say.IMPORTANCE,
    )
    for side in "ab":
        _translation(result, side)
    st.caption(
        plain(
            f"Terms add up to the states to {say.exactness(result.residual_a, result.residual_b)} of their length, "
            f"parts of input tokens to {say.exactness(result.source_residual_a, result.source_residual_b)}"
            + (
                f", and parts of logits to {say.exactness(result.logit_residual_a, result.logit_residual_b)}."
                if result.parts_a is not None or result.parts_b is not None
                else "."
            )
        )
    )
    for notice in result.notices:
        st.caption(plain(notice))
    st.subheader("Layer by layer", anchor=False)
    over = frame.choose("Bars of", OVER, "over", hidden=True)
    drawn = _bars(look, result, over, chosen, states)
    st.subheader("Token by token", anchor=False)
    tokens.show(look, result, chosen, states)
    parts.vocabulary(look, result, chosen)
    parts.logits(look, result, chosen)
    parts.brought(look, result, chosen)
    note = " ".join(say.of_token(result, side, states[side], chosen[side]) for side in "ab")
    kinds = {
        kind: functools.partial(pictures.export, drawn, f"Terms by layer: {' and '.join(look.labels)}", note, kind)
        for kind in ("png", "svg")
    }
    exports.downloads(result, f"terms {' '.join(look.labels)}", "decomposition.sentence.files", kinds)
    about.sentence(wanted, result)


def _translation(result: SentenceTermsResult, side: str) -> None:
    text = getattr(result, f"translation_{side}")
    if text is not None:
        how = "writes" if getattr(result, f"own_translation_{side}") else "reads, as given"
        source = " ".join(getattr(result, f"source_tokens_{side}"))
        st.caption(plain(f"{side.upper()} {how}: {text or '(nothing)'} · its source: {source}"))


def averaged(result: SentenceTermsResult, side: str) -> np.ndarray:
    """Return importance by state and kind (S, G), averaged over the text's tokens; NaN where none has any."""
    kinds = getattr(result, f"kinds_{side}")
    values = pictures.by_kind(result.of(side, "importance"), kinds, 1)[:, :, ~getattr(result, f"special_{side}")]
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = np.where(known, values, 0.0).sum(-1) / known.sum(-1)
    return mean


def _bars(
    look: Look, result: SentenceTermsResult, over: str, chosen: dict[str, int], states: dict[str, int]
) -> list[Any]:
    tables = {}
    for side in "ab":
        kinds = getattr(result, f"kinds_{side}")
        one = pictures.by_kind(result.of(side, "importance"), kinds, 1)[:, :, chosen[side]]
        tables[side] = averaged(result, side) if over == "average" else one
    limits = pictures.extent(*tables.values())
    drawn = []
    for column, side in zip(st.columns(2, gap="medium"), "ab", strict=True):
        kinds = pictures.kinds_of(getattr(result, f"kinds_{side}"))
        names = getattr(result, f"states_{side}")
        short = pictures.places(names, getattr(result, f"layers_{side}"))
        asked = (tables[side], kinds, short, names, limits)
        title = f"{side.upper()}: {charts.shortened(look.labels['ab'.index(side)])}"
        drawn.append(pictures.stacked(*asked, title=title))
        with column:
            st.markdown(look.heading(side))
            last = say.shares(tables[side][-1], kinds)
            st.altair_chart(
                pictures.stacked(*asked, chosen=states[side]),
                key=f"decomposition.bars.{side}",
                alt=f"{side.upper()}: importance of each term by layer, {OVER[over].lower()}; last state: {last}.",
            )
    st.caption(
        "Importance of each kind of term, stacked to 1 (dashed); below 0 what points against the state. "
        f"{say.axis(*(getattr(result, f'states_{side}') for side in 'ab'))} Bold: the layer that is looked at below."
    )
    return drawn
