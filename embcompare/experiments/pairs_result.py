"""What a close look at one layer of A and one of B gives: neighbours row by row, spectra, and points in one plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.base import Result

if TYPE_CHECKING:
    import pandas as pd

CLIPPED = 60
"""Characters of a neighbour's sentence in the table."""


@dataclass(frozen=True, eq=False)
class RepresentationPairResult(Result):
    """Two layers on the same n paired rows, numbered 0 to n - 1; m of them are listed, k neighbours each.

    What is undefined (a constant layer, say) is NaN, -1 for a neighbour, None for a count and () for a spectrum; a
    notice says why. Texts: ``text(row)`` of every row if n is at most ``pairs_texts.ALL_TEXTS``, else of the
    rows that are listed and of those that are a listed row's neighbour.
    """

    name_a: str
    """What the layer of A is, such as ``block 3``."""
    name_b: str
    """What the layer of B is."""
    rows: int
    """n: rows (sentences, words, tokens or given vectors) compared."""
    items: int
    """Sentences they come from."""
    k: int
    """Neighbours counted; fewer than were asked for where the rows are few."""
    listed: np.ndarray
    """(m,) int64, ascending: the rows listed and drawn, spread evenly over all n by the seed."""
    neighbours_a: np.ndarray
    """(m, k) int64: the k rows nearest to each listed row in A, nearest first; of equally near ones the first rows."""
    neighbours_b: np.ndarray
    """(m, k) int64, likewise in B."""
    kept: np.ndarray
    """(n,) float64: for every row the share of its k neighbours in A that are its neighbours in B."""
    jaccard: np.ndarray
    """(n,) float64: for every row the shared neighbours over all that are neighbours in A or B."""
    mean_kept: float
    """Mean of ``kept`` over all n rows; the measure ``mutual_knn`` where no row has ties for the k-th place."""
    kept_chance: float
    """What unrelated layers keep, k / (n - 1)."""
    spectrum_a: np.ndarray
    """(r_a,) float64, descending, sum 1: share of the variance of each principal component of A, rounding left out."""
    spectrum_b: np.ndarray
    """(r_b,) float64, likewise of B."""
    effective_rank_a: float
    """Effective rank of A, :func:`embcompare.measures.effective_rank`."""
    effective_rank_b: float
    """Effective rank of B."""
    components_a: int | None
    """Fewest principal components of A that hold 90 % of its variance."""
    components_b: int | None
    """Fewest principal components of B that hold 90 % of its variance."""
    aligned_by: str
    """``"rotation"`` (feature space: B turned onto A) or ``"shared coordinates"`` (embedding space: nothing turned)."""
    xy_a: np.ndarray
    """(m, 2) float64: A's listed rows in the plane; the unit is the root-mean-square distance from the centre."""
    xy_b: np.ndarray
    """(m, 2) float64: the same rows of B in the same plane and unit."""
    plane_share_a: float
    """Share of A's variance that the plane shows."""
    plane_share_b: float
    """Share of B's variance that the plane shows."""
    residual: np.ndarray
    """(n,) float64: for every row the distance of its two points in all dimensions, in the unit of the plane."""
    fit: float
    """1 - (mean of residual²) / 2 over all n rows: 1 where the clouds coincide; it equals ⟨A, B⟩ / (‖A‖ ‖B‖) as
    aligned, so with a rotation it is the cosine of the Procrustes angle."""
    fit_chance: float
    """The same of wrongly paired rows, each aligned anew, the mean of ``pairs_run.CHANCE_DRAWS``."""
    sentences: tuple[str, ...]
    """Texts that rows refer to, each once: sentences, or the ids (else numbers) of given vectors."""
    sentence_labels: tuple[str, ...]
    """The label (genre) of each of ``sentences``; () where the corpus has none."""
    sentence_of: np.ndarray
    """(n,) int64: which of ``sentences`` a row belongs to, -1 where its text is not kept."""
    spans: np.ndarray
    """(n, 2) int64: first and last (exclusive) character of a word or token in its sentence, -1 for a whole one."""

    @property
    def texts(self) -> tuple[str, ...]:
        """(m,): the text of each listed row, see :meth:`text`."""
        return tuple(self.text(row) for row in self.listed.tolist())

    @property
    def labels(self) -> tuple[str, ...]:
        """(m,): the label of each listed row; () where the corpus has none."""
        return tuple(self.label(row) for row in self.listed.tolist()) if self.sentence_labels else ()

    def text(self, row: int) -> str:
        """Return a row's sentence or id, or ``word — its sentence with the [word] marked``; ``row 7`` if not kept."""
        at, (start, end) = int(self.sentence_of[row]), self.spans[row].tolist()
        if at < 0:
            return f"row {row}"
        whole = self.sentences[at]
        return whole if start < 0 else f"{self.word(row)} — {whole[:start]}[{whole[start:end]}]{whole[end:]}"

    def word(self, row: int) -> str:
        """Return the word or token that a row is, white space made visible; the whole text where it is no part."""
        from embcompare.text.tokens import visible

        at, (start, end) = int(self.sentence_of[row]), self.spans[row].tolist()
        return self.text(row) if start < 0 else visible(self.sentences[at][start:end])

    def label(self, row: int) -> str:
        """Return the label of a row's sentence; empty where there is none or it is not kept."""
        at = int(self.sentence_of[row])
        return self.sentence_labels[at] if self.sentence_labels and at >= 0 else ""

    def to_frame(self) -> pd.DataFrame:
        """Return one row a listed row; neighbours as words, or sentences clipped, joined by `` | ``."""
        import pandas as pd

        at = self.listed
        near = {side: [self._joined(rows) for rows in table.tolist()] for side, table in self._neighbours()}
        return pd.DataFrame(
            {
                "row": at,
                "text": self.texts,
                "label": self.labels or "",
                "kept": self.kept[at],
                "jaccard": self.jaccard[at],
                "neighbours_a": near["a"],
                "neighbours_b": near["b"],
                "x_a": self.xy_a[:, 0],
                "y_a": self.xy_a[:, 1],
                "x_b": self.xy_b[:, 0],
                "y_b": self.xy_b[:, 1],
                "residual": self.residual[at],
            }
        )

    def _neighbours(self) -> tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]:
        return ("a", self.neighbours_a), ("b", self.neighbours_b)

    def _joined(self, rows: list[int]) -> str:
        words = (self.word(row) for row in rows if row >= 0)
        return " | ".join(word if len(word) <= CLIPPED else word[: CLIPPED - 1] + "…" for word in words)
