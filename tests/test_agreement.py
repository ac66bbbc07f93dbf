"""Agreement of parameters against plain float64 formulas and sets, on tiny models of many families."""

import dataclasses
import json

import numpy as np
import pytest
import readings
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from readings import read

from embcompare import export
from embcompare.errors import Cancelled, Incomparable, SettingsError
from embcompare.experiments.agreement import KINDS, PAIRS, TARGETS, ParameterAgreement
from embcompare.experiments.agreement_active import strongest
from embcompare.experiments.agreement_keep import keep_counts
from embcompare.experiments.agreement_pairs import GROUPS_OF, partners
from embcompare.experiments.commons import Common
from embcompare.experiments.readout import Readout
from embcompare.experiments.token_sets import covered, jaccard, largest_sets, resampled
from embcompare.text.corpora import Corpus

SENTENCES = (
    "aa ab ac ad ba",
    "ca cb",
    "da db dc dd de df dg dh",
    "ea eb ec",
    "fa fb fc fd fe ff",
    "ab ba ab ba ca",
)
SPIED = {
    "gpt2": ("transformer.h.{}.mlp.c_fc", False, "transformer.h.{}.attn.c_proj"),
    "bert-mlm": ("bert.encoder.layer.{}.intermediate.dense", False, "bert.encoder.layer.{}.attention.output.dense"),
    "gpt-neox": ("gpt_neox.layers.{}.mlp.dense_h_to_4h", False, "gpt_neox.layers.{}.attention.dense"),
    "opt": ("model.decoder.layers.{}.fc1", False, "model.decoder.layers.{}.self_attn.out_proj"),
    "distilbert": (
        "distilbert.transformer.layer.{}.ffn.lin1",
        False,
        "distilbert.transformer.layer.{}.attention.out_lin",
    ),
    "llama": ("model.layers.{}.mlp.down_proj", True, "model.layers.{}.self_attn.o_proj"),
    "gemma2": ("model.layers.{}.mlp.down_proj", True, "model.layers.{}.self_attn.o_proj"),
    "t5-encoder": ("encoder.block.{}.layer.1.DenseReluDense.wi", False, "encoder.block.{}.layer.0.SelfAttention.o"),
}
"""Family: where a neuron's activation is seen (True: as an input), and where the concatenated heads are an input."""


class Context(readings.Context):
    def __init__(self, stop_after=None, sentences=SENTENCES, **models):
        super().__init__(stop_after, **models)
        self.sentences = sentences

    def corpus(self, name):
        return Corpus("the text", self.sentences)


def asked(**changes):
    return ParameterAgreement(
        "a", "b", **{"k": 20, "pairs": 0, "keep_vectors": 12, "null_draws": 3, "common": 0, **changes}
    )


def top_by_size(scores, ids, k):
    return ids[np.argsort(-np.abs(scores), axis=1, kind="stable")[:, :k]]


def top_by_value(scores, ids, k):
    return ids[np.argsort(-scores, axis=1, kind="stable")[:, :k]]


def overlap_of(a, b):
    a, b = set(a.tolist()), set(b.tolist())
    return len(a & b) / len(a | b)


def again(result):
    arrays, scalars = result.pack()
    back = type(result).unpack(arrays, json.loads(json.dumps(scalars)))
    for item in dataclasses.fields(result):
        one, other = getattr(result, item.name), getattr(back, item.name)
        if isinstance(one, np.ndarray):
            assert one.dtype != object
            assert one.flags["C_CONTIGUOUS"]
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other, item.name
    assert export.to_npz(back)
    assert json.loads(export.to_json(back))["result"]["pairs"] == list(result.pairs)
    return back.to_frame()


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert-plain", "t5-gated", "gemma", "gpt-neox"])
@pytest.mark.parametrize(("centred", "common"), [(True, 0), (False, 0), (True, 2)])
def test_sim_is_the_mean_jaccard_index_of_partners(tiny_model, family, centred, common):
    model = tiny_model(family)
    settings = asked(centred=centred, common=common, null_draws=40, keep_vectors=0)
    result = settings.compute(Context(a=model, b=model))
    e, ids, keep = read(model, centred, common)
    anatomy = model.anatomy
    for at, name in enumerate(result.pairs):
        first, second = GROUPS_OF[name]
        for layer in range(anatomy.n_layers):
            sets = [
                top_by_size((anatomy.vectors(group, layer).double() @ keep @ e.T).numpy(), ids, 20)
                for group in (first, second)
            ]
            heads = anatomy.blocks[layer].attention
            if name.startswith("ff"):
                pairs = [(i, i) for i in range(len(sets[0]))]
            else:
                width = len(sets[0 if name == "qk" else 1]) // heads.heads
                pairs = [(h * width + j, heads.group(h) * width + j) for h in range(heads.heads) for j in range(width)]
                pairs = pairs if name == "qk" else [(shared, own) for own, shared in pairs]
            values = np.array([overlap_of(sets[0][i], sets[1][j]) for i, j in pairs])
            assert result.sim[0, at, layer] == pytest.approx(values.mean())
            assert result.sim_pairs[0, at, layer] == len(pairs)
            every = np.array([[overlap_of(sets[0][i], sets[1][j]) for _, j in pairs[:40]] for i, _ in pairs[:40]])
            assert result.sim_null[0, at, layer] == pytest.approx(every.mean(), abs=0.15 * every.mean() + 0.004)
            half = 1.96 * values.std() / len(values) ** 0.5
            assert result.sim_high[0, at, layer] - result.sim_low[0, at, layer] == pytest.approx(2 * half, rel=0.25)
    np.testing.assert_array_equal(result.sim[0], result.sim[1])
    again(result)


def seen_by_hand(model, family):
    """Run sentence by sentence without padding: (sentence, activations, concatenated heads, states) by layer."""
    inner, as_input, attention = SPIED[family]
    seen = {"ff": {}, "attention": {}, "states": {}}
    handles = []

    def before(kind, layer):
        return lambda _, args: seen[kind].__setitem__(layer, args[0].reshape(-1, args[0].shape[-1]))

    def after(kind, layer):
        def see(_, __, out):
            out = out[0] if isinstance(out, tuple) else out
            seen[kind][layer] = out.reshape(-1, out.shape[-1])

        return see

    for layer, block in enumerate(model.anatomy.blocks):
        part = model.module.get_submodule(inner.format(layer))
        add = part.register_forward_pre_hook if as_input else part.register_forward_hook
        handles.append(add(before("ff", layer) if as_input else after("ff", layer)))
        part = model.module.get_submodule(attention.format(layer))
        handles.append(part.register_forward_pre_hook(before("attention", layer)))
        handles.append(model.module.get_submodule(block.sites["block"]).register_forward_hook(after("states", layer)))
    rows = []
    try:
        for number, sentence in enumerate(SENTENCES):
            encoded = model.tokenizer(sentence, return_special_tokens_mask=True, return_tensors="pt")
            with torch.no_grad():
                model.module.base_model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"])
            keep = encoded["special_tokens_mask"][0] == 0
            rows.append((number, *({k: v[keep] for k, v in seen[kind].items()} for kind in seen)))
    finally:
        for handle in handles:
            handle.remove()
    return rows


@pytest.mark.parametrize("family", SPIED)
@pytest.mark.parametrize("common", [0, 1])
def test_overlap_is_that_of_the_active_parameters_and_the_state(tiny_model, family, common):
    model = tiny_model(family)
    result = asked(common=common, active=3, keep_vectors=0).compute(Context(a=model, b=model))
    e, ids, keep = read(model, common=common)
    anatomy, last = model.anatomy, model.anatomy.n_layers - 1
    rows = seen_by_hand(model, family)

    def state(layer, states):
        x = states[layer].double()
        x = x if anatomy.final_norm is None else anatomy.final_norm.apply(x)
        return top_by_value((x @ keep @ e.T).numpy(), ids, 20)

    assert result.tokens[0] == sum(len(row[3][0]) for row in rows)
    for at, group in enumerate(result.groups):
        for layer in range(anatomy.n_layers):
            tops = top_by_value((anatomy.vectors(group, layer).double() @ keep @ e.T).numpy(), ids, 20)
            found = {"own": [], "last": []}
            for _, inner, attention, states in rows:
                strongest = (inner if group.startswith("ff_") else attention)[layer]
                targets = {"own": state(layer, states), "last": state(last, states)}
                for row, values in enumerate(strongest):
                    places = np.argsort(-values.numpy(), kind="stable")[:3]
                    if group == "w_v":
                        width = anatomy.blocks[layer].attention.w_v.shape[2]
                        places = [anatomy.blocks[layer].attention.group(p // width) * width + p % width for p in places]
                    said = set(np.concatenate([tops[p] for p in places]).tolist())
                    for target in TARGETS:
                        found[target].append(len(said & set(targets[target][row].tolist())) / 20)
            for place, target in enumerate(TARGETS):
                assert result.overlap[0, at, place, layer] == pytest.approx(np.mean(found[target])), (group, layer)
                low, high = result.overlap_low[0, at, place, layer], result.overlap_high[0, at, place, layer]
                assert low <= np.mean(found[target]) <= high
    again(result)


def test_chance_of_an_overlap_is_that_of_other_tokens(tiny_model):
    model = tiny_model("gpt2")
    result = asked(null_draws=60, active=3, keep_vectors=0).compute(Context(a=model, b=model))
    e, ids, _ = read(model)
    tops = top_by_value((model.anatomy.vectors("ff_values", 0).double() @ e.T).numpy(), ids, 20)
    said, states = [], []
    for _, inner, _, hidden in seen_by_hand(model, "gpt2"):
        said += [set(np.concatenate([tops[p] for p in np.argsort(-v.numpy())[:3]]).tolist()) for v in inner[0]]
        x = model.anatomy.final_norm.apply(hidden[0].double())
        states += [set(row.tolist()) for row in top_by_value((x @ e.T).numpy(), ids, 20)]
    every = np.array([[len(one & other) / 20 for one in said] for other in states])
    at = result.groups.index("ff_values")
    assert result.overlap_null[0, at, 0, 0] == pytest.approx(every.mean(), abs=0.02)
    gap = result.overlap - result.overlap_null
    inside = (result.overlap_gap_low <= gap) & (gap <= result.overlap_gap_high)
    assert inside.mean() > 0.99


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert-plain"])
@pytest.mark.parametrize(("centred", "common"), [(False, 0), (True, 0), (True, 2)])
def test_keep_k_is_the_cosine_of_all_inner_products(tiny_model, family, centred, common):
    model = tiny_model(family)
    result = asked(centred=centred, common=common).compute(Context(a=model, b=model))
    e, _, keep = read(model, centred, common)
    counts = keep_counts(len(e))
    assert result.keep[0].tolist() == counts.tolist()
    x = torch.from_numpy(np.random.default_rng([0, 7]).standard_normal((12, model.anatomy.width))) @ keep
    plain, exact = (x @ e.T).numpy(), (x @ torch.linalg.pinv(e)).numpy()
    reference = (x @ x.T).numpy().ravel()

    def kept(scores, k):
        out = np.zeros_like(scores)
        places = np.argsort(-np.abs(scores), axis=1, kind="stable")[:, :k]
        np.put_along_axis(out, places, np.take_along_axis(scores, places, 1), 1)
        return out

    def cosine(one, other):
        return one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    for at, k in enumerate(counts):
        one = cosine(reference, (kept(plain, k) @ kept(plain, k).T).ravel())
        other = cosine(reference, (kept(plain, k) @ kept(exact, k).T).ravel())
        assert result.keep_transpose[0, 0, at] == pytest.approx(one, abs=1e-9)
        assert result.keep_inverse[0, 0, at] == pytest.approx(other, abs=1e-9)
    # with all entries the exact pair keeps every inner product, of whatever vectors
    np.testing.assert_allclose(result.keep_inverse[0, :, -1], 1)
    assert result.keep_vectors.tolist() == [[12] * len(KINDS)] * 2


@given(st.data())
@hypothesis_settings(max_examples=60, deadline=None)
def test_jaccard_and_coverage_are_those_of_sets(data):
    rows, k, size = (data.draw(st.integers(1, n)) for n in (6, 5, 3))
    size += k + 3
    seed = data.draw(st.integers(0, 10**6))
    random = np.random.default_rng(seed)

    def sets(width):
        return torch.from_numpy(np.stack([random.permutation(size)[:width] for _ in range(rows)]))

    one, other, parts = sets(k), sets(k), sets(min(size, k + 2))
    expected = [overlap_of(a.numpy(), b.numpy()) for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(jaccard(one, other), expected)
    np.testing.assert_array_equal(jaccard(one, other), jaccard(other, one))
    order = torch.from_numpy(random.permutation(rows))
    found = covered(parts, one, [order], size)[0]
    for row in range(rows):
        looked_up = set(parts[order[row]].tolist())
        assert found[row] == pytest.approx(len(looked_up & set(one[row].tolist())) / k)


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 5), st.integers(0, 10**6))
@hypothesis_settings(max_examples=80, deadline=None)
def test_of_equally_active_parameters_the_first_is_taken(rows, width, count, seed):
    values = np.random.default_rng(seed).integers(0, 3, size=(rows, width)).astype(np.float64)
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(strongest(torch.from_numpy(values), count), expected)


def test_a_resampled_mean_is_spread_as_its_standard_error_says():
    random = np.random.default_rng(1)
    values = random.normal(size=(400, 1))
    spread = resampled(values, None, random).std()
    assert spread == pytest.approx(values.std() / 20, rel=0.1)
    # rows that repeat within a sentence carry no more than one of them
    repeated = np.repeat(values, 9, axis=0)
    clustered = resampled(repeated, np.repeat(np.arange(400), 9), random).std()
    assert clustered == pytest.approx(spread, rel=0.1)
    assert np.isnan(resampled(values, np.zeros(400, dtype=int), random)).all()


def frame_of(model, **settings):
    readout = Readout(asked(**settings), model, "cpu")
    return readout, Common(readout, asked(**settings).common)


def test_sets_of_more_tokens_than_there_are_hold_them_all(tiny_model):
    model = tiny_model("gpt2")
    readout, common = frame_of(model)
    usable = torch.zeros(len(readout.E), dtype=torch.bool)
    usable[300:309] = True
    tokens, clear = largest_sets(readout, common, model.anatomy.vectors("ff_values", 0), "ff_values", 50, usable)
    assert tokens.shape == (len(model.anatomy.vectors("ff_values", 0)), 9)
    assert (tokens.sort(dim=1).values == torch.arange(300, 309)).all()
    assert clear.all()
    assert (jaccard(tokens, tokens.flip(0)) == 1).all()


@pytest.mark.parametrize("k", [3, 6, 9])
def test_ties_go_to_the_lower_token_and_both_ends_count_once(tiny_model, k):
    model = tiny_model("gpt2")
    readout, common = frame_of(model, centred=False)
    usable = torch.zeros(len(readout.E), dtype=torch.bool)
    usable[:10] = True
    readout.E = readout.E.clone()
    x = torch.zeros(2, readout.E.shape[1], dtype=torch.float64)
    x[:, 0] = 1
    readout.E[:10, 0] = torch.tensor([1.0, -1, 2, -2, 2, 0, 1, -3, 0, 0])
    tokens, _ = largest_sets(readout, common, x, "ff_values", k, usable)
    assert tokens.tolist() == [[7, 2, 3, 4, 0, 1, 6, 5, 8][:k]] * 2


def test_more_tokens_than_the_vocabulary_are_said(tiny_model):
    model = tiny_model("gpt2")
    result = asked(k=500, words_only=True, keep_vectors=0).compute(Context(a=model, b=tiny_model("llama")))
    words = int(Readout(asked(words_only=True), model, "cpu").usable(Context()).sum())
    assert result.k.tolist()[0] == min(500, words)


def test_vectors_that_speak_of_nothing_are_left_out_and_said(tiny_folders):
    from embcompare.models import ModelSpec, load_model

    model = load_model(ModelSpec.parse(str(tiny_folders("gpt2")), dtype="float64"))
    with torch.no_grad():
        model.anatomy.vectors("ff_values", 1)[3:8] = 0
    result = asked(keep_vectors=0).compute(Context(a=model, b=model))
    at = result.pairs.index("ff")
    assert result.sim_pairs[0, at].tolist() == [96, 91]
    assert any("5 pairs of FF keys and FF values" in note for note in result.notices)
    assert not np.isnan(result.sim[0, at]).any()


def test_grouped_heads_gates_and_rotation_are_said(tiny_model):
    said = " ".join(asked(keep_vectors=0).compute(Context(a=tiny_model("llama"), b=tiny_model("bert-mlm"))).notices)
    assert "4 query heads share 2 key and value heads" in said
    assert "gated feed-forward" in said
    assert "unrotated" in said
    assert "by E alone, without what its head does" in said


def test_partners_of_grouped_heads_stand_at_the_same_place(tiny_model):
    anatomy = tiny_model("llama").anatomy
    attention = anatomy.blocks[0].attention
    for name in ("qk", "vo"):
        one, other = partners(anatomy, 0, name)
        own, shared = (one, other) if name == "qk" else (other, one)
        vectors = {group: anatomy.vectors(group, 0) for group in ("w_q", "w_k", "w_v", "w_o")}
        width = attention.w_q.shape[2]
        for place in range(len(own)):
            head, column = divmod(int(own[place]), width)
            resolved = attention.head_k(head) if name == "qk" else attention.head_v(head)
            assert torch.equal(vectors["w_k" if name == "qk" else "w_v"][shared[place]], resolved[:, column])


def test_models_of_other_depth_and_kind_stand_side_by_side(tiny_model):
    a, b = tiny_model("t5-gated"), tiny_model("gpt2")
    context = Context(a=a, b=b)
    result = asked().compute(context)
    assert result.layers.tolist() == [3, 2]
    assert result.pairs == tuple(PAIRS)
    assert np.isnan(result.sim[1, result.pairs.index("ff_up")]).all()
    assert np.isnan(result.sim[1, 0, 2])
    assert not np.isnan(result.sim[0, :, :3]).any()
    # the decoder of an encoder-decoder depends on a second text
    assert np.isnan(result.overlap[0]).all()
    assert result.tokens[0] == 0
    assert result.keep_vectors.tolist() == [[12, 12, 0], [12, 12, 12]]
    assert np.isnan(result.keep_transpose[0, 2]).all()
    assert any("encoder-decoder" in note for note in result.notices)
    frame = again(result)
    assert set(frame.statistic) == {"sim", "overlap", "keep"}
    row = frame[(frame.model == "B") & (frame.of == "vo") & (frame.layer == 1)].iloc[0]
    assert row.value == result.sim[1, result.pairs.index("vo"), 1]
    assert row.gap_low == result.sim_gap_low[1, result.pairs.index("vo"), 1]
    done = [each[0] for each in context.reports]
    assert done == sorted(done)


def test_the_best_pairs_are_named_with_the_tokens_both_list(tiny_model):
    model = tiny_model("llama")
    result = asked(keep_vectors=0).compute(Context(a=model, b=model))
    e, ids, _ = read(model)
    assert len(result.example_sim) == 2 * len(result.pairs) * 5
    for at in range(0, len(result.example_sim), 7):
        name, layer = result.pairs[result.example_pair[at]], result.example_layer[at]
        one, other = (
            top_by_size((model.anatomy.vectors(group, layer)[[row]].double() @ e.T).numpy(), ids, 20)[0]
            for group, row in zip(GROUPS_OF[name], result.example_index[at], strict=True)
        )
        assert result.example_sim[at] == pytest.approx(overlap_of(one, other))
        both = [model.tokens.display(int(token)) for token in one if token in set(other.tolist())]
        assert result.example_tokens[at] == tuple(both[:10])


def test_fewer_pairs_are_the_same_pairs_for_one_seed(tiny_model):
    model = tiny_model("llama")
    some = asked(pairs=10, keep_vectors=0)
    one, two = (some.compute(Context(a=model, b=model)) for _ in range(2))
    np.testing.assert_array_equal(one.sim, two.sim)
    assert (one.sim_pairs[:, :, :2] == 10).all()
    other = asked(pairs=10, keep_vectors=0, seed=1).compute(Context(a=model, b=model))
    assert not np.array_equal(one.sim, other.sim)
    assert any("10 were drawn" in note for note in one.notices)


def test_a_larger_embedding_changes_no_set(tiny_folders, tiny_model):
    from embcompare.models import ModelSpec, load_model

    scaled = load_model(ModelSpec.parse(str(tiny_folders("llama")), dtype="float64"))
    with torch.no_grad():
        scaled.anatomy.unembedding.mul_(1000)
    one, other = (asked(keep_vectors=0).compute(Context(a=m, b=m)) for m in (tiny_model("llama"), scaled))
    np.testing.assert_array_equal(one.sim, other.sim)
    np.testing.assert_array_equal(one.overlap, other.overlap)


def test_weights_in_bfloat16_with_padded_rows(tiny_folders, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from embcompare.models import ModelSpec, load_model

    AutoModelForCausalLM.from_pretrained(tiny_folders("qwen2"), dtype=torch.bfloat16).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_folders("qwen2")).save_pretrained(tmp_path)
    model = load_model(ModelSpec.parse(str(tmp_path), dtype="stored"))
    assert model.anatomy.padded_rows == 20
    result = asked(keep_vectors=20).compute(Context(a=model, b=model))
    assert not np.isnan(result.sim).any()
    assert not np.isnan(result.overlap).any()
    np.testing.assert_allclose(result.keep_inverse[0, :, -1], 1, atol=1e-3)


def test_a_model_without_a_head_is_read_by_its_input_embedding(tiny_model):
    result = asked(keep_vectors=0).compute(Context(a=tiny_model("bert-plain"), b=tiny_model("gpt2-plain")))
    assert sum("no linear head" in note for note in result.notices) == 2


def test_what_cannot_be_is_refused_in_a_sentence(tiny_model):
    model = tiny_model("gpt2")
    with pytest.raises(Incomparable, match="leaving out 24 leaves nothing"):
        asked(common=24).compute(Context(a=model, b=model))
    with pytest.raises(SettingsError, match="smallest value is 1"):
        asked(k=0)


@pytest.mark.parametrize("stop_after", [1, 6, 14])
def test_a_run_stops_when_asked_and_leaves_no_hook(tiny_model, stop_after):
    model = tiny_model("gpt2")
    with pytest.raises(Cancelled):
        asked().compute(Context(a=model, b=model, stop_after=stop_after))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.module.modules())


def test_sentences_without_text_are_passed_over(tiny_model):
    model = tiny_model("gpt2")
    one = asked(keep_vectors=0).compute(Context(a=model, b=model, sentences=(*SENTENCES, "<|endoftext|>")))
    two = asked(keep_vectors=0).compute(Context(a=model, b=model))
    assert one.tokens.tolist() == two.tokens.tolist()
    np.testing.assert_allclose(one.overlap, two.overlap)


def test_from_a_shell_on_the_demo_models(tmp_path, monkeypatch, capsys):
    from embcompare.cli import main

    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path))
    words = ["parameter-agreement", "--model-a", "demo/gpt2-a", "--model-b", "demo/bert-a", "--corpus", "reviews"]
    words += ["--k", "10", "--sentences", "6", "--pairs", "40", "--keep-vectors", "10", "--null-draws", "1"]
    assert main(["run", *words, "--quiet", "--csv", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("model,statistic,of,target,layer,k,value")
    # GPT-2 has six layers and BERT four: three kinds of pairs, four groups at two targets, the keep-k test
    assert len([line for line in lines if ",sim," in line]) == 3 * 10
    assert len([line for line in lines if ",overlap," in line]) == 4 * 2 * 10
    assert main(["run", *words, "--quiet", "--json", "-"]) == 0
