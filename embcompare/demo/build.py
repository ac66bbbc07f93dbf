"""Train the demo models again: ``python -m embcompare.demo.build [--only NAME ...] [--out FOLDER]``.

Fetches the texts with ``npm`` and ``pip``, learns the tokenizer, trains two models side by side, one core each, and
writes a folder per model: configuration, float16 weights, tokenizer and ``card.json``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import platformdirs

from embcompare.demo import NAMES
from embcompare.demo.corpus import load_streams, make_streams, save_streams
from embcompare.demo.recipes import RECIPES, Recipe
from embcompare.demo.texts import Document, document_is_held_out, fetch, read_documents
from embcompare.demo.tokenizer import train_tokenizer

_EVERY = 50


def prepare(cache: Path) -> Path:
    """Fetch the texts, learn the tokenizer and cut the token streams; returns the folder that holds them."""
    fetch(cache)
    documents = read_documents(cache)
    split: dict[str, list[Document]] = {"train": [], "held_out": []}
    for document in documents:
        split["held_out" if document_is_held_out(document) else "train"].append(document)
    tokenizer = train_tokenizer(split["train"])
    folder = cache / "prepared"
    tokenizer.save_pretrained(folder)
    for part, chosen in split.items():
        save_streams(make_streams(chosen, tokenizer), folder / f"{part}.npz")
    counts = {part: Counter(document.source for document in chosen) for part, chosen in split.items()}
    (folder / "counts.json").write_text(json.dumps(counts), encoding="utf-8")
    return folder


def build_one(recipe: Recipe, wanted: set[str], prepared: Path, out: Path) -> str:
    """Train one recipe and write the wanted models of it; returns a line on how it went."""
    from embcompare.demo.shipping import describe_texts, write_model
    from embcompare.demo.training import train

    streams = {part: load_streams(prepared / f"{part}.npz") for part in ("train", "held_out")}
    counts = json.loads((prepared / "counts.json").read_text(encoding="utf-8"))
    begun = time.perf_counter()
    recent: list[float] = []

    def report(step: int, loss: float) -> None:
        recent.append(loss)
        if step % _EVERY == 0:
            left = (time.perf_counter() - begun) / step * (recipe.steps - step)
            mean = sum(recent[-_EVERY:]) / len(recent[-_EVERY:])
            print(
                f"{recipe.name:12} step {step:5}/{recipe.steps}  loss {mean:.3f}  {left / 60:.1f} min left", flush=True
            )

    snapshots = train(recipe, streams["train"], streams["held_out"], report)
    sources = describe_texts(streams, counts)
    for snapshot in snapshots:
        name = recipe.shipped[snapshot.step]
        if name in wanted:
            write_model(out / name, recipe, snapshot, prepared, sources)
    last = snapshots[-1]
    return f"{recipe.name:12} done: held-out {last.held_out_loss:.3f}, unigram {last.unigram_loss:.3f}"


def main(arguments: list[str] | None = None) -> None:
    """Command line: train all or some of the demo models, two at a time."""
    parser = argparse.ArgumentParser(prog="python -m embcompare.demo.build", description="Train the demo models again.")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help="models to make")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "weights", help="folder to write into")
    cache = Path(platformdirs.user_cache_dir("embcompare")) / "demo-texts"
    parser.add_argument("--cache", type=Path, default=cache, help="folder for the fetched texts")
    options = parser.parse_args(arguments)
    wanted = set(options.only)
    os.environ["OMP_NUM_THREADS"] = "1"  # read by each worker as it starts
    prepared = prepare(options.cache)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        chosen = [recipe for recipe in RECIPES if wanted & set(recipe.shipped.values())]
        jobs = [pool.submit(build_one, recipe, wanted, prepared, options.out) for recipe in chosen]
        for job in jobs:
            print(job.result(), flush=True)


if __name__ == "__main__":
    main()
