import dataclasses
import io
import json
import re
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors

from embcompare.errors import EmbcompareError, Incomparable, SettingsError
from embcompare.text import parquetfiles, vectorfiles
from embcompare.text.corpora import InputError
from embcompare.text.pairing import pair_vectors
from embcompare.text.uploads import SUFFIXES, Vectors, read_vectors

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

X = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
IDS = tuple(f"row {letter}" for letter in "abcdefg")


# What only a programmer would say.
INSIDE = re.compile(
    r"Error|Exception|[|<>=][fiuSUVMb]\d|at line|b'|numpy\.(?!savez)|arrow|codec|invalid|None|int\(|literal|recurs",
    re.I,
)


def plain(text):
    """Whether a sentence is fit for a person: one line, whole, and without a word from inside."""
    inside = INSIDE.search(text.replace("begins like an Arrow file", ""))
    return text.endswith((".", "?")) and text.isprintable() and not inside and len(text) < 700


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def parquet(table, **options):
    file = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), file, **options)
    return file.getvalue()


def lists(values):
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def written(values, ids=None):
    """The same vectors in every format that can hold them."""
    text = {} if ids is None else {"ids": np.array(ids)}
    columns = {} if ids is None else {"ids": pa.array(ids)}
    files = {
        "npz": npz(x=values, **text),
        "parquet": parquet({"x": lists(values), **columns}),
    }
    if ids is None:
        files |= {"npy": npy(values), "safetensors": save_safetensors({"x": values})}
    return files


def npy_claiming(shape, dtype="<f4", payload=b""):
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + payload


class TestReading:
    @pytest.mark.parametrize("kind", SUFFIXES)
    def test_every_format_gives_the_values_bit_for_bit(self, kind):
        found = read_vectors(written(X)[kind], f".{kind.upper()}")
        assert np.array_equal(found.values, X)
        assert found.values.dtype == np.float32
        assert not found.values.flags.writeable
        assert found.ids == ()

    @pytest.mark.parametrize("kind", ["npz", "parquet"])
    def test_ids_are_found_by_their_usual_name(self, kind):
        found = read_vectors(written(X, IDS)[kind], kind)
        assert found.ids == IDS
        assert np.array_equal(found.values, X)

    def test_ids_under_another_name_and_as_numbers_and_bytes(self):
        assert read_vectors(npz(x=X, key=np.arange(7)), "npz", ids="key").ids == tuple("0123456")
        assert read_vectors(npz(x=X, id=np.array([b"%d" % n for n in range(7)])), "npz").ids == tuple("0123456")
        data = save_safetensors({"x": X, "ids": np.arange(7)})
        assert read_vectors(data, "safetensors").ids == tuple("0123456")
        assert read_vectors(parquet({"x": lists(X), "n": np.arange(7)}), "parquet", ids="n").ids == tuple("0123456")
        with pytest.raises(SettingsError, match="nothing called 'name' to take ids from; it holds x"):
            read_vectors(npz(x=X), "npz", ids="name")

    def test_the_array_is_chosen_where_there_are_several(self):
        several = npz(x=X, y=2 * X, flat=np.arange(4))
        assert np.array_equal(read_vectors(several, "npz", array="y").values, 2 * X)
        with pytest.raises(SettingsError, match=r"2 arrays of two dimensions; say which to use: .*x \(7, 3\) float32"):
            read_vectors(several, "npz")
        with pytest.raises(SettingsError, match="no array 'z'"):
            read_vectors(several, "npz", array="z")
        assert np.array_equal(read_vectors(npz(x=X, flat=np.arange(4)), "npz").values, X)
        both = parquet({"x": lists(X), "y": lists(2 * X)})
        assert np.array_equal(read_vectors(both, "parquet", array="y").values, 2 * X)
        with pytest.raises(SettingsError, match="2 columns of lists; say which"):
            read_vectors(both, "parquet")
        with pytest.raises(SettingsError, match="no ids; leave both names empty"):
            read_vectors(npy(X), "npy", array="x")

    def test_parquet_of_one_column_a_dimension_and_of_plain_lists(self):
        columns = {"id": pa.array(IDS), **{f"d{k}": X[:, k] for k in range(3)}, "text": pa.array(IDS)}
        found = read_vectors(parquet(columns), "parquet")
        assert found.ids == IDS
        assert np.array_equal(found.values, X)
        assert np.array_equal(
            read_vectors(parquet({"x": pa.array(X.tolist(), pa.list_(pa.float32()))}), "parquet").values, X
        )
        many = np.random.default_rng(1).standard_normal((9000, 4))
        assert np.array_equal(read_vectors(parquet({"x": lists(many)}, row_group_size=700), "parquet").values, many)

    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [
            ("f2", "f4"),
            ("f4", "f4"),
            ("f8", "f8"),
            ("i1", "f4"),
            ("u2", "f4"),
            ("i4", "f8"),
            ("i8", "f8"),
            (">f4", "f4"),
            (">f8", "f8"),
        ],
    )
    def test_numbers_of_every_kind_become_float32_or_float64_of_the_same_value(self, dtype, expected):
        values = np.arange(12).reshape(4, 3).astype(dtype)
        found = read_vectors(npy(values), "npy").values
        assert found.dtype == np.dtype(expected)
        assert found.dtype.isnative
        assert np.array_equal(found, values)

    def test_bfloat16_becomes_float32(self):
        torch = pytest.importorskip("torch")
        from safetensors.torch import save

        values = torch.tensor([[1.5, -2.0], [0.25, 3e38]], dtype=torch.bfloat16)
        found = read_vectors(save({"x": values}), "safetensors").values
        assert np.array_equal(found, values.float().numpy())

    def test_fortran_order_and_files_on_disk(self, tmp_path):
        (tmp_path / "x.npy").write_bytes(npy(np.asfortranarray(X)))
        assert np.array_equal(read_vectors(tmp_path / "x.npy", "npy").values, X)
        with (tmp_path / "x.npy").open("rb") as file:
            assert np.array_equal(read_vectors(file, "npy").values, X)

    @settings(max_examples=20, deadline=None)
    @given(st.integers(1, 20), st.integers(1, 9), st.sampled_from(["f4", "f8"]), st.integers(0, 9))
    def test_round_trip_of_any_shape(self, n, d, dtype, seed):
        values = np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)
        for kind, data in written(values).items():
            assert np.array_equal(read_vectors(data, kind).values, values)

    def test_digest_knows_values_ids_and_dtype(self):
        digests = [
            Vectors("x", X).digest,
            Vectors("x", X, IDS).digest,
            Vectors("x", X.astype(np.float64)).digest,
            Vectors("x", X[::-1]).digest,
            Vectors("x", X.reshape(3, 7)).digest,
        ]
        assert len(set(digests)) == 5
        assert Vectors("y", np.asfortranarray(X)).digest == digests[0]


class TestStacks:
    """Several layers in one array: (layers, rows, width)."""

    STACK = np.random.default_rng(2).standard_normal((4, 7, 3)).astype(np.float32)

    @pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
    def test_three_dimensions_are_layers_of_rows_and_that_is_said(self, kind):
        files = {"npy": npy(self.STACK), "npz": npz(x=self.STACK, ids=np.array(IDS)), "safetensors": None}
        files["safetensors"] = save_safetensors({"x": self.STACK, "ids": np.arange(7)})
        found = read_vectors(files[kind], kind, name="mine")
        assert np.array_equal(found.values, self.STACK)
        assert (len(found), found.layers, found.width) == (7, 4, 3)
        assert len(found.ids) == (0 if kind == "npy" else 7)
        assert found.layer_names == ("given layer 0", "given layer 1", "given layer 2", "given layer 3")
        assert all(np.array_equal(found.layer(k), self.STACK[k]) for k in range(4))
        assert found.notices == ("mine has the shape (4, 7, 3) and is read as 4 layers of 7 rows, 3 numbers wide.",)
        assert found.size_in_words() == "4 layers of 7 × 3"
        assert not found.layer(0).flags.writeable

    def test_bfloat16_stacks(self):
        torch = pytest.importorskip("torch")
        from safetensors.torch import save

        values = torch.from_numpy(self.STACK).bfloat16()
        assert np.array_equal(read_vectors(save({"x": values}), "safetensors").values, values.float().numpy())

    def test_one_layer_is_as_before_and_says_nothing(self):
        found = read_vectors(npy(X), "npy")
        assert found.notices == ()
        assert (found.layers, found.layer_names, found.width) == (1, ("given vectors",), 3)
        assert found.layer(0) is found.values
        assert found.size_in_words() == "7 × 3"
        single = read_vectors(npy(X[None]), "npy")
        assert single.digest == found.digest
        assert "is read as 1 layer of 7 rows" in single.notices[0]

    def test_an_axis_of_rows_in_the_first_place_is_told(self):
        found = read_vectors(npy(np.swapaxes(np.tile(self.STACK, (1, 2, 1)), 0, 1)), "npy", name="mine")
        assert found.layers == 14
        assert "There are more layers than rows; if the first axis is that of the rows, save" in found.notices[0]
        assert found.notices[0].endswith("as numpy.swapaxes(x, 0, 1) does.")
        with pytest.raises(InputError, match=r"7 ids for 4 rows; they fit the first axis, .*swapaxes\(x, 0, 1\)"):
            read_vectors(npz(x=np.swapaxes(self.STACK, 0, 1), ids=np.array(IDS)), "npz")
        with pytest.raises(InputError, match=r"\(513, 2, 2\), which would be 513 layers, and at most 512 are read"):
            read_vectors(npy(np.zeros((513, 2, 2))), "npy")

    def test_rows_with_nan_in_any_layer_are_named_once(self):
        bad = self.STACK.copy()
        bad[1, 2, 0] = bad[3, 2, 1] = np.nan
        bad[0, 5] = np.inf
        with pytest.raises(InputError, match=r"values in row 2, 5 \(from 0\)"):
            read_vectors(npy(bad), "npy")

    def test_the_bound_counts_all_layers(self):
        data = npy(self.STACK)
        assert read_vectors(data, "npy", max_bytes=len(data)).layers == 4
        zeros = np.zeros((4, 300, 3), dtype=np.float32)
        assert read_vectors(npz(x=zeros), "npz", max_bytes=zeros.nbytes + 200).layers == 4
        with pytest.raises(InputError, match="would unpack from|would take"):
            read_vectors(npz(x=zeros), "npz", max_bytes=zeros.nbytes - 1)
        halves = np.ones((4, 300, 3), dtype=np.float16)  # twice as large once they are float32
        with pytest.raises(InputError, match="would take 14,400 bytes"):
            read_vectors(npy(halves), "npy", max_bytes=14_399)
        with pytest.raises(InputError, match="would take"):
            read_vectors(npy_claiming((512, 10**6, 768)), "npy")

    def test_a_file_of_one_layer_and_a_stack_must_be_told_which(self):
        both = npz(x=X, y=self.STACK)
        with pytest.raises(SettingsError, match="2 arrays of two or three dimensions; say which to use"):
            read_vectors(both, "npz")
        assert read_vectors(both, "npz", array="y").layers == 4

    @pytest.mark.parametrize("kind", ["npz", "safetensors"])
    def test_several_arrays_are_stacked_in_the_order_of_their_numbers(self, kind):
        layers = {f"layer_{k}": X + k for k in (10, 2, 0, 1)} | {"other": X[:2], "layer_flat": np.arange(4.0)}
        data = npz(**layers, ids=np.array(IDS)) if kind == "npz" else save_safetensors({**layers, "ids": np.arange(7)})
        found = read_vectors(data, kind, array="layer_*", name="mine")
        assert np.array_equal(found.values, np.stack([X + k for k in (0, 1, 2, 10)]))
        assert len(found.ids) == 7
        assert found.notices == (
            "The arrays 'layer_*' of mine, in the order of their numbers, are read as 4 layers of 7 rows, 3 numbers "
            "wide.",
        )
        with pytest.raises(
            SettingsError, match=r"no array of two dimensions like 'block\*'; it holds .*layer_10 \(7, 3\)"
        ):
            read_vectors(data, kind, array="block*")
        with pytest.raises(InputError, match="have different shapes, and layers of one stack have the same"):
            read_vectors(data, kind, array="*")
        small = {key: vectorfiles.Announced((7, 3), np.dtype("f2"), "float16") for key in "0123"}
        with pytest.raises(InputError, match="would take 336 bytes; at most"):
            vectorfiles._bound_together(small, tuple("0123"), "x", 335)
        assert read_vectors(data, kind, array="layer_1*", name="mine").values.shape == (2, 7, 3)

    def test_a_stack_of_bfloat16_and_float32_arrays(self):
        torch = pytest.importorskip("torch")
        from safetensors.torch import save

        x = torch.from_numpy(X.copy())
        found = read_vectors(save({"l0": x, "l1": x.bfloat16()}), "safetensors", array="l*")
        assert np.array_equal(found.values, np.stack([X, x.bfloat16().float().numpy()]))

    def test_a_layer_that_is_not_there_is_refused(self):
        with pytest.raises(SettingsError, match="mine has no layer 4; its layers are 0 to 3"):
            Vectors("mine", self.STACK).layer(4)
        with pytest.raises(SettingsError, match="mine has no layer 1; given vectors are layer 0"):
            Vectors("mine", X).layer(1)

    def test_printing_shows_the_shape_and_no_numbers(self):
        assert repr(Vectors("mine", self.STACK, IDS)) == "Vectors('mine', 4 layers of 7 × 3, float32, with ids)"
        assert repr(Vectors("mine", X.astype(np.float64))) == "Vectors('mine', 7 × 3, float64)"

    def test_the_digest_tells_a_stack_from_its_rows_in_one_layer(self):
        assert Vectors("x", self.STACK).digest != Vectors("x", self.STACK.reshape(28, 3)).digest


class TestRefusing:
    @pytest.mark.parametrize("kind", SUFFIXES)
    def test_rows_with_nan_or_infinite_values_are_named(self, kind):
        bad = np.tile(X, (3, 1))
        bad[[2, 5], [0, 1]] = np.nan, np.inf
        with pytest.raises(InputError, match=r"NaN or infinite values in row 2, 5 \(from 0\)"):
            read_vectors(written(bad)[kind], kind)
        with pytest.raises(InputError, match=r"in row 0, 1, 2, 3, 4 and 16 more"):
            read_vectors(written(bad * np.nan)[kind], kind)

    def test_empty_cells_of_a_parquet_file_are_nan(self):
        with pytest.raises(InputError, match="row 1"):
            read_vectors(parquet({"a": pa.array([1.0, None]), "b": pa.array([1, 2])}), "parquet")
        with pytest.raises(InputError, match="1 empty row or more"):
            read_vectors(parquet({"x": pa.array([[1.0], None])}), "parquet")

    @pytest.mark.parametrize("shape", [(6,), (2, 3, 4, 1), (0, 3), (3, 0), (), (0, 3, 4), (2, 0, 4), (2, 3, 0)])
    def test_shapes_other_than_rows_of_vectors_are_refused(self, shape):
        with pytest.raises(InputError, match="one row each"):
            read_vectors(npy(np.zeros(shape)), "npy")

    def test_objects_are_refused_and_never_unpickled(self, tmp_path):
        class Harm:
            def __reduce__(self):
                return open, (str(tmp_path / "harmed"), "w")

        harmful = np.array([[Harm()]], dtype=object)
        for data, kind in (
            (npy(harmful, allow_pickle=True), "npy"),
            (npz(x=harmful), "npz"),
            (npz(x=X, ids=harmful[0]), "npz"),
        ):
            with pytest.raises(InputError, match="holds Python objects, which could run code"):
                read_vectors(data, kind)
        assert not (tmp_path / "harmed").exists()

    @pytest.mark.parametrize("values", [X.astype(complex), X > 0, np.array([["a", "b"]]), X.view([("f", "f4")])])
    def test_what_is_no_real_number_is_refused(self, values):
        with pytest.raises(InputError, match="not real numbers; save it as float32"):
            read_vectors(npy(values), "npy")

    def test_ids_that_repeat_or_are_too_few_or_too_long_or_lists(self):
        with pytest.raises(InputError, match="the id 'b' more than once"):
            read_vectors(npz(x=X, ids=np.array(list("abcdebb"))), "npz")
        with pytest.raises(InputError, match="3 ids for 7 rows"):
            read_vectors(npz(x=X, ids=np.arange(3)), "npz")
        with pytest.raises(InputError, match="more than 500 characters"):
            Vectors("x", X[:1], ("i" * 501,))
        with pytest.raises(InputError, match="ids in uploaded vectors holds float64, not text or whole numbers"):
            read_vectors(parquet_free_ids(), "safetensors")
        with pytest.raises(InputError, match="without an id"):
            read_vectors(parquet({"x": lists(X[:2]), "id": pa.array(["a", None])}), "parquet")

    def test_rows_of_different_lengths_are_refused(self):
        with pytest.raises(InputError, match="different lengths"):
            read_vectors(parquet({"x": pa.array([[1.0], [1.0, 2.0]])}), "parquet")
        table = pa.table({"x": pa.array([[1.0]] * 5000 + [[1.0, 2.0]] * 5000)})
        with pytest.raises(InputError, match="different lengths"):
            read_vectors(parquet(table), "parquet")

    @pytest.mark.parametrize("kind", SUFFIXES)
    def test_cut_off_files_and_files_of_another_kind_are_refused(self, kind):
        whole = written(X)
        for data in (
            b"",
            b"\0",
            whole[kind][:-1],
            whole[kind][: len(whole[kind]) // 2],
            *(v for k, v in whole.items() if k != kind),
        ):
            with pytest.raises(EmbcompareError) as caught:
                read_vectors(data, kind)
            assert str(caught.value).count("\n") == 0

    def test_something_behind_the_array_is_refused(self):
        with pytest.raises(InputError, match="too much at its end"):
            read_vectors(npy(X) + b"x", "npy")

    @pytest.mark.parametrize("suffix", ["pkl", "pt", "csv", "", "../npy"])
    def test_other_suffixes_are_refused(self, suffix):
        with pytest.raises(SettingsError, match="choose one of npy, npz, safetensors, parquet"):
            read_vectors(b"", suffix)

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            (b'{"x":5}', "or its header is damaged"),
            (b"[]", "or its header is damaged"),
            (b"[1,2]", "or its header is damaged"),
            (b'"x"', "or its header is damaged"),
            (b"5 ", "or its header is damaged"),
            (b"null", "or its header is damaged"),
            (b"{}", "holds no array of two or three dimensions: it holds nothing"),
            (b'{"__metadata__":5}', "holds no array of two or three dimensions"),
            (b"{", "or its header is damaged"),
            (b"\xff\xfe{}", "or its header is damaged"),
            (b"[" * 100_000, "or its header is damaged"),
            (b'{"x":' * 100_000, "or its header is damaged"),
            (b"1" * 6_000, "or its header is damaged"),
            (b'{"x":{"dtype":"F32","shape":[' + b"1" * 6_000 + b'],"data_offsets":[0,4]}}', "or its header is damaged"),
            (b'{"x":{"dtype":"F32","shape":[' + b"1" * 4_000 + b',1],"data_offsets":[0,4]}}', "more than a million TB"),
            (b'{"x":{"dtype":"F32","shape":[1.5,2],"data_offsets":[0,4]}}', "or its header is damaged"),
            (b'{"x":{"dtype":"F32","shape":[true,1],"data_offsets":[0,4]}}', "or its header is damaged"),
            (b'{"x":{"dtype":"F32","shape":"ab","data_offsets":[0,4]}}', "or its header is damaged"),
            (b'{"x":{"dtype":["F32"],"shape":[1,1],"data_offsets":[0,4]}}', "or its header is damaged"),
            (b'{"x":{"shape":[1,1],"data_offsets":[0,4]}}', "or its header is damaged"),
            (b'{"x":{"dtype":"F32","shape":[-1,1],"data_offsets":[0,4]}}', r"the impossible shape \(-1, 1\)"),
            (b'{"x":{"dtype":"F32","shape":[1,1]}}', "is damaged or no safetensors file"),
            (b'{"x":{"dtype":"F32","shape":[1,1],"data_offsets":"ab"}}', "is damaged or no safetensors file"),
            (b'{"x":{"dtype":"F32","shape":[1,1],"data_offsets":[4,0]}}', "is damaged or no safetensors file"),
            (b'{"x":{"dtype":"F32","shape":[9,1],"data_offsets":[0,4]}}', "is damaged or no safetensors file"),
            (
                b'{"x":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}}',
                "x in .* holds F8_E4M3, which cannot be read here",
            ),
            (
                b'{"x":{"dtype":"BOOL","shape":[2,2],"data_offsets":[0,4]}}',
                "x in .* holds truth values, not real numbers",
            ),
            (b'{"a\\nb":{"dtype":"F9","shape":[2,2],"data_offsets":[0,4]}}', r"a\?b in .* holds F9"),
        ],
    )
    def test_any_other_safetensors_header_is_one_sentence(self, header, words):
        with pytest.raises(InputError, match=words) as caught:
            read_vectors(struct.pack("<Q", len(header)) + header + bytes(4), "safetensors")
        assert plain(str(caught.value)), caught.value

    @pytest.mark.parametrize(
        "header",
        [b"{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1, 1), }", b"{'descr': '<f4'}",
         b"[1, 2]", b"(" * 5_000, b"1" * 6_000, b"{'descr': '|V1', 'fortran_order': False, 'shape': (1, 1), }",
         b"{'descr': '<q9', 'fortran_order': False, 'shape': (1, 1), }", b"{'descr': '<M8[D]', 'fortran_order': False, "
         b"'shape': (1, 1), }", b"{'descr': '<f4', 'fortran_order': 5, 'shape': (1, 1), }", b"{'descr': '<f4', "
         b"'fortran_order': False, 'shape': (1" + b"0" * 5_000 + b", 1), }", b"{'descr': [('a', '<f4')], "
         b"'fortran_order': False, 'shape': (1, 1), }", b"", b"\xff" * 20],
    )  # fmt: skip
    def test_any_other_npy_header_is_one_sentence(self, header):
        data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(4)
        for spoilt, kind in ((data, "npy"), (TestBounds().zipped(data), "npz")):
            with pytest.raises(InputError) as caught:
                read_vectors(spoilt, kind)
            assert plain(str(caught.value)), caught.value

    @pytest.mark.parametrize(
        ("data", "kind", "words"),
        [
            (
                npz(x=X),
                "npy",
                "it begins like a zip archive, as npz files are; give it the suffix of what it is, or save it as npy",
            ),
            (npy(X), "parquet", "it begins like an npy file"),
            (b"\x80\x04\x95rest", "npy", "it begins like a pickle, which could run code and is never read"),
            (b"\x89HDF\r\n", "npz", "it begins like an HDF5 file"),
            (b"version https://git-lfs.github.com/spec/v1\n", "parquet", "a pointer of Git LFS"),
            (b"", "npz", "it is empty; save it again"),
            (b"nothing of the kind", "npy", "it is damaged or no npy file; save it again"),
        ],
    )
    def test_a_file_of_another_kind_is_told_what_it_is(self, data, kind, words):
        with pytest.raises(InputError, match=f"x.{kind} cannot be read: .*{words}") as caught:
            read_vectors(data, kind, name=f"x.{kind}")
        assert plain(str(caught.value)), caught.value

    def test_ids_that_are_no_text_are_refused(self):
        with pytest.raises(InputError, match=r"ids of .* are bytes that are no UTF-8 text"):
            read_vectors(npz(x=X, ids=np.array([b"\xff%d" % n for n in range(7)])), "npz")
        with pytest.raises(InputError, match=r"ids of .* are text of shape \(7, 1\)"):
            read_vectors(npz(x=X, ids=np.array(IDS)[:, None]), "npz")
        for column in (pa.array([b"a", b"b"]), pa.array([1.5, 2.5]), pa.array([True, False])):
            with pytest.raises(InputError, match="Column 'id' of .* holds neither text nor whole numbers"):
                read_vectors(parquet({"x": lists(X[:2]), "id": column}), "parquet")
        coded = parquet({"x": lists(X[:2]), "id": pa.array([7, 8]).dictionary_encode()})
        assert read_vectors(coded, "parquet").ids == ("7", "8")

    @pytest.mark.parametrize("script", ["import os; os.abort()", "import time; time.sleep(60)", "raise MemoryError"])
    def test_a_parquet_file_whose_footer_ends_the_process_that_looks_at_it_is_refused(self, monkeypatch, script):
        """Of some damaged footers pyarrow aborts instead of raising, so another process looks at each first."""
        monkeypatch.setattr(parquetfiles, "_LOOK", script)
        monkeypatch.setattr(parquetfiles, "_PATIENCE", 0.5)
        parquetfiles._looked_at.cache_clear()
        with pytest.raises(InputError, match="x cannot be read: it is damaged or no parquet file; save it again"):
            read_vectors(parquet({"x": lists(X)}), "parquet", name="x")

    @settings(max_examples=200, deadline=None)
    @given(st.sampled_from(SUFFIXES), st.integers(0, 10_000), st.integers(0, 255), st.booleans())
    def test_a_spoilt_byte_gives_vectors_or_a_sentence_for_a_person(self, kind, at, value, cut):
        data = bytearray(written(X)[kind])
        at %= len(data)
        data[at] = value
        try:
            found = read_vectors(bytes(data[:at] if cut else data), kind, max_bytes=10**7)
        except EmbcompareError as error:
            assert plain(str(error)), error
        else:
            assert np.isfinite(found.values).all()

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=300), st.sampled_from(SUFFIXES))
    def test_hostile_bytes_are_refused_in_a_sentence(self, data, kind):
        for start in (b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"PAR1"):
            with pytest.raises(EmbcompareError) as caught:
                read_vectors(start + data, kind)
            assert plain(str(caught.value)), caught.value


def parquet_free_ids():
    return save_safetensors({"x": X, "ids": np.zeros((7, 2))})


class TestBounds:
    """Nothing that a header announces is allocated before it is compared with the bound."""

    @pytest.fixture(autouse=True)
    def quick_and_small(self):
        tracemalloc.start()
        began = time.process_time()
        yield
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 60e6
        assert time.process_time() - began < 10

    @pytest.mark.parametrize("kind", SUFFIXES)
    def test_an_upload_of_a_gigabyte_is_refused_unread(self, kind, tmp_path):
        with (tmp_path / "big").open("wb") as file:
            file.write(npy_claiming((2**26, 4)))
            file.truncate(2**30)
        with pytest.raises(InputError, match=r"has 1\.1 GB; at most 268 MB are read"):
            read_vectors(tmp_path / "big", kind)

    def test_a_small_file_that_claims_a_gigabyte_is_refused(self):
        for data, kind in (
            (npy_claiming((2**26, 4)), "npy"),
            (npy_claiming((2**62, 2**62)), "npy"),
            (self.zipped(npy_claiming((2**26, 4))), "npz"),
            (self.tensors({"dtype": "F32", "shape": [2**26, 4], "data_offsets": [0, 2**30]}), "safetensors"),
            (struct.pack("<Q", 2**40) + b"{}", "safetensors"),
        ):
            with pytest.raises(InputError):
                read_vectors(data, kind)
        with pytest.raises(InputError, match="impossible shape|cannot be read"):
            read_vectors(npy_claiming((-1, 4)), "npy")

    def test_an_archive_bomb_is_refused_before_it_is_unpacked(self):
        with pytest.raises(
            InputError, match=r"would unpack from [\d.]+ kB to [\d.]+ MB, which is refused; at most 268 MB"
        ):
            read_vectors(self.zipped(npy_claiming((2**20, 4)) + bytes(2**24)), "npz")
        assert len(self.zipped(bytes(2**24))) < 50_000

    def test_an_archive_that_lies_about_its_sizes_is_refused(self):
        honest = self.zipped(npy_claiming((2**18, 4)) + np.random.default_rng(0).bytes(2**22))
        size = struct.pack("<L", 2**22 + 128)
        assert honest.count(size) == 2
        with pytest.raises(InputError):
            read_vectors(honest.replace(size, struct.pack("<L", 2**10)), "npz")

    def test_an_archive_of_too_many_members_or_unusual_packing_or_with_a_password_is_refused(self):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for number in range(1001):
                archive.writestr(f"{number}.npy", b"")
        with pytest.raises(InputError, match="1,001 members"):
            read_vectors(file.getvalue(), "npz")
        with pytest.raises(InputError, match="packed in an unusual way"):
            read_vectors(self.zipped(npy(X), zipfile.ZIP_BZIP2), "npz")
        data = bytearray(self.zipped(npy(X)))
        data[data.index(b"PK\x01\x02") + 8] |= 1
        with pytest.raises(InputError, match="is encrypted"):
            read_vectors(bytes(data), "npz")

    def test_a_checksum_that_does_not_fit_is_refused(self):
        data = bytearray(self.zipped(npy(X), zipfile.ZIP_STORED))
        data[data.index(X.tobytes()) + 5] ^= 1
        with pytest.raises(InputError, match="cannot be read"):
            read_vectors(bytes(data), "npz")

    def test_a_parquet_file_of_a_repeated_value_is_counted_as_it_unpacks(self):
        ones = pa.array(np.ones(2_000_000, np.float32))
        data = parquet({"a": ones, "b": ones}, use_dictionary=True, row_group_size=2_000_000)
        assert len(data) < 20_000
        with pytest.raises(InputError, match="would take 32.0 MB; at most 16.0 MB"):
            read_vectors(data, "parquet", max_bytes=8_000_000)

    def test_long_ids_repeated_in_a_parquet_file_are_refused_unrepeated(self):
        ids = pa.array(["x" * 100_000] * 3000)
        data = parquet({"id": ids, "a": np.ones(3000)}, use_dictionary=True)
        assert len(data) < 300_000
        with pytest.raises(InputError, match="more than 500 characters"):
            read_vectors(data, "parquet")

    def zipped(self, member, method=zipfile.ZIP_DEFLATED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            archive.writestr("x.npy", member)
        return file.getvalue()

    def tensors(self, entry):
        header = json.dumps({"x": entry}).encode()
        return struct.pack("<Q", len(header)) + header


class TestPairing:
    def test_by_row_all_are_paired(self):
        pairing = pair_vectors(Vectors("a", X), Vectors("b", X[:, :2]))
        assert np.array_equal(pairing.rows_a, np.arange(7))
        assert np.array_equal(pairing.rows_b, np.arange(7))
        assert (pairing.coverage_a, pairing.coverage_b) == (1.0, 1.0)
        assert pairing.sentence() == "All 7 rows are paired in their order."

    def test_by_id_those_in_both_are_paired_whatever_their_order(self):
        a = Vectors("a", X, IDS)
        b = Vectors("b", X[[6, 2, 4]], (IDS[6], IDS[2], "another"))
        pairing = pair_vectors(a, b, "id")
        assert np.array_equal(a.values[pairing.rows_a], b.values[pairing.rows_b])
        assert pairing.rows_a.tolist() == [2, 6]
        assert pairing.coverage_a == pytest.approx(2 / 7)
        assert pairing.coverage_b == pytest.approx(2 / 3)
        assert "2 rows are paired by id: 28.6% of the first and 66.7%" in pairing.sentence()

    @settings(deadline=None)
    @given(st.permutations(range(7)), st.permutations(range(7)))
    def test_order_does_not_matter_by_id(self, p, q):
        a, b = (Vectors(name, X[list(order)], tuple(IDS[k] for k in order)) for name, order in (("a", p), ("b", q)))
        pairing = pair_vectors(a, b, "id")
        assert len(pairing) == 7
        assert np.array_equal(a.values[pairing.rows_a], b.values[pairing.rows_b])

    def test_differing_numbers_of_rows_missing_ids_and_nothing_shared_are_refused(self):
        with pytest.raises(Incomparable, match="a has 7 rows and b has 6, so they cannot be paired in their order"):
            pair_vectors(Vectors("a", X), Vectors("b", X[:6]))
        with pytest.raises(Incomparable, match="b has no ids to pair by"):
            pair_vectors(Vectors("a", X, IDS), Vectors("b", X), "id")
        with pytest.raises(Incomparable, match="share no id .*begins with 'row a', the second with '0'"):
            pair_vectors(Vectors("a", X, IDS), Vectors("b", X, tuple("0123456")), "id")
        with pytest.raises(SettingsError, match="cannot be paired by 'name'"):
            pair_vectors(Vectors("a", X), Vectors("b", X), "name")

    def test_ids_are_used_where_both_have_them_and_only_there(self):
        with_ids, other, bare = Vectors("a", X, IDS), Vectors("b", X[::-1], IDS[::-1]), Vectors("c", X)
        assert pair_vectors(with_ids, other).by == "id"
        assert pair_vectors(with_ids, other).rows_b.tolist() == list(range(7))[::-1]
        assert pair_vectors(with_ids, other).sentence() == "All 7 rows are paired by id."
        for pair in ((with_ids, bare), (bare, with_ids), (bare, bare)):
            found = pair_vectors(*pair)
            assert (found.by, found.warning) == ("row", "")

    def test_rows_paired_against_their_ids_are_told(self):
        a, b = Vectors("a", X, IDS), Vectors("b", X, (*IDS[:4], IDS[5], IDS[4], IDS[6]))
        found = pair_vectors(a, b, "row")
        assert np.array_equal(found.rows_a, found.rows_b)
        assert found.warning.startswith("2 of 7 rows are paired against their ids: row 4 is 'row e' in a and 'row f'")
        assert plain(found.warning)
        assert pair_vectors(a, a, "row").warning == ""
        assert pair_vectors(a, b, "id").warning == ""

    def test_stacks_pair_by_their_rows(self):
        stack = np.stack([X, 2 * X])
        a, b = Vectors("a", stack, IDS), Vectors("b", X[::-1], IDS[::-1])
        pairing = pair_vectors(a, b)
        assert len(pairing) == 7
        assert np.array_equal(a.layer(1)[pairing.rows_a], 2 * b.values[pairing.rows_b])
        with pytest.raises(Incomparable, match="a has 7 rows and b has 6"):
            pair_vectors(a, Vectors("b", X[:6]))

    def test_vectors_are_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            Vectors("a", X).name = "b"
        with pytest.raises(ValueError, match="read-only"):
            Vectors("a", X.copy()).values[0] = 1
