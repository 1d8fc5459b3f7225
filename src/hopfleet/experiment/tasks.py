"""The check of a task: an instance, of hooks that its adapter calls."""

from __future__ import annotations

from typing import Any

from hopfleet.errors import UsageError
from hopfleet.frameworks.base import Task
from hopfleet.phrases import shown


def checked_task(given: Any) -> Task:
    """Return a task. Raise UsageError for anything else, and for hooks that its adapter would not call."""
    if not isinstance(given, Task):
        raise UsageError(f"task={shown(given)}: must be {_task_hint(given)}")
    for base in type(given).__mro__:
        for hook, instead in UNCALLED.get(base.__name__, {}).items():
            if callable(getattr(type(given), hook, None)):
                raise UsageError(f"{type(given).__name__}.{hook}: a {base.__name__} has no such hook; {instead}")
    return given


UNCALLED = {
    "JaxTask": {"train": "init, optimizer and loss say how each batch is trained on"},
    "KerasTask": {"metrics": "compile the model with metrics=[...], as keras.metrics.AUC() over all validation rows"},
    "SklearnTask": {"train": "partial_fit of the estimator that build returns is called with each batch"},
}
"""Hooks of other adapters that tasks of an adapter lack, and what takes their place."""


_DERIVED = "an instance of a class derived from hop.{}, whose build(self, config) returns the {}"

MODELS = {
    "LightningModule": _DERIVED.format("LightningTask", "LightningModule"),
    "PreTrainedModel": _DERIVED.format("TransformersTask", "model"),
    "Module": _DERIVED.format("TorchTask", "model and its optimizer"),
    "Model": _DERIVED.format("KerasTask", "compiled model"),
    "BaseEstimator": f"{_DERIVED.format('SklearnTask', 'estimator')}; or use hop.HopSearchCV(estimator, params)",
}
"""What to write instead of a model, by the name of a base class of its framework; the first that fits counts."""

FRAMEWORKS = ("flax", "keras", "lightning", "pytorch_lightning", "sklearn", "torch", "transformers")


def _task_hint(given: Any) -> str:
    kind = given if isinstance(given, type) else type(given)
    bases = {base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] in FRAMEWORKS}
    if found := [hint for name, hint in MODELS.items() if name in bases]:
        return found[0]
    return "an instance, e.g. Digits()" if isinstance(given, type) else "derived from hop.TorchTask"
