"""The code of a trial in the user's own process, which keeps its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from hopfleet.frameworks.base import Batch, Task
from hopfleet.frameworks.process_settings import Changes
from hopfleet.worker.surroundings.isolation import Isolation, listed
from hopfleet.worker.surroundings.table import settings_of


class Guest:
    """A trial whose code runs in the user's own process: what ``build`` changes is in force in its hooks alone."""

    def __init__(self, task: Task) -> None:
        self._isolation = Isolation(settings_of(task, attributes=False), guest=True)
        self._own: Changes = {}

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Build the model, and keep the settings that its code makes."""
        with self._isolation.around({}) as found:
            yield
        self._own = found.changes

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Have the trial's settings in force while its code runs, and those of the process afterwards."""
        with self._isolation.around(self._own):
            yield

    @property
    def changes(self) -> str:
        """The names of the settings that the trial makes; empty if it makes none."""
        return listed(self._own)


def transformed(task: Task, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches as hooks get them in evaluation. What the transform changes in the process is put back."""
    guest = Guest(task)
    for batch in batches:
        with guest.within():
            made = batch if task.transform is None else task.transform(batch, None)
        yield made
