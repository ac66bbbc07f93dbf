"""One uniform view of a transformer's weights, whatever the family and however it stores them.

Row-vector convention throughout: a hidden state ``x`` is ``(1, d)``, a head computes ``x W_Q`` and a
feed-forward layer ``act(x Kᵀ + b) V`` (Dar et al. 2023, section 2). Tensors are views of the module's
parameters in the module's dtype, not copies, unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from embcompare.errors import Incomparable, SettingsError

if TYPE_CHECKING:
    from torch import Tensor

Placement = Literal["pre", "post", "parallel", "sandwich"]
Position = Literal["none", "absolute", "rotary", "relative"]

GROUPS = ("ff_keys", "ff_up", "ff_values", "w_q", "w_k", "w_v", "w_o")
"""The parameter groups that :meth:`Anatomy.vectors` can give, in reading order."""


@dataclass(frozen=True, eq=False)
class NormWeights:
    """LayerNorm or RMSNorm as it is effectively computed; ``gain`` and ``bias`` are ``(d,)``.

    ``gain`` is what the normalised state is multiplied with: where the module stores ``w`` and multiplies
    with ``1 + w``, as Gemma does, the 1 has been added (then ``gain`` is a copy).
    """

    kind: Literal["layer", "rms"]
    gain: Tensor
    bias: Tensor | None
    eps: float

    def apply(self, x: Tensor) -> Tensor:
        """Return the normalised ``x`` (..., d): biased variance, ``eps`` inside the root."""
        if self.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.gain
        return x if self.bias is None else x + self.bias


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """One attention layer, head by head.

    ``w_q`` is ``(H, d, d_h)``, ``w_k`` ``(H_kv, d, d_h)``, ``w_v`` ``(H_kv, d, d_v)``, ``w_o`` ``(H, d_v, d)``;
    biases are per head, ``(H, d_h)`` and so on, and ``b_o`` is ``(d,)``. Head ``h`` attends with
    ``softmax(scale · (x W_Q + b_Q)(x W_K + b_K)ᵀ)``, before rotary or relative positions and, where
    ``softcap`` c is given, squeezed by ``c tanh(·/c)``. With grouped heads ``H_kv < H``.
    """

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    b_o: Tensor | None
    position: Position
    scale: float
    softcap: float | None = None
    causal: bool = False

    @property
    def heads(self) -> int:
        """Number of query heads, H."""
        return int(self.w_q.shape[0])

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads, H_kv; smaller than H where heads are grouped."""
        return int(self.w_k.shape[0])

    def group(self, head: int) -> int:
        """Return the key and value head that query head ``head`` reads."""
        return head // (self.heads // self.kv_heads)

    def head_k(self, head: int) -> Tensor:
        """Return W_K ``(d, d_h)`` of query head ``head``, grouped heads resolved."""
        return self.w_k[self.group(head)]

    def head_v(self, head: int) -> Tensor:
        """Return W_V ``(d, d_v)`` of query head ``head``, grouped heads resolved."""
        return self.w_v[self.group(head)]

    def head_output(self, head: int, probabilities: Tensor, states: Tensor) -> Tensor:
        """Return what one head adds: ``A (X W_V + b_V) W_O``.

        ``probabilities`` is ``(..., t, s)``, ``states`` ``(..., s, d)``, the result ``(..., t, d)``. Summed over
        the heads and with ``b_o`` added, this is the layer's output.
        """
        value = states @ self.head_v(head)
        if self.b_v is not None:
            value = value + self.b_v[self.group(head)]
        return probabilities @ value @ self.w_o[head]


@dataclass(frozen=True, eq=False)
class FeedForwardWeights:
    """One feed-forward layer: ``act(x Kᵀ + b) V``, or gated, ``(act(x Kᵀ + b) ⊙ (x Uᵀ + b_u)) V``.

    ``keys`` (the gate, where gated), ``up`` and ``values`` are ``(m, d)``; ``key_bias`` and ``up_bias`` are
    ``(m,)``, ``value_bias`` is ``(d,)``. ``activation`` is the name transformers gives the function.
    """

    keys: Tensor
    up: Tensor | None
    values: Tensor
    key_bias: Tensor | None
    up_bias: Tensor | None
    value_bias: Tensor | None
    activation: str

    def activate(self, z: Tensor) -> Tensor:
        """Return ``act(z)``, elementwise."""
        from transformers.activations import ACT2FN

        out: Tensor = ACT2FN[self.activation](z)
        return out

    def coefficients(self, x: Tensor) -> Tensor:
        """Return what each value is multiplied with for states ``x`` (..., d): shape (..., m)."""
        inner = self.activate(_affine(x, self.keys, self.key_bias))
        return inner if self.up is None else inner * _affine(x, self.up, self.up_bias)

    def output(self, x: Tensor) -> Tensor:
        """Return the layer's output (..., d) for its input ``x`` (..., d)."""
        # T5 keeps its values in float32 where all else is float16.
        out = self.coefficients(x).to(self.values.dtype) @ self.values
        return out if self.value_bias is None else out + self.value_bias


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """One transformer block.

    ``placement`` says how the parts are joined; norms are keyed ``attention``, ``cross_attention`` and
    ``feed_forward`` (before the part for ``"pre"`` and ``"parallel"``, after the sum for ``"post"``), and in a
    ``"sandwich"`` also ``attention_output`` and ``feed_forward_output`` (after the part, before the sum).

    ``sites`` names submodules to hook: ``block``; ``attention_in`` and ``feed_forward_in``, whose first input is
    what the part reads; ``attention_out`` and ``feed_forward_out``, whose output is what the part gives; likewise
    ``cross_attention_in``, ``cross_attention_source`` and ``cross_attention_out``; ``norm.KEY`` for each norm.
    """

    index: int
    placement: Placement
    attention: AttentionWeights
    cross_attention: AttentionWeights | None
    feed_forward: FeedForwardWeights
    norms: Mapping[str, NormWeights]
    sites: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A whole model: its blocks, its input and output E, its outer norms.

    ``embedding`` and ``unembedding`` are ``(V, d)`` in residual width, cut to the tokens the tokenizer has;
    ``padded_rows`` counts the rows cut off. A model without a linear head over the vocabulary has no
    ``unembedding``. The first hidden state is ``embedding_norm(embedding_scale · E[token] + position)``; logits are
    ``unembedding_scale · final_norm(x) · unembeddingᵀ + unembedding_bias``, squeezed by ``c tanh(·/c)`` where
    ``unembedding_softcap`` c is given; an MLM head's transform before the unembedding is left out.

    ``classifier`` ``(labels, d)`` and ``classifier_bias`` ``(labels,)`` are the head of a model that classifies texts
    or tokens, whose logits are ``final_norm(x) · classifierᵀ + classifier_bias``; ``labels`` names its rows. All three
    are there only where the head reads the last hidden state itself: behind a pooler, as in BERT's classifier of
    whole texts, its rows lie in other coordinates.
    """

    family: str
    width: int
    blocks: tuple[BlockWeights, ...]
    embedding: Tensor
    unembedding: Tensor | None
    tied: bool
    embedding_scale: float
    embedding_norm: NormWeights | None
    final_norm: NormWeights | None
    padded_rows: int
    notes: tuple[str, ...]
    unembedding_scale: float = 1.0
    unembedding_bias: Tensor | None = None
    unembedding_softcap: float | None = None
    sites: Mapping[str, str] = field(default_factory=dict)
    classifier: Tensor | None = None
    classifier_bias: Tensor | None = None
    labels: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def groups(self) -> tuple[str, ...]:
        """Return the parameter groups this model has; ``ff_up`` only where the feed-forward is gated."""
        gated = self.blocks[0].feed_forward.up is not None
        return tuple(name for name in GROUPS if name != "ff_up" or gated)

    def vectors(self, group: str, layer: int) -> Tensor:
        """Return one layer's parameters of ``group`` as rows ``(n, d)`` of residual width.

        ``ff_keys``, ``ff_up`` and ``ff_values`` give m rows; ``w_q``, ``w_k`` and ``w_v`` give their columns, head by
        head, H·d_h or H_kv·d_h rows; ``w_o`` gives its rows, H·d_v. Raises ``SettingsError`` for a group or layer
        that does not exist and ``Incomparable`` for ``ff_up`` where nothing is gated.
        """
        if group not in GROUPS:
            raise SettingsError(f"There is no parameter group {group!r}; choose one of {', '.join(GROUPS)}.")
        if not 0 <= layer < self.n_layers:
            raise SettingsError(f"There is no layer {layer}; this model's layers are 0 to {self.n_layers - 1}.")
        block = self.blocks[layer]
        if group == "ff_up" and block.feed_forward.up is None:
            raise Incomparable(
                "This model's feed-forward layers are not gated, so they have no up-projection; choose ff_keys."
            )
        if group.startswith("ff_"):
            rows: Tensor = getattr(block.feed_forward, group.removeprefix("ff_"))
            return rows
        weight: Tensor = getattr(block.attention, group)
        if group == "w_o":
            return weight.reshape(-1, self.width)
        return weight.transpose(1, 2).reshape(-1, self.width)

    def readout(self, which: str = "output") -> tuple[Tensor, str]:
        """Return the E ``(V, d)`` to project with, and a note: empty, or what the reader must know.

        ``"output"`` is the unembedding, as in Dar et al. 2023, and falls back to the input embedding where the
        model has no linear head, which the note then says; ``"input"`` is the input embedding.
        """
        if which not in ("output", "input"):
            raise SettingsError(f"There is no {which!r} embedding; choose output or input.")
        if which == "input":
            return self.embedding, ""
        if self.unembedding is None:
            return self.embedding, (
                "This model has no linear head over the vocabulary, so its input embedding is used as E."
            )
        return self.unembedding, ""


def _affine(x: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    out = x @ rows.T
    return out if bias is None else out + bias
