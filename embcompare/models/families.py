"""The table of model families: where each keeps what. A new family is one new entry in ``FAMILIES``.

Paths are submodule names: those of the stack (``embedding``, ``final_norm``, …) inside the module that ``root``
finds, those of a block inside the block. What differs with the configuration is a function of it. Every entry is
checked against the running module when a model is loaded (:mod:`embcompare.models.validation`), so a wrong one is
refused, never believed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embcompare.models.anatomy import Placement, Position

Config = Any
"""A transformers configuration."""


def _attribute(*names: str) -> Callable[[Config], Any]:
    """Return the first of the attributes that the configuration has and that is not None."""

    def read(config: Config) -> Any:
        return next((v for v in (getattr(config, name, None) for name in names) if v is not None), None)

    return read


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _root_of_width(config: Config) -> float:
    return math.sqrt(config.hidden_size)


def _head_width(config: Config) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _inverse_root_scale(config: Config, _layer: int) -> float:
    return 1 / math.sqrt(_head_width(config))


_LAYERS = _attribute("num_hidden_layers")
_FF_WIDTH = _attribute("intermediate_size")
_HEADS = _attribute("num_attention_heads")
_KV_HEADS = _attribute("num_key_value_heads", "num_attention_heads")
_WIDTH = _attribute("hidden_size")
_VOCABULARY = _attribute("vocab_size")
_ACTIVATION = _attribute("hidden_act")
_NONE, _NO, _YES, _ONE, _EMPTY, _PRE, _POST = map(_always, (None, False, True, 1.0, "", "pre", "post"))


@dataclass(frozen=True)
class Family:
    """How to read one family's configuration and modules; see the module's docstring."""

    blocks: str
    qkv: tuple[str, ...]
    attention_out: str
    feed_forward: Callable[[Config], tuple[str, ...]]
    norms: Mapping[str, str]
    embedding: str
    position: Position
    fused: str = ""
    root: str = ""
    cross_qkv: tuple[str, ...] = ()
    cross_out: str = ""
    norm_kind: str = "layer"
    embedding_norm: str | None = None
    final_norm: str | None = None
    project_in: str | None = None
    project_out: str | None = None
    rotary: str | None = None
    relative_bias: str | None = None
    layers: Callable[[Config], int] = _LAYERS
    ff_width: Callable[[Config], int] = _FF_WIDTH
    heads: Callable[[Config], int] = _HEADS
    kv_heads: Callable[[Config], int] = _HEADS
    head_width: Callable[[Config], int] = _head_width
    embedding_width: Callable[[Config], int] = _WIDTH
    vocabulary: Callable[[Config], int] = _VOCABULARY
    encoder: Callable[[Config], tuple[int, int] | None] = _NONE
    """Layers and feed-forward width of an encoder that is loaded but not read; None where there is none."""
    activation: Callable[[Config], str] = _ACTIVATION
    placement: Callable[[Config], Placement] = _PRE
    gated: Callable[[Config], bool] = _NO
    causal: Callable[[Config], bool] = _YES
    attention_scale: Callable[[Config, int], float] = _inverse_root_scale
    softcap: Callable[[Config], float | None] = _NONE
    embedding_scale: Callable[[Config], float] = _ONE
    unembedding_scale: Callable[[Config], float] = _ONE
    unembedding_softcap: Callable[[Config], float | None] = _NONE
    unread: Callable[[Config], str] = _EMPTY
    """Why this configuration of the family cannot be read; empty where it can."""


def _no_cross_attention(config: Config) -> str:
    return "it has cross-attention layers" if getattr(config, "add_cross_attention", False) else ""


def _bert_unread(config: Config) -> str:
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        return f"its positions are of the kind '{kind}', which transformers no longer computes"
    return _no_cross_attention(config)


_BERT = Family(
    blocks="encoder.layer",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_out="attention.output.dense",
    feed_forward=_always(("intermediate.dense", "output.dense")),
    norms={"attention": "attention.output.LayerNorm", "feed_forward": "output.LayerNorm"},
    embedding="embeddings.word_embeddings",
    embedding_norm="embeddings.LayerNorm",
    position="absolute",
    placement=_POST,
    causal=lambda config: bool(getattr(config, "is_decoder", False)),
    unread=_bert_unread,
)

_LLAMA = Family(
    blocks="layers",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.o_proj",
    feed_forward=_always(("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
    gated=_YES,
    norms={"attention": "input_layernorm", "feed_forward": "post_attention_layernorm"},
    norm_kind="rms",
    embedding="embed_tokens",
    final_norm="norm",
    position="rotary",
    rotary="rotary_emb",
    kv_heads=_KV_HEADS,
)

_GEMMA = dataclasses.replace(
    _LLAMA,
    norm_kind="rms_plus_one",
    embedding_scale=_root_of_width,
    causal=lambda config: not getattr(config, "use_bidirectional_attention", False),
)

_T5 = Family(
    root="decoder",
    blocks="block",
    qkv=("layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"),
    attention_out="layer.0.SelfAttention.o",
    cross_qkv=("layer.1.EncDecAttention.q", "layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
    cross_out="layer.1.EncDecAttention.o",
    feed_forward=lambda config: _t5_feed_forward(2, config),
    norms={
        "attention": "layer.0.layer_norm",
        "cross_attention": "layer.1.layer_norm",
        "feed_forward": "layer.2.layer_norm",
    },
    norm_kind="rms",
    embedding="embed_tokens",
    final_norm="final_layer_norm",
    position="relative",
    relative_bias="block.0.layer.0.SelfAttention.relative_attention_bias",
    layers=_attribute("num_decoder_layers", "num_layers"),
    ff_width=_attribute("d_ff"),
    head_width=_attribute("d_kv"),
    encoder=lambda config: (config.num_layers, config.d_ff),
    activation=_attribute("dense_act_fn"),
    gated=_attribute("is_gated_act"),
    attention_scale=_ONE,
    unembedding_scale=lambda config: config.d_model**-0.5 if getattr(config, "scale_decoder_outputs", False) else 1.0,
)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": dataclasses.replace(
        _BERT, project_in="embeddings_project", embedding_width=_attribute("embedding_size")
    ),
    "distilbert": Family(
        blocks="transformer.layer",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        attention_out="attention.out_lin",
        feed_forward=_always(("ffn.lin1", "ffn.lin2")),
        norms={"attention": "sa_layer_norm", "feed_forward": "output_layer_norm"},
        embedding="embeddings.word_embeddings",
        embedding_norm="embeddings.LayerNorm",
        position="absolute",
        ff_width=_attribute("hidden_dim"),
        activation=_attribute("activation"),
        placement=_POST,
        causal=_NO,
    ),
    "gpt2": Family(
        blocks="h",
        qkv=("attn.c_attn",),
        fused="thirds",
        attention_out="attn.c_proj",
        feed_forward=_always(("mlp.c_fc", "mlp.c_proj")),
        norms={"attention": "ln_1", "feed_forward": "ln_2"},
        embedding="wte",
        final_norm="ln_f",
        position="absolute",
        ff_width=lambda config: config.n_inner or 4 * config.n_embd,
        activation=_attribute("activation_function"),
        attention_scale=lambda config, layer: (
            (_head_width(config) ** -0.5 if config.scale_attn_weights else 1.0)
            / (layer + 1 if config.scale_attn_by_inverse_layer_idx else 1)
        ),
        unread=_no_cross_attention,
    ),
    "gpt_neox": Family(
        blocks="layers",
        qkv=("attention.query_key_value",),
        fused="interleaved",
        attention_out="attention.dense",
        feed_forward=_always(("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")),
        norms={"attention": "input_layernorm", "feed_forward": "post_attention_layernorm"},
        embedding="embed_in",
        final_norm="final_layer_norm",
        position="rotary",
        rotary="rotary_emb",
        placement=lambda config: "parallel" if config.use_parallel_residual else "pre",
    ),
    "opt": Family(
        root="decoder",
        blocks="layers",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        attention_out="self_attn.out_proj",
        feed_forward=_always(("fc1", "fc2")),
        norms={"attention": "self_attn_layer_norm", "feed_forward": "final_layer_norm"},
        embedding="embed_tokens",
        embedding_width=_attribute("word_embed_proj_dim"),
        final_norm="final_layer_norm",
        project_in="project_in",
        project_out="project_out",
        position="absolute",
        ff_width=_attribute("ffn_dim"),
        activation=_attribute("activation_function"),
        placement=lambda config: "pre" if config.do_layer_norm_before else "post",
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "gemma": _GEMMA,
    "gemma2": dataclasses.replace(
        _GEMMA,
        norms={
            "attention": "input_layernorm",
            "attention_output": "post_attention_layernorm",
            "feed_forward": "pre_feedforward_layernorm",
            "feed_forward_output": "post_feedforward_layernorm",
        },
        placement=_always("sandwich"),
        activation=_attribute("hidden_activation"),
        attention_scale=lambda config, _layer: config.query_pre_attn_scalar**-0.5,
        softcap=_attribute("attn_logit_softcapping"),
        unembedding_softcap=_attribute("final_logit_softcapping"),
    ),
    "marian": Family(
        root="decoder",
        blocks="layers",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        attention_out="self_attn.out_proj",
        cross_qkv=("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"),
        cross_out="encoder_attn.out_proj",
        feed_forward=_always(("fc1", "fc2")),
        norms={
            "attention": "self_attn_layer_norm",
            "cross_attention": "encoder_attn_layer_norm",
            "feed_forward": "final_layer_norm",
        },
        embedding="embed_tokens",
        position="absolute",
        layers=_attribute("decoder_layers"),
        ff_width=_attribute("decoder_ffn_dim"),
        heads=_attribute("decoder_attention_heads"),
        kv_heads=_attribute("decoder_attention_heads"),
        head_width=lambda config: config.d_model // config.decoder_attention_heads,
        vocabulary=lambda config: config.decoder_vocab_size or config.vocab_size,
        encoder=lambda config: (config.encoder_layers, config.encoder_ffn_dim),
        activation=_attribute("activation_function"),
        placement=_POST,
        attention_scale=lambda config, _layer: (config.d_model // config.decoder_attention_heads) ** -0.5,
        embedding_scale=lambda config: _root_of_width(config) if config.scale_embedding else 1.0,
    ),
    "t5": _T5,
    "mt5": _T5,
}

_T5_ENCODER = dataclasses.replace(
    _T5,
    root="encoder",
    cross_qkv=(),
    cross_out="",
    feed_forward=lambda config: _t5_feed_forward(1, config),
    norms={"attention": "layer.0.layer_norm", "feed_forward": "layer.1.layer_norm"},
    layers=_attribute("num_layers"),
    encoder=_NONE,
    causal=_NO,
    unembedding_scale=_ONE,
)


def architecture(config: Config) -> str:
    """Return the class name the config asks for; empty where it names none, or anything but a text."""
    names = getattr(config, "architectures", None)
    first = names[0] if isinstance(names, list | tuple) and names else names
    return first if isinstance(first, str) else ""


def has_head(config: Config) -> bool:
    """Say whether the class the config asks for ends in a linear head over the vocabulary."""
    name = architecture(config)
    heads = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "MTModel", "DoubleHeadsModel")
    return name.endswith(heads) or (name.endswith("ForPreTraining") and not name.startswith("Electra"))


def family_of(config: Config) -> Family | None:
    """Return the entry for a configuration, or None where the family is not known."""
    if architecture(config) in ("T5EncoderModel", "MT5EncoderModel"):
        return _T5_ENCODER
    return FAMILIES.get(config.model_type)


def _t5_feed_forward(position: int, config: Config) -> tuple[str, ...]:
    names = ("wi_0", "wi_1", "wo") if config.is_gated_act else ("wi", "wo")
    return tuple(f"layer.{position}.DenseReluDense.{name}" for name in names)
