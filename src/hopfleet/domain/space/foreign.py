"""Values that mean something in a space of another library: what to write instead.

Objects are recognised by their modules and attributes, so that no other library is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from hopfleet.domain.space.dimension import Choice, Dimension, Float, Integer, Normal


def replacement(value: Any) -> str:
    """Return what a value that is no constant should be replaced by, as code; empty if that is unknown."""
    module = type(value).__module__
    if module.startswith("ray.tune."):
        found = _of_ray(value)
    elif module.startswith("optuna.distributions"):
        found = _of_optuna(value)
    elif module.startswith("scipy.stats."):
        found = _of_scipy(value)
    else:
        found = _of_python(value)
    return f"hop.{found}" if found else ""


def ray_grid(value: Mapping[str, Any]) -> str:
    """Return the replacement of Ray's ``{"grid_search": [...]}``; empty for every other dict."""
    if list(value) == ["grid_search"] and isinstance(value["grid_search"], list | tuple):
        return f"hop.{Choice(tuple(value['grid_search']), exhaustive=True)}"
    return ""


def _of_python(value: Any) -> str:
    """Return the replacement of a collection of options, or of a function of this package that was not called."""
    if isinstance(value, list | range | AbstractSet):
        return f"choice({sorted(value, key=repr) if isinstance(value, AbstractSet) else value!r})"
    if getattr(value, "shape", ()) != () and callable(getattr(value, "tolist", None)):
        return f"choice({value.tolist()!r})"
    if callable(value) and getattr(value, "__module__", "") == "hopfleet.domain.space.constructors":
        return f"{value.__name__}(...)"
    return ""


def _of_ray(value: Any) -> str:
    sampler: Any = getattr(value, "sampler", None)
    step = getattr(sampler, "q", None)
    sampler = getattr(sampler, "sampler", sampler)  # without the rounding to multiples of ``q``
    log = "Log" in type(sampler).__name__
    if hasattr(value, "categories"):
        return str(Choice(tuple(value.categories)))
    if hasattr(value, "func"):
        return "sample_from(lambda config: ...)"
    if hasattr(sampler, "sd"):
        return str(Normal(sampler.mean, sampler.sd))
    if type(value).__name__ == "Integer":
        return _integers(value.lower, value.upper + (step is not None), log, step or 1)
    return str(Float(value.lower, value.upper, log, step)) if hasattr(value, "lower") else ""


def _of_optuna(value: Any) -> str:
    if hasattr(value, "choices"):
        return str(Choice(tuple(value.choices)))
    if type(value).__name__.startswith("Int"):
        return _integers(value.low, value.high + 1, value.log, value.step or 1)
    return str(Float(value.low, value.high, value.log, value.step)) if hasattr(value, "low") else ""


def _of_scipy(value: Any) -> str:
    """Return the replacement of a frozen distribution, whose parameters are set."""
    name = getattr(getattr(value, "dist", None), "name", "")
    found: Dimension | None = None
    if name in ("uniform", "loguniform", "reciprocal", "randint"):
        low, high = (bound.item() if hasattr(bound, "item") else bound for bound in value.support())
        found = Integer(low, high + 1) if name == "randint" else Float(low, high, log=name != "uniform")
    elif name == "norm":
        found = Normal(float(value.mean()), float(value.std()))
    return str(found or "")


def _integers(low: int, beyond: int, log: bool, step: int) -> str:
    return str(Integer(low, beyond, log)) if step == 1 else f"choice(range({low}, {beyond}, {step}))"
