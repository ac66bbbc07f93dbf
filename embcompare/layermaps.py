"""A fitted map from one layer of a model to one of another, as one safetensors file bound to what it was fitted on.

A map means something between the two layers that it was fitted between, and nowhere else: the file names the content of
both models' weights and of the text, and whoever loads it with other weights is told so.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embcompare.errors import Cancelled, Incomparable, InputError, SettingsError, StoreError
from embcompare.experiments.bijection_fits import digest_of
from embcompare.folders import misplaced, reason
from embcompare.running import Progress, RunContext, fingerprints, resolve_device

if TYPE_CHECKING:
    from embcompare.experiments.bijection import Bijection
    from embcompare.maps.base import Map
    from embcompare.maps.protocol import Standardiser
    from embcompare.store import Store

__all__ = ["LayerMap", "LayerPair", "MapMismatch", "fit_layer_map", "load_layer_map"]

MAX_BYTES = 4 * 2**30
"""Bytes of the largest file that is read."""
_FORMAT = 1
_SCALES = ("mean_a", "scale_a", "mean_b", "scale_b")
_OWN = "layer_"
"""What the names of the arrays of the scaling begin with, apart from the map's own."""


class MapMismatch(Incomparable):
    """A fitted map is used with a model whose weights are not those that it was fitted on."""


@dataclass(frozen=True)
class LayerPair:
    """What a map was fitted on: two layers, the content of the models' weights and of the text, and which rows.

    ``weights_a``, ``weights_b`` and ``text`` are 64 hexadecimal digits of the content, so that a renamed model is known
    and an exchanged one is not mistaken for it; of a user's own vectors they are those of the vectors.
    """

    model_a: str
    model_b: str
    weights_a: str
    weights_b: str
    layer_a: int
    layer_b: int
    name_a: str
    name_b: str
    text: str
    settings: dict[str, Any]
    """All settings of the :class:`~embcompare.Bijection` that it was fitted by."""
    r2: float
    """R² on the test rows, which the map did not see."""


@dataclass(frozen=True, eq=False)
class LayerMap:
    """A fitted map between two layers, in the models' own units: (n, d_a) in, (n, d_b) out."""

    map: Map
    """The map itself, between standardised features where ``pair.settings["standardise"]`` says so."""
    scale_a: Standardiser
    scale_b: Standardiser
    pair: LayerPair

    @property
    def invertible(self) -> bool:
        """Whether :meth:`inverse_transform` undoes :meth:`transform`."""
        return self.map.invertible

    def transform(self, X: Any) -> Any:
        """Map hidden states of A's layer (n, d_a) to B's (n, d_b): numpy or torch as given; errors as ``Map``'s."""
        return self.scale_b.inverse_transform(self.map.transform(self.scale_a.transform(X)))

    def inverse_transform(self, Y: Any) -> Any:
        """Map states of B's layer (n, d_b) back to A's (n, d_a); :class:`NotInvertible` where there is no inverse."""
        return self.scale_a.inverse_transform(self.map.inverse_transform(self.scale_b.transform(Y)))

    def check(self, model_a: str | None = None, model_b: str | None = None) -> None:
        """Raise :class:`MapMismatch` unless these models' weights are those that the map was fitted on."""
        from embcompare.models import fingerprint
        from embcompare.shelf import digest_of

        for side, name in (("a", model_a), ("b", model_b)):
            if name is None:
                continue
            found, wanted = digest_of(name) or fingerprint(name), getattr(self.pair, f"weights_{side}")
            if found != wanted:
                raise MapMismatch(
                    f"This map was fitted on {getattr(self.pair, f'model_{side}')} as model {side.upper()} (weights "
                    f"{wanted[:12]}), and {name} has other weights ({found[:12]}); fit it again on {name}."
                )

    def save(self, path: str | Path) -> None:
        """Write the map to a safetensors file, whole or not at all; raises :class:`StoreError` where it cannot."""
        from embcompare.export import check_target, write_file

        check_target(str(path))
        write_file(str(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the content of the file that :meth:`save` writes."""
        from safetensors.numpy import save

        arrays, header = self.map.to_arrays()
        for name, values in zip(_SCALES, (self.scale_a, self.scale_a, self.scale_b, self.scale_b), strict=True):
            each = values.mean if name.startswith("mean") else values.scale
            arrays[f"{_OWN}{name}"] = np.ascontiguousarray(each.cpu().numpy())
        text = json.dumps({"format": _FORMAT, "map": header, "pair": asdict(self.pair)}, separators=(",", ":"))
        data: bytes = save(arrays, {"embcompare_map": text, "sha256": digest_of(arrays, text)})
        return data


def fit_layer_map(
    settings: Bijection,
    map: str = "",
    run: int = 0,
    *,
    progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
    device: str = "auto",
    store: Store | None = None,
) -> LayerMap:
    """Fit one of the maps of ``settings`` exactly as the experiment does, and return the map itself.

    ``map`` is one of :data:`embcompare.maps.MAPS`; it may be left out where ``settings.maps`` names one only. ``run``
    counts the trainings of a network, whose seed is ``settings.seed + run``. A fit that was stopped is taken up again.
    Raises :class:`SettingsError` for a map or run that there is not, and what the experiment raises.
    """
    from embcompare.experiments.bijection import Bijection as Fit
    from embcompare.experiments.bijection_map import fitted_map
    from embcompare.store import Store as Results

    if not isinstance(settings, Fit) or type(run) is not int:
        raise SettingsError(
            f"fit_layer_map takes settings of a Bijection and the number of a run; got {type(settings).__name__} and "
            f"{run!r}."
        )
    names = settings.map_names()
    if not map and len(names) > 1:
        raise SettingsError(f"Say which map: {', '.join(names)}.")

    def check() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled("The fit was cancelled.")

    def on_report(step: Progress, partial: object) -> None:
        if progress is not None:
            progress(step)

    if device != "auto":
        resolve_device(device)
    context = RunContext(device, on_report, check, store if store is not None else Results())
    prints = fingerprints(settings)
    made, data, names_of, r2 = fitted_map(settings, context, map or names[0], run)
    pair = LayerPair(
        model_a=settings.model_a,
        model_b=settings.model_b,
        weights_a=prints[settings.model_a],
        weights_b=prints[settings.model_b],
        layer_a=settings.layer_a,
        layer_b=settings.layer_b,
        name_a=names_of[0],
        name_b=names_of[1],
        text=prints.get(settings.corpus, ""),
        settings=settings.to_dict(),
        r2=r2,
    )
    return LayerMap(made, data.scale_x, data.scale_y, pair)


def load_layer_map(path: str | Path, model_a: str | None = None, model_b: str | None = None) -> LayerMap:
    """Read a map that :meth:`LayerMap.save` wrote; with ``model_a`` or ``model_b`` check that it fits their weights.

    Raises :class:`InputError` for a file that is none or damaged, and :class:`MapMismatch`.
    """
    from embcompare.maps.catalogue import load_map
    from embcompare.maps.protocol import Standardiser

    if not isinstance(path, str | Path) or not str(path):
        raise InputError(f"load_layer_map takes the path of a file; got {path!r}.")
    arrays, header, pair = _read(Path(path))
    scales = {name: arrays.pop(f"{_OWN}{name}", np.empty(0)) for name in _SCALES}
    made = load_map(arrays, header)
    for name, each in scales.items():
        wide = made.width_a if name.endswith("a") else made.width_b
        sound = each.shape == (wide,) and each.dtype == np.float64 and bool(np.isfinite(each).all())
        if not sound or (name.startswith("scale") and not bool((each > 0).all())):
            raise InputError(f"{path} does not say how features were scaled ({name}); save the map again.")
    import torch

    tensors = {name: torch.tensor(each) for name, each in scales.items()}
    found = LayerMap(
        made,
        Standardiser(tensors["mean_a"], tensors["scale_a"]),
        Standardiser(tensors["mean_b"], tensors["scale_b"]),
        pair,
    )
    found.check(model_a, model_b)
    return found


def _read(path: Path) -> tuple[dict[str, np.ndarray], Mapping[str, Any], LayerPair]:
    """Return the arrays, the map's header and what it was fitted on; every byte under the digest."""
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load

    what = f"{path} is not a map that embcompare saved"
    try:
        if misplaced(path, "file"):
            raise InputError(f"{path} is no file; give one that LayerMap.save wrote.")
        if not path.exists():
            raise InputError(f"There is no file {path}; give one that LayerMap.save wrote.")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} is larger than {MAX_BYTES // 2**30} GiB, the most that is read.")
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
        arrays: dict[str, np.ndarray] = load(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason(error)}.") from error
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{what}: it is damaged or of another kind; save the map again.") from error
    text = metadata.get("embcompare_map")
    if text is None:
        raise InputError(f"{what}; give one that LayerMap.save wrote.")
    if metadata.get("sha256") != digest_of(arrays, text):
        raise InputError(f"{path} is damaged: its content does not fit its digest; save the map again.")
    try:
        described = json.loads(text)
        if described["format"] != _FORMAT:
            raise InputError(f"{path} is of layout {described['format']}, and this reads {_FORMAT}; save it again.")
        known = {each.name for each in fields(LayerPair)}
        pair = LayerPair(**{name: value for name, value in described["pair"].items() if name in known})
        kinds = {"layer_a": int, "layer_b": int, "settings": dict, "r2": int | float}
        if any(not isinstance(getattr(pair, name), kinds.get(name, str)) for name in known):
            raise TypeError("a fact of another kind")
        if not isinstance(described["map"], dict):
            raise TypeError("no header")
        return arrays, described["map"], pair
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{what}: its description is incomplete; save the map again.") from error
