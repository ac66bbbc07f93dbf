"""The number of parameters by the config, against what transformers builds: every class of every family."""

import importlib

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.utils import logging

from embcompare.models.families import FAMILIES, family_of
from embcompare.models.sizes import parameter_count

_USUAL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 30,
}
_T5 = {"d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3}
_GROUPED = [{"num_key_value_heads": 2}, {"num_key_value_heads": 1, "head_dim": 10}, {"attention_bias": True}]
_OWN_TARGET = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60}
SIZES = {
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 30},
    "distilbert": {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 30},
    "opt": {k: v for k, v in _USUAL.items() if k != "intermediate_size"} | {"ffn_dim": 40, "word_embed_proj_dim": 24},
    "t5": _T5,
    "mt5": _T5,
    "marian": {
        "d_model": 24, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 40, "max_position_embeddings": 30,
        "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1,
    },
}  # fmt: skip
VARIANTS = {
    "electra": [{"embedding_size": 24}, {"embedding_size": 16, "tie_word_embeddings": False}],
    "gpt2": [{"n_inner": 70}, {"summary_proj_to_labels": False}, {"summary_use_proj": False}],
    "gpt_neox": [{"attention_bias": False}, {"use_parallel_residual": False}],
    "opt": [
        {"word_embed_proj_dim": 16, "do_layer_norm_before": False},
        {"word_embed_proj_dim": 16, "tie_word_embeddings": False},
        {"enable_bias": False},
        {"layer_norm_elementwise_affine": False},
        {"_remove_final_layer_norm": True},
    ],
    "marian": [_OWN_TARGET, _OWN_TARGET | {"tie_word_embeddings": False}],
    **{key: [{"feed_forward_proj": "gated-gelu"}, {"relative_attention_num_buckets": 7}] for key in ("t5", "mt5")},
    **{key: [*_GROUPED, {"mlp_bias": True}] for key in ("llama", "mistral", "qwen2", "gemma", "gemma2")},
}


def classes(family):
    name = family.replace("-", "_")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    made = [getattr(module, each) for each in module.__all__ if not each.endswith("PreTrainedModel")]
    return [each for each in made if getattr(each, "config_class", None) is CONFIG_MAPPING[family]]


@pytest.fixture(autouse=True)
def quietly():
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_count_is_that_of_the_module_for_every_class_and_variant(family):
    base = {"vocab_size": 50, **SIZES.get(family, _USUAL)}
    counted = 0
    for kind in classes(family):
        labels = 2 if kind.__name__ == "DistilBertForQuestionAnswering" else 5
        for tied in (None, True, False):
            for variant in ({}, *VARIANTS.get(family, ())):
                values = {**base, "num_labels": labels, **({} if tied is None else {"tie_word_embeddings": tied})}
                config = CONFIG_MAPPING[family](**{**values, **variant})
                config.architectures = [kind.__name__]
                with torch.device("meta"):
                    module = kind(config)
                module.tie_weights()
                found = parameter_count(config, family_of(config), bool(config.tie_word_embeddings))
                assert found == sum(p.numel() for p in module.parameters()), (kind.__name__, tied, variant)
                counted += 1
    assert counted >= 9


def test_without_a_class_the_plain_model_is_counted():
    config = CONFIG_MAPPING["bert"](**{"vocab_size": 50, **_USUAL})
    plain = CONFIG_MAPPING["bert"](**{"vocab_size": 50, **_USUAL}, architectures=["BertModel"])
    named = CONFIG_MAPPING["bert"](**{"vocab_size": 50, **_USUAL}, architectures=["BertForMaskedLM"])
    counts = [parameter_count(each, FAMILIES["bert"], True) for each in (config, plain, named)]
    assert counts[0] == counts[1] != counts[2]
