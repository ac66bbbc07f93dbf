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
from embcompare.experiments.depth import cell_table, depth_agreement, double_centred
from embcompare.experiments.sides import POOLINGS, Pair, Side, check_coordinates, read_pair, wrong_order
from embcompare.words import plural

if TYPE_CHECKING:
    import pandas as pd

    from embcompare.measures import Measure

DOMINANT = 0.5
"""A share of the variance in one dimension above this draws a warning."""


@dataclass(frozen=True, eq=False)
class RepresentationSimilarityResult(Result):
    """One measure between all layers; axis 0 is the layer of A, axis 1 that of B, layer 0 the embedding output."""

    values: np.ndarray
    """(L_a, L_b) float64; NaN where undefined, with its reason in ``reasons``."""
    null_mean: np.ndarray | None
    """(L_a, L_b) mean over wrong pairings of the same rows."""
    null_sd: np.ndarray | None
    """(L_a, L_b) standard deviation over the wrong pairings, with n - 1."""
    null_best: np.ndarray | None
    """(L_a, L_b) the closest that any wrong pairing came."""
    spread: np.ndarray | None
    """(L_a, L_b) standard error, from random halves of the sentences."""
    assignment: np.ndarray
    """(k, 2) int64: the one-to-one assignment of layers that is closest in total."""
    depth_rate: float
    """Share of assigned pairs that join layers of equal relative depth."""
    depth_chance: float
    """The same share expected of a random assignment."""
    depth_p: float
    """Probability that a random assignment reaches it."""
    layers_a: tuple[str, ...]
    """What each layer of A is."""
    layers_b: tuple[str, ...]
    """What each layer of B is."""
    geometry: tuple[str, ...]
    """Names of the indicators in ``geometry_a`` and ``geometry_b``."""
    geometry_a: np.ndarray
    """(L_a, g) float64 indicators of every layer of A in the space compared in."""
    geometry_b: np.ndarray
    """(L_b, g) float64, likewise of B."""
    rows: int
    """Rows (sentences, words or tokens) compared."""
    items: int
    """Sentences they come from."""
    reasons: tuple[tuple[int, int, str], ...]
    """Layer of A, layer of B, and why the cell has no value."""
    higher_is_closer: bool
    """Direction of the measure."""

    axes: ClassVar[tuple[str, str]] = ("layer of A", "layer of B")

    @property
    def centred(self) -> np.ndarray:
        """(L_a, L_b): row and column means taken out."""
        return double_centred(self.values)

    @property
    def z(self) -> np.ndarray | None:
        """(L_a, L_b): closer than the null by so many of its standard deviations; None without a null."""
        if self.null_mean is None or self.null_sd is None:
            return None
        sign = 1.0 if self.higher_is_closer else -1.0
        with np.errstate(all="ignore"):
            return np.asarray(np.where(self.null_sd > 0, sign * (self.values - self.null_mean) / self.null_sd, np.nan))

    @property
    def low(self) -> np.ndarray | None:
        """(L_a, L_b): lower end of the 95 % interval."""
        return None if self.spread is None else self.values - 1.96 * self.spread

    @property
    def high(self) -> np.ndarray | None:
        """(L_a, L_b): upper end of the 95 % interval."""
        return None if self.spread is None else self.values + 1.96 * self.spread

    @property
    def best_match_a(self) -> np.ndarray:
        """(L_a,) int64: the closest layer of B for each layer of A; -1 where no cell is defined."""
        return _closest(self.values, self.higher_is_closer)

    @property
    def best_match_b(self) -> np.ndarray:
        """(L_b,) int64: the closest layer of A for each layer of B; -1 where no cell is defined."""
        return _closest(self.values.T, self.higher_is_closer)

    def to_frame(self) -> pd.DataFrame:
        """Return one row a cell: both layers, value, interval, null, z, assigned or not, reason if undefined."""
        import pandas as pd

        more = {name: getattr(self, name) for name in ("low", "high", "null_mean", "null_sd", "null_best", "z")}
        frame = pd.DataFrame(cell_table(self.values, self.assignment, more))
        why = {(i, j): text for i, j, text in self.reasons}
        frame["reason"] = [why.get((int(i), int(j)), "") for i, j in zip(frame.layer_a, frame.layer_b, strict=True)]
        return frame


@dataclass(frozen=True)
class RepresentationSimilarity(Settings):
    """Compare two models' hidden states on a corpus, layer by layer. Layer 0 is the embedding output."""

    experiment: ClassVar[str] = "representation-similarity"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = RepresentationSimilarityResult

    model_a: str = option(
        model=True, vectors=True, label="Model A", help="Demo model, folder, hub name, or vectors/DIGEST."
    )
    model_b: str = option(
        model=True, vectors=True, label="Model B", help="Demo model, folder, hub name, or vectors/DIGEST."
    )
    measure: str = option("linear_cka", label="Measure", help="One of embcompare.measures.MEASURES.")
    space: str = option(
        "feature",
        label="Space",
        choices=("feature", "embedding"),
        help="The models' own coordinates, or every state read through the shared vocabulary.",
    )
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    pooling: str = option("mean", label="Rows", choices=tuple(POOLINGS), help="What a row of the comparison is.")
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
    pairing: str = option("row", label="Pair vectors by", choices=("row", "id"), help="For your own vectors.")
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of rows, wrong pairings, halves and folds.")

    def __post_init__(self) -> None:
        super().__post_init__()
        measure = self.declaration
        check_coordinates(self)
        if measure.needs_shared_coordinates and self.space == "feature":
            raise SettingsError(
                f"{measure.label} compares coordinate by coordinate, and two models share none in feature space; "
                "choose embedding space."
            )

    @property
    def declaration(self) -> Measure:
        """The declaration of the measure."""
        from embcompare.measures import get_measure

        found: Measure = get_measure(self.measure)
        return found

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
        if "10" in self.measure.needs and n < 10 * p:
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
                named = ", ".join(map(str, layers))
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
            notices=tuple(self.notices),
        )


def _closest(values: np.ndarray, higher_is_closer: bool) -> np.ndarray:
    ranked = np.where(np.isnan(values), -np.inf, values if higher_is_closer else -values)
    return np.asarray(np.where(np.isfinite(ranked).any(1), ranked.argmax(1), -1), dtype=np.int64)
