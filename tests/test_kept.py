"""What is kept beside the results can be listed and deleted, by name and by kind."""

import json
import os
import threading

import numpy as np
import pytest

from embcompare import kept
from embcompare.activations.files import StateFolder
from embcompare.cli import main
from embcompare.errors import SettingsError, StoreError
from embcompare.experiments.bijection_fits import FitFolder
from embcompare.shelf import Shelf
from embcompare.store import Store
from embcompare.text.corpora import corpus_from_text
from embcompare.text.uploads import Vectors

KEY = "0123456789abcdef" * 4


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "cache"))
    return Store()


def captured(store, key=KEY, **description):
    """Write states as a capture does."""
    states = StateFolder(store.folder / "states")
    with states.lock(key), states.writing(key, description, {"token-0": (5, 4)}, {}) as writers:
        writers["token-0"].write(0, np.ones((5, 4)))
    return f"states/{key}"


@pytest.fixture
def three(store):
    """A text, vectors and hidden states, last used in this order."""
    shelf = Shelf(store)
    corpus = corpus_from_text("One line.\nTwo lines.", name="reviews.csv")
    names = [shelf.keep_corpus(corpus), shelf.keep_vectors(Vectors("mine.npy", np.eye(3))), captured(store)]
    paths = [next(shelf.folder.glob("*.json")), next(shelf.folder.glob("*.safetensors"))]
    paths.append(store.folder / "states" / KEY / "manifest.json")
    for at, path in enumerate(paths):
        os.utime(path, (1000 + at, 1000 + at))
    return names


def test_everything_is_listed_last_used_first_with_what_it_is(store, three):
    items = kept.items(store)
    assert [item.name for item in items] == three[::-1]
    assert [item.kind for item in items] == ["hidden states", "vectors", "text"]
    assert [item.title for item in items] == ["", "mine.npy", "reviews.csv"]
    assert [item.last_used for item in items] == [1002, 1001, 1000]
    assert all(item.bytes > 0 for item in items)
    assert sum(item.bytes for item in items) == kept.size(store)
    assert [item.last_used for item in kept.items(store)] == [1002, 1001, 1000], "looking is no use"


def test_hidden_states_are_called_what_their_description_says(store):
    captured(store, model="demo/gpt2-a", corpus="shipped corpus")
    assert kept.items(store)[0].title == "demo/gpt2-a on shipped corpus"


def test_nothing_kept_is_an_empty_list(store):
    assert kept.items(store) == []
    assert (kept.size(store), kept.clear(None, store)) == (0, 0)


def test_one_thing_is_deleted_by_its_name(store, three):
    for number, name in enumerate(three):
        assert kept.delete(name, store) is True
        assert kept.delete(name, store) is False
        assert len(kept.items(store)) == 2 - number
    with pytest.raises(SettingsError, match="no longer kept here; give it again"):
        Shelf(store).corpus(three[0])
    for name in ("text/x", "", "states/../x", "../given", f"text/{'0' * 63}/", "shipped"):
        with pytest.raises(SettingsError, match="is not the name of"):
            kept.delete(name, store)


def test_all_of_a_kind_or_all_are_deleted(store, three):
    assert kept.clear("vectors", store) == 1
    assert [item.name for item in kept.items(store)] == [three[2], three[0]]
    assert kept.clear(None, store) == 2
    assert kept.items(store) == []


def test_a_name_is_completed(store, three):
    for name in three:
        assert kept.find(name, store) == name
        assert kept.find(name[:20], store) == name
        assert kept.find(name.partition("/")[2][:10], store) == name
    with pytest.raises(StoreError, match="Nothing that is kept .* begins with 'zz'; list it with"):
        kept.find("zz", store)
    with pytest.raises(StoreError, match="Nothing that is kept"):
        kept.find("", store)
    captured(store, "f" * 64)
    with pytest.raises(StoreError, match="2 kept names begin with 'states/'"):
        kept.find("states/", store)


def test_states_that_are_being_written_stay_and_it_is_said(store, three):
    states = StateFolder(store.folder / "states")
    said = []

    def attempt(act):
        try:
            act()
        except StoreError as error:
            said.append(str(error))

    with states.lock(KEY):
        for act in (lambda: kept.delete(three[2], store), lambda: kept.clear(None, store)):
            thread = threading.Thread(target=attempt, args=(act,))
            thread.start()
            thread.join()
    assert "cannot be deleted: a run is writing them" in said[0]
    assert said[1].startswith("2 of 3 were deleted. The hidden states")
    assert [item.name for item in kept.items(store)] == [three[2]]
    assert kept.delete(three[2], store)


def test_what_is_damaged_is_listed_without_a_title_and_can_be_deleted(store, three):
    given = store.folder / "given"
    next(given.glob("*.json")).write_bytes(b'{"name": ')
    next(given.glob("*.safetensors")).write_bytes(b"\x05\0\0\0\0\0\0\0[1,2]")
    (store.folder / "states" / KEY / "manifest.json").write_text("[" * 100_000)
    assert [item.title for item in kept.items(store)] == ["", "", ""]
    assert kept.clear(None, store) == 3


def test_what_is_of_the_wrong_kind_is_set_aside_or_deleted(store, three):
    given = store.folder / "given"
    for path in (next(given.glob("*.json")), next(given.glob("*.safetensors"))):
        path.unlink()
        path.mkdir()
    (store.folder / "states" / ("a" * 64)).write_text("no folder")
    assert {item.name for item in kept.items(store)} == {f"states/{'a' * 64}", three[2]}
    assert len(list((store.folder / "damaged").iterdir())) == 2
    assert kept.clear(None, store) == 2


def test_the_command_line_lists_and_deletes(store, three, capsys):
    assert main(["kept"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == three[::-1]
    assert lines[2].endswith("  reviews.csv")
    assert err == ""
    assert main(["kept", "--delete", three[1][:14]]) == 0
    assert capsys.readouterr().err == f"{three[1]} deleted.\n"
    assert main(["kept", "--clear", "states"]) == 0
    assert capsys.readouterr().err == "1 kept thing deleted.\n"
    assert main(["kept", "--delete", "zz"]) == 2
    assert "Nothing that is kept" in capsys.readouterr().err
    assert main(["kept", "--clear"]) == 0
    assert main(["kept"]) == 0
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit):
        main(["kept", "--clear", "everything"])
    assert "choose from 'all', 'text', 'vectors', 'states'" in capsys.readouterr().err


def test_a_title_is_shown_on_one_line(store, capsys):
    Shelf(store).keep_corpus(corpus_from_text("One line.", name="a\nb\x1b[31m"))
    assert main(["kept"]) == 0
    assert capsys.readouterr().out.endswith("  a?b?[31m\n")
    assert json.loads(next((store.folder / "given").glob("*.json")).read_text())["name"] == "a\nb\x1b[31m"


def test_what_was_gone_already_is_not_said_to_be_deleted(store, three, monkeypatch, capsys):
    find = kept.find

    def found_then_gone(start):
        name = find(start)
        kept.delete(name, store)  # by somebody else, between the two
        return name

    monkeypatch.setattr(kept, "find", found_then_gone)
    assert main(["kept", "--delete", three[0]]) == 0
    assert "was gone already; nothing was deleted." in capsys.readouterr().err


def test_the_page_tells_what_it_deleted_from_what_was_gone(store, three, monkeypatch):
    from embcompare.ui import keptlist

    state = {}
    monkeypatch.setattr(keptlist.st, "session_state", state)
    kept.delete(three[1], store)
    keptlist._delete(store, three)
    assert state["results.said"] == "2 things were deleted. 1 thing was gone already."
    keptlist._delete(store, three[:1])
    assert state["results.said"] == "1 thing was gone already."


def test_trained_maps_are_listed_by_what_they_are_of_and_deleted(store, three, capsys):
    fits = FitFolder(store.folder)
    fits.write(KEY, {"weights": np.ones(3)}, 2.0, "invertible network, a block 3 to b block 3")
    [item] = [item for item in kept.items(store) if item.kind == "trained map"]
    assert item.name == f"fits/{KEY}"
    assert item.title == "invertible network, a block 3 to b block 3"
    assert kept.size(store) == sum(each.bytes for each in kept.items(store))
    assert main(["kept", "--delete", "fits/0123"]) == 0
    assert "fits/0123" in capsys.readouterr().err
    assert fits.read(KEY) is None
    assert kept.delete(item.name, store) is False
    fits.write(KEY, {"weights": np.ones(3)}, 2.0)
    assert kept.clear("fits", store) == 1
    assert [item.name for item in kept.items(store)] == three[::-1]
    with pytest.raises(SettingsError, match="not the name of a kept fit"):
        kept.delete("fits/../x", store)


def test_a_damaged_trained_map_is_listed_and_can_be_deleted(store):
    fits = FitFolder(store.folder)
    fits.write(KEY, {"weights": np.ones(3)}, 2.0, "a network")
    path = store.folder / "fits" / f"{KEY}.safetensors"
    path.write_bytes(b"nothing of the kind")
    (store.folder / "fits" / "other.txt").write_text("not ours")
    assert [(item.name, item.title) for item in kept.items(store)] == [(f"fits/{KEY}", "")]
    path.unlink()
    path.mkdir()
    assert kept.delete(f"fits/{KEY}", store)
    assert kept.items(store) == []


def test_a_fit_that_is_read_counts_as_used(store):
    fits = FitFolder(store.folder)
    fits.write(KEY, {"weights": np.ones(3)}, 2.0)
    path = store.folder / "fits" / f"{KEY}.safetensors"
    os.utime(path, (1000, 1000))
    assert fits.read(KEY) is not None
    assert kept.items(store)[0].last_used > 1000
