"""R_k: what the parameters that are most active at a token say, against the hidden state there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import UnsupportedFamily
from embcompare.experiments.agreement_pairs import shared_rows
from embcompare.experiments.token_sets import bounds, covered, resampled

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from embcompare.experiments.agreement import ParameterAgreement
    from embcompare.experiments.commons import Common
    from embcompare.experiments.readout import Readout
    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus
    from embcompare.text.encoding import Encoded

BATCH_TOKENS = 1024
_STATE_BYTES = 4e8
ACTIVE_GROUPS = ("ff_keys", "ff_up", "ff_values", "w_v", "w_o")


@dataclass(frozen=True, eq=False)
class Active:
    """What was seen at every token of the text, T rows in the order they were read.

    ``feed_forward`` and ``attention`` (L, T, a) int64 are the most active neurons and places of the concatenated heads,
    ``own`` (L, T, k) int64 the tokens that each layer's state scores highest, ``states`` (n, d) some hidden states.
    """

    sentence: np.ndarray
    feed_forward: Tensor
    attention: Tensor
    own: Tensor
    states: Tensor


def active_groups(model: LoadedModel) -> tuple[str, ...]:
    """Return the groups whose parameters can be active."""
    return tuple(group for group in ACTIVE_GROUPS if group in model.anatomy.groups())


def read_text(model: LoadedModel, corpus: Corpus, settings: ParameterAgreement) -> Encoded:
    """Encode the sentences that are drawn from the corpus, the same ones for every model."""
    from embcompare.activations.forward import longest_input
    from embcompare.text.encoding import encode

    order = np.random.default_rng([settings.seed, 3]).permutation(len(corpus))[: settings.sentences]
    order.sort()
    sentences = [corpus.sentences[number] for number in order]
    return encode(sentences, model.tokenizer, model.tokens, longest_input(model))


def watch(
    settings: ParameterAgreement,
    readout: Readout,
    common: Common,
    usable: torch.Tensor,
    encoded: Encoded,
    tick: Callable[[int, int], None],
) -> Active:
    """Run the model over the text, and keep of every batch what is looked at and no more."""
    import torch

    from embcompare.activations.forward import batches
    from embcompare.projections import top_tokens

    model, anatomy = readout.model, readout.model.anatomy
    lengths = np.array([len(ids) if mask.any() else 0 for ids, mask in zip(encoded.ids, encoded.is_text, strict=True)])
    count = sum(int(mask.sum()) for mask in encoded.is_text)
    wanted = _wanted_states(settings, count, anatomy.n_layers + 1)
    room = int(_STATE_BYTES // (8 * anatomy.width * (anatomy.n_layers + 1)))
    parts: dict[str, list[Tensor]] = {"feed_forward": [], "attention": [], "own": [], "states": []}
    sentences: list[np.ndarray] = []
    begun = 0
    groups = list(batches(lengths, max(1, min(BATCH_TOKENS, room))))
    for number, batch in enumerate(groups):
        seen = _observed(model, [encoded.ids[at] for at in batch], [encoded.is_text[at] for at in batch])
        for site in ("feed_forward", "attention"):
            most = [strongest(each, settings.active) for each in seen[site]]
            parts[site].append(torch.stack(most).cpu())
        states = torch.stack(seen["states"])
        here = states.shape[1]
        normed = states[1:] if anatomy.final_norm is None else anatomy.final_norm.apply(states[1:])
        y = common.taken_out(readout.vectors(normed.flatten(0, 1), "ff_values"))
        best, _ = top_tokens(y, readout.E, settings.k, usable=usable)
        parts["own"].append(best.unflatten(0, (anatomy.n_layers, here)).cpu())
        mine = wanted[(wanted[:, 1] >= begun) & (wanted[:, 1] < begun + here)]
        parts["states"].append(states[mine[:, 0], mine[:, 1] - begun].cpu())
        sentences += [np.full(int(encoded.is_text[at].sum()), at) for at in batch]
        begun += here
        tick(number + 1, len(groups))
    joined = {name: torch.cat(some, 1 if name != "states" else 0) for name, some in parts.items()}
    return Active(np.concatenate(sentences), **joined)


def overlap(
    settings: ParameterAgreement,
    readout: Readout,
    common: Common,
    usable: torch.Tensor,
    active: Active,
    layer: int,
    group: str,
) -> np.ndarray:
    """Return R_k of one group in one layer, (2, 6): own and last state; value, interval, null, interval of the gap."""
    import torch

    from embcompare.projections import top_tokens

    anatomy, device = readout.model.anatomy, readout.E.device
    ids = active.feed_forward[layer] if group.startswith("ff_") else active.attention[layer]
    if group == "w_v":
        attention = anatomy.blocks[layer].attention
        ids = torch.from_numpy(shared_rows(attention, ids.numpy(), int(attention.w_v.shape[2])))
    known, place = torch.unique(ids, return_inverse=True)
    vectors = anatomy.vectors(group, layer)
    y = common.taken_out(readout.vectors(vectors[known.to(vectors.device)], group))
    tokens, _ = top_tokens(y, readout.E, settings.k, usable=usable)
    parts = tokens[place.to(device)].flatten(1)
    generator = np.random.default_rng([settings.seed, 4, layer])
    orders = [torch.arange(len(parts), device=device)]
    for _ in range(settings.null_draws):
        orders.append(torch.from_numpy(generator.permutation(len(parts))).to(device))
    out = np.full((2, 6), np.nan)
    for at, state in enumerate((active.own[layer], active.own[-1])):
        found = covered(parts, state.to(device), orders, len(readout.E))
        null = found[1:].mean(0)
        columns = np.stack([found[0], null, found[0] - null], axis=1)
        low, high = bounds(resampled(columns, active.sentence, np.random.default_rng([settings.seed, 5, layer, at])))
        mean = columns.mean(0)
        out[at] = mean[0], low[0], high[0], mean[1], low[2], high[2]
    return out


def strongest(values: Tensor, count: int) -> Tensor:
    """Return where the ``count`` largest of each row (n, m) stand, (n, count) int64; of equal ones the first.

    Heads that share a value head give equal ones wherever they attend alike, as they must at the first token.
    """
    count = min(count, values.shape[1])
    found, places = values.topk(min(2 * count + 8, values.shape[1]), dim=1)
    places, order = places.sort(dim=1)
    ranked = found.gather(1, order).sort(dim=1, descending=True, stable=True)
    best: Tensor = places.gather(1, ranked.indices)[:, :count].clone()
    if found.shape[1] < values.shape[1]:
        tied = ranked.values[:, count - 1] == ranked.values[:, -1]
        best[tied] = values[tied].sort(dim=1, descending=True, stable=True).indices[:, :count]
    return best


def _wanted_states(settings: ParameterAgreement, rows: int, layers: int) -> np.ndarray:
    """Draw (layer, row) of the hidden states that the keep-k test looks at, in the order of rows, (n, 2)."""
    most = min(settings.keep_vectors, rows * layers)
    drawn = np.random.default_rng([settings.seed, 6]).choice(rows * layers, size=most, replace=False)
    pairs = np.stack([drawn % layers, drawn // layers], axis=1)
    return pairs[np.argsort(pairs[:, 1], kind="stable")]


def _observed(model: LoadedModel, ids: list[np.ndarray], is_text: list[np.ndarray]) -> dict[str, list[Tensor]]:
    """Return what every layer shows at the text tokens of a batch, (n, ·) each; states begin with the embedding's."""
    import torch

    from embcompare.activations.forward import stack_of
    from embcompare.models import hooked

    stack, anatomy = stack_of(model), model.anatomy
    config, device = stack.run.config, anatomy.embedding.device
    longest = max(map(len, ids))
    fill = next((v for v in (getattr(config, "pad_token_id", None), model.tokenizer.pad_token_id) if v is not None), 0)
    table = np.full((len(ids), longest), fill, dtype=np.int64)
    mask, text = np.zeros_like(table), np.zeros(table.shape, dtype=bool)
    for at, (row, flags) in enumerate(zip(ids, is_text, strict=True)):
        table[at, : len(row)], mask[at, : len(row)], text[at, : len(row)] = row, 1, flags
    given: dict[str, Any] = {
        "input_ids": torch.from_numpy(table).to(device),
        "attention_mask": torch.from_numpy(mask).to(device),
    }
    if "use_cache" in config.to_dict():
        given["use_cache"] = False
    chosen = torch.from_numpy(text).to(device)
    seen: dict[str, dict[int, Tensor]] = {"feed_forward": {}, "attention": {}, "states": {}}
    thread = threading.get_ident()

    def keep(site: str, layer: int) -> Callable[[Tensor], None]:
        def see(value: Tensor) -> None:
            # another thread may run the same module without the lock; some families flatten sentences and positions
            if threading.get_ident() == thread and value.numel() == chosen.numel() * value.shape[-1]:
                seen[site][layer] = value.reshape(*chosen.shape, -1)[chosen]

        return see

    with model.lock, hooked(stack.owner) as hook:
        hook.before(anatomy.blocks[0].sites["block"], keep("states", 0))
        for layer, block in enumerate(anatomy.blocks):
            hook.after(block.sites["block"], keep("states", layer + 1))
            hook.before(block.sites["attention_out"], keep("attention", layer))
            if block.feed_forward.up is None:
                hook.after(block.sites["feed_forward_in"], keep("feed_forward", layer))
            else:
                hook.before(block.sites["feed_forward_out"], keep("feed_forward", layer))
        stack.run(**given)
    for site, layers in seen.items():
        if len(layers) != anatomy.n_layers + (site == "states"):
            raise UnsupportedFamily(
                f"{model.spec.label} does not show the {site.replace('_', '-')} of every layer, so its active "
                "parameters cannot be seen; choose another model."
            )
    return {site: [layers[at] for at in sorted(layers)] for site, layers in seen.items()}
