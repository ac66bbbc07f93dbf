"""A text continued by A, by B, and by A's lower under B's upper blocks, token by token, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embcompare.errors import Incomparable, InputError, SettingsError
from embcompare.experiments.base import Context, Result, Settings, option
from embcompare.maps.registry import KERNELS
from embcompare.words import agree, plural

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from torch import Tensor

    from embcompare.models import LoadedModel
    from embcompare.models.heads import Head

__all__ = ["SIDES", "StitchedText", "StitchedTextResult"]

_NAMES = ", ".join(name for name, map_ in KERNELS.items() if map_.fitted_on != "states")
SIDES = ("A", "B", "stitched")
"""Who continues the text, in the order of the result's first axis."""
MAX_CHARACTERS = 5000
"""Of the text that is continued."""


@dataclass(frozen=True, eq=False)
class StitchedTextResult(Result):
    """Continuations of one text: 3 sides (see :data:`SIDES`) by t tokens by k alternatives.

    A side that ended its text before the others has token -1 and NaN from there on; a side that cannot continue a text
    (A without a head) has them everywhere.
    """

    prompt: tuple[str, ...]
    """The tokens of the text as they are written."""
    tokens: np.ndarray
    """(3, t) int64: the tokens chosen, -1 for none."""
    probabilities: np.ndarray
    """(3, t) float64: what each side gave to the token it chose, at temperature 1."""
    top: np.ndarray
    """(3, t, k) int64: the likeliest tokens at each step."""
    top_probabilities: np.ndarray
    """(3, t, k) float64, at temperature 1."""
    listed: np.ndarray
    """(u,) int64: all tokens that occur, ascending."""
    names: tuple[str, ...]
    """(u,) how each is written."""
    text: tuple[str, ...]
    """(3,) what was added, as plain text."""
    labels: tuple[str, ...]
    """(3,) names of the models."""

    def name(self, token: int) -> str:
        """Return a token as it is written; empty for -1."""
        return "" if token < 0 else self.names[int(np.searchsorted(self.listed, token))]

    def to_frame(self) -> pd.DataFrame:
        """Return one row a side and step: token, probability, the likeliest tokens and theirs."""
        import pandas as pd

        rows = [
            {
                "side": side,
                "step": step,
                "token": self.name(int(self.tokens[at, step])),
                "probability": self.probabilities[at, step],
                "likeliest": " ".join(self.name(int(token)) for token in self.top[at, step]),
                "likeliest_probability": self.top_probabilities[at, step, 0],
            }
            for at, side in enumerate(SIDES)
            for step in range(self.tokens.shape[1])
            if self.tokens[at, step] >= 0
        ]
        return pd.DataFrame(rows)


@dataclass(frozen=True)
class StitchedText(Settings):
    """Continue a text with model A, model B, and A's first blocks under B's last ones."""

    experiment: ClassVar[str] = "stitched-text"
    version: ClassVar[int] = 1
    result_type: ClassVar[type[Result]] = StitchedTextResult

    model_a: str = option(model=True, label="Model A, below", help="Its first blocks run. A causal language model.")
    model_b: str = option(model=True, label="Model B, above", help="Its last blocks and its head run. A causal model.")
    text: str = option(label="Text", help="What is continued.")
    cut: int = option(
        label="Blocks of A", low=0, help="How many of A's first blocks run; 0 takes its embedding output."
    )
    entry: int = option(label="Into layer of B", low=0, help="B's blocks from this one on run, counted from 0.")
    kernel: str = option("pseudo_inverse", label="Map", help=f"There are {_NAMES}.")
    tokens: int = option(16, label="Tokens", low=1, high=64, help="How many are added.")
    temperature: float = option(
        0.0,
        label="Temperature",
        low=0.0,
        high=5.0,
        help="0 takes the likeliest token; above, tokens are drawn.",
    )
    top: int = option(5, label="Alternatives", low=1, high=50, help="Likeliest tokens listed at every step.")
    embedding: str = option("output", label="Embedding", choices=("output", "input"), help="Which the map is made of.")
    centred: bool = option(False, label="Centred", help="Subtract the mean token from both embeddings. The paper: no.")
    anchors: int = option(512, label="Anchor tokens", low=2, high=50_000, help="Of the relative representation.")
    paper_faithful: bool = option(
        False, label="As the official notebook", help="Add B's positions to the states once more."
    )
    small_overlap: bool = option(False, label="Allow a small overlap", help="Go on with few shared tokens.")
    seed: int = option(0, label="Seed", low=0, high=2**31 - 1, help="Of drawn tokens and of maps that are drawn.")

    def __post_init__(self) -> None:
        from embcompare.maps.registry import get_kernel

        super().__post_init__()
        if get_kernel(self.kernel).fitted_on == "states":
            raise SettingsError(
                f"The map '{self.kernel}' is fitted on hidden states, and here is one text only; choose a map made of "
                "the embeddings, such as pseudo_inverse."
            )
        if not self.text.strip():
            raise SettingsError("The text is empty; give a few words to go on from.")
        if len(self.text) > MAX_CHARACTERS:
            raise SettingsError(f"The text has {len(self.text):,} characters; give at most {MAX_CHARACTERS:,}.")

    def compute(self, context: Context) -> StitchedTextResult:
        """Run all three from the text's first token at every step; what does not fit is left out at the beginning."""
        import torch

        with context.lease(self.model_a) as a, context.lease(self.model_b) as b, torch.inference_mode():
            return _Continued(self, context, a, b).result()


class _Continued:
    def __init__(self, settings: StitchedText, context: Context, a: LoadedModel, b: LoadedModel) -> None:
        import functools

        from embcompare.models.heads import read_head
        from embcompare.stitching.bridges import BridgeOptions, bridge_from_weights
        from embcompare.stitching.stitched import StitchedModel, same_tokens
        from embcompare.stitching.tails import is_classifier
        from embcompare.text.vocabulary import match_vocabularies

        self.settings, self.context, self.a, self.b = settings, context, a, b
        for model in (a, b):
            if not model.anatomy.blocks[0].attention.causal or is_classifier(model):
                raise Incomparable(f"{model.spec.label} does not continue texts; choose a causal language model.")
        same_tokens(a, b)
        options = BridgeOptions(settings.embedding, settings.centred, settings.anchors, settings.seed)
        match = functools.partial(match_vocabularies, a.tokens, b.tokens, override=settings.small_overlap)
        bridge = bridge_from_weights(settings.kernel, a, b, match, options)
        self.stitched = StitchedModel(a, b, bridge, settings.cut, settings.entry, settings.paper_faithful)
        self.head_b = read_head(b, b.anatomy.embedding.dtype)
        self.head_a: Head | None = None
        self.notices: list[str] = []
        try:
            self.head_a = read_head(a, a.anatomy.embedding.dtype)
        except Incomparable as error:
            self.notices.append(str(error))

    def result(self) -> StitchedTextResult:
        from embcompare.experiments.readout import list_tokens

        prompt, longest = self._prompt()
        steps, k = self.settings.tokens, min(self.settings.top, len(self.head_b.weight))
        tokens = np.full((3, steps), -1, dtype=np.int64)
        given = np.full((3, steps), np.nan)
        top, top_given = np.full((3, steps, k), -1, dtype=np.int64), np.full((3, steps, k), np.nan)
        for side, last in enumerate(self._sides()):
            if last is None:
                continue
            row = list(prompt)
            generator = np.random.default_rng([self.settings.seed, side])
            for step in range(steps):
                self.context.report(side * steps + step, 3 * steps, f"{SIDES[side]}: token {step + 1} of {steps}")
                p = self._probabilities(last, row[-longest:])
                order = np.argsort(-p, kind="stable")
                chosen = int(order[0]) if not self.settings.temperature else self._draw(p, generator)
                tokens[side, step], given[side, step] = chosen, p[chosen]
                top[side, step], top_given[side, step] = order[:k], p[order[:k]]
                if chosen in self._ends:
                    break
                row.append(chosen)
        listed = list_tokens(self.b.tokens, tokens[tokens >= 0], top[top >= 0], np.array(prompt))
        return StitchedTextResult(
            prompt=tuple(self.b.tokens.display(token) for token in prompt),
            tokens=tokens,
            probabilities=given,
            top=top,
            top_probabilities=top_given,
            listed=listed.rows,
            names=listed.names,
            text=tuple(self.b.tokenizer.decode(row[(row >= 0) & ~np.isin(row, list(self._ends))]) for row in tokens),
            labels=(self.a.spec.label, self.b.spec.label, self._label()),
            notices=tuple(self.notices),
        )

    def _label(self) -> str:
        left = self.b.anatomy.n_layers - self.settings.entry
        return (
            f"{plural(self.settings.cut, 'block')} of {self.a.spec.label} under {plural(left, 'block')} of "
            f"{self.b.spec.label}"
        )

    def _sides(self) -> tuple[Callable[[Tensor], Tensor] | None, ...]:
        from embcompare.stitching.tails import observe

        def alone(model: LoadedModel, head: Head) -> Callable[[Tensor], Tensor]:
            return lambda ids: head.logits(observe(model, ids, ids.new_ones(ids.shape)).last[:, -1], normed=True)

        return (
            None if self.head_a is None else alone(self.a, self.head_a),
            alone(self.b, self.head_b),
            lambda ids: self.head_b.logits(self.stitched.states(ids)[:, -1], normed=True),
        )

    def _probabilities(self, last: Callable[[Tensor], Tensor], row: list[int]) -> np.ndarray:
        """Return the probabilities of the next token over the tokens there are, float64 (V,)."""
        import torch

        ids = torch.tensor([row], device=self.b.anatomy.embedding.device)
        logits = last(ids)[0, : len(self.b.tokens)].double()
        return np.asarray(logits.softmax(-1).cpu().numpy())

    def _draw(self, p: np.ndarray, generator: np.random.Generator) -> int:
        with np.errstate(divide="ignore"):
            z = np.log(p) / self.settings.temperature
        weight = np.exp(z - z.max())
        return int(generator.choice(len(p), p=weight / weight.sum()))

    @property
    def _ends(self) -> set[int]:
        return {token for token in (self.b.tokenizer.eos_token_id, self.b.tokenizer.sep_token_id) if token is not None}

    def _prompt(self) -> tuple[list[int], int]:
        """Return the text's tokens, without what the tokenizer puts at its end, and how many the models read."""
        from embcompare.activations.forward import longest_input
        from embcompare.text.encoding import encode

        longest = min(longest_input(model) for model in (self.a, self.b))
        encoded = encode([self.settings.text], self.b.tokenizer, self.b.tokens, 10**6)
        inside = np.flatnonzero(encoded.is_text[0])
        if not len(inside):
            raise InputError("The text has no token for these models; give a few words to go on from.")
        prompt = [int(token) for token in encoded.ids[0][: inside[-1] + 1]]
        if encoded.unknown:
            self.notices.append(
                f"{plural(encoded.unknown, 'token')} of the text {agree(encoded.unknown, 'is', 'are')} unknown to the "
                "vocabulary."
            )
        if len(prompt) + self.settings.tokens - 1 > longest:
            self.notices.append(
                f"The models read {longest:,} tokens at most, so the beginning drops out as the text grows."
            )
        return prompt, longest
