import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fakes import Count, Numbers, register

from embcompare import export
from embcompare.cli import main
from embcompare.cli_show import ProgressLine, described, duration, progress_text
from embcompare.errors import ModelNotFound, StoreError
from embcompare.running import Progress
from embcompare.store import Store

TESTS = Path(__file__).parent
RUN = ["run", "count", "--model-a", "a", "--device", "cpu"]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    register(monkeypatch.setitem, monkeypatch.setattr)
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def call(capsys, *arguments):
    """Run the command line in this process; return status, standard output, standard error."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


def shell(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **environment):
    code = "import sys\nfrom fakes import register\nregister()\nfrom embcompare.cli import main\nsys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), **environment},
        stdout=stdout,
        stderr=stderr,
    )


# Starting


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["models"], ["results"], ["models", "--help"]])
def test_what_needs_no_model_imports_no_torch(arguments, cache):
    code = (
        "import sys\nfrom embcompare.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "dear = ('torch', 'transformers', 'pandas', 'streamlit')\n"
        "print([name for name in dear if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=TESTS.parent, check=False
    )
    assert done.stderr == "[]\n"
    assert done.stdout or arguments == ["results"]


def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "embcompare", "--version"], capture_output=True, text=True, cwd=TESTS.parent, check=True
    )
    assert done.stdout.startswith("embcompare ")


# Flags from settings


def test_help_tells_every_setting(capsys):
    status, out, _ = call(capsys, "run", "count", "--help")
    assert status == 0
    text = " ".join(out.split())
    assert "Count to a number of steps." in text
    for shown in (
        "usage: python -m embcompare run count --model-a MODEL_A [OPTION ...]",
        "--model-a MODEL_A First model", "--model-b MODEL_B Second model (default: b)",
        "--steps STEPS How far to count, 100 % whole; from 0 up to 10000 (default: 3)",
        "--kind KIND Which way; one of up, down (default: up)", "--centred, --no-centred A switch (default: yes)",
        "--limit LIMIT A bound or none; from 0.0 (default: none)", "--log LOG File that gets a line a computation "
        "(default: empty)", "--json FILE", "--csv FILE", "--npz FILE", "--device DEVICE",
        "--no-cache", "--quiet",
    ):  # fmt: skip
        assert shown in text


def test_every_experiment_is_described_in_one_sentence(capsys):
    from embcompare.experiments import EXPERIMENTS

    status, out, _ = call(capsys, "run", "--help")
    assert status == 0
    text = " ".join(out.split())
    assert "count Count to a number of steps." in text
    assert "parameter-alignment Compare two models' parameters layer by layer." in text
    for name in EXPERIMENTS:
        assert text.count(f" {name} ") == 1
        assert re.search(rf" {name} [A-Z][^.]+\.", text)


@pytest.mark.parametrize("name", ["parameter-alignment", "parameter-matches", "representation-similarity"])
def test_every_option_tells_its_default_and_choices(capsys, name):
    from dataclasses import MISSING, fields

    from embcompare.experiments import settings_type

    text = " ".join(call(capsys, "run", name, "--help")[1].split())
    for item in fields(settings_type(name)):
        flag = f"--{item.name.replace('_', '-')}"
        assert f" {flag}" in text
        if item.default is not MISSING:
            words = {None: "none", True: "yes", False: "no", "": "empty"}
            plain = item.default is None or isinstance(item.default, bool | str)
            assert f"(default: {words.get(item.default, item.default) if plain else item.default})" in text
        for choice in item.metadata["choices"] or ():
            assert str(choice) in text
    if name == "representation-similarity":
        assert "mutual_knn" in text


def test_flags_become_settings(capsys):
    status, out, _ = call(
        capsys,
        *RUN,
        "--model-b",
        "c",
        "--steps",
        "2",
        "--kind",
        "down",
        "--no-centred",
        "--limit",
        "0.5",
        "--json",
        "-",
    )
    assert status == 0
    assert (
        json.loads(out)["provenance"]["settings"]
        == Count("a", "c", steps=2, kind="down", centred=False, limit=0.5).to_dict()
    )
    _, out, _ = call(capsys, *RUN, "--centred", "--limit", "none", "--json", "-")
    assert json.loads(out)["provenance"]["settings"] == Count("a").to_dict()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "many"], "steps cannot be 'many'; give a number."),
        (["--steps", "10001"], "steps cannot be 10001; the largest value is 10000."),
        (["--kind", "sideways"], "kind cannot be 'sideways'; choose one of up, down."),
        (["--model-a", " "], "model_a is empty"),
        (["--step", "3"], "unrecognized arguments: --step 3"),
        (["--device", "tpu"], "device cannot be 'tpu'"),
        (["--json", "-", "--csv", "-"], "Only one of --json, --csv and --npz"),
        (["--json", "/proc/none/x.json"], "Cannot write /proc/none/x.json: there is no folder"),
        (["--csv", "/"], "Cannot write /: it is a folder"),
        (["--fail", "memory"], "needs more memory than cpu has free"),
    ],
)
def test_errors_are_one_sentence_and_status_2(capsys, arguments, words):
    status, out, err = call(capsys, *RUN, *arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["run"], "EXPERIMENT"),
        (["run", "none"], "invalid choice: 'none'"),
        (["run", "count"], "required: --model-a"),
        (["results", "--delete"], "expected one argument"),
        (["results", "--clear", "--delete", "x"], "not allowed with"),
        (["results", "--delete", "abc"], "No stored result has a key that begins with 'abc'"),
        (["results", "--export", "abc"], "Say where to write the result"),
        (["results", "--json", "-"], "say which with --export KEY"),
    ],
)
def test_calls_that_make_no_sense_are_one_sentence_and_status_2(capsys, arguments, words):
    status, _, err = call(capsys, *arguments)
    assert status == 2
    assert words in err
    assert len(err.splitlines()) == 1


def test_an_unforeseen_failure_is_a_sentence_and_debug_shows_its_traceback(capsys):
    status, _, err = call(capsys, *RUN, "--fail", "value")
    assert status == 2
    assert err.splitlines() == [
        "The run failed inside embcompare (ValueError: first line); python -m embcompare --debug shows the details."
    ]
    process = shell("--debug", *RUN, "--fail", "value")
    assert b"Traceback" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


# Results of a run


def test_a_run_prints_its_table_and_its_notices_apart(capsys):
    status, out, err = call(capsys, *RUN, "--steps", "30")
    assert status == 0
    assert out.split()[:2] == ["step", "value"]
    assert "One notice." in err
    assert "20 of 30 rows" in err
    status, out, err = call(capsys, *RUN, "--steps", "2", "--quiet")
    assert [line.split() for line in out.splitlines()] == [["step", "value"], ["0", "0.0"], ["1", "1.0"]]
    assert err == "One notice.\n"


def test_all_three_formats_in_one_run(capsys, tmp_path):
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "npz")}
    status, out, _ = call(capsys, *RUN, *(word for kind, path in paths.items() for word in (f"--{kind}", path)))
    assert (status, out) == (0, "")
    document = json.loads(paths["json"].read_text())
    assert document["result"]["values"] == [0.0, 1.0, 2.0]
    assert [float(row["value"]) for row in csv.DictReader(paths["csv"].open())] == [0.0, 1.0, 2.0]
    with np.load(paths["npz"], allow_pickle=False) as archive:
        assert archive["values"].tolist() == [0.0, 1.0, 2.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out.csv", "out.json", "out.npz"]


def test_the_second_run_comes_from_the_store_and_no_cache_does_not(capsys, tmp_path):
    log = tmp_path / "log"
    words = [*RUN, "--log", log]
    call(capsys, *words)
    call(capsys, *words)
    assert len(log.read_text().splitlines()) == 1
    call(capsys, *words, "--no-cache")
    assert len(log.read_text().splitlines()) == 2
    assert len(Store().entries()) == 1


def test_a_result_that_cannot_be_kept_is_still_printed(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EMBCOMPARE_CACHE", str(tmp_path / "file" / "cache"))
    status, out, err = call(capsys, *RUN)
    assert status == 0
    assert "2.0" in out
    assert "cannot be kept" in err


# Progress and interruption


class Terminal(io.StringIO):
    def isatty(self):
        return True


def steps(*pairs):
    now = time.monotonic()
    return [Progress(done, total, message, now - 10, now) for done, total, message in pairs]


def test_progress_on_a_terminal_is_one_line_rewritten(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    line = ProgressLine(stream)
    for step in steps((0, 0, "loading"), (1, 2, "layer 1 of a very long name that does not fit"), (2, 2, "done")):
        line(step)
    line.close()
    shown = stream.getvalue()
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")
    parts = [part.removesuffix("\x1b[K") for part in shown.split("\r")]
    assert parts[1] == "loading"
    assert max(map(len, parts)) == 39
    assert parts[3] == "100% 2/2 done"


def test_progress_elsewhere_is_few_plain_lines_and_always_the_last():
    stream = io.StringIO()
    line = ProgressLine(stream)
    for step in steps(*[(number, 1000, "counting") for number in range(1, 1001)]):
        line(step)
    line.close()
    shown = stream.getvalue().splitlines()
    assert shown[0].startswith("  0% 1/1000 counting")
    assert shown[-1] == "100% 1000/1000 counting"
    assert len(shown) < 5
    assert "\r" not in stream.getvalue()


def test_a_message_that_repeats_without_a_total_is_shown_once_a_second():
    stream = io.StringIO()
    line = ProgressLine(stream)
    for step in steps(*[(0, 0, "waiting")] * 50):
        line(step)
    assert stream.getvalue() == "waiting\n"


def test_progress_says_how_long_is_left():
    (step,) = steps((1, 4, "layer 1"))
    assert progress_text(step).startswith(" 25% 1/4 layer 1, 30 s left")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


def test_progress_goes_to_standard_error_only(capsys):
    _, out, err = call(capsys, *RUN, "--csv", "-")
    assert "3/3 step 3" in err
    assert "step 3" not in out
    _, _, err = call(capsys, *RUN, "--steps", "4", "--quiet")
    assert "step 4" not in err


def test_ctrl_c_ends_cleanly_with_130(tmp_path, cache):
    log = tmp_path / "log"
    process = shell(*RUN, "--pause", "0.05", "--steps", "1000", "--log", log)
    end = time.monotonic() + 60
    while not log.exists() and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == b""
    assert err.splitlines()[-1] == b"Cancelled."
    assert b"Traceback" not in err
    assert list(cache.iterdir()) == []


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    process = shell(*RUN, "--steps", "10000", "--csv", "-", "--quiet")
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) == 0
    assert err.decode() == "One notice.\n"


# Models


def test_models_lists_the_demo_models(capsys):
    status, out, _ = call(capsys, "models")
    assert status == 0
    assert "demo/gpt2-a" in out
    assert "twin of gpt2-b" in out


def test_one_model_is_looked_at(capsys, monkeypatch):
    import embcompare.models

    @dataclass(frozen=True)
    class Info:
        label: str = "gpt2-a"
        parameters: int = 1234567
        tied: bool = True
        reason: str = ""
        card: dict | None = None

    monkeypatch.setattr(embcompare.models, "inspect_model", lambda name: Info(name), raising=False)
    status, out, _ = call(capsys, "models", "demo/x")
    assert status == 0
    assert out == "name             demo/x\nparameters       1,234,567\ntied embeddings  yes\n"
    assert json.loads(call(capsys, "models", "demo/x", "--json", "-")[1])["parameters"] == 1234567

    def missing(name):
        raise ModelNotFound(f"There is no model '{name}'.")

    monkeypatch.setattr(embcompare.models, "inspect_model", missing, raising=False)
    assert call(capsys, "models", "x") == (2, "", "There is no model 'x'.\n")


def test_nested_facts_are_a_readable_table():
    @dataclass(frozen=True)
    class Info:
        label: str
        bytes: int
        reason: str
        card: dict

    texts = [{"source": "sea", "share": 0.5, "documents": 1226}, {"source": "mountain", "share": 0.25, "documents": 7}]
    card = {"recipe": {"seed": 1, "save_at": [], "names": ["a", "b"]}, "texts": texts, "note": "word " * 30}
    lines = described(Info("x", 6_889_472, "", card), width=60).splitlines()
    assert lines[:9] == [
        "name    x",
        "memory  6.9 MB",
        "card",
        "  recipe",
        "    seed   1",
        "    names  a, b",
        "  texts",
        "    source    share  documents",
        "    sea         0.5      1,226",
    ]
    assert lines[9] == "    mountain   0.25          7"
    assert lines[10].startswith("  note  word word")
    assert lines[11].startswith("        word")
    assert max(map(len, lines)) <= 60
    assert not any(mark in "\n".join(lines) for mark in "{}[]'")


def test_a_demo_model_is_told_without_a_raw_dict(capsys):
    status, out, err = call(capsys, "models", "demo/gpt2-a")
    assert (status, err) == (0, "")
    assert "parameters           1,722,368\n" in out
    assert "    moby-dick" in out
    assert not any(mark in out for mark in "{}[]'")
    status, out, _ = call(capsys, "models", "demo/gpt2-a", "--json", "-")
    assert json.loads(out)["card"]["parameters"] == json.loads(out)["parameters"] == 1_722_368


def test_json_of_a_model_goes_to_a_file_and_needs_a_model(capsys, tmp_path):
    assert call(capsys, "models", "demo/gpt2-a", "--json", tmp_path / "x.json") == (0, "", "")
    assert json.loads((tmp_path / "x.json").read_text())["layers"] == 6
    status, _, err = call(capsys, "models", "--json", "-")
    assert (status, "which" in err) == (2, True)
    status, _, err = call(capsys, "models", "demo/gpt2-a", "--json", "/proc/none/x.json")
    assert (status, "Cannot write" in err) == (2, True)


# A user's own files


LINES = "text\tkind\n" + "".join(f"Sentence number {n} of them.\t{'ab'[n % 2]}\n" for n in range(12))


@pytest.fixture
def given(tmp_path):
    """A folder with a file of every kind that can be kept."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from safetensors.numpy import save_file

    folder = tmp_path / "given"
    folder.mkdir()
    rows = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    (folder / "t.tsv").write_text(LINES)
    (folder / "t.csv").write_text(LINES.replace("\t", ","))
    (folder / "t.txt").write_text("One.\nTwo words.\nThree words here.\nAnd four words now.\n")
    (folder / "t.jsonl").write_text("".join(json.dumps({"text": f"Line {n}."}) + "\n" for n in range(5)))
    np.save(folder / "v.npy", rows)
    np.savez(folder / "v.npz", x=rows, ids=np.array([f"row {n}" for n in range(30)]))
    np.savez(folder / "two.npz", x=rows, y=rows[:, :4])
    save_file({"x": rows}, folder / "v.safetensors")
    pq.write_table(pa.table({f"d{n}": rows[:, n] for n in range(5)}), folder / "v.parquet")
    return folder


@pytest.mark.parametrize(
    ("file", "options", "holds"),
    [
        ("t.txt", [], "4 sentences"),
        ("t.tsv", ["--label-column", "kind"], "12 sentences with 2 different labels"),
        ("t.csv", ["--column", "text"], "12 sentences"),
        ("t.jsonl", [], "5 sentences"),
        ("t.tsv", ["--max-rows", "6", "--seed", "3"], "6 sentences"),
        ("v.npy", [], "30 vectors of 5 numbers"),
        ("v.npz", ["--ids", "ids"], "30 vectors of 5 numbers with ids"),
        ("two.npz", ["--array", "y"], "30 vectors of 4 numbers"),
        ("v.safetensors", [], "30 vectors of 5 numbers"),
        ("v.parquet", [], "30 vectors of 5 numbers"),
    ],
)
def test_a_file_is_kept_under_the_name_that_is_printed(capsys, given, file, options, holds):
    from embcompare.shelf import Shelf

    status, out, err = call(capsys, "keep", given / file, *options)
    assert status == 0
    assert f"Kept: {holds}." in err
    name = out.strip()
    kept = Shelf().corpus(name) if name.startswith("text/") else Shelf().vectors(name)
    assert name.endswith(kept.digest)
    assert f"{len(kept):,}" == holds.split()[0]
    assert kept.name == file
    assert call(capsys, "keep", given / file, *options)[1] == out, "equal content has one name"


def test_notices_of_a_kept_text_are_said(capsys, given):
    (given / "t.txt").write_text("One.\nOne.\nTwo.\n")
    _, _, err = call(capsys, "keep", given / "t.txt")
    assert "1 repeated sentence was left out." in err
    assert "most measures are undefined" in err


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        ("none.txt", [], "There is no file"),
        ("", [], "is a folder, not a file"),
        ("t.pdf", [], "ends in '.pdf'; text is read from txt, csv, tsv, jsonl and vectors from npy"),
        ("plain", [], "has no suffix"),
        ("dangling.txt", [], "is a link to a file that is not there"),
        ("pipe.txt", [], "is no plain file"),
        ("a\nb.txt", [], "a?b.txt; check the path"),
        ("a\0b.txt", [], "null character"),
        ("x" * 3000 + ".txt", [], "file name too long"),
        ("t.tsv", ["--column", "z"], "no column 'z'; its columns are text, kind"),
        ("t.tsv", ["--array", "z"], "--array is for files of vectors"),
        ("v.npy", ["--label-column", "z"], "--label-column is for files of text"),
        ("v.npy", ["--max-rows", "5"], "--max-rows is for files of text"),
        ("t.tsv", ["--max-rows", "0"], "max_rows cannot be 0"),
        ("t.tsv", ["--max-rows", "many"], "invalid int value: 'many'"),
        ("t.tsv", ["--seed", "-1"], "-1"),
        ("two.npz", [], "say which to use"),
        ("large.txt", [], "larger than 5.2 MB"),
        ("large.npy", [], "has 537 MB; at most 268 MB are read"),
        ("empty.npy", [], "cannot be read"),
        ("empty.txt", [], "holds no sentences"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence(capsys, given, file, options, words):
    (given / "dangling.txt").symlink_to(given / "nowhere")
    os.mkfifo(given / "pipe.txt")
    for name, size in (("large.txt", 6 * 2**20), ("large.npy", 2**29), ("t.pdf", 1), ("plain", 1)):
        with (given / name).open("wb") as sparse:
            sparse.truncate(size)
    (given / "empty.npy").touch()
    (given / "empty.txt").touch()
    status, out, err = call(capsys, "keep", f"{given}/{file}", *options)
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


SIMILARITY = ["run", "representation-similarity", "--quiet", "--null-draws", 0, "--halves", 0, "--json", "-"]


def settings_of(out):
    return json.loads(out)["provenance"]["settings"]


@pytest.mark.parametrize("file", ["v.npy", "v.npz", "v.safetensors", "v.parquet"])
def test_vectors_are_compared_straight_from_their_files(capsys, given, file):
    _, name, _ = call(capsys, "keep", given / file)
    status, out, err = call(capsys, *SIMILARITY, "--model-a", given / file, "--model-b", given / "v.npy")
    assert status == 0, err
    assert settings_of(out)["model_a"] == name.strip()
    assert json.loads(out)["result"]["values"] == [[pytest.approx(1.0)]]


def test_a_text_is_read_straight_from_its_file_and_its_notices_are_said(capsys, given):
    (given / "t.txt").write_text("One.\nOne.\nTwo words.\nThree words here.\nAnd four words now.\nFive.\n")
    both = ["--model-a", "demo/gpt2-a", "--model-b", "demo/gpt2-a", "--corpus"]
    _, name, _ = call(capsys, "keep", given / "t.txt")
    status, out, err = call(capsys, *SIMILARITY, *both, given / "t.txt")
    assert status == 0, err
    assert settings_of(out)["corpus"] == name.strip()
    assert json.loads(out)["result"]["items"] == 5
    assert "1 repeated sentence was" in err
    status, out, _ = call(capsys, *SIMILARITY, *both, name.strip())
    assert json.loads(out)["provenance"]["cached"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model-a", "{}/none.npy", "--model-b", "b"], "There is no file"),
        (["--model-a", "{}/two.npz", "--model-b", "b"], "say which to use"),
        (["--model-a", "{}/two.npz", "--model-b", "b"], "python -m embcompare keep FILE"),
        (["--model-a", "a", "--model-b", "b", "--corpus", "{}/none.txt"], "There is no file"),
        (["--model-a", "a", "--model-b", "b", "--corpus", "{}"], "is a folder, not a file"),
        (["--model-a", "a", "--model-b", "b", "--corpus", "{}/v.npy"], "is a file of vectors, and corpus is a text"),
    ],
)
def test_paths_in_a_run_that_cannot_be_kept_are_one_sentence(capsys, given, arguments, words):
    filled = [each.replace("{}", str(given)) for each in arguments]
    status, out, err = call(capsys, "run", "representation-similarity", *filled)
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_a_file_without_a_name_is_refused(capsys, name):
    assert call(capsys, "keep", name) == (2, "", "The name of the file is empty; name a file of text or of vectors.\n")


@pytest.mark.parametrize("name", ["./no.npy", "no.npz", "/no/where.safetensors", "x/y.parquet"])
def test_vectors_that_are_not_there_are_told_as_such_where_models_are_compared(capsys, name):
    status, out, err = call(capsys, *RUN[:2], "--model-a", name)
    assert (status, out, err) == (2, "", f"There is no file {name}; check the path.\n")


def test_one_is_said_as_one(capsys, given):
    np.save(given / "one.npy", np.ones((1, 1), np.float32))
    (given / "one.txt").write_text("Only one.\n")
    (given / "one.csv").write_text("text,kind\nOnly one.,a\n")
    assert "Kept: 1 vector of 1 number.\n" in call(capsys, "keep", given / "one.npy")[2]
    said = call(capsys, "keep", given / "one.txt")[2]
    assert "With 1 sentence most measures are undefined" in said
    assert "Kept: 1 sentence.\n" in said
    assert "Kept: 1 sentence with 1 different label.\n" in call(
        capsys, "keep", given / "one.csv", "--label-column", "kind"
    )[2]  # fmt: skip


def test_an_unusual_separator_is_said(capsys, given):
    (given / "semi.csv").write_text("text;kind\n" + "".join(f"Hello, number {n}.;a\n" for n in range(5)))
    status, _, err = call(capsys, "keep", given / "semi.csv")
    assert status == 0
    assert err.splitlines() == [
        "The columns of semi.csv are taken to be separated by semicolons.",
        "Kept: 5 sentences.",
    ]


# Streams that cannot be written


FULL = Path("/dev/full")
DEAF = "Standard output cannot be written: no space left on device; send it somewhere else.\n"


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", [["models"], ["--help"], ["--version"], ["run", "count", "--help"], [*RUN, "--quiet", "--csv", "-"],
              [*RUN, "--quiet", "--npz", "-"]],
)  # fmt: skip
def test_a_full_disk_behind_standard_output_is_one_sentence(words, unbuffered):
    with FULL.open("w") as full:
        done = shell(*words, stdout=full, PYTHONUNBUFFERED=unbuffered)
        err = done.communicate(timeout=60)[1].decode()
    assert done.returncode == 2
    assert err.removeprefix("One notice.\n") == DEAF


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("words", "status"), [(["keep", ""], 2), (["nonsense"], 2), (RUN, 0), (["results", "--clear"], 0)]
)
def test_a_full_disk_behind_standard_error_changes_no_status(words, status, unbuffered):
    with FULL.open("w") as full:
        done = shell(*words, stderr=full, PYTHONUNBUFFERED=unbuffered)
        out = done.communicate(timeout=60)[0].decode()
    assert done.returncode == status
    assert ("2.0" in out) == (words == RUN)


@pytest.mark.parametrize("words", [["models"], ["--help"], ["models", "demo/gpt2-a"], ["keep", ""]])
def test_a_reader_that_has_gone_is_no_error_wherever_it_read(words):
    source, sink = os.pipe()
    os.close(source)
    with os.fdopen(sink, "w") as gone:
        done = shell(*words, stdout=gone, stderr=subprocess.PIPE)
        err = done.communicate(timeout=60)[1].decode()
    assert done.returncode == (2 if words[0] == "keep" else 0)
    assert err == ("The name of the file is empty; name a file of text or of vectors.\n" if words[0] == "keep" else "")


def test_streams_that_a_shell_has_closed_are_no_error_and_numbers_never_mix_with_words():
    code = f"import sys\nsys.path.insert(0, {str(TESTS.parent)!r})\nfrom embcompare.cli import main\nsys.exit(main())"
    for closed, words, status in (
        (">&-", "models", 0),
        ("2>&-", "models", 0),
        ("2>&-", "keep ''", 2),
        (">&- 2>&-", "models", 0),
    ):
        done = subprocess.run(
            ["sh", "-c", f'"$0" -c "$1" {words} {closed}', sys.executable, code],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert done.stderr == ""
        assert ("demo/gpt2-a" in done.stdout) == (closed == "2>&-" and words == "models")
        assert "The name" not in done.stdout


def test_a_terminal_of_few_letters_gets_what_it_can_show(capsys):
    call(capsys, *RUN)
    process = shell("results", PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert b"a \\xd7 b" in out


def test_vectors_where_models_are_compared_are_refused(capsys, given):
    status, _, err = call(capsys, *RUN[:2], "--model-a", given / "v.npy")
    assert status == 2
    assert "is a file of vectors, and count compares models" in err


# Stored results


def test_results_are_listed_exported_and_deleted(capsys, tmp_path):
    for number in (1, 2):
        call(capsys, *RUN, "--steps", number)
    status, out, _ = call(capsys, "results")
    assert status == 0
    lines = out.splitlines()
    assert len(lines) == 2
    assert all("count" in line and "a × b" in line for line in lines)
    key = lines[0].split()[0]
    assert call(capsys, "results", "--export", key, "--csv", "-") == (0, "step,value\n0,0.0\n1,1.0\n", "")
    status, out, err = call(capsys, "results", "--export", key, "--npz", tmp_path / "x.npz")
    assert (status, out, err) == (0, "", "")
    assert np.load(tmp_path / "x.npz", allow_pickle=False)["values"].tolist() == [0.0, 1.0]
    assert call(capsys, "results", "--delete", key)[0] == 0
    assert len(call(capsys, "results")[1].splitlines()) == 1
    assert call(capsys, "results", "--clear") == (0, "", "1 result deleted.\n")
    assert call(capsys, "results")[1] == ""


def test_a_damaged_result_is_told_when_listed_or_exported(capsys, cache):
    call(capsys, *RUN)
    (path,) = cache.glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    status, out, err = call(capsys, "results", "--export", path.stem, "--csv", "-")
    assert (status, out) == (2, "")
    assert "set aside" in err
    path.write_bytes(b"x")
    status, out, err = call(capsys, "results")
    assert (status, out) == (0, "")
    assert "set aside" in err


# Exports


SPECIAL = Numbers(
    np.array([[np.nan, np.inf], [-np.inf, 0.1]]),
    np.array(["Ġthe", "é"]),
    names=("x",),
    pairs=(("y", 1),),
    score=float("nan"),
    provenance={"call": "f()", "seed": None},
    notices=("Look.",),
)


def test_json_is_strict_and_whole():
    def refuse(constant):
        raise AssertionError(constant)

    document = json.loads(export.to_json(SPECIAL), parse_constant=refuse)
    assert document == {
        "provenance": {"call": "f()", "seed": None},
        "notices": ["Look."],
        "result": {
            "values": [[None, None], [None, 0.1]], "extra": ["Ġthe", "é"], "names": ["x"], "pairs": [["y", 1]],
            "score": None,
        },
    }  # fmt: skip


def test_json_takes_complex_numbers_numpy_scalars_and_empty_arrays():
    result = Numbers(np.array([1 + 2j]), np.zeros((0, 3)), score=np.float32(0.5), label=np.str_("x"))
    assert json.loads(export.to_json(result))["result"] == {
        "values": [[1.0, 2.0]], "extra": [], "names": [], "pairs": [], "score": 0.5, "label": "x",
    }  # fmt: skip


def test_csv_keeps_every_digit():
    values = np.array([0.1, 1 / 3, 1e-300, np.nextafter(1, 2)])
    rows = list(csv.DictReader(io.StringIO(export.to_csv(Numbers(values)))))
    assert [float(row["value"]) for row in rows] == values.tolist()


def test_npz_holds_arrays_bit_for_bit_and_the_rest_as_json():
    with np.load(io.BytesIO(export.to_npz(SPECIAL)), allow_pickle=False) as archive:
        assert sorted(archive.files) == ["extra", "provenance", "values"]
        assert archive["values"].tobytes() == SPECIAL.values.tobytes()
        assert archive["extra"].tolist() == ["Ġthe", "é"]
        rest = json.loads(str(archive["provenance"]))
    assert rest["provenance"] == {"call": "f()", "seed": None}
    assert rest["names"] == ["x"]
    assert export.to_npz(SPECIAL) == export.to_npz(SPECIAL)


def test_npz_refuses_objects():
    with pytest.raises(StoreError, match="field values holds object"):
        export.to_npz(Numbers(np.array([object()])))


def test_a_file_that_cannot_be_written_is_a_sentence_and_the_old_one_stays(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export.write_atomically.__globals__["os"], "replace", full)
    with pytest.raises(StoreError, match="no space left on device"):
        export.write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
