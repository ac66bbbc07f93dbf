"""How good a checkpoint is on texts: loss, accuracy, exact match, BLEU, chrF, and how far each could be off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embcompare.experiments.decomposition_targets import padded
from embcompare.experiments.decomposition_texts import BATCH_TOKENS, TextsOf

if TYPE_CHECKING:
    from embcompare.models import LoadedModel

GROUPS = 10
"""Groups of texts that are left out one at a time."""
PLAIN = ("loss", "accuracy")
"""Metrics of every model that predicts the next token."""
WRITTEN = ("exact match", "BLEU", "chrF")
"""Metrics of what an encoder-decoder writes."""
_LOGITS = 2**25


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a model predicts, text by text, (N,) each: summed loss in nats, tokens scored, and those that it gets right.

    ``written`` are the texts that an encoder-decoder writes and ``expected`` those it should, both empty for others.
    """

    loss: np.ndarray
    tokens: np.ndarray
    right: np.ndarray
    written: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()

    def scores(self) -> dict[str, np.ndarray]:
        """Return what single texts are scored by, (N,) each: mean loss and, of written ones, sentence chrF."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found = {"loss": self.loss / self.tokens}
        if self.written:
            found["chrF"] = sentence_chrf(self.written, self.expected)
        return found


def predict(texts: TextsOf) -> Predicted:
    """Return losses of the reference's tokens, each given those before it (and its source), in the model's own dtype.

    Scored are an encoder-decoder's target tokens with their end, and the tokens of other texts that follow one.
    """
    model, count = texts.model, len(texts.encoded)
    module: Any = model.module
    loss, tokens, right = (np.zeros(count) for _ in range(3))
    rows = texts.encoded.ids
    lengths = [len(row) for row in rows]
    step = max(1, min(BATCH_TOKENS, _LOGITS // module.get_output_embeddings().weight.shape[0]) // max(1, *lengths, 1))
    for at in range(0, count, step):
        batch = np.arange(at, min(at + step, count))
        ids, mask = padded(model, [rows[text] for text in batch])
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if texts.sources is not None:
            source = texts.source(batch)
            given = {
                "input_ids": source["source"],
                "attention_mask": source["source_mask"],
                "decoder_input_ids": ids,
                "decoder_attention_mask": mask,
            }
        if "use_cache" in module.config.to_dict():
            given["use_cache"] = False
        with model.lock, torch.inference_mode():
            logits = module(**given).logits
        for row, text in enumerate(batch.tolist()):
            places, targets = _targets(texts, text)
            if not len(places):
                continue
            own = logits[row, torch.from_numpy(places).to(logits.device)].double()
            asked = torch.from_numpy(targets).to(logits.device)
            loss[text] = float(torch.nn.functional.cross_entropy(own, asked, reduction="sum"))
            tokens[text], right[text] = len(places), int((own.argmax(-1) == asked).sum())
    return Predicted(loss, tokens, right)


def _targets(texts: TextsOf, text: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where a text's predictions are made, and what should be predicted there."""
    if texts.labels is not None:
        labels = texts.labels.ids[text]
        return np.arange(len(labels)), labels
    ids, is_text = texts.encoded.ids[text], texts.encoded.is_text[text]
    at = np.flatnonzero(is_text[:-1] & is_text[1:])
    return at, ids[at + 1]


class Scorer:
    """Metrics over all of some texts and without each group of them; ``expected`` are the right translations, if any.

    What sacrebleu reads in the references is read once for all checkpoints.
    """

    def __init__(self, texts: int, expected: Sequence[str] = ()) -> None:
        self.expected = tuple(expected)
        groups = min(GROUPS, texts) if texts > 1 else 0
        every = np.arange(texts)
        self.chosen = [every, *(np.setdiff1d(every, every[group::groups]) for group in range(groups))]
        self.references = [_Reference([self.expected[text] for text in part]) for part in self.chosen if expected]

    def __call__(self, found: Predicted) -> tuple[dict[str, float], dict[str, float]]:
        """Return every metric over all texts, and its standard error: a jackknife over at most :data:`GROUPS` groups.

        With G groups, each left out in turn, the variance is (G - 1) / G Σ (θ_g - mean θ_g)² (Efron & Tibshirani 1993,
        ch. 11); NaN for fewer than two texts.
        """
        whole, *left = [self._over(found, part) for part in range(len(self.chosen))]
        errors = dict.fromkeys(whole, float("nan"))
        for name in whole if left else ():
            values = np.array([each[name] for each in left])
            errors[name] = float(np.sqrt((len(left) - 1) / len(left) * ((values - values.mean()) ** 2).sum()))
        return whole, errors

    def _over(self, found: Predicted, part: int) -> dict[str, float]:
        texts = self.chosen[part]
        tokens = found.tokens[texts].sum()
        values = {
            "loss": float(found.loss[texts].sum() / tokens) if tokens else float("nan"),
            "accuracy": float(found.right[texts].sum() / tokens) if tokens else float("nan"),
        }
        if self.references:
            values |= self.references[part].scores([found.written[text] for text in texts])
        return values


class _Reference:
    """Right translations, and sacrebleu's metrics that know them: BLEU (Papineni et al. 2002), chrF (Popović 2015)."""

    def __init__(self, expected: list[str]) -> None:
        from sacrebleu.metrics import BLEU, CHRF

        self.expected = expected
        self.bleu, self.chrf = BLEU(references=[expected]), CHRF(references=[expected])

    def scores(self, written: list[str]) -> dict[str, float]:
        """Return the metrics of what was written, by sacrebleu's defaults (Post 2018)."""
        same = [one == other for one, other in zip(written, self.expected, strict=True)]
        return {
            "exact match": float(np.mean(same)),
            "BLEU": float(self.bleu.corpus_score(written, None).score),
            "chrF": float(self.chrf.corpus_score(written, None).score),
        }


def sentence_chrf(written: Sequence[str], expected: Sequence[str]) -> np.ndarray:
    """Return each text's own chrF (0 to 100), by sacrebleu's defaults."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return np.array([metric.sentence_score(one, [other]).score for one, other in zip(written, expected, strict=True)])


def signatures(names: Sequence[str]) -> tuple[str, ...]:
    """Return how each metric is computed, as sacrebleu signs it; empty for others."""
    from sacrebleu.metrics import BLEU, CHRF

    signers: dict[str, Callable[[], Any]] = {"BLEU": BLEU, "chrF": CHRF}
    found = []
    for name in names:
        if name not in signers:
            found.append("")
            continue
        signer = signers[name]()
        signer.corpus_score(["a"], [["a"]])  # it knows how many references there are once it has seen one
        found.append(str(signer.get_signature()))
    return tuple(found)


def metric_names(model: LoadedModel) -> tuple[str, ...]:
    """Return which metrics a model has."""
    return (*PLAIN, *WRITTEN) if model.anatomy.blocks[0].cross_attention is not None else PLAIN
