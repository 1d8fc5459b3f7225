"""Ensembles: the best models of an experiment as one model, whose outputs are the weighted mean of theirs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hopfleet.backends.base import Backend
from hopfleet.data import Dataset
from hopfleet.domain.choices import Auto, BackendName, RowsThatFail
from hopfleet.domain.rowsum import RowSum, means
from hopfleet.domain.signatures import explained
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.base import Batch, Framework, Task
from hopfleet.phrases import shown
from hopfleet.runs.evaluation import measure_ensemble
from hopfleet.runs.exporting import Exported, export_models
from hopfleet.runs.guest import transformed
from hopfleet.runs.inference import validation
from hopfleet.runs.joining import joined_model
from hopfleet.runs.opened_run import check_ensembles
from hopfleet.runs.place import Place
from hopfleet.runs.prediction import predict
from hopfleet.runs.results import Results
from hopfleet.search.base import at_least_one

ROUNDS = 25
"""Models that the greedy selection adds. A model may be added again, which raises its weight."""

Measure = Callable[[Any, Batch], dict[str, RowSum]]


@explained
class Ensemble:
    """The ``top`` best trials of an experiment as one model.

    With ``weights="greedy"``, models are added one after another, each time the one with which the validation metric is
    best; a model may be added again, and the best ensemble on the way counts. With "uniform", all have the same weight.
    The outputs of the models are averaged; with ``logits``, they are logits of classes, and their probabilities are
    averaged.
    The task's hooks see the configuration of the best trial.
    """

    def __init__(
        self, results: Results, *, top: int = 8, weights: str = "greedy", logits: bool = False, task: Task | None = None
    ) -> None:
        if not isinstance(results, Results):
            raise UsageError(f"Ensemble({shown(results)}): must be results, as hop.load(NAME) returns them")
        if weights not in ("greedy", "uniform"):
            raise UsageError(f"weights={shown(weights)}: must be 'greedy' or 'uniform'")
        self.results = results
        self.logits = logits
        self._task = results.find_task(task)
        check_ensembles(self._task)
        ranked = [trial.id for trial in results.history.leaderboard() if trial.best is not None]
        names = ranked[: at_least_one("top", top)] or [results.best.id]
        #: The weight of each trial, the best trial first; weights add up to 1.
        self.weights: dict[str, float] = {name: 1 / len(names) for name in names}
        if weights == "greedy" and len(names) > 1:
            counts = self._selected(names)
            self.weights = {name: count / sum(counts) for name, count in zip(names, counts, strict=True) if count}

    @functools.cached_property
    def model(self) -> Any:
        """The models as one, on the CPU."""
        return joined_model(self.results, self.weights, self._task, logits=self.logits)

    def test(
        self, data: Any = None, *, workers: int | Auto = "auto", backend: Backend | BackendName | str = "local"
    ) -> dict[str, float]:
        """Return the metrics on new data, by default on the validation data; see ``Results.test``.

        Every row is read once.
        """
        return measure_ensemble(self.results, data, self.weights, self.logits, self._task, Place(workers, backend))

    def predict(
        self,
        data: Any = None,
        *,
        to: Any = None,
        batch_size: int = 1024,
        workers: int | Auto = "auto",
        backend: Backend | BackendName | str = "local",
        keep: str | Sequence[str] = (),
        on_error: RowsThatFail = "raise",
    ) -> Any:
        """Return the predictions for new rows, or write them; see ``trial.predict``. Every row is read once."""
        place = Place(workers, backend)
        return predict(
            self.results, self.weights, data, to, self._task, place, batch_size, keep, on_error, logits=self.logits
        )

    def export(self, path: str | os.PathLike[str], *, format: str = "bundle") -> Exported:  # noqa: A002
        """Write the ensemble as one model: a bundle by default, or another format of ``trial.export``."""
        return export_models(self.results, self.weights, path, format, self._task, logits=self.logits)

    def __repr__(self) -> str:
        return f"<Ensemble of {', '.join(f'{weight:.2f} {name}' for name, weight in self.weights.items())}>"

    def _valid(self) -> tuple[Dataset, list[int]]:
        try:
            return validation(self.results)
        except UsageError:
            raise UsageError(
                f"{self.results.name}: has no validation data, with which weights='greedy' chooses; use "
                "weights='uniform', and test(data) on other data"
            ) from None

    def _measure(self, data: Dataset) -> tuple[Framework, Measure]:
        dtypes = {name: column.dtype for name, column in data.columns.items()}
        with self.results.best.opened(self._task) as (framework, config, _):
            return framework, framework.measuring(config, dtypes)

    def _selected(self, names: Sequence[str]) -> list[int]:
        """Return how often the greedy selection takes each trial."""
        valid, folds = self._valid()
        framework, measure = self._measure(valid)
        built = [self.results[name].built(self._task) for name in names]
        seen: list[tuple[Batch, list[list[Any]]]] = []
        for part in range(len(valid)):
            stored = valid.batches(part, batch_size=self.results.definition["batch_size"])
            for batch in transformed(self._task, stored):  # as the task's hooks get them in evaluation
                recorders = [Recorder(models[folds[part] if folds else 0]) for models, _ in built]
                for recorder, (_, guest) in zip(recorders, built, strict=True):
                    with guest.within():
                        measure(recorder, batch)
                seen.append((batch, [recorder.outputs for recorder in recorders]))
        metric, mode = self.results.definition["metric"], self.results.definition["mode"]
        sign = -1 if mode == "max" else 1

        def score(counts: Sequence[int]) -> float:
            shares = [count / sum(counts) for count in counts]
            with built[0][1].within():
                found = total(
                    measure(Replay(framework, outputs, shares, self.logits), batch) for batch, outputs in seen
                )
            if metric not in found:
                raise UsageError(
                    f"weights='greedy': the experiment's metric {metric!r} is not one that metrics() returns; use "
                    "weights='uniform'"
                )
            return sign * found[metric]

        return greedy(len(names), score)


def greedy(models: int, score: Callable[[Sequence[int]], float]) -> list[int]:
    """Return how often to take each model so that ``score``, of such counts, is small."""
    counts, best, least = [0] * models, [1] * models, float("inf")
    for _ in range(ROUNDS):
        tries = [[count + (number == chosen) for number, count in enumerate(counts)] for chosen in range(models)]
        scores = [score(each) for each in tries]
        counts = tries[scores.index(min(scores))]
        if min(scores) < least:
            best, least = counts, min(scores)
    return best


def total(found: Iterator[Mapping[str, RowSum]]) -> dict[str, float]:
    """Return the metrics over all rows from the sums over some rows each."""
    sums: dict[str, RowSum] = {}
    for some in found:
        for name, value in some.items():
            sums[name] = sums[name] + value if name in sums else value
    return means(sums)


class StandIn:
    """A model that can only be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TaskError(f"metrics() uses model.{name}, which an ensemble does not have; call the model, as in model(x)")


class Recorder(StandIn):
    """A model, and all that it returns."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.outputs: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self.model(*args, **kwargs)
        self.outputs.append(made)
        return made


class Replay(StandIn):
    """An ensemble on rows for which the outputs of its members are known."""

    def __init__(
        self, framework: Framework, outputs: Sequence[Sequence[Any]], shares: Sequence[float], logits: bool
    ) -> None:
        taken = [number for number, share in enumerate(shares) if share]
        self.shares = [shares[number] for number in taken]
        self.calls = zip(*(outputs[number] for number in taken), strict=True)
        self.framework = framework
        self.logits = logits

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.framework.combined(next(self.calls), self.shares, logits=self.logits)
