"""The pair of models: how it is chosen, what each model is, what can be compared and what cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from embcompare.demo import OFFERED, SOURCES
from embcompare.errors import EmbcompareError
from embcompare.experiments.parameters import ParameterAlignment
from embcompare.experiments.vectors import GROUPS, open_space, require_group
from embcompare.models import (
    FAMILIES,
    ModelInfo,
    ModelSpec,
    default_pool,
    demo_names,
    fingerprint,
    inspect_model,
    policy,
)
from embcompare.shelf import digest_of
from embcompare.ui import given, links, stitching_fit, warm
from embcompare.ui.page import plain

DEFAULT_PAIR = {"model_a": "demo/gpt2-a", "model_b": "demo/gpt2-b"}
PLACEMENTS = {"pre": "before each sublayer", "post": "after each sublayer"}
LIGHT_BYTES = 400 * 2**20
"""Up to this size a model is loaded to see what can be compared; beyond, the run itself finds out."""


def offered() -> list[str]:
    """Return the models that can be picked without typing: those that ship and, hosted, those on its list."""
    demos = [name for name in demo_names() if name in OFFERED]
    return [*(f"demo/{name}" for name in demos), *(policy.allowed_models() if policy.hosted() else ())]


def choose(more: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Show the two selectors and return what is chosen; ``more`` can be chosen too, name by label."""
    left, right = st.columns(2, gap="small")
    with left:
        a = selector("Model A", "model_a", more)
    with right:
        b = selector("Model B", "model_b", more)
    return a, b


def selector(label: str, key: str, more: Mapping[str, str] | None = None) -> str:
    """Show one selector of models under the session's ``key`` and return what is chosen."""
    more = dict(more or {})
    options = [*offered(), *more]
    chosen = str(st.session_state.setdefault(key, DEFAULT_PAIR[key.rpartition(".")[2]]))
    if chosen not in options:
        options.insert(0, chosen)
        if digest_of(chosen):
            more[chosen] = given.called(chosen)
    typed = not policy.hosted()
    return str(
        st.selectbox(
            label,
            options,
            format_func=lambda name: more.get(name, name),
            key=key,
            persist_state="session",
            on_change=links.forget,
            accept_new_options=typed,
            help="Pick a demo model, or type a folder (./path or /path) or a hub name (org/name, org/name@revision)."
            if typed
            else "This public demo runs the models on the list; on your own machine any model can be named.",
        )
    )


def label_of(name: str) -> str:
    """Return how a model or a user's vectors are called in pictures."""
    return given.called(name) if digest_of(name) else ModelSpec.parse(name).label


def read(text: str) -> str:
    """Read a model's name as a link gives it; raises what finding the model raises."""
    warm.ready()
    inspect_model(text)
    return text


def informed(names: tuple[str, str]) -> tuple[ModelInfo, ModelInfo] | None:
    """Return what both models are; None, with a sentence on the page, when one of them cannot be had."""
    warm.ready()
    a, b = (informed_side(side, name) for side, name in zip("AB", names, strict=True))
    return (a, b) if a is not None and b is not None else None


def informed_side(side: str, name: str) -> ModelInfo | None:
    """Return what the model of one side is; None, with a sentence on the page, when it cannot be had."""
    if digest_of(name):
        st.error(
            f"Model {side}: {plain(given.called(name))} are vectors of your own, which have no parameters; choose a "
            "model, or compare them on the page Representations."
        )
        return None
    try:
        info = inspect_model(name)
    except EmbcompareError as error:
        st.error(f"Model {side}: {plain(str(error))}")
        return None
    if not info.supported:
        st.error(f"Model {side}: {plain(info.reason)}")
        return None
    return info


def card(side: str, info: ModelInfo) -> None:
    """Show one model's card: its shape and, where it is known, how it was trained."""
    with st.container(border=True, height="stretch"):
        st.markdown(f"**Model {side}** · {plain(info.label)}")
        rows = {
            "family": f"{info.family}, norm {PLACEMENTS.get(info.placement, info.placement)}",
            "layers × width": f"{info.layers} × {info.width:,}",
            "heads": f"{info.heads}" + ("" if info.kv_heads == info.heads else f" ({info.kv_heads} for keys, values)"),
            "FF neurons": f"{info.ff_width:,} a layer",
            "vocabulary": f"{info.vocabulary:,} tokens" + (", tied" if info.tied else ", untied"),
            "parameters": _count((info.card or {}).get("parameters", info.parameters)),
            **_training(info.card or {}),
        }
        shown = [{"": f"**{name}**", " ": plain(value)} for name, value in rows.items()]
        st.table(shown, border="horizontal", hide_index=True, hide_header=True)


def _count(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million")):
        if number >= size / 10:
            return f"about {number / size:.2f} {unit}"
    return f"about {number:,}"


def _training(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what a demo model's card says of its training, by row of the card."""
    rows: dict[str, str] = {}
    texts = [text for text in facts.get("texts") or () if isinstance(text, Mapping)]
    if texts:
        rows["trained on"] = ", ".join(
            f"{float(text.get('share') or 0):.0%} {SOURCES.get(str(text.get('source')), text.get('source'))}"
            for text in texts
        )
    if "tokens_read" in facts:
        rows["tokens read"] = f"{_count(int(facts['tokens_read']))} in {facts.get('step', 0):,} steps"
    if "seed" in facts:
        rows["seed"] = str(facts["seed"])
    if "held_out_loss" in facts:
        rows["held-out loss"] = f"{facts['held_out_loss']:.2f} nats a token"
        if "unigram_loss" in facts:
            rows["held-out loss"] += f" (word counts alone: {facts['unigram_loss']:.2f})"
    return rows


@dataclass(frozen=True)
class Check:
    """One way of comparing the pair: whether it is open, and the sentence that says so or why not."""

    what: str
    possible: bool
    sentence: str


def checks(names: tuple[str, str], infos: tuple[ModelInfo, ModelInfo]) -> list[Check]:
    """Return what can be compared, as the core's own checks say."""
    a, b = infos
    if max(a.bytes, b.bytes) > LIGHT_BYTES:
        later = Check(
            "Parameters in embedding space",
            True,
            "These models are large; their vocabularies are matched when a run starts.",
        )
        found = [later, _feature_space(a.width, b.width), _hidden_states(None)]
    else:
        found = _checked(names, tuple(fingerprint(name) for name in names))
    stitched = _stitching(names, infos)
    return [*found, stitched, _maps(infos, stitched.possible), _sums(infos)]


@st.cache_data(max_entries=64, show_spinner="Reading both models")
def _checked(names: tuple[str, str], _prints: tuple[str, ...]) -> list[Check]:
    pool = default_pool()
    with pool.lease(names[0]) as a, pool.lease(names[1]) as b:
        found = []
        try:
            _, notes = open_space(ParameterAlignment(*names), a, b, "cpu")
            found.append(Check("Parameters in embedding space", True, " ".join(notes)))
        except EmbcompareError as error:
            found.append(Check("Parameters in embedding space", False, str(error)))
        shared = found[0].possible
        found.append(_feature_space(a.anatomy.width, b.anatomy.width))
        found.append(_hidden_states(shared))
        closed: dict[str, str] = {}
        for group in GROUPS:
            try:
                for model in (a, b):
                    require_group(model, group)
            except EmbcompareError as error:
                closed[group] = str(error)
        open_groups = [GROUPS[group] for group in GROUPS if group not in closed]
        found.append(Check("Groups of parameters", bool(open_groups), f"Both models have {', '.join(open_groups)}."))
        found += [Check(GROUPS[group], False, reason) for group, reason in closed.items()]
    return found


def _feature_space(width_a: int, width_b: int) -> Check:
    from embcompare.spaces import FeatureSpace  # brings torch, which a page that finds its result needs not

    try:
        FeatureSpace(width_a, width_b)
    except EmbcompareError as error:
        return Check("Parameters in feature space", False, str(error))
    return Check(
        "Parameters in feature space",
        True,
        f"Both models are {width_a:,} wide, so feature space can serve as control.",
    )


def _hidden_states(shared: bool | None) -> Check:
    """Say how hidden states can be compared: in feature space always, in the other where a vocabulary is shared."""
    more = {
        True: " In embedding space as well, for they share a vocabulary.",
        False: " Not in embedding space, for they do not share enough of a vocabulary.",
        None: "",
    }[shared]
    return Check(
        "Hidden states on a text", True, f"In feature space, whatever the widths, layers and tokenizers.{more}"
    )


def _stitching(names: tuple[str, str], infos: tuple[ModelInfo, ModelInfo]) -> Check:
    """Say whether A's lower blocks can run under B's upper ones, and what they would be asked."""
    fit = stitching_fit.fit(names, infos)
    if fit.refused:
        return Check("Stitching", False, fit.refused)
    how = {
        "tokens": "",
        "words": " States are handed over word by word, for the two cut text differently.",
        "": " Whether they cut text into the same tokens is seen when a run starts.",
    }
    what = f"A's first blocks under B's last ones, asked for {stitching_fit.ASKED[fit.task]}."
    return Check("Stitching", True, what + how[fit.by])


def _maps(infos: tuple[ModelInfo, ModelInfo], stitched: bool) -> Check:
    """Say what maps can be fitted between hidden states, and whether B can go on from what they make of A's."""
    a, b = infos
    widths = "" if a.width == b.width else f", {a.width:,} wide to {b.width:,}"
    downstream = " B's predictions from mapped states as well, where both read the same tokens." if stitched else ""
    return Check(
        "Maps between hidden states",
        True,
        f"From a rotation to an invertible network{widths}, by tokens, words or sentences.{downstream}",
    )


def _sums(infos: tuple[ModelInfo, ModelInfo]) -> Check:
    """Say of what hidden states can be shown to be sums."""
    families = [FAMILIES.get(info.family) for info in infos]
    pairs = any(family is not None and family.cross_qkv for family in families)
    more = " Of an encoder-decoder those of its decoder, beside a source text." if pairs else ""
    what = "Exact sums of what the embedding, attention and feed-forward layers put into them, in both models."
    return Check("Hidden states as sums", True, what + more)


def show_checks(found: list[Check]) -> None:
    """List what can be compared and what cannot, each with its reason."""
    for check in found:
        mark = ":green[:material/check:]" if check.possible else ":orange[:material/block:]"
        st.markdown(f"{mark} **{plain(check.what)}.** {plain(check.sentence)}")
