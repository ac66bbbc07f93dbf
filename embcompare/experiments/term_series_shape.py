"""What all checkpoints of a series have in common, and what is known of their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import Incomparable, ModelNotFound, SettingsError
from embcompare.experiments.decomposition_split import split_terms
from embcompare.experiments.decomposition_texts import states_of, translates
from embcompare.experiments.term_runs import step_of
from embcompare.experiments.term_series_metrics import metric_names
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.decomposition import Term
    from embcompare.experiments.term_series import TermSeries
    from embcompare.models import LoadedModel


class Shape:
    """What all checkpoints of a series have to have in common."""

    def __init__(
        self, model: LoadedModel, terms: tuple[Term, ...], states: tuple[tuple[int, bool], ...], state: int
    ) -> None:
        self.label, self.translates, self.terms, self.states = model.spec.label, translates(model), terms, states
        self.metrics, self.state = metric_names(model), state

    @classmethod
    def of(cls, model: LoadedModel, settings: TermSeries) -> Shape:
        """Return a model's shape; raises :class:`Incomparable` for one that the series cannot score or split."""
        label = model.spec.label
        if not translates(model) and not model.anatomy.blocks[0].attention.causal:
            raise Incomparable(
                f"{label} sees the tokens that it predicts, so no loss says how good it is; choose causal models or "
                "encoder-decoders."
            )
        module: Any = model.module
        if module.get_output_embeddings() is None:
            raise Incomparable(
                f"{label} has no head that predicts tokens, so no loss says how good it is; choose a version with a "
                "language-model head."
            )
        if settings.mode == "generated" and not translates(model):
            raise Incomparable(f"{label} reads one text only and translates nothing; take the reference texts.")
        states, last = states_of(model), model.anatomy.n_layers
        layer = last if settings.layer is None else settings.layer
        if layer > last:
            raise SettingsError(
                f"{label} has no layer {layer}; its layers are 0, the embedding output, to {last}, after the last "
                "block."
            )
        return cls(model, split_terms(model, settings), states, len(states) - 1 if layer == last else layer)

    def check(self, other: Shape) -> None:
        """Raise :class:`Incomparable` where another checkpoint has other terms or states."""
        if (self.translates, self.terms, self.states) == (other.translates, other.terms, other.states):
            return
        kinds = ("an encoder-decoder" if each.translates else "a model of one stack" for each in (self, other))
        one, two = (
            f"{each.label} is {kind} with {plural(each.states[-1][0], 'layer')}"
            for each, kind in zip((self, other), kinds, strict=True)
        )
        raise Incomparable(f"All checkpoints of a series need the same terms and states: {one}, and {two}.")


def steps_of(settings: TermSeries) -> np.ndarray:
    """Return the step of each checkpoint, (R, C); -1 for a run whose steps are unknown or do not rise."""
    runs = settings.series()
    found = np.full((len(runs), max(len(run.checkpoints) for run in runs)), -1, dtype=np.int64)
    for number, run in enumerate(runs):
        steps = [_step(name) for name in run.checkpoints]
        if min(steps) >= 0 and steps == sorted(set(steps)):
            found[number, : len(steps)] = steps
    return found


def _step(name: str) -> int:
    from embcompare.demo import read_card

    if name.startswith("demo/"):
        try:
            return int(read_card(name.removeprefix("demo/"))["step"])
        except (ModelNotFound, KeyError):
            return -1
    return step_of(name)
