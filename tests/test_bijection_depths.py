"""Bijection by depth: each depth is the bijection of its pair of layers, and known truths are told apart by depth."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest

import embcompare
from embcompare.errors import Cancelled, Incomparable, SettingsError
from embcompare.experiments.bijection_depths import BijectionDepths, parse_layers
from embcompare.store import Store
from embcompare.text.corpora import shipped_corpus
from embcompare.text.uploads import Vectors

QUICK = {"epochs": 2, "max_rows": 400}


class Context:
    """Lends models, a corpus and vectors by name; ``stop`` is raised at the first report whose message holds a text."""

    device = "cpu"

    def __init__(self, states, models=None, vectors=(), stop=None):
        self.states, self.models = states, models or {}
        whole = shipped_corpus()
        self.text = dataclasses.replace(whole, sentences=whole.sentences[:40], labels=whole.labels[:40])
        self.given = {f"vectors/{v.name}": v for v in vectors}
        self.stop, self.reports = stop, []

    def lease(self, name):
        return nullcontext(self.models[name])

    def corpus(self, name):
        return self.text

    def vectors(self, name):
        return self.given[name]

    def report(self, done, total, message, partial=None):
        assert 0 <= done <= total
        self.reports.append((done, total, message, partial))
        if self.stop is not None and self.stop in message:
            raise Cancelled("stopped")


@pytest.fixture
def models(tiny_model):
    return {"a": tiny_model("gpt2"), "b": tiny_model("gpt2", 1)}


def test_every_depth_is_the_bijection_of_its_layers(tmp_path, models):
    context = Context(tmp_path, models)
    asked = BijectionDepths("a", "b", **QUICK)
    found = asked.compute(context)
    blocks = models["a"].anatomy.n_layers
    assert found.layers.tolist() == [[k, k] for k in range(blocks + 1)]
    for at, (a, b) in enumerate(found.layers.tolist()):
        alone = asked.at(a, b).compute(Context(tmp_path / "other", models))
        np.testing.assert_array_equal(found.scores[at], alone.scores)
        np.testing.assert_array_equal(found.gaps[at], alone.gaps)
        assert (found.kinds[at], found.sentences[at]) == (alone.kind, alone.sentence)
        assert (found.names_a[at], tuple(found.rows[at])) == (alone.name_a, alone.rows)
    done = [step[0] for step in context.reports]
    assert done == sorted(done)
    assert done[-1] == context.reports[-1][1]


def known_depths(generator):
    """Three layers a side: unrelated, a rotation, and a bend that a rotation cannot follow and a network can."""
    x = generator.normal(size=(3, 1500, 4)).astype(np.float32)
    turn = np.linalg.qr(generator.normal(size=(4, 4)))[0]
    bent = x[2] @ turn
    bent[:, 1] += np.tanh(2 * bent[:, 0]) * 3 - 2 * bent[:, 0] ** 2
    y = np.stack([generator.normal(size=(1500, 4)), x[1] @ turn, bent]).astype(np.float32)
    return Vectors("a", x), Vectors("b", y)


def test_known_truths_are_told_apart_by_depth(tmp_path):
    context = Context(tmp_path, vectors=known_depths(np.random.default_rng(0)))
    asked = BijectionDepths("vectors/a", "vectors/b", standardise=False, epochs=60, max_rows=1500)
    found = asked.compute(context)
    assert found.kinds == ("unrelated", "rotation", "bijection")
    assert "1 of 3 depths" in found.sentence
    gap, low, high = found.gap("linear", "inn")[2]
    assert low > 0.1
    assert low < gap < high
    assert f"{gap:+.3f}" in found.sentence
    assert found.of("ridge")[1] == pytest.approx(1, abs=1e-6)
    assert abs(found.of("inn")[0]) < 0.05
    frame = found.to_frame()
    assert len(frame) == 3 * len(found.maps) * 2
    assert set(frame.loc[frame["layer_a"] == 1, "kind"]) == {"rotation"}
    assert len(found.gap_frame()) == 3 * len(found.gap_names)


def test_depths_of_unequal_models_are_matched_by_their_share(tmp_path):
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(5, 200, 3)), generator.normal(size=(3, 200, 3))
    context = Context(tmp_path, vectors=(Vectors("a", x), Vectors("b", y)))
    found = BijectionDepths("vectors/a", "vectors/b", maps="ridge").compute(context)
    assert found.layers.tolist() == [[0, 0], [1, 0], [2, 1], [3, 2], [4, 2]]
    assert found.kinds == ("",) * 5
    assert found.sentence == ""
    assert found.gaps.shape == (5, 0, 3)


def test_chosen_pairs_of_layers_are_read_in_their_order(tmp_path, models):
    found = BijectionDepths("a", "b", layers="2:1 0:0,2:1", maps="ridge", **QUICK).compute(Context(tmp_path, models))
    assert found.layers.tolist() == [[2, 1], [0, 0]]
    assert BijectionDepths("a", "b", layers=" 2:1,0:0") == BijectionDepths("a", "b", layers="2:1, 0:0")
    with pytest.raises(SettingsError, match="has no layer 9"):
        BijectionDepths("a", "b", layers="9:0", maps="ridge", **QUICK).compute(Context(tmp_path, models))


@pytest.mark.parametrize("text", ["2", "2-3", "a:b", "1:2:3", "-1:2", "1:", "²:1", "1:99999999999999"])
def test_what_is_no_list_of_layers_is_said(text):
    with pytest.raises(SettingsError, match="written as 2:3, 4:4"):
        BijectionDepths("a", "b", layers=text)


def test_layers_parse():
    assert parse_layers("") == ()
    assert parse_layers("2:3,4:4  2:3") == ((2, 3), (4, 4))


def test_what_a_block_adds_begins_at_its_first_block(tmp_path, models):
    found = BijectionDepths("a", "b", what="attention", maps="ridge", **QUICK).compute(Context(tmp_path, models))
    assert found.layers[0].tolist() == [1, 1]


def test_a_depth_that_cannot_be_read_is_left_out_with_its_reason(tmp_path):
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(2, 2, 60, 3))
    y[1] = 1.0
    context = Context(tmp_path, vectors=(Vectors("a", x), Vectors("b", y)))
    found = BijectionDepths("vectors/a", "vectors/b", maps="ridge, orthogonal", standardise=False).compute(context)
    assert np.isfinite(found.of("ridge")[0])
    assert np.isnan(found.of("ridge")[1])
    assert any(at == 1 for at, _, _ in found.reasons)
    both = Context(tmp_path, vectors=(Vectors("a", x), Vectors("b", np.ones_like(y))))
    with pytest.raises(Incomparable):
        BijectionDepths("vectors/a", "vectors/b", maps="ridge", standardise=False).compute(both)


def test_stopping_is_no_failure_of_a_depth_and_partial_results_hold_the_depths_done(tmp_path, models):
    context = Context(tmp_path, models, stop="layer 1 of A, 1 of B")
    with pytest.raises(Cancelled):
        BijectionDepths("a", "b", maps="ridge", **QUICK).compute(context)
    partial = [step[3] for step in context.reports if step[3] is not None][-1]
    assert np.isfinite(partial.of("ridge")[0])
    assert np.isnan(partial.of("ridge")[1:]).all()


def test_it_is_stored_and_read_again(tmp_path):
    store = Store(tmp_path)
    asked = embcompare.BijectionDepths("demo/gpt2-a", "demo/gpt2-b", layers="2:2", maps="ridge", max_rows=400)
    first = embcompare.run(asked, store=store)
    again = embcompare.run(asked, store=store)
    assert again.provenance["cached"]
    np.testing.assert_array_equal(first.scores, again.scores)
    assert again.layers.tolist() == [[2, 2]]
    with pytest.raises(SettingsError, match="no map 'inn' here"):
        again.of("inn")
    with pytest.raises(SettingsError, match="was not taken"):
        again.gap("linear", "inn")
