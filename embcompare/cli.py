"""The same experiments from a shell: run one, look at models, look after the stored results.

Flags come from the fields of the experiment's settings. Numbers go to standard output, everything said about them
to standard error. Exit status: 0 done, 2 an error told in one sentence, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from embcompare import __version__
from embcompare.cli_given import keep_file, with_files
from embcompare.cli_options import add_settings, summaries
from embcompare.cli_options import settings_from as _settings
from embcompare.cli_outputs import FORMATS, outputs_of, ready, tell, write, writing
from embcompare.cli_show import ProgressLine, described, say
from embcompare.cli_stored import kept, results
from embcompare.demo import DESCRIPTIONS, OFFERED
from embcompare.errors import EmbcompareError, SettingsError
from embcompare.experiments import settings_type
from embcompare.folders import KINDS
from embcompare.words import plural

if typing.TYPE_CHECKING:
    from embcompare.experiments.base import Result
    from embcompare.experiments.bijection import Bijection

LOG = logging.getLogger(__name__)

_PROG = "python -m embcompare"
_SHOWN_ROWS = 20


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence, and which says so where its help cannot be printed."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # --token=-- gives the text "--", which argparse would take for the end of the options and drop
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            return self._get_value(action, "--")
        return super()._get_values(action, arg_strings)

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            tell(message.removesuffix("\n"))
        elif message:
            say(message.removesuffix("\n"))


class _Formatter(argparse.HelpFormatter):
    """Help with room for long names of options."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 30, **options})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    ready()
    debug = False
    try:
        arguments = _parser(words).parse_args(words)
        debug = arguments.debug
        logging.basicConfig(level=logging.DEBUG if debug else logging.ERROR, stream=sys.stderr)
        arguments.act(arguments)
    except EmbcompareError as error:
        say(str(error))
        LOG.debug("details", exc_info=True)
        return 2
    except KeyboardInterrupt:
        say("Cancelled.")
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        return 0
    except Exception as error:
        from embcompare.running import plain_sentence

        say(plain_sentence(error).replace("the log has the details", f"{_PROG} --debug shows the details"))
        LOG.debug("details", exc_info=True)
        return 2
    return 0


def _parser(words: Sequence[str]) -> _Parser:
    parser = _Parser(prog=_PROG, description="Compare transformer language models layer by layer.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"embcompare {__version__}")
    parser.add_argument("--debug", action="store_true", help="show log messages and the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    run = commands.add_parser(
        "run",
        help="run an experiment",
        description="Run an experiment; run EXPERIMENT --help tells its options.",
        formatter_class=_Formatter,
    )
    experiments = run.add_subparsers(required=True, metavar="EXPERIMENT", dest="experiment", parser_class=_Parser)
    for name, does in summaries(words).items():
        chosen = experiments.add_parser(name, help=does, allow_abbrev=False, formatter_class=_Formatter)
        if name in words:  # only the one that is asked for is imported
            add_settings(chosen, settings_type(name))
            output = chosen.add_argument_group("running and output")
            device = "where to compute; auto, cpu or cuda (default: auto)"
            output.add_argument("--device", default="auto", metavar="DEVICE", help=device)
            output.add_argument("--no-cache", action="store_true", help="compute anew and do not keep the result")
            output.add_argument("--quiet", action="store_true", help="no progress")
            _add_outputs(output)
            chosen.set_defaults(act=_run)

    fit = commands.add_parser(
        "fit-map",
        help="fit a map from one layer to another and keep it as a safetensors file",
        allow_abbrev=False,
        formatter_class=_Formatter,
    )
    if "fit-map" in words:  # its settings are those of an experiment that is imported for them only
        add_settings(fit, settings_type("bijection"))
        fit.usage = str(fit.usage).replace("[OPTION ...]", "--to FILE [OPTION ...]")
        fit.description = (
            "Fit one map, named with --maps, as run bijection does, and write it to a safetensors file that names the "
            "content of both models' weights; embcompare.load_layer_map reads it."
        )
        output = fit.add_argument_group("running and output")
        output.add_argument("--to", metavar="FILE", required=True, help="the file to write; - is standard output")
        output.add_argument("--run", type=int, default=0, metavar="N", help="which training of a network (default: 0)")
        output.add_argument("--device", default="auto", metavar="DEVICE", help="where to compute (default: auto)")
        output.add_argument("--quiet", action="store_true", help="no progress")
        fit.set_defaults(act=_fit_map, experiment="bijection")

    models = commands.add_parser("models", help="list the demo models, or look at one model", allow_abbrev=False)
    models.add_argument("name", nargs="?", metavar="NAME", help="a demo model, a folder or a hub name to look at")
    models.add_argument("--json", metavar="FILE", help="write what is known of the model as json; - is standard output")
    models.set_defaults(act=_models)

    keep = commands.add_parser(
        "keep",
        help="keep a file of your own text or vectors, and print the name to use in run",
        description="Keep a file of text (txt, csv, tsv, jsonl: --column and the like) or of vectors (npy, npz, "
        "safetensors, parquet: --array, --ids) and print the name that run takes as --corpus or as a model.",
        allow_abbrev=False,
        formatter_class=_Formatter,
    )
    keep.add_argument("file", metavar="FILE", help="the file; its suffix tells what it is")
    keep.add_argument("--column", metavar="NAME", help="what holds the sentences (default: the only one, or text)")
    keep.add_argument("--label-column", metavar="NAME", help="what holds a label for each sentence (default: none)")
    keep.add_argument("--target-column", metavar="NAME", help="what holds a translation of each (default: none)")
    keep.add_argument("--max-rows", type=int, metavar="N", help="of more sentences a sample is drawn (default: 10000)")
    keep.add_argument("--seed", type=int, metavar="N", help="of that sample (default: 0)")
    keep.add_argument("--array", metavar="NAME", help="which array holds the vectors, or several: 'layer_*'")
    keep.add_argument("--ids", metavar="NAME", help="what holds an id for each row (default: ids or id, if there)")
    keep.set_defaults(act=_keep)

    stored = commands.add_parser("results", help="list, export or delete stored results", allow_abbrev=False)
    action = stored.add_mutually_exclusive_group()
    action.add_argument("--export", metavar="KEY", help="write a stored result to --json, --csv or --npz")
    action.add_argument("--delete", metavar="KEY", help="delete one stored result (the first digits of its key do)")
    action.add_argument("--clear", action="store_true", help="delete all stored results")
    _add_outputs(stored)
    stored.set_defaults(act=results)

    beside = commands.add_parser(
        "kept",
        help="list or delete kept texts, vectors, hidden states and trained maps",
        description="List what is kept beside the results, last used first: your own texts and vectors under the names "
        "that run takes, hidden states and trained maps, which are computed again when they are needed.",
        allow_abbrev=False,
    )
    action = beside.add_mutually_exclusive_group()
    action.add_argument("--delete", metavar="NAME", help="delete one (the first digits of its name do)")
    action.add_argument(
        "--clear", metavar="KIND", nargs="?", const="all", choices=("all", *KINDS),
        help=f"delete all of a kind, one of {', '.join(KINDS)} (default: all)",
    )  # fmt: skip
    beside.set_defaults(act=kept)
    return parser


def _add_outputs(parser: argparse._ActionsContainer) -> None:
    for kind in FORMATS:
        parser.add_argument(f"--{kind}", metavar="FILE", help=f"write the result as {kind}; - is standard output")


def _run(arguments: argparse.Namespace) -> None:
    from embcompare.running import run

    outputs = outputs_of(arguments)
    said = with_files(arguments)
    settings = _settings(arguments)
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
    for notice in dict.fromkeys((*said, *result.notices)):
        say(notice)
    if outputs:
        write(result, outputs)
    else:
        _print_table(result)


def _fit_map(arguments: argparse.Namespace) -> None:
    from embcompare.export import check_target
    from embcompare.layermaps import fit_layer_map

    if arguments.to != "-":
        check_target(arguments.to)
    said = with_files(arguments)
    settings = typing.cast("Bijection", _settings(arguments))
    if len(settings.map_names()) > 1:
        raise SettingsError(f"One map goes to a file: name it with --maps, such as --maps {settings.map_names()[-1]}.")
    line = ProgressLine(sys.stderr)
    try:
        fitted = fit_layer_map(
            settings, run=arguments.run, progress=None if arguments.quiet else line, device=arguments.device
        )
    finally:
        line.close()
    if arguments.to == "-":
        with writing():
            sys.stdout.buffer.write(fitted.to_bytes())
    else:
        fitted.save(arguments.to)
    for notice in said:
        say(notice)
    where = "went to standard output" if arguments.to == "-" else f"is in {arguments.to}"
    say(f"The map '{settings.map_names()[0]}' has R² {fitted.pair.r2:.4f} on test rows; it {where}.")


def _models(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        if arguments.json is not None:
            raise SettingsError("A file was named but no model; say which with models NAME --json FILE.")
        width = max(map(len, DESCRIPTIONS)) + len("demo/")
        from embcompare.models import demo_names

        installed = demo_names()
        for name in OFFERED:
            description = DESCRIPTIONS[name]
            absent = "" if name in installed else " (weights not installed)"
            tell(f"{'demo/' + name:{width}}  {description}{absent}")
        return
    from embcompare.export import check_target, write_file
    from embcompare.models import inspect_model

    if arguments.json not in (None, "-"):
        check_target(arguments.json)
    found = inspect_model(arguments.name)
    if arguments.json is None:
        tell(described(found))
        return
    text = json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False)
    if arguments.json == "-":
        tell(text)
    else:
        write_file(arguments.json, text + "\n")


def _keep(arguments: argparse.Namespace) -> None:
    names = ("column", "label_column", "target_column", "max_rows", "seed", "array", "ids")
    found = keep_file(arguments.file, {name: getattr(arguments, name) for name in names})
    for notice in found.notices:
        say(notice)
    say(f"Kept: {found.holds}.")
    tell(found.name)


def _print_table(result: Result) -> None:
    frame = result.to_frame()
    tell(frame.to_string(max_rows=_SHOWN_ROWS, index=False))
    if len(frame) > _SHOWN_ROWS:
        say(f"{_SHOWN_ROWS} of {plural(len(frame), 'row')}; all of them with --csv -, everything else with --json -.")
