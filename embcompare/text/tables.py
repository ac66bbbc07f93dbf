"""Rows of text out of csv, tsv and jsonl: what separates the columns, which column is meant, where a line is wrong."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from embcompare.errors import InputError, SettingsError
from embcompare.words import one_line, plural

Rows = Iterator[tuple[str, str, int]]
"""A sentence, its label or an empty text, and the number of its line."""

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""What may stand between the columns of a table, and how it is called."""

_USUAL = {"csv": ",", "tsv": "\t"}
_LOOKED_AT = 1_000
_USUAL_NAMES = ("text", "sentence")
_BREAK = re.compile(r"\r\n|\n|\r")
_DECLARED = re.compile(r"sep=([,;\t|])(?:\r\n|\n|\r)", re.IGNORECASE)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a text, numbered from 1, whatever ends them."""
    return enumerate(_BREAK.split(text), 1)


def columns_of(text: str, suffix: str) -> list[str]:
    """Return the column names of a csv or tsv file from its beginning, which may be cut off; none where unclear."""
    head, _, _ = text.rpartition("\n")
    try:
        body, _, separator = _separated(head if head.strip() else text, suffix, None, "")
        return [cell.strip() for cell in _rows(body, separator, 1)[0][0]]
    except (InputError, IndexError):
        return []


def csv_rows(text: str, suffix: str, column: str | None, label_column: str | None, name: str) -> tuple[Rows, str]:
    """Return the rows of a csv or tsv file and what is to be said of its separator, if that is not the usual one.

    The separator is the one of ``SEPARATORS`` that splits every row as the first; a first line ``sep=;``, as
    spreadsheets write it, names it. Raises :class:`InputError` where several would do, and, as rows are taken, with
    the line that is not as it should be.
    """
    if csv.field_size_limit() <= len(text):  # a cell may be as long as the file; no sentence may, which is told later
        csv.field_size_limit(len(text) + 1)
    body, before, separator = _separated(text, suffix, column, name)
    called = SEPARATORS[separator]
    said = "" if separator == _USUAL[suffix] else f"The columns of {name} are taken to be separated by {called}."
    return _csv(body, before, separator, column, label_column, name), said


def jsonl_rows(text: str, column: str | None, label_column: str | None, name: str) -> Rows:
    """Yield the rows of a jsonl file; :class:`InputError` names the line that is not as it should be."""
    for number, line in lines(text):
        if not line.strip():
            continue
        item = _parsed(line, number, name)
        if isinstance(item, str) and column is None and label_column is None:
            yield item, "", number
            continue
        if not isinstance(item, dict):
            raise InputError(f"Line {number:,} of {name} is {_kind(item)}, not an object with named fields.")
        if column is None:
            texts = [key for key, value in item.items() if isinstance(value, str)]
            column = texts[_column(texts, None, name)]
        yield _field(item, column, number, name), _label(item, label_column, number, name), number


def _separated(text: str, suffix: str, column: str | None, name: str) -> tuple[str, int, str]:
    """Return the table itself, the lines before it, and what separates its columns."""
    declared = _DECLARED.match(text)
    if declared:
        return text[declared.end() :], 1, declared.group(1)
    return text, 0, _separator(text, _USUAL[suffix], column, name)


def _separator(text: str, usual: str, column: str | None, name: str) -> str:
    seen = {each: _rows(text, each, _LOOKED_AT) for each in SEPARATORS}
    splits = {each: rows for each, (rows, _) in seen.items() if rows and len(rows[0]) > 1}
    fitting = [each for each, rows in splits.items() if seen[each][1] and _like_the_first(rows) == len(rows)]
    if len(fitting) > 1 and usual == "\t" and usual in fitting:  # hardly any text holds a tab
        return usual
    if len(fitting) > 1 and column is not None:
        named = [each for each in fitting if column.strip() in (cell.strip() for cell in splits[each][0])]
        fitting = named or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        called = " or ".join(SEPARATORS[each] for each in fitting)
        raise InputError(
            f"The columns of {name} may be separated by {called}: every line can be read either way; put fields that "
            "hold one of them in quotes, or save it with tabs as tsv."
        )
    if usual in splits or all(len(row) == 1 for rows in splits.values() for row in rows[1:]):
        return usual
    return max(splits, key=lambda each: _like_the_first(splits[each]))


def _rows(text: str, separator: str, most: int) -> tuple[list[list[str]], bool]:
    """Return the first rows, and whether they could all be read."""
    found: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True):
            if row:
                found.append(row)
            if len(found) >= most:
                break
    except csv.Error:
        return found, False
    return found, True


def _like_the_first(rows: list[list[str]]) -> int:
    return sum(len(row) == len(rows[0]) for row in rows)


def _csv(text: str, before: int, separator: str, column: str | None, label_column: str | None, name: str) -> Rows:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = [cell.strip() for cell in next((row for row in reader if row), [])]
        at = _column(header, column, name)
        label_at = None if label_column is None else _column(header, label_column, name)
        for row in reader:
            if row and len(row) != len(header):
                raise InputError(
                    f"Line {reader.line_num + before:,} of {name} has {plural(len(row), 'field')}, the first line "
                    f"{len(header):,}, with {SEPARATORS[separator]} between them; quote fields that hold the separator."
                )
            if row:
                yield row[at], "" if label_at is None else row[label_at], reader.line_num + before
    except csv.Error as error:
        end = "end of data" in str(error)
        why = (
            "a quote that is opened in it or above is never closed; close it"
            if end
            else "something follows a closing quote; write a quote that belongs to a field twice"
        )
        raise InputError(f"Line {reader.line_num + before:,} of {name} is not proper CSV: {why}.") from error


class _NoJson(ValueError):
    """A word that JSON does not know, such as NaN."""


def _parsed(line: str, number: int, name: str) -> Any:
    try:
        return json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            why = f"it cannot be read from column {error.colno:,} on"
        elif isinstance(error, _NoJson):
            why = f"{error} is no JSON value"
        elif isinstance(error, RecursionError):
            why = "it is nested too deeply"
        else:
            why = "it holds a number of thousands of digits"
        raise InputError(
            f"Line {number:,} of {name} is not proper JSON: {why}; correct the line, or leave it out."
        ) from error


def _field(item: dict[str, Any], column: str, number: int, name: str) -> str:
    if column not in item:
        raise InputError(f"Line {number:,} of {name} has no field '{one_line(column)}'; its fields are {_named(item)}.")
    value = item[column]
    if not isinstance(value, str):
        raise InputError(
            f"Line {number:,} of {name} has {_kind(value)} in the field '{one_line(column)}' where text belongs."
        )
    return value


def _label(item: dict[str, Any], label_column: str | None, number: int, name: str) -> str:
    if label_column is None:
        return ""
    value = item.get(label_column)
    if isinstance(value, int):
        return str(value)
    return _field(item, label_column, number, name)


def _column(header: list[str], wanted: str | None, name: str) -> int:
    """Return the position of the wanted column, or of the one that is meant where none is named."""
    if wanted is not None:
        found = [at for at, cell in enumerate(header) if cell == wanted.strip()]
        if not found:
            raise SettingsError(f"{name} has no column '{one_line(wanted)}'; its columns are {_named(header)}.")
        if len(found) > 1:
            raise SettingsError(f"{name} has {len(found):,} columns called '{one_line(wanted)}'; rename all but one.")
        return found[0]
    if not header:
        raise InputError(f"{name} holds no sentences; give at least one line of text.")
    usual = [at for at, cell in enumerate(header) if cell.lower() in _USUAL_NAMES]
    if len(header) != 1 and len(usual) != 1:
        raise SettingsError(f"{name} has {len(header):,} columns; say which holds the sentences: {_named(header)}.")
    return 0 if len(header) == 1 else usual[0]


def _named(names: Iterable[str]) -> str:
    listed = [one_line(each, 40) for each in names]
    return ", ".join(listed[:12]) + (f" and {len(listed) - 12:,} more" if len(listed) > 12 else "") or "none"


def _kind(value: Any) -> str:
    kinds = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a text",
    }
    return "nothing (null)" if value is None else kinds.get(type(value), "an object")


def _no_constant(text: str) -> Any:
    raise _NoJson(text)
