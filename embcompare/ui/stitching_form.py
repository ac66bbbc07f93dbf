"""The form of the page Stitching: models, texts, maps, every setting, and what cannot be run, said beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare.errors import EmbcompareError
from embcompare.experiments.stitching import DEFAULT_KERNELS, Stitching
from embcompare.maps.registry import KERNELS
from embcompare.running import resolve_device
from embcompare.shelf import REVIEWS, SHIPPED
from embcompare.ui import inputs, layers, links, pair, runs, settings, warm
from embcompare.ui import stitching_fit as fits
from embcompare.ui import stitching_picture as pictures
from embcompare.ui import stitching_text as texts
from embcompare.ui import stitching_words as say
from embcompare.ui.page import plain
from embcompare.ui.stitching_cell import PAGE
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.models import ModelInfo

Infos = tuple["ModelInfo", "ModelInfo"]
_ROWS = (("sentences", "runs"),)
_APART = ("model_a", "model_b", "corpus", "kernels", *_ROWS[0])
_ADVANCED = tuple(item.name for item in dataclasses.fields(Stitching) if item.name not in _APART)
_NAMES = {"embedding": {"output": "Output (unembedding)", "input": "Input"}}
DEFAULTS: dict[str, Any] = {
    **{item.name: item.default for item in dataclasses.fields(Stitching)},
    **pair.DEFAULT_PAIR,
    "map": "",
    "score": "",
    "depth": "best",
    "cut": "none",
    "entry": "none",
    **texts.DEFAULTS,
}
"""What an address need not say; no map or score means the first."""
_ARRIVING = {**DEFAULTS, "kernels": DEFAULT_KERNELS.split(", ")}
EXAMPLES = {
    "twins": ("Two seeds of one GPT-2", {"model_a": "demo/gpt2-a", "model_b": "demo/gpt2-b", "corpus": SHIPPED}),
    "reviews": (
        "A wide GPT-2 under a review classifier",
        {"model_a": "demo/gpt2-wide", "model_b": "demo/gpt2-a-sentiment", "corpus": REVIEWS},
    ),
}
"""Pairs that ship: label, and what they set."""


def readers() -> dict[str, Any]:
    """Return the readers of all that an address says of this page."""
    return {
        **{item.name: links.reader(Stitching, item.name) for item in dataclasses.fields(Stitching)},
        "model_a": pair.read,
        "model_b": pair.read,
        "corpus": inputs.read_corpus,
        "kernels": _read_kernels,
        "map": links.choice("", *KERNELS),
        "score": links.choice("", *say.SCORES),
        "depth": links.choice(*pictures.DEPTHS),
        "cut": layers.read,
        "entry": layers.read,
        **texts.readers(),
    }


def _read_kernels(text: str) -> list[str]:
    from embcompare.stitching.bridges import parse_kernels

    return list(parse_kernels(text))


def kernels_with(name: str) -> str:
    """Return the maps that a link names where one of them is to be looked at."""
    names = DEFAULT_KERNELS.split(", ")
    return ", ".join(names if name in names else [*names, name])


def form() -> tuple[Stitching, Infos, fits.Fit] | None:
    """Show the pair, the texts, the maps and every setting; None, with a sentence, where something is refused."""
    warm.ready()
    links.arrive(PAGE, readers(), _ARRIVING)
    names = pair.choose()
    st.caption("The first blocks of A run below, the last blocks and the head of B above.")
    infos = pair.informed(names)
    _examples(names)
    if infos is None:
        return None
    fit = fits.fit(names, infos, int(st.session_state.get(links.key(PAGE, "tuned_blocks"), 0)))
    _settle_texts(fit.task)
    classes = fit.task == "classes"
    corpus = inputs.corpus(
        links.key(PAGE, "corpus"),
        labelled=classes,
        explained="What the stitched models are scored on: A's first blocks read each text, and B's head says "
        + ("its class, which is held against its label." if classes else f"the {fit.task}s."),
    )
    if classes and corpus == REVIEWS:
        st.caption(
            "Model B tells classes of texts, so the labelled reviews are taken; a text of your own needs labels."
        )
    kernels = _maps(infos)
    edited = settings.edited(
        Stitching,
        {
            **dict(zip(pair.DEFAULT_PAIR, names, strict=True)),
            "corpus": corpus or DEFAULTS["corpus"],
            "kernels": ", ".join(kernels),
        },
        _ROWS,
        _ADVANCED,
        _NAMES,
        page=PAGE,
        hidden=() if fit.task == "masked token" else ("mask_share",),
    )
    if edited is None or corpus is None:
        return None
    publish(edited)
    return None if _refused(edited, infos, fit) else (edited, infos, fit)


def _examples(names: tuple[str, str]) -> None:
    """Show pairs that ship, and the paper's protocol, each at one click."""
    with st.container(horizontal=True, gap="small"):
        for key, (label, taken) in EXAMPLES.items():
            if names != (taken["model_a"], taken["model_b"]):
                help_ = f"{taken['model_a']} under {taken['model_b']}"
                more: dict[str, Any] = {"on_click": _take, "args": ({**taken, "tuned_blocks": 0, "also": ""},)}
                st.button(label, key=f"stitching.example.{key}", icon=":material/science:", help=help_, **more)
        protocol = Stitching.paper(*names).to_dict()
        wanted = {name: protocol[name] for name in ("corpus", "sentences", "runs", "tuned_blocks")}
        st.button(
            "The paper's protocol",
            key="stitching.paper",
            icon=":material/menu_book:",
            on_click=_take,
            args=(wanted,),
            help="Dar et al. 2023: in each of 11 runs a classifier is made of B by tuning its last three blocks, and "
            "A's lower part is put under it. It takes long; the estimate beside Run says how long.",
        )


def _take(values: dict[str, Any]) -> None:
    for name, value in values.items():
        st.session_state[links.key(PAGE, name)] = value
    links.forget()


def _settle_texts(task: str) -> None:
    """Take the labelled reviews when classes are asked for, and the other texts again when they no longer are."""
    state, key, known = st.session_state, links.key(PAGE, "corpus"), links.key(PAGE, "task")
    before, state[known] = state.get(known), task
    if task == "classes" and before != "classes" and state.get(key, SHIPPED) == SHIPPED:
        state[key] = REVIEWS
    elif task != "classes" and before == "classes" and state.get(key) == REVIEWS:
        state[key] = SHIPPED


def _maps(infos: Infos) -> list[str]:
    key = links.key(PAGE, "kernels")
    st.session_state.setdefault(key, list(_ARRIVING["kernels"]))
    chosen: list[str] = st.multiselect(
        "Maps",
        list(KERNELS),
        format_func=lambda name: KERNELS[name].label + (" (control)" if KERNELS[name].control else ""),
        key=key,
        persist_state="session",
        on_change=links.forget,
        help="What stands between the two models. Controls carry no meaning on purpose; maps of states are fitted on "
        "texts that are not scored, and show what any map of their kind could reach. ‘As it is’ hands states over "
        "without any map.",
    )
    a, b = infos
    unequal = [name for name in chosen if KERNELS[name].equal_widths and a.width != b.width]
    if unequal and len(unequal) < len(chosen):
        st.caption(
            f"A is {a.width} wide and B {b.width}, so ‘{KERNELS[unequal[0]].label}’ {agree(len(unequal), 'is', 'are')} "
            "left out."
        )
    return chosen


def _refused(wanted: Stitching, infos: Infos, fit: fits.Fit) -> bool:
    """Say why these settings cannot be run, as far as it is known beforehand."""
    a, b = infos
    chosen = wanted.kernels.split(", ")
    reason = fit.refused
    if not reason and a.width != b.width and all(KERNELS[name].equal_widths for name in chosen):
        reason = (
            f"{a.label} is {a.width} wide and {b.label} {b.width}, and every map that is chosen needs one width; "
            "choose another, such as the pseudo-inverse kernel."
        )
    fitted = [KERNELS[name].label for name in chosen if KERNELS[name].fitted_on == "states"]
    if not reason and fit.by == "words" and fitted:
        reason = (
            f"‘{fitted[0]}’ is fitted on states of the same tokens, and these models cut text differently; choose maps "
            "made of the embeddings, such as the pseudo-inverse kernel."
        )
    if not reason:
        reason = _refused_also(wanted, b)
    if reason:
        st.error(plain(reason))
    return bool(reason)


def _refused_also(wanted: Stitching, b: ModelInfo) -> str:
    from embcompare.models import inspect_model

    for name in wanted.uppers()[1:]:
        try:
            info = inspect_model(name)
        except EmbcompareError as error:
            return f"Also above: {error}"
        if info.layers != b.layers:
            return (
                f"Also above: {info.label} has {plural(info.layers, 'block')} and {b.label} {b.layers}, so their grids "
                "do not go together; leave it out."
            )
    return ""


def publish(wanted: Stitching) -> None:
    """Make the address say the settings, what is looked at, and the text that is continued."""
    more = [name for name in DEFAULTS if name not in wanted.to_dict()]
    seen = {name: st.session_state.get(links.key(PAGE, name), DEFAULTS[name]) for name in more}
    if seen["map"] == first_map(wanted.kernels.split(", ")):
        seen["map"] = ""
    links.publish(PAGE, {**wanted.to_dict(), **seen}, DEFAULTS)


def most_texts(wanted: Stitching) -> int:
    """Return how many different texts all runs together score at most."""
    from embcompare.shelf import Shelf

    return min(wanted.sentences * wanted.runs, len(Shelf(runs.queue().store).corpus(wanted.corpus)))


def cost(wanted: Stitching, infos: Infos) -> Estimate:
    """Return the estimate of a run on this machine."""
    from embcompare.experiments.estimate_stitching import CHARACTERS_A_TOKEN, stitching_cost
    from embcompare.shelf import Shelf

    sentences = Shelf(runs.queue().store).corpus(wanted.corpus).sentences
    length = sum(map(len, sentences)) / max(1, len(sentences)) / CHARACTERS_A_TOKEN
    return stitching_cost(wanted, *infos, len(sentences), resolve_device("auto"), length)


def first_map(kernels: Sequence[str]) -> str:
    """Return the map that is looked at where none was chosen: the first that is no control."""
    return next((name for name in kernels if not KERNELS[name].control), kernels[0])


def looked_at(kernels: Sequence[str]) -> str:
    """Return the map that is looked at: the chosen one, or the first that is no control."""
    chosen = str(st.session_state.get(links.key(PAGE, "map")) or "")
    return chosen if chosen in kernels else first_map(kernels)
