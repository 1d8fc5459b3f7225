"""User files: loading a file to find its experiment, and running a file again as Python does."""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hopfleet.errors import HopfleetError, UsageError, describe
from hopfleet.experiment.definition_record import UNDER_RUN
from hopfleet.experiment.experiment import ADJUST, ANY, PREVIEW, RESUME, Adjust, Experiment, FitAvoided
from hopfleet.frameworks.base import Task
from hopfleet.phrases import did_you_mean
from hopfleet.safe_text import HIDDEN
from hopfleet.store.folder import RunFolder, home


class ScriptFailed(HopfleetError):
    """The error of a user's file."""


def split_target(target: str, *, wanted: str = "a Python file that defines a hop.Experiment") -> tuple[Path, str]:
    """Split ``FILE.py`` or ``FILE.py:variable`` into an existing file and a variable, which may be empty."""
    file, variable = Path(target).expanduser(), ""
    if not file.exists() and ":" in target:
        name, _, variable = target.rpartition(":")
        file = Path(name).expanduser()
    if not file.is_file():
        raise UsageError(f"{str(file)!r}: no such file; give {wanted}")
    return file.absolute(), variable


class NoExperiment(UsageError):
    """A file that assigns no experiment to a variable."""


def load_for_preview(file: Path, variable: str, arguments: Sequence[str] = ()) -> Experiment:
    """Return a file's experiment without training. If the file calls ``fit``, return the first experiment fitted."""
    with _without_training(ANY):
        try:
            return load_experiment(file, variable, arguments=arguments)[0]
        except FitAvoided as avoided:
            return avoided.experiment


def load_task(file: Path, name: str) -> Task:
    """Import a file by its path and return an instance of a task's class in it. Nothing is trained."""
    with _without_training(ANY):
        kind = _run(file, UNDER_RUN, None, ()).get(name)
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise UsageError(f"{file}: has no task {name} any more; restore the file")
    return kind()


def run_until_fit(file: Path, arguments: Sequence[str], run: RunFolder, name: str) -> Experiment:
    """Run a script as Python does, but only until it fits the experiment of a run folder; return that experiment.

    An experiment without a name takes ``name``. Experiments that were finished before return their results.
    """
    with _without_training(str(run.path)):
        try:
            run_script(file, arguments, resumed=name)
        except FitAvoided as avoided:
            if avoided.experiment.folder.path == run.path:
                return avoided.experiment
            raise UsageError(
                f"{file}: fits {avoided.experiment.name} before {name}, which is not finished; finish it first: "
                f"python {file.name}"
            ) from None
    raise UsageError(f"{file}: ran to its end without fitting {name}; restore its definition")


@contextlib.contextmanager
def _without_training(folder: str) -> Iterator[None]:
    """Have ``fit`` raise FitAvoided instead of training: for any experiment, or until one of a run folder is fitted."""
    os.environ[PREVIEW] = folder
    try:
        yield
    finally:
        del os.environ[PREVIEW]


def load_experiment(
    file: Path,
    variable: str = "",
    *,
    resumed: str | None = None,
    arguments: Sequence[str] = (),
    adjust: Adjust | None = None,
) -> tuple[Experiment, str]:
    """Return a file's experiment and its variable. An experiment without a name takes the name ``resumed``.

    ``adjust`` is applied to experiments that the file fits by itself, before they train.
    """
    token = ADJUST.set(adjust)
    try:
        names = _run(file, UNDER_RUN, resumed, arguments)
    finally:
        ADJUST.reset(token)
    found = {name: value for name, value in names.items() if isinstance(value, Experiment)}
    listed = ", ".join(found)
    if variable:
        if variable not in found:
            there = f"the file's experiments are {listed}" if found else "the file has no experiment"
            raise UsageError(f"{file.name}:{variable}: is not an experiment; {there}")
        return found[variable], variable
    distinct = {id(experiment): name for name, experiment in found.items()}
    if not distinct:
        raise NoExperiment(
            f"{file.name}: has no experiment; assign one to a variable, experiment = hop.Experiment(...), or start a "
            f"file that makes it below if __name__ == '__main__' with: python {file.name}"
        )
    if len(distinct) > 1:
        raise UsageError(f"{file.name}: has several experiments ({listed}); give one: {file.name}:{next(iter(found))}")
    name = next(iter(found))
    return found[name], name


def load_object(target: str) -> Any:
    """Return what ``FILE.py:name`` names."""
    file, variable = split_target(target, wanted="a Python file and a name in it, as in FILE.py:name")
    if not variable:
        raise UsageError(f"{target}: names no object of the file; give FILE.py:name")
    names = _run(file, UNDER_RUN, None, ())
    if variable not in names:
        near = did_you_mean(variable, names)
        raise UsageError(f"{file.name}:{variable}: the file has no such name; {near}".rstrip("; "))
    return names[variable]


def enter(cwd: str) -> None:
    """Change to the folder in which the file ran before. A relative HOPFLEET_HOME keeps its meaning."""
    if "HOPFLEET_HOME" in os.environ:
        os.environ["HOPFLEET_HOME"] = str(home())
    if Path(cwd).is_dir():
        os.chdir(cwd)


def run_script(file: Path, arguments: Sequence[str], *, resumed: str) -> None:
    """Run a script again from the top, so that the experiment named ``resumed`` continues."""
    if lacking := [argument for argument in arguments if HIDDEN in argument]:
        given = shlex.join(argument.replace(HIDDEN, "...") for argument in arguments)
        raise UsageError(
            f"{resumed}: secrets among the arguments of its script are not stored ({', '.join(lacking)}); start the "
            f"script yourself, and fit() continues: python {file} {given}"
        )
    try:
        _run(file, "__main__", resumed, arguments)
    except SystemExit as leave:
        if leave.code not in (None, 0):
            raise


def _run(file: Path, name: str, resumed: str | None, arguments: Sequence[str]) -> dict[str, Any]:
    _pickle_by_value(name)
    # Workers import the same modules as the file, so the file's folder stays on the path.
    sys.path.insert(0, str(file.parent))
    with _environment(resumed), _arguments([str(file), *arguments]):
        try:
            return runpy.run_path(str(file), run_name=name)
        except HopfleetError:
            raise
        except Exception as error:
            raise ScriptFailed(f"{_place(error, file)}: {describe(error)}") from error


def _pickle_by_value(name: str) -> None:
    """Have the classes of a file pickled by value: while the file runs, only this process has a module of that name."""
    import cloudpickle

    if name != "__main__":  # which is always pickled so
        sys.modules[name] = ModuleType(name)  # only modules that are there can be registered
        cloudpickle.register_pickle_by_value(sys.modules[name])
        del sys.modules[name]


def _place(error: Exception, file: Path) -> str:
    """Return ``FILE.py, line 12``: the last line of the file itself in the error's traceback."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file}, line {lines[-1]}" if lines else str(file)


@contextlib.contextmanager
def _environment(resumed: str | None) -> Iterator[None]:
    if resumed is not None:
        os.environ[RESUME] = resumed
    try:
        yield
    finally:
        os.environ.pop(RESUME, None)


@contextlib.contextmanager
def _arguments(arguments: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = arguments
    try:
        yield
    finally:
        sys.argv = before
