"""Parameter matches: one pair of layers, its vectors matched one to one, and what each of them says in tokens.

A matching finds strong pairs in noise too, so the same layers are matched again under permuted vocabularies: what
unrelated vectors of this many would reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.matches_result import ParameterMatchesResult, off_diagonal_mean, overlaps_of
from embcompare.experiments.vectors import (
    GROUPS,
    INTERACTIONS,
    Prepared,
    correlations,
    head_factors,
    meet,
    open_space,
    prepare,
    require_group,
)
from embcompare.measures.matching import whole
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.models import LoadedModel
    from embcompare.spaces import EmbeddingSpace, FeatureSpace, Space

__all__ = ["ParameterMatches", "ParameterMatchesResult"]

TokenLists = tuple[tuple[str, ...], ...]
Seen = Callable[["Tensor"], "Tensor"]

# An exact matching of more vectors than this takes minutes; wider layers are matched by mutual best partners.
EXACT_MATCHING = 4096


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
    null_draws: int = option(
        5,
        label="Null draws",
        low=0,
        high=100,
        help="Permutations of the vocabulary (feature space: of the features), each matched anew; 0 leaves them out.",
    )
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of the permutations.")

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
            context.report(0, self._steps, "reading both layers")
            space, notes = open_space(self, a, b, context.device)
            first = prepare(a.anatomy, self.group, self.layer_a, space, "a", context.device, self.dtype)
            second = prepare(b.anatomy, self.group, self.layer_b, space, "b", context.device, self.dtype)
            rho = _correlated(first, second, space)
            context.report(1, self._steps, "matching vectors")
            rows, columns, note = match_vectors(np.abs(rho))
            strength = np.abs(rho[rows, columns])
            order = np.argsort(-strength, kind="stable")[: self.pairs]
            rows_kept, columns_kept = rows[order], columns[order]
            signed = rho[rows_kept, columns_kept]
            context.report(2, self._steps, "reading tokens")
            index_a, index_b = first.index[rows_kept], second.index[columns_kept]
            signs = np.where(signed < 0, -1.0, 1.0)
            seen_a, seen_b = self._seen(space)
            tokens_a, bottom_a = self._read(a, self.layer_a, index_a, np.ones(len(order)), seen_a)
            tokens_b, bottom_b = self._read(b, self.layer_b, index_b, signs, seen_b)
            null = self._null(context, first, second, space)
        overlaps = overlaps_of(zip(tokens_a, bottom_a, strict=True), zip(tokens_b, bottom_b, strict=True))
        return ParameterMatchesResult(
            index_a=index_a.numpy().astype(np.int64),
            index_b=index_b.numpy().astype(np.int64),
            correlation=signed,
            values=strength,
            tokens_a=tokens_a,
            tokens_b=tokens_b,
            bottom_a=bottom_a,
            bottom_b=bottom_b,
            shared_tokens=np.diag(overlaps).copy(),
            null_median=null[0],
            null_strongest=null[1],
            shared_chance=off_diagonal_mean(overlaps),
            notices=(*notes, *note, *self._against_null(strength, null)),
        )

    @property
    def _steps(self) -> int:
        return 3 + self.null_draws

    def _null(
        self, context: Context, first: Prepared, second: Prepared, space: FeatureSpace | EmbeddingSpace
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Match under permutations in the same way; return median and largest |correlation| of each, (draws,) both."""
        import torch

        if not self.null_draws:
            return None, None
        generator = torch.Generator().manual_seed(self.seed)
        found = np.full((2, self.null_draws), np.nan)
        for draw in range(self.null_draws):
            context.report(3 + draw, self._steps, f"null {draw + 1} of {self.null_draws}")
            permuted = space.permuted(torch.randperm(space.size, generator=generator))
            strength = np.abs(_correlated(first, second, permuted))
            rows, columns, _ = match_vectors(strength)
            if len(rows):
                matched = strength[rows, columns]
                found[:, draw] = np.median(matched), matched.max()
        return found[0], found[1]

    def _against_null(self, strength: np.ndarray, null: tuple[np.ndarray | None, np.ndarray | None]) -> tuple[str, ...]:
        """Say what unrelated vectors would reach, and how many matched pairs are beyond it."""
        medians, strongest = null
        if medians is None or strongest is None or not strength.size or not np.isfinite(strongest).any():
            return ()
        what = "features" if self.space == "feature" else "vocabulary"
        most, total = np.nanmax(strongest), len(strength)
        beyond = int((strength > most).sum())
        told = {0: f"none of the {total:,}", total: f"all {total:,}"}.get(beyond, f"{beyond:,} of the {total:,}")
        return (
            f"With the {what} permuted ({plural(len(medians), 'draw')}) the matched pairs have a median |correlation| "
            f"of {np.nanmedian(medians):.3f} and reach {most:.3f}; {told} matched {agree(total, 'pair')} here "
            f"{agree(total if beyond != 1 else 1, 'is', 'are')} stronger than that.",
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


def _correlated(first: Prepared, second: Prepared, space: Space) -> np.ndarray:
    rho: np.ndarray = whole(correlations(meet([first], space, "a")[0], meet([second], space, "b")[0])).numpy()
    return rho
