"""Calls with wrong arguments: which keyword the user may have meant, and what the function takes."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hopfleet.domain.argument_types import wrong_type
from hopfleet.errors import HopfleetError, UsageError
from hopfleet.phrases import nearest

Target = TypeVar("Target", bound=Callable[..., Any])

ELSEWHERE = {
    "concurrency": ("max_concurrent", "max_concurrent_trials", "n_jobs", "num_workers"),
    "epochs": ("patience", "max_epochs", "num_epochs", "n_epochs"),
    "eta": ("reduction_factor", "factor"),
    "explore": ("hyperparam_mutations", "mutations"),
    "interval": ("perturbation_interval", "burn_in_period"),
    "max_epochs": ("epochs", "max_t", "num_epochs", "n_epochs", "max_resource", "max_iter"),
    "min_epochs": ("grace_period", "min_resource", "min_t"),
    "partitions": ("n_partitions", "num_partitions", "npartitions", "shards", "num_shards", "parts"),
    "population": ("population_size", "num_samples", "n_trials", "trials"),
    "quantile": ("quantile_fraction",),
    "quiet": ("verbose", "silent", "progress_bar", "verbosity"),
    "resample": ("resample_probability",),
    "seconds": ("time_budget_s", "timeout", "time", "max_time", "duration"),
    "seed": ("random_state", "random_seed"),
    "transform_workers": ("num_workers",),
    "trials": ("n_trials", "num_samples", "num_trials", "n_iter", "max_evals", "max_trials", "n_samples"),
}
"""Names of arguments, and what other libraries call them."""


def explained(target: Target) -> Target:
    """Have a function, or the constructor of a class, refuse wrong types, and explain calls with wrong arguments.

    What the function itself says about an argument may tell more than its type, so the function is asked first. One
    that acts on files or workers is decorated with ``checked`` instead.
    """
    return _decorated(target, _ask)


def signposted(target: Target) -> Target:
    """Explain calls with wrong arguments, and leave their types to the target, as scikit-learn's estimators do."""
    return _decorated(target, _ask, None)


def checked(target: Target) -> Target:
    """Do the same as ``explained``, and call the function only with arguments of the right types."""
    return _decorated(target, _refuse)


def checked_but(*own: str) -> Callable[[Target], Target]:
    """Do the same as ``checked``, for a function that checks its ``own`` arguments itself before it acts."""
    return lambda target: _decorated(target, _refuse, own)


def _ask(function: Callable[..., Any], wrong: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    try:
        function(*arguments, **keywords)
    except HopfleetError:
        raise
    except Exception:
        raise UsageError(wrong) from None
    raise UsageError(wrong)


def _refuse(function: Callable[..., Any], wrong: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    raise UsageError(wrong)


def _decorated(target: Target, complain: Callable[..., None], own: Sequence[str] | None = ()) -> Target:
    if not isinstance(target, type):
        return _explained(target, target.__name__, complain, own)
    made = target.__dict__.get("__init__")
    if made is not None:
        setattr(target, "__init__", _explained(made, target.__name__, complain, own))  # noqa: B010
    return target


def _explained(function: Target, name: str, complain: Callable[..., None], own: Sequence[str] | None) -> Target:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if own is not None and (wrong := wrong_type(function, arguments, keywords, own)):
            complain(function, wrong, arguments, keywords)
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:  # raised by the function itself
                raise
            text = str(error).replace(f"{function.__qualname__}()", f"{name}()", 1)
            raise TypeError(f"{text}; {_remedy(function, name, str(error))}").with_traceback(trace) from None

    return call  # type: ignore[return-value]


def _remedy(function: Callable[..., Any], name: str, problem: str) -> str:
    """Return what to write instead: the argument that was meant, if there is one, or the whole call."""
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    found = re.search(r"unexpected keyword argument '(\w+)'", problem)
    names = [each.name for each in known if each.kind not in various]
    if found is None:
        needed = [_written(each) for each in known if each.default is each.empty and each.name in names]
        if not needed and all(each.kind is each.KEYWORD_ONLY for each in known):
            return f"it takes {', '.join(names)} by name alone"
        return f"it is called as {name}({', '.join([*needed, *['...'] * (len(needed) < len(names))])})"
    return meant_by(found[1], names)


def meant_by(keyword: str, names: Sequence[str]) -> str:
    """Return which of the names of arguments a keyword may stand for, as a sentence."""
    meant = next((each for each in names if keyword in ELSEWHERE.get(each, ())), "") or nearest(keyword, names)
    return f"did you mean {meant!r}?" if meant else f"it takes {', '.join(names) or 'no arguments'}"


def _written(argument: inspect.Parameter) -> str:
    return f"{argument.name}=..." if argument.kind is argument.KEYWORD_ONLY else argument.name
