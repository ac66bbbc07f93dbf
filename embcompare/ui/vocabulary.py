"""Parameters read as tokens, on a page: the pair, what is looked at, and how vectors are read."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

from embcompare.errors import EmbcompareError, SettingsError
from embcompare.experiments.base import Settings
from embcompare.experiments.reading import TokenReading
from embcompare.experiments.vectors import GROUPS
from embcompare.ui import inputs, links, pair, settings, warm
from embcompare.ui.page import plain

if TYPE_CHECKING:
    from embcompare.models import ModelInfo

PAGE = "vocabulary"
TABS = {
    "read": "Read vectors",
    "search": "Search a token",
    "heads": "Heads",
    "difference": "Difference",
    "agreement": "Agreement",
}
FILTERS = ("words_only", "stop_words", "only", "words_of")
"""Which tokens are listed."""
READING = ("embedding", "centred", "common", "inverse", "fold_norm", *FILTERS)
"""How vectors are read: settings that several experiments share."""
NAMES = {
    "group": GROUPS,
    "embedding": {"output": "Output (unembedding)", "input": "Input"},
    "inverse": {"transpose": "The embedding itself", "exact": "Its exact right inverse"},
}
_DECLARED = {item.name: item for item in dataclasses.fields(TokenReading)}
ONE = {
    "ff_keys": "FF key",
    "ff_up": "FF up-projection",
    "ff_values": "FF value",
    "w_q": "W_Q column",
    "w_k": "W_K column",
    "w_v": "W_V column",
    "w_o": "W_O row",
    "w_qk": "W_QK of head",
    "w_vo": "W_VO of head",
}
"""What one vector of a group is called."""
DEFAULTS: dict[str, Any] = {
    **pair.DEFAULT_PAIR,
    "tab": "read",
    **{name: _DECLARED[name].default for name in READING},
    "words_only": True,
    "common": 1,
    "vector": "none",
}
"""What an address need not say, whatever is looked at; each view adds its own. Where the paper
lists all tokens and takes nothing out, words are listed here, and the strongest direction of the embedding is left out:
it is mostly how frequent a token is, and nearly every vector of a small model says that first."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Look:
    """What the page compares: both models' names and shapes, and how vectors are read."""

    names: tuple[str, str]
    infos: tuple[ModelInfo, ModelInfo]
    reading: dict[str, Any]

    def of(self, kind: type[S], /, **chosen: Any) -> S | None:
        """Return settings of an experiment, read as the page says; None, with a sentence, when they are refused."""
        known = {item.name for item in dataclasses.fields(kind)}
        shared = {name: value for name, value in self.reading.items() if name in known}
        try:
            return kind.from_dict({**shared, **chosen})
        except EmbcompareError as error:
            st.error(plain(str(error)))
            return None


@dataclass(frozen=True)
class Vector:
    """One vector of one of the two models, as a link names it: ``a.ff_values.3.17``."""

    side: str
    group: str
    layer: int
    index: int

    def __str__(self) -> str:
        return f"{self.side}.{self.group}.{self.layer}.{self.index}"

    @property
    def sentence(self) -> str:
        """How it is called in a sentence."""
        return f"{ONE[self.group]} {self.index} of layer {self.layer} in {self.side.upper()}"


def read_vector(text: str) -> str:
    """Read which vector is looked at, as a link gives it."""
    if text != "none":
        parse_vector(text)
    return text


def parse_vector(text: str) -> Vector:
    """Return the vector that ``text`` names; SettingsError where it names none."""
    parts = text.split(".")
    numbers = [part for part in parts[2:] if part.isascii() and part.isdigit() and len(part) < 8]
    if len(parts) != 4 or len(numbers) != 2 or parts[0] not in ("a", "b") or parts[1] not in GROUPS:
        raise SettingsError("a vector is written as a.ff_values.3.17: side, group, layer, place")
    return Vector(parts[0], parts[1], int(numbers[0]), int(numbers[1]))


def chosen_vector() -> Vector | None:
    """Return the vector that is looked at; None where none is."""
    text = str(st.session_state.get(links.key(PAGE, "vector"), "none"))
    return None if text == "none" else parse_vector(text)


def choose_vector(vector: Vector | None, table: str = "") -> None:
    """Look at a vector from now on, or at none; ticks in all tables but ``table`` are taken away."""
    st.session_state[links.key(PAGE, "vector")] = "none" if vector is None else str(vector)
    for each in _turns():
        if each != table:
            _turns()[each] += 1
    links.forget()


def _turns() -> dict[str, int]:
    turns: dict[str, int] = st.session_state.setdefault("vocabulary.turns", {})
    return turns


def table_key(table: str, *parts: object) -> str:
    """Return the key of a table: another one, without ticks, whenever other rows are shown or another table is used."""
    turn = _turns().setdefault(table, 0)
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    return f"{table}.{turn}.{digest}"


def form(readers: dict[str, Any], defaults: dict[str, Any]) -> Look | None:
    """Show the pair and how vectors are read; None, with a sentence, where a model cannot be had."""
    warm.ready()
    links.arrive(PAGE, readers, defaults)
    names = pair.choose()
    with st.expander("How vectors are read, and which tokens are listed"):
        reading = {}
        plainly = [name for name in READING if name not in FILTERS]
        for column, name in zip(_row(len(plainly)), plainly, strict=True):
            with column:
                reading[name] = _setting(name)
        for column, name in zip(_row(len(FILTERS)), FILTERS, strict=True):
            with column:
                reading[name] = _setting(name) if name != "words_of" else _words_of()
        explained, own = st.columns([len(FILTERS) - 1, 1], gap="small")
        explained.caption(
            "The lower row says which tokens are listed; a z over tokens, a head's level of chance and sets of tokens "
            "are over these alone. Correlations of vectors are over the whole vocabulary."
        )
        with own:
            inputs.bring_text(links.key(PAGE, "words_of"))
    infos = pair.informed(names)
    return None if infos is None else Look(names, infos, reading)


def _row(count: int) -> list[Any]:
    return list(st.columns(count, gap="small", vertical_alignment="bottom"))


def _setting(name: str) -> Any:
    return settings.single(TokenReading, name, links.key(PAGE, name), default=DEFAULTS[name], names=NAMES.get(name))


def _words_of() -> str:
    meta = _DECLARED["words_of"].metadata
    return inputs.optional_corpus(links.key(PAGE, "words_of"), meta["label"], "no text: all words", meta["help"])


def read_setting(name: str) -> Callable[[str], Any]:
    """Return the reader of what an address says of one setting of ``READING``."""
    return inputs.read_optional_corpus if name == "words_of" else links.reader(TokenReading, name)


def lists_width(lists: Iterable[Sequence[str]]) -> int:
    """Return how many pixels a column of token lists takes, so that the longest of them is seen whole."""
    # a token stands in a frame of its own, 13 px type
    return 24 + max([160, *(sum(20 + 8 * len(token) for token in row) for row in lists)])


def publish(defaults: dict[str, Any]) -> None:
    """Make the address say what is looked at."""
    values = {name: st.session_state.get(links.key(PAGE, name), default) for name, default in defaults.items()}
    links.publish(PAGE, values, defaults)


def device() -> str:
    """Return where runs are computed."""
    from embcompare.running import resolve_device

    return resolve_device("auto")


def other(side: str) -> str:
    """Return the other side's letter."""
    return "b" if side == "a" else "a"


def name_of(look: Look, side: str) -> str:
    """Return the name of the model on a side."""
    return look.names["ab".index(side)]


def info_of(look: Look, side: str) -> ModelInfo:
    """Return the shape of the model on a side."""
    return look.infos["ab".index(side)]
