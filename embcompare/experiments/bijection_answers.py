"""Downstream: what B predicts when one of its layers, or what a module adds, is what a map makes of A's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from embcompare.errors import Incomparable, InputError, SettingsError, UnsupportedFamily
from embcompare.experiments.base import Context
from embcompare.experiments.sides import VECTORS, Pair
from embcompare.words import plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.bijection import Bijection
    from embcompare.experiments.stitching_tasks import LanguageTask
    from embcompare.experiments.stitching_texts import Batch, Texts
    from embcompare.maps.base import Map
    from embcompare.maps.protocol import Prepared
    from embcompare.models import LoadedModel
    from embcompare.stitching.tails import Observed, Tail

_AT_ONCE = 4
"""Maps whose states go through B's upper part as one batch."""
_SAME = 1e-3
"""Nats that B's own states, handed to its own upper part, may differ by from its own prediction."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Scores of what B predicts: ``values`` and ``errors`` (f, k) of each fitted map, ``own`` and ``base`` (k,)."""

    scores: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray
    own: np.ndarray
    base: np.ndarray
    task: str
    texts: int
    places: int
    notices: tuple[str, ...]


def why_none(settings: Bijection) -> str:
    """Return why B cannot be asked, as far as the settings tell; empty where it can."""
    if any(name.startswith(VECTORS) for name in (settings.model_a, settings.model_b)):
        return "a side is given vectors, which no model goes on from"
    if settings.pooling != "token":
        return "rows are no tokens; choose rows of tokens for them"
    if settings.what == "patterns":
        return "attention patterns are no vectors that a model could go on from"
    return ""


def answers(
    settings: Bijection,
    context: Context,
    pair: Pair,
    data: Prepared,
    fitted: Sequence[Map],
    tick: Callable[[int], None],
) -> Answers | str:
    """Return what B predicts from each map's states on test texts, or why it cannot be asked.

    States are replaced at tokens of the text; at special tokens, which no map was fitted on, B keeps its own.
    ``tick(texts)`` is called after each batch.
    """
    import torch

    try:
        with context.lease(settings.model_a) as a, context.lease(settings.model_b) as b, torch.inference_mode():
            return _Asking(settings, context, pair, data, a, b).scored(fitted, tick)
    except (Incomparable, InputError, SettingsError, UnsupportedFamily) as reason:
        return str(reason).rstrip(".")


class _Asking:
    def __init__(
        self, settings: Bijection, context: Context, pair: Pair, data: Prepared, a: LoadedModel, b: LoadedModel
    ) -> None:
        from embcompare.experiments.stitching_tasks import LanguageTask
        from embcompare.experiments.stitching_texts import Texts
        from embcompare.models.heads import read_head
        from embcompare.stitching.stitched import same_tokens
        from embcompare.stitching.tails import check_runs_alone, is_classifier

        for model in (a, b):
            check_runs_alone(model)
        if is_classifier(b):
            raise Incomparable(f"{b.spec.label} classifies texts and predicts no tokens")
        if a.anatomy.embedding.device != b.anatomy.embedding.device:
            raise Incomparable("the two models lie on different devices")
        same_tokens(a, b)
        head = read_head(b, b.anatomy.embedding.dtype)
        self.settings, self.data, self.a, self.b = settings, data, a, b
        self.notices: list[str] = []
        tested, trained = (np.unique(pair.items[part.numpy()]) for part in (data.split.test, data.split.train))
        drawn = np.random.default_rng([settings.seed, 6]).permutation(len(tested))[: settings.downstream]
        chosen = tested[np.sort(drawn)]
        sentences = context.corpus(settings.corpus).sentences
        used = [sentences[int(text)] for text in (*chosen, *trained)]
        self.count = len(chosen)
        self.texts: Texts = Texts(used, a, b, by_words=False)
        rest = np.arange(self.count, len(used))
        self.task: LanguageTask = LanguageTask(self.texts, b, head, rest, 0.15, settings.seed)
        if not self.task.causal:
            self.notices.append(
                f"{b.spec.label} is asked for tokens that are masked, and maps were fitted on texts without masks."
            )
        special = sum(int((~self.texts.encoded_b.is_text[text]).sum()) for text in range(self.count))
        if special:
            self.notices.append(
                f"At {plural(special, 'special token')} of the texts that B predicts in, which no map was fitted on, "
                f"{b.spec.label} keeps its own states: what the mean predictor reaches tells what they are worth."
            )

    def scored(self, fitted: Sequence[Map], tick: Callable[[int], None]) -> Answers | str:
        """Go through the texts."""
        from embcompare.measures.distributions import clustered_mean
        from embcompare.stitching.tails import observe

        scores = len(self.task.scores)
        sums, base = np.zeros((self.count, 1 + len(fitted), scores)), np.zeros((self.count, scores))
        counts = np.zeros(self.count)
        for group in self.texts.batches(np.arange(self.count)):
            batch = self.task.prepare(self.texts.batch(group))
            seen_b = observe(self.b, batch.ids_b, batch.mask_b)
            asked = self.task.ask(batch, seen_b)
            if len(asked.target):
                seen_a = observe(self.a, batch.ids_a, batch.mask_a)
                items = asked.item.cpu().numpy()
                np.add.at(counts, group[items], 1.0)
                np.add.at(base, group[items], self.task.base(asked).T.cpu().numpy())
                sums[group] = self._sums(batch, seen_a, seen_b, asked, fitted)
            tick(len(group))
        if not counts.sum():
            return f"none of the {plural(self.count, 'text')} has a token to predict"
        means, errors = clustered_mean(sums, counts)
        kl = self.task.scores.index("kl")
        if not means[0, kl] <= _SAME:
            return (
                f"{self.b.spec.label}, given its own states again, does not predict what it does ({means[0, kl]:.1e} "
                "nats apart), so its upper blocks cannot be run alone"
            )
        return Answers(
            self.task.scores, means[1:], errors[1:], means[0], clustered_mean(base, counts)[0], self.task.name,
            int((counts > 0).sum()), int(counts.sum()), (*self.notices, *self.task.notices),
        )  # fmt: skip

    def _sums(self, batch: Batch, seen_a: Observed, seen_b: Observed, asked: Any, fitted: Sequence[Map]) -> np.ndarray:
        """Return sums by text, (b, 1 + f, k): of B's own states, then of each map's."""
        import torch

        from embcompare.stitching.stitched import without_padding

        given = self._read(self.a, seen_a, self.settings.layer_a, batch.ids_a, batch.mask_a)
        own = without_padding(self._read(self.b, seen_b, self.settings.layer_b, batch.ids_b, batch.mask_b), batch.mask)
        tail, where = self._tail(), self._text_mask(batch)
        found = [self.task.answers(tail, own[None], batch, asked)]
        for start in range(0, len(fitted), _AT_ONCE):
            some = fitted[start : start + _AT_ONCE]
            mapped = torch.stack([self._replaced(own, given[where], where, each) for each in some])
            found.append(self.task.answers(tail, mapped, batch, asked))
        return np.asarray(torch.cat(found).permute(2, 0, 1).cpu().numpy())

    def _replaced(self, own: Tensor, given: Tensor, where: Tensor, fitted: Map) -> Tensor:
        wide = given if given.element_size() >= 4 else given.float()
        mapped = self.data.scale_y.inverse_transform(fitted.transform(self.data.scale_x.transform(wide)))
        replaced = own.clone()
        replaced[where] = mapped.to(own.dtype)
        return replaced

    def _text_mask(self, batch: Batch) -> Tensor:
        import torch

        mask = np.zeros(tuple(batch.mask.shape), dtype=bool)
        for row, text in enumerate(batch.texts):
            own = self.texts.encoded_b.is_text[text]
            mask[row, : len(own)] = own
        return torch.from_numpy(mask).to(batch.mask.device)

    def _read(self, model: LoadedModel, seen: Observed, layer: int, ids: Tensor, mask: Tensor) -> Tensor:
        if self.settings.what == "hidden":
            return _layer(model, seen, layer)
        from embcompare.experiments.bijection_modules import module_output

        return module_output(model, cast("Any", self.settings.what), layer, ids, mask)

    def _tail(self) -> Tail:
        from embcompare.stitching.tails import Tail

        if self.settings.what != "hidden":
            from embcompare.experiments.bijection_modules import ModuleReplaced

            return cast("Tail", ModuleReplaced(self.b, cast("Any", self.settings.what), self.settings.layer_b))
        entry = self.settings.layer_b
        if entry == self.b.anatomy.n_layers:
            # captured states of the last layer are after the final norm, so that only the head is left
            return cast("Tail", _HeadOnly())
        return Tail(self.b, entry)


class _HeadOnly:
    def states(self, given: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        return given


def _layer(model: LoadedModel, seen: Observed, layer: int) -> Tensor:
    """Return the state that capturing numbers ``layer``: the last is after the final norm, where there is one."""
    return seen.last if layer == model.anatomy.n_layers else seen.states[layer]


def said(reason: str) -> str:
    """Return the notice that says why there are no predictions."""
    return f"What B would predict from mapped states is left out: {reason}."


__all__ = ["Answers", "answers", "said", "why_none"]
