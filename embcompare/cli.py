"""The same experiments from a shell: run one, look at models, look after the stored results.

Flags come from the fields of the experiment's settings. Numbers go to standard output, everything said about them
to standard error. Exit status: 0 done, 2 an error told in one sentence, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import shutil
import sys
import time
import types
import typing
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn, TextIO

from embcompare import __version__
from embcompare.demo import DESCRIPTIONS
from embcompare.errors import EmbcompareError, SettingsError
from embcompare.experiments import EXPERIMENTS, settings_type

if typing.TYPE_CHECKING:
    from embcompare.experiments.base import Result, Settings
    from embcompare.running import Progress

LOG = logging.getLogger(__name__)

_PROG = "python -m embcompare"
_FORMATS = ("json", "csv", "npz")
_SHOWN_ROWS = 20


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class ProgressLine:
    """Progress on a stream: one line rewritten on a terminal, elsewhere a line a second at most, and the last."""

    def __init__(self, stream: TextIO, terminal: bool | None = None) -> None:
        self._stream = stream
        self._terminal = stream.isatty() if terminal is None else terminal
        self._last_message = ""
        self._last_time = 0.0
        self._open = False

    def __call__(self, step: Progress) -> None:
        """Show ``step``."""
        text = progress_text(step)
        if self._terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._stream.write(f"\r{text[:width]}\x1b[K")
            self._open = True
        else:
            now = time.monotonic()
            last = step.total > 0 and step.done >= step.total
            fresh = step.message != self._last_message and step.total <= 0
            if not (last or fresh or now - self._last_time >= 1.0):
                return
            self._last_message, self._last_time = step.message, now
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Wipe the line, so that what follows begins on a clean one."""
        if self._open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._open = False


def progress_text(step: Progress) -> str:
    """Return one line: percentage, steps, what is being done, time to go."""
    if step.total <= 0:
        return step.message
    eta = step.eta_seconds
    left = f", {duration(eta)} left" if eta is not None and step.done < step.total else ""
    return f"{step.fraction:4.0%} {step.done}/{step.total} {step.message}{left}"


def duration(seconds: float) -> str:
    """Return a time span for people: ``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = False
    try:
        arguments = _parser(words).parse_args(words)
        debug = arguments.debug
        logging.basicConfig(level=logging.DEBUG if debug else logging.ERROR, stream=sys.stderr)
        arguments.act(arguments)
        sys.stdout.flush()
    except EmbcompareError as error:
        _say(str(error))
        LOG.debug("details", exc_info=True)
        return 2
    except KeyboardInterrupt:
        _say("Cancelled.")
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from embcompare.running import plain_sentence

        _say(plain_sentence(error).replace("the log has the details", f"{_PROG} --debug shows the details"))
        LOG.debug("details", exc_info=True)
        return 2
    return 0


def _parser(words: Sequence[str]) -> _Parser:
    parser = _Parser(prog=_PROG, description="Compare transformer language models layer by layer.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"embcompare {__version__}")
    parser.add_argument("--debug", action="store_true", help="show log messages and the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    run = commands.add_parser("run", help="run an experiment", description="Run an experiment.")
    experiments = run.add_subparsers(required=True, metavar="EXPERIMENT", dest="experiment", parser_class=_Parser)
    for name in EXPERIMENTS:
        chosen = experiments.add_parser(name, help=f"see: run {name} --help", allow_abbrev=False)
        if name in words:  # only the one that is asked for is imported
            _add_settings(chosen, settings_type(name))
            _add_outputs(chosen)
            chosen.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu or cuda (auto)")
            chosen.add_argument("--no-cache", action="store_true", help="compute anew and do not keep the result")
            chosen.add_argument("--quiet", action="store_true", help="no progress")
            chosen.set_defaults(act=_run)

    models = commands.add_parser("models", help="list the demo models, or look at one model", allow_abbrev=False)
    models.add_argument("name", nargs="?", metavar="NAME", help="a demo model, a folder or a hub name to look at")
    models.set_defaults(act=_models)

    results = commands.add_parser("results", help="list, export or delete stored results", allow_abbrev=False)
    action = results.add_mutually_exclusive_group()
    action.add_argument("--export", metavar="KEY", help="write a stored result to --json, --csv or --npz")
    action.add_argument("--delete", metavar="KEY", help="delete one stored result (the first digits of its key do)")
    action.add_argument("--clear", action="store_true", help="delete all stored results")
    _add_outputs(results)
    results.set_defaults(act=_results)
    return parser


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    for kind in _FORMATS:
        parser.add_argument(f"--{kind}", metavar="FILE", help=f"write the result as {kind}; - is standard output")


def _add_settings(parser: argparse.ArgumentParser, kind: type[Settings]) -> None:
    """Add one flag a setting; values stay text, since the settings themselves check and convert them."""
    parser.description = (kind.__doc__ or "").strip().partition("\n\n")[0]
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        flag = f"--{item.name.replace('_', '-')}"
        needed = item.default is dataclasses.MISSING
        help_text = _setting_help(item)
        if hints[item.name] is bool:
            parser.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, required=needed, help=help_text
            )
        else:
            parser.add_argument(
                flag, default=argparse.SUPPRESS, required=needed, metavar=item.name.upper(), help=help_text
            )


def _setting_help(item: dataclasses.Field) -> str:
    parts = [item.metadata.get("help", "").rstrip(".")]
    choices, low, high = (item.metadata.get(key) for key in ("choices", "low", "high"))
    if choices is not None:
        parts.append(f"one of {', '.join(map(str, choices))}")
    if low is not None or high is not None:
        bounds = (f"from {low}" if low is not None else "", f"up to {high}" if high is not None else "")
        parts.append(" ".join(filter(None, bounds)))
    text = "; ".join(filter(None, parts))
    if item.default is not dataclasses.MISSING:
        text += f" ({'none' if item.default is None else item.default})"
    return text.replace("%", "%%")


def _settings(arguments: argparse.Namespace) -> Settings:
    kind = settings_type(arguments.experiment)
    given = vars(arguments)
    hints = typing.get_type_hints(kind)
    values = {item.name: given[item.name] for item in dataclasses.fields(kind) if item.name in given}
    for name, value in values.items():
        optional = isinstance(hints[name], types.UnionType) and type(None) in typing.get_args(hints[name])
        if optional and isinstance(value, str) and value.lower() == "none":
            values[name] = None
    return kind.from_dict(values)


def _run(arguments: argparse.Namespace) -> None:
    from embcompare.running import run

    settings = _settings(arguments)
    outputs = _outputs(arguments)
    line = ProgressLine(sys.stderr)
    try:
        result = run(
            settings,
            progress=None if arguments.quiet else line,
            device=arguments.device,
            keep=not arguments.no_cache,
        )
    finally:
        line.close()
    for notice in result.notices:
        _say(notice)
    if outputs:
        _write(result, outputs)
    else:
        _print_table(result)


def _models(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        width = max(map(len, DESCRIPTIONS)) + len("demo/")
        from embcompare.models import demo_names

        installed = demo_names()
        for name, description in DESCRIPTIONS.items():
            absent = "" if name in installed else " (weights not installed)"
            print(f"{'demo/' + name:{width}}  {description}{absent}")
        return
    from embcompare.models import inspect_model

    print(described(inspect_model(arguments.name)))


def described(found: Any) -> str:
    """Return what is known of a model, a dataclass, as one line a field; empty fields are left out."""
    fields = {item.name: getattr(found, item.name) for item in dataclasses.fields(found)}
    card = fields.pop("card", None) or {}
    lines = {**fields, **{f"card: {name}": value for name, value in card.items()}}
    lines = {name.replace("_", " "): value for name, value in lines.items() if value not in (None, "")}
    width = max(map(len, lines), default=0)
    return "\n".join(f"{name:{width}}  {_value_text(value)}" for name, value in lines.items())


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value_text(item)}" for name, item in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _results(arguments: argparse.Namespace) -> None:
    from embcompare.store import Store

    store = Store()
    outputs = _outputs(arguments)
    if outputs and arguments.export is None:
        raise SettingsError("A file was named but no result; say which with --export KEY.")
    if arguments.clear:
        count = store.clear()
        _say(f"{count} {'result' if count == 1 else 'results'} deleted.")
    elif arguments.delete is not None:
        key = store.find(arguments.delete)
        store.delete(key)
        _say(f"Result {key[:12]} deleted.")
    elif arguments.export is not None:
        if not outputs:
            raise SettingsError("Say where to write the result with --json, --csv or --npz FILE; - is standard output.")
        key = store.find(arguments.export)
        result = store.get(key)
        if result is None:
            raise EmbcompareError(" ".join(store.take_notices(key)) or f"Result {key[:12]} is gone.")
        _write(result, outputs)
    else:
        for entry in store.entries():
            when = datetime.fromtimestamp(entry.created).strftime("%Y-%m-%d %H:%M")
            took = "" if entry.seconds is None else f"  {duration(entry.seconds)}"
            print(
                f"{entry.key[:12]}  {when}  {_size_text(entry.bytes):>8}  {entry.experiment}"
                f"  {' × '.join(entry.models)}{took}"
            )
        for notice in store.take_notices():
            _say(notice)


def _outputs(arguments: argparse.Namespace) -> dict[str, str]:
    """Return format -> path of what is to be written, checked before anybody waits for the numbers."""
    from embcompare.export import check_target

    outputs = {kind: path for kind in _FORMATS if (path := getattr(arguments, kind)) is not None}
    if list(outputs.values()).count("-") > 1:
        raise SettingsError(
            "Only one of --json, --csv and --npz can go to standard output; name a file for the others."
        )
    files = [path for path in outputs.values() if path != "-"]
    for path in files:
        check_target(path)
    real = [os.path.realpath(os.path.expanduser(path)) for path in files]
    for path, target in zip(files, real, strict=True):
        if real.count(target) > 1 and os.path.isfile(target) | (not os.path.exists(target)):
            raise SettingsError(f"Two of --json, --csv and --npz would write the same file {path}; name one for each.")
    return outputs


def _write(result: Result, outputs: dict[str, str]) -> None:
    from embcompare import export

    makers: dict[str, Any] = {"json": export.to_json, "csv": export.to_csv, "npz": export.to_npz}
    for kind, path in outputs.items():
        data = makers[kind](result)
        if path != "-":
            export.write_file(path, data)
        elif isinstance(data, bytes):
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(data if data.endswith("\n") else data + "\n")


def _print_table(result: Result) -> None:
    frame = result.to_frame()
    print(frame.to_string(max_rows=_SHOWN_ROWS, index=False))
    if len(frame) > _SHOWN_ROWS:
        _say(f"{_SHOWN_ROWS} of {len(frame)} rows; all of them with --csv -, everything else with --json -.")


def _size_text(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def _say(text: str) -> None:
    print(text, file=sys.stderr)
