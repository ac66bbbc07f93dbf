"""All runs of a stitching: what goes together is checked, every model B and seed is gone through, all is gathered."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.experiments.stitching_result import StitchingResult
from embcompare.experiments.stitching_single import SingleRun
from embcompare.experiments.stitching_tasks import LABEL_COLUMN, is_asked_for_classes
from embcompare.experiments.stitching_texts import Texts
from embcompare.maps.registry import KERNELS
from embcompare.stitching.bridges import parse_kernels
from embcompare.stitching.stitched import have_same_tokens
from embcompare.stitching.tails import check_runs_alone
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from embcompare.experiments.base import Context
    from embcompare.experiments.stitching import Stitching
    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus


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
        found: list[SingleRun] = []
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

    def _single(self, b: LoadedModel, seed: int, runs: int) -> SingleRun:
        drawn = np.random.default_rng([seed, 3]).permutation(len(self.corpus))
        scored = np.sort(drawn[: self.settings.sentences])
        rest = np.sort(drawn[self.settings.sentences :])
        if self.settings.tuned_blocks:
            b = self._tuned(b, rest, seed)
            self.notices += list(b.notes)
        single = SingleRun(self, b, seed, scored, rest)
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

    def _assemble(self, found: list[SingleRun]) -> StitchingResult:
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
