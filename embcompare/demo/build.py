"""Train the demo models again: ``python -m embcompare.demo.build [--only NAME ...] [--out FOLDER]``.

Fetches the texts with ``npm`` and ``pip``, learns the tokenizer, trains two models side by side, one core each, and
writes a folder per model: configuration, float16 weights, tokenizer and ``card.json``. Fine-tuned models begin with the
base in FOLDER, or else with the one that ships. ``--only numbers`` trains all number translators; they fetch nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import platformdirs

from embcompare.demo import NAMES, NUMBERS, weights_folder
from embcompare.demo.corpus import load_streams, make_streams, save_streams
from embcompare.demo.recipes import FINE_TUNINGS, RECIPES, FineTuning, Recipe
from embcompare.demo.texts import (
    PACKAGES,
    Document,
    document_is_held_out,
    fetch,
    read_documents,
    read_reviews,
    shipped_reviews,
)
from embcompare.demo.tokenizer import train_tokenizer

_EVERY = 50
_GROUPS = {"numbers": tuple(name for names in NUMBERS.values() for name in names)}
"""What ``--only`` takes besides the names of models."""


def prepare(cache: Path) -> Path:
    """Learn the tokenizer from the fetched texts and cut the token streams; returns the folder that holds them."""
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
    snapshots = train(recipe, streams["train"], streams["held_out"], _reporter(recipe.name, recipe.steps))
    sources = describe_texts(streams, counts)
    for snapshot in snapshots:
        name = recipe.shipped[snapshot.step]
        if name in wanted:
            write_model(out / name, recipe, snapshot, prepared, sources)
    last = snapshots[-1]
    return f"{recipe.name:16} done: held-out {last.held_out_loss:.3f}, unigram {last.unigram_loss:.3f}"


def tune_one(recipe: FineTuning, cache: Path, out: Path) -> str:
    """Fine-tune one classifier and write it; returns a line on how it went."""
    from transformers import AutoTokenizer

    from embcompare.demo.finetuning import Examples, fine_tune, make_classifier, score, split_reviews
    from embcompare.demo.shipping import write_classifier
    from embcompare.learning import wilson

    made = out / recipe.base
    base = made if (made / "model.safetensors").is_file() else weights_folder(recipe.base)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    train, held_out = split_reviews(read_reviews(cache))
    parts = {"train": train, "held_out": held_out, "shipped_reviews": shipped_reviews()}
    sets = {
        part: Examples.of([each.text for each in reviews], [each.fresh for each in reviews], tokenizer)
        for part, reviews in parts.items()
    }
    steps = recipe.epochs * (len(sets["train"]) // recipe.batch)
    tuned = fine_tune(recipe, base, sets["train"], _reporter(recipe.name, steps))
    model = make_classifier(base)
    model.load_state_dict(tuned.state)
    scores = {part: score(model, sets[part]) for part in ("held_out", "shipped_reviews")}
    split = {
        "source": "reviews",
        "package": PACKAGES["reviews"],
        "share": 1.0,
        **{f"{part}_documents": len({each.film for each in parts[part]}) for part in ("train", "held_out")},
        **{f"{part}_examples": len(parts[part]) for part in ("train", "held_out")},
    }
    write_classifier(out / recipe.name, recipe, tuned, base, scores, split)
    words = []
    for part, found in scores.items():
        low, high = wilson(found.right, found.examples)
        words.append(f"{part} {found.accuracy:.3f} ({low:.3f} to {high:.3f}; majority {found.majority:.3f})")
    return f"{recipe.name:16} done: {', '.join(words)}"


def translate_one(seed: int, wanted: set[str], out: Path) -> str:
    """Train one number translator and write the wanted checkpoints; returns a line on how it went."""
    from embcompare.demo.numbers import make_tokenizer, shipped_pairs
    from embcompare.demo.shipping import write_translator
    from embcompare.demo.translating import Translation, make_translator, score_translator, train_translator

    recipe, tokenizer = Translation(f"numbers-{seed}", seed), make_tokenizer()
    words = []
    for checkpoint in train_translator(recipe, tokenizer, _reporter(recipe.name, recipe.steps)):
        model = make_translator(recipe, len(tokenizer))
        model.load_state_dict(checkpoint.state)
        score = score_translator(model, tokenizer, shipped_pairs())
        words.append(f"{checkpoint.step}: {score.exact:.3f}, BLEU {score.bleu:.1f}")
        name = recipe.shipped[checkpoint.step]
        if name in wanted:
            write_translator(out / name, recipe, checkpoint, tokenizer, score)
    return f"{recipe.name:16} done: {'; '.join(words)}"


def _reporter(name: str, steps: int) -> Callable[[int, float], None]:
    """Return what prints the mean loss and the time left after every ``_EVERY`` steps."""
    begun = time.perf_counter()
    recent: list[float] = []

    def report(step: int, loss: float) -> None:
        recent.append(loss)
        if step % _EVERY == 0:
            left = (time.perf_counter() - begun) / step * (steps - step)
            mean = sum(recent[-_EVERY:]) / len(recent[-_EVERY:])
            print(f"{name:16} step {step:5}/{steps}  loss {mean:.3f}  {left / 60:.1f} min left", flush=True)

    return report


def main(arguments: list[str] | None = None) -> None:
    """Command line: train all or some of the demo models, two at a time by default."""
    parser = argparse.ArgumentParser(prog="python -m embcompare.demo.build", description="Train the demo models again.")
    choices = (*NAMES, *_GROUPS)
    parser.add_argument("--only", nargs="+", choices=choices, default=NAMES, metavar="NAME", help="models to make")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "weights", help="folder to write into")
    cache = Path(platformdirs.user_cache_dir("embcompare")) / "demo-texts"
    parser.add_argument("--cache", type=Path, default=cache, help="folder for the fetched texts")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, one core each")
    options = parser.parse_args(arguments)
    wanted = {name for given in options.only for name in _GROUPS.get(given, (given,))}
    os.environ["OMP_NUM_THREADS"] = "1"  # read by each worker as it starts
    trainings = [recipe for recipe in RECIPES if wanted & set(recipe.shipped.values())]
    tunings = [recipe for recipe in FINE_TUNINGS if recipe.name in wanted]
    seeds = [seed for seed, names in NUMBERS.items() if wanted & set(names)]
    if trainings or tunings:
        fetch(options.cache)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        _finish([pool.submit(translate_one, seed, wanted, options.out) for seed in seeds])
        if trainings:
            prepared = prepare(options.cache)
            _finish([pool.submit(build_one, recipe, wanted, prepared, options.out) for recipe in trainings])
        _finish([pool.submit(tune_one, recipe, options.cache, options.out) for recipe in tunings])


def _finish(jobs: list[Future[str]]) -> None:
    for job in jobs:
        print(job.result(), flush=True)


if __name__ == "__main__":
    main()
