"""One run of a stitching, of one model B and one seed: texts drawn, maps made, every pair of layers scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import Incomparable, SettingsError, UnsupportedFamily
from embcompare.experiments.stitching_tasks import Asked, ClassTask, LanguageTask, is_asked_for_classes
from embcompare.experiments.stitching_texts import Batch, text_rows
from embcompare.maps.registry import KERNELS
from embcompare.measures.distributions import clustered_mean
from embcompare.models.heads import read_head
from embcompare.stitching.bridges import (
    Bridge,
    BridgeOptions,
    bridge_from_states,
    bridge_from_weights,
    fitted_on_states,
)
from embcompare.stitching.stitched import have_same_tokens, same_tokens, without_padding
from embcompare.stitching.tails import Observed, Tail, is_classifier, observe
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.stitching_run import StitchingRun
    from embcompare.models import LoadedModel
    from embcompare.text.vocabulary import VocabularyMatch

_EXACT = {"torch.float64": 1e-9, "torch.float32": 1e-5, "torch.float16": 2e-2, "torch.bfloat16": 1e-1}
"""How far, relative to the largest logit, a model stitched to itself may be from itself."""


@dataclass(eq=False)
class SingleRun:
    """One model B and one seed."""

    whole: StitchingRun
    b: LoadedModel
    seed: int
    scored: np.ndarray
    rest: np.ndarray

    def __post_init__(self) -> None:
        whole, settings, corpus = self.whole, self.whole.settings, self.whole.corpus
        self.upper = self.b.spec.label
        self.notices: list[str] = []
        classes = is_asked_for_classes(self.b, settings.tuned_blocks)
        same = have_same_tokens(whole.a, self.b)
        if not classes:
            same_tokens(whole.a, self.b)
        self.by = "tokens" if same else "words"
        fitted = fitted_on_states(whole.names)
        if fitted and not same:
            raise Incomparable(
                f"The map '{fitted[0]}' is fitted on states of the same tokens, and these models cut text differently; "
                "choose maps made of the embeddings, such as pseudo_inverse."
            )
        head = None if classes else read_head(self.b, self.b.anatomy.embedding.dtype)
        self.name = self.upper if settings.tuned_blocks else f"{self.upper}, seed {self.seed}"
        self.texts = whole.texts(self.b, by_words=not same)
        self.notices += self.texts.notices(self.scored, self.upper)
        self.task: Any
        if classes:
            self.task = ClassTask(self.texts, self.b, corpus.labels, self.scored)
        else:
            assert head is not None
            self.task = LanguageTask(self.texts, self.b, head, self.rest, settings.mask_share, self.seed)
            if self._sees_ahead:
                self.notices.append(
                    f"{whole.a.spec.label} reads both ways, so its states know the token that {self.upper} is to "
                    "predict next: low losses are no sign of a shared space."
                )
        self.groups = self.texts.batches(self.scored)
        self.cuts, self.entries = whole.a.anatomy.n_layers + 1, self.b.anatomy.n_layers + 1
        self.work = len(self.groups) * len(whole.names) * self.entries + len(fitted) * self.cuts * self.entries

    @property
    def _sees_ahead(self) -> bool:
        return self.task.name == "next token" and not self.whole.a.anatomy.blocks[0].attention.causal

    @cached_property
    def _match(self) -> VocabularyMatch:
        from embcompare.text.vocabulary import match_vocabularies

        match = match_vocabularies(self.whole.a.tokens, self.b.tokens, override=self.whole.settings.small_overlap)
        self.notices.append(match.sentence())
        return match

    @property
    def shared(self) -> int:
        """Tokens that a map asked for; 0 where none did."""
        match = self.__dict__.get("_match")
        return match.n if match is not None else 0

    def score(self) -> None:
        """Make the maps and go through the texts."""
        bridges = self._bridges()
        self.bridges = bridges
        scores, maps = len(self.task.scores), len(bridges)
        n, row_of = len(self.scored), {int(text): row for row, text in enumerate(self.scored)}
        self.sums = np.zeros((n, maps, scores, self.cuts, self.entries))
        self.counts = np.zeros(n)
        own_b, own_a, base = (np.zeros((n, scores)) for _ in range(3))
        self.identity = np.zeros(self.entries)
        own_head = self._head_of_a()
        for number, group in enumerate(self.groups):
            batch = self.task.prepare(self.texts.batch(group))
            seen_b = observe(self.b, batch.ids_b, batch.mask_b, classes=self.task.name == "classes")
            asked = self.task.ask(batch, seen_b)
            seen_a = observe(self.whole.a, batch.ids_a, batch.mask_a, classes=own_head is not None)
            rows = np.array([row_of[int(text)] for text in group])
            items = asked.item.cpu().numpy()
            np.add.at(self.counts, rows[items], 1.0)
            np.add.at(own_b, rows[items], self._alone(self.task.head, seen_b, asked))
            np.add.at(base, rows[items], self.task.base(asked).T.cpu().numpy())
            if own_head is not None:
                np.add.at(own_a, rows[items], self._alone(own_head, seen_a, asked))
            if number == 0:
                self._check_identity(batch, seen_b, asked)
            states = self._states(batch, seen_a)
            for at, bridge in enumerate(bridges):
                for entry in range(self.entries):
                    self.sums[rows, at, :, :, entry] = self._cells(bridge, entry, states, batch, asked)
                    self.whole.tick(f"{self.upper}: {KERNELS[bridge.name].label}, layer {entry}")
        self.values, self.errors = clustered_mean(self.sums, self.counts)
        self.own_b, self.own_b_errors = clustered_mean(own_b, self.counts)
        self.own_b_texts = own_b / np.maximum(self.counts, 1)[:, None]
        self.base = clustered_mean(base, self.counts)[0]
        self.gain_errors = clustered_mean(self.sums[:, :, 0] - base[:, :1, None, None], self.counts)[1]
        self.own_a = clustered_mean(own_a, self.counts)[0] if own_head is not None else np.full(scores, np.nan)

    def _states(self, batch: Batch, seen: Observed) -> list[Tensor]:
        """Return A's states at the places that B reads, one tensor a cut."""
        states = list(seen.states)
        if self.whole.settings.paper_faithful:
            states[-1] = seen.last
        return [batch.placed(each) for each in states]

    def _cells(self, bridge: Bridge, entry: int, states: list[Tensor], batch: Batch, asked: Asked) -> np.ndarray:
        """Return the sums by text of all cuts at one entry, (b, S, c)."""
        import torch

        dtype = self.b.anatomy.embedding.dtype
        carried = torch.stack([bridge.carried(state, cut, entry).to(dtype) for cut, state in enumerate(states)])
        carried = without_padding(carried, batch.mask)
        tail = Tail(self.b, entry, self.whole.settings.paper_faithful)
        sums = self.task.answers(tail, carried, batch, asked)
        return np.asarray(sums.permute(2, 1, 0).cpu().numpy())

    def _check_identity(self, batch: Batch, seen: Observed, asked: Asked) -> None:
        """Hand B's own states to its own upper part, and hold what comes out against what B said."""
        for entry in range(self.entries):
            tail, given = Tail(self.b, entry), seen.states[entry]
            if seen.class_logits is not None:
                again = Observed((), given, tail.class_logits(given, batch.ids_b, batch.mask_b))
            else:
                again = Observed((), tail.states(given, batch.ids_b, batch.mask_b), None)
            found, said = (_answered(self.task.head, each, asked) for each in (again, seen))
            self.identity[entry] = float((found - said).abs().max()) / max(float(said.abs().max()), 1e-30)
        allowed = _EXACT.get(str(self.b.anatomy.embedding.dtype), 1e-1)
        if not float(self.identity.max()) <= allowed:
            raise UnsupportedFamily(
                f"{self.upper}, stitched to itself, is not itself: at layer {int(self.identity.argmax())} its logits "
                f"differ by {float(self.identity.max()):.1e} of the largest, where {allowed:.0e} is rounding; its "
                "upper blocks cannot be run alone, so choose another model."
            )

    def _head_of_a(self) -> Any:
        """Return what A answers the same question with, or None."""
        a = self.whole.a
        if self.task.name == "classes":
            labels: list[Any] = [getattr(model.module.config, "id2label", None) for model in (a, self.b)]
            same = is_classifier(a) and labels[0] == labels[1]
            return "classes" if same else None
        if a.anatomy.blocks[0].attention.causal != self.b.anatomy.blocks[0].attention.causal:
            return None
        try:
            return None if is_classifier(a) else read_head(a, a.anatomy.embedding.dtype)
        except (Incomparable, UnsupportedFamily):
            return None

    def _alone(self, head: Any, seen: Observed, asked: Asked) -> np.ndarray:
        """Return the scores of one model alone, (m, S)."""
        return np.asarray(self.task.of(_answered(head, seen, asked), asked).T.cpu().numpy())

    def _bridges(self) -> list[Bridge]:
        settings, a, b = self.whole.settings, self.whole.a, self.b
        options = BridgeOptions(settings.embedding, settings.centred, settings.anchors, self.seed)
        fitted = fitted_on_states(self.whole.names)
        paired = self._paired_states() if fitted else None
        made = []
        for name in self.whole.names:
            if paired is not None and name in fitted:
                tick = lambda name=name: self.whole.tick(f"{self.upper}: fitting {KERNELS[name].label}")  # noqa: E731
                made.append(bridge_from_states(name, *paired, self.seed, tick))
            else:
                made.append(bridge_from_weights(name, a, b, lambda: self._match, options))
        for model in (a, b):
            note = model.anatomy.readout(settings.embedding)[1]
            if note:
                self.notices.append(f"{model.spec.label}: {note}")
        return made

    def _paired_states(self) -> tuple[list[Tensor], list[Tensor], np.ndarray]:
        """Return states of both models, layer by layer, at tokens of texts that are not scored."""
        import torch

        if len(self.rest) < 2:
            raise SettingsError(
                f"{plural(len(self.rest), 'text')} of {len(self.whole.corpus):,} {agree(len(self.rest), 'is', 'are')} "
                "left to fit maps on, and 2 are the least; score fewer, or give more."
            )
        parts_a: list[list[Tensor]] = [[] for _ in range(self.cuts)]
        parts_b: list[list[Tensor]] = [[] for _ in range(self.entries)]
        items: list[int] = []
        for group in self._fitting_groups():
            batch = self.task.prepare(self.texts.batch(group))
            rows = list(text_rows(self.texts.encoded_b, group))
            row, place = (torch.tensor(each) for each in zip(*rows, strict=True))
            seen = observe(self.whole.a, batch.ids_a, batch.mask_a), observe(self.b, batch.ids_b, batch.mask_b)
            for parts, states in ((parts_a, self._states(batch, seen[0])), (parts_b, seen[1].states)):
                for part, state in zip(parts, states, strict=True):
                    part.append(state[row, place])
            items += [int(group[at]) for at, _ in rows]
        return [torch.cat(part) for part in parts_a], [torch.cat(part) for part in parts_b], np.array(items)

    def _fitting_groups(self) -> Iterator[np.ndarray]:
        """Yield texts that are not scored, in a drawn order, until there are enough tokens."""
        order = np.random.default_rng([self.seed, 4]).permutation(self.rest)
        sizes = np.cumsum([int(self.texts.encoded_b.is_text[text].sum()) for text in order])
        enough = int(np.searchsorted(sizes, self.whole.settings.fit_rows) + 1)
        yield from self.texts.batches(order[: max(2, enough)])

    def by_text(self) -> dict[str, Any]:
        """Return what is kept of each text of the first run."""
        counts = np.maximum(self.counts, 1)[:, None, None, None]
        loss = self.task.scores.index("loss")
        hits = 0 if self.task.name == "classes" else self.task.scores.index("agreement")
        return {
            "text_loss": (self.sums[:, :, loss] / counts).transpose(1, 0, 2, 3),
            "text_hits": (self.sums[:, :, hits] / counts).transpose(1, 0, 2, 3),
            "text_own_loss": self.own_b_texts[:, loss],
            "text_own_hits": self.own_b_texts[:, hits],
        }

    def told(self) -> dict[str, Any]:
        """Return what is known of the maps."""
        single = [bridge.single for bridge in self.bridges]
        held_out = np.full((len(single), self.cuts, self.entries), np.nan)
        for at, bridge in enumerate(self.bridges):
            if bridge.single is None:
                for (i, k), kernel in bridge.kernels.items():
                    held_out[at, i, k] = np.nan if kernel.held_out is None else kernel.held_out
        nan = float("nan")
        return {
            "condition": np.array([nan if each is None else each.condition for each in single]),
            "explained": np.array(
                [nan if each is None or each.explained is None else each.explained for each in single]
            ),
            "held_out": held_out,
        }


def _answered(head: Any, seen: Observed, asked: Asked) -> Tensor:
    """Return the logits (m, ...) that a model gives to what is asked."""
    if seen.class_logits is not None:
        return seen.class_logits
    logits: Tensor = head.logits(seen.last[asked.item, asked.where], normed=True)
    return logits[:, : asked.p.shape[-1]]
