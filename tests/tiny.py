"""Random transformers of every family, a few kilobytes each, with tokenizers of every marking scheme."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 1300
"""Tokens of every tiny tokenizer: enough for two vocabularies to be matched."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = ["".join(pair) for pair in itertools.product(_LETTERS, repeat=2)]


def words(n: int) -> list[str]:
    """Return ``n`` distinct lower-case words of two and three letters."""
    longer = ("".join(three) for three in itertools.product(_LETTERS, repeat=3))
    return list(itertools.islice(itertools.chain(_WORDS, longer), n))


def wordpiece_tokenizer(size: int = VOCABULARY) -> Any:
    """Return a lower-casing WordPiece tokenizer: five special tokens, letters, words, pieces that start with ##."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
    pieces = [f"##{each}" for each in [*_LETTERS, *words(100)]]
    stems = [*_LETTERS, *words(size - len(special) - len(pieces) - len(_LETTERS))]
    vocabulary = {token: i for i, token in enumerate([*special, *stems, *pieces])}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def bytes_tokenizer(size: int = VOCABULARY) -> Any:
    """Return a byte-level BPE tokenizer as GPT-2's: 256 bytes, words with Ġ, one special token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    tokens = list(alphabet)
    for word in words(size):
        left = "Ġ"
        for letter in word:
            if left + letter not in tokens:
                merges.append((left, letter))
                tokens.append(left + letter)
            left += letter
        if len(tokens) >= size - 1:
            break
    tokens = [*tokens[: size - 1], "<|endoftext|>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    core = Tokenizer(models.BPE(vocabulary, [m for m in merges if m[0] + m[1] in vocabulary]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|endoftext|>", bos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )


def sentencepiece_tokenizer(size: int = VOCABULARY) -> Any:
    """Return a Unigram tokenizer as sentencepiece's: words with ▁, byte tokens such as <0x0A>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>"]
    byte = [f"<0x{i:02X}>" for i in range(256)]
    tokens = [*special, *byte, "▁", *_LETTERS]
    tokens += [f"▁{word}" for word in [*_LETTERS, *words(size - len(tokens) - len(_LETTERS))]]
    core = Tokenizer(
        models.Unigram([(token, -float(i)) for i, token in enumerate(tokens)], unk_id=2, byte_fallback=True)
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def _bert(name: str, head: str, **changes: Any) -> Callable[[int], Any]:
    def build(size: int) -> Any:
        import transformers

        sizes = {
            "vocab_size": size,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 40,
            "max_position_embeddings": 40,
            **changes,
        }
        config = getattr(transformers, f"{name}Config")(**sizes)
        return getattr(transformers, f"{name}{head}")(config)

    return build


def _decoder(name: str, head: str = "ForCausalLM", **changes: Any) -> Callable[[int], Any]:
    sizes = {"num_key_value_heads": 2, "num_attention_heads": 4, "hidden_size": 24}
    special = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    return _bert(name, head, **{**sizes, **special, **changes})


def _gpt2(head: str = "LMHeadModel", **changes: Any) -> Callable[[int], Any]:
    def build(size: int) -> Any:
        import transformers

        config = transformers.GPT2Config(
            **{
                "vocab_size": size,
                "n_embd": 24,
                "n_layer": 2,
                "n_head": 3,
                "n_positions": 40,
                "bos_token_id": size - 1,
                "eos_token_id": size - 1,
                "pad_token_id": size - 1,
                **changes,
            }
        )
        return getattr(transformers, f"GPT2{head}")(config)

    return build


def _distilbert(head: str) -> Callable[[int], Any]:
    def build(size: int) -> Any:
        import transformers

        config = transformers.DistilBertConfig(
            vocab_size=size, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=40
        )
        return getattr(transformers, f"DistilBert{head}")(config)

    return build


def _opt(**changes: Any) -> Callable[[int], Any]:
    return _bert(
        "OPT",
        "ForCausalLM",
        **{
            "ffn_dim": 40,
            "word_embed_proj_dim": 24,
            "bos_token_id": 1,
            "eos_token_id": 1,
            "pad_token_id": 0,
            **changes,
        },
    )


def _marian(size: int) -> Any:
    import transformers

    config = transformers.MarianConfig(
        vocab_size=size,
        d_model=24,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=32,
        decoder_ffn_dim=40,
        max_position_embeddings=40,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=1,
    )
    return transformers.MarianMTModel(config)


def _t5(head: str = "ForConditionalGeneration", family: str = "T5", **changes: Any) -> Callable[[int], Any]:
    def build(size: int) -> Any:
        import transformers

        config = getattr(transformers, f"{family}Config")(
            **{
                "vocab_size": size,
                "d_model": 24,
                "d_kv": 10,
                "d_ff": 40,
                "num_layers": 2,
                "num_decoder_layers": 3,
                "num_heads": 3,
                "decoder_start_token_id": 0,
                **changes,
            }
        )
        return getattr(transformers, f"{family}{head}")(config)

    return build


TINY: dict[str, tuple[Callable[[], Any], Callable[[int], Any], int]] = {
    "bert-mlm": (wordpiece_tokenizer, _bert("Bert", "ForMaskedLM"), 0),
    "bert-plain": (wordpiece_tokenizer, _bert("Bert", "Model"), 0),
    "bert-pretraining": (wordpiece_tokenizer, _bert("Bert", "ForPreTraining"), 0),
    "bert-classifier": (wordpiece_tokenizer, _bert("Bert", "ForSequenceClassification"), 0),
    "bert-untied": (wordpiece_tokenizer, _bert("Bert", "ForMaskedLM", tie_word_embeddings=False), 0),
    "roberta": (bytes_tokenizer, _bert("Roberta", "ForMaskedLM", pad_token_id=1), 0),
    "xlm-roberta": (sentencepiece_tokenizer, _bert("XLMRoberta", "ForMaskedLM", pad_token_id=1), 0),
    "camembert": (sentencepiece_tokenizer, _bert("Camembert", "ForMaskedLM", pad_token_id=1), 0),
    "distilbert": (wordpiece_tokenizer, _distilbert("ForMaskedLM"), 0),
    "distilbert-classifier": (wordpiece_tokenizer, _distilbert("ForSequenceClassification"), 0),
    "electra-generator": (wordpiece_tokenizer, _bert("Electra", "ForMaskedLM", embedding_size=16), 0),
    "electra-discriminator": (wordpiece_tokenizer, _bert("Electra", "ForPreTraining", embedding_size=16), 0),
    "electra-square": (wordpiece_tokenizer, _bert("Electra", "ForMaskedLM", embedding_size=24), 0),
    "gpt2": (bytes_tokenizer, _gpt2(), 0),
    "gpt2-plain": (bytes_tokenizer, _gpt2("Model"), 0),
    "gpt2-classifier": (bytes_tokenizer, _gpt2("ForSequenceClassification"), 0),
    "gpt2-scaled-by-layer": (bytes_tokenizer, _gpt2(scale_attn_by_inverse_layer_idx=True), 0),
    "gpt-neox": (bytes_tokenizer, _decoder("GPTNeoX"), 12),
    "gpt-neox-sequential": (bytes_tokenizer, _decoder("GPTNeoX", use_parallel_residual=False), 0),
    "opt": (bytes_tokenizer, _opt(), 0),
    "opt-post-norm": (bytes_tokenizer, _opt(do_layer_norm_before=False), 0),
    "opt-plain-norms": (bytes_tokenizer, _opt(layer_norm_elementwise_affine=False, enable_bias=False), 0),
    "opt-narrow-embedding": (bytes_tokenizer, _opt(word_embed_proj_dim=16, do_layer_norm_before=False), 0),
    "llama": (sentencepiece_tokenizer, _decoder("Llama"), 0),
    "llama-tied-biased": (
        sentencepiece_tokenizer,
        _decoder("Llama", tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
        0,
    ),
    "mistral": (sentencepiece_tokenizer, _decoder("Mistral", head_dim=10), 0),
    "qwen2": (bytes_tokenizer, _decoder("Qwen2"), 20),
    "gemma": (sentencepiece_tokenizer, _decoder("Gemma", head_dim=8, num_key_value_heads=1), 0),
    "gemma2": (sentencepiece_tokenizer, _decoder("Gemma2", head_dim=8, query_pre_attn_scalar=11), 0),
    "marian": (sentencepiece_tokenizer, _marian, 0),
    "t5": (sentencepiece_tokenizer, _t5(), 0),
    "t5-gated": (sentencepiece_tokenizer, _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False), 28),
    "mt5": (sentencepiece_tokenizer, _t5(family="MT5"), 0),
    "t5-encoder": (sentencepiece_tokenizer, _t5("EncoderModel"), 0),
}
"""Name: tokenizer, model builder for a number of rows of E, rows of E beyond the tokenizer's tokens."""


def save_tiny(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Build the tiny model ``name`` with random weights in every tensor and save it with its tokenizer."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer_of, build, padding = TINY[name]
    tokenizer = tokenizer_of()
    torch.manual_seed(seed)
    model = build(len(tokenizer) + padding).eval()
    with torch.no_grad():
        for label, value in model.named_parameters():
            # Defaults of one and zero would hide a gain or a bias that is dropped or doubled.
            fresh = torch.randn_like(value)
            value.copy_(fresh * 0.3 if value.ndim > 1 else (1 + 0.3 * fresh if "weight" in label else 0.3 * fresh))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
