"""B goes on from what a map makes of one module's output: the module gives that, and the rest of B runs as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from embcompare.activations.forward import added, stack_of
from embcompare.stitching.tails import with_replaced

if TYPE_CHECKING:
    from embcompare.activations.states import What
    from embcompare.models import LoadedModel


def module_output(model: LoadedModel, what: What, layer: int, ids: Tensor, mask: Tensor) -> Tensor:
    """Return what a module of block ``layer`` adds to the residual stream for tokens (n, t): (n, t, d)."""
    return added(model, stack_of(model), what, {str(layer)}, _inputs(model, ids, mask))[str(layer)]


@dataclass(frozen=True, eq=False)
class ModuleReplaced:
    """``model`` with the output of one module of block ``layer`` given instead of computed.

    Stands where a :class:`~embcompare.stitching.tails.Tail` does; all else of the model runs, the other modules of the
    block and all blocks below among it.
    """

    model: LoadedModel
    what: What
    layer: int

    def states(self, given: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the last hidden state (n, t, d), after the final norm where there is one, for ``given`` (n, t, d)."""
        anatomy, seen = self.model.anatomy, []  # type: Any, list[Tensor]
        name = stack_of(self.model).parts[self.what][self.layer - 1]
        changed = with_replaced(self.model.module, {name: _Gives(given)})
        last = anatomy.sites.get("final_norm") or anatomy.blocks[-1].sites["block"]
        told = with_replaced(changed, {last: _Tells(changed.get_submodule(last), seen)})
        told.base_model(**_inputs(self.model, ids, mask))
        return seen[-1]


def _inputs(model: LoadedModel, ids: Tensor, mask: Tensor) -> dict[str, Any]:
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    module: Any = model.module
    if "use_cache" in module.config.to_dict() and model.anatomy.blocks[0].attention.causal:
        given["use_cache"] = False
    return given


class _Gives(nn.Module):
    """Gives the states, in the shape that the module in whose place it stands was asked for."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.__dict__["given"] = given

    def forward(self, asked: Tensor, *_: Any, **__: Any) -> Tensor:
        given: Tensor = self.__dict__["given"]
        return given.reshape(*asked.shape[:-1], given.shape[-1])


class _Tells(nn.Module):
    """Runs the module that it stands for, has its attributes, and keeps what it gave."""

    def __init__(self, original: nn.Module, seen: list[Tensor]) -> None:
        super().__init__()
        self.__dict__.update(original=original, seen=seen)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)

    def forward(self, *args: Any, **named: Any) -> Any:
        out = self.__dict__["original"](*args, **named)
        self.__dict__["seen"].append(out[0] if isinstance(out, tuple) else out)
        return out
