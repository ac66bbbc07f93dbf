import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import GATES, WEIGHTS, Count, register

from embcompare import jobs, running
from embcompare.errors import Busy, Cancelled, EmbcompareError, ModelNotFound, SettingsError
from embcompare.jobs import JobQueue, Progress, run
from embcompare.store import Store

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def _count(monkeypatch, tmp_path):
    register(monkeypatch.setitem, monkeypatch.setattr)
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "default"))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


@pytest.fixture
def unwritable(tmp_path):
    (tmp_path / "file").write_text("")
    return Store(tmp_path / "file" / "cache")


@pytest.fixture
def gate():
    """A function that makes a gate; all are opened at the end, so that no thread is left waiting."""

    def make(name):
        GATES[name] = threading.Event()
        return GATES[name]

    yield make
    for event in GATES.values():
        event.set()
    GATES.clear()


@pytest.fixture
def make_queue(store):
    queues = []

    def make(**options):
        queues.append(JobQueue(**{"store": store, "device": "cpu", **options}))
        return queues[-1]

    yield make
    for event in GATES.values():
        event.set()
    for queue in queues:
        assert queue.shutdown(timeout=20)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("embcompare-")] == []


@pytest.fixture
def queue(make_queue):
    return make_queue()


def compute(settings, **options):
    return run(settings, device="cpu", **options)


def computed(log):
    return len(Path(log).read_text().splitlines()) if Path(log).exists() else 0


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


# Progress


def test_progress_tells_fraction_and_time_to_go():
    now = time.monotonic()
    step = Progress(1, 4, "x", started=now - 10, reported=now)
    assert step.fraction == 0.25
    assert step.eta_seconds == pytest.approx(30, abs=1)
    late = Progress(1, 4, "x", started=now - 20, reported=now - 10)
    assert late.eta_seconds == pytest.approx(20, abs=1)  # counts down between two reports
    assert Progress(4, 4, "x", started=now - 10).eta_seconds == 0
    assert Progress(1, 4, "x", started=now - 1000, reported=now - 900).eta_seconds == 0


@pytest.mark.parametrize(("done", "total", "fraction"), [(0, 0, 0), (0, 5, 0), (7, 5, 1), (-1, 5, 0)])
def test_progress_without_a_pace_has_no_time_to_go(done, total, fraction):
    step = Progress(done, total, "x", started=time.monotonic() - 5)
    assert step.fraction == fraction
    assert step.eta_seconds is None or done == 7


# run


def test_a_run_is_computed_once_and_then_comes_from_the_store(store, tmp_path):
    settings = Count("a", log=str(tmp_path / "log"))
    first, second = compute(settings, store=store), compute(settings, store=store)
    assert computed(settings.log) == 1
    assert first.values.tobytes() == second.values.tobytes()
    assert (first.names, first.score, first.notices) == (second.names, second.score, second.notices)
    assert "cached" not in first.provenance
    assert second.provenance == {**first.provenance, "cached": True}
    assert first.provenance["models"] == {"a": WEIGHTS["a"], "b": WEIGHTS["b"]}
    assert first.provenance["settings"] == settings.to_dict()
    assert first.provenance["device"] == "cpu"
    for result in (first, second):
        assert not result.values.flags.writeable


def test_equal_weights_under_another_name_share_a_result(store, tmp_path):
    log = str(tmp_path / "log")
    compute(Count("a", log=log), store=store)
    assert compute(Count("copy of a", log=log), store=store).provenance["cached"]
    assert computed(log) == 1


def test_without_keep_nothing_is_read_or_written(store, tmp_path):
    settings = Count("a", log=str(tmp_path / "log"))
    for _ in range(2):
        assert "cached" not in compute(settings, store=store, keep=False).provenance
    assert computed(settings.log) == 2
    assert store.entries() == []


def test_the_default_store_is_the_one_the_environment_names(tmp_path):
    compute(Count("a"))
    assert len(Store(tmp_path / "default").entries()) == 1


def test_a_result_that_cannot_be_kept_is_returned_with_a_notice(unwritable):
    result = compute(Count("a"), store=unwritable)
    assert result.values.tolist() == [0, 1, 2]
    assert result.notices[0] == "One notice."
    assert "cannot be kept in" in result.notices[1]


def test_a_damaged_copy_is_computed_anew_and_told(store, tmp_path):
    settings = Count("a", log=str(tmp_path / "log"))
    compute(settings, store=store)
    (path,) = store.folder.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    result = compute(settings, store=store)
    assert computed(settings.log) == 2
    assert "set aside" in result.notices[-1]
    again = compute(settings, store=store)
    assert again.provenance["cached"]
    assert again.notices == ("One notice.",)


def test_weights_that_change_under_way_are_noticed(store, monkeypatch):
    prints = iter([{"a": "before", "b": "b"}, {"a": "after", "b": "b"}])
    monkeypatch.setattr(running, "fingerprints", lambda settings: next(prints))
    result = compute(Count("a"), store=store)
    assert "changed while the run was going" in result.notices[-1]
    assert store.entries() == []


def test_progress_is_reported_at_every_step(store):
    steps = []
    compute(Count("a", steps=5), store=store, progress=steps.append)
    assert [(step.done, step.total, step.message) for step in steps] == [(n, 5, f"step {n}") for n in range(1, 6)]
    assert len({step.started for step in steps}) == 1


def test_a_run_stops_when_asked_and_keeps_nothing(store, tmp_path):
    cancel = threading.Event()
    settings = Count("a", steps=5, log=str(tmp_path / "log"))
    seen = []

    def progress(step):
        seen.append(step.done)
        if step.done == 2:
            cancel.set()

    with pytest.raises(Cancelled):
        compute(settings, store=store, progress=progress, cancel=cancel)
    assert seen == [1, 2]
    with pytest.raises(Cancelled):
        compute(settings, store=store, cancel=cancel)
    assert computed(settings.log) == 1
    assert list(store.folder.iterdir()) == []  # neither a result nor a lock


def test_what_a_progress_callback_raises_goes_through_and_frees_the_lock(store):
    def broken(step):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        compute(Count("a"), store=store, progress=broken)
    assert compute(Count("a"), store=store).values.size == 3


def test_eight_threads_at_once_compute_once(store, tmp_path, gate):
    opened = gate("eight")
    settings = Count("a", gate="eight", log=str(tmp_path / "log"))
    results, waiting = [], []

    def one():
        results.append(compute(settings, store=store, progress=lambda step: waiting.append(step.message)))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: sum("waiting for it" in message for message in waiting) >= 7)
    opened.set()
    for thread in threads:
        thread.join(20)
    assert computed(settings.log) == 1
    assert sum("cached" in result.provenance for result in results) == 7
    assert {result.values.tobytes() for result in results} == {np.arange(3.0).tobytes()}


def test_who_waits_for_another_run_can_cancel(store, gate, tmp_path):
    opened = gate("other")
    settings = Count("a", gate="other", log=str(tmp_path / "log"))
    other = threading.Thread(target=compute, args=(settings,), kwargs={"store": store})
    other.start()
    until(lambda: computed(settings.log) == 1)
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        compute(settings, store=store, cancel=cancel, progress=lambda step: cancel.set())
    opened.set()
    other.join(20)


@pytest.mark.parametrize("fail", ["memory", "allocator"])
def test_running_out_of_memory_is_one_sentence(store, fail):
    with pytest.raises(EmbcompareError, match="needs more memory than cpu has free"):
        compute(Count("a", fail=fail), store=store)


def test_running_out_of_gpu_memory_is_one_sentence(store, monkeypatch):
    class OutOfMemoryError(RuntimeError):
        pass

    def compute_on_gpu(self, context):
        raise OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(OutOfMemoryError=OutOfMemoryError)))
    monkeypatch.setattr(Count, "compute", compute_on_gpu)
    with pytest.raises(EmbcompareError, match="needs more memory"):
        compute(Count("a"), store=store)


def test_other_failures_of_an_experiment_go_through_unchanged(store):
    with pytest.raises(ValueError, match="first line"):
        compute(Count("a", fail="value"), store=store)
    assert list(store.folder.iterdir()) == []


def test_a_device_that_is_not_one_is_refused(store):
    with pytest.raises(SettingsError, match="device cannot be 'tpu'"):
        run(Count("a"), store=store, device="tpu")


def test_cuda_without_a_gpu_is_refused_and_auto_takes_what_there_is(store):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        assert running.resolve_device("auto") == running.resolve_device("cuda") == "cuda"
        return
    assert running.resolve_device("auto") == "cpu"
    with pytest.raises(SettingsError, match="no usable GPU"):
        run(Count("a"), store=store, device="cuda")


def test_a_model_is_leased_from_the_shared_pool_on_the_contexts_device(monkeypatch):
    import embcompare.models

    leased = []
    monkeypatch.setattr(
        embcompare.models,
        "default_pool",
        lambda: SimpleNamespace(lease=lambda spec: leased.append(spec)),
        raising=False,
    )
    running.RunContext("cpu").lease("demo/gpt2-a")
    assert [(spec.name, spec.device) for spec in leased] == [("gpt2-a", "cpu")]

    def stop():
        raise Cancelled("no")

    with pytest.raises(Cancelled):
        running.RunContext("cpu", check=stop).lease("demo/gpt2-a")
    assert len(leased) == 1


# Processes


def python(code, *arguments):
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


ONE_RUN = """
import sys
from pathlib import Path
from fakes import Count, register
from embcompare.jobs import run
from embcompare.store import Store
register()
settings = Count("a", steps=4, pause=float(sys.argv[3]), log=sys.argv[2])
print("started", flush=True)
print(run(settings, store=Store(Path(sys.argv[1])), device="cpu").values.sum())
"""


def test_two_processes_compute_once(store, tmp_path):
    log = tmp_path / "log"
    workers = [python(ONE_RUN, store.folder, log, 0.1) for _ in range(2)]
    assert [worker.communicate(timeout=60)[0] for worker in workers] == ["started\n6.0\n"] * 2
    assert computed(log) == 1


def test_a_run_whose_process_is_killed_is_taken_over_by_who_waits(store, tmp_path):
    log = tmp_path / "log"
    worker = python(ONE_RUN, store.folder, log, 60)
    until(lambda: computed(log) == 1, 60)
    settings = Count("a", steps=4, pause=60.0, log=str(log))
    waits = []
    cancel = threading.Event()

    def progress(step):
        waits.append(step.message)
        if len(waits) == 2:
            os.kill(worker.pid, signal.SIGKILL)

    def stop_when_computing():
        until(lambda: computed(log) == 2, 60)
        cancel.set()

    watcher = threading.Thread(target=stop_when_computing)
    watcher.start()
    taken = threading.Thread(target=lambda: _quietly(settings, store, progress, cancel), daemon=True)
    taken.start()
    watcher.join(60)
    assert computed(log) == 2
    assert worker.wait(10) == -signal.SIGKILL
    assert "waiting for it" in waits[0]


def _quietly(settings, store, progress, cancel):
    with suppress(Cancelled):
        compute(settings, store=store, progress=progress, cancel=cancel)


# The queue


def test_a_job_runs_and_gives_its_result(queue, store):
    job = queue.submit(Count("a"), "me")
    assert job.wait(20)
    shot = job.snapshot()
    assert (shot.state, shot.position, shot.error, shot.partial) == ("done", 0, None, None)
    assert shot.finished
    assert shot.result.values.tolist() == [0, 1, 2]
    assert shot.progress.done == 3
    assert queue.get(job.key) is job
    assert [entry.key for entry in store.entries()] == [job.key]


def test_equal_settings_are_one_job_for_all_who_watch(queue, gate, tmp_path):
    opened = gate("one")
    settings = Count("a", gate="one", log=str(tmp_path / "log"))
    jobs = [queue.submit(settings, f"session {number % 4}") for number in range(8)]
    assert len(set(map(id, jobs))) == 1
    assert jobs[0].watchers == {f"session {number}" for number in range(4)}
    opened.set()
    assert jobs[0].wait(20)
    assert computed(settings.log) == 1
    assert queue.submit(settings, "late") is jobs[0]


def test_jobs_run_in_the_order_they_came(queue, gate, tmp_path):
    opened = gate("first")
    jobs = [queue.submit(Count("a", gate="first"), "me")]
    until(lambda: jobs[0].state == "running")
    log = tmp_path / "log"
    jobs += [queue.submit(Count("a", steps=steps, log=str(log)), "me") for steps in (7, 3, 5)]
    assert [job.position for job in jobs] == [0, 1, 2, 3]
    assert [job.state for job in jobs] == ["running", "queued", "queued", "queued"]
    assert queue.cancel(jobs[2].key, "me")
    assert [job.position for job in jobs] == [0, 1, 0, 2]
    finished = []
    for job in jobs:
        threading.Thread(target=lambda job=job: (job.wait(20), finished.append(job.settings.steps))).start()
    opened.set()
    until(lambda: len(finished) == 4)
    assert [job.state for job in jobs] == ["done", "done", "cancelled", "done"]
    assert jobs[1].result.provenance["created"] <= jobs[3].result.provenance["created"]
    assert jobs[1].progress.reported < jobs[3].progress.started
    assert computed(log) == 2


def test_two_workers_run_two_jobs_at_once(make_queue, gate):
    queue = make_queue(workers=2)
    opened = gate("two")
    jobs = [queue.submit(Count("a", gate="two", steps=steps), "me") for steps in (1, 2, 3)]
    until(lambda: [job.state for job in jobs] == ["running", "running", "queued"])
    opened.set()
    assert all(job.wait(20) for job in jobs)


def test_a_full_queue_says_so_and_takes_what_needs_no_room(make_queue, gate, store):
    queue = make_queue(max_queued=2)
    compute(Count("b"), store=store)
    opened = gate("full")
    running_job = queue.submit(Count("a", gate="full"), "me")
    until(lambda: running_job.state == "running")
    waiting = [queue.submit(Count("a", gate="full", steps=steps), "me") for steps in (4, 5)]
    with pytest.raises(Busy, match="2 runs are waiting already"):
        queue.submit(Count("a", gate="full", steps=6), "me")
    assert queue.submit(waiting[0].settings, "you") is waiting[0]
    assert queue.submit(Count("b"), "me").state == "done"
    queue.leave(waiting[1].key, "me")
    assert queue.submit(Count("a", gate="full", steps=6), "me").position == 2
    opened.set()


def test_a_stored_result_needs_no_worker(queue, store):
    settings = Count("a")
    assert queue.lookup(settings) is None
    assert queue.get(store.key(settings, running.fingerprints(settings))) is None
    compute(settings, store=store)
    assert queue.lookup(settings).provenance["cached"]
    job = queue.submit(settings, "me")
    assert job.state == "done"
    assert job.result.provenance["cached"]
    assert queue._threads == []


def test_lookup_finds_what_could_not_be_stored(make_queue, unwritable):
    queue = make_queue(store=unwritable)
    job = queue.submit(Count("a"), "me")
    assert job.wait(20)
    assert "cannot be kept" in job.result.notices[-1]
    assert queue.lookup(Count("a")) is job.result


def test_a_model_that_cannot_be_had_is_told_at_once(queue, monkeypatch):
    def missing(settings):
        raise ModelNotFound("There is no model 'a'.")

    monkeypatch.setattr(running, "fingerprints", missing)
    for ask in (queue.lookup, lambda settings: queue.submit(settings, "me")):
        with pytest.raises(ModelNotFound, match="no model 'a'"):
            ask(Count("a"))


# Cancel, partial results, failures


def test_a_running_job_is_cancelled_when_its_last_watcher_leaves_and_keeps_its_partial_result(queue, gate):
    opened = gate("late")
    job = queue.submit(Count("a", gate="late", steps=4), "me")
    queue.submit(job.settings, "you")
    opened.set()
    until(lambda: job.partial is not None or job.state == "done")
    job = queue.submit(Count("a", steps=2000, pause=0.005), "me")
    queue.submit(job.settings, "you")
    until(lambda: job.progress is not None and job.progress.done >= 2)
    assert queue.cancel(job.key, "me") is False
    assert queue.cancel(job.key, "nobody") is False
    assert job.state == "running"
    queue.leave(job.key, "you")
    assert job.wait(20)
    shot = job.snapshot()
    assert shot.state == "cancelled"
    assert isinstance(shot.error, Cancelled)
    done = shot.progress.done
    assert 2 <= done < 2000
    assert shot.partial.values[:done].tolist() == list(range(done))
    assert np.isnan(shot.partial.values[done:]).all()
    assert shot.partial.provenance["partial"] == f"{done} of 2000"
    assert shot.partial.provenance["settings"] == job.settings.to_dict()
    assert queue.cancel(job.key, "you") is False


def test_a_partial_result_does_not_change_after_it_was_reported(queue, gate):
    opened = gate("partial")
    job = queue.submit(Count("a", steps=300, pause=0.002), "me")
    until(lambda: job.partial is not None)
    early = job.partial
    left = np.isnan(early.values).sum()
    assert left > 0
    until(lambda: job.progress.done > 300 - left + 3)
    assert np.isnan(early.values).sum() == left
    opened.set()


def test_a_queued_job_is_cancelled_without_running(queue, gate, tmp_path):
    opened = gate("queued")
    first = queue.submit(Count("a", gate="queued"), "me")
    job = queue.submit(Count("b", log=str(tmp_path / "log")), "me")
    assert queue.cancel(job.key, "me") is True
    assert job.wait(0)
    assert job.state == "cancelled"
    assert "before it began" in str(job.error)
    opened.set()
    assert first.wait(20)
    assert computed(tmp_path / "log") == 0


def test_a_cancelled_job_starts_again_when_asked(queue):
    settings = Count("a", steps=20, pause=0.02)
    job = queue.submit(settings, "me")
    until(lambda: job.progress is not None)
    queue.cancel(job.key, "me")
    again = queue.submit(settings, "me")  # at once, while the first one still winds down
    assert again is not job
    assert again.wait(20)
    assert (job.state, again.state) == ("cancelled", "done")
    assert queue.get(job.key) is again


@pytest.mark.parametrize("fail", ["value", "exit", "interrupt"])
def test_a_failing_job_is_told_in_a_sentence_logged_and_poisons_nothing(queue, caplog, fail):
    with caplog.at_level(logging.ERROR):
        job = queue.submit(Count("a", fail=fail), "me")
        after = queue.submit(Count("a"), "me")
        assert job.wait(20)
        assert after.wait(20)
    assert (job.state, after.state) == ("failed", "done")
    assert type(job.error) is EmbcompareError
    text = str(job.error)
    assert "The run failed inside embcompare" in text
    assert "second line" not in text
    assert "Traceback" not in text
    assert "fakes.py" in caplog.text  # the traceback is in the log
    again = queue.submit(Count("a", fail=fail), "me")
    assert again is not job
    assert again.wait(20)
    assert again.state == "failed"


def test_known_errors_are_shown_as_they_are(queue):
    job = queue.submit(Count("a", fail="memory"), "me")
    assert job.wait(20)
    assert "needs more memory" in str(job.error)


def test_a_job_may_take_only_so_long(make_queue):
    queue = make_queue(max_seconds=0.05)
    job = queue.submit(Count("a", steps=1000, pause=0.01), "me")
    assert job.wait(20)
    assert job.state == "failed"
    assert "stopped after 0.05 seconds" in str(job.error)
    assert job.partial is not None


# Watchers


def test_a_session_that_falls_silent_frees_the_queue(make_queue, gate):
    queue = make_queue(watcher_timeout=0.1)
    opened = gate("silent")
    job = queue.submit(Count("a", gate="silent"), "gone")
    queued = queue.submit(Count("b"), "gone too")
    time.sleep(0.15)
    opened.set()
    assert job.wait(20)
    assert queued.wait(20)
    assert (job.state, queued.state) == ("cancelled", "cancelled")


def test_a_heartbeat_keeps_a_job_alive_and_so_does_a_watcher_that_needs_none(make_queue):
    queue = make_queue(watcher_timeout=0.2, workers=2)
    beating = queue.submit(Count("a", steps=40, pause=0.01), "page")
    quiet = queue.submit(Count("b", steps=40, pause=0.01), "shell", heartbeat=False)
    while not beating.wait(0.05):
        beating.touch("page")
    assert quiet.wait(20)
    assert (beating.state, quiet.state) == ("done", "done")
    assert quiet.touch("shell") is True


def test_a_watcher_known_to_be_gone_no_longer_counts_where_others_wait(make_queue, gate):
    here = {"before reloading", "after reloading"}
    queue = make_queue(present=lambda watcher: watcher in here)
    opened = gate("reloaded")
    job = queue.submit(Count("a", gate="reloaded"), "before reloading")
    here.remove("before reloading")
    assert queue.get(job.key).watchers == {"before reloading"}  # may come back
    assert queue.going(job.settings) is job
    queue.submit(job.settings, "after reloading")
    time.sleep(0.01)
    assert queue.get(job.key).watchers == {"after reloading"}
    assert queue.cancel(job.key, "after reloading") is True
    assert queue.going(job.settings) is None
    opened.set()
    assert job.wait(20)
    assert job.state == "cancelled"


def test_a_job_whose_last_watcher_is_gone_waits_a_while_for_them_to_come_back(make_queue, gate, monkeypatch):
    here = {"stays"}
    queue = make_queue(present=lambda watcher: watcher in here)
    opened = gate("gone")
    queue.submit(Count("a", gate="gone"), "stays")
    job = queue.submit(Count("b"), "goes")
    assert queue.get(job.key).watchers == {"goes"}
    monkeypatch.setattr(jobs, "RETURN_SECONDS", 0.05)
    time.sleep(0.1)
    assert queue.get(job.key).state == "cancelled"
    opened.set()


def test_what_goes_can_be_joined_and_what_is_over_cannot(queue, gate):
    opened = gate("joined")
    settings = Count("a", gate="joined")
    assert queue.going(settings) is None
    job = queue.submit(settings, "first")
    assert queue.going(settings) is job
    opened.set()
    assert job.wait(20)
    assert queue.going(settings) is None


def test_only_known_watchers_can_be_heard(queue, gate):
    opened = gate("known")
    job = queue.submit(Count("a", gate="known"), "me")
    assert job.touch("me") is True
    assert job.touch("stranger") is False
    assert job.watchers == {"me"}
    opened.set()


# Bounds and the end


def test_few_finished_jobs_are_remembered(make_queue):
    queue = make_queue(keep_finished=3)
    jobs = [queue.submit(Count("a", steps=steps), "me") for steps in range(6)]
    assert all(job.wait(20) for job in jobs)
    assert [queue.get(job.key) is job for job in jobs] == [False] * 3 + [True] * 3
    again = queue.submit(Count("a", steps=0), "me")  # forgotten here, but stored
    assert again.result.provenance["cached"]


def test_a_job_that_fails_again_and_again_is_remembered_once(make_queue):
    queue = make_queue(keep_finished=2)
    other = queue.submit(Count("a"), "me")
    assert other.wait(20)
    for _ in range(5):
        assert queue.submit(Count("a", fail="memory"), "me").wait(20)
    assert queue.get(other.key) is other


def test_shutdown_ends_every_job_and_thread(make_queue, gate):
    queue = make_queue(workers=2)
    jobs = [queue.submit(Count("a", steps=5000 + n, pause=0.002), "me", heartbeat=False) for n in range(4)]
    until(lambda: jobs[0].state == "running")
    assert queue.shutdown(timeout=20)
    assert [job.state for job in jobs] == ["cancelled"] * 4
    assert not any(thread.is_alive() for thread in queue._threads)
    with pytest.raises(Busy, match="shut down"):
        queue.submit(Count("b"), "me")


def test_waiting_for_a_job_ends_after_its_time(queue, gate):
    opened = gate("wait")
    job = queue.submit(Count("a", gate="wait"), "me")
    assert job.wait(0.01) is False
    opened.set()
    assert job.wait(20) is True


def test_many_sessions_hammering_one_queue_see_consistent_jobs(make_queue):
    queue = make_queue(workers=2, max_queued=50)
    problems = []

    def session(name):
        for turn in range(15):
            job = queue.submit(Count("a", steps=turn % 5 + 1), name)
            shot = job.snapshot()
            if (shot.state == "done") != (shot.result is not None):
                problems.append(shot)
            if turn % 3 == 0:
                queue.leave(job.key, name)
            elif not job.wait(20):
                problems.append("stuck")

    threads = [threading.Thread(target=session, args=(f"s{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []
    assert not any(thread.is_alive() for thread in threads)
