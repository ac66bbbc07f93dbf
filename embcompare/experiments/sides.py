"""The two sides of a comparison of representations: hidden states or a user's vectors, paired row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.experiments.base import Context
from embcompare.experiments.vectors import SpaceSettings, open_space
from embcompare.words import plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.activations import HiddenStates
    from embcompare.models import LoadedModel
    from embcompare.spaces import Space
    from embcompare.text.corpora import Corpus
    from embcompare.text.uploads import Vectors

POOLINGS = {
    "mean": "one row a sentence: the mean of its tokens",
    "last": "one row a sentence: its last token",
    "cls": "one row a sentence: the classification token",
    "token": "one row a token (both models must cut text alike)",
    "word": "one row a word, the mean of its tokens (works across tokenizers)",
}
WHAT = {
    "hidden": "hidden states",
    "attention": "what self-attention adds",
    "feed_forward": "what the feed-forward adds",
    "patterns": "attention patterns",
}
"""What of each block can be read; ``patterns`` is how much of each head's attention every token receives."""
LAYER_HELP = "0 is the embedding output, or the first given layer; what a block adds, and attention, begin at 1."
VECTORS = "vectors/"
"""How the name of a user's own vectors begins where a model's name could stand."""


class PairSettings(Protocol):
    """The settings that say which rows of two sides go together."""

    @property
    def model_a(self) -> str:
        """The model or vectors of side A."""

    @property
    def model_b(self) -> str:
        """The model or vectors of side B."""

    @property
    def corpus(self) -> str:
        """The text that models read."""

    @property
    def what(self) -> str:
        """What of each block is read, one of ``WHAT``."""

    @property
    def pooling(self) -> str:
        """What a row is, one of ``POOLINGS``."""

    @property
    def pairing(self) -> str:
        """How a user's vectors are paired, one of :data:`~embcompare.text.pairing.PAIRINGS`."""

    @property
    def max_rows(self) -> int:
        """Rows compared at most."""

    @property
    def standardise(self) -> bool:
        """Whether each feature is scaled to unit variance."""

    @property
    def seed(self) -> int:
        """Of the choice of rows, and of what else is drawn."""


class SideSettings(SpaceSettings, PairSettings, Protocol):
    """The settings that say which rows are compared, and in which coordinates."""

    @property
    def final_norm(self) -> bool:
        """Whether hidden states pass the final norm before they are read in embedding space."""


@dataclass(frozen=True, eq=False)
class Side:
    """One side: its layers, float32 (n, d) each, what they are called, and what sentence each row is of."""

    label: str
    layers: list[np.ndarray]
    names: tuple[str, ...]
    width: int
    first: int = 0
    """Number of the first layer: 1 for what blocks add, for there is none of the embedding output."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Both sides on the same rows; ``items`` (n,) numbers the sentence (or given row) that a row belongs to."""

    a: Side
    b: Side
    items: np.ndarray
    rows: np.ndarray
    """(n,) int64: which of all paired rows these are, before ``max_rows`` cut them down."""
    notices: tuple[str, ...]
    spans: np.ndarray | None = None
    """(n, 2) int64, for rows that are words or tokens: where in the sentence they stand, -1 where it is not known."""
    tokens: np.ndarray | None = None
    """(n,) int64, for rows that are tokens: which one, in the vocabulary of A."""
    names: tuple[str, ...] = ()
    """What each row is called, where both sides are given vectors and there is no text."""


Only = tuple[int, int]
"""One layer of A and one of B."""


def check_what(settings: PairSettings) -> None:
    """Raise :class:`SettingsError` where what is read does not go with the sides or the rows."""
    if settings.what == "hidden":
        return
    if all(name.startswith(VECTORS) for name in (settings.model_a, settings.model_b)):
        raise SettingsError(f"Two files of vectors are compared as they are; '{settings.what}' is for models.")
    if settings.what != "patterns":
        return
    if any(name.startswith(VECTORS) for name in (settings.model_a, settings.model_b)):
        raise SettingsError(
            "Attention patterns have one row a token, and a file of vectors has one a sentence; choose two models."
        )
    if settings.pooling not in ("token", "word"):
        raise SettingsError(
            "Attention patterns have one row a token, and averaged over a sentence nearly nothing of them is left; "
            "choose rows of tokens or of words (pooling 'token' or 'word')."
        )


def check_coordinates(settings: SideSettings) -> None:
    """Raise :class:`SettingsError` for what goes with the other space only."""
    if settings.standardise and settings.space == "embedding":
        raise SettingsError(
            "Standardising scales features, and embedding space has none of its own; turn it off or choose "
            "feature space."
        )
    if settings.final_norm and settings.space == "feature":
        raise SettingsError(
            "The final norm belongs to reading through the vocabulary; turn it off or choose embedding space."
        )
    if settings.what == "patterns" and settings.space == "embedding":
        raise SettingsError(
            "Attention patterns are numbers of heads, not vectors that a vocabulary could be read from; choose "
            "feature space."
        )
    if settings.what != "hidden" and settings.final_norm:
        raise SettingsError(
            "The final norm reads whole hidden states, and what a block adds is only part of one; turn it off."
        )


def read_pair(settings: SideSettings, context: Context, *, shared: bool = False, only: Only | None = None) -> Pair:
    """Capture or read both sides, pair their rows, cut them to ``max_rows``, and bring them into the space.

    ``shared=True`` asks for coordinates that both sides share, as a token-wise cosine needs; otherwise each side is in
    own coordinates that keep its norms and inner products, which is all that the other measures read. ``only`` names
    one layer of A and one of B to read instead of all; :class:`SettingsError` where there is no such layer.
    """
    given = [name.startswith(VECTORS) for name in (settings.model_a, settings.model_b)]
    if all(given):
        return _both_given(settings, context, shared, only)
    if any(given):
        return _one_given(settings, context, shared, only, a_given=given[0])
    with context.lease(settings.model_a) as a, context.lease(settings.model_b) as b:
        _require_layers((a, b), only, settings.what)
        corpus = context.corpus(settings.corpus)
        states_a, states_b = (_captured(model, corpus, settings, context) for model in (a, b))
        pair = _paired(settings, corpus, states_a, states_b, only)
        if settings.space == "feature":
            return _finished(settings, pair)
        space, notes = open_space(settings, a, b, context.device)
        a_side = _projected(pair.a, a, space, "a", settings, shared)
        b_side = _projected(pair.b, b, space, "b", settings, shared)
        return replace(pair, a=a_side, b=b_side, notices=(*pair.notices, *notes))


def _captured(model: LoadedModel, corpus: Corpus, settings: SideSettings, context: Context) -> HiddenStates:
    from embcompare.activations import capture

    def progress(done: int, total: int, message: str) -> None:
        context.report(0, 1, f"{model.spec.label}: {message}")

    pooled = settings.pooling in ("mean", "last", "cls")
    kind: Any = settings.pooling if pooled else None
    what: Any = settings.what
    return capture(model, corpus, what=what, pooling=kind, folder=context.states, progress=progress)


def check_same_tokens(a: HiddenStates, b: HiddenStates, way: str) -> None:
    """Raise :class:`Incomparable` where two models cut a text differently; ``way`` is what can be compared then."""
    same = len(a.index) == len(b.index) and all(
        np.array_equal(getattr(a.index, name), getattr(b.index, name)) for name in ("sentence", "start", "end")
    )
    if not same:
        raise Incomparable(
            f"{a.label} and {b.label} cut this text into different tokens, so tokens cannot be paired; compare {way}."
        )


def wrong_order(generator: np.random.Generator, items: np.ndarray) -> np.ndarray:
    """Return an order of rows, (n,) int64, that pairs them wrongly: what chance is measured with.

    Where each row is an item of its own the rows are permuted. Rows within sentences are moved round the whole text by
    at least a tenth of it: this keeps what neighbouring rows have in common, which a permutation would destroy and so
    make chance look narrower than it is.
    """
    n = len(items)
    if len(np.unique(items)) == n:
        return generator.permutation(n)
    least = max(1, n // 10)
    return np.roll(np.arange(n), int(generator.integers(least, max(least + 1, n - least))))


def _require_layers(
    sides: tuple[LoadedModel | Vectors, LoadedModel | Vectors], only: Only | None, what: str = "hidden"
) -> None:
    """Say now, before anything is captured, that a layer asked for does not exist."""
    from embcompare.activations.forward import stack_of
    from embcompare.text.uploads import Vectors

    for side, which, layer in zip(sides, "AB", only or (), strict=False):
        if isinstance(side, Vectors):
            if layer >= side.layers:
                own = "given vectors are layer 0" if side.layers == 1 else f"its layers are 0 to {side.layers - 1}"
                raise SettingsError(f"Side {which} ({side.name}) has no layer {layer}; {own}.")
            continue
        last = len(stack_of(side).blocks)
        if what != "hidden" and not 1 <= layer <= last:
            raise SettingsError(
                f"Model {which} ({side.spec.label}) has {WHAT[what]} in blocks 1 to {last}, and {layer} is none "
                "of them."
            )
        if layer > last:
            raise SettingsError(
                f"Model {which} ({side.spec.label}) has no layer {layer}; its layers are 0, the embedding output, to "
                f"{last}, after the last block."
            )


def _paired(settings: SideSettings, corpus: Corpus, a: HiddenStates, b: HiddenStates, only: Only | None = None) -> Pair:
    spans = tokens = None
    wanted = _wanted(a, only, 0), _wanted(b, only, 1)
    notices = [f"{s.label}: {notice}" for s in (a, b) for notice in s.notices]
    how = settings.pooling
    if how == "token":
        heads = settings.what == "patterns"
        check_same_tokens(a, b, "words (pooling 'word')" if heads else "words or sentences (pooling 'word' or 'mean')")
        items = a.index.sentence
        rows = _chosen(items, settings)
        layers = [[s.layer(k)[rows] for k in own] for s, own in zip((a, b), wanted, strict=True)]
        spans = np.stack([a.index.start, a.index.end], axis=1)[rows].astype(np.int64)
        tokens = a.index.token[rows].astype(np.int64)
    elif how == "word":
        from embcompare.text.words import align_words

        aligned = align_words(corpus.sentences, a.index, b.index)
        notices.append(aligned.sentence())
        items = aligned.a.sentence
        rows = _chosen(items, settings)
        words = (aligned.a.only(rows), aligned.b.only(rows))
        layers = [[s.words(k, w) for k in own] for s, w, own in zip((a, b), words, wanted, strict=True)]
        spans = np.stack([words[0].start, words[0].end], axis=1)
    else:
        first = [np.isfinite(s.pooled(s.layers[0], how)).all(1) for s in (a, b)]  # type: ignore[arg-type]
        whole = first[0] & first[1]
        items = np.flatnonzero(whole)
        rows = _chosen(items, settings)
        layers = [
            [s.pooled(k, how)[items[rows]] for k in own]  # type: ignore[arg-type]
            for s, own in zip((a, b), wanted, strict=True)
        ]
    if len(rows) < len(items):
        notices.append(f"{len(rows):,} of {plural(len(items), 'row')} were drawn, whole sentences at a time.")
    sides = [
        Side(s.label, own, tuple(s.layer_label(k) for k in numbers), s.width, s.layers[0])
        for s, own, numbers in zip((a, b), layers, wanted, strict=True)
    ]
    return Pair(sides[0], sides[1], np.asarray(items)[rows], rows, tuple(dict.fromkeys(notices)), spans, tokens)


def _wanted(states: HiddenStates, only: Only | None, side: int) -> tuple[int, ...]:
    return states.layers if only is None else (only[side],)


def _chosen(items: np.ndarray, settings: SideSettings) -> np.ndarray:
    """Draw whole items until ``max_rows`` are reached; rows stay in their order."""
    items = np.asarray(items)
    if len(items) <= settings.max_rows:
        return np.arange(len(items))
    names, sizes = np.unique(items, return_counts=True)
    order = np.random.default_rng([settings.seed, 1]).permutation(len(names))
    taken = np.cumsum(sizes[order]) <= settings.max_rows
    taken[0] = True
    return np.flatnonzero(np.isin(items, names[order[taken]]))


def _both_given(settings: SideSettings, context: Context, shared: bool, only: Only | None) -> Pair:
    from embcompare.text.pairing import pair_vectors

    a, b = context.vectors(settings.model_a), context.vectors(settings.model_b)
    _feature_space_only(settings, shared)
    _require_layers((a, b), only)
    pairing = pair_vectors(a, b, settings.pairing)
    rows = _chosen(np.arange(len(pairing)), settings)
    sides = [_given_side(v, at[rows], only, k) for k, (v, at) in enumerate(((a, pairing.rows_a), (b, pairing.rows_b)))]
    notices = [pairing.sentence(), pairing.warning, *a.notices, *b.notices]
    if pairing.by == "row" and not pairing.warning and bool(a.ids) != bool(b.ids):
        with_ids, without = (a, b) if a.ids else (b, a)
        notices[0] += f" {with_ids.name} has ids and {without.name} has none to pair by."
    named, at = (b, pairing.rows_b) if b.ids and not a.ids else (a, pairing.rows_a)
    names = tuple(named.ids[k] if named.ids else f"row {k}" for k in at[rows].tolist())
    pair = Pair(sides[0], sides[1], rows, rows, tuple(dict.fromkeys(filter(None, notices))), names=names)
    return _finished(settings, pair)


def _one_given(settings: SideSettings, context: Context, shared: bool, only: Only | None, *, a_given: bool) -> Pair:
    if settings.pooling in ("token", "word"):
        raise SettingsError(
            "A file of vectors has one row a sentence, so the model must too: choose pooling mean, last or cls."
        )
    _feature_space_only(settings, shared)
    given = context.vectors(settings.model_a if a_given else settings.model_b)
    with context.lease(settings.model_b if a_given else settings.model_a) as model:
        _require_layers((given, model) if a_given else (model, given), only, settings.what)
        corpus = context.corpus(settings.corpus)
        states = _captured(model, corpus, settings, context)
    if len(given) != len(corpus):
        way = "row k must be the vector of sentence k, so give the file made from this very text"
        if given.layers == len(corpus):
            way = "its first axis, that of the layers, has as many, so save the array with its first two axes swapped"
        raise Incomparable(
            f"{given.name} has {plural(len(given), 'row')} and the corpus {plural(len(corpus), 'sentence')}; {way}."
        )
    how = settings.pooling
    items = np.flatnonzero(np.isfinite(states.pooled(states.layers[0], how)).all(1))  # type: ignore[arg-type]
    rows = _chosen(items, settings)
    wanted = _wanted(states, only, int(a_given))
    layers = [states.pooled(k, how)[items[rows]] for k in wanted]  # type: ignore[arg-type]
    own = Side(states.label, layers, tuple(states.layer_label(k) for k in wanted), states.width, states.layers[0])
    other = _given_side(given, items[rows], only, int(not a_given))
    notices = (*(f"{states.label}: {n}" for n in states.notices), *_in_order(given, settings), *given.notices)
    sides = (other, own) if a_given else (own, other)
    return _finished(settings, Pair(sides[0], sides[1], items[rows], rows, notices))


def _feature_space_only(settings: SideSettings, shared: bool) -> None:
    if settings.space == "embedding" or shared:
        raise Incomparable(
            "A file of vectors comes without a vocabulary to be read through, so it has no embedding space; choose "
            "feature space and a measure that needs no shared coordinates."
        )


def _in_order(given: Vectors, settings: SideSettings) -> tuple[str, ...]:
    """Say that ids play no part beside a text, where somebody could think that they did."""
    if not given.ids and settings.pairing != "id":
        return ()
    return (f"Row k of {given.name} is paired with sentence k of the text, which has no ids to pair by.",)


def _given_side(vectors: Vectors, rows: np.ndarray, only: Only | None, side: int) -> Side:
    wanted = range(vectors.layers) if only is None else (only[side],)
    layers = [vectors.layer(k)[rows] for k in wanted]
    return Side(vectors.name, layers, tuple(vectors.layer_names[k] for k in wanted), vectors.width)


def _finished(settings: SideSettings, pair: Pair) -> Pair:
    if not settings.standardise:
        return pair
    return replace(pair, a=_standardised(pair.a), b=_standardised(pair.b))


def _standardised(side: Side) -> Side:
    return replace(side, layers=[standardised(layer) for layer in side.layers])


def standardised(x: np.ndarray) -> np.ndarray:
    """Scale every feature of (n, d) to mean 0 and variance 1 in float64; a constant feature becomes 0."""
    wide = np.asarray(x, dtype=np.float64)
    moved = wide - wide.mean(axis=0)
    sd = moved.std(axis=0)
    size = np.abs(wide).max(axis=0, initial=0.0)
    constant = sd <= np.finfo(np.float32).eps * size
    return np.asarray(np.where(constant, 0.0, moved / np.where(constant, 1.0, sd)))


def _projected(side: Side, model: LoadedModel, space: Space, which: str, settings: SideSettings, shared: bool) -> Side:
    import torch

    if shared:
        to = space.coordinates_a if which == "a" else space.coordinates_b
    else:
        to = space.own_a if which == "a" else space.own_b
    norm = model.anatomy.final_norm if settings.final_norm else None

    def one(layer: np.ndarray, name: str) -> np.ndarray:
        x: Tensor = torch.as_tensor(np.array(layer), dtype=torch.float64)
        if norm is not None and "final norm" not in name:
            x = replace(
                norm, gain=norm.gain.cpu().double(), bias=None if norm.bias is None else norm.bias.cpu().double()
            ).apply(x)
        return to(x).numpy()

    with torch.inference_mode():
        return replace(side, layers=[one(x, n) for x, n in zip(side.layers, side.names, strict=True)])
