"""What the difference of two models' parameters gives, and its tidy table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.experiments.base import Result
from embcompare.experiments.readout import names_of

if TYPE_CHECKING:
    import pandas as pd

ROWS = ("classifier", "model", "layer", "vector")
"""What a row is: a row of the classifier, a direction of the whole change, of one layer's change, or one vector's."""


@dataclass(frozen=True, eq=False)
class ParameterDifferenceResult(Result):
    """What changed from model A, the base, to model B: how much and where, and what the changes say.

    ``g`` groups by ``l`` layers in the first part, ``m`` rows of readings in the second, ordered by kind as in ``ROWS``
    and within a kind by how much they carry.
    """

    groups: tuple[str, ...]
    """Groups of parameters that were compared."""
    layers: np.ndarray
    """(l,) int64: layers that were compared."""
    change: np.ndarray
    """(g, l) float64: ``|W_B - W_A| / |W_A|``, Frobenius norms; infinite where A is zero and B is not."""
    norm: np.ndarray
    """(g, l) float64: ``|W_B - W_A|``."""
    unchanged: np.ndarray
    """(g, l) bool: equal number for number."""
    effective_rank: np.ndarray
    """(g, l) float64: exponential of the entropy of the singular values' shares (Roy and Vetterli 2007); NaN where
    nothing changed."""
    singular_share: np.ndarray
    """(g, l, r) float64: share of the squared change that each of the strongest singular directions explains."""
    model_share: np.ndarray
    """(r,) float64: likewise of all compared layers together, each in units of its own weights."""
    kind: np.ndarray
    """(m,) int64: place in ``ROWS``."""
    group: np.ndarray
    """(m,) int64: place in ``groups``; -1 for rows of the classifier and of the whole model."""
    layer: np.ndarray
    """(m,) int64; -1 likewise."""
    index: np.ndarray
    """(m,) int64: which label, direction (from 0, the strongest) or vector of the layer."""
    size: np.ndarray
    """(m,) float64: Euclidean norm of the change; of a direction its singular value."""
    share: np.ndarray
    """(m,) float64: what part of the layer's squared change it is; of the whole model's for its directions."""
    carries: np.ndarray
    """(m,) float64: what part of the change along the whole model's strongest directions it is; NaN for the
    classifier."""
    along: np.ndarray
    """(m,) float64: cosine with the whole model's strongest direction, common directions left out."""
    z: np.ndarray
    """(m,) float64: the more extreme end's distance from the mean score in standard deviations; NaN where constant."""
    top: np.ndarray
    """(m, k) int64 rows of E that gained most, the largest first."""
    top_scores: np.ndarray
    """(m, k) float64."""
    bottom: np.ndarray
    """(m, k) int64 rows of E that lost most."""
    bottom_scores: np.ndarray
    """(m, k) float64."""
    listed: np.ndarray
    """(t,) int64: the rows of E that are listed anywhere, ascending."""
    tokens: tuple[str, ...]
    """(t,) how each of them is written."""
    usable: int
    """Tokens that may be listed."""
    labels: tuple[str, ...]
    """Labels of the classifier that was read; none without one."""
    reader: str
    """The model whose embedding everything was read with, ``"A"`` or ``"B"``."""
    embedding_change: float
    """``|E_B - E_A| / |E_A|`` of the input embeddings over the shared tokens."""
    moved: np.ndarray
    """(k,) int64 rows of the reader's E whose own embedding moved farthest; none where no embedding moved."""
    moved_by: np.ndarray
    """(k,) float64: how far, in lengths of the token's own embedding in A."""
    parameters: tuple[str, ...]
    """(p,) names of the parameters that both models have in one shape, blocks and all else."""
    parameter_change: np.ndarray
    """(p,) float64: relative change of each."""
    parameter_same: np.ndarray
    """(p,) bool: equal number for number."""
    only_a: tuple[str, ...]
    """Names of the parameters that only A has."""
    only_b: tuple[str, ...]
    """Names of the parameters that only B has."""
    other_shape: tuple[str, ...]
    """Names of those that both have in different shapes, and the shapes."""

    @property
    def top_tokens(self) -> np.ndarray:
        """(m, k) object: the tokens of ``top`` as they are written."""
        return names_of(self.top, self.listed, self.tokens)

    @property
    def bottom_tokens(self) -> np.ndarray:
        """(m, k) object: the tokens of ``bottom`` as they are written."""
        return names_of(self.bottom, self.listed, self.tokens)

    @property
    def moved_tokens(self) -> np.ndarray:
        """(k,) object: the tokens of ``moved`` as they are written."""
        return names_of(self.moved, self.listed, self.tokens)

    def rows(self, kind: str) -> np.ndarray:
        """Return which rows are of one kind of ``ROWS``, in order."""
        return np.flatnonzero(self.kind == ROWS.index(kind))

    def overview(self) -> pd.DataFrame:
        """Return one row a group and layer: how much it changed, and in how many directions."""
        import pandas as pd

        group, layer = np.meshgrid(np.arange(len(self.groups)), np.arange(len(self.layers)), indexing="ij")
        columns = {"group": [self.groups[at] for at in group.ravel()], "layer": self.layers[layer.ravel()]}
        more = {name: getattr(self, name).ravel() for name in ("change", "norm", "unchanged", "effective_rank")}
        first = self.singular_share[..., 0].ravel()
        return pd.DataFrame({**columns, **more, "first_direction_share": first})

    def to_frame(self) -> pd.DataFrame:
        """Return one row a reading, tokens joined by spaces."""
        import pandas as pd

        names = [self.groups[at] if at >= 0 else "" for at in self.group]
        kinds = [ROWS[at] for at in self.kind]
        labels = [self.labels[i] if kind == "classifier" else "" for kind, i in zip(kinds, self.index, strict=True)]
        table: dict[str, object] = {"kind": kinds, "label": labels, "group": names}
        table |= {name: getattr(self, name) for name in ("layer", "index", "size", "share", "carries", "along", "z")}
        for end in ("top", "bottom"):
            scores = getattr(self, f"{end}_scores")
            table[end] = [" ".join(row) for row in getattr(self, f"{end}_tokens")]
            table[f"{end}_score"] = scores[:, 0] if scores.shape[1] else np.full(len(scores), np.nan)
        return pd.DataFrame(table)
