"""What stitching two models at every pair of layers gives, how sure it is, and its tidy table."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Result
from embcompare.learning import wilson

if TYPE_CHECKING:
    import pandas as pd

HIGHER_IS_BETTER = {"accuracy": True, "agreement": True, "loss": False, "kl": False}
"""Direction of every score."""
LEVEL = 0.05
"""Chance of calling any cell of a grid better than chance when none is."""


@dataclass(frozen=True, eq=False)
class StitchingResult(Result):
    """Scores of the stitched models: ``r`` runs by ``m`` maps by ``s`` scores by cuts of A by entries of B.

    Cut i takes A's hidden state i, after i blocks (0 the embedding output); entry k replaces B's hidden state k, so
    that B's blocks from k on run. Losses are natural logarithms per token (per text, for classes).
    """

    kernels: tuple[str, ...]
    """(m,) names of the maps, see :data:`embcompare.maps.KERNELS`."""
    scores: tuple[str, ...]
    """(s,) names of the scores; :data:`HIGHER_IS_BETTER` has their direction."""
    values: np.ndarray
    """(r, m, s, L_A + 1, L_B + 1) float64."""
    errors: np.ndarray
    """Same shape: standard error over texts."""
    own_a: np.ndarray
    """(r, s): A alone; NaN where it does not answer the same question."""
    own_b: np.ndarray
    """(r, s): B alone."""
    own_b_errors: np.ndarray
    """(r, s): its standard error over texts."""
    base: np.ndarray
    """(r, s): the base rate."""
    gain_errors: np.ndarray
    """(r, m, L_A + 1, L_B + 1) float64: standard error, over texts, of how much better the main score is than the base
    rate's on the same text."""
    distinct_texts: int
    """Texts that any run scored, each counted once."""
    base_name: str
    """``"unigram"`` or ``"majority class"``."""
    task: str
    """``"next token"``, ``"masked token"`` or ``"classes"``."""
    run_names: tuple[str, ...]
    """(r,) model B and seed of each run."""
    counts: np.ndarray
    """(r,) int64: places, or texts, scored."""
    run_texts: np.ndarray
    """(r,) int64: texts scored in each run."""
    texts: tuple[str, ...]
    """(n,) the texts of the first run."""
    labels: tuple[str, ...]
    """(n,) their labels; empty for tokens."""
    text_counts: np.ndarray
    """(n,) int64: places scored in each."""
    text_loss: np.ndarray
    """(m, n, L_A + 1, L_B + 1) float64: mean loss on each text of the first run."""
    text_hits: np.ndarray
    """Same shape: whether the class is right, or the share of places where the first choice is B's."""
    text_own_loss: np.ndarray
    """(n,) float64: B alone."""
    text_own_hits: np.ndarray
    """(n,) float64: B alone; of tokens all are its own choice."""
    condition: np.ndarray
    """(m,) float64: condition number of what each map inverted, in the first run; NaN where each pair has its own."""
    explained: np.ndarray
    """(m,) float64: share of variance that the map reproduces; NaN likewise, or where there is none."""
    held_out: np.ndarray
    """(m, L_A + 1, L_B + 1) float64: R² on states kept aside, of maps fitted on states; NaN for others."""
    identity_error: np.ndarray
    """(L_B + 1,) float64: B's own states handed to its own upper part: largest difference of logits from B's, over
    their largest size; the worst run."""
    by: str
    """``"tokens"``, or ``"words"`` where the two tokenizers differ."""
    shared: int
    """Tokens that both vocabularies have; 0 where no map asked."""

    def at(self, score: str) -> int:
        """Return the place of a score; an unknown one raises :class:`SettingsError`."""
        if score not in self.scores:
            raise SettingsError(f"There is no score '{score}' here; there are {', '.join(self.scores)}.")
        return self.scores.index(score)

    def kernel(self, name: str) -> int:
        """Return the place of a map; an unknown one raises :class:`SettingsError`."""
        if name not in self.kernels:
            raise SettingsError(f"The map '{name}' was not used; there are {', '.join(self.kernels)}.")
        return self.kernels.index(name)

    @property
    def main_score(self) -> str:
        """What matters first: accuracy of classes, loss of tokens."""
        return self.scores[0]

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.run_names)

    def mean(self, kernel: str, score: str) -> np.ndarray:
        """Return the mean over runs, (L_A + 1, L_B + 1)."""
        return np.asarray(self.values[:, self.kernel(kernel), self.at(score)].mean(0))

    def sd(self, kernel: str, score: str) -> np.ndarray:
        """Return the standard deviation over runs; NaN for one run."""
        if self.runs < 2:
            return np.full(self.values.shape[-2:], np.nan)
        return np.asarray(self.values[:, self.kernel(kernel), self.at(score)].std(0, ddof=1))

    def best_entries(self, kernel: str, score: str) -> np.ndarray:
        """Return for every cut of A the entry of B, behind the embedding output, with the best mean, (L_A + 1,) int64.

        The cut at 0 and entries at 0 are no middle of a model, so entry 0 is looked at for cut 0 only.
        """
        mean = self.mean(kernel, score) * (1 if HIGHER_IS_BETTER[score] else -1)
        inner = np.where(np.isnan(mean), -np.inf, mean)
        best = inner[:, 1:].argmax(1) + 1
        return np.concatenate([[int(inner[0].argmax())], best[1:]]).astype(np.int64)

    def interval(self, kernel: str) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds of the main score, 95 % each cell: over runs where there are three or more, else over texts.

        Over texts: Wilson's interval of an accuracy, 1.96 standard errors of a loss. Over runs: Student's t.
        """
        from scipy import stats

        score = self.at(self.main_score)
        values, errors = (each[:, self.kernel(kernel), score] for each in (self.values, self.errors))
        if self.runs > 2:
            half = stats.t.ppf(0.975, self.runs - 1) * values.std(0, ddof=1) / np.sqrt(self.runs)
            return values.mean(0) - half, values.mean(0) + half
        if self.main_score == "accuracy":
            return wilson(values[0] * self.counts[0], int(self.counts[0]))
        return values[0] - 1.959964 * errors[0], values[0] + 1.959964 * errors[0]

    def gain(self, kernel: str) -> np.ndarray:
        """Return how much better the mean main score is than the base rate's, (L_A + 1, L_B + 1); worse is negative."""
        score = self.at(self.main_score)
        sign = 1 if HIGHER_IS_BETTER[self.main_score] else -1
        values = self.values[:, self.kernel(kernel), score]
        return np.asarray((sign * (values - self.base[:, score, None, None])).mean(0))

    def beyond_base(self, kernel: str) -> np.ndarray:
        """Return where the main score beats the base rate, (L_A + 1, L_B + 1) bool, all cells looked at allowed for.

        The level, 5 %, is shared among the cells (Bonferroni). Texts are what is sampled, each counted once however
        many runs scored it, so that runs sharpen the mean but repeat no text: of accuracies an exact binomial test of
        the mean against the majority's mean share; of losses a t test of the gains, paired by text.
        """
        from scipy import stats

        n, cells = self.distinct_texts, self._cells
        if self.main_score == "accuracy":
            score = self.at("accuracy")
            right = np.round(self.mean(kernel, "accuracy") * n)
            p = stats.binom.sf(right - 1, n, self.base[:, score].mean())
        else:
            # a run's error is that of its own texts; all runs' texts together are as many as are distinct
            texts = np.maximum(self.run_texts.astype(float), 1.0)
            errors = self.gain_errors[:, self.kernel(kernel)] * np.sqrt(texts / n)[:, None, None]
            spread = np.sqrt(np.square(errors).mean(0))
            with np.errstate(all="ignore"):
                p = stats.t.sf(self.gain(kernel) / spread, max(1, n - 1))
        return np.asarray(np.nan_to_num(p, nan=1.0) < LEVEL / cells)

    def standing(self, kernel: str) -> np.ndarray:
        """Return what can be said of every cell against the base rate, (L_A + 1, L_B + 1) int64.

        1: better, beyond doubt (:meth:`beyond_base`); -1: its mean is no better, or undefined; 0: better, but with too
        few texts to tell.
        """
        gain = self.gain(kernel)
        better = np.where(np.isnan(gain), -np.inf, gain) > 0
        return np.where(self.beyond_base(kernel), 1, np.where(better, 0, -1)).astype(np.int64)

    @property
    def can_tell(self) -> bool:
        """Whether any outcome with these texts could have been beyond the base rate."""
        if self.main_score != "accuracy":
            return self.distinct_texts > 2
        share = float(self.base[:, self.at("accuracy")].mean())
        return bool(share**self.distinct_texts < LEVEL / self._cells)

    @property
    def _cells(self) -> int:
        return int(self.values.shape[-1] * self.values.shape[-2])

    def advantage(self, kernel: str, control: str) -> tuple[np.ndarray, np.ndarray]:
        """Return how much less loss a map has than a control on the first run's texts, and its standard error.

        Both (L_A + 1, L_B + 1), in nats per token (per text, for classes), paired by text.
        """
        from embcompare.measures.distributions import clustered_mean

        weight = self.text_counts.astype(float)
        difference = self.text_loss[self.kernel(control)] - self.text_loss[self.kernel(kernel)]
        return clustered_mean(difference * weight[:, None, None], weight)

    def to_frame(self) -> pd.DataFrame:
        """Return one row a run, map and pair of layers: every score with its standard error."""
        import pandas as pd

        cuts, entries = self.values.shape[-2:]
        rows = []
        for run, (at, kernel), i, k in itertools.product(
            range(self.runs), enumerate(self.kernels), range(cuts), range(entries)
        ):
            row: dict[str, object] = {
                "run": self.run_names[run],
                "map": kernel,
                "cut": i,
                "entry": k,
                "blocks_a": i,
                "blocks_b": entries - 1 - k,
            }
            for place, score in enumerate(self.scores):
                row[score] = self.values[run, at, place, i, k]
                row[f"{score}_error"] = self.errors[run, at, place, i, k]
            rows.append(row)
        return pd.DataFrame(rows)

    def example_frame(self, kernel: str, cut: int, entry: int) -> pd.DataFrame:
        """Return one row a text of the first run: what the stitched model and B alone make of it, at one cell."""
        import pandas as pd

        at = self.kernel(kernel)
        for name, value, last in (("cut", cut, self.values.shape[-2]), ("entry", entry, self.values.shape[-1])):
            if not 0 <= value < last:
                raise SettingsError(f"There is no {name} {value}; they are 0 to {last - 1}.")
        columns: dict[str, object] = {"text": self.texts}
        if self.labels:
            columns["label"] = self.labels
        columns |= {
            "loss": self.text_loss[at, :, cut, entry],
            "loss_b": self.text_own_loss,
            "worse_by": self.text_loss[at, :, cut, entry] - self.text_own_loss,
            "right" if self.labels else "agreement": self.text_hits[at, :, cut, entry],
        }
        if self.labels:
            columns["right_b"] = self.text_own_hits
        columns["places"] = self.text_counts
        return pd.DataFrame(columns)
