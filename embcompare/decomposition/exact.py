"""A model's own forward pass in float64, block by block, with what each part reads and gives.

What a block is given beside the states (masks, rotations, a source) is recorded first, in a pass without the blocks;
then they run one by one, whenever the next is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from embcompare.decomposition.norms import double_norm
from embcompare.decomposition.twin import ExactNorm, parent, put, twin
from embcompare.errors import SettingsError, UnsupportedFamily
from embcompare.models.families import family_of
from embcompare.models.layouts import norm as read_norm
from embcompare.models.reading import stack_of
from embcompare.models.validation import Hooks

if TYPE_CHECKING:
    from embcompare.models.anatomy import BlockWeights, NormWeights
    from embcompare.models.loading import LoadedModel


@dataclass(frozen=True, eq=False)
class Trace:
    """What one block read and gave, float64: ``start`` and ``end`` are hidden states (n, t, d), ``seen`` what passed
    its sites (see :class:`~embcompare.models.anatomy.BlockWeights`), (n, t, d) or, of the source, (n, s, d).

    ``probabilities`` (n, H, t, s) are those of the self-attention, ``cross_probabilities`` of the cross-attention;
    both None unless they were asked for.
    """

    block: BlockWeights
    start: Tensor
    end: Tensor
    seen: dict[str, Tensor]
    probabilities: Tensor | None
    cross_probabilities: Tensor | None


class ExactRun:
    """One batch on its way through a model, in float64.

    ``ids`` and ``mask`` (n, t) are tokens padded on the right, those of the decoder for an encoder-decoder, which also
    needs ``source`` and ``source_mask`` (n, s). ``start`` is hidden state 0 (n, t, d); ``embedded`` is what the
    embedding's norm read, None where there is none. Raises :class:`SettingsError` where the tokens do not fit.
    """

    def __init__(
        self,
        model: LoadedModel,
        ids: Tensor,
        mask: Tensor,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> None:
        self.model, self.anatomy = model, model.anatomy
        self.given = _inputs(model, ids, mask, source, source_mask)
        self.mask = self.given["decoder_attention_mask" if source is not None else "attention_mask"].bool()
        with model.lock:
            self.module = twin(model.module)
        self.family: Any = family_of(self.module.config)
        self._exact_norms()
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.start, self.embedded = self._record()

    @property
    def final_norm(self) -> NormWeights | None:
        """The final norm in float64; None where there is none."""
        norm = self.anatomy.final_norm
        return None if norm is None else double_norm(norm)

    def normed(self, hidden: Tensor) -> Tensor:
        """Return the last hidden state after the module's own final norm."""
        out: Tensor = self.module.get_submodule(self.anatomy.sites["final_norm"])(hidden)
        return out

    def embedding(self) -> tuple[NormWeights | None, nn.Linear | None]:
        """Return the norm that ``embedded`` passed, in float64, and the projection behind it where there is one."""
        if self.embedded is None:
            return None, None
        stack = stack_of(self.module, self.family)
        norm = self.module.get_submodule(self.anatomy.sites["embedding_norm"])
        project = getattr(stack, self.family.project_in, None) if self.family.project_in else None
        return double_norm(read_norm(norm, self.family.norm_kind, norm.weight)), project

    def blocks(self, upto: int, *, keep_probabilities: bool = False) -> Iterator[Trace]:
        """Run the first ``upto`` blocks and yield what each did; nothing is held of the blocks before."""
        x, shared = self.start, (None, None)
        for block, (args, named) in zip(self.anatomy.blocks[:upto], self._calls[:upto], strict=True):
            if self._relative:  # the first block's position biases serve all
                args = (*args[:1], shared[0], *args[2:4], shared[1], *args[5:])
            attentions = [parent(self.module, block.sites["attention_in"])]
            if block.cross_attention is not None:
                attentions.append(parent(self.module, block.sites["cross_attention_in"]))
            for attention in attentions:
                attention.__dict__["keeps"] = keep_probabilities
            seen: dict[str, Tensor] = {}
            hooks = Hooks(self.module)
            for site, name in block.sites.items():
                if site.endswith("_in") or site == "cross_attention_source":
                    hooks.before(name, partial(seen.__setitem__, site))
                elif site.endswith("_out"):
                    hooks.after(name, partial(seen.__setitem__, site))
            out = self.module.get_submodule(block.sites["block"])(x, *args, **named)
            for handle in hooks.handles:
                handle.remove()
            if self._relative:
                out, *shared = out
            # OPT's feed-forward sees all texts as one row of tokens.
            seen = {site: value.reshape(len(x), -1, value.shape[-1]) for site, value in seen.items()}
            kept = [attention.__dict__.pop("kept", None) for attention in attentions]
            yield Trace(block, x, out, seen, kept[0], kept[1] if len(kept) > 1 else None)
            x = out

    @property
    def _relative(self) -> bool:
        return self.anatomy.blocks[0].attention.position == "relative"

    @torch.no_grad()
    def _record(self) -> tuple[Tensor, Tensor | None]:
        """Run all but the blocks, so that what each of them is given beside the states is known."""
        blocks = [block.sites["block"] for block in self.anatomy.blocks]
        originals = [self.module.get_submodule(name) for name in blocks]
        begun: list[Tensor] = []
        embedded: list[Tensor] = []
        for name, original in zip(blocks, originals, strict=True):
            put(self.module, name, _Recorder(original, self._calls, begun, self._relative))
        hooks = Hooks(self.module)
        if "embedding_norm" in self.anatomy.sites:
            hooks.before(self.anatomy.sites["embedding_norm"], embedded.append)
        try:
            self.module.base_model(**self.given)
        except (IndexError, RuntimeError) as error:
            if "memory" in str(error):
                raise
            raise SettingsError(
                f"{self.model.spec.label} does not run on texts of {self.mask.shape[1]} tokens; cut them shorter."
            ) from error
        finally:
            for handle in hooks.handles:
                handle.remove()
            for name, original in zip(blocks, originals, strict=True):
                put(self.module, name, original)
        return begun[0], embedded[0] if embedded else None

    def _exact_norms(self) -> None:
        for block in self.anatomy.blocks:
            for key, norm in block.norms.items():
                if norm.kind == "rms":
                    put(self.module, block.sites[f"norm.{key}"], ExactNorm(norm))
        final = self.anatomy.final_norm
        if final is not None and final.kind == "rms":
            put(self.module, self.anatomy.sites["final_norm"], ExactNorm(final))


def _inputs(
    model: LoadedModel, ids: Tensor, mask: Tensor, source: Tensor | None, source_mask: Tensor | None
) -> dict[str, Any]:
    config: Any = model.module.config
    label, device = model.spec.label, model.anatomy.embedding.device
    crossed = model.anatomy.blocks[0].cross_attention is not None
    if crossed and source is None:
        raise SettingsError(f"{label} is an encoder-decoder: give the source text beside the decoder's own tokens.")
    if not crossed and source is not None:
        raise SettingsError(f"{label} reads one text only; leave the source text out.")
    pairs = {"tokens": (ids, mask)}
    if source is not None:
        pairs["source"] = (source, torch.ones_like(source) if source_mask is None else source_mask)
    rows = len(cast("Any", model.module).get_input_embeddings().weight)
    for name, (tokens, real) in pairs.items():
        if tokens.ndim != 2 or tokens.shape != real.shape or not tokens.numel():
            raise SettingsError(
                f"Tokens and their mask are two tables (texts, tokens) of one shape; the {name} are "
                f"{tuple(tokens.shape)} and their mask {tuple(real.shape)}."
            )
        if int(tokens.min()) < 0 or int(tokens.max()) >= rows:
            raise SettingsError(f"{label} has embeddings for token ids 0 to {rows - 1:,}; the {name} go beyond them.")
        kept = real.bool()
        if not bool(kept[:, 0].all()) or bool((kept[:, 1:] & ~kept[:, :-1]).any()):
            raise SettingsError(f"Every text of the {name} needs at least one token, and padding on its right.")
    given: dict[str, Any] = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
    if source is not None:
        given = {f"decoder_{key}": value for key, value in given.items()}
        given |= {"input_ids": source.to(device), "attention_mask": pairs["source"][1].to(device)}
    if "use_cache" in config.to_dict() and model.anatomy.blocks[0].attention.causal:
        given["use_cache"] = False
    return given


class _Recorder(nn.Module):
    """Stands in a block's place, notes what the block is given, and hands the states on."""

    def __init__(self, original: nn.Module, calls: list[Any], begun: list[Tensor], relative: bool) -> None:
        super().__init__()
        self.__dict__.update(original=original, calls=calls, begun=begun, relative=relative)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)

    def forward(self, *args: Any, **named: Any) -> Any:
        states, args = (args[0], args[1:]) if args else (named.pop("hidden_states"), ())
        self.__dict__["begun"].append(states)
        self.__dict__["calls"].append((args, named))
        return (states, None, None) if self.__dict__["relative"] else states


def check_residual(model: LoadedModel, residual: float, layer: int) -> None:
    """Raise :class:`UnsupportedFamily` where terms do not add up to the state, above 1e-6 of its length."""
    if not residual <= 1e-6:
        raise UnsupportedFamily(
            f"{model.spec.label}: the terms of hidden state {layer} do not add up to it (relative error "
            f"{residual:.1e}, above 1e-6), so it computes something that the split of the family "
            f"'{model.anatomy.family}' does not know; compare its hidden states instead."
        )
