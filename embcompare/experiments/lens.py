"""The logit lens of two models side by side: what every layer would predict, were it the last.

Each hidden state goes through the final norm (once: the last state of many families has passed it already), the head's
own transform where there is one, and the unembedding with its bias, scale and softcap; what comes out for the last
state is the model's own prediction. Layers of two models are compared by these distributions, over the tokens both
have, at positions where both have read the same text. After nostalgebraist 2020, *interpreting GPT: the logit lens*;
the divergences between layers as in Belrose et al. 2023, *Eliciting Latent Predictions with the Tuned Lens*.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from embcompare.errors import Incomparable, SettingsError, UnsupportedFamily
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.experiments.depth import cell_table, depth_agreement
from embcompare.experiments.sides import VECTORS
from embcompare.measures import distributions

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from embcompare.activations import HiddenStates
    from embcompare.models import LoadedModel
    from embcompare.text.corpora import Corpus
    from embcompare.text.vocabulary import VocabularyMatch
    from embcompare.text.words import TokenIndex

BETWEEN = ("jsd", "kl_ab", "kl_ba", "overlap")
"""What is said of a layer of A and a layer of B."""
WITHIN = ("kl", "jsd", "overlap", "entropy", "log_loss")
"""What is said of one layer and the same model's last."""
LISTED = 5
"""Tokens listed at each place of the shown sentence."""
SHOWN = 128
"""Tokens of the shown sentence at most."""
BLOCK_BYTES = 450e6
"""Memory that the distributions of one block of positions take at most, unless one position alone takes more."""
BLOCK_ROWS = 64
"""Positions of a block at most; more do not make it faster."""

_HEADS: dict[str, tuple[str, ...]] = {
    "bert": ("cls.predictions.transform",),
    "roberta": ("lm_head.dense", "gelu", "lm_head.layer_norm"),
    "xlm-roberta": ("lm_head.dense", "gelu", "lm_head.layer_norm"),
    "camembert": ("lm_head.dense", "gelu", "lm_head.layer_norm"),
    "distilbert": ("vocab_transform", "config.activation", "vocab_layer_norm"),
    "electra": ("generator_predictions",),
}
"""Family: what stands between the last state and the output embedding, submodules and activations in order."""
_TOLERANCE = {"torch.float64": 1e-4, "torch.float32": 2e-3, "torch.float16": 3e-2, "torch.bfloat16": 1e-1}


@dataclass(frozen=True, eq=False)
class LogitLensResult(Result):
    """Distributions over tokens, layer by layer, in nats; layer 0 is the embedding output, L_a and L_b count blocks.

    All means are over the same positions, those in ``positions``; every standard error is over sentences.
    """

    measures: tuple[str, ...]
    """Names along axis 0 of ``values``: jsd; kl_ab, KL(A || B); kl_ba, KL(B || A); overlap, the share of the k most
    probable tokens that both have."""
    values: np.ndarray
    """(4, L_a + 1, L_b + 1) float64 means over positions; over the shared tokens, renormalised."""
    spread: np.ndarray
    """(4, L_a + 1, L_b + 1) standard errors; NaN with fewer than two sentences."""
    null_mean: np.ndarray | None
    """(4, L_a + 1, L_b + 1) mean over wrong pairings of the positions; None without any."""
    null_sd: np.ndarray | None
    """(4, L_a + 1, L_b + 1) standard deviation over the wrong pairings, with n - 1; NaN with fewer than two."""
    left_out_a: np.ndarray
    """(L_a + 1,) mean probability of A on tokens that are not shared."""
    left_out_b: np.ndarray
    """(L_b + 1,) likewise of B."""
    indicators: tuple[str, ...]
    """Names along axis 0 of ``within_a``, over the model's own whole vocabulary: kl, KL(last layer || layer); jsd and
    overlap with the last layer; entropy; log_loss of the target, see ``target``."""
    within_a: np.ndarray
    """(5, L_a + 1) float64 means over positions, for log_loss over those that have a target."""
    within_b: np.ndarray
    """(5, L_b + 1), likewise of B."""
    within_spread_a: np.ndarray
    """(5, L_a + 1) standard errors."""
    within_spread_b: np.ndarray
    """(5, L_b + 1), likewise of B."""
    assignment: np.ndarray
    """(min(L_a, L_b) + 1, 2) int64: the one-to-one assignment of layers of smallest total divergence (JSD)."""
    depth_rate: float
    """Share of assigned pairs that join layers of equal relative depth."""
    depth_chance: float
    """The same share expected of a random assignment."""
    depth_p: float
    """Probability that a random assignment reaches it."""
    depth_pairs: np.ndarray
    """(P, 2) int64, P = max(L_a, L_b) + 1: layers of equal relative depth, every layer in one pair at least."""
    layers_a: tuple[str, ...]
    """What each layer of A is."""
    layers_b: tuple[str, ...]
    """What each layer of B is."""
    target: str
    """``"next token"`` for causal models, ``"own token"`` for bidirectional ones, which see that token."""
    k: int
    """How many top tokens the overlap of A and B counts."""
    positions: int
    """Positions in the means."""
    items: int
    """Sentences they are in."""
    targets_a: int
    """Positions in A's log_loss."""
    targets_b: int
    """Positions in B's log_loss."""
    shared: int
    """Tokens that both vocabularies have."""
    sentence: int
    """Which sentence is shown, counted from 0."""
    text: str
    """The shown sentence."""
    shown_a: tuple[str, ...]
    """(T_a,) its tokens as A reads them."""
    shown_b: tuple[str, ...]
    """(T_b,) as B does."""
    shown_target_a: tuple[str, ...]
    """(T_a,) the target of each; empty where there is none."""
    shown_target_b: tuple[str, ...]
    """(T_b,), likewise of B."""
    shown_top_a: tuple[tuple[tuple[str, ...], ...], ...]
    """(L_a + 1, T_a, m) the m most probable tokens, the most probable first; m is 5, or V where that is less."""
    shown_top_b: tuple[tuple[tuple[str, ...], ...], ...]
    """(L_b + 1, T_b, m), likewise of B."""
    shown_probability_a: np.ndarray
    """(L_a + 1, T_a, m) float64 probabilities of these."""
    shown_probability_b: np.ndarray
    """(L_b + 1, T_b, m), likewise of B."""
    shown_entropy_a: np.ndarray
    """(L_a + 1, T_a) float64 entropies."""
    shown_entropy_b: np.ndarray
    """(L_b + 1, T_b), likewise of B."""
    shown_target_probability_a: np.ndarray
    """(L_a + 1, T_a) float64 probability of the target; NaN where there is none."""
    shown_target_probability_b: np.ndarray
    """(L_b + 1, T_b), likewise of B."""
    shown_pairs: np.ndarray
    """(M, 2) int64: places in ``shown_a`` and ``shown_b`` at which the models are compared."""
    shown_jsd: np.ndarray
    """(P, M) float64 divergence of the layers ``depth_pairs`` at the places ``shown_pairs``, over the shared tokens."""

    axes: ClassVar[tuple[str, str]] = ("layer of A", "layer of B")

    def of(self, measure: str) -> np.ndarray:
        """Return the matrix (L_a + 1, L_b + 1) of one of ``measures``; another name raises ``SettingsError``."""
        if measure not in self.measures:
            raise SettingsError(f"The lens has no measure '{measure}'; it has {', '.join(self.measures)}.")
        return np.asarray(self.values[self.measures.index(measure)])

    @property
    def z(self) -> np.ndarray | None:
        """(4, L_a + 1, L_b + 1): closer than the null by so many of its standard deviations; None without a null."""
        if self.null_mean is None or self.null_sd is None:
            return None
        sign = np.array([1.0 if name == "overlap" else -1.0 for name in self.measures])[:, None, None]
        with np.errstate(all="ignore"):
            return np.asarray(np.where(self.null_sd > 0, sign * (self.values - self.null_mean) / self.null_sd, np.nan))

    def to_frame(self) -> pd.DataFrame:
        """Return one row a cell: both layers, each measure with its error, null and z, assigned, of equal depth."""
        import pandas as pd

        more: dict[str, np.ndarray | None] = {}
        for at, name in enumerate(self.measures):
            more |= {name: self.values[at], f"{name}_se": self.spread[at]}
            for what in ("null_mean", "null_sd", "z"):
                whole = getattr(self, what)
                more[f"{name}_{what}"] = None if whole is None else whole[at]
        equal = np.zeros(self.values.shape[1:], dtype=bool)
        equal[self.depth_pairs[:, 0], self.depth_pairs[:, 1]] = True
        table = cell_table(self.of("jsd"), self.assignment, {**more, "equal_depth": equal})
        return pd.DataFrame({name: column for name, column in table.items() if name not in ("value", "centred")})

    def layer_frame(self) -> pd.DataFrame:
        """Return one row a model and layer: each of ``indicators`` with its standard error, and the mass left out."""
        import pandas as pd

        frames = []
        for side in "ab":
            mean, error = getattr(self, f"within_{side}"), getattr(self, f"within_spread_{side}")
            table: dict[str, Any] = {"model": side, "layer": range(mean.shape[1])}
            table["name"] = getattr(self, f"layers_{side}")
            for at, name in enumerate(self.indicators):
                table |= {name: mean[at], f"{name}_se": error[at]}
            frames.append(pd.DataFrame({**table, "left_out": getattr(self, f"left_out_{side}")}))
        return pd.concat(frames, ignore_index=True)

    def sentence_frame(self) -> pd.DataFrame:
        """Return one row a model, layer and token of the shown sentence: top tokens, entropy, target."""
        import pandas as pd

        rows = []
        for side in "ab":
            tokens, targets = getattr(self, f"shown_{side}"), getattr(self, f"shown_target_{side}")
            probability = getattr(self, f"shown_probability_{side}")
            entropy = getattr(self, f"shown_entropy_{side}")
            of_target = getattr(self, f"shown_target_probability_{side}")
            for layer, lists in enumerate(getattr(self, f"shown_top_{side}")):
                for at, top in enumerate(lists):
                    row = {
                        "model": side,
                        "layer": layer,
                        "place": at,
                        "token": tokens[at],
                        "entropy": entropy[layer, at],
                    }
                    for rank, token in enumerate(top):
                        row |= {f"top{rank + 1}": token, f"p{rank + 1}": probability[layer, at, rank]}
                    rows.append({**row, "target": targets[at], "p_target": of_target[layer, at]})
        return pd.DataFrame(rows)


@dataclass(frozen=True)
class LogitLens(Settings):
    """Read every layer of two models as a distribution over tokens, and compare these layer by layer."""

    experiment: ClassVar[str] = "logit-lens"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = LogitLensResult

    model_a: str = option(model=True, label="Model A", help="Demo model, folder or hub name; it needs a token head.")
    model_b: str = option(model=True, label="Model B", help="Demo model, folder or hub name; it needs a token head.")
    corpus: str = option("shipped", corpus=True, label="Corpus", help="shipped, or text/DIGEST of a text you gave.")
    sentences: int = option(64, label="Sentences read", low=1, high=2000, help="The first so many of the corpus.")
    sentence: int = option(0, label="Sentence shown", low=0, help="Which one is shown token by token, from 0.")
    k: int = option(10, label="Top tokens", low=1, high=100, help="How many top tokens the overlap counts.")
    positions: int = option(512, label="Positions at most", low=1, high=20_000, help="Drawn from all that fit.")
    null_draws: int = option(5, label="Null draws", low=0, high=100, help="Wrong pairings; 0 leaves the null out.")
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    dtype: str = option(
        "float32", label="Precision", choices=("float32", "float64"), help="Of logits and distributions."
    )
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of the positions and the wrong pairings.")

    def compute(self, context: Context) -> LogitLensResult:
        """Capture both models' states on the first sentences, pair positions, and go through them block by block."""
        import torch

        for name in (self.model_a, self.model_b):
            if name.startswith(VECTORS):
                raise Incomparable(
                    f"{name} is a file of vectors, which has no unembedding to read them with; choose a model, or "
                    "compare the vectors with representation-similarity."
                )
        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            _check_kinds(a, b)
            heads = [read_head(model, getattr(torch, self.dtype)) for model in (a, b)]
            match = _shared_tokens(self, a, b)
            corpus = _first_sentences(self, context.corpus(self.corpus))
            sides = [_read_side(m, head, corpus, context) for m, head in zip((a, b), heads, strict=True)]
            return _Run(self, context, corpus, match, sides[0], sides[1]).result()


@dataclass(frozen=True, eq=False)
class Head:
    """A model's way from a hidden state to logits over all rows of its output embedding, in one dtype.

    ``norm`` is the final norm, None where there is none; ``steps`` are the MLM head's transform, or a projection to
    a narrower embedding. Logits are ``scale · E step(norm(x)) + bias``, squeezed by ``c tanh(·/c)`` with a softcap c.
    """

    norm: Callable[[Tensor], Tensor] | None
    steps: tuple[Callable[[Tensor], Tensor], ...]
    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None
    note: str

    def logits(self, states: Tensor, *, normed: bool) -> Tensor:
        """Return logits (..., V) for states (..., d); ``normed`` says that they have passed the final norm."""
        from torch.nn.functional import linear

        x = states if normed or self.norm is None else self.norm(states)
        for step in self.steps:
            x = step(x)
        z = linear(x * self.scale if self.scale != 1.0 else x, self.weight, self.bias)
        return z if self.softcap is None else z.div_(self.softcap).tanh_().mul_(self.softcap)


def read_head(model: LoadedModel, dtype: torch.dtype) -> Head:
    """Read a model's head, bring it to ``dtype``, and prove on four tokens that it gives the model's own logits.

    A causal model that was loaded without its head has the input embedding for one where its config ties the two.
    Raises ``Incomparable`` where there is no head, and ``UnsupportedFamily`` where it does something unknown.
    """
    module: Any = model.module
    anatomy, output = model.anatomy, module.get_output_embeddings()
    tied = anatomy.blocks[0].attention.causal and bool(getattr(module.config, "tie_word_embeddings", False))
    note = ""
    if output is None and not tied:
        raise Incomparable(
            f"{model.spec.label} has no head that predicts tokens, so its layers give no distributions; choose a "
            "version with a language-model head, or compare hidden states with representation-similarity."
        )
    if output is None:
        output = module.get_input_embeddings()
        note = f"{model.spec.label} came without its head; its config ties it to the input embedding, which is used."
    with model.lock:
        norm = anatomy.sites.get("final_norm")
        bias = getattr(output, "bias", None)
        head = Head(
            norm=None if norm is None else copy.deepcopy(module.get_submodule(norm)).to(dtype),
            steps=tuple(_steps(model, dtype)),
            weight=output.weight.to(dtype),
            bias=None if bias is None else bias.to(dtype),
            scale=anatomy.unembedding_scale,
            softcap=anatomy.unembedding_softcap,
            note=note,
        )
    if not note:
        _prove(model, head)
    return head


def _steps(model: LoadedModel, dtype: torch.dtype) -> Iterator[Callable[[Tensor], Tensor]]:
    from transformers.activations import ACT2FN

    from embcompare.models.families import FAMILIES
    from embcompare.models.reading import stack_of

    module: Any = model.module
    for name in _HEADS.get(model.anatomy.family, ()):
        if name == "gelu":
            yield ACT2FN[name]
        elif name.startswith("config."):
            yield ACT2FN[getattr(module.config, name.removeprefix("config."))]
        else:
            try:
                part = module.get_submodule(name)
            except AttributeError as error:
                raise UnsupportedFamily(
                    f"{model.spec.label} has no {name}, which heads of the family '{model.anatomy.family}' have, so "
                    "its predictions cannot be read; load it with its masked-language-model head."
                ) from error
            yield copy.deepcopy(part).to(dtype)
    family = FAMILIES[model.anatomy.family]
    project = getattr(stack_of(module, family), family.project_out, None) if family.project_out else None
    if project is not None:
        yield copy.deepcopy(project).to(dtype)


def _prove(model: LoadedModel, head: Head) -> None:
    """Compare the head on the last state of four tokens with the logits that the module gives for them."""
    import torch

    from embcompare.activations.forward import stack_of
    from embcompare.models.validation import hooked

    anatomy, module = model.anatomy, model.module
    ids = torch.randint(0, len(anatomy.embedding), (1, 4), generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = {"input_ids": ids.to(anatomy.embedding.device)}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    stack = stack_of(model)
    seen: list[Tensor] = []
    thread = threading.get_ident()

    def keep(states: Tensor) -> None:
        if threading.get_ident() == thread:  # another may run the same module without the lock
            seen.append(states)

    with model.lock, hooked(module) as hook:
        hook.after(stack.norm or stack.blocks[-1], keep)
        out = module(**given)
    expected = out.logits if "logits" in out else out.prediction_logits
    found = head.logits(seen[-1].to(head.weight.dtype), normed=True)
    error = float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-6)
    if not error <= _TOLERANCE.get(str(anatomy.embedding.dtype), 1e-1):
        raise UnsupportedFamily(
            f"{model.spec.label} does not compute its logits as the family '{anatomy.family}' does (relative error "
            f"{error:.1e}), so its layers cannot be read through its head; compare hidden states instead."
        )


def match_positions(
    sentences: tuple[str, ...], a: TokenIndex, b: TokenIndex, *, causal: bool, same_vocabulary: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of A and of B, int64 (n,) each, in order, at which the two have the same text to go by.

    Where both cut the text alike, the same token. Else, causal models are paired where both have read the same
    characters and no more (equal ends, the last token that ends there), and bidirectional ones where both tokens
    cover the same characters, white space at their ends not counted, and no other token of either does.
    """
    n = len(sentences)
    places = [index.bounds(n) for index in (a, b)]
    order_a, order_b = (np.arange(len(i)) - at[i.sentence] for i, at in zip((a, b), places, strict=True))
    step = int(max(order_a.max(initial=0), order_b.max(initial=0))) + 1
    keys = [i.sentence.astype(np.int64) * step + order for i, order in ((a, order_a), (b, order_b))]
    _, rows_a, rows_b = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    columns = ("token", "start", "end") if same_vocabulary else ("start", "end")
    alike = all(np.array_equal(getattr(a, name)[rows_a], getattr(b, name)[rows_b]) for name in columns)
    if alike and (same_vocabulary or bool((a.start[rows_a] >= 0).all())):
        return rows_a, rows_b
    spans = [_read_ends(i) if causal else _covered(sentences, i) for i in (a, b)]
    _, at_a, at_b = np.intersect1d(spans[0][0], spans[1][0], assume_unique=True, return_indices=True)
    return spans[0][1][at_a], spans[1][1][at_b]


_SPAN = 1 << 20  # more characters than a sentence has


def _read_ends(index: TokenIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return a key a text prefix that ends with a token, and the last row that ends there."""
    rows = np.flatnonzero(index.end >= 0)[::-1]
    keys, first = np.unique(index.sentence[rows].astype(np.int64) * _SPAN + index.end[rows], return_index=True)
    return keys, rows[first]


def _covered(sentences: tuple[str, ...], index: TokenIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return a key a span of characters that one token alone covers, and the row of that token."""
    start, end = index.start.astype(np.int64), index.end.astype(np.int64)
    for row, (number, low, high) in enumerate(zip(index.sentence.tolist(), start.tolist(), end.tolist(), strict=True)):
        text = sentences[number]
        while 0 <= low < high and text[low].isspace():
            low += 1
        while 0 <= low < high and text[high - 1].isspace():
            high -= 1
        start[row], end[row] = low, high
    rows = np.flatnonzero((start >= 0) & (end > start))
    key = (index.sentence[rows].astype(np.int64) * _SPAN + start[rows]) * _SPAN + end[rows]
    keys, first, count = np.unique(key, return_index=True, return_counts=True)
    return keys[count == 1], rows[first[count == 1]]


def wrong_pairings(n: int, draws: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return groups of positions and, for each draw, every position's wrong partner: (draws or fewer, n) int64.

    A group is n/g positions apart in the text, g of them, and each draw moves all groups round by as many places, no
    two draws alike: the text moved round, by a tenth of it at least. What neighbouring positions have in common is
    kept, so that chance looks no narrower than it is; and a group's distributions serve all draws.
    """
    count = max(1, n // max(2, 13 * draws // 10 + 2))
    groups = [np.arange(first, n, count) for first in range(count)]
    smallest = len(groups[-1])
    least = max(1, smallest // 10)
    possible = np.arange(least, smallest - least + 1) if smallest > 1 else np.empty(0, dtype=np.int64)
    shifts = np.random.default_rng([seed, 2]).choice(possible, min(draws, len(possible)), replace=False)
    partners = np.empty((len(shifts), n), dtype=np.int64)
    for at, shift in enumerate(shifts.tolist()):
        for group in groups:
            partners[at, group] = np.roll(group, -shift)
    return groups, partners


def equal_depths(blocks_a: int, blocks_b: int) -> np.ndarray:
    """Return pairs of layers of equal relative depth, (max + 1, 2) int64: layer k of the deeper model, and the other's.

    Layer k of D blocks goes with the layer nearest to k N / D of N, the upper of two that are as near; so the
    embedding outputs and the last layers are joined, and every layer of both models is in a pair.
    """
    deeper = max(blocks_a, blocks_b)
    k = np.arange(deeper + 1)
    return np.stack([(2 * k * n + deeper) // (2 * deeper) for n in (blocks_a, blocks_b)], axis=1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Side:
    """One model's states, head and targets; ``target`` is the token that row i of the states should predict, or -1."""

    model: LoadedModel
    head: Head
    states: HiddenStates
    target: np.ndarray

    @property
    def label(self) -> str:
        return self.model.spec.label

    @property
    def layers(self) -> int:
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

    def name(self, token: int) -> str:
        """Return a token as a person reads it; rows beyond the tokenizer's have their number for a name."""
        tokens = self.model.tokens
        return tokens.display(token) if token < len(tokens) else f"[row {token}]"


def _check_kinds(a: LoadedModel, b: LoadedModel) -> None:
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


def _shared_tokens(settings: LogitLens, a: LoadedModel, b: LoadedModel) -> VocabularyMatch:
    from embcompare.text.vocabulary import SMALLEST_MATCH, SMALLEST_SHARE, match_vocabularies

    way = "compare hidden states with representation-similarity in feature space"
    try:
        match = match_vocabularies(a.tokens, b.tokens, override=True)
    except Incomparable as error:
        raise Incomparable(
            f"{a.spec.label} and {b.spec.label} share no token, so their distributions have nothing in common; {way}."
        ) from error
    smaller = match.n / max(match.coverage_a, match.coverage_b)
    if match.n < max(SMALLEST_MATCH, SMALLEST_SHARE * smaller) and not settings.small_overlap:
        raise Incomparable(
            f"{a.spec.label} and {b.spec.label} share {match.n:,} tokens, too few for distributions over them to stand "
            f"for the whole; {way}, or allow a small overlap and look at the probability that is left out."
        )
    return match


def _first_sentences(settings: LogitLens, corpus: Corpus) -> Corpus:
    n = min(settings.sentences, len(corpus))
    if settings.sentence >= n:
        raise SettingsError(
            f"Sentence shown cannot be {settings.sentence}; {n:,} sentences of {corpus.name} are read, numbered 0 to "
            f"{n - 1}."
        )
    return dataclasses.replace(corpus, sentences=corpus.sentences[:n], labels=corpus.labels[:n])


def _read_side(model: LoadedModel, head: Head, corpus: Corpus, context: Context) -> _Side:
    from embcompare.activations import capture

    def progress(done: int, total: int, message: str) -> None:
        context.report(0, 1, f"{model.spec.label}: {message}")

    states = capture(model, corpus, folder=context.states, progress=progress)
    index = states.index
    target = index.token.astype(np.int64)
    if model.anatomy.blocks[0].attention.causal:
        follows = (np.diff(index.sentence) == 0) & (np.diff(index.position) == 1)
        target = np.append(np.where(follows, target[1:], -1), -1)
    return _Side(model, head, states, target)


class _Tally:
    """Sums of what was seen at positions, kept apart by sentence; the values have a shape of their own."""

    def __init__(self, items: int, *shape: int) -> None:
        self.sums = np.zeros((items, *shape))
        self.counts = np.zeros(items)

    def add(self, items: np.ndarray, values: np.ndarray) -> None:
        """Count values (b, ...) of positions in the sentences ``items`` (b,)."""
        np.add.at(self.sums, items, values)
        np.add.at(self.counts, items, 1.0)

    def mean(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean over positions and its standard error over sentences."""
        return distributions.clustered_mean(self.sums, self.counts)


class _Run:
    """One run's moving parts: the paired positions, in blocks, and the count of blocks done."""

    def __init__(
        self, settings: LogitLens, context: Context, corpus: Corpus, match: VocabularyMatch, a: _Side, b: _Side
    ) -> None:
        import torch

        self.settings, self.context, self.corpus, self.a, self.b = settings, context, corpus, a, b
        device = a.head.weight.device
        self.shared = [torch.as_tensor(rows, device=device) for rows in (match.rows_a, match.rows_b)]
        self.match, self.done = match, 0
        self.causal = a.model.anatomy.blocks[0].attention.causal
        found = match_positions(
            corpus.sentences, a.states.index, b.states.index, causal=self.causal, same_vocabulary=match.identical
        )
        self._check_and_note(len(found[0]))
        self.all_pairs = found
        chosen = np.arange(len(found[0]))
        if len(chosen) > settings.positions:
            generator = np.random.default_rng([settings.seed, 1])
            chosen = np.sort(generator.choice(len(chosen), settings.positions, replace=False))
            self.notices.append(f"{len(chosen):,} of {len(found[0]):,} positions were drawn.")
        self.rows = found[0][chosen], found[1][chosen]
        self.items = a.states.index.sentence[self.rows[0]]
        self.step = self._block_rows()
        self.blocks = [np.arange(low, min(low + self.step, len(chosen))) for low in range(0, len(chosen), self.step)]
        self.groups, self.partners = wrong_pairings(len(chosen), settings.null_draws, settings.seed)
        if len(self.partners) < settings.null_draws:
            self.notices.append(f"{len(chosen):,} positions can be paired wrongly in {len(self.partners):,} ways only.")
        self.total = len(self.blocks) + len(self._null_blocks()) * len(self.partners) + 1

    def _check_and_note(self, matched: int) -> None:
        a, b, match = self.a, self.b, self.match
        if not matched:
            where = "end at the same character" if self.causal else "cover the same characters"
            raise Incomparable(
                f"No token of {a.label} and none of {b.label} {where} in this text, so there is no position at which "
                "they can be compared; give more text, or compare sentences with representation-similarity."
            )
        notices = [f"{s.label}: {notice}" for s in (a, b) for notice in s.states.notices]
        notices += [s.head.note for s in (a, b) if s.head.note]
        notices.append(match.sentence())
        counts = [len(s.states.index) for s in (a, b)]
        if matched < max(counts):
            what = "both have read the same text" if self.causal else "a token of each covers the same characters"
            notices.append(
                f"The models are compared at {matched:,} positions where {what} (of {counts[0]:,} and {counts[1]:,})."
            )
        if not match.identical:
            notices.append("The log losses are each per token of the model's own, so they do not compare.")
        if not self.causal:
            notices.append("The models see the token that they predict; their log loss is that of copying it.")
        if self.settings.k > match.n:
            notices.append(f"The models share {match.n:,} tokens, so the overlap counts no more of them.")
        self.notices = list(dict.fromkeys(notices))

    def _block_rows(self) -> int:
        """Return how many positions at once keep a block's distributions within ``BLOCK_BYTES``."""
        whole = 2 * max(side.layers * side.rows for side in (self.a, self.b))
        shared = 5 * (self.a.layers + self.b.layers) * self.match.n
        number = 8 if self.settings.dtype == "float64" else 4
        return int(max(1, min(BLOCK_ROWS, BLOCK_BYTES // (number * (whole + shared)))))

    def _null_blocks(self) -> list[np.ndarray]:
        """Return all positions in blocks: whole groups where these are small enough, so that partners are together."""
        largest = max(map(len, self.groups))
        at_once = max(1, self.step // largest)
        blocks = [np.concatenate(self.groups[low : low + at_once]) for low in range(0, len(self.groups), at_once)]
        return [block[low : low + self.step] for block in blocks for low in range(0, len(block), self.step)]

    def result(self) -> LogitLensResult:
        """Compare at all positions, look at the shown sentence, then pair wrongly."""
        self._compare()
        self._show()
        self.context.report(self.done, self.total, "wrong pairings", self._assemble(None))
        return self._assemble(self._null())

    def _tick(self, message: str) -> None:
        self.done += 1
        self.context.report(self.done, self.total, message)

    def _restricted(self, at: int, rows: np.ndarray) -> Tensor:
        """Return the distributions of side ``at`` over the shared tokens, (L + 1, b, S), in logarithms."""
        return distributions.restrict((self.a, self.b)[at].logits(rows), self.shared[at])[0]

    def _shared_layers(self, at: int, rows: np.ndarray) -> distributions.Layers:
        return distributions.Layers.of(self._restricted(at, rows), self.settings.k)

    def _compare(self) -> None:
        """Fill the tallies, block by block."""
        n, layers = len(self.corpus), (self.a.layers, self.b.layers)
        self.between = _Tally(n, len(BETWEEN), *layers)
        self.within = [_Tally(n, len(WITHIN) - 1, side.layers) for side in (self.a, self.b)]
        self.loss = [_Tally(n, side.layers) for side in (self.a, self.b)]
        self.left_out = [_Tally(n, side.layers) for side in (self.a, self.b)]
        for block in self.blocks:
            items, shared = self.items[block], []
            for at, side in enumerate((self.a, self.b)):
                rows = self.rows[at][block]
                log_p = side.logits(rows).log_softmax(-1)
                self.within[at].add(items, _positions_first(_within(log_p, self.settings.k)))
                target = side.target[rows]
                known = np.flatnonzero(target >= 0)
                self.loss[at].add(items[known], -_of_targets(log_p, target)[:, known].T)
                kept, mass = distributions.restrict(log_p, self.shared[at])
                self.left_out[at].add(items, 1.0 - mass.cpu().numpy().T)
                shared.append(distributions.Layers.of(kept, self.settings.k))
            self.between.add(items, _positions_first(distributions.pairwise(*shared).cpu().numpy()))
            self._tick("all layers of both models")

    def _null(self) -> np.ndarray | None:
        """Return the means over wrongly paired positions, (draws, 4, L_a + 1, L_b + 1)."""
        if not len(self.partners):
            return None
        sums = np.zeros((len(self.partners), len(BETWEEN), self.a.layers, self.b.layers))
        for block in self._null_blocks():
            place = np.full(len(self.items), -1)
            place[block] = np.arange(len(block))
            own, held = (self._shared_layers(at, self.rows[at][block]) for at in (0, 1))
            for draw, partner in enumerate(self.partners):
                wrong = partner[block]
                together = bool((place[wrong] >= 0).all())
                other = held.at(place[wrong]) if together else self._shared_layers(1, self.rows[1][wrong])
                sums[draw] += distributions.pairwise(own, other).sum(-1).cpu().numpy()
                self._tick(f"wrong pairing {draw + 1} of {len(self.partners)}")
        return np.asarray(sums / len(self.items))

    def _show(self) -> None:
        """Look at the shown sentence: each model's own lists, then the two where they meet."""
        rows, shown = [], []
        for side in (self.a, self.b):
            bounds = side.states.index.bounds(len(self.corpus))
            low, high = (int(each) for each in bounds[self.settings.sentence : self.settings.sentence + 2])
            rows.append(np.arange(low, min(high, low + SHOWN)))
            shown.append(_shown(side, rows[-1], self.step))
            if high - low > SHOWN:
                self.notices.append(f"{side.label}: of the shown sentence the first {SHOWN} tokens are shown.")
            if high == low:
                self.notices.append(f"{side.label} finds no token in the shown sentence.")
        pair_a, pair_b = self.all_pairs
        inside = np.isin(pair_a, rows[0]) & np.isin(pair_b, rows[1])
        pair_a, pair_b = pair_a[inside], pair_b[inside]
        depths = equal_depths(self.a.layers - 1, self.b.layers - 1)
        found = np.empty((len(depths), len(pair_a)))
        for low in range(0, len(pair_a), self.step):
            part = slice(low, low + self.step)
            p, q = self._restricted(0, pair_a[part]), self._restricted(1, pair_b[part])
            for at, (i, j) in enumerate(depths.tolist()):
                found[at, part] = distributions.jsd(p[i], q[j]).cpu().numpy()
        starts = [int(each[0]) if len(each) else 0 for each in rows]
        self.shown: dict[str, Any] = {
            **{f"{name}_{side}": value for side, each in zip("ab", shown, strict=True) for name, value in each.items()},
            "shown_pairs": np.stack([pair_a - starts[0], pair_b - starts[1]], axis=1).astype(np.int64),
            "shown_jsd": found,
            "depth_pairs": depths,
        }
        self._tick("the shown sentence")

    def _assemble(self, null: np.ndarray | None) -> LogitLensResult:
        values, spread = self.between.mean()
        depth = depth_agreement(-values[0], self.settings.seed)
        within = [self._within(at) for at in (0, 1)]
        states_a, states_b = self.a.states, self.b.states
        few = null is None or len(null) < 2
        return LogitLensResult(
            measures=BETWEEN,
            values=values,
            spread=spread,
            null_mean=None if null is None else null.mean(0),
            null_sd=None if null is None else (np.full(values.shape, np.nan) if few else null.std(0, ddof=1)),
            left_out_a=self.left_out[0].mean()[0],
            left_out_b=self.left_out[1].mean()[0],
            indicators=WITHIN,
            within_a=within[0][0],
            within_b=within[1][0],
            within_spread_a=within[0][1],
            within_spread_b=within[1][1],
            assignment=depth.pairs,
            depth_rate=depth.rate,
            depth_chance=depth.chance,
            depth_p=depth.p_value,
            layers_a=tuple(states_a.layer_label(layer) for layer in states_a.layers),
            layers_b=tuple(states_b.layer_label(layer) for layer in states_b.layers),
            target="next token" if self.causal else "own token",
            k=min(self.settings.k, self.match.n),
            positions=len(self.items),
            items=len(np.unique(self.items)),
            targets_a=int(self.loss[0].counts.sum()),
            targets_b=int(self.loss[1].counts.sum()),
            shared=self.match.n,
            sentence=self.settings.sentence,
            text=self.corpus.sentences[self.settings.sentence],
            notices=tuple(self.notices),
            **self.shown,
        )

    def _within(self, at: int) -> tuple[np.ndarray, np.ndarray]:
        return tuple(np.vstack(pair) for pair in zip(self.within[at].mean(), self.loss[at].mean(), strict=True))  # type: ignore[return-value]


def _positions_first(values: np.ndarray) -> np.ndarray:
    return np.moveaxis(values, -1, 0)


def _within(log_p: Tensor, k: int) -> np.ndarray:
    """Return ``WITHIN``, all but the loss, of every layer at every position, (4, L + 1, b), for (L + 1, b, V)."""
    import torch

    last, top = log_p[-1], distributions.top_tokens(log_p, k)
    found = [
        torch.stack(
            (
                distributions.kl(last, layer),
                distributions.jsd(last, layer),
                distributions.overlap(top[-1], top[at]),
                distributions.entropy(layer),
            )
        )
        for at, layer in enumerate(log_p)
    ]
    return np.asarray(torch.stack(found, dim=1).cpu().numpy())


def _of_targets(log_p: Tensor, target: np.ndarray) -> np.ndarray:
    """Return the log-probability of each position's target, float64 (L + 1, b); NaN where it has none (-1)."""
    import torch

    index = torch.as_tensor(target, device=log_p.device)
    picked = log_p.gather(-1, index.clamp(min=0).expand(len(log_p), -1)[..., None])[..., 0].double()
    return np.asarray(picked.masked_fill(index < 0, float("nan")).cpu().numpy())


def _shown(side: _Side, rows: np.ndarray, step: int) -> dict[str, Any]:
    """Return what the result says of one model at the tokens ``rows`` of the shown sentence."""
    m = min(LISTED, side.rows)
    tokens = np.empty((side.layers, len(rows), m), dtype=np.int64)
    probability = np.empty(tokens.shape)
    entropy, of_target = np.empty(tokens.shape[:2]), np.empty(tokens.shape[:2])
    for low in range(0, len(rows), step):
        part = slice(low, low + step)
        log_p = side.logits(rows[part]).log_softmax(-1)
        top = distributions.top_tokens(log_p, m)
        tokens[:, part] = top.cpu().numpy()
        probability[:, part] = log_p.gather(-1, top).double().exp().cpu().numpy()
        entropy[:, part] = distributions.entropy(log_p).cpu().numpy()
        of_target[:, part] = np.exp(_of_targets(log_p, side.target[rows[part]]))
    return {
        "shown": tuple(side.name(int(token)) for token in side.states.index.token[rows]),
        "shown_target": tuple(side.name(int(token)) if token >= 0 else "" for token in side.target[rows]),
        "shown_top": tuple(tuple(tuple(map(side.name, row)) for row in layer) for layer in tokens.tolist()),
        "shown_probability": probability,
        "shown_entropy": entropy,
        "shown_target_probability": of_target,
    }
