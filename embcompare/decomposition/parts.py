"""What every single part of a model added to one hidden state, one part at a time: by layer, head, attended token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embcompare.decomposition.additive import Conventions, check_splits, events, initial
from embcompare.decomposition.exact import ExactRun, check_residual
from embcompare.decomposition.norms import FrozenNorm
from embcompare.decomposition.terms import Term, layer_terms
from embcompare.errors import SettingsError

if TYPE_CHECKING:
    from embcompare.models.loading import LoadedModel


@dataclass(frozen=True, eq=False)
class Contribution:
    """One part of hidden state ``layer``: ``value`` (n, t, d), float64, zero where a token is padding.

    ``residual`` is that of the sum of all parts, and known, not NaN, with the last one, the correction.
    """

    term: Term
    value: Tensor
    layer: int
    after_norm: bool
    residual: float


def contributions(
    model: LoadedModel,
    ids: Tensor,
    mask: Tensor,
    *,
    layer: int | None = None,
    after_norm: bool = True,
    by: Sequence[str] = ("layer", "head"),
    options: Conventions | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
) -> Iterator[Contribution]:
    """Yield the parts of one hidden state, the input first and the correction last; they add up to the state.

    ``layer`` is the last by default, and then taken after the final norm, if there is one, unless ``after_norm`` is
    False. The model runs twice, once for the norms that each part has to pass and once for the parts; held at any time
    are one block and a few numbers a token, not the parts: their count, layers · heads · t for the finest split, costs
    no memory. Arguments and errors are those of :func:`~embcompare.decomposition.additive.decompose`; parts of several
    layers are never added up, whether ``by`` names ``"layer"`` or not, it only says whether terms carry its number.
    """
    last = model.anatomy.n_layers
    layer = last if layer is None else layer
    if not 0 <= layer <= last:
        raise SettingsError(
            f"There is no layer {layer} in {model.spec.label}; hidden states are numbered 0 (embedding output) to "
            f"{last}."
        )
    run = ExactRun(model, ids, mask, source, source_mask)
    after_norm = after_norm and layer == last and run.final_norm is not None
    return _parts(run, layer, after_norm, check_splits(by), options or Conventions())


@torch.no_grad()
def _parts(
    run: ExactRun, layer: int, after_norm: bool, by: tuple[str, ...], options: Conventions
) -> Iterator[Contribution]:
    norms, hidden = _norms(run, layer, after_norm, options)
    correction, total = torch.zeros_like(run.start), torch.zeros_like(run.start)
    passed = 0

    def carried(value: Tensor) -> Tensor:
        return reduce(lambda part, norm: norm.linear(part), norms[passed:], value).expand_as(total)

    for term, value in initial(run, options.mean == "own").items():
        if term.kind == "correction":
            correction = value
            continue
        part = carried(value)
        total = total + part
        yield Contribution(term, _real(part, run.mask), layer, after_norm, float("nan"))
    for trace in run.blocks(layer, keep_probabilities="head" in by or "token" in by):
        for event in events(trace, by, options):
            if isinstance(event, FrozenNorm):
                passed += 1
                correction = _through(event, correction)
            elif event[0].kind == "correction":
                correction = correction + event[1]
            else:
                part = carried(event[1])
                total = total + part
                yield Contribution(event[0], _real(part, run.mask), layer, after_norm, float("nan"))
    for norm in norms[passed:]:
        correction = _through(norm, correction)
    found = layer_terms(layer, {Term("correction"): total + correction}, hidden, run.mask)
    check_residual(run.model, found.residual, layer)
    yield Contribution(Term("correction"), _real(correction, run.mask), layer, after_norm, found.residual)


def _norms(run: ExactRun, layer: int, after_norm: bool, options: Conventions) -> tuple[list[FrozenNorm], Tensor]:
    """Return the norms on the residual stream up to a hidden state, in order, and that state."""
    norms: list[FrozenNorm] = []
    hidden = run.start
    for trace in run.blocks(layer):
        norms += [event for event in events(trace, (), options) if isinstance(event, FrozenNorm)]
        hidden = trace.end
    if after_norm and run.final_norm is not None:
        norms.append(FrozenNorm.of(run.final_norm, hidden, own_mean=options.mean == "own"))
        hidden = run.normed(hidden)
    return norms, hidden


def _through(norm: FrozenNorm, value: Tensor) -> Tensor:
    out, shift = norm.linear(value), norm.shift()
    return out if shift is None else out + shift


def _real(value: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask[..., None], value, 0)
