"""A run over a series: each checkpoint is read once, scored and taken apart; then the statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.decomposition import INDICATORS, indicators, summarise
from embcompare.errors import InputError
from embcompare.experiments.decomposition_split import split_states
from embcompare.experiments.decomposition_targets import Labels, own_output, written_as
from embcompare.experiments.decomposition_texts import (
    TextsOf,
    check_names,
    could_be_there,
    state_name,
    translates,
)
from embcompare.experiments.term_series_metrics import Predicted, Scorer, predict, signatures
from embcompare.experiments.term_series_result import SCORES, TermSeriesResult
from embcompare.experiments.term_series_shape import Shape, steps_of
from embcompare.experiments.term_series_statistics import (
    Gathered,
    correlations,
    distances,
    over_texts,
    variances,
)
from embcompare.text.translations import targets_of
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.base import Context
    from embcompare.experiments.term_series import TermSeries
    from embcompare.models import LoadedModel

LONGEST = 256
"""Tokens of a text at most, special ones included."""
KEPT_BYTES = 2**30
"""Bytes that the indicators of all tokens may take, of all last checkpoints and one more."""
_SHARES = {"predicts": 0.3, "writes": 0.4, "terms": 0.6}
"""How much of a checkpoint is done when each of its parts begins."""


class SeriesRun:
    """One run: the tables to fill, checkpoint by checkpoint."""

    def __init__(self, settings: TermSeries, context: Context) -> None:
        self.settings, self.context, self.runs = settings, context, settings.series()
        check_names(*settings.models())
        self.corpus = context.corpus(settings.corpus).first(settings.sentences)
        self.lengths = tuple(len(run.checkpoints) for run in self.runs)
        self.grid = len(self.runs), max(self.lengths)
        self.total = 100 * (sum(self.lengths) + 1)
        self.begun = 0
        self.first: Shape | None = None
        self.steps = steps_of(settings)
        self.notices: list[str] = list(self.corpus.notices)
        self.units: list[np.ndarray] = []
        self.read: list[tuple[tuple[str, ...], list[np.ndarray]]] = []
        self.undefined = self.endless = 0

    def result(self) -> TermSeriesResult:
        """Go through the checkpoints in order, then compute the statistics."""
        for number, run in enumerate(self.runs):
            for at, name in enumerate(run.checkpoints):
                with self.context.lease(name) as model:
                    self._checkpoint(model, number, at)
                self.begun += 1
                self._report(0.0, f"{model.spec.label} is done", self._assembled({}))
        found = self._gathered()
        fields = correlations(found, self.settings.seed)
        self._report(0.6, "changes correlated")
        fields |= {"variance": variances(found), "distance": distances(found)}
        self._report(0.8, "runs compared")
        fields |= {**over_texts(found, self.settings.seed), "text_scores": found.scores}
        self._report(1.0, "done")
        return self._assembled(fields)

    def _gathered(self) -> Gathered:
        """Return what statistics are of: without terms that are zero in a state at every checkpoint.

        Nothing of them goes with anything; what would is their distance, which is the length of the state.
        """
        absent = np.nanmax(self.mean[list(INDICATORS).index("norm_ratio")], (0, 1), initial=0.0) == 0
        units = [np.where(absent[..., None], np.nan, each) for each in self._same_units()]
        mean, by_text = np.where(absent, np.nan, self.mean), np.where(absent[..., None], np.nan, self.by_text)
        return Gathered(self.lengths, self.steps, self.performance, mean, units, by_text, self.text_scores)

    def _report(self, share: float, message: str, partial: TermSeriesResult | None = None) -> None:
        self.context.report(round(100 * (self.begun + share)), self.total, message, partial)

    def _checkpoint(self, model: LoadedModel, run: int, at: int) -> None:
        label = model.spec.label
        shape = Shape.of(model, self.settings)
        if self.first is None:
            self.first = shape
            self._prepare(shape)
        self.first.check(shape)
        texts = self._texts(model)
        if at == 0:
            self.notices += texts.notices()
        self._report(_SHARES["predicts"], f"{label}: predictions")
        predicted, own = predict(texts), None
        if texts.sources is not None:
            self._report(_SHARES["writes"], f"{label}: translations")
            own = own_output(model, texts.sources, LONGEST, self._reporter("writes", "terms", f"{label}: translations"))
            self.endless += bool(own.cut)
            predicted = Predicted(
                predicted.loss, predicted.tokens, predicted.right, tuple(written_as(model, own)), self.corpus.targets
            )
        whole, errors = self.scorer(predicted)
        for number, name in enumerate(shape.metrics):
            self.performance[number, run, at], self.performance_se[number, run, at] = whole[name], errors[name]
        table, texts, residual = self._indicators(model, texts, own)
        self._summarise(table, texts, run, at)
        self.residual[run, at] = residual
        if at == self.lengths[run] - 1:
            self._keep_last(run, table, texts, predicted)

    def _prepare(self, shape: Shape) -> None:
        (runs, most), states, terms = self.grid, len(shape.states), len(shape.terms)
        self.performance, self.performance_se = (np.full((len(shape.metrics), runs, most), np.nan) for _ in range(2))
        self.mean, self.sd, self.low, self.high = (
            np.full((len(INDICATORS), runs, most, states, terms), np.nan) for _ in range(4)
        )
        self.residual = np.full((runs, most), np.nan)
        self.scores = tuple(name for name in SCORES if name in shape.metrics)
        self.text_scores = np.full((len(self.scores), runs, len(self.corpus)), np.nan)
        self.by_text = np.full((len(INDICATORS), runs, states, terms, len(self.corpus)), np.nan)
        self.tokens = 0
        self.signatures = signatures(shape.metrics)
        self.scorer = Scorer(len(self.corpus), self.corpus.targets if shape.translates else ())

    def _texts(self, model: LoadedModel) -> TextsOf:
        targets = targets_of(self.corpus) if translates(model) else ()
        texts = TextsOf.of(model, self.corpus.sentences, LONGEST, targets=targets)
        texts.check_known(self.corpus.name)
        if texts.encoded.empty:
            number, name = texts.encoded.empty[0] + 1, self.corpus.name
            raise InputError(f"Sentence {number:,} of {name} has no token that {model.spec.label} reads; leave it out.")
        return texts

    def _indicators(
        self, model: LoadedModel, texts: TextsOf, own: Labels | None
    ) -> tuple[dict[str, np.ndarray], TextsOf, float]:
        """Return each indicator (S, K, tokens), the texts that the tokens are of, and the largest residual."""
        assert self.first is not None
        if self.settings.mode == "generated" and own is not None and texts.sources is not None:
            texts = TextsOf.translated(model, texts.sources, own, LONGEST)
        states, terms, tokens = len(self.first.states), len(self.first.terms), int(texts.starts[-1])
        kept = 8.0 * len(INDICATORS) * states * terms * tokens * (len(self.runs) + 1)
        texts.check_terms(terms, kept, KEPT_BYTES, "read fewer texts")
        table = {name: np.full((states, terms, tokens), np.nan) for name in INDICATORS}
        residual, batches = 0.0, texts.batches(terms)
        report = self._reporter("terms", "", f"{model.spec.label}: terms")
        for number, batch in enumerate(batches):
            ids, mask, is_text = texts.batch(batch)
            columns = texts.columns(batch)
            for row, each in enumerate(split_states(model, self.settings, ids, mask, texts.source(batch))):
                for name, value in indicators(each.values[:, is_text], each.hidden[is_text]).items():
                    table[name][row][:, columns] = value.numpy(force=True)
                residual = max(residual, each.residual)
            report(number + 1, len(batches))
        return table, texts, residual

    def _summarise(self, table: dict[str, np.ndarray], texts: TextsOf, run: int, at: int) -> None:
        assert self.first is not None
        expected = could_be_there(self.first.terms, self.first.states)
        for number, values in enumerate(table.values()):
            found = summarise(values, texts.token_texts, seed=self.settings.seed)
            for name in ("mean", "sd", "low", "high"):
                getattr(self, name)[number, run, at] = getattr(found, name)
            self.undefined += int(np.where(expected, found.undefined, 0).sum())
        self.tokens = int(texts.starts[-1])

    def _keep_last(self, run: int, table: dict[str, np.ndarray], texts: TextsOf, predicted: Predicted) -> None:
        stacked = np.stack(list(table.values()))
        for text in range(len(self.corpus)):
            own = stacked[..., texts.starts[text] : texts.starts[text + 1]]
            if own.shape[-1]:
                self.by_text[:, run, ..., text] = own.mean(-1)
        for number, name in enumerate(self.scores):
            self.text_scores[number, run] = predicted.scores()[name]
        self.units.append(stacked)
        self.read.append((texts.model.tokens.raw, texts.encoded.ids))

    def _same_units(self) -> list[np.ndarray]:
        """Return what variance is split over: tokens where every run read the same, else means of texts."""
        (raw, ids), *others = self.read
        same = self.settings.mode == "reference" and all(
            own == raw and all(map(np.array_equal, rows, ids)) for own, rows in others
        )
        self.unit = "tokens" if same else "texts"
        if any(own != raw for own, _ in others):
            self.notices.append("The runs read different tokens, so losses and accuracies do not compare between them.")
        return self.units if same else list(self.by_text.transpose(1, 0, 2, 3, 4))

    def _reporter(self, begin: str, end: str, message: str) -> Any:
        low, high = _SHARES[begin], _SHARES.get(end, 0.99)
        return lambda done, total: self._report(low + (high - low) * done / total, message)

    def _assembled(self, fields: dict[str, Any]) -> TermSeriesResult:
        """Return the result; without ``fields``, the statistics, a partial one."""
        assert self.first is not None
        shape = self.first
        statistics = (
            *("rho", "rho_low", "rho_high", "rho_low_all", "rho_high_all", "rho_run", "variance", "distance"),
            *("step_rho", "step_low", "step_high", "step_low_all", "step_high_all"),
            *("text_scores", "text_rho", "text_low", "text_high", "same_rho", "same_low", "same_high"),
        )
        tables = ("performance", "performance_se", "mean", "sd", "low", "high", "residual")
        units = getattr(self, "unit", "tokens")
        return TermSeriesResult(
            runs=tuple(run.name for run in self.runs),
            checkpoints=tuple(run.checkpoints for run in self.runs),
            steps=self.steps,
            metrics=shape.metrics,
            signatures=self.signatures,
            indicators=tuple(INDICATORS),
            states=tuple(state_name(*state) for state in shape.states),
            layers=np.array([layer for layer, _ in shape.states], dtype=np.int64),
            state=shape.state,
            terms=tuple(map(str, shape.terms)),
            units=units,
            units_read=self.tokens if units == "tokens" else len(self.corpus),
            scores=self.scores,
            texts=len(self.corpus),
            tokens=self.tokens,
            mode=self.settings.mode if shape.translates else "text",
            notices=tuple(dict.fromkeys(self._notices())),
            **{name: getattr(self, name).copy() for name in tables},
            **{**dict.fromkeys(statistics), "tests": 4 * (len(shape.terms) + 1), "rho_rising": float("nan"), **fields},
        )

    def _notices(self) -> list[str]:
        said = list(self.notices)
        if self.undefined:
            count = f"{plural(self.undefined, 'value')} of indicators {agree(self.undefined, 'is', 'are')} undefined"
            said.append(f"{count}, where a term or a state has length zero, and left out of the means.")
        if self.endless:
            said.append(f"At {plural(self.endless, 'checkpoint')} some translations had no end and were stopped.")
        short = [run.name for run in self.runs if len(run.checkpoints) < 2]
        if short:
            said.append(f"{', '.join(short)}: one checkpoint has no change to correlate.")
        return said
