"""Heads read as pairs of tokens: the extreme entries of E W_QK Eᵀ and E W_VO Eᵀ, exactly.

Dar et al. 2023, section 4.1: W_QK says which token attends to which, W_VO which token is written where which is read.
The paper lists entries above a threshold found by bisection; here the k largest and smallest of all V x V are exact.
Biases, the scaling by 1/√d_h and positions are left out. What the strongest entry is by chance is told by random heads
that have the same singular values, read in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
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
    null: np.ndarray | None
    """(draws, 2) float64: the largest and the most negative entry that may be listed of random heads with the same
    singular values; None where none were drawn."""
    null_z: np.ndarray | None
    """(draws, 2) float64: both from their own matrix's mean in its standard deviations."""
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
    only: str = reading_option("only")
    words_of: str = reading_option("words_of")
    null_draws: int = option(
        5, label="Null draws", low=0, high=100, help="Random heads of the same singular values; 0 draws none."
    )
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of the random heads.")

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
            raw = [factor[self.head] for factor in head_factors(model.anatomy, self.kind, self.layer)]
            usable = readout.usable(context)
            return self._search(context, readout, common, raw, usable, shared)

    def _factors(self, readout: Readout, common: Common, raw: Sequence[Tensor]) -> list[Tensor]:
        """Read both factors of a head over the vocabulary, (V, d_h) each."""
        return [
            readout.factors(factor, name, common) for factor, name in zip(raw, INTERACTIONS[self.kind], strict=True)
        ]

    def _search(
        self,
        context: Context,
        readout: Readout,
        common: Common,
        raw: list[Tensor],
        usable: Tensor,
        shared: tuple[int, ...],
    ) -> HeadReadingResult:
        from embcompare.projections import entry_ends

        def tick(done: int, total: int, begun: int = 0) -> None:
            message = "searching a random head" if begun else "searching all pairs of tokens in blocks"
            context.report(begun * total + done, (1 + self.null_draws) * total, message)

        left, right = self._factors(readout, common, raw)
        same = _labels(readout.model.tokens, len(left), self.identical, left.device)
        high, low = entry_ends(
            left, right, self.top, rows=usable, columns=usable, identical=same and (same[0], same[0]), tick=tick
        )
        spectrum, mean, sd = _moments(left[usable], right[usable])
        null, null_z = [], []
        for draw, random in enumerate(random_heads(raw, self.null_draws, self.seed), 1):
            one, other = self._factors(readout, common, random)
            ends = entry_ends(
                one, other, 1, rows=usable, columns=usable, identical=same and (same[0], same[0]),
                tick=functools.partial(tick, begun=draw),
            )  # fmt: skip
            extremes = np.array([float(end.values[0]) if len(end.values) else np.nan for end in ends])
            _, middle, spread = _moments(one[usable], other[usable])
            null.append(extremes)
            null_z.append((extremes - middle) / spread if spread else np.full(2, np.nan))
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
            null=np.array(null) if null else None,
            null_z=np.array(null_z) if null_z else None,
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


def random_heads(raw: Sequence[Tensor], draws: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw heads whose product has the singular values of ``leftᵀ right`` and random directions, two (d_h, d) factors.

    Left and right singular vectors are uniform among the orthonormal frames of the model's space, so that what a head
    reads and writes, and what of it belongs together, is by chance; how strong it is, and in how many directions, is
    not. What the two factors are by themselves makes no difference, for only their product is the head's.
    """
    import torch

    left, right = (factor.double().cpu() for factor in raw)
    # the product's singular values from the two small triangles: left = (q r)ᵀ with r (d_h, d_h)
    strong = torch.linalg.svdvals(torch.linalg.qr(left.T).R @ torch.linalg.qr(right.T).R.T)
    generator = torch.Generator().manual_seed(seed)
    root = strong.sqrt()[:, None]
    for _ in range(draws):
        frames = []
        for width in (left.shape[1], right.shape[1]):
            q, r = torch.linalg.qr(torch.randn(width, len(strong), generator=generator, dtype=torch.float64))
            frames.append(root * (q * r.diagonal().sign()).T)
        yield frames[0].to(raw[0].device), frames[1].to(raw[0].device)


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
