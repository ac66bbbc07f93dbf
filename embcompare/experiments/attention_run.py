"""A run of attention similarity: patterns read, heads compared, then texts paired wrongly, and halves of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.attention_compare import Comparison, Queries, Samples, matched_layers, partners
from embcompare.experiments.attention_result import AttentionSimilarityResult
from embcompare.experiments.attention_units import (
    Pattern,
    Units,
    averaged,
    captured,
    draw_texts,
    full_patterns,
    special_shares,
)
from embcompare.experiments.depth import depth_agreement
from embcompare.words import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from embcompare.activations import HiddenStates
    from embcompare.experiments.attention import AttentionSimilarity
    from embcompare.experiments.base import Context
    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus

LOOKS_AWAY = 0.5
"""A share of a model's attention on special tokens above this draws a notice."""
_CONSTANT = "it looks everywhere alike, so that it cannot be compared"


@dataclass(frozen=True, eq=False)
class _Read:
    comparison: Comparison
    heads: tuple[int, int]
    special: tuple[np.ndarray, np.ndarray]
    causal: tuple[bool, bool]
    notices: tuple[str, ...]


class AttentionRun:
    """One run's moving parts: both sides' samples, the notices so far, and the count of matrices done."""

    def __init__(self, settings: AttentionSimilarity, context: Context) -> None:
        self.settings, self.context = settings, context
        self.read = _read(settings, context)
        self.closer = settings.measure != "jsd"
        self.notices = [*self.read.notices]
        few = len(self.read.comparison.sizes) < 2
        self.draws = 0 if few else settings.null_draws
        self.halves = 0 if len(self.read.comparison.sizes) < 4 else settings.halves
        if few and (settings.null_draws or settings.halves):
            self.notices.append("One text can be paired with no other, so there is no null and no interval.")
        self.matrices = 1 + self.draws + (self.halves if self.closer else 0)
        self.done = 0

    def result(self) -> AttentionSimilarityResult:
        """Compare all heads, then wrong texts, then halves."""
        comparison, spread = self.read.comparison, None
        if isinstance(comparison, Queries):
            values, spread = comparison.with_error(self._step("all heads"))
            spread = spread if self.halves else None
        else:
            values = comparison.values(self._step("all heads"))
        self._finish("all heads", self._assemble(values, None, None))
        null = self._null()
        if isinstance(comparison, Samples):
            spread = self._spread(comparison)
        return self._assemble(values, null, spread)

    def _step(self, what: str) -> Callable[[float], None]:
        def step(share: float) -> None:
            self.context.report(self.done, self.matrices, f"{what}: {share:.0%}")

        return step

    def _finish(self, what: str, partial: AttentionSimilarityResult | None = None) -> None:
        self.done += 1
        self.context.report(self.done, self.matrices, what, partial)

    def _null(self) -> np.ndarray | None:
        if not self.draws:
            return None
        generator = np.random.default_rng([self.settings.seed, 2])
        found = []
        for draw in range(self.draws):
            what = f"texts wrongly paired {draw + 1} of {self.draws}"
            found.append(self.read.comparison.wrong(partners(self.read.comparison.sizes, generator), self._step(what)))
            self._finish(what)
        return np.stack(found)

    def _spread(self, comparison: Samples) -> np.ndarray | None:
        if self.halves < 2:
            return None
        generator = np.random.default_rng([self.settings.seed, 3])
        texts = len(comparison.sizes)
        # sums of squares around the first half, not all halves at once: heads by heads may be large
        first, total, squares = None, 0.0, 0.0
        for half in range(self.halves):
            found = comparison.half(generator.permutation(texts)[: texts // 2])
            first = found if first is None else first
            total, squares = total + (found - first), squares + (found - first) ** 2
            self._finish(f"half {half + 1} of {self.halves}")
        n = self.halves
        # the spread of a statistic over halves is that of the whole sample around the truth (delete-half jackknife)
        return np.asarray(np.sqrt(np.maximum(squares - np.square(total) / n, 0.0) / (n - 1)))

    def _assemble(
        self, values: np.ndarray, null: np.ndarray | None, spread: np.ndarray | None
    ) -> AttentionSimilarityResult:
        read, closer = self.read, self.closer
        layers = matched_layers(values, read.heads, higher_is_closer=closer)
        depth = depth_agreement(layers if closer else -layers, self.settings.seed)
        chance = None
        if null is not None:
            chance = np.mean([matched_layers(each, read.heads, higher_is_closer=closer) for each in null], axis=0)
        few = null is None or len(null) < 2
        return AttentionSimilarityResult(
            values=values,
            null_mean=None if null is None else null.mean(0),
            null_sd=None if null is None else (np.full(values.shape, np.nan) if few else null.std(0, ddof=1)),
            null_best=None if null is None else (null.max(0) if closer else null.min(0)),
            spread=spread,
            layer_values=layers,
            layer_null=chance,
            assignment=depth.pairs,
            depth_rate=depth.rate,
            depth_chance=depth.chance,
            depth_p=depth.p_value,
            heads_a=read.heads[0],
            heads_b=read.heads[1],
            special_a=read.special[0],
            special_b=read.special[1],
            rows=read.comparison.rows,
            items=len(read.comparison.sizes),
            causal_a=read.causal[0],
            causal_b=read.causal[1],
            reasons=tuple((side, head, _CONSTANT) for side, head in read.comparison.constant()),
            higher_is_closer=closer,
            notices=tuple(dict.fromkeys(self.notices)),
        )


def _read(settings: AttentionSimilarity, context: Context) -> _Read:
    """Read both models' patterns; they are let go before anything is compared."""
    from embcompare.activations.forward import stack_of
    from embcompare.activations.patterns import is_causal

    with context.lease(settings.model_a) as a, context.lease(settings.model_b) as b:
        models, corpus = (a, b), context.corpus(settings.corpus)
        states = [captured(model, corpus, context) for model in models]
        units = Units.of(settings.rows, corpus, *states)
        full = settings.pattern == "full"
        texts = draw_texts(units.items, np.square if full else np.copy, settings.max_rows, settings.seed)
        if full:
            comparison = _full(settings, context, corpus, models, states, units, texts)
        else:
            comparison = _averaged(settings, states, units, texts)
        causal = [is_causal(model, stack_of(model)) for model in models]
    special = special_shares(states[0]), special_shares(states[1])
    notices = [f"{s.label}: {notice}" for s in states for notice in s.notices] + [*units.notices]
    whole = len(np.unique(units.items))
    if len(texts) < whole:
        notices.append(
            f"{len(texts):,} of {plural(whole, 'text')} were drawn, so as to stay within {settings.max_rows:,} samples."
        )
    for state, shares in zip(states, special, strict=True):
        if shares.mean() > LOOKS_AWAY:
            notices.append(
                f"{state.label} spends {shares.mean():.0%} of its attention on special tokens, which are no samples; "
                "what is left for the text is compared as it is, not rescaled."
            )
    if causal[0] != causal[1]:
        notices.append(
            f"{states[causal.index(True)].label} sees only what stands before a token and "
            f"{states[causal.index(False)].label} the whole text, so they are compared where both may look."
        )
    return _Read(comparison, (states[0].width, states[1].width), special, (causal[0], causal[1]), tuple(notices))


def _averaged(settings: AttentionSimilarity, states: list[HiddenStates], units: Units, texts: np.ndarray) -> Comparison:
    chosen = np.flatnonzero(np.isin(units.items, texts))
    text = np.searchsorted(texts, units.items[chosen])
    x, y = (averaged(s, rows.only(chosen)) for s, rows in zip(states, (units.a, units.b), strict=True))
    sizes = np.bincount(text, minlength=len(texts))
    reach = np.arange(1, len(text) + 1) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return Samples(x, y, text, reach, sizes, settings.measure == "pearson")


def _full(
    settings: AttentionSimilarity,
    context: Context,
    corpus: Corpus,
    models: tuple[LoadedModel, LoadedModel],
    states: list[HiddenStates],
    units: Units,
    texts: np.ndarray,
) -> Comparison:
    found: list[dict[int, Pattern]] = []
    for model, state, rows in zip(models, states, (units.a, units.b), strict=True):
        own: dict[int, Pattern] = {}
        for text, pattern in full_patterns(model, corpus, state, rows, texts):
            own[text] = pattern
            context.report(0, 1, f"Full attention patterns of {state.label}: {len(own):,} of {len(texts):,} texts")
        found.append(own)
    a, b = (tuple(own[text] for text in texts.tolist()) for own in found)
    if settings.measure == "jsd":
        return Queries(a, b)
    x: list[np.ndarray] = []
    y: list[np.ndarray] = []
    texts_of: list[np.ndarray] = []
    reach: list[np.ndarray] = []
    for at, (left, right) in enumerate(zip(a, b, strict=True)):
        row, column = np.nonzero((left.even > 0) & (right.even > 0))
        x.append(left.relative[:, row, column].T)
        y.append(right.relative[:, row, column].T)
        texts_of.append(np.full(len(row), at))
        reach.append(np.maximum(row, column) + 1)
    sizes = np.array([len(each.even) for each in a], dtype=np.int64)
    left_rows, right_rows, of, need = (np.concatenate(each) for each in (x, y, texts_of, reach))
    return Samples(left_rows, right_rows, of, need, sizes, settings.measure == "pearson")
