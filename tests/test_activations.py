import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TINY

from embcompare.activations import capture, capturing, files, forward
from embcompare.activations.files import StateFolder
from embcompare.activations.forward import batches
from embcompare.errors import (
    Cancelled,
    Incomparable,
    ModelDamaged,
    SettingsError,
    StoreError,
    UnsupportedFamily,
)
from embcompare.models import ModelSpec, load_model
from embcompare.text.corpora import Corpus, InputError, corpus_from_text, shipped_corpus
from embcompare.text.words import align_words

ROOT = Path(__file__).parent.parent
SEVERAL = ("bert-mlm", "roberta", "gpt2", "gpt-neox", "opt", "llama", "gemma2", "t5", "marian")
TEXT = Corpus(
    "nine sentences",
    (
        "ab cd, ef!",
        "a",
        "the cat sat on a mat and it was fat",
        "go home now",
        "no. yes? no!",
        "we ate it all in an hour",
        "is it so",
        "an ox",
        "on and on and on we go",
    ),
)


@pytest.fixture(scope="module")
def tiny32(tiny_folders):
    loaded = {}

    def model(name):
        if name not in loaded:
            loaded[name] = load_model(ModelSpec.parse(str(tiny_folders(name))))
        return loaded[name]

    return model


def runnable(model):
    """The part that transformers itself would be asked for: the encoder of an encoder-decoder, else the base model."""
    decoder = getattr(model.module.config, "is_encoder_decoder", False) and model.anatomy.blocks[0].cross_attention
    return model.module.get_encoder() if decoder else model.module.base_model


def oracle(model, sentence, longest=None):
    """Every hidden state of the text tokens of one sentence, by transformers alone, without padding."""
    encoded = model.tokenizer(sentence, return_special_tokens_mask=True, verbose=False)
    ids, special = encoded["input_ids"], np.array(encoded["special_tokens_mask"], dtype=bool)
    ids = torch.tensor([ids])
    with torch.no_grad():
        found = runnable(model)(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    return [state[0].double().numpy() for state in found.hidden_states], ~special


def close(found, expected, tolerance=1e-5):
    scale = max(1.0, float(np.abs(expected).max()))
    return found.shape == expected.shape and float(np.abs(found - expected).max()) <= tolerance * scale


def manifest_of(folder, states):
    return json.loads((folder / "states" / states.key / "manifest.json").read_text())


class TestNumbers:
    @pytest.mark.parametrize("name", list(TINY))
    def test_every_state_is_what_transformers_gives_for_one_sentence_at_a_time_without_padding(
        self, name, tiny32, tmp_path
    ):
        model = tiny32(name)
        states = capture(model, TEXT, folder=tmp_path, batch_tokens=40)
        bounds = states.index.bounds(len(TEXT))
        for number, sentence in enumerate(TEXT.sentences):
            expected, text = oracle(model, sentence)
            rows = slice(bounds[number], bounds[number + 1])
            assert len(expected) == states.n_layers + 1 == len(states.layers)
            for k, state in enumerate(expected):
                found = np.asarray(states.layer(k)[rows], dtype=np.float64)
                if state.shape[1] != states.width:  # transformers gives OPT's last state in the embedding's width
                    found = found @ model.module.model.decoder.project_out.weight.double().numpy().T
                assert close(found, state[text]), (number, k)

    @pytest.mark.parametrize("name", list(TINY))
    def test_the_last_state_is_labelled_after_the_final_norm_exactly_where_transformers_gives_that(
        self, name, tiny32, tmp_path
    ):
        model = tiny32(name)
        states = capture(model, TEXT, folder=tmp_path)
        last = states.n_layers
        before, after = states.layer(last, before_norm=True), states.layer(last)
        decoders = ("gpt", "opt", "llama", "mistral", "qwen2", "gemma", "t5", "mt5")
        normed = name.startswith(decoders) and name not in ("opt-post-norm", "opt-narrow-embedding")
        assert states.last == ("after final norm" if normed else "block output")
        assert states.layer_label(last) == (f"block {last}, after final norm" if normed else f"block {last}")
        assert states.layer_label(0) == "embedding output"
        assert states.layer_label(1).startswith("block 1")
        if not normed:
            assert np.array_equal(before, after)
            return
        assert not np.allclose(before, after, atol=1e-3)
        part = runnable(model)
        norm = next(m for n, m in part.named_modules() if n.split(".")[-1] in NORMS and n.count(".") <= 1)
        with torch.no_grad():
            once = norm(torch.from_numpy(before.copy()))
        assert close(after, once.numpy())

    @pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "opt", "llama", "qwen2", "gemma", "gemma2", "mistral"])
    def test_lens_at_the_last_layer_gives_the_models_logits_with_the_final_norm_applied_once(
        self, name, tiny32, tmp_path
    ):
        model = tiny32(name)
        states = capture(model, TEXT, folder=tmp_path)
        anatomy, bounds = model.anatomy, states.index.bounds(len(TEXT))
        ids = torch.tensor([model.tokenizer(TEXT.sentences[2])["input_ids"]])
        with torch.no_grad():
            logits = model.module(input_ids=ids).logits[0, :, : anatomy.unembedding.shape[0]]
        rows = slice(bounds[2], bounds[3])
        last = torch.from_numpy(states.layer(states.n_layers)[rows].copy())
        raw = torch.from_numpy(states.layer(states.n_layers, before_norm=True)[rows].copy())
        cap = getattr(model.module.config, "final_logit_softcapping", None)
        for state in (last, anatomy.final_norm.apply(raw)):
            lens = anatomy.unembedding_scale * state @ anatomy.unembedding.T
            lens = cap * torch.tanh(lens / cap) if cap else lens
            assert close(lens.numpy(), logits.numpy())

    @pytest.mark.parametrize("name", SEVERAL)
    def test_batch_size_changes_nothing(self, name, tiny32, tmp_path):
        model = tiny32(name)
        whole = capture(model, TEXT, folder=tmp_path / "whole", batch_tokens=100_000)
        for size in (1, 7, 45):
            cut = capture(model, TEXT, folder=tmp_path / str(size), batch_tokens=size)
            for k in whole.layers:
                assert close(cut.layer(k), whole.layer(k)), (size, k)
            assert np.array_equal(cut.index.token, whole.index.token)

    @pytest.mark.parametrize("name", SEVERAL)
    def test_the_side_a_tokenizer_pads_on_changes_not_a_bit(self, name, tiny_folders, tmp_path):
        found = {}
        for side in ("left", "right"):
            model = load_model(ModelSpec.parse(str(tiny_folders(name))))
            model.tokenizer.padding_side = side
            states = capture(model, TEXT, folder=tmp_path / side)
            found[side] = [np.array(states.layer(k)) for k in states.layers]
        for left, right in zip(found["left"], found["right"], strict=True):
            assert np.array_equal(left, right)

    @pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "opt", "llama", "gpt-neox", "gemma2"])
    def test_states_are_those_of_a_left_padded_batch_whose_positions_are_right(self, name, tiny32, tmp_path):
        model = tiny32(name)
        states = capture(model, TEXT, folder=tmp_path)
        bounds = states.index.bounds(len(TEXT))
        rows = [model.tokenizer(sentence)["input_ids"] for sentence in TEXT.sentences]
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        given = {"input_ids": ids, "attention_mask": mask}
        if name != "opt":  # OPT counts from the mask itself
            given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            found = model.module.base_model(**given, output_hidden_states=True).hidden_states
        for number, row in enumerate(rows):
            special = np.array(
                model.tokenizer(TEXT.sentences[number], return_special_tokens_mask=True)["special_tokens_mask"]
            )
            for k in states.layers:
                expected = found[k][number, longest - len(row) :].numpy()[special == 0]
                assert close(np.asarray(states.layer(k)[bounds[number] : bounds[number + 1]]), expected)

    def test_a_real_model_gives_the_states_of_one_sentence_at_a_time(self, minilm_folder, tmp_path):
        model = load_model(str(minilm_folder))
        some = Corpus("some", shipped_corpus().sentences[:12])
        states = capture(model, some, [0, 3, 6], folder=tmp_path)
        bounds = states.index.bounds(len(some))
        for number, sentence in enumerate(some.sentences):
            expected, text = oracle(model, sentence)
            for k in states.layers:
                found = states.layer(k)[bounds[number] : bounds[number + 1]]
                assert close(np.asarray(found), expected[k][text])
            assert close(states.pooled(6, "cls")[number], expected[6][0])

    def test_rows_are_the_text_tokens_in_the_order_of_the_corpus(self, tiny32, tmp_path):
        model = tiny32("bert-mlm")
        states = capture(model, TEXT, [1], folder=tmp_path, batch_tokens=30)
        tokens, sentences = [], []
        for number, sentence in enumerate(TEXT.sentences):
            plain = model.tokenizer(sentence, add_special_tokens=False)["input_ids"]
            tokens += plain
            sentences += [number] * len(plain)
        assert states.index.token.tolist() == tokens
        assert states.index.sentence.tolist() == sentences
        assert states.index.position[0] == 1  # [CLS] stands before it
        for row in range(len(states.index)):
            start, end = states.index.start[row], states.index.end[row]
            piece = TEXT.sentences[sentences[row]][start:end]
            assert piece == model.tokenizer.convert_ids_to_tokens(tokens[row]).removeprefix("##") or tokens[row] == 1

    def test_pads_and_special_tokens_never_enter_and_an_odd_last_batch_is_whole(self, tiny32, tmp_path):
        model = tiny32("bert-mlm")
        lengths = np.array([len(model.tokenizer(sentence)["input_ids"]) for sentence in TEXT.sentences])
        sizes = [len(batch) for batch in batches(lengths, 30)]
        assert sum(sizes) == len(TEXT)
        assert len(set(sizes)) > 1
        states = capture(model, TEXT, folder=tmp_path, batch_tokens=30)
        assert len(states.index) == lengths.sum() - 2 * len(TEXT)
        special = {0, 2, 3}
        assert not special & set(states.index.token.tolist())

    def test_special_tokens_spelt_out_in_the_text_never_enter_and_unknown_ones_do(self, tiny32, tmp_path):
        model = tiny32("bert-mlm")
        states = capture(model, Corpus("tricky", ("ab [SEP] cd ☃ ef",)), [1], folder=tmp_path)
        ids = states.index.token.tolist()
        assert model.tokenizer.convert_ids_to_tokens(ids) == ["ab", "cd", "[UNK]", "ef"]

    def test_states_are_float32_read_only_and_mapped_from_disk(self, tiny_model, tmp_path):
        states = capture(tiny_model("bert-mlm"), TEXT, folder=tmp_path)  # a float64 model
        for k in states.layers:
            assert states.layer(k).dtype == np.float32
            assert isinstance(states.layer(k), np.memmap)
            with pytest.raises(ValueError, match="read-only"):
                states.layer(k)[0, 0] = 1
        assert states.provenance["dtype"] == "float64"


NORMS = ("ln_f", "final_layer_norm", "norm")


class TestPooling:
    @pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "llama", "t5"])
    def test_mean_last_and_cls_are_those_of_the_plain_formulas(self, name, tiny32, tmp_path):
        model = tiny32(name)
        states = capture(model, TEXT, folder=tmp_path)
        for number, sentence in enumerate(TEXT.sentences):
            expected, text = oracle(model, sentence)
            for k in states.layers:
                assert close(states.pooled(k, "mean")[number], expected[k][text].mean(0))
                assert close(states.pooled(k, "last")[number], expected[k][text][-1])
                if name == "bert-mlm":
                    assert close(states.pooled(k, "cls")[number], expected[k][0])

    @pytest.mark.parametrize("kind", ["mean", "last", "cls"])
    def test_states_captured_pooled_are_bit_for_bit_those_pooled_later(self, kind, tiny32, tmp_path):
        model = tiny32("bert-mlm")
        whole = capture(model, TEXT, folder=tmp_path / "a", batch_tokens=30)
        pooled = capture(model, TEXT, folder=tmp_path / "b", pooling=kind, batch_tokens=30)
        for k in whole.layers:
            assert np.array_equal(whole.pooled(k, kind), pooled.pooled(k, kind))
        with pytest.raises(SettingsError, match="captured pooled"):
            pooled.layer(0)
        names = manifest_of(tmp_path / "b", pooled)["description"]["arrays"]
        assert set(names) == {"index", *(f"{kind}-{k}" for k in whole.layers)}

    def test_pooling_in_blocks_gives_the_same(self, tiny32, tmp_path, monkeypatch):
        from embcompare.activations import states as module

        states = capture(tiny32("gpt2"), TEXT, [1], folder=tmp_path)
        whole = states.pooled(1, "mean")
        few = [np.arange(low, min(low + 2, 9)) for low in range(0, 9, 2)]
        monkeypatch.setattr(module, "_blocks", lambda bounds, width: iter(few))
        assert np.array_equal(states.pooled(1, "mean"), whole)

    def test_blocks_hold_every_sentence_once(self):
        from embcompare.activations.states import _blocks

        bounds = np.array([0, 5, 5, 900_000, 900_001, 2_000_000])
        found = np.concatenate(list(_blocks(bounds, 10)))
        assert found.tolist() == [0, 1, 2, 3, 4]

    def test_pooling_a_pooled_kind_uses_stored_tokens_and_runs_nothing(self, tiny32, tmp_path, monkeypatch):
        model = tiny32("bert-mlm")
        capture(model, TEXT, folder=tmp_path)
        monkeypatch.setattr(capturing, "forward", None)
        assert capture(model, TEXT, folder=tmp_path, pooling="mean").pooled(1, "mean").shape == (9, 24)

    def test_cls_is_refused_with_the_reason(self, tiny32, tiny_folders, tmp_path):
        for pooling in (None, "cls"):
            with pytest.raises(Incomparable, match="adds no classification token"):
                capture(tiny32("gpt2"), TEXT, folder=tmp_path, pooling=pooling).pooled(1, "cls")
        causal = load_model(str(tiny_folders("gpt2")))
        object.__setattr__(causal, "maybe_tokenizer", tiny32("bert-mlm").tokenizer)
        object.__setattr__(causal, "fingerprint", "another")
        with pytest.raises(Incomparable, match="reads from left to right"):
            capture(causal, TEXT, folder=tmp_path, pooling="cls")
        assert list((tmp_path / "states").glob("*.tmp")) == []

    def test_a_sentence_without_tokens_is_a_row_of_nan_and_a_notice(self, tiny32, tmp_path):
        model = tiny32("bert-mlm")
        corpus = Corpus("with a gap", ("ab cd", "\u200b", "ef"))
        states = capture(model, corpus, folder=tmp_path / "a")
        assert any("finds no token in sentence 2" in notice for notice in states.notices)
        kept = capture(model, corpus, folder=tmp_path / "b", pooling="mean")
        for pooled in (
            states.pooled(1, "mean"),
            states.pooled(2, "last"),
            states.pooled(1, "cls"),
            kept.pooled(1, "mean"),
        ):
            assert np.isnan(pooled).all(axis=1).tolist() == [False, True, False]

    def test_words_of_two_tokenizers_are_pooled_to_the_same_words(self, tiny32, tmp_path):
        a, b = (capture(tiny32(name), TEXT, folder=tmp_path) for name in ("bert-mlm", "gpt2"))
        aligned = align_words(TEXT.sentences, a.index, b.index)
        assert aligned.coverage == 1.0
        words_a, words_b = a.words(1, aligned.a), b.words(1, aligned.b)
        assert len(words_a) == len(words_b) == len(aligned)
        for word in range(0, len(aligned), 5):
            sentence, start, end = (int(getattr(aligned.a, name)[word]) for name in ("sentence", "start", "end"))
            for states, found in ((a, words_a), (b, words_b)):
                index = states.index
                inside = (index.sentence == sentence) & (index.end > start) & (index.start < end)
                inside &= index.start + (TEXT.sentences[sentence][start - 1 : start] == " ") >= start - 1
                assert close(found[word], states.layer(1)[inside].astype(np.float64).mean(0))
        last = a.words(1, aligned.a, "last")
        assert np.array_equal(last, a.layer(1)[aligned.a.first + aligned.a.count - 1])
        with pytest.raises(Incomparable, match="align the words of this model"):
            a.words(1, aligned.b)


class TestLayers:
    def test_layers_requested_in_reverse_carry_their_own_values(self, tiny32, tmp_path):
        model = tiny32("gpt2")
        forwards = capture(model, TEXT, [0, 1, 2], folder=tmp_path / "a")
        backwards = capture(model, TEXT, [2, 1, 0], folder=tmp_path / "b")
        for k in (0, 1, 2):
            assert np.array_equal(forwards.layer(k), backwards.layer(k))
        assert not np.allclose(forwards.layer(0), forwards.layer(2))

    def test_only_the_chosen_layers_are_held_and_kept(self, tiny32, tmp_path, monkeypatch):
        held = []
        observe = forward._observe

        def spy(*arguments):
            seen = observe(*arguments)
            held.append(set(seen))
            return seen

        monkeypatch.setattr(forward, "_observe", spy)
        states = capture(tiny32("gpt2"), TEXT, [1], folder=tmp_path)
        assert held == [{"1"}]
        assert set(manifest_of(tmp_path, states)["description"]["arrays"]) == {"index", "token-1"}
        with pytest.raises(SettingsError, match=r"Layer 2 of .* was not captured; captured are 1"):
            states.layer(2)

    def test_layers_asked_for_later_are_added_to_those_already_there(self, tiny32, tmp_path, monkeypatch):
        model = tiny32("gpt2")
        first = capture(model, TEXT, [1], folder=tmp_path)
        before = (tmp_path / "states" / first.key / "token-1.npy").stat().st_mtime_ns
        wanted = []
        real = capturing.forward
        monkeypatch.setattr(capturing, "forward", lambda *a: wanted.append(a[2]) or real(*a))
        both = capture(model, TEXT, [1, 2], folder=tmp_path)
        assert wanted == [{"2", "2-block"}]
        assert (tmp_path / "states" / first.key / "token-1.npy").stat().st_mtime_ns == before
        fresh = capture(model, TEXT, folder=tmp_path / "fresh")
        for k in (1, 2):
            assert np.array_equal(both.layer(k), fresh.layer(k))

    @pytest.mark.parametrize("layers", [[3], [-1], [0, 99], ["1"], [True], [1.0]])
    def test_an_unknown_layer_is_named(self, layers, tiny32, tmp_path):
        with pytest.raises(SettingsError, match=r"There is no layer .* in .*numbered 0 \(embedding output\) to 2"):
            capture(tiny32("gpt2"), TEXT, layers, folder=tmp_path)
        assert not (tmp_path / "states").exists()

    def test_other_settings_that_cannot_be(self, tiny32, tmp_path):
        with pytest.raises(SettingsError, match="No layer"):
            capture(tiny32("gpt2"), TEXT, [], folder=tmp_path)
        with pytest.raises(SettingsError, match="cannot be pooled by 'max'"):
            capture(tiny32("gpt2"), TEXT, pooling="max", folder=tmp_path)
        with pytest.raises(SettingsError, match="batch_tokens cannot be 0"):
            capture(tiny32("gpt2"), TEXT, batch_tokens=0, folder=tmp_path)


class TestObserving:
    def test_a_model_that_swallows_output_hidden_states_is_captured_all_the_same(self, tiny_folders, tiny32, tmp_path):
        expected = capture(tiny32("gpt2"), TEXT, folder=tmp_path / "a")
        model = load_model(str(tiny_folders("gpt2")))
        base, plain = model.module.base_model, model.module.base_model.forward

        def deaf(*args, output_hidden_states=None, **kwargs):
            return plain(*args, **kwargs)

        base.forward = deaf
        assert base(torch.tensor([[1]]), output_hidden_states=True).hidden_states is None
        states = capture(model, TEXT, folder=tmp_path / "b")
        for k in states.layers:
            assert np.array_equal(states.layer(k), expected.layer(k))

    def test_a_model_that_does_not_run_its_blocks_is_refused(self, tiny_folders, tmp_path):
        model = load_model(str(tiny_folders("gpt2")))
        model.module.base_model.forward = lambda input_ids, **_: input_ids
        with pytest.raises(UnsupportedFamily, match=r"does not show the states of layer 0 \(its block is not run\)"):
            capture(model, TEXT, folder=tmp_path)
        assert list((tmp_path / "states").iterdir()) == []

    def test_blocks_that_give_tuples_and_blocks_that_give_tensors_are_read_alike(self, tiny_folders, tiny32, tmp_path):
        two = Corpus("two", ("ab cd ef", "gh ij kl"))
        expected = capture(tiny32("bert-mlm"), two, folder=tmp_path / "a")
        assert len(list(batches(np.array([5, 5]), 4096))) == 1  # both sentences in one batch
        model = load_model(str(tiny_folders("bert-mlm")))
        for block in model.module.bert.encoder.layer:
            plain = block.forward
            block.forward = lambda *a, plain=plain, **k: (plain(*a, **k), "attention")
        part = model.module.bert.encoder
        plain_encoder = part.forward

        def unpack(*args, **kwargs):
            for block in part.layer:
                block.register_forward_hook(lambda m, a, out: out[0] if isinstance(out, tuple) else out)
            return plain_encoder(*args, **kwargs)

        part.forward = unpack
        states = capture(model, two, folder=tmp_path / "b")
        for k in states.layers:
            assert np.array_equal(states.layer(k), expected.layer(k))

    def test_no_hook_is_left_after_success_nor_after_an_exception_and_the_model_can_be_copied(
        self, tiny_folders, tmp_path, monkeypatch
    ):
        model = load_model(str(tiny_folders("gpt2")))

        def hooks():
            return [h for m in model.module.modules() for h in (*m._forward_hooks, *m._forward_pre_hooks)]

        before = hooks()
        capture(model, TEXT, folder=tmp_path / "a")
        assert hooks() == before
        monkeypatch.setattr(model.module.base_model.h[1], "forward", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            capture(model, TEXT, folder=tmp_path / "b")
        monkeypatch.undo()
        assert hooks() == before
        copy.deepcopy(model.module)

    def test_no_autograd_graph_is_built_even_if_parameters_want_gradients(self, tiny_folders, tmp_path, monkeypatch):
        model = load_model(str(tiny_folders("gpt2")))
        model.module.requires_grad_(True)
        seen = []
        observe = forward._observe
        monkeypatch.setattr(forward, "_observe", lambda *a: seen.append(observe(*a)) or seen[-1])
        capture(model, TEXT, folder=tmp_path)
        assert seen
        assert all(state.grad_fn is None and not state.requires_grad for found in seen for state in found.values())
        assert torch.is_grad_enabled()

    def test_another_threads_pass_through_the_model_is_not_mistaken_for_ours(self, tiny32, tmp_path, monkeypatch):
        model = tiny32("gpt2")
        expected = capture(model, TEXT, folder=tmp_path / "a")
        real = model.module.base_model.forward

        def disturbed(*args, **kwargs):
            out = real(*args, **kwargs)
            if threading.current_thread() is threading.main_thread():
                other = threading.Thread(target=lambda: real(torch.tensor([[5, 6, 7]])))
                other.start()
                other.join()
            return out

        monkeypatch.setattr(model.module.base_model, "forward", disturbed)
        states = capture(model, TEXT, folder=tmp_path / "b")
        for k in states.layers:
            assert np.array_equal(states.layer(k), expected.layer(k))

    def test_a_batch_too_large_for_the_gpu_is_halved_until_it_fits(self, tiny32, tmp_path, monkeypatch):
        model = tiny32("gpt2")
        expected = capture(model, TEXT, folder=tmp_path / "a")
        observe = forward._observe
        sizes = []

        def small(model, stack, wanted, encoded, batch, what):
            sizes.append(len(batch))
            if len(batch) > 2:
                raise torch.OutOfMemoryError("too much")
            return observe(model, stack, wanted, encoded, batch, what)

        monkeypatch.setattr(forward, "_observe", small)
        states = capture(model, TEXT, folder=tmp_path / "b")
        assert max(sizes) > 2 >= min(sizes)
        assert close(states.layer(2), expected.layer(2))

    @pytest.mark.parametrize("batch_tokens", [1, 50, 10_000])
    def test_batches_hold_every_sentence_once_longest_first_within_the_bound(self, batch_tokens):
        lengths = np.array([3, 0, 60, 5, 5, 1, 7, 0])
        found = list(batches(lengths, batch_tokens))
        assert sorted(np.concatenate(found).tolist()) == [0, 2, 3, 4, 5, 6]
        for batch in found:
            assert len(batch) == 1 or len(batch) * lengths[batch].max() <= batch_tokens
        assert (np.diff(lengths[np.concatenate(found)]) <= 0).all()


class TestBadInput:
    def test_a_corpus_of_one_word_gives_its_tokens(self, tiny32, tmp_path):
        states = capture(tiny32("bert-mlm"), corpus_from_text("ab"), folder=tmp_path)
        assert states.layer(2).shape == (1, 24)
        assert np.isfinite(states.pooled(2, "mean")).all()

    @pytest.mark.parametrize("name", ["bert-mlm", "roberta", "gpt2", "opt", "marian"])
    def test_sentences_longer_than_the_positions_are_cut_with_a_notice_and_keep_their_last_special_token(
        self, name, tiny32, tmp_path
    ):
        model = tiny32(name)
        long = Corpus("long", ("ab " * 100, "cd ef"))
        states = capture(model, long, folder=tmp_path)
        limit = 38 if name == "roberta" else 40  # RoBERTa's positions begin behind the padding's index
        assert any(f"1 of 2 sentences are longer than the {limit} tokens" in notice for notice in states.notices)
        ids = model.tokenizer(long.sentences[0], verbose=False)["input_ids"]
        mask = model.tokenizer(long.sentences[0], return_special_tokens_mask=True, verbose=False)["special_tokens_mask"]
        ends = sum(mask)
        cut = torch.tensor([ids[: limit - 1] + ids[-1:] if ends else ids[:limit]])
        with torch.no_grad():
            expected = runnable(model)(input_ids=cut, output_hidden_states=True).hidden_states
        bounds = states.index.bounds(2)
        keep = slice(1, -1) if ends else slice(None)
        for k in states.layers:
            assert close(np.asarray(states.layer(k)[: bounds[1]]), expected[k][0].numpy()[keep])

    def test_relative_positions_are_bounded_too(self, tiny32, tmp_path, monkeypatch):
        monkeypatch.setattr(forward, "LONGEST", 50)
        states = capture(tiny32("t5"), Corpus("long", ("ab " * 100,)), [1], folder=tmp_path)
        assert len(states.index) == 50
        assert any("longer than the 50 tokens" in notice for notice in states.notices)

    def test_a_model_that_computes_nan_is_refused_with_layer_and_sentence(self, tiny_folders, tmp_path):
        model = load_model(str(tiny_folders("gpt2")))
        token = model.tokenizer("a")["input_ids"][0]
        model.module.requires_grad_(False)
        model.module.transformer.wte.weight[token] = float("nan")
        with pytest.raises(ModelDamaged, match=r"NaN or infinite values in layer 0 of sentence 2"):
            capture(model, Corpus("x", ("go", "a", "no")), folder=tmp_path)
        assert list((tmp_path / "states").iterdir()) == []

    @staticmethod
    def _with_words(tiny_folders, tmp_path, words):
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        folder = shutil.copytree(tiny_folders("gpt2"), tmp_path / "few words")
        known = {word: number for number, word in enumerate(["<unk>", *words])}
        inner = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(folder)
        return load_model(str(folder))

    def test_unknown_tokens_are_counted_and_a_text_of_them_alone_is_refused(self, tiny_folders, tmp_path):
        model = self._with_words(tiny_folders, tmp_path, ["the", "cat", "sat", "on", "a", "mat"])
        known = Corpus("known", ("the cat sat on a mat", "a cat sat"))
        assert not capture(model, known, folder=tmp_path / "states").notices
        partly = Corpus("partly known", ("the cat sat on a mat", "a dog sat", "on the roof"))
        notices = capture(model, partly, folder=tmp_path / "states").notices
        assert any("reads 2 of 12 tokens (17%) as the one unknown token" in notice for notice in notices)
        with pytest.raises(
            InputError, match=r"The vocabulary of .* lacks 5 of the 6 tokens of strange, .* give a text"
        ):
            capture(model, Corpus("strange", ("dog eats bone", "a dog sleeps")), folder=tmp_path / "states")

    def test_a_corpus_in_which_the_tokenizer_finds_nothing_is_refused(self, tiny32, tmp_path):
        with pytest.raises(InputError, match="finds no token in only marks"):
            capture(tiny32("bert-mlm"), Corpus("only marks", ("\u200b", "\u200c")), folder=tmp_path)

    def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(self, tiny_folders, tmp_path):
        model = load_model(str(tiny_folders("gpt2")))
        model.tokenizer.add_tokens(["zzzzzz"])
        with pytest.raises(ModelDamaged, match=r"gives token 1,300, but the model has 1,300 embeddings"):
            capture(model, Corpus("x", ("zzzzzz",)), folder=tmp_path)

    def test_a_model_without_a_tokenizer_is_refused(self, tiny_folders, tmp_path):
        model = load_model(str(tiny_folders("gpt2")))
        object.__setattr__(model, "maybe_tokenizer", None)
        with pytest.raises(ModelDamaged, match="has no tokenizer files"):
            capture(model, TEXT, folder=tmp_path)

    def test_a_tokenizer_without_offsets_has_them_looked_up_with_a_notice(self, tiny32, tiny_folders, tmp_path):
        expected = capture(tiny32("llama"), TEXT, folder=tmp_path / "a")
        model = load_model(str(tiny_folders("llama")))
        slow = type(model.tokenizer)

        class Slow(slow):
            is_fast = False

            def __call__(self, *args, return_offsets_mapping=False, **kwargs):
                assert not return_offsets_mapping
                return super().__call__(*args, **kwargs)

        model.tokenizer.__class__ = Slow
        states = capture(model, TEXT, folder=tmp_path / "b")
        assert any("does not tell where its tokens stand" in notice for notice in states.notices)
        aligned = align_words(TEXT.sentences, expected.index, states.index)
        assert aligned.coverage > 0.8  # punctuation is spelt in bytes, which the text does not show
        for one, other in ((aligned.a.first, aligned.b.first), (aligned.a.count, aligned.b.count)):
            assert np.array_equal(one, other)

    def test_of_an_encoder_decoder_the_encoder_is_captured_and_said_so(self, tiny32, tmp_path):
        states = capture(tiny32("marian"), TEXT, folder=tmp_path)
        assert states.n_layers == 1  # the encoder's; the decoder has two
        assert any("the encoder's states are captured" in notice for notice in states.notices)


class TestFiles:
    def test_a_second_capture_runs_nothing_and_gives_the_same(self, tiny32, tmp_path, monkeypatch):
        model = tiny32("gpt2")
        first = capture(model, TEXT, folder=tmp_path)
        monkeypatch.setattr(capturing, "forward", None)
        again = capture(model, TEXT, folder=tmp_path)
        assert again.key == first.key
        assert np.array_equal(again.layer(2), first.layer(2))
        assert again.notices == first.notices

    def test_other_text_dtype_and_weights_have_other_keys_and_other_labels_have_not(self, tiny32, tiny_model, tmp_path):
        keys = {
            capture(tiny32("gpt2"), TEXT, [0], folder=tmp_path).key,
            capture(tiny_model("gpt2"), TEXT, [0], folder=tmp_path).key,
            capture(tiny32("gpt2-plain"), TEXT, [0], folder=tmp_path).key,
            capture(tiny32("gpt2"), Corpus("x", TEXT.sentences[::-1]), [0], folder=tmp_path).key,
        }
        assert len(keys) == 4
        labelled = Corpus("named otherwise", TEXT.sentences, tuple("abcdefghi"))
        assert capture(tiny32("gpt2"), labelled, [0], folder=tmp_path).key in keys

    def test_stopping_midway_leaves_nothing_behind(self, tiny32, tmp_path):
        def stop(done, total, message):
            if done:
                raise Cancelled("The run was cancelled.")

        with pytest.raises(Cancelled):
            capture(tiny32("gpt2"), TEXT, folder=tmp_path, batch_tokens=20, progress=stop)
        assert list((tmp_path / "states").iterdir()) == []
        assert capture(tiny32("gpt2"), TEXT, folder=tmp_path).layer(1).shape[1] == 24

    def test_progress_counts_tokens_up_to_all(self, tiny32, tmp_path):
        steps = []
        capture(tiny32("gpt2"), TEXT, folder=tmp_path, batch_tokens=20, progress=lambda *step: steps.append(step))
        counted = [done for done, total, _ in steps if total]
        assert counted == sorted(counted)
        assert counted[0] == 0
        assert counted[-1] == steps[-1][1] > 0
        assert all(isinstance(message, str) and message for _, _, message in steps)

    @pytest.mark.parametrize("spoil", ["flip", "cut", "remove", "manifest", "manifest field", "other key"])
    def test_damaged_states_are_recognised_and_made_again(self, spoil, tiny32, tmp_path):
        model = tiny32("gpt2")
        good = capture(model, TEXT, folder=tmp_path)
        expected = np.array(good.layer(1))
        folder = tmp_path / "states" / good.key
        target, manifest = folder / "token-1.npy", folder / "manifest.json"
        if spoil == "flip":
            data = bytearray(target.read_bytes())
            data[-5] ^= 1
            target.write_bytes(data)
        elif spoil == "cut":
            target.write_bytes(target.read_bytes()[:-8])
        elif spoil == "remove":
            target.unlink()
        elif spoil == "manifest":
            manifest.write_text("{", encoding="utf-8")
        elif spoil == "manifest field":
            manifest.write_text(manifest.read_text().replace('"width":24', '"width":12'), encoding="utf-8")
        else:
            content = json.loads(manifest.read_text())
            content["description"]["key"] = "0" * 64
            manifest.write_text(json.dumps(content), encoding="utf-8")
        again = capture(model, TEXT, folder=tmp_path)
        assert np.array_equal(again.layer(1), expected)
        assert any("were damaged" in notice for notice in again.notices)
        assert capture(model, TEXT, folder=tmp_path).notices == good.notices

    def test_a_tokenizer_that_cuts_otherwise_now_does_not_mix_with_what_is_stored(self, tiny_folders, tmp_path):
        model = load_model(str(tiny_folders("bert-mlm")))
        capture(model, TEXT, [1], folder=tmp_path)
        real = capturing.encode
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(capturing, "encode", lambda s, *a: real([text[:2] for text in s], *a))
            states = capture(model, TEXT, [2], folder=tmp_path)
        assert len(states.layer(2)) == len(states.index) < len(TEXT) * 3
        assert "token-1" not in manifest_of(tmp_path, states)["description"]["arrays"]

    def test_two_threads_that_ask_for_the_same_compute_it_once(self, tiny32, tmp_path, monkeypatch):
        model = tiny32("gpt2")
        computed, found, waited = [], [], []
        real = capturing._Request.compute

        def slow(self, *args):
            computed.append(1)
            time.sleep(0.4)
            real(self, *args)

        def ask():
            states = capture(model, TEXT, folder=tmp_path, progress=lambda *step: waited.append(step[2]))
            found.append(np.array(states.layer(2)))

        monkeypatch.setattr(capturing._Request, "compute", slow)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(computed) == 1
        assert len(found) == 3
        assert all(np.array_equal(each, found[0]) for each in found)
        assert any("waiting for it" in message for message in waited)

    def test_the_least_recently_used_go_first_and_stay_readable_while_open(self, tiny32, tmp_path):
        model = tiny32("gpt2")
        corpora = [Corpus(str(number), (f"ab cd {letter}", "no")) for number, letter in enumerate("efg")]
        first = capture(model, corpora[0], folder=tmp_path)
        copy_of = np.array(first.layer(1))
        bound = int(2.5 * StateFolder(tmp_path / "states").size())
        second = capture(model, corpora[1], folder=tmp_path, max_bytes=bound)
        os.utime(tmp_path / "states" / second.key / "manifest.json", (1, 1))
        third = capture(model, corpora[2], folder=tmp_path, max_bytes=bound)
        kept = {path.name for path in (tmp_path / "states").iterdir()}
        assert kept == {first.key, third.key}
        store = StateFolder(tmp_path / "states", bound)
        assert store.size() <= bound
        assert store.clear() == 2
        assert store.size() == 0
        assert np.array_equal(first.layer(1), copy_of)

    def test_states_beyond_the_bound_are_refused_before_anything_runs(self, tiny32, tmp_path, monkeypatch):
        monkeypatch.setattr(capturing, "forward", None)
        with pytest.raises(StoreError, match="choose fewer layers or sentences"):
            capture(tiny32("gpt2"), TEXT, folder=tmp_path, max_bytes=1000)
        assert list((tmp_path / "states").iterdir()) == []
        monkeypatch.setattr(files, "_free_bytes", lambda folder: 10)
        with pytest.raises(StoreError, match="free some space"):
            capture(tiny32("gpt2"), TEXT, folder=tmp_path)

    def test_a_disk_that_fills_up_midway_is_a_sentence_and_leaves_nothing(self, tiny32, tmp_path, monkeypatch):
        def full(self, row, values):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files.ArrayWriter, "write", full)
        with pytest.raises(StoreError, match="no space left on device; free some space"):
            capture(tiny32("gpt2"), TEXT, folder=tmp_path)
        assert list((tmp_path / "states").iterdir()) == []

    def test_a_folder_that_is_none_is_a_sentence(self, tiny32, tmp_path):
        (tmp_path / "states").write_text("a file stands in the way")
        found = capture(tiny32("gpt2"), TEXT, folder=tmp_path)
        assert found.layer(1).shape[1] == 24
        assert any("a file lies where its folder belongs" in notice for notice in found.notices)
        assert (tmp_path / "damaged" / "states").read_text() == "a file stands in the way"
        (tmp_path / "none").symlink_to(tmp_path / "nowhere")
        with pytest.raises(StoreError, match="cannot be kept in .*: it is a link to a folder that is not there"):
            StateFolder(tmp_path / "none").lock("0" * 64).__enter__()

    @pytest.mark.parametrize(
        "what", ["file", "pipe", "link to nothing", "manifest", "manifest pipe", "array", "lock", "tmp"]
    )
    def test_what_is_of_the_wrong_kind_gives_way_with_a_notice(self, what, tiny32, tmp_path):
        model = tiny32("gpt2")
        good = capture(model, TEXT, folder=tmp_path)
        expected = np.array(good.layer(1))
        folder = tmp_path / "states" / good.key
        if what in ("file", "pipe", "link to nothing"):
            shutil.rmtree(folder)
        if what == "file":
            folder.write_text("mine")
        elif what == "pipe":
            os.mkfifo(folder)
        elif what == "link to nothing":
            folder.symlink_to(tmp_path / "nowhere")
        elif what == "lock":
            shutil.rmtree(folder)
            folder.with_suffix(".lock").mkdir()
        elif what == "tmp":
            shutil.rmtree(folder)
            (folder.parent / f".{good.key}.tmp").write_text("half")
        else:
            target = folder / ("token-1.npy" if what == "array" else "manifest.json")
            target.unlink()
            if what == "manifest pipe":
                os.mkfifo(target)
            else:
                target.mkdir()
        again = capture(model, TEXT, folder=tmp_path)
        assert np.array_equal(again.layer(1), expected)
        if what not in ("lock", "tmp"):
            assert any("belongs) and have been computed again" in notice for notice in again.notices)
        if what == "file":
            assert (tmp_path / "damaged" / good.key).read_text() == "mine"
        assert capture(model, TEXT, folder=tmp_path).notices == good.notices
        assert [path.name for path in (tmp_path / "states").iterdir()] == [good.key]

    def test_sizes_are_told_apart_however_small(self, tiny32, tmp_path, monkeypatch):
        with pytest.raises(StoreError, match=r"need \d+\.\d kB, but 20 bytes may be kept"):
            capture(tiny32("gpt2"), TEXT, folder=tmp_path, max_bytes=20)
        monkeypatch.setattr(files, "_free_bytes", lambda folder: 7)
        with pytest.raises(StoreError, match=r"need \d+\.\d kB and the disk of .* has 7 bytes free; free some space"):
            capture(tiny32("gpt2"), TEXT, folder=tmp_path)

    def test_the_bound_comes_from_the_environment(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EMBCOMPARE_STATES_BYTES", "123")
        assert StateFolder(tmp_path).max_bytes == 123
        monkeypatch.setenv("EMBCOMPARE_STATES_BYTES", "plenty")
        with pytest.raises(SettingsError, match="cannot be 'plenty'; give a whole number of bytes"):
            StateFolder(tmp_path)

    def test_a_key_that_is_a_path_is_refused(self, tmp_path):
        for key in ("../../etc", "", "a" * 63, "A" * 64):
            with pytest.raises(StoreError, match="not the key"):
                StateFolder(tmp_path).read(key)


SCRIPT = """
import sys, time
from pathlib import Path
from embcompare.activations import capture, capturing
from embcompare.models import load_model
from embcompare.text.corpora import Corpus
folder, cache, log, mode = sys.argv[1:]
model = load_model(folder)
real = capturing._Request.compute
def logged(self, *args):
    with open(log, "a") as file:
        file.write("computed\\n")
    real(self, *args)
capturing._Request.compute = logged
def slow(done, total, message):
    if total and done:
        print("midway", flush=True)
        time.sleep(60 if mode == "kill" else 0.2)
corpus = Corpus("x", tuple(f"ab cd {letter} no" for letter in "efghijkl"))
states = capture(model, corpus, folder=Path(cache), batch_tokens=10, progress=slow)
print(states.key, float(states.layer(2).sum()), flush=True)
"""


class TestProcesses:
    def start(self, *arguments):
        command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)

    def test_two_processes_that_ask_for_the_same_compute_it_once(self, tiny_folders, tmp_path):
        log = tmp_path / "log"
        both = [self.start(tiny_folders("gpt2"), tmp_path, log, "wait") for _ in range(2)]
        outputs = [process.communicate(timeout=100)[0].splitlines() for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert log.read_text().count("computed") == 1
        assert outputs[0][-1] == outputs[1][-1]

    def test_a_process_killed_midway_leaves_nothing_half_and_nothing_in_the_way(self, tiny_folders, tmp_path):
        killed = self.start(tiny_folders("gpt2"), tmp_path, tmp_path / "log", "kill")
        assert killed.stdout.readline() == "midway\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait(20)
        killed.stdout.close()
        left = [path.name for path in (tmp_path / "states").iterdir()]
        assert any(name.endswith(".tmp") for name in left)
        assert not any(len(name) == 64 for name in left)
        other = capture(load_model(str(tiny_folders("bert-mlm"))), TEXT, folder=tmp_path)
        assert {path.name for path in (tmp_path / "states").iterdir()} == {other.key}  # the next writer tidies up
        corpus = Corpus("x", tuple(f"ab cd {letter} no" for letter in "efghijkl"))
        assert len(capture(load_model(str(tiny_folders("gpt2"))), corpus, folder=tmp_path).layer(2)) > 8

    def test_memory_does_not_grow_with_the_corpus(self, tmp_path):
        code = """
import sys
from pathlib import Path
import torch, transformers
sys.path.insert(0, "tests")
from tiny import bytes_tokenizer
from embcompare.activations import capture
from embcompare.models import load_model
from embcompare.text.corpora import Corpus
folder = Path(sys.argv[1])
config = transformers.GPT2Config(vocab_size=1300, n_embd=256, n_layer=2, n_head=4, n_inner=64, n_positions=64,
                                 bos_token_id=1299, eos_token_id=1299, pad_token_id=1299)
transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
bytes_tokenizer().save_pretrained(folder / "model")
model = load_model(str(folder / "model"))
def most():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
text = "the cat sat on a mat and it was fat "
capture(model, Corpus("small", tuple(text + str(n) for n in range(200))), folder=folder, batch_tokens=1024)
small = most()
states = capture(model, Corpus("large", tuple(text + str(n) for n in range(1800))), folder=folder, batch_tokens=1024)
print(most() - small, sum(states.layer(k).nbytes for k in states.layers) / 2**20)
"""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
            check=False,
        )
        grown, kept = map(float, done.stdout.split()[-2:])
        assert kept > 100, done.stderr
        assert grown < kept / 4
