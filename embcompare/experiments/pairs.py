"""One layer of A against one of B, row by row: which neighbours are kept, both spectra, both clouds in one plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.pairs_result import RepresentationPairResult
from embcompare.experiments.pairs_run import PairRun
from embcompare.experiments.sides import LAYER_HELP, POOLINGS, WHAT, check_coordinates, check_what, read_pair

__all__ = ["RepresentationPair", "RepresentationPairResult"]


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
    layer_a: int = option(label="Layer of A", low=0, help=LAYER_HELP)
    layer_b: int = option(label="Layer of B", low=0, help=LAYER_HELP)
    space: str = option(
        "feature",
        label="Space",
        choices=("feature", "embedding"),
        help="The models' own coordinates, or every state read through the shared vocabulary.",
    )
    what: str = option("hidden", added=True, label="What", choices=tuple(WHAT), help="What of each block is compared.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    pooling: str = option("mean", label="Rows", choices=tuple(POOLINGS), help="What a row of the comparison is.")
    k: int = option(10, label="Neighbours", low=1, high=500, help="Nearest rows looked at.")
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
    pairing: str = option(
        "auto",
        label="Pair vectors by",
        choices=("auto", "row", "id"),
        help="Your own vectors: auto pairs by id where both sides have ids, else row by row.",
    )
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of rows, of those listed, and of wrong pairings.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_what(self)
        check_coordinates(self)

    def compute(self, context: Context) -> RepresentationPairResult:
        """Read one layer a side, then neighbours, spectra and the plane."""
        pair = read_pair(self, context, shared=self.space == "embedding", only=(self.layer_a, self.layer_b))
        return PairRun(self, context, pair).result()
