"""Odd models: every value and file that cannot be gets one sentence of our own, soon, from every way in."""

import json
import re
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from embcompare.errors import EmbcompareError, ModelDamaged, ModelNotFound, ModelRefused
from embcompare.models import ModelPool, fingerprint, inspect_model, load_model
from embcompare.models.configs import shown

FOREIGN = re.compile(
    r"Validation error|ignore_mismatched|Expecting|codec|object has no|recursion|Errno|embed_dim|divisible|Traceback|"
    r"not a multiple|dropout probability|\bNone\b|<class"
)
"""Words of other libraries that must not come through."""
SECONDS = 5.0


@pytest.fixture
def copy(tiny_folders, tmp_path):
    def make(name="gpt2"):
        return shutil.copytree(tiny_folders(name), tmp_path / "odd-model")

    return make


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def lease(name):
    with ModelPool().lease(name):
        pass


def sentence(ask, name, kind):
    began = time.monotonic()
    with pytest.raises(EmbcompareError) as caught:
        ask(name)
    assert time.monotonic() - began < SECONDS
    text = str(caught.value)
    assert isinstance(caught.value, kind), (type(caught.value), text)
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) < 700
    assert text.endswith(".")
    assert not FOREIGN.search(text), text
    return text


def everywhere(folder, kind=ModelDamaged):
    """Return the sentence that loading and leasing give alike; looking at it and its fingerprint never crash."""
    text = sentence(load_model, str(folder), kind)
    assert sentence(lease, str(folder), (kind, ModelRefused))
    for ask in (inspect_model, fingerprint):
        try:
            ask(str(folder))
        except EmbcompareError as error:
            assert "\n" not in str(error)
    return text


@pytest.fixture(autouse=True, scope="module")
def imported():
    """Import what the time limits are not about."""
    import transformers

    transformers.GPT2LMHeadModel, transformers.LlamaForCausalLM, transformers.BertForMaskedLM  # noqa: B018


VALUES = [
    ("gpt2", "n_layer", value, "a whole number") for value in ("two", 0, -1, 10**9, 2.0, True, None, [2], 10**400)
] + [
    ("gpt2", "n_head", 0, "from 1 to"),
    ("gpt2", "n_head", "3", "a whole number"),
    ("gpt2", "n_head", 5, "share the width evenly"),
    ("gpt2", "activation_function", "foo", "an activation function that transformers does not have"),
    ("gpt2", "activation_function", 3, "text"),
    ("gpt2", "activation_function", None, "text"),
    ("gpt2", "vocab_size", 10**13, "10,000,000,000,000; it must be a whole number from 1 to 10,000,000"),
    ("gpt2", "vocab_size", 9_999_999, "1,300 rows"),
    ("gpt2", "vocab_size", 1299, "1,300 rows"),
    ("gpt2", "vocab_size", 0, "from 1"),
    ("gpt2", "n_embd", [24], "[24]"),
    ("gpt2", "n_embd", {"a": 1}, "{'a': 1}"),
    ("gpt2", "n_embd", "2" * 5000, "(5,000 characters)"),
    ("gpt2", "n_positions", 10**13, "10,000,000"),
    ("gpt2", "n_positions", 0, "from 1"),
    ("gpt2", "n_inner", 10**10, "10,000,000"),
    ("gpt2", "layer_norm_epsilon", "x", "a number"),
    ("gpt2", "layer_norm_epsilon", -1, "decimal point"),
    ("gpt2", "resid_pdrop", 5, "resid_pdrop is 5"),
    ("gpt2", "tie_word_embeddings", "x", "true or false"),
    ("gpt2", "id2label", 3, "id2label is 3"),
    ("gpt2", "num_labels", 10**10, "10,000,000,000"),
    ("gpt2", "text_config", {"n_layer": 10**12}, "text_config"),
    ("gpt2", "to_dict", 3, "called to_dict"),
    ("gpt2", "attribute_map", 3, "called attribute_map"),
    ("gpt2", "__class__", "x", "called __class__"),
    ("gpt2", "torch_dtype", 3, "one of float16"),
    ("gpt2", "dtype", "foo", "one of float16"),
    ("bert-mlm", "hidden_act", "foo", "activation"),
    ("bert-mlm", "num_attention_heads", 5, "evenly"),
    ("bert-mlm", "type_vocab_size", 10**13, "10,000,000"),
    ("llama", "hidden_act", "foo", "activation"),
    ("llama", "head_dim", 0, "from 1"),
    ("llama", "head_dim", 5, "head_dim is 5"),
    ("llama", "hidden_size", 25, "hidden_size is 25"),
    ("llama", "num_key_value_heads", 3, "share keys and values"),
    ("llama", "rope_scaling", 3, "rope_scaling is 3"),
    ("llama", "rope_scaling", {"type": "x"}, "rope_scaling"),
    ("llama", "layer_types", ["x"], "layer_types"),
    ("distilbert", "n_heads", 5, "evenly"),
    ("distilbert", "activation", "foo", "activation"),
    ("opt", "ffn_dim", "x", "a whole number"),
    ("t5", "dense_act_fn", "foo", "activation"),
    ("t5", "num_layers", 10**9, "10,000"),
    ("marian", "decoder_attention_heads", 7, "evenly"),
    ("gemma2", "query_pre_attn_scalar", 0, "query_pre_attn_scalar"),
]


@pytest.mark.parametrize(("name", "key", "value", "words"), VALUES, ids=lambda value: str(value)[:20])
def test_a_value_that_no_model_has_is_named_with_its_reason(copy, name, key, value, words):
    folder = copy(name)
    edit(folder, **{key: value})
    text = everywhere(folder)
    assert "odd-model" in text
    assert key in text
    assert words in text
    assert "again" in text or "correct" in text, "the way out"


@pytest.mark.parametrize("value", ["int8", "float8_e4m3fn", "torch.uint8"])
def test_a_config_of_quantised_weights_is_refused(copy, value):
    folder = copy()
    edit(folder, dtype=value)
    assert "quantised" in everywhere(folder, ModelRefused)


@pytest.mark.parametrize("value", [3, [3], {}, None, "", [None]])
def test_architectures_that_name_no_class_give_the_plain_model(copy, value):
    folder = copy()
    edit(folder, architectures=value)
    assert type(load_model(str(folder)).module).__name__ == "GPT2Model"
    assert inspect_model(str(folder)).architecture == ""


@pytest.mark.parametrize("value", ["", "x\ny" * 100, "gpt-of-2031"])
def test_a_family_nobody_knows_is_shown_on_one_line(copy, value):
    folder = copy()
    edit(folder, model_type=value)
    text = sentence(load_model, str(folder), EmbcompareError)
    assert "known are bert" in text
    assert not inspect_model(str(folder)).supported


CONFIGS = [
    (b"[]", "holds a list"),
    (b"null", "holds null"),
    (b"3", "holds a number"),
    (b'"x"', "holds a text"),
    (b"", "is empty"),
    (b"  \n", "is empty"),
    (b"\xff\xfe{}", "byte order mark"),
    (b'\xef\xbb\xbf{"model_type": "gpt2"}', "byte order mark"),
    (b'{"a": "\xe9"}', "not UTF-8 text (byte 7 is 0xE9)"),
    (b"\x00", "not JSON (line 1, column 1)"),
    (b'{"a":\n', "not JSON (line 2"),
    (b"[" * 100_000, "nested too deep"),
    (b'{"a":' * 100_000, "nested too deep"),
    (b'{"n_layer": ' + b"9" * 5000 + b"}", "thousands of digits"),
    (b'{"model_type": "gpt2", "n_layer": NaN}', "n_layer is nan"),
    (b'{"model_type": "gpt2", "n_layer": 1e400}', "n_layer is inf"),
    (b'{"model_type": ["gpt2"]}', "without a model_type"),
]


@pytest.mark.parametrize(("data", "words"), CONFIGS, ids=lambda value: str(value)[:20])
def test_a_config_that_is_no_config_says_what_it_is(copy, data, words):
    folder = copy()
    (folder / "config.json").write_bytes(data)
    assert words in everywhere(folder)


TOKENIZERS = [
    ("tokenizer.json", b"{}", "no 'model'"),
    ("tokenizer.json", b"[]", "holds a list"),
    ("tokenizer.json", b"", "is empty"),
    ("tokenizer.json", b"\xff", "byte 0 is 0xFF"),
    ("tokenizer.json", b'{"model": 3}', "'model' that is 3"),
    ("tokenizer.json", b'{"model": {}}', "no 'added_tokens'"),
    ("tokenizer.json", b'{"model": {"type": "x"}, "added_tokens": []}', "cannot make a tokenizer of"),
    ("tokenizer.json", b"[" * 100_000, "nested too deep"),
    ("tokenizer_config.json", b"[]", "holds a list"),
    ("tokenizer_config.json", b'{"tokenizer_class": 3}', "look at tokenizer_config.json"),
    ("tokenizer_config.json", b'{"added_tokens_decoder": 3}', "look at tokenizer_config.json"),
    ("special_tokens_map.json", b"[", "a special_tokens_map.json that is not JSON"),
    ("added_tokens.json", b"[", "an added_tokens.json that is not JSON"),
]


@pytest.mark.parametrize(("file", "data", "words"), TOKENIZERS, ids=lambda value: str(value)[:22])
def test_a_tokenizer_file_that_is_none_is_named(copy, file, data, words):
    folder = copy()
    (folder / file).write_bytes(data)
    text = sentence(load_model, str(folder), ModelDamaged)
    assert file in text
    assert words in text


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to(path.parent / "nowhere"), "link to a file that is not there"),
        (lambda path: path.symlink_to(path.name), "cannot be reached"),
        (lambda path: path.mkdir(), "is a folder, not a file"),
    ],
    ids=["link", "loop", "folder"],
)
def test_something_else_under_the_name_of_a_file_is_said(copy, file, make, words):
    folder = copy()
    (folder / file).unlink()
    make(folder / file)
    text = everywhere(folder)
    assert file in text
    assert words in text


@pytest.mark.parametrize("place", [3, "", ".safetensors", "x\0.safetensors", "x" * 5000 + ".safetensors", None])
def test_an_index_of_odd_names(copy, place):
    folder = copy()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))
    assert everywhere(folder, (ModelRefused, ModelDamaged))


QUANTISED = [
    (torch.int8, "int8"),
    (torch.uint8, "uint8"),
    (torch.int32, "int32"),
    (torch.int64, "int64"),
    (torch.bool, "bool"),
    (torch.float8_e4m3fn, "float8_e4m3"),
    (torch.float8_e5m2, "float8_e5m2"),
    (torch.complex64, "complex64"),
]


@pytest.mark.parametrize(("kind", "word"), QUANTISED, ids=[word for _, word in QUANTISED])
@pytest.mark.parametrize("names", [None, ("transformer.h.1.mlp.c_fc.weight",), ("transformer.wte.weight",)])
def test_weights_that_are_no_floating_point_numbers_are_refused(copy, kind, word, names):
    folder = copy()
    path = folder / "model.safetensors"
    weights = {k: v.to(kind) if names is None or k in names else v for k, v in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})
    text = everywhere(folder, ModelRefused)
    assert f"holds {word} in" in text
    assert (names or ("transformer.",))[0] in text
    assert "unquantised" in text


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_every_floating_point_kind_are_read(copy, kind):
    folder = copy()
    path = folder / "model.safetensors"
    weights = {k: v.to(kind) for k, v in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})
    found = load_model(str(folder)).anatomy.embedding
    assert torch.equal(found, weights["transformer.wte.weight"].float()[: len(found)])


def test_masks_and_positions_beside_the_weights_are_no_quantisation(copy):
    folder = copy()
    path = folder / "model.safetensors"
    extra = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 40, 40, dtype=torch.uint8),
        "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
        "transformer.position_ids": torch.arange(40),
    }
    save_file({**load_file(path), **extra}, path, {"format": "pt"})
    load_model(str(folder))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/etc/passwd", "/etc/passwd is a file, and a model is a folder"),
        ("/etc/passwd/x", "There is no folder /etc/passwd/x"),
        ("/dev/null", "/dev/null is a file"),
        ("demo/../x", "'demo/../x' is not a model's name"),
        ("demo/nope", "There is no demo model 'demo/nope'"),
        ("demo/", "'demo/' is not a model's name"),
        ("demo/a\nb", r"'demo/a\nb' is not a model's name"),
        ("/tmp/a\nb", r"'/tmp/a\nb' is not a model's name"),
        ("a\x00b", r"'a\x00b' is not a model's name"),
        ("./\x00", r"'./\x00' is not a model's name"),
        ("x" * 3000, "(3,000 characters) is not a model's name"),
        ("/tmp/" + "x" * 900, "file name too long"),
        ("/" + "x/" * 500, "There is no folder"),
        ("demo/" + "x" * 900, "There is no demo model 'demo/xxx"),
        ("org/" + "x" * 200, "is not a model's name"),
        ("org/a--b", "'org/a--b' is not a model's name"),
        ("org/a.git", "'org/a.git' is not a model's name"),
        ("org/a/b", "'org/a/b' is not a model's name"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_names_that_name_no_model(name, words):
    for ask in (load_model, inspect_model, fingerprint, lease):
        assert words in sentence(ask, name, ModelNotFound)


def test_a_folder_that_is_a_dangling_link_and_a_file_of_vectors(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "a link to a folder that is not there" in sentence(load_model, str(tmp_path / "link"), ModelNotFound)
    (tmp_path / "x.npy").write_bytes(b"")
    assert "keep it first" in sentence(load_model, str(tmp_path / "x.npy"), ModelNotFound)


def test_shapes_that_do_not_fit_are_told_both(copy):
    folder = copy("bert-mlm")
    edit(folder, type_vocab_size=3)
    text = sentence(load_model, str(folder), ModelDamaged)
    assert "token_type_embeddings.weight: 2 × 24 in the file and 3 × 24 by config.json" in text


def test_a_config_too_large_for_its_files_is_told_before_memory_is_taken(copy):
    folder = copy("bert-mlm")
    edit(folder, intermediate_size=1_000_000)
    assert "they do not belong together" in sentence(load_model, str(folder), ModelDamaged)


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (None, "null"), (1234, "1,234"), ("a\nb", r"'a\nb'"), (10**40, "a number of more than 30 digits")],
)
def test_values_are_shown_short_and_as_json_writes_them(value, text):
    assert shown(value) == text


def test_a_shown_value_is_never_long():
    for value in ("x" * 10**6, list(range(10**4)), {"a": "b" * 1000}, "'\n" * 100):
        assert len(shown(value)) < 140
        assert shown(value).isprintable()
