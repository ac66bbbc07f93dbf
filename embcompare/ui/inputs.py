"""What a user brings: the text that the models read, and own vectors in place of a model."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from embcompare.errors import EmbcompareError, SettingsError
from embcompare.models import policy
from embcompare.shelf import BUNDLED, NUMBERS, SHIPPED, TRANSLATIONS, bundled_corpus
from embcompare.text import corpora, translations, uploads
from embcompare.ui import contents, links
from embcompare.ui.given import (
    TEXTS,
    VECTORS,
    called,
    keep_text,
    keep_vectors,
    own,
    read_corpus,
    read_kept_vectors,
    sentences,
    shelf,
)
from embcompare.ui.page import guard, plain
from embcompare.words import apart, plural

if TYPE_CHECKING:
    from streamlit.runtime.uploaded_file_manager import UploadedFile

    from embcompare.text.corpora import Corpus

__all__ = [
    "bring_text",
    "called",
    "corpus",
    "offered_pairs",
    "offered_texts",
    "offered_vectors",
    "optional_corpus",
    "read_corpus",
    "read_kept_vectors",
    "read_optional_corpus",
    "vectors",
]

PASTED_CHARACTERS = 1_000_000
"""A pasted text is shorter than so many characters; a longer one comes as a file."""
HOSTED_MEGABYTES = 5
"""MiB of one file, and of the vectors in it, where strangers are served."""
HOSTED_SENTENCES = 2_000
"""Sentences of one text where strangers are served."""
PREVIEWED = 8
"""Sentences that are shown of a text."""

LABEL_NAMES = ("label", "labels", "sentiment", "class")
"""What a column of labels is called, the likeliest first."""

_PASTE, _FILE = "Paste", "File"
_SIDES = {"model_a": "Model A", "model_b": "Model B"}


def corpus(
    key: str = "corpus",
    *,
    with_vectors: bool = False,
    labelled: bool = False,
    translated: bool = False,
    explained: str = "The sentences that both models read. Their hidden states are compared row by row.",
) -> str | None:
    """Show which text the models read, with ways to bring another, and return its name as a setting.

    The name, ``shipped`` or ``text/DIGEST``, lives under ``key`` in the session, where a link may have put it. None,
    with a sentence on the page, when the chosen text cannot be had. ``with_vectors`` shows :func:`vectors` in the same
    row; ``labelled`` says that labels matter, so that a column of a file that is called so is offered as theirs;
    ``translated`` that each text needs its translation; ``explained`` is the help of the list.
    """
    _settle(key, NUMBERS if translated else SHIPPED)
    texts = offered_pairs() if translated else offered_texts()
    chosen = str(st.session_state[key])
    if chosen not in texts:
        if translated:
            st.caption(f"{plain(_label(chosen))} has no translations, so the shipped numbers are taken.")
            st.session_state[key] = NUMBERS
        else:
            texts[chosen] = _label(chosen)
    left, right = st.columns(2, gap="small", vertical_alignment="bottom")
    name = str(
        left.selectbox(
            "Text",
            list(texts),
            format_func=lambda option: texts.get(option, option),
            key=key,
            persist_state="session",
            on_change=links.forget,
            help=explained,
        )
    )
    with right.container(horizontal=True, gap="small"):
        with st.container(width="content"):
            if translated:
                _bring("Use your own pairs", key, _pairs_form)
            else:
                _bring("Use your own text", key, functools.partial(_text_form, labelled=labelled))
        preview = st.popover("First sentences", icon=":material/format_list_numbered:")
        if with_vectors:
            with st.container(width="content"):
                vectors()
    try:
        found = shelf().corpus(name)
    except EmbcompareError as error:
        preview.caption("There is no text to show.")
        st.error(plain(str(error)))
        return None
    with preview:
        _preview(found)
    for notice in found.notices:
        st.caption(plain(notice))
    return name


def optional_corpus(key: str, label: str, none: str, explained: str) -> str:
    """Show which text is taken, if any, and return its name, "" where none is; :func:`bring_text` brings another.

    ``none`` is what taking none is called; the name lives under ``key`` in the session.
    """
    _settle(key, "")
    texts = {"": none, **offered_texts()}
    name = st.selectbox(
        label,
        list(texts),
        format_func=lambda option: texts.get(option, option),
        key=key,
        persist_state="session",
        on_change=links.forget,
        help=explained,
    )
    return str(name)


def bring_text(key: str) -> None:
    """Show a way to bring a text, whose name is then what the session holds under ``key``."""
    _bring("Use your own text", key, _text_form)


def read_optional_corpus(text: str) -> str:
    """Read the name of a text as a link gives it, where none may be given; else as :func:`read_corpus`."""
    return read_corpus(text) if text else ""


def vectors() -> None:
    """Show a way to bring a file of vectors that then takes the place of a model; see :func:`offered_vectors`."""
    _bring("Use your own vectors", "vectors", _vectors_form)


def offered_vectors() -> dict[str, str]:
    """Return the vectors that this session may choose in place of a model: ``vectors/DIGEST`` -> label."""
    return dict(own(VECTORS))


def offered_texts() -> dict[str, str]:
    """Return the texts that this session may choose: those that ship and its own, label by name."""
    return {**{name: _bundled(name) for name in BUNDLED}, **own(TEXTS)}


def offered_pairs() -> dict[str, str]:
    """Return the texts with translations that this session may choose, label by name."""
    kept = {name: label for name, label in own(TEXTS).items() if _has_translations(name)}
    return {**{name: _bundled(name) for name in TRANSLATIONS}, **kept}


@st.cache_data(max_entries=256, show_spinner=False)
def _has_translations(name: str) -> bool:
    """Say whether a kept text, whose name is what it holds, has translations."""
    try:
        return bool(shelf().corpus(name).targets)
    except EmbcompareError:
        return False


def _label(name: str) -> str:
    return _bundled(name) if name in (*BUNDLED, *TRANSLATIONS) else called(name)


def _settle(key: str, default: str = SHIPPED) -> None:
    """See to it that the chosen text can be shown as chosen: one that is not in the list is looked for."""
    chosen = str(st.session_state.setdefault(key, default))
    if chosen in (default, *BUNDLED, *TRANSLATIONS, *own(TEXTS)):
        return
    try:
        read_corpus(chosen)
    except EmbcompareError as error:
        used = {SHIPPED: "The shipped corpus is used", NUMBERS: "The shipped numbers are used"}.get(
            default, "No text is used"
        )
        st.warning(f"{used}: {plain(str(error))}")
        st.session_state[key] = default


def _bundled(name: str) -> str:
    found = bundled_corpus(name)
    if found.targets:
        return f"{found.name[:1].upper()}{found.name[1:]} · {plural(len(found), 'pair')}, English and Spanish"
    what = f" in {len(set(found.labels))} genres" if name == SHIPPED else ", good or bad"
    return f"{found.name[:1].upper()}{found.name[1:]} · {sentences(len(found))}{what}"


def _preview(found: Corpus) -> None:
    labels = f", {plural(len(set(found.labels)), 'label')}" if found.labels else ""
    st.markdown(f"**{plain(found.name)}** · {sentences(len(found))}{labels}")
    for number, sentence in enumerate(found.sentences[:PREVIEWED]):
        st.text(f"{sentence} → {found.targets[number]}" if found.targets else sentence)
    more = len(found) - PREVIEWED
    if more > 0:
        st.caption(f"and {more:,} more.")


@st.fragment
def _bring(label: str, key: str, form: Callable[[str], None]) -> None:
    """Show a button that opens ``form``; only this part of the page runs again until something has been taken."""
    with guard():
        # it runs again when opened or closed, so that it can be closed from here
        with st.popover(label, icon=":material/upload_file:", key=f"{key}.own", on_change="rerun"):
            form(key)
        if st.session_state.pop(f"{key}.taken", False):
            st.rerun()


def _text_form(key: str, *, labelled: bool = False) -> None:
    turn = _turn(key)
    how = st.segmented_control(
        "How", (_PASTE, _FILE), default=_PASTE, required=True, key=f"{key}.how", label_visibility="collapsed"
    )
    if how == _FILE:
        file = st.file_uploader(
            _kinds(corpora.SUFFIXES),
            max_upload_size=min(_megabytes(), corpora.MAX_BYTES >> 20),
            key=f"{key}.file.{turn}",
            on_change=_mend,
            args=(key,),
            help="UTF-8. A txt file holds one sentence a line; csv and tsv begin with a row of column names; a line of "
            "jsonl is an object or a text.",
        )
        names = contents.columns(file, _suffix(file)) if file is not None else []
        if names:
            left, right = st.columns(2, gap="small")
            if labelled and file is not None:
                _offer_labels(key, file.file_id, names)
            _pick(left, key, "Column", names, "text or sentence")
            _pick(right, key, "Label column", names, "none")
    else:
        st.text_area(
            "One sentence a line",
            height=180,
            max_chars=PASTED_CHARACTERS,
            key=f"{key}.pasted.{turn}",
            on_change="ignore",
            help=f"Up to {PASTED_CHARACTERS:,} characters; give more as a file.",
        )
    left, right = st.columns(2, gap="small")
    most = _most_sentences()
    left.number_input(
        "Sentences at most",
        1,
        most,
        most,
        key=f"{key}.rows.{turn}",
        on_change="ignore",
        help="Of a longer text a sample of this size is drawn with the seed, in the order of the text.",
    )
    right.number_input("Seed", 0, 2**31 - 1, 0, key=f"{key}.seed.{turn}", on_change="ignore")
    _finish(key, "Use this text", _take_text)


def _pairs_form(key: str) -> None:
    turn = _turn(key)
    how = st.segmented_control(
        "How", (_PASTE, _FILE), default=_PASTE, required=True, key=f"{key}.how", label_visibility="collapsed"
    )
    if how == _FILE:
        file = st.file_uploader(
            _kinds(translations.SUFFIXES),
            max_upload_size=min(_megabytes(), corpora.MAX_BYTES >> 20),
            key=f"{key}.file.{turn}",
            on_change=_mend,
            args=(key,),
            help="UTF-8, two columns: source and translation. csv and tsv begin with a row of column names.",
        )
        names = contents.columns(file, _suffix(file)) if file is not None else []
        if names:
            left, right = st.columns(2, gap="small")
            _pick(left, key, "Source", names, "source or text")
            _pick(right, key, "Translation", names, "target or translation")
    else:
        st.text_area(
            "One pair a line: source, a tab, translation",
            height=180,
            max_chars=PASTED_CHARACTERS,
            key=f"{key}.pasted.{turn}",
            on_change="ignore",
            help=f"Up to {PASTED_CHARACTERS:,} characters; give more as a file. Two columns of a spreadsheet, copied, "
            "have a tab between them.",
        )
    _finish(key, "Use these pairs", _take_pairs)


def _take_pairs(key: str) -> None:
    state, turn = st.session_state, _turn(key)
    if state[f"{key}.how"] == _FILE:
        file = _uploaded(key, corpora.MAX_BYTES)
        found = translations.translations_from_bytes(
            file.getvalue(),
            _suffix(file),
            source=state.get(f"{key}.Source.{turn}"),
            target=state.get(f"{key}.Translation.{turn}"),
            name=_title(file.name),
            max_rows=_most_sentences(),
        )
    else:
        text = str(state.get(f"{key}.pasted.{turn}") or "")
        if len(text) >= PASTED_CHARACTERS:  # where Streamlit cuts it off, without a word
            raise SettingsError(f"The pasted pairs have {PASTED_CHARACTERS:,} characters or more; give them as a file.")
        found = translations.translations_from_text(text, max_rows=_most_sentences())
    state[key] = keep_text(found)


def _vectors_form(key: str) -> None:
    turn = _turn(key)
    st.markdown(
        "One vector a row, (rows, width), or a stack of layers, (layers, rows, width). Against a model, row *k* "
        "belongs to sentence *k* of the text; against another file, rows are paired by id where both "
        "have ids, else in their order."
    )
    file = st.file_uploader(
        _kinds(uploads.SUFFIXES),
        max_upload_size=_megabytes(),
        key=f"{key}.file.{turn}",
        on_change=_mend,
        args=(key,),
        help="Real numbers, in as many columns as the vectors are wide. Nothing in the file is unpickled.",
    )
    names = contents.arrays(file, _suffix(file)) if file is not None else []
    if len(names) > 1:
        left, right = st.columns(2, gap="small")
        _pick(left, key, "Array", names, "the one that fits")
        _pick(right, key, "Ids", names, "ids or id, if there")
    st.segmented_control(
        "Use as", list(_SIDES), default="model_b", required=True, format_func=lambda side: _SIDES[side], key=f"{key}.as"
    )
    _finish(key, "Use these vectors", _take_vectors)


def _pick(place: Any, key: str, label: str, names: list[str], otherwise: str) -> None:
    shared = {"key": f"{key}.{label}.{_turn(key)}", "on_change": _mend, "args": (key,)}
    place.selectbox(label, names, index=None, placeholder=otherwise, **shared)


def _offer_labels(key: str, file: str, names: list[str]) -> None:
    """Choose the column that is called so as the one of the labels, once for each file."""
    state, known = st.session_state, f"{key}.labels_of"
    if state.get(known) != file:
        state[known] = file
        state[f"{key}.Label column.{_turn(key)}"] = next(
            (name for called in LABEL_NAMES for name in names if name.strip().casefold() == called), None
        )


def _mend(key: str) -> None:
    """Drop the reason of a refusal once something has been changed."""
    st.session_state.pop(f"{key}.refused", None)


def _finish(key: str, label: str, take: Callable[[str], None]) -> None:
    refused = st.session_state.get(f"{key}.refused")
    if refused:
        st.error(plain(refused))
    st.button(label, type="primary", key=f"{key}.take", on_click=_taking, args=(key, take))
    st.caption(
        "It is kept on this server until its space is needed; whoever has a link to your results can see it, so give "
        "nothing confidential."
        if policy.hosted()
        else "It is kept on this machine, beside the results, until its space is needed."
    )


def _taking(key: str, take: Callable[[str], None]) -> None:
    """Take what was given; what is refused stays in the form, with the reason, to be mended."""
    state = st.session_state
    _mend(key)
    with guard():
        try:
            take(key)
        except EmbcompareError as error:
            state[f"{key}.refused"] = str(error)
            return
        file = state.get(f"{key}.file.{_turn(key)}")
        if file is not None:
            _release(file)
        for each in (f"{key}.file.{_turn(key)}", f"{key}.pasted.{_turn(key)}"):
            state.pop(each, None)
        state[f"{key}.turn"] = _turn(key) + 1
        state[f"{key}.own"] = False
        state[f"{key}.taken"] = True
        links.forget()


def _take_text(key: str) -> None:
    state, turn = st.session_state, _turn(key)
    most, seed = min(int(state[f"{key}.rows.{turn}"]), _most_sentences()), int(state[f"{key}.seed.{turn}"])
    if state[f"{key}.how"] == _FILE:
        file = _uploaded(key, corpora.MAX_BYTES)
        found = corpora.corpus_from_bytes(
            file.getvalue(),
            _suffix(file),
            column=state.get(f"{key}.Column.{turn}"),
            label_column=state.get(f"{key}.Label column.{turn}"),
            name=_title(file.name),
            max_rows=most,
            seed=seed,
        )
    else:
        text = str(state.get(f"{key}.pasted.{turn}") or "")
        if len(text) >= PASTED_CHARACTERS:  # where Streamlit cuts it off, without a word
            raise SettingsError(f"The pasted text has {PASTED_CHARACTERS:,} characters or more; give it as a file.")
        found = corpora.corpus_from_text(text, max_rows=most, seed=seed)
    state[key] = keep_text(found)


def _take_vectors(key: str) -> None:
    state, turn = st.session_state, _turn(key)
    most = HOSTED_MEGABYTES << 20 if policy.hosted() else uploads.MAX_VECTOR_BYTES
    file = _uploaded(key, most)
    found = uploads.read_vectors(
        file,
        _suffix(file),
        array=state.get(f"{key}.Array.{turn}"),
        ids=state.get(f"{key}.Ids.{turn}"),
        name=_title(file.name),
        max_bytes=most,
    )
    name, side = keep_vectors(found), state[f"{key}.as"]
    if side in _SIDES:
        state[side] = name


def _uploaded(key: str, most: int) -> UploadedFile:
    """Return the uploaded file, checked for its size here too: the widget's own bound holds in the browser only."""
    file: UploadedFile | None = st.session_state.get(f"{key}.file.{_turn(key)}")
    if file is None:
        raise SettingsError("No file has been uploaded; choose one first.")
    most = min(most, _megabytes() << 20)
    if file.size > most:
        has, limit = apart(file.size, most)
        raise SettingsError(f"{_title(file.name)} has {has}; at most {limit} are taken here.")
    return file


def _release(file: UploadedFile) -> None:
    """Take an upload out of the server's memory, where it would stay as long as the session."""
    context = get_script_run_ctx()
    remove = getattr(context.uploaded_file_mgr, "remove_file", None) if context is not None else None
    if remove is not None and context is not None:
        remove(session_id=context.session_id, file_id=file.file_id)


def _turn(key: str) -> int:
    """Return how many times something was taken: with new keys for its widgets, a form leaves nothing behind."""
    return int(st.session_state.setdefault(f"{key}.turn", 0))


def _megabytes() -> int:
    served = int(st.get_option("server.maxUploadSize"))
    return min(served, HOSTED_MEGABYTES) if policy.hosted() else served


def _most_sentences() -> int:
    return HOSTED_SENTENCES if policy.hosted() else corpora.MAX_ROWS


def _suffix(file: UploadedFile) -> str:
    return str(file.name).rpartition(".")[2].lower()


def _kinds(suffixes: tuple[str, ...]) -> str:
    """Name the kinds of files that are read; any can be picked, for phones know few kinds, and the readers refuse."""
    return f"A file of {', '.join(suffixes[:-1])} or {suffixes[-1]}"


def _title(filename: str) -> str:
    """Return a file's name as a label: its last part, printable, of bearable length; it never is a path."""
    last = re.split(r"[/\\]", filename)[-1]
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in last).split())
    return (shown if len(shown) <= 60 else f"{shown[:30]}…{shown[-29:]}") or "uploaded file"
