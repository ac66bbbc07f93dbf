"""From a name to a local folder: what ships, what is on disk, what the hub's cache holds, the hub itself.

The cache is asked first and without the network. A hub that cannot be reached is noticed within
three seconds, instead of after half a minute of retries.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from embcompare import demo
from embcompare.errors import ModelDamaged, ModelNotFound, ModelRefused
from embcompare.models import policy
from embcompare.models.spec import ModelSpec

_REACH_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_SHARD = re.compile(r"^model(-\d+-of-\d+)?\.safetensors$")
_SHOWN = 80
_SMALL = ("config.json", policy.INDEX, *policy.TOKENIZER_FILES)


def demo_names() -> list[str]:
    """Return the names of the demo models that are installed, twins first, each to be used as ``demo/NAME``."""
    found = []
    for name in demo.NAMES:
        try:
            demo.weights_folder(name)
        except ModelNotFound:
            continue
        found.append(name)
    return found


def find_config(spec: ModelSpec) -> Path:
    """Return a local folder that holds the model's ``config.json``; fetches that file alone from the hub."""
    spec = policy.permitted(spec)
    if spec.kind != "hub":
        return _local(spec)
    cached = _cached(spec)
    if cached is not None:
        return cached
    _reach(spec)
    _answer(spec)
    return _fetch(spec, ["config.json"])


def find_model(spec: ModelSpec, check: Callable[[Path, int], None] | None = None) -> Path:
    """Return a local folder with the whole model, downloading from the hub what is missing.

    ``check(folder, size)`` is called once the config is there and before any weights, of ``size`` bytes, are
    fetched; what it raises ends the search. Raises ``ModelNotFound`` for a name nobody has, an unreachable hub or
    a model that may not be read, and ``ModelRefused`` for one that holds no safetensors.
    """
    spec = policy.permitted(spec)
    if spec.kind != "hub":
        return _local(spec)
    cached = _cached(spec)
    if cached is not None and _whole(cached, spec):
        return cached
    _reach(spec)
    names = _answer(spec)
    weights = [name for name in names if _SHARD.match(name)]
    if not weights:
        pickled = [name for name in names if name.endswith((".bin", ".h5", ".msgpack"))]
        holds = f"only {pickled[0]}" if pickled else "no weights"
        raise ModelRefused(
            f"{spec.label} offers {holds}, and only safetensors are read here; load it once with a tool you trust, "
            "save it with save_pretrained(folder, safe_serialization=True), and give that folder."
        )
    folder = _fetch(spec, ["config.json"])
    if policy.WEIGHTS in weights:
        weights = [policy.WEIGHTS]
    if check is not None:
        check(folder, sum(names[name] for name in weights))
    # The weights last: where they are in the cache, everything is.
    _fetch(spec, [name for name in names if name in _SMALL])
    return _fetch(spec, weights)


def _local(spec: ModelSpec) -> Path:
    if spec.kind == "folder":
        policy.check_folder(Path(spec.name))
        return Path(spec.name)
    if spec.name not in demo.NAMES:
        typed = f"demo/{spec.name}" if len(spec.name) <= _SHOWN else f"demo/{spec.name[:_SHOWN]}…"
        raise ModelNotFound(f"There is no demo model '{typed}'{_closest(spec.name)}")
    return demo.weights_folder(spec.name)


def _closest(name: str) -> str:
    close = difflib.get_close_matches(name, demo.NAMES, n=3, cutoff=0.5)
    shown = [f"demo/{each}" for each in close or demo.OFFERED]
    return f"; did you mean {' or '.join(shown)}?" if close else f"; there are {', '.join(shown)}."


def _cached(spec: ModelSpec) -> Path | None:
    """Return the snapshot that holds the model's config in the hub's cache, if any; asks no network."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(spec.name, "config.json", revision=spec.revision)
    return Path(found).parent if isinstance(found, str) else None


def _whole(folder: Path, spec: ModelSpec) -> bool:
    try:
        return bool(policy.weight_files(folder, spec.label))
    except (ModelDamaged, ModelRefused):
        return False


def _reach(spec: ModelSpec) -> None:
    """Raise ``ModelNotFound`` within three seconds if the hub cannot be asked at all."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise _absent(spec, "HF_HUB_OFFLINE is set, so the hub is not asked")
    parts = urlsplit(_proxy(constants.ENDPOINT) or constants.ENDPOINT)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    answered = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((parts.hostname, port), timeout=_REACH_SECONDS).close()
        except OSError:
            return
        answered.set()

    # In a thread, because looking a host's name up obeys no time limit.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_REACH_SECONDS + 0.2)
    if not answered.is_set():
        raise _absent(spec, f"{parts.hostname} cannot be reached")


def _proxy(endpoint: str) -> str | None:
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(endpoint)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def _absent(spec: ModelSpec, why: str) -> ModelNotFound:
    hints = []
    if not policy.hosted() and os.path.exists(spec.name):
        kind = "folder" if os.path.isdir(spec.name) else "file"
        hints.append(f"to read the {kind} of that name write ./{spec.name}")
    close = difflib.get_close_matches(spec.name.rpartition("/")[2], demo.NAMES, n=2, cutoff=0.6)
    if close:
        hints.append(f"did you mean {' or '.join(f'demo/{name}' for name in close)}?")
    way = "; ".join(hints) or "download it where there is a connection and give its folder, or use a demo model"
    return ModelNotFound(f"{spec.label} is not in the local hub cache and {why}; {way}{'' if close else '.'}")


def _answer(spec: ModelSpec) -> dict[str, int]:
    """Return the files at the top of the repository with their sizes in bytes."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(spec.name, revision=spec.revision, timeout=_ANSWER_SECONDS, files_metadata=True)
    except GatedRepoError as error:
        raise ModelNotFound(
            f"{spec.name} is gated: accept its terms on the hub and log in with the hub's own command line."
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(
            f"{spec.name} has no revision {spec.revision!r}; check the branch, tag or commit."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"The hub has no model {spec.name!r}; check the spelling, log in if it is private, "
            "or write ./ before the name of a folder."
        ) from error
    # Connections fail in the way of whichever client the hub's library uses underneath.
    except Exception as error:
        raise _absent(spec, f"the hub gave no usable answer ({type(error).__name__})") from error
    return {each.rfilename: int(each.size or 0) for each in info.siblings or () if "/" not in each.rfilename}


def _fetch(spec: ModelSpec, names: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(spec.name, revision=spec.revision, allow_patterns=names)
    except Exception as error:
        raise _absent(spec, f"its files could not be fetched ({type(error).__name__})") from error
    return Path(folder)
