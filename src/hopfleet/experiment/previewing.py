"""Work on an experiment without a run: its data and a backend of its own, in a folder that is removed afterwards."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hopfleet.backends.base import Backend
from hopfleet.errors import UsageError
from hopfleet.experiment.preparation import check_data, open_data, verify_data
from hopfleet.experiment.resources import Data, check_device, on_cluster
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
    verify_data(experiment, data)
    return data


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
