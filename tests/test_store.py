import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from fakes import WEIGHTS, Count, Numbers, fingerprints, register
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embcompare import folders
from embcompare import store as store_module
from embcompare.errors import SettingsError, StoreError
from embcompare.resultfile import Damaged, arrays_of, described, packed, verified
from embcompare.store import Store, write_atomically

TESTS = Path(__file__).parent
KEY = "0123456789abcdef" * 4
OTHER = "f" * 64
FAST = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _count(monkeypatch):
    register(monkeypatch.setitem, monkeypatch.setattr)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def numbers(size=4, **fields):
    return Numbers(np.arange(size, dtype=float), provenance={"models": {"a": "1"}, "seconds": 0.5}, **fields)


def same(first, second):
    """Whether two fields are the same bit for bit; of a scalar NaN, unlike one in an array, only that it is one."""
    if isinstance(first, np.ndarray):
        return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    if isinstance(first, float):
        return np.float64(first).tobytes() == np.float64(second).tobytes() or (first != first and second != second)
    return first == second and type(first) is type(second)


DTYPES = st.one_of(
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    hnp.boolean_dtypes(),
    hnp.unicode_string_dtypes(endianness="?", max_len=5),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
TEXT = st.text(max_size=8)


# The file


@FAST
@given(
    values=ARRAYS,
    extra=st.none() | ARRAYS,
    names=st.lists(TEXT, max_size=4).map(tuple),
    pairs=st.lists(st.tuples(TEXT, st.integers()), max_size=3).map(tuple),
    score=st.none() | st.floats(),
    label=st.none() | TEXT,
    transposed=st.booleans(),
)
def test_a_result_comes_back_bit_for_bit(tmp_path, values, extra, names, pairs, score, label, transposed):
    store = Store(tmp_path)
    values = values.T if transposed else values
    result = Numbers(values, extra, names, pairs, score, label, provenance={"seed": None, "list": [1, "ü"]})
    store.put(KEY, result, Count("a"))
    found = store.get(KEY)
    assert type(found) is Numbers
    for item in dataclasses.fields(Numbers):
        assert same(getattr(result, item.name), getattr(found, item.name)), item.name
    assert store.notices() == []


def test_special_values_keep_their_bits(store):
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324, np.float64(0.1)])
    values.view(np.uint64)[0] |= 12345  # a NaN with a payload
    store.put(KEY, Numbers(values), Count("a"))
    assert store.get(KEY).values.tobytes() == values.tobytes()


def test_stored_arrays_are_read_only(store):
    store.put(KEY, Numbers(np.zeros(2), np.array(["x"])), Count("a"))
    found = store.get(KEY)
    for array in (found.values, found.extra):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[0]


@pytest.mark.parametrize(
    "values", [np.array([object()]), np.zeros(2, dtype=[("x", "f4"), ("y", "i2")])], ids=["objects", "records"]
)
def test_what_a_file_cannot_hold_is_refused_by_field(store, values):
    with pytest.raises(StoreError, match="its field values holds"):
        store.put(KEY, Numbers(values), Count("a"))
    assert store.entries() == []


def test_numpy_scalars_are_kept_as_numbers_and_unknown_objects_are_refused(store):
    store.put(KEY, Numbers(np.zeros(1), score=np.float32(0.5)), Count("a"))
    assert store.get(KEY).score == 0.5
    with pytest.raises(StoreError, match="a set is neither a number, text"):
        store.put(KEY, Numbers(np.zeros(1), label={1}), Count("a"))


def _other_byte(data):
    return st.tuples(st.integers(0, len(data) - 1), st.integers(1, 255))


STORED = packed(KEY, Numbers(np.arange(6.0).reshape(2, 3), np.array(["é", "b"]), ("x",), score=1.5), Count("a"))


@settings(max_examples=300, deadline=None)
@given(change=_other_byte(STORED))
def test_any_changed_byte_is_recognised(change):
    place, mask = change
    damaged = bytearray(STORED)
    damaged[place] ^= mask
    with pytest.raises(Damaged):
        verified(bytes(damaged), KEY)


def test_every_byte_of_the_header_is_covered():
    end = 8 + int.from_bytes(STORED[:8], "little")
    for place in range(end):
        damaged = bytearray(STORED)
        damaged[place] ^= 1
        with pytest.raises(Damaged):
            verified(bytes(damaged), KEY)


def test_any_truncation_and_any_addition_is_recognised():
    assert verified(STORED, KEY)["key"] == KEY
    for length in range(len(STORED)):
        with pytest.raises(Damaged):
            verified(STORED[:length], KEY)
    with pytest.raises(Damaged, match="length"):
        verified(STORED + b"\0", KEY)


@FAST
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_are_damaged_and_nothing_else(data):
    with pytest.raises(Damaged):
        verified(data, KEY)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"__metadata__":[]}',
        b'{"__metadata__":{}}',
        b'{"x":1}',
        b'{"x":{"data_offsets":[]}}',
        b"[" * 9999,
        b'{"__metadata__":{"file_sha256":"","description":3}}',
    ],
)
def test_a_header_of_another_shape_is_damaged(text):
    with pytest.raises(Damaged):
        verified(len(text).to_bytes(8, "little") + text, KEY)


def test_the_description_is_read_without_the_arrays(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(STORED)
    with path.open("rb") as file:
        assert described(file, path.stat().st_size, KEY) == verified(STORED, KEY)
        assert file.tell() < len(STORED)
    assert arrays_of(STORED, verified(STORED, KEY))["extra"].tolist() == ["é", "b"]


# Damage in the store


def stored_path(store, key=KEY):
    return store.folder / f"{key}.safetensors"


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "other key", "not safetensors"])
def test_a_damaged_file_is_set_aside_with_a_notice(store, how):
    store.put(KEY, numbers(), Count("a"))
    path = stored_path(store)
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[-3] ^= 4
    elif how == "cut":
        del data[-1]
    elif how == "empty":
        data.clear()
    elif how == "other key":
        data = packed(OTHER, numbers(), Count("b"))
    else:
        data = b"\x80\x04pickle" * 10
    path.write_bytes(data)
    assert store.get(KEY) is None
    assert not path.exists()
    assert (store.folder / "damaged" / path.name).read_bytes() == bytes(data)
    (notice,) = store.notices()
    assert KEY[:12] in notice
    assert "set aside" in notice
    assert store.take_notices(OTHER) == []
    assert store.take_notices(KEY) == [notice]
    assert store.notices() == []
    store.put(KEY, numbers(), Count("a"))
    assert same(store.get(KEY).values, numbers().values)


def test_fields_that_the_experiment_no_longer_has_count_as_damage(store, monkeypatch):
    store.put(KEY, numbers(), Count("a"))

    @dataclasses.dataclass(frozen=True, eq=False)
    class Renamed(Numbers):
        def __post_init__(self):
            raise TypeError("other fields")

    monkeypatch.setattr(Count, "result_type", Renamed)
    assert store.get(KEY) is None
    assert "its fields are not those of count" in store.notices()[0]


def test_a_sound_file_of_another_version_stays_and_is_not_read(store, monkeypatch):
    store.put(KEY, numbers(), Count("a"))
    monkeypatch.setattr(Count, "version", 2)
    assert store.get(KEY) is None
    assert stored_path(store).exists()
    assert "computed by version 1 of count" in store.notices()[0]
    assert [entry.version for entry in store.entries()] == [1]


def test_a_result_of_an_experiment_that_is_gone_stays_and_is_not_read(store, monkeypatch):
    store.put(KEY, numbers(), Count("a"))
    monkeypatch.delitem(store_module.settings_type.__globals__["EXPERIMENTS"], "count")
    assert store.get(KEY) is None
    assert stored_path(store).exists()


def test_few_damaged_files_are_kept(store):
    for number in range(20):
        key = f"{number:064x}"
        store.put(key, numbers(), Count("a"))
        stored_path(store, key).write_bytes(b"x")
        store.get(key)
    assert len(list((store.folder / "damaged").iterdir())) == 8
    assert store.clear() == 0
    assert list((store.folder / "damaged").iterdir()) == []


def test_a_file_replaced_since_it_was_read_is_not_set_aside(store, monkeypatch):
    store.put(KEY, numbers(), Count("a"))
    path = stored_path(store)
    path.write_bytes(b"damaged")
    sound = packed(KEY, numbers(), Count("a"))

    def verify_after_another_wrote(data, key):
        write_atomically(path, sound)
        return verified(data, key)

    monkeypatch.setattr(store_module, "verified", verify_after_another_wrote)
    assert store.get(KEY) is None
    assert path.read_bytes() == sound


WRONG = ("folder", "pipe", "link to nothing", "link to a folder")


def lay(path, what):
    """Put something that is no file at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if what == "folder":
        path.mkdir()
        (path / "inside").write_text("mine")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.parent if what == "link to a folder" else path.parent / "nowhere")


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("first", ["get", "put", "entries", "delete", "clear"])
def test_what_is_no_file_is_set_aside_whoever_meets_it_first(store, what, first):
    lay(stored_path(store), what)
    if first == "get":
        assert store.get(KEY) is None
    elif first == "put":
        store.put(KEY, numbers(), Count("a"))
    elif first == "entries":
        assert store.entries() == []
    elif first == "delete":
        assert store.delete(KEY) is False
    else:
        assert store.clear() == 0
    if first in ("get", "entries", "delete"):
        (notice,) = store.take_notices(KEY)
        assert "lies where its file belongs) and has been set aside." in notice
    assert first == "put" or not os.path.lexists(stored_path(store))
    aside = store.folder / "damaged" / stored_path(store).name
    assert os.path.lexists(aside) == (first != "clear")
    if what == "folder" and first != "clear":
        assert (aside / "inside").read_text() == "mine"
    store.put(KEY, numbers(), Count("a"))
    assert same(store.get(KEY).values, numbers().values)
    assert store.size() == stored_path(store).stat().st_size
    assert store.clear() == 1
    assert list((store.folder / "damaged").iterdir()) == []


@pytest.mark.parametrize("what", ["folder", "pipe", "link to nothing"])
def test_a_lock_that_is_no_file_does_not_stop_a_run(store, what):
    lay(stored_path(store).with_suffix(".lock"), what)
    with store.lock(KEY):
        pass
    assert not os.path.lexists(stored_path(store).with_suffix(".lock"))


def test_what_cannot_be_set_aside_is_told_with_the_way_out(store, monkeypatch):
    lay(stored_path(store), "folder")

    def refuse(*_):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folders.os, "rename", refuse)
    assert store.get(KEY) is None
    (notice,) = store.notices()
    assert notice.endswith(
        "cannot be moved away: permission denied; point EMBCOMPARE_CACHE to a folder that can be written."
    )


def test_a_notice_is_told_once_to_whoever_asks_for_that_result(store, monkeypatch, caplog):
    for key in (KEY, OTHER):
        store.put(key, numbers(), Count("a"))
        stored_path(store, key).write_bytes(b"x")
        assert store.get(key) is None
    assert len(store.notices()) == len(store.notices()) == 2
    assert [KEY[:12] in notice for notice in store.take_notices(KEY)] == [True]
    assert store.take_notices(KEY) == []
    assert len(store.take_notices()) == 1
    assert store.notices() == []
    store.put(KEY, numbers(), Count("a"))
    monkeypatch.setattr(Count, "version", 2)
    caplog.clear()
    for _ in range(5):
        assert store.get(KEY) is None
    assert len(store.notices()) == len(caplog.records) == 1, "the same is said once, however often it is met"


def test_notices_that_nobody_takes_are_bounded(store):
    store.folder.mkdir()
    for number in range(130):
        stored_path(store, f"{number:064x}").write_bytes(b"x")
        store.get(f"{number:064x}")
    assert len(store.notices()) == 100
    assert f"{129:064x}"[:12] in store.notices()[-1]


# Listing, deleting, bounds


def test_entries_say_what_is_stored_last_used_first(store):
    before = time.time()
    store.put(KEY, numbers(), Count("a", steps=5))
    store.put(OTHER, numbers(), Count("b"))
    store.get(KEY)
    first, second = store.entries()
    assert (first.key, second.key) == (KEY, OTHER)
    assert first.experiment == "count"
    assert Count.from_dict(first.settings) == Count("a", steps=5)
    assert first.models == {"a": "1"}
    assert first.seconds == 0.5
    assert first.bytes == stored_path(store).stat().st_size
    assert before - 1 <= first.created <= first.last_used <= time.time() + 1
    assert store.size() == first.bytes + second.bytes


def test_entries_set_aside_what_cannot_be_read_and_ignore_other_files(store):
    store.put(KEY, numbers(), Count("a"))
    stored_path(store, OTHER).write_bytes(stored_path(store).read_bytes())
    (store.folder / "notes.safetensors").write_bytes(b"mine")
    assert [entry.key for entry in store.entries()] == [KEY]
    assert "holds another result" in store.notices()[0]
    assert (store.folder / "notes.safetensors").exists()


def test_find_completes_a_key(store):
    store.put(KEY, numbers(), Count("a"))
    store.put(KEY[:-1] + "0", numbers(), Count("a"))
    assert store.find(KEY) == KEY
    with pytest.raises(StoreError, match="2 stored results begin with '0123'"):
        store.find("0123")
    for start in ("9", "", "../x"):
        with pytest.raises(StoreError, match="No stored result"):
            store.find(start)


def test_delete_and_clear(store):
    for key in (KEY, OTHER):
        store.put(key, numbers(), Count("a"))
    assert store.delete(KEY) is True
    assert store.delete(KEY) is False
    assert store.get(KEY) is None
    assert store.clear() == 1
    assert (store.entries(), store.size(), store.clear()) == ([], 0, 0)


@pytest.mark.parametrize("key", ["", "x", "../" + KEY, KEY.upper(), KEY + "0", KEY + "\n"])
def test_only_a_key_becomes_a_file_name(store, key):
    for act in (store.get, store.delete, lambda k: store.put(k, numbers(), Count("a"))):
        with pytest.raises(StoreError, match="not the key of a result"):
            act(key)


def test_the_least_recently_used_goes_first_and_never_the_one_just_written(store):
    keys = [f"{number:064x}" for number in range(4)]
    store.put(keys[0], numbers(100), Count("a"))
    size = store.size()
    store.max_bytes = 3 * size
    for key in keys[1:3]:
        store.put(key, numbers(100), Count("a"))
    store.get(keys[0])  # now keys[1] is the oldest
    store.put(keys[3], numbers(100), Count("a"))
    assert {entry.key for entry in store.entries()} == {keys[0], keys[2], keys[3]}
    store.max_bytes = 1
    store.put(keys[1], numbers(100), Count("a"))
    assert [entry.key for entry in store.entries()] == [keys[1]]


def test_damaged_files_count_and_go_first(store):
    store.put(KEY, numbers(100), Count("a"))
    store.max_bytes = int(2.5 * store.size())
    store.put(OTHER, numbers(100), Count("a"))
    stored_path(store, OTHER).write_bytes(b"x" * store.size())
    store.get(OTHER)
    store.put(OTHER, numbers(100), Count("a"))
    assert {entry.key for entry in store.entries()} == {KEY, OTHER}
    assert list((store.folder / "damaged").iterdir()) == []


def test_leftovers_of_dead_writers_are_swept_and_those_of_living_ones_stay(store):
    store.put(KEY, numbers(), Count("a"))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = folders.host()
    gone = store.folder / f".embcompare.{host}.{dead.pid}.00.tmp"
    old = store.folder / ".embcompare.elsewhere.1.00.tmp"
    alive = store.folder / f".embcompare.{host}.{os.getpid()}.00.tmp"
    elsewhere = store.folder / f".embcompare.elsewhere.{dead.pid}.01.tmp"
    for path in (gone, old, alive, elsewhere):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    store.put(OTHER, numbers(), Count("a"))
    assert [path.exists() for path in (gone, old, alive, elsewhere)] == [False, False, True, True]


# Folders that cannot be written, disks that are full


def test_a_full_disk_is_told_in_a_sentence_and_leaves_nothing(store, monkeypatch):
    store.put(KEY, numbers(), Count("a"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for place in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(store_module.os, place, full)
            with pytest.raises(StoreError, match="no space left on device; free some space"):
                store.put(OTHER, numbers(), Count("a"))
    assert [path.name for path in store.folder.iterdir()] == [f"{KEY}.safetensors"]
    assert store.get(KEY) is not None


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no mount command here")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this account cannot mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(tiny_disk):
    store = Store(tiny_disk)
    store.put(KEY, numbers(10), Count("a"))
    with pytest.raises(StoreError, match="free some space"):
        store.put(OTHER, numbers(100_000), Count("a"))
    assert [path.name for path in tiny_disk.iterdir()] == [f"{KEY}.safetensors"]
    assert store.get(KEY) is not None


@pytest.mark.parametrize("where", ["under a file", "/proc/embcompare"])
def test_an_unwritable_folder_is_told_and_reads_as_empty(tmp_path, where):
    if where == "under a file":
        (tmp_path / "file").write_text("")
        where = tmp_path / "file" / "cache"
    elif not Path("/proc").is_dir():
        pytest.skip("no /proc here")
    store = Store(Path(where))
    assert "Results cannot be kept in" in store.writable()
    assert "EMBCOMPARE_CACHE" in store.writable()
    with pytest.raises(StoreError, match="cannot be kept in"):
        store.put(KEY, numbers(), Count("a"))
    with pytest.raises(StoreError, match="cannot be locked in"), store.lock(KEY):
        pass
    assert store.get(KEY) is None
    assert (store.entries(), store.size(), store.clear(), store.delete(KEY)) == ([], 0, 0, False)


def test_writable_leaves_no_trace(store):
    assert store.writable() is None
    assert list(store.folder.iterdir()) == []


def test_the_environment_names_folder_and_size(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "named"))
    monkeypatch.setenv("EMBCOMPARE_CACHE_BYTES", "12345")
    assert (Store().folder, Store().max_bytes) == (tmp_path / "named", 12345)
    assert Store(tmp_path, 7).max_bytes == 7
    monkeypatch.setenv("EMBCOMPARE_CACHE_BYTES", "2 GB")
    with pytest.raises(SettingsError, match="EMBCOMPARE_CACHE_BYTES cannot be '2 GB'; give a whole number of bytes"):
        Store()
    monkeypatch.delenv("EMBCOMPARE_CACHE_BYTES")
    monkeypatch.delenv("EMBCOMPARE_CACHE")
    assert Store().folder.name == "embcompare"
    assert Store().max_bytes == 2 * 2**30


def test_making_a_store_touches_nothing(tmp_path):
    Store(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


# Atomic writing


def test_writing_replaces_whole_files_and_follows_links(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert target.read_bytes() == b"new"
    assert link.is_symlink()
    write_atomically(Path(os.devnull), b"nothing")
    assert Path(os.devnull).exists()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path, b"x")


# Keys


VALUES = {
    "model_a": "b", "model_b": "c", "steps": 4, "kind": "down", "centred": False, "limit": 0.0, "pause": 0.5,
    "gate": "g", "log": "l", "fail": "f",
}  # fmt: skip


def test_every_single_setting_changes_the_key(store):
    base = Count("a")
    keys = {store.key(base, fingerprints(base))}
    assert set(VALUES) == {item.name for item in dataclasses.fields(Count)}
    for name, value in VALUES.items():
        changed = dataclasses.replace(base, **{name: value})
        keys.add(store.key(changed, fingerprints(changed)))
    assert len(keys) == 1 + len(VALUES)


def test_the_key_knows_weights_not_names_and_not_the_order_of_settings(store, monkeypatch):
    here, there = Count("a"), Count("copy of a")
    key = store.key(here, fingerprints(here))
    assert len(key) == 64
    assert store.key(there, fingerprints(there)) == key
    shuffled = Count.from_dict(dict(reversed(here.to_dict().items())))
    assert store.key(shuffled, dict(reversed(fingerprints(here).items()))) == key
    assert store.key(here, {**fingerprints(here), "a": "retrained"}) != key
    swapped = Count("b", model_b="a")
    assert store.key(swapped, fingerprints(swapped)) != key
    monkeypatch.setattr(Count, "version", 2)
    assert store.key(here, fingerprints(here)) != key
    assert WEIGHTS["a"] == WEIGHTS["copy of a"]


# Locks


def test_one_holder_at_a_time_among_threads_and_no_lock_file_is_left(store):
    inside, most = 0, 0
    guard = threading.Lock()

    def hold():
        nonlocal inside, most
        with store.lock(KEY):
            with guard:
                inside += 1
                most = max(most, inside)
            time.sleep(0.01)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert list(store.folder.iterdir()) == []


def test_who_waits_can_give_up(store):
    calls = []

    def waiting():
        calls.append(1)
        if len(calls) == 3:
            raise BrokenPipeError

    raised = []

    def other():
        try:
            with store.lock(KEY, waiting):
                pass
        except Exception as error:
            raised.append(type(error))

    with store.lock(KEY):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
    assert (len(calls), raised) == (3, [BrokenPipeError])
    with store.lock(KEY):
        pass


def python(code, *arguments, **options):
    """Start a Python process in which the tests' own modules can be imported."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


HOLDER = """
import sys, time
from pathlib import Path
from embcompare.store import Store
with Store(Path(sys.argv[1])).lock(sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_owner_frees_its_lock(store):
    holder = python(HOLDER, store.folder, KEY)
    assert holder.stdout.readline() == "held\n"
    waits = []
    threading.Timer(0.3, lambda: os.kill(holder.pid, signal.SIGKILL)).start()
    with store.lock(KEY, lambda: waits.append(1)):
        assert waits
    assert holder.wait(10) == -signal.SIGKILL


WRITER = """
import os, sys, time
from pathlib import Path
import numpy as np
from fakes import Count, Numbers, register
from embcompare import store as module
register()
def stop(source, target):
    print("writing", flush=True)
    time.sleep(60)
module.os.replace = stop
module.Store(Path(sys.argv[1])).put(sys.argv[2], Numbers(np.zeros(1000)), Count("a"))
"""


def test_a_writer_killed_in_the_middle_leaves_the_store_whole(store):
    store.put(OTHER, numbers(), Count("a"))
    writer = python(WRITER, store.folder, KEY)
    assert writer.stdout.readline() == "writing\n"
    assert len(list(store.folder.glob(".embcompare.*.tmp"))) == 1
    writer.kill()
    writer.wait(10)
    assert store.get(KEY) is None
    assert [entry.key for entry in store.entries()] == [OTHER]
    assert store.notices() == []
    store.put(KEY, numbers(), Count("a"))
    assert list(store.folder.glob(".embcompare.*.tmp")) == []


def test_many_processes_may_write_and_read_at_once():
    code = """
import sys
from pathlib import Path
import numpy as np
from fakes import Count, Numbers, register
from embcompare.store import Store
register()
store = Store(Path(sys.argv[1]), max_bytes=20_000)
for turn in range(40):
    key = f"{turn % 5:064x}"
    store.put(key, Numbers(np.full(100, turn % 5.0)), Count("a"))
    found = store.get(f"{(turn + 1) % 5:064x}")
    assert found is None or np.ptp(found.values) == 0
    store.entries()
print(store.notices())
"""
    with tempfile.TemporaryDirectory() as folder:
        workers = [python(code, folder) for _ in range(2)]
        assert [worker.communicate(timeout=60)[0] for worker in workers] == ["[]\n", "[]\n"]
        assert [worker.returncode for worker in workers] == [0, 0]
