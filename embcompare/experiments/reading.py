"""Parameters read as tokens: every vector of one layer, or a combination of some, at both ends of the vocabulary.

Dar et al. 2023, sections 3 and 4: a vector x of residual width is read as ``x Eᵀ``, one number a token, and what it
says are the tokens at the two ends. Norms' biases and the layers' own biases are left out, as in the paper.
"""

from __future__ import annotations

import re
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
from embcompare.experiments.vectors import GROUPS, INTERACTIONS, head_factors, require_group
from embcompare.words import plural

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from embcompare.projections import TokenEnds

SIDES = {"w_qk": ("query", "key"), "w_vo": ("read", "written")}
"""What the two directions of a head's product stand for."""


@dataclass(frozen=True, eq=False)
class TokenReadingResult(Result):
    """What the vectors of one layer say, in the layer's own order; n rows.

    For W_QK and W_VO a row is the leading singular direction of a head's V x V matrix on one of its sides, so that a
    head has two rows; both are of unit length over the vocabulary, their common sign set so that the first side's
    largest entry is positive.
    """

    index: np.ndarray
    """(n,) int64: which neuron, column, row or head of the layer; -1 for a combination."""
    side: np.ndarray
    """(n,) int64: 0 for a vector; 1 a head's query or read direction, 2 its key or written direction."""
    top: np.ndarray
    """(n, k) int64 rows of E with the largest scores, largest first; k is cut to the tokens there are."""
    top_scores: np.ndarray
    """(n, k) float64."""
    bottom: np.ndarray
    """(n, k) int64 rows of E with the most negative scores, most negative first."""
    bottom_scores: np.ndarray
    """(n, k) float64."""
    mean: np.ndarray
    """(n,) float64: mean score over the tokens that may be listed."""
    sd: np.ndarray
    """(n,) float64: standard deviation over them."""
    z: np.ndarray
    """(n,) float64: the more extreme end's distance from the mean in standard deviations, negative for the bottom; NaN
    where all tokens score alike."""
    norm: np.ndarray
    """(n,) float64: Euclidean norm in the model's own coordinates; for a head its leading singular value."""
    share: np.ndarray | None
    """(n,) float64, heads only: the leading direction's share of the squared singular values."""
    listed: np.ndarray
    """(t,) int64: the rows of E that are listed anywhere, ascending."""
    tokens: tuple[str, ...]
    """(t,) how each of them is written."""
    usable: int
    """Tokens that may be listed."""
    vectors: int
    """Vectors (heads) that the layer has."""
    condition: float | None
    """Condition number of E, only with the exact inverse."""
    rank: int | None
    """Directions that E has, only with the exact inverse."""

    @property
    def order(self) -> np.ndarray:
        """(n,) int64: rows by |z|, largest first: vectors that speak of few tokens before those that speak of all."""
        return np.argsort(-np.abs(np.nan_to_num(self.z)), kind="stable")

    @property
    def top_tokens(self) -> np.ndarray:
        """(n, k) object: the tokens of ``top`` as they are written."""
        return names_of(self.top, self.listed, self.tokens)

    @property
    def bottom_tokens(self) -> np.ndarray:
        """(n, k) object: the tokens of ``bottom`` as they are written."""
        return names_of(self.bottom, self.listed, self.tokens)

    def to_frame(self) -> pd.DataFrame:
        """Return one row a vector, by |z|; tokens joined by spaces."""
        import pandas as pd

        order = self.order
        columns: dict[str, object] = {"index": self.index[order]}
        if self.share is not None:
            columns |= {"side": self.side[order], "share": self.share[order]}
        columns |= {name: getattr(self, name)[order] for name in ("z", "norm", "mean", "sd")}
        for end in ("top", "bottom"):
            written, scores = getattr(self, f"{end}_tokens")[order], getattr(self, f"{end}_scores")
            columns[end] = [" ".join(row) for row in written]
            columns[f"{end}_score"] = scores[order, 0] if scores.shape[1] else np.full(len(order), np.nan)
        return pd.DataFrame(columns)


@dataclass(frozen=True)
class TokenReading(Settings):
    """Read every vector of one layer as tokens: those it scores highest and lowest."""

    experiment: ClassVar[str] = "token-reading"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = TokenReadingResult

    model: str = option(model=True, label="Model", help="Demo model, folder, or hub name with optional @revision.")
    layer: int = option(label="Layer", low=0, help="Counted from 0, the first block.")
    group: str = option("ff_values", label="Parameters", choices=tuple(GROUPS), help="Which vectors are read.")
    top: int = option(10, label="Tokens", low=1, high=200, help="Tokens listed at each end of a vector.")
    start: int = option(0, label="First vector", low=0, help="Where to begin in the layer.")
    count: int = option(0, label="Vectors", low=0, help="How many vectors to read; 0 reads all from the first on.")
    combination: str = option(
        "", label="Combination", help="Read a sum of vectors instead, such as 12:1, 40:-0.5 (vector:coefficient)."
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.combination.strip():
            parse_combination(self.combination)
            if self.group in INTERACTIONS:
                raise SettingsError(
                    f"Combination sums vectors, and {GROUPS[self.group]} are matrices; leave it empty or choose "
                    "another group."
                )

    def compute(self, context: Context) -> TokenReadingResult:
        """Read the layer in blocks: no array of vectors by tokens ever exists."""
        import torch

        with context.lease(self.model) as model, torch.inference_mode():
            require_group(model, self.group)
            require_layer(model, self.layer)
            context.report(0, 100, "reading the embedding")
            readout = Readout(self, model, context.device)
            readout.note_exact(INTERACTIONS.get(self.group, (self.group,)), GROUPS[self.group])
            readout.notices += position_notices(model, self.layer, self.group)
            usable = readout.usable(context)
            common = Common(readout, self.common)
            heads = self.group in INTERACTIONS
            chosen = self._heads(readout, common) if heads else self._vectors(readout, common)
            return self._read(context, readout, usable, chosen)

    def _span(self, size: int) -> range:
        if self.start >= size:
            raise SettingsError(
                f"Layer {self.layer} has {size} {GROUPS[self.group]}, counted from 0, so none starts at {self.start}; "
                f"the last is {size - 1}."
            )
        return range(self.start, min(size, self.start + self.count) if self.count else size)

    def _vectors(self, readout: Readout, common: Common) -> _Chosen:
        import torch

        vectors = readout.model.anatomy.vectors(self.group, self.layer)
        if self.combination.strip():
            terms = parse_combination(self.combination)
            for named in terms:
                if named >= len(vectors):
                    raise SettingsError(
                        f"Combination names vector {named}, and layer {self.layer} of {readout.model.spec.label} has "
                        f"{len(vectors)} {GROUPS[self.group]}, 0 to {len(vectors) - 1}; name others."
                    )
            weights = torch.tensor(list(terms.values()), dtype=torch.float64, device=vectors.device)
            raw = weights[None] @ vectors[list(terms)].double()
            index = np.array([-1], dtype=np.int64)
        else:
            span = self._span(len(vectors))
            raw, index = vectors[span.start : span.stop], np.arange(span.start, span.stop, dtype=np.int64)
        norm = torch.cat([_norm(part.double()) for part in raw.split(4096)])
        seen = common.taken_out(readout.vectors(raw, self.group))
        return _Chosen(seen, index, np.zeros_like(index), as_numpy(norm), None, len(vectors))

    def _heads(self, readout: Readout, common: Common) -> _Chosen:
        import torch

        from embcompare.projections import leading_directions

        left, right = head_factors(readout.model.anatomy, self.group, self.layer)
        span = self._span(len(left))
        groups = INTERACTIONS[self.group]
        read, sizes, shares = [], [], []
        for head in span:
            pair = [
                common.taken_out(readout.vectors(f[head], g)).double()
                for f, g in zip((left, right), groups, strict=True)
            ]
            one, other, values = leading_directions(pair[0], pair[1], readout.gram)
            read += [one, other]
            total = float(values.square().sum())
            sizes += [float(values[0])] * 2
            shares += [float(values[0]) ** 2 / total if total else float("nan")] * 2
        return _Chosen(
            torch.stack(read),
            np.repeat(np.arange(span.start, span.stop, dtype=np.int64), 2),
            np.tile(np.array([1, 2], dtype=np.int64), len(span)),
            np.array(sizes),
            np.array(shares),
            len(left),
        )

    def _read(self, context: Context, readout: Readout, usable: Tensor, chosen: _Chosen) -> TokenReadingResult:
        from embcompare.projections import token_ends

        def tick(done: int, total: int) -> None:
            context.report(done, total, f"reading {plural(len(chosen.index), 'vector')} in blocks")

        ends = token_ends(chosen.vectors, readout.E, self.top, usable=usable, tick=tick)
        shift = readout.shift(chosen.vectors)
        found = _Ends(ends, shift)
        if chosen.share is not None:
            found.turn_heads()
        listed = list_tokens(readout.model.tokens, found.top, found.bottom)
        return TokenReadingResult(
            index=chosen.index,
            side=chosen.side,
            top=found.top,
            top_scores=found.top_scores,
            bottom=found.bottom,
            bottom_scores=found.bottom_scores,
            mean=found.mean,
            sd=found.sd,
            z=found.z(),
            norm=chosen.norm,
            share=chosen.share,
            listed=listed.rows,
            tokens=listed.names,
            usable=int(usable.sum()),
            vectors=chosen.size,
            condition=readout.inverse.condition if readout.inverse else None,
            rank=readout.inverse.rank if readout.inverse else None,
            notices=tuple(readout.notices),
        )


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The vectors to read, ready for E: (n, d), and what is known of each."""

    vectors: Tensor
    index: np.ndarray
    side: np.ndarray
    norm: np.ndarray
    share: np.ndarray | None
    size: int


class _Ends:
    """Both ends as arrays, with the mean token's part taken out."""

    def __init__(self, ends: TokenEnds, shift: Tensor) -> None:
        self.top, self.bottom = as_numpy(ends.top), as_numpy(ends.bottom)
        self.top_scores, self.bottom_scores = (
            as_numpy(scores - shift[:, None]) for scores in (ends.top_scores, ends.bottom_scores)
        )
        self.mean, self.sd = as_numpy(ends.mean - shift), as_numpy(ends.sd)
        self.scale = np.maximum(np.abs(self.top_scores), np.abs(self.bottom_scores)).max(1, initial=0.0)

    def turn_heads(self) -> None:
        """Set the common sign of a head's two directions: the first one's largest entry is positive."""
        wrong = np.repeat(np.abs(self.bottom_scores[::2, 0]) > np.abs(self.top_scores[::2, 0]), 2)
        for one, other, sign in ((self.top, self.bottom, 1), (self.top_scores, self.bottom_scores, -1)):
            one[wrong], other[wrong] = sign * other[wrong], sign * one[wrong]
        self.mean[wrong] *= -1

    def z(self) -> np.ndarray:
        high, low = self.top_scores[:, 0] - self.mean, self.bottom_scores[:, 0] - self.mean
        extreme = np.where(high >= -low, high, low)
        # a spread that is rounding of the float32 screen is none
        with np.errstate(all="ignore"):
            return np.asarray(np.where(self.sd > 1e-6 * self.scale, extreme / self.sd, np.nan))


def _norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, whatever its scale: squares alone would overflow or vanish."""
    import torch

    largest = x.abs().amax(1)
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    length: Tensor = torch.linalg.vector_norm(x / scale[:, None], dim=1) * scale
    return length


_TERM = re.compile(r"\s*(\d{1,9})\s*:\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*")


def parse_combination(text: str) -> dict[int, float]:
    """Return vector: coefficient from text such as ``12:1, 40:-0.5``; anything else raises SettingsError."""
    terms: dict[int, float] = {}
    for part in text.split(","):
        match = _TERM.fullmatch(part)
        if match is None:
            raise SettingsError(
                f"Combination cannot read {part.strip()!r}; write vector:coefficient pairs with commas between them, "
                "such as 12:1, 40:-0.5."
            )
        index, weight = int(match[1]), float(match[2])
        if index in terms:
            raise SettingsError(f"Combination names vector {index} twice; give it one coefficient.")
        if not np.isfinite(weight):
            raise SettingsError(f"Combination cannot weigh vector {index} with {match[2]}, which is not finite.")
        terms[index] = weight
    if not any(terms.values()):
        raise SettingsError("Combination has no coefficient other than zero, so there is nothing to read.")
    return terms
