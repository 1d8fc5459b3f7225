"""The search space: what a configuration may be.

A space is a dict of names to constants, dimensions or further dicts. Every dimension draws from a stream of its
own, named by (seed, trial number, path), so that adding or removing one never changes what another yields. Names
follow Ray Tune: upper bounds of integers are exclusive, those of floats inclusive.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError
from hopfleet.errors import describe as describe_error

Space = Mapping[str, Any]


class Dimension:
    """Something in a space that yields a value for each trial. Its ``repr`` is what users write and ``parse`` reads."""

    __slots__ = ()

    def sample(self, rng: random.Random) -> Any:
        raise SpaceError(f"{self}: cannot be sampled by itself")


@dataclass(frozen=True, slots=True)
class Choice(Dimension):
    options: tuple[Any, ...]
    exhaustive: bool = False  #: made by ``grid_search``: every trial set goes through all options

    def sample(self, rng: random.Random) -> Any:
        return self.options[rng.randrange(len(self.options))]

    def __repr__(self) -> str:
        return f"{'grid_search' if self.exhaustive else 'choice'}({list(self.options)!r})"


@dataclass(frozen=True, slots=True)
class Float(Dimension):
    low: float
    high: float
    log: bool = False
    step: float | None = None

    def sample(self, rng: random.Random) -> float:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return self.nearest(value)

    def nearest(self, value: float) -> float:
        """What this dimension may yield, as near to ``value`` as can be."""
        if self.step is not None:
            # The last rounding takes away the noise of a product like 3 * 0.1.
            value = round(round(value / self.step) * self.step, 12)
        return min(max(value, self.low), self.high)

    def __repr__(self) -> str:
        name = f"{'q' * (self.step is not None)}{'log' * self.log}uniform"
        return f"{name}({self.low!r}, {self.high!r}{'' if self.step is None else f', {self.step!r}'})"


@dataclass(frozen=True, slots=True)
class Integer(Dimension):
    low: int
    high: int  #: exclusive
    log: bool = False

    def sample(self, rng: random.Random) -> int:
        if self.log:
            return self.nearest(int(math.exp(rng.uniform(math.log(self.low), math.log(self.high)))))
        return rng.randrange(self.low, self.high)

    def nearest(self, value: float) -> int:
        """What this dimension may yield, as near to ``value`` as can be."""
        return min(max(round(value), self.low), self.high - 1)

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


@dataclass(frozen=True, slots=True)
class Derived(Dimension):
    function: Callable[[Config], Any]

    def __repr__(self) -> str:
        return f"sample_from({getattr(self.function, '__qualname__', 'function')})"


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
    if not isinstance(space, Mapping):
        raise SpaceError(f"space={space!r}: must be a dict of names to values or dimensions")
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
    """The dimensions of a space by their dotted path."""
    return {".".join(path): value for path, value in _leaves(space) if isinstance(value, Dimension)}


def values(space: Space, config: Config) -> dict[str, Any]:
    """What a configuration has for the dimensions of a space, by their dotted path, but for what is derived.

    ``configure`` makes the configuration of it again.
    """
    found: dict[str, Any] = {}
    for path, value in _leaves(space):
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


def configure(space: Space, *, seed: int, number: int, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The configuration of trial ``number``; ``fixed`` gives the values of some paths beforehand."""
    given = fixed or {}
    config: dict[str, Any] = {}
    derived: list[tuple[tuple[str, ...], Derived]] = []
    for path, value in _leaves(space):
        name = ".".join(path)
        if name in given:
            value = given[name]
        elif isinstance(value, Derived):
            derived.append((path, value))
            value = None
        elif isinstance(value, Dimension):
            value = value.sample(random.Random(derive(seed, "space", number, name)))
        _put(config, path, plain(value, path))
    for path, dimension in derived:
        try:
            value = dimension.function(config)
        except Exception as error:
            raise SpaceError(f"{'.'.join(path)}: sample_from raised {describe_error(error)} for {config}") from error
        _put(config, path, plain(value, path))
    return config


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


def widened(space: Space, others: Space) -> dict[str, Any]:
    """A space with other dimensions or constants at some paths that it has, nested or dotted."""
    known = flatten(space)
    result: dict[str, Any] = _copied(space)
    for name, value in flatten(others).items():
        if name not in known:
            raise SpaceError(f"{name}={value!r}: the space has no {name!r}; it has {', '.join(known)}")
        _put(result, name.split(".") if name not in space else [name], value)
    return result


def _copied(space: Space) -> dict[str, Any]:
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
    return repr(space) if isinstance(space, Dimension) else json.loads(json.dumps(plain(space)))


def _leaves(space: Space, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
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
