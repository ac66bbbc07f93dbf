"""A run of parameter agreement: one model after the other, then both in one result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.experiments.agreement_active import active_groups, overlap, read_text, watch
from embcompare.experiments.agreement_keep import keep_counts, keep_curve
from embcompare.experiments.agreement_pairs import GROUPS_OF, Example, PairAgreement
from embcompare.experiments.agreement_result import KINDS, ParameterAgreementResult
from embcompare.experiments.commons import Common
from embcompare.experiments.readout import Readout
from embcompare.text.corpora import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.agreement import ParameterAgreement
    from embcompare.experiments.agreement_active import Active
    from embcompare.experiments.base import Context
    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus

_PARTS = ("", "_low", "_high", "_null", "_gap_low", "_gap_high")
_STEPS = 1000


@dataclass(frozen=True, eq=False)
class Measured:
    """What one model gives."""

    layers: int
    k: int
    sim: dict[str, np.ndarray]
    """(6, L) of each kind of pair."""
    counts: dict[str, np.ndarray]
    overlap: dict[str, np.ndarray]
    """(2, 6, L) of each group."""
    tokens: int
    sentences: int
    keep: np.ndarray
    curves: np.ndarray
    """(3, 2, K): kind of vectors; by the transpose, by the inverse."""
    keep_vectors: np.ndarray
    examples: dict[str, list[Example]]
    notices: tuple[str, ...]


class _Progress:
    """Layers and batches of one of several models, as parts of the whole."""

    def __init__(self, context: Context, label: str, at: int, of: int, steps: int) -> None:
        self.context, self.label, self.at, self.of, self.steps = context, label, at, of, steps
        self.done, self.message = 0, ""

    def say(self, message: str) -> None:
        self.message = message
        self.tick()

    def step(self) -> None:
        self.done += 1
        self.tick()

    def tick(self, *_: int) -> None:
        part = self.at * _STEPS + int(_STEPS * min(self.done / self.steps, 1.0))
        self.context.report(part, self.of * _STEPS, f"{self.label}: {self.message}")


def measured(
    settings: ParameterAgreement, context: Context, model: LoadedModel, corpus: Corpus, at: int, of: int
) -> Measured:
    """Measure one model, number ``at`` of ``of``."""
    layers = model.anatomy.n_layers
    progress = _Progress(context, model.spec.label, at, of, 2 * layers + 2 + len(KINDS))
    progress.say("reading the embedding")
    readout = Readout(settings, model, context.device)
    common = Common(readout, settings.common)
    usable = readout.usable(context)
    pairs = PairAgreement(settings, readout, common, usable)
    progress.step()
    for layer in range(layers):
        progress.say(f"pairs of layer {layer + 1} of {layers}")
        pairs.layer(layer, progress.tick)
        progress.step()
    notices = [*readout.notices, *pairs.notices()]
    active, said = _active(settings, readout, common, usable, corpus, progress)
    progress.step()
    notices += said
    over = {group: np.full((2, 6, layers), np.nan) for group in active_groups(model)}
    for layer in range(layers):
        progress.say(f"active parameters of layer {layer + 1} of {layers}")
        if active is not None:
            for group, found in over.items():
                found[:, :, layer] = overlap(settings, readout, common, usable, active, layer, group)
                progress.tick()
        progress.step()
    count = int(usable.sum())
    if settings.k > count:
        notices.append(f"{model.spec.label} has {count:,} tokens that may be listed, so sets have no more.")
    if settings.k >= count:
        notices.append(
            f"Every set of {model.spec.label} holds all its tokens, so all agree whatever they say; list fewer tokens "
            "of a set, or filter fewer out."
        )
    keep, curves, sizes = _kept(settings, readout, common, usable, active, progress)
    return Measured(
        layers=layers,
        k=min(settings.k, count),
        sim={name: pairs.values[:, place] for place, name in enumerate(pairs.pairs)},
        counts={name: pairs.counts[place] for place, name in enumerate(pairs.pairs)},
        overlap=over,
        tokens=0 if active is None else len(active.sentence),
        sentences=0 if active is None else len(np.unique(active.sentence)),
        keep=keep,
        curves=curves,
        keep_vectors=sizes,
        examples=pairs.examples(),
        notices=tuple(notices),
    )


def _active(
    settings: ParameterAgreement,
    readout: Readout,
    common: Common,
    usable: Tensor,
    corpus: Corpus,
    progress: _Progress,
) -> tuple[Active | None, list[str]]:
    model, label = readout.model, readout.model.spec.label
    if (
        getattr(model.module.config, "is_encoder_decoder", False)
        and model.anatomy.blocks[0].cross_attention is not None
    ):
        return None, [
            f"{label} is an encoder-decoder whose decoder is read here: what is active in it depends on a second text, "
            "so active parameters and hidden states are left out."
        ]
    said = []
    if model.anatomy.blocks[0].feed_forward.up is not None:
        said.append(
            f"{label} has gated feed-forward layers: a neuron's activation is what its value is multiplied with, gate "
            "and up-projection together."
        )
    if not model.anatomy.blocks[0].attention.causal and model.anatomy.unembedding is not None:
        said.append(f"{label}: states are read by E alone, without what its head does to them before.")
    progress.say("reading the text")
    encoded = read_text(model, corpus, settings)
    if not len(encoded.index):
        raise InputError(f"The tokenizer of {label} finds no token in {corpus.name}; give ordinary text.")
    if encoded.cut:
        said.append(
            f"{encoded.cut:,} of {len(encoded):,} sentences are longer than {label} reads; their ends are left out."
        )
    return watch(settings, readout, common, usable, encoded, progress.tick), said


def _kept(
    settings: ParameterAgreement,
    readout: Readout,
    common: Common,
    usable: Tensor,
    active: Active | None,
    progress: _Progress,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from embcompare.projections import right_inverse

    counts = keep_counts(int(usable.sum()))
    curves = np.full((len(KINDS), 2, len(counts)), np.nan)
    sizes = np.zeros(len(KINDS), dtype=np.int64)
    if not settings.keep_vectors:
        return counts, curves, sizes
    inverse = right_inverse(readout.E, usable=usable, mean=readout.mean)
    for at, name in enumerate(KINDS):
        progress.say("the keep-k test")
        vectors = _vectors(settings, readout, name, active)
        sizes[at] = len(vectors)
        if len(vectors):
            curves[at] = keep_curve(readout, common, inverse, vectors, usable, counts)
        progress.step()
    return counts, curves, sizes


def _vectors(settings: ParameterAgreement, readout: Readout, name: str, active: Active | None) -> Tensor:
    """Return (n, d) vectors of one kind: normal numbers, FF values of all layers, hidden states of all layers."""
    import torch

    anatomy, most = readout.model.anatomy, settings.keep_vectors
    generator = np.random.default_rng([settings.seed, 7])
    if name == "normal":
        return torch.from_numpy(generator.standard_normal((most, anatomy.width)))
    if name == "states":
        return torch.empty(0, anatomy.width) if active is None else active.states
    sizes = [len(block.feed_forward.values) for block in anatomy.blocks]
    drawn = np.sort(generator.choice(sum(sizes), size=min(most, sum(sizes)), replace=False))
    starts = np.cumsum([0, *sizes])
    parts = []
    for layer, start in enumerate(starts[:-1]):
        rows = drawn[(drawn >= start) & (drawn < starts[layer + 1])] - start
        values = anatomy.vectors("ff_values", layer)
        parts.append(values[torch.from_numpy(rows).to(values.device)].double().cpu())
    return torch.cat(parts)


def together(a: Measured, b: Measured) -> ParameterAgreementResult:
    """Put two models into one result, shorter ones filled with NaN."""
    sides = (a, b)
    layers = max(side.layers for side in sides)
    pairs = tuple(name for name in GROUPS_OF if any(name in side.sim for side in sides))
    groups = tuple(dict.fromkeys(name for side in sides for name in side.overlap))
    sim = np.full((6, 2, len(pairs), layers), np.nan)
    counts = np.zeros((2, len(pairs), layers), dtype=np.int64)
    over = np.full((6, 2, len(groups), 2, layers), np.nan)
    steps = max(len(side.keep) for side in sides)
    keep = np.full((2, steps), -1, dtype=np.int64)
    curves = np.full((2, len(KINDS), 2, steps), np.nan)
    examples: dict[str, list[Any]] = {name: [] for name in ("model", "pair", "layer", "index", "sim", "tokens")}
    for at, side in enumerate(sides):
        for place, name in enumerate(pairs):
            if name in side.sim:
                sim[:, at, place, : side.layers] = side.sim[name]
                counts[at, place, : side.layers] = side.counts[name]
            for each in side.examples.get(name, []):
                row = (at, place, each.layer, each.index, each.sim, each.tokens)
                for column, value in zip(examples.values(), row, strict=True):
                    column.append(value)
        for place, name in enumerate(groups):
            if name in side.overlap:
                over[:, at, place, :, : side.layers] = side.overlap[name].transpose(1, 0, 2)
        keep[at, : len(side.keep)] = side.keep
        curves[at, :, :, : len(side.keep)] = side.curves
    named = {f"sim{part}": sim[place].copy() for place, part in enumerate(_PARTS)}
    named |= {f"overlap{part}": over[place].copy() for place, part in enumerate(_PARTS)}
    return ParameterAgreementResult(
        layers=np.array([side.layers for side in sides], dtype=np.int64),
        k=np.array([side.k for side in sides], dtype=np.int64),
        pairs=pairs,
        sim_pairs=counts,
        groups=groups,
        tokens=np.array([side.tokens for side in sides], dtype=np.int64),
        sentences=max(side.sentences for side in sides),
        keep=keep,
        keep_transpose=np.ascontiguousarray(curves[:, :, 0]),
        keep_inverse=np.ascontiguousarray(curves[:, :, 1]),
        keep_vectors=np.stack([side.keep_vectors for side in sides]),
        example_model=np.array(examples["model"], dtype=np.int64),
        example_pair=np.array(examples["pair"], dtype=np.int64),
        example_layer=np.array(examples["layer"], dtype=np.int64),
        example_index=np.array(examples["index"], dtype=np.int64).reshape(-1, 2),
        example_sim=np.array(examples["sim"], dtype=np.float64),
        example_tokens=tuple(examples["tokens"]),
        notices=tuple(dict.fromkeys((*a.notices, *b.notices))),
        **named,
    )
