"""Loaded once, lent safely, evicted before the room is needed."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from embcompare.errors import ModelDamaged, ModelRefused, SettingsError
from embcompare.models import ModelPool, default_pool, inspect_model, load_model

PLENTY = 10**12


@pytest.fixture
def names(tiny_folders):
    return [str(tiny_folders(name)) for name in ("gpt2", "bert-mlm", "llama")]


class Loader:
    """Loads as the real one, slowly, and remembers what and when."""

    def __init__(self, pool=None, fail=()):
        self.loads, self.fail, self.held = [], fail, []
        self.lock = threading.Lock()

    def __call__(self, spec):
        with self.lock:
            self.loads.append(spec.label)
        time.sleep(0.05)
        if spec.label.split("-")[0] in self.fail:
            raise ModelDamaged("broken")
        return load_model(spec)


def pool(loader=None, free=PLENTY, **options):
    return ModelPool(free_bytes=free if callable(free) else lambda device: free, load=loader or load_model, **options)


def test_eight_threads_cause_one_load(names):
    loader = Loader()
    shared = pool(loader)
    barrier = threading.Barrier(8)

    def use(_):
        barrier.wait()
        with shared.lease(names[0]) as model:
            return id(model)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(use, range(8)))) == 1
    assert len(loader.loads) == 1
    stats = shared.stats()
    assert (stats["loads"], stats["hits"], stats["evictions"]) == (1, 7, 0)
    assert stats["models"][0]["leases"] == 0
    assert stats["bytes"] == stats["models"][0]["bytes"] > 0


def test_different_precisions_are_different_models(names):
    from embcompare.models import ModelSpec

    shared = pool()
    with (
        shared.lease(ModelSpec.parse(names[0])) as one,
        shared.lease(ModelSpec.parse(names[0], dtype="float64")) as other,
    ):
        assert one is not other
        assert one.fingerprint == other.fingerprint


def test_the_least_recently_used_idle_model_goes_first(names):
    shared = pool(max_models=2)
    for name in (names[0], names[1], names[0], names[2]):
        with shared.lease(name):
            pass
    held = {m["label"].split("-")[0] for m in shared.stats()["models"]}
    assert held == {"gpt2", "llama"}
    assert shared.stats()["evictions"] == 1


def test_room_is_made_before_the_new_model_is_loaded(names):
    """Evicting only afterwards needs memory for both at once."""
    first, second = (inspect_model(name).bytes for name in names[:2])
    capacity = 1.2 * max(first, second)
    seen = []

    def free(device):
        return int(capacity - shared.stats()["bytes"])

    def load(spec):
        seen.append(shared.stats()["bytes"])
        return load_model(spec)

    shared = pool(load, free)
    for name in names[:2]:
        with shared.lease(name):
            pass
    assert seen == [0, 0]
    assert shared.stats()["evictions"] == 1


def test_a_lease_blocks_eviction_and_the_refusal_names_who_is_in_the_way(names):
    capacity = 1.2 * inspect_model(names[0]).bytes
    shared = pool(free=lambda device: int(capacity - shared.stats()["bytes"]))
    with shared.lease(names[0]) as model:
        with pytest.raises(ModelRefused, match=r"needs .*kB.*gpt2.*cannot give way"), shared.lease(names[1]):
            pass
        assert shared.stats()["models"][0]["label"] == model.spec.label
    with shared.lease(names[1]):
        assert len(shared.stats()["models"]) == 1


def test_as_many_models_as_allowed_may_be_in_use(names):
    shared = pool(max_models=1)
    with shared.lease(names[0]), pytest.raises(ModelRefused, match="all in use"), shared.lease(names[1]):
        pass
    with shared.lease(names[1]):
        pass


def test_two_loads_at_once_do_not_count_the_same_memory(names):
    size = inspect_model(names[0]).bytes
    started, proceed = threading.Event(), threading.Event()

    def load(spec):
        started.set()
        proceed.wait(10)
        return load_model(spec)

    shared = pool(load, 1.3 * size)

    def hold():
        with shared.lease(names[0]):
            pass

    thread = threading.Thread(target=hold)
    thread.start()
    started.wait(10)
    try:
        with pytest.raises(ModelRefused, match="memory"), shared.lease(names[1]):
            pass
    finally:
        proceed.set()
        thread.join()


def test_what_raises_inside_a_lease_releases_it(names):
    shared = pool(max_models=1)
    with pytest.raises(KeyboardInterrupt), shared.lease(names[0]):
        raise KeyboardInterrupt
    assert shared.stats()["models"][0]["leases"] == 0
    with shared.lease(names[1]):
        pass


def test_a_failed_load_is_told_to_all_who_wait_and_tried_again_later(names):
    loader = Loader(fail=("gpt2",))
    shared = pool(loader, max_models=1)
    barrier = threading.Barrier(4)

    def use(_):
        barrier.wait()
        with pytest.raises(ModelDamaged, match="broken"), shared.lease(names[0]):
            pass

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert 1 <= len(loader.loads) <= 4
    assert shared.stats()["models"] == []
    loader.fail = ()
    with shared.lease(names[0]) as model, pytest.raises(ModelRefused), shared.lease(names[1]):
        assert model.info.layers == 2
    with shared.lease(names[1]):
        pass


def test_an_interrupted_load_leaves_no_trace(names):
    def load(spec):
        raise KeyboardInterrupt

    shared = pool(load, max_models=1)
    with pytest.raises(KeyboardInterrupt), shared.lease(names[0]):
        pass
    assert shared.stats()["models"] == []
    shared._load = load_model
    with shared.lease(names[0]):
        pass


def test_a_folder_written_anew_is_loaded_anew(tiny_folders, tmp_path):
    import shutil

    folder = shutil.copytree(tiny_folders("gpt2"), tmp_path / "m")
    shared = pool()
    with shared.lease(str(folder)) as model:
        before = model.fingerprint
    shutil.copytree(tiny_folders("gpt2", seed=1), folder, dirs_exist_ok=True)
    with shared.lease(str(folder)) as model:
        assert model.fingerprint != before


def test_release_drops_what_is_idle_and_only_that(names):
    shared = pool()
    with ExitStack() as stack:
        stack.enter_context(shared.lease(names[0]))
        with shared.lease(names[1]):
            pass
        assert shared.release(names[0]) == 0
        assert shared.release() == 1
        assert [m["leases"] for m in shared.stats()["models"]] == [1]
    assert shared.release(names[0]) == 1
    assert shared.stats()["models"] == []


def test_an_evicted_model_is_freed(names):
    import gc
    import weakref

    shared = pool(max_models=1)
    with shared.lease(names[0]) as model:
        gone = weakref.ref(model.module)
    del model
    with shared.lease(names[1]):
        gc.collect()
        assert gone() is None


def test_many_threads_over_many_models_stay_consistent(names):
    shared = pool(max_models=3)
    failures = []

    def use(k):
        try:
            with shared.lease(names[k % 3]) as model:
                assert model.module is not None
        except ModelRefused as error:
            failures.append(error)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(use, range(60)))
    stats = shared.stats()
    assert not failures
    assert stats["loads"] == 3
    assert all(m["leases"] == 0 for m in stats["models"])


def test_the_default_pool_is_one_and_bounded_by_the_environment(monkeypatch):
    from embcompare.models import pool as module

    monkeypatch.setattr(module, "_default", None)
    monkeypatch.setenv("EMBCOMPARE_MAX_MODELS", "2")
    assert default_pool() is default_pool()
    assert default_pool().max_models == 2
    monkeypatch.setattr(module, "_default", None)
    monkeypatch.setenv("EMBCOMPARE_MAX_MODELS", "some")
    with pytest.raises(SettingsError, match="some"):
        default_pool()
    monkeypatch.setenv("EMBCOMPARE_MAX_MODELS", "0")
    with pytest.raises(SettingsError, match="cannot be '0'; give a whole number from 1 up"):
        default_pool()


def test_free_memory_is_read_from_the_machine(monkeypatch):
    from embcompare.models import memory

    assert 10**7 < memory.free_bytes() < 10**14
    assert memory.limit() <= memory.free_bytes() * 1.1
    assert [memory.in_words(n) for n in (5, 1500, 250_000, 3.2e9, 5e13)] == [
        "5 bytes",
        "1.5 kB",
        "250 kB",
        "3.2 GB",
        "50.0 TB",
    ]
