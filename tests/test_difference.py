"""The difference of two models' parameters: plain formulas, what cannot be paired, and what fine-tuning says."""

import dataclasses
import importlib.util
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from readings import Context, read
from scipy.stats import binomtest, mannwhitneyu

from embcompare import export
from embcompare.errors import Cancelled, Incomparable, SettingsError
from embcompare.experiments.difference import ROWS, ParameterDifference
from embcompare.experiments.difference_run import _singular
from embcompare.experiments.weight_pairs import difference_norms
from embcompare.models import ModelSpec, load_model

FAMILIES = ("gpt2", "llama", "qwen2", "bert-untied", "bert-plain", "t5-gated", "gemma2", "gpt-neox")


def compared(a, b, **changes):
    return ParameterDifference("a", "b", **changes).compute(Context(a=a, b=b))


def saved(folder, target, build, change=None):
    """Load a saved model as another class, change it, save it with the tokenizer, and load it as embcompare does."""
    from transformers import AutoTokenizer

    model = build.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        if change is not None:
            change(model)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder).save_pretrained(target)
    return load_model(ModelSpec.parse(str(target), dtype="float64"))


@pytest.fixture(scope="module")
def tuned(tiny_folders, tmp_path_factory):
    """A GPT-2 whose second block learnt and which has a classifier instead of its head."""
    from transformers import GPT2ForTokenClassification

    def change(model):
        generator = torch.Generator().manual_seed(5)
        for name, weight in model.named_parameters():
            if ".h.1." in name and "mlp" in name:
                weight += 0.1 * torch.randn(weight.shape, generator=generator)
            if name.startswith("classifier"):
                weight.copy_(torch.randn(weight.shape, generator=generator))

    return saved(tiny_folders("gpt2"), tmp_path_factory.mktemp("tuned"), GPT2ForTokenClassification, change)


def again(result):
    arrays, scalars = result.pack()
    back = type(result).unpack(arrays, json.loads(json.dumps(scalars)))
    for item in dataclasses.fields(result):
        one, other = getattr(result, item.name), getattr(back, item.name)
        if isinstance(one, np.ndarray):
            assert one.dtype != object
            assert one.flags["C_CONTIGUOUS"], item.name
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other, item.name
    assert export.to_npz(back)
    json.loads(export.to_json(back))
    assert len(back.overview()) == len(result.groups) * len(result.layers)
    return back.to_frame()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("centred", "common"), [(True, 0), (True, 2), (False, 1)])
def test_numbers_and_tokens_are_those_of_the_plain_difference(tiny_model, family, centred, common):
    a, b = tiny_model(family), tiny_model(family, seed=1)
    result = compared(a, b, centred=centred, common=common, top=6, count=12, directions=2)
    e, ids, keep = read(a, centred, common)
    anatomy = a.anatomy
    assert result.groups == anatomy.groups()
    differences, total = {}, 0
    for g, group in enumerate(result.groups):
        for layer in range(anatomy.n_layers):
            one, two = (model.anatomy.vectors(group, layer).double() for model in (a, b))
            d = differences[group, layer] = two - one
            s = torch.linalg.svdvals(d)
            assert result.norm[g, layer] == pytest.approx(float(d.norm()))
            assert result.change[g, layer] == pytest.approx(float(d.norm() / one.norm()))
            np.testing.assert_allclose(result.singular_share[g, layer], (s.square() / s.square().sum())[:2], rtol=1e-8)
            p = s / s.sum()
            assert result.effective_rank[g, layer] == pytest.approx(float((-p * p.log()).sum().exp()), rel=1e-5)
            total = total + (d @ keep).T @ (d @ keep) / one.norm() ** 2
    values, vectors = np.linalg.eigh(total.numpy())
    np.testing.assert_allclose(result.model_share, values[::-1][:2] / values.sum(), rtol=1e-8)
    leading = torch.from_numpy(vectors[:, ::-1][:, :2].copy())
    carried = values[::-1][:2].sum()
    carries = {}
    for (group, layer), d in differences.items():
        base = float(anatomy.vectors(group, layer).double().norm())
        inside = ((d @ keep) @ leading).square().sum(1) / base**2 / carried
        carries |= {(group, layer, i): float(v) for i, v in enumerate(inside)}
    assert sum(carries.values()) == pytest.approx(1)
    best = sorted(carries, key=lambda key: -carries[key])[:12]
    rows = result.rows("vector")
    assert [(result.groups[result.group[r]], result.layer[r], result.index[r]) for r in rows] == best
    np.testing.assert_allclose(result.carries[rows], [carries[key] for key in best], rtol=1e-7)
    for r in range(len(result.kind)):
        kind, group, layer, i = ROWS[result.kind[r]], result.groups[result.group[r]], result.layer[r], result.index[r]
        if kind == "vector":
            x = differences[group, layer][i]
        elif kind == "layer":
            x = torch.linalg.svd(differences[group, layer] @ keep, full_matrices=False)[2][i]
        else:
            x = leading[:, i]
        scores = (e @ keep @ x).numpy()
        if kind != "vector" and scores.max() < -scores.min():
            scores = -scores
        order = np.argsort(-scores, kind="stable")
        np.testing.assert_allclose(result.top_scores[r], scores[order[:6]], rtol=1e-6)
        np.testing.assert_array_equal(result.top[r], ids[order[:6]])
        np.testing.assert_allclose(result.bottom_scores[r], scores[order[::-1][:6]], rtol=1e-6)
        up, down = scores.max() - scores.mean(), scores.mean() - scores.min()
        assert result.z[r] == pytest.approx(max(up, down) / scores.std() * (1 if up >= down else -1), rel=1e-4)
        assert abs(result.along[r]) == pytest.approx(abs(float(keep @ x @ leading[:, 0] / (keep @ x).norm())), abs=1e-6)
    assert result.along[result.rows("model")[0]] == pytest.approx(1)
    frame = again(result)
    assert len(frame) == len(result.kind)
    assert frame["top"][0] == " ".join(result.top_tokens[0])


def test_directions_of_a_layer_hold_the_share_that_is_said(tiny_model):
    result = compared(tiny_model("gpt2"), tiny_model("gpt2", seed=1), common=0, directions=3)
    for r in result.rows("layer"):
        g, layer, i = result.group[r], result.layer[r], result.index[r]
        assert result.share[r] == pytest.approx(result.singular_share[g, layer, i])
        assert result.size[r] == pytest.approx(result.norm[g, layer] * result.share[r] ** 0.5)
    assert (np.diff(result.carries[result.rows("layer")]) <= 1e-12).all()


def test_a_classifier_is_paired_with_none_and_what_has_no_partner_is_named(tiny_model, tuned):
    a = tiny_model("gpt2")
    result = compared(a, tuned, top=5)
    assert set(result.only_b) == {"classifier.weight", "classifier.bias"}
    assert result.only_a == result.other_shape == ()
    assert result.reader == "A"
    changed = {name for name, same in zip(result.parameters, result.parameter_same, strict=True) if not same}
    assert changed == {f"h.1.mlp.{part}" for part in ("c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias")}
    assert (result.parameter_change[result.parameter_same] == 0).all()
    for g, group in enumerate(result.groups):
        assert result.unchanged[g].tolist() == [True, not group.startswith("ff_")], group
    assert np.isnan(result.effective_rank[:, 0]).all()
    rows = result.rows("classifier")
    head = tuned.anatomy.classifier.double()
    e, ids, keep = read(a, common=1)
    for r in rows:
        scores = (e @ keep @ (head[result.index[r]] - head.mean(0))).numpy()
        np.testing.assert_array_equal(result.top[r], ids[np.argsort(-scores, kind="stable")[:5]])
    assert result.labels == ("LABEL_0", "LABEL_1")
    toward = (head[1] - head[0]) * a.anatomy.final_norm.gain.double()
    d = tuned.anatomy.vectors("ff_values", 1) - a.anatomy.vectors("ff_values", 1)
    x = torch.linalg.svd(d.double() @ keep, full_matrices=False)[2][0]
    x = x if x @ toward > 0 else -x
    (r,) = (r for r in result.rows("layer") if result.groups[result.group[r]] == "ff_values" and result.index[r] == 0)
    np.testing.assert_array_equal(result.top[r], ids[np.argsort(-(e @ keep @ x).numpy(), kind="stable")[:5]])
    assert any("top speaks for LABEL_1" in note for note in result.notices)
    assert result.embedding_change == 0
    assert len(result.moved) == 0
    # the other way round: the head is that of B
    back = compared(tuned, a, top=5)
    assert back.reader == "B"
    assert set(back.only_a) == {"classifier.weight", "classifier.bias"}
    np.testing.assert_allclose(back.norm, result.norm)
    again(result)


def test_two_classifiers_are_subtracted_and_those_of_other_labels_are_not(tiny_folders, tmp_path, tuned):
    from transformers import GPT2ForTokenClassification

    folder = Path(tuned.spec.name)

    def move(model):
        model.classifier.weight[1] += 0.3

    other = saved(folder, tmp_path / "same", GPT2ForTokenClassification, move)
    result = compared(tuned, other)
    moved = other.anatomy.classifier.double() - tuned.anatomy.classifier.double()
    moved = moved - moved.mean(0)
    np.testing.assert_allclose(result.size[result.rows("classifier")], moved.norm(dim=1), rtol=1e-6)
    assert any("equal number for number" in note for note in result.notices)
    assert len(result.rows("model")) == len(result.rows("vector")) == len(result.rows("layer")) == 0

    def rename(model):
        model.config.id2label = {0: "BAD", 1: "GOOD"}

    renamed = saved(folder, tmp_path / "renamed", GPT2ForTokenClassification, rename)
    result = compared(tuned, renamed)
    assert result.labels == ("BAD", "GOOD")
    assert any("different labels" in note for note in result.notices)
    same = compared(tuned, tuned)
    assert len(same.kind) == 0
    assert any("tell their labels apart alike" in note for note in same.notices)
    again(same)


@pytest.mark.parametrize("exact", [False, True])
def test_what_reads_the_stream_is_read_by_the_inverse_and_what_writes_is_not(tiny_model, exact):
    a, b = tiny_model("llama"), tiny_model("llama", seed=1)
    result = compared(a, b, common=0, top=4, count=40, inverse="exact" if exact else "transpose", fold_norm=True)
    e, ids, _ = read(a)
    e = e * a.anatomy.final_norm.gain.double()
    inverse = e @ torch.linalg.inv(e.T @ e)
    for r in result.rows("vector"):
        group = result.groups[result.group[r]]
        x = (b.anatomy.vectors(group, result.layer[r]) - a.anatomy.vectors(group, result.layer[r]))[result.index[r]]
        by = inverse if exact and group not in ("ff_values", "w_o") else e
        np.testing.assert_array_equal(result.top[r], ids[np.argsort(-(by @ x.double()).numpy(), kind="stable")[:4]])


def test_common_directions_are_those_of_e_before_the_gain_is_folded_in(tiny_model):
    a, b = tiny_model("llama"), tiny_model("llama", seed=1)
    result = compared(a, b, common=2, top=4, count=10, fold_norm=True)
    e, ids, keep = read(a, common=2)
    e = (e @ keep) * a.anatomy.final_norm.gain.double()
    for r in result.rows("vector"):
        one, two = (m.anatomy.vectors(result.groups[result.group[r]], result.layer[r])[result.index[r]] for m in (a, b))
        scores = (e @ (two - one).double()).numpy()
        np.testing.assert_array_equal(result.top[r], ids[np.argsort(-scores, kind="stable")[:4]])
        np.testing.assert_allclose(result.top_scores[r], np.sort(scores)[::-1][:4], rtol=1e-8)


def test_one_group_and_layer_alone_give_the_same_numbers(tiny_model):
    a, b = tiny_model("llama"), tiny_model("llama", seed=1)
    whole, part = compared(a, b), compared(a, b, group="w_k", layer=1)
    g = whole.groups.index("w_k")
    assert part.groups == ("w_k",)
    assert part.layers.tolist() == [1]
    assert part.change[0, 0] == whole.change[g, 1]
    assert set(part.layer[part.rows("vector")]) == {1}
    # of one layer alone the whole change is its own
    np.testing.assert_allclose(part.model_share, part.share[part.rows("model")])
    top = {int(i): list(t) for i, t in zip(part.index[part.rows("layer")], part.top[part.rows("layer")], strict=True)}
    assert top[0] == list(part.top[part.rows("model")[0]])


def test_special_tokens_and_filters(tiny_model):
    a, b = tiny_model("bert-untied"), tiny_model("bert-untied", seed=1)
    plain = compared(a, b, top=200)
    assert not a.tokens.special[plain.listed].any()
    words = compared(a, b, top=9, words_only=True, stop_words="ab, AC")
    assert not {"ab", "ac"} & set(words.tokens)
    assert all(name.isalpha() for name in words.tokens)
    assert compared(a, b, top=9, words_only=True).usable == words.usable + 2


def test_fewer_shared_tokens_list_only_those_that_are_shared(tiny_folders, tmp_path):
    """A fine-tuned model with one more token keeps the tokens of its base."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tiny_folders("gpt2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["brandnew"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        model.transformer.wte.weight[400] *= 3
        model.transformer.wte.weight[401] *= 1.5
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    a, b = (load_model(ModelSpec.parse(str(each), dtype="float64")) for each in (folder, tmp_path))
    result = compared(a, b)
    assert result.other_shape == ("wte.weight (1,300 × 24 and 1,301 × 24)".replace(",", ""),)
    assert result.moved.tolist() == [400, 401]
    np.testing.assert_allclose(result.moved_by, [2, 0.5], rtol=1e-6)
    assert result.moved_tokens.tolist() == [a.tokens.display(400), a.tokens.display(401)]
    assert any("input embedding moved" in note for note in result.notices)
    e, two = a.anatomy.embedding.double(), b.anatomy.embedding.double()[:1300]
    assert result.embedding_change == pytest.approx(float((two - e).norm() / e[: 1300 - 1].norm()), rel=1e-9)


def test_weights_in_bfloat16_are_subtracted_as_they_are_stored(tiny_folders, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    models = []
    for seed in (0, 1):
        source, target = tiny_folders("qwen2", seed), tmp_path / str(seed)
        AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(target)
        AutoTokenizer.from_pretrained(source).save_pretrained(target)
        models.append(load_model(ModelSpec.parse(str(target), dtype="stored")))
    a, b = models
    result = compared(a, b)
    for g, group in enumerate(result.groups):
        one, two = (m.anatomy.vectors(group, 1).double() for m in models)
        assert result.change[g, 1] == pytest.approx(float((two - one).norm() / one.norm()), rel=1e-12)
    again(result)


def test_a_change_of_one_direction_is_found_whole(tiny_folders, tmp_path):
    from transformers import LlamaForCausalLM

    folder = tiny_folders("llama")
    generator = torch.Generator().manual_seed(3)
    said = torch.randn(24, generator=generator)

    def plant(model):
        for layer in model.model.layers:
            weight = layer.mlp.down_proj.weight
            weight += 0.05 * said[:, None] * torch.randn(1, weight.shape[1], generator=generator)

    a = load_model(ModelSpec.parse(str(folder), dtype="float64"))
    b = saved(folder, tmp_path, LlamaForCausalLM, plant)
    result = compared(a, b, common=0, top=10)
    e, ids, _ = read(a)
    scores = (e @ said.double()).numpy()
    ends = [set(ids[np.argsort(s, kind="stable")[:10]]) for s in (-scores, scores)]
    first = result.rows("model")[0]
    assert {frozenset(result.top[first]), frozenset(result.bottom[first])} == {frozenset(end) for end in ends}
    assert result.model_share[0] == pytest.approx(1, abs=1e-9)
    g = result.groups.index("ff_values")
    np.testing.assert_allclose(result.effective_rank[g], 1, atol=1e-3)
    assert result.unchanged.sum() == result.unchanged.size - 2
    # float32 rounds the sum of weight and change, so that a vector's change is not quite the direction
    np.testing.assert_allclose(np.abs(result.along[result.rows("vector")]), 1, atol=1e-4)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 10**6))
@hypothesis_settings(max_examples=60, deadline=None)
def test_singular_values_do_not_depend_on_rotation_order_or_sign(n, d, seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, d))
    values, vectors = _singular(torch.from_numpy(x))
    np.testing.assert_allclose(values, np.linalg.svd(x, compute_uv=False)[: len(values)], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(x @ vectors.numpy().T, axis=0), values, rtol=1e-5)
    q, _ = np.linalg.qr(random.normal(size=(d, d)))
    turned, _ = _singular(torch.from_numpy(-x[random.permutation(n)] @ q))
    np.testing.assert_allclose(turned, values, rtol=1e-5)


def test_equal_numbers_alone_are_unchanged():
    a = torch.full((3, 4), 0.1, dtype=torch.bfloat16)
    assert difference_norms(a, a.clone())[0] == 0
    b = a.clone().double()
    b[2, 3] += 1e-30
    assert difference_norms(a.double(), a.double())[0] == 0
    assert difference_norms(a.double() * 1e-30, b * 1e-30)[0] >= 0
    moved, size = difference_norms(torch.tensor(2.0), torch.tensor(3.0))
    assert (moved, size) == (1, 2)


def test_weights_that_were_zero_have_no_relative_change(tiny_folders, tmp_path):
    from transformers import GPT2LMHeadModel

    folder = tiny_folders("gpt2")
    zeros = saved(folder, tmp_path, GPT2LMHeadModel, lambda m: m.transformer.h[0].mlp.c_proj.weight.zero_())
    result = compared(zeros, load_model(ModelSpec.parse(str(folder), dtype="float64")))
    g = result.groups.index("ff_values")
    assert result.change[g, 0] == np.inf
    assert not result.unchanged[g, 0]
    assert any("infinite" in note for note in result.notices)
    assert len(result.rows("model")) == 0
    again(result)


def test_unrelated_models_are_said_to_be_unrelated(tiny_model, tuned):
    twins = compared(tiny_model("gpt2"), tiny_model("gpt2", seed=1))
    assert any("nothing in common" in note for note in twins.notices)
    assert not any("nothing in common" in note for note in compared(tiny_model("gpt2"), tuned).notices)


@pytest.mark.parametrize(
    ("a", "b", "settings", "sentence"),
    [
        ("t5-gated", "gpt2", {}, "is 3 layers deep and .* 2"),
        ("gemma", "llama", {"group": "w_k"}, "W_K columns of layer 0 are 1 heads of 8 in .* and 2 heads of 6"),
        ("gpt2", "gpt-neox", {}, "are built differently"),
        ("opt", "gpt2", {"group": "ff_keys"}, "FF keys of layer 0 are 40 neurons in .* and 96 neurons"),
        ("gpt2", "gpt2", {"group": "ff_up"}, "has no FF up"),
        ("gpt2", "bert-plain", {}, "pre-norm, absolute positions, left to right.*post-norm.*built differently"),
    ],
)
def test_what_cannot_be_subtracted_is_refused_with_the_reason(tiny_model, a, b, settings, sentence):
    with pytest.raises(Incomparable, match=sentence):
        compared(tiny_model(a), tiny_model(b), **settings)


def test_other_widths_and_layers_that_do_not_exist_are_refused(tiny_model, splade_folder):
    wide = load_model(ModelSpec.parse(str(splade_folder)))
    with pytest.raises(Incomparable, match="wide and .* cannot be subtracted"):
        compared(wide, tiny_model("bert-plain"))
    with pytest.raises(SettingsError, match="has no layer 2"):
        compared(tiny_model("gpt2"), tiny_model("gpt2"), layer=2)


def test_groups_of_another_shape_are_left_out_and_said(tiny_model):
    result = compared(tiny_model("gemma"), tiny_model("llama"))
    assert result.groups == ("ff_keys", "ff_up", "ff_values")
    said = " ".join(result.notices)
    assert "heads of 8" in said
    assert "of the family gemma" in said
    assert result.only_a == () or all("weight" in name for name in result.only_a)


@pytest.mark.parametrize("stop_after", [1, 5, 20])
def test_a_run_stops_when_asked(tiny_model, stop_after):
    with pytest.raises(Cancelled):
        ParameterDifference("a", "b").compute(
            Context(a=tiny_model("gpt2"), b=tiny_model("gpt2", seed=1), stop_after=stop_after)
        )


def test_from_a_shell_on_the_demo_models(tmp_path, monkeypatch, capsys):
    from embcompare.cli import main

    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path))
    words = ["parameter-difference", "--model-a", "demo/gpt2-a", "--model-b", "demo/gpt2-a-sentiment", "--count", "3"]
    assert main(["run", *words, "--quiet", "--csv", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("kind,label,group,layer,index")
    # two labels, three directions of the whole and of each of 18 layers and groups that changed, three vectors
    assert len(lines) == 1 + 2 + 3 + 3 * 18 + 3
    assert main(["run", *words, "--quiet", "--json", "-"]) == 0


# What fine-tuning on film reviews changed, against a lexicon of valence that people rated: VADER's (Hutto and Gilbert
# 2014), which no model has seen. Two things are looked at, by the experiment's own settings with words only and 30 at
# each end: the classifier's difference and the strongest direction of the whole change; so every p doubles.
LOOKED = 2


@cache
def valence():
    found = importlib.util.find_spec("vaderSentiment")
    if found is None:
        message = "vaderSentiment is not installed (pip install --no-deps -r requirements-test-models.txt)"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(message)
        pytest.skip(message)
    text = (Path(found.submodule_search_locations[0]) / "vader_lexicon.txt").read_text(encoding="utf-8")
    return {word.lower(): float(number) for word, number, *_ in (line.split("\t") for line in text.splitlines())}


@pytest.fixture(scope="module")
def film():
    return load_model("demo/gpt2-a"), load_model("demo/gpt2-a-sentiment")


def signs(tokens_top, tokens_bottom):
    """How many listed words of the lexicon stand on their own side, and how many there are."""
    lexicon = valence()
    values = [lexicon.get(word, 0) for word in tokens_top] + [-lexicon.get(word, 0) for word in tokens_bottom]
    return sum(value > 0 for value in values), sum(value != 0 for value in values)


def rated(model):
    """Rows of whole words in the lexicon, and whether they are positive."""
    rows = [
        (row, valence()[text] > 0)
        for row, (text, starts, special) in enumerate(
            zip(model.tokens.text, model.tokens.starts_word, model.tokens.special, strict=True)
        )
        if starts and not special and text.isalpha() and valence().get(text, 0)
    ]
    return np.array([row for row, _ in rows]), np.array([positive for _, positive in rows])


def test_what_fine_tuning_on_reviews_changed_agrees_with_a_lexicon(film, capsys):
    a, b = film
    result = compared(a, b, top=30, words_only=True)
    assert result.labels == ("NEGATIVE", "POSITIVE")
    label = next(r for r in result.rows("classifier") if result.index[r] == 1)
    rows, positive = rated(a)
    e, _, keep = read(a, common=1)
    known = {row: at for at, row in enumerate(np.flatnonzero(~a.tokens.special))}
    places = [known[row] for row in rows]
    head = b.anatomy.classifier.double()
    total = sum(
        (d @ keep).T @ (d @ keep) / one.norm() ** 2
        for group in result.groups
        for layer in range(3, 6)
        for one in [a.anatomy.vectors(group, layer).double()]
        for d in [b.anatomy.vectors(group, layer).double() - one]
    )
    first = torch.linalg.eigh(total)[1][:, -1]
    first = first * torch.sign(first @ (keep @ (head[1] - head[0])))
    random = torch.from_numpy(np.random.default_rng(1).standard_normal((2000, e.shape[1])))
    for name, r, x in (("classifier", label, head[1] - head[0]), ("model", result.rows("model")[0], first)):
        right, of = signs(result.top_tokens[r], result.bottom_tokens[r])
        p = binomtest(right, of, alternative="greater").pvalue * LOOKED
        scores = (e[places] @ keep @ x).numpy()
        whole = mannwhitneyu(scores[positive], scores[~positive], alternative="greater")
        auc = whole.statistic / positive.sum() / (~positive).sum()
        # tokens that are alike in E are not independent, so that the rank among random vectors is the sterner test
        by_chance = (e[places] @ keep @ random.T).numpy()
        drawn = mannwhitneyu(by_chance[positive], by_chance[~positive]).statistic
        as_good = (drawn >= whole.statistic).mean()
        with capsys.disabled():
            print(
                f"\n{name}: {right} of {of} listed words on their side, binomial p = {p:.2g}; all {len(rows)} words of "
                f"the lexicon: AUC {auc:.3f}, p = {whole.pvalue * LOOKED:.2g}; random vectors as good: {as_good:.1%}"
            )
            print("  +", " ".join(result.top_tokens[r]), "\n  -", " ".join(result.bottom_tokens[r]))
        assert whole.pvalue * LOOKED < 1e-3
        assert as_good < 0.05
        assert p < (0.01 if name == "classifier" else 0.1)


def lexicon_words(model):
    rows, _ = rated(model)
    return " ".join(model.tokens.text[row] for row in rows)


def test_among_the_words_of_the_lexicon_the_classifier_lists_them_on_their_side(film, capsys):
    """Fixed beforehand: the lexicon's words alone are listed, 30 at each end, and counted by its own signs."""
    a, b = film
    result = compared(a, b, top=30, words_only=True, only=lexicon_words(a))
    rows, positive = rated(a)
    assert result.usable == len(rows)
    label = next(r for r in result.rows("classifier") if result.index[r] == 1)
    right, of = signs(result.top_tokens[label], result.bottom_tokens[label])
    assert of == 60
    p = binomtest(right, of, alternative="greater").pvalue * LOOKED
    e, ids, keep = read(a, common=1)
    x = b.anatomy.classifier.double()[1] - b.anatomy.classifier.double()[0]
    places = np.searchsorted(ids, rows)
    scores = (e[places] @ keep @ x).numpy()
    order = np.argsort(-scores, kind="stable")
    np.testing.assert_array_equal(result.top[label], rows[order[:30]])
    np.testing.assert_array_equal(result.bottom[label], rows[order[::-1][:30]])
    whole = mannwhitneyu(scores[positive], scores[~positive], alternative="greater")
    auc = whole.statistic / positive.sum() / (~positive).sum()
    random = torch.from_numpy(np.random.default_rng(2).standard_normal((4000, e.shape[1])))
    drawn = (e[places] @ keep @ random.T).numpy()
    ranked = positive[np.argsort(-drawn, axis=0)]
    by_chance = ranked[:30].sum(0) + (~ranked[-30:]).sum(0)
    as_good = (by_chance >= right).mean()
    with capsys.disabled():
        print(
            f"\nclassifier, among the {len(rows)} words of the lexicon: {right} of {of} on their side, exact binomial "
            f"p = {p:.2g}; AUC {auc:.3f}, p = {whole.pvalue * LOOKED:.2g}; {as_good:.1%} of random vectors do as well "
            f"(mean {by_chance.mean():.1f} of 60)"
        )
        print("  +", " ".join(result.top_tokens[label]), "\n  -", " ".join(result.bottom_tokens[label]))
    assert p < 0.01
    assert as_good < 0.05
    # what a vector has on its side its opposite has not, so that chance is half of them
    assert by_chance.mean() == pytest.approx(30, abs=4 * by_chance.std() / len(by_chance) ** 0.5)
    for layer in range(3):
        same = compared(a, b, top=30, words_only=True, only=lexicon_words(a), layer=layer)
        assert same.unchanged.all()
        assert len(same.kind) == len(same.rows("classifier")) == 2


def test_random_vectors_do_not_agree_with_the_lexicon_and_untouched_layers_have_nothing_to_read(film):
    a, b = film
    rows, positive = rated(a)
    e, ids, keep = read(a, common=1)
    words = np.array([s and t.isalpha() for t, s in zip(a.tokens.text, a.tokens.starts_word, strict=True)])[ids]
    places = np.searchsorted(ids, rows)
    random = torch.from_numpy(np.random.default_rng(0).standard_normal((200, e.shape[1])))
    scores = (e @ keep @ random.T).numpy().T
    text = np.array([a.tokens.text[row] for row in ids], dtype=object)
    passed = 0
    for row in scores:
        order = np.flatnonzero(words)[np.argsort(-row[words], kind="stable")]
        right, of = signs(text[order[:30]], text[order[::-1][:30]])
        listed = of > 0 and binomtest(right, of, alternative="greater").pvalue * LOOKED < 0.02
        whole = mannwhitneyu(row[places][positive], row[places][~positive], alternative="greater").pvalue * LOOKED
        passed += listed and whole < 1e-3
    assert passed <= 0.02 * len(scores)
    result = compared(a, b)
    assert result.unchanged[:, :3].all()
    assert not result.unchanged[:, 3:].any()
    assert (result.layer[result.kind >= ROWS.index("layer")] >= 3).all()
