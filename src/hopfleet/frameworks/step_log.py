"""The values of single steps that a trial's code logs during one unit, bounded as they come.

Values on a device stay there until the unit is over: to read one is to wait for the device.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

from hopfleet.domain.step_values import POINTS, Column, StepValues, bad_name
from hopfleet.errors import TaskError

LIBRARIES = ("hopfleet.", "torch.")
"""How the names of modules begin whose code is not the user's."""


class _Points:
    """The values of one name: every n-th and the last one, where n doubles whenever there are too many."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[Any] = []
        self._count = 0
        self._stride = 1

    def put(self, step: int, value: Any) -> None:
        """Add a value. A step has one value of a name, the last, and steps never go back."""
        if self.steps and self.steps[-1] >= step:
            self.values[-1] = value
            return
        if self.steps and (self._count - 1) % self._stride:  # it was kept as the last one
            del self.steps[-1], self.values[-1]
        if len(self.steps) == POINTS:
            self._stride *= 2
            del self.steps[1::2], self.values[1::2]
        self.steps.append(step)
        self.values.append(value)
        self._count += 1


class StepLog:
    """What one trial logs in its current unit."""

    def __init__(self) -> None:
        #: The number of the batch at hand in its unit; None outside of steps, where values do not count.
        self.batch: int | None = None
        #: Whether code has tried to log something, in any unit.
        self.used = False
        #: Why the trial cannot log values, with the remedy; empty if it can.
        self.refusal = ""
        self._batches_per_step = 1
        self._points: dict[str, _Points] = {}

    def start(self, batches_per_step: int) -> None:
        """Begin a unit."""
        self.batch, self._batches_per_step, self._points = None, batches_per_step, {}

    def put(self, name: str, value: Any) -> None:
        """Log a value of the step at hand. Raises TaskError for a name too many."""
        self.used = True
        if self.refusal:
            raise TaskError(f"self.log({name!r}, ...): {self.refusal}")
        if self.batch is not None:
            self.put_at(self.batch, name, value)

    def put_at(self, batch: int, name: str, value: Any) -> None:
        """Log a value of the step of a batch."""
        if name not in self._points:
            if wrong := bad_name(name, list(self._points)):
                raise TaskError(f"self.log({name!r}, ...): {wrong}")
            self._points[name] = _Points()
        self._points[name].put(batch // self._batches_per_step, value)

    def take(self, read: Callable[[Sequence[Any]], Iterable[float]] = tuple) -> StepValues | None:
        """Return the values of the unit, and forget them; None if there are none. ``read`` makes numbers of values."""
        self.batch = None
        if not self._points:
            return None
        points, self._points = self._points, {}
        numbers = iter(read([value for one in points.values() for value in one.values]))
        columns: dict[str, Column] = {
            name: (tuple(one.steps), tuple(next(numbers) for _ in one.steps)) for name, one in points.items()
        }
        return StepValues(columns, self._batches_per_step)


def averaged(found: Iterable[StepValues | None]) -> StepValues | None:
    """Return the mean of what several models logged in the same steps."""
    some = [one for one in found if one is not None]
    sums: dict[str, dict[int, list[float]]] = {}
    for one in some:
        for name, (steps, values) in one.columns.items():
            for step, value in zip(steps, values, strict=True):
                sums.setdefault(name, {}).setdefault(step, []).append(value)
    columns: Mapping[str, Column] = {
        name: (tuple(sorted(points)), tuple(sum(points[step]) / len(points[step]) for step in sorted(points)))
        for name, points in sums.items()
    }
    return StepValues(columns, some[0].batches_per_step) if some else None


def mentions_log(kind: type) -> bool:
    """Whether methods of a task class use ``self.log``, be it in a branch that was not taken so far.

    A captured step runs no Python, so a value that is logged every tenth step would be lost without a word.
    """
    own = [base for base in kind.__mro__ if base is not object and not base.__module__.startswith(LIBRARIES)]
    methods = [inspect.unwrap(value) for base in own for value in vars(base).values() if inspect.isfunction(value)]
    return any(_uses_log(method.__code__, method.__code__.co_varnames[:1]) for method in methods)


def _uses_log(code: CodeType, first: tuple[str, ...]) -> bool:
    """Whether code asks the first argument of a method for ``log``. Functions inside the method count."""
    before = ""
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        if value == "log" and before in first:
            return True
        before = value[-1] if isinstance(value, tuple) and value else value
    return any(_uses_log(each, first) for each in code.co_consts if isinstance(each, CodeType))
