"""Parameter matches: one pair of layers, its vectors matched one to one, and what each of them says in tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.vectors import (
    GROUPS,
    INTERACTIONS,
    correlations,
    head_factors,
    meet,
    open_space,
    prepare,
    require_group,
)
from embcompare.measures.matching import whole

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from embcompare.models import LoadedModel
    from embcompare.spaces import Space

TokenLists = tuple[tuple[str, ...], ...]
Seen = Callable[["Tensor"], "Tensor"]

# An exact matching of more vectors than this takes minutes; wider layers are matched by mutual best partners.
EXACT_MATCHING = 4096


@dataclass(frozen=True, eq=False)
class ParameterMatchesResult(Result):
    """The matched vectors of one pair of layers, strongest first."""

    index_a: np.ndarray
    """(k,) int64: which vector (neuron, column, row, head) of A's layer."""
    index_b: np.ndarray
    """(k,) int64: its partner in B's layer."""
    correlation: np.ndarray
    """(k,) float64, signed; a partner of negative correlation is read as its negative."""
    values: np.ndarray
    """(matched,) float64: |correlation| of every matched pair of the two layers, not only of the k listed."""
    tokens_a: tuple[tuple[str, ...], ...]
    """For each listed vector of A, the tokens of largest projection, largest first."""
    tokens_b: tuple[tuple[str, ...], ...]
    """For each partner, likewise, read with the sign of the match."""
    bottom_a: tuple[tuple[str, ...], ...]
    """For each listed vector of A, the tokens of most negative projection, most negative first; none for heads."""
    bottom_b: tuple[tuple[str, ...], ...]
    """For each partner, likewise."""
    shared_tokens: np.ndarray
    """(k,) float64: Jaccard overlap of the token lists of both ends, by end and surface string."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row a listed pair, tokens joined by spaces."""
        import pandas as pd

        return pd.DataFrame(
            {
                "index_a": self.index_a,
                "index_b": self.index_b,
                "correlation": self.correlation,
                "shared_tokens": self.shared_tokens,
                "tokens_a": [" ".join(row) for row in self.tokens_a],
                "tokens_b": [" ".join(row) for row in self.tokens_b],
                "bottom_a": [" ".join(row) for row in self.bottom_a],
                "bottom_b": [" ".join(row) for row in self.bottom_b],
            }
        )


@dataclass(frozen=True)
class ParameterMatches(Settings):
    """Match the vectors of one layer of A with those of one layer of B and read both in tokens."""

    experiment: ClassVar[str] = "parameter-matches"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = ParameterMatchesResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder, or hub name with optional @revision.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder, or hub name with optional @revision.")
    layer_a: int = option(label="Layer of A", low=0, help="Counted from 0, the first block.")
    layer_b: int = option(label="Layer of B", low=0, help="Counted from 0, the first block.")
    group: str = option("ff_keys", label="Parameters", choices=tuple(GROUPS), help="Which vectors are matched.")
    space: str = option(
        "embedding", label="Space", choices=("embedding", "feature"), help="Where correlations are taken."
    )
    centred: bool = option(True, label="Centred", help="Pearson; off compares plain cosines.")
    common: int = option(
        0,
        label="Common directions left out",
        low=0,
        high=64,
        help="Strongest directions of each embedding to leave out; the first is mostly token frequency. The paper: 0.",
    )
    embedding: str = option(
        "output", label="Embedding", choices=("output", "input"), help="Which embedding matrix vectors are read with."
    )
    pairs: int = option(40, label="Pairs listed", low=1, high=500, help="The strongest matches, listed with tokens.")
    top: int = option(10, label="Tokens", low=1, high=100, help="Tokens listed for each vector.")
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    dtype: str = option("float32", label="Precision", choices=("float32", "float64"), help="Of the products.")

    def compute(self, context: Context) -> ParameterMatchesResult:
        """Correlate, match one to one on |correlation|, and read the strongest pairs in tokens."""
        import torch

        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            for model, layer, name in ((a, self.layer_a, "Model A"), (b, self.layer_b, "Model B")):
                require_group(model, self.group)
                if layer >= model.anatomy.n_layers:
                    raise SettingsError(
                        f"{name} ({model.spec.label}) has no layer {layer}; its layers are 0 to "
                        f"{model.anatomy.n_layers - 1}."
                    )
            context.report(0, 3, "reading both layers")
            space, notes = open_space(self, a, b, context.device)
            first = prepare(a.anatomy, self.group, self.layer_a, space, "a", context.device, self.dtype)
            second = prepare(b.anatomy, self.group, self.layer_b, space, "b", context.device, self.dtype)
            rho = whole(correlations(meet([first], space, "a")[0], meet([second], space, "b")[0])).numpy()
            context.report(1, 3, "matching vectors")
            rows, columns, note = match_vectors(np.abs(rho))
            strength = np.abs(rho[rows, columns])
            order = np.argsort(-strength, kind="stable")[: self.pairs]
            rows_kept, columns_kept = rows[order], columns[order]
            signed = rho[rows_kept, columns_kept]
            context.report(2, 3, "reading tokens")
            index_a, index_b = first.index[rows_kept], second.index[columns_kept]
            signs = np.where(signed < 0, -1.0, 1.0)
            seen_a, seen_b = self._seen(space)
            tokens_a, bottom_a = self._read(a, self.layer_a, index_a, np.ones(len(order)), seen_a)
            tokens_b, bottom_b = self._read(b, self.layer_b, index_b, signs, seen_b)
            ends = zip(zip(tokens_a, bottom_a, strict=True), zip(tokens_b, bottom_b, strict=True), strict=True)
        return ParameterMatchesResult(
            index_a=index_a.numpy().astype(np.int64),
            index_b=index_b.numpy().astype(np.int64),
            correlation=signed,
            values=strength,
            tokens_a=tokens_a,
            tokens_b=tokens_b,
            bottom_a=bottom_a,
            bottom_b=bottom_b,
            shared_tokens=np.array([_jaccard(x, y) for x, y in ends]),
            notices=(*notes, *note),
        )

    def _seen(self, space: Space) -> tuple[Seen, Seen]:
        """Return what takes the common directions out of vectors that are to be read; nothing without any."""
        from embcompare.spaces import EmbeddingSpace

        if isinstance(space, EmbeddingSpace) and self.common:
            return space.seen_a, space.seen_b
        return _as_it_is, _as_it_is

    def _read(
        self, model: LoadedModel, layer: int, index: Tensor, sign: np.ndarray, seen: Seen
    ) -> tuple[TokenLists, TokenLists]:
        import torch

        signs = torch.as_tensor(sign, dtype=torch.float32)[:, None]
        if self.group not in INTERACTIONS:
            vectors = model.anatomy.vectors(self.group, layer)[index].float() * signs
            ends = (seen(vectors), seen(-vectors))
            top, bottom = (top_tokens(model, end, self.top, self.embedding) for end in ends)
            return top, bottom
        left, right = (factor[index].float() for factor in head_factors(model.anatomy, self.group, layer))
        reads, writes = leading_directions(left, right)
        into = top_tokens(model, seen(reads), self.top, self.embedding)
        out = top_tokens(model, seen(writes * signs), self.top, self.embedding)
        half = (self.top + 1) // 2
        return tuple((*i[:half], "→", *o[:half]) for i, o in zip(into, out, strict=True)), ((),) * len(into)


def match_vectors(strength: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Match rows with columns of an (n, m) matrix of |correlation|: the indices, and a notice where it is not exact.

    Up to 4,096 vectors the total is the largest possible (Hungarian method); beyond, only mutual best partners match.
    """
    if not strength.size:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), ()
    if max(strength.shape) <= EXACT_MATCHING:
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(strength, maximize=True)
        return rows, columns, ()
    best_of_row, best_of_column = strength.argmax(1), strength.argmax(0)
    rows = np.flatnonzero(best_of_column[best_of_row] == np.arange(len(strength)))
    note = (
        f"The layers hold {strength.shape[0]:,} and {strength.shape[1]:,} vectors, too many for an exact matching; "
        f"listed are the {len(rows):,} pairs that are each other's best partner."
    )
    return rows, best_of_row[rows], (note,)


def leading_directions(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the leading singular directions of each head's matrix Lᵀ R, (H, d) for reading and (H, d) for writing.

    From the (H, d_h, d) factors alone: QR of both, then the SVD of a (d_h, d_h) matrix. The sign is set so that the
    reading direction's largest entry is positive.
    """
    import torch

    q_left, r_left = torch.linalg.qr(left.mT.double())
    q_right, r_right = torch.linalg.qr(right.mT.double())
    u, _, vh = torch.linalg.svd(r_left @ r_right.mT)
    reads = (q_left @ u[:, :, :1]).squeeze(-1)
    writes = (q_right @ vh[:, :1, :].mT).squeeze(-1)
    largest = reads.gather(1, reads.abs().argmax(1, keepdim=True)).sign()
    return (reads * largest).float(), (writes * largest).float()


def top_tokens(model: LoadedModel, vectors: Tensor, top: int, embedding: str) -> tuple[tuple[str, ...], ...]:
    """Return the ``top`` tokens of largest projection for each vector, (n, d), special tokens left out.

    Centring over the vocabulary shifts all projections of a vector alike, so the order is the same with and without.
    Equal projections are listed in the order of the vocabulary.
    """
    import torch

    e, _ = model.anatomy.readout(embedding)
    usable = torch.as_tensor(np.flatnonzero(~model.tokens.special[: len(e)]))
    e = e[usable].float()
    lists: list[tuple[str, ...]] = []
    for part in vectors.split(64):
        best = torch.sort(part @ e.T, dim=1, descending=True, stable=True).indices[:, :top]
        lists += [tuple(model.tokens.display(int(token)) for token in usable[row]) for row in best]
    return tuple(lists)


def _as_it_is(vectors: Tensor) -> Tensor:
    return vectors


def _jaccard(x: tuple[tuple[str, ...], ...], y: tuple[tuple[str, ...], ...]) -> float:
    """Overlap of two pairs of token lists, a token counting only at the end where it stands."""
    own, other = ({(end, token) for end, tokens in enumerate(ends) for token in tokens} for ends in (x, y))
    union = own | other
    return len(own & other) / len(union) if union else float("nan")
