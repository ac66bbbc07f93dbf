"""Every way in which a model on disk can be wrong, and the one sentence each of them gets."""

import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from embcompare.errors import (
    EmbcompareError,
    ModelDamaged,
    ModelNotFound,
    ModelRefused,
    SettingsError,
    UnsupportedFamily,
)
from embcompare.models import ModelPool, ModelSpec, fingerprint, inspect_model, load_model
from embcompare.models.loading import quiet


@pytest.fixture
def copy(tiny_folders, tmp_path):
    """Give a fresh copy of a tiny model's folder, free to be broken."""

    def make(name="gpt2"):
        return shutil.copytree(tiny_folders(name), tmp_path / name)

    return make


def edit(folder, name="config.json", drop=(), **changes):
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(changes)
    path.write_text(json.dumps({k: v for k, v in content.items() if k not in drop}))


def reweigh(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})


def refusal(folder, kind, **options):
    with pytest.raises(EmbcompareError) as caught:
        load_model(str(folder), **options)
    assert type(caught.value) is kind, caught.value
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    assert folder.name in text
    return text


def test_a_loaded_model_is_whole_frozen_and_quiet(tiny_folders, capfd):
    model = load_model(str(tiny_folders("gpt2")))
    assert not model.module.training
    assert not any(p.requires_grad for p in model.module.parameters())
    assert next(model.module.parameters()).dtype == torch.float32
    assert len(model.tokens) == len(model.tokenizer) == 1300
    assert model.info.supported
    assert len(model.fingerprint) == 64
    assert model.bytes == sum(p.numel() * 4 for p in model.module.parameters())
    assert capfd.readouterr() == ("", "")


def test_precision_is_as_asked_or_as_stored(copy):
    folder = copy("gpt-neox")
    reweigh(folder, lambda w: w.update({k: v.to(torch.bfloat16) for k, v in w.items()}))
    edit(folder, dtype="bfloat16")
    found = {d: load_model(ModelSpec.parse(str(folder), dtype=d)) for d in ("stored", "float32", "float64")}
    kinds = {d: m.anatomy.embedding.dtype for d, m in found.items()}
    assert kinds == {"stored": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
    sizes = [found[d].info.bytes for d in ("stored", "float32", "float64")]
    assert sizes == [sizes[0], 2 * sizes[0], 4 * sizes[0]]
    assert torch.equal(found["stored"].anatomy.embedding.float(), found["float32"].anatomy.embedding)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "gemma2", "opt-plain-norms", "t5"])
def test_half_precision_is_read_and_proved_as_it_is_stored(copy, name, kind):
    folder = copy(name)
    reweigh(folder, lambda w: w.update({k: v.to(kind) for k, v in w.items()}))
    edit(folder, dtype=str(kind).removeprefix("torch."))
    model = load_model(ModelSpec.parse(str(folder), dtype="stored"))
    assert model.anatomy.embedding.dtype == model.anatomy.blocks[0].norms["attention"].gain.dtype == kind


@pytest.mark.parametrize("names", [["MistralForCausalLM"], ["NoSuchClass"], ["pipeline"], ["TFGPT2Model"], []])
def test_a_class_of_another_family_is_not_used(copy, names):
    folder = copy()
    edit(folder, architectures=names)
    model = load_model(str(folder))
    assert type(model.module).__name__ == "GPT2Model"
    assert any("without a head" in note for note in model.notes)


def test_an_absent_folder_is_named(tmp_path):
    assert "There is no folder" in refusal(tmp_path / "nowhere", ModelNotFound)


def test_a_folder_without_config_is_no_model(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refusal(tmp_path / "empty", ModelNotFound)


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "is a file, and a model is a folder" in refusal(tmp_path / "file", ModelNotFound)


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "", "\x00\xff", "[" * 100_000])
def test_a_config_that_is_no_json_object(copy, text):
    folder = copy()
    (folder / "config.json").write_text(text, encoding="latin-1")
    assert "config.json" in refusal(folder, ModelDamaged)


def test_a_config_without_a_family(copy):
    folder = copy()
    edit(folder, drop=("model_type",))
    assert "model_type" in refusal(folder, ModelDamaged)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_embd", -3),
        ("n_layer", 0),
        ("n_head", "many"),
        ("n_layer", 10**12),
        ("vocab_size", 1.5),
        ("n_embd", None),
        ("n_head", 5),
    ],
)
def test_impossible_sizes_are_damage(copy, key, value):
    folder = copy()
    edit(folder, **{key: value})
    refusal(folder, ModelDamaged)


def test_layers_without_bound_never_reach_transformers(copy):
    folder = copy("gemma2")
    edit(folder, num_hidden_layers=10**11, drop=("layer_types",))
    assert "100,000,000,000" in refusal(folder, ModelDamaged)


def test_pickled_weights_are_refused_with_the_way_out(copy):
    folder = copy()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/embcompare-was-here'\ntR.")
    text = refusal(folder, ModelRefused)
    assert "pytorch_model.bin" in text
    assert "safe_serialization=True" in text


def test_a_folder_without_any_weights(copy):
    folder = copy()
    (folder / "model.safetensors").unlink()
    assert "no weights" in refusal(folder, ModelDamaged)


def test_weights_under_another_name_say_which_name_is_wanted(copy):
    folder = copy()
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert "rename it" in refusal(folder, ModelDamaged)


@pytest.mark.parametrize("keep", [0, 5, 200, -100])
def test_weights_cut_short(copy, keep):
    path = copy() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "cut short or not safetensors" in refusal(path.parent, ModelDamaged)


def test_weights_that_are_a_pickle_in_disguise(copy):
    path = copy() / "model.safetensors"
    path.write_bytes(b"\x80\x04\x95" + b"cos\nsystem\n" * 50)
    assert "not safetensors" in refusal(path.parent, ModelDamaged)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_no_numbers_name_their_tensor(copy, bad):
    folder = copy()
    reweigh(folder, lambda w: w["transformer.h.1.mlp.c_fc.weight"].__setitem__((3, 4), bad))
    assert "transformer.h.1.mlp.c_fc.weight" in refusal(folder, ModelDamaged)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gpt2", "transformer.h.1.mlp.c_fc.weight"),
        ("gpt2", "transformer.wte.weight"),
        ("bert-mlm", "cls.predictions.transform.dense.weight"),
        ("bert-classifier", "classifier.weight"),
        ("llama", "model.layers.0.self_attn.q_proj.weight"),
        ("marian", "model.decoder.layers.1.encoder_attn.v_proj.weight"),
    ],
)
def test_missing_weights_are_never_filled_with_random_numbers(copy, name, key):
    folder = copy(name)
    reweigh(folder, lambda w: w.pop(key))
    text = refusal(folder, ModelDamaged)
    assert "random numbers" in text


def test_a_pooler_may_be_missing_and_is_mentioned(copy):
    folder = copy("bert-plain")
    reweigh(folder, lambda w: [w.pop(k) for k in list(w) if "pooler" in k])
    assert any("pooler" in note for note in load_model(str(folder)).notes)


def test_more_layers_in_the_files_than_in_the_config(copy):
    folder = copy()
    edit(folder, n_layer=1)
    assert "layer 1" in refusal(folder, ModelDamaged)


def test_shapes_that_do_not_fit_the_config(copy):
    folder = copy()
    edit(folder, n_inner=50)
    refusal(folder, ModelDamaged)


def test_a_model_without_an_embedding(copy):
    folder = copy("bert-plain")
    reweigh(folder, lambda w: w.pop("embeddings.word_embeddings.weight"))
    assert "word_embeddings" in refusal(folder, ModelDamaged)


def test_an_unknown_family_lists_its_parts_and_the_known_ones(tmp_path):
    from transformers import MambaConfig, MambaForCausalLM

    folder = tmp_path / "mamba"
    MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, state_size=4)).save_pretrained(
        folder
    )
    text = refusal(folder, UnsupportedFamily)
    assert "'mamba'" in text
    assert "backbone.layers" in text
    assert "gpt_neox" in text


def test_a_family_that_transformers_does_not_know(copy):
    folder = copy()
    edit(folder, model_type="gpt-of-2031")
    assert "gpt-of-2031" in refusal(folder, UnsupportedFamily)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_that_comes_with_a_model_is_never_run(copy, file):
    folder = copy()
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    edit(folder, file, auto_map={"AutoConfig": "evil.Config", "AutoTokenizer": ["evil.T", None]})
    assert "code" in refusal(folder, ModelRefused)
    assert not (folder / "ran").exists()


def test_adapters_and_quantised_weights_are_refused(copy):
    folder = copy()
    edit(folder, quantization_config={"quant_method": "gptq"})
    assert "quantised" in refusal(folder, ModelRefused)
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter" in refusal(folder, ModelRefused)


def test_a_seventy_billion_config_is_refused_at_once_with_numbers(tmp_path):
    folder = tmp_path / "llama-70b"
    folder.mkdir()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 28672,
        "vocab_size": 128256,
    }
    (folder / "config.json").write_text(json.dumps(config))
    text = refusal(folder, ModelRefused)
    assert "70," in text
    assert "282 GB" in text
    assert inspect_model(str(folder)).parameters == pytest.approx(70.55e9, rel=0.01)


@pytest.mark.parametrize("positions", [1, 2, 3])
@pytest.mark.parametrize(("name", "table", "setting", "spare"), [
    ("gpt2", "transformer.wpe.weight", "n_positions", 0),
    ("bert-mlm", "bert.embeddings.position_embeddings.weight", "max_position_embeddings", 0),
    ("roberta", "roberta.embeddings.position_embeddings.weight", "max_position_embeddings", 2),
    ("opt", "model.decoder.embed_positions.weight", "max_position_embeddings", None),
])  # fmt: skip
def test_a_model_of_fewer_positions_than_are_probed_is_proved_on_those(copy, name, table, setting, spare, positions):
    folder = copy(name)
    rows = positions + (2 if spare is None else spare)
    reweigh(folder, lambda w: w.update({table: w[table][:rows].clone()}))
    edit(folder, **{setting: positions + (spare or 0)})
    model = load_model(str(folder))
    assert model.anatomy.n_layers > 0


def test_the_limit_comes_from_the_argument_or_the_environment(tiny_folders, monkeypatch):
    folder = tiny_folders("gpt2")
    assert "kB" in refusal(folder, ModelRefused, max_bytes=1000)
    monkeypatch.setenv("EMBCOMPARE_MAX_MODEL_BYTES", "2000")
    assert "2.0 kB" in refusal(folder, ModelRefused)
    load_model(str(folder), max_bytes=10**9)
    monkeypatch.setenv("EMBCOMPARE_MAX_MODEL_BYTES", "plenty")
    with pytest.raises(SettingsError, match="plenty"):
        load_model(str(folder))


def test_a_config_that_lies_about_the_size_is_caught_by_the_headers(copy):
    folder = copy()
    reweigh(folder, lambda w: w.update({"extra": torch.zeros(1_000_000)}))
    assert "more than its config" in refusal(folder, ModelRefused, max_bytes=2_000_000)


def test_shards_are_read_and_a_missing_one_is_named(copy):
    folder = copy("gpt2")
    whole = load_model(str(folder))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({n: weights[n] for n in held}, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {n: file for file, held in parts.items() for n in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = load_model(str(folder))
    assert torch.equal(sharded.anatomy.embedding, whole.anatomy.embedding)
    assert sharded.fingerprint != whole.fingerprint
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refusal(folder, ModelDamaged)


@pytest.mark.parametrize(
    "target", ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "pytorch_model.bin", "..\\x.safetensors"]
)
def test_an_index_cannot_point_outside_its_folder(copy, target):
    folder = copy()
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": target}}))
    assert "not a file beside it" in refusal(folder, ModelRefused)


def test_without_a_tokenizer_weights_are_read_and_tokens_are_refused(copy):
    folder = copy()
    for path in folder.glob("*token*"):
        path.unlink()
    model = load_model(str(folder))
    assert model.anatomy.embedding.shape[0] == 1300
    for ask in (lambda: model.tokens, lambda: model.tokenizer):
        with pytest.raises(ModelDamaged, match="no tokenizer files"):
            ask()


def test_a_broken_tokenizer_is_named(copy):
    folder = copy()
    (folder / "tokenizer.json").write_text('{"model": 3}')
    assert "a tokenizer.json with a 'model' that is 3" in refusal(folder, ModelDamaged)


def test_a_tokenizer_larger_than_e_is_noted(copy):
    folder = copy()
    reweigh(folder, lambda w: w.update({"transformer.wte.weight": w["transformer.wte.weight"][:1200].clone()}))
    edit(folder, vocab_size=1200)
    model = load_model(str(folder))
    assert len(model.tokens) == len(model.anatomy.embedding) == 1200
    assert any("100 tokens" in note for note in model.notes)


def test_t5_with_a_head_of_its_own_is_not_tied(copy):
    """T5 v1.1 has an untied head, though transformers' config always says that it is tied."""
    folder = copy("t5-gated")
    head = torch.randn(1328, 24)
    reweigh(folder, lambda w: w.update({"lm_head.weight": head}))
    edit(folder, tie_word_embeddings=False)
    model = load_model(str(folder))
    assert not model.anatomy.tied
    assert not model.info.tied
    assert torch.equal(model.anatomy.unembedding, head[:1300])
    assert model.anatomy.unembedding_scale == 1.0


def test_old_names_of_norm_weights_are_read(copy):
    folder = copy("bert-mlm")
    before = load_model(str(folder))

    def rename(weights):
        for key in [k for k in weights if "LayerNorm" in k]:
            weights[key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = (
                weights.pop(key)
            )

    reweigh(folder, rename)
    after = load_model(str(folder))
    assert torch.equal(
        after.anatomy.blocks[1].norms["attention"].gain, before.anatomy.blocks[1].norms["attention"].gain
    )
    assert torch.equal(after.anatomy.embedding_norm.bias, before.anatomy.embedding_norm.bias)


def test_a_config_without_architectures_loads_the_plain_model(copy):
    folder = copy("bert-mlm")
    edit(folder, drop=("architectures",))
    model = load_model(str(folder))
    assert model.anatomy.unembedding is None
    assert any("without a head" in note for note in model.notes)


def test_a_device_that_is_not_there(tiny_folders):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SettingsError, match="cuda"):
        load_model(ModelSpec.parse(str(tiny_folders("gpt2")), device="cuda"))


def test_verbosity_is_as_before_also_after_an_exception():
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with pytest.raises(ValueError, match="x"), quiet():
        raise ValueError("x")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_fingerprints_are_of_content_not_of_place(copy, tiny_folders, tmp_path):
    folder = copy()
    print_ = fingerprint(str(folder))
    assert print_ == fingerprint(str(tiny_folders("gpt2"))) == load_model(str(folder)).fingerprint
    (folder / "README.md").write_text("hello")
    assert fingerprint(str(folder)) == print_
    assert fingerprint(str(tiny_folders("gpt2", seed=1))) != print_
    seen = {print_}
    reweigh(folder, lambda w: w["transformer.wte.weight"].__setitem__((0, 0), 7.0))
    for change in (
        lambda: None,
        lambda: edit(folder, attn_pdrop=0.5),
        lambda: edit(folder, "tokenizer_config.json", model_max_length=7),
    ):
        change()
        found = fingerprint(str(folder))
        assert found not in seen
        seen.add(found)


def test_other_weights_of_equal_size_and_time_are_other_weights(copy, tiny_folders):
    folder = copy("gpt2")
    weights, others = folder / "model.safetensors", tiny_folders("gpt2", seed=1) / "model.safetensors"
    pool = ModelPool()
    with pool.lease(str(folder)) as model:
        print_, first = fingerprint(str(folder)), model.anatomy.embedding.clone()
    before = weights.stat()
    for swap in (
        weights.write_bytes,
        lambda data: (folder / "new").write_bytes(data) and (folder / "new").replace(weights),
    ):
        former = fingerprint(str(folder))
        time.sleep(0.02)
        swap(others.read_bytes() if former == print_ else (tiny_folders("gpt2") / "model.safetensors").read_bytes())
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        assert fingerprint(str(folder)) != former
        with pool.lease(str(folder)) as model:
            assert torch.equal(model.anatomy.embedding, first) == (fingerprint(str(folder)) == print_)


def test_fingerprints_read_each_file_once(copy, monkeypatch):
    from embcompare.models import fingerprints

    folder = copy()
    first = fingerprint(str(folder))
    monkeypatch.setattr(fingerprints.hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert fingerprint(str(folder)) == first
