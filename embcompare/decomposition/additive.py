"""Every hidden state as an exact sum: input, self-attention, cross-attention, feed-forward, correction.

A hidden state is an affine function of what the parts of the model added below it, once the norms on its way are taken
with the statistics they had (Mickus, Paperno & Constant 2022, for post-norm; here for pre-norm, sandwich and parallel
placement as well). The state is streamed: each part's output is added to its term, each norm on the residual stream
scales all terms, and what belongs to no part (biases, and the means that norms take out) goes to the correction. Norms
before a part, inside a block, do not touch the residual stream and so not the terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from embcompare.decomposition.attention import Attended, constant, double_attention, passed
from embcompare.decomposition.exact import ExactRun, Trace, check_residual
from embcompare.decomposition.norms import FrozenNorm, double_norm
from embcompare.decomposition.terms import Kind, LayerTerms, Term, add, layer_terms
from embcompare.errors import SettingsError

if TYPE_CHECKING:
    from embcompare.models.anatomy import AttentionWeights, NormWeights
    from embcompare.models.loading import LoadedModel

SPLITS = ("layer", "head", "token")
"""What terms can be split by: the layer that added them, the head, the attended token."""
MAX_BYTES = 4 * 2**30
_CORRECTION = Term("correction")


@dataclass(frozen=True)
class Conventions:
    """Which term receives what the exact sum leaves open; each choice keeps the sum.

    ``mean``: a LayerNorm on the residual stream takes the mean of the whole state out of the ``"correction"`` (as in
    Mickus et al. 2022), or each term loses its ``"own"``. RMSNorm has no mean. ``attention_bias``: b_V W_O + b_O go to
    the ``"correction"``, or stay with the ``"attention"``; split by head, b_O is then shared equally. ``norm_bias``:
    the bias β of a norm before attention reaches the output as β W_V W_O and stays with the ``"attention"``, or goes
    to the ``"correction"``; nothing changes for post-norm models. The feed-forward's output bias always goes to the
    correction.
    """

    mean: Literal["correction", "own"] = "correction"
    attention_bias: Literal["correction", "attention"] = "correction"
    norm_bias: Literal["attention", "correction"] = "attention"

    def __post_init__(self) -> None:
        allowed = {
            "mean": ("correction", "own"),
            "attention_bias": ("correction", "attention"),
            "norm_bias": ("attention", "correction"),
        }
        for name, choices in allowed.items():
            if (value := getattr(self, name)) not in choices:
                raise SettingsError(f"{name} is {' or '.join(choices)}, not {value!r}.")


def decompose(
    model: LoadedModel,
    ids: Tensor,
    mask: Tensor,
    *,
    by: Sequence[str] = (),
    options: Conventions | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
    layers: Sequence[int] | None = None,
    max_bytes: int = MAX_BYTES,
) -> Iterator[LayerTerms]:
    """Yield the terms of hidden states 0 to L, the last one again after the final norm where there is one.

    ``ids`` and ``mask`` (n, t) are tokens padded on the right; for an encoder-decoder those that the decoder reads, its
    start token first, with ``source`` and ``source_mask`` (n, s) beside. ``by`` splits attention and feed-forward by
    ``"layer"``, attention by ``"head"`` and attended ``"token"``; input and correction stay whole. ``layers`` chooses
    hidden states; all blocks up to the last are run either way. Everything is float64; held at any time are one block's
    weights and activations and terms · n · t · d numbers. Raises :class:`SettingsError` where those would take more
    than ``max_bytes``, and :class:`UnsupportedFamily` where terms do not add up to the model's own state to 1e-6.
    """
    options, splits = options or Conventions(), check_splits(by)
    run = ExactRun(model, ids, mask, source, source_mask)
    wanted = wanted_layers(model, layers)
    _check_size(model, run, splits, max_bytes)
    return _stream(run, splits, options, wanted)


@torch.no_grad()
def _stream(run: ExactRun, by: tuple[str, ...], options: Conventions, wanted: set[int]) -> Iterator[LayerTerms]:
    own = options.mean == "own"

    def shown(layer: int, state: dict[Term, Tensor], hidden: Tensor, after_norm: bool = False) -> LayerTerms:
        found = layer_terms(layer, state, hidden, run.mask, after_norm=after_norm)
        check_residual(run.model, found.residual, layer)
        return found

    # Terms that nothing has been added to yet take no memory.
    nothing = run.start.new_zeros(()).expand_as(run.start)
    terms = all_terms(run.model, by, run.mask.shape[1], run.given["input_ids"].shape[1])
    state, hidden = dict.fromkeys(terms, nothing) | initial(run, own), run.start
    if 0 in wanted:
        yield shown(0, state, hidden)
    last = 0
    for trace in run.blocks(max(wanted), keep_probabilities="head" in by or "token" in by):
        for event in events(trace, by, options):
            if isinstance(event, FrozenNorm):
                state = {term: event.linear(value) for term, value in state.items()}
                add(state, _CORRECTION, event.shift())
            else:
                add(state, *event)
        last, hidden = trace.block.index + 1, trace.end
        if last in wanted:
            yield shown(last, state, hidden)
    if run.final_norm is not None and run.anatomy.n_layers in wanted:
        frozen = FrozenNorm.of(run.final_norm, hidden, own_mean=own)
        state = {term: frozen.linear(value) for term, value in state.items()}
        add(state, _CORRECTION, frozen.shift())
        yield shown(last, state, run.normed(hidden), after_norm=True)


def initial(run: ExactRun, own_mean: bool) -> dict[Term, Tensor]:
    """Return the terms of hidden state 0: the sum of the embeddings, and what their norm and projection add."""
    norm, project = run.embedding()
    if norm is None or run.embedded is None:
        return {Term("input"): run.start, _CORRECTION: torch.zeros_like(run.start)}
    frozen = FrozenNorm.of(norm, run.embedded, own_mean=own_mean)
    state = {Term("input"): frozen.linear(run.embedded)}
    add(state, _CORRECTION, torch.zeros_like(run.embedded))
    add(state, _CORRECTION, frozen.shift())
    if project is not None:
        state = {term: value @ project.weight.double().T for term, value in state.items()}
        add(state, _CORRECTION, None if project.bias is None else project.bias.double())
    return state


def events(trace: Trace, by: Sequence[str], options: Conventions) -> Iterator[tuple[Term, Tensor] | FrozenNorm]:
    """Yield what happens to the residual stream in one block, in order: a part is added, or a norm is applied."""
    block, seen, placement = trace.block, trace.seen, trace.block.placement
    own, layer = options.mean == "own", trace.block.index + 1

    def frozen(key: str, x: Tensor) -> FrozenNorm:
        return FrozenNorm.of(double_norm(block.norms[key]), x, own_mean=own)

    def added(parts: Iterator[tuple[Term, Tensor]], moved: Tensor | None, gave: Tensor, key: str) -> Iterator:
        """Yield a part's terms and its constant, behind the norm that a sandwich puts between part and sum."""
        norm = frozen(f"{key}_output", gave) if placement == "sandwich" else None
        for term, value in parts:
            if "layer" in by:
                term = Term(term.kind, layer, term.head, term.token)
            yield term, value if norm is None else norm.linear(value)
        if moved is not None:
            yield _CORRECTION, moved if norm is None else norm.linear(moved)
        if norm is not None and (shift := norm.shift()) is not None:
            yield _CORRECTION, shift

    def attended(
        which: str, kind: Kind, weights: AttentionWeights, source: Tensor, probabilities: Tensor | None
    ) -> Iterator:
        before = double_norm(block.norms[which]) if placement != "post" and which == "attention" else None
        gave = seen[f"{which}_out"]
        work = Attended(weights, source, gave, probabilities, _moved(weights, before, options))
        yield from added(work.parts(kind, by), work.moved.sum(0), gave, which)

    weights = double_attention(block.attention)
    yield from attended("attention", "self-attention", weights, seen["attention_in"], trace.probabilities)
    if placement == "post":
        yield frozen("attention", trace.start + seen["attention_out"])
    if block.cross_attention is not None:
        weights = double_attention(block.cross_attention)
        read = seen["cross_attention_source"]
        yield from attended("cross_attention", "cross-attention", weights, read, trace.cross_probabilities)
        if placement == "post":
            yield frozen("cross_attention", seen["cross_attention_in"] + seen["cross_attention_out"])
    gave, bias = seen["feed_forward_out"], block.feed_forward.value_bias
    bias = None if bias is None else bias.double()
    parts = iter([(Term("feed-forward"), gave if bias is None else gave - bias)])
    yield from added(parts, bias, gave, "feed_forward")
    if placement == "post":
        yield frozen("feed_forward", seen["feed_forward_in"] + gave)


def _moved(weights: AttentionWeights, before: NormWeights | None, options: Conventions) -> Tensor:
    """Return what goes from each head to the correction, (H, d)."""
    moved = torch.zeros_like(weights.w_o[:, 0])
    for head in range(weights.heads):
        if options.attention_bias == "correction":
            moved[head] += constant(weights, head)
        if options.norm_bias == "correction" and before is not None and before.bias is not None:
            moved[head] += passed(weights, head, before.bias)
    return moved


def check_splits(by: Sequence[str]) -> tuple[str, ...]:
    """Return ``by`` in the order of :data:`SPLITS`; raise :class:`SettingsError` for what nothing is split by."""
    for each in by:
        if each not in SPLITS:
            raise SettingsError(f"Terms are split by {', '.join(SPLITS)}, not by {each!r}.")
    return tuple(each for each in SPLITS if each in by)


def all_terms(model: LoadedModel, by: Sequence[str], length: int, source: int = 0) -> tuple[Term, ...]:
    """Return the terms of a split of texts of ``length`` tokens, in order; ``source`` are an encoder's tokens."""
    layers = range(1, model.anatomy.n_layers + 1) if "layer" in by else (None,)
    heads = range(model.anatomy.blocks[0].attention.heads) if "head" in by else (None,)
    read: list[tuple[Kind, int]] = [("self-attention", length)]
    if model.anatomy.blocks[0].cross_attention is not None:
        read.append(("cross-attention", source))
    attended = (
        Term(kind, *place)
        for kind, tokens in read
        for place in product(layers, heads, range(tokens) if "token" in by else (None,))
    )
    return Term("input"), *attended, *(Term("feed-forward", layer) for layer in layers), _CORRECTION


def _check_size(model: LoadedModel, run: ExactRun, by: tuple[str, ...], most: int) -> None:
    texts, length = run.mask.shape
    source = run.given["input_ids"].shape[1]
    terms = len(all_terms(model, by, length, source))
    size = 8 * terms * texts * length * model.anatomy.width
    if size > most:
        raise SettingsError(
            f"Split by {' and '.join(by) or 'part'}, {texts} texts of {length} tokens have {terms:,} terms, which take "
            f"{size / 2**30:.1f} GiB and {most / 2**30:.1f} may be used; give fewer texts at a time, split less, or "
            "take the terms one by one with contributions()."
        )


def wanted_layers(model: LoadedModel, layers: Sequence[int] | None) -> set[int]:
    last = model.anatomy.n_layers
    if layers is None:
        return set(range(last + 1))
    for layer in layers:
        if not 0 <= layer <= last:
            raise SettingsError(
                f"There is no layer {layer} in {model.spec.label}; hidden states are numbered 0 (embedding output) to "
                f"{last}."
            )
    if not layers:
        raise SettingsError(f"No layer of {model.spec.label} was chosen; hidden states are numbered 0 to {last}.")
    return {int(layer) for layer in layers}
