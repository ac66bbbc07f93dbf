"""What the tests of decompositions share: batches for every family, and the module's own states by hooks."""

from __future__ import annotations

import torch

from embcompare.models.validation import hooked

EXACT = ("bert", "roberta", "xlm", "camembert", "distilbert", "electra", "gpt2", "marian")
"""Families that compute everything in the dtype they are given; others do a softmax or a norm in float32."""


def batch(model, seed=0):
    """Three texts of different lengths padded on the right, and, for an encoder-decoder, three sources."""
    rows = min(200, len(model.anatomy.embedding))
    ids = torch.randint(5, rows, (3, 7), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    mask[2, 6:] = 0
    ids[mask == 0] = getattr(model.module.config, "pad_token_id", None) or 0
    given = {}
    if model.anatomy.blocks[0].cross_attention is not None:
        given = {"source": ids.flip(0)[:, :5].clone(), "source_mask": mask.flip(0)[:, :5].clone()}
    return ids, mask, given


def tolerance(name):
    """How far float64 results may be from the module's own, loaded in float64, relative to its largest number."""
    return 1e-10 if name.startswith(EXACT) else 1e-5


def close(found, expected, relative=1e-10):
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=relative * max(scale, 1e-300))


def arguments(ids, mask, given):
    """What a transformers module is called with."""
    if not given:
        return {"input_ids": ids, "attention_mask": mask}
    return {
        "input_ids": given["source"],
        "attention_mask": given["source_mask"],
        "decoder_input_ids": ids,
        "decoder_attention_mask": mask,
        "use_cache": False,
    }


def own_states(model, ids, mask, given):
    """Hidden states 0 to L of the module itself, the last again after a final norm, and its output."""
    seen = {}
    blocks = [block.sites["block"] for block in model.anatomy.blocks]
    with hooked(model.module) as hook, torch.no_grad():
        hook.before(blocks[0], lambda x: seen.__setitem__((0, False), x))
        for number, name in enumerate(blocks, 1):
            hook.after(name, lambda x, number=number: seen.__setitem__((number, False), x))
        if "final_norm" in model.anatomy.sites:
            hook.after(model.anatomy.sites["final_norm"], lambda x: seen.__setitem__((len(blocks), True), x))
        out = model.module(**arguments(ids, mask, given))
    return seen, out


def by_state(stream):
    return {(each.layer, each.after_norm): each for each in stream}


def last(stream):
    *_, each = stream
    return each
