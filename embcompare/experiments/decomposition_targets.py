"""What an encoder-decoder's decoder should give and what it reads for that, and what it writes of its own accord."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from embcompare.activations.forward import LONGEST
from embcompare.decomposition.reading import decoder_inputs
from embcompare.models import positions
from embcompare.text.encoding import Encoded, encode

if TYPE_CHECKING:
    from embcompare.models import LoadedModel

BATCH_TOKENS = 8192
"""Source tokens that are translated at once, padding included."""
ROOM = 20
"""Tokens that a translation may have beyond twice its source's."""


@dataclass(frozen=True, eq=False)
class Labels:
    """What a decoder should give: ``ids`` (n rows of int64), its end with it, and which of them are of the text.

    ``cut`` and ``unknown`` count texts that were cut and tokens that stand for something the vocabulary lacks.
    """

    ids: list[np.ndarray]
    is_text: list[np.ndarray]
    cut: int = 0
    unknown: int = 0
    own: bool = False
    """Whether the model wrote them itself; ``cut`` then counts those without an end."""


class _AsTarget:
    """A tokenizer that reads texts as translations; some have other pieces for them."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, texts: list[str], **options: Any) -> Any:
        return self.tokenizer(text_target=texts, **options)


def labels_of(model: LoadedModel, targets: Sequence[str], most: int | None = None) -> Labels:
    """Encode translations, each with its end, at most as many tokens as the decoder has positions for, or ``most``."""
    module: Any = model.module
    longest = positions.longest_input(model, module.get_decoder(), LONGEST)
    found = encode(targets, _AsTarget(model.tokenizer), model.tokens, longest if most is None else min(most, longest))
    return Labels(found.ids, found.is_text, found.cut, found.unknown)


def start_token(model: LoadedModel) -> int:
    """Return the token that an encoder-decoder's decoder starts with."""
    return int(decoder_inputs(model, torch.zeros(1, 1, dtype=torch.int64))[0, 0])


def padded(model: LoadedModel, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Return token rows and their mask as tables (n, longest) of int64, padded on the right, on the model's device."""
    pads = (getattr(model.module.config, "pad_token_id", None), model.tokenizer.pad_token_id, 0)
    ids = np.full((len(rows), max(map(len, rows))), next(pad for pad in pads if pad is not None), dtype=np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)], mask[at, : len(row)] = row, 1
    device = model.anatomy.embedding.device
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def own_output(
    model: LoadedModel, sources: Encoded, most: int | None = None, report: Callable[[int, int], None] | None = None
) -> Labels:
    """Return what an encoder-decoder writes for its sources: the most likely token at each step, until it ends.

    A translation stops at ``most`` tokens, at the decoder's positions, or at twice the longest source beside it and
    :data:`ROOM` more; those without an end are counted in ``cut``. Of the settings that come with a model, those that
    search or sample play no part; tokens that it never writes stay unwritten.
    """
    module: Any = model.module
    longest = positions.longest_input(model, module.get_decoder(), LONGEST) - 1
    longest = longest if most is None else min(most, longest)
    end = module.generation_config.eos_token_id
    ends = {end} if isinstance(end, int) else set(end or ())
    lengths = np.array([len(row) for row in sources.ids])
    order = np.argsort(-lengths, kind="stable")
    step = max(1, BATCH_TOKENS // max(1, int(lengths.max(initial=1))))
    found: dict[int, np.ndarray] = {}
    # transformers makes T5's cache as deep as its encoder
    cached = getattr(module.config, "num_decoder_layers", None) in (None, getattr(module.config, "num_layers", None))
    for at in range(0, len(order), step):
        batch = order[at : at + step]
        ids, mask = padded(model, [sources.ids[text] for text in batch])
        limit = max(1, min(longest, 2 * ids.shape[1] + ROOM))
        with model.lock, torch.inference_mode():
            written = module.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                num_beams=1,
                max_new_tokens=limit,
                forced_eos_token_id=None,
                use_cache=cached,
            )
        for text, row in zip(batch.tolist(), written[:, 1:].numpy(force=True), strict=True):
            stop = np.flatnonzero(np.isin(row, list(ends)))
            found[text] = row[: int(stop[0]) + 1] if len(stop) else row
        if report is not None:
            report(min(at + step, len(order)), len(order))
    rows = [found[text].astype(np.int64) for text in range(len(order))]
    lacking = model.tokenizer.unk_token_id
    special = list(set(model.tokenizer.all_special_ids) - {lacking})
    unknown = sum(int((row == lacking).sum()) for row in rows) if lacking is not None else 0
    cut = sum(not len(row) or int(row[-1]) not in ends for row in rows)
    return Labels(rows, [~np.isin(row, special) for row in rows], cut, unknown, own=True)


def written_as(model: LoadedModel, labels: Labels) -> list[str]:
    """Return texts of token rows, special tokens left out."""
    return [
        model.tokenizer.decode(row.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for row in labels.ids
    ]
