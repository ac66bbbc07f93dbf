"""One model's vocabulary as a reader sees it: which E, centred or not, with which gain and inverse, which tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embcompare.errors import SettingsError
from embcompare.experiments.base import option
from embcompare.experiments.filters import Filters, FilterSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from embcompare.experiments.base import Context
    from embcompare.experiments.commons import Common
    from embcompare.models import LoadedModel
    from embcompare.projections import RightInverse
    from embcompare.text import Tokens

READ_BY_INVERSE = ("ff_keys", "ff_up", "w_q", "w_k", "w_v")
"""Groups that meet the residual stream in a product: exactly read by E', in practice by E (Dar et al. 2023, table 1).
What is added to the stream, FF values and rows of W_O, is read by E itself in both forms."""

TokenLists = tuple[tuple[str, ...], ...]


class ReadingSettings(FilterSettings, Protocol):
    """The settings that say how vectors are read in tokens, and which tokens are listed."""

    @property
    def embedding(self) -> str:
        """``"output"`` or ``"input"``."""

    @property
    def centred(self) -> bool:
        """Whether the mean token is subtracted from E."""

    @property
    def inverse(self) -> str:
        """``"transpose"`` or ``"exact"``."""

    @property
    def fold_norm(self) -> bool:
        """Whether the final norm's gain multiplies E."""


_OPTIONS: dict[str, dict[str, Any]] = {
    "embedding": {
        "default": "output",
        "label": "Embedding",
        "choices": ("output", "input"),
        "help": "Read with the unembedding (the paper's choice) or the input embedding, where they differ.",
    },
    "centred": {
        "default": True,
        "label": "Centred",
        "help": "Subtract the mean token from the embedding: what a vector gives to all tokens alike is taken out.",
    },
    "inverse": {
        "default": "transpose",
        "label": "Read by",
        "choices": ("transpose", "exact"),
        "help": "Read keys, W_Q, W_K and W_V by the embedding itself (the paper's choice) or its exact right inverse.",
    },
    "fold_norm": {
        "default": False,
        "label": "Fold the final norm's gain",
        "help": "Multiply the embedding by the gain of the final norm, as logits do.",
    },
    "words_only": {
        "default": False,
        "label": "Words only",
        "help": "List only tokens that start a word and consist of letters alone.",
    },
    "stop_words": {
        "default": "",
        "label": "Stop list",
        "help": "Tokens to leave out, separated by spaces or commas; case makes no difference.",
    },
    "only": {
        "default": "",
        "label": "Keep only",
        "help": "Tokens to list and no others, separated by spaces or commas; case makes no difference. Empty lists "
        "all; a long list is better given as a text.",
    },
    "words_of": {
        "default": "",
        "corpus": True,
        "label": "Keep only the words of",
        "help": "A text: list only tokens that are whole words of it, as the paper keeps those of its reviews. "
        "shipped, reviews, or text/DIGEST of a text you gave.",
    },
}


def reading_option(name: str) -> Any:
    """Declare one of the settings that all readings share, by its name."""
    return option(**_OPTIONS[name])


@dataclass(frozen=True, eq=False)
class Listed:
    """The tokens that a result lists: their rows of E, ascending, and how each is written."""

    rows: np.ndarray
    names: tuple[str, ...]


def list_tokens(tokens: Tokens, *arrays: np.ndarray) -> Listed:
    """Return the tokens that occur in any of ``arrays`` of rows of E, each once."""
    rows = np.unique(np.concatenate([each.ravel() for each in arrays])) if arrays else np.zeros(0, dtype=np.int64)
    return Listed(rows.astype(np.int64), tuple(tokens.display(int(row)) for row in rows))


def names_of(rows: np.ndarray, listed: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return the written token for each row of E in ``rows``, an object array of the same shape."""
    written = np.empty(rows.shape, dtype=object)
    if len(names):
        written[...] = np.array(names, dtype=object)[np.searchsorted(listed, rows)]
    return written


class Readout:
    """E of one model, ready to read with: nothing of size V is copied.

    Whatever is done to E is done to the vector instead: with centre μ and gain g a token's row is ``(e - μ) ⊙ g``, so
    that it gives ``(e - μ) · (g ⊙ x)`` to a vector x; the exact right inverse E' = E G⁺ gives ``E (G⁺ x)``. Statistics
    (μ, G) are over all tokens but the special ones.
    """

    def __init__(self, settings: ReadingSettings, model: LoadedModel, device: str) -> None:
        import torch

        from embcompare.projections import mean_row, right_inverse

        self.settings, self.model = settings, model
        E, note = model.anatomy.readout(settings.embedding)
        self.E: Tensor = E.to(device)
        self.notices: list[str] = [f"{model.spec.label}: {note}"] if note else []
        self.real: Tensor = torch.as_tensor(~model.tokens.special[: len(E)], device=device)
        self.mean: Tensor | None = mean_row(self.E, self.real) if settings.centred else None
        self.gain: Tensor | None = self._gain(device)
        self.inverse: RightInverse | None = None
        if settings.inverse == "exact":
            self.inverse = right_inverse(self.E, usable=self.real, mean=self.mean, gain=self.gain)
            if self.inverse.rank < E.shape[1]:
                self.notices.append(
                    f"{model.spec.label}: its embedding has {self.inverse.rank} of {E.shape[1]} directions, so the "
                    "exact inverse reads only the part of a vector that lies in them."
                )

    def _gain(self, device: str) -> Tensor | None:
        if not self.settings.fold_norm:
            return None
        label, norm = self.model.spec.label, self.model.anatomy.final_norm
        if self.settings.embedding == "input":
            self.notices.append(f"{label}: the final norm stands before the output embedding, so nothing was folded.")
            return None
        if norm is None:
            self.notices.append(f"{label} has no norm after its last block, so nothing was folded.")
            return None
        return norm.gain.detach().to(device).double()

    @cached_property
    def gram(self) -> Tensor:
        """EᵀE over the tokens that are no special ones, centred where asked for, without the gain: (d, d) float64."""
        from embcompare.projections import gram

        return gram(self.E, usable=self.real, mean=self.mean)

    def vectors(self, x: Tensor, group: str) -> Tensor:
        """Return what to read plainly with E in place of ``x``, (n, d): x itself where nothing is done to E."""
        y = x.to(self.E.device)
        if self.inverse is not None and group in READ_BY_INVERSE:
            y = self.inverse(y)
        return y if self.gain is None else y.double() * self.gain

    def shift(self, y: Tensor) -> Tensor:
        """Return what the mean token gives to each of the vectors that :meth:`vectors` gave, (n,) float64."""
        return y.new_zeros(len(y)).double() if self.mean is None else y.double() @ self.mean

    def directions(self, rows: list[int], group: str, common: Common | None = None) -> Tensor:
        """Return a (t, d) float64 direction for each token: a raw vector's inner product with it is its score.

        ``common`` directions are left out, as :meth:`Common.taken_out` leaves them out of what is read.
        """
        wanted = self.E[rows].double()
        wanted = wanted if self.mean is None else wanted - self.mean
        wanted = wanted if common is None else common.taken_out(wanted)
        wanted = wanted if self.gain is None else wanted * self.gain
        # G⁺ is symmetric: E' x = E_t · (G⁺ x) = (G⁺ E_t) · x
        return self.inverse(wanted) if self.inverse is not None and group in READ_BY_INVERSE else wanted

    def factors(self, x: Tensor, group: str, common: Common | None = None) -> Tensor:
        """Return the readings of a head's few vectors (d_h, d) over the whole vocabulary, (V, d_h) float64."""
        from embcompare.projections import token_scores

        y = self.vectors(x, group)
        y = y if common is None else common.taken_out(y)
        return token_scores([self.E], y) - self.shift(y)

    def usable(self, context: Context, among: Tensor | None = None) -> Tensor:
        """Return which tokens may be listed by the settings' filters, (V,) bool; special tokens never may.

        ``among`` (V,) bool leaves out others beforehand. What the filters leave is said in a notice; none left raises
        SettingsError.
        """
        import torch

        others = None if among is None else as_numpy(among)
        filters = Filters.of(self.settings, context)
        keep, said = filters.kept(self.model.tokens, len(self.E), self.model.spec.label, others)
        self.notices += [said] if said else []
        return torch.as_tensor(keep, device=self.E.device)

    def note_exact(self, groups: Iterable[str], what: str) -> None:
        """Say where the exact inverse makes no difference."""
        if self.inverse is not None and not any(group in READ_BY_INVERSE for group in groups):
            self.notices.append(f"{what} are added to the stream and read by E itself, with the exact inverse as well.")


def require_layer(model: LoadedModel, layer: int) -> None:
    """Raise SettingsError when the model has no such layer, naming those it has."""
    if layer >= model.anatomy.n_layers:
        raise SettingsError(
            f"{model.spec.label} has no layer {layer}; its layers are 0 to {model.anatomy.n_layers - 1}."
        )


def position_notices(model: LoadedModel, layer: int, group: str) -> list[str]:
    """Say what W_QK leaves out where positions enter attention itself."""
    if group != "w_qk":
        return []
    position, label = model.anatomy.blocks[layer].attention.position, model.spec.label
    if position == "rotary":
        return [
            f"{label} rotates queries and keys by their positions, so W_QK depends on how far apart two tokens stand; "
            "read here is offset zero, a token that looks at its own place."
        ]
    if position == "relative":
        return [f"{label} adds a bias by distance to its attention scores; W_QK is read without it."]
    return []


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as a NumPy array."""
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array
