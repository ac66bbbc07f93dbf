"""One map of a bijection fitted by itself, for whoever wants the map and not its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embcompare.errors import SettingsError
from embcompare.experiments.bijection_fits import FitFolder
from embcompare.experiments.bijection_rows import FeatureRows, prepared
from embcompare.experiments.bijection_training import key_of, network_options, title_of, train_kept
from embcompare.experiments.sides import read_pair

if TYPE_CHECKING:
    from embcompare.experiments.base import Context
    from embcompare.experiments.bijection import Bijection
    from embcompare.maps.base import Map
    from embcompare.maps.protocol import Prepared


def fitted_map(
    settings: Bijection, context: Context, name: str, run: int = 0
) -> tuple[Map, Prepared, tuple[str, str], float]:
    """Return the map called ``name``, fitted on the rows of ``settings``, these rows, both layers' names, and test R².

    ``run`` says which training of a network. A network that is kept from a run of the experiment is not trained again.
    """
    from embcompare.maps.catalogue import get_map
    from embcompare.maps.protocol import evaluate

    declared = get_map(name)
    runs = settings.runs if declared.trained else 1
    if not 0 <= run < runs:
        once = "" if declared.trained else ", for it is fitted in closed form"
        raise SettingsError(f"The map '{name}' has no run {run}; they are 0 to {runs - 1}{once}.")
    pair = read_pair(FeatureRows.of(settings), context, only=(settings.layer_a, settings.layer_b))
    data = prepared(pair, settings)
    training, validation, test = (data.part(p) for p in (data.split.train, data.split.validation, data.split.test))
    if declared.trained:
        made = declared.make(**network_options(settings, run, context.device))
        key = key_of(name, made, training, validation, settings.version)

        def learnt(epoch: int, epochs: int, loss: float, held: float) -> None:
            message = f"{declared.label}: epoch {epoch} of {epochs}, loss {loss:.4f}, {held:.4f} in validation"
            context.report(epoch, epochs, message)

        def nothing(*_: Any) -> None: ...

        title = title_of(declared.label, pair.a, pair.b)
        train_kept(made, training, validation, FitFolder(context.states), key, learnt, nothing, nothing, title)
    else:
        context.report(0, 1, declared.label)
        made = declared.make().fit(*training)
    return made, data, (pair.a.names[0], pair.b.names[0]), evaluate(made, *test).r2
