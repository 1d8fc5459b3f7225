"""The weights of the best model in a file of their own, which needs no Hopfleet to be loaded."""

from __future__ import annotations

from hopfleet.errors import CheckpointError, NotFound, describe
from hopfleet.runs.results import Results
from hopfleet.support.files import make_folder, remove_file, trouble
from hopfleet.support.logging import messages


def write_best(results: Results) -> None:
    """Write the weights of the best model into the run folder, if there is one and the disk takes them.

    A complete run does not depend on the file, so an error is logged and does not end the run.
    """
    if results.definition.get("folds"):  # a trial has several models, and none has seen all rows
        return
    folder, name = results.folder.best, results.find_task().framework.weights_file
    try:
        best = results.best
        if not (name and best.checkpoint.exists()):
            return
    except (NotFound, CheckpointError):  # no trial has a finished epoch, or versions are kept elsewhere
        return
    try:
        if folder.is_symlink():
            remove_file(folder)
        make_folder(folder, private=True)
        best.export(folder / name)
    except OSError as error:
        messages().warning("%s", trouble(folder / name, error))
    except Exception as error:
        messages().warning("%s: is not written: %s", folder / name, describe(error))
