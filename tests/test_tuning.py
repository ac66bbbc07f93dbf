"""Classifiers fine-tuned out of loaded models: what learns, what stays, what repeats, what is refused."""

from __future__ import annotations

import gc
import math
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch

from embcompare.errors import Cancelled, InputError, ModelNotFound, SettingsError, UnsupportedFamily
from embcompare.models import ModelSpec, load_model, tuning
from embcompare.models.classifiers import classifier_class, make_classifier
from embcompare.models.tuning import tune_classifier
from embcompare.models.validation import hooked
from embcompare.text.encoding import Encoded
from embcompare.text.labelled import shipped_reviews
from tests.tiny import TINY, words

TWO_TEXTS = {"marian", "t5", "t5-gated", "mt5"}
NO_CLASS = {name for name in TINY if name.startswith("opt")}
HEADS, PARTS = ("classifier", "score"), ("weight", "bias")
TUNABLE = [name for name in TINY if name not in TWO_TEXTS | NO_CLASS]


def toy(classes=2, texts=24, seed=0):
    """Texts of words that belong to one class each, labels turn by turn."""
    random, own = np.random.default_rng(seed), np.array(words(12 * classes)).reshape(classes, 12)
    labels = [f"class {number % classes}" for number in range(texts)]
    return [" ".join(random.choice(own[i % classes], size=4 + i % 5)) for i in range(texts)], labels


@pytest.fixture(scope="module")
def plain(tiny_folders):
    """Give ``model(name)``: a tiny model in float32, one copy for all tests here."""
    return cache(lambda name: load_model(ModelSpec.parse(str(tiny_folders(name)))))


@pytest.fixture(scope="module")
def reviews():
    return shipped_reviews()


@pytest.fixture(scope="module")
def demo():
    return load_model("demo/gpt2-a")


def bits(module):
    return {name: each.detach().clone() for name, each in [*module.named_parameters(), *module.named_buffers()]}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def logits(model, sentences):
    """The rule in plain words: one text at a time, the head's logits averaged over all its tokens."""
    rows = []
    for each in sentences:
        ids = torch.tensor([model.tokenizer(each)["input_ids"]])
        with torch.no_grad():
            states = model.module.base_model(input_ids=ids).last_hidden_state[0]
        rows.append((states @ model.anatomy.classifier.T + model.anatomy.classifier_bias).mean(0).double())
    return torch.stack(rows)


def accuracy(model, sentences, labels):
    names = model.anatomy.labels
    return np.mean([names[int(row.argmax())] == own for row, own in zip(logits(model, sentences), labels, strict=True)])


@pytest.mark.parametrize("name", TUNABLE)
def test_of_every_family_only_weights_of_the_last_block_and_the_head_learn_and_all_else_is_shared(name, plain):
    base = plain(name)
    before = bits(base.module)
    tuned = tune_classifier(base, *toy(), blocks=1, epochs=2)
    assert type(tuned.module).__name__.endswith("ForTokenClassification")
    assert tuned.anatomy.labels == ("class 0", "class 1")
    assert tuned.anatomy.classifier.shape == (2, base.anatomy.width)
    assert tuned.anatomy.n_layers == base.anatomy.n_layers
    assert torch.equal(tuned.anatomy.embedding, base.anatomy.embedding)
    assert same(before, bits(base.module))
    last = base.anatomy.blocks[-1].sites["block"]
    stack = {each.data_ptr(): key for key, each in base.module.named_parameters()}
    own = {}
    for key, each in tuned.module.named_parameters():
        assert not each.requires_grad
        assert each.grad is None
        if each.data_ptr() not in stack:
            own[key] = each
    inside = tuned.anatomy.blocks[-1].sites["block"]
    assert {key.rpartition(".")[2] for key in own if key.startswith(inside)} == {"weight"}
    assert {key for key in own if not key.startswith(inside)} <= {f"{head}.{part}" for head in HEADS for part in PARTS}
    assert len(own) == 2 + sum(key.endswith("weight") for key, _ in base.module.get_submodule(last).named_parameters())
    moved = [key for key in own if key.startswith(inside)]
    assert not any(torch.equal(own[key], before[last + key.removeprefix(inside)]) for key in moved)
    assert not set(map(id, tuned.module.modules())) & set(map(id, base.module.modules()))


@pytest.mark.parametrize("name", ["bert-plain", "gpt2", "llama", "gemma2", "t5-encoder"])
def test_a_separable_task_is_learnt_beyond_the_larger_class(name, plain):
    texts, labels = toy(texts=140)
    tuned = tune_classifier(plain(name), texts[:100], labels[:100], blocks=2, epochs=15, rate=3e-3)
    assert accuracy(tuned, texts[:100], labels[:100]) >= 0.95
    assert accuracy(tuned, texts[100:], labels[100:]) >= 0.9


def test_three_classes_are_learnt_whatever_the_order_of_their_texts(plain):
    texts, labels = toy(classes=3, texts=120)
    order = np.random.default_rng(1).permutation(90)
    given = [texts[i] for i in order], [labels[i] for i in order]
    tuned = tune_classifier(plain("gpt2"), *given, blocks=2, epochs=8, rate=3e-3)
    assert tuned.anatomy.labels == ("class 0", "class 1", "class 2")
    assert accuracy(tuned, texts[90:], labels[90:]) >= 0.7


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(plain):
    one, two = (tune_classifier(plain("gpt2"), *toy(), blocks=1, seed=5) for _ in range(2))
    other = tune_classifier(plain("gpt2"), *toy(), blocks=1, seed=6)
    assert same(bits(one.module), bits(two.module))
    assert one.fingerprint == two.fingerprint
    assert not torch.equal(one.anatomy.classifier, other.anatomy.classifier)


def test_nothing_global_is_changed_and_global_seeds_change_nothing(plain):
    torch.manual_seed(0)
    np.random.seed(0)
    state, threads, drawn = torch.get_rng_state(), torch.get_num_threads(), np.random.get_state()[1].copy()
    one = tune_classifier(plain("bert-mlm"), *toy(), blocks=1)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(drawn, np.random.get_state()[1])
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.is_grad_enabled()
    torch.manual_seed(99)
    assert same(bits(one.module), bits(tune_classifier(plain("bert-mlm"), *toy(), blocks=1).module))


def test_the_fingerprint_changes_with_the_base_the_data_and_every_option(plain):
    texts, labels = toy()
    swapped = [labels[1], labels[0], *labels[2:]]
    given = [
        (plain("gpt2"), texts, labels, {}),
        (plain("gpt2-plain"), texts, labels, {}),
        (plain("gpt2"), [*texts[:-1], texts[-1] + " ab"], labels, {}),
        (plain("gpt2"), texts, swapped, {}),
        *((plain("gpt2"), texts, labels, {key: value}) for key, value in
          (("blocks", 2), ("seed", 1), ("epochs", 2), ("batch", 8), ("rate", 2e-3))),
    ]  # fmt: skip
    defaults = {"blocks": 1, "epochs": 1}
    prints = [tune_classifier(m, s, y, **{**defaults, **changes}).fingerprint for m, s, y, changes in given]
    assert len(set(prints)) == len(prints)
    assert all(len(each) == 64 for each in prints)
    assert prints[0] != plain("gpt2").fingerprint


def test_no_blocks_is_a_probe_whose_body_is_the_bases_own(plain):
    base = plain("bert-mlm")
    tuned = tune_classifier(base, *toy(), blocks=0, rate=0.01)
    theirs = {each.data_ptr() for each in base.module.parameters()}
    own = [key for key, each in tuned.module.named_parameters() if each.data_ptr() not in theirs]
    assert own == ["classifier.weight", "classifier.bias"]
    assert tuned.spec.label.endswith(", head tuned, seed 0")


def test_the_name_says_what_it_is_and_loads_nothing(plain):
    tuned = tune_classifier(plain("gpt2"), *toy(), blocks=2, seed=4, epochs=1)
    assert tuned.spec.label == f"{plain('gpt2').spec.label}, 2 blocks tuned, seed 4"
    assert tuned.info.label == str(tuned.spec) == tuned.spec.label
    assert (tuned.spec.dtype, tuned.info.architecture) == ("float32", "GPT2ForTokenClassification")
    assert tuned.info.parameters == sum(each.numel() for each in tuned.module.parameters())
    assert tuned.tokenizer is plain("gpt2").tokenizer
    assert tuned.notes[-1].endswith(
        "the last 2 blocks and a linear head learnt from 24 texts of 2 classes (class 0, class 1): 1 epoch, seed 4."
    )
    with pytest.raises(ModelNotFound):
        load_model(tuned.spec)


def test_a_float64_model_is_brought_to_float32_and_gives_what_the_float32_one_gives(plain, tiny_model):
    double = tune_classifier(tiny_model("gpt2"), *toy(), blocks=1)
    assert {each.dtype for each in double.module.parameters()} == {torch.float32}
    assert same(bits(double.module), bits(tune_classifier(plain("gpt2"), *toy(), blocks=1).module))
    assert "float32" in double.notes[-1]


def test_a_tuned_classifier_can_be_tuned_again(plain):
    first = tune_classifier(plain("gpt2"), *toy(), blocks=1, epochs=1)
    second = tune_classifier(first, *toy(classes=3), blocks=1, epochs=1)
    assert len(second.anatomy.labels) == 3
    assert second.fingerprint != first.fingerprint


@pytest.mark.parametrize("classes", [2, 3])
def test_a_head_begins_as_the_rule_of_the_nearest_mean_on_a_fixed_scale(plain, classes):
    texts, labels = toy(classes=classes)
    model = plain("gpt2")
    plan = tuning._Plan(1, 0, 1, 16, 1e-3, "cpu", 0.0, 0.0, 1.0, 0.5, 512)
    names, targets = tuning._classes(texts, labels)
    made = make_classifier(model, classifier_class(model), names, 1, "cpu")
    assert not made.head.weight.any()
    tuning._begin_with_means(made, tuning._encoded(model, texts, plan), targets, plan)
    rows = []
    with torch.no_grad():
        for each in texts:
            ids = torch.tensor([model.tokenizer(each)["input_ids"]])
            rows.append(model.module.base_model(input_ids=ids).last_hidden_state[0].double().mean(0))
        states = torch.stack(rows)
        found = states @ made.head.weight.double().T + made.head.bias.double()
    means = torch.stack([states[torch.from_numpy(targets) == k].mean(0) for k in range(classes)])
    nearer = -torch.cdist(states, means).square() / 2
    found, nearer = (each - each.mean(1, keepdim=True) for each in (found, nearer))
    assert torch.allclose(found, nearer * (0.5 / nearer.square().mean().sqrt()), atol=1e-4)
    if classes == 2:
        assert torch.allclose(made.head.weight[0], -made.head.weight[1], atol=1e-6)


def test_report_is_told_every_step_and_may_end_the_run_without_a_trace(plain):
    base, seen, held = plain("gpt2"), [], []
    before = bits(base.module)

    def report(step, steps, loss):
        seen.append((step, steps, loss))
        if step == 3:
            held.extend(weakref.ref(each) for each in gc.get_objects() if type(each).__name__ == "Classifier")
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        tune_classifier(base, *toy(), blocks=1, report=report)
    assert [each[:2] for each in seen] == [(1, 8), (2, 8), (3, 8)]
    assert all(math.isfinite(each[2]) for each in seen)
    assert same(before, bits(base.module))
    assert not any(each.requires_grad for each in base.module.parameters())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in base.module.modules())
    assert not base.lock._is_owned()
    gc.collect()
    assert held
    assert not any(each() for each in held)


def test_batches_hold_every_text_however_few(plain):
    steps = []
    tune_classifier(plain("gpt2"), *toy(texts=4), blocks=1, epochs=3, report=lambda *each: steps.append(each[:2]))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_what_is_left_out_is_a_share_of_the_text_and_never_all_of_it():
    ids, is_text = np.arange(102), np.r_[False, np.ones(100, bool), False]
    encoded = Encoded([ids, ids[:3]], [is_text, np.array([False, True, False])], None, 0, (), True, True)
    random = np.random.default_rng(0)
    kept = [tuning._thinned(encoded, 0, 0.25, random) for _ in range(100)]
    assert all(each[0] == 0 and each[-1] == 101 and (np.diff(each) > 0).all() for each in kept)
    assert np.mean([102 - len(each) for each in kept]) == pytest.approx(25, abs=1.5)
    assert all(len(tuning._thinned(encoded, 1, 0.9, random)) == 3 for _ in range(20))


def test_long_texts_are_cut_to_what_the_model_reads_and_this_is_noted(plain):
    texts, labels = toy()
    texts[0] = " ".join(words(80))
    tuned = tune_classifier(plain("gpt2"), texts, labels, blocks=1, epochs=1)
    assert tuned.notes[-1] == "1 text that it learnt from had to be cut to 40 tokens."


@pytest.mark.parametrize("name", sorted(TWO_TEXTS))
def test_encoder_decoders_are_refused_with_the_way_out(name, plain):
    with pytest.raises(UnsupportedFamily, match="encoder-decoder.*choose an encoder or a decoder-only model"):
        tune_classifier(plain(name), *toy())


@pytest.mark.parametrize("name", sorted(NO_CLASS))
def test_families_without_a_token_classifier_are_refused_in_one_sentence(name, plain):
    with pytest.raises(UnsupportedFamily, match="transformers has no classifier of tokens.*'opt'.*gpt2, gpt_neox"):
        tune_classifier(plain(name), *toy())


@pytest.mark.parametrize(
    ("texts", "labels", "says"),
    [
        ([], [], "there are no texts"),
        (["ab"] * 4, ["x"] * 4, "every text has the label 'x'"),
        (["ab"] * 4, ["x", "y"], "4 texts and 2 labels"),
        (["ab"] * 4, ["x", "x", "x", "y"], "Only one text has the label 'y'"),
        (["ab", " ", "ab", ""], ["x", "y", "x", "y"], "Texts 2, 4 are empty"),
        (["ab"] * 4, ["x", "y", "", "y"], "Label 3 is empty"),
        (["ab", "ab", 3, "ab"], ["x", "y", "x", "y"], "sequence of texts"),
        ("abab", ["x", "y", "x", "y"], "sequence of texts"),
    ],
)
def test_texts_and_labels_that_cannot_be_learnt_from_are_refused(plain, texts, labels, says):
    with pytest.raises(InputError, match=says):
        tune_classifier(plain("gpt2"), texts, labels, blocks=1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"blocks": 3}, "has 2 blocks, so 3 cannot be tuned; choose from 0 .the head alone. to 2"),
        ({"blocks": -1}, "blocks cannot be -1"),
        ({"blocks": True}, "blocks cannot be True"),
        ({"epochs": 0}, "epochs cannot be 0"),
        ({"batch": 0}, "batch cannot be 0"),
        ({"seed": 1.5}, "seed cannot be 1.5"),
        ({"rate": 0.0}, "rate cannot be 0.0"),
        ({"rate": float("nan")}, "rate cannot be nan"),
        ({"rate": 1e30}, "At the rate 1e.30 the loss is no longer a number"),
        ({"device": "tpu"}, "device cannot be 'tpu'"),
    ],
)
def test_options_out_of_range_are_refused(plain, changes, says):
    with pytest.raises(SettingsError, match=says):
        tune_classifier(plain("gpt2"), *toy(), **{"blocks": 1, **changes})


def test_a_copy_waits_until_no_hook_hangs_on_the_base_and_later_ones_are_not_seen(plain):
    base, seen = plain("gpt2"), []
    site = base.anatomy.blocks[0].sites["block"]
    with ThreadPoolExecutor(1) as pool:
        with base.lock, hooked(base.module) as hook:
            hook.after(site, seen.append)
            making = pool.submit(make_classifier, base, classifier_class(base), ("a", "b"), 1, "cpu")
            with pytest.raises(TimeoutError):
                making.result(timeout=0.3)
        made = making.result(timeout=60)
    made.module(input_ids=torch.tensor([[1, 2, 3]]))
    with hooked(base.module) as hook:
        hook.after(site, seen.append)
        made.module(input_ids=torch.tensor([[1, 2, 3]]))
        assert not seen
        base.module(input_ids=torch.tensor([[1, 2, 3]]))
    assert len(seen) == 1


def test_reviews_are_told_apart_by_a_tuned_demo_model_better_than_by_chance(demo, reviews):
    order = np.random.default_rng(0).permutation(len(reviews))
    texts, labels = ([column[i] for i in order] for column in (reviews.sentences, reviews.labels))
    steps = []
    tuned = tune_classifier(demo, texts[:336], labels[:336], report=lambda *each: steps.append(each))
    assert len(steps) == 4 * 21
    assert tuned.anatomy.labels == ("negative", "positive")
    learnt, held_out = accuracy(tuned, texts[:336], labels[:336]), accuracy(tuned, texts[336:], labels[336:])
    assert learnt > 0.7
    assert held_out > 0.52
