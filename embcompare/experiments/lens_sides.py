"""The two models under the lens: which can be compared, and each one's states, head and targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embcompare.errors import Incomparable, SettingsError
from embcompare.measures import distributions

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.activations import HiddenStates
    from embcompare.experiments.base import Context
    from embcompare.models import LoadedModel
    from embcompare.models.heads import Head
    from embcompare.text.corpora import Corpus
    from embcompare.text.vocabulary import VocabularyMatch


@dataclass(frozen=True, eq=False)
class LensSide:
    """One model's states, head and targets; ``target`` is the token that row i of the states should predict, or -1."""

    model: LoadedModel
    head: Head
    states: HiddenStates
    target: np.ndarray

    @property
    def label(self) -> str:
        """What the model is called."""
        return self.model.spec.label

    @property
    def layers(self) -> int:
        """Hidden states of a token, L + 1: the embedding output and every block's."""
        return self.states.n_layers + 1

    @property
    def rows(self) -> int:
        """Tokens the head predicts, V."""
        return len(self.head.weight)

    def logits(self, rows: np.ndarray) -> Tensor:
        """Return every layer's logits at the rows, (L + 1, b, V)."""
        import torch

        weight = self.head.weight
        states = np.stack([np.asarray(self.states.layer(layer)[rows]) for layer in range(self.layers)])
        x = torch.from_numpy(states).to(weight.device, weight.dtype)
        if self.states.last == "block output":
            return self.head.logits(x, normed=False)
        if self.head.norm is not None:
            x = torch.cat([self.head.norm(x[:-1]), x[-1:]])
        return self.head.logits(x, normed=True)

    def restricted(self, rows: np.ndarray, tokens: Tensor) -> Tensor:
        """Return every layer's distribution at the rows over ``tokens`` (S,) only, in logarithms, (L + 1, b, S)."""
        return distributions.restrict(self.logits(rows), tokens)[0]

    def name(self, token: int) -> str:
        """Return a token as a person reads it; rows beyond the tokenizer's have their number for a name."""
        tokens = self.model.tokens
        return tokens.display(token) if token < len(tokens) else f"[row {token}]"


def check_kinds(a: LoadedModel, b: LoadedModel) -> None:
    """Raise ``Incomparable`` for an encoder-decoder, and for a causal and a bidirectional model together."""
    for model in (a, b):
        if getattr(model.module.config, "is_encoder_decoder", False):
            raise Incomparable(
                f"{model.spec.label} is an encoder-decoder: its head reads the decoder, which depends on a second "
                "text; compare the encoder's hidden states with representation-similarity."
            )
    causal = [m for m in (a, b) if m.anatomy.blocks[0].attention.causal]
    if len(causal) == 1:
        other = b if causal[0] is a else a
        raise Incomparable(
            f"{causal[0].spec.label} predicts the next token and {other.spec.label} the token it stands on, so their "
            "distributions answer different questions; choose two causal or two bidirectional models, or compare "
            "hidden states with representation-similarity."
        )


def shared_tokens(a: LoadedModel, b: LoadedModel, *, small_overlap: bool) -> VocabularyMatch:
    """Return the tokens both models have; ``Incomparable`` for none, or for few unless ``small_overlap`` allows it."""
    from embcompare.text.vocabulary import SMALLEST_MATCH, SMALLEST_SHARE, match_vocabularies

    way = "compare hidden states with representation-similarity in feature space"
    try:
        match = match_vocabularies(a.tokens, b.tokens, override=True)
    except Incomparable as error:
        raise Incomparable(
            f"{a.spec.label} and {b.spec.label} share no token, so their distributions have nothing in common; {way}."
        ) from error
    smaller = match.n / max(match.coverage_a, match.coverage_b)
    if match.n < max(SMALLEST_MATCH, SMALLEST_SHARE * smaller) and not small_overlap:
        raise Incomparable(
            f"{a.spec.label} and {b.spec.label} share {match.n:,} tokens, too few for distributions over them to stand "
            f"for the whole; {way}, or allow a small overlap and look at the probability that is left out."
        )
    return match


def first_sentences(corpus: Corpus, sentences: int, shown: int) -> Corpus:
    """Return the corpus cut to its first ``sentences``; ``SettingsError`` where the one shown is not among them."""
    n = min(sentences, len(corpus))
    if shown >= n:
        raise SettingsError(
            f"Sentence shown cannot be {shown}; {n:,} sentences of {corpus.name} are read, numbered 0 to {n - 1}."
        )
    return corpus.first(n)


def read_side(model: LoadedModel, head: Head, corpus: Corpus, context: Context) -> LensSide:
    """Capture one model's states on the corpus, and find what each token should predict."""
    from embcompare.activations import capture

    def progress(done: int, total: int, message: str) -> None:
        context.report(0, 1, f"{model.spec.label}: {message}")

    states = capture(model, corpus, folder=context.states, progress=progress)
    index = states.index
    target = index.token.astype(np.int64)
    if model.anatomy.blocks[0].attention.causal:
        follows = (np.diff(index.sentence) == 0) & (np.diff(index.position) == 1)
        target = np.append(np.where(follows, target[1:], -1), -1)
    return LensSide(model, head, states, target)


def of_targets(log_p: Tensor, target: np.ndarray) -> np.ndarray:
    """Return the log-probability of each position's target, float64 (L + 1, b); NaN where it has none (-1)."""
    import torch

    index = torch.as_tensor(target, device=log_p.device)
    picked = log_p.gather(-1, index.clamp(min=0).expand(len(log_p), -1)[..., None])[..., 0].double()
    return np.asarray(picked.masked_fill(index < 0, float("nan")).cpu().numpy())
