"""How a person names a model: a demo model, a folder, or a name on the hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embcompare.errors import ModelNotFound, SettingsError

DTYPES = ("float32", "float64", "stored")
"""What weights are held in: two precisions, or whatever the files hold."""

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_DEMO = re.compile(rf"^{_PART}$")
_HUB = re.compile(rf"^{_PART}(?:/{_PART})?$")
_REVISION = re.compile(rf"^{_PART}(?:/{_PART})*$")
_DEVICE = re.compile(r"^(cpu|cuda(:\d+)?)$")
_FORMS = "write demo/NAME, a hub name such as org/name or org/name@revision, or a folder that starts with ./ or /"
_LONGEST = 1024
_LONGEST_HUB = 96
_SHOWN = 80


@dataclass(frozen=True)
class ModelSpec:
    """Which model, at which revision, in which precision, on which device; says nothing about what is in it.

    ``kind`` is ``"demo"``, ``"folder"`` or ``"hub"``; ``name`` is the demo model's bare name, the folder's
    absolute path, or the name on the hub. ``dtype`` is ``"float32"``, ``"float64"`` or ``"stored"``.
    """

    kind: Literal["demo", "folder", "hub"]
    name: str
    revision: str | None = None
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SettingsError(f"dtype cannot be {self.dtype!r}; choose one of {', '.join(DTYPES)}.")
        if not _DEVICE.match(self.device):
            raise SettingsError(f"device cannot be {self.device!r}; choose cpu, cuda or cuda:N.")
        if self.kind == "folder":
            if not os.path.isabs(self.name):
                raise SettingsError(f"A model folder needs an absolute path, not {self.name!r}.")
        elif not (_DEMO if self.kind == "demo" else _HUB).match(self.name) or not self._plain():
            typed = f"demo/{self.name}" if self.kind == "demo" else self.name
            raise ModelNotFound(f"{_short(typed)} is not a model's name; {_FORMS}.")
        if self.revision is not None and (not _REVISION.match(self.revision) or ".." in self.revision):
            raise ModelNotFound(f"{_short(self.revision)} is not a revision; give a branch, a tag or a commit.")

    def _plain(self) -> bool:
        """Say whether the name keeps the hub's own rules, beyond its letters."""
        fits = len(self.name) <= _LONGEST_HUB and "--" not in self.name and not self.name.endswith(".git")
        return ".." not in self.name and (self.kind == "demo" or fits)

    @classmethod
    def parse(cls, text: str | ModelSpec, *, dtype: str = "float32", device: str = "cpu") -> ModelSpec:
        """Read what a person typed; a spec is given back as it is. Touches neither disk nor network.

        ``demo/NAME`` is a model that ships. Text that starts with ``/``, ``./``, ``../`` or ``~`` is a folder.
        Anything else is a hub name, ``name`` or ``org/name``, with ``@revision`` behind it if wanted: never a
        folder that happens to have that name.
        """
        if isinstance(text, ModelSpec):
            return text
        if not isinstance(text, str):
            raise SettingsError(f"A model's name cannot be {text!r}; give text.")
        text = text.strip()
        if not text:
            raise SettingsError("The model's name is empty; give a demo model, a folder or a hub name.")
        if len(text) > _LONGEST or not text.isprintable():
            raise ModelNotFound(f"{_short(text)} is not a model's name; {_FORMS}.")
        if text.startswith("demo/"):
            return cls("demo", text.removeprefix("demo/"), None, dtype, device)
        if os.path.isabs(text) or text in (".", "..", "~") or text.startswith(("./", "../", "~/")):
            return cls("folder", os.path.abspath(os.path.expanduser(text)), None, dtype, device)
        name, at, revision = text.partition("@")
        if at and not revision:
            raise ModelNotFound(f"{_short(text)} names no revision after the @; give a branch, a tag or a commit.")
        return cls("hub", name, revision or None, dtype, device)

    @property
    def label(self) -> str:
        """Short name for axes and captions: the folder's last part, a commit's first seven digits."""
        if self.kind == "demo":
            return f"demo/{self.name}"
        if self.kind == "folder":
            return Path(self.name).name or self.name
        if self.revision is None:
            return self.name
        short = self.revision[:7] if re.fullmatch(r"[0-9a-f]{40}", self.revision) else self.revision
        return f"{self.name}@{short}"

    @property
    def text(self) -> str:
        """The full name, which :meth:`parse` reads back into the same model."""
        if self.kind == "folder":
            return self.name
        return f"demo/{self.name}" if self.kind == "demo" else "@".join(filter(None, (self.name, self.revision)))

    def __str__(self) -> str:
        return self.text


def _short(text: str) -> str:
    """Return what was typed, quoted, on one line, cut where nobody would read on."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}… ({len(text):,} characters)"
