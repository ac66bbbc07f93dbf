"""Do the terms of hidden states tell how good a model is? Indicators beside performance, over checkpoints of runs.

Mickus & Vázquez 2023, *Why bother with geometry?*, section 4: several trainings, each seen at several checkpoints;
correlations of changes, variance between runs and within them, distance between runs, and the same text by text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.decomposition_options import split_option
from embcompare.experiments.term_runs import Run, read_runs, written
from embcompare.experiments.term_series_result import TermSeriesResult

__all__ = ["TermSeries", "TermSeriesResult"]


@dataclass(frozen=True)
class TermSeries(Settings):
    """Follow the terms of several trainings, checkpoint by checkpoint, and say which go with performance."""

    experiment: ClassVar[str] = "term-series"
    version: ClassVar[int] = 2
    precision: ClassVar[str] = "float64"
    result_type: ClassVar[type[Result]] = TermSeriesResult

    runs: str = option(
        label="Runs",
        help="One training a line, or with semicolons between: its name, a colon, and its checkpoints in the order of "
        "training with commas between.",
    )
    corpus: str = option(
        "numbers",
        corpus=True,
        label="Corpus",
        help="Texts with translations for encoder-decoders: numbers, or text/DIGEST of pairs you gave; any for others.",
    )
    sentences: int = option(100, label="Texts read", low=1, high=2000, help="The first so many of the corpus.")
    mode: str = option(
        "reference",
        label="Target text",
        choices=("reference", "generated"),
        help="An encoder-decoder's states on the given translations (teacher forcing), or on what it writes itself.",
    )
    split: str = split_option("split")
    layer: int | None = option(
        None, label="Layer", low=0, help="Whose state the verdict is on; none for the last, after its final norm."
    )
    mean: str = split_option("mean")
    attention_bias: str = split_option("attention_bias")
    norm_bias: str = split_option("norm_bias")
    token_mean: str = split_option("token_mean")
    gate: str = split_option("gate")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of the intervals, which resample.")

    def __post_init__(self) -> None:
        super().__post_init__()
        # One way to write a series, so that equal ones share a result.
        object.__setattr__(self, "runs", written(read_runs(self.runs)))

    @classmethod
    def demo(cls, seeds: Sequence[int] | None = None, **changes: Any) -> Self:
        """Return the settings for the number translators that ship, all seeds or some."""
        from embcompare.demo import NUMBERS

        chosen = NUMBERS if seeds is None else {seed: NUMBERS[seed] for seed in seeds}
        runs = [Run(f"seed {seed}", tuple(f"demo/{name}" for name in names)) for seed, names in chosen.items()]
        return cls(written(runs), **changes)

    def series(self) -> tuple[Run, ...]:
        """Return the runs by name, each with its checkpoints."""
        return read_runs(self.runs)

    def models(self) -> tuple[str, ...]:
        """Return every checkpoint of every run, in order, each once."""
        return tuple(dict.fromkeys(name for run in self.series() for name in run.checkpoints))

    def content(self, fingerprints: Mapping[str, str]) -> dict[str, Any]:
        """Return what identifies the run: checkpoints by their weights, under the names of the runs."""
        found = super().content(fingerprints)
        runs = [[run.name, *(fingerprints.get(name, name) for name in run.checkpoints)] for run in self.series()]
        return {**found, "runs": runs}

    def compute(self, context: Context) -> TermSeriesResult:
        """Go through the checkpoints one by one: performance, terms, indicators; then the statistics."""
        import torch

        from embcompare.experiments.term_series_run import SeriesRun

        with torch.inference_mode():
            return SeriesRun(self, context).result()
