"""A run of stitching: texts drawn, maps made, every pair of layers scored, once for each model B and seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import Incomparable, SettingsError, UnsupportedFamily
from embcompare.experiments.stitching_result import StitchingResult
from embcompare.experiments.stitching_tasks import LABEL_COLUMN, Asked, ClassTask, LanguageTask, is_asked_for_classes
from embcompare.experiments.stitching_texts import Batch, Texts, text_rows
from embcompare.maps.registry import KERNELS
from embcompare.measures.distributions import clustered_mean
from embcompare.models.heads import read_head
from embcompare.stitching.bridges import (
    Bridge,
    BridgeOptions,
    bridge_from_states,
    bridge_from_weights,
    fitted_on_states,
    parse_kernels,
)
from embcompare.stitching.stitched import have_same_tokens, same_tokens, without_padding
from embcompare.stitching.tails import Observed, Tail, check_runs_alone, is_classifier, observe
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.base import Context
    from embcompare.experiments.stitching import Stitching
    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus
    from embcompare.text.vocabulary import VocabularyMatch

_EXACT = {"torch.float64": 1e-9, "torch.float32": 1e-5, "torch.float16": 2e-2, "torch.bfloat16": 1e-1}
"""How far, relative to the largest logit, a model stitched to itself may be from itself."""


class StitchingRun:
    """All runs of one pair: what they share, and what each leaves behind."""

    def __init__(self, settings: Stitching, context: Context, a: LoadedModel) -> None:
        self.settings, self.context, self.a = settings, context, a
        check_runs_alone(a)
        self.corpus: Corpus = context.corpus(settings.corpus)
        self.names = parse_kernels(settings.kernels)
        self.notices: list[str] = list(self.corpus.notices)
        self.done = 0
        self.total = 1
        self._texts: Texts | None = None

    def result(self) -> StitchingResult:
        """Go through every model B and every seed."""
        found: list[_Single] = []
        uppers = self.settings.uppers()
        self._check_all(uppers)
        for name in uppers:
            with self.context.lease(name) as b:
                self._texts = None
                for run in range(self.settings.runs):
                    seed = self.settings.seed + run
                    found.append(self._single(b, seed, len(uppers) * self.settings.runs))
        if self.settings.runs > 1 and len(found[0].scored) == len(self.corpus):
            self.notices.append(
                "Every run scores all texts, so runs differ only by what is drawn for maps and tuning; score fewer."
            )
        return self._assemble(found)

    def _check_all(self, uppers: tuple[str, ...]) -> None:
        """Refuse what does not go together before anything is computed."""
        first: tuple[str, tuple[str, str, int]] | None = None
        for name in uppers:
            with self.context.lease(name) as b:
                self._check(b)
                kind = self._kind(b)
            if first is not None and kind != first[1]:
                one, other = (f"{kind[0]} by {kind[1]} into {plural(kind[2], 'block')}" for kind in (first[1], kind))
                raise Incomparable(
                    f"{first[0]} is asked for {one} and {name} for {other}, so their runs are no repetitions of one "
                    "experiment; run each by itself."
                )
            first = first or (name, kind)

    def _kind(self, b: LoadedModel) -> tuple[str, str, int]:
        """Return what B is asked for, by what it is handed states, and how many blocks it has."""
        classes = is_asked_for_classes(b, self.settings.tuned_blocks)
        causal = b.anatomy.blocks[0].attention.causal
        task = "classes" if classes else ("next tokens" if causal else "masked tokens")
        return task, "tokens" if have_same_tokens(self.a, b) else "words", b.anatomy.n_layers

    def _check(self, b: LoadedModel) -> None:
        check_runs_alone(b)
        if self.a.anatomy.embedding.device != b.anatomy.embedding.device:
            raise Incomparable("The two models lie on different devices; choose one device for both.")
        unequal = [name for name in self.names if KERNELS[name].equal_widths]
        if unequal and self.a.anatomy.width != b.anatomy.width:
            self.names = tuple(name for name in self.names if name not in unequal)
            self.notices.append(
                f"{self.a.spec.label} is {self.a.anatomy.width} wide and {b.spec.label} {b.anatomy.width}, so states "
                f"cannot be handed over as they are: {', '.join(unequal)} {agree(len(unequal), 'is', 'are')} left out."
            )
            if not self.names:
                raise Incomparable(
                    f"{self.a.spec.label} is {self.a.anatomy.width} wide and {b.spec.label} {b.anatomy.width}, and "
                    "every map that was chosen needs one width; choose another, such as pseudo_inverse."
                )

    def _single(self, b: LoadedModel, seed: int, runs: int) -> _Single:
        drawn = np.random.default_rng([seed, 3]).permutation(len(self.corpus))
        scored = np.sort(drawn[: self.settings.sentences])
        rest = np.sort(drawn[self.settings.sentences :])
        if self.settings.tuned_blocks:
            b = self._tuned(b, rest, seed)
            self.notices += list(b.notes)
        single = _Single(self, b, seed, scored, rest)
        if self.done == 0:
            self.total = runs * single.work
        single.score()
        self.notices += [*single.notices, *single.task.notices]
        return single

    def _tuned(self, b: LoadedModel, rest: np.ndarray, seed: int) -> LoadedModel:
        import torch

        from embcompare.models.tuning import tune_classifier

        self._check_learnable(b, rest)

        def report(step: int, steps: int, loss: float) -> None:
            self.context.report(self.done, max(self.total, self.done + 1), f"tuning {b.spec.label}: {step} of {steps}")

        with torch.inference_mode(False), torch.enable_grad():
            return tune_classifier(
                b,
                [self.corpus.sentences[text] for text in rest],
                [self.corpus.labels[text] for text in rest],
                blocks=self.settings.tuned_blocks,
                seed=seed,
                report=report,
            )

    def _check_learnable(self, b: LoadedModel, rest: np.ndarray) -> None:
        """Refuse texts that no classifier can be learnt from, in words about the whole file."""
        labels, name = self.corpus.labels, self.corpus.name
        if not labels:
            raise SettingsError(
                f"{name} has no labels, so no classifier can be made of {b.spec.label}; choose 'reviews', or give a "
                f"file with a column of labels ({LABEL_COLUMN})."
            )
        if not all(labels):
            blank = labels.index("") + 1
            raise SettingsError(f"Text {blank:,} of {name} has no label; give every text one, or leave it out.")
        counts = Counter(labels[text] for text in rest)
        few = next((label for label in sorted(set(labels)) if counts[label] < 2), None)
        if few is not None:
            raise SettingsError(
                f"Of {plural(len(labels), 'text')} of {name} {len(rest):,} are left to learn from, and "
                f"{counts[few]} of them {agree(counts[few], 'has', 'have')} the label '{few}', where 2 are the least; "
                "score fewer, or give more."
            )
        if len(counts) < 2:
            raise SettingsError(f"All texts of {name} have the label '{labels[0]}'; give texts of two classes.")

    def texts(self, b: LoadedModel, *, by_words: bool) -> Texts:
        """Return the corpus as both models read it: once for all runs of one model B, whose tuning changes no token."""
        if self._texts is None:
            self._texts = Texts(self.corpus.sentences, self.a, b, by_words=by_words)
        return self._texts

    def tick(self, message: str) -> None:
        """Count one step of the work."""
        self.done += 1
        self.context.report(min(self.done, self.total), self.total, message)

    def _assemble(self, found: list[_Single]) -> StitchingResult:
        first = found[0]
        if first.by == "words":
            self.notices.append(
                f"{self.a.spec.label} and {first.upper} cut text into different tokens, so states are handed over word "
                "by word, and B's upper part reads words where it was trained on tokens."
            )
        if self.settings.paper_faithful:
            added = first.b.anatomy.blocks[0].attention.position == "absolute"
            positions = "B's positions are added to states that know them already, and " if added else ""
            self.notices.append(
                f"As in the official notebook, {positions}A's last state has passed its final norm: not how these "
                "models compute."
            )
        undefined = int(np.isnan(np.stack([single.values for single in found])).any((0, 2)).sum())
        if undefined:
            self.notices.append(
                f"{plural(undefined, 'cell')} {agree(undefined, 'has', 'have')} no value (NaN): a map gave no number "
                "for a state there, as cosines do for a state of length zero."
            )
        worst = np.max([single.identity for single in found], axis=0)
        return StitchingResult(
            kernels=self.names,
            scores=first.task.scores,
            values=np.stack([single.values for single in found]),
            errors=np.stack([single.errors for single in found]),
            own_a=np.stack([single.own_a for single in found]),
            own_b=np.stack([single.own_b for single in found]),
            own_b_errors=np.stack([single.own_b_errors for single in found]),
            base=np.stack([single.base for single in found]),
            gain_errors=np.stack([single.gain_errors for single in found]),
            distinct_texts=len(np.unique(np.concatenate([single.scored for single in found]))),
            base_name=first.task.base_name,
            task=first.task.name,
            run_names=tuple(single.name for single in found),
            counts=np.array([int(single.counts.sum()) for single in found], dtype=np.int64),
            run_texts=np.array([int((single.counts > 0).sum()) for single in found], dtype=np.int64),
            texts=tuple(self.corpus.sentences[text] for text in first.scored),
            labels=tuple(self.corpus.labels[text] for text in first.scored) if first.task.name == "classes" else (),
            text_counts=first.counts.astype(np.int64),
            **first.by_text(),
            **first.told(),
            identity_error=worst,
            by=first.by,
            shared=first.shared,
            notices=tuple(dict.fromkeys(self.notices)),
        )


@dataclass(eq=False)
class _Single:
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
