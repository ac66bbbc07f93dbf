"""Reads a loaded module into an :class:`~embcompare.models.anatomy.Anatomy`, by its family's entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embcompare.errors import ModelDamaged, UnsupportedFamily
from embcompare.models.anatomy import Anatomy, BlockWeights
from embcompare.models.configs import unknown_family
from embcompare.models.families import Family, family_of
from embcompare.models.layouts import attention, feed_forward, norm

if TYPE_CHECKING:
    from torch import Tensor


def read_anatomy(module: Any, *, tokens: int | None = None, label: str = "The model") -> Anatomy:
    """Return the anatomy of a transformers module, E cut to its first ``tokens`` rows if given.

    Raises ``UnsupportedFamily`` for a family or configuration that is not known, listing the top-level modules,
    and ``ModelDamaged`` where the module has no embedding. Nothing is computed but E where it must be brought to
    residual width (ELECTRA and OPT with a narrower embedding).
    """
    family = family_of(module.config)
    if family is None:
        raise UnsupportedFamily(unknown_family(label, module.config.model_type, _top_level(module)))
    reason = family.unread(module.config)
    if reason:
        raise UnsupportedFamily(f"{label} cannot be read: {reason}.")
    try:
        return _Reader(module, family, label).anatomy(tokens)
    except (AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UnsupportedFamily(
            f"{label} says it is of the family {module.config.model_type}, but is not built like one, so its weights "
            f"cannot be read; its top-level modules are {', '.join(_top_level(module))}."
        ) from error


def stack_of(module: Any, family: Family) -> Any:
    """Return the submodule that holds the blocks, the embedding and the final norm."""
    base = getattr(module, module.base_model_prefix, module) if module.base_model_prefix else module
    return base.get_submodule(family.root) if family.root else base


class _Reader:
    def __init__(self, module: Any, family: Family, label: str) -> None:
        self.module, self.family, self.label = module, family, label
        self.config = module.config
        self.stack = stack_of(module, family)
        self.names = {id(part): name for name, part in module.named_modules(remove_duplicate=False)}
        self.notes: list[str] = []

    def anatomy(self, tokens: int | None) -> Anatomy:
        family, config = self.family, self.config
        table = getattr(self.stack.get_submodule(family.embedding), "weight", None)
        if table is None or table.ndim != 2:
            raise ModelDamaged(
                f"{self.label} has no token embedding, so nothing of it can be read in vocabulary space."
            )
        head = self.module.get_output_embeddings()
        known = int(table.shape[0]) if tokens is None else min(tokens, int(table.shape[0]))
        embedding = self._input(table[:known])
        unembedding, bias = (None, None) if head is None else self._output(head, known)
        blocks = self.stack.get_submodule(family.blocks)
        if len(blocks) == 0:
            raise ModelDamaged(f"{self.label} has no layers, so there is nothing to compare.")
        if family.encoder(config) is not None:
            self.notes.append("Of this encoder-decoder the decoder's blocks are read.")
        norm_in = self._optional_norm(family.embedding_norm)
        width = int(config.hidden_size)
        classifier = self._classifier(width)
        if norm_in is not None and norm_in.gain.shape[0] != width:
            self.notes.append("The norm between the narrow embedding and its projection is left out of E.")
            norm_in = None
        return Anatomy(
            family=config.model_type,
            width=width,
            blocks=tuple(self._block(i, block) for i, block in enumerate(blocks)),
            embedding=embedding,
            unembedding=unembedding,
            tied=unembedding is not None and unembedding.data_ptr() == embedding.data_ptr(),
            embedding_scale=float(family.embedding_scale(config)),
            embedding_norm=norm_in,
            final_norm=self._optional_norm(family.final_norm),
            padded_rows=int(table.shape[0]) - known,
            notes=tuple(self.notes),
            unembedding_scale=float(family.unembedding_scale(config)),
            unembedding_bias=bias,
            unembedding_softcap=family.unembedding_softcap(config),
            sites=self._outer_sites(),
            classifier=None if classifier is None else classifier.weight,
            classifier_bias=getattr(classifier, "bias", None),
            labels=tuple(str(config.id2label.get(i, i)) for i in range(0 if classifier is None else config.num_labels)),
        )

    def _classifier(self, width: int) -> Any:
        """Return the linear layer that classifies last hidden states, or None where none reads them directly."""
        if not type(self.module).__name__.endswith(("ForSequenceClassification", "ForTokenClassification")):
            return None
        head = getattr(self.module, "score", None) or getattr(self.module, "classifier", None)
        base = getattr(self.module, self.module.base_model_prefix)
        pooled = getattr(base, "pooler", None) is not None or hasattr(self.module, "pre_classifier")
        shape = getattr(getattr(head, "weight", None), "shape", None)
        return head if not pooled and shape == (self.config.num_labels, width) else None

    def _input(self, table: Tensor) -> Tensor:
        project = getattr(self.stack, self.family.project_in, None) if self.family.project_in else None
        if project is None:
            return table
        self.notes.append(
            f"The input embedding is {table.shape[1]} wide and brought to the residual width of "
            f"{project.weight.shape[0]} by the model's own projection."
        )
        width: Tensor = project.weight
        return (table @ width.T).detach()

    def _output(self, head: Any, known: int) -> tuple[Tensor, Tensor | None]:
        weight: Tensor = head.weight[:known]
        bias = getattr(head, "bias", None)
        if bias is None and hasattr(self.module, "final_logits_bias"):
            bias = self.module.final_logits_bias[0]
        bias = None if bias is None else bias[:known]
        if weight.shape[1] == self.config.hidden_size:
            return weight, bias
        project = getattr(self.stack, self.family.project_out, None) if self.family.project_out else None
        if project is None:
            project = self.module.generator_predictions.dense
        self.notes.append(
            f"The output embedding is {weight.shape[1]} wide and brought to the residual width of "
            f"{project.weight.shape[1]} by the model's own projection."
        )
        return (weight @ project.weight).detach(), bias

    def _block(self, index: int, block: Any) -> BlockWeights:
        family, config = self.family, self.config
        heads, kv_heads = family.heads(config), family.kv_heads(config)
        common = {"scale": float(family.attention_scale(config, index)), "softcap": family.softcap(config)}
        parts = [block.get_submodule(path) for path in family.qkv]
        out = block.get_submodule(family.attention_out)
        feeds = [block.get_submodule(path) for path in family.feed_forward(config)]
        norms = {key: block.get_submodule(path) for key, path in family.norms.items()}
        sites = {
            "block": block,
            "attention_in": parts[0],
            "attention_out": out,
            "feed_forward_in": feeds[0],
            "feed_forward_out": feeds[-1],
            **{f"norm.{key}": part for key, part in norms.items()},
        }
        cross = None
        if family.cross_qkv:
            cross_parts = [block.get_submodule(path) for path in family.cross_qkv]
            cross_out = block.get_submodule(family.cross_out)
            cross = attention(cross_parts, cross_out, "", heads, kv_heads, position="none", **common)
            sites |= {
                "cross_attention_in": cross_parts[0],
                "cross_attention_source": cross_parts[1],
                "cross_attention_out": cross_out,
            }
        return BlockWeights(
            index=index,
            placement=family.placement(config),
            attention=attention(
                parts,
                out,
                family.fused,
                heads,
                kv_heads,
                position=family.position,
                causal=bool(family.causal(config)),
                **common,
            ),
            cross_attention=cross,
            feed_forward=feed_forward(feeds, family.activation(config)),
            norms={key: norm(part, family.norm_kind, out.weight) for key, part in norms.items()},
            sites={key: self.names[id(part)] for key, part in sites.items()},
        )

    def _optional_norm(self, path: str | None) -> Any:
        part = None if path is None else getattr(*_parent(self.stack, path), None)
        if part is None:
            return None
        return norm(part, self.family.norm_kind, self.stack.get_submodule(self.family.embedding).weight)

    def _outer_sites(self) -> dict[str, str]:
        family = self.family
        paths = {
            "embedding": family.embedding,
            "embedding_norm": family.embedding_norm,
            "final_norm": family.final_norm,
            "rotary": family.rotary,
            "relative_bias": family.relative_bias,
        }
        found = {key: getattr(*_parent(self.stack, path), None) for key, path in paths.items() if path}
        return {key: self.names[id(part)] for key, part in found.items() if part is not None}


def _parent(module: Any, path: str) -> tuple[Any, str]:
    parent, _, last = path.rpartition(".")
    return module.get_submodule(parent), last


def _top_level(module: Any) -> list[str]:
    return [name for name, _ in module.named_children()]
