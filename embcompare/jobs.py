"""Runs for many people at once: a few worker threads, one job for all who ask the same, progress, cancel.

A job is cancelled when the last of those who watch it is gone, whether they said so or just fell silent.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from embcompare import running
from embcompare.errors import Busy, Cancelled, EmbcompareError
from embcompare.experiments.base import Result, Settings
from embcompare.running import Progress, mark_cached, run
from embcompare.store import Store

__all__ = ["Job", "JobQueue", "Progress", "Snapshot", "State", "run"]

LOG = logging.getLogger(__name__)

State = Literal["queued", "running", "done", "failed", "cancelled"]

RETURN_SECONDS = 10.0
"""How long a job waits for its last watcher to come back, when they are known to have gone."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a job at one moment, all fields from the same moment; see :class:`Job`."""

    key: str
    settings: Settings
    state: State
    position: int
    progress: Progress | None
    partial: Result | None
    result: Result | None
    error: EmbcompareError | None
    watchers: frozenset[str]

    @property
    def finished(self) -> bool:
        """Whether nothing more will change."""
        return self.state in ("done", "failed", "cancelled")


class Job:
    """One run in a queue, watched by all who asked for it.

    ``state`` is queued, running, done, failed or cancelled. ``partial`` is the last partial result that the experiment
    reported; it outlives a cancel. ``error`` is a sentence fit to be shown.
    """

    def __init__(self, key: str, settings: Settings, prints: Mapping[str, str], changed: threading.Condition) -> None:
        self.key = key
        self.settings = settings
        self.fingerprints = dict(prints)
        self.state: State = "queued"
        self.position = 0
        self.progress: Progress | None = None
        self.partial: Result | None = None
        self.result: Result | None = None
        self.error: EmbcompareError | None = None
        self._changed = changed
        self._stop = False
        self._deadline: float | None = None
        self._seen: dict[str, float | None] = {}

    @property
    def watchers(self) -> frozenset[str]:
        """Names of those who wait for the job."""
        with self._changed:
            return frozenset(self._seen)

    def touch(self, watcher: str) -> bool:
        """Say that ``watcher`` is still there; False when the job does not know them (any more)."""
        with self._changed:
            if watcher not in self._seen:
                return False
            if self._seen[watcher] is not None:
                self._seen[watcher] = time.monotonic()
            return True

    def snapshot(self) -> Snapshot:
        """Return all of the job's state as of one moment."""
        with self._changed:
            return Snapshot(
                self.key,
                self.settings,
                self.state,
                self.position,
                self.progress,
                self.partial,
                self.result,
                self.error,
                frozenset(self._seen),
            )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job has finished, at most ``timeout`` seconds; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self.state in ("done", "failed", "cancelled"), timeout)


class JobQueue:
    """Jobs in the order they came, ``workers`` at a time; equal settings on equal weights are one job.

    At most ``max_queued`` jobs wait, and the last ``keep_finished`` finished ones are remembered. A watcher that has
    not been heard of for ``watcher_timeout`` seconds no longer counts, nor one whom ``present`` says is gone: at once
    where others watch, else after ten seconds, in which a page may have been loaded again. A job without watchers is
    cancelled.
    ``max_seconds`` bounds the time that one job may run; like a cancel, it takes effect at the run's next step.
    """

    def __init__(
        self,
        workers: int = 1,
        max_queued: int = 8,
        store: Store | None = None,
        keep_finished: int = 32,
        *,
        device: str = "auto",
        watcher_timeout: float = 120.0,
        max_seconds: float | None = None,
        present: Callable[[str], bool] = lambda watcher: True,
    ) -> None:
        self.store = store if store is not None else Store()
        self.workers = workers
        self.max_queued = max_queued
        self.keep_finished = keep_finished
        self.device = device
        self.watcher_timeout = watcher_timeout
        self.max_seconds = max_seconds
        self.present = present
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._finished: deque[Job] = deque()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, settings: Settings, watcher: str, *, heartbeat: bool = True) -> Job:
        """Ask for ``settings`` on behalf of ``watcher`` and return the job, new or not.

        A stored result gives a finished job at once. A job of the same settings that failed or was cancelled is started
        again. Without ``heartbeat`` the watcher counts until it leaves. Raises :class:`Busy` when the queue is full,
        and what the models raise when one of them cannot be had.
        """
        prints = running.fingerprints(settings)
        key = self.store.key(settings, prints)
        with self._changed:
            job = self._joined(key, watcher, heartbeat)
        if job is not None:
            return job
        stored = self.store.get(key)
        with self._changed:
            job = self._joined(key, watcher, heartbeat)
            if job is not None:
                return job
            self._prune()
            if self._closed:
                raise Busy("The queue has been shut down; start embcompare again.")
            job = Job(key, settings, prints, self._changed)
            self._watch(job, watcher, heartbeat)
            if self._jobs.get(key) in self._finished:
                self._finished.remove(self._jobs[key])
            if stored is not None:
                self._jobs[key] = job
                self._finish(job, "done", result=mark_cached(stored, settings, prints))
                return job
            if len(self._waiting) >= self.max_queued:
                raise Busy(f"{len(self._waiting)} runs are waiting already and no more can queue; try again later.")
            self._jobs[key] = job
            self._waiting.append(job)
            self._renumber()
            if len(self._threads) < self.workers:
                thread = threading.Thread(target=self._work, name=f"embcompare-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
            return job

    def lookup(self, settings: Settings) -> Result | None:
        """Return the result of ``settings`` if it is at hand, in memory or in the store, without queueing anything."""
        prints = running.fingerprints(settings)
        key = self.store.key(settings, prints)
        job = self.get(key)
        if job is not None and job.result is not None:
            return job.result
        found = self.store.get(key)
        return None if found is None else mark_cached(found, settings, prints)

    def going(self, settings: Settings) -> Job | None:
        """Return the job of ``settings`` that waits or runs and will not be stopped, whoever asked for it; or None."""
        key = self.store.key(settings, running.fingerprints(settings))
        with self._changed:
            job = self.get(key)
            return job if job is not None and not job._stop and job.state in ("queued", "running") else None

    def get(self, key: str) -> Job | None:
        """Return the latest job of ``key``; None when there never was one or it is forgotten."""
        with self._changed:
            self._prune()
            return self._jobs.get(key)

    def leave(self, key: str, watcher: str) -> None:
        """Stop watching; the job is cancelled when nobody else watches it."""
        self.cancel(key, watcher)

    def cancel(self, key: str, watcher: str) -> bool:
        """Withdraw the request of ``watcher``; whether that stops the job, as it does when nobody else watches it."""
        with self._changed:
            job = self._jobs.get(key)
            if job is None or job._seen.pop(watcher, False) is False:
                return False
            if job._seen or job.state not in ("queued", "running"):
                return False
            self._stop_job(job)
            return True

    def shutdown(self, timeout: float | None = None) -> bool:
        """Cancel everything, take nothing more, wait for the workers; whether all ended within ``timeout`` seconds."""
        with self._changed:
            self._closed = True
            for job in list(self._jobs.values()):
                if job.state in ("queued", "running"):
                    self._stop_job(job)
            self._changed.notify_all()
            threads = list(self._threads)
        end = None if timeout is None else time.monotonic() + timeout
        for thread in threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    # All below expects the caller to hold self._changed, except _work and what it calls outside a with.

    def _joined(self, key: str, watcher: str, heartbeat: bool) -> Job | None:
        """Add the watcher to a job that is under way or done; a job on its way out is not joined."""
        job = self._jobs.get(key)
        if job is None or job._stop or job.state in ("failed", "cancelled"):
            return None
        self._watch(job, watcher, heartbeat)
        return job

    def _watch(self, job: Job, watcher: str, heartbeat: bool) -> None:
        job._seen[watcher] = time.monotonic() if heartbeat else None

    def _prune(self) -> None:
        """Drop watchers that fell silent, and stop the jobs that nobody watches any more."""
        now = time.monotonic()
        for job in list(self._jobs.values()):
            for watcher, seen in list(job._seen.items()):
                if seen is None:
                    continue
                silent = now - seen
                gone = silent > RETURN_SECONDS or (silent > 0 and len(job._seen) > 1)
                if silent > self.watcher_timeout or (gone and not self.present(watcher)):
                    del job._seen[watcher]
            if not job._seen and not job._stop and job.state in ("queued", "running"):
                self._stop_job(job)

    def _stop_job(self, job: Job) -> None:
        job._stop = True
        if job.state == "queued":
            self._waiting.remove(job)
            self._finish(job, "cancelled", error=Cancelled("The run was cancelled before it began."))
            self._renumber()

    def _renumber(self) -> None:
        for place, job in enumerate(self._waiting, start=1):
            job.position = place

    def _finish(
        self, job: Job, state: State, result: Result | None = None, error: EmbcompareError | None = None
    ) -> None:
        job.state, job.result, job.error, job.position = state, result, error, 0
        if state == "done":
            job.partial = None
        # A job that was replaced while it wound down is not remembered: its key belongs to the newer one.
        if self._jobs.get(job.key) is job:
            self._finished.append(job)
        while len(self._finished) > self.keep_finished:
            old = self._finished.popleft()
            if self._jobs.get(old.key) is old:
                del self._jobs[old.key]
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                self._prune()
                if not self._waiting:
                    continue
                job = self._waiting.popleft()
                job.state, job.position = "running", 0
                if self.max_seconds is not None:
                    job._deadline = time.monotonic() + self.max_seconds
                self._renumber()
            self._run(job)

    def _run(self, job: Job) -> None:
        result: Result | None = None
        error: EmbcompareError | None = None
        state: State = "failed"
        context = running.RunContext(
            self.device,
            on_report=lambda step, partial: self._reported(job, step, partial),
            check=lambda: self._check(job),
            store=self.store,
        )
        try:
            result = running.obtain(job.settings, context, job.fingerprints, self.store)
            state = "done"
        except Cancelled as stopped:
            state, error = "cancelled", stopped
        except EmbcompareError as known:
            error = known
        except BaseException as unexpected:  # whatever it is, the worker lives on for the jobs that wait
            LOG.exception("%s failed", job.settings.call())
            error = EmbcompareError(running.plain_sentence(unexpected))
        with self._changed:
            self._finish(job, state, result, error)

    def _reported(self, job: Job, step: Progress, partial: Result | None) -> None:
        if partial is not None:
            # A copy: the experiment goes on filling its arrays.
            partial = running.read_only(
                dataclasses.replace(partial, provenance=_partial_provenance(job, step)), copy=True
            )
        with self._changed:
            job.progress = step
            if partial is not None:
                job.partial = partial

    def _check(self, job: Job) -> None:
        with self._changed:
            self._prune()
            if job._stop:
                raise Cancelled("The run was cancelled.")
            if job._deadline is not None and time.monotonic() > job._deadline:
                raise EmbcompareError(
                    f"The run was stopped after {self.max_seconds:g} seconds, the most that one run may take here; "
                    "ask for less, or run it from a shell."
                )


def _partial_provenance(job: Job, step: Progress) -> dict[str, Any]:
    """Say where an unfinished result comes from and how far it got."""
    return {
        "experiment": job.settings.experiment,
        "version": job.settings.version,
        "settings": job.settings.to_dict(),
        "call": job.settings.call(),
        "models": dict(job.fingerprints),
        "partial": f"{step.done} of {step.total}",
    }
