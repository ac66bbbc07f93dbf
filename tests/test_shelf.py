"""What users bring: kept by content, named by it, and refused when it is not what its name says."""

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
def test_vectors_come_back_bit_for_bit(shelf, dtype, ids):
    vectors = Vectors("mine", np.random.default_rng(0).normal(size=(3, 4)).astype(dtype), ids)
    again = shelf.vectors(shelf.keep_vectors(vectors))
    assert again.values.tobytes() == vectors.values.tobytes()
    assert again.values.dtype == dtype
    assert again.ids == ids
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
    with pytest.raises(SettingsError, match="damaged on the disk; give it again"):
        shelf.corpus(name)
    path.write_bytes(b"{")
    with pytest.raises(SettingsError, match="damaged"):
        shelf.corpus(name)
    path.unlink()
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


def test_an_unwritable_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be kept in"):
        Shelf(Store(tmp_path / "file")).keep_corpus(corpus_from_text("One line."))
