"""Fine-tuning a classifier of texts out of a loaded model, for experiments that compare several such runs.

The protocol is that of Dar et al. 2023 (section 4.2): a linear head reads every token's last state, its logits are
averaged over all tokens, special ones included, and only weights, no biases, of the last blocks and of the head learn.
What is not as there: texts are learnt in batches and several times over, the head begins as the rule of the nearest
class mean under the base and not at random, the final norm stays where the model has one, and in place of dropout some
text tokens are left out of each batch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embcompare.errors import InputError, SettingsError, UnsupportedFamily
from embcompare.learning import batches_by_length, descend, mean_over_tokens, padded
from embcompare.models import loading
from embcompare.models.classifiers import Classifier, classifier_class, make_classifier
from embcompare.models.loading import LoadedModel
from embcompare.models.positions import longest_input
from embcompare.models.reading import read_anatomy
from embcompare.models.spec import ModelSpec
from embcompare.models.validation import validate
from embcompare.text.encoding import Encoded, encode
from embcompare.words import one_line, plural

if TYPE_CHECKING:
    from torch import Tensor

Report = Callable[[int, int, float], None]
"""Told the step, from 1, of how many steps, and its loss in nats a text; what it raises ends the run."""

LEFT_OUT = 0.1
"""Share of the text tokens that is left out of each batch, so that no single word is relied on."""
DECAY = 0.05
"""AdamW's weight decay of the blocks' matrices; gains and the head have none."""
HEAD_RATE = 2.0
"""The head's learning rate, in units of ``rate`` times the root mean square of its weights as they begin."""
SPREAD = 0.5
"""Root mean square, over texts and classes, of the centred logits with which the head begins."""
LONGEST = 512
"""Tokens of the longest text that is learnt from, whatever the model could read."""
_AT_ONCE = 64


@dataclass(frozen=True)
class TunedSpec(ModelSpec):
    """Name of a model that was fine-tuned in memory: ``name`` is its label, and nothing can be loaded by it."""

    def __post_init__(self) -> None:
        """Take the name as it is: it stands for no file."""

    @property
    def label(self) -> str:
        """Short name for axes and captions, such as ``demo/gpt2-a, 3 blocks tuned, seed 4``."""
        return self.name

    @property
    def text(self) -> str:
        """The label once more; no model is found by it."""
        return self.name


@dataclass(frozen=True)
class _Plan:
    """Everything that the learnt weights depend on besides the base model, the texts and their labels."""

    blocks: int
    seed: int
    epochs: int
    batch: int
    rate: float
    device: str
    left_out: float
    decay: float
    head_rate: float
    spread: float
    longest: int

    def check(self, model: LoadedModel) -> None:
        for name, low in (("blocks", 0), ("seed", 0), ("epochs", 1), ("batch", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise SettingsError(f"{name} cannot be {value!r}; give a whole number from {low} up.")
        rate = self.rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate <= 0:
            raise SettingsError(f"rate cannot be {rate!r}; give a number above 0, such as 0.001.")
        depth = model.anatomy.n_layers
        if self.blocks > depth:
            raise SettingsError(
                f"{model.spec.label} has {plural(depth, 'block')}, so {self.blocks} cannot be tuned; choose from 0 "
                f"(the head alone) to {depth}."
            )


def tune_classifier(
    model: LoadedModel,
    sentences: Sequence[str],
    labels: Sequence[str],
    *,
    blocks: int = 3,
    seed: int = 0,
    epochs: int = 4,
    batch: int = 16,
    rate: float = 1e-3,
    report: Report | None = None,
    device: str = "cpu",
) -> LoadedModel:
    """Return a classifier of tokens, fine-tuned out of ``model``, whose mean logits over a text tell its label.

    The weights of the last ``blocks`` blocks and of a new linear head learn for ``epochs`` passes over the texts, in
    float32, in batches of at most ``batch``. ``rate`` is the peak learning rate, reached after a tenth of the steps
    and falling linearly to zero: 1e-3 was tried on models of two to twenty million weights; larger ones want less,
    5e-5 say.
    With 0 blocks only the head learns: a probe. Classes are the labels in alphabetical order. ``seed`` draws the order
    of the texts and the tokens that are left out; nothing else is random: same arguments, same machine and number of
    threads, same bits on a CPU. No global seed or setting of torch is read or changed.

    ``model`` may predict tokens, classify (its head is replaced) or have no head. It is not touched and can be used
    meanwhile; what stays frozen is shared with it, not copied, where dtype and device are the same. The result's
    ``fingerprint`` is a SHA-256 over the base's, the texts, the labels and every option, its ``spec`` a
    :class:`TunedSpec`; its ``notes`` say what was learnt from what, and whether texts were cut.

    Raises ``UnsupportedFamily`` for encoder-decoders and families of which transformers has no token classifier,
    ``InputError`` for texts or labels that cannot be learnt from, ``SettingsError`` for options out of range and for a
    rate at which the loss is no longer a number, ``ModelDamaged`` without a tokenizer, and whatever ``report`` raises.
    """
    kind = classifier_class(model)
    plan = _Plan(blocks, seed, epochs, batch, rate, device, LEFT_OUT, DECAY, HEAD_RATE, SPREAD, LONGEST)
    plan.check(model)
    ModelSpec("demo", "any", device=device)  # refuses what is no device's name
    loading._check_device(device)
    classes, targets = _classes(sentences, labels)
    encoded = _encoded(model, sentences, plan)
    made = make_classifier(model, kind, classes, blocks, device)
    _begin_with_means(made, encoded, targets, plan)
    _learn(made, encoded, targets, plan, report)
    told = f"{plural(blocks, 'block')} tuned" if blocks else "head tuned"
    spec = TunedSpec("demo", f"{model.spec.label}, {told}, seed {seed}", None, "float32", device)
    anatomy = read_anatomy(made.module, tokens=len(model.anatomy.embedding), label=spec.label)
    if anatomy.classifier is None:
        raise UnsupportedFamily(f"{spec.label} has a head that does not read its last states, so it cannot be used.")
    validate(made.module, anatomy, spec.label)
    parameters = list(made.module.parameters())
    info = replace(
        model.info,
        label=spec.label,
        architecture=kind.__name__,
        parameters=sum(weight.numel() for weight in parameters),
        bytes=sum(weight.numel() * weight.element_size() for weight in parameters),
        tied=False,
        card=None,
    )
    kept = [note for note in model.notes if note not in model.anatomy.notes]
    return LoadedModel(
        spec=spec,
        info=info,
        module=made.module,
        anatomy=anatomy,
        fingerprint=_fingerprint(model, sentences, labels, plan),
        notes=(*kept, *anatomy.notes, *_notes(model, encoded, classes, plan)),
        maybe_tokenizer=model.tokenizer,
        maybe_tokens=model.tokens,
    )


def _classes(sentences: Sequence[str], labels: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the classes in alphabetical order and the class of each text, or refuse what cannot be learnt from."""
    for what, given in (("sentences", sentences), ("labels", labels)):
        if isinstance(given, str) or not all(isinstance(each, str) for each in given):
            raise InputError(f"The {what} to learn from must be a sequence of texts; give one text each.")
    if len(sentences) != len(labels):
        raise InputError(
            f"There are {plural(len(sentences), 'text')} and {plural(len(labels), 'label')}; give one label for each "
            "text."
        )
    for what, given in (("text", sentences), ("label", labels)):
        blank = [number for number, each in enumerate(given, 1) if not each.strip()]
        if blank:
            raise InputError(f"{_numbered(what, blank)} empty; fill it in, or leave the text out.")
    classes, targets = np.unique(np.array(labels, dtype=object).astype(str), return_inverse=True)
    names = tuple(map(str, classes))
    if len(names) < 2:
        has = f"every text has the label '{one_line(names[0])}'" if names else "there are no texts"
        raise InputError(f"A classifier needs at least two classes, and {has}; add texts of another label.")
    counts = np.bincount(targets)
    if counts.min() < 2:
        lone = one_line(names[int(counts.argmin())])
        raise InputError(
            f"Only one text has the label '{lone}'; give at least two texts of each label, or leave it out."
        )
    return names, targets.astype(np.int64)


def _encoded(model: LoadedModel, sentences: Sequence[str], plan: _Plan) -> Encoded:
    encoded = encode(sentences, model.tokenizer, model.tokens, longest_input(model, model.module, plan.longest))
    if encoded.empty:
        numbers = [number + 1 for number in encoded.empty]
        raise InputError(
            f"{_numbered('text', numbers)} without a token that {model.spec.label} knows; leave it out, or write words."
        )
    return encoded


def _begin_with_means(made: Classifier, encoded: Encoded, targets: NDArray[np.int64], plan: _Plan) -> None:
    """Set the head to the rule of the nearest class mean, a text being the mean of its tokens' last states.

    Row k points from the middle of the class means to the mean of class k, all rows scaled alike, so that over the
    texts the logits spread by ``plan.spread``. A head that begins at random teaches the blocks to write in directions
    that mean nothing; these mean what the base took them to mean.
    """
    import torch

    module: Any = made.module
    width, count = made.head.in_features, made.head.out_features
    means = torch.zeros(len(encoded), width, dtype=torch.float64)
    order = np.argsort([len(ids) for ids in encoded.ids], kind="stable")
    with torch.no_grad():
        for at in range(0, len(order), _AT_ONCE):
            batch = order[at : at + _AT_ONCE]
            ids, real = _tensors(made, [encoded.ids[number] for number in batch])
            states = module.base_model(input_ids=ids, attention_mask=real.long()).last_hidden_state
            means[torch.from_numpy(batch)] = mean_over_tokens(states.double(), real).cpu()
        own = torch.from_numpy(targets)
        classes = torch.stack([means[own == number].mean(0) for number in range(count)])
        middle = classes.mean(0)
        rows = classes - middle
        bias = -rows.square().sum(1) / 2
        logits = (means - middle) @ rows.T + bias
        spread = (logits - logits.mean(1, keepdim=True)).square().mean().sqrt()
        scale = plan.spread / spread if spread > 0 else 0.0
        made.head.weight.copy_(scale * rows)
        made.head.bias.copy_(scale * (bias - rows @ middle))


def _learn(made: Classifier, encoded: Encoded, targets: NDArray[np.int64], plan: _Plan, report: Report | None) -> None:
    """Run the steps; afterwards nothing of the module has a gradient."""
    import torch
    from torch.nn.functional import cross_entropy

    module: Any = made.module
    random = np.random.default_rng([plan.seed, 43])
    lengths = np.array([len(ids) for ids in encoded.ids])
    steps = plan.epochs * -(-len(lengths) // plan.batch)
    head, blocks = made.head.weight, list(made.learning.values())
    size = float(head.detach().square().mean().sqrt()) or head.shape[1] ** -0.5
    groups = [
        {"params": [each for each in blocks if each.ndim > 1], "weight_decay": plan.decay, "times": 1.0},
        {"params": [each for each in blocks if each.ndim == 1], "weight_decay": 0.0, "times": 1.0},
        {"params": [head], "weight_decay": 0.0, "times": plan.head_rate * size},
    ]
    weights = [*blocks, head]
    for each in weights:
        each.requires_grad_(True)

    def losses() -> Iterator[Tensor]:
        for _ in range(plan.epochs):
            for batch in batches_by_length(lengths, plan.batch, random, every=True):
                ids, real = _tensors(made, [_thinned(encoded, number, plan.left_out, random) for number in batch])
                logits = module(input_ids=ids, attention_mask=real.long()).logits
                yield cross_entropy(mean_over_tokens(logits, real), torch.from_numpy(targets[batch]).to(ids.device))

    used = [group for group in groups if group["params"]]
    with torch.enable_grad():
        for step, loss in enumerate(descend(losses(), weights, used, steps, plan.rate), 1):
            if not math.isfinite(loss):
                raise SettingsError(
                    f"At the rate {plan.rate:g} the loss is no longer a number after {step:,} of "
                    f"{plural(steps, 'step')}; choose a lower rate."
                )
            if report:
                report(step, steps, loss)
    for each in weights:
        each.grad = None
        each.requires_grad_(False)


def _thinned(encoded: Encoded, number: int, share: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Return the ids of a text without a random ``share`` of its text tokens, or all where none would be left."""
    ids, is_text = encoded.ids[number], encoded.is_text[number]
    gone = is_text & (random.random(len(ids)) < share)
    return ids if gone.sum() == is_text.sum() else ids[~gone]


def _tensors(made: Classifier, ids: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    """Return token ids (texts, longest) padded on the right, and where they are real, on the head's device."""
    import torch

    module: Any = made.module
    fill = getattr(module.config, "pad_token_id", None)
    filled, real = padded(ids, 0 if fill is None else fill)
    device = made.head.weight.device
    return torch.from_numpy(filled).to(device), torch.from_numpy(real).to(device)


def _numbered(noun: str, numbers: Sequence[int]) -> str:
    """Return which texts, counted from 1, and the verb: ``Text 3 is``, ``Texts 3, 5 and 9 more are``."""
    first = ", ".join(f"{number:,}" for number in numbers[:3])
    more = f" and {len(numbers) - 3:,} more" if len(numbers) > 3 else ""
    return f"{noun.capitalize()} {first} is" if len(numbers) == 1 else f"{noun.capitalize()}s {first}{more} are"


def _notes(model: LoadedModel, encoded: Encoded, classes: Sequence[str], plan: _Plan) -> list[str]:
    shown = ", ".join(one_line(name) for name in classes[:5])
    more = f" and {len(classes) - 5:,} more" if len(classes) > 5 else ""
    last = "the last block" if plan.blocks == 1 else f"the last {plan.blocks} blocks"
    parts = f"{last} and a linear head" if plan.blocks else "a linear head"
    notes = [
        f"Of {model.spec.label}, {parts} learnt from {plural(len(encoded), 'text')} of {len(classes)} classes ({shown}"
        f"{more}): {plural(plan.epochs, 'epoch', 'epochs')}, seed {plan.seed}."
    ]
    if encoded.cut:
        longest = max(map(len, encoded.ids))
        notes.append(f"{plural(encoded.cut, 'text')} that it learnt from had to be cut to {longest} tokens.")
    if "float32" not in str(model.anatomy.embedding.dtype):
        notes.append(f"It computes in float32, {model.spec.label} as it was loaded in another precision.")
    return notes


def _fingerprint(model: LoadedModel, sentences: Sequence[str], labels: Sequence[str], plan: _Plan) -> str:
    data = json.dumps([list(sentences), list(labels)], ensure_ascii=True)
    known = {"base": model.fingerprint, "texts": hashlib.sha256(data.encode()).hexdigest(), **asdict(plan)}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
