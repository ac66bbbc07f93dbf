"""A run of bijection: rows split, maps fitted one after another, each scored, read together, and handed to B."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import EmbcompareError, EmbcompareWarning, Incomparable
from embcompare.experiments.bijection_answers import Answers, answers, said, why_none
from embcompare.experiments.bijection_fits import FitFolder
from embcompare.experiments.bijection_result import BijectionResult
from embcompare.experiments.bijection_rows import prepared
from embcompare.experiments.bijection_shown import principal_directions, row_names, worst_texts
from embcompare.experiments.bijection_table import Table
from embcompare.experiments.bijection_training import key_of, network_options, seed_of, title_of, train_kept
from embcompare.maps.catalogue import MapDeclaration, get_map
from embcompare.words import plural

if TYPE_CHECKING:
    from embcompare.experiments.base import Context
    from embcompare.experiments.bijection import Bijection
    from embcompare.experiments.sides import Pair
    from embcompare.maps.base import Map
    from embcompare.maps.reading import Reading

PARTIAL_SECONDS = 1.0
"""How often a partial result goes with the progress of a training."""
TAKEN_UP = "taken up after epoch"
"""What a notice says of a training that an earlier run had begun."""
FEW = 5
"""Training rows for each feature, below which linear maps are said to have few."""
_ROTATIONS, _LINEAR = ("scaled_rotation", "orthogonal"), ("least_squares", "ridge")
_ASKING, _READING = "what B predicts from mapped states", "what kind of map it takes"


@dataclass(frozen=True, eq=False)
class _Fitted:
    at: int
    run: int
    map: Map


class BijectionRun:
    """One run's moving parts: the rows, the numbers so far, the notices, and the count of steps done."""

    def __init__(self, settings: Bijection, context: Context, pair: Pair) -> None:
        from embcompare.experiments.clouds import evenly_drawn

        self.settings, self.context, self.pair = settings, context, pair
        self.notices = [*pair.notices]
        self.fits = FitFolder(context.states)
        self.data = prepared(pair, settings)
        split = self.data.split
        rows = split.train, split.validation, split.test
        self.training, self.validation, self.test = (self.data.part(part) for part in rows)
        self.items = tuple(pair.items[part.numpy()] for part in rows)
        self.tested, member = np.unique(self.items[2], return_inverse=True)
        self.names = settings.map_names()
        self.declared = [get_map(name) for name in self.names]
        trained = sum(each.trained for each in self.declared)
        self.runs = settings.runs if trained else 1
        self.listed = evenly_drawn(len(split.test), settings.shown, settings.seed)
        self.directions, self.shares = principal_directions(self.training[1])
        self.table = Table(len(self.names), self.runs, settings.epochs, member, self.listed, self.directions)
        self.sampled = row_names(settings, context, pair, split.test.numpy()[self.listed])
        self.reasons: dict[tuple[str, str, str], str] = {}
        self.fitted: list[_Fitted] = []
        self.no_answers = why_none(settings)
        asked = 0 if self.no_answers else min(settings.downstream, len(self.tested))
        self.total = len(self.names) - trained + trained * self.runs * settings.epochs + asked + 1
        self.done, self.told = 0, time.monotonic()
        self.stopped: BaseException | None = None
        self.reading: Reading | None = None
        self.read_as = {"orthogonal": "", "linear": ""}
        self.answers: Answers | None = None

    def result(self) -> BijectionResult:
        """Fit, score, read, ask."""
        self._warn_of_size()
        for at, declared in enumerate(self.declared):
            for run in range(self.runs if declared.trained else 1):
                self._fit(at, declared, run)
                self._report(self.done, self._doing(declared, run), self._assemble())
        if not self.fitted:
            raise Incomparable(next(iter(self.reasons.values())))
        self._read()
        self.done += 1
        self._report(self.done, _READING, self._assemble())
        if self.settings.downstream:
            self._ask()
        return self._assemble()

    def _doing(self, declared: MapDeclaration, run: int) -> str:
        return f"{declared.label}, run {run + 1} of {self.runs}" if declared.trained else declared.label

    def _report(self, done: int, message: str, partial: BijectionResult | None = None) -> None:
        try:
            self.context.report(min(done, self.total), self.total, message, partial)
        except BaseException as reason:  # so that it is not taken for what a map says of its rows
            self.stopped = reason
            raise

    def _fit(self, at: int, declared: MapDeclaration, run: int) -> None:
        """Fit and score one map; one that cannot be fitted on these rows is left out with its reason."""
        label = self._doing(declared, run)
        self._report(self.done, label)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EmbcompareWarning)
                made, seconds = self._trained(at, declared, run) if declared.trained else self._closed(declared)
                reasons = self.table.add(at, run, made, seconds, self.training, self.test)
        except EmbcompareError as error:
            if error is self.stopped:
                raise
            self.reasons[declared.name, "", ""] = str(error)
            self.notices.append(f"The map '{declared.name}' was not fitted: {error}")
        else:
            self.reasons |= {(declared.name, *key): reason for key, reason in reasons.items()}
            self.fitted.append(_Fitted(at, run, made))
        self.done += self.settings.epochs if declared.trained else 1

    def _closed(self, declared: MapDeclaration) -> tuple[Map, float]:
        began, made = time.perf_counter(), declared.make()
        return made.fit(*self.training), time.perf_counter() - began

    def _trained(self, at: int, declared: MapDeclaration, run: int) -> tuple[Map, float]:
        """Train a network, from where an earlier run of the same fit was stopped if one was."""
        settings, table, pair, label = self.settings, self.table, self.pair, self._doing(declared, run)
        made = declared.make(**network_options(settings, run, self.context.device))
        key = key_of(declared.name, made, self.training, self.validation, settings.version)

        def learnt(epoch: int, epochs: int, loss: float, held: float) -> None:
            table.curves[at, run, epoch] = loss, held
            partial = None
            if time.monotonic() - self.told > PARTIAL_SECONDS:
                self.told, partial = time.monotonic(), self._assemble()
            message = f"{label}: epoch {epoch} of {epochs}, loss {loss:.4f} in training, {held:.4f} in validation"
            self._report(self.done + epoch, message, partial)

        def taken_up(checkpoint: dict[str, np.ndarray]) -> None:
            table.set_curves(at, run, checkpoint.get("train", ()), checkpoint.get("validation", ()))
            epoch = max(0, len(checkpoint.get("validation", ())) - 1)
            self.notices.append(f"{label}: {TAKEN_UP} {epoch}.")
            self._report(self.done + epoch, f"{label}: {TAKEN_UP} {epoch}", self._assemble())

        def anew() -> None:
            table.set_curves(at, run, (), ())
            self.notices.append(f"{label}: a fit that was kept half done is of other data and was begun anew.")

        title = title_of(declared.label, pair.a, pair.b)
        seconds = train_kept(made, self.training, self.validation, self.fits, key, learnt, taken_up, anew, title)
        table.set_curves(at, run, made.trace.train.numpy(), made.trace.validation.numpy())
        table.best_epoch[at, run] = made.trace.best_epoch
        table.start[at], table.ended[at] = made.start, made.ended
        return made, seconds

    def _read(self) -> None:
        """Say which kind of map it takes, where all maps that the reading needs were fitted."""
        from embcompare.maps.reading import read_maps

        by_name: dict[str, list[Map]] = {}
        for each in self.fitted:
            by_name.setdefault(self.names[each.at], []).append(each.map)
        rotation = next((name for name in _ROTATIONS if name in by_name), "")
        self.read_as = {"orthogonal": rotation, "linear": self._best_linear(by_name)}
        roles = {"mean": "mean", **self.read_as, "inn": "inn", "mlp": "mlp"}
        called = {"linear": "least_squares or ridge"}
        missing = [called.get(role, role) for role, name in roles.items() if name not in by_name]
        if missing:
            self.notices.append(f"There is no verdict: it needs the maps {', '.join(missing)} as well.")
            return
        x, y = self.test
        predicted: dict[str, Any] = {
            role: [made.transform(x) for made in by_name[name]] for role, name in roles.items()
        }
        settings = self.settings
        self.reading = read_maps(y, predicted, self.items[2], margin=settings.margin, seed=settings.seed)
        if len(self.tested) < 2:
            self.notices.append("One test text gives no interval over texts, and a verdict needs one; give more texts.")

    def _best_linear(self, by_name: dict[str, list[Map]]) -> str:
        """Return the linear map of least error on validation rows: the test rows must not choose."""
        x, y = self.validation
        misses = {
            name: float((by_name[name][0].transform(x).double() - y.double()).square().sum())
            for name in _LINEAR
            if name in by_name
        }
        return min(misses, key=misses.__getitem__) if misses else ""

    def _ask(self) -> None:
        """Let B go on from what each map gives."""
        if self.no_answers:
            self.notices.append(said(self.no_answers))
            return

        def tick(texts: int) -> None:
            self.done += texts
            self._report(self.done, _ASKING)

        found = answers(self.settings, self.context, self.pair, self.data, [each.map for each in self.fitted], tick)
        if isinstance(found, str):
            self.notices.append(said(found))
            return
        self.answers = found
        self.notices += found.notices

    def _warn_of_size(self) -> None:
        n, wide = len(self.training[0]), self.pair.a.width
        if n < FEW * wide:
            self.notices.append(
                f"{plural(n, 'training row')} for vectors {wide} wide are few: what least squares reaches on training "
                "rows is chance in part; look at the test rows, and give more text."
            )

    def _assemble(self) -> BijectionResult:
        table, pair, reading, found = self.table, self.pair, self.reading, self.answers
        text_errors = table.text_errors
        kept = worst_texts(text_errors)
        notices = [*self.notices, *self.fits.notices]
        if len(kept) < len(self.tested):
            notices.append(f"Of {len(self.tested):,} test texts the {len(kept):,} with the largest errors are listed.")
        gaps = list(reading.gaps.items()) if reading else []
        train, validation, test = (len(items) for items in self.items)
        train_texts, validation_texts, test_texts = (len(np.unique(items)) for items in self.items)
        return BijectionResult(
            maps=self.names,
            seeds=tuple(seed_of(self.settings, run) for run in range(self.runs)),
            name_a=pair.a.names[0],
            name_b=pair.b.names[0],
            width_a=pair.a.width,
            width_b=pair.b.width,
            rows=(train, validation, test),
            texts_in=(train_texts, validation_texts, test_texts),
            scores=table.scores.copy(),
            reasons=tuple((*key, reason) for key, reason in self.reasons.items()),
            curves=table.known_curves(),
            best_epoch=table.best_epoch.copy(),
            start=tuple(table.start),
            ended=tuple(table.ended),
            log_determinant=table.log_determinant.copy(),
            condition=table.condition.copy(),
            seconds=table.seconds.copy(),
            text_numbers=self.tested[kept].astype(np.int64),
            texts=self._texts(kept),
            text_rows=table.text_rows[kept].astype(np.int64),
            text_errors=text_errors[:, kept],
            sample_texts=self.sampled[0],
            sample_labels=self.sampled[1],
            sample_target=(self.test[1][self.listed].double() @ self.directions).numpy(),
            sample_mapped=table.sample_mapped.copy(),
            sample_errors=table.sample_errors,
            sample_shares=self.shares,
            kind=str(reading.kind) if reading else "",
            sentence=reading.sentence if reading else "",
            rotation=self.read_as["orthogonal"],
            linear=self.read_as["linear"],
            gap_names=tuple(names for names, _ in gaps),
            gaps=np.array([(gap.value, gap.low, gap.high) for _, gap in gaps]).reshape(-1, 3),
            answer_scores=found.scores if found else (),
            answers=self._placed(found.values) if found else None,
            answer_errors=self._placed(found.errors) if found else None,
            answers_own=found.own if found else None,
            answers_base=found.base if found else None,
            answer_task=found.task if found else "",
            answer_texts=found.texts if found else 0,
            answer_places=found.places if found else 0,
            notices=tuple(dict.fromkeys(notices)),
        )

    def _placed(self, values: np.ndarray) -> np.ndarray:
        placed = np.full((len(self.names), self.runs, values.shape[1]), np.nan)
        for each, row in zip(self.fitted, values, strict=True):
            placed[each.at, each.run] = row
        return placed

    def _texts(self, kept: np.ndarray) -> tuple[str, ...]:
        numbers = self.tested[kept].tolist()
        if self.pair.names:
            at = {int(item): name for item, name in zip(self.pair.items, self.pair.names, strict=True)}
            return tuple(at[number] for number in numbers)
        sentences = self.context.corpus(self.settings.corpus).sentences
        return tuple(sentences[number] for number in numbers)
