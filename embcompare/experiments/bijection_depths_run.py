"""A run through the depths: one bijection after another, each reported as it is done."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embcompare.errors import EmbcompareError, Incomparable, SettingsError
from embcompare.experiments.bijection_depths import parse_layers
from embcompare.experiments.bijection_depths_result import BijectionDepthsResult
from embcompare.experiments.bijection_result import METRICS, PARTS
from embcompare.experiments.sides import VECTORS
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.base import Context, Result
    from embcompare.experiments.bijection_depths import BijectionDepths
    from embcompare.experiments.bijection_result import BijectionResult
    from embcompare.models.loading import LoadedModel
    from embcompare.text.corpora import Corpus
    from embcompare.text.uploads import Vectors

_STEPS = 1000
"""Steps that one depth counts, whatever it counts itself."""
_TAKES = {
    "unrelated": "no map predicts anything",
    "rotation": "nothing beyond a rotation is shown",
    "linear": "nothing beyond a linear map is shown",
    "bijection": "the invertible network finds more than a linear map",
    "beyond": "a perceptron finds what the invertible network did not",
}


class BijectionDepthsRun:
    """The depths that are done, and what each left behind."""

    def __init__(self, settings: BijectionDepths, context: Context) -> None:
        self.settings, self.context = settings, context
        self.pairs = parse_layers(settings.layers) or self._same_depths()
        self.found: dict[int, BijectionResult] = {}
        self.failed: dict[int, str] = {}

    def result(self) -> BijectionDepthsResult:
        """Go through the depths; one that cannot be read is left out with its reason, unless none can."""
        for at, (a, b) in enumerate(self.pairs):
            part = _Part(self, at)
            try:
                self.found[at] = self.settings.at(a, b).compute(part)
            except EmbcompareError as error:
                # wrong layers are the asker's to mend, and what stops the run is no property of a depth
                if error is part.stopped or isinstance(error, SettingsError):
                    raise
                self.failed[at] = str(error)
            self.report(at + 1, 0, f"depth {at + 1} of {len(self.pairs)} done")
        if not self.found:
            raise Incomparable(next(iter(self.failed.values())))
        return self.assembled()

    def report(self, depths: int, steps: int, message: str) -> None:
        """Pass on how far the run is, with the depths that are done."""
        partial = self.assembled() if self.found and not steps else None
        self.context.report(depths * _STEPS + steps, len(self.pairs) * _STEPS, message, partial)

    def _same_depths(self) -> tuple[tuple[int, int], ...]:
        """Return every layer of A with that of B at the nearest relative depth."""
        counts = [self._layers(name) for name in (self.settings.model_a, self.settings.model_b)]
        first = 0 if self.settings.what == "hidden" else 1
        (low_a, high_a), (low_b, high_b) = ((0, count - 1) if given else (first, count) for count, given in counts)
        span_a, span_b = high_a - low_a, high_b - low_b
        if not span_a or not span_b:
            return ((high_a, high_b),)
        return tuple((low_a + k, low_b + round(k * span_b / span_a)) for k in range(span_a + 1))

    def _layers(self, name: str) -> tuple[int, bool]:
        """Return the blocks of a model, or the layers of given vectors and True."""
        from embcompare.activations.forward import stack_of

        if name.startswith(VECTORS):
            return self.context.vectors(name).layers, True
        with self.context.lease(name) as model:
            return len(stack_of(model).blocks), False

    def assembled(self) -> BijectionDepthsResult:
        """Return what is known so far."""
        settings, done = self.settings, self.found
        names = settings.map_names()
        any_done = next(iter(done.values()))
        runs = max(result.scores.shape[1] for result in done.values())
        gap_names = next((result.gap_names for result in done.values() if result.gap_names), ())
        count = len(self.pairs)
        scores = np.full((count, len(names), runs, len(PARTS), len(METRICS)), np.nan)
        rows = np.zeros((count, 3), dtype=np.int64)
        gaps = np.full((count, len(gap_names), 3), np.nan)
        reasons = [(at, "", why) for at, why in self.failed.items()]
        for at, result in done.items():
            scores[at, :, : result.scores.shape[1]] = result.scores
            rows[at] = result.rows
            if result.gap_names:
                gaps[at] = result.gaps
            reasons += [(at, name, why) for name, part, _, why in result.reasons if not part]

        def each(attribute: str) -> tuple[str, ...]:
            return tuple(str(getattr(done[at], attribute)) if at in done else "" for at in range(count))

        kinds = each("kind")
        notices = [notice for result in done.values() for notice in result.notices]
        notices += [
            f"Layer {self.pairs[at][0]} of A with {self.pairs[at][1]} of B: {w}" for at, w in self.failed.items()
        ]
        return BijectionDepthsResult(
            maps=names,
            seeds=any_done.seeds,
            layers=np.array(self.pairs, dtype=np.int64).reshape(-1, 2),
            names_a=each("name_a"),
            names_b=each("name_b"),
            scores=scores,
            rows=rows,
            gap_names=gap_names,
            gaps=gaps,
            kinds=kinds,
            sentences=each("sentence"),
            sentence=_sentence(kinds, gaps, gap_names),
            reasons=tuple(reasons),
            notices=tuple(dict.fromkeys(notices)),
        )


class _Part:
    """What one depth sees of its surroundings: its steps are a part of the whole."""

    def __init__(self, whole: BijectionDepthsRun, at: int) -> None:
        self._whole, self._at = whole, at
        self.stopped: BaseException | None = None

    @property
    def device(self) -> str:
        return self._whole.context.device

    @property
    def states(self) -> Path:
        return self._whole.context.states

    def lease(self, name: str) -> AbstractContextManager[LoadedModel]:
        return self._whole.context.lease(name)

    def corpus(self, name: str) -> Corpus:
        return self._whole.context.corpus(name)

    def vectors(self, name: str) -> Vectors:
        return self._whole.context.vectors(name)

    def report(self, done: int, total: int, message: str, partial: Result | None = None) -> None:
        share = min(_STEPS - 1, max(1, _STEPS * done // total)) if total > 0 else 1
        a, b = self._whole.pairs[self._at]
        try:
            self._whole.report(self._at, share, f"layer {a} of A, {b} of B: {message}")
        except BaseException as reason:  # so that it is not taken for what a depth says of itself
            self.stopped = reason
            raise


def _sentence(kinds: tuple[str, ...], gaps: np.ndarray, gap_names: tuple[tuple[str, str], ...]) -> str:
    """Say in one sentence what it takes, and at how many depths."""
    counts = Counter(kind for kind in kinds if kind)
    if not counts:
        return ""
    whole = plural(sum(counts.values()), "depth")
    parts = [
        f"{takes} at {'the' if len(kinds) == 1 else 'all' if len(counts) == 1 else f'{counts[kind]} of'} {whole}"
        for kind, takes in _TAKES.items()
        if counts[kind]
    ]
    text = "; ".join(parts)
    linear = gaps[:, gap_names.index(("linear", "inn"))]
    if np.isfinite(linear[:, 0]).any():
        value, low, high = linear[int(np.nanargmax(linear[:, 0]))].tolist()
        text += f"; an invertible network adds at most {value:+.3f} R² ({low:+.3f} to {high:+.3f}) to a linear map"
    return f"{text[0].upper()}{text[1:]}."
