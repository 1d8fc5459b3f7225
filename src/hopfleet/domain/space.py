"""The search space: what a configuration may be.

A space is a dict of names to constants, dimensions or further dicts. Every dimension draws from a stream of its
own, named by (seed, trial number, path), so that adding or removing one never changes what another yields. Names
follow Ray Tune: upper bounds of integers are exclusive, those of floats inclusive.

Where one choice decides whether there is another, a space is a function instead. It gets a Chooser and asks it for
values, in the words of Optuna.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError
from hopfleet.errors import describe as describe_error


class Dimension:
    """Something in a space that yields a value for each trial. Its ``repr`` is what users write and ``parse`` reads."""

    __slots__ = ()

    def sample(self, rng: random.Random) -> Any:
        raise SpaceError(f"{self}: cannot be sampled by itself")

    def contains(self, value: Any) -> bool:
        """Whether it may yield this value."""
        raise SpaceError(f"{self}: contains nothing by itself")


@dataclass(frozen=True, slots=True)
class Choice(Dimension):
    options: tuple[Any, ...]
    exhaustive: bool = False  #: made by ``grid_search``: every trial set goes through all options

    def sample(self, rng: random.Random) -> Any:
        return self.options[rng.randrange(len(self.options))]

    def __repr__(self) -> str:
        return f"{'grid_search' if self.exhaustive else 'choice'}({list(self.options)!r})"

    def contains(self, value: Any) -> bool:
        return self.place(value) is not None

    def place(self, value: Any) -> int | None:
        """Where among the options a value is. True is not 1 here."""
        places = (place for place, option in enumerate(self.options) if _alike(option, value))
        return next(places, None)


@dataclass(frozen=True, slots=True)
class Float(Dimension):
    low: float
    high: float
    log: bool = False
    step: float | None = None  #: between values, counted from 0 on
    anchored: bool = field(default=False, repr=False)  #: steps are counted from ``low`` on

    def sample(self, rng: random.Random) -> float:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return self.nearest(value)

    def nearest(self, value: float) -> float:
        """What this dimension may yield, as near to ``value`` as can be."""
        if self.step is not None:
            value = self.at(self.steps(value))
        return min(max(value, self.low), self.high)

    def __repr__(self) -> str:
        name = f"{'q' * (self.step is not None)}{'log' * self.log}uniform"
        return f"{name}({self.low!r}, {self.high!r}{'' if self.step is None else f', {self.step!r}'})"

    def steps(self, value: float) -> int:
        """How many steps lead to about this value."""
        assert self.step is not None
        return round((value - (self.low if self.anchored else 0.0)) / self.step)

    def at(self, steps: int) -> float:
        """The value after so many steps."""
        assert self.step is not None
        # The last rounding takes away the noise of a product like 3 * 0.1.
        value = round((self.low if self.anchored else 0.0) + steps * self.step, 12)
        return min(max(value, self.low), self.high)

    def contains(self, value: Any) -> bool:
        return (
            _is_number(value)
            and self.low <= value <= self.high
            and (self.step is None or math.isclose(self.nearest(value), value, rel_tol=1e-9))
        )


@dataclass(frozen=True, slots=True)
class Integer(Dimension):
    low: int
    high: int  #: exclusive
    log: bool = False
    step: int = field(default=1, repr=False)

    def sample(self, rng: random.Random) -> int:
        if self.log:
            return self.nearest(int(math.exp(rng.uniform(math.log(self.low), math.log(self.high)))))
        return rng.randrange(self.low, self.high, self.step)

    def contains(self, value: Any) -> bool:
        return type(value) is int and value in range(self.low, self.high, self.step)

    def nearest(self, value: float) -> int:
        """What this dimension may yield, as near to ``value`` as can be."""
        steps = round((value - self.low) / self.step)
        return self.low + self.step * min(max(steps, 0), (self.high - 1 - self.low) // self.step)

    def __repr__(self) -> str:
        return f"{'log' * self.log}randint({self.low!r}, {self.high!r})"


@dataclass(frozen=True, slots=True)
class Normal(Dimension):
    mean: float
    sd: float

    def sample(self, rng: random.Random) -> float:
        return rng.gauss(self.mean, self.sd)

    def __repr__(self) -> str:
        return f"normal({self.mean!r}, {self.sd!r})"

    def contains(self, value: Any) -> bool:
        return _is_number(value)


@dataclass(frozen=True, slots=True)
class Derived(Dimension):
    function: Callable[[Config], Any]

    def __repr__(self) -> str:
        return f"sample_from({getattr(self.function, '__qualname__', 'function')})"


Draw = Callable[[str, Dimension], Any]
"""Gives the value of a dimension of that name."""


class Chooser:
    """What a space that is a function gets: it asks for one value after another, in the words of Optuna.

    A name that is asked for twice has the value that it had the first time.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        #: What was asked for, and what was given.
        self.chosen: dict[str, tuple[Dimension, Any]] = {}

    @property
    def params(self) -> dict[str, Any]:
        """All values so far by their names."""
        return {name: value for name, (_, value) in self.chosen.items()}

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A float from ``low`` to ``high``; one of low, low + step, low + 2 * step, ... where there is a step."""
        if step is not None and log:
            raise SpaceError(f"suggest_float({name!r}, step={step!r}, log=True): use either step or log")
        low, high = _bounds(f"suggest_float[{name}]", low, high, positive=log)
        if step is not None:
            step = _step(f"suggest_float[{name}]", step)
            high = round(low + math.floor((high - low) / step + 1e-9) * step, 12)
        return float(self._choose(name, Float(low, high, log, step, anchored=step is not None)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """An integer from ``low`` to ``high``, which is included here."""
        if not (type(step) is int and step >= 1) or (log and step != 1):
            raise SpaceError(
                f"suggest_int({name!r}, step={step!r}): must be an integer from 1 on, and 1 where log=True"
            )
        if type(high) is not int:
            raise SpaceError(f"suggest_int({name!r}, {low!r}, {high!r}): both bounds must be integers")
        low, beyond = _integers(f"suggest_int[{name}]", low, high + 1)
        if log:
            _bounds(f"suggest_int[{name}]", low, beyond, positive=True)
        return int(self._choose(name, Integer(low, beyond, log, step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of ``choices``."""
        return self._choose(name, Choice(_options(f"suggest_categorical[{name}]", choices)))

    def _choose(self, name: str, dimension: Dimension) -> Any:
        if name not in self.chosen:
            self.chosen[name] = dimension, self._draw(name, dimension)
        return self.chosen[name][1]


Space = Mapping[str, Any] | Callable[[Chooser], Any]
"""A dict of names to constants, dimensions or further dicts; or a function that asks a Chooser for values and returns
a configuration, or nothing: then the values are the configuration."""


# ------------------------------------------------------------------------------- what users write in a space


def choice(options: Sequence[Any]) -> Dimension:
    """One of ``options``, all equally likely; a grid search tries each."""
    return Choice(_options("choice", options))


def grid_search(options: Sequence[Any]) -> Dimension:
    """Every one of ``options``: a grid search crosses them, a random search takes them in turn."""
    return Choice(_options("grid_search", options), exhaustive=True)


def uniform(low: float, high: float) -> Dimension:
    """A float between ``low`` and ``high``."""
    return Float(*_bounds("uniform", low, high))


def loguniform(low: float, high: float) -> Dimension:
    """A float between ``low`` and ``high`` whose logarithm is uniform."""
    return Float(*_bounds("loguniform", low, high, positive=True), log=True)


def quniform(low: float, high: float, q: float) -> Dimension:
    """Like ``uniform``, rounded to multiples of ``q``."""
    return Float(*_bounds("quniform", low, high), step=_step("quniform", q))


def qloguniform(low: float, high: float, q: float) -> Dimension:
    """Like ``loguniform``, rounded to multiples of ``q``."""
    return Float(*_bounds("qloguniform", low, high, positive=True), log=True, step=_step("qloguniform", q))


def randint(low: int, high: int) -> Dimension:
    """An integer from ``low`` to ``high - 1``."""
    return Integer(*_integers("randint", low, high))


def lograndint(low: int, high: int) -> Dimension:
    """An integer from ``low`` to ``high - 1`` whose logarithm is uniform."""
    _bounds("lograndint", low, high, positive=True)
    return Integer(*_integers("lograndint", low, high), log=True)


def normal(mean: float, sd: float) -> Dimension:
    """A float from a normal distribution."""
    if not (_is_number(mean) and _is_number(sd) and sd > 0):
        raise SpaceError(f"normal({mean!r}, {sd!r}): mean must be a number and sd a number above 0")
    return Normal(float(mean), float(sd))


def sample_from(function: Callable[[Config], Any]) -> Dimension:
    """What ``function`` makes of the rest of the configuration, which it gets as a dict."""
    if not callable(function):
        raise SpaceError(f"sample_from({function!r}): must be a function of the configuration")
    return Derived(function)


# ------------------------------------------------------------------------------------------- using a space


def check(space: Space) -> None:
    """Raise SpaceError unless every part of ``space`` can become part of a configuration."""
    if callable(space):
        return
    if not isinstance(space, Mapping):
        raise SpaceError(f"space={space!r}: must be a dict of names to values or dimensions, or a function of a trial")
    if not space:
        raise SpaceError(
            "space={}: is empty; name at least one hyper-parameter, e.g. {'lr': hop.loguniform(1e-4, 1e-1)}"
        )
    names: set[str] = set()
    for path, value in _leaves(space):
        name = ".".join(path)
        if name in names:
            raise SpaceError(f"space key {name!r}: is there twice, nested and with a dot; rename one of them")
        names.add(name)
        if not isinstance(value, Dimension):
            plain(value, path)


def dimensions(space: Space) -> dict[str, Dimension]:
    """The dimensions of a space by their dotted path. Those of a function are not known beforehand."""
    if callable(space):
        return {}
    return {".".join(path): value for path, value in _leaves(space) if isinstance(value, Dimension)}


def values(space: Space, config: Config) -> dict[str, Any]:
    """What a configuration has for the dimensions of a space, by their dotted path, but for what is derived.

    ``configure`` makes the configuration of it again.
    """
    found: dict[str, Any] = {}
    for path, value in () if callable(space) else _leaves(space):
        if isinstance(value, Dimension) and not isinstance(value, Derived):
            part: Any = config
            for key in path:
                part = part[key]
            found[".".join(path)] = part
    return found


def grid(space: Space) -> list[dict[str, Any]]:
    """Every combination of the options of all choices, as {path: option}; the last path varies fastest."""
    choices = {path: value.options for path, value in dimensions(space).items() if isinstance(value, Choice)}
    return [dict(zip(choices, combination, strict=True)) for combination in itertools.product(*choices.values())]


def configure(space: Space, *, seed: int, number: int | str, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The configuration of trial ``number``; ``fixed`` gives the values of some paths beforehand."""

    def draw(name: str, dimension: Dimension) -> Any:
        return dimension.sample(random.Random(derive(seed, "space", number, name)))

    return walk(space, draw, fixed or {})[0]


def walk(space: Space, draw: Draw, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Dimension, Any]]]:
    """A configuration, and the values in it that ``draw`` gave. Paths in ``given`` have their values beforehand."""
    if callable(space):
        return _called(space, lambda name, dimension: given[name] if name in given else draw(name, dimension))
    config: dict[str, Any] = {}
    drawn: dict[str, tuple[Dimension, Any]] = {}
    derived: list[tuple[tuple[str, ...], Derived]] = []
    for path, value in _leaves(space):
        name = ".".join(path)
        if name in given:
            value = given[name]
        elif isinstance(value, Derived):
            derived.append((path, value))
            value = None
        elif isinstance(value, Dimension):
            dimension, value = value, draw(name, value)
            drawn[name] = dimension, value
        _put(config, path, plain(value, path))
    for path, function in derived:
        try:
            value = function.function(config)
        except Exception as error:
            raise SpaceError(f"{'.'.join(path)}: sample_from raised {describe_error(error)} for {config}") from error
        _put(config, path, plain(value, path))
    return config, drawn


def _called(function: Callable[[Chooser], Any], draw: Draw) -> tuple[dict[str, Any], dict[str, tuple[Dimension, Any]]]:
    chooser = Chooser(draw)
    try:
        config = function(chooser)
    except (SpaceError, _Elsewhere):
        raise
    except Exception as error:
        raise SpaceError(f"space={_named(function)}: raised {describe_error(error)} for {chooser.params}") from error
    config = chooser.params if config is None else config
    if not isinstance(config, Mapping) or not config:
        raise SpaceError(f"space={_named(function)}: returned {config!r}; must return a dict of names to values")
    return {str(key): plain(value, [str(key)]) for key, value in config.items()}, chooser.chosen


class _Elsewhere(Exception):
    """A configuration is no point of a space."""


def find(space: Space, config: Config) -> dict[str, tuple[Dimension, Any]] | None:
    """The dimensions with the values that make this configuration; None if it is no point of the space."""
    flat = config if callable(space) else _at_leaves(space, config)
    if flat is None:
        return None

    def draw(name: str, dimension: Dimension) -> Any:
        if name not in flat or not dimension.contains(flat[name]):
            raise _Elsewhere
        return flat[name]

    try:
        found, drawn = walk(space, draw, {})
    except (_Elsewhere, SpaceError):
        return None
    return drawn if found == plain(config) else None


def _at_leaves(space: Mapping[str, Any], config: Config) -> dict[str, Any] | None:
    """The parts of a configuration where the space has leaves, by their dotted paths."""
    flat: dict[str, Any] = {}
    for path, _ in _leaves(space):
        part: Any = config
        for key in path:
            if not isinstance(part, Mapping) or key not in part:
                return None
            part = part[key]
        flat[".".join(path)] = part
    return flat


def complete(space: Space, point: Mapping[str, Any], *, seed: int, number: int | str) -> dict[str, Any]:
    """The configuration of a point that a person gave, with draws for what it leaves out. Raises SpaceError."""
    if not isinstance(point, Mapping):
        raise SpaceError(f"point {point!r}: must be a dict of names to values")
    flat = dict(point) if callable(space) else _by_leaf(space, point)
    used: set[str] = set()

    def draw(name: str, dimension: Dimension) -> Any:
        if name not in flat:
            return dimension.sample(random.Random(derive(seed, "point", number, name)))
        used.add(name)
        if not dimension.contains(flat[name]):
            raise SpaceError(f"point {name}={flat[name]!r}: is not in {dimension}")
        return flat[name]

    config, drawn = walk(space, draw, {})
    if callable(space):
        _refuse_unknown([name for name in flat if name not in used], drawn)
    else:
        made = _at_leaves(space, config) or {}
        for name in flat.keys() - used:
            if not _alike(made[name], flat[name]):
                raise SpaceError(f"point {name}={flat[name]!r}: the space makes it {made[name]!r}; leave it out")
    return config


def _by_leaf(space: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """What a point gives for each leaf of the space that it names, nested or by a dotted path."""
    leaves = {".".join(path): path for path, _ in _leaves(space)}
    flat: dict[str, Any] = {}

    def collect(part: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for key, value in part.items():
            name = f"{prefix}{key}"
            if name in leaves:
                flat[name] = plain(value, [name])
            elif isinstance(value, Mapping) and any(leaf.startswith(f"{name}.") for leaf in leaves):
                yield from collect(value, f"{name}.")
            else:
                yield name

    _refuse_unknown(list(collect(point, "")), leaves)
    return flat


def _refuse_unknown(names: Sequence[str], known: Iterable[str]) -> None:
    if names:
        raise SpaceError(f"point: the space has no {', '.join(sorted(names))}; it has {', '.join(known)}")


def exhaustive_points(space: Space) -> list[dict[str, Any]]:
    """Every combination of the options of ``grid_search`` dimensions alone."""
    return grid(
        {path: value for path, value in dimensions(space).items() if isinstance(value, Choice) and value.exhaustive}
    )


def plain(value: Any, path: Sequence[str] = ()) -> Any:
    """``value`` as JSON has it (tuples become lists, numpy scalars numbers), or SpaceError."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part, [*path, str(key)]) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part, path) for part in value]
    raise SpaceError(
        f"{'.'.join(path) or 'value'}={value!r}: a configuration holds numbers, strings, booleans, None, lists and "
        "dicts only; use a name here and look the object up in build()"
    )


def changed(config: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with other values at some dotted paths that it has."""
    known = flatten(config)
    result: dict[str, Any] = json.loads(json.dumps(config))
    for name, value in changes.items():
        if name not in known:
            raise SpaceError(f"{name}={value!r}: the configuration has no {name!r}; it has {', '.join(known)}")
        _put(result, name.split(".") if name not in config else [name], plain(value, [name]))
    return result


def parse(described: Mapping[str, Any]) -> dict[str, Any]:
    """A space from what ``describe`` makes of it: text like ``loguniform(1e-4, 0.1)`` becomes a dimension."""
    return {name: _parsed(name, value) for name, value in described.items()}


def _parsed(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return parse(value)
    call = re.fullmatch(r"(\w+)\((.*)\)", value, re.DOTALL) if isinstance(value, str) else None
    if call is not None and call[1] == sample_from.__name__:
        raise SpaceError(f"{name}={value}: a function cannot be written down; give numbers or lists")
    if call is None or call[1] not in WORDS:
        return value
    try:
        arguments = ast.literal_eval(f"({call[2]},)")
    except (SyntaxError, ValueError):
        raise SpaceError(f"{name}={value}: write plain numbers and lists, e.g. {name}=loguniform(1e-4, 0.1)") from None
    try:
        return WORDS[call[1]](*arguments)
    except TypeError as error:
        raise SpaceError(f"{name}={value}: {error}") from None


WORDS: Mapping[str, Callable[..., Dimension]] = {
    function.__name__: function
    for function in (choice, grid_search, uniform, loguniform, quniform, qloguniform, randint, lograndint, normal)
}


def widened(space: Space, others: Space) -> Space:
    """A space with other dimensions or constants at some paths that it has, nested or dotted."""
    if not others:
        return space
    if callable(space) or callable(others):
        raise SpaceError("a space that is a function has no dimensions to change; add configurations instead")
    known = flatten(space)
    result: dict[str, Any] = _copied(space)
    for name, value in flatten(others).items():
        if name not in known:
            raise SpaceError(f"{name}={value!r}: the space has no {name!r}; it has {', '.join(known)}")
        _put(result, name.split(".") if name not in space else [name], value)
    return result


def _copied(space: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) if isinstance(value, Mapping) else value for name, value in space.items()}


def flatten(config: Config, prefix: str = "") -> dict[str, Any]:
    """A nested configuration as {dotted path: value}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def describe(space: Space) -> Any:
    """A space as JSON that a person can read and two runs can compare."""
    if isinstance(space, Mapping):
        return {str(key): describe(value) for key, value in space.items()}
    if callable(space):
        return f"function {_named(space)}"
    return repr(space) if isinstance(space, Dimension) else json.loads(json.dumps(plain(space)))


def _named(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _alike(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _leaves(space: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in space.items():
        if not isinstance(key, str) or not key:
            raise SpaceError(f"space key {key!r}: must be a non-empty string")
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _put(config: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        config = config.setdefault(key, {})
    config[path[-1]] = value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _bounds(name: str, low: Any, high: Any, *, positive: bool = False) -> tuple[float, float]:
    if not (_is_number(low) and _is_number(high) and low < high):
        raise SpaceError(f"{name}({low!r}, {high!r}): both bounds must be numbers, the first below the second")
    if positive and low <= 0:
        raise SpaceError(f"{name}({low!r}, {high!r}): the lower bound must be above 0, since its logarithm is taken")
    return low, high


def _integers(name: str, low: Any, high: Any) -> tuple[int, int]:
    if not (isinstance(low, int) and isinstance(high, int) and low < high):
        raise SpaceError(f"{name}({low!r}, {high!r}): both bounds must be integers, the first below the second")
    return low, high


def _step(name: str, q: Any) -> float:
    if not (_is_number(q) and q > 0):
        raise SpaceError(f"{name}(..., q={q!r}): q must be a number above 0")
    return float(q)


def _options(name: str, options: Any) -> tuple[Any, ...]:
    if isinstance(options, (str, bytes)) or not isinstance(options, Sequence):
        raise SpaceError(f"{name}({options!r}): must be a list of options")
    if not options:
        raise SpaceError(f"{name}([]): needs at least one option")
    return tuple(plain(option, [name]) for option in options)
