"""The weights of PyTorch models in files, compared with the digests that the journal or the files themselves have."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hopfleet.domain.messages import VersionSaved
from hopfleet.errors import HopfleetError
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import has_journal, open_journal
from hopfleet.store.versions.local import Versions, check
from hopfleet.support.logging import messages

if TYPE_CHECKING:
    from hopfleet.frameworks.torch.weights import Weights


def state_dict(source: object) -> Weights:
    """Return the weights of a model as ``model.load_state_dict`` takes them, on the CPU.

    ``source`` is the file of a version, a file of plain weights, a run folder or its folder ``best``, or a trial or
    the results of an experiment, whose best version counts. The file of a version has the weights as the last update
    left them, even if the task averages its weights.

    Raise CheckpointError if the file is damaged. Files of weights that release 0.1 exported have no digest, and neither
    has a version outside of its run folder.
    """
    from hopfleet.frameworks.torch import weights

    source = getattr(source, "best", source)
    source = getattr(source, "checkpoint", source)
    if isinstance(source, str | os.PathLike):
        _check_version(Path(source).expanduser().absolute())
    return weights.state_dict(source)


def _check_version(path: Path) -> None:
    """Raise CheckpointError if a file is a version of a run, and its digest is not the one in the journal."""
    folder = RunFolder(path.parent.parent.parent)
    if path.parent.parent != folder.checkpoints or not path.is_file():
        return
    versions, expected = Versions(folder.checkpoints), ""
    try:
        if not has_journal(folder):
            return
        with contextlib.closing(open_journal(folder)) as journal:
            for _, _, message in journal.read():
                if (
                    isinstance(message, VersionSaved)
                    and message.ref.trial == path.parent.name
                    and message.durable
                    and versions.path(message.ref, durable=True).name == path.name
                ):
                    expected = message.digest
    except HopfleetError as error:  # the models of a damaged run can still be read
        messages().warning("%s: is not compared with its digest (%s)", path, error)
        return
    check(path, expected)
