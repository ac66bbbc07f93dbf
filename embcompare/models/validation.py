"""Proof on load: the anatomy's parts, put together again, give what the module itself computes.

The module runs on four tokens, or as many as it has positions for. Rotary positions are set to no rotation and
relative biases to zero, so that plain ``softmax(scale · q kᵀ)`` is what every attention layer must compute; each
block's parts, norms and sums are then recomputed from the anatomy and compared with what was observed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from embcompare.errors import ModelDamaged, UnsupportedFamily
from embcompare.words import plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.models.anatomy import Anatomy, AttentionWeights, BlockWeights

_PROBED = 4
# In float64 too many a module computes its softmax and its RMS in float32.
_TOLERANCE = {"torch.float64": 1e-5, "torch.float32": 2e-3, "torch.float16": 3e-2, "torch.bfloat16": 1e-1}


def validate(module: Any, anatomy: Anatomy, label: str = "The model") -> float:
    """Check every block; return the largest error, relative to the largest entry of each compared part.

    Raises ``UnsupportedFamily`` when a part does not match and ``ModelDamaged`` when the module computes
    NaN or infinite states or fails to run at all. Hooks are always removed.
    """
    import torch

    with torch.no_grad():
        seen = _observe(module, anatomy, label)
        return max(_check_block(block, seen, anatomy, label) for block in anatomy.blocks)


def _check_block(block: BlockWeights, seen: dict[str, Tensor], anatomy: Anatomy, label: str) -> float:
    import torch

    limit = _TOLERANCE.get(str(anatomy.embedding.dtype), 1e-1)
    worst = 0.0
    try:
        for part, expected, found in _comparisons(block, seen):
            if not bool(torch.isfinite(found).all()):
                raise ModelDamaged(f"{label} computes NaN or infinite values in the {part} of layer {block.index}.")
            error = float((expected - found).abs().max()) / max(float(found.abs().max()), 1e-6)
            worst = max(worst, error)
            if not error <= limit:
                raise UnsupportedFamily(
                    f"{label} does not compute the {part} of layer {block.index} as the family "
                    f"'{anatomy.family}' does (relative error {error:.1e}), so its weights cannot be read safely."
                )
    except (RuntimeError, KeyError) as error:
        raise UnsupportedFamily(
            f"{label} has a layer {block.index} whose parts do not fit together as in the family '{anatomy.family}', "
            "so its weights cannot be read safely."
        ) from error
    return worst


def attention_output(weights: AttentionWeights, states: Tensor, source: Tensor | None = None) -> Tensor:
    """Return the output (t, d) of a whole attention layer without positions, for states (t, d).

    ``source`` (s, d) is what keys and values are read from in cross-attention.
    """
    source = states if source is None else source
    total = None
    for head in range(weights.heads):
        part = weights.head_output(head, _probabilities(weights, head, states, source), source)
        total = part if total is None else total + part
    assert total is not None
    return total if weights.b_o is None else total + weights.b_o


def _probabilities(weights: AttentionWeights, head: int, states: Tensor, source: Tensor) -> Tensor:
    import torch

    query, key = states @ weights.w_q[head], source @ weights.head_k(head)
    if weights.b_q is not None and weights.b_k is not None:
        query, key = query + weights.b_q[head], key + weights.b_k[weights.group(head)]
    scores = weights.scale * query @ key.T
    if weights.softcap is not None:
        scores = weights.softcap * torch.tanh(scores / weights.softcap)
    if weights.causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1)


def _comparisons(block: BlockWeights, seen: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (what, as recomputed from the anatomy, as observed) for every step through a block."""

    def at(site: str) -> Tensor:
        return seen[f"{block.index}.{site}"]

    norms, placement = block.norms, block.placement
    start, attended, fed = at("block"), at("attention_out"), at("feed_forward_out")
    yield "attention", attention_output(block.attention, at("attention_in")), attended
    yield "feed-forward", block.feed_forward.output(at("feed_forward_in")), fed
    before = placement != "post"
    yield "attention's input", norms["attention"].apply(start) if before else start, at("attention_in")
    if placement == "parallel":
        yield "feed-forward's input", norms["feed_forward"].apply(start), at("feed_forward_in")
        yield "sum", start + attended + fed, at("block_out")
        return
    if placement == "sandwich":
        attended = norms["attention_output"].apply(attended)
        fed = norms["feed_forward_output"].apply(fed)
    middle = start + attended if before else norms["attention"].apply(start + attended)
    if block.cross_attention is not None:
        reads, gives = at("cross_attention_in"), at("cross_attention_out")
        expected = norms["cross_attention"].apply(middle) if before else middle
        yield "cross-attention's input", expected, reads
        source = at("cross_attention_source")
        yield "cross-attention", attention_output(block.cross_attention, reads, source), gives
        middle = middle + gives if before else norms["cross_attention"].apply(middle + gives)
    expected = norms["feed_forward"].apply(middle) if before else middle
    yield "feed-forward's input", expected, at("feed_forward_in")
    yield "sum", middle + fed if before else norms["feed_forward"].apply(middle + fed), at("block_out")


def _observe(module: Any, anatomy: Anatomy, label: str) -> dict[str, Tensor]:
    """Run the module on up to four tokens; return inputs and outputs at every site, each ``(t, d)``."""
    import torch

    generator = torch.Generator().manual_seed(0)
    count = _positions(module, anatomy)
    ids = torch.randint(0, anatomy.embedding.shape[0], (1, count), generator=generator).to(anatomy.embedding.device)
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    base = module.base_model
    if getattr(module.config, "is_encoder_decoder", False) and anatomy.blocks[0].cross_attention is not None:
        given["decoder_input_ids"] = ids
    if "use_cache" in getattr(module.config, "to_dict", dict)():
        given["use_cache"] = False
    seen: dict[str, Tensor] = {}
    with hooked(module) as hook:
        for block in anatomy.blocks:
            for site, name in block.sites.items():
                key = f"{block.index}.{site}"
                if site.endswith("_in") or site in ("block", "cross_attention_source"):
                    hook.before(name, partial(seen.__setitem__, key))
                if site.endswith("_out") or site == "block":
                    hook.after(name, partial(seen.__setitem__, f"{key}_out" if site == "block" else key))
        if "rotary" in anatomy.sites:
            hook.replace(anatomy.sites["rotary"], lambda out: (torch.ones_like(out[0]), torch.zeros_like(out[1])))
        if "relative_bias" in anatomy.sites:
            hook.replace(anatomy.sites["relative_bias"], torch.zeros_like)
        try:
            base(**given)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            raise ModelDamaged(
                f"{label} was loaded but does not run on {plural(count, 'token')}; its config.json does not go with "
                "its weights, so fetch both again."
            ) from error
    return {key: value.reshape(-1, value.shape[-1]) for key, value in seen.items()}


def _positions(module: Any, anatomy: Anatomy) -> int:
    """Return how many tokens to run on: four, or fewer where the model has learned that few positions."""
    if anatomy.blocks[0].attention.position != "absolute":
        return _PROBED
    found = [_PROBED, getattr(module.config, "max_position_embeddings", None) or _PROBED]
    for name, part in module.named_modules():
        padding = getattr(part, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:  # counted from behind the padding's index
            found.append(part.num_embeddings - padding - 1)
    return max(1, min(found))


class Hooks:
    """Hooks on one module; :func:`hooked` removes them."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.handles: list[Any] = []

    def before(self, name: str, see: Any) -> None:
        """Call ``see`` with the first input of submodule ``name``, however it is passed."""

        def hook(_: Any, args: tuple, kwargs: dict) -> None:
            see(args[0] if args else kwargs["hidden_states"])

        part = self.module.get_submodule(name)
        self.handles.append(part.register_forward_pre_hook(hook, with_kwargs=True))

    def after(self, name: str, see: Any) -> None:
        """Call ``see`` with the output of submodule ``name``, the first where it gives several."""

        def hook(_: Any, __: Any, out: Any) -> None:
            see(out[0] if isinstance(out, tuple) else out)

        self.handles.append(self.module.get_submodule(name).register_forward_hook(hook))

    def replace(self, name: str, change: Any) -> None:
        """Let submodule ``name`` give ``change(output)`` instead of its output."""
        handle = self.module.get_submodule(name).register_forward_hook(lambda _, __, out: change(out))
        self.handles.append(handle)


@contextmanager
def hooked(module: Any) -> Iterator[Hooks]:
    """Give a place to hang hooks on ``module``; all of them are gone afterwards, also after an exception."""
    hooks = Hooks(module)
    try:
        yield hooks
    finally:
        for handle in hooks.handles:
            handle.remove()
