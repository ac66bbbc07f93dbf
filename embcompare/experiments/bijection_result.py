"""What maps from one layer to another reach: scores, learning curves, texts, a sample of points, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("mse", "r2", "cosine", "retrieval", "cycle")
"""Scores of a map, as :class:`embcompare.maps.Scores` defines them; of ``mse`` and ``cycle`` less is better."""
PARTS = ("train", "test")


@dataclass(frozen=True, eq=False)
class BijectionResult(Result):
    """``m`` maps in ``r`` runs between one layer of A, d_a wide, and one of B, d_b wide.

    A map in closed form is fitted once: it has values in the first run and NaN in the others, as has everything that
    is undefined; ``reasons`` says why. Coordinates and errors are in the unit that maps were fitted in: each feature's
    standard deviation over the training rows, or, not standardised, the model's own.
    """

    maps: tuple[str, ...]
    """(m,) names, see :data:`embcompare.maps.MAPS`."""
    seeds: tuple[int, ...]
    """(r,) seed of each run's training."""
    name_a: str
    """What the layer of A is, such as ``block 3``."""
    name_b: str
    """What the layer of B is."""
    width_a: int
    """d_a."""
    width_b: int
    """d_b."""
    rows: tuple[int, int, int]
    """Rows for training, validation and test."""
    texts_in: tuple[int, int, int]
    """Texts (or given rows) that they come from."""
    scores: np.ndarray
    """(m, r, 2, 5) float64: by ``PARTS`` and ``METRICS``."""
    reasons: tuple[tuple[str, str, str, str], ...]
    """Map, part, metric and why it has no value; part and metric are empty for a map that could not be fitted."""
    curves: np.ndarray
    """(m, r, e, 2) float64: loss on training and validation rows after each epoch, 0 the start, as a share of the
    variance of B's training rows; NaN beyond the end, and for maps that are not trained."""
    best_epoch: np.ndarray
    """(m, r) int64: the epoch whose weights were kept; -1 where nothing was trained."""
    start: tuple[str, ...]
    """(m,) the linear map that each network began at; empty for others."""
    ended: tuple[str, ...]
    """(m,) why the last training ended; empty likewise."""
    log_determinant: np.ndarray
    """(m, r) float64: log |det J|, of a network the mean over training rows; NaN between different widths."""
    condition: np.ndarray
    """(m, r) float64: condition number of J, of a network the median over a few training rows."""
    seconds: np.ndarray
    """(m, r) float64: time that fitting took, parts of it that were taken up again included."""
    text_numbers: np.ndarray
    """(s,) int64: which text of the corpus each of the test texts is; which given row without a corpus."""
    texts: tuple[str, ...]
    """(s,) the test texts; the worst of them where they are many."""
    text_rows: np.ndarray
    """(s,) int64: rows of each."""
    text_errors: np.ndarray
    """(m, s) float64: mean squared error on each text, over its rows, all features and runs."""
    sample_texts: tuple[str, ...]
    """(q,) what each test row of the sample is: a text, or a token or word in it."""
    sample_labels: tuple[str, ...]
    """(q,) their labels (genres); empty where the corpus has none."""
    sample_target: np.ndarray
    """(q, c) float64: B's own rows along the ``c`` principal directions of B's training rows."""
    sample_mapped: np.ndarray
    """(m, q, c) float64: the mapped rows along the same, in the first run."""
    sample_errors: np.ndarray
    """(m, q) float64: mean squared error of each row, over all features and runs."""
    sample_shares: np.ndarray
    """(c,) float64: share of the variance of B's training rows along each direction."""
    kind: str
    """What is needed, one of :class:`embcompare.maps.Kind`; empty where a map that the reading needs is missing."""
    sentence: str
    """The same in one sentence."""
    rotation: str
    """The map that stands for a rotation in the reading; empty where none was fitted."""
    linear: str
    """The map that stands for linear ones, the best on validation rows; empty likewise."""
    gap_names: tuple[tuple[str, str], ...]
    """(g,) pairs of maps, by the names of the reading: mean, orthogonal, linear, inn, mlp."""
    gaps: np.ndarray
    """(g, 3) float64: R² of the second minus that of the first on test rows, and the ends of its 95 % interval over
    texts (bootstrap)."""
    answer_scores: tuple[str, ...]
    """(k,) what B's predictions from mapped states are scored by: loss and kl in nats a token, agreement with B's own
    first choice. Empty, and the fields below None, where B cannot go on; a notice says why."""
    answers: np.ndarray | None
    """(m, r, k) float64 on ``answer_texts`` of the test texts."""
    answer_errors: np.ndarray | None
    """(m, r, k) float64: standard error over texts."""
    answers_own: np.ndarray | None
    """(k,) B's own states handed to B: its own loss, and zero and one up to rounding."""
    answers_base: np.ndarray | None
    """(k,) token frequencies of the training texts alone."""
    answer_task: str
    """``"next token"`` or ``"masked token"``."""
    answer_texts: int
    """Texts scored."""
    answer_places: int
    """Tokens predicted."""

    metrics: ClassVar[tuple[str, ...]] = METRICS
    parts: ClassVar[tuple[str, ...]] = PARTS

    def at(self, name: str) -> int:
        """Return the place of a map; an unknown one raises :class:`SettingsError`."""
        return _place("map", name, self.maps)

    def values(self, name: str, metric: str, part: str = "test") -> np.ndarray:
        """Return a map's score in every run that it has, (≤ r,) float64; names as in ``METRICS`` and ``PARTS``."""
        found = self.scores[self.at(name), :, _place("part", part, PARTS), _place("score", metric, METRICS)]
        return np.asarray(found[np.isfinite(found)])

    def mean(self, name: str, metric: str, part: str = "test") -> float:
        """Return the mean of a score over runs; NaN where it is undefined."""
        found = self.values(name, metric, part)
        return float(found.mean()) if len(found) else float("nan")

    def interval(self, name: str, metric: str, part: str = "test") -> tuple[float, float]:
        """Return the ends of Student's 95 % interval over runs: how much the training's seed matters; NaN for one run.

        How much the choice of texts matters, ``gaps`` tell.
        """
        from embcompare.maps import interval

        found = self.values(name, metric, part)
        return interval(found)[1:] if len(found) > 1 else (float("nan"), float("nan"))

    def gap(self, first: str, second: str) -> tuple[float, float, float]:
        """Return R² of ``second`` minus that of ``first``, names as in the reading, and the ends of its interval."""
        if (first, second) not in self.gap_names:
            raise SettingsError(f"The gap from '{first}' to '{second}' was not taken here.")
        value, low, high = self.gaps[self.gap_names.index((first, second))].tolist()
        return value, low, high

    def to_frame(self) -> pd.DataFrame:
        """Return one row a map, run and part: every score, and what is known of the fit."""
        import pandas as pd

        rows = []
        for at, name in enumerate(self.maps):
            for run, seed in enumerate(self.seeds):
                if run and np.isnan(self.scores[at, run]).all():
                    continue
                for part, label in enumerate(PARTS):
                    row: dict[str, object] = {"map": name, "run": run, "seed": seed, "part": label}
                    row |= dict(zip(METRICS, self.scores[at, run, part].tolist(), strict=True))
                    row |= {
                        "rows": self.rows[0] if label == "train" else self.rows[2],
                        "log_determinant": self.log_determinant[at, run],
                        "condition": self.condition[at, run],
                        "best_epoch": int(self.best_epoch[at, run]),
                        "seconds": self.seconds[at, run],
                    }
                    if self.answers is not None and label == "test":
                        row |= {f"b_{score}": self.answers[at, run, k] for k, score in enumerate(self.answer_scores)}
                    rows.append(row)
        return pd.DataFrame(rows)

    def text_frame(self, name: str) -> pd.DataFrame:
        """Return one row a test text, the worst of a map first."""
        import pandas as pd

        errors = self.text_errors[self.at(name)]
        frame = pd.DataFrame({"text": self.texts, "mse": errors, "rows": self.text_rows, "number": self.text_numbers})
        return frame.sort_values("mse", ascending=False, kind="stable", ignore_index=True)

    def curve_frame(self) -> pd.DataFrame:
        """Return one row a map, run, epoch and part (train, validation): the loss."""
        import pandas as pd

        at, run, epoch = np.nonzero(np.isfinite(self.curves[..., 1]))
        parts = []
        for k, part in enumerate(("train", "validation")):
            columns: dict[str, object] = {"map": np.array(self.maps, dtype=object)[at], "run": run, "epoch": epoch}
            parts.append(pd.DataFrame({**columns, "part": part, "loss": self.curves[at, run, epoch, k]}))
        return pd.concat(parts, ignore_index=True)

    def gap_frame(self) -> pd.DataFrame:
        """Return one row a gap: R² of the second map minus that of the first, and its interval."""
        import pandas as pd

        first, second = zip(*self.gap_names, strict=True) if self.gap_names else ((), ())
        low, high = self.gaps[:, 1], self.gaps[:, 2]
        return pd.DataFrame({"first": first, "second": second, "gap": self.gaps[:, 0], "low": low, "high": high})

    def sample_frame(self, name: str, direction: int = 0) -> pd.DataFrame:
        """Return one row a sampled test row: target and mapped along one principal direction, and its error."""
        import pandas as pd

        if not 0 <= direction < self.sample_target.shape[1]:
            raise SettingsError(f"There is no direction {direction}; they are 0 to {self.sample_target.shape[1] - 1}.")
        at = self.at(name)
        return pd.DataFrame(
            {
                "text": self.sample_texts,
                "label": self.sample_labels or "",
                "target": self.sample_target[:, direction],
                "mapped": self.sample_mapped[at, :, direction],
                "mse": self.sample_errors[at],
            }
        )


def _place(what: str, name: str, among: tuple[str, ...]) -> int:
    if name not in among:
        raise SettingsError(f"There is no {what} '{name}' here; there are {', '.join(among)}.")
    return among.index(name)
