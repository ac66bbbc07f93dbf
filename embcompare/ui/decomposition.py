"""Hidden states as sums, on a page: the pair, the conventions of the split, and what all views have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

from embcompare.errors import EmbcompareError
from embcompare.experiments.base import Settings
from embcompare.experiments.term_series import TermSeries
from embcompare.models import FAMILIES
from embcompare.shelf import NUMBERS, SHIPPED
from embcompare.ui import links, pair, runs, settings
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.models import ModelInfo

PAGE = "decomposition"
TABS = {"sentence": "Sentence", "layers": "Layers", "series": "Series"}
PARTS = ("mean", "attention_bias", "norm_bias")
"""Conventions of the split by parts of the model."""
TOKENS = ("token_mean", "gate")
"""Conventions of the split by tokens, and by source and target."""
NAMES: Mapping[str, Mapping[Any, str]] = {
    "by": {"none": "Whole", "layer": "By layer", "head": "By layer and head"},
    "split": {"additive": "By part of the model", "source-target": "By source and target"},
    "mean": {"correction": "The correction loses it", "own": "Each term loses its own"},
    "token_mean": {"correction": "The correction loses it", "own": "Each term loses its own"},
    "attention_bias": {"correction": "To the correction", "attention": "Stays with attention"},
    "norm_bias": {"correction": "To the correction", "attention": "Stays with attention"},
    "gate": {"tangent": "Tangent of the product", "held": "Gate held"},
    "mode": {"reference": "The given translation", "generated": "The model's own"},
}
"""How the choices of a setting are called."""
INDICATORS = {
    "importance": "Importance",
    "cosine": "Cosine",
    "distance": "Distance",
    "norm_ratio": "Norm ratio",
}
_DECLARED = {item.name: item for item in dataclasses.fields(TermSeries)}
DEFAULTS: dict[str, Any] = {
    **pair.DEFAULT_PAIR,
    "tab": "sentence",
    "by": "none",
    "split": "additive",
    **{name: _DECLARED[name].default for name in (*PARTS, *TOKENS)},
    "indicator": "importance",
}
"""What an address need not say, whatever is looked at; each view adds its own."""
LIGHT_SECONDS = 4.0
"""A run of at most this long starts by itself when a setting is changed."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Look:
    """The pair that is looked at: names, shapes, and which of the two are encoder-decoders."""

    names: tuple[str, str]
    infos: tuple[ModelInfo, ModelInfo]
    translating: tuple[bool, bool]

    @property
    def labels(self) -> tuple[str, str]:
        """How both are called in pictures."""
        return pair.label_of(self.names[0]), pair.label_of(self.names[1])

    def heading(self, side: str) -> str:
        """How one side is called above its half of the page, in Markdown."""
        at = "ab".index(side)
        return f"**{side.upper()}: {plain(self.labels[at])}**"


def readers() -> dict[str, Callable[[str], Any]]:
    """Return the readers of what an address says whatever is looked at."""
    return {
        "model_a": pair.read,
        "model_b": pair.read,
        "tab": links.choice(*TABS),
        "by": links.choice(*NAMES["by"]),
        "split": links.choice(*NAMES["split"]),
        **{name: links.reader(TermSeries, name) for name in (*PARTS, *TOKENS)},
        "indicator": links.choice(*INDICATORS),
    }


def look() -> Look | None:
    """Show the pair; None, with a sentence, where a model cannot be had."""
    names = pair.choose()
    infos = pair.informed(names)
    if infos is None:
        return None
    return Look(names, infos, (translates(infos[0]), translates(infos[1])))


def translates(info: ModelInfo) -> bool:
    """Say whether a model is an encoder-decoder, whose decoder's states depend on a source text as well."""
    family = FAMILIES.get(info.family)
    return family is not None and bool(family.cross_qkv)


def value(name: str, default: Any = None) -> Any:
    """Return what the session holds of one of the page's values."""
    return st.session_state.setdefault(links.key(PAGE, name), DEFAULTS.get(name) if default is None else default)


def widget(kind: type[Settings], name: str, own: str = "", default: Any = None) -> Any:
    """Show the widget of one setting, kept under ``own`` where the page calls it otherwise, and return its value."""
    return settings.single(
        kind, name, links.key(PAGE, own or name), default=DEFAULTS.get(own or name, default), names=NAMES.get(name)
    )


def widgets(kind: type[Settings], names: tuple[str, ...], columns: int = 3) -> dict[str, Any]:
    """Show the widgets of several settings in a row, and return their values."""
    found = {}
    row = st.columns(columns, gap="small", vertical_alignment="bottom")
    for at, name in enumerate(names):
        with row[at % columns]:
            found[name] = widget(kind, name)
    return found


def settled(kind: type[S], values: Mapping[str, Any]) -> S | None:
    """Return settings of an experiment; None, with a sentence, when they are refused."""
    try:
        return kind.from_dict(values)
    except EmbcompareError as error:
        st.error(plain(str(error)))
        return None


def by_itself(view: str, estimate: Estimate) -> bool:
    """Say whether a run may start without a click: when somebody has just come to a view, and when it is light."""
    key = f"decomposition.arrived.{view}"
    first = key not in st.session_state
    st.session_state[key] = True
    return first or estimate.seconds <= LIGHT_SECONDS


def settle_corpus(name: str, translating: bool) -> None:
    """Take texts that have translations when they are needed, and plain ones again when they no longer are.

    ``name`` is the page's value that holds the text's name.
    """
    state, key, known = st.session_state, links.key(PAGE, name), f"decomposition.{name}.translating"
    before, state[known] = state.get(known), translating
    if translating and state.get(key, SHIPPED) == SHIPPED:
        state[key] = NUMBERS
    elif not translating and before and state.get(key) == NUMBERS:
        state[key] = SHIPPED


def tokens_a_text(corpus: str, most: int) -> tuple[int, float]:
    """Return how many texts a corpus has and about how many tokens each of the first ones is."""
    from embcompare.experiments.estimate_stitching import CHARACTERS_A_TOKEN
    from embcompare.shelf import Shelf

    found = Shelf(runs.queue().store).corpus(corpus)
    texts = (found.targets or found.sentences)[:most]
    return len(found), sum(map(len, texts)) / max(1, len(texts)) / CHARACTERS_A_TOKEN + 2


def choose(label: str, options: Mapping[str, str], name: str, *, hidden: bool = False) -> str:
    """Show a row of choices that is live, and return what is chosen; it is one of ``options`` by name."""
    key = links.key(PAGE, name)
    if st.session_state.get(key) not in options:
        st.session_state[key] = next(iter(options))
    chosen = st.segmented_control(
        label,
        list(options),
        required=True,
        format_func=lambda each: options[each],
        key=key,
        persist_state="session",
        on_change=links.forget,
        label_visibility="collapsed" if hidden else "visible",
    )
    return str(chosen or next(iter(options)))
