"""The one tokenizer of all demo models: a lower-casing WordPiece vocabulary of 4,096 entries."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

from embcompare.demo.texts import Document

VOCABULARY = 4096
LENGTH = 64
"""Longest sequence of every demo model, in tokens, with [CLS] and [SEP]."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens; their ids are 0 to 4 in this order."""
PAD, UNK, CLS, SEP, MASK = range(5)

REPEATS = {"sotu": 1, "moby-dick": 4, "reviews": 4}
"""How often each source is read when the vocabulary is learnt, so that the long addresses do not own it."""

_ALPHABET = sorted(string.ascii_lowercase + string.digits + string.punctuation)


def train_tokenizer(documents: Iterable[Document]) -> Any:
    """Learn the vocabulary from training documents; returns a ``transformers.PreTrainedTokenizerFast``.

    Encoded text is ``[CLS] … [SEP]``, for GPT-2 and BERT alike. Deterministic: same documents, same vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    def with_model(model: Any) -> Any:
        backend = Tokenizer(model)
        backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return backend

    # The trainer numbers the "##x" letters in the order of a randomised hash table, and breaks ties by number:
    # declaring them up front fixes both. The vocabulary it finds then goes into a fresh model.
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL, *(f"##{letter}" for letter in _ALPHABET)],
        initial_alphabet=_ALPHABET,
        limit_alphabet=len(_ALPHABET),
        show_progress=False,
    )
    texts = [text for document in documents for text in document.paragraphs * REPEATS[document.source]]
    learnt = with_model(models.WordPiece(unk_token="[UNK]"))
    learnt.train_from_iterator(texts, trainer)
    backend = with_model(models.WordPiece(learnt.get_vocab(), unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=LENGTH,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="[CLS]",
        eos_token="[SEP]",
    )
