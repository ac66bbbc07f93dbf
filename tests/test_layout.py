"""The house rules that a machine can check: who may import whom, and what importing costs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_imports_point_downward():
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_embcompare_costs_neither_torch_nor_streamlit():
    done = python("import sys, embcompare; print([m for m in ('torch', 'streamlit', 'altair') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_help_and_stored_results_need_no_torch():
    done = python(
        "import sys\n"
        "from embcompare.experiments import EXPERIMENTS, settings_type\n"
        "import embcompare.cli, embcompare.store\n"
        "print([settings_type(name).experiment for name in EXPERIMENTS], 'torch' in sys.modules)"
    )
    assert done.stdout.strip().endswith("False"), done.stdout + done.stderr


def test_the_core_never_imports_streamlit():
    done = python(
        "import sys\n"
        "import embcompare, embcompare.cli, embcompare.jobs, embcompare.store, embcompare.models, embcompare.spaces\n"
        "import embcompare.experiments.parameters, embcompare.experiments.matches, embcompare.demo\n"
        "print([m for m in ('streamlit', 'altair') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_every_public_name_resolves_and_unknown_ones_do_not():
    import embcompare

    for name in embcompare.__all__:
        assert getattr(embcompare, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = embcompare.nothing


def test_every_experiment_is_registered_under_its_own_name():
    from embcompare.experiments import EXPERIMENTS, settings_type

    for name in EXPERIMENTS:
        assert settings_type(name).experiment == name


def test_only_the_face_and_the_pages_import_streamlit():
    allowed = {ROOT / "app.py", *(ROOT / "pages").glob("*.py")}
    for path in [ROOT / "app.py", *ROOT.glob("pages/*.py"), *ROOT.glob("embcompare/**/*.py")]:
        text = path.read_text(encoding="utf-8")
        if "import streamlit" in text or "from streamlit" in text:
            assert path in allowed or path.relative_to(ROOT).parts[1].startswith("ui"), path


def test_large_files_do_not_creep_into_the_repository():
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False).stdout
    sizes = {name: (ROOT / name).stat().st_size for name in listed.split("\0") if name and (ROOT / name).exists()}
    assert sum(sizes.values()) < 60e6, sorted(sizes.items(), key=lambda item: -item[1])[:5]
