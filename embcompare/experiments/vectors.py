"""The parameter vectors of two models on their way into a space: the groups, and how a layer is prepared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from embcompare.errors import Incomparable
from embcompare.measures.matching import correlation_blocks

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from embcompare.models import Anatomy, LoadedModel
    from embcompare.spaces import EmbeddingSpace, FeatureSpace, Space

GROUPS: dict[str, str] = {
    "ff_keys": "FF keys",
    "ff_up": "FF up-projections (gated FF)",
    "ff_values": "FF values",
    "w_q": "W_Q columns",
    "w_k": "W_K columns",
    "w_v": "W_V columns",
    "w_o": "W_O rows",
    "w_qk": "W_QK per head",
    "w_vo": "W_VO per head",
}
INTERACTIONS = {"w_qk": ("w_q", "w_k"), "w_vo": ("w_v", "w_o")}
"""Per-head products of two factors; compared through the factors, never as V x V matrices."""


class SpaceSettings(Protocol):
    """The settings that say which space two models are compared in."""

    @property
    def space(self) -> str:
        """``"embedding"`` or ``"feature"``."""

    @property
    def centred(self) -> bool:
        """Pearson's correlation or plain cosine."""

    @property
    def common(self) -> int:
        """How many of the strongest directions over the vocabulary are left out."""

    @property
    def embedding(self) -> str:
        """``"output"`` or ``"input"``."""

    @property
    def small_overlap(self) -> bool:
        """Whether few shared tokens will do."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """One layer's vectors in own-norm coordinates, scaled to unit norm, the undefined ones left out.

    ``left`` is (n, r); for an interaction matrix ``left`` and ``right`` are the two factors, (heads * d_h, r) each,
    ``heads`` says how many, and ``left`` is scaled so that each head's product has unit Frobenius norm.
    ``index`` tells which vectors (or heads) of the layer are left, ``undefined`` how many are not.
    """

    left: Tensor
    right: Tensor | None
    heads: int
    index: Tensor
    undefined: int


def open_space(
    settings: SpaceSettings, a: LoadedModel, b: LoadedModel, device: str
) -> tuple[FeatureSpace | EmbeddingSpace, tuple[str, ...]]:
    """Build the space of two models and the sentences that say what it rests on.

    Raises :class:`Incomparable` where widths (feature space) or vocabularies (embedding space) do not fit.
    """
    import torch

    from embcompare.spaces import EmbeddingSpace, FeatureSpace
    from embcompare.text import match_vocabularies

    if settings.space == "feature":
        return FeatureSpace(a.anatomy.width, b.anatomy.width, centred=settings.centred), ()
    match = match_vocabularies(a.tokens, b.tokens, override=settings.small_overlap)
    e_a, note_a = a.anatomy.readout(settings.embedding)
    e_b, note_b = b.anatomy.readout(settings.embedding)
    notes = dict.fromkeys(f"{m.spec.label}: {note}" for m, note in ((a, note_a), (b, note_b)) if note)
    rows_a, rows_b = torch.as_tensor(match.rows_a), torch.as_tensor(match.rows_b)
    space = EmbeddingSpace(
        e_a[rows_a].to(device), e_b[rows_b].to(device), centred=settings.centred, common=settings.common
    )
    return space, (match.sentence(), *notes)


def prepare(anatomy: Anatomy, group: str, layer: int, space: Space, side: str, device: str, dtype: str) -> Prepared:
    """Bring one layer's ``group`` into ``space`` as side ``"a"`` or ``"b"``; layers count from 0."""
    import torch

    kind = getattr(torch, dtype)
    if group in INTERACTIONS:
        return _prepare_heads(anatomy, group, layer, space, side, device, kind)
    vectors = anatomy.vectors(group, layer).to(device, kind)
    unit = space.unit_a(vectors) if side == "a" else space.unit_b(vectors)
    defined = torch.isfinite(unit).all(1)
    index = torch.nonzero(defined).flatten().cpu()
    return Prepared(unit[defined], None, len(index), index, len(unit) - len(index))


def _prepare_heads(
    anatomy: Anatomy, group: str, layer: int, space: Space, side: str, device: str, kind: torch.dtype
) -> Prepared:
    import torch

    own = space.own_a if side == "a" else space.own_b
    heads = anatomy.blocks[layer].attention.heads

    def scaled(factor: Tensor) -> Tensor:
        largest = factor.abs().amax((1, 2), keepdim=True)
        return torch.where(largest > 0, factor / largest, factor)

    factors = [scaled(factor.to(device, kind)) for factor in head_factors(anatomy, group, layer)]
    left, right = (own(factor.flatten(0, 1)).unflatten(0, (heads, -1)) for factor in factors)
    # |L Rᵀ|² over the V x V matrix, from the (d_h, d_h) Grams of the two factors alone
    norm = ((left @ left.mT) * (right @ right.mT)).sum((1, 2)).clamp(min=0).sqrt()
    size = torch.linalg.vector_norm(left, dim=(1, 2)) * torch.linalg.vector_norm(right, dim=(1, 2))
    defined = (norm > size * 1e-6) & torch.isfinite(norm)
    index = torch.nonzero(defined).flatten().cpu()
    left = left[defined] / norm[defined][:, None, None]
    return Prepared(left.flatten(0, 1), right[defined].flatten(0, 1), len(index), index, heads - len(index))


def head_factors(anatomy: Anatomy, group: str, layer: int) -> tuple[Tensor, Tensor]:
    """Return the two factors of W_QK or W_VO of every head as rows of residual width, (H, d_h, d) each.

    W_QK = Lᵀ R with L the columns of W_Q and R those of W_K; W_VO = Lᵀ R with L the columns of W_V and R the rows of
    W_O. Heads that share a key and value head (grouped queries) each get their own copy.
    """
    import torch

    attention = anatomy.blocks[layer].attention
    if group == "w_qk":
        keys = torch.stack([attention.head_k(head) for head in range(attention.heads)])
        return attention.w_q.mT, keys.mT
    values = torch.stack([attention.head_v(head) for head in range(attention.heads)])
    return values.mT, attention.w_o


def meet(layers: Iterable[Prepared], space: Space, side: str) -> list[Prepared]:
    """Bring prepared layers to the basis in which the two models' inner products are taken."""
    bring = space.meet_a if side == "a" else space.meet_b
    return [
        Prepared(bring(p.left), None if p.right is None else bring(p.right), p.heads, p.index, p.undefined)
        for p in layers
    ]


def correlations(a: Prepared, b: Prepared) -> Iterator[Tensor]:
    """Yield the correlations of a layer of A with a layer of B, (n_a, n_b), by blocks of rows.

    For interaction matrices the cosine of the two V x V matrices: ⟨L_a R_aᵀ, L_b R_bᵀ⟩ is the elementwise product of
    the small matrices L_aᵀ L_b and R_aᵀ R_b, summed; with a centred space both sides of the V x V matrix are centred.
    """
    if a.right is None or b.right is None:
        yield from correlation_blocks(a.left, b.left)
        return
    if not a.heads or not b.heads:
        yield a.left.new_empty(a.heads, b.heads)
        return
    product = (a.left @ b.left.T) * (a.right @ b.right.T)
    yield product.unflatten(0, (a.heads, -1)).unflatten(2, (b.heads, -1)).sum((1, 3))


def require_group(model: LoadedModel, group: str) -> None:
    """Raise :class:`Incomparable` when the model has no such parameters, naming what it has."""
    needed = INTERACTIONS.get(group, (group,))
    present = model.anatomy.groups()
    if any(part not in present for part in needed):
        raise Incomparable(
            f"{model.spec.label} ({model.anatomy.family}) has no {GROUPS[group]}; "
            f"it has {', '.join(GROUPS[name] for name in present)}."
        )
