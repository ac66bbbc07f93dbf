"""Token search: the parameters of two models that promote or suppress one token most, over all layers and groups.

The reading of Dar et al. 2023 turned round: a token's row of E has an inner product with every vector of the model, one
product of a matrix and a vector a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import Incomparable
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.commons import Common, common_option
from embcompare.experiments.readout import Readout, TokenLists, as_numpy, reading_option
from embcompare.experiments.surfaces import Pieces, find_token
from embcompare.experiments.vectors import GROUPS, INTERACTIONS, require_group

if TYPE_CHECKING:
    import pandas as pd

    from embcompare.models import LoadedModel

VECTOR_GROUPS = tuple(name for name in GROUPS if name not in INTERACTIONS)


@dataclass(frozen=True, eq=False)
class TokenSearchResult(Result):
    """The strongest vectors at both ends in both models, m rows: A before B, promoting before suppressing."""

    model: np.ndarray
    """(m,) int64: 0 for model A, 1 for model B."""
    promotes: np.ndarray
    """(m,) bool: True where the vector is among those that promote the token most."""
    group: np.ndarray
    """(m,) int64: place in ``groups``."""
    layer: np.ndarray
    """(m,) int64, from 0."""
    index: np.ndarray
    """(m,) int64: which vector of the layer."""
    score: np.ndarray
    """(m,) float64: the token's entry in the vector's reading."""
    z: np.ndarray
    """(m,) float64: the score's distance from the mean of its group over all layers of the model, in the group's
    standard deviations; rows are ranked by it."""
    tokens: TokenLists
    """(m) tuples: what else the vector reads as, the tokens at the end where the searched one stands; empty unless
    asked for."""
    groups: tuple[str, ...]
    """The groups that were searched, a gated model's up-projections where either has them."""
    highest_a: np.ndarray
    """(g, L_a) float64: the largest z of each group and layer of A; NaN where A has no such group."""
    lowest_a: np.ndarray
    """(g, L_a) float64: the most negative z."""
    highest_b: np.ndarray
    """(g, L_b) float64: likewise of B."""
    lowest_b: np.ndarray
    """(g, L_b) float64."""
    token_a: str
    """The token that was searched in A, as it is written."""
    token_b: str
    """Likewise in B."""
    row_a: int
    """Its row of A's E."""
    row_b: int
    """Its row of B's E."""
    searched_a: int
    """Vectors of A that were looked at."""
    searched_b: int
    """Vectors of B that were looked at."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row a listed vector."""
        import pandas as pd

        return pd.DataFrame(
            {
                "model": np.where(self.model == 0, "A", "B"),
                "end": np.where(self.promotes, "promotes", "suppresses"),
                "group": [self.groups[place] for place in self.group],
                "layer": self.layer,
                "index": self.index,
                "score": self.score,
                "z": self.z,
                "tokens": [" ".join(row) for row in self.tokens],
            }
        )


@dataclass(frozen=True)
class TokenSearch(Settings):
    """Find the vectors of two models, over all layers, that promote or suppress one token most."""

    experiment: ClassVar[str] = "token-search"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = TokenSearchResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder, or hub name with optional @revision.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder, or hub name with optional @revision.")
    token: str = option(label="Token", help="As text, such as dog, or ##dog for a token inside a word.")
    group: str = option(
        "all", label="Parameters", choices=("all", *VECTOR_GROUPS), help="Which vectors are searched; all of them do."
    )
    count: int = option(25, label="Vectors", low=1, high=500, help="Vectors listed for each model and end.")
    top: int = option(8, label="Tokens", low=0, high=50, help="Tokens shown for each vector; 0 leaves them out.")
    embedding: str = reading_option("embedding")
    centred: bool = reading_option("centred")
    common: int = common_option()
    inverse: str = reading_option("inverse")
    fold_norm: bool = reading_option("fold_norm")
    words_only: bool = reading_option("words_only")
    stop_words: str = reading_option("stop_words")
    only: str = reading_option("only")
    words_of: str = reading_option("words_of")

    def compute(self, context: Context) -> TokenSearchResult:
        """Multiply every layer's vectors with the token's row of E; rank by z within the group."""
        import torch

        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            groups = self._groups(a, b)
            context.report(0, 100, "reading both embeddings")
            readouts = [Readout(self, model, context.device) for model in (a, b)]
            found = []
            for readout in readouts:
                model = readout.model
                row, note = find_token(model.tokens, self.token, model.spec.label, len(readout.E), _pieces(model))
                readout.notices += [note] if note else []
                found.append(_Found(self, context, readout, row, groups))
            steps = 2 + sum(model.anatomy.n_layers for model in (a, b))
            done = 0
            for each in found:
                for _ in each.score():
                    done += 1
                    context.report(done, steps, f"searching {each.model.spec.label}")
                each.rank()
                each.read()
                done += 1
                context.report(done, steps, f"reading what was found in {each.model.spec.label}")
        return _joined(found, groups, [note for readout in readouts for note in readout.notices])

    def _groups(self, a: LoadedModel, b: LoadedModel) -> tuple[str, ...]:
        present = {*a.anatomy.groups(), *b.anatomy.groups()}
        if self.group == "all":
            return tuple(name for name in VECTOR_GROUPS if name in present)
        if self.group not in present:
            require_group(a, self.group)
        return (self.group,)


def _pieces(model: LoadedModel) -> Pieces:
    """Return how the model's tokenizer writes a text."""
    return lambda text: model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


class _Found:
    """One model's scores, z and listed vectors."""

    def __init__(
        self, settings: TokenSearch, context: Context, readout: Readout, row: int, groups: tuple[str, ...]
    ) -> None:
        self.readout, self.row, self.groups = readout, row, groups
        self.count, self.top = settings.count, settings.top
        self.common = Common(readout, settings.common)
        self.usable = readout.usable(context)
        self.model = readout.model
        self.own = [g for g in groups if g in self.model.anatomy.groups()]
        if not self.own:
            have = ", ".join(GROUPS[name] for name in self.model.anatomy.groups())
            wanted = ", ".join(GROUPS[name] for name in groups)
            raise Incomparable(f"{self.model.spec.label} ({self.model.anatomy.family}) has no {wanted}; it has {have}.")
        self.scores: dict[str, list[np.ndarray]] = {group: [] for group in self.own}
        self.z: dict[str, np.ndarray] = {}
        self.highest, self.lowest = np.full((2, len(groups), self.model.anatomy.n_layers), np.nan)

    def score(self) -> Iterator[None]:
        """Score layer by layer, in float64."""
        from embcompare.projections import token_scores

        directions = {group: self.readout.directions([self.row], group, self.common) for group in self.own}
        for layer in range(self.model.anatomy.n_layers):
            for group in self.own:
                vectors = self.model.anatomy.vectors(group, layer)
                self.scores[group].append(as_numpy(token_scores([vectors], directions[group]))[:, 0])
            yield

    def rank(self) -> None:
        """Put every group's scores on its own scale and list the extremes of all of them."""
        places, layers, indices, scores, zs = [], [], [], [], []
        for group in self.own:
            every = np.concatenate(self.scores[group])
            sizes = [len(part) for part in self.scores[group]]
            spread = every.std()
            constant = not spread > 1e-12 * np.abs(every).max(initial=0.0)
            z = np.full(len(every), np.nan) if constant else (every - every.mean()) / spread
            place = self.groups.index(group)
            if not constant:
                for at, part in enumerate(np.split(z, np.cumsum(sizes)[:-1])):
                    self.highest[place, at], self.lowest[place, at] = part.max(), part.min()
            else:
                label = self.model.spec.label
                self.readout.notices.append(f"{label}: all {GROUPS[group]} score this token alike; none is listed.")
            places.append(np.full(len(every), place))
            layers.append(np.repeat(np.arange(len(sizes)), sizes))
            indices.append(np.concatenate([np.arange(size) for size in sizes]))
            scores.append(every)
            zs.append(z)
        columns = [np.concatenate(part) for part in (places, layers, indices, scores, zs)]
        z = columns[-1]
        self.searched = len(z)
        defined = np.flatnonzero(~np.isnan(z))
        ends = [defined[np.argsort(sign * z[defined], kind="stable")][: self.count] for sign in (-1, 1)]
        chosen = np.concatenate(ends)
        self.promotes = np.arange(len(chosen)) < len(ends[0])
        self.columns = [column[chosen] for column in columns]

    def read(self) -> None:
        """Read the listed vectors as tokens, at the end where the searched one stands."""
        import torch

        from embcompare.projections import top_tokens

        self.tokens: list[tuple[str, ...]] = [()] * len(self.promotes)
        if not self.top:
            return
        places, layer, index = self.columns[:3]
        for at, group in enumerate(self.groups):
            rows = np.flatnonzero(places == at)
            if not len(rows):
                continue
            vectors = [self.model.anatomy.vectors(group, int(layer[row]))[int(index[row])] for row in rows]
            raw = self.common.taken_out(self.readout.vectors(torch.stack(vectors), group)).double()
            raw = raw * torch.as_tensor(np.where(self.promotes[rows], 1.0, -1.0), device=raw.device)[:, None]
            best, _ = top_tokens(raw, self.readout.E, self.top, usable=self.usable)
            for row, tokens in zip(rows, as_numpy(best), strict=True):
                self.tokens[row] = tuple(self.model.tokens.display(int(token)) for token in tokens)


def _joined(found: list[_Found], groups: tuple[str, ...], notices: list[str]) -> TokenSearchResult:
    a, b = found
    group, layer, index, score, z = (np.concatenate(pair) for pair in zip(a.columns, b.columns, strict=True))
    return TokenSearchResult(
        model=np.repeat(np.array([0, 1], dtype=np.int64), [len(each.promotes) for each in found]),
        promotes=np.concatenate([each.promotes for each in found]),
        group=group.astype(np.int64),
        layer=layer.astype(np.int64),
        index=index.astype(np.int64),
        score=score,
        z=z,
        tokens=tuple(a.tokens + b.tokens),
        groups=groups,
        highest_a=a.highest,
        lowest_a=a.lowest,
        highest_b=b.highest,
        lowest_b=b.lowest,
        token_a=a.model.tokens.display(a.row),
        token_b=b.model.tokens.display(b.row),
        row_a=a.row,
        row_b=b.row,
        searched_a=a.searched,
        searched_b=b.searched,
        notices=tuple(notices),
    )
