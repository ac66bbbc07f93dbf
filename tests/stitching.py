"""What the tests of stitching share: a context that lends given models, and the plain way through two models."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from embcompare.errors import Cancelled
from embcompare.models.validation import hooked

TEXT = (
    "the old man went to sea",
    "a big dog ran at me and him",
    "no one is as far off as he",
    "we go up or in",
    "he is my son and so is she",
    "do as we do or go",
    "it is hot at ten",
    "all of us ran to the sea",
    "the dog and the man",
    "is it so or is it not",
    "an old dog is at ten",
    "go on and on",
)


class Context:
    """Lends the models it is given by name, gives one corpus, and cancels after ``stop_after`` reports."""

    device = "cpu"

    def __init__(self, corpus, stop_after=None, **models):
        self.models, self.text, self.reports, self.stop_after = models, corpus, [], stop_after

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return self.text

    def report(self, done, total, message, partial=None):
        assert 0 <= done <= total
        self.reports.append((done, total, message))
        if self.stop_after is not None and len(self.reports) > self.stop_after:
            raise Cancelled("stopped")


def blocks_of(model):
    return [block.sites["block"] for block in model.anatomy.blocks]


def plain_states(model, ids, mask):
    """All hidden states before the final norm and the module's own output, by hooks."""
    seen = {}
    with hooked(model.module) as hook, torch.no_grad():
        hook.before(blocks_of(model)[0], lambda x: seen.__setitem__(0, x))
        for number, name in enumerate(blocks_of(model), 1):
            hook.after(name, lambda x, number=number: seen.__setitem__(number, x))
        out = model.module(input_ids=ids, attention_mask=mask)
    return [seen[number] for number in sorted(seen)], out


def plain_logits(lower, upper, carry, cut, entry, ids, mask):
    """Logits of A's state ``cut``, carried, in place of B's state ``entry``: two whole forwards and one hook."""
    given = carry(plain_states(lower, ids, mask)[0][cut])
    names, module = blocks_of(upper), upper.module
    if entry < len(names):
        part = module.get_submodule(names[entry])

        def before(_, args, kwargs):
            return ((given, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": given})

        handle = part.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = module.get_submodule(names[-1]).register_forward_hook(lambda *_: given)
    try:
        with torch.no_grad():
            return module(input_ids=ids, attention_mask=mask)
    finally:
        handle.remove()
