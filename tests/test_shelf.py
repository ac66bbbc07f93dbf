"""What users bring: kept by content, named by it, and refused when it is not what its name says."""

import os

import numpy as np
import pytest

from embcompare.errors import SettingsError, StoreError
from embcompare.shelf import SHIPPED, Shelf, digest_of
from embcompare.store import Store
from embcompare.text.corpora import corpus_from_text, shipped_corpus
from embcompare.text.uploads import Vectors


@pytest.fixture
def shelf(tmp_path):
    return Shelf(Store(tmp_path))


def test_text_comes_back_whole_under_its_own_digest(shelf):
    corpus = corpus_from_text("One line of text.\nAnother one, with ünïcode.\n")
    name = shelf.keep_corpus(corpus)
    again = shelf.corpus(name)
    assert again == corpus
    assert again.notices == corpus.notices
    assert digest_of(name) == corpus.digest
    assert shelf.keep_corpus(corpus) == name
    assert shelf.corpus(SHIPPED) is shipped_corpus()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ids", [(), ("a", "b", "c")])
@pytest.mark.parametrize("shape", [(3, 4), (5, 3, 4)])
def test_vectors_come_back_bit_for_bit(shelf, dtype, ids, shape):
    vectors = Vectors("mine", np.random.default_rng(0).normal(size=shape).astype(dtype), ids, ("as it was read",))
    again = shelf.vectors(shelf.keep_vectors(vectors))
    assert again.values.tobytes() == vectors.values.tobytes()
    assert again.values.dtype == dtype
    assert again.ids == ids
    assert again.values.shape == shape
    assert again.notices == ("as it was read",)
    assert again.digest == vectors.digest


@pytest.mark.parametrize(
    "name",
    ["", "text/", "text/../../etc/passwd", "text/" + "g" * 64, "vectors/" + "0" * 64, "shipped ", "TEXT/" + "0" * 64],
)
def test_a_name_that_is_none_is_refused_before_any_file_is_touched(shelf, name):
    with pytest.raises(SettingsError, match="There is no corpus"):
        shelf.corpus(name)
    with pytest.raises(SettingsError, match="no vectors|no longer kept"):
        shelf.vectors(name)


def test_what_is_gone_or_damaged_says_give_it_again(shelf):
    corpus = corpus_from_text("One line.\nTwo lines.")
    name = shelf.keep_corpus(corpus)
    path = shelf.folder / f"{corpus.digest}.json"
    path.write_bytes(path.read_bytes().replace(b"Two", b"Ten"))
    with pytest.raises(SettingsError, match="damaged on the disk and has been set aside; give it again"):
        shelf.corpus(name)
    path.write_bytes(b"{")
    with pytest.raises(SettingsError, match="damaged"):
        shelf.corpus(name)
    assert not path.exists()
    assert (shelf.home / "damaged" / path.name).read_bytes() == b"{"
    with pytest.raises(SettingsError, match="no longer kept here; give it again"):
        shelf.corpus(name)
    vectors = Vectors("mine", np.eye(3))
    name = shelf.keep_vectors(vectors)
    path = shelf.folder / f"{vectors.digest}.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(SettingsError, match="damaged"):
        shelf.vectors(name)


def test_the_least_recently_used_goes_when_the_shelf_is_full(tmp_path):
    shelf = Shelf(Store(tmp_path), max_bytes=700)
    names = [shelf.keep_corpus(corpus_from_text(f"Sentence number {k} is here. " * 8)) for k in range(4)]
    assert shelf.corpus(names[-1])
    with pytest.raises(SettingsError, match="no longer kept"):
        shelf.corpus(names[0])


@pytest.mark.parametrize("what", ["folder", "pipe", "link to nothing"])
@pytest.mark.parametrize("kind", ["text", "vectors"])
def test_what_is_no_file_is_set_aside_and_the_same_can_be_given_again(shelf, kind, what):
    given = corpus_from_text("One line.") if kind == "text" else Vectors("mine", np.eye(3))
    keep, fetch = (shelf.keep_corpus, shelf.corpus) if kind == "text" else (shelf.keep_vectors, shelf.vectors)
    name = keep(given)
    path = shelf.folder / f"{given.digest}.{'json' if kind == 'text' else 'safetensors'}"
    for seen in (True, False):
        path.unlink()
        if what == "folder":
            path.mkdir()
        elif what == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(path.parent / "nowhere")
        if seen:
            with pytest.raises(SettingsError, match="damaged on the disk and has been set aside; give it again"):
                fetch(name)
        assert keep(given) == name
        assert fetch(name).digest == given.digest
        assert os.path.lexists(shelf.home / "damaged" / path.name)


def test_a_file_where_the_shelf_belongs_gives_way(shelf):
    shelf.home.mkdir(exist_ok=True)
    shelf.folder.write_text("mine")
    corpus = corpus_from_text("One line.")
    with pytest.raises(SettingsError, match="no longer kept here"):
        shelf.corpus(f"text/{corpus.digest}")
    assert shelf.corpus(shelf.keep_corpus(corpus)) == corpus
    assert (shelf.home / "damaged" / "given").read_text() == "mine"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"5", b"{}", b"[" * 100_000, b"1" * 6_000, b'{"name": 1, "sentences": 5, "labels": []}', b"\xff\xfe",
     b'{"name": "x", "sentences": [1], "labels": [], "provenance": {}, "notices": []}'],
)  # fmt: skip
def test_any_other_content_is_damage(shelf, content):
    corpus, vectors = corpus_from_text("One line."), Vectors("mine", np.eye(3))
    names = shelf.keep_corpus(corpus), shelf.keep_vectors(vectors)
    (shelf.folder / f"{corpus.digest}.json").write_bytes(content)
    header = len(content).to_bytes(8, "little") + content
    (shelf.folder / f"{vectors.digest}.safetensors").write_bytes(header)
    for fetch, name in zip((shelf.corpus, shelf.vectors), names, strict=True):
        with pytest.raises(SettingsError, match="damaged on the disk and has been set aside"):
            fetch(name)


def test_an_unwritable_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be kept in"):
        Shelf(Store(tmp_path / "file")).keep_corpus(corpus_from_text("One line."))
