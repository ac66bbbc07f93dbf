"""Terms read through the model's own head: each term's share of the logits, and the loss without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from embcompare.decomposition.activations import tangent
from embcompare.decomposition.additive import decompose
from embcompare.decomposition.exact import check_residual
from embcompare.decomposition.norms import FrozenNorm, double_norm
from embcompare.decomposition.terms import Kind, LayerTerms, Term, add, layer_terms, without
from embcompare.errors import Incomparable, SettingsError, UnsupportedFamily
from embcompare.models.heads import Head, read_head
from embcompare.models.layouts import norm as read_norm

if TYPE_CHECKING:
    from embcompare.models.anatomy import NormWeights
    from embcompare.models.loading import LoadedModel

_NUMBERS = 2**25
"""Logits held at once: 256 MiB."""
_TOLERANCE = {"torch.float64": 1e-4, "torch.float32": 2e-3, "torch.float16": 3e-2, "torch.bfloat16": 1e-1}
IGNORED = -100
"""The target of a token whose prediction is not scored."""


@dataclass(frozen=True, eq=False)
class Ablation:
    """Losses with terms dropped before the head: ``losses`` (1 + drops, tokens) in nats, the first with none dropped.

    ``dropped`` names the others; ``at`` (n, t) marks the tokens that were scored.
    """

    dropped: tuple[str, ...]
    losses: Tensor
    at: Tensor

    @property
    def means(self) -> Tensor:
        """Mean loss, (1 + drops,)."""
        return self.losses.mean(1)


@dataclass(frozen=True, eq=False)
class Readout:
    """A model's head in float64, whole and as it acts on terms.

    Terms pass the final norm with the state's own statistics, and the transform of a masked-language-model head, where
    there is one, linearised at the state (the norm's statistics held, the activation by its tangent); constants go to
    the correction. Then terms times E add up to the logits less the output bias, before any softcap.
    """

    model: LoadedModel
    head: Head
    norm: NormWeights | None

    @classmethod
    def of(cls, model: LoadedModel) -> Readout:
        """Read a model's head; raises what :func:`~embcompare.models.heads.read_head` raises for models without one."""
        norm = None if model.anatomy.final_norm is None else double_norm(model.anatomy.final_norm)
        crossed = model.anatomy.blocks[0].cross_attention is not None
        head = _decoder_head(model) if crossed else read_head(model, torch.float64)
        return cls(model, dataclasses.replace(head, norm=None if norm is None else norm.apply), norm)

    @torch.no_grad()
    def logits(self, terms: LayerTerms, *dropped: Kind | Term) -> Tensor:
        """Return logits (n, t, V) of the state with terms dropped; with none dropped, those of the state itself.

        Terms after the final norm are dropped behind it; of terms before it, the rest is normed anew.
        """
        left = without(terms, *dropped).hidden if dropped else terms.hidden
        return self.head.logits(left, normed=terms.after_norm)

    @torch.no_grad()
    def before_embedding(self, terms: LayerTerms, *, own_mean: bool = False) -> LayerTerms:
        """Return the terms as they meet E, (terms, n, t, d_E): normed, and through the head's transform.

        Raises :class:`UnsupportedFamily` where they do not add up to what the head itself computes.
        """
        if not terms.after_norm and self.norm is not None:
            terms = terms.normed(self.norm, own_mean=own_mean)
        state, total = dict(zip(terms.terms, terms.values, strict=True)), terms.hidden
        for step in _flat(self.head.steps):
            state, total = _through(step, state, total, own_mean)
        expected = terms.hidden
        for each in self.head.steps:
            expected = each(expected)
        found = layer_terms(terms.layer, state, expected, terms.mask, after_norm=True)
        check_residual(self.model, found.residual, terms.layer)
        return found

    @torch.no_grad()
    def term_logits(self, terms: LayerTerms) -> Tensor:
        """Return each term's share of the logits, (terms, tokens, V), for all real tokens.

        They add up to the logits less the output bias, before any softcap. For many tokens of a large vocabulary,
        :meth:`top_tokens` needs no such table.
        """
        values, _ = self.before_embedding(terms).tokens()
        return values @ self.head.weight.T * self.head.scale

    @torch.no_grad()
    def top_tokens(self, terms: LayerTerms, k: int = 10) -> tuple[Tensor, Tensor]:
        """Return each term's k largest logits and their token ids, (terms, tokens, k) each, for all real tokens."""
        rows = self.model.anatomy.embedding.shape[0]
        if not 1 <= k <= rows:
            raise SettingsError(f"Between 1 and {rows:,} tokens can be listed, not {k}.")
        values, _ = self.before_embedding(terms).tokens()
        weight = self.head.weight[:rows].T
        found = [
            (part @ weight * self.head.scale).topk(k)
            for part in values.split(max(1, _NUMBERS // (len(values) * rows)), dim=1)
        ]
        return torch.cat([each.values for each in found], 1), torch.cat([each.indices for each in found], 1)

    @torch.no_grad()
    def ablate(self, terms: LayerTerms, targets: Tensor, drops: Sequence[Kind | Term] | None = None) -> Ablation:
        """Return the loss of predicting ``targets`` (n, t) with each of ``drops``, by default each kind, dropped.

        A target of :data:`IGNORED`, and padding, is not scored. Where terms are dropped is as in :meth:`logits`.
        """
        chosen = tuple(dict.fromkeys(term.kind for term in terms.terms)) if drops is None else tuple(drops)
        targets = targets.to(terms.hidden.device)
        if targets.shape != terms.mask.shape:
            raise SettingsError(f"Targets are {tuple(targets.shape)} and the states' tokens {tuple(terms.mask.shape)}.")
        at = terms.mask & (targets != IGNORED)
        if not bool(at.any()):
            raise SettingsError("No token has a target, so there is no loss; give at least one.")
        states = [terms.hidden, *(without(terms, each).hidden for each in chosen)]
        losses = [self._losses(state[at], targets[at], terms.after_norm) for state in states]
        return Ablation(tuple(map(str, chosen)), torch.stack(losses), at)

    def _losses(self, states: Tensor, targets: Tensor, normed: bool) -> Tensor:
        from torch.nn.functional import cross_entropy

        step = max(1, _NUMBERS // len(self.head.weight))
        parts = zip(states.split(step), targets.split(step), strict=True)
        found = [cross_entropy(self.head.logits(x, normed=normed), y, reduction="none") for x, y in parts]
        return torch.cat(found)


def next_tokens(ids: Tensor, mask: Tensor) -> Tensor:
    """Return a causal model's targets (n, t): the token after each, :data:`IGNORED` at the end and for padding."""
    targets = torch.full_like(ids, IGNORED)
    targets[:, :-1] = torch.where(mask[:, 1:].bool(), ids[:, 1:], IGNORED)
    return targets


def _decoder_head(model: LoadedModel) -> Head:
    """Read the head of an encoder-decoder and prove it on four tokens: its logits take a source beside."""
    module: Any = model.module
    output, anatomy = module.get_output_embeddings(), model.anatomy
    if output is None:
        raise Incomparable(
            f"{model.spec.label} has no head that predicts tokens, so its terms give no logits; choose a version with "
            "a language-model head."
        )
    bias = getattr(output, "bias", None) if output.bias is not None else getattr(module, "final_logits_bias", None)
    bias = None if bias is None else bias.detach().double().reshape(-1)
    norm = None if anatomy.final_norm is None else double_norm(anatomy.final_norm).apply
    weight = output.weight.detach().double()
    head = Head(norm, (), weight, bias, anatomy.unembedding_scale, anatomy.unembedding_softcap, "")
    ids = torch.randint(0, len(anatomy.embedding), (1, 4), generator=torch.Generator().manual_seed(0))
    ids = ids.to(anatomy.embedding.device)
    with torch.no_grad():
        (last,) = (each for each in decompose(model, ids, torch.ones_like(ids), source=ids) if _is_last(each, model))
        with model.lock:
            expected = module(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits.double()
        found = head.logits(last.hidden, normed=True)
    error = float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-6)
    if not error <= _TOLERANCE.get(str(anatomy.embedding.dtype), 1e-1):
        raise UnsupportedFamily(
            f"{model.spec.label} does not compute its logits as the family '{anatomy.family}' does (relative error "
            f"{error:.1e}), so its terms cannot be read through its head; look at their indicators instead."
        )
    return head


def _is_last(terms: LayerTerms, model: LoadedModel) -> bool:
    last = terms.layer == model.anatomy.n_layers
    return last and terms.after_norm == (model.anatomy.final_norm is not None)


def decoder_inputs(model: LoadedModel, targets: Tensor) -> Tensor:
    """Return what an encoder-decoder's decoder reads when it is to give ``targets`` (n, t): its start token, then they
    without the last. Raises :class:`SettingsError` for models without such a token.
    """
    start = getattr(model.module.config, "decoder_start_token_id", None)
    if start is None:
        raise SettingsError(f"{model.spec.label} names no token that its decoder starts with, so it has no inputs.")
    return torch.cat([torch.full_like(targets[:, :1], int(start)), targets[:, :-1]], 1)


def _flat(steps: Sequence[Callable[[Tensor], Tensor]]) -> Iterator[Any]:
    """Yield the linear layers, activations and norms of a head's transform, in their order."""
    for step in steps:
        if not isinstance(step, nn.Module) or isinstance(step, nn.Linear | nn.LayerNorm):
            yield step
            continue
        parts = [*step.children(), *(v for k, v in vars(step).items() if callable(v) and "act" in k)]
        linear = [part for part in parts if isinstance(part, nn.Linear)]
        norms = [part for part in parts if isinstance(part, nn.LayerNorm)]
        # A module without parts is an activation itself; heads of every family run linear, activation, norm.
        others = [part for part in parts if part not in linear and part not in norms]
        yield from [*linear, *others, *norms] if linear or norms else [step]


def _through(step: Any, state: dict[Term, Tensor], total: Tensor, own_mean: bool) -> tuple[dict[Term, Tensor], Tensor]:
    shift: Tensor | None
    if isinstance(step, nn.Linear):
        state = {term: value @ step.weight.T for term, value in state.items()}
        out, shift = step(total), step.bias
    elif isinstance(step, nn.LayerNorm):
        frozen = FrozenNorm.of(read_norm(step, "layer", total), total, own_mean=own_mean)
        state = {term: frozen.linear(value) for term, value in state.items()}
        out, shift = step(total), frozen.shift()
    else:
        out, slope = tangent(step, total)
        state = {term: value * slope for term, value in state.items()}
        shift = out - slope * total
    add(state, Term("correction"), shift)
    return state, out
