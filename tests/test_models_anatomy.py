"""The anatomy of every family against the module's own computation, by oracles that share no code with it."""

import dataclasses
from contextlib import contextmanager

import pytest
import torch
from tiny import TINY

from embcompare.errors import Incomparable, ModelDamaged, SettingsError, UnsupportedFamily
from embcompare.models import FAMILIES, GROUPS, hooked, read_anatomy, validate

EXACT = 1e-10
CAUSAL = [name for name in TINY if name.startswith(("gpt", "opt", "llama", "mistral", "qwen2", "gemma"))]
CAUSAL = [name for name in CAUSAL if name not in ("gpt2-plain", "gpt2-classifier")]
NAMES = [*TINY]


@contextmanager
def in_float64():
    """Keep transformers from computing softmax and norms in float32, as it does whatever a model's dtype is."""
    plain_float, plain_to, plain_softmax = torch.Tensor.float, torch.Tensor.to, torch.nn.functional.softmax

    def to(self, *args, **kwargs):
        if self.dtype == torch.float64 and args == (torch.float32,) and not kwargs:
            return self
        return plain_to(self, *args, **kwargs)

    def softmax(x, *args, dtype=None, **kwargs):
        return plain_softmax(x, *args, **kwargs)

    torch.Tensor.float = lambda self: self if self.dtype == torch.float64 else plain_float(self)
    torch.Tensor.to = to
    torch.nn.functional.softmax = softmax
    try:
        yield
    finally:
        torch.Tensor.float, torch.Tensor.to, torch.nn.functional.softmax = plain_float, plain_to, plain_softmax


def run(model, length=7, batch=1, **options):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 1000, (batch, length), generator=generator)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **options}
    if model.module.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids
    with torch.no_grad(), in_float64():
        return ids, model.module(**given)


def hooks_on(module):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def close(a, b):
    return float((a - b).abs().max()) <= EXACT * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_every_block_is_reproduced_in_float64(tiny_model, name):
    model = tiny_model(name)
    with in_float64():
        assert validate(model.module, model.anatomy) < EXACT


# Written down by hand from each family's own code, not read from the table under test.
ATTENTION = {
    "bert-mlm": ("bert.encoder.layer.1.attention.self", "bert.encoder.layer.1.attention.output.dense"),
    "roberta": ("roberta.encoder.layer.1.attention.self", "roberta.encoder.layer.1.attention.output.dense"),
    "distilbert": ("distilbert.transformer.layer.1.attention",) * 2,
    "electra-generator": ("electra.encoder.layer.1.attention.self", "electra.encoder.layer.1.attention.output.dense"),
    "gpt2": ("transformer.h.1.attn",) * 2,
    "gpt2-scaled-by-layer": ("transformer.h.1.attn",) * 2,
    "gpt-neox": ("gpt_neox.layers.1.attention",) * 2,
    "opt": ("model.decoder.layers.1.self_attn",) * 2,
    "llama": ("model.layers.1.self_attn",) * 2,
    "llama-tied-biased": ("model.layers.1.self_attn",) * 2,
    "mistral": ("model.layers.1.self_attn",) * 2,
    "qwen2": ("model.layers.1.self_attn",) * 2,
    "gemma": ("model.layers.1.self_attn",) * 2,
    "gemma2": ("model.layers.1.self_attn",) * 2,
    "marian": ("model.decoder.layers.1.self_attn",) * 2,
    "t5": ("decoder.block.1.layer.0.SelfAttention",) * 2,
}
FEED_FORWARD = {
    "bert-mlm": ("bert.encoder.layer.1.intermediate", "bert.encoder.layer.1.output.dense"),
    "distilbert": ("distilbert.transformer.layer.1.ffn",) * 2,
    "gpt2": ("transformer.h.1.mlp",) * 2,
    "gpt-neox": ("gpt_neox.layers.1.mlp",) * 2,
    "opt": ("model.decoder.layers.1.fc1", "model.decoder.layers.1.fc2"),
    "llama": ("model.layers.1.mlp",) * 2,
    "llama-tied-biased": ("model.layers.1.mlp",) * 2,
    "gemma": ("model.layers.1.mlp",) * 2,
    "marian": ("model.decoder.layers.1.fc1", "model.decoder.layers.1.fc2"),
    "t5": ("decoder.block.1.layer.2.DenseReluDense",) * 2,
    "t5-gated": ("decoder.block.1.layer.2.DenseReluDense",) * 2,
}


def observed(model, paths):
    seen = {}
    with hooked(model.module) as hook:
        hook.before(paths[0], lambda x: seen.__setitem__("in", x))
        hook.after(paths[1], lambda x: seen.__setitem__("out", x))
        _, out = run(model, batch=2, output_attentions=True)
    return seen["in"], seen["out"], out


@pytest.mark.parametrize("name", ATTENTION)
def test_heads_weighted_by_the_modules_own_probabilities_sum_to_its_attention_output(tiny_model, name):
    model = tiny_model(name)
    states, attended, out = observed(model, ATTENTION[name])
    weights = model.anatomy.blocks[1].attention
    probabilities = (out.decoder_attentions if model.module.config.is_encoder_decoder else out.attentions)[1]
    assert probabilities.shape[1] == weights.heads
    assert states.shape[0] == 2, "batches pass through hooks whole"
    total = sum(weights.head_output(h, probabilities[:, h], states) for h in range(weights.heads))
    total = total if weights.b_o is None else total + weights.b_o
    assert close(total, attended)


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_feed_forward_values_weighted_by_key_activations_sum_to_its_output(tiny_model, name):
    model = tiny_model(name)
    states, fed, _ = observed(model, FEED_FORWARD[name])
    weights = model.anatomy.blocks[1].feed_forward
    assert close(weights.output(states).reshape(fed.shape), fed)
    coefficients = weights.coefficients(states)
    total = coefficients @ weights.values + (0 if weights.value_bias is None else weights.value_bias)
    assert close(total.reshape(fed.shape), fed)


@pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "gpt2-scaled-by-layer", "opt", "distilbert", "marian"])
def test_queries_and_keys_give_the_modules_own_probabilities(tiny_model, name):
    model = tiny_model(name)
    states, _, out = observed(model, ATTENTION[name])
    weights = model.anatomy.blocks[1].attention
    found = (out.decoder_attentions if model.module.config.is_encoder_decoder else out.attentions)[1]
    for head in range(weights.heads):
        query, key = states @ weights.w_q[head] + weights.b_q[head], states @ weights.head_k(head) + weights.b_k[head]
        scores = weights.scale * query @ key.transpose(-1, -2)
        if weights.causal:
            scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), float("-inf"))
        assert close(scores.softmax(-1), found[:, head])


@pytest.mark.parametrize("name", [*CAUSAL, "marian", "t5", "t5-gated", "mt5"])
def test_the_unembedding_gives_the_models_own_logits(tiny_model, name):
    model = tiny_model(name)
    _, out = run(model, output_hidden_states=True)
    anatomy = model.anatomy
    narrow = name == "opt-narrow-embedding"
    if narrow:
        seen = {}
        with hooked(model.module) as hook:
            hook.after("model.decoder.layers.1", lambda x: seen.__setitem__("last", x))
            run(model)
        last = seen["last"]
    else:
        last = (out.decoder_hidden_states if model.module.config.is_encoder_decoder else out.hidden_states)[-1]
    logits = anatomy.unembedding_scale * last @ anatomy.unembedding.T
    if anatomy.unembedding_bias is not None:
        logits = logits + anatomy.unembedding_bias
    if anatomy.unembedding_softcap is not None:
        logits = anatomy.unembedding_softcap * torch.tanh(logits / anatomy.unembedding_softcap)
    assert close(logits, out.logits[..., : len(anatomy.unembedding)])


def test_a_masked_language_model_reads_its_transformed_state_with_the_unembedding(tiny_model):
    model = tiny_model("bert-mlm")
    _, out = run(model, output_hidden_states=True)
    with torch.no_grad():
        transformed = model.module.cls.predictions.transform(out.hidden_states[-1])
    assert close(transformed @ model.anatomy.unembedding.T + model.anatomy.unembedding_bias, out.logits)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("electra-generator", "electra-discriminator")])
def test_the_first_hidden_state_is_the_scaled_embedding_with_its_positions_normed(tiny_model, name):
    model = tiny_model(name)
    ids, out = run(model, output_hidden_states=True)
    anatomy, module = model.anatomy, model.module
    first = (out.decoder_hidden_states if module.config.is_encoder_decoder else out.hidden_states)[0]
    expected = anatomy.embedding_scale * anatomy.embedding[ids]
    base = module.base_model
    where = torch.arange(ids.shape[1])
    if hasattr(base, "embeddings"):
        start = 2 if module.config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
        expected = expected + base.embeddings.position_embeddings.weight[where + start]
        if hasattr(base.embeddings, "token_type_embeddings"):
            expected = expected + base.embeddings.token_type_embeddings.weight[0]
    elif hasattr(base, "wpe"):
        expected = expected + base.wpe.weight[where]
    elif hasattr(base, "decoder") and hasattr(base.decoder, "embed_positions"):
        table = base.decoder.embed_positions
        expected = expected + table.weight[where + getattr(table, "offset", 0)]
    if anatomy.embedding_norm is not None:
        expected = anatomy.embedding_norm.apply(expected)
    assert close(expected, first)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-neox", "opt", "gemma2", "t5", "bert-mlm", "marian"])
def test_the_last_hidden_state_is_after_the_final_norm_where_there_is_one(tiny_model, name):
    """HF transformers #13102: the last entry is normed for some families and not for others."""
    model = tiny_model(name)
    seen = {}
    with hooked(model.module) as hook:
        hook.after(model.anatomy.blocks[-1].sites["block"], lambda x: seen.__setitem__("out", x))
        _, out = run(model, output_hidden_states=True)
    last = (out.decoder_hidden_states if model.module.config.is_encoder_decoder else out.hidden_states)[-1]
    norm = model.anatomy.final_norm
    assert (norm is None) == (name in ("bert-mlm", "marian"))
    assert close(seen["out"] if norm is None else norm.apply(seen["out"]), last)
    assert norm is None or not close(seen["out"], last)


def test_grouped_heads_share_keys_and_values_as_the_model_repeats_them(tiny_model):
    """LLM-TT PR #21: grouped-query models broke on the head count."""
    weights = tiny_model("llama").anatomy.blocks[0].attention
    assert (weights.heads, weights.kv_heads) == (4, 2)
    assert [weights.group(h) for h in range(4)] == [0, 0, 1, 1]
    assert torch.equal(weights.head_k(1), weights.head_k(0))
    assert torch.equal(weights.head_v(3), weights.w_v[1])
    assert not torch.equal(weights.head_v(1), weights.head_v(2))


def test_shapes_follow_the_head_width_where_it_is_not_width_by_heads(tiny_model):
    anatomy = tiny_model("mistral").anatomy
    assert anatomy.width == 24
    weights = anatomy.blocks[0].attention
    assert (weights.w_q.shape, weights.w_k.shape) == ((4, 24, 10), (2, 24, 10))
    assert (weights.w_v.shape, weights.w_o.shape) == ((2, 24, 10), (4, 10, 24))
    assert anatomy.vectors("w_q", 0).shape == (40, 24)
    assert anatomy.vectors("w_k", 0).shape == (20, 24)
    assert anatomy.vectors("w_o", 0).shape == (40, 24)
    assert anatomy.groups() == GROUPS


def test_vectors_are_the_documented_rows(tiny_model):
    model = tiny_model("gpt2")
    block, layer = model.module.transformer.h[1], model.anatomy.blocks[1]
    vectors = model.anatomy.vectors
    c_attn = block.attn.c_attn.weight
    assert torch.equal(vectors("ff_keys", 1), block.mlp.c_fc.weight.T)
    assert torch.equal(vectors("ff_values", 1), block.mlp.c_proj.weight)
    assert torch.equal(vectors("w_q", 1), c_attn[:, :24].T)
    assert torch.equal(vectors("w_k", 1), c_attn[:, 24:48].T)
    assert torch.equal(vectors("w_v", 1), c_attn[:, 48:].T)
    assert torch.equal(vectors("w_o", 1), block.attn.c_proj.weight)
    assert torch.equal(vectors("w_q", 1)[8:16].T, layer.attention.w_q[1])
    assert model.anatomy.groups() == tuple(g for g in GROUPS if g != "ff_up")
    bert = tiny_model("bert-mlm")
    part = bert.module.bert.encoder.layer[0]
    assert torch.equal(bert.anatomy.vectors("ff_keys", 0), part.intermediate.dense.weight)
    assert torch.equal(bert.anatomy.vectors("ff_values", 0), part.output.dense.weight.T)
    assert torch.equal(bert.anatomy.vectors("w_v", 0), part.attention.self.value.weight)
    assert torch.equal(bert.anatomy.vectors("w_o", 0), part.attention.output.dense.weight.T)


def test_the_gate_is_the_key_and_up_is_a_group_of_its_own(tiny_model):
    model = tiny_model("llama")
    mlp = model.module.model.layers[0].mlp
    assert torch.equal(model.anatomy.vectors("ff_keys", 0), mlp.gate_proj.weight)
    assert torch.equal(model.anatomy.vectors("ff_up", 0), mlp.up_proj.weight)
    with pytest.raises(Incomparable, match="not gated"):
        tiny_model("gpt2").anatomy.vectors("ff_up", 0)


def test_unknown_groups_layers_and_embeddings_are_named(tiny_model):
    anatomy = tiny_model("gpt2").anatomy
    with pytest.raises(SettingsError, match="ff_kyes"):
        anatomy.vectors("ff_kyes", 0)
    with pytest.raises(SettingsError, match="layers are 0 to 1"):
        anatomy.vectors("ff_keys", 2)
    with pytest.raises(SettingsError, match="layers are 0 to 1"):
        anatomy.vectors("ff_keys", -1)
    with pytest.raises(SettingsError, match="middle"):
        anatomy.readout("middle")


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_views_and_no_copies(tiny_model, name):
    model = tiny_model(name)
    own = {p.untyped_storage().data_ptr() for p in model.module.parameters()}
    for block in model.anatomy.blocks:
        parts = [block.attention.w_q, block.attention.w_k, block.attention.w_v, block.attention.w_o]
        parts += [block.feed_forward.keys, block.feed_forward.values]
        parts += [] if block.cross_attention is None else [block.cross_attention.w_k, block.cross_attention.w_o]
        assert all(part.untyped_storage().data_ptr() in own for part in parts)
    for group in model.anatomy.groups():
        rows = model.anatomy.vectors(group, 0)
        assert rows.shape[1] == model.anatomy.width


@pytest.mark.parametrize("name", NAMES)
def test_tied_padded_and_headless_are_told_apart(tiny_model, name):
    model, anatomy = tiny_model(name), tiny_model(name).anatomy
    untied = name in ("bert-untied", "gpt-neox", "gpt-neox-sequential", "llama", "mistral", "qwen2")
    narrow = name in ("electra-generator", "opt-narrow-embedding")
    headless = name in ("bert-plain", "bert-classifier", "distilbert-classifier", "electra-discriminator", "gpt2-plain",
                        "gpt2-classifier", "t5-encoder")  # fmt: skip
    assert anatomy.padded_rows == TINY[name][2]
    assert anatomy.embedding.shape == (len(model.tokens), anatomy.width)
    assert (anatomy.unembedding is None) == headless
    assert anatomy.tied == (not untied and not narrow and not headless)
    e, note = anatomy.readout()
    assert e.shape == anatomy.embedding.shape
    assert bool(note) == headless
    assert anatomy.readout("input") == (anatomy.embedding, "")


def test_gains_are_as_multiplied_where_one_is_added_to_them(tiny_model):
    norm = tiny_model("gemma").anatomy.blocks[0].norms["attention"]
    stored = tiny_model("gemma").module.model.layers[0].input_layernorm.weight
    assert torch.equal(norm.gain, 1 + stored)
    assert norm.kind == "rms"
    assert tiny_model("gemma").anatomy.embedding_scale == pytest.approx(24**0.5)


def test_placements_and_positions(tiny_model):
    found = {name: tiny_model(name).anatomy.blocks[0].placement for name in NAMES}
    assert found["bert-mlm"] == found["marian"] == found["opt-post-norm"] == "post"
    assert found["gpt2"] == found["opt"] == found["llama"] == found["t5"] == found["gpt-neox-sequential"] == "pre"
    assert found["gpt-neox"] == "parallel"
    assert found["gemma2"] == "sandwich"
    kinds = {name: tiny_model(name).anatomy.blocks[0].attention.position for name in NAMES}
    assert (kinds["bert-mlm"], kinds["llama"], kinds["t5"]) == ("absolute", "rotary", "relative")
    assert tiny_model("t5").anatomy.blocks[0].cross_attention.position == "none"


MISREADINGS = {
    "heads interleaved as thirds": ("gpt-neox", {"fused": "thirds"}),
    "thirds as interleaved": ("gpt2", {"fused": "interleaved"}),
    "keys and queries exchanged": ("gemma2", {"qkv": ("self_attn.k_proj",) * 3}),
    "query and key swapped": (
        "bert-mlm",
        {"qkv": ("attention.self.key", "attention.self.query", "attention.self.value")},
    ),
    "scale forgotten": ("opt", {"attention_scale": lambda config, layer: 1.0}),
    "softcap forgotten": ("gemma2", {"softcap": lambda config: None}),
    "gain without its one": ("gemma", {"norm_kind": "rms"}),
    "rms as layer norm": ("llama", {"norm_kind": "layer"}),
    "pre as post": ("gpt2", {"placement": lambda config: "post"}),
    "parallel as sequential": ("gpt-neox", {"placement": lambda config: "pre"}),
    "sandwich as pre": ("gemma2", {"placement": lambda config: "pre"}),
    "another activation": ("gpt2", {"activation": lambda config: "relu"}),
    "bidirectional as causal": ("bert-mlm", {"causal": lambda config: True}),
    "causal as bidirectional": ("llama", {"causal": lambda config: False}),
    "gate and up exchanged": ("llama", {"feed_forward": lambda c: ("mlp.up_proj", "mlp.gate_proj", "mlp.down_proj")}),
    "norms exchanged": ("t5", {"norms": {"attention": "layer.1.layer_norm", "cross_attention": "layer.0.layer_norm",
                                         "feed_forward": "layer.2.layer_norm"}}),
    "cross-attention values from keys": ("marian", {"cross_qkv": ("encoder_attn.q_proj", "encoder_attn.k_proj",
                                                                  "encoder_attn.k_proj")}),
}  # fmt: skip


@pytest.mark.parametrize("case", MISREADINGS)
def test_a_wrong_entry_in_the_table_is_noticed(tiny_model, monkeypatch, case):
    name, changes = MISREADINGS[case]
    module = tiny_model(name).module
    family = module.config.model_type
    before = hooks_on(module)
    monkeypatch.setitem(FAMILIES, family, dataclasses.replace(FAMILIES[family], **changes))
    with pytest.raises(UnsupportedFamily, match="cannot be read safely"):
        validate(module, read_anatomy(module))
    assert hooks_on(module) == before


def test_a_new_family_is_one_entry(tiny_model, monkeypatch):
    module = tiny_model("llama").module
    monkeypatch.setattr(module.config, "model_type", "lama-of-tomorrow")
    with pytest.raises(UnsupportedFamily, match=r"lama-of-tomorrow.*top-level modules are model, lm_head.*gpt2"):
        read_anatomy(module)
    monkeypatch.setitem(FAMILIES, "lama-of-tomorrow", FAMILIES["llama"])
    assert validate(module, read_anatomy(module)) < 1e-5


def test_a_family_that_is_built_otherwise_is_refused_with_its_modules(tiny_model, monkeypatch):
    module = tiny_model("gpt2").module
    monkeypatch.setattr(module.config, "model_type", "llama")
    with pytest.raises(UnsupportedFamily, match="top-level modules are transformer, lm_head"):
        read_anatomy(module)


def test_no_hooks_and_no_graph_are_left_also_after_a_failure(tiny_model):
    """torch-cka left two hooks and the autograd graph behind."""
    model = tiny_model("gpt2")
    before = hooks_on(model.module)
    validate(model.module, model.anatomy)
    assert hooks_on(model.module) == before
    assert all(p.grad is None and not p.requires_grad for p in model.module.parameters())

    def stop(x):
        assert hooks_on(model.module) == before + 1
        raise RuntimeError("stop")

    def fail():
        with hooked(model.module) as hook:
            hook.after("transformer.h.0", stop)
            run(model)

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert hooks_on(model.module) == before


def test_a_module_that_cannot_run_is_damaged_and_keeps_no_hooks(tiny_folders):
    from embcompare.models import load_model

    model = load_model(str(tiny_folders("gpt2")))
    model.module.transformer.wpe.weight = torch.nn.Parameter(torch.zeros(1, 24), requires_grad=False)
    with pytest.raises(ModelDamaged, match="does not run"):
        validate(model.module, model.anatomy)
    assert hooks_on(model.module) == 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"position_embedding_type": "relative_key"}, "relative_key"), ({"add_cross_attention": True}, "cross-attention")],
)
def test_variants_that_would_be_misread_are_refused(tiny_model, monkeypatch, changes, word):
    module = tiny_model("bert-mlm").module
    for key, value in changes.items():
        monkeypatch.setattr(module.config, key, value, raising=False)
    with pytest.raises(UnsupportedFamily, match=word):
        read_anatomy(module)


def test_sites_name_submodules_that_exist(tiny_model):
    for name in NAMES:
        model = tiny_model(name)
        for block in model.anatomy.blocks:
            for site in block.sites.values():
                model.module.get_submodule(site)
        for site in model.anatomy.sites.values():
            model.module.get_submodule(site)
