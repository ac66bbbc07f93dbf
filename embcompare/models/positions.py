"""How long an input a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embcompare.text.encoding import tokenizer_limit

if TYPE_CHECKING:
    from embcompare.models.loading import LoadedModel


def longest_input(model: LoadedModel, run: Any, most: int) -> int:
    """Return the longest input, special tokens counted, that ``run`` has positions for; at most ``most``.

    ``run`` is the part of the model's module that reads tokens.
    """
    import torch

    limits = [most, tokenizer_limit(model.tokenizer)]
    if model.anatomy.blocks[0].attention.position != "relative":
        config = run.config
        limits.append(getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None))
    for name, part in run.named_modules():
        # RoBERTa counts its positions from behind the padding's index.
        if (
            name.endswith("position_embeddings")
            and isinstance(part, torch.nn.Embedding)
            and part.padding_idx is not None
        ):
            limits.append(part.num_embeddings - part.padding_idx - 1)
    return max(1, min(limit for limit in limits if limit))
