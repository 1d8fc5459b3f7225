"""Work on an experiment without a run: its data and a backend of its own, in a folder that is removed afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hopfleet.backends.base import Backend
from hopfleet.errors import UsageError
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.preparation import check_data, open_data, verify_data
from hopfleet.experiment.resources import Data, check_device, on_cluster
from hopfleet.phrases import shown
from hopfleet.store.folder import RunFolder
from hopfleet.support.files import create_folder, make_folder, remove_empty_folder, temporary_folder


@contextlib.contextmanager
def scratch_folder(definition: Definition) -> Iterator[RunFolder]:
    """Make a run folder beside that of the experiment, on the same disk, and remove it afterwards."""
    parent = definition.folder.path.parent
    missing = [path for path in (parent, *parent.parents) if not path.exists()]
    if not parent.is_dir():
        make_folder(parent, private=True)
    try:
        with temporary_folder(".preview-", parent) as place:
            folder = RunFolder(place)
            for path in (folder.logs, folder.checkpoints, folder.shared):
                create_folder(path)
            yield folder
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                remove_empty_folder(path)


def scratch_data(definition: Definition, place: RunFolder) -> Data:
    """Return the checked data, partitioned into ``place`` where needed."""
    check_device(definition.backend, definition.task, definition.worker_options.device)
    for role, source in (("train", definition.train), ("valid", definition.valid)):
        if isinstance(source, Iterator):
            raise UsageError(
                f"{role}={shown(source)}: can be read only once, and a preview would use it up; "
                "partition it first with hop.partition(...)"
            )
    data = open_data(definition, place)
    check_data(definition, data)
    verify_data(definition, data)
    return data


def another_backend(definition: Definition) -> Backend:
    """Return a second backend of the same kind, since only those of clusters can be started twice."""
    given = definition.backend
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
