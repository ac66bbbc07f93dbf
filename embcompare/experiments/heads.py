"""Heads read as pairs of tokens: the extreme entries of E W_QK Eᵀ and E W_VO Eᵀ, exactly.

Dar et al. 2023, section 4.1: W_QK says which token attends to which, W_VO which token is written where which is read.
The paper lists entries above a threshold found by bisection; here the k largest and smallest of all V x V are exact.
Biases, the scaling by 1/√d_h and positions are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.commons import Common, common_option
from embcompare.experiments.readout import (
    Readout,
    as_numpy,
    list_tokens,
    names_of,
    position_notices,
    reading_option,
    require_layer,
)
from embcompare.experiments.vectors import INTERACTIONS, head_factors, require_group

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from embcompare.text import Tokens


@dataclass(frozen=True, eq=False)
class HeadReadingResult(Result):
    """The extreme pairs of tokens of one head: (query, key) for W_QK, (read, written) for W_VO."""

    top_rows: np.ndarray
    """(k,) int64 rows of E: the query or read token of each largest entry, largest first."""
    top_columns: np.ndarray
    """(k,) int64 rows of E: its key or written token."""
    top_values: np.ndarray
    """(k,) float64."""
    bottom_rows: np.ndarray
    """(k,) int64: likewise of the most negative entries, most negative first."""
    bottom_columns: np.ndarray
    """(k,) int64."""
    bottom_values: np.ndarray
    """(k,) float64."""
    spectrum: np.ndarray
    """(d_h,) float64 singular values of the matrix over the tokens that may be listed, largest first."""
    mean: float
    """Mean of its entries."""
    sd: float
    """Standard deviation of its entries."""
    listed: np.ndarray
    """(t,) int64: the rows of E that are listed anywhere, ascending."""
    tokens: tuple[str, ...]
    """(t,) how each of them is written."""
    usable: int
    """Tokens that may be listed."""
    shared_by: tuple[int, ...]
    """The query heads that have the same key and value head, this one included."""
    condition: float | None
    """Condition number of E, only with the exact inverse."""
    rank: int | None
    """Directions that E has, only with the exact inverse."""

    @property
    def top_pairs(self) -> np.ndarray:
        """(k, 2) object: both tokens of each largest entry as they are written."""
        return names_of(np.stack([self.top_rows, self.top_columns], 1), self.listed, self.tokens)

    @property
    def bottom_pairs(self) -> np.ndarray:
        """(k, 2) object: both tokens of each smallest entry as they are written."""
        return names_of(np.stack([self.bottom_rows, self.bottom_columns], 1), self.listed, self.tokens)

    def z(self, values: np.ndarray) -> np.ndarray:
        """Return how far entries are from the matrix's mean in its standard deviations; NaN for a constant matrix."""
        return (values - self.mean) / self.sd if self.sd > 0 else np.full(values.shape, np.nan)

    def to_frame(self) -> pd.DataFrame:
        """Return one row an entry: its end and rank, both tokens, value and z."""
        import pandas as pd

        parts = []
        for end, pairs, values in (
            ("top", self.top_pairs, self.top_values),
            ("bottom", self.bottom_pairs, self.bottom_values),
        ):
            columns = {"end": end, "rank": np.arange(1, len(values) + 1), "first": pairs[:, 0], "second": pairs[:, 1]}
            parts.append(pd.DataFrame({**columns, "value": values, "z": self.z(values)}))
        return pd.concat(parts, ignore_index=True)


@dataclass(frozen=True)
class HeadReading(Settings):
    """List the pairs of tokens to which one attention head gives its largest and smallest weights."""

    experiment: ClassVar[str] = "head-reading"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = HeadReadingResult

    model: str = option(model=True, label="Model", help="Demo model, folder, or hub name with optional @revision.")
    layer: int = option(label="Layer", low=0, help="Counted from 0, the first block.")
    head: int = option(label="Head", low=0, help="Counted from 0, the first query head.")
    kind: str = option(
        "w_vo", label="Matrix", choices=("w_qk", "w_vo"), help="W_QK: query and key; W_VO: read and written."
    )
    top: int = option(50, label="Pairs", low=1, high=2000, help="Pairs listed at each end.")
    identical: str = option(
        "token",
        label="Leave out pairs of",
        choices=("none", "token", "text"),
        help="Pairs not to list: none, of a token with itself, or of one text whatever its case and word mark.",
    )
    embedding: str = reading_option("embedding")
    centred: bool = reading_option("centred")
    common: int = common_option()
    inverse: str = reading_option("inverse")
    fold_norm: bool = reading_option("fold_norm")
    words_only: bool = reading_option("words_only")
    stop_words: str = reading_option("stop_words")

    def compute(self, context: Context) -> HeadReadingResult:
        """Search the V x V matrix in blocks that never leave the cache; it never exists."""
        import torch

        with context.lease(self.model) as model, torch.inference_mode():
            require_group(model, self.kind)
            require_layer(model, self.layer)
            attention = model.anatomy.blocks[self.layer].attention
            if self.head >= attention.heads:
                raise SettingsError(
                    f"Layer {self.layer} of {model.spec.label} has no head {self.head}; its heads are 0 to "
                    f"{attention.heads - 1}."
                )
            context.report(0, 100, "reading the embedding")
            readout = Readout(self, model, context.device)
            readout.notices += position_notices(model, self.layer, self.kind)
            group = attention.group(self.head)
            shared = tuple(head for head in range(attention.heads) if attention.group(head) == group)
            if len(shared) > 1:
                readout.notices.append(
                    f"Heads {', '.join(map(str, shared))} share one key and value head; each has its own queries and "
                    "its own rows of W_O."
                )
            common = Common(readout, self.common)
            factors = [
                readout.factors(factor[self.head], name, common)
                for factor, name in zip(
                    head_factors(model.anatomy, self.kind, self.layer), INTERACTIONS[self.kind], strict=True
                )
            ]
            usable = readout.usable(self.words_only, self.stop_words)
            return self._search(context, readout, factors, usable, shared)

    def _search(
        self, context: Context, readout: Readout, factors: list[Tensor], usable: Tensor, shared: tuple[int, ...]
    ) -> HeadReadingResult:
        from embcompare.projections import entry_ends

        def tick(done: int, total: int) -> None:
            context.report(done, total, "searching all pairs of tokens in blocks")

        left, right = factors
        same = _labels(readout.model.tokens, len(left), self.identical, left.device)
        high, low = entry_ends(
            left, right, self.top, rows=usable, columns=usable, identical=same and (same[0], same[0]), tick=tick
        )
        spectrum, mean, sd = _moments(left[usable], right[usable])
        high_rows, high_columns, low_rows, low_columns = (
            as_numpy(each) for each in (high.rows, high.columns, low.rows, low.columns)
        )
        listed = list_tokens(readout.model.tokens, high_rows, high_columns, low_rows, low_columns)
        return HeadReadingResult(
            top_rows=high_rows,
            top_columns=high_columns,
            top_values=as_numpy(high.values),
            bottom_rows=low_rows,
            bottom_columns=low_columns,
            bottom_values=as_numpy(low.values),
            spectrum=spectrum,
            mean=mean,
            sd=sd,
            listed=listed.rows,
            tokens=listed.names,
            usable=int(usable.sum()),
            shared_by=shared,
            condition=readout.inverse.condition if readout.inverse else None,
            rank=readout.inverse.rank if readout.inverse else None,
            notices=tuple(readout.notices),
        )


def _labels(tokens: Tokens, size: int, identical: str, device: torch.device) -> tuple[Tensor] | None:
    """Return a number for each token that is equal where two must not be paired; None where all may be."""
    import torch

    if identical == "none":
        return None
    if identical == "token":
        return (torch.arange(size, device=device),)
    _, numbers = np.unique([text.casefold().strip() for text in tokens.text[:size]], return_inverse=True)
    return (torch.as_tensor(numbers, device=device),)


def _moments(left: Tensor, right: Tensor) -> tuple[np.ndarray, float, float]:
    """Return singular values, mean and standard deviation of ``left @ right.T`` from its factors, (V, r) float64."""
    import torch

    roots = []
    for factor in (left, right):
        values, basis = torch.linalg.eigh(factor.T @ factor)
        roots.append(values.clamp(min=0).sqrt()[:, None] * basis.T)
    spectrum = torch.linalg.svdvals(roots[0] @ roots[1].T)
    mean = float(left.mean(0) @ right.mean(0))
    square = float(spectrum.square().sum()) / (len(left) * len(right))
    # a spread that is rounding of the sums is none
    variance = square - mean**2
    return as_numpy(spectrum), mean, variance**0.5 if variance > 1e-12 * square else 0.0
