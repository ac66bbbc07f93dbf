"""From stored layouts to anatomy: Linear keeps (out, in), Conv1D (in, out), fused layers hold Q, K and V at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embcompare.models.anatomy import AttentionWeights, FeedForwardWeights, NormWeights

if TYPE_CHECKING:
    from torch import Tensor


def into(layer: Any) -> Tensor:
    """Return a projection's weight as ``(in, out)``: a view."""
    weight: Tensor = layer.weight
    return weight if type(layer).__name__ == "Conv1D" else weight.t()


def split_columns(weight: Tensor, heads: int) -> Tensor:
    """Return ``(d, H·d_h)`` as ``(H, d, d_h)``: a view."""
    split: Tensor = weight.unflatten(1, (heads, -1))
    return split.permute(1, 0, 2)


def split_rows(weight: Tensor, heads: int) -> Tensor:
    """Return ``(H·d_v, d)`` as ``(H, d_v, d)``: a view."""
    split: Tensor = weight.unflatten(0, (heads, -1))
    return split


def query_key_value(layers: list[Any], fused: str, heads: int, kv_heads: int) -> list[tuple[Tensor, Tensor | None]]:
    """Return weight ``(H, d, d_h)`` and bias ``(H, d_h)`` of query, key and value.

    ``fused`` is ``""`` for three layers, ``"thirds"`` for one layer that holds all queries, then all keys, then
    all values, and ``"interleaved"`` for one layer that holds query, key and value of head 0, then of head 1, …
    """
    if not fused:
        counts = (heads, kv_heads, kv_heads)
        return [_split(into(layer), layer.bias, n) for layer, n in zip(layers, counts, strict=True)]
    weight, bias = into(layers[0]), layers[0].bias
    if fused == "thirds":
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return [_split(w, b, heads) for w, b in zip(weight.chunk(3, dim=1), biases, strict=True)]
    weight = weight.unflatten(1, (heads, 3, -1)).permute(2, 1, 0, 3)
    bias = None if bias is None else bias.unflatten(0, (heads, 3, -1)).transpose(0, 1)
    return [(weight[i], None if bias is None else bias[i]) for i in range(3)]


def attention(
    layers: list[Any], out: Any, fused: str, heads: int, kv_heads: int, **properties: Any
) -> AttentionWeights:
    """Assemble an attention layer from its projection modules."""
    (w_q, b_q), (w_k, b_k), (w_v, b_v) = query_key_value(layers, fused, heads, kv_heads)
    w_o = split_rows(into(out), heads)
    return AttentionWeights(w_q, w_k, w_v, w_o, b_q, b_k, b_v, out.bias, **properties)


def feed_forward(layers: list[Any], activation: str) -> FeedForwardWeights:
    """Assemble a feed-forward layer from ``[in, out]`` or, gated, ``[gate, up, out]``."""
    first, last = layers[0], layers[-1]
    up = layers[1] if len(layers) == 3 else None
    return FeedForwardWeights(
        keys=into(first).T,
        up=None if up is None else into(up).T,
        values=into(last),
        key_bias=first.bias,
        up_bias=None if up is None else up.bias,
        value_bias=last.bias,
        activation=activation,
    )


def norm(module: Any, kind: str, like: Tensor) -> NormWeights:
    """Read a norm module; ``kind`` is ``"layer"``, ``"rms"`` or ``"rms_plus_one"`` (stores gain minus 1).

    A norm without a gain gets one of ones, with the dtype and device of ``like``.
    """
    eps = next(float(getattr(module, name)) for name in ("eps", "variance_epsilon") if hasattr(module, name))
    gain = getattr(module, "weight", None)
    if gain is None:
        gain = like.new_ones(module.normalized_shape)
    elif kind == "rms_plus_one":
        gain = 1 + gain
    return NormWeights("layer" if kind == "layer" else "rms", gain, getattr(module, "bias", None), eps)


def _split(weight: Tensor, bias: Tensor | None, heads: int) -> tuple[Tensor, Tensor | None]:
    return split_columns(weight, heads), None if bias is None else bias.unflatten(0, (heads, -1))
