"""Common directions taken out of what is read: the strongest of E, which nearly every vector shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embcompare.errors import Incomparable
from embcompare.experiments.base import option

if TYPE_CHECKING:
    from torch import Tensor

    from embcompare.experiments.readout import Readout


def common_option(default: int = 0) -> Any:
    """Declare the setting ``common``."""
    return option(
        default,
        label="Common directions left out",
        low=0,
        high=64,
        help="Strongest directions of the embedding to leave out; the first is mostly token frequency. The paper: 0.",
    )


class Common:
    """The ``count`` strongest directions of a readout's E over its vocabulary (Mu and Viswanath 2018).

    They are eigenvectors of EᵀE, without the gain, so that taking one out of what :meth:`Readout.vectors` gives takes
    it out of E and of every reading. Raises :class:`Incomparable` where nothing would be left.
    """

    def __init__(self, readout: Readout, count: int) -> None:
        import torch

        self.directions: Tensor | None = None
        if not count:
            return
        values, vectors = torch.linalg.eigh((readout.gram + readout.gram.T) / 2)
        present = int((values > values[-1] * 1e-12).sum()) if float(values[-1]) > 0 else 0
        if present <= count:
            raise Incomparable(
                f"The embedding of {readout.model.spec.label} has {present} directions, so leaving out {count} leaves "
                "nothing to read; leave out fewer."
            )
        self.directions = vectors[:, -count:]

    def taken_out(self, x: Tensor) -> Tensor:
        """Return (n, d) without the common directions; ``x`` itself where none are left out."""
        if self.directions is None:
            return x
        wide = x.double()
        return wide - (wide @ self.directions) @ self.directions.T
