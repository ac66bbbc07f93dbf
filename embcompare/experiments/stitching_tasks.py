"""What a stitched model is asked, and how well it answers: next tokens, masked tokens, or classes of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.experiments.stitching_texts import Batch, Texts, text_rows
from embcompare.stitching.tails import Observed, Tail, is_classifier
from embcompare.words import plural

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.models import LoadedModel
    from embcompare.models.heads import Head

LANGUAGE = ("loss", "kl", "agreement")
"""Nats per token, nats from B's own prediction, share of places where the first choice is B's."""
CLASSES = ("accuracy", "loss", "kl", "agreement")
LABEL_COLUMN = "from a shell: python -m embcompare keep FILE --label-column NAME"
"""How a text gets labels."""
LOGIT_BYTES = 64e6
"""Memory that logits take at once."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The questions of one batch, the right answers, and B's own.

    ``item`` (m,) is the row of the batch that each belongs to; ``where`` (m,) its position, None for whole texts;
    ``target`` (m,) the right answers. ``p`` (m, V or labels) is what B alone says, ``p_log_p`` (m,) its sum of
    p log p and ``first`` (m,) its first choice.
    """

    item: Tensor
    where: Tensor | None
    target: Tensor
    p: Tensor
    p_log_p: Tensor
    first: Tensor

    @classmethod
    def of(cls, item: Tensor, where: Tensor | None, target: Tensor, logits: Tensor) -> Asked:
        """Return the questions with B's own logits (m, ...)."""
        p = _wide(logits).softmax(-1)
        return cls(item, where, target, p, p.xlogy(p).sum(-1), logits.argmax(-1))

    def part(self, chosen: slice) -> Asked:
        """Return some of them."""
        return Asked(
            self.item[chosen], None, self.target[chosen], self.p[chosen], self.p_log_p[chosen], self.first[chosen]
        )


class Task(Protocol):
    """What a run needs of a task."""

    scores: tuple[str, ...]
    name: str
    base_name: str
    notices: list[str]
    head: Head | None
    """What makes logits of the last state, where B has no classifier of its own."""

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as it is read."""

    def ask(self, batch: Batch, own: Observed) -> Asked:
        """Return the questions, with B's own answers."""

    def answers(self, tail: Tail, given: Tensor, batch: Batch, asked: Asked) -> Tensor:
        """Return sums of all scores by text, float64 (c, S, b), of the upper part on c cuts' states (c, b, t, d)."""

    def of(self, logits: Tensor, asked: Asked) -> Tensor:
        """Return the scores of logits (m, V), float64 (S, m)."""

    def base(self, asked: Asked) -> Tensor:
        """Return the scores of the base rate, float64 (S, m)."""


class LanguageTask:
    """The next token, or tokens that were masked, in nats per token."""

    base_name = "unigram"
    scores = LANGUAGE

    def __init__(
        self, texts: Texts, b: LoadedModel, head: Head, rest: np.ndarray, mask_share: float, seed: int
    ) -> None:
        import torch

        self.texts, self.b, self.head = texts, b, head
        self.causal = b.anatomy.blocks[0].attention.causal
        self.name = "next token" if self.causal else "masked token"
        # rows of E beyond the tokenizer's tokens stand for nothing, and two models may have different numbers of them
        self.share, self.seed, self.size = mask_share, seed, min(len(b.tokens), len(head.weight))
        self.notices: list[str] = []
        self.masked: int | None = None
        if not self.causal:
            self.masked = b.tokenizer.mask_token_id
            if self.masked is None:
                raise Incomparable(
                    f"{b.spec.label} reads both ways and its tokenizer has no mask token, so nothing can be asked of "
                    "it; choose a causal model, or a classifier, as model B."
                )
        self.log_unigram = torch.from_numpy(self._unigram(rest)).to(texts.device)

    def _unigram(self, rest: np.ndarray) -> np.ndarray:
        """Return log shares of tokens in texts that are not scored, one added to each count, (V,) float64.

        To a user's texts those that ship are added, for a few sentences tell little of how frequent tokens are.
        """
        encoded = self.texts.encoded_b
        found = [encoded.ids[text][encoded.is_text[text]] for text in rest]
        if self.texts.shipped is not None:
            found.append(self.texts.shipped)
        elif not len(rest):
            found = [encoded.index.token]
            self.notices.append(
                "All shipped texts are scored, so the unigram row is made of these same texts and looks better than it "
                "is."
            )
        counts = np.bincount(np.concatenate(found), minlength=self.size) + 1.0
        return np.asarray(np.log(counts / counts.sum()))

    def prepare(self, batch: Batch) -> Batch:
        """Mask a share of each text's tokens, for both models alike; of a causal model nothing is changed."""
        if self.masked is None:
            return batch
        ids = batch.ids_b.clone()
        for row, text in enumerate(batch.texts):
            ids[row, self._hidden(int(text))] = self.masked
        return replace(batch, ids_a=ids, ids_b=ids, ids=ids)

    def _hidden(self, text: int) -> np.ndarray:
        places = np.flatnonzero(self.texts.encoded_b.is_text[text])
        count = max(1, round(self.share * len(places)))
        return np.sort(np.random.default_rng([self.seed, text, 5]).choice(places, count, replace=False))

    def ask(self, batch: Batch, own: Observed) -> Asked:
        """Return the places to predict, their tokens, and B's own distributions there."""
        import torch

        encoded, rows, places, targets = self.texts.encoded_b, [], [], []
        if self.causal:
            for row, position in text_rows(encoded, batch.texts):
                if position:
                    rows.append(row)
                    places.append(position - 1)
                    targets.append(int(encoded.ids[batch.texts[row]][position]))
        else:
            for row, text in enumerate(batch.texts):
                for position in self._hidden(int(text)):
                    rows.append(row)
                    places.append(int(position))
                    targets.append(int(encoded.ids[text][position]))
        item, where, target = (
            torch.tensor(each, device=self.texts.device, dtype=torch.int64) for each in (rows, places, targets)
        )
        return Asked.of(item, where, target, self._logits(own.last[item, where]))

    def answers(self, tail: Tail, given: Tensor, batch: Batch, asked: Asked) -> Tensor:
        """Run the upper part on all cuts at once, then the head by blocks of places."""
        import torch

        cuts, size = given.shape[:2]
        last = tail.states(given.flatten(0, 1), batch.ids.repeat(cuts, 1), batch.mask.repeat(cuts, 1))
        picked = last.unflatten(0, (cuts, size))[:, asked.item, asked.where]
        sums = torch.zeros(cuts, len(self.scores), size, dtype=torch.float64, device=given.device)
        step = max(1, int(LOGIT_BYTES // (4 * len(self.head.weight) * cuts)))
        for low in range(0, len(asked.item), step):
            some = asked.part(slice(low, low + step))
            # as one matrix: a product of a stack of small ones takes twice as long
            rows = picked[:, low : low + step].flatten(0, 1)
            logits = self._logits(rows).to(some.p.dtype).unflatten(0, (cuts, -1))
            sums.index_add_(2, some.item, _used_up(logits, some))
        return sums

    def _logits(self, states: Tensor) -> Tensor:
        return self.head.logits(states, normed=True)[..., : self.size]

    def of(self, logits: Tensor, asked: Asked) -> Tensor:
        """Return loss, KL to B's own, and agreement of the first choice."""
        return _scored(logits.to(asked.p.dtype), asked)

    def base(self, asked: Asked) -> Tensor:
        """Return the scores of token frequencies alone."""
        return _scored(self.log_unigram.to(asked.p).expand(len(asked.target), -1), asked)


class ClassTask:
    """The class of each text, by B's classifier."""

    name = "classes"
    head = None
    base_name = "majority class"
    scores = CLASSES

    def __init__(self, texts: Texts, b: LoadedModel, labels: Sequence[str], scored: np.ndarray) -> None:
        import torch

        self.texts, self.b = texts, b
        self.classes, target = match_labels(labels, b)
        self.target = torch.from_numpy(target).to(texts.device)
        self.notices: list[str] = []
        chosen = np.unique(target[scored])
        if len(chosen) == 1:
            self.notices.append(
                f"All {len(scored):,} texts drawn for scoring have the label '{self.classes[chosen[0]]}', so whoever "
                "says that is always right; score more."
            )
        # of the texts scored themselves: whoever guesses has the best guess there is
        counts = np.bincount(target[scored], minlength=len(self.classes)) + 1e-9
        self.log_share = torch.from_numpy(np.log(counts / counts.sum())).to(texts.device)

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as it is."""
        return batch

    def ask(self, batch: Batch, own: Observed) -> Asked:
        """Return the texts' classes and B's own answers."""
        import torch

        assert own.class_logits is not None
        texts = torch.from_numpy(batch.texts).to(self.texts.device)
        item = torch.arange(len(texts), device=texts.device)
        return Asked.of(item, None, self.target[texts], own.class_logits)

    def answers(self, tail: Tail, given: Tensor, batch: Batch, asked: Asked) -> Tensor:
        """Run the upper part and the classifier on all cuts at once."""
        import torch

        cuts, size = given.shape[:2]
        logits = tail.class_logits(given.flatten(0, 1), batch.ids.repeat(cuts, 1), batch.mask.repeat(cuts, 1))
        return torch.stack([self.of(each, asked) for each in logits.unflatten(0, (cuts, size))])

    def of(self, logits: Tensor, asked: Asked) -> Tensor:
        """Return accuracy, loss, KL to B's own, and agreement of the class chosen."""
        import torch

        right = (logits.argmax(-1) == asked.target).double()
        return torch.cat([right[None], _scored(logits.to(asked.p.dtype), asked)])

    def base(self, asked: Asked) -> Tensor:
        """Return the scores of always saying how frequent the classes are among the texts scored."""
        return self.of(self.log_share.to(asked.p).expand(len(asked.target), -1), asked)


def match_labels(labels: Sequence[str], model: LoadedModel) -> tuple[tuple[str, ...], np.ndarray]:
    """Return a classifier's classes, and for each text's label the place of its class, (n,) int64.

    Labels are compared without regard to case; numbers of classes, from 0, will do where no class is called by a
    number. Raises :class:`SettingsError`
    for texts without labels, of one label only, or with labels that the classifier does not have.
    """
    config: Any = model.module.config
    classes = tuple(str(config.id2label[at]) for at in range(len(config.id2label)))
    if not labels:
        raise SettingsError(
            f"{model.spec.label} classifies texts, and these have no labels; choose 'reviews', or give a file with a "
            f"column of labels ({LABEL_COLUMN})."
        )
    if len(classes) < 2 or getattr(config, "problem_type", None) in ("regression", "multi_label_classification"):
        raise SettingsError(
            f"{model.spec.label} does not choose one of several classes (it has {plural(len(classes), 'output')}, of "
            f"{getattr(config, 'problem_type', None) or 'one value'}), so accuracy is not defined; choose a classifier."
        )
    known = {name.casefold(): at for at, name in enumerate(classes)}
    if not any(name.isdecimal() for name in known):
        known |= {str(at): at for at in range(len(classes))}
    more = "other that it lacks", "others that it lacks"
    strange = sorted({label for label in labels if label.casefold() not in known})
    if strange:
        raise SettingsError(
            f"{model.spec.label} knows the classes {', '.join(classes)}, and the texts have the label "
            f"'{strange[0]}'{f' and {plural(len(strange) - 1, *more)}' if len(strange) > 1 else ''}; give texts "
            "with its own labels."
        )
    target = np.array([known[label.casefold()] for label in labels], dtype=np.int64)
    if len(np.unique(target)) < 2:
        raise SettingsError(
            f"All texts have the label '{labels[0]}', so whoever says that is always right; give texts of two classes."
        )
    return classes, target


def is_asked_for_classes(b: LoadedModel, tuned_blocks: int) -> bool:
    """Return whether B answers with classes: it is a classifier, or will be made one."""
    return tuned_blocks > 0 or is_classifier(b)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.element_size() >= 4 else logits.float()


def _scored(logits: Tensor, asked: Asked) -> Tensor:
    """Return loss, KL(B || this) and agreement of logits (m, V), float64 (3, m)."""
    return _used_up(logits.clone(), asked)


def _used_up(logits: Tensor, asked: Asked) -> Tensor:
    """Return the same of logits (..., m, V), float64 (..., 3, m); they are overwritten, for no array is larger."""
    import torch

    first = logits.max(-1)
    logits -= first.values[..., None]
    target = asked.target.expand(logits.shape[:-1])[..., None]
    right, own = logits.gather(-1, target)[..., 0], torch.linalg.vecdot(asked.p, logits)
    log_all = logits.exp_().sum(-1).log()
    same = first.indices == asked.first
    kl = asked.p_log_p - own + log_all
    return torch.stack([(log_all - right).double(), kl.double().clamp(min=0.0), same.double()], dim=-2)
