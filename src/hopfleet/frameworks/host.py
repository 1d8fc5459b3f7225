"""Sessions whose whole state can be had as nested containers of numpy arrays.

An adapter defines ``state`` and ``restore``; saving, snapshots, random streams and the configuration are here. A
trial's code draws from Python's and NumPy's own generators as in any script: its streams are in place while its code
runs, inside ``environment``.
"""

from __future__ import annotations

import contextlib
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, Session
from hopfleet.frameworks.state import arrays
from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.tracked_config import TrackedConfig

Streams = dict[str, Any]
"""The states of generators, by the name of their library."""


def seeded(seed: int) -> Streams:
    """Return the streams of a new trial, each seeded with ``seed``."""
    return {"python": random.Random(seed).getstate(), "numpy": np.random.RandomState(seed).get_state(legacy=False)}


class HostSession(Session):
    """A trial whose state is nested containers of numpy arrays."""

    #: Name of the file format, which a file of another adapter does not have.
    kind: str

    def __init__(self, config: Config, *, seed: int, threads: int) -> None:
        self.config = TrackedConfig(config)
        self.threads = threads
        self.random = self.seeded(seed)
        self.counters = {"units": 0, "epochs": 0}

    @abstractmethod
    def state(self) -> Tree:
        """Return everything that training depends on, except random streams and counters of units and epochs.

        The arrays may be the live ones: they are copied before training continues.
        """

    @abstractmethod
    def restore(self, state: Tree) -> None:
        """Take over a state that ``state`` returned. The arrays belong to the session."""

    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        return batch

    def check_config(self, given: Config) -> None:
        """Raise TaskError if the task changed a value of its configuration."""
        if found := self.config.changed(given):
            key, before, after = found
            raise TaskError(
                f"build() changed config[{key!r}] from {before!r} to {after!r}, but tables show {before!r}: compute "
                "the value in a variable of its own, or in the space with hop.sample_from"
            )

    def end_unit(self, *, last: bool) -> None:
        """Count a unit, and the epoch if it was the last."""
        self.counters["units"] += 1
        self.counters["epochs"] += last

    def unused(self) -> tuple[str, ...]:
        return self.config.unused()

    def absent(self) -> tuple[str, ...]:
        return self.config.absent()

    # ------------------------------------------------------------------------------------------ save and load

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in self._packed()[0].values())

    def save(self, path: Path) -> None:
        arrays.write(path, *self._packed())

    def snapshot(self) -> Callable[[Path], None]:
        copied = self._packed()
        return lambda path: arrays.write(path, *copied)

    def load(self, path: Path) -> None:
        arrays.read(path, self.kind, self._restore)

    def _packed(self) -> tuple[dict[str, arrays.Array], dict[str, str]]:
        version, words, gauss = self.random["python"]
        streams = {**self.random, "python": [version, np.array(words, np.uint32), gauss]}
        return arrays.packed({"trial": self.state(), "random": streams, "counters": self.counters}, self.kind)

    def _restore(self, saved: Tree) -> None:
        version, words, gauss = saved["random"]["python"]
        self.restore(saved["trial"])
        self.random = {**saved["random"], "python": (version, tuple(words.tolist()), gauss)}
        self.counters = dict(saved["counters"])

    # -------------------------------------------------------------------------------------------- environment

    def seeded(self, seed: int) -> Streams:
        """Return the streams of a new trial. Override this and the next two for a framework with generators."""
        return seeded(seed)

    def streams(self) -> Streams:
        """Return the states of the process's streams."""
        return {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}

    def put_streams(self, streams: Streams) -> None:
        """Set the process's streams."""
        random.setstate(streams["python"])
        np.random.set_state(streams["numpy"])

    @contextlib.contextmanager
    def environment(self, seed: int | None = None) -> Iterator[None]:
        """Have the trial's random streams in place while its code runs; in a user's own process, the process's after.

        With a ``seed``, other streams are in place, and the trial's own stay as they are.
        """
        before = self.streams() if self.guest else None
        self.put_streams(self.random if seed is None else self.seeded(seed))
        try:
            yield
            if seed is None:
                self.random = self.streams()
        finally:
            if before is not None:
                self.put_streams(before)
