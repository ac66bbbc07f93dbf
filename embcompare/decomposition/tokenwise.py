"""Every hidden state as a sum over input tokens: each token's way through the model, all activations held.

With attention weights, norms' statistics and the tangents of the activations taken as they were, the whole model is an
affine map of its input embeddings, so that a hidden state is one term for each input token and one for all biases (Oh &
Schuler 2023). Exact at the point itself; away from it, it is the tangent, not the model. In an encoder-decoder what
cross-attention brings is the source's term (as in Mickus & Vázquez 2023, where the decoder's tokens make one term).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from embcompare.decomposition.activations import AffineFeedForward, double_feed_forward
from embcompare.decomposition.additive import initial, wanted_layers
from embcompare.decomposition.attention import constant, double_attention
from embcompare.decomposition.exact import ExactRun, Trace, check_residual
from embcompare.decomposition.norms import FrozenNorm, double_norm
from embcompare.decomposition.terms import LayerTerms, Term, layer_terms
from embcompare.errors import SettingsError

if TYPE_CHECKING:
    from embcompare.models.anatomy import AttentionWeights
    from embcompare.models.loading import LoadedModel

_SOURCE, _CORRECTION = Term("source"), Term("correction")


@dataclass(frozen=True)
class LinearConventions:
    """What the token-wise sum leaves open; each choice keeps the sum.

    ``mean``: at a LayerNorm each term loses its ``"own"`` mean, or the ``"correction"`` that of the whole state.
    ``gate``: gated feed-forward layers by the ``"tangent"`` of the product, or with the gate ``"held"`` (see
    :class:`~embcompare.decomposition.activations.AffineFeedForward`). All biases go to the correction.
    """

    mean: Literal["own", "correction"] = "own"
    gate: Literal["tangent", "held"] = "tangent"

    def __post_init__(self) -> None:
        for name, choices in (("mean", ("own", "correction")), ("gate", ("tangent", "held"))):
            if (value := getattr(self, name)) not in choices:
                raise SettingsError(f"{name} is {' or '.join(choices)}, not {value!r}.")


def decompose_tokens(
    model: LoadedModel,
    ids: Tensor,
    mask: Tensor,
    *,
    layers: Sequence[int] | None = None,
    chunk: int = 16,
    options: LinearConventions | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
) -> Iterator[LayerTerms]:
    """Yield hidden states as sums over input tokens: all layers for the first ``chunk`` positions, then for the next.

    Terms are ``token`` k for the positions k of the chunk, ``other tokens`` for all others together, in an
    encoder-decoder ``source``, and ``correction``; so each result is an exact sum with its own residual. In a causal
    model the state at i has nothing of tokens k > i. For each chunk the model runs again; held at any time are one
    block's weights and activations and 3 · (chunk + 3) · n · t · d numbers of float64, whatever t is. Arguments and
    errors are those of :func:`~embcompare.decomposition.additive.decompose`.
    """
    if chunk < 1:
        raise SettingsError(f"A chunk holds at least one position, not {chunk}.")
    run = ExactRun(model, ids, mask, source, source_mask)
    wanted = wanted_layers(model, layers)
    return _chunks(run, wanted, chunk, options or LinearConventions())


def decompose_source_target(
    model: LoadedModel,
    ids: Tensor,
    mask: Tensor,
    source: Tensor,
    source_mask: Tensor | None = None,
    *,
    layers: Sequence[int] | None = None,
    options: LinearConventions | None = None,
) -> Iterator[LayerTerms]:
    """Yield the decoder's hidden states as sums of ``source``, ``target`` and ``correction``, layer by layer.

    The target is what all tokens that the decoder read have sent through it. Arguments and errors are those of
    :func:`~embcompare.decomposition.additive.decompose`; models of one stack, which have no source, are refused.
    """
    run = ExactRun(model, ids, mask, source, source_mask)
    everything = torch.ones(run.mask.shape[1], dtype=torch.bool, device=run.start.device)
    wanted = wanted_layers(model, layers)
    return _stream(run, wanted, [(Term("target"), everything)], options or LinearConventions())


def _chunks(run: ExactRun, wanted: set[int], chunk: int, options: LinearConventions) -> Iterator[LayerTerms]:
    length = run.mask.shape[1]
    positions = torch.arange(length, device=run.start.device)
    for first in range(0, length, chunk):
        inside = range(first, min(first + chunk, length))
        groups = [(Term("token", token=k), positions == k) for k in inside]
        others = (positions < inside.start) | (positions >= inside.stop)
        if len(inside) < length:
            groups.append((Term("other tokens"), others))
        yield from _stream(run, wanted, groups, options)


@torch.no_grad()
def _stream(
    run: ExactRun, wanted: set[int], groups: list[tuple[Term, Tensor]], options: LinearConventions
) -> Iterator[LayerTerms]:
    own = options.mean == "own"
    start = initial(run, own)
    names = [term for term, _ in groups]
    parts = [start[Term("input")] * chosen[:, None] for _, chosen in groups]
    if run.anatomy.blocks[0].cross_attention is not None:
        names.append(_SOURCE)
        parts.append(torch.zeros_like(run.start))
    names.append(_CORRECTION)
    state = torch.stack([*parts, start[_CORRECTION]])

    def shown(layer: int, state: Tensor, hidden: Tensor, after_norm: bool = False) -> LayerTerms:
        found = layer_terms(layer, dict(zip(names, state, strict=True)), hidden, run.mask, after_norm=after_norm)
        check_residual(run.model, found.residual, layer)
        return found

    hidden, last = run.start, 0
    if 0 in wanted:
        yield shown(0, state, hidden)
    for trace in run.blocks(max(wanted), keep_probabilities=True):
        state = _block(trace, state, options)
        last, hidden = trace.block.index + 1, trace.end
        if last in wanted:
            yield shown(last, state, hidden)
    if run.final_norm is not None and run.anatomy.n_layers in wanted:
        state = _normed(FrozenNorm.of(run.final_norm, hidden, own_mean=own), state)
        yield shown(last, state, run.normed(hidden), after_norm=True)


def _normed(norm: FrozenNorm, state: Tensor) -> Tensor:
    """Return terms (terms, n, t, d), the correction last, after a norm."""
    out, shift = norm.linear(state), norm.shift()
    if shift is not None:
        out[-1] += shift
    return out


def _block(trace: Trace, state: Tensor, options: LinearConventions) -> Tensor:
    block, seen, placement = trace.block, trace.seen, trace.block.placement
    norms = {key: double_norm(norm) for key, norm in block.norms.items()}
    pre = placement != "post"

    def normed(key: str, x: Tensor, terms: Tensor) -> Tensor:
        return _normed(FrozenNorm.of(norms[key], x, own_mean=options.mean == "own"), terms)

    def joined(key: str, before: Tensor, terms: Tensor, added: Tensor, gave: Tensor) -> Tensor:
        """Return the sum of terms and what a part added to them, and the norm on either side of that sum."""
        if placement == "sandwich":
            added = normed(f"{key}_output", gave, added)
        return terms + added if pre else normed(key, before + gave, terms + added)

    assert trace.probabilities is not None
    read = normed("attention", trace.start, state) if pre else state
    attended = _attend(double_attention(block.attention), trace.probabilities, read)
    entered, between = state, trace.start + seen["attention_out"]
    if placement == "sandwich":
        between = trace.start + norms["attention_output"].apply(seen["attention_out"])
    state = joined("attention", trace.start, state, attended, seen["attention_out"])
    if block.cross_attention is not None:
        weights, gave = double_attention(block.cross_attention), seen["cross_attention_out"]
        fixed = sum((constant(weights, head) for head in range(weights.heads)), torch.zeros_like(gave[0, 0]))
        brought = torch.zeros_like(state)
        brought[-2], brought[-1] = gave - fixed, fixed
        state = joined("cross_attention", seen["cross_attention_in"], state, brought, gave)
        between = between + gave
    if placement == "parallel":
        read = normed("feed_forward", trace.start, entered)
    else:
        read = normed("feed_forward", between, state) if pre else state
    affine = AffineFeedForward.of(double_feed_forward(block.feed_forward), seen["feed_forward_in"], options.gate)
    fed = torch.stack([affine.linear(term) for term in read])
    fed[-1] += affine.shift
    return joined("feed_forward", seen["feed_forward_in"], state, fed, seen["feed_forward_out"])


def _attend(weights: AttentionWeights, probabilities: Tensor, read: Tensor) -> Tensor:
    """Return what attention makes of each term of what it read, (terms, n, t, d); its biases go to the last one."""
    out = torch.zeros_like(read)
    for head in range(weights.heads):
        out += (probabilities[:, head] @ (read @ weights.head_v(head))) @ weights.w_o[head]
        out[-1] += constant(weights, head)
    return out
