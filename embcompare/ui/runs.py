"""Runs as a page sees them: asked for, followed while they go, stopped, and shown when they are done."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from embcompare import environment
from embcompare.errors import EmbcompareError, Incomparable, SettingsError
from embcompare.experiments.base import Result, Settings
from embcompare.jobs import Job, JobQueue, Snapshot
from embcompare.models import ModelSpec, policy
from embcompare.running import fingerprints, mark_cached
from embcompare.shelf import digest_of
from embcompare.ui.page import guard, plain

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate

POLL_SECONDS = 0.5
PATIENCE = 0.8
"""Seconds that a page waits for a run before it shows a progress bar: what is faster needs none."""
HOSTED_SECONDS = 300.0
QUICK_SECONDS = 20.0
"""A run of at most this long starts by itself when somebody arrives at a page."""

R = TypeVar("R", bound=Result)


@st.cache_resource(show_spinner=False)
def queue() -> JobQueue:
    """Return the one queue of this process, whose store is the one of the command line."""
    seconds = environment.positive_seconds("EMBCOMPARE_MAX_SECONDS", HOSTED_SECONDS if policy.hosted() else None)
    return JobQueue(workers=1, max_queued=8, max_seconds=seconds, present=_present)


def watcher() -> str:
    """Return this browser session's name among the watchers of a job."""
    context = get_script_run_ctx()
    session = context.session_id if context is not None else ""
    return str(st.session_state.setdefault("watcher", f"{session}/{secrets.token_hex(8)}"))


def _present(name: str) -> bool:
    """Return whether the browser of a watcher is still connected: a page loaded again is another session."""
    session = name.rpartition("/")[0]
    return not session or not runtime.exists() or runtime.get_instance().is_active_session(session)


def at_hand(settings: Settings) -> Result | None:
    """Return the result if it is in memory or in the store; never fetches a model from the hub to find out."""
    if _asked(settings) is None and fetches(settings):
        return None
    store, prints = queue().store, fingerprints(settings)
    found = store.get(store.key(settings, prints))
    if found is not None:
        return mark_cached(found, settings, prints)
    job = job_of(settings)
    return None if job is None else job.result


def fetches(settings: Settings) -> bool:
    """Return whether telling what the models of ``settings`` are may fetch one from the hub."""
    return any(_from_hub(name) for name in settings.models())


def _from_hub(name: str) -> bool:
    return digest_of(name) is None and ModelSpec.parse(name).kind == "hub"


def forget(key: str) -> None:
    """Forget that this session asked for a result, because it has been deleted."""
    asked: dict[Settings, str] = st.session_state.get("asked", {})
    st.session_state["asked"] = {settings: known for settings, known in asked.items() if known != key}


def ask(settings: Settings, slot: str) -> None:
    """Ask for a run on behalf of this session, which then no longer waits for the slot's former one."""
    former = st.session_state.get(slot)
    try:
        with st.spinner("Reading the models' files"):
            job = queue().submit(settings, watcher())
    except EmbcompareError as error:
        st.session_state[f"{slot}.refused"] = (settings, str(error))
        return
    _withdrawn().discard(job.key)
    st.session_state.pop(f"{slot}.refused", None)
    if former is not None and former != job.key:
        queue().leave(former, watcher())
    st.session_state[slot] = job.key
    st.session_state.setdefault("asked", {})[settings] = job.key


def _withdrawn() -> set[str]:
    """Return the keys of the runs that this session has stopped waiting for."""
    keys: set[str] = st.session_state.setdefault("withdrawn", set())
    return keys


def _join(settings: Settings, slot: str) -> None:
    """Watch the run of ``settings`` if it goes already: somebody's, or one's own before the page was loaded again."""
    if fetches(settings):
        return
    job = queue().going(settings)
    if job is not None and job.key not in _withdrawn():
        ask(settings, slot)


def _asked(settings: Settings) -> str | None:
    asked: dict[Settings, str] = st.session_state.get("asked", {})
    return asked.get(settings)


def job_of(settings: Settings) -> Job | None:
    """Return this session's job of ``settings``, if it asked for one that is still remembered."""
    key = _asked(settings)
    return None if key is None else queue().get(key)


def refusal(settings: Settings, slot: str) -> str | None:
    """Return why these settings could not be queued, if they were asked for and refused."""
    refused = st.session_state.get(f"{slot}.refused")
    return refused[1] if refused and refused[0] == settings else None


def follow(settings: Settings, slot: str, draw: Callable[[Result], None] | None = None) -> Snapshot | None:
    """Show how the run of ``settings`` goes until it is over, with ``draw`` for its partial result; None if not asked.

    Returns the last snapshot; when the run ends, the page runs again and finds the result at hand.
    """
    reason = refusal(settings, slot)
    if reason:
        st.error(plain(reason))
    if job_of(settings) is None and not reason:
        _join(settings, slot)
    job = job_of(settings)
    if job is None:
        return None
    if not job.touch(watcher()) and not job.snapshot().finished and job.key not in _withdrawn():
        # the browser was away for a while, and others went on waiting
        ask(settings, slot)
        job = job_of(settings) or job
    if job.state in ("queued", "running"):
        job.wait(PATIENCE)
    now = job.snapshot()
    if now.finished:
        if now.state == "failed" and now.error is not None:
            st.error(plain(str(now.error)))
        return now
    st.button(
        "Cancel",
        key=f"{slot}.cancel",
        icon=":material/stop_circle:",
        on_click=_withdraw,
        args=(settings, job.key, slot),
        help="What has been computed so far stays on the page.",
    )

    # whoever waits far back in the queue need not look twice a second: all pages share one process
    @st.fragment(run_every=POLL_SECONDS * (1 + now.position))
    def progress() -> None:
        with guard():
            job.touch(watcher())
            snapshot = job.snapshot()
            if snapshot.finished:
                st.rerun()
            _show(snapshot)
            if draw is not None and snapshot.partial is not None:
                draw(snapshot.partial)

    progress()
    return now


def obtained(
    wanted: Settings,
    kind: type[R],
    slot: str,
    cost: Callable[[], Estimate],
    *,
    arriving: bool,
    draw: Callable[[R], object] | None = None,
    beside: str = " beside the two models",
) -> R | None:
    """Return the result, or show what leads to it: the estimate and Run, the progress, or why it failed.

    ``arriving`` starts a quick run without a click. ``draw`` shows a partial result, which is labelled as such.
    """
    result = at_hand(wanted)
    if isinstance(result, kind):
        return result

    def draw_partial(partial: Result) -> None:
        if draw is not None and isinstance(partial, kind):
            so_far = partial.provenance.get("partial", "")
            st.markdown(f"**Partial result**{f', after {so_far} steps' if so_far else ''}")
            draw(partial)

    estimate = cost()
    if arriving and estimate.seconds <= QUICK_SECONDS and job_of(wanted) is None and refusal(wanted, slot) is None:
        ask(wanted, slot)
    above = st.container()
    now = follow(wanted, slot, draw=draw_partial)
    if now is not None and isinstance(now.result, kind):
        return now.result
    if now is None or now.finished:
        if now is not None and now.state == "failed":
            if isinstance(now.error, SettingsError | Incomparable) and not any(map(digest_of, _named(wanted))):
                return None  # what these models cannot do they cannot do the next time; a text can be given again
            st.button("Try again", key=f"{slot}.run", on_click=ask, args=(wanted, slot))
            return None
        with above.container(horizontal=True, vertical_alignment="center", gap="medium"):
            st.button("Run", type="primary", key=f"{slot}.run", on_click=ask, args=(wanted, slot))
            st.markdown(f"Not computed yet: {estimate.sentence()}{beside}.", width="content")
    if now is not None and now.state == "cancelled" and now.partial is not None:
        st.info("Cancelled. What was computed until then is below; press Run to compute it whole.")
        draw_partial(now.partial)
    return None


def _named(settings: Settings) -> tuple[str, ...]:
    return (*settings.models(), *settings.corpora())


def _withdraw(settings: Settings, key: str, slot: str) -> None:
    _withdrawn().add(key)
    stopped = queue().cancel(key, watcher())
    job = queue().get(key)
    if not stopped and job is not None and not job.snapshot().finished:
        st.session_state["asked"].pop(settings, None)
        text = "Somebody else waits for the same run, so it goes on; its result will be at hand here when it is done."
        st.session_state[f"{slot}.refused"] = (settings, text)


def _show(now: Snapshot) -> None:
    if watcher() not in now.watchers:
        st.progress(now.progress.fraction if now.progress else 0.0, text="Stopping at the next step.")
        return
    if now.state == "queued":
        st.progress(0.0, text=f"Waiting: number {now.position} in the queue.")
        return
    step = now.progress
    if step is None:
        st.progress(0.0, text="Starting.")
        return
    left = "" if step.eta_seconds is None else f", about {max(1, round(step.eta_seconds))} s left"
    others = len(now.watchers) - 1
    company = "" if others < 1 else f" · {others} other{'s' if others > 1 else ''} waiting for the same run"
    st.progress(step.fraction, text=f"{plain(step.message)}{left}{company}")
