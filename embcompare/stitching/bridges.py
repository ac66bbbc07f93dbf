"""Bridges: the map that stands between A's layer i and B's layer k, one for all layers or one for each pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from embcompare.errors import Incomparable, SettingsError
from embcompare.maps.kernel import Kernel, SingularEmbedding, TooFewRows
from embcompare.maps.registry import KERNELS, Declaration, get_kernel
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.models.loading import LoadedModel
    from embcompare.text.vocabulary import VocabularyMatch


@dataclass(frozen=True)
class BridgeOptions:
    """How maps are made: which E is read, centred or not, how many anchor tokens, and the seed of what is drawn."""

    embedding: str = "output"
    centred: bool = False
    anchors: int = 512
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Bridge:
    """The maps called ``name``: ``kernels`` holds one for each (i, k), or one for all under (-1, -1)."""

    name: str
    kernels: Mapping[tuple[int, int], Kernel]

    def at(self, i: int, k: int) -> Kernel:
        """Return the map from A's hidden state i to B's hidden state k."""
        return self.kernels[(-1, -1)] if (-1, -1) in self.kernels else self.kernels[(i, k)]

    @property
    def single(self) -> Kernel | None:
        """The one map for all layers; None where each pair has its own."""
        return self.kernels.get((-1, -1))

    def carried(self, states: Tensor, i: int, k: int) -> Tensor:
        """Return A's states (..., d_a) as B's (..., d_b), mapped in float32 or better and rounded to their dtype."""
        wide = states if states.element_size() >= 4 else states.float()
        return self.at(i, k).apply(wide).to(states.dtype)


def parse_kernels(text: str) -> tuple[str, ...]:
    """Return the names of maps in a list with commas or spaces between them, each once; unknown ones raise.

    Raises :class:`SettingsError` that lists the maps there are.
    """
    names = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if not names:
        raise SettingsError(f"No map was chosen; there are {', '.join(KERNELS)}.")
    return tuple(get_kernel(name).name for name in names)


def fitted_on_states(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those maps that are fitted on paired hidden states."""
    return tuple(name for name in names if KERNELS[name].fitted_on == "states")


def bridge_from_weights(
    name: str,
    a: LoadedModel,
    b: LoadedModel,
    match: Callable[[], VocabularyMatch],
    options: BridgeOptions,
) -> Bridge:
    """Return the map called ``name`` that needs no text; ``match`` gives the shared tokens when they are asked for.

    Raises :class:`SettingsError` for a map that is fitted on states, :class:`Incomparable` where the two models do not
    allow it (widths, too few shared tokens, an embedding of too few directions).
    """
    declared = get_kernel(name)
    if declared.fitted_on == "widths":
        return Bridge(name, {(-1, -1): declared.make(a.anatomy.width, b.anatomy.width)})
    if declared.fitted_on == "states":
        raise SettingsError(f"The map '{name}' is fitted on hidden states; give text that both models read.")
    given: tuple[Any, ...] = _embeddings(a, b, options)
    named: dict[str, Any] = {"tokens": _rows(match())}
    try:
        return _made(declared, given, named, options)
    except (SingularEmbedding, TooFewRows) as error:
        # what the map calls its arguments, a reader knows by name
        said = str(error).split(";")[0].split(", so share more")[0]
        for which, model in (("first", a), ("second", b)):
            said = said.replace(f"the {which} model's embedding", f"the embedding of {model.spec.label}")
        raise Incomparable(
            f"{said}; choose a map that needs less, such as ridge (fitted on the states of texts), or anchors."
        ) from error


def _made(declared: Declaration, given: tuple[Any, ...], named: dict[str, Any], options: BridgeOptions) -> Bridge:
    name = declared.name
    if declared.fitted_on == "kernel":
        like = KERNELS["pseudo_inverse"].make(*given, **named, centred=options.centred)
        return Bridge(name, {(-1, -1): declared.make(like, seed=options.seed)})
    return Bridge(name, {(-1, -1): _from_embeddings(declared, given, named, options)})


def bridge_from_states(
    name: str,
    states_a: list[Tensor],
    states_b: list[Tensor],
    items: np.ndarray,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> Bridge:
    """Return the maps called ``name`` fitted on paired states, one for each pair of layers.

    ``states_a`` and ``states_b`` hold (n, d) for every layer, row by row the same places of text; ``items`` (n,) says
    which text each belongs to. ``tick`` is called after each pair. Errors are those of :mod:`embcompare.maps.states`.
    """
    declared = get_kernel(name)
    kernels = {}
    for i, x in enumerate(states_a):
        for k, y in enumerate(states_b):
            kernels[(i, k)] = declared.make(x, y, items=items, seed=seed)
            tick()
    return Bridge(name, kernels)


def _from_embeddings(
    declared: Declaration, given: tuple[Any, ...], named: dict[str, Any], options: BridgeOptions
) -> Kernel:
    from embcompare.maps.embedding import draw_anchors

    if declared.function == "anchors":
        shared = len(named["tokens"][0])
        if shared < 2:
            raise Incomparable(f"The models share {plural(shared, 'token')}, and anchors need at least 2.")
        chosen = draw_anchors(shared, min(options.anchors, shared), seed=options.seed)
        kernel: Kernel = declared.make(*given, chosen, **named)
        return kernel
    named["centred"] = options.centred
    if declared.stochastic:
        named["seed"] = options.seed
    kernel = declared.make(*given, **named)
    return kernel


def _embeddings(a: LoadedModel, b: LoadedModel, options: BridgeOptions) -> tuple[Tensor, Tensor]:
    return a.anatomy.readout(options.embedding)[0], b.anatomy.readout(options.embedding)[0]


def _rows(match: VocabularyMatch) -> tuple[np.ndarray, np.ndarray]:
    return match.rows_a, match.rows_b
