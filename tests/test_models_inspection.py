"""Shape and size from the config alone, against the models built from it."""

import json
import subprocess
import sys
import time

import pytest
from tiny import TINY

from embcompare.errors import ModelDamaged
from embcompare.models import demo_names, inspect_model
from embcompare.models.inspection import has_head


@pytest.mark.parametrize("name", TINY)
def test_config_and_model_agree(tiny_folders, tiny_model, name):
    info, model = inspect_model(str(tiny_folders(name))), tiny_model(name)
    anatomy = model.anatomy
    block = anatomy.blocks[0]
    assert (info.layers, info.width) == (anatomy.n_layers, anatomy.width)
    assert (info.heads, info.kv_heads) == (block.attention.heads, block.attention.kv_heads)
    assert info.ff_width == len(block.feed_forward.keys)
    assert info.vocabulary == len(anatomy.embedding) + anatomy.padded_rows
    assert info.placement == block.placement
    assert info.family == anatomy.family
    assert info.architecture == type(model.module).__name__
    assert has_head(model.module.config) == (anatomy.unembedding is not None)
    assert info.supported
    assert not info.reason
    assert info.parameters == sum(p.numel() for p in model.module.parameters())
    assert info.bytes == 4 * info.parameters


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, 109.5),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, 124.4),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, 60.5),
        ({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 512, "num_hidden_layers": 6,
          "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": 50304}, 70.4),
        ({"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"]}, 67.0),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, 6738.4),
        ({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": 32000}, 7241.7),
    ],
)  # fmt: skip
def test_well_known_sizes_are_met_within_a_percent(tmp_path, config, millions):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert inspect_model(str(tmp_path)).parameters / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", demo_names())
def test_demo_models_have_as_many_parameters_as_their_cards_say(name):
    info = inspect_model(f"demo/{name}")
    assert info.parameters == info.card["parameters"]


def test_inspection_reads_no_weights_and_is_fast(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    inspect_model(str(tmp_path))
    began = time.perf_counter()
    info = inspect_model(str(tmp_path))
    assert time.perf_counter() - began < 0.5
    assert info.layers == 32


def test_an_unknown_family_is_said_and_not_raised(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    info = inspect_model(str(tmp_path))
    assert not info.supported
    assert "'mamba'" in info.reason
    assert "bert" in info.reason


def test_a_variant_that_cannot_be_read_is_said_and_not_raised(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "position_embedding_type": "relative_key"}))
    info = inspect_model(str(tmp_path))
    assert not info.supported
    assert "relative_key" in info.reason


def test_heads_that_cannot_be_shared_are_damage(tmp_path):
    config = {"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 4, "hidden_size": 48}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelDamaged):
        inspect_model(str(tmp_path))


def test_stored_dtype_decides_the_bytes(tiny_folders):
    from embcompare.models import ModelSpec

    text = str(tiny_folders("gpt2"))
    sizes = [inspect_model(ModelSpec.parse(text, dtype=d)).bytes for d in ("float32", "float64", "stored")]
    assert sizes[1] == 2 * sizes[0]
    assert sizes[2] == sizes[0]


def test_the_package_imports_without_torch():
    code = "import sys, embcompare.models.inspection, embcompare.models.pool; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
