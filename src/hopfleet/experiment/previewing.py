"""Work on an experiment without a run: its data and a backend of its own, in a folder that is removed afterwards."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hopfleet.backends.base import Backend
from hopfleet.errors import UsageError
from hopfleet.experiment.preparation import check_data, open_data
from hopfleet.experiment.resources import Data, WorkerPlan, check_device, on_cluster
from hopfleet.forecast.forecast import IN_TURN, Forecast
from hopfleet.forecast.preview import Preview
from hopfleet.phrases import shown
from hopfleet.store.folder import RunFolder

if TYPE_CHECKING:
    from hopfleet.experiment.experiment import Experiment


@contextlib.contextmanager
def scratch_folder(experiment: Experiment) -> Iterator[RunFolder]:
    """Make a run folder beside that of the experiment, on the same disk, and remove it afterwards."""
    parent = experiment.folder.path.parent
    missing = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with tempfile.TemporaryDirectory(prefix=".preview-", dir=parent) as place:
            folder = RunFolder(Path(place))
            for path in (folder.logs, folder.checkpoints, folder.shared):
                path.mkdir()
            yield folder
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()


def scratch_data(experiment: Experiment, place: RunFolder) -> Data:
    """Return the checked data, partitioned into ``place`` where needed."""
    check_device(experiment.backend, experiment.task, experiment.worker_options.device)
    for role, source in (("train", experiment.train), ("valid", experiment.valid)):
        if isinstance(source, Iterator):
            raise UsageError(
                f"{role}={shown(source)}: can be read only once, and a preview would use it up; "
                "partition it first with hop.partition(...)"
            )
    data = open_data(experiment, place)
    check_data(experiment, data)
    return data


def make_preview(
    experiment: Experiment,
    place: RunFolder,
    plan: Callable[[Backend], WorkerPlan],
    forecast: Callable[[Backend, WorkerPlan, Data, RunFolder], Forecast],
    tell: Callable[[str], None],
) -> Preview:
    """Predict a run from profiling on a backend of its own; ``tell`` hears of the steps."""
    began = time.perf_counter()
    tell("opening the data")
    data = scratch_data(experiment, place)
    backend = another_backend(experiment)
    planned = plan(backend)
    if backend.name in IN_TURN:
        planned = WorkerPlan(planned.device, 1, f"{backend.name} workers take turns")
    found = forecast(backend, planned, data, place)
    return found.preview(experiment.folder, began=began, data_bytes=data.bytes_in(place.path), tell=tell)


def another_backend(experiment: Experiment) -> Backend:
    """Return a second backend of the same kind, since only those of clusters can be started twice."""
    given = experiment.backend
    if on_cluster(given) and not isinstance(given, type):
        return given
    try:
        backend: Backend = given() if isinstance(given, type) else type(given)()
    except TypeError as error:
        raise UsageError(
            f"backend={given!r}: a preview needs a second one of its kind and cannot make it ({error}); "
            "give its class or its name"
        ) from error
    return backend
