"""What the tests of readings in tokens share: a context that lends models and texts, and E by the plain formula."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch

from embcompare.errors import Cancelled
from embcompare.text.corpora import Corpus


class Context:
    """Lends the models it is given by name, keeps all reports, and cancels after ``stop_after`` of them.

    ``texts`` are sentences by the name of their corpus.
    """

    device = "cpu"

    def __init__(self, stop_after=None, texts=None, **models):
        self.models, self.reports, self.stop_after, self.texts = models, [], stop_after, texts or {}

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        assert name, "an empty name is no text and is not looked up"
        return Corpus(name, self.texts[name])

    def report(self, done, total, message, partial=None):
        assert 0 <= done <= total
        self.reports.append((done, total, message))
        if self.stop_after is not None and len(self.reports) > self.stop_after:
            raise Cancelled("stopped")


def read(model, centred=True, common=0, embedding="output"):
    """E as it is read with (rows of real tokens), their ids, and what takes the common directions out."""
    e = model.anatomy.readout(embedding)[0].double()
    ids = np.flatnonzero(~model.tokens.special[: len(e)])
    e = e[ids] - e[ids].mean(0) if centred else e[ids]
    keep = torch.eye(e.shape[1], dtype=torch.float64)
    if common:
        u = torch.linalg.svd(e, full_matrices=False)[2][:common]
        keep -= u.T @ u
    return e, ids, keep
