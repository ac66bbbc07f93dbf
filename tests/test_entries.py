"""How stored results are called: their sides, and the settings that are not the defaults."""

import numpy as np
import pytest

from embcompare import entries, kept
from embcompare.cli import main
from embcompare.experiments.base import execute
from embcompare.folders import Item
from embcompare.shelf import Shelf
from embcompare.store import Entry, Store
from embcompare.text.corpora import corpus_from_text
from embcompare.text.uploads import Vectors

TEXT, VECTORS = f"text/{'a' * 64}", f"vectors/{'b' * 64}"


def entry(experiment="representation-similarity", **settings):
    return Entry("k" * 64, experiment, 1, settings, {}, 10, 0.0, 0.0, 1.0)


def test_only_what_is_no_default_is_said():
    sides = {"model_a": "demo/gpt2-a", "model_b": "demo/gpt2-b"}
    one = entry(**sides, measure="mutual_knn", k=25, corpus="shipped", centred=True)
    assert entries.changed(one) == {"measure": "mutual_knn", "k": 25}
    assert entries.described(one) == "measure=mutual_knn, k=25"
    assert entries.sides(one) == ("demo/gpt2-a", "demo/gpt2-b")
    assert entries.described(entry(model_a="a", model_b="b", null_draws=20)) == "all defaults"
    assert entries.described(entry(model_a="a", model_b="b", standardise=True)) == "standardise=true"


def test_settings_without_a_default_are_always_said():
    one = entry("parameter-matches", model_a="a", model_b="b", layer_a=0, layer_b=2, group="ff_keys")
    assert entries.described(one) == "layer_a=0, layer_b=2"
    assert entries.sides(entry("token-reading", model="demo/gpt2-a", layer=3)) == ("demo/gpt2-a",)


def test_settings_of_an_experiment_that_is_gone_are_all_said():
    assert entries.described(entry("gone", model_a="a", depth=3)) == "depth=3"
    assert entries.sides(entry("gone", depth=3)) == ()


def test_what_a_user_brought_is_called_by_its_title_else_by_its_first_digits():
    items = [Item(TEXT, "text", "mine.csv", 1, 0.0), Item(VECTORS, "vectors", "", 1, 0.0)]
    items.append(Item("states/x", "hidden states", "demo/gpt2-a on it", 1, 0.0))
    known = entries.titles(items)
    assert known == {TEXT: "mine.csv"}
    assert entries.called(TEXT, known) == "mine.csv"
    assert entries.called(VECTORS, known) == f"vectors/{'b' * 8}…"
    assert entries.called("demo/gpt2-a", known) == "demo/gpt2-a"
    twice = entries.titles([Item(TEXT, "text", "x", 1, 0.0), Item(VECTORS, "vectors", "x", 1, 0.0)])
    assert twice == {TEXT: "x (aaaaaa)", VECTORS: "x (bbbbbb)"}


def test_long_values_are_cut_and_odd_ones_stay_on_one_line():
    said = entries.described(entry("token-reading", model="m", combination="1, 2\n" * 100))
    assert said.startswith("combination=1, 2?1, 2?")
    assert said.endswith("…")
    assert len(said) < 60


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "cache"))
    return Store()


def test_the_command_line_tells_results_of_one_experiment_and_pair_apart(store, capsys):
    from embcompare.experiments.representations import RepresentationSimilarity
    from embcompare.running import RunContext, fingerprints

    shelf = Shelf(store)
    rng = np.random.default_rng(0)
    names = [shelf.keep_vectors(Vectors(name, rng.normal(size=(30, 4)))) for name in ("old.npy", "new.npy")]
    text = shelf.keep_corpus(corpus_from_text("One line.", name="reviews.csv"))
    for settings in (
        RepresentationSimilarity(*names, null_draws=0, halves=0),
        RepresentationSimilarity(*names, measure="mutual_knn", k=5, null_draws=0, halves=0, corpus=text),
    ):
        prints = fingerprints(settings)
        result = execute(settings, RunContext("cpu", store=store), prints)
        store.put(store.key(settings, prints), result, settings)
    assert main(["results"]) == 0
    out = capsys.readouterr().out
    assert VECTORS[:8] not in out
    assert len(out.splitlines()) == 2
    assert all("representation-similarity  old.npy × new.npy  " in line for line in out.splitlines())
    assert "  null_draws=0, halves=0  " in out
    assert "  measure=mutual_knn, corpus=reviews.csv, k=5, null_draws=0, halves=0  " in out
    kept.clear("vectors", store)
    assert main(["results"]) == 0
    assert f"{names[0][:16]}… × {names[1][:16]}…" in capsys.readouterr().out
