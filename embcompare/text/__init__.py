"""Text: what tokens stand for, and which tokens two tokenizers share."""

from __future__ import annotations

from embcompare.text.tokens import Tokens, tokens_from_tokenizer
from embcompare.text.vocabulary import VocabularyMatch, match_vocabularies

__all__ = ["Tokens", "VocabularyMatch", "match_vocabularies", "tokens_from_tokenizer"]
