"""Trainings seen at several checkpoints: performance, indicators beside it, and what goes with what."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import streamlit as st

from embcompare.errors import EmbcompareError, SettingsError
from embcompare.experiments.term_runs import read_runs
from embcompare.experiments.term_series import TermSeries, TermSeriesResult
from embcompare.experiments.term_series_result import ALL_TERMS, HIGHER_IS_BETTER
from embcompare.models import inspect_model
from embcompare.running import resolve_device
from embcompare.shelf import NUMBERS, SHIPPED
from embcompare.ui import decomposition as frame
from embcompare.ui import decomposition_about as about
from embcompare.ui import decomposition_correlations as correlations
from embcompare.ui import decomposition_picture as pictures
from embcompare.ui import exports, inputs, links, runs
from embcompare.ui.decomposition import PAGE
from embcompare.ui.page import plain
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.estimate import Estimate
    from embcompare.models import ModelInfo

SLOT = "term_series"
OWN = ("runs", "corpus", "sentences", "mode", "split", "layer", "seed")
"""Settings that the page calls by another name, for views beside it have one of that name: ``series_…``."""
RENAMED = {name: f"series_{name}" for name in OWN}
_DECLARED = TermSeries.__dataclass_fields__
_SERIES = (50, 150, 400, 1000, 2000)
PRESETS = {
    "numbers": ("Five seeds of a number translator", TermSeries.demo().runs, NUMBERS),
    "gpt2": (
        "One training of a GPT-2",
        "seed 4: " + ", ".join(f"demo/gpt2-series-{step}" for step in _SERIES),
        SHIPPED,
    ),
}
"""Series that ship: label, runs, text."""
DEFAULTS: dict[str, Any] = {
    **{RENAMED[name]: _DECLARED[name].default for name in OWN if name != "runs"},
    RENAMED["runs"]: PRESETS["numbers"][1],
    "metric": "",
    "term": "",
    "state": "last",
    "score": "",
}
"""What an address need not say of this view; no metric, term or score means the one that says most."""
MOST_CHARACTERS = 20_000
"""Of the list of runs."""


def readers() -> dict[str, Callable[[str], Any]]:
    """Return the readers of what an address says of this view."""
    found: dict[str, Callable[[str], Any]] = {
        RENAMED[name]: links.reader(TermSeries, name) for name in OWN if name not in ("runs", "corpus", "layer")
    }
    return {
        **found,
        RENAMED["runs"]: _read_runs,
        RENAMED["corpus"]: inputs.read_corpus,
        RENAMED["layer"]: lambda text: None if text == "None" else TermSeries.read_option("layer", text),
        "metric": links.choice("", *HIGHER_IS_BETTER),
        "term": links.choice("", *pictures.ORDER, ALL_TERMS),
        "state": _read_state,
        "score": links.choice("", *HIGHER_IS_BETTER),
    }


def _read_runs(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise SettingsError(f"it has {len(text):,} characters; at most {MOST_CHARACTERS:,} are taken")
    return TermSeries(text).runs


def _read_state(text: str) -> str:
    if text != "last" and not (text.isascii() and text.isdigit() and len(text) < 4):
        raise SettingsError("a state is a number, counted from 0, or last")
    return text


def show() -> None:
    """Show the runs, the settings, and the result or what leads to it."""
    st.markdown(
        "Several trainings, each seen at several checkpoints: does what the states are made of tell how good the model "
        "is? It would be surprising if an indicator followed performance in one run and not in the next."
    )
    asked = _form()
    if asked is None:
        return
    wanted, infos = asked
    cost = functools.partial(_cost, wanted, infos)
    result = runs.obtained(
        wanted,
        TermSeriesResult,
        SLOT,
        cost,
        arriving=frame.by_itself("series", cost()),
        draw=_partial,
        beside=" beside the models",
    )
    if result is not None:
        _show(wanted, result)


def _form() -> tuple[TermSeries, list[ModelInfo]] | None:
    key = links.key(PAGE, RENAMED["runs"])
    written = str(frame.value(RENAMED["runs"], DEFAULTS[RENAMED["runs"]]))
    with st.container(horizontal=True, gap="small"):
        for name, (label, text, corpus) in PRESETS.items():
            st.button(
                label,
                key=f"decomposition.preset.{name}",
                icon=":material/science:",
                on_click=_take,
                args=(text, corpus),
                disabled=written == text,
            )
    with st.expander("Which runs", expanded=written not in [text for _, text, _ in PRESETS.values()]):
        box = "decomposition.series.box"
        lines = written.replace("; ", "\n")
        if st.session_state.get(f"{box}.of") != written:
            st.session_state[f"{box}.of"], st.session_state[box] = written, lines
        with st.form("decomposition.series.form", border=False):
            st.text_area(
                "One training a line: its name, a colon, its checkpoints in the order of training with commas between",
                key=box,
                height=150,
                max_chars=MOST_CHARACTERS,
                placeholder="seed 1: ./run-1/checkpoint-500, ./run-1/checkpoint-1000",
            )
            st.form_submit_button("Use these runs", on_click=_take_written, args=(box, key))
        refused = st.session_state.get(f"{box}.refused")
        if refused:
            st.error(plain(refused))
    infos = _infos(written)
    if infos is None:
        return None
    return _settings(written, infos)


def _settings(written: str, infos: list[ModelInfo]) -> tuple[TermSeries, list[ModelInfo]] | None:
    translating = [frame.translates(info) for info in infos]
    frame.settle_corpus(RENAMED["corpus"], any(translating))
    frame.value(RENAMED["corpus"], DEFAULTS[RENAMED["corpus"]])
    if not any(translating) and st.session_state[links.key(PAGE, RENAMED["corpus"])] == NUMBERS:
        st.session_state[links.key(PAGE, RENAMED["corpus"])] = SHIPPED
    corpus = inputs.corpus(
        links.key(PAGE, RENAMED["corpus"]),
        translated=any(translating),
        explained="What every checkpoint is scored on, and whose states are taken apart.",
    )
    chosen: dict[str, Any] = {"layer": frame.value(RENAMED["layer"]), "split": "additive", "mode": "reference"}
    own = ["sentences", *(("mode", "split") if all(translating) else ())]
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        for name in own:
            with st.container(width=220):
                chosen[name] = frame.widget(TermSeries, name, RENAMED[name], DEFAULTS[RENAMED[name]])
    with st.expander("How states are split, and more"):
        chosen |= frame.widgets(TermSeries, (*frame.PARTS, *(frame.TOKENS if all(translating) else ())), 3)
        chosen["seed"] = frame.widget(TermSeries, "seed", RENAMED["seed"], DEFAULTS[RENAMED["seed"]])
    if corpus is None:
        return None
    wanted = frame.settled(TermSeries, {"runs": written, "corpus": corpus, **chosen})
    return None if wanted is None else (wanted, infos)


def _take(text: str, corpus: str) -> None:
    st.session_state[links.key(PAGE, RENAMED["runs"])] = text
    st.session_state[links.key(PAGE, RENAMED["corpus"])] = corpus
    links.forget()


def _take_written(box: str, key: str) -> None:
    """Take the runs that were written; what cannot be read stays in the box, with the reason."""
    st.session_state.pop(f"{box}.refused", None)
    try:
        st.session_state[key] = TermSeries(str(st.session_state[box])).runs
        st.session_state[f"{box}.of"] = st.session_state[key]
    except EmbcompareError as error:
        st.session_state[f"{box}.refused"] = str(error)
    links.forget()


def _infos(written: str) -> list[ModelInfo] | None:
    """Return what every checkpoint is; None, with a sentence, where one cannot be had or read."""
    infos = []
    for run in read_runs(written):
        for name in run.checkpoints:
            try:
                info = inspect_model(name)
            except EmbcompareError as error:
                st.error(plain(f"{run.name}: {error}"))
                return None
            if not info.supported:
                st.error(plain(f"{run.name}: {info.reason}"))
                return None
            infos.append(info)
    return infos


def _cost(wanted: TermSeries, infos: list[ModelInfo]) -> Estimate:
    from embcompare.experiments.estimate_decomposition import term_series_cost

    texts, length = frame.tokens_a_text(wanted.corpus, wanted.sentences)
    return term_series_cost(wanted, infos, texts, length, device=resolve_device("auto"))


def _partial(result: TermSeriesResult) -> None:
    correlations.performance(result, result.best_metric, "partial")


def _show(wanted: TermSeries, result: TermSeriesResult) -> None:
    _settle(result)
    metric = str(st.session_state[links.key(PAGE, "metric")])
    state = correlations.state_of(result, str(st.session_state[links.key(PAGE, "state")]))
    st.markdown(plain(f"{result.sentence(metric, state)}"))
    st.markdown(plain(result.limits()))
    checkpoints = sum(map(len, result.checkpoints))
    st.caption(
        plain(
            f"{plural(len(result.runs), 'run')}, {plural(checkpoints, 'checkpoint')}, {plural(result.texts, 'text')}, "
            f"{plural(result.tokens, 'token')}. " + " ".join(result.notices)
        )
    )
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        metric = frame.choose("Metric", {name: correlations.METRICS[name] for name in result.metrics}, "metric")
        _list("State", correlations.state_names(result), "state")
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        indicator = frame.choose("Indicator", frame.INDICATORS, "indicator")
        _list("Term", {each: each for each in (*result.terms, ALL_TERMS)}, "term")
    term = str(st.session_state[links.key(PAGE, "term")])
    state = correlations.state_of(result, str(st.session_state[links.key(PAGE, "state")]))
    left, right = st.columns(2, gap="medium")
    with left:
        drawn = [correlations.performance(result, metric, "whole")]
    with right:
        against = correlations.against(result, metric, indicator, term, state)
        drawn += [] if against is None else [against]
    correlations.table(result, metric, state)
    correlations.variance(result, indicator, state)
    correlations.distances(result, indicator, term, state)
    correlations.texts(result, indicator, state)
    note = f"{result.sentence(metric, state)} {result.limits()}"
    kinds = {
        kind: functools.partial(pictures.export, drawn, "Terms and performance, training by training", note, kind)
        for kind in ("png", "svg")
    }
    exports.downloads(result, f"term series {metric}", "decomposition.series.files", kinds)
    about.series(wanted, result)


def _settle(result: TermSeriesResult) -> None:
    """See to it that what is looked at is in the result."""
    options = {
        "metric": (result.best_metric, result.metrics),
        "term": (correlations.strongest(result), (*result.terms, ALL_TERMS)),
        "state": ("last", tuple(correlations.state_names(result))),
    }
    for name, (default, allowed) in options.items():
        key = links.key(PAGE, name)
        if st.session_state.get(key) not in allowed:
            st.session_state[key] = default
    firsts = {name: default for name, (default, _) in options.items() if name != "state"}
    st.session_state["decomposition.series.firsts"] = {**firsts, "score": next(iter(result.scores), "")}


def firsts() -> dict[str, str]:
    """Return what is looked at of the shown result where nobody has chosen anything."""
    found: dict[str, str] = st.session_state.get("decomposition.series.firsts", {})
    return found


def _list(label: str, options: dict[str, str], name: str) -> None:
    st.selectbox(
        label,
        list(options),
        format_func=lambda each: options[each],
        key=links.key(PAGE, name),
        persist_state="session",
        on_change=links.forget,
        width=230,
    )
