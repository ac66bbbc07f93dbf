"""Nearest vectors: one vector of model A, and the vectors of model B, in any layer, that read most like it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.readout import Readout, TokenLists, as_numpy, reading_option, require_layer
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

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from embcompare.models import LoadedModel
    from embcompare.spaces import EmbeddingSpace


@dataclass(frozen=True, eq=False)
class NearestVectorsResult(Result):
    """The vectors of B that correlate most with one vector of A over the shared tokens, strongest first; m rows.

    A vector of B with a negative correlation is read with its sign turned, so that all lists can be read side by side.
    """

    layer: np.ndarray
    """(m,) int64: layer of B."""
    index: np.ndarray
    """(m,) int64: which vector (head) of that layer."""
    correlation: np.ndarray
    """(m,) float64, signed."""
    tokens_a: tuple[str, ...]
    """What the vector of A promotes, strongest first; for a head reads, then →, then writes."""
    bottom_a: tuple[str, ...]
    """What it suppresses, strongest first; none for a head."""
    tokens_b: TokenLists
    """(m) tuples: likewise of each vector of B."""
    bottom_b: TokenLists
    """(m) tuples."""
    best: np.ndarray
    """(L_b,) float64: the strongest correlation in each layer of B, signed; NaN in a layer without any."""
    best_index: np.ndarray
    """(L_b,) int64: whose it is; -1 in a layer without any."""
    null_best: np.ndarray | None
    """(draws,) float64: the strongest |correlation| over all layers with the vocabulary of A permuted: what the best of
    so many vectors reaches by chance; None for heads or without draws."""
    searched: int
    """Vectors of B that were looked at."""
    shared: int
    """Tokens that both models have."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row a vector of B, tokens joined by spaces."""
        import pandas as pd

        return pd.DataFrame(
            {
                "layer": self.layer,
                "index": self.index,
                "correlation": self.correlation,
                "tokens": [" ".join(row) for row in self.tokens_b],
                "bottom": [" ".join(row) for row in self.bottom_b],
            }
        )


@dataclass(frozen=True)
class NearestVectors(Settings):
    """Find the vectors of model B, over all layers, that read most like one vector of model A."""

    experiment: ClassVar[str] = "nearest-vectors"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = NearestVectorsResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder, or hub name with optional @revision.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder, or hub name with optional @revision.")
    layer: int = option(label="Layer of A", low=0, help="Counted from 0, the first block.")
    index: int = option(label="Vector of A", low=0, help="Which neuron, column, row or head of the layer, from 0.")
    group: str = option("ff_values", label="Parameters", choices=tuple(GROUPS), help="Which vectors are compared.")
    sign: str = option(
        "either",
        label="Sign",
        choices=("either", "positive", "negative"),
        help="Rank by the size of the correlation, or list those of one sign only.",
    )
    count: int = option(20, label="Vectors", low=1, high=500, help="Vectors of B that are listed.")
    top: int = option(10, label="Tokens", low=1, high=100, help="Tokens listed for each vector.")
    centred: bool = option(True, label="Centred", help="Pearson; off compares plain cosines.")
    common: int = option(
        0,
        label="Common directions left out",
        low=0,
        high=64,
        help="Strongest directions of each embedding to leave out; the first is mostly token frequency. The paper: 0.",
    )
    embedding: str = reading_option("embedding")
    words_only: bool = reading_option("words_only")
    stop_words: str = reading_option("stop_words")
    only: str = reading_option("only")
    words_of: str = reading_option("words_of")
    null_draws: int = option(
        20, label="Null draws", low=0, high=1000, help="Random permutations of the vocabulary; 0 leaves the null out."
    )
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    dtype: str = option("float32", label="Precision", choices=("float32", "float64"), help="Of the products.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of the permutations.")

    space: ClassVar[str] = "embedding"
    inverse: ClassVar[str] = "transpose"
    fold_norm: ClassVar[bool] = False

    def compute(self, context: Context) -> NearestVectorsResult:
        """Correlate one vector with a layer of B at a time; nothing of size vectors by tokens exists."""
        import torch

        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            for model in (a, b):
                require_group(model, self.group)
            require_layer(a, self.layer)
            self._require_vector(a)
            return _Run(self, context, a, b).result()

    def _require_vector(self, a: LoadedModel) -> None:
        heads = self.group in INTERACTIONS
        attention = a.anatomy.blocks[self.layer].attention
        size = attention.heads if heads else len(a.anatomy.vectors(self.group, self.layer))
        if self.index >= size:
            raise SettingsError(
                f"Layer {self.layer} of {a.spec.label} has {size} {'heads' if heads else GROUPS[self.group]}, 0 to "
                f"{size - 1}, and none numbered {self.index}."
            )


class _Run:
    def __init__(self, settings: NearestVectors, context: Context, a: LoadedModel, b: LoadedModel) -> None:
        self.settings, self.context, self.a, self.b = settings, context, a, b
        self.layers = b.anatomy.n_layers
        self.total = self.layers + 2
        context.report(0, self.total, "reading both models through the vocabulary")
        space, notes = open_space(settings, a, b, context.device)
        self.space: EmbeddingSpace = space  # type: ignore[assignment]  # the settings have no feature space
        self.notices = list(notes)

    def result(self) -> NearestVectorsResult:
        s = self.settings
        prepared = prepare(self.a.anatomy, s.group, s.layer, self.space, "a", self.context.device, s.dtype)
        place = np.flatnonzero(as_numpy(prepared.index) == s.index)
        if not len(place):
            raise Incomparable(
                f"Vector {s.index} of layer {s.layer} of {self.a.spec.label} is constant over the shared tokens, so it "
                "has no correlation with any other; choose another vector."
            )
        chosen = _only(prepared, int(place[0]))
        met_a = meet([chosen], self.space, "a")[0]
        draws = self._null_rows()
        rho = [np.full(0, np.nan)] * self.layers
        best_by_chance = np.zeros(len(draws)) if draws is not None else None
        undefined = 0
        for layer in range(self.layers):
            other = prepare(self.b.anatomy, s.group, layer, self.space, "b", self.context.device, s.dtype)
            undefined += other.undefined
            row = np.full(other.heads + other.undefined, np.nan)
            row[as_numpy(other.index)] = whole(correlations(met_a, meet([other], self.space, "b")[0])).numpy()[0]
            rho[layer] = row
            if best_by_chance is not None and draws is not None and other.heads:
                chance = as_numpy((draws.to(other.left) @ other.left.T).abs().amax(1)).astype(np.float64)
                best_by_chance = np.maximum(best_by_chance, chance)
            self.context.report(layer + 1, self.total, f"comparing with layer {layer + 1} of {self.layers}")
        self._leave_out_itself(rho)
        if undefined:
            self.notices.append(
                f"{self.b.spec.label}: {undefined} of the {GROUPS[s.group]} are constant over the shared tokens and "
                "have no correlation; they were left out."
            )
        return self._assemble(rho, best_by_chance)

    def _null_rows(self) -> Tensor | None:
        """Return what stands for the vector of A, in B's own coordinates, under each permuted vocabulary: (draws, r_b).

        The V-wide reading of one vector is small, so that the null needs no Gram matrix: p = C E_A x of unit norm is
        permuted and multiplied with E_B, which B's own coordinates then take apart.
        """
        import torch

        s = self.settings
        if not s.null_draws or s.group in INTERACTIONS:
            return None
        from embcompare.text import match_vocabularies

        match = match_vocabularies(self.a.tokens, self.b.tokens, override=s.small_overlap)
        x = self.space.seen_a(self.a.anatomy.vectors(s.group, s.layer)[s.index][None].double().cpu())[0]
        readings = []
        for model, shared in ((self.a, match.rows_a), (self.b, match.rows_b)):
            E, _ = model.anatomy.readout(s.embedding)
            readings.append((E, torch.as_tensor(shared, device=E.device)))
        (e_a, rows_a), (e_b, rows_b) = readings
        p = torch.cat([e_a[part].double() @ x.to(e_a.device) for part in rows_a.split(8192)])
        p = p - p.mean() if s.centred else p
        p = p / torch.linalg.vector_norm(p)
        generator = torch.Generator().manual_seed(s.seed)
        shuffled = torch.stack([p[torch.randperm(len(p), generator=generator)] for _ in range(s.null_draws)])
        sums = torch.zeros(s.null_draws, e_b.shape[1], dtype=torch.float64)
        for at in range(0, len(p), 8192):
            part = slice(at, at + 8192)
            sums += (shuffled[:, part].to(e_b.device) @ e_b[rows_b[part]].double()).cpu()
        # p sums to zero where it is centred, so that E_B needs no centring; T_B's left inverse brings sums home
        back = self.space.to_b / self.space.to_b.square().sum(1, keepdim=True)
        return sums @ back.T

    def _leave_out_itself(self, rho: list[np.ndarray]) -> None:
        s = self.settings
        if self.a.fingerprint == self.b.fingerprint:
            rho[s.layer][s.index] = np.nan
            self.notices.append("Both models are the same, so the vector itself is left out.")

    def _assemble(self, rho: list[np.ndarray], null: np.ndarray | None) -> NearestVectorsResult:
        s = self.settings
        every = np.concatenate(rho)
        layer = np.repeat(np.arange(self.layers), [len(row) for row in rho])
        index = np.concatenate([np.arange(len(row)) for row in rho])
        strength = {"either": np.abs(every), "positive": every, "negative": -every}[s.sign]
        defined = np.flatnonzero(strength > (0 if s.sign != "either" else -1))
        order = defined[np.argsort(-strength[defined], kind="stable")][: s.count]
        if not len(order):
            self.notices.append(f"No vector of {self.b.spec.label} has a {s.sign} correlation with this one.")
        self.context.report(self.layers + 1, self.total, "reading tokens")
        tokens_a, bottom_a = self._read(self.a, [(s.layer, s.index, 1.0)])
        signs = np.where(every[order] < 0, -1.0, 1.0)
        tokens_b, bottom_b = self._read(self.b, list(zip(layer[order], index[order], signs, strict=True)))
        best, best_index = np.full(self.layers, np.nan), np.full(self.layers, -1, dtype=np.int64)
        for at, row in enumerate(rho):
            if not np.isnan(row).all():
                best_index[at] = np.nanargmax(np.abs(row))
                best[at] = row[best_index[at]]
        return NearestVectorsResult(
            layer=layer[order].astype(np.int64),
            index=index[order].astype(np.int64),
            correlation=every[order],
            tokens_a=tokens_a[0],
            bottom_a=bottom_a[0],
            tokens_b=tokens_b,
            bottom_b=bottom_b,
            best=best,
            best_index=best_index,
            null_best=null,
            searched=int((~np.isnan(every)).sum()),
            shared=self.space.size,
            notices=tuple(dict.fromkeys(self.notices)),
        )

    def _read(self, model: LoadedModel, chosen: list[tuple[int, int, float]]) -> tuple[TokenLists, TokenLists]:
        """Read vectors (layer, index, sign) at both ends, a head as what it reads → what it writes."""
        import torch

        from embcompare.projections import token_ends

        if not chosen:
            return (), ()
        readout = Readout(self.settings, model, self.context.device)
        said = len(readout.notices)
        usable = readout.usable(self.context)
        self.notices += readout.notices[said:]
        if self.settings.group in INTERACTIONS:
            return self._read_heads(readout, usable, chosen)
        picked = [
            model.anatomy.vectors(self.settings.group, int(layer))[int(index)].double() * sign
            for layer, index, sign in chosen
        ]
        ends = token_ends(self._seen(model, torch.stack(picked)), readout.E, self.settings.top, usable=usable)
        display = model.tokens.display
        top, bottom = (
            tuple(tuple(display(int(token)) for token in row) for row in as_numpy(each))
            for each in (ends.top, ends.bottom)
        )
        return top, bottom

    def _seen(self, model: LoadedModel, vectors: Tensor) -> Tensor:
        """Take the common directions out of what is read, if they are left out of what is compared."""
        if not self.settings.common:
            return vectors
        return self.space.seen_a(vectors.cpu()) if model is self.a else self.space.seen_b(vectors.cpu())

    def _read_heads(
        self, readout: Readout, usable: torch.Tensor, chosen: list[tuple[int, int, float]]
    ) -> tuple[TokenLists, TokenLists]:
        import torch

        from embcompare.projections import leading_directions, token_ends

        model, lists = readout.model, []
        half = (self.settings.top + 1) // 2
        for layer, head, sign in chosen:
            left, right = head_factors(model.anatomy, self.settings.group, int(layer))
            left, right = (self._seen(model, factor[int(head)].double()) for factor in (left, right))
            one, other, _ = leading_directions(left, right, readout.gram)
            ends = token_ends(torch.stack([one, other]), readout.E, half, usable=usable)
            turned = bool(ends.bottom_scores[0, 0].abs() > ends.top_scores[0, 0].abs())
            reads = ends.bottom[0] if turned else ends.top[0]
            writes = ends.bottom[1] if turned != (sign < 0) else ends.top[1]
            into, out = (tuple(model.tokens.display(int(token)) for token in each) for each in (reads, writes))
            lists.append((*into, "→", *out))
        return tuple(lists), ((),) * len(lists)


def _only(prepared: Prepared, place: int) -> Prepared:
    """Return one vector, or head, of a prepared layer."""
    per = len(prepared.left) // prepared.heads
    rows = slice(place * per, (place + 1) * per)
    right = None if prepared.right is None else prepared.right[rows]
    return Prepared(prepared.left[rows], right, 1, prepared.index[place : place + 1], 0)
