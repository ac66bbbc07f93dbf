"""The form of the page Bijection: what both models read and which rows are taken, and what cannot be run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare.errors import SettingsError
from embcompare.experiments.bijection import DEFAULT_MAPS, Bijection, parse_maps
from embcompare.experiments.bijection_depths import BijectionDepths, parse_layers
from embcompare.experiments.map_pairs import CLOSED, MapPairs
from embcompare.experiments.sides import VECTORS, WHAT
from embcompare.maps.catalogue import MAPS
from embcompare.models import default_pool, fingerprint
from embcompare.running import resolve_device
from embcompare.ui import bijection_layers as layers
from embcompare.ui import given, inputs, links, pair, settings, similarity, warm
from embcompare.ui.page import plain
from embcompare.ui.similarity_words import capital
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.models import ModelInfo

PAGE = layers.PAGE
Infos = tuple["ModelInfo | None", "ModelInfo | None"]
PROBED = 200
"""Sentences that both tokenizers are tried on before a run, the longest among them."""

_ROWS = (("what", "pooling"),)
_GRID = {item.name: item.default for item in dataclasses.fields(MapPairs) if item.name not in pair.DEFAULT_PAIR}
_FIT = {
    item.name: item.default
    for item in dataclasses.fields(Bijection)
    if item.name not in (*pair.DEFAULT_PAIR, "layer_a", "layer_b", *_GRID)
}
_FIT_ROWS = (("runs", "epochs"),)
DEFAULTS: dict[str, Any] = {
    **_GRID,
    **_FIT,
    **pair.DEFAULT_PAIR,
    **layers.DEFAULTS,
    "maps": DEFAULT_MAPS,
    "linear": _GRID["maps"],
    "look": "",
    "show": "test",
    "map": "",
    "direction": 1,
    "depths": "",
}
"""What an address need not say: ``linear`` are the maps between all layers, ``look`` the one of them that is drawn, and
``depths`` the pairs of layers that are fitted together, where they are not those of one depth."""
SHOWN = {"test": "On test texts", "train": "On training texts", "spread": "Spread over splits"}
"""What the map of layers can show."""


# which map is looked at where none was chosen, between all layers and between two
_FIRST = {"look": ("ridge", "least_squares", "orthogonal"), "map": ("inn", "bert_inn", "ridge", "least_squares")}


@dataclass(frozen=True)
class Sides:
    """What is known of both sides: models' shapes, given vectors' widths and layers, and how many rows there can be."""

    infos: Infos
    widths: tuple[int, int]
    layers: tuple[int, int]
    sentences: int


def readers() -> dict[str, Any]:
    """Return the readers of all that an address says of this page."""
    return {
        **{name: links.reader(MapPairs, name) for name in _GRID},
        **{name: links.reader(Bijection, name) for name in _FIT},
        **layers.readers(),
        "model_a": similarity.read_side,
        "model_b": similarity.read_side,
        "corpus": inputs.read_corpus,
        "maps": lambda text: list(parse_maps(text)),
        "linear": lambda text: list(parse_maps(text, CLOSED)),
        "look": links.choice("", *CLOSED),
        "show": links.choice(*SHOWN),
        "map": links.choice("", *MAPS),
        "direction": _read_direction,
        "depths": _read_depths,
    }


def _read_direction(text: str) -> int:
    from embcompare.experiments.bijection_shown import DIRECTIONS

    if text not in map(str, range(1, DIRECTIONS + 1)):
        raise SettingsError(f"it can be 1 to {DIRECTIONS}")
    return int(text)


def _read_depths(text: str) -> str:
    return ", ".join(f"{a}:{b}" for a, b in parse_layers(text))


def form() -> tuple[MapPairs, Sides] | None:
    """Show the sides, the text and the rows; None, with a sentence, where something is refused."""
    warm.ready()
    lists = {name: str(DEFAULTS[name]).split(", ") for name in ("maps", "linear")}
    links.arrive(PAGE, readers(), {**DEFAULTS, **lists})
    for name in ("maps", "linear"):
        st.session_state.setdefault(links.key(PAGE, name), lists[name])
    names = pair.choose(inputs.offered_vectors())
    corpus = inputs.corpus(
        links.key(PAGE, "corpus"),
        with_vectors=True,
        explained="The sentences that both models read. Maps are fitted on the states of some and judged on others.",
    )
    fixed = dict(zip(pair.DEFAULT_PAIR, names, strict=True))
    linear = st.session_state[links.key(PAGE, "linear")] or lists["linear"]
    wanted = settings.edited(
        MapPairs,
        {**fixed, "corpus": corpus or DEFAULTS["corpus"], "maps": ", ".join(linear)},
        _ROWS,
        [name for name in _GRID if name not in ("corpus", "maps", *_ROWS[0])],
        names_of_choices(),
        page=PAGE,
        hidden=() if all(name.startswith(VECTORS) for name in names) else ("pairing",),
    )
    infos = similarity.informed(names)
    if wanted is None or infos is None or corpus is None:
        return None
    publish()
    sides = _sides(wanted, infos)
    reason = refused(wanted, sides)
    if reason:
        st.error(plain(reason))
        return None
    return wanted, sides


def names_of_choices() -> dict[str, dict[Any, str]]:
    """Return how the choices of each setting are called."""
    return {"what": {name: capital(label) for name, label in WHAT.items()}, **similarity.names_of_choices()}


def publish() -> None:
    """Make the address say the settings and what is looked at."""
    seen = {name: st.session_state.get(links.key(PAGE, name), DEFAULTS[name]) for name in DEFAULTS}
    for key, among in (("look", "linear"), ("map", "maps")):
        if isinstance(seen[among], list) and seen[key] == _first(seen[among], key):
            seen[key] = ""
    said = {name: ", ".join(value) if isinstance(value, list) else value for name, value in seen.items()}
    links.publish(PAGE, said, DEFAULTS)


def _sides(wanted: MapPairs, infos: Infos) -> Sides:
    shelf = given.shelf()
    names = (wanted.model_a, wanted.model_b)
    own = [shelf.vectors(name) if name.startswith(VECTORS) else None for name in names]
    rows = [len(side) for side in own if side is not None]
    widths, depths = ([getattr(side, of) if side else 0 for side in own] for of in ("width", "layers"))
    sentences = min(rows) if len(rows) == 2 else len(shelf.corpus(wanted.corpus))
    return Sides(infos, (widths[0], widths[1]), (depths[0], depths[1]), sentences)


def fit_settings(wanted: MapPairs, chosen: tuple[int, int], maps: list[str]) -> Bijection | None:
    """Show the settings of one fit beside the shared ones and return it; None, with a sentence, where refused."""
    known = {item.name for item in dataclasses.fields(Bijection)}
    shared = {name: value for name, value in wanted.to_dict().items() if name in known and name != "maps"}
    return settings.edited(
        Bijection,
        {**shared, "layer_a": chosen[0], "layer_b": chosen[1], "maps": ", ".join(maps)},
        _FIT_ROWS,
        [name for name in _FIT if name not in _FIT_ROWS[0]],
        {},
        page=PAGE,
    )


def choose_maps(sides: Sides, wanted: MapPairs) -> list[str]:
    """Show which maps are fitted between one pair of layers, and return their names."""
    chosen: list[str] = st.multiselect(
        "Maps",
        list(MAPS),
        format_func=lambda name: MAPS[name].label + (" (control)" if MAPS[name].control else ""),
        key=links.key(PAGE, "maps"),
        persist_state="session",
        on_change=links.forget,
        help="What is fitted from A's layer to B's. The verdict needs the mean, a rotation, least squares or ridge, "
        "the invertible network and the perceptron.",
    )
    for sentence in left_out(chosen, sides, wanted):
        st.caption(plain(sentence))
    return chosen


def left_out(chosen: list[str], sides: Sides, wanted: MapPairs) -> list[str]:
    """Say which of the chosen maps cannot be fitted on these sides, as far as it is known beforehand."""
    said = []
    a, b = widths_of(wanted, sides)
    unequal = [MAPS[name].label for name in chosen if MAPS[name].equal_widths and a != b]
    if unequal:
        said.append(f"A is {a} wide and B {b}, so ‘{unequal[0]}’ is left out.")
    pooled = wanted.pooling not in ("token", "word") or None in sides.infos
    if pooled:
        rows = min(sides.sentences, wanted.max_rows)
        training = round(rows * (1 - wanted.validation - wanted.test))
        for name in chosen:
            least = MAPS[name].least_rows(a, b)
            if least > training:
                said.append(f"‘{MAPS[name].label}’ needs {least:,} training rows, and there are about {training:,}.")
    return said


def widths_of(wanted: MapPairs, sides: Sides) -> tuple[int, int]:
    """Return how wide the rows of both sides are."""
    of = "heads" if wanted.what == "patterns" else "width"
    found = [getattr(info, of) if info else own for info, own in zip(sides.infos, sides.widths, strict=True)]
    return found[0], found[1]


def refused(wanted: MapPairs, sides: Sides) -> str:
    """Return why these settings cannot be run, as far as it is known beforehand; empty where they can."""
    one_given = (None in sides.infos) and any(sides.infos)
    if sides.sentences < 3:
        both = sides.infos == (None, None)
        what = plural(sides.sentences, "pair of rows" if both else "sentence", "pairs of rows" if both else "")
        return f"There are {what}, and training, validation and test need a text each; give more."
    if one_given and wanted.pooling in ("token", "word"):
        return (
            "Given vectors have one row a sentence, so the model's rows must be sentences too: choose their mean, last "
            "or classification token under Rows."
        )
    if one_given:
        return _unequal_rows(wanted, sides)
    infos = [info for info in sides.infos if info is not None]
    if wanted.pooling == "token" and len(infos) == 2 and max(info.bytes for info in infos) <= pair.LIGHT_BYTES:
        names = (wanted.model_a, wanted.model_b)
        if not _cut_alike(names, wanted.corpus, tuple(fingerprint(name) for name in names)):
            return (
                f"{infos[0].label} and {infos[1].label} cut this text into different tokens, so tokens cannot be "
                "paired; choose words or sentences under Rows."
            )
    return ""


def _unequal_rows(wanted: MapPairs, sides: Sides) -> str:
    name = wanted.model_a if sides.infos[0] is None else wanted.model_b
    vectors = given.shelf().vectors(name)
    # the same number of layers as sentences is a mistake that the run itself tells better
    if len(vectors) == sides.sentences or vectors.layers == sides.sentences:
        return ""
    return (
        f"{vectors.name} has {plural(len(vectors), 'row')} and the text {plural(sides.sentences, 'sentence')}; row k "
        "must be the vector of sentence k, so give the file made from this very text."
    )


@st.cache_data(max_entries=64, show_spinner="Reading both tokenizers")
def _cut_alike(names: tuple[str, str], corpus: str, _prints: tuple[str, ...]) -> bool:
    """Whether both cut some sentences of the text into the same tokens, the longest among them."""
    import numpy as np

    from embcompare.activations.forward import longest_input
    from embcompare.text.encoding import encode

    sentences = given.shelf().corpus(corpus).sentences
    longest = sorted(range(len(sentences)), key=lambda at: -len(sentences[at]))[: PROBED // 4]
    some = [sentences[at] for at in sorted({*range(min(PROBED, len(sentences))), *longest})]
    pool = default_pool()
    with pool.lease(names[0]) as a, pool.lease(names[1]) as b:
        found = [encode(some, model.tokenizer, model.tokens, longest_input(model)).index for model in (a, b)]
    return all(
        np.array_equal(getattr(found[0], name), getattr(found[1], name)) for name in ("sentence", "start", "end")
    )


def grid_cost(wanted: MapPairs, sides: Sides) -> Estimate:
    """Return the estimate of the maps between all layers."""
    from embcompare.experiments.estimate_bijection import map_pairs_cost

    return map_pairs_cost(wanted, *sides.infos, sides.sentences, resolve_device("auto"), sides.widths, sides.layers)


def fit_cost(wanted: Bijection, sides: Sides) -> Estimate:
    """Return the estimate of one fit."""
    from embcompare.experiments.estimate_bijection import bijection_cost

    return bijection_cost(wanted, *sides.infos, sides.sentences, resolve_device("auto"), sides.widths)


def depths_settings(wanted: Bijection) -> BijectionDepths:
    """Return the settings that fit every depth as ``wanted`` fits one."""
    known = {item.name for item in dataclasses.fields(BijectionDepths)}
    shared = {name: value for name, value in wanted.to_dict().items() if name in known}
    return BijectionDepths(**shared, layers=str(st.session_state.get(links.key(PAGE, "depths"), "")))


def depths_cost(wanted: BijectionDepths, sides: Sides) -> Estimate:
    """Return the estimate of the fits at every depth."""
    from embcompare.experiments.estimate_bijection import depths_cost as cost

    return cost(wanted, *sides.infos, sides.sentences, resolve_device("auto"), sides.widths, sides.layers)


def looked_at(names: Sequence[str], key: str) -> str:
    """Return the map that is looked at among ``names``, by ``key``, ``look`` or ``map``: the chosen or a first one."""
    chosen = str(st.session_state.get(links.key(PAGE, key)) or "")
    return chosen if chosen in names else _first(names, key)


def _first(names: Sequence[str], key: str) -> str:
    return next((name for name in _FIRST[key] if name in names), names[0] if names else "")
