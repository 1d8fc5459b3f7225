"""The tasks that users write for scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopfleet.domain.trial import Config
from hopfleet.errors import MissingExtra, TaskError
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.example import ExampleTask, example_of
from hopfleet.frameworks.views import ModelT

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise MissingExtra("scikit-learn", "sklearn") from error

from hopfleet.frameworks.sklearn import scores
from hopfleet.frameworks.sklearn.framework import SklearnFramework
from hopfleet.frameworks.sklearn.scores import Estimator
from hopfleet.frameworks.whole_set import Gathered
from hopfleet.phrases import shown


class SklearnTask(ExampleTask[ModelT]):
    """A training task in scikit-learn. Override ``build``; the other hooks have defaults.

    Each batch is one call of ``partial_fit``, so ``batch_size=1000`` or more makes short work of linear models.
    """

    preload: Sequence[str] = ("hopfleet.frameworks.sklearn.task",)

    #: All values of ``y``, for a classifier.
    classes: Sequence[Any] | None = None
    #: scikit-learn's scorers, by name, to evaluate beside ``loss``. Those that are no means over rows, such as
    #: ``roc_auc``, are computed for each validation partition and averaged.
    scoring: str | Sequence[str] = ()

    def __init__(self, *given: Any) -> None:
        if given:
            kind = given[0] if isinstance(given[0], type) else type(given[0])
            raise TaskError(
                f"{type(self).__name__}({shown(given[0])}): takes no arguments; derive a class from it whose "
                f"build(self, config) returns an estimator with partial_fit, e.g. {_like(kind)}(...)"
            )

    def build(self, config: Config) -> Estimator:
        """Return an estimator with ``partial_fit``, or a pipeline that ends in one and has fitted steps before it."""
        raise TaskError(f"{type(self).__name__}: override build(self, config) and return an estimator")

    def example(self, batch: Batch) -> tuple[Any, ...]:
        """Return the inputs and the targets of a batch, and sample weights if there are any: x, y[, sample_weight].

        Default: the columns ``x`` and ``y``; an estimator without targets needs no ``y``.
        """
        return super().example({"y": None, **batch} if "x" in batch else batch)

    def metrics(self, model: Estimator, batch: Batch) -> Mapping[str, Any]:
        """Return the metrics of one batch of validation data; they are averaged over rows.

        Default: ``loss`` and the scorers of ``scoring``. The loss is the share of wrong classes, the mean squared
        error, or the negative score.
        """
        example = example_of(self, batch)
        found = scores.measured(model, [example], self.scoring_names)
        return {name: value if isinstance(value, Gathered) else value.mean for name, value in found.items()}

    @property
    def scoring_names(self) -> tuple[str, ...]:
        """The names in ``scoring``."""
        return scores.names_of(self.scoring)

    @property
    def framework(self) -> SklearnFramework:
        return SklearnFramework(self, own_metrics=type(self).metrics is not SklearnTask.metrics)


def _like(kind: type) -> str:
    """Return the name of a class if it can be trained batch by batch, else that of one that can."""
    return kind.__name__ if hasattr(kind, "partial_fit") else "SGDClassifier"
