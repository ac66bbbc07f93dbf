"""A text token by token: what each token's state is the sum of, and which token is looked at."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare import charts
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui import decomposition_words as say
from embcompare.ui import links
from embcompare.ui.decomposition import PAGE
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.term_sentence import SentenceTermsResult
    from embcompare.ui.decomposition import Look


def show(look: Look, result: SentenceTermsResult, chosen: dict[str, int], states: dict[str, int]) -> None:
    """Show importance at every token in the looked-at state of both models; a click chooses the token."""
    tables = {}
    for side in "ab":
        values = result.of(side, "importance")[states[side]]
        tables[side] = pictures.by_kind(values, getattr(result, f"kinds_{side}"), 0)
    scale = charts.signed_scale("importance", list(tables.values()))
    alike = result.tokens_a == result.tokens_b
    for side in "ab":
        kinds, tokens = pictures.kinds_of(getattr(result, f"kinds_{side}")), getattr(result, f"tokens_{side}")
        st.markdown(f"{look.heading(side)} · {plain(getattr(result, f'states_{side}')[states[side]])}")
        step = max(48, min(80, 1120 // len(tokens)))
        text = hashlib.sha256(repr(tokens).encode()).hexdigest()[:10]
        with st.container(key=f"scrolled_tokens_{side}"):
            event = st.altair_chart(
                pictures.cells(
                    tables[side],
                    kinds,
                    tokens,
                    scale,
                    "importance",
                    chosen=chosen[side],
                    selection="token",
                    step=step,
                    clip=step // 8,
                    write=pictures.number,
                ),
                key=f"decomposition.tokens.{side}.{text}",
                width="content",
                on_select="rerun",
                alt=f"{side.upper()}: importance of {', '.join(kinds)} at each of {len(tokens)} tokens; "
                f"{say.of_token(result, side, states[side], chosen[side])}",
            )
        if _clicked(event["selection"].get("token"), side, len(tokens), f"{side}.{text}", alike):
            st.rerun()
    with st.container(horizontal=True, gap="small"):
        for side in "ab":
            _choose_token(result, side, alike)
    st.caption(
        "Click a token to look at its state: what it says in tokens, and what each input token brought, are below."
        + (" Both models read the same tokens, so a click chooses the token in both." if alike else "")
    )


def _clicked(picked: list[dict[str, Any]] | None, side: str, count: int, known: str, alike: bool) -> bool:
    """Take a new click on a token; an old one, or one outside the text, changes nothing."""
    place = int(picked[0].get("place", -1)) if picked else None
    seen = f"decomposition.clicked.{known}"
    if place == st.session_state.get(seen):
        return False
    st.session_state[seen] = place
    if place is None or not 0 <= place < count:
        return False
    for each in "ab" if alike else side:
        st.session_state[links.key(PAGE, f"position_{each}")] = str(place)
    return True


def _choose_token(result: SentenceTermsResult, side: str, alike: bool) -> None:
    tokens, key = getattr(result, f"tokens_{side}"), links.key(PAGE, f"position_{side}")
    names = {"last": "last of the text", **{str(at): f"{at} · {token}" for at, token in enumerate(tokens)}}

    def follow() -> None:
        links.forget()
        if alike:
            for each in "ab":
                st.session_state[links.key(PAGE, f"position_{each}")] = st.session_state[key]

    st.selectbox(
        f"Token of {side.upper()}",
        list(names),
        format_func=lambda each: names.get(each, each),
        key=key,
        persist_state="session",
        on_change=follow,
        width=240,
    )
