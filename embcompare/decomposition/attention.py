"""What attention adds, split by head and by attended token, and the constants that pass through it unchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from embcompare.decomposition.terms import Kind, Term

if TYPE_CHECKING:
    from embcompare.models.anatomy import AttentionWeights


def double_attention(weights: AttentionWeights) -> AttentionWeights:
    """Return value and output weights and their biases in float64; query and key are left as they are."""
    changed: dict[str, Any] = {name: getattr(weights, name) for name in ("w_v", "w_o", "b_v", "b_o")}
    changed = {name: None if value is None else value.double() for name, value in changed.items()}
    return dataclasses.replace(weights, **changed)


@dataclass(frozen=True, eq=False)
class Attended:
    """One attention layer at work, float64.

    ``source`` (n, s, d) is what values are read from, ``output`` (n, t, d) what the layer gave, ``probabilities``
    (n, H, t, s) its attention, if known. Attention weights add up to 1, so a constant that is added to every value
    comes out unchanged: ``moved`` (H, d) is how much of it, head by head, is taken out of what the heads add.
    """

    weights: AttentionWeights
    source: Tensor
    output: Tensor
    probabilities: Tensor | None
    moved: Tensor

    def parts(self, kind: Kind, by: Sequence[str]) -> Iterator[tuple[Term, Tensor]]:
        """Yield what the layer adds, without ``moved``, whole or split by ``head`` and ``token``; (n, t, d) each."""
        if "head" not in by and "token" not in by:
            yield Term(kind), self.output - self.moved.sum(0)
            return
        for head in range(self.weights.heads):
            if "token" not in by:
                assert self.probabilities is not None
                yield Term(kind, head=head), self.probabilities[:, head] @ self._added(head)
            elif "head" in by:
                yield from self._by_token(kind, [head], head)
        if "head" not in by:
            yield from self._by_token(kind, range(self.weights.heads), None)

    def _added(self, head: int) -> Tensor:
        """Return what a head adds for each attended token, (n, s, d), were it attended to alone."""
        weights = self.weights
        added = self.source @ weights.head_v(head) @ weights.w_o[head]
        return added + constant(weights, head) - self.moved[head]

    def _by_token(self, kind: Kind, heads: Sequence[int], name: int | None) -> Iterator[tuple[Term, Tensor]]:
        assert self.probabilities is not None
        added = [self._added(head) for head in heads]
        for token in range(self.source.shape[1]):
            total = sum(
                self.probabilities[:, head, :, token, None] * each[:, None, token]
                for head, each in zip(heads, added, strict=True)
            )
            assert isinstance(total, Tensor)
            yield Term(kind, head=name, token=token), total


def constant(weights: AttentionWeights, head: int) -> Tensor:
    """Return what a head adds whatever it attends to, (d,): b_V W_O, and its share of b_O, the same for each head."""
    shared = weights.w_o.new_zeros(weights.w_o.shape[-1]) if weights.b_o is None else weights.b_o / weights.heads
    return shared if weights.b_v is None else shared + weights.b_v[weights.group(head)] @ weights.w_o[head]


def passed(weights: AttentionWeights, head: int, constant_input: Tensor) -> Tensor:
    """Return what a head makes of a constant (d,) in all that it reads: c W_V W_O, (d,)."""
    return constant_input @ weights.head_v(head) @ weights.w_o[head]
