"""One layer of A against one of B, row by row: which neighbours are kept, both spectra, both clouds in one plane."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from embcompare.errors import EmbcompareWarning, Incomparable
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.sides import POOLINGS, Pair, Side, check_coordinates, read_pair, wrong_order

if TYPE_CHECKING:
    import pandas as pd

    from embcompare.measures.declaration import Matrix

ALL_TEXTS = 5000
"""Up to so many rows the text of every row is kept with the result; beyond, of those listed and their neighbours."""
BLOCK_ENTRIES = 1 << 20
"""Distances held at once."""
CHANCE_DRAWS = 3
"""Wrong pairings that the chance of the fit is averaged over."""
DOMINANT = 0.5
"""A share of the variance in one dimension above this draws a warning."""
MOST = 0.9
"""The share of the variance that ``components_a`` and ``components_b`` count the components of."""
CLIPPED = 60
"""Characters of a neighbour's sentence in the table."""

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class RepresentationPairResult(Result):
    """Two layers on the same n paired rows, numbered 0 to n - 1; m of them are listed, k neighbours each.

    What is undefined (a constant layer, say) is NaN, -1 for a neighbour, None for a count and () for a spectrum; a
    notice says why. Texts: ``text(row)`` of every row if n is at most ``ALL_TEXTS``, else of the rows that are listed
    and of those that are a listed row's neighbour.
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
    """The same of wrongly paired rows, each aligned anew, the mean of ``CHANCE_DRAWS``."""
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


@dataclass(frozen=True)
class RepresentationPair(Settings):
    """Look closely at one layer of A and one of B: neighbours kept, spectra, and both clouds of points in one plane."""

    experiment: ClassVar[str] = "representation-pair"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = RepresentationPairResult

    model_a: str = option(
        model=True, vectors=True, label="Model A", help="Demo model, folder, hub name, or vectors/DIGEST."
    )
    model_b: str = option(
        model=True, vectors=True, label="Model B", help="Demo model, folder, hub name, or vectors/DIGEST."
    )
    layer_a: int = option(label="Layer of A", low=0, help="0 is the embedding output; given vectors have only that.")
    layer_b: int = option(label="Layer of B", low=0, help="0 is the embedding output; given vectors have only that.")
    space: str = option(
        "feature",
        label="Space",
        choices=("feature", "embedding"),
        help="The models' own coordinates, or every state read through the shared vocabulary.",
    )
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    pooling: str = option("mean", label="Rows", choices=tuple(POOLINGS), help="What a row of the comparison is.")
    k: int = option(10, label="Neighbours", low=1, high=100, help="Nearest rows looked at.")
    metric: str = option("cosine", label="Nearness", choices=("cosine", "euclidean"), help="What makes rows near.")
    shown: int = option(400, label="Rows listed", low=1, high=5000, help="Rows listed and drawn; all are computed.")
    standardise: bool = option(
        False, label="Standardise", help="Scale every feature to unit variance first (feature space)."
    )
    final_norm: bool = option(
        False, label="Final norm", help="Pass every layer through the final norm first (embedding space)."
    )
    centred: bool = option(True, label="Centred", help="Embedding space: centre each state over the vocabulary.")
    common: int = option(
        0,
        label="Common directions left out",
        low=0,
        high=64,
        help="Embedding space: strongest directions to leave out.",
    )
    embedding: str = option("output", label="Embedding", choices=("output", "input"), help="Matrix to read through.")
    max_rows: int = option(4000, label="Rows at most", low=4, high=200_000, help="Whole sentences are drawn.")
    pairing: str = option("row", label="Pair vectors by", choices=("row", "id"), help="For your own vectors.")
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of rows, of those listed, and of wrong pairings.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coordinates(self)

    def compute(self, context: Context) -> RepresentationPairResult:
        """Read one layer a side, then neighbours, spectra and the plane."""
        pair = read_pair(self, context, shared=self.space == "embedding", only=(self.layer_a, self.layer_b))
        return _Run(self, context, pair).result()


class _Run:
    """One run's moving parts: the paired rows, the notices so far, and the count of steps done."""

    def __init__(self, settings: RepresentationPair, context: Context, pair: Pair) -> None:
        self.settings, self.context, self.pair = settings, context, pair
        self.notices = [*pair.notices]
        self.n = len(pair.rows)
        if self.n < 3:
            raise Incomparable(
                f"Only {self.n} row{'s' * (self.n != 1)} can be paired, and neighbours need at least 3; give more text."
            )
        self.k = min(settings.k, self.n - 2)
        if self.k < settings.k:
            self.notices.append(
                f"With {self.n} rows {settings.k} neighbours would be (nearly) everybody; {self.k} are counted."
            )
        self.block = max(1, BLOCK_ENTRIES // self.n)
        self.steps, self.done = 2 * -(-self.n // self.block) + 3, 0

    def result(self) -> RepresentationPairResult:
        from embcompare.experiments.clouds import evenly_drawn, shared_counts

        a, b = self.pair.a, self.pair.b
        listed = evenly_drawn(self.n, self.settings.shown, self.settings.seed)
        near_a, near_b = self._neighbours(a), self._neighbours(b)
        kept = shared_counts(near_a, near_b) / self.k
        undefined = (near_a[:, 0] < 0) | (near_b[:, 0] < 0)
        kept[undefined] = np.nan
        cloud_a, cloud_b = self._cloud(a), self._cloud(b)
        spectra = [self._spectrum(side, cloud) for side, cloud in ((a, cloud_a), (b, cloud_b))]
        view = self._view(cloud_a, cloud_b)
        near_a, near_b = near_a[listed], near_b[listed]
        return RepresentationPairResult(
            name_a=a.names[0],
            name_b=b.names[0],
            rows=self.n,
            items=len(np.unique(self.pair.items)),
            k=self.k,
            listed=listed,
            neighbours_a=near_a,
            neighbours_b=near_b,
            kept=kept,
            jaccard=kept / (2 - kept),
            mean_kept=float(kept.mean()),
            kept_chance=self.k / (self.n - 1),
            spectrum_a=spectra[0][0],
            spectrum_b=spectra[1][0],
            effective_rank_a=spectra[0][1],
            effective_rank_b=spectra[1][1],
            components_a=spectra[0][2],
            components_b=spectra[1][2],
            aligned_by="rotation" if self._turned else "shared coordinates",
            xy_a=view.xy_a[listed],
            xy_b=view.xy_b[listed],
            plane_share_a=view.share_a,
            plane_share_b=view.share_b,
            residual=view.residual,
            fit=1 - float(np.mean(view.residual**2)) / 2,
            fit_chance=view.chance,
            **self._texts(np.unique(np.concatenate([listed, near_a.ravel(), near_b.ravel()]))),
            notices=tuple(self.notices),
        )

    @property
    def _turned(self) -> bool:
        return self.settings.space == "feature"

    def _step(self, message: str) -> None:
        self.context.report(self.done, self.steps, message)
        self.done += 1

    def _defined(self, what: str, side: Side, value: Callable[[], Found]) -> Found | None:
        from embcompare.measures import UndefinedMeasure

        try:
            return value()
        except UndefinedMeasure as reason:
            which = "A" if side is self.pair.a else "B"
            self.notices.append(f"{what} of {side.label} ({which}, {side.names[0]}) cannot be given: {reason}")
            return None

    def _neighbours(self, side: Side) -> np.ndarray:
        """Return every row's neighbours on one side, (n, k) int64, -1 where they are undefined."""
        from embcompare.experiments.clouds import nearest
        from embcompare.measures.declaration import as_matrix, centred
        from embcompare.measures.distances import unit_rows

        def found() -> tuple[np.ndarray, int]:
            x = as_matrix(side.layers[0])
            points = unit_rows(x) if self.settings.metric == "cosine" else centred(x)
            return nearest(points, self.k, self.block, lambda: self._step(f"{side.label}: nearest rows"))

        before = self.done
        answer = self._defined("The neighbours", side, found)
        self.done = before + -(-self.n // self.block)
        if answer is None:
            return np.full((self.n, self.k), -1, dtype=np.int64)
        if answer[1]:
            self.notices.append(
                f"{side.label}: {answer[1]:,} rows have several others equally near for their last place among "
                f"{self.k}; the first in the text are taken, where the measures of neighbours share the place."
            )
        return answer[0]

    def _cloud(self, side: Side) -> tuple[Matrix, Matrix] | None:
        """Return one side's points, centred and of unit norm, (n, r), and their singular values; None if constant."""
        from embcompare.measures import top_dimension_share
        from embcompare.measures.declaration import as_matrix, centred

        self._step(f"{side.label}: spectrum")
        unit = self._defined("Spectrum and place in the plane", side, lambda: centred(as_matrix(side.layers[0])))
        if unit is None:
            return None
        if self._turned and top_dimension_share(unit) > DOMINANT:
            self.notices.append(
                f"{side.label}: one dimension holds more than half of the variance of {side.names[0]} and decides the "
                "plane and the fit; standardise to give all dimensions a say."
            )
        if self._turned and unit.shape[1] > self.n:  # principal coordinates: what a rotation leaves is the same
            u, singular, _ = np.linalg.svd(unit, full_matrices=False)
            return u * singular, np.asarray(singular, dtype=np.float64)
        return unit, np.asarray(np.linalg.svd(unit, compute_uv=False), dtype=np.float64)

    def _spectrum(self, side: Side, cloud: tuple[Matrix, Matrix] | None) -> tuple[Matrix, float, int | None]:
        from embcompare.measures import effective_rank
        from embcompare.measures.declaration import resolution

        if cloud is None:
            return np.empty(0), float("nan"), None
        layer, singular = side.layers[0], cloud[1]
        shares = singular[singular > 10 * resolution(layer) * singular[0]] ** 2
        shares = shares / shares.sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmbcompareWarning)
            rank = effective_rank(layer)
        # a share of exactly 90 % must not be missed by a rounding
        return shares, rank, int(np.searchsorted(np.cumsum(shares), MOST - 1e-12)) + 1

    def _view(self, cloud_a: tuple[Matrix, Matrix] | None, cloud_b: tuple[Matrix, Matrix] | None) -> _View:
        from embcompare.experiments.clouds import leading_plane, turned

        self._step("aligning both layers")
        nothing = np.full((self.n, 2), np.nan)
        if cloud_a is None or cloud_b is None:
            return _View(nothing, nothing, float("nan"), float("nan"), nothing[:, 0], float("nan"))
        a, b = cloud_a[0], cloud_b[0]
        chance = self._chance(a, b)
        width = max(self.pair.a.layers[0].shape[1], self.pair.b.layers[0].shape[1])
        if self._turned:
            if self.n < 10 * width:
                self.notices.append(
                    f"{self.n:,} rows for vectors {width} wide are few for a rotation: wrongly paired rows reach a fit "
                    f"of {chance:.2f} too, so read the fit beside that."
                )
            a, b = turned(a, b)
        xy_a, xy_b = leading_plane(a, b)
        unit = np.sqrt(self.n)
        return _View(
            xy_a * unit,
            xy_b * unit,
            float(np.sum(xy_a**2)),
            float(np.sum(xy_b**2)),
            np.linalg.norm(a - b, axis=1) * unit,
            chance,
        )

    def _chance(self, a: Matrix, b: Matrix) -> float:
        """Return the mean fit of wrong pairings: ⟨A, B R⟩ is the sum of the singular values of AᵀB at the best R."""
        generator = np.random.default_rng([self.settings.seed, 2])
        fits = []
        for _ in range(CHANCE_DRAWS):
            wrong = b[wrong_order(generator, self.pair.items)]
            fits.append(np.linalg.svd(a.T @ wrong, compute_uv=False).sum() if self._turned else np.sum(a * wrong))
        return float(np.mean(fits))

    def _texts(self, referenced: np.ndarray) -> dict[str, Any]:
        """Return the fields that hold texts: those of all rows, or of the ``referenced`` ones where rows are many."""
        pair, n = self.pair, self.n
        rows = np.arange(n) if n <= ALL_TEXTS else referenced[referenced >= 0]
        spans = np.full((n, 2), -1, dtype=np.int64)
        sentence_of = np.full(n, -1, dtype=np.int64)
        if pair.names:
            sentence_of[rows] = np.arange(len(rows))
            texts, labels = [pair.names[row] for row in rows.tolist()], []
        else:
            corpus = self.context.corpus(self.settings.corpus)
            numbers, sentence_of[rows] = np.unique(pair.items[rows], return_inverse=True)
            texts = [corpus.sentences[number] for number in numbers.tolist()]
            labels = [corpus.labels[number] for number in numbers.tolist()] if corpus.labels else []
            if pair.spans is not None:
                spans[rows] = pair.spans[rows]
                self._nowhere(rows[spans[rows, 0] < 0], sentence_of, texts, labels)
        return {
            "sentences": tuple(texts),
            "sentence_labels": tuple(labels),
            "sentence_of": sentence_of,
            "spans": spans,
        }

    def _nowhere(self, rows: np.ndarray, sentence_of: np.ndarray, texts: list[str], labels: list[str]) -> None:
        """Give tokens whose place in the sentence is not known a text of their own: the token, then the sentence."""
        if not len(rows) or self.pair.tokens is None:
            return
        with self.context.lease(self.settings.model_a) as model:
            for row in rows.tolist():
                at = int(sentence_of[row])
                sentence_of[row] = len(texts)
                texts.append(f"{model.tokens.display(int(self.pair.tokens[row]))} — {texts[at]}")
                if labels:
                    labels.append(labels[at])


@dataclass(frozen=True, eq=False)
class _View:
    """Both clouds in the plane, (n, 2), in the unit of the result, and what is said about them."""

    xy_a: Matrix
    xy_b: Matrix
    share_a: float
    share_b: float
    residual: Matrix
    chance: float
