"""Representation similarity: hidden states of two models on one corpus, every layer against every layer.

Each matrix comes with its null, the same rows wrongly paired, and with an interval from halves of the sentences.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from embcompare.errors import EmbcompareWarning, Incomparable, SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.depth import depth_agreement
from embcompare.experiments.representations_result import RepresentationSimilarityResult
from embcompare.experiments.sides import (
    POOLINGS,
    WHAT,
    Pair,
    Side,
    check_coordinates,
    check_what,
    read_pair,
    wrong_order,
)
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.measures import Measure

__all__ = ["RepresentationSimilarity", "RepresentationSimilarityResult"]

DOMINANT = 0.5
"""A share of the variance in one dimension above this draws a warning."""


@dataclass(frozen=True)
class RepresentationSimilarity(Settings):
    """Compare two models' hidden states on a corpus, layer by layer. Layer 0 is the embedding output.

    ``what`` compares something else of each block: what its self-attention or its feed-forward adds to the residual
    stream, or its attention patterns, rows being tokens and features the heads; then layers are blocks, from 1.
    """

    experiment: ClassVar[str] = "representation-similarity"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = RepresentationSimilarityResult

    model_a: str = option(
        model=True, vectors=True, label="Model A", help="Demo model, folder, hub name, or vectors/DIGEST."
    )
    model_b: str = option(
        model=True, vectors=True, label="Model B", help="Demo model, folder, hub name, or vectors/DIGEST."
    )
    measure: str = option(
        "linear_cka",
        label="Measure",
        help="How closeness is measured; its card below says what it sees and what it needs.",
    )
    space: str = option(
        "feature",
        label="Space",
        choices=("feature", "embedding"),
        help="The models' own coordinates, or every state read through the shared vocabulary.",
    )
    what: str = option("hidden", added=True, label="What", choices=tuple(WHAT), help="What of each block is compared.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    pooling: str = option("mean", label="Rows", choices=tuple(POOLINGS), help="What a row of the comparison is.")
    k: int = option(
        10,
        label="Neighbours",
        low=1,
        high=500,
        help="Nearest rows counted by mutual_knn, neighbourhood_jaccard and cknna; the other measures count none.",
    )
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
    null_draws: int = option(20, label="Null draws", low=0, high=1000, help="Wrong pairings; 0 leaves the null out.")
    halves: int = option(
        20, label="Halves", low=0, high=1000, help="Random halves of the sentences for the interval; 0 leaves it out."
    )
    max_rows: int = option(4000, label="Rows at most", low=4, high=200_000, help="Whole sentences are drawn.")
    pairing: str = option(
        "auto",
        label="Pair vectors by",
        choices=("auto", "row", "id"),
        help="Your own vectors: auto pairs by id where both sides have ids, else row by row.",
    )
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of rows, wrong pairings, halves and folds.")

    def __post_init__(self) -> None:
        super().__post_init__()
        measure = self.declaration
        check_what(self)
        check_coordinates(self)
        if measure.needs_shared_coordinates and self.space == "feature":
            raise SettingsError(
                f"{measure.label} compares coordinate by coordinate, and two models share none in feature space; "
                "choose embedding space."
            )

    @property
    def declaration(self) -> Measure:
        """The declaration of the measure, for ``k`` neighbours where it counts any."""
        from embcompare.measures import get_measure

        found: Measure = get_measure(self.measure)
        return found.counting(self.k)

    def compute(self, context: Context) -> RepresentationSimilarityResult:
        """Read both sides once, then the matrix, its wrong pairings and its halves."""
        pair = read_pair(self, context, shared=self.declaration.needs_shared_coordinates)
        return _Run(self, context, pair).result()


class _Run:
    """One run's moving parts: the paired rows and the count of matrices done."""

    def __init__(self, settings: RepresentationSimilarity, context: Context, pair: Pair) -> None:
        self.settings, self.context, self.pair = settings, context, pair
        self.measure = settings.declaration
        self.notices = [*pair.notices]
        self.matrices = 1 + settings.null_draws + settings.halves
        self.done = 0
        self.names = np.unique(pair.items)
        if len(pair.rows) < 2:
            raise Incomparable(
                f"Only {len(pair.rows)} row can be paired, and a comparison needs several; give more text."
            )
        self._check_neighbours()

    def result(self) -> RepresentationSimilarityResult:
        everything = np.arange(len(self.pair.rows))
        found = self._matrix(everything, everything, self.measure.label)
        self.reasons = tuple((i, j, text) for (i, j), text in sorted(found.reasons.items()))
        self._warn_of_size()
        geometry = [self._geometry(side) for side in (self.pair.a, self.pair.b)]
        self._warn_of_dominance(geometry)
        base = self._assemble(found.values, geometry, None, None)
        self.context.report(self.done, self.matrices, "wrong pairings", base)
        null = self._null()
        halves = self._halves()
        return self._assemble(found.values, geometry, null, halves)

    def _check_neighbours(self) -> None:
        """Refuse more neighbours than there are others, and say how many are counted."""
        n, k = len(self.pair.rows), self.measure.k
        if k is None:
            return
        if n < k + 2:
            way = f"choose {n - 2} or fewer, or give more rows" if n > 2 else "give more rows"
            raise Incomparable(
                f"Neighbours cannot be {k}: with {plural(n, 'row')} every row would be everybody's neighbour; {way}."
            )
        self.notices.append(
            f"{self.measure.label[0].upper()}{self.measure.label[1:]}: the {plural(k, 'nearest row')} of each of {n:,} "
            f"{'is' if k == 1 else 'are'} counted."
        )

    def _matrix(self, rows_a: np.ndarray, rows_b: np.ndarray, what: str) -> Any:
        from embcompare.measures import layer_matrix

        options: dict[str, Any] = {}
        if self.measure.stochastic:
            options = {"seed": self.settings.seed, "groups": self.pair.items[rows_a]}
            if len(np.unique(options["groups"])) == len(rows_a):
                del options["groups"]

        def progress(share: float) -> None:
            self.context.report(self.done, self.matrices, f"{what}: {share:.0%}")

        whole = rows_a is rows_b and len(rows_a) == len(self.pair.rows)
        a = self.pair.a.layers if whole else [np.asarray(x)[rows_a] for x in self.pair.a.layers]
        b = self.pair.b.layers if whole else [np.asarray(y)[rows_b] for y in self.pair.b.layers]
        matrix = layer_matrix(self.measure, a, b, progress=progress, **options)
        self.done += 1
        return matrix

    def _null(self) -> np.ndarray | None:
        """Pair the rows wrongly, :func:`~embcompare.experiments.sides.wrong_order`, and compare again."""
        draws = self.settings.null_draws
        if not draws:
            return None
        generator = np.random.default_rng([self.settings.seed, 2])
        everything = np.arange(len(self.pair.rows))
        matrices = []
        for draw in range(draws):
            order = wrong_order(generator, self.pair.items)
            matrices.append(self._matrix(everything, order, f"wrong pairing {draw + 1} of {draws}").values)
            self.context.report(self.done, self.matrices, f"wrong pairing {draw + 1} of {draws}")
        return np.stack(matrices)

    def _halves(self) -> np.ndarray | None:
        """Score random halves of the sentences, none of them twice: a repeated row would be its own perfect pair."""
        draws = self.settings.halves
        if not draws or len(self.names) < 4:
            return None
        if self.measure.k is not None and len(self.pair.rows) < 2 * (self.measure.k + 2):
            self.notices.append(
                f"Half of {len(self.pair.rows):,} rows are too few for {plural(self.measure.k, 'neighbour')}, so there "
                "is no interval."
            )
            return None
        generator = np.random.default_rng([self.settings.seed, 3])
        matrices = []
        for draw in range(draws):
            chosen = generator.permutation(self.names)[: len(self.names) // 2]
            rows = np.flatnonzero(np.isin(self.pair.items, chosen))
            matrices.append(self._matrix(rows, rows, f"half {draw + 1} of {draws}").values)
            self.context.report(self.done, self.matrices, f"half {draw + 1} of {draws}")
        return np.stack(matrices)

    def _geometry(self, side: Side) -> np.ndarray:
        from embcompare.measures import GEOMETRY

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmbcompareWarning)
            return np.array([[indicator.function(layer) for indicator in GEOMETRY.values()] for layer in side.layers])

    def _warn_of_size(self) -> None:
        n, p = len(self.pair.rows), max(self.pair.a.width, self.pair.b.width)
        if self.measure.k is None and "10" in self.measure.needs and n < 10 * p:
            self.notices.append(
                f"{plural(n, 'row')} for vectors {p} wide are few for {self.measure.label} ({self.measure.needs}): "
                "unrelated data would not come out unrelated; compare with the null, or choose a debiased measure."
            )

    def _warn_of_dominance(self, geometry: list[np.ndarray]) -> None:
        from embcompare.measures import GEOMETRY

        if self.settings.space == "embedding":
            return
        at = list(GEOMETRY).index("top_dimension_share")
        for side, table in zip((self.pair.a, self.pair.b), geometry, strict=True):
            layers = [k for k, share in enumerate(table[:, at]) if share > DOMINANT]
            if layers:
                named = ", ".join(str(layer + side.first) for layer in layers)
                self.notices.append(
                    f"{side.label}: one dimension holds more than half of the variance in layer {named} and decides "
                    "the value there; standardise to give all dimensions a say."
                )

    def _assemble(
        self, values: np.ndarray, geometry: list[np.ndarray], null: np.ndarray | None, halves: np.ndarray | None
    ) -> RepresentationSimilarityResult:
        from embcompare.measures import GEOMETRY

        closer = self.measure.higher_is_closer
        depth = depth_agreement(values if closer else -values, self.settings.seed)
        best = None if null is None else (null.max(0) if closer else null.min(0))
        few = null is None or len(null) < 2
        return RepresentationSimilarityResult(
            values=values,
            null_mean=None if null is None else null.mean(0),
            null_sd=None if null is None else (np.full(values.shape, np.nan) if few else null.std(0, ddof=1)),
            null_best=best,
            # the spread of a statistic over halves is that of the whole sample around the truth (delete-half jackknife)
            spread=None if halves is None or len(halves) < 2 else halves.std(0, ddof=1),
            assignment=depth.pairs,
            depth_rate=depth.rate,
            depth_chance=depth.chance,
            depth_p=depth.p_value,
            layers_a=self.pair.a.names,
            layers_b=self.pair.b.names,
            geometry=tuple(GEOMETRY),
            geometry_a=geometry[0],
            geometry_b=geometry[1],
            rows=len(self.pair.rows),
            items=len(self.names),
            reasons=self.reasons,
            higher_is_closer=closer,
            k=self.measure.k,
            numbered_from=(self.pair.a.first, self.pair.b.first),
            notices=tuple(self.notices),
        )
