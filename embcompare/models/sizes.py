"""How many parameters a model has, from its config alone: every matrix, bias, gain and position, tied ones once.

Checked against the modules that transformers builds from the same config, for every class of every family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embcompare.models.families import Config, Family, architecture

_POOLED = ("Model", "ForPreTraining", "ForNextSentencePrediction", "ForMultipleChoice")


def parameter_count(config: Config, family: Family, tied: bool) -> int:
    """Return the number of parameters of the class that ``config`` asks for, as transformers builds it.

    Without a class, or with one that transformers does not have, the plain model is counted. A head that is not a
    language model's and not one of transformers' own classifiers is left out.
    """
    kind = config.model_type
    return _BODIES[kind](config, family, tied) + _HEADS[kind](config, _class_kind(config), tied)


def _class_kind(config: Config) -> str:
    """Return the class name without the family's name before it: ``ForMaskedLM``, ``Model``, ``LMHeadModel``."""
    name = architecture(config)
    ends = ("LMHeadModel", "DoubleHeadsModel", "EncoderModel", "MTModel", "Model")
    at = name.rfind("For")
    return name[at:] if at > 0 else next((end for end in ends if name.endswith(end)), "Model")


def _linear(n_in: int, n_out: int, bias: Any = True) -> int:
    return n_in * n_out + (n_out if bias else 0)


def _attention(config: Config, family: Family, bias: Any = True, bias_out: Any = None) -> int:
    d: int = config.hidden_size
    width: int = family.head_width(config)
    inner, inner_kv = family.heads(config) * width, family.kv_heads(config) * width
    bias_out = bias if bias_out is None else bias_out
    return _linear(d, inner, bias) + 2 * _linear(d, inner_kv, bias) + _linear(inner, d, bias_out)


def _feed_forward(config: Config, family: Family, bias: Any = True) -> int:
    d: int = config.hidden_size
    m: int = family.ff_width(config)
    return (2 if family.gated(config) else 1) * _linear(d, m, bias) + _linear(m, d, bias)


def _bert_body(config: Config, family: Family, _tied: bool) -> int:
    d: int = config.hidden_size
    e: int = family.embedding_width(config)
    rows = config.vocab_size + config.max_position_embeddings + getattr(config, "type_vocab_size", 0)
    block = _attention(config, family) + _feed_forward(config, family) + 4 * d
    return int((rows + 2) * e + (_linear(e, d) if e != d else 0) + family.layers(config) * block)


def _bert_head(config: Config, kind: str, tied: bool) -> int:
    d: int = config.hidden_size
    labels: int = config.num_labels
    own = config.model_type == "bert"
    pooled = kind in _POOLED or (own and kind == "ForSequenceClassification")
    heads: dict[str, int] = {
        "ForSequenceClassification": _linear(d, labels) + (0 if own else _linear(d, d)),
        "ForTokenClassification": _linear(d, labels),
        "ForQuestionAnswering": _linear(d, labels),
        "ForMultipleChoice": _linear(d, 1),
        "ForNextSentencePrediction": _linear(d, 2),
    }
    language = ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForPreTraining")
    if kind in language:
        # Untied, transformers keeps the bias over the vocabulary twice.
        twice = 0 if tied else config.vocab_size
        heads[kind] = _mlm_head(d, d, config.vocab_size, tied) + twice
        heads[kind] += _linear(d, 2) if kind == "ForPreTraining" else 0
    return heads.get(kind, 0) + (_linear(d, d) if pooled else 0)


def _mlm_head(d: int, e: int, vocabulary: int, tied: bool) -> int:
    """Return a transform, its norm, the bias over the vocabulary and, untied, the matrix."""
    return _linear(d, e) + 2 * e + vocabulary + (0 if tied else e * vocabulary)


def _electra_head(config: Config, kind: str, tied: bool) -> int:
    d: int = config.hidden_size
    e: int = config.embedding_size
    labels: int = config.num_labels
    if kind in ("ForMaskedLM", "ForCausalLM"):
        return _mlm_head(d, e, config.vocab_size, tied)
    return {
        "ForPreTraining": _linear(d, d) + _linear(d, 1),
        "ForSequenceClassification": _linear(d, d) + _linear(d, labels),
        "ForTokenClassification": _linear(d, labels),
        "ForQuestionAnswering": _linear(d, labels),
        "ForMultipleChoice": _summary(config, d) + _linear(d, 1),
    }.get(kind, 0)


def _summary(config: Config, wide: int) -> int:
    """Return the size of the layer that sums up a sequence, ``wide`` unless the config makes it as wide as labels."""
    if not getattr(config, "summary_use_proj", False):
        return 0
    labels = getattr(config, "summary_proj_to_labels", False) and config.num_labels > 0
    return _linear(config.hidden_size, config.num_labels if labels else wide)


def _distilbert_head(config: Config, kind: str, tied: bool) -> int:
    d: int = config.hidden_size
    labels: int = config.num_labels
    return {
        "ForMaskedLM": _mlm_head(d, d, config.vocab_size, tied),
        "ForSequenceClassification": _linear(d, d) + _linear(d, labels),
        "ForTokenClassification": _linear(d, labels),
        "ForQuestionAnswering": _linear(d, labels),
        "ForMultipleChoice": _linear(d, d) + _linear(d, 1),
    }.get(kind, 0)


def _gpt2_body(config: Config, family: Family, _tied: bool) -> int:
    d: int = config.hidden_size
    block = _attention(config, family) + _feed_forward(config, family) + 4 * d
    return int((config.vocab_size + config.max_position_embeddings + 2) * d + family.layers(config) * block)


def _gpt_neox_body(config: Config, family: Family, _tied: bool) -> int:
    d: int = config.hidden_size
    block = _attention(config, family, config.attention_bias) + _feed_forward(config, family) + 4 * d
    return int((config.vocab_size + 2) * d + family.layers(config) * block)


def _opt_body(config: Config, family: Family, _tied: bool) -> int:
    d: int = config.hidden_size
    e: int = config.word_embed_proj_dim
    bias = config.enable_bias
    norm = 2 * d if config.layer_norm_elementwise_affine else 0
    block = _attention(config, family, bias) + _feed_forward(config, family, bias) + 2 * norm
    last = norm if config.do_layer_norm_before and not getattr(config, "_remove_final_layer_norm", False) else 0
    rows = config.vocab_size * e + (config.max_position_embeddings + 2) * d
    return int(rows + (2 * d * e if e != d else 0) + last + family.layers(config) * block)


def _llama_body(config: Config, family: Family, _tied: bool) -> int:
    d: int = config.hidden_size
    kind = config.model_type
    if kind == "qwen2":
        attention = _attention(config, family, True, False)
    else:
        attention = _attention(config, family, kind != "mistral" and config.attention_bias)
    feed = _feed_forward(config, family, kind == "llama" and config.mlp_bias)
    return int((config.vocab_size + 1) * d + family.layers(config) * (attention + feed + len(family.norms) * d))


def _causal_head(config: Config, kind: str, tied: bool) -> int:
    """Return the head of decoders: no bias over the vocabulary, none for whole sequences."""
    e: int = getattr(config, "word_embed_proj_dim", config.hidden_size)
    unembedding = 0 if tied else e * config.vocab_size
    counts: dict[str, int] = {
        "LMHeadModel": unembedding,
        "ForCausalLM": unembedding,
        "DoubleHeadsModel": unembedding + _summary(config, config.hidden_size),
        "ForSequenceClassification": e * config.num_labels,
        "ForTokenClassification": _linear(e, config.num_labels),
        "ForQuestionAnswering": _linear(e, 2),
    }
    return counts.get(kind, 0)


def _marian_body(config: Config, family: Family, tied: bool) -> int:
    d: int = config.d_model
    rows: int = config.max_position_embeddings * config.d_model
    attention = 4 * _linear(d, d)

    def stack(layers: int, m: int, attentions: int) -> int:
        feed = _linear(d, m) + _linear(m, d)
        return rows + layers * (attentions * (attention + 2 * d) + feed + 2 * d)

    decoder_alone = _class_kind(config) == "ForCausalLM"
    decoder = stack(config.decoder_layers, config.decoder_ffn_dim, 2)
    target = family.vocabulary(config) * d
    if decoder_alone:
        return decoder + target
    source = config.vocab_size * d
    if config.share_encoder_decoder_embeddings:
        # One table for both stacks; untied, transformers keeps it beside a copy in each.
        source = 0 if tied else 2 * source
    return int(decoder + target + source + stack(config.encoder_layers, config.encoder_ffn_dim, 1))


def _marian_head(config: Config, kind: str, tied: bool) -> int:
    if kind == "ForCausalLM":
        return 0 if tied else config.vocab_size * config.d_model
    return 0 if tied or kind != "MTModel" else (config.decoder_vocab_size or config.vocab_size) * config.d_model


def _t5_body(config: Config, family: Family, _tied: bool) -> int:
    d: int = config.d_model
    heads: int = config.num_heads
    attention = 4 * d * heads * config.d_kv + d
    feed = _feed_forward(config, family, False) + d
    bias = config.relative_attention_num_buckets * heads
    encoder = config.num_layers * (attention + feed) + bias + d
    total = config.vocab_size * d + encoder
    if _class_kind(config) in ("EncoderModel", "ForTokenClassification"):
        return int(total)
    return int(total + config.num_decoder_layers * (2 * attention + feed) + bias + d)


def _t5_head(config: Config, kind: str, tied: bool) -> int:
    d: int = config.d_model
    labels: int = config.num_labels
    return {
        "ForConditionalGeneration": 0 if tied else d * config.vocab_size,
        "ForSequenceClassification": _linear(d, d) + _linear(d, labels),
        "ForTokenClassification": _linear(d, labels),
        "ForQuestionAnswering": _linear(d, labels),
    }.get(kind, 0)


_BODIES: dict[str, Callable[[Config, Family, bool], int]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert"), _bert_body),
    "gpt2": _gpt2_body,
    "gpt_neox": _gpt_neox_body,
    "opt": _opt_body,
    **dict.fromkeys(("llama", "mistral", "qwen2", "gemma", "gemma2"), _llama_body),
    "marian": _marian_body,
    **dict.fromkeys(("t5", "mt5"), _t5_body),
}
_HEADS: dict[str, Callable[[Config, str, bool], int]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _bert_head),
    "electra": _electra_head,
    "distilbert": _distilbert_head,
    **dict.fromkeys(("gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "gemma", "gemma2"), _causal_head),
    "marian": _marian_head,
    **dict.fromkeys(("t5", "mt5"), _t5_head),
}
