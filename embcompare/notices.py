"""What happened to stored things that whoever asks for them should know, told once."""

from __future__ import annotations

import logging
import threading
from collections import deque

LOG = logging.getLogger(__name__)

MOST = 100
"""Notices that wait at most; of more, the oldest are forgotten."""


class Notices:
    """Sentences that wait for those whom they concern, each under the key of a stored thing; safe in many threads."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, str]] = deque(maxlen=MOST)
        self._guard = threading.Lock()

    def add(self, key: str, text: str) -> None:
        """Keep ``text`` until somebody who asks for ``key`` takes it, once however often it is said, and log it."""
        with self._guard:
            if (key, text) in self._waiting:
                return
            self._waiting.append((key, text))
        LOG.warning(text)

    def all(self) -> list[str]:
        """Return what waits, oldest first, and leave it there."""
        with self._guard:
            return [text for _, text in self._waiting]

    def take(self, key: str | None = None) -> list[str]:
        """Return what waits under ``key``, or all there is, oldest first, and forget it."""
        with self._guard:
            taken = [text for owner, text in self._waiting if key in (None, owner)]
            left = [item for item in self._waiting if key not in (None, item[0])]
            self._waiting.clear()
            self._waiting.extend(left)
        return taken
