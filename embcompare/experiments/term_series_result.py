"""What a series of checkpoints gives: indicators beside performance, and how the two go together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result

if TYPE_CHECKING:
    import pandas as pd

ALL_TERMS = "all terms"
"""The column behind the single terms: how far all of them move together."""
BETWEEN = "between runs"
"""The run that stands in :meth:`TermSeriesResult.text_frame` for differences between runs on the same text."""
HIGHER_IS_BETTER = {"loss": False, "accuracy": True, "exact match": True, "BLEU": True, "chrF": True}
"""Every metric there is, and whether a better model has more of it."""
SCORES = ("loss", "chrF")
"""Metrics that single texts have too."""
VARIANCES = ("runs", "units", "rest", "sd_of_means", "sd_within")
"""Rows of ``variance``: see :class:`~embcompare.decomposition.series.VarianceComponents`; units are tokens or texts."""


@dataclass(frozen=True, eq=False)
class TermSeriesResult(Result):
    """``R`` runs of at most ``C`` checkpoints, ``M`` metrics, 4 indicators, ``S`` states, ``K`` terms, ``N`` texts.

    States are 0, the embedding output, to L, and L again after the final norm where there is one; those of an
    encoder-decoder are its decoder's. What a shorter run has no checkpoint for, and what a partial result has not
    reached, is NaN. Statistics over runs (correlations to distances) are None in a partial result. Signs are plain: a
    correlation is positive where indicator and metric rise together, so that with the loss one that is negative goes
    with better models.
    """

    runs: tuple[str, ...]
    """(R,) what each run is called."""
    checkpoints: tuple[tuple[str, ...], ...]
    """(R,) the names of each run's checkpoints in the order of training."""
    steps: np.ndarray
    """(R, C) int64: the step of training of each checkpoint where its card or its name tells, -1 elsewhere."""
    metrics: tuple[str, ...]
    """(M,) of loss (nats per target token), accuracy (share of target tokens that are the most likely), and, for
    encoder-decoders, exact match (share of texts), BLEU and chrF (0 to 100, sacrebleu) of their greedy output."""
    performance: np.ndarray
    """(M, R, C) float64: each metric over all texts."""
    performance_se: np.ndarray
    """(M, R, C) its standard error over texts: jackknife, leaving out one of at most 10 groups of texts at a time."""
    signatures: tuple[str, ...]
    """(M,) how each metric was computed, as sacrebleu signs it; empty for the others."""
    indicators: tuple[str, ...]
    """(4,) importance, cosine, distance, norm_ratio; see :data:`embcompare.decomposition.INDICATORS`."""
    states: tuple[str, ...]
    """(S,) what each state is."""
    layers: np.ndarray
    """(S,) int64: the layer of each state."""
    state: int
    """Which state the verdict is on, a place in ``states``."""
    terms: tuple[str, ...]
    """(K,) what each term is: input, self-attention, cross-attention, feed-forward, correction; or source, target,
    correction."""
    mean: np.ndarray
    """(4, R, C, S, K) float64: mean of each indicator over tokens, special ones left out."""
    sd: np.ndarray
    """(4, R, C, S, K) standard deviation over tokens (n - 1)."""
    low: np.ndarray
    """(4, R, C, S, K) lower end of the mean's 95 % interval, over texts."""
    high: np.ndarray
    """(4, R, C, S, K) upper end."""
    residual: np.ndarray
    """(R, C) float64: the largest |sum of terms - state| / |state| of any state and token."""
    rho: np.ndarray | None
    """(M, 4, S, K + 1) Spearman's correlation of changes in a metric with changes in an indicator, between every two
    checkpoints of a run, in both directions, over all runs (Mickus & Vázquez 2023). Whatever rises steadily in training
    has a high one with whatever else does: see ``rho_rising``. Last, :data:`ALL_TERMS`: how far the metric moved,
    whichever way, with how far the indicator of all terms moved (L1 norm of the standardised differences)."""
    rho_low: np.ndarray | None
    """(M, 4, S, K + 1) lower end of its 95 % interval, resampling runs and the checkpoints in each."""
    rho_high: np.ndarray | None
    """(M, 4, S, K + 1) upper end."""
    rho_low_all: np.ndarray | None
    """(M, 4, S, K + 1) lower end of the interval that allows for the number of indicators and terms looked at:
    ``tests`` intervals hold together with 95 % (Bonferroni). NaN for one run, which has no such interval."""
    rho_high_all: np.ndarray | None
    """(M, 4, S, K + 1) upper end."""
    rho_rising: float
    """The median |ρ|, in this sense, of unrelated series that only rise, in as many runs and checkpoints: what training
    alone gives. NaN in a partial result."""
    step_rho: np.ndarray | None
    """(M, 4, S, K) Spearman's correlation of differences between runs at the same step, over all pairs of runs and all
    steps: what training does to every run cancels. None for one run, and where runs were not seen at the same steps."""
    step_low: np.ndarray | None
    """(M, 4, S, K) lower end of its 95 % interval, resampling runs and steps; NaN for fewer than four runs."""
    step_high: np.ndarray | None
    """(M, 4, S, K) upper end."""
    step_low_all: np.ndarray | None
    """(M, 4, S, K) lower end of the interval that allows for ``tests`` of them."""
    step_high_all: np.ndarray | None
    """(M, 4, S, K) upper end."""
    tests: int
    """4 · (K + 1): correlations of one metric in one state."""
    rho_run: np.ndarray | None
    """(M, 4, S, K + 1, R) the same correlation in each run alone."""
    variance: np.ndarray | None
    """(5, 4, S, K) variance of each indicator at the last checkpoint of every run, in parts (:data:`VARIANCES`):
    between runs, between units, the rest; then the sd of the runs' means, and of units within a run. NaN for one
    run."""
    units: str
    """What the parts are over: ``tokens``, where all runs read the same, or ``texts`` (means over each text's)."""
    units_read: int
    """How many there are."""
    distance: np.ndarray | None
    """(4, S, K + 1, R, R) dynamic time warping between two runs' series of an indicator, in standard deviations of all
    checkpoints of all runs; last, of all terms together."""
    scores: tuple[str, ...]
    """(Q,) what single texts are scored by: loss, and chrF for encoder-decoders."""
    text_scores: np.ndarray | None
    """(Q, R, N) float64: each text's score at the last checkpoint of each run."""
    text_rho: np.ndarray | None
    """(Q, 4, S, K, R) Spearman's correlation over texts of a score with the text's mean indicator, in each run."""
    text_low: np.ndarray | None
    """(Q, 4, S, K, R) lower end of its 95 % interval, resampling texts."""
    text_high: np.ndarray | None
    """(Q, 4, S, K, R) upper end."""
    same_rho: np.ndarray | None
    """(Q, 4, S, K) the correlation of differences between runs on the same text; None for one run."""
    same_low: np.ndarray | None
    """(Q, 4, S, K) lower end of its 95 % interval, resampling texts."""
    same_high: np.ndarray | None
    """(Q, 4, S, K) upper end."""
    texts: int
    """N: texts read."""
    tokens: int
    """Tokens that the indicators are over, in the last checkpoint that was read."""
    mode: str
    """``reference`` or ``generated``: whose target text an encoder-decoder's decoder read; ``text`` for one stack."""

    def place(self, indicator: str, term: str, metric: str | None = None, state: int | None = None) -> tuple[int, ...]:
        """Return the places (metric, indicator, state, term) of what is named, the defaults where it is not.

        ``term`` may be :data:`ALL_TERMS`. Unknown names raise :class:`SettingsError`.
        """
        metric = self.best_metric if metric is None else metric
        state = self.state if state is None else state
        named = (
            ("metric", metric, self.metrics),
            ("indicator", indicator, self.indicators),
            ("term", term, (*self.terms, ALL_TERMS)),
        )
        for kind, name, names in named:
            if name not in names:
                raise SettingsError(f"There is no {kind} '{name}' in this result; there are {', '.join(names)}.")
        if not 0 <= state < len(self.states):
            raise SettingsError(f"There is no state {state}; there are {len(self.states)}, numbered from 0.")
        at = self.metrics.index(metric), self.indicators.index(indicator)
        return (*at, state, (*self.terms, ALL_TERMS).index(term))

    @property
    def best_metric(self) -> str:
        """The metric that says most: BLEU where texts were translated, else the loss."""
        return "BLEU" if "BLEU" in self.metrics else self.metrics[0]

    def last(self) -> np.ndarray:
        """Return the place of each run's last checkpoint, (R,) int64."""
        return np.array([len(names) - 1 for names in self.checkpoints], dtype=np.int64)

    def sentence(self, metric: str | None = None, state: int | None = None) -> str:
        """Return in words which indicators go with a metric in a state, allowing for how many were looked at."""
        from embcompare.experiments.term_series_words import verdict

        return verdict(self, self.best_metric if metric is None else metric, self.state if state is None else state)

    def limits(self) -> str:
        """Return in words what so many runs and checkpoints can tell and what they cannot."""
        from embcompare.experiments.term_series_words import limits

        return limits(self)

    def to_frame(self) -> pd.DataFrame:
        """Return :meth:`series_frame`."""
        return self.series_frame()

    def performance_frame(self) -> pd.DataFrame:
        """Return one row a run and checkpoint: step, every metric and its standard error, the residual."""
        import pandas as pd

        rows: list[dict[str, object]] = []
        for run, at in self._reached():
            row: dict[str, object] = self._names(run, at)
            for number, metric in enumerate(self.metrics):
                row |= {
                    metric: self.performance[number, run, at],
                    f"{metric} se": self.performance_se[number, run, at],
                }
            rows.append({**row, "residual": self.residual[run, at]})
        return pd.DataFrame(rows)

    def series_frame(self) -> pd.DataFrame:
        """Return one row a run, checkpoint, state, term and indicator: mean, sd, interval, and every metric beside."""
        import pandas as pd

        rows = []
        for run, at in self._reached():
            names = self._names(run, at)
            metrics = dict(zip(self.metrics, self.performance[:, run, at], strict=True))
            for state, term, indicator in np.ndindex(len(self.states), len(self.terms), len(self.indicators)):
                cell = indicator, run, at, state, term
                rows.append(
                    {
                        **names,
                        "layer": int(self.layers[state]),
                        "state": self.states[state],
                        "term": self.terms[term],
                        "indicator": self.indicators[indicator],
                        "mean": self.mean[cell],
                        "sd": self.sd[cell],
                        "low": self.low[cell],
                        "high": self.high[cell],
                        **metrics,
                    }
                )
        return pd.DataFrame(rows)

    def correlation_frame(self) -> pd.DataFrame:
        """Return one row a metric, state, indicator and term: rho, its interval, the one that allows for the number of
        tests (``low_all``, ``high_all``), whether that is clear of 0, in how many runs alone the sign is the same, and
        the same of differences between runs at the same step (``step_rho`` and on).
        """
        import pandas as pd

        rho, low_all, high_all, alone = self.rho, self.rho_low_all, self.rho_high_all, self.rho_run
        if rho is None or low_all is None or high_all is None or alone is None:
            return pd.DataFrame()
        assert self.rho_low is not None
        assert self.rho_high is not None
        rows = []
        for cell in np.ndindex(rho.shape):
            metric, indicator, state, term = cell
            rows.append(
                {
                    "metric": self.metrics[metric],
                    "layer": int(self.layers[state]),
                    "state": self.states[state],
                    "indicator": self.indicators[indicator],
                    "term": (*self.terms, ALL_TERMS)[term],
                    "rho": rho[cell],
                    "low": self.rho_low[cell],
                    "high": self.rho_high[cell],
                    "low_all": low_all[cell],
                    "high_all": high_all[cell],
                    "clear": bool(low_all[cell] > 0 or high_all[cell] < 0),
                    "runs_alike": int((np.sign(alone[cell]) == np.sign(rho[cell])).sum()),
                    **self._at_the_same_step(cell),
                    **dict(zip((f"rho, {run}" for run in self.runs), alone[cell], strict=True)),
                }
            )
        return pd.DataFrame(rows)

    def _at_the_same_step(self, cell: tuple[int, ...]) -> dict[str, object]:
        names = ("step_rho", "step_low", "step_high", "step_low_all", "step_high_all")
        tables = [getattr(self, name) for name in names]
        there = tables[0] is not None and cell[-1] < len(self.terms)
        found: dict[str, object] = {
            name: float(table[cell]) if there else float("nan") for name, table in zip(names, tables, strict=True)
        }
        low, high = found["step_low_all"], found["step_high_all"]
        return {**found, "step_clear": bool(low > 0 or high < 0)}  # type: ignore[operator]

    def variance_frame(self) -> pd.DataFrame:
        """Return one row a state, indicator and term: the parts of the variance at the last checkpoints."""
        import pandas as pd

        if self.variance is None:
            return pd.DataFrame()
        rows = []
        for indicator, state, term in np.ndindex(self.variance.shape[1:]):
            rows.append(
                {
                    "layer": int(self.layers[state]),
                    "state": self.states[state],
                    "indicator": self.indicators[indicator],
                    "term": self.terms[term],
                    **dict(zip(VARIANCES, self.variance[:, indicator, state, term], strict=True)),
                }
            )
        return pd.DataFrame(rows)

    def dtw_frame(self) -> pd.DataFrame:
        """Return one row a state, indicator, term and two runs: the distance of their series."""
        import pandas as pd

        if self.distance is None:
            return pd.DataFrame()
        rows = []
        for cell in np.ndindex(self.distance.shape):
            indicator, state, term, one, other = cell
            rows.append(
                {
                    "layer": int(self.layers[state]),
                    "state": self.states[state],
                    "indicator": self.indicators[indicator],
                    "term": (*self.terms, ALL_TERMS)[term],
                    "run": self.runs[one],
                    "other": self.runs[other],
                    "distance": self.distance[cell],
                }
            )
        return pd.DataFrame(rows)

    def text_frame(self) -> pd.DataFrame:
        """Return one row a score, state, indicator, term and run: the correlation over texts; the run
        ``between runs`` has that of differences between runs on the same text.
        """
        import pandas as pd

        if self.text_rho is None or self.text_low is None or self.text_high is None:
            return pd.DataFrame()
        runs = (*self.runs, BETWEEN)
        pairs = zip(
            (self.text_rho, self.text_low, self.text_high), (self.same_rho, self.same_low, self.same_high), strict=True
        )
        table = [one if same is None else np.concatenate([one, same[..., None]], -1) for one, same in pairs]
        rows = []
        for cell in np.ndindex(table[0].shape):
            score, indicator, state, term, run = cell
            rows.append(
                {
                    "score": self.scores[score],
                    "layer": int(self.layers[state]),
                    "state": self.states[state],
                    "indicator": self.indicators[indicator],
                    "term": self.terms[term],
                    "run": runs[run],
                    **dict(zip(("rho", "low", "high"), (each[cell] for each in table), strict=True)),
                }
            )
        return pd.DataFrame(rows)

    def _reached(self) -> Iterator[tuple[int, int]]:
        """Yield run and checkpoint of all that were read."""
        for run, names in enumerate(self.checkpoints):
            for at in range(len(names)):
                if np.isfinite(self.residual[run, at]):
                    yield run, at

    def _names(self, run: int, at: int) -> dict[str, object]:
        step = int(self.steps[run, at])
        return {
            "run": self.runs[run],
            "place": at + 1,
            "checkpoint": self.checkpoints[run][at],
            "step": step if step >= 0 else None,
        }
