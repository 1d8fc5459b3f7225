"""One trial of an experiment's results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Never, TypedDict, Unpack, overload

from hopfleet.domain.choices import Auto, BackendName, RowsThatFail
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.views import ModelT
from hopfleet.runs.opened_run import OpenedTrial
from hopfleet.runs.place import Place

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from hopfleet.backends.base import Backend
    from hopfleet.runs.exporting import Exported


class HowToPredict(TypedDict, total=False):
    """The options of ``predict`` that leave the kind of its result alone."""

    task: Task | None
    batch_size: int
    workers: int | Auto
    backend: Backend | BackendName | str
    keep: str | Sequence[str]
    on_error: RowsThatFail


class TrialResult(OpenedTrial[ModelT]):
    """One trial: its configuration, its metrics and its model."""

    ELSEWHERE: ClassVar = {
        **dict.fromkeys(("params", "hyperparameters"), "trial.config"),
        **dict.fromkeys(("value", "values", "score", "metric"), "trial.metrics"),
    }

    def _elsewhere(self, name: str) -> str:
        if name in self.metrics:
            return f"trial.metrics[{name!r}]"
        if name in self.config:
            return f"trial.config[{name!r}]"
        return f"trial.chosen[{name!r}]" if name in self.chosen else super()._elsewhere(name)

    def __getitem__(self, name: str) -> Never:
        where = self._elsewhere(name) or "trial.config[NAME] or trial.metrics[NAME]"
        raise TypeError(f"{type(self).__name__!r} object is not subscriptable; write {where}")

    def export(
        self,
        path: str | os.PathLike[str],
        task: Task | None = None,
        *,
        format: str | None = None,  # noqa: A002
    ) -> Exported:
        """Write the model of the best epoch to a file that can be loaded without Hopfleet, or to a bundle.

        By default the file has the weights in the framework's own format; with PyTorch, the model's own state dict for
        ``safetensors.torch.load_file``. Other formats are "safetensors", "torch" (``torch.load``), "torch.export" and
        "onnx" (whole programs), and "bundle": a folder for ``hop.load_bundle``. What was written is read back, and the
        largest deviation of its outputs on a few training rows is returned.
        """
        from hopfleet.runs.exporting import export_models

        return export_models(self._run, {self.id: 1.0}, path, format, self._run.find_task(task))

    def test(
        self,
        data: Any,
        *,
        task: Task | None = None,
        workers: int | Auto = "auto",
        backend: Backend | BackendName | str = "local",
    ) -> dict[str, float]:
        """Return the metrics of the best epoch's model on new data; see ``Results.test``."""
        from hopfleet.runs.evaluation import measure_trials

        found, place = self._run.find_task(task), Place(workers, backend)
        return measure_trials(self._run, data, [self.id], 1, found, place)[self.id]

    @overload
    def predict(self, data: Any = None, *, to: None = None, **how: Unpack[HowToPredict]) -> pa.Table: ...
    @overload
    def predict(self, data: Any = None, *, to: type[pd.DataFrame], **how: Unpack[HowToPredict]) -> pd.DataFrame: ...
    @overload
    def predict(self, data: Any = None, *, to: str | os.PathLike[str], **how: Unpack[HowToPredict]) -> int: ...
    @overload
    def predict(
        self, data: Any = None, *, to: Callable[..., Iterator[Any]], **how: Unpack[HowToPredict]
    ) -> Iterator[pa.RecordBatch]: ...
    def predict(
        self,
        data: Any = None,
        *,
        to: Any = None,
        task: Task | None = None,
        batch_size: int = 1024,
        workers: int | Auto = "auto",
        backend: Backend | BackendName | str = "local",
        keep: str | Sequence[str] = (),
        on_error: RowsThatFail = "raise",
    ) -> Any:
        """Return the best model's predictions for new rows as an Arrow table, in the order of the rows.

        ``data`` is as in ``test``; raw data may lack labels. Without it, the rows are those that validated the trial:
        with folds, all training rows, each predicted by the model that has not seen it. ``to`` may be
        ``pandas.DataFrame``, ``iter`` for batches, or a .parquet, .csv or .arrow file or a folder to write. The columns
        of the rows to ``keep`` stand before the predictions. A raw row that fails raises an error that names file and
        line; with ``on_error="skip"`` it has no prediction, and with "null" a missing one, with the reason in a column
        ``error``. A killed call goes on when it is made again.
        """
        from hopfleet.runs.prediction import predict

        found, place = self._run.find_task(task), Place(workers, backend)
        return predict(self._run, {self.id: 1.0}, data, to, found, place, batch_size, keep, on_error)
